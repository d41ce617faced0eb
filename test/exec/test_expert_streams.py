# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Experts between blocks whose tokens are scattered over tp, and sharded over another axis besides."""
import copy

import meshwright as mw
import pytest
import torch
from torch import nn
from torch.nn import functional as F

EXPERTS, WIDTH, HEADS, CHOICES = 5, 12, 4, 2


class Block(nn.Module):
    """Attention, then experts by a router."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.up = nn.Parameter(torch.randn(EXPERTS, 24, WIDTH) * 0.3)
        self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, 24) * 0.3)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        y = F.layer_norm(x, (WIDTH,))
        weights, chosen = self.router(y).softmax(-1).topk(CHOICES)
        h = F.silu(torch.einsum("btd,btkfd->btkf", y, self.up[chosen]))
        rows = torch.einsum("btkf,btkdf->btkd", h, self.down[chosen])
        return (x + (rows * weights[..., None]).sum(2)).square().mean()


@pytest.mark.parametrize("batch,tokens", [(2, 4), (2, 3), (2, 2)])
@pytest.mark.parametrize("mesh,options", [
    ({"dp": 2, "tp": 2}, {}),
    ({"ring": 2, "tp": 2}, {"context_parallel": {"ring": "ring", "order": "contiguous"}}),
    ({"ring": 2, "tp": 2}, {"context_parallel": {"ring": "ring", "order": "striped"}}),
    ({"ring": 2, "tp": 2}, {"context_parallel": {"ring": "ring", "order": "zigzag"}}),
], ids=["dp", "contiguous", "striped", "zigzag"])
def test_rows_keep_the_tokens_of_a_rank(mesh, options, batch, tokens):
    """Rows of a rank's tokens alone go through the experts, forward and backward, and none are gathered."""
    torch.manual_seed(0)
    net = Block().train()
    x = torch.randn(batch, tokens, WIDTH)
    model = mw.from_torch(net, (x,), training=True).differentiate()
    plan = model.parallelize(mesh=mesh, sequence_parallel="on", **options)
    got = dict(zip(model.outputs, plan.run(x), strict=True))
    wide = copy.deepcopy(net).double()
    wide(x.double()).backward()
    for name, parameter in wide.named_parameters():
        error = (torch.as_tensor(got[f"grad.{name}"]).double() - parameter.grad).abs().max()
        assert error < 1e-5 * parameter.grad.abs().max().clamp(min=1e-3), name
    rows = [line for line in plan.ir().splitlines() if "#nn.routed" in line]
    assert rows and not any("dist.all_gather" in line for line in rows)


def test_saved_choices_are_gathered_in_chunks():
    """Ranks save some choices of each token, and gather them beside products. The proof knows them again."""
    torch.manual_seed(0)
    net = Block().train()
    x = torch.randn(4, 5, WIDTH)
    model = mw.from_torch(net, (x,), training=True).differentiate()
    plan = model.parallelize(mesh={"dp": 2, "tp": 2}, sequence_parallel="off", shard_saved="on", overlap="on")
    assert any("role  saved" in line and "xi64>" in line for line in plan.ir().splitlines())
    alone = model.parallelize(mesh={"dp": 1})
    for got, want in zip(plan.run(x), alone.run(x), strict=True):
        torch.testing.assert_close(torch.as_tensor(got), torch.as_tensor(want), rtol=1e-4, atol=1e-5)
