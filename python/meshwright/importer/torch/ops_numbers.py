# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""ATen operations on the signs, digits and bits of numbers."""
import math

from ..graph.dialect import FLOATS
from ..graph.nodes import Node
from .handlers import aten
from .ops_elementwise import binary, binary_scalar, isnan, wide
from .ops_shape import known_values

_BITS = {"i64": 64, "i32": 32}


@aten("round")
def round_(c, x, *, decimals=0):
    """To the nearest integer; halves to the even one."""
    if x.dtype not in FLOATS:
        return x
    x = wide(c, x)
    if decimals:
        scale = 10.0 ** abs(decimals)
        up, down = ("mul", "div") if decimals > 0 else ("div", "mul")
        return binary_scalar(c, down, _rounded(c, binary_scalar(c, up, x, scale)), scale)
    return _rounded(c, x)


def _rounded(c, x) -> Node:
    down = c.build.unary("floor", x)
    rest = c.build.binary("sub", x, down)
    half = c.build.scalar(0.5, x.dtype)
    odd = c.build.compare("ne", binary_scalar(c, "rem", down, 2), c.build.scalar(0, x.dtype))
    tie = c.build.binary("and", c.build.compare("eq", rest, half), odd)
    up = c.build.binary("or", c.build.compare("gt", rest, half), tie)
    result = c.build.binary("add", down, c.build.cast(up, x.dtype))
    # Infinity less itself is NaN.
    return c.build.select(c.build.compare("eq", x, down), x, result)


@aten("signbit")
def signbit(c, x):
    negative = c.build.compare("lt", x, c.build.scalar(0, x.dtype))
    if x.dtype not in FLOATS:
        return negative
    below = c.build.compare("lt", c.build.unary("reciprocal", x), c.build.scalar(0, x.dtype))
    zero = c.build.compare("eq", x, c.build.scalar(0, x.dtype))
    return c.build.binary("or", negative, c.build.binary("and", zero, below))


@aten("copysign")
def copysign(c, x, sign):
    if not isinstance(sign, Node):
        negative = c.build.scalar(math.copysign(1, sign) < 0, "i1")
    else:
        negative = signbit(c, sign)
    size = c.build.unary("abs", c.operand(x, c.dtype))
    return c.build.select(negative, c.build.unary("neg", size), size)


@aten("fmax", "fmin")
def fmax(c, a, b):
    """The larger or smaller one; of NaN and a number the number."""
    a, b = c.operand(a, c.dtype), c.operand(b, c.dtype)
    kind = "maximum" if c.fx.target.__name__.startswith("fmax") else "minimum"
    best = c.build.binary(kind, a, b)
    if a.dtype not in FLOATS:
        return best
    return c.build.select(isnan(c, a), b, c.build.select(isnan(c, b), a, best))


@aten("bitwise_left_shift", "__lshift__", "bitwise_right_shift", "__rshift__")
def shift(c, x, bits):
    """By powers of two; PyTorch's right shift keeps the sign, as a division downward does."""
    width = _BITS[c.dtype]
    is_left = "left" in c.fx.target.__name__ or "lshift" in c.fx.target.__name__
    if not isinstance(bits, Node) and 0 <= bits < width - 1:
        return binary(c, "mul" if is_left else "div", x, 1 << bits)
    x, bits = c.operand(x, c.dtype), c.operand(bits, c.dtype)
    most = c.build.scalar(width - 1, c.dtype)
    beyond = c.build.binary("or", c.build.compare("lt", bits, c.build.scalar(0, c.dtype)),
                            c.build.compare("ge", bits, most))
    inside = c.build.select(beyond, c.build.scalar(0, c.dtype), bits)
    power = _power_of_bits(c, c.build.scalar(2, c.dtype), inside, width.bit_length() - 1)
    if not is_left:
        sign = c.build.select(c.build.compare("lt", x, c.build.scalar(0, c.dtype)),
                              c.build.scalar(-1, c.dtype), c.build.scalar(0, c.dtype))
        return c.build.select(beyond, sign, c.build.binary("div", x, power))
    # The highest bit: an odd number gives the least integer.
    highest = c.build.binary("mul", c.build.binary("mul", x, c.build.scalar(1 << (width - 2),
                                                                            c.dtype)),
                             c.build.scalar(2, c.dtype))
    is_most = c.build.compare("eq", bits, most)
    return c.build.select(is_most, highest, c.build.select(
        beyond, c.build.scalar(0, c.dtype), c.build.binary("mul", x, power)))


def _power_of_bits(c, base, exponent, bits: int) -> Node:
    """base ** exponent, by the squares of `base` that the bits of `exponent` name."""
    result, square = None, base
    for bit in range(bits):
        named = c.build.binary("and", exponent, c.build.scalar(1 << bit, exponent.dtype))
        factor = c.build.select(c.build.compare("ne", named, c.build.scalar(0, exponent.dtype)),
                                square, c.build.scalar(1, square.dtype))
        result = factor if result is None else c.build.binary("mul", result, factor)
        square = c.build.binary("mul", square, square)
    return result


def _integer_power(c, base, exponent) -> Node:
    """As PyTorch computes it, modulo the size of the type; 1 / base ** n of a negative exponent."""
    exponent = c.operand(exponent, c.dtype)
    known = known_values(exponent)
    bits = _BITS[c.dtype] - 1 if known is None else max(1, int(known.max()).bit_length())
    zero, one = c.build.scalar(0, c.dtype), c.build.scalar(1, c.dtype)
    negative = c.build.compare("lt", exponent, zero)
    positive = _power_of_bits(c, base, c.build.select(negative, zero, exponent), bits)
    odd = c.build.compare("ne", c.build.binary("and", exponent, one), zero)
    alternating = c.build.select(odd, c.build.scalar(-1, c.dtype), one)
    inverse = c.build.select(c.build.compare("eq", base, one), one, c.build.select(
        c.build.compare("eq", base, c.build.scalar(-1, c.dtype)), alternating, zero))
    return c.build.select(negative, inverse, positive)


@aten("pow")
def power(c, base, exponent):
    if not isinstance(exponent, Node) and isinstance(base, Node):
        x = c.operand(base, c.dtype)
        if exponent == 0.5:
            return c.build.unary("sqrt", x)
        if exponent == -0.5:
            return c.build.unary("rsqrt", x)
        if exponent == -1:
            return c.build.unary("reciprocal", x)
        if float(exponent).is_integer() and 1 <= exponent <= 8:
            return _natural_power(c, x, int(exponent))
    if c.dtype not in FLOATS:
        return _integer_power(c, c.operand(base, c.dtype), exponent)
    return binary(c, "pow", base, exponent)


def _natural_power(c, x, exponent):
    result, square = None, x
    while True:
        if exponent & 1:
            result = square if result is None else c.build.binary("mul", result, square)
        exponent >>= 1
        if not exponent:
            return result
        square = c.build.binary("mul", square, square)
