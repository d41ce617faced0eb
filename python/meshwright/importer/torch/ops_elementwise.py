# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""ATen operations that work element by element."""
import math

import torch

from ..errors import Uncovered
from ..graph.dialect import FLOATS
from ..graph.match import is_natural
from ..graph.nodes import Node
from .derivatives import with_derivative
from .handlers import Context, aten
from .values import TORCH_DTYPES, element_type


def _promoted(c: Context, a, b) -> str:
    """The type in which PyTorch compares two operands."""
    def sample(x):
        if isinstance(x, Node):
            return torch.empty((1,) * x.rank, dtype=TORCH_DTYPES[x.dtype], device="meta")
        return x
    return element_type(torch.result_type(sample(a), sample(b)))


def binary(c: Context, op: str, a, b) -> Node:
    return c.build.binary(op, c.operand(a, c.dtype), c.operand(b, c.dtype))


def binary_scalar(c: Context, op: str, x: Node, value) -> Node:
    """op(x, value) in the type of x, which need not be the result's."""
    return c.build.binary(op, x, c.build.scalar(value, x.dtype))


def wide(c: Context, x: Node) -> Node:
    """x as a float of at least f32: what takes several steps is rounded once, as PyTorch does it.

    A handler's result is cast to its type in any case."""
    if x.dtype not in FLOATS:
        x = c.build.cast(x, c.dtype)
    return c.build.cast(x, "f32") if x.dtype in ("bf16", "f16") else x


def _scaled(c: Context, b, alpha):
    return b if alpha == 1 else binary(c, "mul", b, alpha) if isinstance(b, Node) else b * alpha


@aten("add")
def add(c, a, b, *, alpha=1):
    if c.dtype == "i1":
        return c.build.binary("or", c.operand(a, "i1"), c.operand(b, "i1"))
    return binary(c, "add", a, _scaled(c, b, alpha))


@aten("sub")
def sub(c, a, b, *, alpha=1):
    return binary(c, "sub", a, _scaled(c, b, alpha))


@aten("rsub")
def rsub(c, a, b, alpha=1):
    return binary(c, "sub", b, _scaled(c, a, alpha))


@aten("mul")
def mul(c, a, b):
    if c.dtype == "i1":
        return c.build.binary("and", c.operand(a, "i1"), c.operand(b, "i1"))
    return binary(c, "mul", a, b)


@aten("div")
def div(c, a, b, *, rounding_mode=None):
    if rounding_mode is None:
        return binary(c, "div", a, b)
    return _rounded_div(c, a, b, rounding_mode)


@aten("floor_divide")
def floor_divide(c, a, b):
    return _rounded_div(c, a, b, "floor")


def _rounded_div(c, a, b, mode):
    if mode == "floor" and c.dtype in FLOATS:
        # In f32, where numbers are not rounded to less.
        kind = "f32" if c.dtype in ("bf16", "f16") else c.dtype
        return floor_div(c.build, c.operand(a, kind), c.operand(b, kind))
    quotient = binary(c, "div", a, b)
    if mode == "trunc" and c.dtype in FLOATS:
        return _trunc(c, quotient)
    is_natural_pair = all(is_natural(x) if isinstance(x, Node) else x > 0 for x in (a, b))
    if mode == "trunc" and not is_natural_pair:  # nn.div rounds integers down
        lhs, rhs = c.operand(a, c.dtype), c.operand(b, c.dtype)
        zero = c.build.scalar(0, c.dtype)
        size = c.build.binary("div", c.build.unary("abs", lhs), c.build.unary("abs", rhs))
        negative = c.build.binary("xor", c.build.compare("lt", lhs, zero),
                                  c.build.compare("lt", rhs, zero))
        return c.build.select(negative, c.build.unary("neg", size), size)
    return quotient


def floor_div(build, a, b):
    """By the remainder, as PyTorch does it: a / b is perhaps rounded up to the next integer."""
    zero = build.scalar(0, a.dtype)
    size, by = build.unary("abs", a), build.unary("abs", b)
    rest = build.binary("rem", size, by)
    # An integer, but for rounding.
    times = build.binary("div", build.binary("sub", size, rest), by)
    down = build.unary("floor", times)
    up = build.compare("gt", build.binary("sub", times, down), build.scalar(0.5, a.dtype))
    down = build.binary("add", down, build.cast(up, a.dtype))
    inexact = build.cast(build.compare("ne", rest, zero), a.dtype)
    negative = build.binary("xor", build.compare("lt", a, zero), build.compare("lt", b, zero))
    below = build.unary("neg", build.binary("add", down, inexact))
    return build.select(build.compare("eq", b, zero), build.binary("div", a, b),
                          build.select(negative, below, down))


