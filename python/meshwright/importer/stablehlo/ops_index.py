# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Operations that read and write by index: slices at run-time positions, gather and scatter."""
from dataclasses import dataclass

import numpy as np
from jax.extend.mlir.dialects import stablehlo

from ..errors import Uncovered
from ..graph.dialect import FLOATS
from ..graph.forms import SMALL, Dense
from ..graph.match import constant_of
from ..graph.nodes import Node, numel
from . import known_indices
from .attributes import integers
from .handlers import Context, handles
from .ops_reduce import combination
from .ops_shape import cut, positions


def _known_starts(starts) -> list[int] | None:
    values = [constant_of(s) for s in starts]
    return None if any(v is None for v in values) else [int(v) for v in values]


def _clamped(c: Context, start: Node, most: int) -> Node:
    b, start = c.build, c.index(start)
    start = b.binary("maximum", start, b.scalar(0, "i64"))
    return b.binary("minimum", start, b.scalar(most, "i64"))


@handles("dynamic_slice")
def dynamic_slice(c: Context, op, x, *starts):
    sizes = integers(op.attributes["slice_sizes"])
    known = _known_starts(starts)
    if known is not None:
        known = [min(max(s, 0), n - z) for s, n, z in zip(known, x.shape, sizes)]
        return cut(c, x, known, [s + z for s, z in zip(known, sizes)])
    for dim, (start, size) in enumerate(zip(starts, sizes)):
        if size < x.shape[dim]:
            x = c.build.gather(x, _window(c, start, size, x.shape[dim]), dim)
    return x


def _window(c: Context, start: Node, size: int, whole: int) -> Node:
    """The positions of a window within a dimension: it is moved to where it fits."""
    start = _clamped(c, start, whole - size)
    return c.build.binary("add", c.build.reshape(start, (1,)), positions(c, size, (size,), 0)) if size > 1 else \
        c.build.reshape(start, (1,))


@handles("dynamic_update_slice")
def dynamic_update_slice(c: Context, op, x, update, *starts):
    known = _known_starts(starts)
    if known is not None:
        known = [min(max(s, 0), n - z) for s, n, z in zip(known, x.shape, update.shape)]
        return _replaced(c, x, update, known)
    return _updated(c, x, update, list(starts), 0)


def _replaced(c: Context, x: Node, update: Node, starts) -> Node:
    """x with a box at known positions, as a concatenation."""
    b = c.build
    dim = next((d for d in range(x.rank) if update.shape[d] != x.shape[d]), None)
    if dim is None:
        return update
    start, size = starts[dim], update.shape[dim]
    if x.op == "concat" and x.attrs["dim"] == dim:
        # A piece of an earlier update holds the box: the others stay.
        offset = 0
        for i, piece in enumerate(x.operands):
            end = offset + piece.shape[dim]
            if offset <= start and start + size <= end:
                at = [start - offset if d == dim else s for d, s in enumerate(starts)]
                new = _replaced(c, piece, update, at)
                parts = new.operands if new.op == "concat" and new.attrs["dim"] == dim else [new]
                return b.concat([*x.operands[:i], *parts, *x.operands[i + 1:]], dim)
            offset = end
    middle = b.slice_dim(x, dim, start, start + size)
    middle = _replaced(c, middle, update, [0 if d == dim else s for d, s in enumerate(starts)])
    parts = [b.slice_dim(x, dim, 0, start), middle, b.slice_dim(x, dim, start + size, x.shape[dim])]
    return b.concat([p for p in parts if p.shape[dim]], dim)


def _updated(c: Context, x: Node, update: Node, starts, dim: int) -> Node:
    """x with a box at run-time positions: rows along one dimension after the other."""
    while dim < x.rank and update.shape[dim] == x.shape[dim]:
        dim += 1
    if dim == x.rank:
        return update
    rows = _window(c, starts[dim], update.shape[dim], x.shape[dim])
    if update.shape[dim + 1:] != x.shape[dim + 1:]:
        update = _updated(c, c.build.gather(x, rows, dim), update, starts, dim + 1)
    return c.build.make("index_copy", [x, rows, update], x.shape, x.dtype, dim=dim)


# Gather.

