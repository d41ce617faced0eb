# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Constants, shapes, indices and reductions of `nn`."""
from .elementwise import _kind
from .ops import Op, Refused, expands, wide
from .text import Value, Writer, array, broadcast_shape, ints

_KINDS = ("sum", "mean", "max", "min")
_COMBINERS = {"sum": "add", "mean": "add", "max": "maximum", "min": "minimum"}


@expands("nn.constant")
def _constant(op: Op, w: Writer):
    return w.make(f"stablehlo.constant {str(op.operation.attributes['value']).rpartition(' : ')[0]}",
                  op.shape, op.dtype)


@expands("nn.iota")
def _iota(op: Op, w: Writer):
    return w.iota(op.shape, op.attribute("dim"), op.dtype)


@expands("nn.reshape")
def _reshape(op: Op, w: Writer):
    return w.reshape(op.x, op.shape)


@expands("nn.transpose")
def _transpose(op: Op, w: Writer):
    return w.transpose(op.x, op.attribute("permutation"))


@expands("nn.slice")
def _slice(op: Op, w: Writer):
    return w.slice(op.x, op.attribute("starts"), op.attribute("limits"), op.attribute("strides"))


@expands("nn.concat")
def _concat(op: Op, w: Writer):
    return w.concat(op.operands, op.attribute("dim"))


@expands("nn.broadcast")
def _broadcast(op: Op, w: Writer):
    return w.broadcast(op.x, op.shape)


@expands("nn.pad")
def _pad(op: Op, w: Writer):
    return w.pad(op.x, op.attribute("low"), op.attribute("high"), op.attribute("interior"))


@expands("nn.gather")
def _gather(op: Op, w: Writer):
    return w.take(*op.operands, op.attribute("dim"))


def take_along(w: Writer, x: Value, indices: Value, dim: int) -> Value:
    """Elements of a dimension by index, as NumPy's `take_along_axis`."""
    others = [d for d in range(x.rank) if d != dim]
    batching = f"operand_batching_dims = {ints(others)}, start_indices_batching_dims = {ints(others)}, " if others \
        else ""
    return w.generic(
        "gather", [x, indices],
        f"dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [{dim}], {batching}"
        f"start_index_map = [{dim}], index_vector_dim = {indices.rank}>, indices_are_sorted = false, "
        f"slice_sizes = {array([1] * x.rank)}", indices.shape, x.dtype)


@expands("nn.take_along")
def _take_along(op: Op, w: Writer):
    return take_along(w, *op.operands, op.attribute("dim"))


def _scatter(w: Writer, x: Value, indices: Value, updates: Value, dim: int, along: bool, combine: str) -> Value:
    if along:
        others = [d for d in range(x.rank) if d != dim]
        batching = f"input_batching_dims = {ints(others)}, scatter_indices_batching_dims = {ints(others)}, " \
            if others else ""
        window = ""
    else:
        batching, kept = "", [d for d in range(updates.rank) if not dim <= d < dim + indices.rank]
        window = f"update_window_dims = {ints(kept)}, " if kept else ""
    return w.generic(
        "scatter", [x, indices, updates],
        f"scatter_dimension_numbers = #stablehlo.scatter<{window}inserted_window_dims = [{dim}], {batching}"
        f"scatter_dims_to_operand_dims = [{dim}], index_vector_dim = {indices.rank}>, "
        f"indices_are_sorted = false, unique_indices = false", x.shape, x.dtype, w.combiner(combine, x.dtype))


@expands("nn.index_copy")
def _index_copy(op: Op, w: Writer):
    data, indices, source = op.operands
    return _scatter(w, data, indices, source, op.attribute("dim"), False, "second")


@expands("nn.scatter_add")
def _scatter_add(op: Op, w: Writer):
    updates, indices = op.operands[:2]
    if len(op.operands) > 2:
        indices = w.binary("subtract", indices, w.convert(op.operands[2], indices.dtype))
        # An index below the local rows would count from the end in no implementation: it is left out.
    zeros = w.full(op.shape, 0, op.dtype)
    return _scatter(w, zeros, indices, w.convert(updates, op.dtype), op.attribute("dim"), op.has("along"), "add")


