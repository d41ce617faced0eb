# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attention of `nn` as products, a mask and a softmax.

Query heads that share a key head are a dimension of their own, if there are several: scores are [batch,
kv_heads, group, q_len, kv_len], else [batch, heads, q_len, kv_len].
"""
import math
from typing import NamedTuple

from .layers import softmax
from .ops import Op, Refused, expands, wide
from .text import Value, Writer


class _Scores(NamedTuple):
    """Scores before the mask, and what they come from."""
    query: Value
    key: Value
    value: Value
    scores: Value
    #: The derivative of the soft cap, if there is one: a factor of each cotangent of a score.
    slope: Value | None
    #: Which keys a query sees; None for all of them.
    seen: Value | None
    #: Whether each query sees a key for all values of the operands.
    certain: bool


def _grouped(w: Writer, x: Value, heads: int) -> Value:
    """[batch, q_heads, ...] as [batch, kv_heads, group, ...]."""
    if x.shape[1] == heads:
        return x
    return w.reshape(x, (x.shape[0], heads, x.shape[1] // heads, *x.shape[2:]))


def _bias(w: Writer, bias: Value, heads: int, q_heads: int) -> Value:
    """A bias that broadcasts to the scores."""
    shape = (1,) * (4 - bias.rank) + bias.shape
    if heads == q_heads:
        return w.reshape(bias, shape)
    split = (heads, q_heads // heads) if shape[1] == q_heads else (1, 1)
    return w.reshape(bias, (shape[0], *split, *shape[2:]))


def _mask(op: Op, w: Writer, rank: int, q_len: int, kv_len: int) -> tuple[Value | None, bool]:
    """The mask, which broadcasts to the scores, and whether it shows each query a key for certain."""
    query, key = op.named("q_positions"), op.named("kv_positions")
    masks, placed = [], query is not None
    causal, left, right = op.has("causal"), op.attribute("window_left"), op.attribute("window_right")
    rows, columns = rank - 2, rank - 1

    def along(x: Value, dim: int) -> Value:
        """Positions [n] or [batch, n] along a dimension of the scores."""
        batch = x.shape[0] if x.rank > 1 else 1
        return w.reshape(x, [batch if d == 0 else x.shape[-1] if d == dim else 1 for d in range(rank)])

    def index(dim: int) -> Value:
        n = q_len if dim == rows else kv_len
        return w.iota([n if d == dim else 1 for d in range(rank)], dim)

    i, j = (along(query, rows), along(key, columns)) if placed else (index(rows), index(columns))
    if placed:
        masks.append(w.compare("ge", j, 0))
    if causal:
        masks.append(w.compare("le", j, i))
    if left is not None:
        masks.append(w.compare("ge", j, w.binary("subtract", i, left)))
    if right is not None:
        masks.append(w.compare("le", j, w.binary("add", i, right)))
    if (count := op.attribute("kv_length")) is not None:
        masks.append(w.compare("lt", index(columns), count))
    if lengths := op.named("kv_lengths"):
        masks.append(w.compare("lt", j, w.reshape(lengths, (lengths.shape[0], *[1] * (rank - 1)))))
    if padding := op.named("key_padding"):
        masks.append(along(padding, columns))
    seen = None
    for mask in masks:
        seen = mask if seen is None else w.binary("and", seen, mask)
    # Without a bound from below, each query sees key 0; with windows alone, the key of its own index.
    certain = not placed and not op.named("kv_lengths") and not op.named("key_padding") and \
        (count is None or count > 0) and (left is None or q_len <= (kv_len if count is None else count))
    return seen, certain


def _scores(op: Op, w: Writer) -> _Scores:
    if op.named("drop_rows") or op.has("dropout"):
        raise Refused("dropout: expected a program without random numbers")
    q, k, v = op.operands[:3]
    dtype, heads, q_heads = wide(q.dtype), k.shape[1], q.shape[1]
    q, k, v = (w.convert(x, dtype) for x in (q, k, v))
    q = _grouped(w, q, heads)
    scores = w.dot(q, k, _BATCH, ([q.rank - 1], [3]), dtype)
    scores = w.binary("multiply", scores, op.attribute("scale"))
    slope = None
    if cap := op.attribute("soft_cap"):
        part = w.unary("tanh", w.binary("divide", scores, cap))
        scores = w.binary("multiply", part, cap)
        slope = w.binary("subtract", 1, w.binary("multiply", part, part))
    bias = op.named("bias")
    if bias:
        scores = w.binary("add", scores, w.convert(_bias(w, bias, heads, q_heads), dtype))
    seen, certain = _mask(op, w, q.rank, q.shape[-2], k.shape[2])
    return _Scores(q, k, v, scores, slope, seen, certain and not bias)


#: Batch and key heads, of both operands.
_BATCH = ([0, 1], [0, 1])


@expands("nn.attention")
def _attention(op: Op, w: Writer):
    a = _scores(op, w)
    last = a.scores.rank - 1
    hidden = a.scores if a.seen is None else w.select(a.seen, a.scores, -math.inf)
    weights = softmax(w, hidden, last, guarded=not a.certain)
    result = w.dot(weights, a.value, _BATCH, ([last], [2]), a.value.dtype)
    shape, dtype = op.results[0]
    result = w.convert(w.reshape(result, shape), dtype)
    if len(op.results) == 1:
        return [result]
    largest = w.reduce("maximum", hidden, [last], keep=True)
    finite = w.select(w.compare("eq", largest, -math.inf), 0.0, largest)
    total = w.reduce("add", w.unary("exponential", w.binary("subtract", hidden, finite)), [last])
    shape, dtype = op.results[1]
    lse = w.binary("add", w.unary("log", total), w.reshape(finite, total.shape))
    return [result, w.convert(w.reshape(lse, shape), dtype)]


@expands("nn.attention_grad")
def _attention_grad(op: Op, w: Writer):
    a = _scores(op, w)
    dtype, heads, last = a.query.dtype, a.key.shape[1], a.scores.rank - 1
    lse, delta = (_grouped(w, w.convert(op.named(n), dtype), heads) for n in ("lse", "delta"))
    lse, delta = (w.reshape(x, (*x.shape, 1)) for x in (lse, delta))
    cotangent = _grouped(w, w.convert(op.named("cotangent"), dtype), heads)
    alive = w.compare("gt", lse, -math.inf)
    p = w.unary("exponential", w.binary("subtract", a.scores, w.select(alive, lse, 0.0)))
    p = w.binary("minimum", p, 1)
    p = w.select(alive if a.seen is None else w.binary("and", *w.pair(alive, a.seen)), p, 0.0)
    ds = w.binary("multiply", p, w.binary("subtract", w.dot(cotangent, a.value, _BATCH, ([last], [3]), dtype), delta))
    inner = w.binary("multiply", ds, a.slope) if a.slope else ds
    # Query heads of a group add up in the gradients of their key head.
    rows = list(range(2, last))
    grads = [w.binary("multiply", w.dot(inner, a.key, _BATCH, ([last], [2]), dtype), op.attribute("scale")),
             w.binary("multiply", w.dot(inner, a.query, _BATCH, (rows, rows), dtype), op.attribute("scale")),
             w.dot(p, cotangent, _BATCH, (rows, rows), dtype)]
    results = [w.convert(w.reshape(g, shape), kind) for g, (shape, kind) in zip(grads, op.results)]
    if len(op.results) > 3:
        shape, kind = op.results[3]
        whole = w.reshape(ds, (*op.named("query").shape[:3], ds.shape[-1]))
        aligned = (1,) * (4 - len(shape)) + shape
        summed = [d for d in range(4) if aligned[d] == 1 and whole.shape[d] != 1]
        results.append(w.convert(w.reshape(w.reduce("add", whole, summed), shape), kind))
    return results


@expands("nn.merge_attention")
def _merge_attention(op: Op, w: Writer):
    one, lse_one, two, lse_two = op.operands
    dtype = lse_one.dtype
    largest = w.binary("maximum", lse_one, lse_two)
    finite = w.select(w.compare("eq", largest, -math.inf), 0.0, largest)
    parts = [w.unary("exponential", w.binary("subtract", lse, finite)) for lse in (lse_one, lse_two)]
    total = w.binary("add", *parts)
    whole = w.binary("add", w.unary("log", total), finite)
    safe = w.select(w.compare("eq", total, 0), 1.0, total)
    result = None
    for value, part in zip((one, two), parts):
        share = w.binary("divide", part, safe)
        term = w.binary("multiply", w.convert(value, dtype), w.reshape(share, (*share.shape, 1)))
        result = term if result is None else w.binary("add", result, term)
    return [w.convert(result, op.dtype), whole]
