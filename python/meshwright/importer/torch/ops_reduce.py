# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""ATen operations that combine the elements of dimensions: sums, extremes, norms, softmax."""
import math

import torch

from ..errors import Uncovered
from ..graph.dialect import FLOATS
from ..graph.nodes import Node, numel
from .derivatives import Differential, derivative, with_derivative
from .formulas import Formula, absolute, sign, where
from .handlers import aten
from .ops_elementwise import isinf, isnan, wide
from .values import TORCH_DTYPES


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


@derivative("amax", "amin")
def of_extreme(d, x, dims=None, keep=False):
    """An equal part to each element that equals the extreme. NaN equals none, so its row is NaN:
    zero by zero."""
    dims = _dims(None, x, dims)
    is_extreme = x.equals(d.result.kept(x.shape, dims)).cast(x.node.dtype)
    return (d(x) / is_extreme.sum(dims, True) * is_extreme).sum(dims, keep)


@derivative("max.default", "min.default")
def of_overall_extreme(d, x):
    """An equal part to each extreme. NaN is one."""
    is_extreme = (x.equals(d.result) | x.is_nan()).cast(x.node.dtype)
    return (d(x) * is_extreme / is_extreme.sum()).sum()


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


@derivative("var", "var_mean")
def of_variance(d, x, *args, **kwargs):
    """The mean is a constant: all distances from it sum to zero."""
    dims, correction, keep = _correction(args, kwargs)
    every, dims = dims is None, _dims(None, x, dims)
    left = numel([x.shape[n] for n in dims]) - correction
    centre = x - x.mean(dims, True)
    if every and left <= 0:
        return (d(x) * x.number(math.inf).where(centre.differs(0), math.nan)).sum(dims, keep)
    return (d(x) * (centre * (2 / left if left else math.inf))).sum(dims, keep)


@derivative("std", "std_mean")
def of_deviation(d, x, *args, **kwargs):
    """That of the root, with zero where the deviation is zero."""
    _, _, keep = _correction(args, kwargs)
    return of_variance(d, x, *args, **kwargs).where(d.result.differs(0)) / (d.result * 2)


@aten("var")
def var(c, x, *args, **kwargs):
    return variance(c, x, *_correction(args, kwargs))


@aten("std")
def std(c, x, *args, **kwargs):
    return c.build.unary("sqrt", var(c, x, *args, **kwargs))


@aten("var_mean")
def var_mean(c, x, *args, **kwargs):
    dims, correction, keep = _correction(args, kwargs)
    return [c.build.cast(variance(c, x, dims, correction, keep), x.dtype),
            c.build.reduce("mean", x, _dims(c, x, dims), bool(keep))]


@aten("std_mean")
def std_mean(c, x, *args, **kwargs):
    dims, correction, keep = _correction(args, kwargs)
    deviation = c.build.unary("sqrt", variance(c, x, dims, correction, keep))
    return [c.build.cast(deviation, x.dtype),
            c.build.reduce("mean", x, _dims(c, x, dims), bool(keep))]


@aten("linalg_vector_norm", "norm.ScalarOpt_dim", "norm.Scalar")
def vector_norm(c, x, order=2, dims=None, keep=False, *, dtype=None):
    x = c.operand(x, c.dtype if dtype is None else None)
    dims = _dims(c, x, dims)
    return norm_of(c, x, 2 if order is None else order, dims, bool(keep))


def norm_of(c, x, order, dims, keep) -> Node:
    dims = _dims(c, x, dims)
    result = _norm(c.build, x, order, dims, keep)
    return with_derivative(c, result, "norm.rows", (x, order, dims, keep), {}) if order else result


def _norm(build, x, order, dims, keep) -> Node:
    """The sum of the powers of sizes, to the inverse power; largest, smallest and count too."""
    if order == 0:
        other = build.compare("ne", x, build.scalar(0, x.dtype))
        return build.reduce("sum", build.cast(other, x.dtype), dims, keep)
    size = build.unary("abs", x)
    if order == 1:
        return build.reduce("sum", size, dims, keep)
    if order in (math.inf, -math.inf):
        return build.reduce("max" if order > 0 else "min", size, dims, keep)
    if x.dtype in ("bf16", "f16"):
        x, size = build.cast(x, "f32"), build.cast(size, "f32")
    if order == 2:
        return build.unary("sqrt", build.reduce("sum", build.binary("mul", x, x), dims, keep))
    power = lambda y, p: build.binary("pow", y, build.scalar(float(p), y.dtype))
    return power(build.reduce("sum", power(size, order), dims, keep), 1 / order)


@derivative("norm.rows")
def of_norm(d, x, order, dims, keep):
    """sign(x) (|x| / norm)^(p - 1), and zero where the norm is zero. Of the largest size the
    elements have equal parts."""
    size, norm = absolute(x), d.result.kept(x.shape, dims)
    if order == 1:
        return (d(x) * sign(x)).sum(dims, keep)
    if order == 2:
        return (d(x) * where(norm.equals(0), 0, x / norm)).sum(dims, keep)
    if order in (math.inf, -math.inf):
        is_extreme = (size.equals(norm) | x.is_nan() & norm.is_nan()).cast(x.node.dtype)
        return (d(x) * sign(x) * is_extreme / is_extreme.sum(dims, True)).sum(dims, keep)
    if order < 1:
        own = where(x.equals(0), 0, sign(x) * size ** (order - 1))
        return (d(x) * own).sum(dims, keep) * d.result ** (1 - order)
    own = sign(x) * size ** (order - 1) if order < 2 else x * size ** (order - 2)
    return (d(x) * own).sum(dims, keep).where(d.result.differs(0)) / d.result ** (order - 1)


