# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Softmax, losses, norms and rotary embeddings of `nn`, written out."""
import math

from .ops import Op, computed, expands, wide
from .shapes import take_along
from .text import Value, Writer


def softmax(w: Writer, x: Value, dim: int, guarded=True) -> Value:
    """Of a row of minus infinity alone: zeros, if guarded."""
    largest = w.reduce("maximum", x, [dim], keep=True)
    if guarded:
        largest = w.select(w.compare("eq", largest, -math.inf), 0.0, largest)
    weights = w.unary("exponential", w.binary("subtract", x, largest))
    total = w.reduce("add", weights, [dim], keep=True)
    if guarded:
        total = w.select(w.compare("eq", total, 0), 1.0, total)
    return w.binary("divide", weights, total)


@expands("nn.softmax")
def _softmax(op: Op, w: Writer):
    return computed(op, w, lambda x: softmax(w, x, op.attribute("dim")))


@expands("nn.cross_entropy")
def _cross_entropy(op: Op, w: Writer):
    logits, labels = op.operands
    dim, ignored = op.attribute("dim"), op.attribute("ignore_index")
    smoothing = op.attribute("label_smoothing", 0.0)
    z = w.convert(logits, wide(logits.dtype))
    largest = w.reduce("maximum", z, [dim], keep=True)
    total = w.reduce("add", w.unary("exponential", w.binary("subtract", z, largest)), [dim])
    whole = w.binary("add", w.unary("log", total), w.reshape(largest, labels.shape))
    at = w.reshape(labels, largest.shape)
    if ignored is not None:
        at = w.select(w.compare("eq", at, ignored), 0, at)
    own = w.reshape(take_along(w, z, at, dim), labels.shape)
    loss = w.binary("subtract", whole, w.binary("multiply", own, 1 - smoothing) if smoothing else own)
    if smoothing:
        mean = w.binary("divide", w.reduce("add", z, [dim]), z.shape[dim])
        loss = w.binary("subtract", loss, w.binary("multiply", mean, smoothing))
    if ignored is not None:
        loss = w.select(w.compare("eq", labels, ignored), 0.0, loss)
    return w.convert(loss, op.dtype)


def _mean(w: Writer, x: Value) -> Value:
    return w.binary("divide", w.reduce("add", x, [x.rank - 1], keep=True), x.shape[-1])


@expands("nn.rms_norm")
def _rms_norm(op: Op, w: Writer):
    x = w.convert(op.x, wide(op.dtype))
    scale = w.unary("rsqrt", w.binary("add", _mean(w, w.binary("multiply", x, x)), op.attribute("eps")))
    y = w.binary("multiply", x, scale)
    if weight := op.named("weight"):
        weight = w.convert(weight, x.dtype)
        y = w.binary("multiply", y, w.binary("add", weight, 1) if op.has("unit_offset") else weight)
    return w.convert(y, op.dtype)


@expands("nn.layer_norm")
def _layer_norm(op: Op, w: Writer):
    x = w.convert(op.x, wide(op.dtype))
    centred = w.binary("subtract", x, _mean(w, x))
    variance = _mean(w, w.binary("multiply", centred, centred))
    y = w.binary("multiply", centred, w.unary("rsqrt", w.binary("add", variance, op.attribute("eps"))))
    if weight := op.named("weight"):
        y = w.binary("multiply", y, w.convert(weight, x.dtype))
    if bias := op.named("bias"):
        y = w.binary("add", y, w.convert(bias, x.dtype))
    return w.convert(y, op.dtype)


@expands("nn.rotary")
def _rotary(op: Op, w: Writer):
    x, cos, sin = (w.convert(v, wide(op.dtype)) for v in op.operands)
    last, features = x.rank - 1, max(cos.shape[-1], sin.shape[-1])
    turned = w.slice_dim(x, last, 0, features)
    if op.has("interleaved"):
        shape = (*turned.shape[:-1], features // 2, 2)
        pairs = w.reshape(turned, shape)
        first, second = (w.slice_dim(pairs, x.rank, i, i + 1) for i in (0, 1))
        rotated = w.reshape(w.concat([w.unary("negate", second), first], x.rank), turned.shape)
    else:
        first = w.slice_dim(turned, last, 0, features // 2)
        second = w.slice_dim(turned, last, features // 2, features)
        rotated = w.concat([w.unary("negate", second), first], last)
    y = w.binary("add", w.binary("multiply", turned, cos), w.binary("multiply", rotated, sin))
    if features < x.shape[-1]:
        y = w.concat([y, w.slice_dim(x, last, features, x.shape[-1])], last)
    return w.convert(y, op.dtype)
