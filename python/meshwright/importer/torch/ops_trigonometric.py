# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Trigonometric and hyperbolic functions and their inverses, and the gamma function.

The inverses and the gamma function are computed in f64: they take steps that lose digits.
"""
import math

from ..graph.dialect import FLOATS
from ..graph.nodes import Node
from .handlers import aten
from .ops_elementwise import binary_scalar, expm1, log1p, wide
from .ops_numbers import signbit


def _atan(c, x) -> Node:
    """atan(x) = 2 atan(x / (1 + sqrt(1 + x^2))), of which the series needs few terms."""
    b, sign = c.build, x
    number = lambda value: b.scalar(value, "f64")
    x = b.unary("abs", x)
    # Of large numbers by the inverse, whose square does not overflow.
    large = b.compare("gt", x, number(1))
    x = b.select(large, b.unary("reciprocal", x), x)
    for _ in range(2):
        root = b.unary("sqrt", b.binary("add", b.binary("mul", x, x), number(1)))
        x = b.binary("div", x, b.binary("add", root, number(1)))
    square, series = b.binary("mul", x, x), None
    for n in range(25, -1, -2):
        term = number((-1) ** (n // 2) / n)
        series = term if series is None else b.binary("add", b.binary("mul", series, square), term)
    result = b.binary("mul", b.binary("mul", series, x), number(4))
    result = b.select(large, b.binary("sub", number(math.pi / 2), result), result)
    return b.select(b.compare("lt", sign, number(0)), b.unary("neg", result), result)


def _in_f64(c, x):
    return c.build.cast(c.operand(x, c.dtype) if not isinstance(x, Node) or
                        x.dtype not in FLOATS else x, "f64")


@aten("atan", "arctan")
def atan(c, x):
    return _atan(c, _in_f64(c, x))


@aten("asin", "arcsin", "acos", "arccos")
def asin(c, x):
    """asin(x) = atan(x / sqrt((1 - x)(1 + x))); acos(x) = 2 atan(sqrt((1 - x) / (1 + x)))"""
    x = _in_f64(c, x)
    one = c.build.scalar(1, "f64")
    below, above = c.build.binary("sub", one, x), c.build.binary("add", one, x)
    if "cos" in c.fx.target.__name__:
        ratio = c.build.unary("sqrt", c.build.binary("div", below, above))
        return binary_scalar(c, "mul", _atan(c, ratio), 2)
    root = c.build.unary("sqrt", c.build.binary("mul", below, above))
    return _atan(c, c.build.binary("div", x, root))


@aten("atan2", "arctan2")
def atan2(c, y, x):
    """From the angle in the first eighth of a turn. The signs of zeros count."""
    y, x = _in_f64(c, y), _in_f64(c, x)
    b, number = c.build, lambda value: c.build.scalar(value, "f64")
    across, up = b.unary("abs", x), b.unary("abs", y)
    large, small = b.binary("maximum", across, up), b.binary("minimum", across, up)
    ratio = b.binary("div", small, b.select(b.compare("eq", large, number(0)), number(1), large))
    # Of two infinities.
    is_diagonal = b.compare("eq", small, number(math.inf))
    angle = _atan(c, b.select(is_diagonal, number(1), ratio))
    rest = b.binary("sub", number(math.pi / 2), angle)
    angle = b.select(b.compare("gt", up, across), rest, angle)
    angle = b.select(signbit(c, x), b.binary("sub", number(math.pi), angle), angle)
    return b.select(signbit(c, y), b.unary("neg", angle), angle)


@aten("tan")
def tan(c, x):
    x = wide(c, x)
    return c.build.binary("div", c.build.unary("sin", x), c.build.unary("cos", x))


@aten("sinh", "cosh")
def sinh(c, x):
    """Halves of e^x and e^-x; the sine by expm1, which keeps small numbers."""
    x = wide(c, x)
    if "cosh" in c.fx.target.__name__:
        both = c.build.binary("add", c.build.unary("exp", x),
                              c.build.unary("exp", c.build.unary("neg", x)))
    else:
        both = c.build.binary("sub", expm1(c, x), expm1(c, c.build.unary("neg", x)))
    return binary_scalar(c, "mul", both, 0.5)


@aten("asinh", "acosh", "atanh", "arcsinh", "arccosh", "arctanh")
def asinh(c, x):
    x, b = _in_f64(c, x), c.build
    name, one = c.fx.target.__name__.split(".")[0][-4:], b.scalar(1, "f64")
    if name == "tanh":
        ratio = b.binary("div", b.binary("add", x, x), b.binary("sub", one, x))
        return binary_scalar(c, "mul", log1p(c, ratio), 0.5)
    square, size = b.binary("mul", x, x), b.unary("abs", x)
    # log(2x), where the square overflows
    large = binary_scalar(c, "add", b.unary("log", size), math.log(2))
    is_large = b.compare("gt", x if name == "cosh" else size, b.scalar(1e100, "f64"))
    if name == "cosh":
        root = b.unary("sqrt", b.binary("sub", square, one))
        # Of a large negative number the sum would be 0.
        total = b.unary("log", b.binary("add", x, root))
        total = b.select(b.compare("lt", x, one), b.scalar(math.nan, "f64"), total)
        return b.select(is_large, large, total)
    root = b.unary("sqrt", b.binary("add", square, one))
    # |x| + (sqrt(1 + x^2) - 1), without the difference
    result = log1p(c, b.binary("add", size, b.binary("div", square, b.binary("add", root, one))))
    result = b.select(is_large, large, result)
    return b.select(b.compare("lt", x, b.scalar(0, "f64")), b.unary("neg", result), result)


@aten("hypot")
def hypot(c, x, y):
    """By the ratio of both sizes, whose square does not overflow. Infinity also beside NaN."""
    b, number = c.build, lambda value: c.build.scalar(value, "f64")
    x, y = (b.unary("abs", _in_f64(c, z)) for z in (x, y))
    large, small = b.binary("maximum", x, y), b.binary("minimum", x, y)
    ratio = b.binary("div", small, b.select(b.compare("eq", large, number(0)), number(1), large))
    root = b.unary("sqrt", b.binary("add", b.binary("mul", ratio, ratio), number(1)))
    is_infinite = b.binary("or", *(b.compare("eq", z, number(math.inf)) for z in (x, y)))
    return b.select(is_infinite, number(math.inf), b.binary("mul", large, root))


#: Of 1 / z, 1 / z^3, ... in Stirling's series of log(gamma(z)).
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)


def _lgamma_above(c, x) -> Node:
    """log(gamma(x)) from 1/2 on: Stirling's series from 10 on, and
    gamma(x) = gamma(x + 10) / (x (x + 1) ... (x + 9)) below."""
    b, number = c.build, lambda value: c.build.scalar(value, "f64")
    is_small = b.compare("lt", x, number(10))
    z = b.select(is_small, b.binary("add", x, number(10)), x)
    inverse = b.unary("reciprocal", z)
    square, series = b.binary("mul", inverse, inverse), number(_STIRLING[-1])
    for factor in reversed(_STIRLING[:-1]):
        series = b.binary("add", b.binary("mul", series, square), number(factor))
    power = b.binary("mul", b.binary("sub", z, number(0.5)),
                     b.binary("sub", b.unary("log", z), number(1)))
    result = b.binary("add", b.binary("add", power, b.binary("mul", series, inverse)),
                      number(0.5 * math.log(2 * math.pi) - 0.5))
    product = small = b.binary("minimum", x, number(10))
    for n in range(1, 10):
        product = b.binary("mul", product, b.binary("add", small, number(n)))
    return b.select(is_small, b.binary("sub", result, b.unary("log", product)), result)


@aten("lgamma", "special_gammaln")
def lgamma(c, x):
    """Below 1/2 by gamma(x) gamma(1 - x) = pi / sin(pi x)."""
    x, b = _in_f64(c, x), c.build
    number = lambda value: b.scalar(value, "f64")
    is_below = b.compare("lt", x, number(0.5))
    above = _lgamma_above(c, b.select(is_below, b.binary("sub", number(1), x), x))
    # The size of the sine is even, and has the period 1.
    size = b.unary("abs", x)
    rest = b.binary("sub", size, b.unary("floor", size))
    rest = b.binary("minimum", rest, b.binary("sub", number(1), rest))
    sine = b.unary("log", b.unary("sin", b.binary("mul", rest, number(math.pi))))
    below = b.binary("sub", number(math.log(math.pi)), b.binary("add", sine, above))
    below = b.select(b.compare("eq", rest, number(0)), number(math.inf), below)
    result = b.select(is_below, below, above)
    return b.select(b.compare("eq", size, number(math.inf)), size, result)
