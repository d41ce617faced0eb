# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""ATen operations that replace elements by index: writes to caches, and functions like them."""
import numpy as np

from ..errors import Uncovered
from ..graph.forms import Dense, written_out
from ..graph.match import constant_of, strip
from ..graph.nodes import Node, broadcast_shapes, numel
from .derivatives import derivative, with_derivative
from .handlers import Context, aten
from .ops_shape import check_range, flat_index, known_values, wrapped


def place(c: Context, x: Node, dim: int, index: Node, source: Node) -> Node:
    """x with the rows of `source` at the positions of `index` along `dim`."""
    check_range(index, x.shape[dim])
    if not numel(index.shape):
        return x
    values = written_out(index.form, index.shape) if isinstance(index.form, Dense) else None
    if values is not None and (values[1:] - values[:-1] == 1).all():
        first = int(values[0])
        parts = [c.build.slice_dim(x, dim, 0, first), source,
                 c.build.slice_dim(x, dim, first + len(values), x.shape[dim])]
        return c.build.concat([p for p in parts if p.shape[dim]], dim)
    return c.build.make("index_copy", [x, index, source], x.shape, x.dtype, dim=dim)


def _add_at(c: Context, x: Node, dim: int, index: Node, source: Node) -> Node:
    """x with the rows of `source` added at the positions of `index` along `dim`."""
    size, count = x.shape[dim], index.shape[0]
    total = _sums_of_order(c, size, dim, index, source)
    if total is not None:
        return total if constant_of(x) == 0 else c.build.binary("add", x, total)
    if known_values(index) is None:
        # The lookup gives the index itself, and fails where it is out of range.
        steps = c.build.make("iota", [], (size,), "i64", dim=0)
        index = c.build.gather(steps, index, 0)
    own = [1] * (x.rank + 1)
    own[dim] = size
    steps = c.build.make("iota", [], own, "i64", dim=dim)
    own[dim], own[dim + 1] = 1, count
    hit = c.build.compare("eq", steps, c.build.reshape(c.build.cast(index, "i64"), own))
    rows = c.build.reshape(source, source.shape[:dim] + (1,) + source.shape[dim:])
    rows = c.build.select(hit, rows, c.build.scalar(0, x.dtype))
    return c.build.binary("add", x, c.build.reduce("sum", rows, [dim + 1], False))


def _sums_of_order(c: Context, size: int, dim: int, index: Node, source: Node) -> Node | None:
    """The sums of the rows of `source` at each position of `index`, if that is an order of all rows
    divided by a number k. Back in that order k rows that follow each other have one position."""
    index, k = strip(index), 1
    if index.op == "div" and constant_of(index.operands[1]) is not None:
        index, k = strip(index.operands[0]), int(constant_of(index.operands[1]))
    count = source.shape[dim]
    if index.op != "top_k" or index.shape != (count,) or index.operands[0].shape != (count,) or \
            count != k * size:
        return None
    steps = c.build.make("iota", [], (count,), "i64", dim=0)
    zeros = c.build.broadcast(c.build.scalar(0, "i64"), (count,))
    back = c.build.gather(source, place(c, zeros, 0, c.build.cast(index, "i64"), steps), dim)
    if k == 1:
        return back
    apart = c.build.reshape(back, (*source.shape[:dim], size, k, *source.shape[dim + 1:]))
    return c.build.reduce("sum", apart, [dim + 1], False)


def _by_rows(c, x, dim, index, source, combine):
    shape = x.shape
    if not x.rank:
        x = c.build.reshape(x, (1,))
    dim, index = dim % x.rank, c.build.reshape(index, (numel(index.shape),))
    rows = x.shape[:dim] + index.shape + x.shape[dim + 1:]
    source = c.build.cast(source, x.dtype)
    source = c.build.reshape(source, rows) if numel(source.shape) == numel(rows) else \
        c.build.broadcast(source, rows)
    return c.build.reshape(combine(c, x, dim, index, source), shape)


@aten("index_copy")
def index_copy(c, x, dim, index, source):
    return _by_rows(c, x, dim, index, source, place)


@aten("index_fill")
def index_fill(c, x, dim, index, value):
    """The one of these operations that takes negative indices."""
    if x.rank:
        index = wrapped(c, index, x.shape[dim])
    return _by_rows(c, x, dim, index, c.operand(value, x.dtype), place)


