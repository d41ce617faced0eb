# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Reductions, windows, and the order of elements."""
import functools
import math

import numpy as np
from jax.extend.mlir import ir

from ..errors import Uncovered
from ..graph.dialect import FLOATS
from ..graph.nodes import Node, ones_are_chunks
from .attributes import direction, integer, integers, optional_integers
from .handlers import Context, handles
from .ops_shape import padded

_KINDS = {"add": "sum", "maximum": "max", "minimum": "min", "and": "min", "or": "max", "multiply": "prod"}
_NUMPY = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}


def combination(op) -> str | None:
    """The operation that a region of two arguments is, if it is one."""
    block = op.regions[0].blocks[0]
    inner = [o.operation for o in block.operations]
    if len(inner) != 2 or len(inner[0].operands) != 2 or list(inner[1].operands) != list(inner[0].results):
        return None
    if set(inner[0].operands) != set(block.arguments):
        return None
    return inner[0].name.split(".")[1]


@handles("reduce")
def reduce(c: Context, op, *operands):
    count = len(operands) // 2
    values, starts = operands[:count], operands[count:]
    dims = integers(op.attributes["dimensions"])
    if count == 2:
        return _arg_extreme(c, op, values, dims)
    stated = combination(op)
    kind = _KINDS.get(stated)
    if count > 1 or kind is None:
        raise Uncovered(f"stablehlo.reduce by {stated and 'stablehlo.' + stated or 'a region of its own'} is not covered: "
                        "expected add, maximum, minimum, multiply, and, or")
    x, start = values[0], starts[0]
    known = c.known(x, start)
    if known:
        result = _NUMPY[kind](known[0].astype(np.int64) if known[0].dtype == bool else known[0], axis=tuple(dims))
        return _with_start(c, kind, c.constant(result, c.shape, c.dtype), start, stated)
    return _with_start(c, kind, reduced(c, kind, x, dims), start, stated)


def reduced(c: Context, kind: str, x: Node, dims) -> Node:
    """A reduction without the dimensions that it reduces."""
    b, dtype = c.build, x.dtype
    shape = [n for d, n in enumerate(x.shape) if d not in dims]
    # Truth values of one element are those of an index, and no chunk.
    if all(x.shape[d] == 1 for d in dims) and (dtype == "i1" or not ones_are_chunks()):
        return b.reshape(x, shape)
    if kind == "prod":
        return b.reshape(_product(b, x, dims), shape)
    wide = b.cast(x, "i32") if dtype == "i1" else x
    return b.reshape(b.cast(b.reduce(kind, wide, dims, True), dtype), shape)


def _product(b, x: Node, dims) -> Node:
    """By halves along one dimension after the other."""
    for dim in dims:
        while x.shape[dim] > 1:
            half = x.shape[dim] // 2
            lower, upper = b.slice_dim(x, dim, 0, half), b.slice_dim(x, dim, half, 2 * half)
            rest = b.slice_dim(x, dim, 2 * half, x.shape[dim]) if x.shape[dim] % 2 else None
            x = b.binary("mul", lower, upper)
            if rest is not None:
                x = b.concat([x, rest], dim)
    return x


def _with_start(c: Context, kind: str, x: Node, start: Node, stated: str) -> Node:
    """The reduction begins with a value, which is nearly always the neutral one."""
    value = start.form.values.item() if start.form is not None and start.form.values.size == 1 else None
    if value is not None and _is_neutral(kind, value, start.dtype):
        return x
    name = {"sum": "add", "max": "maximum", "min": "minimum", "prod": "mul"}[kind]
    if x.dtype == "i1":
        name = stated
    folded = c.fold(None, {"add": np.add, "maximum": np.maximum, "minimum": np.minimum, "mul": np.multiply,
                           "and": np.logical_and, "or": np.logical_or}[name], x, start)
    return folded or c.build.binary(name, x, start)


def _is_neutral(kind: str, value, dtype: str) -> bool:
    if dtype == "i1":
        return bool(value) == (kind in ("min", "prod"))
    least = -math.inf if dtype in FLOATS else np.iinfo({"i32": np.int32, "i64": np.int64}[dtype]).min
    most = math.inf if dtype in FLOATS else np.iinfo({"i32": np.int32, "i64": np.int64}[dtype]).max
    return value == {"sum": 0, "prod": 1, "max": least, "min": most}[kind]


def _arg_extreme(c: Context, op, values, dims) -> list[Node]:
    """The largest or smallest element and its position: of equal ones the first."""
    x, index = values
    is_position = index.form is not None and len(dims) == 1
    if is_position:
        along = index.form.values if hasattr(index.form, "values") else None
        is_position = along is not None and [n for n in along.shape if n != 1] in ([], [x.shape[dims[0]]]) and \
            (along.reshape(-1) == np.arange(along.size)).all()
    kinds = {direction(o.operation) for o in op.regions[0].blocks[0].operations
             if o.operation.name == "stablehlo.compare"} - {"eq", "ne"}
    if not is_position or not kinds & {"gt", "ge"} and not kinds & {"lt", "le"}:
        raise Uncovered("stablehlo.reduce of several operands is not covered: expected that of argmax or argmin")
    first = next(direction(o.operation) for o in op.regions[0].blocks[0].operations
                 if o.operation.name == "stablehlo.compare" and direction(o.operation) not in ("eq", "ne"))
    dim = dims[0]
    found, place = ordered(c, x, 1, dim, first in ("gt", "ge"))
    shape = [n for d, n in enumerate(x.shape) if d != dim]
    return [c.build.reshape(found, shape), c.build.cast(c.build.reshape(place, shape), index.dtype)]


