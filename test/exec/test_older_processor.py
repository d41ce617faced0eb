# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels of attention and of rows, made for a processor without AVX-512 and run on this one: the
same tests, through a bundle."""
import pathlib
import shutil
import subprocess

import harness
import pytest
import test_attention
import test_attention_grad
import test_attention_parts
import test_dropout
import test_nn
import test_products
import test_rows
import torch
from safetensors.torch import load_file, save_file

f32, bf16, f16, f64 = torch.float32, torch.bfloat16, torch.float16, torch.float64
CASES = [
    *((test_attention.test_masks, 33, 7, dtype) for dtype in (f32, bf16)),
    *((test_attention.test_masks, *lengths, dtype)
      for lengths in ((7, 9), (97, 97)) for dtype in (f32, bf16, f16, f64)),
    *((test_attention.test_heads, 8, 2, dtype) for dtype in (f32, bf16, f64)),
    *((test_attention.test_bias, 97, 70, dtype) for dtype in (f32, bf16, f64)),
    (test_attention.test_long, f32),
    *((test_attention.test_log_sum_exp, queries, dtype)
      for queries in (2, 150) for dtype in (f32, bf16, f64)),
    *((test_attention_grad.test_masks, 97, 97, dtype) for dtype in (f32, bf16, f64)),
    (test_attention_grad.test_heads, 8, 2, f32), (test_attention_grad.test_bias, 97, 70, f32),
    *((test_dropout.test_elements, (5, 130), dtype) for dtype in (f32, bf16, f16, f64)),
    *((test_dropout.test_attention, *case, dtype)
      for case in ((1, 97, False), (150, 150, True)) for dtype in (f32, bf16, f64)),
    *((test_attention_parts.test_merge, dtype) for dtype in (f32, bf16, f16, f64)),
    *((test_attention_parts.test_parts_make_the_whole, 150, 2, "zigzag", dtype)
      for dtype in (f32, bf16, f64)),
    *((test_attention_parts.test_places, *lengths, "some", dtype)
      for lengths in ((5, 640), (300, 400)) for dtype in (f32, bf16)),
    *((test, dtype) for dtype in (f32, bf16, f16, f64) for test in (
        test_nn.test_unary, test_nn.test_binary, test_nn.test_rows, test_nn.test_rotary,
        test_nn.test_products, test_rows.test_gated_activations,
        test_rows.test_norm_of_sum_with_norm, test_rows.test_masked_softmax,
        test_rows.test_reductions_of_rows, test_rows.test_moves)),
    (test_nn.test_casts,), (test_nn.test_nan,),
    *((test_products.test_gate, test_products.SHAPES[-1], dtype) for dtype in (f32, bf16)),
]


def name(case):
    return "-".join([case[0].__name__, *(harness.ELEMENT.get(x, str(x)) for x in case[1:])])


def run_bundle(folder, text, inputs, weights=None, arguments=(), status=0, env=None):
    """As `harness.run_module`."""
    assert not arguments and not status and not env
    (folder / "model.mlir").write_text(text)
    compiler = shutil.which("sharding-compile") or pathlib.Path(harness.tool()).parent / "sharding-compile"
    command = [compiler, folder / "model.mlir", "--target=cpu:x86-64-v3", "-o", folder / "bundle"]
    if weights:
        save_file({k: v.contiguous().clone() for k, v in weights.items()}, folder / "w.safetensors")
        command.append(f"--weights={folder}/w.safetensors")
    subprocess.run(command, check=True, timeout=harness.TIMEOUT)
    save_file({k: v.contiguous().clone() for k, v in inputs.items()}, folder / "in.safetensors")
    done = harness.launch(folder / "bundle", f"--inputs={folder}/in.safetensors",
                          f"--outputs={folder}/out.safetensors")
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{text}"
    return load_file(folder / "out.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=name)
def test_older_processor(tmp_path, monkeypatch, case):
    test, *arguments = case
    # Without products of bf16 nothing is rounded to it.
    monkeypatch.setitem(test_attention_grad.TOLERANCE, bf16, test_attention_grad.EXACT)
    for module in (harness, test_attention, test_attention_grad, test_attention_parts, test_dropout, test_nn,
                   test_products, test_rows):
        if hasattr(module, "run_module"):
            monkeypatch.setattr(module, "run_module", run_bundle)
    test(tmp_path, *arguments)
