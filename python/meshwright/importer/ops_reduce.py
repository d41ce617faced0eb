# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""ATen operations that combine the elements of dimensions: sums, extremes, norms, softmax."""
import math

import torch

from .convert import aten
from .errors import Uncovered
from .graph import FLOATS, TORCH_DTYPES, Node, numel
from .ops_elementwise import isinf, isnan, wide


def _dims(c, x, dims):
    if dims is None or dims == []:
        return list(range(x.rank))
    if x.rank == 0:  # PyTorch takes 0 and -1 there, too
        return []
    return [d % x.rank for d in (dims if isinstance(dims, (list, tuple)) else [dims])]


def _reduce(c, kind, x, dims, keep, dtype=None):
    x = c.operand(x, dtype or c.dtype)
    dims = _dims(c, x, dims)
    return x if not dims else c.build.reduce(kind, x, dims, bool(keep))


def _extreme(c, kind, x, dims, keep):
    """The largest or smallest; of truth values as numbers."""
    number = c.build.cast(x, "i32") if x.dtype == "i1" else x
    return c.build.cast(_reduce(c, kind, number, dims, keep, number.dtype), x.dtype)


@aten("mean")
def mean(c, x, dims=None, keep=False, *, dtype=None):
    return _reduce(c, "mean", x, dims, keep)


@aten("sum")
def total(c, x, dims=None, keep=False, *, dtype=None):
    return _reduce(c, "sum", x, dims, keep)


@aten("amax")
def amax(c, x, dims=None, keep=False):
    return _extreme(c, "max", x, dims, keep)


@aten("amin")
def amin(c, x, dims=None, keep=False):
    return _extreme(c, "min", x, dims, keep)


@aten("max.default")
def max_all(c, x):
    return _extreme(c, "max", x, None, False)


@aten("min.default")
def min_all(c, x):
    return _extreme(c, "min", x, None, False)


@aten("any", "all")
def any_all(c, x, dims=None, keep=False):
    name = c.fx.target.__name__.split(".")[0]
    return _extreme(c, "max" if name == "any" else "min", c.operand(x, "i1"), dims, keep)


@aten("_is_all_true", "_is_any_true")
def is_all_true(c, x):
    return _extreme(c, "max" if "any" in c.fx.target.__name__ else "min", x, None, False)


def variance(c, x, dims, correction, keep) -> Node:
    """Squares leave the range of f16 long before their root does: the result is wide."""
    x, dims = wide(c, x), _dims(c, x, dims)
    centre = c.build.binary("sub", x, c.build.reduce("mean", x, dims, True))
    squares = c.build.binary("mul", centre, centre)
    count = numel([x.shape[d] for d in dims])
    if correction == 0:
        return c.build.reduce("mean", squares, dims, bool(keep))
    return c.build.binary("div", c.build.reduce("sum", squares, dims, bool(keep)),
                          c.build.scalar(max(0, count - correction), x.dtype))


def _correction(args, kwargs):
    """(dims, correction, keep) of the overloads of var and std."""
    dims, correction, keep = None, kwargs.get("correction", 1), kwargs.get("keepdim", False)
    args = list(args)
    if args and (args[0] is None or not isinstance(args[0], bool)):
        dims = args.pop(0)
    if args:
        correction = int(args.pop(0))
    if "unbiased" in kwargs:
        correction = int(kwargs["unbiased"])
    return dims, 1 if correction is None else correction, args[0] if args else keep


@aten("var")
def var(c, x, *args, **kwargs):
    return variance(c, x, *_correction(args, kwargs))


def root_of_sum(c, x, root=None) -> Node:
    """The root of a sum that is not negative. Where the sum is zero, PyTorch gives norms and
    deviations the gradient zero, and not that of the root, which is infinite."""
    root = root or (lambda y: c.build.unary("sqrt", y))
    if not c.exported.training:
        return root(x)
    zero, one = (c.build.scalar(number, x.dtype) for number in (0, 1))
    is_zero = c.build.compare("eq", x, zero)
    return c.build.select(is_zero, zero, root(c.build.select(is_zero, one, x)))