@derivative("renorm")
def of_renorm(d, x, order, dim, most):
    """Rows whose norm is not above the bound stay as they are."""
    dims = [n for n in range(x.rank) if n != dim % x.rank]
    norm = x.of(_norm(x.build, x.node, order, dims, True))
    is_above, inverse = norm > most, 1 / (norm + 1e-7)
    scaled = Formula(x.build, x.node, d(x).where(is_above).node)
    own = Differential(d.name, norm)
    along = of_norm(own, scaled, order, dims, True)
    return d(x).where(~is_above) + (own(scaled) - x * inverse * along) * (inverse * most)


@aten("prod")
def prod(c, x, dim=None, keep=False, *, dtype=None):
    x = c.operand(x, c.dtype)
    return c.build.reshape(_product(c.build, x, _dims(c, x, dim)), c.shape)


def _product(build, x, dims) -> Node:
    """By halves. The dimensions stay, with size 1."""
    for d in sorted(dims, reverse=True):
        rest = []
        while x.shape[d] > 1:
            size = x.shape[d]
            if size % 2:
                rest.append(build.slice_dim(x, d, size - 1, size))
            x = build.binary("mul", *(build.slice_dim(x, d, i * (size // 2), (i + 1) * (size // 2))
                                      for i in (0, 1)))
        for part in rest:
            x = build.binary("mul", x, part)
        if not x.shape[d]:
            x = build.broadcast(build.scalar(1, x.dtype), x.shape[:d] + (1,) + x.shape[d + 1:])
    return x


@derivative("prod")
def of_product(d, x, dim=None, keep=False, *, dtype=None):
    """The product of the others, as PyTorch computes it: by a quotient if the tensor has no zero.
    This matters where the product is infinite or NaN."""
    dims = _dims(None, x, dim)
    result = d.result.kept(x.shape, dims)
    divides = ~x.equals(0).cast("i32").maximum().equals(1) & ~result.is_finite()
    others = x.of(_product(x.build, where(divides, 1, d(x)).node, dims))
    quotient = where(divides, result / x, 0)
    return (others + (d(x).where(divides) * quotient).sum(dims, True)).reshape(d.result.shape)


def _scan(build, x, dim, op, neutral):
    """Each element combined with those before it, in steps of 1, 2, 4, ..."""
    step, size = 1, x.shape[dim]
    while step < size:
        first = build.broadcast(build.scalar(neutral, x.dtype),
                                x.shape[:dim] + (step,) + x.shape[dim + 1:])
        moved = build.concat([first, build.slice_dim(x, dim, 0, size - step)], dim)
        x, step = build.binary(op, x, moved), 2 * step
    return x


@aten("cumprod")
def cumprod(c, x, dim, *, dtype=None):
    x = c.operand(x, c.dtype)
    return _scan(c.build, x, dim % x.rank, "mul", 1) if x.rank else x


@derivative("cumprod")
def of_products(d, x, dim, *, dtype=None):
    """The products of the others, as PyTorch computes them: by quotients before the first zero, and
    nothing behind it. This matters in rows with products that are infinite or NaN."""
    if not x.rank:
        return d(x)
    dim = dim % x.rank
    scan = lambda y: x.of(_scan(x.build, y.node, dim, "mul", 1))
    total = lambda y: x.of(x.build.unary("cumsum", y.node, dim=dim))
    is_zero = x.equals(0)
    zeros = total(is_zero.cast("i64"))
    is_special = ~absolute(d.result).maximum([dim], True).is_finite()
    divides, is_first = zeros.equals(0) & is_special, zeros.equals(1) & is_zero & is_special
    shares = total(d(x).where(divides) / where(divides, x, 1)) * where(divides, d.result, 0)
    others = where(zeros.equals(1) & is_special, scan(where(is_first, 1, x)), 0)
    return scan(where(is_special, 1, d(x))) + shares + \
        d(x).where(is_first).sum([dim], True) * others


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
    values = _scan(c.build, x, dim, "maximum" if kind == "max" else "minimum", end)
    steps = c.build.make("iota", [], [n if d == dim else 1 for d, n in enumerate(x.shape)], "i64",
                         dim=dim)
    hit = c.build.compare("eq", x, values)
    if x.dtype in FLOATS:  # NaN stays, and equals nothing
        hit = c.build.binary("or", hit, isnan(c, x))
    places = c.build.select(hit, steps, c.build.scalar(0, "i64"))
    places = _scan(c.build, places, dim, "maximum", 0)
    return [with_derivative(c, values, "cummax.places", (x, places, dim), {}), places]


@derivative("cummax.places")
def _of_places(d, x, places, dim):
    """Each element has the gradients of the results that it gave."""
    return d(x).of(d(x).build.make("take_along", [d(x).node, places.node], x.shape, d(x).node.dtype,
                                   dim=dim))


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
    if not x.rank:
        return c.build.scalar(0, "i64")
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


@derivative("max.dim", "min.dim")
def of_first_extreme(d, x, dim, keep=False):
    """The first extreme has all of the gradient. NaN is one."""
    if not x.rank:
        return d(x)
    dim = dim % x.rank
    is_extreme = x.equals(d.result.kept(x.shape, [dim])) | x.is_nan()
    number = x.numbers(dim).where(is_extreme, x.shape[dim])
    return d(x).where(number.equals(number.minimum([dim], True))).sum([dim], keep)
