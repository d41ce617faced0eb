# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Special points of operations that move elements or find them by index."""
import math

import torch
import torch.nn.functional as F
from derivative_points import Case

inf, nan = math.inf, math.nan
X = torch.tensor([[inf, -inf, nan, 0.0, -0.0, 1.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]])
Y = torch.tensor([[1.0, nan, 3.0], [4.0, 5.0, -inf]])
Z = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0], [-1.0, inf, 0.0]])
#: Each row has an index twice.
TWICE = torch.tensor([[0, 1, 0], [2, 2, 5]])
EACH = torch.tensor([[True, False, True, False, True, False], [True] * 6])
NONE = torch.zeros(2, 6, dtype=torch.bool)


def moves(**functions):
    return [Case(name, function, (X,)) for name, function in functions.items()]


MOVES = moves(
    clone=lambda x: x.clone(), contiguous=lambda x: x.t().contiguous(), detach=lambda x: x + x.detach(),
    view=lambda x: x.view(3, 4), reshape=lambda x: x.reshape(-1), unsqueeze=lambda x: x.unsqueeze(1).squeeze(1),
    flatten=lambda x: x.flatten(), unflatten=lambda x: x.unflatten(1, (2, 3)), permute=lambda x: x.permute(1, 0),
    transpose=lambda x: x.transpose(0, 1), mT=lambda x: x.mT, T=lambda x: x.T, movedim=lambda x: x.movedim(0, 1),
    expand=lambda x: x[:, None].expand(2, 3, 6), narrow=lambda x: x.narrow(1, 1, 3), select=lambda x: x.select(1, 2),
    slice=lambda x: x[:, 1:5:2], unbind=lambda x: x.unbind(0), split=lambda x: x.split(4, 1), chunk=lambda x: x.chunk(2, 1),
    tensor_split=lambda x: x.tensor_split(4, 1), sizes=lambda x: x.split([1, 5], 1),
    cat=lambda x: torch.cat([x, x.flip(0)], 1), stack=lambda x: torch.stack([x, x]), repeat=lambda x: x.repeat(2, 3),
    tile=lambda x: x.tile(2, 2), repeat_interleave=lambda x: x.repeat_interleave(2, 1), flip=lambda x: x.flip((0, 1)),
    roll=lambda x: x.roll((1, 2), (0, 1)), flat_roll=lambda x: x.roll(5), diff=lambda x: x.diff(),
    second_diff=lambda x: x.diff(2, prepend=x[:, :1]), triu=lambda x: x.triu(1), tril=lambda x: x.tril(-1),
    diagonal=lambda x: x.diagonal(1), diag_embed=lambda x: x.diag_embed(), trace=lambda x: x[:, :2].trace(),
    as_strided=lambda x: x.as_strided((2, 3), (1, 2)), diagonal_scatter=lambda x: x.diagonal_scatter(x[0, :2]),
    slice_scatter=lambda x: x.slice_scatter(x[:, :2], 1, 0, 4, 2), select_scatter=lambda x: x.select_scatter(x[0, :2], 1, 3),
    pixel_shuffle=lambda x: F.pixel_shuffle(x.repeat(2, 1).view(1, 4, 1, 6), 2),
    pixel_unshuffle=lambda x: F.pixel_unshuffle(x.view(1, 1, 2, 6), 2),
    channel_shuffle=lambda x: F.channel_shuffle(x.view(1, 6, 2, 1), 3), rot90=lambda x: x.rot90(),
    like=lambda x: (torch.zeros_like(x), torch.ones_like(x), torch.full_like(x, 2.0), x.new_zeros(2), x.new_ones(2),
                    x.new_full((2,), 3.0), x.sum(0)),
    zeroed=lambda x: torch.ops.aten.zero(x) + x[0], filled=lambda x: torch.fill(x, 2.0) + x[1],
    copied=lambda x: x.clone().copy_(2 * x[:, :1]),
)

INDEXING = [
    Case("gather", lambda x, i: x.gather(1, i), (X, TWICE)), Case("take", lambda x, i: x.take(i), (X, TWICE)),
    Case("take_along_dim", lambda x, i: torch.take_along_dim(x, i, 1), (X, TWICE)),
    Case("index_select", lambda x, i: x.index_select(1, i), (X, TWICE[1])),
    Case("index", lambda x, i: x[:, i], (X, TWICE - 1)), Case("two indices", lambda x, i: x[i[0], i[1]], (X, TWICE[:, :2] % 2)),
    Case("index_put", lambda x, v: x.index_put((torch.tensor([0, 2]),), v), (Z, Y)),
    Case("index_put twice", lambda x, v: x.index_put((torch.tensor([1, 1]),), v), (Z, Y)),
    Case("index_put, added", lambda x, v: x.index_put((torch.tensor([1, 1]),), v, True), (Z, Y)),
    Case("index_put by a mask", lambda x, m: x.index_put((m,), x.new_full((), 3.0)), (X, EACH)),
    Case("index_copy", lambda x, v: x.index_copy(0, torch.tensor([0, 2]), v), (Z, Y)),
    Case("index_add", lambda x, v: x.index_add(0, torch.tensor([0, 0]), v, alpha=2), (Z, Y)),
    Case("index_fill", lambda x: x.index_fill(0, torch.tensor([0, -1]), 3.0), (Z,)),
    Case("scatter", lambda x, i, v: x.scatter(1, i, v), (X, torch.tensor([[0, 1, 5], [2, 1, 0]]), Y)),
    Case("scatter twice", lambda x, i, v: x.scatter(1, i, v), (X, TWICE, Y)),
    Case("scatter of a number", lambda x, i: x.scatter(1, i, 2.0), (X, TWICE)),
    Case("scatter_add", lambda x, i, v: x.scatter_add(1, i, v), (X, TWICE, Y)),
    Case("one_hot", lambda x, i: F.one_hot(i, 6) * x[:, None], (X, TWICE)),
    Case("masked_scatter", lambda x, m, v: x.masked_scatter(m, v.flatten().repeat(2)), (X, EACH, Y)),
    *[Case("where", lambda x, m: torch.where(m, x, x * 2), (X, m)) for m in (EACH, NONE)],
    *[Case("masked_fill", lambda x, m: x.masked_fill(m, 1.5), (X, m)) for m in (EACH, NONE, ~NONE)],
    *[Case("masked mean", lambda x, m: x.masked_fill(~m, 0).sum(1) / m.sum(1), (Z[:2], m[:, :3])) for m in (EACH, NONE)],
]
