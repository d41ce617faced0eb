# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""PyTorch modules whose programs scripts/gpu.sh compiles, and runs beside PyTorch."""

import dataclasses

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass
class Shape:
    """The sizes of a stack of Llama's layers. The defaults are those of Llama-3-8B."""

    hidden: int = 4096
    inner: int = 14336
    heads: int = 32
    key_heads: int = 8
    features: int = 128
    layers: int = 4
    tokens: int = 2048
    vocabulary: int = 128256


class Attention(nn.Module):
    """With rotary positions. `attend` computes attention of queries, keys and values."""

    def __init__(self, s):
        super().__init__()
        self.features = s.features
        self.q = nn.Linear(s.hidden, s.heads * s.features, bias=False)
        self.k = nn.Linear(s.hidden, s.key_heads * s.features, bias=False)
        self.v = nn.Linear(s.hidden, s.key_heads * s.features, bias=False)
        self.o = nn.Linear(s.heads * s.features, s.hidden, bias=False)

    def forward(self, x, cos, sin, attend):
        q, k, v = (layer(x).unflatten(-1, (-1, self.features)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = attend(rotate(q, cos, sin), rotate(k, cos, sin), v)
        return self.o(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.first, self.second = nn.RMSNorm(s.hidden, 1e-5), nn.RMSNorm(s.hidden, 1e-5)
        self.attention = Attention(s)
        self.gate, self.up = (nn.Linear(s.hidden, s.inner, bias=False) for _ in range(2))
        self.down = nn.Linear(s.inner, s.hidden, bias=False)

    def forward(self, x, cos, sin, attend):
        x = x + self.attention(self.first(x), cos, sin, attend)
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Stack(nn.Module):
    """A stack of layers over all tokens, causal."""

    def __init__(self, s):
        super().__init__()
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.layers))
        for name in ("cos", "sin"):
            self.register_buffer(name, torch.ones(s.tokens, s.features))

    def forward(self, x):
        def attend(q, k, v):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])

        for layer in self.layers:
            x = layer(x, self.cos, self.sin, attend)
        return x


class Llama(nn.Module):
    """From ids to logits."""

    def __init__(self, s):
        super().__init__()
        self.table = nn.Embedding(s.vocabulary, s.hidden)
        self.stack, self.norm = Stack(s), nn.RMSNorm(s.hidden, 1e-5)
        self.head = nn.Linear(s.hidden, s.vocabulary, bias=False)

    def forward(self, ids):
        return self.head(self.norm(self.stack(self.table(ids))))


class Decoder(nn.Module):
    """One token at position `at` from a cache of `tokens` keys and values, to logits."""

    def __init__(self, s):
        super().__init__()
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.norm, self.head = nn.RMSNorm(s.hidden, 1e-5), nn.Linear(s.hidden, s.vocabulary, bias=False)
        for name in ("cos", "sin"):
            self.register_buffer(name, torch.ones(s.tokens, s.features))
        for i in range(s.layers):
            for name in ("keys", "values"):
                self.register_buffer(f"{name}{i}", torch.zeros(1, s.key_heads, s.tokens, s.features))

    def forward(self, x, at):
        visible = torch.arange(self.cos.shape[0], device=at.device) <= at[:, None]
        cos, sin = self.cos[at], self.sin[at]
        for i, layer in enumerate(self.layers):
            keys, values = getattr(self, f"keys{i}"), getattr(self, f"values{i}")

            def attend(q, k, v, keys=keys, values=values):
                keys.index_copy_(2, at, k)
                values.index_copy_(2, at, v)
                return F.scaled_dot_product_attention(q, keys, values, attn_mask=visible, enable_gqa=True)

            x = layer(x, cos, sin, attend)
        return self.head(self.norm(x))


class Classic(nn.Module):
    """A GPT-2 of one layer: layer norms, biases, GELU, learned positions, heads of 32 features."""

    def __init__(self, vocabulary=96, hidden=64, tokens=33):
        super().__init__()
        self.table, self.positions = nn.Embedding(vocabulary, hidden), nn.Embedding(tokens, hidden)
        self.first, self.second = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.o = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, ids):
        x = self.table(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        heads = (y.unflatten(-1, (2, -1)).transpose(1, 2) for y in self.qkv(self.first(x)).chunk(3, -1))
        x = x + self.o(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x)), approximate="tanh"))


class Loss(nn.Module):
    """What `Classic` is trained on."""

    def __init__(self):
        super().__init__()
        self.model, self.head = Classic(), nn.Linear(64, 96)

    def forward(self, ids, labels):
        return F.cross_entropy(self.head(self.model(ids)).flatten(0, 1), labels.flatten())


class Linears(nn.Module):
    """Odd sizes: rows of bf16 begin at no multiple of 16 bytes."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(97, 203), nn.Linear(203, 61)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Noisy(nn.Module):
    """Random numbers that a forward pass draws in each call, which is training."""

    def forward(self, x):
        return x * torch.rand_like(x), x + torch.randn_like(x), torch.bernoulli(torch.full_like(x, 0.3))


class Masked(nn.Module):
    """Attention with a mask or an additive bias of the caller."""

    def forward(self, q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class Rows(nn.Module):
    """Row kernels and moves: norms, softmax, running sums, maxima, shifts."""

    def __init__(self, features=97):
        super().__init__()
        self.norm, self.rms, self.table = nn.LayerNorm(features), nn.RMSNorm(features, 1e-5), nn.Embedding(57, features)

    def forward(self, ids):
        x = self.table(ids)
        y = self.rms(self.norm(x) + x)
        return torch.cat([y.softmax(-1), y.cumsum(1), y.roll(1, 1), y.amax(-1, keepdim=True)], -1), y.sum(1)
