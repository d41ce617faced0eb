# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A model is imported at one length and serves all: it is refused if its numbers depend on the length."""
import inspect

import meshwright as mw
import pytest
import torch
import torch.nn.functional as F
from torch import nn

SIZES = {"max_length": 40, "page_size": 4, "max_requests": 2, "buckets": (3, 8)}


class Decoder(nn.Module):
    def __init__(self, width=16, vocabulary=31):
        super().__init__()
        self.table, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.positions = nn.Parameter(torch.randn(64, width))

    def attend(self, x, at=0):
        q, k, v = self.q(x), self.k(x), self.v(x)
        return self.head(x + at + F.scaled_dot_product_attention(q, k, v, is_causal=True))

    def forward(self, ids):
        return self.attend(self.table(ids))


class ScaledScores(Decoder):
    def forward(self, ids):
        x, scale = self.table(ids), ids.shape[1] ** 0.5
        y = self.q(x) * scale  # here
        return self.head(x + F.scaled_dot_product_attention(y, self.k(x), self.v(x), is_causal=True))


class ScaledLogits(Decoder):
    def forward(self, ids):
        return super().forward(ids) / ids.shape[1]  # here


class Reversed(Decoder):
    def forward(self, ids):
        at = self.positions[:ids.shape[1]].flip(0)  # here
        return self.attend(self.table(ids), at=at)


class FromTheEnd(Decoder):
    def forward(self, ids):
        at = self.positions[ids.shape[1] - 1 - torch.arange(ids.shape[1])]  # here
        return self.attend(self.table(ids), at=at)


class LastRows(Decoder):
    def forward(self, ids):
        at = self.positions[-ids.shape[1]:]  # here
        return self.attend(self.table(ids), at=at)


class MeanOfPositions(Decoder):
    def forward(self, ids):
        at = self.positions[:ids.shape[1]].mean(0)  # here
        return self.attend(self.table(ids), at=at)


class Branches(Decoder):
    def forward(self, ids):
        y = super().forward(ids)
        if ids.shape[1] <= 16:
            return y
        return -y  # here


KINDS = [ScaledScores, ScaledLogits, Reversed, FromTheEnd, LastRows, MeanOfPositions, Branches]


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_that_depend_on_the_length(kind):
    lines, first = inspect.getsourcelines(kind)
    here = first + next(i for i, line in enumerate(lines) if "# here" in line)
    model = mw.from_torch(kind().eval(), (torch.ones(1, 6, dtype=torch.long),))
    with pytest.raises(mw.Error, match="depends on the number of tokens: expected a causal model") as error:
        model.serve(**SIZES)
    assert [(d.file, d.line) for d in error.value.diagnostics] == [(__file__, here)]


class Rows(Decoder):
    """A slice of positions, a table whose rows repeat, and biases by the distance from the last key."""

    def forward(self, ids):
        t, x = ids.shape[1], self.table(ids)
        x = x + self.positions[:t] + self.positions[torch.arange(t) % 5]
        distance = 0.1 * torch.arange(1 - t, 1)
        bias = distance.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -torch.inf)
        return self.head(x + F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x), bias))


def tokens_of(net, prompt, new):
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(new):
            ids.append(int(net(torch.tensor([ids]))[0, -1].argmax()))
    return ids[len(prompt):]


@pytest.mark.parametrize("length", [5, 16, 31, 64])
def test_positions_from_the_start(length):
    """Also at lengths that are sizes of other dimensions, and that of the table."""
    torch.manual_seed(2)
    net = Rows().eval()
    served = mw.from_torch(net, (torch.ones(1, 6, dtype=torch.long),)).serve(**{**SIZES, "max_length": length})
    with served.parallelize(mesh={"tp": 1}).start() as session:
        assert session.generate([[4, 9, 3]], max_new_tokens=2) == [tokens_of(net, [4, 9, 3], 2)]
