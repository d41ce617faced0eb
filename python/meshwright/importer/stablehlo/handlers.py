# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Handlers of StableHLO's operations: where they are registered, and what they may ask of a walk."""
from collections.abc import Callable

import numpy as np

from ..graph import forms
from ..graph.forms import Dense
from ..graph.layouts import Factor
from ..graph.nodes import Builder, Graph, Node
from .attributes import Types
from .coordinates import CoordinateAnalysis

#: Handlers by the names of operations.
HANDLERS: dict[str, Callable] = {}


def handles(*names, dialect="stablehlo"):
    """Registers a handler `f(context, operation, *operands)`, which returns the result or all results."""
    def register(function):
        for name in names:
            HANDLERS[f"{dialect}.{name}"] = function
        return function
    return register


class Context:
    """A walk, as handlers see it."""

    def __init__(self, parts: bool):
        #: Whether rows of parameters may be parameters of their own.
        self.parts = parts
        self.graph = Graph()
        self.build = Builder()
        self.types = Types()
        #: The operation that is converted.
        self.op = None
        #: Broadcasts of known values, which are known values, too: what they stretch.
        self.narrow: dict[Node, Node] = {}
        #: The rows of parameters that are read one by one.
        self.layers: dict[Node, dict[int, Node]] = {}
        #: The meshes of the module, and the one of the computation per rank that is walked.
        self.meshes, self.manual = None, None
        #: Which axes shard which dimensions of values there.
        self.coordinates = CoordinateAnalysis()
        #: Whether zeros at the tail of a dimension are padding in that computation.
        self.pads = False
        #: Whether known values are computed by the program.
        self.unfolds = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first result."""
        return self.types.of(self.op.results[0])[0]

    @property
    def dtype(self) -> str:
        """The element type of the first result."""
        return self.types.of(self.op.results[0])[1]

    def known(self, *operands) -> list[np.ndarray] | None:
        """The values of operands that are known and small enough to write out."""
        if self.unfolds or any(o.form is None for o in operands):
            return None
        values = [forms.written_out(o.form, o.shape) for o in operands]
        return None if any(v is None for v in values) else values

    def constant(self, values: np.ndarray, shape, dtype: str) -> Node:
        """A known value. A dimension of size 1 of the array may stand for any size."""
        return self.build.static(forms.compress(Dense(forms.cast(values, dtype))), shape, dtype)

    def fold(self, name: str | None, run, *operands) -> Node | None:
        """The result of an elementwise operation on known values."""
        if self.unfolds or any(o.form is None for o in operands):
            return None
        dtype = self.dtype

        def compute(values):
            return Dense(forms.cast(run(*(values[i].values for i in range(len(operands)))), dtype))

        with np.errstate(all="ignore"):
            form = forms.fold_pointwise(compute, name, self.shape,
                                        {i: (o.form, o.shape) for i, o in enumerate(operands)})
        return None if form is None else self.build.static(form, self.shape, dtype)

    def index(self, x: Node) -> Node:
        """Integers as indices: i64. Known ones stay known."""
        if x.dtype != "i64" and x.form is not None and isinstance(x.form, Dense) and x.form.known:
            return self.build.static(Dense(forms.cast(x.form.values, "i64")), x.shape, "i64")
        return self.build.cast(x, "i64")

    def thin(self, x: Node) -> Node:
        """An operand of an elementwise operation without its broadcast: such operations stretch their
        operands by themselves."""
        inner = self.narrow.get(x) or (x.operands[0] if x.op == "broadcast" else None)
        if inner is not None and inner.rank in (0, x.rank):
            return inner
        if x.op == "static" and x.shape and getattr(x.form, "uniform", False):
            return self.build.static(Dense(x.form.values.reshape(())), (), x.dtype)
        return x

    def layer(self, x: Node, index: int) -> Node:
        """A row of a parameter, such as a layer of stacked weights: a part of the stored tensor."""
        rows = self.layers.setdefault(x, {})
        if index not in rows:
            rows[index] = self.build.make(
                "parameter", [], (1, *x.shape[1:]), x.dtype, **{**x.attrs, "offsets": [index, *[0] * (x.rank - 1)]})
            if (sharding := x.attrs.get("sharding")) is not None:
                rows[index].attrs["sharding"] = sharding._replace(dims=((Factor(1, 1, ()),), *sharding.dims[1:]))
        return rows[index]

    def full(self, x: Node) -> Node:
        """A result in the shape that the operation states."""
        return self.build.broadcast(x, self.shape)
