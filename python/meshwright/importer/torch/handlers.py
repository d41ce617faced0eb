# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Handlers of ATen operations: where they are registered, and what they may ask of a conversion."""
from collections.abc import Callable

from ..errors import Uncovered
from ..graph.dialect import FLOATS
from ..graph.nodes import Builder, Graph, Node
from ..graph.sizes import Size
from .export import Exported
from .values import element_type

#: Handlers by the names of operations, with or without overload.
HANDLERS: dict[str, Callable] = {}


def aten(*names):
    """Registers a handler `f(context, *args, **kwargs)` for ATen operations."""
    def register(function):
        for name in names:
            HANDLERS[name] = function
        return function
    return register


class Context:
    """A conversion, as handlers see it."""

    def __init__(self, exported: Exported):
        self.exported = exported
        self.graph = Graph()
        self.build = Builder()
        #: The node of the exported graph that is converted.
        self.fx = None
        #: The bucket of the program, of a module with sizes that change from call to call.
        self.bucket = None
        #: The shape of the result where a rule of such sizes gives it.
        self.known_shape = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return self.known_shape or self.shape_of(self.fx.meta["val"])

    def shape_of(self, value) -> tuple[int, ...]:
        """The shape of a tensor of the exported graph."""
        return self.bucket.shape(value.shape) if self.bucket else tuple(value.shape)

    def with_parts(self, shape, operands) -> tuple[int, ...]:
        """A shape of the exported graph, where operands tell how its merged sizes are merged."""
        def known(n):
            ways = {repr(m.parts): m for x in operands if isinstance(x, Node) for m in x.shape
                    if isinstance(m, Size) and m.parts and m.expr == n.expr}
            return next(iter(ways.values())) if len(ways) == 1 else n

        return tuple(known(n) if isinstance(n, Size) and not n.parts else n for n in shape)

    def shapes(self) -> list[int]:
        """The dimensions of all results."""
        value = self.fx.meta["val"]
        values = value if isinstance(value, (list, tuple)) else [value]
        return [n for v in values if v is not None for n in self.shape_of(v)]

    def with_shape(self, node: Node, shape, others) -> Node:
        """A value with sizes of the call in its shape. One that others read is left as it is."""
        if all(_same_size(a, b) for a, b in zip(node.shape, shape)):
            return node
        if any(isinstance(n, Size) and not n.parts for n in shape):
            raise Uncovered("a value in which it is not known how sizes that change from call to call are merged "
                            "is not covered: expected them apart")
        if not any(node is other for other in others):
            node.shape = tuple(shape)
            return node
        if node.op != "static":
            return self.build.make("cut", [node], shape, node.dtype)
        copy = self.build.static(node.form, tuple(shape), node.dtype)
        copy.attrs, copy.recipe, copy.thunk = dict(node.attrs), node.recipe, node.thunk
        return copy

    @property
    def dtype(self) -> str:
        """The element type of the result (of its parts, if that is complex)."""
        dtype = self.fx.meta["val"].dtype
        return element_type(dtype.to_real() if dtype.is_complex else dtype)

    def operand(self, x, dtype: str | None = None) -> Node:
        """A node for a tensor or a Python number, of the given element type."""
        if isinstance(x, Node):
            return self.build.cast(x, dtype or x.dtype)
        return self.build.scalar(x, dtype or ("f32" if isinstance(x, float) else "i64"))

    def stopped(self, x):
        """`x`, of which a loss does not depend on what `x` depends on, if gradients are wanted."""
        if self.exported.training and isinstance(x, Node) and x.dtype in FLOATS:
            return self.build.unary("stop_gradient", x)
        return x


def permutation_of(base: str, args, rank: int) -> list[int]:
    if base == "permute":
        return [d % rank for d in args[1]]
    order = list(range(rank))
    if base == "numpy_T" or base == "t" and rank == 2:
        return order[::-1]
    if base == "t":
        return order
    a, b = (-2, -1) if base == "mT" else args[1:3]
    order[a % rank], order[b % rank] = order[b % rank], order[a % rank]
    return order


def slice_of(args, x: Node) -> tuple[int, int, int, int]:
    """(dimension, start, limit, step) of aten.slice, within bounds."""
    dim, start, end, step = (list(args[1:]) + [0, None, None, 1][len(args) - 1:])
    dim = dim % x.rank
    size = x.shape[dim]
    start, end, step = slice(start, end, step).indices(size)
    return dim, start, max(start, end), step


def _same_size(a: int, b: int) -> bool:
    return isinstance(a, Size) == isinstance(b, Size) and a == b and \
        (not isinstance(a, Size) or a.expr == b.expr and a.parts == b.parts)