@dataclass
class _Numbers:
    """The dimensions of a gather, as StableHLO names them."""
    offset_dims: list[int]
    collapsed_slice_dims: list[int]
    operand_batching_dims: list[int]
    start_indices_batching_dims: list[int]
    start_index_map: list[int]
    index_vector_dim: int

    @classmethod
    def read(cls, op) -> "_Numbers":
        stated = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
        return cls(*(list(getattr(stated, name)) for name in list(cls.__dataclass_fields__)[:-1]), stated.index_vector_dim)

    def offset_sources(self, rank: int) -> list[int]:
        """The dimensions of the operand that the windows keep."""
        gone = {*self.collapsed_slice_dims, *self.operand_batching_dims}
        return [d for d in range(rank) if d not in gone]

    def without(self, c: Context, indices: Node, units, rank: int) -> tuple[Node, "_Numbers"]:
        """Without dimensions of the operand that the windows keep."""
        kept = [d for d in range(rank) if d not in units]
        place = {d: i for i, d in enumerate(kept)}
        sources = self.offset_sources(rank)
        offsets = [o for o, d in zip(self.offset_dims, sources) if d not in units]
        gone = [o for o, d in zip(self.offset_dims, sources) if d in units]
        offsets = [o - sum(g < o for g in gone) for o in offsets]
        read = [i for i, d in enumerate(self.start_index_map) if d not in units]
        vector = self.index_vector_dim
        if len(read) < len(self.start_index_map):
            parts = _components(c, indices, vector, len(self.start_index_map))
            shape = [m for d, m in enumerate(indices.shape) if d != vector]
            wide = [c.build.reshape(parts[i], [*shape[:vector], 1, *shape[vector:]]) for i in read]
            indices = c.build.concat(wide, vector) if wide else c.build.reshape(
                c.build.broadcast(c.build.scalar(0, indices.dtype), shape), [*shape[:vector], 1, *shape[vector:]])
        return indices, _Numbers(offsets, [place[d] for d in self.collapsed_slice_dims],
                                 [place[d] for d in self.operand_batching_dims], self.start_indices_batching_dims,
                                 [place[self.start_index_map[i]] for i in read], vector)


@handles("gather")
def gather(c: Context, op, x, indices):
    n = _Numbers.read(op)
    sizes = integers(op.attributes["slice_sizes"])
    known = c.known(x, indices) if numel(c.shape) <= SMALL else None
    if known:
        return c.constant(known_indices.gather(*known, n, sizes, c.shape), c.shape, c.dtype)
    along = _take_along(c, x, indices, n, sizes)
    if along is not None:
        return c.build.reshape(along, c.shape)
    # Dimensions of size 1 that the windows hold come and go by a reshape.
    units = [d for d in range(x.rank) if x.shape[d] == 1 and d in n.offset_sources(x.rank)]
    if units and len(units) < x.rank:
        rank, kept = x.rank, [d for d in range(x.rank) if d not in units]
        x, sizes = c.build.reshape(x, [x.shape[d] for d in kept]), [sizes[d] for d in kept]
        indices, n = n.without(c, indices, units, rank)
    vector = n.index_vector_dim
    batch_shape = [m for d, m in enumerate(indices.shape) if d != vector]
    batching = dict(zip(n.operand_batching_dims, n.start_indices_batching_dims))
    indexed = _indexed(c, x, indices, n, sizes)
    if not indexed and not batching:  # dimensions of size 1, which have one index
        indexed = {n.start_index_map[0]: c.build.broadcast(c.build.scalar(0, "i64"), batch_shape)}
    for d, at in batching.items():
        at -= at > vector
        indexed[d] = positions(c, batch_shape[at], batch_shape, at)
    dropped = [*n.collapsed_slice_dims, *batching]
    return c.build.reshape(_gathered(c, x, sizes, indexed, dropped, batch_shape, n.offset_dims), c.shape)


def _indexed(c: Context, x: Node, indices: Node, n: _Numbers, sizes) -> dict[int, Node]:
    """The dimensions of x that are read by index, each with the index. Whole ones have one index, 0."""
    parts = _components(c, indices, n.index_vector_dim, len(n.start_index_map))
    return {d: part for d, part in zip(n.start_index_map, parts) if sizes[d] != x.shape[d]}


def _components(c: Context, indices: Node, vector: int, count: int) -> list[Node]:
    """Each component of the index vectors, without their dimension."""
    shape = [m for d, m in enumerate(indices.shape) if d != vector]
    if vector == indices.rank:
        return [indices]
    if indices.op == "concat" and indices.attrs["dim"] == vector and len(indices.operands) == count:
        return [c.build.reshape(o, shape) for o in indices.operands]
    return [c.build.reshape(c.build.slice_dim(indices, vector, i, i + 1), shape) for i in range(count)]


