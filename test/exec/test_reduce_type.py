# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Partial sums in f32 (`reduce_type`): values whose parts on ranks nearly cancel, in bf16 and f16."""

import copy

import meshwright as mw
import pytest
import torch
import torch.nn.functional as F
from torch import nn

MESHES = {
    "tp=2": dict(mesh={"tp": 2}, sequence_parallel="off"),
    "tp=3": dict(mesh={"tp": 3}, sequence_parallel="off"),
    "tp=4 sp": dict(mesh={"tp": 4}, sequence_parallel="on"),
    "tp=2 sp, overlap": dict(mesh={"tp": 2}, sequence_parallel="on", overlap="on"),
    "dp=2,tp=2": dict(mesh={"dp": 2, "tp": 2}),
}


def cancelling(rows, columns, parts=2):
    """A weight whose blocks of columns add up to much less than each of them."""
    blocks = [torch.randn(rows, columns // parts) * 30 for _ in range(parts - 1)]
    return torch.cat([*blocks, torch.randn(rows, columns // parts) - sum(blocks)], 1)


class Mlp(nn.Module):
    def __init__(self, bias=False, residual=False, width=16, hidden=48, parts=2):
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden, bias=False), nn.Linear(hidden, width, bias=bias)
        with torch.no_grad():
            self.up.weight.copy_(self.up.weight[: hidden // parts].repeat(parts, 1))
            self.down.weight.copy_(cancelling(width, hidden, parts))
        self.residual = residual

    def forward(self, x):
        y = self.down(F.silu(self.up(x)))
        return x + y if self.residual else y


class Branches(nn.Module):
    """Two row-parallel products into one sum."""

    def __init__(self):
        super().__init__()
        self.a, self.b = Mlp(), Mlp(bias=True)

    def forward(self, x):
        return x + self.a(x) + self.b(x)


class Attention(nn.Module):
    def __init__(self, width=24, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
        with torch.no_grad():
            for part in self.qkv.weight.chunk(3):
                part.copy_(part[: width // 2].repeat(2, 1))
            self.o.weight.copy_(cancelling(width, width))

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


MODULES = {
    "product": (Mlp, 16),
    "bias and residual": (lambda: Mlp(bias=True, residual=True), 16),
    "three parts": (lambda: Mlp(parts=3), 16),
    "four parts": (lambda: Mlp(parts=4), 16),
    "branches": (Branches, 16),
    "attention": (Attention, 24),
}


def relative(got, want):
    return float((got.double() - want).abs().max() / want.abs().max())


def check_all(names, dtype, meshes):
    for name in names:
        torch.manual_seed(0)
        make, width = MODULES[name]
        net, x = make().to(dtype), torch.randn(2, 8, width).to(dtype)
        want = copy.deepcopy(net).double()(x.double()).detach()
        own = relative(net(x).detach(), want)
        model = mw.from_torch(net, (x,))
        for mesh in meshes:
            plan = model.parallelize(**MESHES[mesh], reduce_type="f32")
            error = relative(plan.run(x)[0], want)
            assert error <= max(2e-2, 1.25 * own), (name, mesh, error, own)


@pytest.mark.parametrize("mesh", MESHES)
def test_bf16(mesh):
    check_all(MODULES, torch.bfloat16, [mesh])


def test_f16():
    check_all(["product", "bias and residual", "attention"], torch.float16, ["tp=2", "tp=4 sp"])


def test_own_type_loses_digits():
    """The option is what makes the difference, and the default keeps its bytes."""
    torch.manual_seed(0)
    net, x = Mlp().bfloat16(), torch.randn(2, 8, 16).bfloat16()
    want = copy.deepcopy(net).double()(x.double()).detach()
    model = mw.from_torch(net, (x,))
    plans = {kind: model.parallelize(mesh={"tp": 2}, sequence_parallel="off", reduce_type=kind)
             for kind in (None, "own", "f32")}
    errors = {kind: relative(plan.run(x)[0], want) for kind, plan in plans.items()}
    assert errors["f32"] <= 2e-2 < errors["own"] == errors[None]
    entries = {kind: [(c["kind"], c["dtype"]) for c in plan.report("json")["collectives"]]
               for kind, plan in plans.items()}
    assert entries["own"] == entries[None] == [("all_reduce", "bf16")]
    assert entries["f32"] == [("all_reduce", "f32")]
    decisions = plans["f32"].report("json")["decisions"]
    assert any(d["pass"] == "widen-sums" and d["outcome"] == "applied" for d in decisions)


def test_gathers_send_rounded_values():
    torch.manual_seed(0)
    net, x = nn.Sequential(Mlp(residual=True), nn.LayerNorm(16), Mlp()).bfloat16(), torch.randn(2, 8, 16).bfloat16()
    plan = mw.from_torch(net, (x,)).parallelize(mesh={"tp": 2}, sequence_parallel="on", reduce_type="f32")
    types = {(c["kind"], c["dtype"]) for c in plan.report("json")["collectives"]}
    assert ("reduce_scatter", "f32") in types and ("all_gather", "f32") not in types


def test_rules():
    torch.manual_seed(0)
    net, x = nn.Sequential(Mlp(), Mlp()).bfloat16(), torch.randn(2, 8, 16).bfloat16()
    model = mw.from_torch(net, (x,))
    plan = model.parallelize(mesh={"tp": 2}, sequence_parallel="off",
                             reduce_type={"0.up": "own", "0.*": "f32"})
    assert [c["dtype"] for c in plan.report("json")["collectives"]] == ["f32", "bf16"]
    with pytest.raises(mw.Error, match="reduce-type: the value of '0' is 'bf16'"):
        model.parallelize(mesh={"tp": 2}, reduce_type={"0": "bf16"})


@pytest.mark.parametrize("mesh", ["tp=2", "tp=4 sp", "dp=2,tp=2"])
def test_training(mesh):
    """Partial sums of the forward pass, and of gradients of the inputs of column-parallel products."""
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.mlp = nn.Embedding(12, 16), Mlp(residual=True)
            self.norm, self.head = nn.RMSNorm(16), nn.Linear(16, 12)

        def forward(self, ids):
            return F.cross_entropy(self.head(self.norm(self.mlp(self.table(ids)))).flatten(0, 1).float(),
                                   ids.flatten())

    torch.manual_seed(0)
    net, ids = Loss().bfloat16(), torch.randint(0, 12, (2, 8))

    def gradients(dtype):
        own = copy.deepcopy(net).to(dtype)
        own(ids).backward()
        return {name: p.grad.double() for name, p in own.named_parameters()}

    def apart(got):
        largest = max(float(w.abs().max()) for w in want.values())
        return max(float((got[name].double() - w).abs().max()) for name, w in want.items()) / largest

    want = gradients(torch.float64)
    own = apart(gradients(torch.bfloat16))
    model = mw.from_torch(net, (ids,), training=True).differentiate()
    outputs = model.parallelize(**MESHES[mesh], reduce_type="f32").run(ids)
    got = {name.removeprefix("grad."): value for name, value in zip(model.outputs, outputs, strict=True)}
    error = apart(got)
    assert error <= max(2e-2, 1.25 * own), (error, own)
