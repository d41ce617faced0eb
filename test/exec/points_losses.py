# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Special points of losses that compare elements with targets."""
import math

import torch
import torch.nn.functional as F
from derivative_points import Case, grid

_PLAIN = [-3.0, -1.0, -0.5, 0.0, -0.0, 0.5, 1.0, 2.0, 40.0, -40.0, 200.0, -200.0, math.inf, -math.inf, math.nan]
_PARTS = [0.0, 1.0, 0.5, 0.25, 1e-30, 1.0 - 2 ** -8]
_TARGETS = [0.0, 1.0, 0.5]


def pairs(a, b):
    """All combinations of the numbers of two operands."""
    both = torch.cartesian_prod(torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64))
    return both[:, 0].contiguous(), both[:, 1].contiguous()


def against(name, function, a, b, **more):
    return Case(name, function, pairs(a, b), **more)


def each(loss, **options):
    return lambda x, y: loss(x, y, reduction="none", **options)


def _ones(y):
    return torch.where(y > 0.5, 1.0, -1.0).to(y.dtype)


def _weighted(x, y):
    return F.binary_cross_entropy(x, y, torch.arange(len(y)).to(x.dtype) % 3, reduction="none")


LOSSES = [
    against("binary_cross_entropy", each(F.binary_cross_entropy), _PARTS, _TARGETS),
    against("binary_cross_entropy, mean", F.binary_cross_entropy, [0.0, 1.0, 0.5], [0.0, 1.0]),
    against("binary_cross_entropy, weights", _weighted, _PARTS, _TARGETS),
    against("binary_cross_entropy of a sigmoid", lambda x, y: F.binary_cross_entropy(x.sigmoid(), y, reduction="none"),
            _PLAIN[:-3], _TARGETS),
    against("bce with logits", each(F.binary_cross_entropy_with_logits), _PLAIN, _TARGETS),
    against("bce with logits, mean", F.binary_cross_entropy_with_logits, [0.0, -0.0, 1.0, 40.0], _TARGETS),
    against("bce with logits, sum", lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="sum"),
            [0.0, -0.0, 1.0, -40.0], _TARGETS),
    Case("bce with logits, positive weight", lambda x, y, w: F.binary_cross_entropy_with_logits(
        x, y, weight=w.to(x.dtype), pos_weight=1 + w.to(x.dtype) / 2, reduction="none"),
        (*pairs(_PLAIN, _TARGETS), torch.arange(len(_PLAIN) * 3) % 4)),
    against("focal", lambda x, y: (1 - torch.exp(-F.binary_cross_entropy_with_logits(x, y, reduction="none"))) ** 2 *
            F.binary_cross_entropy_with_logits(x, y, reduction="none"), _PLAIN[:10], _TARGETS),
    against("multilabel_soft_margin_loss", each(F.multilabel_soft_margin_loss), [0.0, -0.0, 1.0, 40.0], [0.0, 1.0]),
    Case("mse_loss", each(F.mse_loss), grid()),
    Case("mse_loss, mean", F.mse_loss, pairs([0.0, -0.0, 1.0], [0.0, 1.0])),
    Case("l1_loss", each(F.l1_loss), grid()),
    Case("l1_loss, mean", F.l1_loss, pairs([0.0, -0.0, 1.0], [0.0, 1.0])),
    Case("smooth_l1_loss", each(F.smooth_l1_loss, beta=0.5), grid()),
    Case("smooth_l1_loss, beta 0", each(F.smooth_l1_loss, beta=0.0), grid()),
    Case("smooth_l1_loss, mean", F.smooth_l1_loss, pairs([0.0, -0.0, 1.0], [0.0, 1.0])),
    Case("huber_loss", each(F.huber_loss, delta=0.5), grid()),
    Case("huber_loss, sum", lambda x, y: F.huber_loss(x, y, reduction="sum"), pairs([0.0, -0.0, 1.0], [0.0, 1.0])),
    against("soft_margin_loss", lambda x, y: F.soft_margin_loss(x, _ones(y), reduction="none"), _PLAIN, _TARGETS),
    against("soft_margin_loss, mean", lambda x, y: F.soft_margin_loss(x, _ones(y)), [0.0, 1.0, -1.0], [0.0, 1.0]),
    against("hinge_embedding_loss", lambda x, y: F.hinge_embedding_loss(x, _ones(y), reduction="none"), _PLAIN, _TARGETS),
    Case("margin_ranking_loss", lambda a, b: F.margin_ranking_loss(a, b, torch.ones_like(a), margin=0.5, reduction="none"),
         grid()),
    Case("dist", lambda a, b: torch.stack([torch.dist(a, b), torch.dist(a, a.detach()), torch.dist(a, b, 1)]),
         (torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.0, 3.0, -2.0]))),
    against("kl_div", each(F.kl_div), _PLAIN[:10], _TARGETS),
    against("kl_div, log_target", each(F.kl_div, log_target=True), _PLAIN[:10], [-math.inf, 0.0, -1.0]),
    against("poisson_nll_loss", each(F.poisson_nll_loss), _PLAIN[:10], [0.0, 1.0, 2.0, 3.5]),
    against("poisson_nll_loss, full", lambda x, y: F.poisson_nll_loss(x, y, log_input=False, full=True, reduction="none"),
            [0.0, 0.5, 2.0], [0.0, 1.0, 2.0, 3.5]),
    Case("cosine_embedding_loss", lambda a, b: F.cosine_embedding_loss(
        a.view(-1, 3), b.view(-1, 3), torch.tensor([1, -1] * 3), margin=0.25, reduction="none"),
        (torch.tensor([1.0, 0, 0, 0, 0, 0, 1, 2, 3, 1, 2, 3, 0, 1, 0, 3, 3, 3]),
         torch.tensor([1.0, 0, 0, 1, 0, 0, 1, 2, 3, -1, -2, -3, 0, 0, 1, 1, 0, 2]))),
    Case("triplet_margin_loss", lambda a, b, c: F.triplet_margin_loss(
        a.view(-1, 2), b.view(-1, 2), c.view(-1, 2), reduction="none"),
        (torch.tensor([0.0, 0, 1, 1, 2, 0]), torch.tensor([0.0, 1, 1, 1, 2, 3]), torch.tensor([0.0, 2, 1, 1, 5, 0]))),
]