def _take_along(c: Context, x: Node, indices: Node, n: _Numbers, sizes) -> Node | None:
    """One dimension read by index, all others of more than one element along the batch of the indices: take_along."""
    indexed = _indexed(c, x, indices, n, sizes)
    batching = dict(zip(n.operand_batching_dims, n.start_indices_batching_dims))
    others = [d for d in range(x.rank) if d not in batching and d not in indexed]
    if len(indexed) != 1 or any(x.shape[d] != 1 for d in others) or any(sizes[d] != 1 for d in indexed):
        return None
    (dim, index), = indexed.items()
    batch_shape = [m for d, m in enumerate(indices.shape) if d != n.index_vector_dim]
    at = {d: s - (s > n.index_vector_dim) for d, s in batching.items()}
    rest = [i for i in range(len(batch_shape)) if i not in at.values()]
    if len(rest) > 1:
        return None
    # The dimensions of the indices in the order of x.
    order = [at.get(d) if d != dim else rest[0] if rest else None for d in range(x.rank)]
    moved = c.build.transpose(index, [o for o in order if o is not None])
    shape = [1 if o is None else batch_shape[o] for o in order]
    taken = c.build.make("take_along", [x, c.index(c.build.reshape(moved, shape))], shape, x.dtype, dim=dim)
    kept = c.build.reshape(taken, [batch_shape[o] for o in order if o is not None])
    placed = [o for o in order if o is not None]
    return c.build.transpose(kept, [placed.index(i) for i in range(len(placed))])


def _gathered(c: Context, x, sizes, indexed, dropped, batch_shape, offset_dims) -> Node:
    """Reads windows of the dimensions `indexed`, whole ones of the others. `dropped` dimensions of windows have
    the size 1 and leave."""
    b, dims = c.build, sorted(indexed)
    others = [d for d in range(x.rank) if d not in indexed]
    batch_shape = list(batch_shape)
    if not dims:
        raise Uncovered("stablehlo.gather of whole operands is not covered")
    windows = [d for d in dims if sizes[d] != 1]
    lead, total = len(batch_shape), None
    for d in dims:
        index = c.index(indexed[d])
        index = b.reshape(index, [*index.shape, *[1] * len(windows)])
        if sizes[d] != 1:
            index = _clamped(c, index, x.shape[d] - sizes[d])
            steps = positions(c, sizes[d], [1] * (lead + len(windows)), lead + windows.index(d))
            index = b.binary("add", index, steps)
        rows = numel(x.shape[e] for e in dims[dims.index(d) + 1:])
        index = index if rows == 1 else b.binary("mul", index, b.scalar(rows, "i64"))
        total = index if total is None else b.binary("add", total, index)
    shape = [*batch_shape, *(sizes[d] for d in windows)]
    total = b.broadcast(total, shape)
    if len(dims) == 1:
        dim = dims[0]
        result = _rows(c, x, total, dim)
        order = [*range(dim, dim + len(shape)), *range(dim), *range(dim + len(shape), result.rank)]
        result = b.transpose(result, order)
    else:
        flat = b.reshape(b.transpose(x, [*dims, *others]),
                         (numel(x.shape[d] for d in dims), *(x.shape[d] for d in others)))
        result = b.gather(flat, total, 0)
    # Now [batch..., windows..., others...]: whole dimensions may be cut, then all go to their places.
    present = [*windows, *others]
    for d in others:
        if sizes[d] != x.shape[d]:
            raise Uncovered("stablehlo.gather that cuts a dimension without an index is not covered")
    result = b.reshape(result, [*batch_shape, *(sizes[d] for d in present)])
    kept = [d for d in range(x.rank) if d not in dropped]
    missing = [d for d in kept if d not in present]       # windows of size 1 that stay
    result = b.reshape(result, [*result.shape, *[1] * len(missing)])
    present += missing
    gone = [d for d in present if d not in kept]
    order = [*range(lead), *(lead + present.index(d) for d in [*kept, *gone])]
    result = b.transpose(result, order)
    result = b.reshape(result, [*batch_shape, *(sizes[d] for d in kept)])
    return _with_offsets(b, result, lead, offset_dims)


def _rows(c: Context, x: Node, index: Node, dim: int) -> Node:
    """Reads along a dimension by index; by a slice where the indices are known and even."""
    shape = x.shape[:dim] + index.shape + x.shape[dim + 1:]
    if isinstance(index.form, Dense) and index.form.values.size and not c.unfolds:
        values = index.form.values.reshape(-1)
        steps = set(np.diff(values).tolist())
        whole = numel(index.shape) == values.size
        if whole and 0 <= values.min() and values.max() < x.shape[dim] and (len(steps) == 1 and min(steps) > 0 or not steps):
            step = steps.pop() if steps else 1
            return c.build.reshape(c.build.slice_dim(x, dim, int(values[0]), int(values[-1]) + 1, step), shape)
    return c.build.gather(x, index, dim)


