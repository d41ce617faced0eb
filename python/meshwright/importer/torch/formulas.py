# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Expressions of the importer's nodes, written as those of numbers."""
import math

from ..graph.nodes import Builder, Node

#: Two operands of different types meet in the type that comes later.
_WIDTHS = ("i1", "i32", "i64", "f16", "bf16", "f32", "f64")


class Formula:
    """A node that arithmetic applies to. Numbers take the type of the other operand."""

    def __init__(self, build: Builder, node: Node, tangent: Node | None = None):
        self.build, self.node = build, node
        #: The node that the derivative is by; None for values that have none.
        self.tangent = tangent

    @property
    def shape(self):
        return self.node.shape

    @property
    def rank(self):
        return self.node.rank

    def of(self, node: Node) -> "Formula":
        return Formula(self.build, node)

    def number(self, value) -> "Formula":
        return self.of(self.build.scalar(value, self.node.dtype))

    def cast(self, dtype: str) -> "Formula":
        return self.of(self.build.cast(self.node, dtype))

    def unary(self, op: str) -> "Formula":
        return self.of(self.build.unary(op, self.node))

    def _agreed(self, other) -> tuple[Node, Node]:
        if not isinstance(other, Formula):
            other = self.number(other)
        a, b = self.node, other.node
        wide = max(a.dtype, b.dtype, key=_WIDTHS.index)
        return self.build.cast(a, wide), self.build.cast(b, wide)

    def _binary(self, op: str, other, swap=False) -> "Formula":
        a, b = self._agreed(other)
        return self.of(self.build.binary(op, b, a) if swap else self.build.binary(op, a, b))

    def _compare(self, kind: str, other) -> "Formula":
        return self.of(self.build.compare(kind, *self._agreed(other)))

    def __add__(self, other): return self._binary("add", other)
    def __radd__(self, other): return self._binary("add", other, True)
    def __sub__(self, other): return self._binary("sub", other)
    def __rsub__(self, other): return self._binary("sub", other, True)
    def __mul__(self, other): return self._binary("mul", other)
    def __rmul__(self, other): return self._binary("mul", other, True)
    def __truediv__(self, other): return self._binary("div", other)
    def __rtruediv__(self, other): return self._binary("div", other, True)
    def __pow__(self, other): return self._binary("pow", other)
    def __rpow__(self, other): return self._binary("pow", other, True)
    def __neg__(self): return self.unary("neg")
    def __lt__(self, other): return self._compare("lt", other)
    def __le__(self, other): return self._compare("le", other)
    def __gt__(self, other): return self._compare("gt", other)
    def __ge__(self, other): return self._compare("ge", other)
    def equals(self, other): return self._compare("eq", other)
    def differs(self, other): return self._compare("ne", other)
    def __and__(self, other): return self._binary("and", other)
    def __or__(self, other): return self._binary("or", other)
    def __invert__(self): return self.unary("not")

    def where(self, condition: "Formula", other=0) -> "Formula":
        """This value where the condition holds, or else the other."""
        a, b = self._agreed(other)
        return self.of(self.build.select(condition.node, a, b))

    def is_nan(self):
        return self.differs(self)

    def is_finite(self):
        return absolute(self) < math.inf

    def at_least(self, bound):
        return self._binary("maximum", bound)

    def sum(self, dims=None, keep=False) -> "Formula":
        return self._reduced("sum", dims, keep)

    def mean(self, dims=None, keep=False) -> "Formula":
        return self._reduced("mean", dims, keep)

    def maximum(self, dims=None, keep=False) -> "Formula":
        return self._reduced("max", dims, keep)

    def minimum(self, dims=None, keep=False) -> "Formula":
        return self._reduced("min", dims, keep)

    def _reduced(self, kind, dims, keep) -> "Formula":
        dims = range(self.node.rank) if dims is None else dims
        return self.of(self.build.reduce(kind, self.node, dims, keep)) if len(dims) else self

    def reshape(self, shape) -> "Formula":
        return self.of(self.build.reshape(self.node, shape))

    def kept(self, shape, dims) -> "Formula":
        """A reduction of a value of this shape, with the reduced dimensions of size 1."""
        return self.reshape([1 if d in dims else n for d, n in enumerate(shape)])

    def numbers(self, dim: int) -> "Formula":
        """The position of each element along a dimension."""
        own = [n if d == dim else 1 for d, n in enumerate(self.shape)]
        return self.of(self.build.make("iota", [], own, "i64", dim=dim))


def absolute(x: Formula): return x.unary("abs")
def exp(x: Formula): return x.unary("exp")
def log(x: Formula): return x.unary("log")
def sqrt(x: Formula): return x.unary("sqrt")
def rsqrt(x: Formula): return x.unary("rsqrt")
def sin(x: Formula): return x.unary("sin")
def cos(x: Formula): return x.unary("cos")
def tanh(x: Formula): return x.unary("tanh")
def sigmoid(x: Formula): return x.unary("sigmoid")


def where(condition: Formula, a, b) -> Formula:
    """`a` or `b`, of which one may be a number."""
    if isinstance(a, Formula):
        return a.where(condition, b)
    return b.where(~condition, a)


def floor(x: Formula): return x.unary("floor")


def log1p(x: Formula) -> Formula:
    """log(u) x / (u - 1), where u = 1 + x: the quotient corrects what the sum rounds."""
    u = x + 1
    rest = u - 1
    exact = rest.equals(x) | rest.equals(0)
    return where(rest.equals(0), x, log(u) * where(exact | ~x.is_finite(), 1, x / rest))


def sign(x: Formula) -> Formula:
    """1, -1, or 0 at zero and NaN."""
    return x.number(1).where(x > 0, x.number(-1).where(x < 0, 0))
