# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Complex numbers, as pairs of real ones: rotary embeddings and Fourier transforms have them."""
import math
from dataclasses import dataclass

import torch

from ..errors import Uncovered
from ..graph.nodes import Node
from ..graph.sizes import dynamic_dims
from .derivatives import with_derivative
from .handlers import HANDLERS, Context
from .ops_layers import product
from .ops_shape import select_index
from .ops_trigonometric import atan2, hypot
from .size_rules import rule
from .values import TORCH_DTYPES, dense


@dataclass
class Complex:
    real: Node
    imag: Node


def constant(c: Context, tensor: torch.Tensor) -> Complex:
    parts = (dense(tensor.real), dense(tensor.imag)) if tensor.device.type != "meta" else \
        (dense(torch.empty(tensor.shape, device="meta")),) * 2
    dtype = "f64" if tensor.dtype == torch.complex128 else "f32"
    return Complex(*(c.build.static(part, tensor.shape, dtype) for part in parts))


#: Operations on each part alone, and which of their arguments are complex (or real) values.
_PARTWISE = dict.fromkeys(
    ("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "flatten", "unflatten", "permute",
     "transpose", "t", "mT", "numpy_T", "expand", "expand_as", "broadcast_to", "slice", "select",
     "clone", "contiguous", "alias", "detach", "lift_fresh_copy", "lift_fresh", "index_select",
     "index", "gather", "narrow", "movedim", "roll", "flip", "repeat", "repeat_interleave", "tile",
     "split", "split_with_sizes", "chunk", "tensor_split", "unbind", "cat", "concat", "stack",
     "triu", "tril", "diagonal", "sum", "mean", "cumsum", "neg", "zeros_like", "new_zeros",
     "unfold", "diff", "as_strided"), (0,))
_PARTWISE |= {"where": (1, 2), "slice_scatter": (0, 1), "select_scatter": (0, 1), "copy": (0, 1),
              "fill": (1,), "masked_fill": (0, 2), "constant_pad_nd": (0, 2), "index_put": (0, 2),
              "index_copy": (0, 3), "index_add": (0, 3)}


def convert(c: Context, name: str, args, kwargs):
    base = name.split(".")[0]
    if base in _PARTWISE:
        return _by_parts(c, name, args, kwargs)
    if base not in _OPERATIONS:
        needs = c.fx.meta.get("needs")
        raise Uncovered(f"operation aten.{name} on complex numbers is not covered" +
                        (f": it needs {needs}" if needs else ""))
    return _OPERATIONS[base](c, *args, **kwargs)


def covers(base: str) -> bool:
    return base in _PARTWISE or base in _OPERATIONS


def _by_parts(c: Context, name: str, args, kwargs):
    handler = HANDLERS.get(name) or HANDLERS[name.split(".")[0]]
    values = _PARTWISE[name.split(".")[0]]

    def part(x, attribute):
        if isinstance(x, (list, tuple)):
            return [part(y, attribute) for y in x]
        if isinstance(x, (Complex, complex)):
            return getattr(x, attribute)
        if attribute == "real" or x is None:
            return x
        return c.build.broadcast(c.build.scalar(0, x.dtype), x.shape) if isinstance(x, Node) else 0

    def run(attribute):
        own = [part(a, attribute) if i in values else a for i, a in enumerate(args)]
        if c.bucket is not None:
            read = rule(c, c.fx, own, kwargs)
            result = read.make() if read.make else handler(c, *read.args, **kwargs)
        else:
            result = handler(c, *own, **kwargs)
        return _shaped(c, result) if isinstance(result, Node) else result

    real, imag = run("real"), run("imag")
    return Complex(real, imag) if isinstance(real, Node) else \
        [Complex(*parts) for parts in zip(real, imag)]


def _shaped(c: Context, x: Node) -> Node:
    return c.build.broadcast(c.build.cast(x, c.dtype), c.shape)


def _operand(c: Context, x) -> Complex:
    """A tensor or a number as a complex one, in the result's type."""
    if not isinstance(x, (Complex, complex)):
        x = Complex(x, 0.0)
    return Complex(c.operand(x.real, c.dtype), c.operand(x.imag, c.dtype))


def _is_real(x) -> bool:
    return not isinstance(x, (Complex, complex))


