# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Gradients of modules whose layouts are unusual, against autograd in f64: elements of flat
tensors, heads that the ranks do not divide under one bias, a parameter of one row, and one token
of one row of the batch on each rank."""

import copy

import meshwright as mw
import pytest
import torch
import torch.nn.functional as F
import transformers as tf
from torch import nn

MESHES = {
    "dp=2": dict(mesh={"dp": 2}),
    "tp=2 sp": dict(mesh={"tp": 2}, sequence_parallel="on"),
    "tp=3 sp": dict(mesh={"tp": 3}, sequence_parallel="on"),
    "tp=4": dict(mesh={"tp": 4}, sequence_parallel="off"),
    "dp=2,tp=2 sp": dict(mesh={"dp": 2, "tp": 2}, sequence_parallel="on"),
}
INDICES = torch.tensor([[0, 50], [95, 3]])
ELEMENTS = {
    "take": lambda h: h.take(INDICES),
    "flat index": lambda h: h.flatten()[INDICES],
    "index_select": lambda h: h.flatten().index_select(0, INDICES[0]),
    "as_strided": lambda h: h.as_strided((2, 6, 3), (48, 8, 1), 2),
    "unfold": lambda h: h.flatten().unfold(0, 6, 5),
    "rows": lambda h: h.flatten(0, 1)[torch.tensor([1, 11, 7])],
    "transposed": lambda h: h.view(12, 8).t().flatten()[INDICES],
    "flip": lambda h: h.flatten().flip(0)[::3],
}


class Picked(nn.Module):
    """Some elements of a block's result, each with a weight of its own in the loss."""

    def __init__(self, pick, width=8, hidden=12):
        super().__init__()
        self.pick, self.up, self.down = pick, nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        y = self.pick(x + self.down(F.gelu(self.up(x))))
        return (y * (torch.arange(y.numel()).view_as(y) * 0.37 + 0.2).cos()).sum()


class Biased(nn.Module):
    """Attention with grouped queries under a learned bias."""

    def __init__(self, heads, groups, shape, width=24, size=4):
        super().__init__()
        self.size = size
        self.q, self.o = nn.Linear(width, heads * size), nn.Linear(heads * size, width)
        self.k, self.v = (nn.Linear(width, groups * size) for _ in range(2))
        self.bias = nn.Parameter(torch.randn(shape))

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
                   for p in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias, enable_gqa=True)
        return (x + self.o(y.transpose(1, 2).flatten(2))).sin().square().mean()


def check(module, x, **options):
    model = mw.from_torch(module.train(), (x,), training=True).differentiate()
    plan = model.parallelize(**options)
    got = dict(zip(model.outputs, plan.run(x), strict=True))
    want = copy.deepcopy(module).double()
    want(x.double()).backward()
    largest = max(p.grad.abs().max() for p in want.parameters())
    for name, parameter in want.named_parameters():
        error = (got[f"grad.{name}"].double() - parameter.grad).abs().max() / largest
        assert error <= 1e-6, (name, error)
    return plan


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("pick", ELEMENTS)
def test_elements_of_a_flat_tensor(pick, mesh):
    torch.manual_seed(1)
    check(Picked(ELEMENTS[pick]), torch.randn(2, 6, 8), **MESHES[mesh])


@pytest.mark.parametrize("mesh", [{"tp": 2}, {"tp": 4}, {"dp": 2, "tp": 2}], ids=str)
@pytest.mark.parametrize(
    "shape", [(5, 5), (2, 1, 5, 5), (2, 1, 1, 5), (1, 6, 5, 5), (1, 1, 1, 1)], ids=str)
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_heads_that_share_a_bias(groups, shape, mesh):
    torch.manual_seed(1)
    check(Biased(6, groups, shape), torch.randn(2, 5, 24), mesh=mesh)


@pytest.mark.parametrize("mesh", [{"tp": 2}, {"tp": 3}, {"dp": 2, "tp": 2}], ids=str)
def test_a_rule_that_shards_one_row(mesh):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 1))
    x = torch.randn(3, 5, 8)
    rules = {"2.weight": '[{"tp"}, {}]', "2.bias": '[{"tp"}]'}
    plan = mw.from_torch(net, (x,)).parallelize(mesh=mesh, shardings=rules)
    (got,) = plan.run(x)
    torch.testing.assert_close(got, net(x))
    noted = [d for d in plan.report(format="json")["decisions"] if d["pass"] == "annotate-rules"]
    assert len(noted) == 2 and "which has size 1" in noted[0]["message"]


@pytest.mark.parametrize("mesh", [{"dp": 4, "tp": 2}, {"dp": 4}, {"dp": 2, "tp": 4}], ids=str)
def test_one_token_a_rank(mesh):
    """Every local size but those of features is 1, in an encoder and a decoder."""
    torch.manual_seed(1)
    net = tf.T5ForConditionalGeneration(tf.T5Config(
        d_model=24, d_kv=4, d_ff=40, num_layers=2, num_heads=6, vocab_size=53, use_cache=False,
        decoder_start_token_id=0, dropout_rate=0.0, feed_forward_proj="gated-gelu")).train()
    batch = mesh["dp"]
    draw = lambda: torch.randint(3, 50, (batch, 1))
    inputs = dict(input_ids=draw(), labels=draw(),
                  attention_mask=torch.ones(batch, 1, dtype=torch.long))
    model = mw.from_torch(net, (), inputs, training=True).differentiate(loss="loss")
    got = dict(zip(model.outputs, model.parallelize(mesh=mesh).run(**inputs), strict=True))
    net(**inputs).loss.backward()
    largest = max(p.grad.abs().max() for p in net.parameters() if p.grad is not None)
    for name, parameter in net.named_parameters():
        if f"grad.{name}" in got and parameter.grad is not None:
            assert (got[f"grad.{name}"] - parameter.grad).abs().max() <= 2e-6 * largest, name


class Pooled(nn.Module):
    """Attention without a mask, and a loss of the mean over the tokens: all of them have one cotangent."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.bias = nn.Linear(12, 36), nn.Parameter(torch.randn(1, 2, 1, 13))

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (2, 6)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias)
        return y.mean(2).square().sum()


@pytest.mark.parametrize("options", [
    *({"mesh": {"ring": n}, "context_parallel": {"ring": "ring", "order": order}}
      for n, order in ((2, "contiguous"), (2, "zigzag"), (3, "striped"))),
    {"mesh": {"ulysses": 2}, "context_parallel": {"ulysses": "ulysses"}},
    {"mesh": {"tp": 2}, "sequence_parallel": "on"},
], ids=str)  # fmt: skip
def test_equal_cotangents_of_padded_tokens(options):
    """Padding has the cotangent of the tokens, too, which no sum may add."""
    x = torch.randn(2, 13, 12, generator=torch.Generator().manual_seed(1))
    model = mw.from_torch(Pooled().train(), (x,), training=True).differentiate()
    got = model.parallelize(**options).run(x)
    net = Pooled().double()
    net(x.double()).backward()
    top = max(p.grad.abs().max() for p in net.parameters())
    for name, value in zip(model.outputs[1:], got[1:], strict=True):
        want = net.get_parameter(name.removeprefix("grad.")).grad
        assert (torch.as_tensor(value).double() - want).abs().max() <= 1e-6 * top
