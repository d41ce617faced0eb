# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checkpoints that do not fit a module, or are damaged: one clear error each."""
import json
import os

import pytest
import torch
import torch.nn as nn
from released import entries, in_fp8, in_mxfp4, model, write
from safetensors.torch import save_file

import meshwright as mw

EXPERT = "model.layers.1.mlp.experts.3.up_proj.weight"
SCALE = EXPERT + "_scale_inv"
BLOCKS = "model.layers.0.mlp.experts.gate_up_proj"
FP8 = {"quantization_config": {"weight_block_size": [16, 16]}}


def refusal(name, folder):
    with pytest.raises(mw.Error) as error:
        mw.from_torch(model(name), (torch.zeros(1, 5, dtype=torch.long),), weights=folder)
    (diagnostic,) = error.value.diagnostics
    assert diagnostic.message[:1] in "'" or diagnostic.message[0].islower()
    return diagnostic.message


def drop(key):
    return lambda stored: stored.pop(key)


def change(key, how):
    return lambda stored: stored.update({key: how(stored[key])})




PLAIN = {
    "an expert": (drop(EXPERT), f"it lacks '{EXPERT}'"),
    "all experts of a layer": (
        lambda stored: [stored.pop(key) for key in list(stored) if "layers.1.mlp.experts" in key],
        "it lacks 'model.layers.1.mlp.experts.gate_up_proj', 'model.layers.1.mlp.experts.down_proj'"),
    "the last expert": (
        lambda stored: [stored.pop(key) for key in list(stored) if "layers.1.mlp.experts.5" in key and "down" not in key],
        "expected f32[6, 88, 64] for 'model.layers.1.mlp.experts.gate_up_proj', got f32[5, 88, 64] of 10 tensors"),
    "an entry": (drop("model.norm.weight"), "it lacks 'model.norm.weight'"),
    "a shape": (change("model.norm.weight", lambda w: w[:-1]),
                "model.safetensors': expected f32[64] for 'model.norm.weight', got f32[63]"),
    "an expert's shape": (change(EXPERT, lambda w: w[:-1]), f"'{EXPERT}' in '"),
    "the first expert's shape": (
        change(EXPERT.replace(".3.", ".0."), lambda w: w[:-1]),
        "expected f32[44, 64], as '" + EXPERT.replace(".3.", ".1.")),
    "an expert's type": (change(EXPERT, torch.Tensor.half), "got f16[44, 64]"),
    "a type": (change("model.norm.weight", lambda w: w.to(torch.int32)), "expected f32[64] for 'model.norm.weight', got i32"),
    "codes without scales": (change("lm_head.weight", lambda w: w.to(torch.float8_e4m3fn)),
                             "expected the scales 'lm_head.weight_scale_inv' beside it, got none"),
}


@pytest.mark.parametrize("how,words", PLAIN.values(), ids=PLAIN)
def test_entries(tmp_path, how, words):
    stored = entries("deepseek_v3", tmp_path)
    how(stored)
    write(tmp_path, stored)
    assert words in refusal("deepseek_v3", tmp_path)


CODES = {
    "a scale": (drop(SCALE), EXPERT),
    "a scale's shape": (change(SCALE, lambda s: s[:, :1]), f"'{SCALE}' in "),
    "a scale's type": (change(SCALE, torch.Tensor.double), "expected f32 or bf16 or f8E8M0FNU scales [3, 4]"),
    "NaN": (change(SCALE, lambda s: s.fill_(float("nan"))), "expected finite scales, got nan at [0, 0]"),
    "infinity": (change(SCALE, lambda s: s.fill_(float("inf"))), "expected finite scales, got inf at [0, 0]"),
    "NaN as an exponent": (change(SCALE, lambda s: torch.full_like(s, 0xFF, dtype=torch.uint8)),
                           "expected finite scales, got nan at [0, 0]"),
    "bytes": (change(EXPERT, lambda w: w.view(torch.uint8)), "expected codes f8E4M3FN[..., n, k]"),
    "an expert's shape": (change(EXPERT, lambda w: w[:, :-1]), f"'{EXPERT}' in "),
    "an expert": (lambda stored: (stored.pop(EXPERT), stored.pop(SCALE)), f"it lacks '{EXPERT}'"),
}


@pytest.mark.parametrize("how,words", CODES.values(), ids=CODES)
def test_fp8(tmp_path, how, words):
    stored, _ = in_fp8(entries("deepseek_v3", tmp_path), (16, 16))
    how(stored)
    write(tmp_path, stored, 1, FP8)
    assert words in refusal("deepseek_v3", tmp_path)


@pytest.mark.parametrize("block", [None, [16], [0, 16], "16"])
def test_blocks_of_unknown_size(tmp_path, block):
    stored, _ = in_fp8(entries("llama", tmp_path), (16, 16))
    write(tmp_path, stored, 1, {"quantization_config": {"weight_block_size": block}})
    assert "expected two numbers 'weight_block_size'" in refusal("llama", tmp_path)


FOURS = {
    "no scales": (drop(BLOCKS + "_scales"), f"it lacks '{BLOCKS}_scales', the scales of"),
    "no blocks": (drop(BLOCKS + "_blocks"), f"it lacks '{BLOCKS}'"),
    "scales' shape": (change(BLOCKS + "_scales", lambda s: s[..., :1]), "expected exponents u8[4, 192, 2]"),
    "blocks' shape": (change(BLOCKS + "_blocks", lambda s: s[..., :8]), "expected bytes [..., groups, 16]"),
    "NaN": (change(BLOCKS + "_scales", lambda s: torch.full_like(s, 0xFF)), "expected finite scales, got nan at [0, 0, 0]"),
    "an expert too few": (
        lambda stored: [change(BLOCKS + end, lambda s: s[1:])(stored) for end in ("_blocks", "_scales")],
        f"expected f32[4, 64, 192] for '{BLOCKS}', got f4E2M1FN[3, 64, 192]"),
}


