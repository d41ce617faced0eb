# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Operations that work element by element."""
import math

import numpy as np

from ..errors import Uncovered
from ..graph.dialect import CODES, FLOATS
from ..graph.forms import Dense
from ..graph.match import constant_of, is_natural
from ..graph.nodes import Node
from .attributes import NARROW, direction
from .handlers import Context, handles


def _wide(function):
    """A function of floats as it is in f64, so that its result is rounded once."""
    return lambda *values: function(*(v.astype(np.float64) if v.dtype.kind not in "iub" else v for v in values))


_erf = np.vectorize(math.erf, otypes=[np.float64])

#: Unary operations: the name in `nn`, and the function of known values.
_UNARY = {
    "negate": ("neg", np.negative), "exponential": ("exp", _wide(np.exp)), "log": ("log", _wide(np.log)),
    "sqrt": ("sqrt", _wide(np.sqrt)), "rsqrt": ("rsqrt", _wide(lambda x: 1 / np.sqrt(x))),
    "sine": ("sin", _wide(np.sin)), "cosine": ("cos", _wide(np.cos)), "tanh": ("tanh", _wide(np.tanh)),
    "logistic": ("sigmoid", _wide(lambda x: 1 / (1 + np.exp(-x)))), "abs": ("abs", np.abs),
    "floor": ("floor", _wide(np.floor)),
}

#: Binary operations on floats, and those on integers that are the same there.
_BINARY = {
    "add": ("add", np.add), "subtract": ("sub", np.subtract), "multiply": ("mul", np.multiply),
    "maximum": ("maximum", np.maximum), "minimum": ("minimum", np.minimum),
    "and": ("and", np.bitwise_and), "or": ("or", np.bitwise_or), "xor": ("xor", np.bitwise_xor),
}
_LOGICAL = {"add": "or", "multiply": "and", "maximum": "or", "minimum": "and"}


def _unary(stated: str, name: str, function):
    @handles(stated)
    def handler(c: Context, op, x):
        if not c.unfolds and name == "neg" and x.dtype == "i1":
            raise Uncovered("stablehlo.negate of truth values is not covered")
        return _wrapped(c, op, c.fold(None, function, x) or c.build.unary(name, x))
    return handler


for _stated, (_name, _function) in _UNARY.items():
    _unary(_stated, _name, _function)


def _binary(stated: str, name: str, function):
    @handles(stated)
    def handler(c: Context, op, a, b):
        folded = c.fold(name, function, a, b)
        if folded is not None:
            return _wrapped(c, op, folded)
        a, b = c.thin(a), c.thin(b)
        kind = _LOGICAL.get(stated, name) if c.dtype == "i1" else name
        if kind in ("maximum", "minimum") and c.dtype in FLOATS:
            # The neutral element, with which reductions begin.
            least = -math.inf if kind == "maximum" else math.inf
            for x, y in ((a, b), (b, a)):
                if constant_of(x) == least:
                    return c.full(y)
                if kind == "maximum" and constant_of(x) == 0:
                    # The gradient at 0 is that of jax.nn.relu, 0.
                    return c.full(c.build.unary("relu", y))
        if stated == "multiply" and a is b:
            return squared(c, a)
        return _wrapped(c, op, c.build.binary(kind, a, b))
    return handler


for _stated, (_name, _function) in _BINARY.items():
    _binary(_stated, _name, _function)


def _wrapped(c: Context, op, x: Node) -> Node:
    """A number of an integer type that is narrower than that of the program, which wraps."""
    element = c.types.written(op.results[0])[1]
    if element not in NARROW or op.name.split(".")[1] in ("and", "or", "maximum", "minimum", "abs"):
        return x
    bits, signed = NARROW[element]
    mask, half = (1 << bits) - 1, 1 << bits - 1 if signed else 0
    if isinstance(x.form, Dense):
        return c.build.static(Dense((x.form.values + half & mask) - half), x.shape, x.dtype)
    number = lambda value: c.build.scalar(value, x.dtype)
    if not signed:
        return c.build.binary("and", x, number(mask))
    low = c.build.binary("and", c.build.binary("add", x, number(half)), number(mask))
    return c.build.binary("sub", low, number(half))


