# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""ATen operations that order elements, and the products of rows that are ordered by expert."""
import math

from ..errors import Uncovered
from ..graph.dialect import FLOATS
from ..graph.nodes import Node, numel
from .handlers import Context, aten
from .ops_elementwise import isnan


def _ordered(c: Context, x: Node, k: int, dim: int, largest: bool) -> list[Node]:
    """The k largest (or smallest) elements along a dimension, in order, and their positions."""
    shape, dim = x.shape, dim % max(x.rank, 1)
    x = c.build.reshape(x, shape or (1,))
    order = [d for d in range(x.rank) if d != dim] + [dim]
    back = [order.index(d) for d in range(x.rank)]
    scores = c.build.cast(x, "i32") if x.dtype == "i1" else x
    scores = c.build.transpose(scores if largest else _reversed(c, scores), order)
    places = c.build.transpose(c.build.top_k(scores, k), back)
    values = c.build.make("take_along", [x, places], places.shape, x.dtype, dim=dim)
    result = (*shape[:dim], k, *shape[dim + 1:]) if shape else ()
    return [c.build.reshape(y, result) for y in (values, places)]


def _reversed(c: Context, x: Node) -> Node:
    """Numbers in the opposite order: of integers -1 - x, which does not overflow. NaN is last, as
    in PyTorch."""
    if x.dtype not in FLOATS:
        return c.build.binary("sub", c.build.scalar(-1, x.dtype), x)
    return c.build.select(isnan(c, x), c.build.scalar(-math.inf, x.dtype), c.build.unary("neg", x))


@aten("topk")
def topk(c, x, k, dim=-1, largest=True, sorted=True):
    return _ordered(c, x, k, dim, largest)


@aten("sort")
def sort(c, x, *args, **kwargs):
    dim, descending = _order(args, kwargs)
    return _ordered(c, x, x.shape[dim] if x.rank else 1, dim, descending)


@aten("argsort")
def argsort(c, x, *args, **kwargs):
    return sort(c, x, *args, **kwargs)[1]


@aten("msort")
def msort(c, x):
    return _ordered(c, x, x.shape[0] if x.rank else 1, 0, False)[0]


def _order(args, kwargs):
    """(dim, descending) of the overloads of sort and argsort."""
    named = dict(zip(("dim", "descending"), args), **kwargs)
    return named.get("dim", -1), named.get("descending", False)


@aten("kthvalue")
def kthvalue(c, x, k, dim=-1, keep=False):
    values, places = _ordered(c, x, k, dim, False)
    if not x.rank:
        return [values, places]
    dim = dim % x.rank
    last = [c.build.slice_dim(y, dim, k - 1, k) for y in (values, places)]
    shape = x.shape[:dim] + ((1,) if keep else ()) + x.shape[dim + 1:]
    return [c.build.reshape(y, shape) for y in last]


@aten("histc")
def histc(c, x, bins=100, low=0, high=0):
    if low == high and bins > 1:  # a single bin has all elements
        raise Uncovered("histc whose range depends on values is not covered: state min and max")
    return c.build.make("histc", [c.build.reshape(x, (numel(x.shape),))], (bins,), x.dtype,
                        low=float(low), high=float(high))


@aten("transformers.grouped_mm_fallback.default", "_grouped_mm")
def grouped_mm(c, rows, weight, offsets=None, bias=None, out_dtype=None):
    """Rows of the first expert up to offsets[0], of the second one up to offsets[1], ..."""
    if offsets is None or rows.rank != 2 or weight.rank != 3:
        raise Uncovered(f"a grouped product of {list(rows.shape)} and {list(weight.shape)} is not "
                        "covered; expected rows [rows, in], weights [experts, in, out] and offsets")
    if bias is not None:
        raise Uncovered("a grouped product with a bias is not covered")
    return c.build.make("grouped_mm", [rows, weight, offsets], (rows.shape[0], weight.shape[2]),
                        rows.dtype, whole=False)


@aten("grouped_product")
def grouped_product(c, rows, weight, counts):
    """The next rows, as many as counts[0], of the first expert, as many as counts[1] of the second
    one, ... There are no others."""
    return c.build.make("grouped_mm", [rows, weight, _ends(c, counts)],
                        (rows.shape[0], weight.shape[2]), rows.dtype, whole=True)


@aten("repeat_interleave.Tensor", "repeat_interleave.self_Tensor")
def repeat_interleave(c, x, repeats=None, dim=None, *, output_size=None):
    """Rows, each as often as a number says; of the numbers alone the positions of the rows."""
    if repeats is None:
        return c.build.make("owner", [_ends(c, x)], (output_size,), "i64")
    if dim is None:
        x, dim = c.build.reshape(x, (numel(x.shape),)), 0
    ends = _ends(c, c.build.broadcast(repeats, (x.shape[dim],)))
    owner = c.build.make("owner", [ends], (output_size,), "i64")
    return c.build.gather(x, owner, dim % x.rank)


def _ends(c: Context, counts: Node) -> Node:
    return c.build.unary("cumsum", c.build.cast(counts, "i64"), dim=0)
