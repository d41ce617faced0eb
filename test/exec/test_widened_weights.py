# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""`stored_weights="widen"`: weights of 8 and 4 bits as numbers of the model's type, computed at load."""

import copy

import meshwright as mw
import pytest
import torch
import torch.nn.functional as F
from stored_modules import drawn
from test_stored_weights import SPELLINGS, truth
from torch import nn


def weights_of(plan):
    return plan.report(format="json")["memory_per_rank"]["weights"]


@pytest.mark.parametrize("seed", range(24))
def test_drawn(seed):
    net, mesh = drawn(seed)
    x = torch.randn(2, 5, net.down.bias.numel(), generator=torch.Generator().manual_seed(seed))
    plan = mw.from_torch(net, (x,)).parallelize(mesh=mesh, stored_weights="widen")
    got, want = plan.run(x)[0], truth(net, x)
    assert (got.double() - want).abs().max() <= 2e-6 * want.abs().max()
    assert torch.equal(got, plan.run(x)[0])
    assert "f8E" not in plan.ir() and "f4E" not in plan.ir() and "i8" not in plan.ir()
    dense = copy.deepcopy(net)
    dense.up, dense.down = nn.Linear(*want.shape[-1:], net.up.bias.numel()), nn.Linear(net.up.bias.numel(), *want.shape[-1:])
    assert weights_of(plan) == weights_of(mw.from_torch(dense, (x,)).parallelize(mesh=mesh))


class Product(nn.Module):
    def __init__(self, codes, scales, weight, dtype=torch.float32):
        super().__init__()
        self.register_buffer("codes", codes)
        self.register_buffer("scales", scales)
        self.register_buffer("table", torch.linspace(-1.1, 1, 16))
        self.weight, self.dtype = weight, dtype

    def forward(self, x):
        return F.linear(x, self.weight(self).to(self.dtype))


@pytest.mark.parametrize("codes,scales,weight,known", SPELLINGS.values(), ids=SPELLINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_spellings(codes, scales, weight, known, dtype):
    net = Product(codes, scales, weight, dtype).eval()
    x = torch.randn(3, weight(net).shape[1], dtype=dtype)
    plan = mw.from_torch(net, (x,)).parallelize(mesh={"tp": 2}, stored_weights="widen")
    wide = weight(net)
    # Rows of the weight are the model's type: nothing of f32 or of codes is left.
    assert weights_of(plan) == wide.numel() * x.element_size() // 2
    torch.testing.assert_close(plan.run(x)[0], net(x), rtol=1e-2 if dtype is torch.bfloat16 else 1e-5, atol=1e-6)


CODES = torch.randn(32, 24, generator=torch.Generator().manual_seed(1)).to(torch.float8_e4m3fn)


def test_codes_that_others_read():
    """The codes keep their name where the program reads them besides."""

    class Both(Product):
        def forward(self, x):
            return super().forward(x), self.codes.float() + x.sum()

    net = Both(CODES, torch.rand(32, 1), lambda s: s.codes.float() * s.scales).eval()
    x = torch.randn(3, 24)
    plan = mw.from_torch(net, (x,)).parallelize(mesh={"tp": 2}, stored_weights="widen")
    for got, want in zip(plan.run(x), net(x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_experts():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            w = torch.randn(4, 16, 24, generator=torch.Generator().manual_seed(2))
            self.scales = nn.Buffer(w.abs().amax((1, 2), keepdim=True) / 127)
            self.codes = nn.Buffer((w / self.scales).round().to(torch.int8))

        def forward(self, x):
            return torch.einsum("td,edf->etf", x, self.codes.float() * self.scales)

    net, x = Experts().eval(), torch.randn(6, 16)
    plan = mw.from_torch(net, (x,)).parallelize(mesh={"dp": 2}, stored_weights="widen")
    torch.testing.assert_close(plan.run(x)[0], net(x), rtol=1e-5, atol=1e-5)


def test_bundles(tmp_path):
    net, mesh = drawn(3)
    x = torch.randn(2, 5, net.down.bias.numel())
    plan = mw.from_torch(net, (x,)).parallelize(mesh=mesh, stored_weights="widen")
    plan.compile(tmp_path / "with")
    torch.testing.assert_close(mw.load_bundle(tmp_path / "with").start().run(x)[0], plan.run(x)[0], rtol=0, atol=0)
    with pytest.raises(mw.Error, match="stored-weights=widen: a bundle without weights"):
        plan.compile(tmp_path / "without", weights=False)
    assert not (tmp_path / "without").exists()


def test_refusals():
    net, mesh = drawn(3)
    model = mw.from_torch(net, (torch.randn(2, 5, net.down.bias.numel()),))
    with pytest.raises(mw.Error, match="stored-weights: expected keep or widen, got 'wide'"):
        model.parallelize(mesh=mesh, stored_weights="wide")