def _sum(c: Context, a, b, *, alpha=1, op="add"):
    if alpha != 1:
        b = _product(c, b, alpha)
    a, b = _operand(c, a), _operand(c, b)
    return Complex(*(_shaped(c, c.build.binary(op, *parts))
                     for parts in ((a.real, b.real), (a.imag, b.imag))))


def _multiply(c: Context, combine, a, b):
    """By four real products; by two, where one factor is real."""
    if _is_real(a) or _is_real(b):
        real, z = (a, b) if _is_real(a) else (b, a)
        real, z = c.operand(real, c.dtype), _operand(c, z)
        ordered = (lambda p: (real, p)) if _is_real(a) else (lambda p: (p, real))
        return Complex(combine(*ordered(z.real)), combine(*ordered(z.imag)))
    a, b = _operand(c, a), _operand(c, b)
    return Complex(
        c.build.binary("sub", combine(a.real, b.real), combine(a.imag, b.imag)),
        c.build.binary("add", combine(a.real, b.imag), combine(a.imag, b.real)))


def _product(c: Context, a, b):
    z = _multiply(c, lambda x, y: c.build.binary("mul", x, y), a, b)
    shape = c.shape
    return Complex(*(c.build.broadcast(p, shape) for p in (z.real, z.imag)))


def _matmul(c: Context, a, b):
    z = _multiply(c, lambda x, y: product(c, x, y), a, b)
    return Complex(_shaped(c, z.real), _shaped(c, z.imag))


def _quotient(c: Context, a, b, **options):
    if options.get("rounding_mode") is not None:
        raise Uncovered("a rounded division of complex numbers is not covered")
    if _is_real(b):
        z, b = _operand(c, a), c.operand(b, c.dtype)
        return Complex(*(_shaped(c, c.build.binary("div", p, b)) for p in (z.real, z.imag)))
    b, binary = _operand(c, b), c.build.binary
    # Both parts over the larger one: the square neither overflows nor vanishes.
    size = binary("maximum", *(c.build.unary("abs", p) for p in (b.real, b.imag)))
    small = Complex(binary("div", b.real, size), binary("div", b.imag, size))
    square = binary("add", *(binary("mul", p, p) for p in (small.real, small.imag)))
    below = binary("mul", square, size)
    inverse = Complex(binary("div", small.real, below),
                      c.build.unary("neg", binary("div", small.imag, below)))
    return _product(c, a, inverse)


def _power(c: Context, z, exponent):
    if not isinstance(exponent, (int, float)) or exponent != int(exponent) or \
            not 1 <= abs(exponent) <= 8:
        raise Uncovered(f"a power {exponent} of complex numbers is not covered; expected an "
                        "integer from -8 to 8 other than 0")
    result = z
    for _ in range(int(abs(exponent)) - 1):
        result = _product(c, result, z)
    return result if exponent > 0 else _reciprocal(c, result)


def _polar(c: Context, size, angle):
    return Complex(c.build.binary("mul", size, c.build.unary("cos", angle)),
                   c.build.binary("mul", size, c.build.unary("sin", angle)))


def _of_polar(c: Context, size, angle):
    z = _polar(c, size, angle)
    return Complex(with_derivative(c, z.real, "complex.polar", (size, angle, z.imag, False), {}),
                   with_derivative(c, z.imag, "complex.polar", (size, angle, z.real, True), {}))


def _view_as_real(c: Context, z):
    return c.build.concat([c.build.reshape(p, (*p.shape, 1)) for p in (z.real, z.imag)],
                          z.real.rank)


def _to_copy(c: Context, x, *args, **kwargs):
    wanted = c.fx.meta["val"].dtype
    if not wanted.is_complex:
        return c.build.cast(x.real, c.dtype)
    z = _operand(c, x)
    return Complex(z.real, c.build.broadcast(z.imag, z.real.shape))


def _by_its_parts(c: Context, y: Node, name: str, z: Complex) -> Node:
    """A real function of a complex number, with its derivative."""
    return with_derivative(c, c.build.cast(y, c.dtype), name, (z.real, z.imag), {})


def _size(c: Context, z):
    return _by_its_parts(c, hypot(c, z.real, z.imag), "complex.abs", z)


