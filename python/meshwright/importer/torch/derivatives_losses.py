# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Derivatives of losses that compare elements with targets (derivatives.py)."""
from .derivatives import derivative
from .formulas import Formula, exp, log, sigmoid, sqrt, where

_NONE, _MEAN, _SUM = 0, 1, 2
#: PyTorch's bound is 1e-12 as an f32, for all types.
_LEAST = 9.999999960041972e-13


def _reduced(loss: Formula, reduction: int) -> Formula:
    return {_NONE: lambda: loss, _MEAN: loss.mean, _SUM: loss.sum}[reduction]()


def _weighted(loss: Formula, weight) -> Formula:
    return loss if weight is None else loss * weight


def _log_sigmoid(x: Formula) -> Formula:
    """min(x, 0) - log(1 + e^-|x|)"""
    return where(x < 0, x, 0) + log(sigmoid(x.unary("abs")))


@derivative("binary_cross_entropy")
def binary_cross_entropy(d, x, y, weight=None, reduction=_MEAN):
    """PyTorch bounds the denominator by 1e-12, and the logarithms of the loss alone."""
    below = ((1 - x) * x).at_least(_LEAST)
    of_target = log(1 - x) - log(x)
    return _reduced(_weighted(d(x) * ((x - y) / below) + d(y) * of_target, weight), reduction)


@derivative("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(d, x, y, weight=None, pos_weight=None, reduction=_MEAN):
    if pos_weight is None:
        loss = d(x) * (sigmoid(x) - y) - d(y) * x
    else:
        positive = pos_weight * y
        loss = d(x) * ((positive + 1 - y) * sigmoid(x) - positive) + \
            d(y) * (_log_sigmoid(-x) - pos_weight * _log_sigmoid(x))
    return _reduced(_weighted(loss, weight), reduction)


@derivative("mse_loss")
def mse_loss(d, x, y, reduction=_MEAN):
    """Infinite where twice the difference is, as in PyTorch."""
    return _reduced((d(x) - d(y)) * ((x - y) * 2), reduction)


@derivative("smooth_l1_loss")
def smooth_l1_loss(d, x, y, reduction=_MEAN, beta=1.0):
    rest = x - y
    slope = where(rest <= -beta, -1.0, where(rest >= beta, 1.0, rest / beta))
    return _reduced((d(x) - d(y)) * slope, reduction)


@derivative("huber_loss")
def huber_loss(d, x, y, reduction=_MEAN, delta=1.0):
    rest = x - y
    slope = where(rest <= -delta, -delta, where(rest >= delta, delta, rest))
    return _reduced((d(x) - d(y)) * slope, reduction)


@derivative("soft_margin_loss")
def soft_margin_loss(d, x, y, reduction=_MEAN):
    """As PyTorch computes it: NaN where the exponential overflows."""
    z = exp(-(y * x))
    return _reduced(d(x) * (-y * z / (z + 1)), reduction)


@derivative("cosine_similarity")
def cosine_similarity(d, x, y, dim=1, eps=1e-8):
    """PyTorch bounds the norms where gradients are off: their derivative is that of the norms
    themselves, also below the bound."""
    rank = max(x.rank, y.rank)
    shape, dims = [max(sizes) for sizes in zip(*([1] * (rank - v.rank) + list(v.shape) for v in (x, y)))], \
        [dim % rank]

    def unit(v):
        wide = Formula(v.build, v.build.broadcast(v.node, shape), v.build.broadcast(d(v).node, shape))
        squares = wide * wide
        norm = sqrt(squares.sum(dims, True))
        slope = where(norm.equals(0), 0, wide / norm)
        change, bound = wide.of(wide.tangent), norm.at_least(eps)
        of_norm = (change * slope).sum(dims, True)
        return wide / bound, change / bound - wide / bound / bound * of_norm

    (x, of_x), (y, of_y) = unit(x), unit(y)
    return (of_x * y + of_y * x).sum(dims)
