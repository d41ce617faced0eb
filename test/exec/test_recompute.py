# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Recomputation: the same steps in less memory, on several meshes."""

import re

import meshwright as mw
import pytest
import torch
import torch.nn.functional as F
from torch import nn

MESHES = {
    "one rank": dict(mesh={"tp": 1}),
    "dp=2": dict(mesh={"dp": 2}, shard_optimizer="on"),
    "tp=2": dict(mesh={"tp": 2}, sequence_parallel="off"),
    "dp=2,tp=3 sp": dict(mesh={"dp": 2, "tp": 3}, sequence_parallel="on"),
    "ring=2 zigzag": dict(mesh={"ring": 2}, context_parallel={"ring": "ring", "order": "zigzag"}),
    "ulysses=2": dict(mesh={"ulysses": 2}, context_parallel={"ulysses": "ulysses"}),
}


class Block(nn.Module):
    def __init__(self, width, p):
        super().__init__()
        self.p = p
        self.norm, self.fused, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (6, -1)).transpose(1, 2) for t in self.fused(self.norm(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p, is_causal=True)
        x = x + F.dropout(self.out(a.transpose(1, 2).flatten(2)), self.p)
        return x + self.down(F.dropout(F.gelu(self.up(x)), self.p))


class Stack(nn.Module):
    def __init__(self, layers=5, width=24, p=0.0):
        super().__init__()
        torch.manual_seed(3)
        self.table = nn.Embedding(29, width)
        self.blocks = nn.ModuleList(Block(width, p) for _ in range(layers))

    def forward(self, ids, labels):
        x = self.table(ids)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy((x @ self.table.weight.T).flatten(0, 1), labels.flatten())


def batches(steps=3, batch=4, tokens=24):
    g = torch.Generator().manual_seed(1)
    draw = lambda: torch.randint(0, 29, (batch, tokens), generator=g)
    return [dict(ids=draw(), labels=draw()) for _ in range(steps)]


def plan_of(net, mesh, microbatches=1, tokens=24, **options):
    train = mw.from_torch(net, (), batches(1, tokens=tokens)[0], training=True).train(mw.SGD(lr=0.1), microbatches=microbatches, seed=7)
    return train.parallelize(**{**MESHES[mesh], **options})


def memory_of(plan):
    return plan.report(format="json")["memory_per_rank"]


def total_of(plan):
    parts = ("weights", "packing", "optimizer", "masters", "gradients", "state", "activations_peak")
    return sum(memory_of(plan).get(part, 0) for part in parts)


def decision_of(plan):
    return [d for d in plan.report(format="json")["decisions"] if d["pass"] == "recompute"]


def steps_of(plan, tokens=24):
    with plan.start() as session:
        losses = [session.run(**batch)[0].item() for batch in batches(tokens=tokens)]
        return losses, session.parameters()


def compare(got, want, tolerance=1e-6):
    for a, b in zip(got[0], want[0], strict=True):
        assert a == pytest.approx(b, rel=tolerance)
    for name, value in want[1].items():
        value = value.double()
        error = (got[1][name].double() - value).abs().max() / value.abs().max().clamp_min(1e-30)
        assert error <= tolerance, (name, error)


@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("mesh", MESHES)
def test_full_is_none_in_less_memory(mesh, p):
    none, full, auto = (plan_of(Stack(p=p), mesh, recompute=mode) for mode in ("none", "full", "auto"))
    assert memory_of(full)["activations_peak"] < memory_of(none)["activations_peak"]
    want = steps_of(none)
    compare(steps_of(full), want)
    # Without a ceiling nothing is repeated.
    assert memory_of(auto) == memory_of(none)
    assert [d["outcome"] for d in decision_of(auto)] == ["declined"]
    assert [d["outcome"] for d in decision_of(full)] == ["applied"] and not decision_of(none)


@pytest.mark.parametrize("mesh", ["dp=2", "tp=2"])
def test_microbatches(mesh):
    # Activations take more than the gradients that a reduction holds at once.
    none, full = (plan_of(Stack(p=0.2), mesh, 2, tokens=72, recompute=mode) for mode in ("none", "full"))
    assert memory_of(full)["activations_peak"] < memory_of(none)["activations_peak"]
    compare(steps_of(full, 72), steps_of(none, 72))


def test_bf16():
    none, full = (plan_of(Stack().bfloat16(), "dp=2,tp=3 sp", recompute=mode) for mode in ("none", "full"))
    assert memory_of(full)["activations_peak"] < memory_of(none)["activations_peak"]
    compare(steps_of(full), steps_of(none), 1e-3)


def least_of(net, mesh, **options):
    """The least bytes that a plan needs, as the error says."""
    with pytest.raises(mw.Error) as caught:
        plan_of(net, mesh, memory_ceiling=1024, **options)
    return int(re.search(r"needs (\d+) bytes", str(caught.value))[1])


@pytest.mark.parametrize("mesh", ["one rank", "tp=2"])
def test_auto_keeps_to_the_ceiling(mesh):
    net = Stack(layers=6)
    none = plan_of(net, mesh, recompute="none")
    assert plan_of(net, mesh, memory_ceiling=total_of(none)).report(format="json")["memory_per_rank"] == memory_of(none)
    # Commits copy states before anything is computed again.
    most, least = (least_of(net, mesh, recompute=mode) for mode in ("none", "full"))
    (decision,) = decision_of(plan_of(net, mesh, memory_ceiling=most))
    assert most < total_of(none) and decision["outcome"] == "declined"
    want, repeated = steps_of(none), []
    for ceiling in ((most + least) // 2, most - (most - least) // 8):
        plan = plan_of(net, mesh, memory_ceiling=ceiling)
        assert total_of(plan) <= ceiling
        (decision,) = decision_of(plan)
        assert decision["outcome"] == "applied" and decision["numbers"]["memory_ceiling_bytes"] == ceiling
        repeated.append(decision["numbers"]["seconds"])
        compare(steps_of(plan), want)
    # A higher ceiling asks for less.
    assert repeated[1] <= repeated[0]


def test_a_ceiling_below_all():
    with pytest.raises(mw.Error, match=r"'step' needs \d+ bytes on a rank.*expected at most 1024, the memory ceiling"):
        plan_of(Stack(), "tp=2", memory_ceiling=1024)


def test_planned_is_seen():
    plan = plan_of(Stack(), "tp=2", recompute="full")
    plan.run(**batches(1)[0], measure=True)
    arena = plan.report(format="json")["run"]["arena"]
    assert arena["planned"] == arena["seen"]


def test_an_unknown_mode():
    with pytest.raises(mw.Error, match="recompute: expected none, full or auto, got 'some'"):
        plan_of(Stack(), "tp=2", recompute="some")


class Recurrent(nn.Module):
    """Two layers that go token by token. The first step of each multiplies its initial state, which is
    a constant, by a weight."""

    def __init__(self, bias, width=12, hidden=10):
        super().__init__()
        torch.manual_seed(3)
        self.table, self.head = nn.Embedding(29, width), nn.Linear(hidden, 29)
        self.inputs = nn.ModuleList(nn.Linear(n, hidden, bias) for n in (width, hidden))
        self.states = nn.ModuleList(nn.Linear(hidden, hidden, bias) for _ in range(2))

    def forward(self, ids, labels):
        x = self.table(ids)
        for into, step in zip(self.inputs, self.states):
            state, states = x.new_zeros(len(x), into.out_features), []
            for token in x.unbind(1):
                state = torch.tanh(into(token) + step(state))
                states.append(state)
            x = torch.stack(states, 1)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("mesh", ["one rank", "dp=2", "tp=2", "dp=2,tp=3 sp"])
def test_recurrences(mesh, bias):
    data = [{k: v[:, :5] for k, v in batch.items()} for batch in batches()]
    train = mw.from_torch(Recurrent(bias), (), data[0], training=True).train(mw.SGD(lr=0.1))

    def steps(mode):
        with train.parallelize(**MESHES[mesh], recompute=mode).start() as session:
            return [session.run(**batch)[0].item() for batch in data], session.parameters()

    compare(steps("full"), steps("none"))


class Normalized(nn.Module):
    """Two gated layers of odd width, each behind a norm that squares what it is given."""

    def __init__(self):
        super().__init__()
        self.up, self.gate, self.down = (
            nn.ModuleList(nn.Linear(*size) for _ in range(2)) for size in ((8, 13), (8, 13), (13, 8)))

    def forward(self, x):
        for up, gate, down in zip(self.up, self.gate, self.down, strict=True):
            y = F.normalize(x, dim=-1)
            x = x + down(F.gelu(up(y)) * gate(y))
        return x.square().mean()


def test_a_square_stays_one():
    """A repeated op waits in all its operands that are one value, so the proof still sees a square."""
    torch.manual_seed(0)
    net, x = Normalized(), torch.randn(3, 8)
    model = mw.from_torch(net, (x,), training=True).differentiate()
    plan = model.parallelize(mesh={"tp": 2}, recompute="full")
    assert "dist.after" in plan.ir("spmd")
    got = plan.run(x)
    net(x).backward()
    for name, value in zip(model.outputs[1:], got[1:], strict=True):
        want = net.get_parameter(name.removeprefix("grad.")).grad
        torch.testing.assert_close(torch.as_tensor(value), want, atol=1e-6, rtol=1e-5)


class Turned(nn.Module):
    """Attention whose queries and keys turn by their positions, and a narrow layer behind it."""

    def __init__(self, width=8):
        super().__init__()
        torch.manual_seed(3)
        self.fused, self.out = nn.Linear(width, 3 * width, False), nn.Linear(width, width)
        self.down, self.up = nn.Linear(width, 2, False), nn.Linear(2, width, False)

    def forward(self, x):
        def turn(t):
            a, b = t.chunk(2, -1)
            angle = torch.arange(t.shape[2])[:, None] * torch.tensor([1.0, 0.1])
            return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.fused(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(turn(q), turn(k), v)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return (x + self.up(self.down(x))).square().mean()


def test_chunks_of_values_that_wait():
    """The parts of one attention are over the same keys, though one of them waits."""
    torch.manual_seed(0)
    net, x = Turned(), torch.randn(2, 2, 8)
    model = mw.from_torch(net, (x,), training=True).differentiate()
    plan = model.parallelize(mesh={"ring": 2}, context_parallel={"ring": "ring"}, recompute="full", overlap="on")
    got = plan.run(x)
    net(x).backward()
    for name, value in zip(model.outputs[1:], got[1:], strict=True):
        want = net.get_parameter(name.removeprefix("grad.")).grad
        torch.testing.assert_close(torch.as_tensor(value), want, atol=1e-6, rtol=1e-5)


class Chain(nn.Module):
    def __init__(self, layers, width=16):
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(width, 4 * width, bias=False) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(4 * width, width, bias=False) for _ in range(layers))

    def forward(self, x):
        for up, down in zip(self.up, self.down, strict=True):
            x = down(up(x).tanh())
        return x.square().mean()


def chain_memory(layers):
    x = torch.zeros(4096, 16)
    train = mw.from_torch(Chain(layers), (), dict(x=x), training=True).train(mw.SGD(lr=0.1))
    plan = train.parallelize(mesh={"dp": 2}, recompute="full")
    return plan.report("json")["memory_per_rank"]["activations_peak"]


def test_cuts_are_spread_over_many_layers():
    """With more points to cut at than are tried, the later layers are cut, too."""
    assert chain_memory(360) < 2.2 * chain_memory(120)
