# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Floating-point formats in exact arithmetic: every operation is rounded once, by fractions."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np

BF16 = np.dtype(ml_dtypes.bfloat16)


class Format:
    def __init__(self, dtype, bits, low, high):
        """bits of precision; exponents of the least and the largest normal number."""
        self.dtype, self.precision, self.low, self.high = np.dtype(dtype), bits, low, high
        self.largest = (2 - Fraction(1, 2 ** (bits - 1))) * Fraction(2) ** high

    def round(self, value, mode="rn", zero=0.0):
        """A Fraction or a float that is no number, rounded. zero: the sign that an exact zero has."""
        if not isinstance(value, Fraction):
            return float(value)
        if value == 0:
            return zero
        sign, size = (-1, -value) if value < 0 else (1, value)
        exponent = max(size.numerator.bit_length() - size.denominator.bit_length(), self.low)
        while exponent > self.low and Fraction(2) ** exponent > size:
            exponent -= 1
        while Fraction(2) ** (exponent + 1) <= size:
            exponent += 1
        unit = Fraction(2) ** (exponent - self.precision + 1)
        whole, rest = divmod(size / unit, 1)
        up = {
            "rn": rest > Fraction(1, 2) or rest == Fraction(1, 2) and whole % 2 == 1,
            "rna": rest >= Fraction(1, 2),
            "rz": False,
            "rp": rest > 0 and sign > 0,
            "rm": rest > 0 and sign < 0,
        }[mode]
        rounded = (whole + up) * unit
        if rounded > self.largest:
            away = mode in ("rn", "rna") or mode == ("rp" if sign > 0 else "rm")
            return sign * (math.inf if away else float(self.largest))
        return math.copysign(float(rounded), sign)

    def tiny(self, value):
        return value != 0 and abs(value) < 2.0**self.low

    def values(self, extra=8, seed=0):
        """Zeros, the border of the subnormal numbers, infinities, a NaN and some others."""
        least, tiny = 2.0 ** (self.low - self.precision + 1), 2.0**self.low
        some = [0.0, 1.0, 1 + 2.0 ** (1 - self.precision), 1.5, 3.0, 2.0**10 + 1, tiny, tiny - least, least, float(self.largest), math.inf]
        rng = np.random.default_rng(seed)
        some += list(rng.standard_normal(extra) * 2.0 ** rng.integers(-8, 8, extra))
        both = np.array([s * v for v in some for s in (1, -1)] + [math.nan])
        with np.errstate(over="ignore"):
            return both.astype(self.dtype)


F16, B16 = Format(np.float16, 11, -14, 15), Format(BF16, 8, -126, 127)
F32, F64 = Format(np.float32, 24, -126, 127), Format(np.float64, 53, -1022, 1023)
TF32 = Format(np.float32, 11, -126, 127)
NAMES = {"f16": F16, "bf16": B16, "f32": F32, "f64": F64}


def finite(*values):
    return all(math.isfinite(v) for v in values)


def add(format, a, b, mode="rn"):
    if not finite(a, b):
        with np.errstate(invalid="ignore"):
            return float(np.float64(a) + np.float64(b))
    same = a == 0 and b == 0 and math.copysign(1, a) == math.copysign(1, b)
    return format.round(Fraction(a) + Fraction(b), mode, a if same else -0.0 if mode == "rm" else 0.0)


def multiply(format, a, b, mode="rn"):
    if not finite(a, b):
        with np.errstate(invalid="ignore"):
            return float(np.float64(a) * np.float64(b))
    return format.round(Fraction(a) * Fraction(b), mode, math.copysign(0.0, math.copysign(1, a) * math.copysign(1, b)))


def fma(format, a, b, c, mode="rn"):
    if not finite(a, b, c):
        with np.errstate(invalid="ignore"):
            if not finite(a, b):
                return float(np.float64(a) * np.float64(b) + np.float64(c))
            return c
    sign = math.copysign(1, a) * math.copysign(1, b)
    same = a * b == 0 and (a == 0 or b == 0) and c == 0 and math.copysign(1, c) == sign
    return format.round(Fraction(a) * Fraction(b) + Fraction(c), mode, math.copysign(0.0, sign) if same else -0.0 if mode == "rm" else 0.0)


def divide(format, a, b, mode="rn"):
    sign = math.copysign(1, a) * math.copysign(1, b)
    if not finite(a, b) or b == 0:
        if math.isnan(a) or math.isnan(b) or (math.isinf(a) and math.isinf(b)) or (a == 0 and b == 0):
            return math.nan
        return sign * math.inf if math.isinf(a) or b == 0 else sign * 0.0
    return format.round(Fraction(a) / Fraction(b), mode, math.copysign(0.0, sign))


def root(format, a, mode="rn"):
    if math.isnan(a) or a < 0:
        return math.nan
    if a == 0 or math.isinf(a):
        return a
    # Integer square root with 200 bits behind the point, made inexact by a last bit.
    f = Fraction(a)
    scaled = f.numerator * f.denominator << 2400
    whole = math.isqrt(scaled)
    exact = whole * whole == scaled
    return format.round(Fraction(2 * whole + (not exact), f.denominator << 1201), mode)
