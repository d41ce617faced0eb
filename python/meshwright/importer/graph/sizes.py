# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Sizes that a call decides: numbers that know how they follow from the sizes of its inputs.

A program of a bucket has static shapes. A dimension whose size a call decides has the bucket's size,
its capacity, and elements behind the call's size are padding. In the graph the size of such a
dimension is a `Size`: an int, the capacity, with an expression in the names of sizes. Arithmetic
keeps the expression, so a count of elements that becomes a number of the program is the call's, not
the bucket's.

    Size(24, tokens)                   # a dimension of 24, of which the first `tokens` are elements
    Size(4, batch) * Size(24, tokens)  # 96: both merged; its padding is between its elements
    Size(24, tokens) ** 0.5            # a `Quantity`, of which only the expression matters
"""
import functools
from numbers import Integral

import sympy

from ..errors import Uncovered


class Size(int):
    """A capacity, the expression of the size, and the sizes that were merged into it, major first.

    `parts` has one element where the elements come first and the padding last. It is empty where it
    is not known where the elements are.
    """
    expr: sympy.Expr
    parts: tuple[int, ...]

    def __new__(cls, capacity: int, expr, parts=None):
        self = super().__new__(cls, capacity)
        self.expr = sympy.sympify(expr)
        self.parts = (self,) if parts is None else tuple(parts)
        return self

    @property
    def is_merged(self) -> bool:
        return self.parts != (self,)

    @property
    def name(self) -> str:
        """The name of the size in the program."""
        return str(self.expr)

    def __deepcopy__(self, memo):
        return self

    def _with(self, other, capacity, function):
        if isinstance(other, (float, Quantity)):
            return quantity(function(self.expr, expression(other)))
        if not isinstance(other, Integral):
            return NotImplemented
        return size(capacity(int(self), int(other)), function(self.expr, expression(other)))

    def __add__(self, other):
        return self._with(other, lambda a, b: a + b, lambda a, b: a + b)

    def __radd__(self, other):
        return self._with(other, lambda a, b: b + a, lambda a, b: b + a)

    def __sub__(self, other):
        return self._with(other, lambda a, b: a - b, lambda a, b: a - b)

    def __rsub__(self, other):
        return self._with(other, lambda a, b: b - a, lambda a, b: b - a)

    def __mul__(self, other):
        return merged(self, other) if isinstance(other, Integral) else \
            self._with(other, None, lambda a, b: a * b)

    def __rmul__(self, other):
        return merged(other, self) if isinstance(other, Integral) else \
            self._with(other, None, lambda a, b: b * a)

    def __floordiv__(self, other):
        """Of a merged size without one of its parts the rest; else that of the capacity."""
        if isinstance(other, Integral) and int(other) and int(self) % int(other) == 0:
            rest = sympy.cancel(self.expr / expression(other))
            if rest.is_polynomial() and rest.free_symbols:
                return size(int(self) // int(other), rest, ())
            if rest.is_Integer:
                return int(rest)
        return int(self) // other

    def __truediv__(self, other):
        return quantity(self.expr / expression(other))

    def __rtruediv__(self, other):
        return quantity(expression(other) / self.expr)

    def __pow__(self, other, modulo=None):
        if isinstance(other, Integral) and other >= 0 and not isinstance(other, Size):
            return size(int(self) ** other, self.expr ** other, ())
        return quantity(self.expr ** expression(other))

    def __rpow__(self, other):
        return quantity(expression(other) ** self.expr)

    def __neg__(self):
        return size(-int(self), -self.expr)

    def __float__(self):
        # math functions take floats: the number of the bucket would be taken for that of the call.
        return float(int(self))


class Quantity:
    """A number that depends on sizes and is no size itself."""

    def __init__(self, expr):
        self.expr = expr

    def __repr__(self):
        return f"Quantity({self.expr})"

    def _with(self, other, function):
        if not isinstance(other, (Integral, float, Quantity)):
            return NotImplemented
        return quantity(function(self.expr, expression(other)))

    def __add__(self, other):
        return self._with(other, lambda a, b: a + b)

    __radd__ = __add__

    def __sub__(self, other):
        return self._with(other, lambda a, b: a - b)

    def __rsub__(self, other):
        return self._with(other, lambda a, b: b - a)

    def __mul__(self, other):
        return self._with(other, lambda a, b: a * b)

    __rmul__ = __mul__

    def __truediv__(self, other):
        return self._with(other, lambda a, b: a / b)

    def __rtruediv__(self, other):
        return self._with(other, lambda a, b: b / a)

    def __pow__(self, other):
        return self._with(other, lambda a, b: a ** b)

    def __rpow__(self, other):
        return self._with(other, lambda a, b: b ** a)

    def __neg__(self):
        return quantity(-self.expr)


def expression(value):
    """The expression of a number."""
    return value.expr if isinstance(value, (Size, Quantity)) else sympy.sympify(value)


def is_dynamic(value) -> bool:
    """Whether a call decides a number."""
    return isinstance(value, (Size, Quantity))


def size(capacity: int, expr, parts=None) -> int:
    """A size, or a plain number where no call changes it."""
    expr = sympy.sympify(expr)
    return Size(capacity, expr, parts) if expr.free_symbols else int(expr)


def quantity(expr):
    return Quantity(expr) if expr.free_symbols else float(expr)


def merged(major: int, minor: int) -> int:
    """The size of two dimensions as one."""
    if not isinstance(major, Size) and not isinstance(minor, Size):
        return major * minor
    if major == 1 or minor == 1:
        return minor if major == 1 else major
    parts = [p for n in (major, minor) for p in (n.parts if isinstance(n, Size) else (n,))]
    known = all(n.parts for n in (major, minor) if isinstance(n, Size))
    return size(int(major) * int(minor), expression(major) * expression(minor),
                parts if known else ())


def dynamic_dims(shape) -> list[int]:
    """The dimensions whose size a call decides."""
    return [d for d, n in enumerate(shape) if isinstance(n, Size)]


def names(shape) -> tuple[str, ...]:
    """The name of the size of each dimension, empty where no call changes it."""
    return tuple(n.name if isinstance(n, Size) else "" for n in shape)


def number_of(build, value, dtype: str):
    """A number that a call decides as a value of the program, of an element type. The program computes
    it as Python does: in integers, or in f64."""
    return build.cast(_computed(build, value.expr), dtype)


#: Functions of PyTorch's expressions of two arguments, and the ops that compute them.
_BINARY = {"FloorDiv": "div", "CleanDiv": "div", "Mod": "rem", "PythonMod": "rem", "Max": "maximum", "Min": "minimum"}
_UNARY = {"sqrt": "sqrt", "exp": "exp", "log": "log", "sin": "sin", "cos": "cos", "tanh": "tanh", "abs": "abs"}


def _computed(build, expr):
    """The value of an expression in sizes: of i64 where it is one of integers, else of f64."""
    kind = type(expr).__name__
    compute = lambda e: _computed(build, e)
    if expr.is_Symbol:
        return build.make("size", [], (), "i64", name=str(expr), expr=expr)
    if expr.is_Integer:
        return build.scalar(int(expr), "i64")
    if expr.is_number:
        return build.scalar(float(expr), "f64")
    if expr.is_Add:
        first, *rest = sorted(expr.args, key=lambda a: (a.is_number, a.could_extract_minus_sign(), str(a)))
        total = compute(first)
        for term in rest:
            minus = term.could_extract_minus_sign()
            total = _binary(build, "sub" if minus else "add", total, compute(-term if minus else term))
        return total
    if expr.is_Mul:
        above, below = expr.as_numer_denom()
        if below != 1:
            return _binary(build, "div", _real(build, compute(above)), compute(below))
        parts = sorted(expr.args, key=lambda a: (a.is_number, str(a)))
        return functools.reduce(lambda a, b: _binary(build, "mul", a, b), map(compute, parts))
    if expr.is_Pow:
        return _power(build, expr.base, expr.exp)
    if kind in _BINARY and len(expr.args) >= 2:
        return functools.reduce(lambda a, b: _binary(build, _BINARY[kind], a, b), map(compute, expr.args))
    name = kind.removeprefix("OpaqueUnaryFn_")
    if name in _UNARY:
        return build.unary(_UNARY[name], _real(build, compute(expr.args[0])))
    if kind in ("FloorToInt", "TruncToInt", "floor"):  # sizes are not negative
        return build.cast(build.unary("floor", _real(build, compute(expr.args[0]))), "i64")
    raise Uncovered(f"the number {expr} of sizes that change from call to call is not covered")


def _power(build, base, exponent):
    if exponent.is_Integer and 0 < exponent <= 8:
        return functools.reduce(lambda a, b: _binary(build, "mul", a, b),
                                [_computed(build, base)] * int(exponent))
    if exponent.could_extract_minus_sign():
        return _binary(build, "div", build.scalar(1.0, "f64"), _computed(build, base ** -exponent))
    number = _real(build, _computed(build, base))
    if exponent == sympy.Rational(1, 2) or exponent == 0.5:
        return build.unary("sqrt", number)
    return build.binary("pow", number, _real(build, _computed(build, exponent)))


def _real(build, x):
    return build.cast(x, "f64")


def _binary(build, op: str, a, b):
    if "f64" in (a.dtype, b.dtype):
        a, b = _real(build, a), _real(build, b)
    return build.binary(op, a, b)
