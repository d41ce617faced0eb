# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""SPMD programs in chunks compute what they compute whole."""
import json
import re
import subprocess

import pytest
import torch
from harness import assert_close, launch, tool
from safetensors.torch import load_file, save_file

HIDDEN, INNER, HEADS, KV, SIZE, VOCABULARY = 24, 36, 6, 3, 4, 31


def model(batch, tokens, layers=2):
    """Embedding, blocks of attention and a gated MLP, a projection: as a Llama is."""
    def t(*shape):
        return f'tensor<{"x".join(map(str, shape))}xf32>'

    x = t(batch, tokens, HIDDEN)
    parameters, body = {"table": (VOCABULARY, HIDDEN), "head": (VOCABULARY, HIDDEN), "norm": (HIDDEN,)}, []

    def op(text):
        name = f"%{len(body)}"
        body.append(f"  {name} = {text}")
        return name

    def linear(value, name, rows, columns, bias=False):
        parameters[name] = (rows, columns)
        extra, extra_type = "", ""
        if bias:
            parameters[name + "_bias"] = (rows,)
            extra, extra_type = f" bias %{name}_bias", f", {t(rows)}"
        return op(f"nn.linear {value}, %{name}{extra} : ({t(batch, tokens, columns)}, {t(rows, columns)}{extra_type})"
                  f" -> {t(batch, tokens, rows)}")

    def norm(value, name):
        parameters[name] = (HIDDEN,)
        return op(f"nn.rms_norm {value} weight %{name} eps 1.0e-6 : ({x}, {t(HIDDEN)}) -> {x}")

    def heads(value, count):
        split, moved = t(batch, tokens, count, SIZE), t(batch, count, tokens, SIZE)
        value = op(f"nn.reshape {value} : ({t(batch, tokens, count * SIZE)}) -> {split}")
        return op(f"nn.transpose {value} [0, 2, 1, 3] : ({split}) -> {moved}")

    ids = f"tensor<{batch}x{tokens}xi64>"
    value = op(f"nn.embedding %ids, %table : ({ids}, {t(VOCABULARY, HIDDEN)}) -> {x}")
    for i in range(layers):
        h = norm(value, f"n{i}")
        q, k, v = (heads(linear(h, f"{name}{i}", count * SIZE, HIDDEN, bias=name == "k"), count)
                   for name, count in (("q", HEADS), ("k", KV), ("v", KV)))
        queries, keys = t(batch, HEADS, tokens, SIZE), t(batch, KV, tokens, SIZE)
        a = op(f"nn.attention {q}, {k}, {v} scale 0.5 {{causal}} : ({queries}, {keys}, {keys}) -> {queries}")
        a = op(f"nn.transpose {a} [0, 2, 1, 3] : ({queries}) -> {t(batch, tokens, HEADS, SIZE)}")
        a = op(f"nn.reshape {a} : ({t(batch, tokens, HEADS, SIZE)}) -> {t(batch, tokens, HEADS * SIZE)}")
        value = op(f"nn.add {value}, {linear(a, f'o{i}', HIDDEN, HEADS * SIZE, bias=True)} : ({x}, {x}) -> {x}")
        h = norm(value, f"m{i}")
        inner = t(batch, tokens, INNER)
        gate = op(f"nn.silu {linear(h, f'gate{i}', INNER, HIDDEN)} : {inner}")
        both = op(f"nn.mul {gate}, {linear(h, f'up{i}', INNER, HIDDEN)} : ({inner}, {inner}) -> {inner}")
        value = op(f"nn.add {value}, {linear(both, f'down{i}', HIDDEN, INNER)} : ({x}, {x}) -> {x}")
    h = norm(value, "norm")
    logits = linear(h, "head", VOCABULARY, HIDDEN)
    signature = "".join(f', %{name}: {t(*shape)} {{nn.parameter = "{name}"}}' for name, shape in parameters.items())
    text = (f'func.func @main(%ids: {ids} {{nn.input = "ids"}}{signature}) -> '
            f'({t(batch, tokens, VOCABULARY)} {{nn.output = "logits"}}) {{\n' + "\n".join(body)
            + f"\n  return {logits} : {t(batch, tokens, VOCABULARY)}\n}}\n")
    return text, parameters


def prepare(folder, batch, tokens):
    text, parameters = model(batch, tokens)
    (folder / "m.mlir").write_text(text)
    generator = torch.Generator().manual_seed(0)
    save_file({name: torch.randn(*shape, generator=generator) / 5 for name, shape in parameters.items()},
              folder / "w.safetensors")
    save_file({"ids": torch.randint(0, VOCABULARY, (batch, tokens), generator=generator)}, folder / "x.safetensors")


