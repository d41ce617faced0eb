# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Scales of blocks, however they are stretched to the elements that they scale.

A value that reshapes, broadcasts, slices, transposes and lookups of a source make has at each place an element
of the source. `Places` follows which: along each dimension of the source the index, as a table over
those dimensions of the value on which it depends. Scales belong to blocks where the table of each
dimension is 0, ..., 0, 1, ..., 1, ... along one dimension.
"""
import math
from dataclasses import dataclass

import numpy as np

from .dialect import POINTWISE
from .forms import Dense
from .nodes import Builder, Node, reshape_groups

#: The most entries of a table.
_LARGEST = 1 << 26


@dataclass
class Places:
    """A value of which each element is one of the source, after functions of one element."""
    source: Node
    shape: tuple[int, ...]
    #: For each dimension of the source the dimensions of the value, ascending, and the indices along
    #: them. Of a dimension of size 1 there are none.
    tables: list[tuple[tuple[int, ...], np.ndarray]]
    #: The operations that compute an element, source first.
    functions: list[Node]

    @classmethod
    def of(cls, node: Node) -> "Places":
        """The place of each element in the smallest source that is found."""
        if node.op in _MOVES:
            inner = cls.of(node.operands[1 if node.op == "embedding" else 0])
            moved = _MOVES[node.op](inner, node)
            if moved is not None and _begins(inner.source.shape, moved):
                return cls(inner.source, node.shape, moved, inner.functions)
        elif (operand := _operand(node)) is not None:
            inner = cls.of(operand)
            if inner.source is not operand:
                return cls(inner.source, inner.shape, inner.tables, [*inner.functions, node])
        return cls(node, node.shape, [((d,), np.arange(n)) if n != 1 else ((), np.array(0))
                                      for d, n in enumerate(node.shape)], [])

    def reshaped(self, shape) -> "Places | None":
        tables = _regrouped(self, tuple(shape))
        return tables and Places(self.source, tuple(shape), tables, self.functions)

    def broadcast(self, shape) -> "Places":
        return Places(self.source, tuple(shape), _shifted(self, len(shape)), self.functions)

    def blocks(self) -> list[int] | None:
        """The size of a block along each dimension of the value. None where scales have no blocks."""
        block, last = list(self.shape), -1
        for size, (dims, table) in zip(self.source.shape, self.tables):
            if not dims:
                continue
            if len(dims) != 1 or dims[0] <= last:
                return None
            last, count = dims[0], self.shape[dims[0]]
            sizes = np.flatnonzero(table != 0)
            block[last] = int(sizes[0]) if sizes.size else count
            if -(-count // block[last]) != size or \
                    not np.array_equal(table, np.arange(count) // block[last]):
                return None
        return block

    def scales(self, build: Builder) -> Node:
        """The source after the functions: a scale for each block, with a dimension for each of the
        value."""
        node = self.source
        for function in self.functions:
            shape = node.shape
            operands = [node if _operand(function) is o else build.reshape(o, ()) for o in function.operands]
            node = build.make(function.op, operands, shape, function.dtype, **function.attrs)
        sizes = [1] * len(self.shape)
        for size, (dims, _) in zip(self.source.shape, self.tables):
            if dims:
                sizes[dims[0]] = size
        return build.reshape(node, sizes)


def _begins(source, tables) -> bool:
    """Whether a value has the first element along each dimension of the source, and varies along it.
    Another part of a source is a source of its own."""
    return all(table.size and table.flat[0] == 0 and (dims or size == 1)
               for size, (dims, table) in zip(source, tables))


def _operand(node: Node) -> Node | None:
    """The operand of a function of one element, whose others are numbers."""
    if node.op not in POINTWISE or node.routed:
        return None
    others = [o for o in node.operands if o.op != "static" or math.prod(o.shape) != 1]
    return others[0] if len(others) == 1 and others[0].shape == node.shape else None


def _regrouped(places: Places, shape) -> list | None:
    groups = reshape_groups(places.shape, shape)
    if groups is None:
        return None
    tables = []
    for dims, table in places.tables:
        if not dims:
            tables.append((dims, table))
            continue
        own = [(s, t) for s, t in groups if any(d in s for d in dims)]
        full = [d for s, _ in own for d in s]
        target = [d for _, t in own for d in t]
        if math.prod(shape[d] for d in target) > _LARGEST:
            return None
        wide = table.reshape([places.shape[d] if d in dims else 1 for d in full])
        wide = np.broadcast_to(wide, [places.shape[d] for d in full])
        tables.append(_narrowed(target, wide.reshape([shape[d] for d in target])))
    return tables


def _narrowed(dims, table) -> tuple[tuple[int, ...], np.ndarray]:
    """A table without the dimensions along which it does not vary."""
    kept = []
    for i, d in enumerate(dims):
        first = table[(slice(None),) * i + (slice(0, 1),)]
        if np.array_equal(np.broadcast_to(first, table.shape), table):
            table = first
        else:
            kept.append(d)
    return tuple(kept), table.reshape([n for n in table.shape if n != 1])


def _shifted(places: Places, rank: int) -> list:
    by = rank - len(places.shape)
    return [(tuple(d + by for d in dims), table) for dims, table in places.tables]


def _sliced(places: Places, node: Node) -> list:
    tables = []
    for dims, table in places.tables:
        for i, d in enumerate(dims):
            cut = slice(*(node.attrs[name][d] for name in ("starts", "limits", "strides")))
            table = table[(slice(None),) * i + (cut,)]
        tables.append(_narrowed(dims, table))
    return tables


def _transposed(places: Places, node: Node) -> list:
    at = {d: i for i, d in enumerate(node.attrs["permutation"])}
    tables = []
    for dims, table in places.tables:
        order = sorted(range(len(dims)), key=lambda i: at[dims[i]])
        tables.append((tuple(at[dims[i]] for i in order), table.transpose(order)))
    return tables


def _taken(places: Places, index: Node, dim: int) -> list | None:
    """Rows along a dimension by known indices."""
    if index.rank != 1 or not isinstance(index.form, Dense) or not index.form.known:
        return None
    rows = np.broadcast_to(index.form.values, index.shape)
    if rows.size and (rows.min() < 0 or rows.max() >= places.shape[dim]):
        return None
    tables = []
    for dims, table in places.tables:
        if dim in dims:
            table = table.take(rows, axis=dims.index(dim))
        tables.append(_narrowed(dims, table))
    return tables


_MOVES = {
    "gather": lambda places, node: _taken(places, node.operands[1], node.attrs["dim"]),
    "embedding": lambda places, node: _taken(places, node.operands[0], 0),
    "reshape": lambda places, node: _regrouped(places, node.shape),
    "broadcast": lambda places, node: _shifted(places, node.rank),
    "slice": _sliced,
    "transpose": _transposed,
}
