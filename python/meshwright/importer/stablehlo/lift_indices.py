# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The corrections that jax.numpy puts around indices, and losses that read by index.

jnp.take and x[i] read row i + n for a negative i, and give NaN where i is out of range. A program has no such
row: an index that is out of range ends its run. So these corrections go.
"""
import numpy as np

from ..graph.dialect import FLOATS
from ..graph.forms import Dense
from ..graph.match import constant_of, is_natural, strip_casts
from ..graph.nodes import Builder, Node
from .weights import is_weight

_READS = ("gather", "take_along", "embedding")


def past(node: Node, *ops) -> Node:
    while node.op in ops:
        node = node.operands[0]
    return node


def rows(build: Builder, node: Node) -> Node | None:
    """Rows of a table of weights by index: an embedding."""
    if node.op != "gather" or node.attrs["dim"] != 0 or node.operands[0].rank != 2 or \
            not is_weight(node.operands[0]):
        return None
    table, ids = node.operands
    if ids.form is not None:
        return None
    return build.embedding(counted(build, ids, table.shape[0]), table)


def counted(build: Builder, ids: Node, rows: int) -> Node:
    """Indices without the correction of negative ones."""
    if ids.op in ("reshape", "cast", "broadcast"):
        inner = counted(build, ids.operands[0], rows)
        if inner is ids.operands[0]:
            return ids
        return {"reshape": lambda: build.reshape(inner, ids.shape), "cast": lambda: build.cast(inner, ids.dtype),
                "broadcast": lambda: build.broadcast(inner, ids.shape)}[ids.op]()
    found = _corrected(ids)
    return found[0] if found and found[1] == rows and found[0].shape == ids.shape else ids


def _corrected(node: Node) -> tuple[Node, int] | None:
    """(i, n) of select(i < 0, i + n, i)."""
    if node.op != "select":
        return None
    negative, moved, i = node.operands
    negative = past(negative, "broadcast", "reshape")
    if negative.op != "compare" or negative.attrs["kind"] != "lt" or constant_of(negative.operands[1]) != 0 or \
            moved.op != "add" or moved.operands[0] is not i or constant_of(moved.operands[1]) is None or \
            past(negative.operands[0], "reshape") is not past(i, "reshape"):
        return None
    return i, int(constant_of(moved.operands[1]))


def natural(build: Builder, node: Node) -> Node | None:
    """Positions are never negative."""
    found = _corrected(node)
    return found[0] if found and is_natural(found[0]) and found[0].shape == node.shape else None


def in_range(build: Builder, node: Node) -> Node | None:
    """select(0 <= i and i <= n, x[i], NaN): x[i]."""
    if node.op != "select" or node.dtype not in FLOATS:
        return None
    condition, value, other = node.operands
    nothing = constant_of(other)
    if nothing is None or nothing == nothing or value.shape != node.shape or \
            past(value, "reshape", "transpose", "broadcast", "neg").op not in (*_READS, "cross_entropy"):
        return None
    inside = past(condition, "broadcast", "reshape", "transpose")
    if inside.op != "and" or any(o.op != "compare" for o in inside.operands):
        return None
    lower, upper = inside.operands
    is_range = lower.attrs["kind"] == "ge" and constant_of(lower.operands[1]) == 0 and \
        upper.attrs["kind"] == "le" and constant_of(upper.operands[1]) is not None
    return value if is_range else None


# Losses.

def label_of_log_softmax(build: Builder, node: Node) -> Node | None:
    """The logarithm of a label's probability: minus the cross-entropy."""
    if node.op != "take_along" or node.shape[node.attrs["dim"]] != 1:
        return None
    x, index = node.operands
    dim = node.attrs["dim"]
    logits = log_softmax(x, dim)
    if logits is None or logits.shape != x.shape:
        return None
    return build.reshape(build.unary("neg", _loss(build, logits, index, dim)), node.shape)


def _loss(build: Builder, logits: Node, index: Node, dim: int) -> Node:
    labels = build.reshape(counted(build, index, logits.shape[dim]), logits.shape[:dim] + logits.shape[dim + 1:])
    wide = build.cast(logits, "f32") if logits.dtype in ("bf16", "f16") else logits
    loss = build.make("cross_entropy", [wide, build.cast(labels, "i64")], labels.shape, wide.dtype, dim=dim,
                      ignore_index=None, label_smoothing=None)
    return build.cast(loss, logits.dtype)


