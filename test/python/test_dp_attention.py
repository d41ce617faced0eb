# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Data-parallel attention: groups of tensor-parallel ranks compute other rows of the batch, and results
and bytes are those of the module and of the formula."""
import functools
import itertools
import random

import meshwright as mw
import pytest
import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """A layer of a decoder with biases, and a branch beside the attention or behind it."""

    def __init__(self, width, heads, kv, hidden, parallel, gated):
        super().__init__()
        self.heads, self.kv, self.size, self.parallel = heads, kv, width // heads, parallel
        self.before, self.behind = nn.RMSNorm(width), nn.LayerNorm(width)
        self.q = nn.Linear(width, heads * self.size)
        self.k, self.v = (nn.Linear(width, kv * self.size) for _ in range(2))
        self.o = nn.Linear(heads * self.size, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.gate = nn.Linear(width, hidden) if gated else None

    def mlp(self, x):
        y = F.gelu(self.up(x))
        return self.down(y * self.gate(x) if self.gate else y)

    def forward(self, x):
        y = self.before(x)
        q, k, v = (f(y).unflatten(-1, (-1, self.size)).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv)
        attended = self.o(y.transpose(1, 2).flatten(2))
        if self.parallel:
            return x + attended + self.mlp(self.behind(x))
        x = x + attended
        return x + self.mlp(self.behind(x))


class Decoder(nn.Module):
    def __init__(self, width, vocabulary, layers, tied, **block):
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Block(width, **block) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, ids):
        x = self.table(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def draw(seed):
    """A model, its input, and options on a mesh."""
    r = random.Random(seed)
    kv = r.choice([1, 2, 3, 4])
    block = dict(heads=kv * r.choice([1, 2]), kv=kv, hidden=r.choice([40, 52]), parallel=r.random() < 0.3,
                 gated=r.random() < 0.5)
    torch.manual_seed(seed)
    net = Decoder(block["heads"] * 8, r.choice([61, 96]), r.choice([1, 2]), r.random() < 0.4, **block).eval()
    ids = torch.randint(0, 61, (r.choice([1, 2, 3, 4, 6]), r.choice([1, 5, 8])))
    groups, ranks = r.choice([(2, 1), (2, 2), (4, 1), (3, 2), (2, 3)])
    mesh = {"dp": 2} if r.random() < 0.3 and groups * ranks < 6 else {}
    options = {"mesh": mesh | {"tp": groups * ranks}, "data_parallel_attention": groups,
               "sequence_parallel": r.choice(["on", "off", "auto"]), "dp_lm_head": r.choice(["on", "off", "auto"]),
               "dense_tp": r.choice(["auto", 1, groups * ranks])}
    return net, ids, options


@pytest.mark.parametrize("seed", range(16))
def test_drawn_models(seed):
    net, ids, options = draw(seed)
    with torch.no_grad():
        want = net.double()(ids)
    got, = mw.from_torch(net.float(), (ids,)).parallelize(**options).run(ids)
    got = torch.as_tensor(got)
    assert (got - want).abs().max() <= 1e-5 * want.abs().max(), options


def experts(kind):
    """A mixture of experts, whose router chooses 2 of 5 or 6."""
    import transformers
    size = dict(hidden_size=40, intermediate_size=36, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                vocab_size=61, num_experts_per_tok=2, head_dim=12)
    torch.manual_seed(5)
    if kind == "mixtral":
        return transformers.MixtralForCausalLM(transformers.MixtralConfig(**size, num_local_experts=5)).eval()
    config = transformers.Qwen3MoeConfig(**size, num_experts=6, moe_intermediate_size=20, decoder_sparse_step=1)
    return transformers.Qwen3MoeForCausalLM(config).eval()


class Logits(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, ids):
        return self.net(ids, use_cache=False).logits


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe"])
@pytest.mark.parametrize("shape", [(4, 7), (3, 5), (1, 1)])
def test_experts(kind, shape):
    """Tokens are gathered before they are routed: the features of experts are on all ranks."""
    net = Logits(experts(kind)).eval()
    ids = torch.randint(0, 61, shape, generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        want = net(ids)
    model = mw.from_torch(net, (ids,))
    for options in ({}, {"sequence_parallel": "on"}, {"sequence_parallel": "off"}, {"dense_tp": 1},
                    {"expert_parallel": "tp"}):
        got, = model.parallelize(mesh={"tp": 4}, data_parallel_attention=2, **options).run(ids)
        assert (torch.as_tensor(got) - want).abs().max() <= 1e-5 * want.abs().max(), options


@functools.cache
def deep(layers, batch):
    with torch.device("meta"):
        net = Decoder(2048, 32000, layers, False, heads=16, kv=4, hidden=8192, parallel=False, gated=True).eval()
        ids = torch.zeros(batch, 2048 // batch * 2, dtype=torch.long)
    return mw.from_torch(net, (ids,))


LAYERS = list(itertools.product((4, 8), (2, 4), ("auto", 1), ("on", "off", "auto")))


@pytest.mark.parametrize("dp", [1, 2])
@pytest.mark.parametrize(("tp", "groups", "dense", "mode"), LAYERS)
def test_bytes_of_a_layer(dp, tp, groups, dense, mode):
    """Ranks of data parallelism exchange nothing."""
    plans = [deep(n, 2 * groups * dp).parallelize(mesh={"dp": dp, "tp": tp}, data_parallel_attention=groups, dense_tp=dense,
                                                  sequence_parallel=mode).report(format="json") for n in (1, 2)]
    sent, launches = (plans[1][k] - plans[0][k] for k in ("bytes_per_rank", "launches_per_rank"))
    ranks, tokens = tp // groups, 4096 // groups // dp
    rows = tokens * (ranks - 1) / ranks
    if dense != 1:
        rows += tokens * groups * (tp - 1) / tp
    assert sent <= 2 * rows * 2048 * 4
    assert launches <= (2 if ranks > 1 else 0) + (0 if dense == 1 else 2)


@pytest.mark.parametrize("gather", ["max", "sum"])
@pytest.mark.parametrize("options", [{}, {"sequence_parallel": "on"}, {"dense_tp": 1}, {"dp_lm_head": "off"}], ids=str)
def test_experts_of_groups_beside_data_parallelism(gather, options):
    """Tokens of each rank of dp stay there, also where the true ones of its groups meet."""
    served = mw.from_torch(experts("mixtral"), (torch.zeros(1, 8, dtype=torch.long),)).serve(
        max_length=24, page_size=4, max_requests=2, buckets=[4])
    plan = served.parallelize(mesh={"dp": 2, "tp": 4}, data_parallel_attention=2, token_gather=gather, **options)
    assert not any("dp" in entry["axes"] for entry in plan.report(format="json")["collectives"])
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8], [9], [10, 11]]
    with plan.start() as session, served.parallelize(mesh={"tp": 1}).start() as plain:
        assert session.generate(prompts, max_new_tokens=5) == plain.generate(prompts, max_new_tokens=5)


@pytest.mark.parametrize(("options", "message"), [
    ({"mesh": {"tp": 4}, "data_parallel_attention": 3}, "data-parallel-attention: expected a divisor of the 4 ranks"),
    ({"mesh": {"dp": 2}, "data_parallel_attention": 2}, "data-parallel-attention: expected a divisor of the 1 ranks"),
    ({"mesh": {"tp": 4}, "data_parallel_attention": 0}, "data-parallel-attention: expected auto or a number from 1"),
    ({"mesh": {"tp": 4}, "dense_tp": 2}, "dense-tp: expected auto, 1 or the 4 ranks"),
    ({"mesh": {"tp": 4}, "dp_lm_head": "half"}, "dp-lm-head: expected on, off or auto, got 'half'"),
    ({"mesh": {"tp": 4}, "token_gather": "least"}, "token-gather: expected auto, max or sum, got 'least'"),
])
def test_options_that_do_not_fit(options, message):
    net, ids, _ = draw(0)
    with pytest.raises(mw.Error, match="(?s)" + message.replace("(", r"\(")):
        mw.from_torch(net, (ids,)).parallelize(**options)


def test_decisions_state_groups_and_padding():
    net, _, _ = draw(3)
    plan = mw.from_torch(net, (torch.zeros(3, 5, dtype=torch.long),)).parallelize(mesh={"tp": 4},
                                                                                  data_parallel_attention=2)
    texts = [d["message"] for d in plan.report(format="json")["decisions"] if d["pass"] == "annotate-dp-attention"]
    assert any("2 groups of 2 ranks" in text and "padded to 4" in text for text in texts), texts
