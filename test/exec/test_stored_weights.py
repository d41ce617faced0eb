# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Weights of 8 and 4 bits with scales: recognised, held as they are stored, and right."""

import copy

import meshwright as mw
import pytest
import torch
from stored_modules import drawn
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
