# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attention over long sequences on a ring of four ranks: memory in proportion to the local length,
no matrix of scores anywhere, results beside PyTorch's in f64."""
import re

import meshwright as mw
import pytest
import torch
from torch import nn

RANKS, HEADS, FEATURES = 4, 2, 16
HIDDEN = HEADS * FEATURES
MIB = 1 << 20


class Layer(nn.Module):
    def __init__(self, causal):
        super().__init__()
        self.causal = causal
        self.q, self.k, self.v, self.o = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(4))

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in (self.q, self.k, self.v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.o(y.transpose(1, 2).flatten(2))


def plan_of(tokens, causal, order):
    torch.manual_seed(0)
    layer = Layer(causal).eval()
    x = torch.randn(1, tokens, HIDDEN)
    plan = mw.from_torch(layer, (x,)).parallelize(
        mesh={"ring": RANKS}, context_parallel={"ring": "ring", "order": order})
    return layer, x, plan


def arena_of(plan):
    return int(re.search(r"rt\.arena = (\d+)", plan.ir("rt"))[1])


@pytest.mark.parametrize("causal,order", [(True, "zigzag"), (False, "contiguous")])
def test_memory_is_linear(causal, order):
    """131,072 tokens: the scores of one head would be 64 GiB, a rank's tensor of hidden states is
    4 MiB. Queries, keys and values, two parts of the result, and the next keys and values."""
    plans = {tokens: plan_of(tokens, causal, order)[2] for tokens in (32768, 65536, 131072)}
    arenas = {tokens: arena_of(plan) for tokens, plan in plans.items()}
    assert arenas[65536] <= 2.01 * arenas[32768] and arenas[131072] <= 2.01 * arenas[65536]
    assert arenas[131072] <= 36 * MIB, arenas
    for plan in plans.values():
        kinds = {c["kind"] for c in plan.report(format="json")["collectives"]}
        assert kinds == {"permute"}


@pytest.mark.parametrize("causal,order", [(True, "zigzag"), (True, "striped"), (False, "contiguous")])
def test_long_sequence(causal, order):
    """Rows from all parts of the sequence; what was planned is what is used."""
    tokens = 16000
    layer, x, plan = plan_of(tokens, causal, order)
    got = plan.run(x, measure=True)[0]
    arena = plan.report(format="json")["run"]["arena"]
    assert arena["seen"] <= arena["planned"] == arena_of(plan)
    layer, x = layer.double(), x.double()
    q, k, v = (p(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in (layer.q, layer.k, layer.v))
    for first in (0, 4000, 7990, tokens - 40):
        rows = slice(first, first + 40)
        i, j = torch.arange(tokens)[rows, None], torch.arange(tokens)[None]
        y = nn.functional.scaled_dot_product_attention(
            q[:, :, rows], k, v, attn_mask=j <= i if causal else None)
        want = layer.o(y.transpose(1, 2).flatten(2))
        error = (got[:, rows].double() - want).abs().max() / want.abs().max()
        assert error <= 1e-5, error
