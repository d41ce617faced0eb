# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Collectives and other ops of `dist`, on the values of a rank.

A rank's number is `stablehlo.partition_id`: axes are digits of it, the mesh's first axis major.
"""
import numpy as np

from ..importer.graph.layouts import Axis, Mesh, Sharding, read_factor, read_sharding, shards
from .ops import Op, Refused, expands
from .text import Value, Writer


def _groups(groups) -> str:
    rows = ", ".join("[" + ", ".join(map(str, ranks)) + "]" for ranks in groups)
    return f"dense<[{rows}]> : tensor<{len(groups)}x{len(groups[0])}xi64>"


def _channel(groups, attribute="replica_groups") -> str:
    return f"channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, {attribute} = {_groups(groups)}"


def coordinate(w: Writer, mesh: Mesh, axes) -> Value:
    """The rank's linear coordinate over axes, an i64."""
    rank = w.make("stablehlo.partition_id", (), "ui32")
    result = None
    for stride, size in map(mesh.digit, axes):
        digit = rank if stride == 1 else w.binary("divide", rank, w.scalar(stride, "ui32"))
        if stride * size < mesh.ranks:
            digit = w.binary("remainder", digit, w.scalar(size, "ui32"))
        result = digit if result is None else \
            w.binary("add", w.binary("multiply", result, w.scalar(size, "ui32")), digit)
    return w.scalar(0, "i64") if result is None else w.convert(result, "i64")


def all_reduce(w: Writer, x: Value, mesh: Mesh, axes, op: str) -> Value:
    return w.generic("all_reduce", [x], f"{_channel(mesh.groups(axes))}, use_global_device_ids", x.shape,
                     x.dtype, w.combiner(op, x.dtype))


def all_gather(w: Writer, x: Value, mesh: Mesh, axes, dim: int) -> Value:
    shape = [n * shards(axes) if d == dim else n for d, n in enumerate(x.shape)]
    return w.generic("all_gather", [x], f"all_gather_dim = {dim} : i64, {_channel(mesh.groups(axes))}, "
                     "use_global_device_ids", shape, x.dtype)


def own_chunk(w: Writer, x: Value, mesh: Mesh, axes, dim: int, rows: int, shift=0) -> Value:
    """The rank's `rows` rows of a value that all ranks have, which zeros at its tail fill."""
    ranks = shards(axes)
    x = w.grow(x, [rows * ranks if d == dim else n for d, n in enumerate(x.shape)])
    index = coordinate(w, mesh, axes)
    if shift % ranks:
        index = w.binary("remainder", w.binary("add", index, (-shift) % ranks), ranks)
    return w.dynamic_slice(x, dim, w.binary("multiply", index, rows), rows)


def _each(op: Op, function) -> list[Value]:
    """Of a launch with several tensors: each one's result."""
    return [function(i, x, *op.results[i]) for i, x in enumerate(op.operands)]


def _combiner(op: Op) -> str:
    return "maximum" if "max" in op.attribute("reduction", "sum") else "add"


@expands("dist.all_reduce")
def _all_reduce(op: Op, w: Writer):
    return _each(op, lambda i, x, shape, dtype: all_reduce(w, x, op.mesh, op.axes, _combiner(op)))


@expands("dist.reduce_scatter")
def _reduce_scatter(op: Op, w: Writer):
    dims, groups = op.attribute("dims"), op.mesh.groups(op.axes)
    return _each(op, lambda i, x, shape, dtype: w.generic(
        "reduce_scatter", [x], f"{_channel(groups)}, scatter_dimension = {dims[i]} : i64, use_global_device_ids",
        shape, dtype, w.combiner(_combiner(op), dtype)))


@expands("dist.all_gather")
def _all_gather(op: Op, w: Writer):
    dims = op.attribute("dims")
    return _each(op, lambda i, x, shape, dtype: all_gather(w, x, op.mesh, op.axes, dims[i]))