@aten("std")
def std(c, x, *args, **kwargs):
    return root_of_sum(c, var(c, x, *args, **kwargs))


@aten("var_mean")
def var_mean(c, x, *args, **kwargs):
    dims, correction, keep = _correction(args, kwargs)
    return [c.build.cast(variance(c, x, dims, correction, keep), x.dtype),
            c.build.reduce("mean", x, _dims(c, x, dims), bool(keep))]


@aten("std_mean")
def std_mean(c, x, *args, **kwargs):
    dims, correction, keep = _correction(args, kwargs)
    return [c.build.cast(root_of_sum(c, variance(c, x, dims, correction, keep)), x.dtype),
            c.build.reduce("mean", x, _dims(c, x, dims), bool(keep))]


def root_of_squares(c, x, dims, keep) -> Node:
    """The Euclidean norm, wide."""
    x = wide(c, x)
    return root_of_sum(c, c.build.reduce("sum", c.build.binary("mul", x, x), dims, keep))


@aten("linalg_vector_norm", "norm.ScalarOpt_dim", "norm.Scalar")
def vector_norm(c, x, order=2, dims=None, keep=False, *, dtype=None):
    x = c.operand(x, c.dtype if dtype is None else None)
    dims = _dims(c, x, dims)
    return norm_of(c, x, 2 if order is None else order, dims, bool(keep))


def norm_of(c, x, order, dims, keep) -> Node:
    """The sum of the powers of sizes, to the inverse power; largest, smallest and count too."""
    dims = _dims(c, x, dims)
    if order == 2:
        return root_of_squares(c, x, dims, keep)
    if order == 0:
        other = c.build.compare("ne", x, c.build.scalar(0, x.dtype))
        return c.build.reduce("sum", c.build.cast(other, x.dtype), dims, keep)
    size = c.build.unary("abs", x)
    if order == 1:
        return c.build.reduce("sum", size, dims, keep)
    if order in (math.inf, -math.inf):
        return c.build.reduce("max" if order > 0 else "min", size, dims, keep)
    size = wide(c, size)
    power = lambda y, p: c.build.binary("pow", y, c.build.scalar(float(p), y.dtype))
    total = c.build.reduce("sum", power(size, order), dims, keep)
    root = lambda y: power(y, 1 / order)
    return root_of_sum(c, total, root) if order > 0 else root(total)


