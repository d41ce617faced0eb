# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""ATen operations that compare scores of classes with labels."""
import math

from ..graph.dialect import FLOATS
from ..graph.nodes import Node, numel
from .handlers import aten
from .ops_elementwise import wide
from .ops_reduce import log_softmax

_NONE, _MEAN = 0, 1


def _combine(c, loss: Node, weight: Node | None, reduction: int) -> Node:
    """The losses of all labels, their mean by weight, or their sum. No weight: all ones."""
    if reduction == _NONE:
        return loss
    dims = list(range(loss.rank))
    if not dims:
        return loss if reduction != _MEAN or weight is None else \
            c.build.binary("div", loss, weight)
    if reduction == _MEAN and weight is None:
        return c.build.reduce("mean", loss, dims, False)
    total = c.build.reduce("sum", loss, dims, False)
    if reduction != _MEAN:
        return total
    return c.build.binary("div", total, c.build.reduce("sum", weight, dims, False))


def _counted(c, labels: Node, ignored: int) -> Node:
    return c.build.compare("ne", labels, c.build.scalar(ignored, labels.dtype))


def _weights(c, labels: Node, counted: Node, weight: Node | None, dtype: str) -> Node:
    """The weight of each label: that of its class, or one; zero where it is ignored."""
    if weight is None:
        return c.build.cast(counted, dtype)
    chosen = c.build.select(counted, labels, c.build.scalar(0, labels.dtype))
    own = c.build.gather(c.build.cast(weight, dtype), chosen, 0)
    return c.build.select(counted, own, c.build.scalar(0, dtype))


@aten("cross_entropy_loss")
def cross_entropy_loss(c, x, labels, weight=None, reduction=_MEAN, ignored=-100, smoothing=0.0):
    x, dim = wide(c, c.operand(x)), 0 if x.rank == 1 else 1
    if labels.dtype in FLOATS:
        return _against_probabilities(c, x, labels, dim, weight, reduction, smoothing)
    is_weighted = weight is not None
    loss = c.build.make("cross_entropy", [x, labels], labels.shape, x.dtype, dim=dim,
                        ignore_index=ignored,
                        label_smoothing=None if is_weighted else smoothing or None)
    counted = _counted(c, labels, ignored)
    weights = _weights(c, labels, counted, weight, x.dtype)
    if is_weighted:
        loss = c.build.binary("mul", loss, weights)
        if smoothing:
            loss = _smoothed(c, x, dim, loss, counted, weight, smoothing)
    result = _combine(c, loss, weights, reduction)
    if is_weighted and smoothing and reduction == _MEAN and weights.rank:
        # If no label weighs anything, the part without smoothing is zero by zero.
        total = c.build.reduce("sum", weights, range(weights.rank), False)
        nothing = c.build.compare("eq", total, c.build.scalar(0, total.dtype))
        return c.build.select(nothing, c.build.scalar(math.nan, result.dtype), result)
    return result


def _smoothed(c, x, dim, loss, counted, weight, smoothing):
    """Part of the loss is the weighted mean of the losses of all classes."""
    others = c.build.binary("mul", log_softmax(c, x, dim), _of_classes(c, x, dim, weight))
    others = c.build.unary("neg", c.build.reduce("sum", others, [dim], False))
    others = c.build.select(counted, others, c.build.scalar(0, x.dtype))
    share = lambda y, part: c.build.binary("mul", y, c.build.scalar(part, x.dtype))
    return c.build.binary("add", share(loss, 1 - smoothing),
                          share(others, smoothing / x.shape[dim]))


def _of_classes(c, x, dim, weight):
    """The weights of the classes, along their dimension."""
    own = [n if d == dim else 1 for d, n in enumerate(x.shape)]
    return c.build.reshape(c.build.cast(weight, x.dtype), own)


def _against_probabilities(c, x, targets, dim, weight, reduction, smoothing):
    targets = c.build.cast(targets, x.dtype)
    if smoothing:
        targets = c.build.binary(
            "add", c.build.binary("mul", targets, c.build.scalar(1 - smoothing, x.dtype)),
            c.build.scalar(smoothing / x.shape[dim], x.dtype))
    if weight is not None:
        targets = c.build.binary("mul", targets, _of_classes(c, x, dim, weight))
    products = c.build.binary("mul", log_softmax(c, x, dim), targets)
    loss = c.build.unary("neg", c.build.reduce("sum", products, [dim], False))
    return _combine(c, loss, None, reduction)


