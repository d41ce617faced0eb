# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Special points of powers, digits and signs of numbers, of angles, and of complex numbers."""
import math

import torch
from derivative_points import Case, generic, grid
from points_elementwise import of_one, of_two

#: PyTorch has complex numbers of f32 and f64 alone.
_WIDE = ("f32", "f64")

_EXPONENTS = [-70, -2, -1, 0, 1, 5, 30, 31, 32, 62, 63, 64]

POWERS = [
    *(of_one(f"pow {p}", lambda x, p=p: torch.pow(x, p))
      for p in (0, 0.5, 1, 2, 3, 4, 7, -1, -2, -3, 1.5, 0.3, 12)),
    Case("pow -0.5", lambda x: torch.pow(x.abs(), -0.5), (generic(),)),
    of_two("pow", torch.pow),
    *(of_one(f"{b} to a power", lambda x, b=b: torch.pow(b, x)) for b in (0, 2, 0.5, 1)),
]

DIGITS = [
    of_one("round", torch.round), of_one("round, decimals", lambda x: torch.round(x, decimals=1)),
    # NaN has no sign to speak of.
    Case("copysign", torch.copysign, grid(math.inf, -math.inf, extreme=False)),
    # PyTorch's derivative takes the power of two in the type of the exponent.
    *(Case(f"ldexp, {dtype}", lambda x, e=torch.tensor(_EXPONENTS, dtype=dtype): torch.ldexp(x, e),
           (torch.linspace(-2, 2, len(_EXPONENTS)),), _WIDE) for dtype in (torch.int32, torch.int64)),
    Case("ldexp", torch.ldexp, (torch.linspace(-2, 2, 8), torch.tensor([-3.0, -1, 0, 0.5, 1, 2, 10, 31]))),
    of_one("copysign of a number", lambda x: torch.copysign(x, -1.0)),
    of_two("fmax", torch.fmax), of_two("fmin", torch.fmin),
]

ANGLES = [
    of_one("sin", torch.sin), of_one("cos", torch.cos), of_one("tan", torch.tan),
    of_one("sinc", torch.sinc),
    *(of_one(name, getattr(torch, name)) for name in
      ("asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "lgamma")),
    of_one("mvlgamma", lambda x: torch.mvlgamma(x.abs() + 1, 2)),
    of_two("atan2", torch.atan2), of_two("hypot", torch.hypot),
    of_one("deg2rad", torch.deg2rad), of_one("rad2deg", torch.rad2deg),
]


def of_complex(name, function, *more, extreme=False):
    """Both parts of a number, and of the result. PyTorch does not agree with itself on products of
    infinite parts."""
    def parts(a, b):
        z = function(torch.complex(a, b))
        return torch.view_as_real(z.resolve_conj()) if z.is_complex() else z
    return Case(f"complex {name}", parts, grid(*more, extreme=extreme), _WIDE)


#: Their squares overflow in f32, or vanish.
_LARGE = (1e20, -1e30, 1e-30)

COMPLEX = [
    of_complex("abs", torch.abs, *_LARGE, extreme=True), of_complex("angle", torch.angle, *_LARGE),
    of_complex("log", torch.log, *_LARGE),
    *(of_complex(name, getattr(torch, name)) for name in ("square", "reciprocal", "exp")),
    of_complex("real", torch.real), of_complex("imag", torch.imag), of_complex("conj", torch.conj),
    of_complex("cube", lambda z: z ** 3), of_complex("inverse square", lambda z: z ** -2),
    of_complex("quotient", lambda z: (1 - 2j) / z),
    of_complex("quotient of numbers", lambda z: z / (z + 0.3j)),
    of_complex("product", lambda z: (1 - 2j) * z),
    of_complex("sum", lambda z: torch.add(z, z.conj(), alpha=2)),
    of_complex("difference", lambda z: z - z * z), of_complex("rsub", lambda z: torch.rsub(z, 2.0)),
    of_complex("cast", lambda z: z.to(torch.complex128)),
    Case("polar", lambda a, b: torch.view_as_real(torch.polar(a, b)), grid(extreme=False), _WIDE),
]