def _logarithm(c: Context, z):
    size = c.build.unary("log", hypot(c, z.real, z.imag))
    return Complex(_by_its_parts(c, size, "complex.log.real", z),
                   _by_its_parts(c, atan2(c, z.imag, z.real), "complex.log.imag", z))


def _reciprocal(c: Context, z):
    """At zero infinity, and NaN as its imaginary part."""
    is_zero = c.build.binary("and", *(c.build.compare("eq", p, c.build.scalar(0, p.dtype))
                                      for p in (z.real, z.imag)))
    inverse = _quotient(c, 1.0, z)
    real = c.build.select(is_zero, c.build.scalar(math.inf, z.real.dtype), inverse.real)
    return Complex(real, inverse.imag)


def _angle(c: Context, z):
    return _by_its_parts(c, atan2(c, z.imag, z.real), "complex.angle", z)


def _make(c: Context, *args, **kwargs):
    if c.bucket is not None and dynamic_dims(c.shape):
        raise Uncovered("complex constants with sizes that change from call to call are not covered")
    value = c.fx.target(*args, **{k: v for k, v in kwargs.items() if k != "device"}, device="cpu")
    return constant(c, value)


_OPERATIONS = {
    "add": _sum, "sub": lambda c, a, b, alpha=1: _sum(c, a, b, alpha=alpha, op="sub"),
    "rsub": lambda c, a, b, alpha=1: _sum(c, b, a, alpha=alpha, op="sub"),
    "mul": _product, "div": _quotient, "pow": _power, "matmul": _matmul, "mm": _matmul,
    "bmm": _matmul, "mv": _matmul, "dot": _matmul, "square": lambda c, z: _product(c, z, z),
    "reciprocal": _reciprocal, "polar": _of_polar,
    "exp": lambda c, z: _polar(c, c.build.unary("exp", z.real), z.imag), "log": _logarithm,
    "abs": _size, "angle": _angle, "complex": lambda c, x, y: Complex(x, y),
    "real": lambda c, z: z.real, "imag": lambda c, z: z.imag, "view_as_real": _view_as_real,
    "view_as_complex": lambda c, x: Complex(*(select_index(c, x, -1, i) for i in (0, 1))),
    "_to_copy": _to_copy, "to": _to_copy, "scalar_tensor": _make, "full": _make,
    "zeros": _make, "ones": _make,
}
for _name in ("conj", "_conj", "conj_physical", "_conj_physical"):
    _OPERATIONS[_name] = lambda c, z: Complex(z.real, c.build.unary("neg", z.imag))
_OPERATIONS["resolve_conj"] = _OPERATIONS["resolve_neg"] = lambda c, z: z
for _name in ("_fft_c2c", "_fft_r2c", "_fft_c2r"):
    _OPERATIONS[_name] = lambda c, x, *rest, _name=_name: _fourier(c, _name, x, *rest)


def _fourier(c: Context, base: str, x, dims, normalization, last):
    """Fourier transforms, as products with matrices of roots of one.

    `last` is whether the transform is forward (c2c), whether it gives the first half of the last
    dimension (r2c), or the size of the last dimension, of which `x` has the first half (c2r).
    """
    forward = base == "_fft_r2c" or base == "_fft_c2c" and last
    if isinstance(x, Node):
        x = Complex(x, None)
    rank = x.real.rank
    dims, count = [d % rank for d in dims], 1
    if dynamic_dims([x.real.shape[d] for d in dims]):
        raise Uncovered("a Fourier transform along a size that changes from call to call is not covered")
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


def _transform(c: Context, x: Complex, dim: int, size: int, forward: bool, half: bool, real: bool):
    """Along one dimension. `half`: the first half of the result; `real`: only its real part, of
    which `x` is the first half, and the other half is conjugate."""
    given, build = x.real.shape[dim], c.build
    inner, outer = torch.arange(given), torch.arange(size // 2 + 1 if half else size)
    angle = (inner[:, None] * outer % size).double() * (2 * torch.pi / size)
    weight = torch.ones(given, 1, dtype=torch.float64)
    if real:
        weight[1:(size + 1) // 2] = 2
    matrix = lambda values: build.static(dense((values * weight).to(TORCH_DTYPES[x.real.dtype])),
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