@aten("index_add")
def index_add(c, x, dim, index, source, *, alpha=1):
    if alpha != 1:
        source = c.build.binary("mul", source, c.build.scalar(alpha, source.dtype))
    return _by_rows(c, x, dim, index, source, _add_at)


def _without_known_masks(c, indices) -> list[Node | None]:
    """The positions where a mask is true, one index for each of its dimensions, if it is known."""
    result = []
    for index in indices:
        mask = written_out(index.form, index.shape) if index is not None and \
            index.dtype == "i1" and index.form is not None else None
        if mask is None:
            result.append(index)
        else:
            result += [c.build.static(Dense(at), at.shape, "i64") for at in np.nonzero(mask)]
    return result


@aten("index_put", "_unsafe_index_put", "_index_put_impl")
def index_put(c, x, indices, values, accumulate=False, unsafe=False):
    indices = _without_known_masks(c, indices)
    indices += [None] * (x.rank - len(indices))
    indexed = [d for d, i in enumerate(indices) if i is not None]
    values = c.build.cast(values, x.dtype)
    if len(indexed) == 1 and indices[indexed[0]].dtype == "i1":
        return _masked(c, x, indexed[0], indices[indexed[0]], values, accumulate)
    if any(indices[d].dtype == "i1" for d in indexed):
        raise Uncovered("writing at several indices of which one is a boolean mask is not covered")
    for d in indexed:
        indices[d] = wrapped(c, indices[d], x.shape[d])
    order = list(range(x.rank))
    if indexed != list(range(indexed[0], indexed[-1] + 1)):
        order = indexed + [d for d in order if d not in indexed]
    moved = c.build.transpose(x, order)
    indices = [indices[d] for d in order]
    indexed = [d for d, i in enumerate(indices) if i is not None]
    first, last = indexed[0], indexed[-1] + 1
    lead, rest = moved.shape[:first], moved.shape[last:]
    together = broadcast_shapes(*(indices[d].shape for d in indexed))
    values = c.build.broadcast(values, lead + together + rest)
    flat = indices[first] if len(indexed) == 1 else flat_index(c, moved, indices, indexed)
    flat = c.build.reshape(c.build.broadcast(flat, together), (numel(together),))
    merged = c.build.reshape(moved, lead + (numel(moved.shape[first:last]),) + rest)
    values = c.build.reshape(values, lead + flat.shape + rest)
    result = (_add_at if accumulate else place)(c, merged, first, flat, values)
    result = c.build.reshape(result, moved.shape)
    return c.build.transpose(result, [order.index(d) for d in range(x.rank)])


def _masked(c, x, dim, mask, values, accumulate):
    """x[..., mask] = a value: its shape does not depend on the mask."""
    if values.rank and numel(values.shape) != 1:
        raise Uncovered("writing several values at a boolean mask is not covered: their places "
                        "depend on values")
    mask = c.build.reshape(mask, mask.shape + (1,) * (x.rank - dim - mask.rank))
    value = c.build.reshape(values, ())
    if accumulate:
        value = c.build.binary("add", x, value)
    return c.build.select(mask, c.build.broadcast(value, x.shape), x)


@aten("one_hot")
def one_hot(c, index, classes=-1):
    """A comparison with all classes; the lookup fails for an index that is none."""
    if known_values(index) is None:
        table = c.build.make("iota", [], (classes,), "i64", dim=0)
        index = c.build.gather(table, index, 0)
    check_range(index, classes)
    column = c.build.reshape(index, (*index.shape, 1))
    steps = c.build.make("iota", [], (1,) * index.rank + (classes,), "i64", dim=index.rank)
    return c.build.compare("eq", column, steps)


