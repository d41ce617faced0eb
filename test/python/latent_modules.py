# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Draws causal language models with keys and values from a latent of each token, in many spellings."""

import dataclasses
import random

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass
class Choice:
    heads: int
    latent: int
    rotary: int  # columns of the rotary part, which all heads share
    keys: int  # columns of a head's keys beside the rotary part
    values: int
    norm: str  # of the latent: "none", "layer", "rms"
    bias: bool
    up: str  # "linear", "fused", "einsum", "interleaved"
    latents: int  # 2: values have a latent of their own
    pairs: str  # of the rotary part: "halves", "neighbours"
    first: bool  # the rotary part is in front
    late: bool  # positions are applied to the rotary part of each head
    by_hand: bool  # attention as products and a softmax
    layers: int
    width: int = 36
    vocabulary: int = 61

    @property
    def cached(self) -> int:
        """Elements of the cache, of a token and layer: those of the latent, if they are fewer by a larger factor than
        its arithmetic is more."""
        own = self.keys + self.rotary + self.values
        expanded, narrow = self.heads * own, self.latents * self.latent + self.rotary
        return narrow if narrow * (narrow + self.latent) < expanded * own else expanded


def draw(seed: int) -> Choice:
    r = random.Random(seed)
    return Choice(
        heads=r.choice((2, 3, 4, 6)),
        latent=r.choice((8, 11, 14)),
        rotary=r.choice((0, 4, 6)),
        keys=r.choice((5, 8, 9)),
        values=r.choice((4, 7, 10)),
        norm=r.choice(("none", "layer", "rms")),
        bias=r.random() < 0.4,
        up=r.choice(("linear", "fused", "einsum", "interleaved")),
        latents=r.choice((1, 1, 2)),
        pairs=r.choice(("halves", "neighbours")),
        first=r.random() < 0.3,
        late=r.random() < 0.3,
        by_hand=r.random() < 0.3,
        layers=r.choice((1, 2)),
    )


class Latent(nn.Module):
    """A layer of attention whose keys and values follow from a latent of each token."""

    def __init__(self, c: Choice):
        super().__init__()
        self.c = c
        norm = {"none": nn.Identity, "layer": nn.LayerNorm, "rms": nn.RMSNorm}[c.norm]
        self.q = nn.Linear(c.width, c.heads * (c.keys + c.rotary))
        self.down = nn.Linear(c.width, c.latents * c.latent + c.rotary, bias=c.bias)
        self.norms = nn.ModuleList(norm(c.latent) for _ in range(c.latents))
        if c.up == "einsum":
            self.wk = nn.Parameter(torch.randn(c.heads, c.keys, c.latent))
            self.wv = nn.Parameter(torch.randn(c.heads, c.latent, c.values))
        elif c.up == "fused" and c.latents == 1:
            self.up = nn.Linear(c.latent, c.heads * (c.keys + c.values), bias=c.bias)
        else:
            self.k = nn.Linear(c.latent, c.heads * c.keys, bias=c.bias)
            self.v = nn.Linear(c.latent, c.heads * c.values, bias=c.bias)
        self.o = nn.Linear(c.heads * c.values, c.width)

    def turn(self, x):
        """Rotary positions of [..., tokens, columns]."""
        n = x.shape[-1] // 2
        angle = torch.arange(x.shape[-2])[:, None] * 50.0 ** (-torch.arange(n) / n)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        if self.c.pairs == "halves":
            a, b = x.chunk(2, -1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)

    def expand(self, latents):
        """Keys without positions, and values, of each head."""
        c, first, last = self.c, latents[0], latents[-1]
        if c.up == "einsum":
            return torch.einsum("btc,hdc->bhtd", first, self.wk), torch.einsum(
                "btc,hcd->bhtd", last, self.wv
            )
        if hasattr(self, "up"):
            both = self.up(first).unflatten(-1, (c.heads, -1)).transpose(1, 2)
            return both.split((c.keys, c.values), -1)
        if c.up == "interleaved":
            return (
                layer(x).unflatten(-1, (-1, c.heads)).permute(0, 3, 1, 2)
                for layer, x in ((self.k, first), (self.v, last))
            )
        return (
            layer(x).unflatten(-1, (c.heads, -1)).transpose(1, 2)
            for layer, x in ((self.k, first), (self.v, last))
        )

    def forward(self, x):
        c, t = self.c, x.shape[1]
        *latents, turned = self.down(x).split([c.latent] * c.latents + [c.rotary], -1)
        latents = [norm(part) for norm, part in zip(self.norms, latents, strict=True)]
        k, v = self.expand(latents)
        q = self.q(x).unflatten(-1, (c.heads, -1)).transpose(1, 2)
        if c.rotary:
            q, own = q.split((c.keys, c.rotary), -1)
            shared = turned[:, None]
            if c.late:
                shared = self.turn(shared.expand(-1, c.heads, -1, -1))
            else:
                shared = self.turn(shared).expand(-1, c.heads, -1, -1)
            order = -1 if c.first else 1
            q, k = (torch.cat(parts[::order], -1) for parts in ((q, self.turn(own)), (k, shared)))
        if c.by_hand:
            scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
            later = torch.arange(t)[:, None] < torch.arange(t)
            y = scores.masked_fill(later, -float("inf")).softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self, c: Choice):
        super().__init__()
        self.embedding = nn.Embedding(c.vocabulary, c.width)
        self.layers = nn.ModuleList(Latent(c) for _ in range(c.layers))
        self.norms = nn.ModuleList(nn.LayerNorm(c.width) for _ in range(c.layers))
        self.head = nn.Linear(c.width, c.vocabulary)

    def forward(self, ids):
        x = self.embedding(ids)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + layer(norm(x))
        return self.head(x)


def make(seed: int) -> tuple[Choice, Model]:
    """A model of this seed. Its matrices are large enough that a logit depends on earlier tokens."""
    choice = draw(seed)
    torch.manual_seed(seed)
    net = Model(choice).eval()
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 2 * parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(0.3 * torch.randn(parameter.shape))
    return choice, net
