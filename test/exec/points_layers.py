# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Special points of layers: products, norms over features, bags, losses over classes."""
import math

import torch
import torch.nn.functional as F
from derivative_points import Case
from points_reductions import EQUAL, ONE, SPECIAL

inf, nan = math.inf, math.nan
A = torch.tensor([[1.0, -2.0, 0.0, 0.5], [0.0, 0.0, 0.0, 0.0], [3.0, 1.0, -1.0, 2.0]])
B = torch.tensor([[1.0, 0.0], [2.0, -1.0], [0.5, 3.0], [-1.0, 1.0]])
INFINITE = torch.tensor([[inf, 0.0, 1.0, 2.0], [1.0, nan, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]])
#: One sample has all-equal elements. Means of four elements are exact, so that differences are, too.
CUBE = torch.tensor([1.0, 1.0, 2.0, 0.0, -1.0, 3.0, 1.0, 1.0, 1.0, 0.5, 0.25, -2.0, 2.0, 2.0, 2.0, 2.0]).view(1, 4, 4)
CUBE = torch.cat([CUBE, torch.ones(1, 4, 4)])

PRODUCTS = [case for x in (A, INFINITE) for case in (
    Case("matmul", torch.matmul, (x, B)), Case("mm", torch.mm, (x, B)), Case("mv", torch.mv, (x, B[:, 0])),
    Case("linear", F.linear, (x, B.t().contiguous(), torch.ones(2))),
    Case("einsum", lambda a, b: torch.einsum("ij,jk->ki", a, b), (x, B)),
    Case("outer", torch.outer, (x[0], B[:, 0])), Case("dot", torch.dot, (x[0], B[:, 0])),
    Case("bmm", lambda a, b: torch.bmm(a[None], b[None]), (x, B)),
    Case("addmm", torch.addmm, (torch.ones(2), x, B)),
    Case("baddbmm", lambda a, b, y: torch.baddbmm(y, a[None], b[None], beta=2, alpha=3), (x, B, torch.ones(1, 3, 2))),
    Case("addbmm", lambda a, b, y: torch.addbmm(y, a[None], b[None]), (x, B, torch.ones(3, 2))),
    Case("bilinear", lambda a, b, w: F.bilinear(a, b, w), (x, B[:3], torch.ones(2, 4, 2))),
)] + [Case("diagonal by einsum", lambda x: torch.einsum("ii->i", x), (INFINITE[:, :3],)),
      Case("linear by a vector", F.linear, (A, B[:, 0]))]

NORMS = [
    *[Case("layer_norm", lambda x, w, b: F.layer_norm(x, w.shape, w, b), (x, 1 + x[-1], x[-1])) for x in (EQUAL[:, :4], ONE)],
    Case("layer_norm of infinities", lambda x: F.layer_norm(x, (3,)), (SPECIAL,)),
    Case("layer_norm of two dimensions", lambda x: F.layer_norm(x, x.shape[1:]), (CUBE,)),
    Case("native_layer_norm", lambda x: torch.native_layer_norm(x, (5,), None, None, 1e-5)[0], (EQUAL[2:],)),
    *[Case("rms_norm", lambda x, w: F.rms_norm(x, w.shape, w, eps=1e-6), (x, 1 + x[-1])) for x in (EQUAL[1:], ONE)],
    Case("rms_norm of infinities", lambda x: F.rms_norm(x, (3,), eps=1e-6), (SPECIAL,)),
    Case("group_norm", lambda x: F.group_norm(x, 2, torch.ones_like(x[0, :, 0]), x[0, :, 1]), (CUBE,)),
    Case("instance_norm", F.instance_norm, (CUBE,)),
    Case("batch_norm", lambda x: F.batch_norm(x, None, None, x[0, :, 0], x[0, :, 1], True), (CUBE,)),
    Case("batch_norm, evaluation", lambda x: F.batch_norm(x, torch.zeros_like(x[0, :, 0]), torch.zeros_like(x[0, :, 0])), (CUBE,)),
    Case("local_response_norm", lambda x: F.local_response_norm(x, 3), (CUBE,)),
    Case("_weight_norm", lambda v, g: torch._weight_norm(v, g), (EQUAL[:4], torch.ones(4, 1))),
]