def _trunc(c, x):
    down = c.build.unary("floor", c.build.unary("abs", x))
    return c.build.select(c.build.compare("lt", x, c.build.scalar(0, x.dtype)),
                          c.build.unary("neg", down), down)


@aten("trunc", "fix")
def trunc(c, x):
    return _trunc(c, x) if x.dtype in FLOATS else x


@aten("ceil")
def ceil(c, x):
    if x.dtype not in FLOATS:
        return x
    return c.build.unary("neg", c.build.unary("floor", c.build.unary("neg", x)))


@aten("floor")
def floor(c, x):
    return c.build.unary("floor", x) if x.dtype in FLOATS else x


def _in_type(c, x):
    """An operand of what PyTorch does in the type itself: numbers are rounded to it first."""
    if isinstance(x, Node) or c.dtype not in FLOATS:
        return c.operand(x, c.dtype)
    return c.operand(torch.tensor(x, dtype=TORCH_DTYPES[c.dtype]).item(), c.dtype)


@aten("remainder")
def remainder(c, a, b):
    """With the sign of `b`."""
    return c.build.binary("rem", _in_type(c, a), _in_type(c, b))


@aten("fmod")
def fmod(c, a, b):
    """With the sign of `a`."""
    a, b = _in_type(c, a), _in_type(c, b)
    rest = c.build.binary("rem", c.build.unary("abs", a), c.build.unary("abs", b))
    negative = c.build.compare("lt", a, c.build.scalar(0, c.dtype))
    return c.build.select(negative, c.build.unary("neg", rest), rest)


@aten("maximum", "max.other")
def maximum(c, a, b):
    return binary(c, "or" if c.dtype == "i1" else "maximum", a, b)


@aten("minimum", "min.other")
def minimum(c, a, b):
    return binary(c, "and" if c.dtype == "i1" else "minimum", a, b)


@aten("clamp", "clamp_min", "clamp_max", "clip")
def clamp(c, x, low=None, high=None):
    if c.fx.target.__name__.startswith("clamp_max"):
        low, high = None, low
    if isinstance(low, Node) or low is not None:
        x = binary(c, "maximum", x, low)
    return x if high is None else binary(c, "minimum", x, high)


@aten("hardtanh")
def hardtanh(c, x, low=-1, high=1):
    return clamp(c, x, low, high)


@aten("relu6")
def relu6(c, x):
    return binary(c, "minimum", relu(c, x), 6)


@aten("square")
def square(c, x):
    return c.build.binary("mul", x, x)


_UNARY = {"neg": "neg", "abs": "abs", "exp": "exp", "log": "log", "sqrt": "sqrt", "rsqrt": "rsqrt",
          "reciprocal": "reciprocal", "sin": "sin", "cos": "cos", "erf": "erf",
          "silu": "silu", "tanh": "tanh", "sigmoid": "sigmoid"}
for _name in _UNARY:
    aten(_name)(lambda c, x, _op=_UNARY[_name]: c.build.unary(_op, c.operand(x, c.dtype)))


@aten("relu")
def relu(c, x):
    return c.build.unary("relu", x) if x.dtype in FLOATS else binary(c, "maximum", x, 0)


@aten("gelu")
def gelu(c, x, *, approximate="none"):
    return c.build.unary("gelu", x, approximate_tanh=approximate == "tanh")


@aten("sign", "sgn")
def sign(c, x):
    zero, one = c.build.scalar(0, x.dtype), c.build.scalar(1, x.dtype)
    negative = c.build.select(c.build.compare("lt", x, zero), c.build.scalar(-1, x.dtype), zero)
    return c.build.select(c.build.compare("gt", x, zero), one, negative)


# Compositions lose what the operation itself would keep: they are computed wide, and near zero by
# formulas that subtract nothing from what 1 has swallowed.

