# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Derivatives of elementwise operations whose parts have others (derivatives.py).

Conditions say what they say in PyTorch's code for one number, also for NaN: `~(x <= 0)` holds for
NaN, `x > 0` does not.
"""
import math
import struct

from ..graph.dialect import FLOATS
from .derivatives import derivative
from .formulas import (
    Formula,
    absolute,
    cos,
    exp,
    floor,
    log,
    log1p,
    rsqrt,
    sigmoid,
    sin,
    sqrt,
    where,
)
from .ops_elementwise import floor_div

#: PyTorch rounds it to f32 for all types.
_SIXTH = 0.1666666716337204


def _both(a, b) -> tuple[Formula, Formula]:
    """Two operands, of which one may be a number."""
    a = a if isinstance(a, Formula) else b.number(a)
    return a, b if isinstance(b, Formula) else a.number(b)


# Steps, remainders and the larger or smaller of two.

@derivative("div.Tensor_mode", "div.Scalar_mode", "floor_divide", "round", "trunc", "fix", "ceil",
            "floor", "sign", "sgn")
def step(d, *args, **options):
    return d.result.number(0)


@derivative("remainder")
def remainder(d, a, b):
    if not isinstance(b, Formula):
        return d(a)
    a, b = _both(a, b)
    return d(a) - d(b) * a.of(floor_div(a.build, a.node, b.node))


@derivative("fmod")
def fmod(d, a, b):
    if not isinstance(b, Formula):
        return d(a)
    a, b = _both(a, b)
    quotient = a / b
    return d(a) - d(b) * where(quotient < 0, -floor(-quotient), floor(quotient))


@derivative("maximum", "max.other")
def maximum(d, a, b):
    """Half to each of two equal ones, also if one is a constant; to both where one is NaN."""
    share = where(a.equals(b), a.number(0.5), 1)
    return (d(a).where(~(a < b)) + d(b).where(~(b < a))) * share


@derivative("minimum", "min.other")
def minimum(d, a, b):
    share = where(a.equals(b), a.number(0.5), 1)
    return (d(a).where(~(a > b)) + d(b).where(~(b > a))) * share


@derivative("fmax")
def fmax(d, a, b):
    first = (a >= b) | b.is_nan()
    return d(a).where(first) + d(b).where(~first)


@derivative("fmin")
def fmin(d, a, b):
    first = (a <= b) | b.is_nan()
    return d(a).where(first) + d(b).where(~first)


@derivative("clamp.Tensor", "clip.Tensor", "clamp_min.Tensor", "clamp_max.Tensor")
def clamp(d, x, low=None, high=None):
    """At a bound to `x`. Where the bounds have crossed, to the upper one."""
    if d.name.startswith("clamp_max"):
        low, high = None, low
    if low is None:
        return d(x).where(x <= high) + d(high).where(x > high)
    if high is None:
        return d(x).where(x >= low) + d(low).where(x < low)
    return d(x).where((x >= low) & (x <= high)) + d(low).where((x < low) & (low < high)) + \
        d(high).where((x > high) | (high < low))


@derivative("lerp")
def lerp(d, a, b, weight):
    return d(a) * (1 - weight) + d(b) * weight + d(weight) * (b - a)


@derivative("addcmul")
def addcmul(d, x, a, b, value=1):
    return d(x) + d(a) * (b * value) + d(b) * (a * value)


@derivative("addcdiv")
def addcdiv(d, x, a, b, value=1):
    return d(x) + d(a) * (value / b) - d(b) * (value * a / (b * b))


# Activations.

@derivative("hardtanh")
def hardtanh(d, x, low=-1, high=1):
    return d(x).where(~((x <= low) | (x >= high)))


@derivative("relu6")
def relu6(d, x):
    return hardtanh(d, x, 0, 6)


@derivative("hardsigmoid")
def hardsigmoid(d, x):
    return d(x).where((x > -3) & (x < 3)) * _SIXTH


@derivative("hardswish")
def hardswish(d, x):
    return d(x).where(~(x <= -3)) * where(x < 3, x / 3 + 0.5, 1)


@derivative("threshold")
def threshold(d, x, bound, value):
    return d(x).where(~(x <= bound))


@derivative("softplus")
def softplus(d, x, beta=1, threshold=20):
    return d(x) * where(x * beta > threshold, 1, sigmoid(x * beta))


@derivative("log_sigmoid")
def log_sigmoid(d, x):
    return d(x) * sigmoid(-x)


@derivative("mish")
def mish(d, x):
    """t + x sigmoid(x) (1 - t^2), where t = tanh(log(1 + e^x)) = (w^2 + 2w) / (w^2 + 2w + 2) and
    w = e^x. Above zero by 1 / w, which does not overflow."""
    w = exp(-absolute(x))
    rest = where(x < 0, 2 / (w * w + 2 * w + 2), 2 * w * w / (2 * w * w + 2 * w + 1))
    t = where(x < 0, (w * w + 2 * w) / (w * w + 2 * w + 2), (2 * w + 1) / (2 * w * w + 2 * w + 1))
    return d(x) * (t + x * sigmoid(x) * rest * (1 + t))


@derivative("elu")
def elu(d, x, alpha=1, scale=1, inner=1):
    return d(x) * where(x <= 0, exp(x * inner) * (alpha * scale * inner), scale)


@derivative("selu")
def selu(d, x):
    return elu(d, x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


@derivative("celu")
def celu(d, x, alpha=1.0):
    # PyTorch rounds alpha to f32 for all types.
    return elu(d, x, alpha, 1, 1 / struct.unpack("f", struct.pack("f", alpha))[0])


@derivative("_prelu_kernel")
def prelu(d, x, weight):
    return d(x) * where(x > 0, 1, weight) + d(weight).where(~(x > 0)) * x


@derivative("glu.halves")
def glu(d, x, gate):
    """In this order no product overflows where the gate is shut."""
    opened = sigmoid(gate)
    return d(x) * opened + d(gate) * x * (1 - opened) * opened


# Exponentials and logarithms.

@derivative("expm1")
def expm1(d, x):
    return d(x) * exp(x)


@derivative("log1p")
def log1p_(d, x):
    return d(x) / (x + 1)


@derivative("xlogy")
def xlogy(d, x, y):
    x, y = _both(x, y)
    return d(x).where(~(x.equals(0) & (y <= 0))) * log(y) + d(y) / y * x


@derivative("special_xlog1py")
def xlog1py(d, x, y):
    x, y = _both(x, y)
    return d(x).where(~(x.equals(0) & (y <= -1))) * log1p(y) + d(y) / (y + 1) * x


@derivative("logit")
def logit(d, x, eps=None):
    slope = 1 / (x * (1 - x))
    if eps is None or eps < 0:
        return d(x) * where((x < 0) | (x > 1), math.nan, slope)
    return d(x).where(~((x < eps) | (x > 1 - eps))) * slope


@derivative("special_entr")
def entr(d, x):
    return d(x) * -(log(x) + 1)


# Angles.

@derivative("sinc")
def sinc(d, x):
    """Near 0 by the series, since the formula's difference has few digits there."""
    wide = x.cast("f64")
    angle = wide * math.pi
    square = angle * angle
    series = square / 10 - 1 - square * square / 280 + square * square * square / 15120
    series = angle * series / 3
    slope = where(absolute(wide) < 0.05, series * math.pi,
                  (angle * cos(angle) - sin(angle)) / (wide * angle))
    return d(x) * slope.cast(x.node.dtype)


