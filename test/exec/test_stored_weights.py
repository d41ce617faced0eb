# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Weights of 8 and 4 bits with scales: recognised, held as they are stored, and right."""

import copy

import meshwright as mw
import pytest
import torch
import torch.nn.functional as F
from stored_modules import Mlp, Weight, Weight4, drawn
from torch import nn


class Fixed(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self):
        return self.value


def truth(net, x):
    """The module in f64, with the weights that the codes stand for."""
    wide = copy.deepcopy(net)
    for linear in (wide.up, wide.down):
        linear.weight = Fixed(linear.weight().double())
        linear.bias = nn.Parameter(linear.bias.double(), requires_grad=False)
    return wide(x.double())


def stored(net):
    return sum(b.numel() * b.element_size() for name, b in net.named_buffers() if not name.endswith("table"))


@pytest.mark.parametrize("seed", range(24))
def test_drawn(seed):
    net, mesh = drawn(seed)
    x = torch.randn(2, 5, net.down.bias.numel(), generator=torch.Generator().manual_seed(seed))
    model = mw.from_torch(net, (x,))
    assert model.ir().count("nn.dequantize") == 2, model.ir()
    plan = model.parallelize(mesh=mesh)
    got, want = plan.run(x)[0], truth(net, x)
    assert (got.double() - want).abs().max() <= 2e-6 * want.abs().max()
    assert torch.equal(got, plan.run(x)[0])
    bias = sum(p.numel() * 4 for p in net.parameters())
    assert plan.report(format="json")["memory_per_rank"]["weights"] <= stored(net) + bias + 64


@pytest.mark.parametrize("how", ["repeat", "power", "flat", "rows"])
def test_halves_of_bytes(how):
    net = Mlp(lambda w: Weight4(w, how), 64, 96).eval()
    x = torch.randn(3, 64)
    model = mw.from_torch(net, (x,))
    assert model.ir().count("nn.dequantize") == 2 and model.ir().count("f4E2M1FN") > 2
    got, want = model.parallelize(mesh={"tp": 2}).run(x)[0], truth(net, x)
    assert (got.double() - want).abs().max() <= 2e-6 * want.abs().max()


def codes(rows, columns):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(3)).to(torch.float8_e4m3fn)


def four_bits(s):
    pairs = torch.stack([s.table[(s.codes & 15).int()], s.table[(s.codes >> 4).int()]], -1).flatten(-2)
    return (pairs.bfloat16().float() * s.scales[..., None]).flatten(-2)


PACKED = torch.randint(0, 256, (40, 1, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
#: The codes, the scales, the weight, and whether it is recognised.
SPELLINGS = {
    "a column of scales": (codes(40, 24), torch.rand(40, 3), lambda s: s.codes.float() * s.scales[:, 1:2], True),
    "a column by its number": (codes(40, 24), torch.rand(40, 3), lambda s: s.codes.float() * s.scales[:, 2][:, None], True),
    "blocks behind the first": (codes(96, 24), torch.rand(3, 1),
                                lambda s: s.codes[32:].float() * s.scales[1:].repeat_interleave(32, 0), True),
    "a factor of rank 2": (codes(40, 24), torch.rand(40),
                           lambda s: s.codes.float() * (s.scales[:, None] * torch.tensor([[0.5]])), True),
    "scales in another order": (codes(40, 24), torch.rand(40, 1), lambda s: s.codes.float() * s.scales.flip(0), True),
    "a rounded table": (PACKED, torch.rand(40, 1), four_bits, False),
}


@pytest.mark.parametrize("stored,scales,weight,known", SPELLINGS.values(), ids=SPELLINGS)
def test_spellings(stored, scales, weight, known):
    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("codes", stored)
            self.register_buffer("scales", scales)
            self.register_buffer("table", torch.linspace(-1.1, 1, 16))

        def forward(self, x):
            return F.linear(x, weight(self))

    net = Product().eval()
    x = torch.randn(3, weight(net).shape[1])
    model = mw.from_torch(net, (x,))
    assert model.ir().count("nn.dequantize") == known
    got = model.parallelize(mesh={"tp": 2}).run(x)[0]
    torch.testing.assert_close(got, net(x), rtol=1e-5, atol=1e-6)


def test_bytes_wrap():
    class Bytes(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("a", torch.arange(250, 260).to(torch.uint8))
            self.register_buffer("n", torch.arange(10).to(torch.uint8) % 8)

        def forward(self, x):
            a, n = self.a, self.n
            return torch.stack([x * (a << n), x * (a * 3 + 200), x * torch.where(a > 100, a + a, a - n), x * ~a])

    net, x = Bytes().eval(), torch.ones(10)
    assert torch.equal(mw.from_torch(net, (x,)).parallelize(mesh={"dp": 1}).run(x)[0], net(x))


WEIGHTS = {
    "f8": lambda w: Weight(w, torch.float8_e4m3fn, (128, 128), torch.float32, "repeat"),
    "whole rows of int8": lambda w: Weight(w, torch.int8, (1, w.shape[1]), torch.float32, "repeat"),
    "mxfp4": lambda w: Weight4(w, "repeat"),
}


class Bf16(nn.Module):
    """Products of bf16 with and without a bias, and an activation behind the one without."""

    def __init__(self, make):
        super().__init__()
        draw = torch.Generator().manual_seed(5)
        self.up = make(torch.randn(320, 256, generator=draw) / 16)
        self.down = make(torch.randn(96, 320, generator=draw) / 18)
        self.bias = nn.Parameter(torch.randn(96, generator=draw).bfloat16())

    def forward(self, x):
        h = F.silu(F.linear(x, self.up().bfloat16()))
        return h, F.linear(h, self.down().bfloat16(), self.bias)


@pytest.mark.parametrize("make", WEIGHTS.values(), ids=WEIGHTS)
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 16, 17, 64, 100])
def test_rows_of_bf16(rows, make):
    net = Bf16(make).eval()
    x = torch.randn(rows, 256, generator=torch.Generator().manual_seed(6)).bfloat16()
    model = mw.from_torch(net, (x,))
    assert model.ir().count("nn.dequantize") == 2, model.ir()
    plan = model.parallelize(mesh={"dp": 1})
    h, y = plan.run(x, threads_per_rank=1)
    for got, again in zip((h, y), plan.run(x, threads_per_rank=2), strict=True):
        assert torch.equal(got, again)
    wide = F.silu(x.double() @ net.up().bfloat16().double().T)
    assert (h.double() - wide).abs().max() <= 2**-7 * wide.abs().max()
    want = h.double() @ net.down().bfloat16().double().T + net.bias.double()
    assert (y.double() - want).abs().max() <= 2**-8 * want.abs().max()