@expands("nn.reduce")
def _reduce(op: Op, w: Writer):
    kind, dims = op.attribute("kind"), op.attribute("dims")
    kind = _KINDS[kind] if isinstance(kind, int) else _kind(kind, _KINDS)
    x = w.convert(op.x, wide(op.x.dtype)) if kind in ("sum", "mean") else op.x
    result = w.reduce(_COMBINERS[kind], x, dims, op.has("keep_dims"))
    if kind == "mean":
        count = 1
        for d in dims:
            count *= x.shape[d]
        result = w.binary("divide", result, count)
    return w.convert(result, op.dtype)


@expands("nn.cumsum")
def _cumsum(op: Op, w: Writer):
    x, dim = w.convert(op.x, wide(op.dtype)), op.attribute("dim")
    window = [x.shape[d] if d == dim else 1 for d in range(x.rank)]
    padding = ", ".join(f"[{n - 1}, 0]" for n in window)
    zero = w.scalar(0, x.dtype)
    result = w.generic(
        "reduce_window", [x, zero],
        f"padding = dense<[{padding}]> : tensor<{x.rank}x2xi64>, window_dimensions = {array(window)}, "
        f"window_strides = {array([1] * x.rank)}", x.shape, x.dtype, w.combiner("add", x.dtype))
    return w.convert(result, op.dtype)


@expands("nn.matmul")
def _matmul(op: Op, w: Writer):
    x, y = op.operands
    batch = broadcast_shape(x.shape[:-2], y.shape[:-2])
    x, y = (w.broadcast(v, (*batch, *v.shape[-2:])) for v in (x, y))
    over = list(range(len(batch)))
    n = len(batch)
    contract = [n if op.has("transpose_lhs") else n + 1], [n + 1 if op.has("transpose_rhs") else n]
    return w.dot(x, y, (over, over), contract, op.dtype)


@expands("nn.linear")
def _linear(op: Op, w: Writer):
    x, weight = op.operands[:2]
    contract = [x.rank - 1], [0 if op.has("in_out") else 1]
    if len(op.operands) < 3:
        return w.dot(x, weight, ([], []), contract, op.dtype)
    result = w.dot(x, weight, ([], []), contract, wide(op.dtype))
    return w.convert(w.binary("add", result, w.convert(op.operands[2], result.dtype)), op.dtype)


@expands("nn.weight_grad")
def _weight_grad(op: Op, w: Writer):
    x, y = op.operands
    rows = list(range(x.rank - 1))
    return w.dot(x, y, ([], []), (rows, rows), op.dtype)


@expands("nn.embedding")
def _embedding(op: Op, w: Writer):
    ids, table = op.operands[:2]
    if len(op.operands) < 3:
        return w.take(table, ids, 0)
    local = w.binary("subtract", ids, w.convert(op.operands[2], ids.dtype))
    own = w.binary("and", w.compare("ge", local, 0), w.compare("lt", local, table.shape[0]))
    rows = w.take(table, w.select(own, local, 0), 0)
    return w.select(w.spread(own, rows.shape, range(own.rank)), rows, 0)


@expands("nn.top_k")
def _top_k(op: Op, w: Writer):
    k, (shape, dtype) = op.attribute("k"), op.results[0]
    values, indices = Value("", shape, op.x.dtype), Value("", shape, "i32")
    name = w.fresh()
    w.line(f"{name}:2 = chlo.top_k({op.x.name}, k = {k}) : {op.x.type} -> ({values.type}, {indices.type})")
    return w.convert(Value(f"{name}#1", shape, "i32"), dtype)


@expands("nn.random", "nn.dropout")
def _random(op: Op, w: Writer):
    raise Refused("random numbers: expected a program without them")