_TABLE = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, -1.0], [1.0, 0.0, 3.0], [-1.0, -1.0, -1.0], [0.5, 4.0, 3.0]])
_IDS = torch.tensor([[0, 1, 2], [2, 2, 4], [3, 3, 3]])
BAGS = [Case(f"embedding_bag {mode}, {padding}", lambda t, m=mode, p=padding: F.embedding_bag(_IDS, t, mode=m, padding_idx=p),
             (_TABLE,)) for mode in ("max", "mean", "sum") for padding in (None, 2, 3)]

#: All-equal scores, a sure row, minus infinity at a label and elsewhere.
SCORES = torch.tensor([[0.5, -1.0, 2.0, 0.25, 1.0], [0.0] * 5, [90.0, 0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, -inf, 1.0],
                       [0.0, -inf, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1e30, -1e30]])
LABELS, NO_LABELS = torch.tensor([0, 3, 0, 3, -100, 3]), torch.full((6,), -100)
WEIGHTS = torch.tensor([1.0, 0.0, 2.0, 0.0, 0.5])
WHOLE = ("f32", "f64")


def loss(function, reduction, weighted, **more):
    return lambda x, y: function(x, y, weight=WEIGHTS.to(x.dtype) if weighted else None, reduction=reduction, **more)


CLASSES = [
    *[Case(f"cross_entropy {reduction}, {smoothing}, {weighted}",
           loss(F.cross_entropy, reduction, weighted, label_smoothing=smoothing), (SCORES, labels))
      for reduction in ("none", "mean", "sum") for smoothing in (0.0, 0.1) for weighted in (False, True)
      for labels in (LABELS, NO_LABELS, torch.tensor([1, 3, 1, 3, 1, 3]))],
    Case("cross_entropy without weight", loss(F.cross_entropy, "mean", True, label_smoothing=0.1),
         (SCORES[:2], torch.tensor([1, 3]))),
    *[Case(f"nll_loss {reduction}, {weighted}", loss(F.nll_loss, reduction, weighted), (SCORES, labels))
      for reduction in ("none", "mean", "sum") for weighted in (False, True) for labels in (LABELS, NO_LABELS)],
    Case("nll_loss of planes", lambda x: F.nll_loss(x[:, :, None, None], LABELS[:, None, None]), (SCORES,)),
    Case("cross_entropy of chances", lambda x: F.cross_entropy(x, torch.eye(6)[:, :5].to(x.dtype)), (SCORES.clamp(min=-9.0),)),
    *[Case(f"multi_margin_loss {p}, {weighted}", loss(F.multi_margin_loss, "mean", weighted, p=p), (x, y), WHOLE)
      for p in (1, 2) for weighted in (False, True)
      for x, y in ((SCORES, LABELS.clamp(min=0)), (torch.tensor([[0.0, 1.0, 1.0, nan, 2.0]]), torch.tensor([1])))],
    Case("multilabel_margin_loss", F.multilabel_margin_loss,
         (torch.tensor([[0.0, 1.0, 1.0, 2.0], [2.0, 1.0, 3.0, 2.0], [1.0, 1.0, 1.0, 1.0], [0.5, -1.0, 0.0, nan]]),
          torch.tensor([[3, 0, -1, 1], [0, -1, 1, 1], [-1, 0, 0, 0], [1, 2, 0, -1]])), WHOLE),
    *[Case(f"triplet_margin_loss {swap}", lambda a, b, c, s=swap: F.triplet_margin_loss(a, b, c, swap=s), (EQUAL, b, c))
      for swap in (False, True) for b, c in ((EQUAL, EQUAL), (EQUAL.flip(0), EQUAL.flip(1)))],
    *[Case("cosine_embedding_loss", F.cosine_embedding_loss, (EQUAL[1:], b, torch.tensor([1, -1] * 3)))
      for b in (EQUAL[1:].flip(1), EQUAL[1:].flip(0) * 0)],
    *[Case(f"margin_ranking_loss {m}", lambda a, b, y, m=m: F.margin_ranking_loss(a, b, y, margin=m, reduction="none"),
           (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 3.0, 2.0]), torch.tensor([1, -1, 1]))) for m in (0.0, 1.0)],
]
