# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Complex numbers, as pairs of real ones: some models write rotary embeddings with them."""
from dataclasses import dataclass

import torch

from .convert import HANDLERS, Convert
from .errors import Uncovered
from .forms import Dense
from .graph import Node
from .ops_shape import select_index


@dataclass
class Complex:
    real: Node
    imag: Node


def constant(c: Convert, tensor: torch.Tensor) -> Complex:
    parts = (tensor.real, tensor.imag) if tensor.device.type != "meta" else \
        (torch.empty(tensor.shape, device="meta"),) * 2
    dtype = "f64" if tensor.dtype == torch.complex128 else "f32"
    return Complex(*(c.build.static(Dense(p.contiguous()), tensor.shape, dtype) for p in parts))


_VIEWS = {"view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "flatten", "unflatten",
          "permute", "transpose", "t", "mT", "expand", "slice", "select", "clone", "contiguous",
          "alias", "detach", "lift_fresh_copy", "index_select", "index", "narrow", "movedim"}


def convert(c: Convert, name: str, args, kwargs):
    base = name.split(".")[0]
    if base in _VIEWS:
        handler = HANDLERS.get(name) or HANDLERS[base]
        return Complex(*(handler(c, p, *args[1:], **kwargs) for p in (args[0].real, args[0].imag)))
    build = c.build
    if base == "view_as_complex":
        return Complex(*(select_index(c, args[0], -1, i) for i in (0, 1)))
    if base == "view_as_real":
        z = args[0]
        return build.concat([build.reshape(p, (*p.shape, 1)) for p in (z.real, z.imag)],
                            z.real.rank)
    if base == "polar":
        size, angle = args
        return Complex(build.binary("mul", size, build.unary("cos", angle)),
                       build.binary("mul", size, build.unary("sin", angle)))
    if base == "complex":
        return Complex(*args)
    if base in ("real", "imag"):
        return getattr(args[0], base)
    if base in ("conj", "_conj", "conj_physical", "_conj_physical"):
        return Complex(args[0].real, build.unary("neg", args[0].imag))
    if base in ("_to_copy", "to") and isinstance(args[0], Complex):
        return args[0]
    if base in ("add", "sub", "mul"):
        return _arithmetic(c, base, *args[:2])
    raise Uncovered(f"operation aten.{name} on complex numbers is not covered")


def _arithmetic(c: Convert, op: str, a, b):
    build, dtype = c.build, c.dtype
    if op == "mul" and not (isinstance(a, Complex) and isinstance(b, Complex)):
        z, factor = (a, b) if isinstance(a, Complex) else (b, a)
        factor = c.operand(factor, dtype)
        return Complex(build.binary("mul", z.real, factor), build.binary("mul", z.imag, factor))
    if not isinstance(a, Complex) or not isinstance(b, Complex):
        raise Uncovered(f"{op} of a complex and a real number is not covered")
    if op != "mul":
        return Complex(build.binary(op, a.real, b.real), build.binary(op, a.imag, b.imag))
    mul = lambda x, y: build.binary("mul", x, y)
    return Complex(build.binary("sub", mul(a.real, b.real), mul(a.imag, b.imag)),
                   build.binary("add", mul(a.real, b.imag), mul(a.imag, b.real)))