@derivative("tan")
def tan(d, x):
    return d(x) * (d.result * d.result + 1)


@derivative("asin", "arcsin")
def asin(d, x):
    return d(x) * rsqrt((1 - x) * (1 + x))


@derivative("acos", "arccos")
def acos(d, x):
    return -asin(d, x)


@derivative("atan", "arctan")
def atan(d, x):
    return d(x) / (x * x + 1)


@derivative("atan2", "arctan2")
def atan2(d, y, x):
    """At the origin zero."""
    square = x * x + y * y
    inverse = where(square.equals(0), 0, 1 / square)
    return d(y) * inverse * x - d(x) * inverse * y


@derivative("sinh")
def sinh(d, x):
    root = exp(absolute(x) * 0.5)
    return d(x) * (0.5 * root * root + 0.5 / root / root)


@derivative("cosh")
def cosh(d, x):
    root = exp(absolute(x) * 0.5)
    size = 0.5 * root * root - 0.5 / root / root
    return d(x) * where(x < 0, -size, size)


@derivative("asinh", "arcsinh")
def asinh(d, x):
    return d(x) * rsqrt(x * x + 1)


@derivative("acosh", "arccosh")
def acosh(d, x):
    return d(x) * rsqrt((absolute(x) - 1) * (absolute(x) + 1))


