# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Gradients of attention with large scores, against autograd in f64.

One projection gives queries and keys, so that each token sees itself with a weight near 1. The
gradient of such a score is a difference of two large numbers that nearly cancel.
"""

import copy

import meshwright as mw
import pytest
import torch
import torch.nn.functional as F
from torch import nn

RING = {"ulysses": "ulysses", "ring": "ring", "order": "zigzag"}
MESHES = {
    "one rank": dict(mesh={"tp": 1}),
    "tp=2": dict(mesh={"tp": 2}),
    "ring=2": dict(mesh={"ulysses": 1, "ring": 2}, context_parallel=RING),
}


class Shared(nn.Module):
    """Attention whose queries are its keys."""

    def __init__(self, scale, size=16, heads=4, groups=4, causal=True, bias=False, cap=None,
                 masked=False, tokens=29):
        super().__init__()
        self.heads, self.groups, self.size, self.causal, self.cap = heads, groups, size, causal, cap
        self.qk = nn.Linear(heads * size, groups * size, bias=False)
        self.v = nn.Linear(heads * size, groups * size, bias=False)
        self.o = nn.Linear(heads * size, heads * size, bias=False)
        self.qk.weight.data *= (3 * scale) ** 0.5
        self.bias = nn.Parameter(torch.randn(heads, tokens, tokens)) if bias else None
        self.masked = masked

    def forward(self, x, by):
        n, t = self.heads // self.groups, x.shape[1]
        k, v = (p(x).unflatten(-1, (self.groups, self.size)).transpose(1, 2).repeat_interleave(n, 1)
                for p in (self.qk, self.v))
        scores = k @ k.mT / self.size ** 0.5
        if self.cap:
            scores = self.cap * (scores / self.cap).tanh()
        if self.bias is not None:
            scores = scores + self.bias
        if self.masked:
            scores = scores.masked_fill(torch.arange(t) == 3, -torch.inf)
        if self.causal:
            scores = scores.masked_fill(~torch.ones(t, t).tril().bool(), -torch.inf)
        y = scores.softmax(-1) @ v
        return (self.o(y.transpose(1, 2).flatten(2)) * by).sum()


def gradients(net, inputs, dtype):
    net = copy.deepcopy(net).to(dtype)
    net(*(x.to(dtype) for x in inputs)).backward()
    return {name: p.grad.double() for name, p in net.named_parameters()}


def apart(got, want):
    largest = max(float(w.abs().max()) for w in want.values())
    return max(float((got[name].double() - w).abs().max()) for name, w in want.items()) / largest


def check(net, meshes=MESHES, tokens=29, seed=0):
    torch.manual_seed(seed)
    inputs = torch.randn(2, tokens, net.qk.in_features), torch.randn(2, tokens, net.o.out_features)
    want = gradients(net, inputs, torch.float64)
    own = apart(gradients(net, inputs, torch.float32), want)
    model = mw.from_torch(net, inputs, training=True).differentiate()
    for mesh in meshes:
        plan = model.parallelize(**MESHES[mesh])
        outputs = dict(zip(model.outputs, plan.run(*inputs), strict=True))
        got = {name: outputs[f"grad.{name}"] for name in want}
        error = apart(got, want)
        assert error <= max(1e-6, 1.25 * own), (mesh, error, own)


@pytest.mark.parametrize("scale, size", [(1, 16), (10, 16), (100, 64)])
@pytest.mark.parametrize("seed", range(3))
def test_scales(scale, size, seed):
    torch.manual_seed(seed)
    check(Shared(scale, size), seed=seed)


@pytest.mark.parametrize("size", [8, 64, 128])
def test_sizes(size):
    torch.manual_seed(0)
    check(Shared(30, size, heads=2, groups=2), meshes=["one rank"])


FORMS = {
    "all keys": dict(causal=False),
    "grouped": dict(groups=2),
    "bias": dict(bias=True),
    "cap": dict(cap=50.0),
    "hidden key": dict(masked=True, causal=False),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(form):
    torch.manual_seed(0)
    check(Shared(10, 32, **FORMS[form]), meshes=["one rank", "tp=2"])


def test_several_blocks():
    """Keys of several blocks, and rows of several blocks, the last of both not whole."""
    torch.manual_seed(0)
    check(Shared(10, heads=2, groups=2), meshes=["one rank"], tokens=203)