@aten("exp2")
def exp2(c, x):
    # The product's rounding grows with it: in f32 that would be 17 units in the last place.
    x = c.build.cast(x, "f64")
    return c.build.unary("exp", binary_scalar(c, "mul", x, math.log(2)))


@aten("expm1")
def expm1(c, x):
    """e^x - 1 = tanh(x / 2) (e^x + 1)"""
    x = wide(c, x)
    half = c.build.unary("tanh", binary_scalar(c, "mul", x, 0.5))
    return c.build.binary("mul", half, binary_scalar(c, "add", c.build.unary("exp", x), 1))


@aten("log2")
def log2(c, x):
    x = wide(c, x)
    return binary_scalar(c, "mul", c.build.unary("log", x), 1 / math.log(2))


@aten("log1p")
def log1p(c, x):
    """log(u) + (x - (u - 1)) / u, where u = 1 + x: what the sum lost is the first order's."""
    x = wide(c, x)
    u = binary_scalar(c, "add", x, 1)
    kept = binary_scalar(c, "sub", u, 1)
    lost = c.build.binary("div", c.build.binary("sub", x, kept), u)
    # Nothing is lost of -1 and infinity, of which this would make NaN.
    lost = c.build.select(c.build.compare("eq", x, kept), c.build.scalar(0, x.dtype), lost)
    return c.build.binary("add", c.build.unary("log", u), lost)


def _log_one_plus_exp(c, x) -> Node:
    """max(x, 0) + log(1 + e^-|x|), which does not overflow."""
    tail = c.build.unary("exp", c.build.unary("neg", c.build.unary("abs", x)))
    return c.build.binary("add", c.build.unary("relu", x), log1p(c, tail))


@aten("erfc")
def erfc(c, x):
    x = c.build.cast(x, "f64")  # near 1 the difference has few digits
    return c.build.binary("sub", c.build.scalar(1, "f64"), c.build.unary("erf", x))


@aten("log10")
def log10(c, x):
    x = wide(c, x)
    return binary_scalar(c, "mul", c.build.unary("log", x), 1 / math.log(10))


@aten("softplus")
def softplus(c, x, beta=1, threshold=20):
    x = wide(c, x)
    scaled = binary_scalar(c, "mul", x, beta)
    above = c.build.compare("gt", scaled, c.build.scalar(threshold, x.dtype))
    return c.build.select(above, x, binary_scalar(c, "div", _log_one_plus_exp(c, scaled), beta))


@aten("elu", "leaky_relu", "celu", "selu")
def elu(c, x, *args):
    name = c.fx.target.__name__.split(".")[0]
    positive = c.build.compare("gt", x, c.build.scalar(0, x.dtype))
    if name == "leaky_relu":
        return c.build.select(positive, x, binary(c, "mul", x, args[0] if args else 0.01))
    alpha, scale, inner = [*args, *[1.0, 1.0, 1.0][len(args):]]
    if name == "selu":
        alpha, scale = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
    if name == "celu":
        inner = 1 / alpha
    x = wide(c, x)
    below = c.build.unary("neg", c.build.unary("relu", c.build.unary("neg", x)))  # min(x, 0)
    below = expm1(c, binary_scalar(c, "mul", below, inner))
    below = binary_scalar(c, "mul", below, alpha)
    return binary_scalar(c, "mul", c.build.select(positive, x, below), scale)


@aten("hardsigmoid")
def hardsigmoid(c, x):
    x = wide(c, x)
    return binary_scalar(c, "div", clamp_values(c, binary_scalar(c, "add", x, 3), 0, 6), 6)


@aten("hardswish")
def hardswish(c, x):
    x = wide(c, x)
    gate = clamp_values(c, binary_scalar(c, "add", x, 3), 0, 6)
    return binary_scalar(c, "div", c.build.binary("mul", x, gate), 6)


def clamp_values(c, x, low, high):
    return binary_scalar(c, "minimum", binary_scalar(c, "maximum", x, low), high)


@aten("mish")
def mish(c, x):
    x = wide(c, x)
    return c.build.binary("mul", x, c.build.unary("tanh", _log_one_plus_exp(c, x)))


@aten("glu")
def glu(c, x, dim=-1):
    x, dim, half = wide(c, x), dim % x.rank, x.shape[dim] // 2
    first, gate = (c.build.slice_dim(x, dim, start, start + half) for start in (0, half))
    y = c.build.binary("mul", first, c.build.unary("sigmoid", gate))
    return with_derivative(c, y, "glu.halves", (first, gate), {})


