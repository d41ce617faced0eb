# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Special points of elementwise operations: arithmetic, bounds, activations, choices."""
import math

import torch
import torch.nn.functional as F
from derivative_points import Case, generic, grid, numbers

aten = torch.ops.aten


def of_one(name, function, *more):
    return Case(name, function, (generic(*more),))


def of_two(name, function, *more):
    return Case(name, function, grid(*more))


def without_nan(name, function, *more):
    """PyTorch's vector code and its scalar code give NaN different slopes."""
    return Case(name, function, (lambda dtype: (lambda t: t[~t.isnan()])(numbers(dtype, *more)),))


def bounds(low, high):
    """Both bounds, and numbers beside them."""
    return tuple(b + e for b in (low, high) for e in (0, 2 ** -6, -(2 ** -6)))


_UNBOUNDED = (math.inf, -math.inf, math.nan)

ARITHMETIC = [
    of_two("add", torch.add),
    of_two("sub", torch.sub),
    of_two("rsub", torch.rsub),
    Case("add, scaled", lambda a, b: torch.add(a, b, alpha=3), (generic(), lambda t: -0.25 * numbers(t))),
    of_two("mul", torch.mul),
    of_two("div", torch.div),
    of_one("div of a number", lambda x: 2.5 / x),
    of_two("div, floor", lambda a, b: torch.div(a, b, rounding_mode="floor")),
    of_two("div, trunc", lambda a, b: torch.div(a, b, rounding_mode="trunc")),
    of_one("div by a number, floor", lambda x: aten.div.Scalar_mode(x, 0.75, rounding_mode="floor")),
    of_two("floor_divide", lambda a, b: torch.floor_divide(a.detach(), b.detach())),
    # PyTorch gives NaN where the quotient overflows in f64.
    Case("remainder", torch.remainder, grid(), ("f32", "bf16")),
    Case("remainder", torch.remainder, grid(*_UNBOUNDED, extreme=False)),
    of_one("remainder by a number", lambda x: torch.remainder(x, 1.5)),
    Case("fmod", torch.fmod, grid(), ("f32", "bf16")),
    Case("fmod", torch.fmod, grid(*_UNBOUNDED, extreme=False)),
    of_one("fmod by a number", lambda x: torch.fmod(x, 1.5)),
    of_one("trunc", torch.trunc), of_one("ceil", torch.ceil), of_one("floor", torch.floor),
    of_one("frac", torch.frac),
    of_one("neg", torch.neg), of_one("abs", torch.abs), of_one("square", torch.square),
    of_one("reciprocal", torch.reciprocal), of_one("sqrt", torch.sqrt), of_one("rsqrt", torch.rsqrt),
    of_one("sign", torch.sign), of_one("sgn", torch.sgn),
    Case("addcmul", lambda x, a, b: torch.addcmul(x, a, b, value=0.5), grid(*_UNBOUNDED, count=3, extreme=False)),
    Case("addcdiv", lambda x, a, b: torch.addcdiv(x, a, b, value=0.5),
         grid(*_UNBOUNDED, count=3, extreme=False)),
    Case("lerp", lambda a, b, w: torch.lerp(a, b, w.clamp(0, 1)), grid(count=3)),
    of_two("lerp by a number", lambda a, b: torch.lerp(a, b, 0.75)),
    of_one("cast", lambda x: x.to(torch.float64)),
]

EXPONENTIALS = [
    of_one("exp", torch.exp), of_one("exp2", torch.exp2), of_one("expm1", torch.expm1),
    of_one("log", torch.log), of_one("log2", torch.log2), of_one("log10", torch.log10),
    of_one("log1p", torch.log1p, -1 + 2 ** -6), of_one("erf", torch.erf), of_one("erfc", torch.erfc),
    of_two("logaddexp", torch.logaddexp), of_two("logaddexp2", torch.logaddexp2),
    of_two("xlogy", torch.xlogy), of_one("xlogy of a number", lambda x: torch.xlogy(0.0, x)),
    of_two("xlog1py", torch.special.xlog1py),
    of_one("logit", torch.logit), of_one("logit within bounds", lambda x: torch.logit(x, 0.25), *bounds(0.25, 0.75)),
    of_one("entr", torch.special.entr),
]

