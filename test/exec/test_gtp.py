# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Weights that ranks store in shards and gather before they use them."""

import re

import meshwright as mw
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_training import Net, batches, compare, expect
from torch import nn

PLANS = {
    "gtp=2": dict(mesh={"gtp": 2}),
    "gtp=5": dict(mesh={"gtp": 5}),  # more ranks than rows of the batch can feed
    "gtp=2,tp=3": dict(mesh={"gtp": 2, "tp": 3}, sequence_parallel="off"),
    "dp=2,gtp=2": dict(mesh={"dp": 2, "gtp": 2}, shard_optimizer="on"),
    "gtp=dp": dict(mesh={"dp": 3}, gtp="dp", recompute="full"),
    "gtp=dp,gtp": dict(mesh={"dp": 2, "gtp": 2}, gtp=["dp", "gtp"], gtp_keep="on"),
    "align": dict(mesh={"gtp": 2}, gtp_align=4, gtp_prefetch=0),
    "ring": dict(mesh={"ring": 2, "gtp": 2}, context_parallel={"ring": "ring"}),
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("count", [1, 2])
def test_steps(plan, count):
    net, data = Net(), batches(3)
    options = dict(lr=0.02, eps=1e-3, weight_decay=0.1)
    losses, parameters = expect(net, data, torch.optim.AdamW, options, clip=0.5)
    train = mw.from_torch(net, (), data[0], training=True).train(mw.AdamW(**options), microbatches=count, clip_norm=0.5)
    with train.parallelize(**PLANS[plan]).start() as session:
        got = [session.run(**batch)[0].item() for batch in data]
        compare(session.parameters(), parameters)
    np.testing.assert_allclose(got, losses, rtol=1e-5)


def walk(mesh, start=None, save=None, data=None, **options):
    """Losses and states of steps."""
    net, data = Net(), data or batches(3)
    train = mw.from_torch(net, (), data[0], training=True).train(mw.Adam(lr=0.02, eps=1e-3), microbatches=2)
    with train.parallelize(mesh=mesh, **options).start(**({"state": start} if start else {})) as session:
        losses = [session.run(**batch)[0].item() for batch in data]
        if save:
            session.save(save)
        return losses, session.state()


@pytest.mark.parametrize("options", [dict(gtp_prefetch=0), dict(gtp_prefetch=5), dict(gtp_keep="on"), dict(gtp_align=8)])
def test_plans_of_the_same_bits(options):
    (losses, state), (others, other) = walk({"gtp": 2}), walk({"gtp": 2}, **options)
    assert losses == others
    assert all(torch.equal(value, other[name]) for name, value in state.items())


class Sum(nn.Module):
    """The gradient of the weight is the sum of the rows: each rank has a part of it."""

    def __init__(self, rows):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, 6))

    def forward(self, x):
        return (x * self.weight).sum()


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("rows", [12, 7])
def test_gradients_in_bf16(ranks, rows):
    """Parts are rounded to bf16, and summed in f32 in the order of the ranks: no bit differs."""
    x = torch.randn(2 * ranks, rows, 6, generator=torch.Generator().manual_seed(rows))
    train = mw.from_torch(Sum(rows), (), dict(x=x), training=True).train(mw.SGD(lr=1.0))
    plan = train.parallelize(mesh={"gtp": ranks}, gtp_reduce="bf16")
    (moved,) = (c for c in plan.report("json")["collectives"] if c["role"] == "gradients")
    padded = -(-rows // ranks) * ranks
    assert moved["kind"] == "all_to_all" and moved["bytes_per_rank"] == 2 * padded * 6 * (ranks - 1) // ranks
    with plan.start() as session:
        session.run(x=x)
        got = -session.parameters()["weight"]
    parts = [x[2 * r] + x[2 * r + 1] for r in range(ranks)]
    want = torch.zeros(rows, 6)
    for part in parts:
        want = want + part.to(torch.bfloat16).float()
    assert torch.equal(got, want)


def test_steps_with_gradients_in_bf16():
    """Half of the bytes, and steps that differ by the rounding of gradients."""
    (losses, state), (others, other) = walk({"dp": 2, "gtp": 2}), walk({"dp": 2, "gtp": 2}, gtp_reduce="bf16")
    np.testing.assert_allclose(others, losses, rtol=1e-2)
    assert others != losses
    assert any(not torch.equal(value, other[name]) for name, value in state.items())


def test_one_rank_stores_whole_weights():
    """An axis of one rank changes nothing."""
    net, data = Net(), batches(1)
    train = mw.from_torch(net, (), data[0], training=True).train(mw.SGD(lr=0.1))
    texts = [train.parallelize(mesh=mesh).ir(phase="rt") for mesh in ({"dp": 2}, {"dp": 2, "gtp": 1})]
    one, other = ("\n".join(line for line in text.splitlines() if "dist.mesh" not in line) for text in texts)
    assert one == other and "dist.all_gather" not in one


def test_checkpoints_of_other_plans(tmp_path):
    """A state that shards of one plan hold begins a session of another."""
    _, want = walk({"dp": 2})
    data = batches(3)
    walk({"gtp": 3}, save=tmp_path / "first", data=data[:1], gtp_align=4)
    walk({"gtp": 2, "tp": 2}, start=tmp_path / "first", save=tmp_path / "second", data=data[1:2])
    _, got = walk({"tp": 1}, start=tmp_path / "second", data=data[2:])
    for name, value in want.items():
        scale = max(float(value.double().abs().max()), 1e-30)
        assert float((got[name].double() - value.double()).abs().max()) <= 1e-5 * scale, name


class Rows(nn.Module):
    """Weights of many rows, of fewer than ranks, and of one; a convolution; one that is not trained."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.many, self.few, self.one = nn.Linear(24, 41), nn.Linear(41, 3), nn.Linear(41, 1)
        self.conv, self.fixed = nn.Conv1d(24, 10, 3, padding=1), nn.Linear(24, 24)
        self.fixed.weight.requires_grad_(False)

    def forward(self, x):
        y = self.many(self.fixed(x)).tanh()
        return self.few(y).square().mean() + self.one(y).mean() + self.conv(x.mT).square().mean()


def report(net, x, train=True, **options):
    model = mw.from_torch(net, (), {"x": x}, training=train)
    if train:
        model = model.train(mw.AdamW())
    return model.parallelize(**options).report(format="json")


def test_report():
    x = torch.randn(8, 6, 24)
    full = report(Rows(), x, mesh={"gtp": 4})
    got = {weight["name"]: weight for weight in full["gtp"]["weights"]}
    # A shard of 1 row, of 3 rows over 4 ranks, is smaller than the whole; one row stays whole.
    assert sorted(got) == ["conv.weight", "few.weight", "fixed.weight", "many.weight"]
    many = got["many.weight"]
    assert (many["rows"], many["stored_rows"]) == (41, 11)
    assert (many["bytes"], many["stored_bytes"]) == (41 * 24 * 4, 11 * 24 * 4)
    assert got["fixed.weight"]["scatter"] is None and many["scatter"]["bytes_per_rank"] == 3 * 11 * 24 * 4
    assert {gather["phase"] for gather in many["gathers"]} <= {"forward", "backward"}
    assert all(gather["bytes_per_rank"] == 3 * 11 * 24 * 4 for gather in many["gathers"])
    slots = full["gtp"]["slots"]
    for weight in got.values():
        for gather in weight["gathers"]:
            assert gather["first"] <= gather["last"] and slots[gather["slot"]]["bytes"] >= weight["bytes"]
    assert full["gtp"]["ranks"] == 4 and full["gtp"]["axes"] == ["gtp"]
    whole = report(Rows(), x, mesh={"dp": 4}, shard_optimizer="off")["memory_per_rank"]
    assert full["memory_per_rank"]["optimizer"] < 0.4 * whole["optimizer"]
    roles = {(c["kind"], c["role"]) for c in full["collectives"]}
    assert {("all_gather", "weights"), ("reduce_scatter", "gradients")} <= roles


def test_the_least_ceiling():
    """A report under a ceiling names the least one. A plan that gathers again accepts it, and refuses one byte less."""
    net, data = Net(), batches(1)
    train = mw.from_torch(net, (), data[0], training=True).train(mw.AdamW(lr=0.1))

    def peak(ceiling):
        options = dict(mesh={"gtp": 2}, gtp_keep="off", memory_ceiling=ceiling)
        return train.parallelize(**options).report(format="json")["gtp"]["peak"]

    assert peak(None)["least"] is None
    least = peak("1G")["least"]
    assert peak(least)["bytes"] <= least
    with pytest.raises(mw.Error, match=f"needs {least} bytes"):
        peak(least - 1)


@pytest.mark.parametrize("recompute", ["none", "full", "auto"])
def test_the_least_ceiling_is_that_of_the_most_frugal_plan(recompute):
    """Under a generous ceiling a plan may keep weights and compute nothing again. A lower one is possible."""
    slow = dict(recompute=recompute, device="h100 network_bandwidth=1e9")
    plan, _ = plan_wide(memory_ceiling="1G", **slow)
    least = plan.report("json")["gtp"]["peak"]["least"]
    plan, batch = plan_wide(memory_ceiling=least, **slow)
    assert get_peak(plan) <= least and plan.report("json")["gtp"]["peak"]["least"] == least
    plan.check(**batch)
    with pytest.raises(mw.Error, match=f"needs {least} bytes"):
        plan_wide(memory_ceiling=least - 1, **slow)


def test_gathers_run_beside_kernels_under_a_ceiling():
    """Two weights above the least ceiling hide what no ceiling does, but for a fifth."""
    x = torch.empty(4096, 512, device="meta")
    with torch.device("meta"):
        train = mw.from_torch(Wide(12, 512), (), dict(x=x), training=True).train(mw.SGD(lr=0.1))
    how = dict(mesh={"gtp": 2}, recompute="full", gtp_keep="off")

    def find(**options):
        return train.parallelize(**how, **options).report("json")["gtp"]

    least = find(memory_ceiling="1G")["peak"]["least"]
    times = find(memory_ceiling=least + 2 * 512 * 512 * 4)["seconds"]
    assert times["exposed"] <= 0.2 * (times["gather"] + times["scatter"]) + find()["seconds"]["exposed"]


def test_waits_for_memory_show():
    """Where memory is short a scatter is waited for before its gradient is read: the report counts that time."""
    x = torch.empty(4096, 512, device="meta")
    with torch.device("meta"):
        train = mw.from_torch(Wide(4, 512), (), dict(x=x), training=True).train(mw.SGD(lr=0.1))
    how = dict(mesh={"gtp": 2}, device="h100 link_bandwidth=3e10")
    least = train.parallelize(**how, memory_ceiling="1G").report("json")["gtp"]["peak"]["least"]
    report = train.parallelize(**how, memory_ceiling=least).report("json")
    planned = next(d["numbers"] for d in report["decisions"] if d["pass"] == "overlap-collectives")
    assert report["communication"]["exposed_seconds"] == pytest.approx(planned["exposed_seconds"], rel=1e-6)
    assert report["communication"]["run_seconds"] == pytest.approx(planned["seconds"], rel=1e-6)


class Mixed(nn.Module):
    """Small weights in front of a large one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.layers = nn.ModuleList(nn.Linear(24, n, bias=False) for n in (24, 24, 24, 240))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
        return x.square().mean()


def test_small_neighbours_travel_together():
    """Also under a ceiling, where the arena stays within it. Where no weight may be gathered ahead, each travels alone. The
    steps have the same bits."""
    x = torch.randn(8, 24, generator=torch.Generator().manual_seed(5))
    train = mw.from_torch(Mixed(), (), dict(x=x), training=True).train(mw.SGD(lr=0.1))

    def find(**options):
        plan = train.parallelize(mesh={"gtp": 2}, gtp_keep="off", **options)
        return plan, [len(re.findall(f"dist.{kind} .*role *{role}", plan.ir(phase="rt")))
                      for kind, role in (("all_gather", "weights"), ("reduce_scatter", "gradients"))]

    least = train.parallelize(mesh={"gtp": 2}, memory_ceiling="1G").report("json")["gtp"]["peak"]["least"]
    found = [find(**how) for how in ({}, dict(memory_ceiling="1G"), dict(memory_ceiling=least), dict(gtp_prefetch=0))]
    joint, roomy, tight, alone = (launches for _, launches in found)
    assert max(joint[0], roomy[0], tight[0]) < alone[0] and max(joint[1], roomy[1], tight[1]) < 4
    sessions = [plan.start() for plan, _ in found]
    for _ in range(3):
        assert len({session.run(x=x)[0].item() for session in sessions}) == 1
    for session in sessions:
        session.close()
    reports = [plan.report("json") for plan, _ in found[:3]]
    names = {w["name"]: w for w in reports[0]["gtp"]["weights"]}
    for (plan, _), report in zip(found, reports):
        launches = plan.report("json", verbose=True)["program"]["launches"]
        assert report["launches_per_rank"] == sum(launch["kind"] == "collective" for launch in launches)
        assert report is reports[2] or report["bytes_per_rank"] == reports[0]["bytes_per_rank"]
        slots, places = report["gtp"]["slots"], []
        for weight in report["gtp"]["weights"]:
            other = names[weight["name"]]
            assert {g["bytes_per_rank"] for g in weight["gathers"]} == {g["bytes_per_rank"] for g in other["gathers"]}
            assert weight["scatter"]["bytes_per_rank"] == other["scatter"]["bytes_per_rank"]
            for gather in weight["gathers"]:
                begin = slots[gather["slot"]]["offset"]
                places.append((begin, begin + weight["bytes"], gather["first"], gather["last"]))
        for i, (begin, end, first, last) in enumerate(places):
            for others in places[:i]:
                assert end <= others[0] or others[1] <= begin or last < others[2] or others[3] < first


@pytest.mark.parametrize("options", [{}, dict(gtp_prefetch=1, recompute="full"), dict(gtp_gather="mxfp8")], ids=str)
def test_weights_over_hosts(options):
    """Shards cross the network once, and the host gathers what it has: the bits and the bytes of one axis."""
    net = Net()
    (losses, state), (others, other) = walk({"gtp": 4}, **options), walk({"host": 2, "gtp": 2}, gtp=["host", "gtp"], **options)
    assert losses == others
    assert all(torch.equal(value, other[name]) for name, value in state.items())
    train = mw.from_torch(net, (), batches(1)[0], training=True).train(mw.Adam(lr=0.02, eps=1e-3))
    one, two = (train.parallelize(**how, **options).report("json") for how in
                (dict(mesh={"gtp": 4}), dict(mesh={"host": 2, "gtp": 2}, gtp=["host", "gtp"])))
    sent = {}
    for c in two["collectives"]:
        if c["role"] == "weights":
            sent[tuple(c["axes"])] = sent.get(tuple(c["axes"]), 0) + c["bytes_per_rank"]
    # The step over the network has a quarter of the weight, that in the host a half.
    assert sent.keys() == {("host",), ("gtp",)} and sent["gtp",] == 2 * sent["host",]
    assert two["gtp"]["axes"] == ["host", "gtp"] and two["gtp"]["ranks"] == one["gtp"]["ranks"] == 4
    for a, b in zip(one["gtp"]["weights"], two["gtp"]["weights"], strict=True):
        assert [(g["phase"], g["bytes_per_rank"]) for g in a["gathers"]] == [(g["phase"], g["bytes_per_rank"]) for g in b["gathers"]]
        assert a["scatter"]["bytes_per_rank"] == b["scatter"]["bytes_per_rank"]


def test_axes_by_name():
    """Weights of some names are stored over fewer axes than others, and some stay whole."""
    net, mesh = Net(), {"host": 2, "gtp": 2}
    train = mw.from_torch(net, (), batches(1)[0], training=True).train(mw.Adam(lr=0.02, eps=1e-3))
    names = [name for name, p in net.named_parameters() if p.dim() > 1]
    rules = {names[0]: [], names[1]: ["gtp"], "*": ["host", "gtp"]}
    stored = {w["name"]: w for w in train.parallelize(mesh=mesh, gtp=rules).report("json")["gtp"]["weights"]}
    for name, ranks in zip(names, [1, 2, *[4] * (len(names) - 2)], strict=True):
        rows = dict(net.named_parameters())[name].shape[0]
        assert (name not in stored) if ranks == 1 else stored[name]["stored_rows"] == -(-rows // ranks), name
    (losses, state), (others, other) = walk({"gtp": 4}), walk(mesh, gtp=rules)
    np.testing.assert_allclose(losses, others, rtol=1e-6)
    assert all(torch.allclose(value, other[name], rtol=1e-5, atol=1e-6) for name, value in state.items())


def test_frozen_weights_are_gathered_alone():
    full = report(Rows(), torch.randn(8, 6, 24), train=False, mesh={"gtp": 2})
    assert all(len(weight["gathers"]) == 1 and weight["scatter"] is None for weight in full["gtp"]["weights"])


def test_heads_that_ranks_do_not_divide():
    """Rows of storage are no heads: two heads of keys on four ranks take a quarter each."""
    net, data = Net(heads=2), batches(1)
    train = mw.from_torch(net, (), data[0], training=True).train(mw.SGD(lr=0.1))
    got = train.parallelize(mesh={"gtp": 4}).report(format="json")["memory_per_rank"]["weights"]
    matrices = sum(p.numel() * 4 for p in net.parameters() if p.dim() > 1)
    others = sum(p.numel() * 4 for p in net.parameters() if p.dim() < 2)
    assert got <= 1.12 * matrices / 4 + others


REFUSED = [
    (dict(mesh={"gtp": 2}, gtp="shard"), "has no axis \"shard\" to store weights in shards over"),
    (dict(mesh={"tp": 2}, gtp="tp"), "expected axes that do not shard the weights themselves, got \"tp\""),
    (dict(mesh={"gtp": 2}, gtp=["gtp", "gtp"]), "axis \"gtp\" is named twice"),
    (dict(mesh={"gtp": 2}, gtp_align=0), "gtp-align: expected auto or a number from 1"),
    (dict(mesh={"gtp": 2}, gtp_prefetch=-1), "gtp-prefetch: expected auto or a number from 0"),
    (dict(mesh={"gtp": 2}, gtp_keep="perhaps"), "gtp-keep: expected on, off or auto, got 'perhaps'"),
    (dict(mesh={"gtp": 2}, gtp={"weight": ["gtp", "gtp"]}), "the axes of 'weight' have 'gtp' twice"),
    (dict(mesh={"gtp": 2}, gtp={"weight": ["shard"]}), "has no axis \"shard\" to store weights in shards over"),
    (dict(mesh={"gtp": 2}, gtp={"bias*": ["gtp"]}), "gtp: expected a pattern that matches a weight, got \"bias*\""),
    (dict(mesh={"gtp": 2}, gtp={"weight": 2}), "has no axis \"2\" to store weights in shards over"),
    (dict(mesh={"dp": 2}, gtp_align=2), "gtp-align: expected an axis to store weights in shards over"),
    (dict(mesh={"dp": 2}, gtp="none", gtp_prefetch=2), "gtp-prefetch: expected an axis"),
]


@pytest.mark.parametrize("options, message", REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_refusals(options, message):
    model = mw.from_torch(nn.Linear(4, 4), (torch.zeros(2, 4),))
    with pytest.raises(mw.Error) as refused:
        model.parallelize(**options)
    assert message in str(refused.value)


def test_tables_that_are_looked_up_and_multiplied():
    """A table at both ends of a model is gathered for each, and its gradient is scattered once."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.table = nn.Embedding(30, 16)
            self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))

        def forward(self, ids):
            x = self.table(ids)
            for layer in self.layers:
                x = x + layer(x).tanh()
            return F.cross_entropy(F.linear(x, self.table.weight).flatten(0, 1), ids.flatten())

    ids = torch.arange(24).reshape(4, 6)
    model = mw.from_torch(Tied(), (ids,), training=True).train(mw.SGD(lr=0.1))
    found = model.parallelize(mesh={"gtp": 2}).report(format="json")["gtp"]["weights"]
    table = next(weight for weight in found if weight["name"] == "table.weight")
    assert len(table["gathers"]) == 2 and table["scatter"]["bytes_per_rank"] == 15 * 16 * 4


@pytest.mark.parametrize("mesh", [{"tp": 2}, {"tp": 2, "gtp": 2}])
def test_saved_values_in_shards(mesh):
    """Values that ranks of tensor parallelism hold alike are kept in shards; the bits stay."""
    options = dict(sequence_parallel="off", recompute="full")
    (losses, state), (others, other) = walk(mesh, **options), walk(mesh, shard_saved="on", **options)
    assert losses == others
    assert all(torch.equal(value, other[name]) for name, value in state.items())
    train = mw.from_torch(Net(), (), batches(1)[0], training=True).train(mw.SGD(lr=0.1))
    found = train.parallelize(mesh=mesh, shard_saved="on", **options).report(format="json")
    assert "saved" in {c["role"] for c in found["collectives"]}


class Residual(nn.Module):
    """Layers with a residual stream, which ranks of tensor parallelism hold alike."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(32, 48), nn.Tanh(), nn.Linear(48, 32)) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x.square().mean()


def test_saved_values_in_shards_where_a_ceiling_asks_for_it():
    """Values are kept in shards under a ceiling that whole values exceed, and whole under one that they keep to."""
    batch = dict(x=torch.randn(256, 32, generator=torch.Generator().manual_seed(5)))
    train = mw.from_torch(Residual(), (), batch, training=True).train(mw.SGD(lr=0.1))
    how = dict(mesh={"tp": 2}, sequence_parallel="off", recompute="none")

    def find_least(**options):
        with pytest.raises(mw.Error) as refused:
            train.parallelize(memory_ceiling=16, **how, **options)
        return int(re.search(r"needs (\d+) bytes", str(refused.value))[1])

    def plan(ceiling):
        found = train.parallelize(memory_ceiling=ceiling, **how)
        full = found.report("json")
        return found, "saved" in {c["role"] for c in full["collectives"]}, [
            d["outcome"] for d in full["decisions"] if d["pass"] == "save-shards"]

    whole, least = find_least(shard_saved="off"), find_least()
    assert least < whole
    found, cuts, said = plan(least)
    assert cuts and said == ["applied"]
    found.check(**batch)
    assert plan("1G")[1:] == (False, ["declined"])
    with pytest.raises(mw.Error, match=f"needs {least} bytes"):
        plan(least - 1)


class Wide(nn.Module):
    """Weights that take longer to gather over hosts than the products take that read them."""

    def __init__(self, layers=4, width=256):
        super().__init__()
        torch.manual_seed(2)
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
        return x.square().mean()


def plan_wide(**options):
    x = torch.randn(4, 256, generator=torch.Generator().manual_seed(5))
    train = mw.from_torch(Wide(), (), dict(x=x), training=True).train(mw.SGD(lr=0.1))
    return train.parallelize(mesh={"host": 2, "gtp": 2}, gtp=["host", "gtp"], **options), dict(x=x)


def get_peak(plan):
    return plan.report("json")["gtp"]["peak"]["bytes"]


def test_nothing_is_computed_again_where_gathering_again_is_enough():
    """Recomputation is asked for by the memory of the program that gathers again."""
    kept, _ = plan_wide(recompute="none", gtp_keep="on")
    none, _ = plan_wide(recompute="none", gtp_keep="off", memory_ceiling=get_peak(kept))
    assert get_peak(none) < get_peak(kept)
    plan, _ = plan_wide(memory_ceiling=get_peak(none))
    assert not [d for d in plan.report("json")["decisions"] if d["pass"] == "recompute" and d["outcome"] == "applied"]
