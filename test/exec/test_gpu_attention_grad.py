# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""nn.attention_grad for GPUs on the stand-in for the driver, against autograd of PyTorch in f64; ptxas
assembles its kernels."""
import gpu_programs
import pytest
import test_attention_grad
import torch
from test_attention_grad import (TOLERANCE, Case, Program, name, places, tensors, test_bias,  # noqa: F401
                                 test_large_scores, test_long, test_masks, test_positions_and_lengths,
                                 test_rows_without_keys)

pytestmark = pytest.mark.skipif(gpu_programs.missing() is not None, reason=str(gpu_programs.missing()))


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch):
    monkeypatch.setattr(test_attention_grad, "run_module", gpu_programs.run_program)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["f32", "bf16", "f16"])
def test_heads(tmp_path, dtype):
    """Heads of few, of odd and of many features; query heads that share a key head; two runs with the same bits."""
    p = Program()
    for heads, kv_heads, queries, keys, features, value_features in (
            (4, 1, 1, 40, 1, 1), (4, 2, 37, 40, 7, 5), (3, 3, 40, 70, 20, 33), (2, 1, 33, 40, 128, 256),
            (2, 2, 7, 33, 264, 8)):
        x = tensors(2, heads, kv_heads, queries, keys, features, value_features, dtype)
        i, j = places(queries, keys)
        p.add(Case(x, features**-0.5, j <= i), "causal")
    p.check(tmp_path, TOLERANCE[dtype])
    first, second = (gpu_programs.run_program(tmp_path, p.text(), p.inputs) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def one_case(features, dtype):
    p = Program()
    x = tensors(1, 4, 2, 70, 70, features, features, dtype)
    bias = torch.randn(4, 1, 70, generator=torch.Generator().manual_seed(5)).to(dtype)
    p.add(Case(x, 0.1, bias=bias, cap=2.0, wants_bias=True))
    return p


@pytest.mark.parametrize("chip", ["sm_80", "sm_90a", "sm_100", "sm_120"])
def test_ptxas_accepts_kernels(tmp_path, chip):
    for features, dtype in ((128, torch.float32), (20, torch.float32), (256, torch.bfloat16), (72, torch.float16)):
        gpu_programs.assemble(tmp_path / f"{name(dtype)}-{features}", one_case(features, dtype).text(), chip)