def label_of_sums(build: Builder, node: Node) -> Node | None:
    """log(sum(exp(z))) - z[label]: the cross-entropy."""
    if node.op != "sub":
        return None
    total, own = (past(o, "reshape") for o in node.operands)
    read = own
    if read.op == "select":
        inner = in_range(build, read)
        read = read if inner is None else past(inner, "reshape")
    if read.op != "take_along" or read.shape[read.attrs["dim"]] != 1:
        return None
    z, index = read.operands
    dim = read.attrs["dim"]
    logits = log_sum_exp(total, dim)
    if logits is None:
        return None
    if _unshaped(logits) is not _unshaped(z):
        return None
    loss = _loss(build, z, index, dim)
    return build.reshape(loss, node.shape)


def label_of_one_hot(build: Builder, node: Node) -> Node | None:
    """The sum of one-hot labels times log-probabilities."""
    if node.op != "reduce" or node.attrs["kind"] != "sum" or node.attrs["dims"] != [node.operands[0].rank - 1]:
        return None
    product, dim = node.operands[0], node.operands[0].rank - 1
    if product.op != "mul":
        return None
    for hot, logs in (product.operands, product.operands[::-1]):
        logits, labels = log_softmax(logs, dim), _one_hot(hot, product.shape[dim])
        if logits is not None and labels is not None and logits.shape == product.shape:
            index = build.broadcast(labels, (*product.shape[:-1], 1))
            return build.reshape(build.unary("neg", _loss(build, logits, index, dim)), node.shape)
    return None


def _one_hot(node: Node, classes: int) -> Node | None:
    """The labels [..., 1] of cast(labels == 0, 1, ...)."""
    node = strip_casts(node)
    if node.op != "cast" or node.operands[0].op != "compare" or node.operands[0].attrs["kind"] != "eq":
        return None
    for labels, numbers in (node.operands[0].operands, node.operands[0].operands[::-1]):
        form = numbers.form
        if isinstance(form, Dense) and numbers.shape[-1:] == (classes,) and form.values.size == classes and \
                (form.values.reshape(-1) == np.arange(classes)).all() and labels.shape[-1:] == (1,):
            return labels
    return None


def log_softmax(node: Node, dim: int) -> Node | None:
    """z of (z - m) - log(sum(exp(z - m))), where m does not vary along a dimension."""
    node = strip_casts(node)
    if node.op != "sub":
        return None
    shifted, total = node.operands
    found = _log_of_sum(total, dim)
    if found is None or strip_casts(found) is not strip_casts(shifted):
        found = log_sum_exp(total, dim)
        return found if found is not None and strip_casts(found) is strip_casts(shifted) else None
    return _unshifted(strip_casts(shifted), dim)[0]


def log_sum_exp(node: Node, dim: int) -> Node | None:
    """z of log(sum(exp(z - m))) + m."""
    node = past(strip_casts(node), "reshape", "broadcast")
    if node.op != "add":
        return _log_of_sum(node, dim) if node.op == "log" else None
    for log, m in (node.operands, node.operands[::-1]):
        found = _log_of_sum(log, dim)
        if found is None:
            continue
        z, row = _unshifted(strip_casts(found), dim)
        if row is not None and _unshaped(row) is _unshaped(m):
            return z
    return None


def _log_of_sum(node: Node, dim: int) -> Node | None:
    """x of log(sum(exp(x))) along a dimension; the sum may be in absolute value."""
    node = past(strip_casts(node), "reshape", "broadcast")
    if node.op != "log":
        return None
    total = past(strip_casts(node.operands[0]), "reshape", "broadcast", "abs")
    if total.op != "reduce" or total.attrs["kind"] != "sum" or total.attrs["dims"] != [dim]:
        return None
    exp = strip_casts(total.operands[0])
    return exp.operands[0] if exp.op == "exp" else None


def _unshifted(node: Node, dim: int) -> tuple[Node, Node | None]:
    """(z, m) of z - m."""
    if node.op != "sub":
        return node, None
    z, row = node.operands
    inner = past(row, "broadcast")
    shape = (1,) * (node.rank - inner.rank) + inner.shape
    return (z, inner) if z.shape == node.shape and shape[dim] == 1 else (node, None)


def _unshaped(node: Node) -> Node:
    return past(strip_casts(node), "reshape", "broadcast")
