# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""nn.paged_attention for GPUs on the stand-in for the driver, on random caches, against PyTorch in f64."""
import gpu_programs
import pytest
import test_paged_attention
import torch
from harness import ELEMENT
from test_paged_attention import FLOATS, Case

pytestmark = pytest.mark.skipif(gpu_programs.missing() is not None, reason=str(gpu_programs.missing()))
# The stand-in takes seconds for what a processor does at once.
SMALL = dict(longest=130, size=4, features=40)


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch):
    monkeypatch.setattr(test_paged_attention, "run_module",
                        lambda folder, text, inputs, arguments=(): gpu_programs.run_program(folder, text, inputs))


@pytest.mark.parametrize("seed", range(24))
def test_random(tmp_path, seed):
    """Groups, caches by sequence, parts, windows, slopes, sinks and latent rows; requests without tokens, and tokens
    of no request."""
    Case(seed, longest=130).check(tmp_path)


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
def test_decoding(tmp_path, dtype):
    """One token a request. Few blocks share the keys, so they are cut into splits."""
    for shared in (1, 4):
        case = Case(1, **{**SMALL, "longest": 600}, dtype=dtype, count=1, requests=2, kv=1, shared=shared, window=None, groups=1, deal=1,
                    parts=None, latent=False, value_features=16)
        case.check(tmp_path)
    program, _ = gpu_programs.compile_kernels(tmp_path, case.text())
    assert max(launch["scratch"] for launch in program["launches"]) > 0


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
def test_prompts(tmp_path, dtype):
    """Several blocks of a request, beside requests of one block."""
    Case(3, **SMALL, dtype=dtype, count=70, requests=2, kv=2, shared=2, groups=1, deal=1, parts=None).check(tmp_path)


@pytest.mark.parametrize("distances", ["distance", "position"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=ELEMENT.get)
def test_distances(tmp_path, dtype, distances):
    """A table of numbers, beside slopes and alone."""
    for slopes, deal in ((False, 1), (True, 2)):
        Case(20, **SMALL, dtype=dtype, distances=distances, slopes=slopes, deal=deal, kv=2, shared=2).check(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=ELEMENT.get)
def test_latent(tmp_path, dtype):
    """Keys and values of all heads in one row, of more features than the fragments of queries may have."""
    Case(5, dtype=dtype, latent=True, kv=1, shared=16, features=288, value_features=264, longest=90, window=None,
         size=16).check(tmp_path)


def test_one_kernel(tmp_path):
    """One launch computes attention: no keys are copied. The check of page ids, which layers share, takes three."""
    program, _ = gpu_programs.compile_kernels(tmp_path, Case(8, **SMALL, parts=None, deal=1).text())
    assert len(program["launches"]) == 4, program["launches"]


def test_page_out_of_range(tmp_path):
    case = Case(7, requests=2, count=1, longest=40, groups=1, deal=1)
    case.inputs["tables"][0, 1, 0] = case.pages
    with pytest.raises(IndexError):
        gpu_programs.run_program(tmp_path, case.text(), case.inputs)


@pytest.mark.parametrize("chip", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_assembles(tmp_path, chip):
    """ptxas takes the kernels, and spills no registers."""
    for i, dtype in enumerate((torch.float32, torch.bfloat16)):
        for seed, options in enumerate((dict(slopes=True, sinks=True, window=5), dict(deal=2), dict(features=128, value_features=64))):
            text = Case(seed, **{"longest": 300, "dtype": dtype, "shared": 4, "latent": False, **options}).text()
            gpu_programs.assemble(tmp_path / f"{i}{seed}", text, chip)