_ROOTS = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}


def squared(c: Context, x: Node) -> Node:
    x = x.operands[0] if x.op == "abs" else x
    return c.build.binary("mul", x, x)


@handles("power")
def power(c, op, a, b):
    if c.dtype not in FLOATS:
        return c.fold(None, _integer_power, a, b) or _repeated_product(c, a, b)
    folded = c.fold(None, _wide(np.power), a, b)
    if folded is not None:
        return folded
    if constant_of(b) == 2:
        return squared(c, a)
    if constant_of(b) in _ROOTS:
        return c.build.unary(_ROOTS[constant_of(b)], a)
    return c.build.binary("pow", c.thin(a), c.thin(b))


def _integer_power(a, b):
    return np.where(b < 0, np.where(np.abs(a) == 1, np.power(a, np.abs(b)), 0), np.power(a, np.abs(b)))


def _repeated_product(c, a, b):
    exponent = constant_of(b)
    if exponent is None or not 0 <= exponent <= 16:
        raise Uncovered("stablehlo.power of integers is not covered: expected a constant exponent from 0 to 16")
    result = c.build.broadcast(c.build.scalar(1, a.dtype), a.shape)
    for _ in range(int(exponent)):
        result = c.build.binary("mul", result, a)
    return result


@handles("not")
def negation(c, op, x):
    if x.dtype == "i1":
        return c.fold(None, np.logical_not, x) or c.build.unary("not", x)
    folded = c.fold(None, np.invert, x)
    return _wrapped(c, op, folded or c.build.binary("xor", x, c.build.scalar(-1, x.dtype)))


