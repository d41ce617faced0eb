# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Buffers that are written to after the import: what was computed from them is computed anew."""
import meshwright as mw
import numpy as np
import pytest
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, value, function, persistent=True):
        super().__init__()
        torch.manual_seed(1)
        self.register_buffer("k", value, persistent=persistent)
        self.layer, self.function = nn.Linear(6, 2), function

    def forward(self, x):
        return self.function(self.layer(x), self.k)


X = torch.randn(2, 6, generator=torch.Generator().manual_seed(2))
REFUSED = ("buffer k was changed after the import, and the program holds what was computed from its "
           "earlier values; expected the module to be imported again")


def table(y, k):
    return y.sum() + (k * 2).cos()


CHANGES = {
    "in place": lambda n: n.k.mul_(2), "its data": lambda n: n.k.data.mul_(2),
    "NumPy's view": lambda n: np.multiply(n.k.numpy(), 2, out=n.k.numpy()),
    "load_state_dict": lambda n: n.load_state_dict({**n.state_dict(), "k": n.k * 2}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_table(change):
    for value in (torch.arange(40), torch.arange(40.0)):
        net = Net(value.clone(), table).eval()
        model = mw.from_torch(net, (X,))
        plan, whole = model.parallelize(mesh={"tp": 2}), mw.compose({"a": model}, {}).parallelize(mesh={"tp": 1})
        for _ in range(2):
            want = net(X).detach()
            assert (plan.run(X)[0] - want).abs().max() <= 1e-5
            assert (whole.run(X)[0] - want).abs().max() <= 1e-5
            CHANGES[change](net)


def test_a_session_of_training():
    class Loss(Net):
        def forward(self, x):
            return table(self.layer(x), self.k).square().mean()

    net = Loss(torch.arange(40.0), None, persistent=False).train()
    plan = mw.from_torch(net, (X,), training=True).train(mw.SGD(lr=0.0)).parallelize(mesh={"dp": 2})
    for _ in range(2):
        with plan.start() as session:
            assert float(session.run(X)[0]) == pytest.approx(float(net(X)), rel=1e-5)
        net.k.mul_(2)


@pytest.mark.parametrize("value, function, change", [
    (torch.tensor([2, 3]), lambda y, k: y * k + k.sum(), lambda k: k.copy_(torch.tensor([5, 1]))),
    (torch.ones(2, 2, dtype=torch.bool).tril(), lambda y, k: y.masked_fill(~k, -1.0), lambda k: k.fill_(True))])
def test_values_that_are_part_of_the_program(value, function, change):
    net = Net(value.clone(), function).eval()
    model = mw.from_torch(net, (X,))
    plan = model.parallelize(mesh={"tp": 2})
    before = plan.run(X)[0]
    net.load_state_dict(net.state_dict())  # writes the same values
    assert torch.equal(plan.run(X)[0], before)
    change(net.k)
    with pytest.raises(mw.Error, match=REFUSED):
        plan.run(X)
    with pytest.raises(mw.Error, match=REFUSED):
        plan.start()
    again = mw.from_torch(net, (X,)).parallelize(mesh={"tp": 2})
    assert (again.run(X)[0] - net(X)).abs().max() <= 1e-5


def test_saving(tmp_path):
    net = Net(torch.arange(40.0), table, persistent=False).eval()
    model = mw.from_torch(net, (X,))
    net.k.mul_(2)
    model.save(tmp_path / "net.mlir", tmp_path / "net.safetensors")
    loaded = mw.load(tmp_path / "net.mlir", tmp_path / "net.safetensors").parallelize(mesh={"tp": 2})
    assert (loaded.run(x=X)[0] - net(X)).abs().max() <= 1e-5