BOUNDS = [
    of_two("maximum", torch.maximum), of_two("minimum", torch.minimum),
    of_one("maximum with a constant", lambda x: torch.maximum(x, torch.ones((), dtype=x.dtype))),
    of_two("max.other", aten.max.other), of_two("min.other", aten.min.other),
    of_one("clamp", lambda x: x.clamp(-1, 2), *bounds(-1, 2)),
    of_one("clamp_min", lambda x: x.clamp_min(1), *bounds(1, 1)),
    of_one("clamp_max", lambda x: x.clamp_max(1), *bounds(1, 1)),
    of_one("clamp, crossed", lambda x: x.clamp(2, -1), *bounds(-1, 2)),
    Case("clamp by tensors", torch.clamp, grid(count=3)),
    of_two("clamp_min by a tensor", torch.clamp_min), of_two("clamp_max by a tensor", torch.clamp_max),
    without_nan("hardtanh", lambda x: F.hardtanh(x, -0.5, 2), *bounds(-0.5, 2)),
    without_nan("relu6", F.relu6, *bounds(0, 6)),
    of_one("relu", F.relu), of_one("hardsigmoid", F.hardsigmoid, *bounds(-3, 3)),
    without_nan("hardswish", F.hardswish, *bounds(-3, 3)),
    of_one("threshold", lambda x: F.threshold(x, 0.5, 7.0), *bounds(0.5, 0.5)),
    without_nan("hardshrink", lambda x: F.hardshrink(x, 0.5), *bounds(-0.5, 0.5)),
    without_nan("softshrink", lambda x: F.softshrink(x, 0.5), *bounds(-0.5, 0.5)),
    without_nan("hardshrink at zero", lambda x: F.hardshrink(x, 0.0)),
    without_nan("softshrink at zero", lambda x: F.softshrink(x, 0.0)),
    Case("aminmax", torch.aminmax, (torch.tensor([0.0, 2.0, -1.0, 2.0, -1.0, -1.0]),)),
    of_one("nan_to_num", lambda x: x.nan_to_num(1.0, 2.0, -3.0)),
    of_one("where", lambda x: torch.where(x > 1, x, 2 * x)),
    of_one("where beside a root", lambda x: torch.where(x > 0, x.sqrt(), 0.0)),
    of_one("masked_fill", lambda x: x.masked_fill(x > 1, 3.0)),
]

ACTIVATIONS = [
    of_one("silu", F.silu), of_one("tanh", torch.tanh), of_one("sigmoid", torch.sigmoid),
    of_one("gelu", F.gelu), of_one("gelu, tanh", lambda x: F.gelu(x, approximate="tanh")),
    of_one("softplus", F.softplus, 20.0, 19.0, 21.0),
    of_one("softplus, steep", lambda x: F.softplus(x, 3, 6), 2.0),
    of_one("log_sigmoid", F.logsigmoid), of_one("mish", F.mish),
    without_nan("elu", F.elu), without_nan("elu, alpha", lambda x: F.elu(x, 0.7)),
    without_nan("selu", F.selu), without_nan("celu", lambda x: F.celu(x, 0.7)),
    of_one("leaky_relu", lambda x: F.leaky_relu(x, 0.2)),
    of_one("leaky_relu, falling", lambda x: F.leaky_relu(x, -0.5)),
    of_two("prelu", lambda x, w: aten._prelu_kernel(x, w)),
    of_one("tanhshrink", F.tanhshrink), of_one("softsign", F.softsign),
    Case("glu", lambda a, b: F.glu(torch.stack([a, b], -1), -1), grid()),
    of_one("dropout of nothing", lambda x: F.dropout(x, 0.0, True)),
    of_one("dropout of all", lambda x: F.dropout(x, 1.0, True)),
]