@derivative("atanh", "arctanh")
def atanh(d, x):
    return d(x) / ((1 - x) * (1 + x))


@derivative("hypot")
def hypot(d, x, y):
    return d(x) / d.result * x + d(y) / d.result * y


def _digamma(x: Formula) -> Formula:
    """The derivative of log(gamma(x)) in f64: a series of 1 / x from 10 on, and by recurrence and
    reflection below."""
    below = x < 0.5
    above = where(below, 1 - x, x)
    is_small = above < 10
    z = where(is_small, above + 10, above)
    square = 1 / (z * z)
    series = square * 0
    for factor in (1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12):
        series = series * square + factor
    result = log(z) - 0.5 / z - series * square
    small, steps = where(is_small, above, 1.0), 0
    for n in range(10):
        steps = 1 / (small + n) + steps
    result = where(is_small, result - steps, result)
    rest = x - floor(x + 0.5)
    reflected = result - math.pi * cos(rest * math.pi) / sin(rest * math.pi)
    pole = where(x.equals(0), -1 / x, math.nan)
    return where(below, where(rest.equals(0), pole, reflected), result)


@derivative("lgamma", "special_gammaln")
def lgamma(d, x):
    return d(x) * _digamma(x.cast("f64")).cast(x.node.dtype)


# Complex numbers, by their parts.

def _inverse(real: Formula, imag: Formula) -> tuple[Formula, Formula]:
    """The parts of z / |z|^2, of which no square overflows or vanishes."""
    size = absolute(real).at_least(absolute(imag))
    real, imag = real / size, imag / size
    below = (real * real + imag * imag) * size
    return real / below, imag / below


@derivative("complex.abs")
def complex_abs(d, real, imag):
    """The number over its size, and zero at zero."""
    is_infinite = absolute(real).at_least(absolute(imag)).equals(math.inf)
    size = where(d.result.equals(0), 1, where(is_infinite, math.nan, d.result))
    return d(real) * (real / size) + d(imag) * (imag / size)


@derivative("complex.angle")
def complex_angle(d, real, imag):
    """Zero at zero."""
    across, up = _inverse(real, imag)
    is_number = ~(real.equals(0) & imag.equals(0))
    return d(imag).where(is_number) * across - d(real).where(is_number) * up


@derivative("complex.log.real")
def complex_log_size(d, real, imag):
    """At zero, PyTorch divides the cotangent by zero."""
    across, up = _inverse(real, imag)
    is_zero = real.equals(0) & imag.equals(0)
    return d(real) * where(is_zero, math.inf, across) + d(imag).where(~is_zero) * up


@derivative("complex.log.imag")
def complex_log_angle(d, real, imag):
    across, up = _inverse(real, imag)
    is_zero = real.equals(0) & imag.equals(0)
    return d(imag) * where(is_zero, math.inf, across) - d(real).where(~is_zero) * up


@derivative("complex.polar")
def complex_polar(d, size, angle, other, is_imag):
    """By the size the number over its size, as in PyTorch: also where `size` is negative, and zero
    at zero."""
    length = sqrt(d.result * d.result + other * other)
    length = where(length.equals(0), 1, length)
    return d(size) * (d.result / length) + d(angle) * (other if is_imag else -other)


@derivative("copysign")
def copysign(d, x, sign_of):
    return d(x) * where(x.equals(0), 0, d.result / x)


@derivative("ldexp")
def ldexp(d, x, exponent):
    """PyTorch takes the power of two in the type of the exponent. An integer's is 0 for a negative
    exponent, and for one beyond its bits; the last bit is the sign."""
    power = d.result.number(2) ** exponent.cast(d.result.node.dtype)
    if exponent.node.dtype not in FLOATS:
        sign = {"i32": 31, "i64": 63}[exponent.node.dtype]
        power = where(exponent.equals(sign), -power, power).where((exponent > -1) & (exponent < sign + 1))
    return d(x) * power + d(exponent) * x * power * math.log(2)