@aten("log_sigmoid")
def log_sigmoid(c, x):
    return c.build.unary("neg", _log_one_plus_exp(c, c.build.unary("neg", wide(c, x))))


for _kind in ("eq", "ne", "lt", "le", "gt", "ge"):
    @aten(_kind)
    def _compare(c, a, b, _kind=_kind):
        dtype = _promoted(c, a, b)
        return c.build.compare(_kind, c.operand(a, dtype), c.operand(b, dtype))


for _op in ("and", "or", "xor"):
    aten(f"__{_op}__", f"bitwise_{_op}", f"logical_{_op}")(
        lambda c, a, b, _op=_op: binary(c, _op, a, b))


@aten("logical_not", "bitwise_not")
def logical_not(c, x):
    if c.dtype == "i1":
        return c.build.unary("not", c.operand(x, "i1"))
    return c.build.binary("sub", c.build.scalar(-1, x.dtype), x)


@aten("where")
def where(c, condition, a=None, b=None):
    if a is None:
        raise Uncovered("where with one operand is not covered: its shape depends on values")
    return c.build.select(c.operand(condition, "i1"), c.operand(a, c.dtype), c.operand(b, c.dtype))


@aten("masked_fill")
def masked_fill(c, x, mask, value):
    return c.build.select(c.operand(mask, "i1"), c.operand(value, c.dtype), c.operand(x, c.dtype))


@aten("isnan")
def isnan(c, x):
    return c.build.compare("ne", x, x)


@aten("isinf")
def isinf(c, x):
    if x.dtype not in FLOATS:
        return c.build.scalar(False, "i1")
    return c.build.compare("eq", c.build.unary("abs", x), c.build.scalar(math.inf, x.dtype))


@aten("isfinite")
def isfinite(c, x):
    if x.dtype not in FLOATS:
        return c.build.scalar(True, "i1")
    return c.build.compare("lt", c.build.unary("abs", x), c.build.scalar(math.inf, x.dtype))


@aten("nan_to_num")
def nan_to_num(c, x, nan=None, posinf=None, neginf=None):
    if x.dtype not in FLOATS:
        return x
    limits = torch.finfo(TORCH_DTYPES[x.dtype])
    x = c.build.select(isnan(c, x), c.build.scalar(nan or 0.0, x.dtype), x)
    for infinite, value, default in ((math.inf, posinf, limits.max),
                                     (-math.inf, neginf, limits.min)):
        hit = c.build.compare("eq", x, c.build.scalar(infinite, x.dtype))
        x = c.build.select(hit, c.build.scalar(default if value is None else value, x.dtype), x)
    return x


@aten("_to_copy", "to", "type_as")
def to(c, x, *args, **kwargs):
    if x.dtype in FLOATS and c.dtype in ("i64", "i32"):
        x = _trunc(c, x)
    return c.build.cast(x, c.dtype)


@aten("lerp")
def lerp(c, a, b, weight):
    """From the nearer end, so that a weight of 1 gives `b`."""
    a, b = wide(c, a), wide(c, b)
    weight = wide(c, weight) if isinstance(weight, Node) else c.build.scalar(weight, a.dtype)
    step = c.build.binary("sub", b, a)
    rest = c.build.binary("sub", c.build.scalar(1, weight.dtype), weight)
    return c.build.select(
        c.build.compare("lt", c.build.unary("abs", weight), c.build.scalar(0.5, weight.dtype)),
        c.build.binary("add", a, c.build.binary("mul", step, weight)),
        c.build.binary("sub", b, c.build.binary("mul", step, rest)))


def _add_scaled(c, x, op, a, b, value):
    x, a, b = (wide(c, c.build.cast(y, c.dtype)) for y in (x, a, b))
    # As PyTorch does it, a large product with a small factor does not overflow.
    y = c.build.binary(op, a if value == 1 else binary_scalar(c, "mul", a, value), b)
    return c.build.binary("add", x, y)


@aten("addcmul")
def addcmul(c, x, a, b, *, value=1):
    return _add_scaled(c, x, "mul", a, b, value)


@aten("addcdiv")
def addcdiv(c, x, a, b, *, value=1):
    return _add_scaled(c, x, "div", a, b, value)
