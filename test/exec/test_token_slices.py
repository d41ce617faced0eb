# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Few tokens of a sharded sequence: what poolers, last logits and classifiers read."""

import copy
import itertools

import meshwright as mw
import pytest
import torch
import transformers as tf
from torch import nn

SMALL = dict(hidden_size=64, num_hidden_layers=2, intermediate_size=96, vocab_size=101)
DECODER = dict(**SMALL, num_attention_heads=8, num_key_value_heads=4, use_cache=False)
MODELS = {
    "bert pooler": (lambda: tf.BertModel(tf.BertConfig(**SMALL, num_attention_heads=4)), {}),
    "llama last": (lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**DECODER)), {"logits_to_keep": 1}),
    "llama class": (
        lambda: tf.LlamaForSequenceClassification(
            tf.LlamaConfig(**DECODER, pad_token_id=0, num_labels=3)
        ), {}),
    "bert class": (
        lambda: tf.BertForSequenceClassification(tf.BertConfig(**SMALL, num_attention_heads=4)), {}),
    "clip pooled": (
        lambda: tf.CLIPTextModel(
            tf.CLIPTextConfig(**SMALL, num_attention_heads=4, max_position_embeddings=128,
                              bos_token_id=1, eos_token_id=9)
        ), {}),
}  # fmt: skip
MESHES = [{"ulysses": 2}, {"ring": 2}, {"ring": 2, "ulysses": 2}]
ORDERS = ["zigzag", "striped", "contiguous"]
SIZES = [(1, 97), (3, 7), (3, 97), (1, 7), (1, 1)]
# Each model on each mesh, orders and sizes in turn.
CASES = [
    (name, mesh, ORDERS[i % 3], *SIZES[i % 5])
    for i, (name, mesh) in enumerate(itertools.product(MODELS, MESHES))
] + [
    ("bert pooler", {"ring": 4, "ulysses": 2}, "contiguous", 1, 3),
    ("llama last", {"ring": 3}, "striped", 3, 1),
    ("llama last", {"ring": 4}, "zigzag", 1, 97),
    ("llama last", {"tp": 2, "ring": 2}, "zigzag", 1, 33),
    ("llama class", {"dp": 2, "ring": 2}, "striped", 3, 9),
    ("clip pooled", {"dp": 2, "ring": 2}, "zigzag", 4, 9),
]


def make_ids(batch, length):
    """Sequences of different lengths, padded with zeros; 9 ends each."""
    ids = torch.randint(10, 101, (batch, length))
    for i in range(batch):
        end = max(1, length - 2 * i)
        ids[i, end - 1] = 9
        ids[i, end:] = 0
    return ids


@pytest.mark.parametrize("name, mesh, order, batch, length", CASES, ids=str)
def test_picked_tokens(name, mesh, order, batch, length):
    torch.manual_seed(0)
    build, kwargs = MODELS[name]
    model, ids = build().eval(), make_ids(batch, length)
    with torch.no_grad():
        want = copy.deepcopy(model).double()(ids, **kwargs).to_tuple()
    context = {axis: axis for axis in mesh if axis not in ("dp", "tp")} | {"order": order}
    plan = mw.from_torch(model, (ids,), kwargs).parallelize(mesh=mesh, context_parallel=context)
    got = plan.run(ids, **kwargs)
    assert len(got) == len(want)
    for a, b in zip(got, want):
        assert (a.double() - b).abs().max() <= 1e-5 * b.abs().max()
    report = plan.report(format="json")
    axes = {"ring", "ulysses"}
    assert not [c for c in report["collectives"] if c["kind"] == "all_gather" and axes & set(c["axes"])]
    if length >= 7:
        (decision,) = [d for d in report["decisions"] if d["pass"] == "sum-sharded-slices"]
        assert decision["outcome"] == "applied"
        numbers = decision["numbers"]
        assert numbers["elements"] == 1 and numbers["size"] == length
        sums = [c for c in report["collectives"] if c["kind"] == "all_reduce" and axes & set(c["axes"])]
        assert sum(c["bytes_per_rank"] for c in sums) == numbers["bytes_summed"] < numbers["bytes_gathered"]
    plan.check(ids, **kwargs)


class Slices(nn.Module):
    """Causal attention, scaled for each token, and parts of the result."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x, scale, index):
        b, s, _ = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, 4, 8).permute(2, 0, 3, 1, 4)
        h = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h.transpose(1, 2).reshape(b, s, 32) * scale
        return (h, h[:, 0], h[:, -1:], h[:, -9::3], h[:, 1:3, 4:20], h[1:, 5], h[:, index],
                torch.gather(h, 1, index[None, :, None].expand(b, -1, 32)))  # fmt: skip


@pytest.mark.parametrize("mesh", [{"ring": 4}, {"ring": 2, "ulysses": 2}, {"dp": 2, "ring": 4}], ids=str)
@pytest.mark.parametrize("order", ORDERS)
def test_parts(mesh, order):
    """The same bits as in the whole, for any other tokens."""
    torch.manual_seed(0)
    x, index = torch.randn(2, 21, 32), torch.tensor([20, 3])
    scale = torch.ones(2, 21, 1)
    model = mw.from_torch(Slices().eval(), (x, scale, index))
    context = {axis: axis for axis in mesh if axis != "dp"} | {"order": order}
    plan = model.parallelize(mesh=mesh, context_parallel=context)
    # Only tokens that are not picked.
    scale[0, 7:11], scale[1, 7:11] = float("nan"), float("inf")
    h, *parts = plan.run(x, scale, index)
    assert not h.isfinite().all() and all(part.isfinite().all() for part in parts)
    want = (h[:, 0], h[:, -1:], h[:, -9::3], h[:, 1:3, 4:20], h[1:, 5], h[:, index], h[:, index])
    for got, expected in zip(parts, want):
        assert torch.equal(got, expected)
    report = plan.report(format="json")
    assert "all_gather" not in {c["kind"] for c in report["collectives"]} or "dp" in mesh


def test_many_tokens_are_gathered():
    torch.manual_seed(0)
    model = tf.LlamaForCausalLM(tf.LlamaConfig(**DECODER)).eval()
    ids = torch.randint(0, 101, (1, 32))
    kwargs = {"logits_to_keep": 16}
    plan = mw.from_torch(model, (ids,), kwargs).parallelize(
        mesh={"ring": 2}, context_parallel={"ring": "ring"}
    )
    report = plan.report(format="json")
    (decision,) = [d for d in report["decisions"] if d["pass"] == "sum-sharded-slices"]
    assert decision["outcome"] == "declined" and decision["numbers"]["elements"] == 16
    assert "all_gather" in {c["kind"] for c in report["collectives"]}
    plan.check(ids, **kwargs)
