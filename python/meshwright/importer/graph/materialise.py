# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Turns values known at import time into operations: constants, tables, index arithmetic."""
import numpy as np

from .dialect import BINARY, FLOATS
from .forms import Dense, Diagonal, cast, greatest, largest, rounded
from .nodes import Builder, Graph, Node
from .sizes import names

# Constants above _INLINE elements are parameters of the program, kept with the weights. Constants
# above _KEPT elements, such as tables that grow with the sequence, are computed by the program if
# possible.
_INLINE, _KEPT = 16, 1024


def representable(value: float, dtype: str) -> bool:
    return rounded(value, dtype) == value or value != value or abs(value) > greatest(dtype)


def widen_scalars(graph: Graph):
    """PyTorch applies a Python number to bf16 and f16 tensors in f32, and rounds the result."""
    build = Builder()

    def pattern(node: Node):
        if node.op not in BINARY or node.dtype not in ("bf16", "f16"):
            return None
        exact = [o.attrs.get("exact") if o.op == "static" else None for o in node.operands]
        if all(e is None or representable(e, node.dtype) for e in exact):
            return None
        build.at(node)
        wide = [build.cast(o, "f32") if e is None else build.scalar(e, "f32")
                for o, e in zip(node.operands, exact)]
        return build.cast(build.binary(node.op, *wide), node.dtype)

    graph.rewrite(pattern)


def unfold(graph: Graph):
    """Puts the operations back that compute large tables."""
    done: dict[int, Node] = {}
    keep: list[Node] = []

    def unfolded(node: Node) -> Node:
        if node.op != "static" or node.recipe is None or isinstance(node.form, Diagonal) or \
                node.form.values.size <= _KEPT:
            return node
        if id(node) not in done:
            keep.append(node)
            made = node.recipe() or node
            done[id(node)] = made
            if made is not node:
                pending = [made]
                while pending:
                    inner = pending.pop()
                    if inner.op == "static":
                        continue
                    pending += [o for o in inner.operands if o.op != "static"]
                    inner.operands = [unfolded(o) for o in inner.operands]
                done[id(node)] = unfolded(made) if made.op == "static" else made
        return done[id(node)]

    for node in graph.nodes():
        node.operands = [unfolded(o) for o in node.operands]
    graph.replace_results(unfolded)