@pytest.mark.parametrize("how,words", FOURS.values(), ids=FOURS)
def test_mxfp4(tmp_path, how, words):
    stored, _ = in_mxfp4(entries("gpt_oss", tmp_path))
    how(stored)
    write(tmp_path, stored)
    assert words in refusal("gpt_oss", tmp_path)


def two_files(folder):
    return write(folder, entries("llama", folder), 2)


def without_index(folder):
    two_files(folder)
    (folder / "model.safetensors.index.json").unlink()


def with_missing_file(folder):
    two_files(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()


def cut(folder):
    two_files(folder)
    path = folder / "model-00002-of-00002.safetensors"
    os.truncate(path, path.stat().st_size // 2)


def with_entry_elsewhere(folder):
    at = two_files(folder)
    path = folder / "model.safetensors.index.json"
    other = {"model-00001-of-00002.safetensors": "model-00002-of-00002.safetensors"}.get(
        at["model.norm.weight"], "model-00001-of-00002.safetensors")
    path.write_text(json.dumps({"weight_map": at | {"model.norm.weight": other}}))


def with_two_indices(folder):
    two_files(folder)
    for name in ("a", "b"):
        (folder / f"{name}.safetensors.index.json").write_text("{}")
    (folder / "model.safetensors.index.json").unlink()


def with_index(text):
    def make(folder):
        two_files(folder)
        (folder / "model.safetensors.index.json").write_text(text)

    return make


FILES = {
    "no index": (without_index, "expected an index '*.safetensors.index.json' for its files "
                                "'model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors'"),
    "a file": (with_missing_file, "model-00002-of-00002.safetensors': No such file"),
    "cut": (cut, "truncated?"),
    "another file": (with_entry_elsewhere, "the index places 'model.norm.weight' in"),
    "no JSON": (with_index("{"), "'model.safetensors.index.json' is not JSON"),
    "no table": (with_index("[]"), "expected a table in 'model.safetensors.index.json'"),
    "two": (with_two_indices, "expected one index, got 'a.safetensors.index.json', 'b.safetensors.index.json'"),
    "no names": (with_index("{}"), "expected a table 'weight_map' of names and files"),
    "nothing": (lambda folder: entries("llama", folder), "expected safetensors files, got none"),
    "PyTorch's": (lambda folder: (folder / "model.safetensors").write_bytes(b"PK" * 50), "truncated?"),
    "not there": (lambda folder: folder.rmdir(), "No such file"),
}


@pytest.mark.parametrize("make,words", FILES.values(), ids=FILES)
def test_files(tmp_path, make, words):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    make(folder)
    said = refusal("llama", folder)
    assert words in said and str(folder) in said


def test_tied_entries_that_differ(tmp_path):
    stored = entries("llama, tied", tmp_path)
    embeddings = stored["model.embed_tokens.weight"]
    write(tmp_path, stored | {"lm_head.weight": embeddings.clone()})
    ids = torch.zeros(1, 5, dtype=torch.long)
    mw.from_torch(model("llama, tied"), (ids,), weights=tmp_path)
    write(tmp_path, stored | {"lm_head.weight": embeddings + 1})
    assert "expected equal entries for 'model.embed_tokens.weight' and 'lm_head.weight'" in refusal("llama, tied", tmp_path)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.register_buffer("factor", torch.ones(4), persistent=False)

    def forward(self, x):
        return self.lin(x) * self.factor


def test_buffer_without_value(tmp_path):
    save_file(Scaled().state_dict(), tmp_path / "w.safetensors")
    with torch.device("meta"):
        meta = Scaled()
    with pytest.raises(mw.Error, match="buffer 'factor' is on the meta device, and weights '.*' do not have it; expected it"):
        mw.from_torch(meta, (torch.ones(2, 4),), weights=tmp_path / "w.safetensors")
    meta.factor = torch.full((4,), 3.0)
    got = mw.from_torch(meta, (torch.ones(2, 4),), weights=tmp_path / "w.safetensors")
    assert got.parallelize(mesh=dict(tp=1)).run(torch.ones(2, 4))[0].shape == (2, 4)


def test_file_that_is_cut_after_the_import(tmp_path):
    write(tmp_path, entries("mixtral", tmp_path))
    ids = torch.zeros(1, 5, dtype=torch.long)
    plan = mw.from_torch(model("mixtral"), (ids,), weights=tmp_path).parallelize(mesh=dict(ep=2))
    os.truncate(tmp_path / "model.safetensors", 5000)
    with pytest.raises(mw.Error, match="cut to 5000 bytes since they were loaded"):
        plan.run(ids)


def test_training_in_another_type(tmp_path):
    write(tmp_path, entries("llama", tmp_path, torch.bfloat16))
    ids = torch.zeros(1, 5, dtype=torch.long)
    with pytest.raises(mw.Error, match="expected f32 in weights '.*', got bf16; to train, give the module the type"):
        mw.from_torch(model("llama"), (), {"input_ids": ids, "labels": ids}, training=True, weights=tmp_path)


@pytest.mark.parametrize("weights", [3, ["a"], b"x"])
def test_argument(weights):
    with pytest.raises(mw.Error, match="weights"):
        mw.from_torch(nn.Linear(2, 2), (torch.ones(1, 2),), weights=weights)