def all_to_all(w: Writer, x: Value, mesh: Mesh, axes, source: int, target: int) -> Value:
    """Axes move from one dimension to another."""
    groups, ranks = mesh.groups(axes), shards(axes)
    shape = list(x.shape)
    shape[source], shape[target] = shape[source] * ranks, shape[target] // ranks
    return w.generic("all_to_all", [x], f"{_channel(groups)}, concat_dimension = {source} : i64, "
                     f"split_count = {ranks} : i64, split_dimension = {target} : i64", shape, x.dtype)


@expands("dist.all_to_all")
def _all_to_all(op: Op, w: Writer):
    source, target = op.attribute("from"), op.attribute("to")
    return _each(op, lambda i, x, shape, dtype: all_to_all(w, x, op.mesh, op.axes, source[i], target[i]))


def _pairs(op: Op) -> list[tuple[int, int]]:
    """Source and destination of a permute, in one group."""
    size = shards(op.axes)
    shift = op.attribute("shift")
    if shift is not None:
        return [(i, (i + shift) % size) for i in range(size)]
    pairs = op.attribute("pairs")
    return list(zip(pairs[::2], pairs[1::2]))


@expands("dist.permute")
def _permute(op: Op, w: Writer):
    pairs = [[group[a], group[b]] for group in op.mesh.groups(op.axes) for a, b in _pairs(op)]
    return _each(op, lambda i, x, shape, dtype: w.generic(
        "collective_permute", [x], _channel(pairs, "source_target_pairs"), shape, dtype))


@expands("dist.slice")
def _slice(op: Op, w: Writer):
    dims, shift = op.attribute("dims"), op.attribute("shift", 0)
    return _each(op, lambda i, x, shape, dtype: own_chunk(
        w, x, op.mesh, op.axes, dims[i], shape[dims[i]], shift))


@expands("dist.partial")
def _partial(op: Op, w: Writer):
    if op.has("is_maximum"):
        return list(op.operands)
    first = w.compare("eq", coordinate(w, op.mesh, op.axes), 0)
    return _each(op, lambda i, x, shape, dtype: w.select(first, x, 0))


@expands("dist.redistribute")
def _redistribute(op: Op, w: Writer):
    """An all-to-all if axes move from one dimension to another, else gathers of all that is sharded, and
    slices."""
    sides = [list(op.operation.attributes[name]) for name in ("from", "to")]
    def move(i, x, shape, dtype):
        source, target = (_layout(op, str(side[i]), n) for side, n in zip(sides, (x.shape, shape)))
        changes = [(d, one, other) for d, ((one,), (other,)) in enumerate(zip(source.dims, target.dims))
                   if one.axes != other.axes]
        if len(changes) == 2:
            (d, lost, none), (e, empty, gained) = sorted(changes, key=lambda change: not change[1].axes)
            if lost.axes == gained.axes and not none.axes and not empty.axes:
                x = w.grow(x, [gained.padded if k == e else n for k, n in enumerate(x.shape)])
                x = all_to_all(w, x, op.mesh, lost.axes, d, e)
                return _fitted(w, x, shape)
        for d, one, _ in changes:
            x = all_gather(w, x, op.mesh, one.axes, d) if one.axes else x
        ranks = {d: shards(other.axes) for d, _, other in changes}
        x = _fitted(w, x, [n * ranks.get(d, 1) for d, n in enumerate(shape)])
        for d, _, other in changes:
            x = own_chunk(w, x, op.mesh, other.axes, d, shape[d]) if other.axes else x
        return x
    return _each(op, move)


def _fitted(w: Writer, x: Value, shape) -> Value:
    """x with the tail of dimensions cut off, or with zeros there."""
    x = w.slice(x, [0] * x.rank, [min(n, m) for n, m in zip(x.shape, shape)])
    return w.grow(x, shape)


