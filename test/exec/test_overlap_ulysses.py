# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attention of Ulysses in chunks of heads: the same bits as whole, and PyTorch's results."""

import copy
import functools
import json
import re
import subprocess

import meshwright as mw
import pytest
import torch
import transformers as tf
from harness import tool
from safetensors.torch import load_file, save_file
from torch import nn

SMALL = dict(hidden_size=64, num_hidden_layers=2, intermediate_size=96, vocab_size=101)


@functools.cache
def build(heads, kv_heads, batch=1, length=24):
    """The import, the module itself, and what it is called with."""
    torch.manual_seed(0)
    config = tf.LlamaConfig(
        **SMALL, max_position_embeddings=256, use_cache=False, num_attention_heads=heads,
        num_key_value_heads=kv_heads,
    )  # fmt: skip
    module, ids = tf.LlamaForCausalLM(config).eval(), torch.randint(0, 101, (batch, length))
    return mw.from_torch(module, (ids,)), module, ids


def check(model, module, ids, mesh, context):
    """The plan that overlaps, after its results were compared."""
    with torch.no_grad():
        want = copy.deepcopy(module).double()(ids)[0]
    on, off = (model.parallelize(mesh=mesh, context_parallel=context, overlap=overlap)
               for overlap in ("on", "off"))  # fmt: skip
    got = on.run(ids, measure=True)[0]
    assert (got - want).abs().max() <= 1e-5 * want.abs().max()
    assert torch.equal(got, off.run(ids)[0])
    arena = on.report(format="json")["run"]["arena"]
    assert arena["seen"] == arena["planned"]
    return on


def decisions(plan):
    return [d for d in plan.report(format="json")["decisions"] if d["pass"] == "split-collectives"]


CASES = [
    (8, 8, {"ulysses": 2}),
    (8, 4, {"ulysses": 2}),
    (8, 8, {"ulysses": 4}),
    # Padded to nine heads.
    (8, 8, {"ulysses": 3}),
    (8, 4, {"ulysses": 2, "ring": 2}),
    (8, 8, {"ring": 3, "ulysses": 2}),
    (8, 8, {"tp": 2, "ulysses": 2}),
    # Queries alone: there is one key.
    (8, 1, {"ulysses": 2}),
]


@pytest.mark.parametrize("heads, kv_heads, mesh", CASES, ids=str)
def test_llama(heads, kv_heads, mesh):
    context = {axis: axis for axis in mesh if axis != "tp"}
    if "ring" in mesh:
        context["order"] = "zigzag"
    plan = check(*build(heads, kv_heads), mesh, context)
    rows = {8: 8, 4: 4, 1: 8}[kv_heads] // mesh.get("tp", 1)
    # A decision for each layer; both all-to-alls are in chunks.
    applied = [d["numbers"] for d in decisions(plan) if d["outcome"] == "applied" and d["numbers"]["rows"] == rows]
    assert len(applied) == 2 and all(d["collectives"] >= 2 for d in applied)
    assert plan.ir(phase="rt").count("dist.all_to_all") >= 2 * 4


@pytest.mark.parametrize("heads, kv_heads, mesh, batch, rows", [
    (8, 8, {"ulysses": 2}, 2, 8),
    (8, 8, {"ulysses": 3}, 2, 8),
    # Heads do not suffice for chunks, the batch does.
    (4, 2, {"ulysses": 2}, 3, 3),
    (8, 4, {"ulysses": 2, "ring": 2}, 2, 2),
], ids=str)  # fmt: skip
def test_batch(heads, kv_heads, mesh, batch, rows):
    """A move between sequence and heads is a redistribute there."""
    plan = check(*build(heads, kv_heads, batch), mesh, {axis: axis for axis in mesh})
    applied = [d["numbers"] for d in decisions(plan) if d["outcome"] == "applied"]
    assert applied and all(d["rows"] == rows for d in applied)


@pytest.mark.parametrize("heads, kv_heads, mesh, reason", [
    (8, 2, 2, "expected at least 4 rows, got 2"),
    # Pairs of ranks have the same key/value head.
    (8, 2, 4, "reads, beside its rows, a value that differs between the ranks of"),
    (8, 2, 8, "rows that are scattered over {\"ulysses\"} leave the ops that can run in chunks"),
])  # fmt: skip
def test_declined(heads, kv_heads, mesh, reason):
    plan = check(*build(heads, kv_heads), {"ulysses": mesh}, {"ulysses": "ulysses"})
    assert all(d["outcome"] == "declined" for d in decisions(plan))
    assert any(reason in d["message"] for d in decisions(plan))