# Windows.

@handles("reduce_window")
def reduce_window(c: Context, op, x, start):
    stated = combination(op)
    kind = _KINDS.get(stated)
    if len(op.results) > 1 or kind not in ("sum", "max", "min"):
        raise Uncovered("stablehlo.reduce_window is covered for add, maximum and minimum of one operand alone")
    ones, rank = [1] * x.rank, x.rank
    sizes = integers(op.attributes["window_dimensions"])
    strides, base, spread = (optional_integers(op, name, ones)
                             for name in ("window_strides", "base_dilations", "window_dilations"))
    pads = np.array(optional_integers(op, "padding", [0] * 2 * rank)).reshape(rank, 2).tolist()
    if any(n != 1 for n in base):
        raise Uncovered("stablehlo.reduce_window with base dilations is not covered")
    cut = [d for d in range(rank) if sizes[d] != 1 or strides[d] != 1 or any(pads[d])]
    if kind == "sum" and len(cut) == 1 and strides == spread == ones and x.shape[cut[0]] == sizes[cut[0]]:
        running = _running_sum(c, x, cut[0], pads[cut[0]])
        if running is not None:
            return running
    name = {"sum": "add", "max": "maximum", "min": "minimum"}[kind]
    for d in cut:
        count = (x.shape[d] + sum(pads[d]) - spread[d] * (sizes[d] - 1) - 1) // strides[d] + 1
        if strides[d] == sizes[d] and not any(pads[d]) and spread[d] == 1:
            whole = c.build.slice_dim(x, d, 0, count * sizes[d])
            windows = c.build.reshape(whole, (*x.shape[:d], count, sizes[d], *x.shape[d + 1:]))
            x = c.build.reduce(kind, windows, [d + 1], False)
            continue
        if sizes[d] > 256:
            raise Uncovered(f"stablehlo.reduce_window of {sizes[d]} elements that overlap is not covered: expected at most 256")
        x = padded(c, x, d, *pads[d], start)
        x = functools.reduce(lambda a, b: c.build.binary(name, a, b), [
            c.build.slice_dim(x, d, o * spread[d], o * spread[d] + (count - 1) * strides[d] + 1, strides[d])
            for o in range(sizes[d])])
    return x


def _running_sum(c: Context, x: Node, dim: int, pads) -> Node | None:
    """The sums of all elements up to each one, or from each one on."""
    size = x.shape[dim]
    known = c.known(x)
    if pads == [size - 1, 0]:
        if known:
            return c.constant(np.cumsum(known[0], dim), x.shape, x.dtype)
        return c.build.unary("cumsum", x, dim=dim)
    if pads != [0, size - 1]:
        return None
    back = c.constant(np.arange(size)[::-1], (size,), "i64")
    if known:
        return c.constant(np.flip(np.cumsum(np.flip(known[0], dim), dim), dim), x.shape, x.dtype)
    return c.build.gather(c.build.unary("cumsum", c.build.gather(x, back, dim), dim=dim), back, dim)


# Order.

def ordered(c: Context, x: Node, k: int, dim: int, largest: bool) -> list[Node]:
    """The k largest (or smallest) elements along a dimension, in order, and their positions."""
    b, order = c.build, [d for d in range(x.rank) if d != dim] + [dim]
    back = [order.index(d) for d in range(x.rank)]
    scores = b.cast(x, "i32") if x.dtype == "i1" else x
    if not largest:
        scores = b.unary("neg", scores) if x.dtype in FLOATS else b.binary("sub", b.scalar(-1, scores.dtype), scores)
    places = b.transpose(b.top_k(b.transpose(scores, order), k), back)
    return [b.make("take_along", [x, places], places.shape, x.dtype, dim=dim), places]


@handles("top_k", dialect="chlo")
def top_k(c, op, x):
    values, places = ordered(c, x, integer(op, "k"), x.rank - 1, True)
    return [values, c.build.cast(places, c.types.of(op.results[1])[1])]


@handles("sort")
def sort(c, op, *operands):
    """By the first operand; the others follow it."""
    dim = integer(op, "dimension", -1) % operands[0].rank
    block = op.regions[0].blocks[0]
    compared = [o.operation for o in block.operations if o.operation.name == "stablehlo.compare"]
    last = [o.operation for o in block.operations][-1].operands[0]
    final = next((o for o in compared if o.results[0] == last), None)
    kind = final and direction(final)
    if kind not in ("lt", "le", "gt", "ge") or not _reads_first(final, block):
        raise Uncovered("stablehlo.sort is covered by the order of one operand alone: expected a comparison of its "
                        "elements by < or >")
    values, places = ordered(c, operands[0], operands[0].shape[dim], dim, kind in ("gt", "ge"))
    return [values] + [c.build.make("take_along", [x, places], x.shape, x.dtype, dim=dim) for x in operands[1:]]


def _reads_first(comparison, block) -> bool:
    """Whether a comparison is of functions of the first operand's elements, in their order."""
    first, second = block.arguments[0], block.arguments[1]

    def sources(value, depth=0) -> set:
        owner = value.owner
        if isinstance(owner, ir.Block) or depth > 8:
            return {value}
        return set().union(*(sources(v, depth + 1) for v in owner.operands), set())

    left, right = (sources(v) for v in comparison.operands)
    return left == {first} and right == {second}
