# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Draws causal language models: their positions, masks, norms, layers and spellings of attention."""

import copy
import dataclasses
import math
import random

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass
class Choice:
    heads: int
    kv_heads: int
    size: int  # columns of a head
    positions: str  # "halves", "neighbours" (rotary), "learned", "keys", "distances" (ALiBi), "none"
    skips: bool  # the second layer has no positions
    window: int  # keys before a token that it sees; 0: all
    windows: str  # "all", "first": the layers that have the window
    norm: str  # "layer", "rms"
    after: bool  # norms stand behind the layers
    parallel: bool  # attention and MLP read one norm
    gated: bool
    tied: bool
    spelling: str  # of attention: "flag", "mask", "product", "einsum", "baddbmm", "scores", "values" (by baddbmm, bmm)
    cap: float  # of the scores; 0: none
    sinks: bool
    final_cap: float
    modulo: int  # logits get a row of a table by the position modulo this; 0: none
    layers: int
    repeats: int  # how often each layer runs, with the same weights
    vocabulary: int = 67

    @property
    def width(self) -> int:
        return self.heads * self.size


def draw(seed: int) -> Choice:
    r = random.Random(seed)
    kv_heads = r.choice((1, 2, 3))
    spelling = r.choice(("flag", "mask", "product", "einsum", "baddbmm", "scores", "values"))
    positions = r.choice(("halves", "neighbours", "learned", "keys", "distances", "none"))
    if spelling == "baddbmm" and positions not in ("keys", "distances"):
        spelling = "product"
    by_hand = spelling in ("product", "einsum", "values")
    return Choice(
        heads=kv_heads * r.choice((1, 2, 3)),
        kv_heads=kv_heads,
        size=r.choice((8, 12, 16)),
        positions=positions,
        skips=r.random() < 0.2,
        window=r.choice((0, 0, 3, 7)),
        windows=r.choice(("all", "first")),
        norm=r.choice(("layer", "rms")),
        after=r.random() < 0.3,
        parallel=r.random() < 0.3,
        gated=r.random() < 0.5,
        tied=r.random() < 0.3,
        spelling=spelling,
        cap=r.choice((0.0, 20.0)) if by_hand and positions not in ("keys", "distances") else 0.0,
        sinks=by_hand and positions not in ("keys", "distances") and r.random() < 0.4,
        final_cap=r.choice((0.0, 0.0, 15.0)),
        modulo=r.choice((0, 0, 5)),
        layers=r.choice((1, 2, 3)),
        repeats=r.choice((1, 1, 2)),
    )