def test_biases():
    """Chunks of weights and biases, and norms of each head."""
    torch.manual_seed(0)
    config = tf.Qwen3Config(
        **SMALL, num_attention_heads=4, num_key_value_heads=4, head_dim=16, attention_bias=True,
        max_position_embeddings=256, use_cache=False,
    )  # fmt: skip
    module, ids = tf.Qwen3ForCausalLM(config).eval(), torch.randint(0, 101, (1, 17))
    with torch.no_grad():
        for name, bias in module.named_parameters():
            if name.endswith("bias"):
                bias.normal_()
    plan = check(mw.from_torch(module, (ids,)), module, ids, {"ulysses": 2}, {"ulysses": "ulysses"})
    assert sum(d["outcome"] == "applied" for d in decisions(plan)) == 2


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(64, 64, bias=i < 3) for i in range(4))

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (8, 8)).transpose(1, 2) for p in (self.q, self.k, self.v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("mesh", [{"ulysses": 2}, {"tp": 2, "ulysses": 2}], ids=str)
def test_chunks_of_weights(tmp_path, mesh):
    """They are packed at load: the stored weight is not kept, and a bundle has the same bits."""
    torch.manual_seed(0)
    module, x = Attention().eval(), torch.randn(1, 12, 64)
    model = mw.from_torch(module, (x,))
    plan = model.parallelize(mesh=mesh, context_parallel={"ulysses": "ulysses"}, overlap="on")
    got = plan.run(x)[0]
    assert torch.allclose(got, module(x), atol=1e-5)
    plan.compile(tmp_path / "b")
    manifest = json.loads((tmp_path / "b" / "manifest.json").read_text())
    names = {parameter["name"]: (i, "data" in parameter)
             for i, parameter in enumerate(manifest["parameters"])}  # fmt: skip
    parts = [prepared["parameter"] for prepared in manifest["prepared"]]
    for name in "qkvo":
        i, is_stored = names[f"{name}.weight"]
        assert not is_stored and parts.count(i) == (1 if name == "o" else 2)
    save_file({"x": x}, tmp_path / "x.safetensors")
    done = subprocess.run(
        [tool(), tmp_path / "b", f"--inputs={tmp_path}/x.safetensors", f"--outputs={tmp_path}/y.safetensors"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert torch.equal(next(iter(load_file(tmp_path / "y.safetensors").values())), got)


def test_runs_beside_kernels():
    """On slow links, which the device says: a chunk travels while another is computed.

    The order of the program says so; the times of a trace would depend on what else the machine does.
    """
    model, *_ = build(8, 8)
    slow = "cpu flops_f32=1e7 link_bandwidth=1e6 link_latency=0 overlap=1"
    plan = model.parallelize(mesh={"ulysses": 2}, context_parallel={"ulysses": "ulysses"}, device=slow)
    assert sum(d["outcome"] == "applied" for d in decisions(plan)) == 2
    text = plan.ir(phase="rt")
    beside = {"to heads": [], "to sequence": []}
    for start in re.finditer(r"(%\w+) = rt\.start [^\n]*\n[^\n]*\n *%\w+(:3)? = dist\.all_to_all", text):
        wait = text.index(f"= rt.wait {start[1]} ", start.end())
        names = re.findall(r"= nn\.(\w+)", text[start.end() : wait])
        beside["to heads" if start[2] else "to sequence"].append(names)
    # Every chunk on its way to the heads has a projection or attention beside it, and on its way back all
    # but the last, in each of two layers.
    for chunks in beside.values():
        assert len(chunks) == 2 * 4
    assert all({"linear", "attention"} & set(names) for names in beside["to heads"])
    assert sum("attention" in names for names in beside["to sequence"]) == 2 * 3


def test_fast_links():
    """Links that need no hiding, and those of cores, leave it whole."""
    model, *_ = build(8, 8)
    for device in ("cpu", "cpu flops_f32=1e9 link_bandwidth=1e13 link_latency=0 overlap=1"):
        plan = model.parallelize(mesh={"ulysses": 2}, context_parallel={"ulysses": "ulysses"}, device=device)
        assert decisions(plan)
        assert all(d["outcome"] == "declined" for d in decisions(plan))
        assert any(d["message"].startswith("collectives stay whole") for d in decisions(plan))


def test_chunks_without_a_proof_stay_whole():
    """Four heads over three ranks, which two ranks divide again: too many ways to read the chunks."""
    model, module, ids = build(4, 2, length=24)
    labels = mw.from_torch(module.train(), (), {"input_ids": ids, "labels": ids}, training=True)
    plan = labels.train(mw.AdamW(lr=1e-3)).parallelize(
        mesh={"ulysses": 2, "tp": 3}, context_parallel={"ulysses": "ulysses"}, sequence_parallel="off", overlap="on")
    assert plan.report("json")["communication"]["run_seconds"] > 0
    with plan.start() as session:
        assert torch.isfinite(session.run(input_ids=ids, labels=ids)[0])