@aten("prod")
def prod(c, x, dim=None, keep=False, *, dtype=None):
    """By halves."""
    x = c.operand(x, c.dtype)
    for d in sorted(_dims(c, x, dim), reverse=True):
        rest = []
        while x.shape[d] > 1:
            size = x.shape[d]
            if size % 2:
                rest.append(c.build.slice_dim(x, d, size - 1, size))
            halves = (c.build.slice_dim(x, d, i * (size // 2), (i + 1) * (size // 2))
                      for i in (0, 1))
            x = c.build.binary("mul", *halves)
        for part in rest:
            x = c.build.binary("mul", x, part)
        if not x.shape[d]:
            x = c.build.broadcast(c.build.scalar(1, x.dtype),
                                  x.shape[:d] + (1,) + x.shape[d + 1:])
    return c.build.reshape(x, c.shape)


def _scan(c, x, dim, op, neutral):
    """Each element combined with those before it, in steps of 1, 2, 4, ..."""
    step, size = 1, x.shape[dim]
    while step < size:
        first = c.build.broadcast(c.build.scalar(neutral, x.dtype),
                                  x.shape[:dim] + (step,) + x.shape[dim + 1:])
        moved = c.build.concat([first, c.build.slice_dim(x, dim, 0, size - step)], dim)
        x, step = c.build.binary(op, x, moved), 2 * step
    return x


@aten("cumprod")
def cumprod(c, x, dim, *, dtype=None):
    x = c.operand(x, c.dtype)
    return _scan(c, x, dim % x.rank, "mul", 1) if x.rank else x


@aten("cummax", "cummin")
def cummax(c, x, dim):
    """The extremes so far, and the last positions of theirs."""
    if x.rank == 0 or x.dtype == "i1":
        raise Uncovered(f"{c.fx.target.__name__} of {x.dtype} {list(x.shape)} is not covered")
    kind, dim = c.fx.target.__name__[3:6], dim % x.rank
    limits = (torch.finfo if x.dtype in FLOATS else torch.iinfo)(TORCH_DTYPES[x.dtype])
    end = limits.min if kind == "max" else limits.max
    if x.dtype in FLOATS:
        end = -math.inf if kind == "max" else math.inf
    values = _scan(c, x, dim, "maximum" if kind == "max" else "minimum", end)
    steps = c.build.make("iota", [], [n if d == dim else 1 for d, n in enumerate(x.shape)], "i64",
                         dim=dim)
    hit = c.build.compare("eq", x, values)
    if x.dtype in FLOATS:  # NaN stays, and equals nothing
        hit = c.build.binary("or", hit, isnan(c, x))
    places = c.build.select(hit, steps, c.build.scalar(0, "i64"))
    return [values, _scan(c, places, dim, "maximum", 0)]


@aten("cumsum")
def cumsum(c, x, dim, *, dtype=None):
    x = c.operand(x, c.dtype)
    return c.build.unary("cumsum", x, dim=dim % max(x.rank, 1))


@aten("softmax", "_softmax", "_safe_softmax")
def softmax(c, x, dim, *rest, **kwargs):
    return c.build.unary("softmax", c.operand(x, c.dtype), dim=dim % max(x.rank, 1))


@aten("log_softmax", "_log_softmax")
def log_softmax(c, x, dim, *rest, **kwargs):
    x, dims = wide(c, c.operand(x, c.dtype)), [dim % max(x.rank, 1)]
    # The result does not depend on what is taken off the powers: its gradient would be rounding.
    centre = c.build.binary("sub", x, c.stopped(c.build.reduce("max", x, dims, True)))
    total = c.build.reduce("sum", c.build.unary("exp", centre), dims, True)
    return c.build.binary("sub", centre, c.build.unary("log", total))


@aten("logsumexp")
def logsumexp(c, x, dims, keep=False):
    x, dims = wide(c, x), _dims(c, x, dims)
    top = c.stopped(c.build.reduce("max", x, dims, True))
    # Infinity less itself is NaN; the sum of powers as they are is 0 or infinity, as it is to be.
    top = c.build.select(isinf(c, top), c.build.scalar(0, x.dtype), top)
    total = c.build.reduce("sum", c.build.unary("exp", c.build.binary("sub", x, top)), dims, True)
    result = c.build.binary("add", c.build.unary("log", total), top)
    return c.build.reshape(result, c.shape)


@aten("argmax", "argmin")
def argmax(c, x, dim=None, keep=False):
    """The first position of the largest (or smallest) element."""
    shape = c.shape
    if dim is None:
        x, dim = c.build.reshape(x, (numel(x.shape),)), 0
    return c.build.reshape(_position(c, x, dim % max(x.rank, 1)), shape)


def _position(c, x, dim):
    if x.dtype == "i1":
        x = c.build.cast(x, "i32")
    kind = "min" if "min" in c.fx.target.__name__ else "max"
    best = c.build.reduce(kind, x, [dim], True)
    steps = c.build.make("iota", [], [n if d == dim else 1 for d, n in enumerate(x.shape)], "i64",
                         dim=dim)
    hit = c.build.compare("eq", x, best)
    if x.dtype in FLOATS:  # NaN is best, and equals nothing
        hit = c.build.binary("or", hit, isnan(c, x))
    found = c.build.select(hit, steps, c.build.scalar(x.shape[dim] - 1, "i64"))
    return c.build.reduce("min", found, [dim], False)


@aten("max.dim", "min.dim")
def extreme(c, x, dim, keep=False):
    dim = dim % max(x.rank, 1)
    kind = "min" if "min" in c.fx.target.__name__ else "max"
    values, positions = _extreme(c, kind, x, [dim], keep), _position(c, x, dim)
    return [values, c.build.reshape(positions, values.shape)]