@handles("divide")
def divide(c, op, a, b):
    if c.dtype in FLOATS:
        return c.fold(None, np.divide, a, b) or c.build.binary("div", c.thin(a), c.thin(b))
    folded = c.fold(None, lambda x, y: np.sign(x) * np.sign(y) * (np.abs(x) // np.maximum(np.abs(y), 1)), a, b)
    return folded or _truncated_quotient(c, c.thin(a), c.thin(b))


def _is_positive(x: Node) -> bool:
    value = constant_of(x)
    return value is not None and value > 0 or is_natural(x)


def _truncated_quotient(c, a, b):
    """Rounded toward zero; nn.div rounds down."""
    if _is_positive(a) and _is_positive(b):
        return c.build.binary("div", a, b)
    zero = c.build.scalar(0, a.dtype)
    size = c.build.binary("div", c.build.unary("abs", a), c.build.unary("abs", b))
    negative = c.build.binary("xor", c.build.compare("lt", a, zero), c.build.compare("lt", b, zero))
    return c.build.select(negative, c.build.unary("neg", size), size)


@handles("remainder")
def remainder(c, op, a, b):
    """With the sign of the dividend; that of nn.rem has the divisor's."""
    folded = c.fold(None, np.fmod, a, b)
    if folded is not None:
        return folded
    a, b = c.thin(a), c.thin(b)
    if _is_positive(a) and _is_positive(b):
        return c.build.binary("rem", a, b)
    rest = c.build.binary("rem", c.build.unary("abs", a), c.build.unary("abs", b))
    negative = c.build.compare("lt", a, c.build.scalar(0, a.dtype))
    return c.build.select(negative, c.build.unary("neg", rest), rest)


_COMPARISONS = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
                "ge": np.greater_equal}


@handles("compare")
def compare(c, op, a, b):
    kind = direction(op)
    folded = c.fold(kind, _COMPARISONS[kind], a, b)
    if folded is not None:
        return folded
    a, b = c.thin(a), c.thin(b)
    if a.dtype == "i1":
        if kind in ("eq", "ne"):
            differ = c.build.binary("xor", a, b)
            return c.build.unary("not", differ) if kind == "eq" else differ
        a, b = c.build.cast(a, "i32"), c.build.cast(b, "i32")
    return c.build.compare(kind, a, b)


@handles("select")
def select(c, op, condition, a, b):
    folded = c.fold(None, np.where, condition, a, b)
    if folded is not None:
        return folded
    chosen = a if a is b else None
    if condition.form is not None and getattr(condition.form, "uniform", False):
        chosen = a if condition.form.values.item() else b
    if chosen is not None:
        return chosen
    return c.build.select(c.thin(condition), c.thin(a), c.thin(b))


@handles("clamp")
def clamp(c, op, least, x, most):
    folded = c.fold(None, lambda low, v, high: np.minimum(np.maximum(v, low), high), least, x, most)
    if folded is not None:
        return folded
    x = c.build.binary("maximum", x, c.thin(least))
    return c.build.binary("minimum", x, c.thin(most))


@handles("convert")
def convert(c, op, x):
    """To integers toward zero."""
    dtype = c.dtype
    source, element = (c.types.written(v)[1] for v in (op.operands[0], op.results[0]))
    if element in NARROW and x.dtype not in FLOATS and x.dtype not in CODES and source not in (element, "i1"):
        return _wrapped(c, op, _cast(c, x, dtype))
    if x.dtype in CODES:
        return c.build.cast(c.build.widen(x, "i32" if x.dtype == "i8" else "f32"), dtype)
    if x.dtype == dtype:
        return x
    to_integer = x.dtype in FLOATS and dtype not in FLOATS and dtype != "i1"
    folded = c.fold(None, np.trunc if to_integer else lambda v: v if dtype != "i1" else v != 0, x)
    if folded is not None:
        return folded
    inner = c.narrow.get(x) or (x.operands[0] if x.op == "broadcast" else None)
    if inner is not None and x.op == "broadcast":
        return c.full(_converted(c, inner, dtype, to_integer))
    return _converted(c, x, dtype, to_integer)


def _cast(c: Context, x: Node, dtype: str) -> Node:
    return x if x.dtype == dtype else c.fold(None, lambda v: v, x) or c.build.cast(x, dtype)


def _converted(c, x, dtype, to_integer):
    return c.build.cast(truncated(c, x) if to_integer else x, dtype)


def truncated(c, x):
    down = c.build.unary("floor", c.build.unary("abs", x))
    return c.build.select(c.build.compare("lt", x, c.build.scalar(0, x.dtype)), c.build.unary("neg", down), down)


# Functions made of others: computed in f32 at least, and rounded once.

def wide(c: Context, x: Node) -> Node:
    return c.build.cast(x, "f32") if x.dtype in ("bf16", "f16") else x


@handles("exponential_minus_one")
def expm1(c, op, x):
    """Near 0 by tanh, where exp(x) - 1 would lose digits."""
    folded = c.fold(None, _wide(np.expm1), x)
    if folded is not None:
        return folded
    x = wide(c, x)
    b, one = c.build, c.build.scalar(1, x.dtype)
    half = b.unary("tanh", b.binary("mul", x, b.scalar(0.5, x.dtype)))
    small = b.binary("div", b.binary("mul", b.scalar(2, x.dtype), half), b.binary("sub", one, half))
    is_small = b.compare("lt", b.unary("abs", x), one)
    return b.select(is_small, small, b.binary("sub", b.unary("exp", x), one))


@handles("log_plus_one")
def log1p(c, op, x):
    """log(1 + x), corrected by what 1 + x rounds away."""
    folded = c.fold(None, _wide(np.log1p), x)
    if folded is not None:
        return folded
    x = wide(c, x)
    b, one = c.build, c.build.scalar(1, x.dtype)
    y = b.binary("add", x, one)
    step = b.binary("sub", y, one)
    is_one = b.compare("eq", step, b.scalar(0, x.dtype))
    ratio = b.binary("div", b.unary("log", y), b.select(is_one, one, step))
    is_large = b.compare("gt", y, b.scalar(1e30, x.dtype))
    return b.select(is_large, b.unary("log", y), b.select(is_one, x, b.binary("mul", ratio, x)))


@handles("sign")
def sign(c, op, x):
    folded = c.fold(None, np.sign, x)
    if folded is not None:
        return folded
    b, zero = c.build, c.build.scalar(0, x.dtype)
    up, down = (b.cast(b.compare(kind, x, zero), x.dtype) for kind in ("gt", "lt"))
    return b.binary("sub", up, down)


@handles("ceil")
def ceil(c, op, x):
    return c.fold(None, _wide(np.ceil), x) or \
        c.build.unary("neg", c.build.unary("floor", c.build.unary("neg", x)))


@handles("round_nearest_even")
def round_even(c, op, x):
    folded = c.fold(None, _wide(np.rint), x)
    if folded is not None:
        return folded
    b, half = c.build, c.build.scalar(0.5, x.dtype)
    down = b.unary("floor", x)
    rest = b.binary("sub", x, down)
    odd = b.compare("ne", b.binary("rem", down, b.scalar(2, x.dtype)), b.scalar(0, x.dtype))
    up = b.binary("or", b.compare("gt", rest, half), b.binary("and", b.compare("eq", rest, half), odd))
    return b.binary("add", down, b.cast(up, x.dtype))


@handles("round_nearest_afz")
def round_away(c, op, x):
    size = c.build.unary("floor", c.build.binary("add", c.build.unary("abs", x), c.build.scalar(0.5, x.dtype)))
    return c.build.select(c.build.compare("lt", x, c.build.scalar(0, x.dtype)), c.build.unary("neg", size), size)


@handles("cbrt")
def cube_root(c, op, x):
    folded = c.fold(None, _wide(np.cbrt), x)
    if folded is not None:
        return folded
    x = wide(c, x)
    b, zero = c.build, c.build.scalar(0, x.dtype)
    root = b.binary("pow", b.unary("abs", x), b.scalar(1 / 3, x.dtype))
    return b.select(b.compare("lt", x, zero), b.unary("neg", root), root)


@handles("tan")
def tangent(c, op, x):
    return c.fold(None, _wide(np.tan), x) or \
        c.build.binary("div", c.build.unary("sin", wide(c, x)), c.build.unary("cos", wide(c, x)))


@handles("is_finite")
def is_finite(c, op, x):
    """x - x is zero for finite numbers, and NaN for others."""
    folded = c.fold(None, lambda v: np.isfinite(v.astype(np.float64)), x)
    if folded is not None:
        return folded
    return c.build.compare("eq", c.build.binary("sub", x, x), c.build.scalar(0, x.dtype))


@handles("erf", dialect="chlo")
def erf(c, op, x):
    return c.fold(None, _wide(_erf), x) or c.build.unary("erf", x)


@handles("erfc", dialect="chlo")
def erfc(c, op, x):
    folded = c.fold(None, _wide(lambda v: 1 - _erf(v)), x)
    x = wide(c, x)
    return folded or c.build.binary("sub", c.build.scalar(1, x.dtype), c.build.unary("erf", x))


@handles("square", dialect="chlo")
def square(c, op, x):
    return c.fold(None, np.square, x) or squared(c, x)


@handles("is_inf", dialect="chlo")
def is_infinite(c, op, x):
    folded = c.fold(None, lambda v: np.isinf(v.astype(np.float64)), x)
    return folded or c.build.compare("eq", c.build.unary("abs", x), c.build.scalar(math.inf, x.dtype))


@handles("sinh", dialect="chlo")
def sinh(c, op, x):
    return _of_exponentials(c, x, "sub", np.sinh)


@handles("cosh", dialect="chlo")
def cosh(c, op, x):
    return _of_exponentials(c, x, "add", np.cosh)


def _of_exponentials(c, x, kind, function):
    folded = c.fold(None, _wide(function), x)
    if folded is not None:
        return folded
    x = wide(c, x)
    b, half = c.build, c.build.scalar(0.5, x.dtype)
    up, down = b.unary("exp", x), b.unary("exp", b.unary("neg", x))
    return b.binary("mul", b.binary(kind, up, down), half)