@aten("masked_scatter")
def masked_scatter(c, x, mask, source):
    """At the n-th true element the n-th element of `source`; by rows, where rows have one mask."""
    shape, count = x.shape, 1
    mask = c.build.broadcast(mask, shape)
    narrow = mask.operands[0] if mask.op == "broadcast" else mask
    if x.rank and narrow.shape[-1:] == (1,):
        count = shape[-1]
        mask = c.build.broadcast(narrow, (*shape[:-1], 1))
    flat = c.build.reshape(mask, (numel(mask.shape),))
    if numel(source.shape) % count or not numel(source.shape):
        raise Uncovered(f"a source of {numel(source.shape)} elements for rows of {count} is not "
                        "covered")
    rows = c.build.reshape(c.build.cast(source, x.dtype), (numel(source.shape) // count, count))
    place = c.build.unary("cumsum", c.build.cast(flat, "i64"), dim=0)
    place = c.build.binary("sub", place, c.build.scalar(1, "i64"))
    place = c.build.binary("maximum", place, c.build.scalar(0, "i64"))
    taken = c.build.reshape(c.build.gather(rows, place, 0), shape)
    return c.build.select(mask, taken, x)


@aten("diagonal_scatter")
def diagonal_scatter(c, x, source, offset=0, dim1=0, dim2=1):
    dim1, dim2 = dim1 % x.rank, dim2 % x.rank
    order = [d for d in range(x.rank) if d not in (dim1, dim2)] + [dim1, dim2]
    moved = c.build.transpose(x, order)
    rows, columns = moved.shape[-2:]
    flat = c.build.reshape(moved, (*moved.shape[:-2], rows * columns))
    at = max(offset, 0) + max(-offset, 0) * columns + \
        np.arange(source.shape[-1]) * (columns + 1)
    result = place(c, flat, flat.rank - 1, c.build.static(Dense(at), at.shape, "i64"),
                   c.build.cast(source, x.dtype))
    return c.build.transpose(c.build.reshape(result, moved.shape),
                             [order.index(d) for d in range(x.rank)])


@aten("zero")
def zero(c, x):
    return c.build.broadcast(c.build.scalar(0, x.dtype), x.shape)


@aten("scatter.src", "scatter.value", "scatter_add")
def scatter(c, x, dim, index, source):
    """Compares every position with every index: for dimensions that are small."""
    shape, dim = x.shape, dim % max(x.rank, 1)
    x, index = (c.build.reshape(y, y.shape or (1,)) for y in (x, index))
    reach = [n if d == dim else m for d, (n, m) in enumerate(zip(x.shape, index.shape))]
    if not numel(index.shape):
        return c.build.reshape(x, shape)
    part = c.build.slice(x, [0] * x.rank, reach)
    return c.build.reshape(_over(c, x, _scattered(c, part, dim, index, source)), shape)


def _over(c, whole, part):
    """`whole` with `part` at its beginning in each dimension."""
    own = part.shape
    for d in reversed(range(whole.rank)):
        if own[d] != whole.shape[d]:
            starts = [own[d] if i == d else 0 for i in range(whole.rank)]
            limits = [*own[:d], *whole.shape[d:]]
            part = c.build.concat([part, c.build.slice(whole, starts, limits)], d)
    return part


def _scattered(c, x, dim, index, source):
    check_range(index, x.shape[dim])
    source = c.operand(source, x.dtype)
    if source.rank:
        source = c.build.slice(source, [0] * source.rank, index.shape)
    size, count = x.shape[dim], index.shape[dim]
    if known_values(index) is None:
        steps = c.build.make("iota", [], (size,), "i64", dim=0)
        index = c.build.gather(steps, index, 0)
    apart = lambda y: c.build.reshape(y, y.shape[:dim] + (1,) + y.shape[dim:]) if y.rank else y
    steps = lambda n, at: c.build.make(
        "iota", [], [n if d == at else 1 for d in range(x.rank + 1)], "i64", dim=at)
    hit = c.build.compare("eq", steps(size, dim), apart(c.build.cast(index, "i64")))
    if c.fx.target.__name__.startswith("scatter_add"):
        rows = c.build.select(hit, apart(source), c.build.scalar(0, x.dtype))
        return c.build.binary("add", x, c.build.reduce("sum", rows, [dim + 1], False))
    last = c.build.select(hit, steps(count, dim + 1), c.build.scalar(-1, "i64"))
    last = c.build.reduce("max", last, [dim + 1], False)
    zero_index = c.build.scalar(0, "i64")
    if source.rank:
        at = c.build.binary("maximum", last, zero_index)
        taken = c.build.make("take_along", [source, at], at.shape, x.dtype, dim=dim)
    is_written = c.build.compare("ge", last, zero_index)
    if not source.rank:
        return c.build.select(is_written, source, x)
    return with_derivative(c, c.build.select(is_written, taken, x), "scatter.sources",
                           (x, apart(source), hit, is_written, dim), {})


@derivative("scatter.sources")
def _of_scattered(d, x, source, hit, is_written, dim):
    """PyTorch gives each source of an element its gradient, also those that others overwrite."""
    return d(x).where(~is_written) + d(source).where(hit).sum([dim + 1])