def _layout(op: Op, text: str, local) -> Sharding:
    sharding = read_sharding(text, op.mesh, local, local)
    if any(len(dim) != 1 or dim[0].order for dim in sharding.dims):
        raise Refused("a redistribution of factors or orders of a dimension: expected whole dimensions")
    return sharding


@expands("dist.pad")
def _pad(op: Op, w: Writer):
    return w.grow(op.x, op.shape)


@expands("dist.mask_padding")
def _mask_padding(op: Op, w: Writer):
    dim, x = op.attribute("dim"), op.x
    row = w.iota([n if d == dim else 1 for d, n in enumerate(x.shape)], dim)
    first = w.binary("multiply", coordinate(w, op.mesh, op.axes), x.shape[dim])
    return w.select(w.compare("lt", w.binary("add", row, first), op.attribute("size")), x, op.attribute("value"))


@expands("dist.axis_index")
def _axis_index(op: Op, w: Writer):
    index = coordinate(w, op.mesh, op.axes)
    return w.convert(w.binary("multiply", index, op.attribute("chunk", 1)), op.dtype)


@expands("dist.positions")
def _positions(op: Op, w: Writer):
    factor = read_factor(op.attribute("factor"), op.mesh)
    tokens = w.table(np.array(factor.tokens()).reshape(-1))
    if not factor.axes:
        return tokens
    return own_chunk(w, tokens, op.mesh, factor.axes, 0, factor.local, op.attribute("shift", 0))


@expands("dist.reorder")
def _reorder(op: Op, w: Writer):
    source, target = (read_factor(op.attribute(name), op.mesh) for name in ("from", "to"))
    slots = {token: slot for slot, token in enumerate(source.tokens()) if token >= 0}
    # Padding stays where it is.
    order = [slots.get(token, slot) for slot, token in enumerate(target.tokens())]
    return w.take(op.x, w.table(np.array(order)), op.attribute("dim"))


@expands("dist.place")
def _place(op: Op, w: Writer):
    dim, ranks, total = op.attribute("dim"), shards(op.axes), None
    index = coordinate(w, op.mesh, op.axes)
    for chunk, shift in zip(op.operands, op.attribute("shifts")):
        zeros = w.full(op.shape, 0, op.dtype)
        at = w.binary("remainder", w.binary("add", index, (-shift) % ranks), ranks)
        at = w.binary("multiply", at, chunk.shape[dim])
        placed = w.dynamic_update(zeros, chunk, dim, at)
        total = placed if total is None else w.binary("add", total, placed)
    return total


@expands("dist.parts")
def _parts(op: Op, w: Writer):
    return w.reshape(op.x, op.shape)


@expands("dist.after")
def _after(op: Op, w: Writer):
    return op.x


@expands("dist.constrain")
def _constrain(op: Op, w: Writer):
    sharding = read_sharding(op.attribute("sharding"), op.mesh, op.shape)
    return w.make(f"sdy.sharding_constraint {op.x.name} {global_sharding(sharding)}", op.shape, op.dtype)


def sdy_sharding(dims: list[tuple[Axis, ...]]) -> str:
    """`<@mesh, [{"dp"}, {}]>`"""
    return "<@mesh, [" + ", ".join("{" + ", ".join(map(str, axes)) + "}" for axes in dims) + "]>"


def global_sharding(sharding: Sharding) -> str:
    """The sharding of a global value: `<@mesh, [{"dp", ?}, {}], unreduced={"tp"}>`. Factors of a dimension have
    no form, so such a dimension is open."""
    dims = []
    for (first, *more), is_open in zip(sharding.dims, sharding.open):
        axes = [] if more else [*map(str, first.axes)]
        dims.append("{" + ", ".join([*axes, *(["?"] if is_open or more else [])]) + "}")
    unreduced = f", unreduced={{{', '.join(map(str, sharding.unreduced))}}}" if sharding.unreduced else ""
    return f"<@mesh, [{', '.join(dims)}]{unreduced}>"


