# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The planner chooses the mesh and the options: beside all combinations, and within what a user states."""

import importlib.util
import pathlib
import re

import meshwright as mw
import numpy as np
import pytest
import torch
from meshwright import _core
from meshwright.errors import unwrap

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def bench():
    pytest.importorskip("transformers")
    spec = importlib.util.spec_from_file_location("planner_bench", ROOT / "bench/planner.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


class Block(torch.nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.up = torch.nn.Linear(width, 2 * width)
        self.down = torch.nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return mw.from_torch(Block().eval(), (torch.randn(2, 6, 32),))


def seconds(plan):
    return plan.report("json")["communication"]["run_seconds"]


@pytest.mark.parametrize("seed, ranks", [(0, 4), (6, 2)])
def test_brute_force(bench, seed, ranks):
    assert bench.measure(seed, ranks, most=60)["ratio"] <= 1.01


@pytest.mark.slow
@pytest.mark.parametrize("seed, ranks", [(1, 2), (4, 2), (3, 2), (2, 4), (5, 4), (7, 6)])
def test_brute_force_more(bench, seed, ranks):
    """More of them by bench/planner.py."""
    assert bench.measure(seed, ranks, most=200)["ratio"] <= 1.01


@pytest.mark.parametrize("seed", [0, 4, 11])
def test_autos(bench, seed):
    assert bench.compare_auto(seed)["ratio"] <= 1.001


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20, 32))
def test_autos_more(bench, seed):
    assert bench.compare_auto(seed)["ratio"] <= 1.001


@pytest.mark.parametrize("ranks", [1, 2, 7])
def test_runs(model, ranks):
    """Also where nothing divides."""
    plan = model.parallelize(ranks=ranks, device="cpu")
    assert plan.report("json")["ranks"] == ranks
    x = torch.randn(2, 6, 32)
    plan.check(x)


def test_alternatives(model):
    report = model.parallelize(ranks=4).report("json")
    chosen, *others = report["alternatives"]
    assert chosen["chosen"] and not any(other["chosen"] for other in others)
    assert chosen["loses"] == "" and all(other["loses"] for other in others)
    assert chosen["seconds"] == pytest.approx(report["communication"]["run_seconds"])
    assert chosen["bytes_per_rank"] == report["bytes_per_rank"]
    assert {name: size for name, size in report["mesh"].items() if size > 1} == chosen["mesh"]
    for alternative in report["alternatives"]:
        plan = model.parallelize(**alternative["options"])
        assert seconds(plan) == pytest.approx(alternative["seconds"])
        assert np.prod([*alternative["mesh"].values()]) == 4


def test_text(model):
    text = model.parallelize(ranks=4).report()
    assert "planner: the chosen plan, and the next best" in text
    assert re.search(r"mesh=\S+ .* chosen\n", text)


def test_same_choice(model):
    first, second = (model.parallelize(ranks=8).report("json")["alternatives"] for _ in range(2))
    assert first == second


def test_objectives(model):
    plans = {name: model.parallelize(ranks=4, objective=name).report("json")["alternatives"][0]
             for name in ("time", "memory", "time-then-memory")}
    assert plans["time"]["seconds"] <= plans["time-then-memory"]["seconds"] <= 1.05 * plans["time"]["seconds"]
    assert plans["memory"]["memory_per_rank"] <= plans["time-then-memory"]["memory_per_rank"]
    assert plans["time-then-memory"]["memory_per_rank"] <= plans["time"]["memory_per_rank"]


def llama(layers, training=False, **options):
    tf = pytest.importorskip("transformers")
    sizes = dict(hidden_size=256, num_attention_heads=8, num_key_value_heads=4, intermediate_size=512, vocab_size=1000)
    with torch.device("meta"):
        module = tf.LlamaForCausalLM(tf.LlamaConfig(num_hidden_layers=layers, use_cache=False, **sizes))
        ids = torch.zeros(4, 256, dtype=torch.long)
    model = mw.from_torch(module, (), {"input_ids": ids, **({"labels": ids} if training else {})}, training=training)
    return model.train(mw.AdamW(lr=1e-3), **options) if training else model


