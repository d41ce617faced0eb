# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Special points of operations on rows: sums, extremes, norms, softmax."""
import math

import torch
import torch.nn.functional as F
from derivative_points import Case

inf, nan = math.inf, math.nan

#: All-equal rows, ties at each place, zeros of both signs.
EQUAL = torch.tensor([[0.0] * 5, [1.0] * 5, [1.0, 3.0, 0.0, 3.0, 3.0], [2.0, 2.0, 2.0, 2.0, 1.0],
                      [0.0, -0.0, 0.0, -1.0, -1.0], [-2.0, 1.0, 2.0, 1.0, -2.0], [0.25, -1.5, 3.0, 0.5, 2.0]])
#: Rows with infinities and NaN; the tensor has zeros.
SPECIAL = torch.tensor([[inf, 1.0, 2.0], [-inf, 1.0, 2.0], [inf, inf, inf], [inf, -inf, 0.0],
                        [nan, 1.0, nan], [1.0, nan, 2.0]])
#: A row of minus infinity alone.
HIDDEN = torch.tensor([[-inf, -inf, -inf], [1.0, -inf, 2.0]])
#: Infinities in a tensor without zeros.
NO_ZEROS = torch.tensor([[inf, 1.0, 2.0], [-inf, -inf, 3.0], [1.0, 2.0, inf], [nan, 2.0, 1.0], [2.0, 3.0, 4.0]])
ONE = torch.tensor([[5.0], [0.0], [-2.0]])
ZEROS = torch.tensor([[0.0, 2.0, 3.0, 4.0, 0.0, 2.0], [2.0, 0.0, 3.0, 0.0, 1.0, 1.0],
                      [1.0, 2.0, 0.0, 3.0, 4.0, 5.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [0.0] * 6])


def rows(name, function, *tensors, **more):
    return [Case(name, function, (t,), **more) for t in tensors or (EQUAL, SPECIAL, HIDDEN, ONE)]


def named(names, *tensors, **options):
    return [case for name in names.split() for case in
            rows(name, lambda x, f=getattr(torch, name): _first(f(x, -1, **options)), *tensors)]


def _first(y):
    return y if isinstance(y, torch.Tensor) else y[0]


EXTREMES = [
    *named("amax amin max min cummax cummin"),
    *rows("max over the first dimension, kept", lambda x: x.max(0, keepdim=True)[0]),
    *rows("max with its positions", lambda x: x.max(1)),
    *rows("min with its positions", lambda x: x.min(0)),
    *[case for t in SPECIAL for case in
      (*rows("max of all", torch.max, t), *rows("min of all", torch.min, t))],
    *rows("max of all, equal", torch.max, EQUAL), *rows("amax of all", torch.amax, EQUAL, SPECIAL),
    *rows("aminmax", lambda x: tuple(torch.aminmax(x, dim=-1)), EQUAL, SPECIAL),
    *rows("amax of two dimensions", lambda x: x[None].amax((0, 2)), EQUAL, SPECIAL),
    *rows("max of one number", lambda x: x[0, 0].max(0)[0], EQUAL),
    *rows("argmax", lambda x: (x.argmax(-1), x.argmin(-1), x.sum(-1)), EQUAL),
    *rows("max of elements by argmax", lambda x: x.gather(-1, x.argmax(-1, keepdim=True)), EQUAL),
    # An infinite gradient meets zeros.
    *rows("root of amax", lambda x: x.amax(-1).sqrt(), EQUAL),
    *rows("root of max", lambda x: x.max(-1)[0].sqrt(), EQUAL),
]

SUMS = [
    *named("sum mean cumsum logsumexp"),
    *rows("root of running sums", lambda x: x.abs().cumsum(-1).sqrt(), EQUAL),
    *rows("mean of all", torch.mean, EQUAL, SPECIAL), *rows("sum of all", torch.sum, EQUAL, SPECIAL),
    *rows("nanmean", lambda x: x.nanmean(-1), EQUAL, SPECIAL),
    *named("prod cumprod", EQUAL, SPECIAL, HIDDEN, NO_ZEROS, ONE, ZEROS),
    *rows("prod of all", torch.prod, EQUAL, NO_ZEROS, torch.tensor([[0.0, 2.0, 3.0]]), ZEROS),
    *rows("any, all", lambda x: (x.any(-1), x.all(-1), x.sum(-1)), EQUAL),
    *named("softmax", EQUAL, SPECIAL, HIDDEN[1:], ONE), *named("log_softmax"),
    *rows("softmin", lambda x: F.softmin(x, -1), EQUAL, ONE),
    *rows("softmax of a mask", lambda x: x.masked_fill(x < 1, -inf).softmax(-1), EQUAL[1:4]),
    *rows("masked with the least number", lambda x: x.masked_fill(x < 1, torch.finfo(x.dtype).min).softmax(-1),
          EQUAL[:5]),
    *rows("_safe_softmax", lambda x: torch.ops.aten._safe_softmax(x, -1), EQUAL, HIDDEN),
    *rows("log_softmax of a mask", lambda x: x.masked_fill(x < 1, -inf).log_softmax(-1), EQUAL),
    *rows("logsumexp of a mask", lambda x: x.masked_fill(x < 1, -inf).logsumexp(-1), EQUAL),
]


def norm(order):
    return rows(f"norm {order}", lambda x: torch.linalg.vector_norm(x, order, -1))


SPREADS = [
    *[case for n in (0, 1, 2) for case in (
        *rows(f"var, correction {n}", lambda x, n=n: x.var(-1, correction=n)),
        *rows(f"std, correction {n}", lambda x, n=n: x.std(-1, correction=n)))],
    *rows("var of all", torch.var, EQUAL, SPECIAL, ONE[:1]), *rows("std of all", torch.std, EQUAL, SPECIAL, ONE[:1]),
    *rows("var_mean", lambda x: torch.var_mean(x, -1), EQUAL, ONE),
    *rows("std_mean", lambda x: torch.std_mean(x, -1), EQUAL, ONE),
    *[case for order in (0.5, 1, 1.5, 2, 3, 4, inf, -1, -2, -inf) for case in norm(order)],
    *rows("norm 0", lambda x: torch.linalg.vector_norm(x, 0, -1) + x.sum(-1), EQUAL),
    *rows("norm of all", torch.norm, EQUAL, SPECIAL),
    *rows("matrix norms", lambda x: (torch.linalg.matrix_norm(x, 1), torch.linalg.matrix_norm(x, inf)), EQUAL),
    *rows("distance from norm 1", lambda x: (x.norm(dim=-1) - 1) ** 2, EQUAL),
    *rows("root of a norm", lambda x: x.norm(dim=-1).sqrt(), EQUAL),
    *[case for p in (1, 2, 3, inf) for case in
      rows(f"normalize {p}", lambda x, p=p: F.normalize(x, p, -1), EQUAL[1:], SPECIAL, HIDDEN)],
    *rows("normalize zeros", lambda x: F.normalize(x, dim=-1), EQUAL[:1]),
    *[case for p in (1, 2, inf) for case in
      rows(f"renorm {p}", lambda x, p=p: x.renorm(p, 0, 1.0), EQUAL, SPECIAL)],
    *[Case(f"dist {p}", lambda x, y, p=p: torch.dist(x, y, p), (EQUAL, y)) for p in (1, 2, inf)
      for y in (EQUAL, EQUAL.flip(0))],
    *[Case(f"pairwise_distance {p}", lambda x, y, p=p: F.pairwise_distance(x, y, p), (EQUAL, y))
      for p in (1, 2, inf) for y in (EQUAL, EQUAL.flip(0))],
    *[Case(f"cdist {p}", lambda x, y, p=p: torch.cdist(x, y, p), (EQUAL, y), ("f32", "f64"))
      for p in (0.5, 1, 2, 3, inf) for y in (EQUAL, EQUAL.flip(1)[:3])],
    Case("cosine_similarity", lambda x, y: F.cosine_similarity(x, y, -1), (EQUAL, EQUAL.flip(1))),
    # Norms below the bound keep their derivative.
    *[Case(f"cosine_similarity, bound {eps}", lambda x, y, e=eps: F.cosine_similarity(x, y, -1, e),
           (EQUAL[1:], y)) for eps in (1.0, 3.0, 100.0) for y in (EQUAL[1:].flip(1), EQUAL[1:2])],
    Case("cosine_similarity along rows", lambda x, y: F.cosine_similarity(x, y, 0, 3.0), (EQUAL, EQUAL.flip(1))),
    Case("cosine_similarity of zeros", lambda x, y: F.cosine_similarity(x, y, -1), (torch.zeros(2, 3), EQUAL[4:6, :3])),
]
