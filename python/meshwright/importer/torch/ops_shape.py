# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""ATen operations that move, take and join elements."""
import functools

import numpy as np

from ..errors import Uncovered
from ..graph.dialect import FLOATS
from ..graph.forms import Dense, Diagonal, as_affine, diagonal, written_out
from ..graph.interleave import interleaved
from ..graph.nodes import Node, numel
from .handlers import Context, aten, permutation_of, slice_of


@aten("clone", "contiguous", "alias", "lift_fresh_copy", "lift_fresh")
def identity(c, x, *args, **kwargs):
    return x


@aten("detach")
def detach(c, x):
    return c.stopped(x)


@aten("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "flatten", "unflatten",
      "view_copy", "_reshape_alias")
def reshape(c, x, *args, **kwargs):
    if c.fx.target.__name__.startswith("view.dtype"):
        raise Uncovered("a view as another element type is not covered")
    return c.build.reshape(x, c.shape)


@aten("permute", "transpose", "t", "numpy_T", "mT")
def permute(c, x, *args):
    base = c.fx.target.__name__.split(".")[0]
    return c.build.transpose(x, permutation_of(base, (x, *args), x.rank))


@aten("movedim")
def movedim(c, x, source, destination):
    source = [s % x.rank for s in (source if isinstance(source, (list, tuple)) else [source])]
    target = [d % x.rank for d in
              (destination if isinstance(destination, (list, tuple)) else [destination])]
    order = [None] * x.rank
    for s, d in zip(source, target):
        order[d] = s
    rest = iter(d for d in range(x.rank) if d not in source)
    return c.build.transpose(x, [next(rest) if o is None else o for o in order])


@aten("expand", "broadcast_to", "expand_as")
def expand(c, x, *args, **kwargs):
    return c.build.broadcast(x, c.shape)


@aten("slice")
def slice_(c, x, *args):
    dim, start, end, step = slice_of((x, *args), x)
    return c.build.slice_dim(x, dim, start, end, step)


@aten("narrow")
def narrow(c, x, dim, start, length):
    dim = dim % x.rank
    return c.build.slice_dim(x, dim, start % x.shape[dim], start % x.shape[dim] + length)


def select_index(c, x: Node, dim: int, index: int) -> Node:
    dim, index = dim % x.rank, index % x.shape[dim % x.rank]
    piece = c.build.slice_dim(x, dim, index, index + 1)
    return c.build.reshape(piece, x.shape[:dim] + x.shape[dim + 1:])


@aten("select")
def select(c, x, dim, index):
    return select_index(c, x, dim, index)


@aten("unbind")
def unbind(c, x, dim=0):
    return [select_index(c, x, dim, i) for i in range(x.shape[dim])]


def _pieces(c, x, dim, sizes):
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [c.build.slice_dim(x, dim, s, s + n) for s, n in zip(starts, sizes)]


@aten("split", "split_with_sizes", "split_copy", "unsafe_split")
def split(c, x, size, dim=0):
    dim = dim % x.rank
    if isinstance(size, int):
        size = [min(size, x.shape[dim] - s) for s in range(0, x.shape[dim], size)]
    return _pieces(c, x, dim, list(size))