@aten("nll_loss", "nll_loss_nd", "nll_loss2d")
def nll_loss(c, x, labels, weight=None, reduction=_MEAN, ignored=-100):
    x, dim = wide(c, c.operand(x)), 0 if x.rank == 1 else 1
    counted = _counted(c, labels, ignored)
    chosen = c.build.select(counted, labels, c.build.scalar(0, labels.dtype))
    column = (*labels.shape[:dim], 1, *labels.shape[dim:])
    picked = c.build.make("take_along", [x, c.build.reshape(chosen, column)], column, x.dtype,
                          dim=dim)
    weights = _weights(c, labels, counted, weight, x.dtype)
    # An ignored label may meet minus infinity.
    picked = c.build.select(counted, c.build.reshape(picked, labels.shape),
                            c.build.scalar(0, x.dtype))
    loss = c.build.unary("neg", picked)
    if weight is not None:
        loss = c.build.binary("mul", loss, weights)
    return _combine(c, loss, weights, reduction)


@aten("multi_margin_loss")
def multi_margin_loss(c, x, labels, power=1, margin=1, weight=None, reduction=_MEAN):
    """The mean over the classes of max(margin - own score + score, 0) to a power, but for the own
    class. NaN counts as nothing, as in PyTorch."""
    y = wide(c, x)
    y = c.build.reshape(y, (numel(y.shape[:-1]), y.shape[-1]))
    labels = c.build.reshape(labels, (y.shape[0], 1))
    number = c.build.make("iota", [], (y.shape[1],), labels.dtype, dim=0)
    zero = c.build.scalar(0, y.dtype)
    own = c.build.make("take_along", [y, labels], labels.shape, y.dtype, dim=1)
    over = c.build.binary("add", c.build.binary("sub", c.build.scalar(margin, y.dtype), own), y)
    counts = c.build.binary("and", c.build.compare("gt", over, zero),
                            c.build.compare("ne", number, labels))
    loss = c.build.select(counts, over, zero)
    if power == 2:
        loss = c.build.binary("mul", loss, loss)
    if weight is not None:
        own = c.build.reshape(labels, labels.shape[:1])
        weight = c.build.gather(c.build.cast(weight, y.dtype), own, 0)
        loss = c.build.binary("mul", loss, c.build.reshape(weight, labels.shape))
    loss = c.build.reduce("mean", loss, [1], False)
    return _combine(c, c.build.reshape(loss, x.shape[:-1]), None, reduction)


@aten("multilabel_margin_loss_forward")
def multilabel_margin_loss(c, x, labels, reduction):
    """For each label before the first -1, and each class that is no label, max(1 - score of the
    label + score, 0), by the number of classes. NaN counts as nothing, as in PyTorch."""
    y = wide(c, x)
    y = c.build.reshape(y, (numel(y.shape[:-1]), y.shape[-1]))
    batch, classes = y.shape
    labels = c.build.reshape(labels, y.shape)
    zero, none = c.build.scalar(0, y.dtype), c.build.scalar(0, labels.dtype)
    is_end = c.build.compare("eq", labels, c.build.scalar(-1, labels.dtype))
    ended = c.build.unary("cumsum", c.build.cast(is_end, labels.dtype), dim=1)
    is_label = c.build.compare("eq", ended, none)
    labels = c.build.select(is_label, labels, none)
    # [batch, label, class]
    column = lambda v: c.build.reshape(v, (batch, classes, 1))
    number = c.build.make("iota", [], (classes,), labels.dtype, dim=0)
    hit = c.build.binary("and", c.build.compare("eq", column(labels), number), column(is_label))
    target = c.build.reduce("max", c.build.cast(hit, "i32"), [1], True)
    own = c.build.make("take_along", [y, labels], y.shape, y.dtype, dim=1)
    over = c.build.binary("sub", c.build.scalar(1, y.dtype), column(own))
    over = c.build.binary("add", over, c.build.reshape(y, (batch, 1, classes)))
    counts = c.build.binary("and", c.build.compare("gt", over, zero), column(is_label))
    counts = c.build.binary("and", counts, c.build.compare("eq", target, c.build.scalar(0, "i32")))
    loss = c.build.reduce("sum", c.build.select(counts, over, zero), [1, 2], False)
    loss = c.build.binary("div", loss, c.build.scalar(classes, y.dtype))
    loss = _combine(c, c.build.reshape(loss, x.shape[:-1]), None, reduction)
    return [c.build.cast(loss, x.dtype), c.build.cast(c.build.reshape(target, x.shape), x.dtype)]
