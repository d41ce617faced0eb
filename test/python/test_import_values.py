# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Operations that the importer composes: imported, compiled and run on what is hard for them."""
import math

import meshwright as mw
import pytest
import torch
import torch.nn.functional as F
from import_checks import count, same
from torch import nn

INF, NAN = math.inf, math.nan
NARROW = [torch.bfloat16, torch.float16]
ULP = {torch.float64: 2 ** -52, torch.float32: 2 ** -23, torch.float16: 2 ** -10,
       torch.bfloat16: 2 ** -7}


class Call(nn.Module):
    def __init__(self, *functions):
        super().__init__()
        self.functions = functions

    def forward(self, *args):
        return tuple(f(*args) for f in self.functions)


def run(functions, *args):
    """What the compiled program gives for each function, with what PyTorch gives for it."""
    module = Call(*functions)
    got = mw.from_torch(module, args).parallelize(mesh={"tp": 1}).run(*args)
    want = module(*args)
    assert [g.dtype for g in got] == [w.dtype for w in want]
    return zip(got, want, strict=True)


def equal(functions, *args):
    for got, want in run(functions, *args):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_squares_beyond_the_type(dtype):
    x = torch.tensor([[300.0, -400.0, 0.0], [3e-4, 4e-4, -5e-4]], dtype=dtype)
    functions = [
        lambda x: F.normalize(x, dim=-1), lambda x: torch.linalg.vector_norm(x, dim=-1),
        lambda x: x.std(-1), lambda x: x[:1].var(-1) if dtype == torch.bfloat16 else x[1:].var(-1),
        lambda x: torch.var_mean(x[1:], -1)[0], lambda x: torch._weight_norm(x, x[:, :1], 0)]
    for got, want in run(functions, x):
        torch.testing.assert_close(got, want, rtol=2 * ULP[dtype], atol=0)


class LayerNorm(nn.Module):
    def forward(self, x):
        centre = x - x.mean(-1, keepdim=True)
        return centre / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, *NARROW], ids=str)
def test_a_norm_by_the_variance(dtype):
    x = torch.randn(3, 24, generator=torch.Generator().manual_seed(3)).to(dtype)
    assert count(same(LayerNorm(), (x,))) == {"input": 1, "layer_norm": 1}