@aten("chunk", "unsafe_chunk")
def chunk(c, x, count, dim=0):
    dim = dim % x.rank
    return split(c, x, -(-x.shape[dim] // count), dim)


@aten("tensor_split")
def tensor_split(c, x, parts, dim=0):
    dim, size = dim % x.rank, x.shape[dim % x.rank]
    if isinstance(parts, int):
        return _pieces(c, x, dim, [size // parts + (i < size % parts) for i in range(parts)])
    pieces = [slice(a, b).indices(size) for a, b in zip([0, *parts], [*parts, size])]
    return [c.build.slice_dim(x, dim, a, max(a, b)) for a, b, _ in pieces]


@aten("cat", "concat", "concatenate")
def cat(c, inputs, dim=0):
    inputs = [c.operand(i, c.dtype) for i in inputs if numel(i.shape)]
    return c.build.concat(inputs, dim % inputs[0].rank)


@aten("stack")
def stack(c, inputs, dim=0):
    dim = dim % (inputs[0].rank + 1)
    shape = inputs[0].shape[:dim] + (1,) + inputs[0].shape[dim:]
    return c.build.concat([c.build.reshape(c.operand(i, c.dtype), shape) for i in inputs], dim)


@aten("repeat", "tile")
def repeat(c, x, repeats):
    sizes = (1,) * (len(repeats) - x.rank) + x.shape
    repeats = [1] * (x.rank - len(repeats)) + list(repeats)
    # Each repeated dimension becomes (copies, size).
    split_shape = [n for size in sizes for n in (1, size)]
    wide = [n for copies, size in zip(repeats, sizes) for n in (copies, size)]
    x = c.build.reshape(x, split_shape)
    return c.build.reshape(c.build.broadcast(x, wide), c.shape)


@aten("repeat_interleave.self_int")
def repeat_interleave(c, x, repeats, dim=None, *, output_size=None):
    if dim is None:
        x, dim = c.build.reshape(x, [numel(x.shape)]), 0
    dim = dim % x.rank
    x = c.build.reshape(x, x.shape[:dim + 1] + (1,) + x.shape[dim + 1:])
    wide = x.shape[:dim + 1] + (repeats,) + x.shape[dim + 2:]
    return c.build.reshape(c.build.broadcast(x, wide), c.shape)


@aten("flip")
def flip(c, x, dims):
    for dim in [d % x.rank for d in dims]:
        order = np.arange(x.shape[dim] - 1, -1, -1)
        x = c.build.gather(x, c.build.static(Dense(order), order.shape, "i64"), dim)
    return x


@aten("roll")
def roll(c, x, shifts, dims=()):
    shifts = shifts if isinstance(shifts, (list, tuple)) else [shifts]
    dims = dims if isinstance(dims, (list, tuple)) else [dims]
    if not dims:
        flat = c.build.reshape(x, [numel(x.shape)])
        return c.build.reshape(roll(c, flat, shifts, [0]), x.shape)
    for shift, dim in zip(shifts, dims):
        dim, cut = dim % x.rank, -shift % x.shape[dim]
        if cut:
            x = c.build.concat([c.build.slice_dim(x, dim, cut, x.shape[dim]),
                                c.build.slice_dim(x, dim, 0, cut)], dim)
    return x


@aten("diff")
def diff(c, x, n=1, dim=-1, prepend=None, append=None):
    dim = dim % x.rank
    parts = [p for p in (prepend, x, append) if p is not None]
    x = c.build.concat(parts, dim)
    for _ in range(n):
        size = x.shape[dim]
        x = c.build.binary("xor" if x.dtype == "i1" else "sub", c.build.slice_dim(x, dim, 1, size),
                           c.build.slice_dim(x, dim, 0, size - 1))
    return x


@aten("slice_scatter")
def slice_scatter(c, x, source, dim=0, start=None, end=None, step=1):
    dim = dim % x.rank
    start, end, step = slice(start, end, step).indices(x.shape[dim])
    if step == 1:
        parts = [c.build.slice_dim(x, dim, 0, start), source,
                 c.build.slice_dim(x, dim, end, x.shape[dim])]
        return c.build.concat([p for p in parts if p.shape[dim]], dim)
    rows = np.arange(start, max(start, end), step)
    written = c.build.make("index_copy", [x, c.build.static(Dense(rows), rows.shape, "i64"), source],
                           x.shape, x.dtype, dim=dim)
    return interleaved(c.build, written) or written


@aten("select_scatter")
def select_scatter(c, x, source, dim, index):
    dim, index = dim % x.rank, index % x.shape[dim % x.rank]
    source = c.build.reshape(source, x.shape[:dim] + (1,) + x.shape[dim + 1:])
    parts = [c.build.slice_dim(x, dim, 0, index), source,
             c.build.slice_dim(x, dim, index + 1, x.shape[dim])]
    return c.build.concat([p for p in parts if p.shape[dim]], dim)


@aten("copy")
def copy(c, x, source, non_blocking=False):
    return c.build.broadcast(c.build.cast(source, x.dtype), x.shape)


@aten("fill")
def fill(c, x, value):
    return c.build.broadcast(c.operand(value, x.dtype), x.shape)


@aten("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "empty_like",
      "new_empty")
def like(c, x, *args, **kwargs):
    name = c.fx.target.__name__.split(".")[0]
    value = 0 if "zeros" in name or "empty" in name else 1 if "ones" in name else \
        kwargs.get("fill_value", args[-1])
    return c.build.broadcast(c.operand(value, c.dtype), c.shape)


@aten("full")
def full(c, size, value, **kwargs):
    return c.build.broadcast(c.operand(value, c.dtype), c.shape)


@aten("arange")
def arange(c, *args, **kwargs):
    if any(isinstance(a, Node) for a in args):
        raise Uncovered("arange with bounds that depend on the inputs is not covered")
    start, step = (args[0] if len(args) > 1 else 0), (args[2] if len(args) > 2 else 1)
    result = c.build.cast(c.build.make("iota", [], c.shape, "i64", dim=0), c.dtype)
    if step != 1:
        result = c.build.binary("mul", result, c.build.scalar(step, c.dtype))
    if start:
        result = c.build.binary("add", result, c.build.scalar(start, c.dtype))
    return result


@aten("triu", "tril")
def triangle(c, x, offset=0):
    upper = c.fx.target.__name__.startswith("triu")
    plane = diagonal(x.shape, (0,) * (x.rank - 2) + (-1, 1), 0)
    plane.table = plane.table >= offset if upper else plane.table <= offset
    keep = c.build.static(plane, x.shape, "i1")
    return c.build.select(keep, x, c.build.scalar(0, x.dtype))


@aten("diagonal")
def main_diagonal(c, x, offset=0, dim1=0, dim2=1):
    return diagonal_of(c, x, offset, dim1 % x.rank, dim2 % x.rank)


def diagonal_of(c, x: Node, offset: int, dim1: int, dim2: int) -> Node:
    """x[i, i + offset] along two dimensions, as the last dimension."""
    rest = [d for d in range(x.rank) if d not in (dim1, dim2)]
    x = c.build.transpose(x, rest + [dim1, dim2])
    rows, columns = x.shape[-2:]
    count = max(0, min(rows + min(offset, 0), columns - max(offset, 0)))
    start = offset if offset >= 0 else -offset * columns
    flat = c.build.reshape(x, x.shape[:-2] + (rows * columns,))
    limit = start + (count - 1) * (columns + 1) + 1 if count else start
    return c.build.slice_dim(flat, flat.rank - 1, start, limit, columns + 1)


# By index.

@aten("embedding")
def embedding(c, table, ids, padding_idx=-1, scale=False, sparse=False):
    """A sparse gradient has the values of a dense one."""
    trains_all = not c.exported.training or padding_idx < 0
    if isinstance(ids.form, Dense):  # positions: rows of the table, often consecutive ones
        own = [n if size != 1 else 1 for n, size in zip(ids.shape, ids.form.values.shape)]
        small = c.build.static(ids.form, own, ids.dtype)
        rows = c.build.broadcast(take(c, table, 0, small), ids.shape + table.shape[1:])
        trains_all = trains_all or ids.form.known and padding_idx not in ids.form.values
    else:
        rows = c.build.embedding(ids, table)
    if scale:
        rows = scaled_by_frequency(c, rows, ids, table)
    if trains_all:
        return rows
    # The row of the padding is not trained.
    is_padding = c.build.compare("eq", ids, c.build.scalar(padding_idx, ids.dtype))
    is_padding = c.build.reshape(is_padding, ids.shape + (1,))
    return c.build.select(is_padding, c.stopped(rows), rows)


def scaled_by_frequency(c: Context, rows: Node, ids: Node, table: Node) -> Node:
    """Rows of a table by `ids`. The derivative of a row of the table is divided by the number of
    ids of this call that name it."""
    if not c.exported.training or not numel(ids.shape):
        return rows
    ones = c.build.broadcast(c.build.scalar(1.0, "f32"), ids.shape)
    counts = c.build.scatter_add(ones, ids, table.shape[0])
    share = c.build.binary("div", c.build.scalar(1.0, "f32"), c.build.gather(counts, ids, 0))
    # The first term is the value, and the second one, which is zero, has the derivative.
    fixed = c.stopped(rows)
    wide = lambda x: c.build.cast(x, "f64" if x.dtype == "f64" else "f32")
    change = c.build.binary("sub", wide(rows), wide(fixed))
    share = c.build.broadcast(c.build.reshape(c.build.cast(share, change.dtype), ids.shape + (1,)),
                              rows.shape)
    change = c.build.cast(c.build.binary("mul", change, share), rows.dtype)
    return c.build.binary("add", fixed, change)


@aten("index_select")
def index_select(c, x, dim, index):
    return take(c, x, dim % x.rank, index)


def take(c: Context, x: Node, dim: int, index: Node) -> Node:
    """gather, or a slice where the indices are known and grow evenly."""
    if index.form is not None:
        check_range(index, x.shape[dim])
        values = written_out(index.form, index.shape) if isinstance(index.form, Dense) else None
        if values is not None and values.size:
            flat = values.reshape(-1)
            shape = x.shape[:dim] + index.shape + x.shape[dim + 1:]
            steps = flat[1:] - flat[:-1]
            step = int(steps[0]) if flat.size > 1 else 1
            if step > 0 and (steps == step).all():
                long = [n for n in index.shape if n != 1]
                limit = long[0] if len(long) == 1 and flat[0] == 0 and step == 1 else int(flat[-1]) + 1
                piece = c.build.slice_dim(x, dim, int(flat[0]), limit, step)
                return c.build.reshape(piece, shape)
    if x.dtype in ("f32", "bf16", "f16", "f64") and dim == 0 and x.rank == 2 and \
            x.op == "parameter":
        return c.build.embedding(index, x)
    return c.build.gather(x, index, dim)


@aten("gather")
def gather(c, x, dim, index, *, sparse_grad=False):
    dim = dim % max(x.rank, 1)
    if x.rank:
        check_range(index, x.shape[dim])
    if index.form is not None and isinstance(index.form, Dense):
        varying = [d for d, n in enumerate(index.form.values.shape) if n > 1]
        if varying in ([], [dim]) and all(
                d == dim or index.shape[d] == x.shape[d] for d in range(x.rank)):
            own = [index.shape[d] if d == dim else 1 for d in range(x.rank)]
            row = index.form.moved(np.broadcast_to(index.form.values, own).reshape(-1), "row", dim)
            return take(c, x, dim, c.build.static(row, row.values.shape, index.dtype))
    # take_along wants equal sizes in the other dimensions: torch reads the leading part.
    limits = [n if d == dim else min(n, index.shape[d]) for d, n in enumerate(x.shape)]
    x = c.build.slice(x, [0] * x.rank, limits)
    return c.build.make("take_along", [x, index], index.shape, x.dtype, dim=dim)


def _own_dimension(index: Node, rank: int):
    """The result dimension along which an index counts 0, 1, 2, ...; -1 for a constant 0."""
    if index.form is None or not isinstance(index.form, Dense):
        return None
    missing = rank - index.rank
    if index.form.uniform and int(index.form.values.item()) == 0:
        return -1
    affine = as_affine(index.form)
    if affine and affine[1:] == (1, 0):
        return affine[0] + missing
    return None


@aten("index")
def index(c, x, indices):
    indices = list(indices) + [None] * (x.rank - len(indices))
    indexed = [d for d, i in enumerate(indices) if i is not None]
    if any(indices[d].dtype == "i1" for d in indexed):
        raise Uncovered("indexing by a boolean mask is not covered: its shape depends on values")
    for d in indexed:
        indices[d] = wrapped(c, indices[d], x.shape[d])
    if len(indexed) == 1:
        return take(c, x, indexed[0], indices[indexed[0]])
    adjacent = indexed == list(range(indexed[0], indexed[-1] + 1))
    if not adjacent:
        order = indexed + [d for d in range(x.rank) if d not in indexed]
        x = c.build.transpose(x, order)
        indices = [indices[d] for d in order]
        indexed = list(range(len(indexed)))
    rank = max(indices[d].rank for d in indexed)
    grid = _grid(c, x, indices, indexed, rank)
    if grid is not None:
        return grid
    if _own_dimension(indices[indexed[0]], rank) == 0 and len(indexed) == 2 and rank == 1 and \
            indices[indexed[0]].shape == (x.shape[indexed[0]],):
        return _take_each(c, x, indexed[0], indices[indexed[1]])
    first, flat = indexed[0], flat_index(c, x, indices, indexed)
    merged = numel([x.shape[d] for d in indexed])
    x = c.build.reshape(x, x.shape[:first] + (merged,) + x.shape[first + len(indexed):])
    return c.build.gather(x, flat, first)


def flat_index(c, x: Node, indices, indexed) -> Node:
    """One index into the merged dimensions `indexed`."""
    flat, inside = None, []
    for d in indexed:
        part = c.build.cast(indices[d], "i64")
        if known_values(indices[d]) is None:
            inside += [c.build.compare("ge", part, c.build.scalar(0, "i64")),
                       c.build.compare("lt", part, c.build.scalar(x.shape[d], "i64"))]
        if flat is not None:
            flat = c.build.binary("mul", flat, c.build.scalar(int(x.shape[d]), "i64"))
            part = c.build.binary("add", flat, part)
        flat = part
    merged = int(numel([x.shape[d] for d in indexed]))
    # An index that is out of range in its own dimension must not be in range of the merged ones.
    if inside:
        inside = functools.reduce(lambda a, b: c.build.binary("and", a, b), inside)
        flat = c.build.select(inside, flat, c.build.scalar(merged, "i64"))
    return flat


def _take_each(c, x: Node, dim: int, index: Node) -> Node:
    """x[..., arange, index, ...]: of each sequence of a batch the token at an index of its own."""
    shape = x.shape[:dim + 1] + (1,) + x.shape[dim + 2:]
    own = [numel(index.shape) if d == dim else 1 for d in range(x.rank)]
    index = c.build.broadcast(c.build.reshape(index, own), shape)
    taken = c.build.make("take_along", [x, index], shape, x.dtype, dim=dim + 1)
    return c.build.reshape(taken, x.shape[:dim + 1] + x.shape[dim + 2:])


def known_values(index: Node):
    """The values among which those of an index are, where they are known at import time."""
    if index.form is None:
        return None
    if isinstance(index.form, Dense) and not index.form.known:
        return None
    values = index.form.table if isinstance(index.form, Diagonal) else index.form.values
    return values if values.size else None


def check_range(index: Node, size: int, lowest: int = 0):
    values = known_values(index)
    if values is None:
        return
    for value in (int(values.min()), int(values.max())):
        if not lowest <= value < size:
            raise Uncovered(f"index {value} is out of range: expected {lowest} to {size - 1}")


def wrapped(c, index: Node, size: int) -> Node:
    """Negative indices count from the end."""
    values = known_values(index)
    if values is not None:
        check_range(index, size, -size)
        if not bool((values < 0).any()):
            return index
        form = index.form
        form = Diagonal(form.coefficients, form.low, values % size) \
            if isinstance(form, Diagonal) else Dense(values % size)
        return c.build.static(form, index.shape, index.dtype)
    if _non_negative(index):
        return index
    negative = c.build.compare("lt", index, c.build.scalar(0, index.dtype))
    shifted = c.build.binary("add", index, c.build.scalar(size, index.dtype))
    return c.build.select(negative, shifted, index)


def _non_negative(x: Node, depth: int = 8) -> bool:
    """Whether no element of an integer value can be negative, as far as few operations show."""
    values = known_values(x)
    if values is not None:
        return bool((values >= 0).all())
    if x.op in ("iota", "relu", "abs", "top_k") or x.dtype == "i1" or x.op == "widen" and x.dtype == "i32":
        return True
    if not depth or x.dtype in FLOATS:
        return False
    parts = [_non_negative(o, depth - 1) for o in x.operands]
    if x.op in ("cast", "reshape", "transpose", "broadcast", "slice", "concat", "cumsum", "reduce",
                "add", "mul", "div", "minimum", "index_copy"):
        return all(parts)
    if x.op in ("gather", "take_along"):  # decided by the data, for any indices
        return parts[0]
    if x.op == "select":
        return parts[1] and parts[2]
    if x.op == "rem":  # has the sign of the divisor
        return parts[1]
    return x.op in ("maximum", "and") and any(parts)


def _grid(c, x, indices, indexed, rank):
    """x[i, j, ...] with each index counting along a dimension of its own: a transpose.

    The masks of transformers are written so: padding[batch index, key index].
    """
    own = [_own_dimension(indices[d], rank) for d in indexed]
    if any(o is None for o in own):
        return None
    counting = [o for o in own if o >= 0]
    if len(set(counting)) != len(counting):
        return None
    first, count = indexed[0], len(indexed)
    piece, keep = x, []
    for d, o in zip(indexed, own):
        length = 1 if o < 0 else indices[d].shape[o - (rank - indices[d].rank)]
        piece = c.build.slice_dim(piece, d, 0, length)
        if o >= 0:
            keep.append((o, d))
    rest = list(range(first)), list(range(first + count, x.rank))
    dropped = [d for d, o in zip(indexed, own) if o < 0]
    order = rest[0] + [d for _, d in sorted(keep)] + dropped + rest[1]
    moved = c.build.transpose(piece, order)
    sizes = [1] * rank
    for o, d in keep:
        sizes[o] = piece.shape[d]
    shape = [x.shape[d] for d in rest[0]] + sizes + [x.shape[d] for d in rest[1]]
    return c.build.reshape(moved, shape)
