# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Operations that make constants, and that move elements."""
import numpy as np

from ..errors import Uncovered
from ..graph.forms import Dense, compress
from ..graph.nodes import Node
from .attributes import constant, integer, integers
from .handlers import Context, handles


@handles("constant")
def constants(c: Context, op):
    shape, element = c.types.written(op.results[0])
    values = constant(op.attributes["value"], shape, element)
    if not shape:
        return c.build.scalar(values.item(), c.dtype)
    return c.build.static(compress(Dense(values)), shape, c.dtype)


@handles("iota")
def iota(c, op):
    shape, dim = c.shape, integer(op, "iota_dimension")
    values = np.arange(shape[dim]).reshape([-1 if d == dim else 1 for d in range(len(shape))])
    result = c.constant(values, shape, c.dtype)
    result.recipe = lambda: c.build.cast(c.build.make("iota", [], shape, "i64", dim=dim), result.dtype)
    return result


@handles("broadcast_in_dim")
def broadcast_in_dim(c, op, x):
    dims, shape = integers(op.attributes["broadcast_dimensions"]), c.shape
    if dims != sorted(dims):
        order = sorted(range(len(dims)), key=dims.__getitem__)
        x, dims = c.build.transpose(x, order), sorted(dims)
    inner = c.narrow.get(x) or (x.operands[0] if x.op == "broadcast" else None)
    if inner is not None and not inner.shape:
        x, dims = inner, []
    if x.shape:
        wide = [1] * len(shape)
        for size, dim in zip(x.shape, dims):
            wide[dim] = size
        # Dimensions that do not stretch stay narrow, so that users may read them so.
        if inner is not None and inner.rank == x.rank:
            narrow = [1] * len(shape)
            for size, dim in zip(inner.shape, dims):
                narrow[dim] = size
            x, wide = inner, narrow
        x = c.build.reshape(x, wide)
    result = c.build.broadcast(x, shape)
    if result is not x and result.form is not None:
        c.narrow[result] = x
    return result


@handles("reshape")
def reshape(c, op, x):
    return c.build.reshape(x, c.shape)


@handles("transpose")
def transpose(c, op, x):
    permutation = integers(op.attributes["permutation"])
    inner = c.narrow.get(x)
    result = c.build.transpose(x, permutation)
    if inner is not None and inner.rank == x.rank:
        c.narrow[result] = c.build.transpose(inner, permutation)
    return result


@handles("slice")
def slice_(c, op, x):
    starts, limits, strides = (integers(op.attributes[f"{name}"])
                               for name in ("start_indices", "limit_indices", "strides"))
    return cut(c, x, starts, limits, strides)


def cut(c: Context, x: Node, starts, limits, strides=None) -> Node:
    known = c.known(x) if x.op == "static" else None
    if known and sum(s > 0 or e < n for s, e, n in zip(starts, limits, x.shape)) > 1:
        at = tuple(slice(s, e, t) for s, e, t in zip(starts, limits, strides or [1] * x.rank))
        return c.constant(known[0][at], known[0][at].shape, x.dtype)
    if c.parts and x.op == "parameter" and x.rank > 1 and limits[0] - starts[0] == 1 < x.shape[0] and \
            list(limits[1:]) == list(x.shape[1:]) and not any(starts[1:]) and (strides or [1])[0] == 1 and \
            not ("sharding" in x.attrs and any(f.axes for f in x.attrs["sharding"].dims[0])):
        return c.layer(x, starts[0])
    return c.build.slice(x, starts, limits, strides)


@handles("concatenate")
def concatenate(c, op, *operands):
    dim = integer(op, "dimension")
    known = c.known(*operands)
    if known:
        return c.constant(np.concatenate(known, dim), c.shape, c.dtype)
    return c.build.concat([x for x in operands if x.shape[dim]] or operands[:1], dim)


@handles("pad")
def pad(c, op, x, value):
    low, high, interior = (integers(op.attributes[name])
                           for name in ("edge_padding_low", "edge_padding_high", "interior_padding"))
    for dim, (before, after, between) in enumerate(zip(low, high, interior)):
        x = padded(c, spread(c, x, dim, between + 1, value), dim, before, after, value)
    return x


def padded(c: Context, x: Node, dim: int, before: int, after: int, value: Node) -> Node:
    """x with so many elements more along a dimension, or fewer where a number is negative."""
    x = c.build.slice_dim(x, dim, max(0, -before), x.shape[dim] - max(0, -after))
    fill = lambda count: c.build.broadcast(value, x.shape[:dim] + (count,) + x.shape[dim + 1:])
    parts = [fill(before)] if before > 0 else []
    parts += [x] if x.shape[dim] else []
    parts += [fill(after)] if after > 0 else []
    known = c.known(*parts)
    if known and len(parts) > 1:
        joined = np.concatenate(known, dim)
        return c.constant(joined, joined.shape, x.dtype)
    return c.build.concat(parts or [x], dim)


def spread(c: Context, x: Node, dim: int, step: int, value: Node) -> Node:
    """x with `step` - 1 values between its elements along a dimension."""
    if step == 1:
        return x
    size = x.shape[dim]
    apart = c.build.reshape(x, x.shape[:dim + 1] + (1,) + x.shape[dim + 1:])
    apart = padded(c, apart, dim + 1, 0, step - 1, value)
    whole = c.build.reshape(apart, x.shape[:dim] + (size * step,) + x.shape[dim + 1:])
    return c.build.slice_dim(whole, dim, 0, (size - 1) * step + 1)


@handles("reverse")
def reverse(c, op, x):
    known = c.known(x)
    dims = integers(op.attributes["dimensions"])
    if known:
        return c.constant(np.flip(known[0], dims), c.shape, c.dtype)
    for dim in dims:
        if x.shape[dim] > 1:
            x = c.build.gather(x, c.constant(np.arange(x.shape[dim])[::-1], (x.shape[dim],), "i64"), dim)
    return x


@handles("optimization_barrier")
def barrier(c, op, *operands):
    return list(operands)


@handles("bitcast_convert")
def bitcast(c, op, x):
    raise Uncovered("stablehlo.bitcast_convert is not covered: the bits of numbers are no values of a program. Random "
                    "numbers read bits, too: expected a forward pass without them")


@handles("real_dynamic_slice", "dynamic_reshape", "dynamic_broadcast_in_dim", "dynamic_iota", "dynamic_pad",
         "dynamic_gather", "dynamic_conv", "get_dimension_size", "set_dimension_size")
def dynamic(c, op, *operands):
    raise Uncovered(f"{op.name} has a dynamic shape: expected static shapes")


@handles("reduce_precision")
def reduce_precision(c, op, x):
    bits = integer(op, "exponent_bits"), integer(op, "mantissa_bits")
    through = {(8, 7): "bf16", (5, 10): "f16", (8, 23): "f32", (11, 52): "f64"}.get(bits)
    if through is None:
        raise Uncovered(f"stablehlo.reduce_precision to {bits[0]} bits of the exponent and {bits[1]} of the mantissa is "
                        "not covered: expected those of bf16, f16 or f32")
    return c.build.cast(c.build.cast(x, through), x.dtype)


def positions(c: Context, size: int, shape, dim: int) -> Node:
    """0, 1, ... along a dimension of a shape, whose other dimensions have the size 1."""
    return c.constant(np.arange(size).reshape([-1 if d == dim else 1 for d in range(len(shape))]),
                      [size if d == dim else 1 for d in range(len(shape))], "i64")