def _with_offsets(b, x: Node, lead: int, offset_dims) -> Node:
    """[batch..., window...] with the window's dimensions at their places in the result."""
    batch, window = iter(range(lead)), iter(range(lead, x.rank))
    return b.transpose(x, [next(window) if d in offset_dims else next(batch) for d in range(x.rank)])


# Scatter.

@handles("scatter")
def scatter(c: Context, op, x, indices, updates):
    n = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    stated = _update(op)
    if len(op.results) > 1 or stated is None:
        raise Uncovered("stablehlo.scatter is covered for .at[...].set and .add alone")
    known = c.known(x, indices, updates) if numel(updates.shape) <= SMALL else None
    if known:
        combine = np.add if stated == "add" else lambda old, new: new
        return c.constant(known_indices.scatter(*known, n, combine), c.shape, c.dtype)
    b, vector = c.build, n.index_vector_dim
    batch_shape = [m for d, m in enumerate(indices.shape) if d != vector]
    parts = _components(c, indices, vector, len(n.scattered_dims_to_operand_dims))
    indexed = dict(zip(n.scattered_dims_to_operand_dims, parts))
    for d, at in zip(n.input_batching_dims, n.scatter_indices_batching_dims):
        at -= at > vector
        indexed[d] = positions(c, batch_shape[at], batch_shape, at)
    dropped = {*n.inserted_window_dims, *n.input_batching_dims}
    window = [d for d in range(x.rank) if d not in dropped]
    sizes = {d: updates.shape[u] for d, u in zip(window, n.update_window_dims)}
    # Updates as [batch..., window...].
    batch_dims = [d for d in range(updates.rank) if d not in n.update_window_dims]
    updates = b.transpose(updates, [*batch_dims, *n.update_window_dims])
    dims, others = sorted(indexed), [d for d in range(x.rank) if d not in indexed]
    if any(sizes.get(d, 1) != 1 for d in dims) or any(sizes[d] != x.shape[d] for d in others):
        if numel(batch_shape) == 1:
            return _one_window(c, x, indexed, updates, sizes, window, stated)
        raise Uncovered("stablehlo.scatter of windows that are no whole rows is not covered")
    updates = b.reshape(updates, [*batch_shape, *(sizes[d] for d in others)])
    rows, total = numel(x.shape[d] for d in dims), None
    for d in dims:
        stride = numel(x.shape[e] for e in dims[dims.index(d) + 1:])
        index = c.index(indexed[d])
        index = index if stride == 1 else b.binary("mul", index, b.scalar(stride, "i64"))
        total = index if total is None else b.binary("add", total, index)
    count = numel(batch_shape)
    total = b.reshape(b.broadcast(total, batch_shape), (count,))
    source = b.reshape(updates, (count, *(sizes[d] for d in others)))
    flat = b.reshape(b.transpose(x, [*dims, *others]), (rows, *(x.shape[d] for d in others)))
    if stated == "set":
        result = b.make("index_copy", [flat, total, source], flat.shape, x.dtype, dim=0)
    else:
        # Sums of integers are exact in f64 up to 2^53.
        terms = source if x.dtype in FLOATS else b.cast(source, "f64")
        sums = b.cast(b.scatter_add(terms, total, rows), x.dtype)
        result = b.binary("add", flat, sums)
    result = b.reshape(result, [x.shape[d] for d in [*dims, *others]])
    back = [*dims, *others]
    return b.transpose(result, [back.index(d) for d in range(x.rank)])


def _update(op) -> str | None:
    """"set" or "add": what a scatter does with an update."""
    block = op.regions[0].blocks[0]
    inner = [o.operation for o in block.operations]
    if len(inner) == 1 and inner[0].operands[0] == block.arguments[1]:
        return "set"
    return "add" if combination(op) == "add" else None


def _one_window(c: Context, x, indexed, updates, sizes, window, stated) -> Node:
    """A single window at a position: a slice that is updated."""
    b = c.build
    box = [sizes.get(d, 1) for d in range(x.rank)]
    update = b.reshape(updates, box)
    starts = [b.reshape(indexed[d], ()) if d in indexed else b.scalar(0, "i64") for d in range(x.rank)]
    known = _known_starts(starts)
    if stated == "add":
        if known is None:
            raise Uncovered("stablehlo.scatter that adds a window at a run-time position is not covered")
        update = b.binary("add", b.slice(x, known, [s + n for s, n in zip(known, box)]), update)
    return _updated(c, x, update, starts, 0) if known is None else _replaced(c, x, update, known)

