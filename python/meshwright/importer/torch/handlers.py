# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Handlers of ATen operations: where they are registered, and what they may ask of a conversion."""
from collections.abc import Callable

from ..graph.dialect import FLOATS
from ..graph.nodes import Builder, Graph, Node
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

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return tuple(self.fx.meta["val"].shape)

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