def opt(folder, *arguments):
    done = subprocess.run([tool().replace("sharding-run", "sharding-opt"), *arguments], cwd=folder,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def run(folder, name):
    done = launch(folder / f"{name}.mlir", f"--weights={folder}/w.safetensors", f"--inputs={folder}/x.safetensors",
                  f"--outputs={folder}/{name}.safetensors")
    assert done.returncode == 0, done.stderr
    return load_file(folder / f"{name}.safetensors")["logits"]


@pytest.mark.parametrize("sequence_parallel", ["on", "off"])
@pytest.mark.parametrize("mesh", ["tp=2", "tp=3", "tp=4", "dp=2,tp=3"])
@pytest.mark.parametrize("batch,tokens,chunks", [(1, 16, 2), (1, 13, 3), (2, 9, 2), (4, 3, 2)])
def test_split(tmp_path, mesh, batch, tokens, chunks, sequence_parallel):
    prepare(tmp_path, batch, tokens)
    opt(tmp_path, "m.mlir", f"--parallelize=mesh={mesh} sequence-parallel={sequence_parallel}", "-o", "whole.mlir")
    opt(tmp_path, "whole.mlir", f"--split-collectives=when=on chunks={chunks}", "-o", "split.mlir")
    text = (tmp_path / "split.mlir").read_text()
    assert "nn.concat" in text
    reference, whole, split = (run(tmp_path, name) for name in ("m", "whole", "split"))
    assert_close(split, reference, 1e-5)
    assert_close(split, whole, 1e-6)
    assert torch.equal(run(tmp_path, "split"), split)


@pytest.mark.parametrize("options", ["mesh=tp=2 sequence-parallel=on", "mesh=tp=4 sequence-parallel=off",
                                     "mesh=dp=2,tp=3 sequence-parallel=on"])
def test_overlap(tmp_path, options):
    """In chunks, in another order and on streams of their own: the same bits."""
    prepare(tmp_path, 2, 13)
    results = []
    for overlap in ("off", "on", "on"):
        done = launch(tmp_path / "m.mlir", f"--weights={tmp_path}/w.safetensors",
                      f"--inputs={tmp_path}/x.safetensors", f"--outputs={tmp_path}/y.safetensors",
                      f"--parallelize={options} overlap={overlap}")
        assert done.returncode == 0, done.stderr
        results.append(load_file(tmp_path / "y.safetensors")["logits"])
    assert torch.equal(results[1], results[2])
    assert_close(results[1], results[0], 1e-6)


def test_what_is_exposed_and_what_is_hidden(tmp_path):
    prepare(tmp_path, 2, 13)
    done = launch(tmp_path / "m.mlir", f"--weights={tmp_path}/w.safetensors", f"--inputs={tmp_path}/x.safetensors",
                  "--parallelize=mesh=tp=2 sequence-parallel=on overlap=on", f"--report={tmp_path}/r.json")
    assert done.returncode == 0, done.stderr
    times = json.loads((tmp_path / "r.json").read_text())["run"]["communication"]
    assert 0 <= times["hidden_seconds"] and 0 <= times["exposed_seconds"] <= times["seconds"]
    assert times["exposed_seconds"] + times["hidden_seconds"] == pytest.approx(times["seconds"])


def test_memory_ceiling(tmp_path):
    """A program fits the smallest ceiling that an error names."""
    prepare(tmp_path, 1, 16)
    opt(tmp_path, "m.mlir", "--parallelize=mesh=tp=2 sequence-parallel=on", "-o", "spmd.mlir")
    program = tool().replace("sharding-run", "sharding-opt")

    def schedule(ceiling):
        return subprocess.run([program, "spmd.mlir", f"--request-schedule=overlap=on memory-ceiling={ceiling}",
                               "--schedule", "-o", "rt.mlir"], cwd=tmp_path, capture_output=True, text=True)

    refused = schedule(1000)
    assert refused.returncode != 0
    least = int(re.search(r"needs (\d+) bytes on a rank", refused.stderr)[1])
    assert schedule(least).returncode == 0
    frugal = int(re.search(r"rt.arena = (\d+)", (tmp_path / "rt.mlir").read_text())[1])
    assert schedule(1 << 30).returncode == 0
    assert frugal < int(re.search(r"rt.arena = (\d+)", (tmp_path / "rt.mlir").read_text())[1])
    assert schedule(least - 1).returncode != 0
