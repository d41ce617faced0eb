# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Expected and measured traces, and pages with the times of both."""

import json
import re

import meshwright as mw
import pytest
import torch
import transformers as tf

pytest.importorskip("jinja2")
pytest.importorskip("svg")

from test_reports import check_page, config, model, plan  # noqa: E402


def test_expected_trace(tmp_path):
    """The expected schedule as a trace: a process for each rank, arrows between the ranks of a collective, and
    counters that end at 0."""
    made = plan(mesh=(("dp", 2), ("tp", 2)))
    made.trace(tmp_path / "plan.json")
    events = json.loads((tmp_path / "plan.json").read_text())["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert {e["pid"] for e in spans} == {0, 1, 2, 3} and all(e["dur"] > 0 for e in spans)
    assert any(e["name"] == "nn.linear at model.layers.1.mlp.down_proj" and e["cat"] == "gemm" for e in spans)
    collectives = [e for e in spans if e["cat"] == "collective" and e["pid"] == 0]
    arrows = [e for e in events if e["ph"] in "stf"]
    assert len(arrows) == 2 * 2 * len(collectives)
    for begin, end in zip(arrows[::2], arrows[1::2]):
        assert (begin["ph"], end["ph"], begin["id"]) == ("s", "f", end["id"]) and end["pid"] == begin["pid"] + 1
    for name in ("arena", "bytes in flight"):
        values = [e["args"]["bytes"] for e in events if e["ph"] == "C" and e["name"] == name and e["pid"] == 3]
        assert values[-1] == 0 and max(values) > 0 and min(values) == 0
    made.trace(tmp_path / "one.json", ranks=1)
    assert len((tmp_path / "one.json").read_text()) * 3 < len((tmp_path / "plan.json").read_text())
    for call, message in ((lambda: made.trace(tmp_path / "absent" / "x.json"), "No such file or directory"),
                          (lambda: made.trace(3), "path: expected a path, got 3"),
                          (lambda: made.trace(tmp_path / "x.json", ranks=0), "ranks: expected")):
        with pytest.raises(mw.Error, match=message):
            call()


@pytest.mark.parametrize("mesh, options", [({"tp": 2}, dict(overlap="on")), ({"dp": 2}, {}), ({"gtp": 2}, dict(recompute="full"))])
def test_measured_arena(tmp_path, mesh, options):
    """The counter of a measured trace has the peak that the plan expects."""
    net = tf.LlamaForCausalLM(tf.LlamaConfig(
        hidden_size=64, num_hidden_layers=2, intermediate_size=96, vocab_size=101, num_attention_heads=8,
        num_key_value_heads=4, use_cache=False))
    ids = torch.arange(96).reshape(4, 24) % 101
    step = mw.from_torch(net, (), dict(input_ids=ids, labels=ids), training=True).train(mw.AdamW(lr=1e-3))
    made = step.parallelize(mesh=mesh, **options)
    made.run(input_ids=ids, labels=ids, trace=tmp_path / "run.json")
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    for rank in range(2):
        arena = [e["args"]["bytes"] for e in events if e["ph"] == "C" and (e["name"], e["pid"]) == ("arena", rank)]
        assert max(arena) == made.report("json", verbose=True)["program"]["arena"]["peak"]["bytes"] and arena[-1] == 0


def _trace(path):
    """The launches by number and name, the arrows, and the peak of the arena, of a trace."""
    events = json.loads(path.read_text())["traceEvents"]
    spans = {(e["args"]["op"], e["name"]) for e in events if e["ph"] == "X" and e["cat"] != "wait"}
    arena = [e["args"]["bytes"] for e in events if e["ph"] == "C" and e["name"] == "arena"]
    return spans, sum(e["ph"] in "stf" for e in events), max(arena)


def _with_loss():
    """A model whose loss is outside modules."""
    net = tf.LlamaForCausalLM(config())
    ids = torch.arange(64).reshape(4, 16)
    return mw.from_torch(net, (), dict(input_ids=ids, labels=ids), training=True).train(mw.AdamW(lr=1e-3)), dict(
        input_ids=ids, labels=ids)


def _with_experts():
    net = tf.MixtralForCausalLM(tf.MixtralConfig(
        hidden_size=48, num_attention_heads=4, num_key_value_heads=2, intermediate_size=40, num_hidden_layers=1,
        vocab_size=101, num_local_experts=4, use_cache=False)).eval()
    ids = torch.arange(64).reshape(4, 16)
    return mw.from_torch(net, (), dict(input_ids=ids)), dict(input_ids=ids)


@pytest.mark.parametrize("make, mesh, options", [
    (_with_loss, {"gtp": 2, "tp": 2}, {}), (_with_loss, {"dp": 2}, {}),
    (_with_experts, {"dp": 2, "tp": 2}, {"expert_parallel": "dp"})])
def test_expected_and_measured_traces_are_alike(make, mesh, options, tmp_path):
    """Launches have the same short names, and arrows and the peak of the arena are the same."""
    program, inputs = make()
    made = program.parallelize(mesh=mesh, **options)
    made.trace(tmp_path / "plan.json")
    made.run(**inputs, trace=tmp_path / "run.json")
    (expected, *counts), (measured, *others) = _trace(tmp_path / "plan.json"), _trace(tmp_path / "run.json")
    # A rank knows its own indices before the run.
    assert {name for _, name in expected - measured} <= {name for _, name in expected if name.startswith("dist.axis_index")}
    assert measured <= expected and counts == others
    assert not any("/" in name for _, name in expected)
    outside = {name for _, name in expected if " at " not in name}
    assert all(re.fullmatch(r"[a-z_.]+( role [a-z]+)? \([^/()]+:\d+\)", name) for name in outside), outside
    assert bool(outside) == (make is _with_loss)
    roles = {name.partition(" role ")[2].partition(" ")[0] for _, name in expected if " role " in name}
    assert roles == ({"weights", "gradients"} if "gtp" in mesh else set())


@pytest.mark.parametrize("options", [{"mesh": (("dp", 2), ("tp", 2))}, {"mesh": (("sp", 2), ("ring", 2)),
                         "context_parallel": (("ulysses", "sp"), ("ring", "ring"))}])
def test_traced_runs(options, tmp_path):
    """Measured times are beside the expected ones, and answer which layer takes longest."""
    made = model().parallelize(**{name: dict(value) for name, value in options.items()})
    made.run(input_ids=torch.zeros((4, 16), dtype=torch.long), trace=tmp_path / "run.json", measure=True)
    made.save_report(tmp_path / "plan.html", trace=tmp_path / "run.json")
    page = check_page((tmp_path / "plan.html").read_text())
    assert "rank 3: compute" in page.texts["picture-measured"] and "kernels, measured" in page.texts["table-layers"]
    assert re.match(r"(model\.\S+|lm_head): \S+ [num]?s of kernels and .*, measured", page.answer("longest-layer"))
    assert re.search(r"runs at \d+% of the ceiling of its kernels, measured", page.answer("ceiling-share"))
    assert "measured" in page.answer("longest-collective")
    assert "picture-measured" not in check_page(made.report("html")).ids


@pytest.mark.parametrize("text, message", [
    (None, "cannot read trace"),
    ("", "expected a file that a run wrote"),
    ("[]", "expected a file that a run wrote"),
    ('{"traceEvents": 3}', "expected a file that a run wrote"),
    ('{"traceEvents": [{"ph": "X"}]}', "expected a file that a run wrote"),
    ('{"traceEvents": []}', "expected one of a run of this plan"),
    ('{"traceEvents": [{"ph": "X", "pid": 0, "tid": 0, "ts": 0, "dur": 1, "cat": "rows", "name": "x", '
     '"args": {"op": 100000, "flops": 0, "bytes": 0}}]}', "got launch 100000 of rank 0"),
])
def test_other_traces_are_refused(text, message, tmp_path):
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(mw.Error, match=message):
        plan(mesh=(("tp", 2),)).save_report(tmp_path / "plan.html", trace=tmp_path / "run.json")
    with pytest.raises(mw.Error, match="expected no trace for a report in text"):
        plan(mesh=(("tp", 2),)).save_report(tmp_path / "plan.txt", trace=tmp_path / "run.json")
    assert not (tmp_path / "plan.html").exists() and not (tmp_path / "plan.txt").exists()


def test_longest_layer_is_a_module():
    """Launches outside modules are in the table. They are the answer for a program without modules alone."""
    class Outer(torch.nn.Module):
        def __init__(self, **modules):
            super().__init__()
            self.up = modules.get("up", lambda x: x)

        def forward(self, x):
            y = self.up(x)
            return y @ x.mT @ x @ y.mT

    def planned(net):
        return mw.from_torch(net.eval(), (torch.ones(4, 8, 8),)).parallelize(mesh={"dp": 2})

    made = planned(Outer(up=torch.nn.Linear(8, 8)))
    layers = {layer["name"]: layer["seconds"] for layer in made.report("json", verbose=True)["program"]["layers"]}
    page = check_page(made.report("html"))
    assert layers["outside modules"] > layers["up"] and "outside modules" in page.texts["table-layers"]
    assert page.answer("longest-layer").startswith("up: ") and page.answer("ceiling-share").startswith("up runs at ")
    assert check_page(planned(Outer()).report("html")).answer("longest-layer").startswith("outside modules: ")
