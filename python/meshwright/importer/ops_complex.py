# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Complex numbers, as pairs of real ones: some models write rotary embeddings with them."""
from dataclasses import dataclass

import torch

from .convert import HANDLERS, Convert
from .errors import Uncovered
from .forms import Dense
from .graph import TORCH_DTYPES, Node
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

OPERATIONS = _VIEWS | {"view_as_complex", "view_as_real", "polar", "complex", "real", "imag", "conj",
                       "_conj", "conj_physical", "_conj_physical", "_to_copy", "to", "add", "sub",
                       "mul", "abs", "_fft_c2c", "_fft_r2c", "_fft_c2r"}


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
    if base in ("_to_copy", "to"):
        if isinstance(args[0], Complex):
            return Complex(*(build.cast(p, c.dtype) for p in (args[0].real, args[0].imag)))
        return Complex(build.cast(args[0], c.dtype),
                       build.broadcast(build.scalar(0, c.dtype), args[0].shape))
    if base == "abs":
        squares = [build.binary("mul", p, p) for p in (args[0].real, args[0].imag)]
        return build.unary("sqrt", build.binary("add", *squares))
    if base.startswith("_fft"):
        return _fourier(c, base, *args)
    if base in ("add", "sub", "mul"):
        return _arithmetic(c, base, *args[:2])
    raise Uncovered(f"operation aten.{name} on complex numbers is not covered")


def _fourier(c: Convert, base: str, x, dims, normalization, last):
    """Fourier transforms, as products with matrices of roots of one.

    `last` is whether the transform is forward (c2c), whether it gives the first half of the last
    dimension (r2c), or the size of the last dimension, of which `x` has the first half (c2r).
    """
    forward = base == "_fft_r2c" or base == "_fft_c2c" and last
    if isinstance(x, Node):
        x = Complex(x, None)
    rank = x.real.rank
    dims, count = [d % rank for d in dims], 1
    for dim in dims:
        is_last = dim == dims[-1]
        size = last if base == "_fft_c2r" and is_last else x.real.shape[dim]
        count *= size
        x = _transform(c, x, dim, size, forward, half=base == "_fft_r2c" and last and is_last,
                       real=base == "_fft_c2r" and is_last)
    scale = (1, count ** -0.5, 1 / count)[normalization]
    if scale != 1:
        factor = c.build.scalar(scale, x.real.dtype)
        x = Complex(*(None if p is None else c.build.binary("mul", p, factor)
                      for p in (x.real, x.imag)))
    return x.real if base == "_fft_c2r" else x


def _transform(c: Convert, x: Complex, dim: int, size: int, forward: bool, half: bool, real: bool):
    """Along one dimension. `half`: the first half of the result; `real`: only its real part, of
    which `x` is the first half, and the other half is conjugate."""
    given, build = x.real.shape[dim], c.build
    inner, outer = torch.arange(given), torch.arange(size // 2 + 1 if half else size)
    angle = (inner[:, None] * outer % size).double() * (2 * torch.pi / size)
    weight = torch.ones(given, 1, dtype=torch.float64)
    if real:
        weight[1:(size + 1) // 2] = 2
    matrix = lambda values: build.static(Dense((values * weight).to(TORCH_DTYPES[x.real.dtype])),
                                         angle.shape, x.real.dtype)
    cos, sin = matrix(angle.cos()), matrix(angle.sin() * (-1 if forward else 1))
    order = [d for d in range(x.real.rank) if d != dim] + [dim]
    back = [order.index(d) for d in range(x.real.rank)]

    def product(part, table):
        return None if part is None else build.transpose(
            build.matmul(build.transpose(part, order), table), back)

    def combine(op, a, b):
        return a if b is None else build.binary(op, a, b)

    result = combine("sub", product(x.real, cos), product(x.imag, sin))
    return Complex(result, None if real else
                   combine("add", product(x.real, sin), product(x.imag, cos)))


def _arithmetic(c: Convert, op: str, a, b):
    build, dtype = c.build, c.dtype
    if op == "mul" and not all(isinstance(x, (Complex, complex)) for x in (a, b)):
        z, factor = (a, b) if isinstance(a, Complex) else (b, a)
        factor = c.operand(factor, dtype)
        return Complex(build.binary("mul", z.real, factor), build.binary("mul", z.imag, factor))

    def parts(x):
        if not isinstance(x, (Complex, complex)):
            x = Complex(x, 0.0)
        return Complex(*(build.broadcast(c.operand(p, dtype), c.shape) for p in (x.real, x.imag)))

    a, b = parts(a), parts(b)
    if op != "mul":
        return Complex(build.binary(op, a.real, b.real), build.binary(op, a.imag, b.imag))
    mul = lambda x, y: build.binary("mul", x, y)
    return Complex(build.binary("sub", mul(a.real, b.real), mul(a.imag, b.imag)),
                   build.binary("add", mul(a.real, b.imag), mul(a.imag, b.real)))
