# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Buffers that are written to after the import: what was computed from them is computed anew. And
parameters and buffers that are assigned anew."""
import meshwright as mw
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune


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
    "another tensor": lambda n: setattr(n, "k", n.k * 2),
    "load_state_dict, assigned": lambda n: n.load_state_dict({**n.state_dict(), "k": n.k * 2}, assign=True),
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


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.b.weight, self.plain = self.a.weight, torch.ones(6)
        self.register_buffer("k", torch.ones(6))
        self.register_buffer("n", torch.arange(6.0), persistent=False)

    def forward(self, x):
        return self.b(self.a(x).tanh()) * self.k + self.n * 2 + self.plain


def doubled(tensors):
    return {name: tensor * 2 for name, tensor in tensors.items()}


def ties(n):
    n.a.weight = n.b.weight = nn.Parameter(n.a.weight.detach() * 2)


def loads(n):
    values = doubled(n.state_dict())
    values["b.weight"] = values["a.weight"]
    n.load_state_dict(values, assign=True)


@pytest.mark.parametrize("change", [
    ties, loads, lambda n: setattr(n.a, "bias", nn.Parameter(n.a.bias.detach() * 2)),
    lambda n: setattr(n.a, "bias", nn.Parameter(torch.ones(12)[::2])), lambda n: setattr(n, "k", n.k * 3),
    lambda n: setattr(n, "n", n.n * 1), lambda n: setattr(n, "plain", n.plain * 3),
    lambda n: setattr(n, "b", nn.Linear(6, 6).requires_grad_(False)) or setattr(n.b, "weight", n.a.weight)])
def test_tensors_that_are_assigned(change):
    net = Tied().eval()
    model = mw.from_torch(net, (X,))
    plan, whole = model.parallelize(mesh={"tp": 2}), mw.compose({"a": model}, {}).parallelize(mesh={"tp": 1})
    for run in plan.run, whole.run:
        assert (run(X)[0] - net(X)).abs().max() <= 1e-5
    change(net)
    for run in plan.run, whole.run, plan.start().run:
        assert (run(X)[0] - net(X)).abs().max() <= 1e-5
    with torch.no_grad():
        net.a.bias.add_(1)
    assert (plan.run(X)[0] - net(X)).abs().max() <= 1e-5


def parametrized(n):
    nn.utils.parametrizations.weight_norm(n.a, "weight")


@pytest.mark.parametrize("change, message", [
    (lambda n: setattr(n.a, "bias", nn.Parameter(torch.ones(1))), r"a.bias was .* is float32\[1\] on cpu, not"),
    (lambda n: setattr(n, "k", n.k.double()), r"k was .* is float64\[6\] on cpu, not float32\[6\]"),
    (lambda n: setattr(n.b, "weight", nn.Parameter(torch.ones(6, 6))), "a.weight .* is no longer one tensor with b.w"),
    (lambda n: setattr(n.a, "weight", nn.Parameter(torch.ones(6, 6))), "a.weight .* is no longer one tensor with b.w"),
    (lambda n: setattr(n, "n", n.n * 3), "buffer n was changed after"),
    (parametrized, "a.weight was .* is computed from others now"),
    (lambda n: prune.l1_unstructured(n.a, "bias", 1), "a.bias was .* is computed from others now")])
def test_tensors_that_do_not_fit(change, message):
    net = Tied().eval()
    plan = mw.from_torch(net, (X,)).parallelize(mesh={"tp": 2})
    plan.run(X)
    change(net)
    for run in lambda: plan.run(X), plan.start:
        with pytest.raises(mw.Error, match=message + ".*expected the module to be imported again"):
            run()


def test_training_from_assigned_tensors():
    class Loss(Tied):
        def forward(self, x):
            return super().forward(x).square().mean()

    net = Loss().train()
    plan = mw.from_torch(net, (X,), training=True).train(mw.SGD(lr=0.1)).parallelize(mesh={"dp": 2})
    for change in loads, lambda n: n.load_state_dict(n.state_dict(), assign=True):
        change(net)
        with plan.start() as session:
            assert float(session.run(X)[0]) == pytest.approx(float(net(X)), rel=1e-5)
    net.a.bias = nn.Parameter(net.a.bias.detach(), requires_grad=False)
    with pytest.raises(mw.Error, match="a.bias was .* does not require a gradient"):
        plan.start()