@pytest.mark.parametrize("layers, training, options", [
    (9, False, {}),
    pytest.param(11, True, {"clip_norm": 1.0}, marks=pytest.mark.slow),
    pytest.param(8, True, {"microbatches": 2}, marks=pytest.mark.slow),
])
def test_many_layers(layers, training, options):
    """Plans that are priced with fewer layers have nearly the price of the whole, and the best one exactly."""
    model = llama(layers, training, **options)
    report = model.parallelize(ranks=4).report("json")
    assert report["alternatives"][0]["seconds"] == pytest.approx(report["communication"]["run_seconds"])
    assert len(report["alternatives"]) > 3
    for alternative in report["alternatives"]:
        found = model.parallelize(**alternative["options"]).report("json")
        memory = sum(size for size in found["memory_per_rank"].values() if isinstance(size, int))
        assert found["communication"]["run_seconds"] == pytest.approx(alternative["seconds"], rel=0.1)
        assert memory == pytest.approx(alternative["memory_per_rank"], rel=0.1)
        assert found["bytes_per_rank"] == pytest.approx(alternative["bytes_per_rank"], rel=0.01)


class Chain(torch.nn.Module):
    """Layers that cannot be left out: the sum at the end has a value of each."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(9))

    def forward(self, x):
        values = []
        for layer in self.layers:
            x = torch.relu(layer(x))
            values.append(x)
        return torch.cat(values, dim=-1)


def test_layers_that_stay():
    model = mw.from_torch(Chain().eval(), (torch.randn(4, 32),))
    plan = model.parallelize(ranks=4, device="cpu")
    plan.check(torch.randn(4, 32))


@pytest.mark.slow
def test_least_ceiling_of_many_layers():
    model = llama(9, training=True)
    with pytest.raises(mw.Error, match="least that is needed is") as error:
        model.parallelize(ranks=2, memory_ceiling="1M")
    least = int(re.search(r"needed is (\d+) bytes", str(error.value))[1])
    report = model.parallelize(ranks=2, memory_ceiling=least).report("json")
    assert sum(size for size in report["memory_per_rank"].values() if isinstance(size, int)) <= least


def test_no_typed_value_wins(model):
    mesh = {"tp": 2, "dp": 2}
    chosen = seconds(model.parallelize(mesh=mesh, objective="time"))
    for scatter in ("on", "off", "auto"):
        for overlap in ("on", "off", "auto"):
            typed = seconds(model.parallelize(mesh=mesh, sequence_parallel=scatter, overlap=overlap))
            assert chosen <= 1.001 * typed


@pytest.mark.parametrize("training, options, name, values", [
    (False, {"mesh": {"tp": 4}}, "sequence_parallel", ["on", "off"]),
    (True, {"mesh": {"tp": 2}}, "sequence_parallel", ["on", "off"]),
    (True, {"mesh": {"dp": 2}}, "overlap", ["on", "off"]),
    (True, {"mesh": {"dp": 2, "gtp": 2}, "recompute": "full"}, "gtp_keep", ["on", "off"]),
])
def test_spelled_auto_loses_to_no_value(training, options, name, values):
    """One option is chosen by finished plans, on a stated mesh."""
    model = llama(1, training)
    plan = model.parallelize(**options, **{name: "auto"})
    (decision,) = [d for d in plan.report("json")["decisions"] if d["pass"] == "choose-plan"]
    assert all(set(alternative["options"]) <= {*options, name}
               for alternative in plan.report("json")["alternatives"]), decision
    for value in values:
        assert seconds(plan) <= 1.001 * seconds(model.parallelize(**options, **{name: value}))


def mixtral():
    tf = pytest.importorskip("transformers")
    config = tf.MixtralConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4,
                              num_key_value_heads=2, vocab_size=99, num_local_experts=4, use_cache=False)
    with torch.device("meta"):
        return mw.from_torch(tf.MixtralForCausalLM(config).eval(), (), {"input_ids": torch.zeros(4, 16, dtype=torch.long)})


@pytest.mark.parametrize("make, options, name, values", [
    (lambda: llama(1), {"mesh": {"dp": 2, "tp": 2}}, "data_parallel_attention", [1, 2]),
    (lambda: llama(1), {"mesh": {"tp": 4}, "data_parallel_attention": 2}, "dense_tp", [1, 4]),
    (lambda: llama(1), {"mesh": {"tp": 4}, "data_parallel_attention": 2}, "dp_lm_head", ["on", "off"]),
    (lambda: llama(1), {"mesh": {"a": 2, "b": 2}}, "context_parallel",
     [{"ulysses": "a"}, {"ring": "b"}, {"ulysses": "a", "ring": "b"}]),
    (mixtral, {"mesh": {"ep": 2, "tp": 2}}, "expert_parallel", ["ep", "tp", "none", "ep,tp"]),
])
@pytest.mark.parametrize("device", ["h100", "cpu"])
def test_axes_and_groups_that_are_auto(make, options, name, values, device):
    """No value that a user may state is faster, for roles of axes and groups of attention, too."""
    model = make()
    plan = model.parallelize(**options, **{name: "auto"}, device=device)
    for value in values:
        typed = seconds(model.parallelize(**options, **{name: value}, device=device))
        assert seconds(plan) <= typed * (1 + 1e-9), value


def get_memory(plan):
    return sum(size for size in plan.report("json")["memory_per_rank"].values() if isinstance(size, int))


@pytest.mark.parametrize("training", [False, True])
def test_least_memory(training):
    """The objective finds what a ceiling that nothing meets names, and shards of weights for inference, too."""
    model = llama(2, training)
    plan = model.parallelize(ranks=4, objective="memory")
    with pytest.raises(mw.Error, match="least that is needed") as error:
        model.parallelize(ranks=4, memory_ceiling="1K")
    assert get_memory(plan) <= int(re.search(r"needed is (\d+) bytes", str(error.value))[1])
    assert get_memory(plan) <= get_memory(model.parallelize(mesh={"gtp": 4}))
    near = model.parallelize(ranks=4, objective="time-then-memory")
    fastest = model.parallelize(ranks=4)
    assert seconds(near) <= 1.05 * seconds(fastest) and get_memory(near) <= get_memory(fastest)


def test_front_and_changes():
    """The report names other plans by their time and memory, and which links would make one of them the best."""
    plan = llama(1).parallelize(ranks=4)
    front, change = (d["message"] for d in plan.report("json")["decisions"] if d["pass"] == "explain-plan")
    assert re.match(r"time over memory: .* with .* \(chosen\), .* with .* \(mesh=", front)
    assert re.match(r"the choice would be, with less memory than .* mesh=", change)
    assert front in plan.report() and change in plan.report()
    assert re.search(r"chose one of \d{2} plans", plan.report())


def test_no_plan_twice():
    """Options that change nothing are no other plan."""
    plan = llama(1).parallelize(mesh={"dp": 2, "tp": 2}, sequence_parallel="auto")
    prices = [(a["seconds"], a["memory_per_rank"], a["bytes_per_rank"]) for a in plan.report("json")["alternatives"]]
    assert len(prices) == len(set(prices))


def test_stages_are_folded():
    """A stage of a composed program goes over axes of its own where that is faster."""
    class Denoiser(torch.nn.Module):
        def __init__(self, width=32):
            super().__init__()
            self.q, self.k, self.v, self.o = (torch.nn.Linear(width, width) for _ in range(4))

        def forward(self, x, context):
            split = lambda y: y.unflatten(-1, (4, -1)).transpose(1, 2)
            for keys in (x, context):
                y = torch.nn.functional.scaled_dot_product_attention(*map(split, (self.q(x), self.k(keys), self.v(keys))))
                x = x + self.o(y.transpose(1, 2).flatten(2))
            return x

    encoder = mw.from_torch(Block().eval(), (torch.randn(2, 32, 32),))
    denoiser = mw.from_torch(Denoiser().eval(), (torch.randn(2, 64, 32), torch.randn(2, 32, 32)))
    pipe = mw.compose({"encoder": encoder, "denoiser": denoiser}, {"denoiser.context": "encoder.0"})
    plan = pipe.parallelize(ranks=4, device="cpu")
    for options in ({}, {"fold": {"encoder": "auto"}}):
        for context in ({"ring": "sp"}, {"ulysses": "sp"}):
            typed = pipe.parallelize(mesh={"sp": 4}, context_parallel=context, device="cpu", **options)
            assert seconds(plan) <= 1.01 * seconds(typed)


def test_left_out_options_are_not_compared(model):
    plan = model.parallelize(mesh={"tp": 2})
    assert not [d for d in plan.report("json")["decisions"] if d["pass"] == "choose-plan"]


@pytest.mark.parametrize("training", [False, True])
def test_hosts(training):
    """An axis of the mesh stays, and gets a role."""
    plan = llama(1, training).parallelize(ranks=4, mesh={"host": 2})
    report = plan.report("json")
    assert report["mesh"]["host"] == 2 and report["ranks"] == 4
    for alternative in report["alternatives"]:
        roles = str({k: v for k, v in alternative["options"].items() if k != "mesh"})
        assert alternative["mesh"]["host"] == 2 and "host" in roles
    assert not [w for w in report["warnings"] if "shards nothing" in str(w)]


def test_axes_that_stay(model):
    report = model.parallelize(ranks=4, mesh={"tp": 2}).report("json")
    assert report["mesh"]["tp"] == 2 and report["ranks"] == 4
    assert model.parallelize(ranks=2, mesh={"tp": 2}).report("json")["mesh"] == {"tp": 2}


def test_stated_options_stay(model):
    report = model.parallelize(ranks=4, data_parallel="none", overlap="off").report("json")
    assert "dp" not in report["mesh"]
    assert all(other["options"]["overlap"] == "off" for other in report["alternatives"])


def test_experts():
    """Experts have candidates of their own, on one axis and on two."""
    tf = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = tf.MixtralConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                              num_key_value_heads=2, vocab_size=99, num_local_experts=4, use_cache=False)
    ids = torch.randint(99, (2, 9))
    model = mw.from_torch(tf.MixtralForCausalLM(config).eval(), (), {"input_ids": ids})
    plan = model.parallelize(ranks=4)
    plan.check(input_ids=ids)
    assert any("expert_parallel" in other["options"] for other in plan.report("json")["alternatives"])
    assert any("ep" in other["mesh"] for other in plan.report("json")["alternatives"])


def test_each_rank_has_work():
    """7 ranks divide neither 2 rows, nor 10 tokens, nor 4 heads."""
    tf = pytest.importorskip("transformers")
    config = tf.GPT2Config(n_embd=32, n_layer=1, n_head=4, vocab_size=99, n_positions=16, use_cache=False)
    model = mw.from_torch(tf.GPT2LMHeadModel(config).eval(), (), {"input_ids": torch.randint(99, (2, 10))})
    with pytest.raises(mw.Error, match="no mesh of 7 ranks gives each of them work: expected factors that fit a "
                                       "batch of 2, 10 tokens and 4 heads"):
        model.parallelize(ranks=7)


def test_least_ceiling(model):
    """The ceiling that the error names is enough."""
    with pytest.raises(mw.Error, match=r"no plan for 4 ranks fits in 1024 bytes .* least that is needed is") as error:
        model.parallelize(ranks=4, memory_ceiling="1K")
    least = int(re.search(r"needed is (\d+) bytes", str(error.value))[1])
    memory = model.parallelize(ranks=4, memory_ceiling=least).report("json")["memory_per_rank"]
    assert sum(bytes for bytes in memory.values() if isinstance(bytes, int)) <= least
    with pytest.raises(mw.Error, match="least that is needed"):
        model.parallelize(ranks=4, memory_ceiling=least - 1)


@pytest.mark.parametrize("options, message", [
    ({"ranks": 0}, "ranks: expected a number from 1"),
    ({"ranks": "many"}, "ranks: expected a number from 1"),
    ({"ranks": 2, "mesh": {"tp": 4}}, "ranks: expected a multiple of 4, the ranks of the axes that mesh states, got 2"),
    ({"ranks": 2, "objective": "speed"}, "objective: expected time, memory or time-then-memory, got 'speed'"),
    ({"mesh": "auto"}, "mesh=auto: the program has no mesh"),
    ({"mesh": {"dp": 2, "pp": 2}, "objective": "time"}, 'mesh axis "pp": layers are not divided over pipeline stages'),
    ({"mesh": {"pp": 2}, "ranks": 4}, 'mesh axis "pp": layers are not divided over pipeline stages'),
])
def test_errors(model, options, message):
    with pytest.raises(mw.Error, match=message):
        model.parallelize(**options)


def test_serving_needs_a_mesh():
    found = _core.Plan.count_groups("ranks=4")
    with pytest.raises(mw.Error, match="expected a mesh"):
        unwrap(found)