class Materialise:
    def __init__(self, graph: Graph):
        self.graph = graph
        self.cache: dict[int, Node] = {}
        self.tables: dict[tuple, Node] = {}
        self.keep: list[Node] = []
        #: Tables, each with its values by the names of their sizes.
        self.views: dict[int, tuple[Node, dict]] = {}

    def run(self):
        for node in self.graph.nodes():
            node.operands = [self.value(o, node) for o in node.operands]
        self.graph.replace_results(lambda node: self.value(node, node))
        self._drop_single_views()

    def value(self, node: Node, user: Node) -> Node:
        if node.op != "static":
            return node
        if id(node) not in self.cache:
            self.keep.append(node)  # so that the id stays taken
            build = Builder(node.loc or user.loc, node.position or user.position)
            self.cache[id(node)] = self._make(build, node)
        return self.cache[id(node)]

    def _make(self, build: Builder, node: Node) -> Node:
        if isinstance(node.form, Diagonal):
            return self._diagonal(build, node.form, node.shape, node.dtype)
        if node.form.uniform:
            value = node.attrs.get("exact", node.form.values.item())
            return build.broadcast(build.make("constant", [], (), node.dtype, value=value),
                                   node.shape)
        own = [n if size != 1 else 1 for n, size in zip(node.shape, node.form.values.shape)]
        return build.broadcast(self._table(build, node.form, node.dtype, own), node.shape)

    def _table(self, build: Builder, form: Dense, dtype: str, shape=None) -> Node:
        """The values, perhaps with sizes of the call in their shape: one parameter may stand for tables
        of several sizes."""
        table, shape = self._made(build, form, dtype), tuple(shape or form.values.shape)
        views = self.views.setdefault(id(table), (table, {}))[1]
        own = names(shape)
        if own not in views:
            views[own] = build.make("cut", [table], shape, dtype) if any(own) else table
        return views[own]

    def _drop_single_views(self):
        """A table that has one size everywhere has it itself."""
        single = {}
        for table, views in self.views.values():
            view = next(iter(views.values()))
            if len(views) == 1 and view is not table:
                table.shape = view.shape
                single[id(view)] = table
        if single:
            self.graph.rewrite(lambda node: single.get(id(node)))

    def _made(self, build: Builder, form: Dense, dtype: str) -> Node:
        shape = form.values.shape
        if form.known:
            values = np.ascontiguousarray(cast(form.values, dtype))
            if values.size <= _INLINE:
                return build.make("constant", [], shape, dtype, value=values)
            root = values
            while isinstance(root.base, np.ndarray):
                root = root.base
            if root.size != values.size:  # the rest of a larger array need not stay
                values = values.copy()
            form, content = Dense(values), (dtype, shape, values.tobytes())
        else:
            content = (dtype, shape, form.origin)
        if content not in self.tables:
            key = self.graph.constants.setdefault(content, self._free_key())
            node = build.make("parameter", [], shape, dtype, key=key, aliases=[], tensor=form)
            node.attrs["largest"] = largest(form) if dtype in FLOATS else 0.0
            node.loc = None
            self.graph.parameters.append(node)
            self.tables[content] = node
        return self.tables[content]

    def _free_key(self) -> str:
        """A name that no other argument has: a program that was exported has constants of these names."""
        taken = {p.attrs["key"] for p in self.graph.parameters} | {i.attrs["name"] for i in self.graph.inputs}
        number = len(self.graph.constants)
        while f"constant.{number}" in taken:
            number += 1
        return f"constant.{number}"

    def _diagonal(self, build: Builder, form: Diagonal, shape, dtype) -> Node:
        """The table, read at the linear combination of the indices."""
        whole = shape
        shape = tuple(n if c else 1 for n, c in zip(shape, form.coefficients))
        if dtype in ("i64", "i32") and \
                (form.table == np.arange(form.low, form.low + len(form.table))).all():
            return build.broadcast(build.cast(diagonal_index(build, form, shape, 0), dtype), whole)
        table = self._table(build, Dense(form.table), dtype)
        return build.broadcast(build.gather(table, diagonal_index(build, form, shape), 0), whole)


def diagonal_index(build: Builder, form: Diagonal, shape, offset=None) -> Node:
    """dot(coefficients, index) - low, from iotas."""
    total = None
    for dim, coefficient in enumerate(form.coefficients):
        if not coefficient or shape[dim] == 1:
            continue
        steps = build.make("iota", [], [n if d == dim else 1 for d, n in enumerate(shape)], "i64",
                           dim=dim)
        if abs(coefficient) != 1:
            steps = build.binary("mul", steps, build.make("constant", [], (), "i64",
                                                          value=abs(coefficient)))
        if total is None:
            total = steps if coefficient > 0 else build.unary("neg", steps)
        else:
            total = build.binary("add" if coefficient > 0 else "sub", total, steps)
    start = -form.low if offset is None else offset
    if total is None:  # the combination of a single element
        total = build.make("constant", [], (), "i64", value=start)
    elif start:
        total = build.binary("add", total, build.make("constant", [], (), "i64", value=start))
    return build.broadcast(total, shape)


def inline_splats(graph: Graph):
    """A broadcast scalar that is still needed in full is a constant of that shape."""
    build = Builder()

    def pattern(node: Node):
        if node.op == "broadcast" and node.operands[0].op == "constant" and \
                not node.operands[0].shape:
            return build.at(node).make("constant", [], node.shape, node.dtype,
                                       value=node.operands[0].attrs["value"])
        return None

    graph.rewrite(pattern)