class Rms(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def rotate(x, pairs):
    """Rotary positions of x [batch, heads, tokens, size]."""
    size = x.shape[-1]
    angles = torch.arange(x.shape[2])[:, None] * 50.0 ** (-torch.arange(0, size, 2) / size)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    if pairs == "neighbours":
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Attention(nn.Module):
    def __init__(self, c: Choice, layer: int):
        super().__init__()
        self.c = c
        self.positions = "none" if c.skips and layer == 1 else c.positions
        self.window = c.window if c.windows == "all" or layer == 0 else 0
        self.q = nn.Linear(c.width, c.width, bias=c.norm == "layer")
        self.kv = nn.Linear(c.width, 2 * c.kv_heads * c.size, bias=False)
        self.o = nn.Linear(c.width, c.width, bias=False)
        if c.sinks:
            self.sinks = nn.Parameter(torch.zeros(c.heads))
        self.register_buffer("slopes", 2.0 ** -torch.arange(1, c.heads + 1), persistent=False)

    def bias(self, t, dtype):
        """The bias beside the mask, [heads, 1 or t, t]."""
        at, slopes = torch.arange(t), self.slopes.to(dtype)[:, None, None]
        if self.positions == "keys":
            return slopes * at.to(dtype)
        if self.positions == "distances":
            return -slopes * (at[:, None] - at).abs().to(dtype)
        return None

    def seen(self, t):
        at = torch.arange(t)
        seen = at[:, None] >= at
        return seen & (at[:, None] - at <= self.window) if self.window else seen

    def forward(self, x):
        c, (b, t, _) = self.c, x.shape
        q = self.q(x).unflatten(-1, (c.heads, c.size)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (2, c.kv_heads, c.size)).permute(2, 0, 3, 1, 4)
        if self.positions in ("halves", "neighbours"):
            q, k = rotate(q, self.positions), rotate(k, self.positions)
        bias = self.bias(t, x.dtype)
        if c.spelling in ("flag", "mask"):
            y = self.library(q, k, v, bias)
        else:
            y = self.by_hand(q, k, v, bias)
        return self.o(y.transpose(1, 2).reshape(b, t, c.width))

    def library(self, q, k, v, bias):
        t, grouped = q.shape[2], self.c.kv_heads != self.c.heads
        if bias is None and not self.window and self.c.spelling == "flag":
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        mask = self.seen(t)
        if bias is not None:
            mask = bias.masked_fill(~mask, -math.inf)[None]
        return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=grouped)

    def by_hand(self, q, k, v, bias):
        c, t = self.c, q.shape[2]
        k, v = (x.repeat_interleave(c.heads // c.kv_heads, 1) for x in (k, v))
        scale = c.size ** -0.5
        flat = lambda x: x.flatten(0, 1)
        if c.spelling in ("baddbmm", "scores"):
            zero = torch.zeros(1, 1, 1, dtype=q.dtype) if bias is None else bias
            z = zero.expand(q.shape[0] * c.heads, -1, t) if q.shape[0] == 1 else zero.repeat(q.shape[0], 1, 1)
            z = z.baddbmm(flat(q), flat(k).mT, beta=1.0, alpha=scale).view(q.shape[0], c.heads, t, t)
            z = z.masked_fill(~self.seen(t), torch.finfo(q.dtype).min).softmax(-1)
            return z @ v if c.spelling == "scores" else torch.bmm(flat(z), flat(v)).view(q.shape)
        z = torch.einsum("bhqd,bhkd->bhqk", q, k) if c.spelling == "einsum" else q @ k.mT
        z = z * scale
        if c.cap:
            z = c.cap * torch.tanh(z / c.cap)
        if bias is not None:
            z = z + bias
        z = z.masked_fill(~self.seen(t), -math.inf)
        if c.sinks:
            z = torch.cat((z, self.sinks[:, None, None].expand(q.shape[0], -1, t, 1)), -1)
            z = z.softmax(-1)[..., :-1]
        else:
            z = z.softmax(-1)
        if c.spelling == "values":
            return torch.bmm(flat(z), flat(v)).view(q.shape)
        return torch.einsum("bhqk,bhkd->bhqd", z, v) if c.spelling == "einsum" else z @ v


class Layer(nn.Module):
    def __init__(self, c: Choice, layer: int):
        super().__init__()
        norm = nn.LayerNorm if c.norm == "layer" else Rms
        self.c, self.attention = c, Attention(c, layer)
        self.first, self.second = norm(c.width), norm(c.width)
        self.up = nn.Linear(c.width, 2 * 20 if c.gated else 28)
        self.down = nn.Linear(20 if c.gated else 28, c.width)

    def mlp(self, x):
        y = self.up(x)
        if not self.c.gated:
            return self.down(F.gelu(y))
        a, b = y.chunk(2, -1)
        return self.down(F.silu(a) * b)

    def forward(self, x):
        if self.c.parallel:
            y = self.first(x)
            return x + self.attention(y) + self.mlp(y)
        if self.c.after:
            x = self.first(x + self.attention(x))
            return self.second(x + self.mlp(x))
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


class Model(nn.Module):
    def __init__(self, c: Choice, length: int):
        super().__init__()
        self.c = c
        self.embedding = nn.Embedding(c.vocabulary, c.width)
        if c.positions == "learned":
            self.places = nn.Parameter(torch.zeros(length, c.width))
        self.layers = nn.ModuleList(Layer(c, i) for i in range(c.layers))
        self.norm = nn.LayerNorm(c.width)
        self.head = nn.Linear(c.width, c.vocabulary, bias=False)
        if c.tied:
            self.head.weight = self.embedding.weight
        if c.modulo:
            self.table = nn.Parameter(torch.zeros(c.modulo, c.vocabulary))

    def forward(self, ids):
        t = ids.shape[1]
        x = self.embedding(ids)
        if self.c.positions == "learned":
            x = x + self.places[:t]
        for layer in self.layers:
            for _ in range(self.c.repeats):
                x = layer(x)
        y = self.head(self.norm(x))
        if self.c.modulo:
            y = y + self.table[torch.arange(t) % self.c.modulo]
        return self.c.final_cap * torch.tanh(y / self.c.final_cap) if self.c.final_cap else y


def build(c: Choice, length: int, seed: int) -> Model:
    torch.manual_seed(seed)
    net = Model(c, length).eval()
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, (2 if "embedding" in name and not c.tied else 1.3) * parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(0.2 * torch.randn(parameter.shape))
    return net


def greedy(net, prompt, new):
    """The tokens of greedy decoding, the logits that choose them, and the narrowest gap between the
    first and the second of them."""
    ids, rows, gap = list(prompt), [], math.inf
    with torch.no_grad():
        for _ in range(new):
            row = net(torch.tensor([ids]))[0, -1]
            top = row.topk(2).values
            gap = min(gap, float((top[0] - top[1]) / row.abs().max()))
            rows.append(row)
            ids.append(int(row.argmax()))
    return ids[len(prompt):], torch.stack(rows), gap


def prompts(net, lengths, new, seed, margin=2e-3):
    """A prompt of each length whose greedy tokens no rounding changes, with tokens and logits in f64."""
    wide, draws = copy.deepcopy(net).double(), random.Random(seed)
    found = []
    for length in lengths:
        while True:
            prompt = [draws.randrange(net.c.vocabulary) for _ in range(length)]
            tokens, rows, gap = greedy(wide, prompt, new)
            if gap >= margin:
                break
        found.append((prompt, tokens, rows))
    return found
