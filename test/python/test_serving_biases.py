# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Biases of attention that models serve with: by the distance of the key, as T5's are, and by its position."""
import dataclasses
import math

import meshwright as mw
import numpy as np
import pytest
import random_serving
import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, LENGTH = 59, 40


def bucket(distance, count, most):
    """The buckets of T5: exact ones, then logarithmic ones."""
    exact = count // 2
    steps = torch.log(distance.float().clamp(min=1) / exact) / math.log(most / exact) * (count - exact)
    return torch.where(distance < exact, distance, (exact + steps.long()).clamp(max=count - 1))


class Layer(nn.Module):
    def __init__(self, width, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        self.norm, self.q = nn.LayerNorm(width), nn.Linear(width, width)
        self.kv, self.o = nn.Linear(width, 2 * width * kv_heads // heads), nn.Linear(width, width)

    def forward(self, x, bias, spelling):
        y, t = self.norm(x), x.shape[1]
        q = self.q(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(y).unflatten(-1, (2, self.kv_heads, -1)).permute(2, 0, 3, 1, 4)
        hidden = torch.ones(t, t, dtype=torch.bool).triu(1)
        if spelling == "mask":
            y = F.scaled_dot_product_attention(q, k, v, bias.masked_fill(hidden, -math.inf), enable_gqa=True)
        else:
            k, v = (z.repeat_interleave(self.heads // self.kv_heads, 1) for z in (k, v))
            y = (q @ k.mT * 0.3 + bias).masked_fill(hidden, -math.inf).softmax(-1) @ v
        return x + self.o(y.transpose(1, 2).flatten(2))


class Biased(nn.Module):
    """A decoder whose positions are in biases: `kind` is "buckets", "distances" or "keys"."""

    def __init__(self, kind, spelling, heads=4, kv_heads=2, width=32):
        super().__init__()
        self.kind, self.spelling, count = kind, spelling, 8 if kind == "buckets" else LENGTH
        self.embedding, self.head = nn.Embedding(VOCABULARY, width), nn.Linear(width, VOCABULARY)
        self.table = nn.Embedding(count, heads)
        self.layers = nn.ModuleList(Layer(width, heads, kv_heads) for _ in range(2))

    def forward(self, ids):
        x, at = self.embedding(ids), torch.arange(ids.shape[1])
        if self.kind == "keys":
            index = at[None]
        else:
            index = (at[:, None] - at).clamp(min=0)
            index = bucket(index, 8, 24) if self.kind == "buckets" else index
        bias = self.table(index).permute(2, 0, 1)[None]
        for layer in self.layers:
            x = layer(x, bias, self.spelling)
        return self.head(x)


def build(net, seed):
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 2.0 if "table" in name else 1.3 * parameter.shape[-1] ** -0.5)
    net.c = dataclasses.make_dataclass("Sizes", ["vocabulary"])(VOCABULARY)
    return net.eval()


def check(net, lengths, plan, new=5, bound=2e-5, **sizes):
    wanted = random_serving.prompts(net, lengths, new, 3)
    model = mw.from_torch(net, (torch.ones(1, 5, dtype=torch.long),))
    served = model.serve(**{"max_length": LENGTH, "page_size": 4, "max_requests": 2, "buckets": (3, 8), **sizes})
    with served.parallelize(**plan).start() as session:
        requests = [session.submit(prompt, max_new_tokens=new, logits=True) for prompt, _, _ in wanted]
        while session.step():
            pass
    for request, (_, tokens, rows) in zip(requests, wanted, strict=True):
        assert list(request.tokens) == tokens
        assert np.abs(np.asarray(request.logits) - rows.numpy()).max() / rows.abs().max() < bound


@pytest.mark.parametrize(("kind", "spelling", "plan"), [
    ("buckets", "mask", {"mesh": {"tp": 2}}),
    ("distances", "product", {"mesh": {"tp": 4}, "cache_sharding": "sequence"}),
    ("keys", "mask", {"mesh": {"tp": 4}, "data_parallel_attention": 2}),
    pytest.param("buckets", "product", {"mesh": {"tp": 3}}, marks=pytest.mark.slow),
    pytest.param("distances", "mask", {"mesh": {"dp": 2, "tp": 2}}, marks=pytest.mark.slow),
    pytest.param("keys", "product", {"mesh": {"tp": 2}, "cache_sharding": "sequence"}, marks=pytest.mark.slow),
])
def test_tables(kind, spelling, plan):
    check(build(Biased(kind, spelling), 11), (14, 1, 22), plan)


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("spelling", ["baddbmm", "scores", "values"])
def test_products_of_joint_heads(spelling, kv_heads):
    """Both products, or one of them, have batch and heads in one dimension. Keys of one head serve all heads of a query,
    whose scores are written over zeros."""
    choice = dataclasses.replace(random_serving.draw(1), spelling=spelling, positions="none", heads=2, layers=1,
                                 kv_heads=kv_heads, repeats=1, sinks=False, cap=0.0)
    net = random_serving.build(choice, LENGTH, 4)
    check(net, (9, 1), {"mesh": {"tp": 2}})


class Logits(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, ids):
        return self.net(ids, use_cache=False).logits


@pytest.mark.slow
@pytest.mark.parametrize("heads", [4, 6])
def test_falcon_behind_256_positions(heads):
    """Its biases are slopes times positions in bf16, which rounds positions above 256."""
    import transformers

    config = transformers.FalconConfig(hidden_size=8 * heads, num_hidden_layers=1, num_attention_heads=heads,
                                       vocab_size=VOCABULARY, alibi=True)
    net = build(Logits(transformers.FalconForCausalLM(config)), 2)
    check(net, (290, 300), {"mesh": {"tp": 2}}, max_length=320, page_size=16, buckets=(64,))
