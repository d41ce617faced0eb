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
    """Yields the compiled program's and PyTorch's result of each function."""
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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *NARROW], ids=str)
def test_the_eps_that_a_norm_lacks(dtype):
    """It is that of the type in which PyTorch computes, not of its operands."""
    x = torch.tensor([[0.01, 0.02], [1e-3, -2e-3], [0, 0]], dtype=dtype)
    for got, want in run([lambda x: F.rms_norm(x, (2,)), torch.nn.RMSNorm(2).to(dtype)], x):
        torch.testing.assert_close(got, want, rtol=2 * ULP[dtype], atol=0)


COMPOSED = [torch.exp2, torch.expm1, torch.log2, torch.log1p, F.softplus, F.mish, F.logsigmoid,
            F.elu, F.selu, lambda x: F.celu(x, 0.7), lambda x: F.softplus(x, beta=3, threshold=1)]


@pytest.mark.parametrize("dtype", ULP, ids=str)
def test_small_and_large_operands(dtype):
    """As near to f64 as the type allows; PyTorch's own f32 is 2 ulp away at times."""
    sizes = torch.cat([torch.logspace(-12, 0, 61), torch.linspace(1, 60, 119)])
    x = torch.cat([sizes, -sizes]).to(dtype)
    exact = Call(*COMPOSED)(x.double())
    for function, (y, _), want in zip(COMPOSED, run(COMPOSED, x), exact, strict=True):
        known = want.isfinite() & (want.abs() > torch.finfo(dtype).tiny) & \
            (want.abs() < torch.finfo(dtype).max / 2)
        assert torch.equal(y.isnan(), want.isnan())
        error = ((y.double() - want) / want)[known].abs().max().item() / ULP[dtype]
        # e^(x log 2) has the rounding error of its exponent.
        allowed = 0.6 if dtype in NARROW else 30 if function is torch.exp2 else 4
        assert error <= allowed, f"{function}: {error} ulp"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_ends_of_the_range(dtype):
    equal(COMPOSED, torch.tensor([INF, -INF, NAN, 0.0], dtype=dtype))
    equal([torch.log1p, torch.log2], torch.tensor([-1.0, -1.5, 0.0], dtype=dtype))


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_log_softmax_is_rounded_once(dtype):
    x = (torch.randn(5, 33, generator=torch.Generator().manual_seed(1)) * 3).to(dtype)
    (got, _), = run([lambda x: x.log_softmax(-1)], x)
    want = x.double().log_softmax(-1)
    assert ((got.double() - want) / want).abs().max().item() <= 0.6 * ULP[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_logsumexp_of_infinities(dtype):
    x = torch.tensor([[-INF, -INF], [INF, 1], [-INF, 2], [NAN, 1], [INF, -INF]], dtype=dtype)
    equal([lambda x: x.logsumexp(-1), lambda x: x[::2].logsumexp(1, keepdim=True),
           lambda x: x[:1].logsumexp((0, 1))], x)


class HiddenVocabulary(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.head = nn.Linear(8, 13, bias=False)

    def forward(self, x, hidden):
        return self.head(x).masked_fill(hidden[:, None], -INF).logsumexp(-1)


def test_a_sharded_logsumexp():
    """Over shards of unequal sizes."""
    x, hidden = torch.randn(3, 8), torch.tensor([False, True, False])
    module = HiddenVocabulary()
    plan = mw.from_torch(module, (x, hidden)).parallelize(
        mesh={"tp": 3}, shardings={"head.weight": '[{"tp"}, {}]'})
    torch.testing.assert_close(plan.run(x, hidden)[0], module(x, hidden).detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_floor_division(dtype):
    """The rounded quotient is not always below the exact one."""
    g = torch.Generator().manual_seed(1)
    ends = torch.tensor([1, 0.1, 0.2, -5, 5, 3, INF, -INF, NAN, 0, 7, 1e6, 1e-3], dtype=dtype)
    a, b = (t.reshape(-1) for t in torch.meshgrid(torch.cat([ends, -ends]), ends, indexing="ij"))
    steps = torch.randint(-40, 40, (200,), generator=g).to(dtype) / 10
    a, b = torch.cat([a, steps]), torch.cat([b, steps.roll(1)])
    equal([lambda a, b: a // b, lambda a, b: torch.remainder(a, b),
           lambda a, b: torch.div(a, 0.1, rounding_mode="floor"), lambda a, b: a // -0.3,
           lambda a, b: torch.div(a, b, rounding_mode="trunc")], a, b)


def test_floor_division_is_rounded_once():
    a, b = torch.tensor([1.0, 5.0, -7.0, 90.0]).bfloat16(), torch.tensor([0.1, -0.3, 0.7, 0.9])
    equal([lambda a, b: a // b], a, b.bfloat16())


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_numbers_are_rounded_to_the_type_where_pytorch_does_it(dtype):
    x = torch.tensor([-100.0, 1.0, 2.0, 90.0]).to(dtype)
    equal([lambda x: x // 0.1, lambda x: torch.div(x, 0.3, rounding_mode="floor"),
           lambda x: x % 0.3, lambda x: torch.fmod(x, -0.7), lambda x: torch.remainder(2.3, x)], x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64], ids=str)
def test_fmod_has_the_sign_of_the_first(dtype):
    a = torch.tensor([7, -7, 7, -7, 5, -8])
    b = torch.tensor([3, 3, -3, -3, 5, 2])
    equal([torch.fmod, lambda a, b: torch.fmod(a, -4)], a.to(dtype), b.to(dtype))
    if dtype.is_floating_point:
        ends = torch.tensor([5.5, -5.5, INF, -INF, NAN, 1, 3], dtype=dtype)
        equal([torch.fmod], ends, torch.tensor([2.25, 2.25, 2, 2, 2, INF, 0], dtype=dtype))


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_formulas_are_rounded_once(dtype):
    g = torch.Generator().manual_seed(3)
    a, b, w = (torch.randn(64, 33, generator=g).to(dtype) for _ in range(3))
    equal([lambda a, b, w: F.hardswish(3 * a), lambda a, b, w: F.hardsigmoid(3 * a),
           torch.lerp, lambda a, b, w: torch.lerp(a, b, 1.0),
           lambda a, b, w: torch.addcdiv(a, b, w.abs() + 1)], a, b, w)
    for got, want in run([lambda a, b, w: torch.lerp(a, b, 0.3),
                          lambda a, b, w: torch.addcmul(a, b, w, value=0.3)], a, b, w):
        assert (got != want).double().mean() < 0.01


@pytest.mark.parametrize("dtype", [torch.float32, *NARROW], ids=str)
def test_powers_of_two(dtype):
    x = torch.cat([torch.linspace(-20, 15, 400), torch.tensor([INF, -INF, NAN, 0])]).to(dtype)
    if dtype != torch.float16:
        x = torch.cat([x, torch.linspace(-120, 127, 700).to(dtype)])
    for got, want in run([torch.exp2], x):
        torch.testing.assert_close(got, want, rtol=ULP[dtype], atol=0 if dtype != torch.float16 else 6e-8,
                                   equal_nan=True)


def test_reductions_of_one_number():
    equal([lambda x: x.amax(0), lambda x: x.sum(-1), lambda x: x.logsumexp(0)], torch.tensor(2.5))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool], ids=str)
def test_integers_are_finite(dtype):
    equal([torch.isinf, torch.isnan, torch.isfinite, torch.nan_to_num,
           lambda x: x.logical_not() if dtype == torch.bool else x + 1],
          torch.tensor([[0, 1, 1], [1, 0, 0]]).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *NARROW], ids=str)
def test_classes_of_floats(dtype):
    equal([torch.isinf, torch.isnan, torch.isfinite],
          torch.tensor([0, -1, INF, -INF, NAN, torch.finfo(dtype).max], dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_positions_of_nan(dtype):
    """It is the largest and the smallest."""
    x = torch.tensor([[1, NAN, 2, NAN], [3, 1, 3, 1], [NAN, 0, 0, 0], [INF, 0, 0, NAN],
                      [-INF, -INF, -INF, -INF]], dtype=dtype)
    equal([lambda x: x.argmax(-1), lambda x: x.argmin(-1), lambda x: x.argmax(),
           lambda x: x.max(0).indices, lambda x: x.max(0).values, lambda x: x.min(1).indices,
           lambda x: x.min(1).values, lambda x: x.argmax(0, keepdim=True)], x)
