# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A target and a draft model on meshes of their own over the same ranks: results, the move of the
hidden states between them, refusals."""

import copy
import functools

import meshwright as mw
import pytest
import torch
import transformers as tf
from torch import nn

VOCABULARY, HIDDEN = 96, 48


def llama(seed, heads, kv_heads, head=False):
    torch.manual_seed(seed)
    config = tf.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=72, num_hidden_layers=1,
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=8,
        max_position_embeddings=64, use_cache=False,
    )  # fmt: skip
    return (tf.LlamaForCausalLM if head else tf.LlamaModel)(config).eval()


class Fuse(nn.Module):
    """A draft that goes on from another model's hidden states, as EAGLE's does."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        self.fuse = nn.Linear(2 * HIDDEN, HIDDEN, bias=False)
        self.model = llama(1, 4, 2, head=True)

    def forward(self, ids, hidden):
        x = self.fuse(torch.cat([self.embed(ids), hidden], dim=-1))
        return self.model(inputs_embeds=x).logits


@functools.cache
def pipeline(batch, sequence):
    """The composed model, its inputs, and what PyTorch makes of them in f64."""
    target, draft = llama(0, 6, 3), Fuse().eval()
    torch.manual_seed(5)
    ids = torch.randint(0, VOCABULARY, (batch, sequence))
    with torch.no_grad():
        hidden = copy.deepcopy(target).double()(ids).last_hidden_state
        want = copy.deepcopy(draft).double()(ids, hidden)
    models = {
        "target": mw.from_torch(target, (ids,), {"use_cache": False}),
        "draft": mw.from_torch(draft, (ids, hidden.float())),
    }
    model = mw.compose(models, {"draft.hidden": "target.0"})
    return model, {"target.input_ids": ids, "draft.ids": ids}, want


def check(plan, inputs, want):
    got = plan.run(**inputs)
    got = got[0] if isinstance(got, (list, tuple)) else got
    assert got.shape == want.shape
    assert (got.double() - want).abs().max() <= 1e-5 * want.abs().max()
    plan.check(**inputs)


@pytest.mark.parametrize(
    "target, draft",
    [
        ({"dp": 2, "tp": 3}, {"dp": 3, "tp": 2}),
        ({"dp": 3, "tp": 2}, {"dp": 2, "tp": 3}),
        ({"dp": 4, "tp": 2}, {"dp": 2, "tp": 4}),
        ({"tp": 4}, {"dp": 4}),
        ({"dp": 2, "tp": 2}, {"tp": 2, "dp": 2}),
        ({"dp": 6}, {"dp": 1, "tp": 6}),
    ],
)
@pytest.mark.parametrize("batch, sequence", [(6, 8), (5, 7), (1, 4)])
def test_equal_to_pytorch(target, draft, batch, sequence):
    model, inputs, want = pipeline(batch, sequence)
    plan = model.parallelize(mesh={"target": target, "draft": draft}, sequence_parallel="off")
    check(plan, inputs, want)


@pytest.mark.parametrize("batch, sequence", [(6, 12), (5, 7), (1, 5)])
def test_tokens_scattered_between_blocks(batch, sequence):
    model, inputs, want = pipeline(batch, sequence)
    meshes = {"target": {"dp": 2, "tp": 3}, "draft": {"dp": 3, "tp": 2}}
    check(model.parallelize(mesh=meshes, sequence_parallel="on"), inputs, want)


def test_hidden_states_cross_in_one_launch():
    """From tokens on six ranks to a batch on three: a rank receives what it lacks, no more."""
    model, inputs, want = pipeline(6, 12)
    meshes = {"target": {"dp": 2, "tp": 3}, "draft": {"dp": 3, "tp": 2}}
    plan = model.parallelize(mesh=meshes, sequence_parallel="on")
    moves = [line for line in plan.ir().splitlines() if "dist.redistribute" in line]
    assert len(moves) == 1
    assert 'from [#dist.sharding<@mesh, [{"ranks":(1)2}, {"ranks":(2)3}, {}]>]' in moves[0]
    assert 'to [#dist.sharding<@mesh, [{"ranks":(1)3}, {}, {}]>]' in moves[0]
    report = plan.report("json")
    sent = [c["bytes_per_rank"] for c in report["collectives"] if c["kind"] == "redistribute"]
    # Two sequences of 12 tokens, of which four tokens are there already, at worst.
    assert sent == [(2 * 12 - 4) * HIDDEN * 4]
    assert not report["warnings"]
    check(plan, inputs, want)


@pytest.mark.parametrize("batch, sequence", [(6, 12), (5, 7)])
@pytest.mark.parametrize(
    "target, draft",
    [({"dp": 2, "tp": 3}, {"dp": 3, "sp": 2}), ({"dp": 2, "sp": 2}, {"sp": 4})],
)
def test_draft_with_sharded_sequences(target, draft, batch, sequence):
    model, inputs, want = pipeline(batch, sequence)
    plan = model.parallelize(
        mesh={"target": target, "draft": draft}, context_parallel={"ulysses": "sp"}
    )
    # Around the draft's attention, where heads move, be it by one launch or another.
    moves = [op for op in ("all_to_all", "redistribute") if f"dist.{op}" in plan.ir()]
    assert moves
    check(plan, inputs, want)


class Next(nn.Module):
    """The target's next input, computed from the draft's hidden states."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(9)
        self.mix = nn.Linear(HIDDEN, HIDDEN)
        self.out = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x):
        return x + self.out(torch.relu(self.mix(x)))


def test_there_and_back_in_a_loop():
    target, draft = Next(), Next()
    with torch.no_grad():
        draft.mix.weight.mul_(0.5)
    x = torch.randn(5, 7, HIDDEN)
    want = x.double()
    exact = copy.deepcopy(target).double(), copy.deepcopy(draft).double()
    with torch.no_grad():
        for _ in range(3):
            want = exact[1](exact[0](want))
    models = {"target": mw.from_torch(target, (x,)), "draft": mw.from_torch(draft, (x,))}
    connect = {"draft.x": "target.0", "target.x": "draft.0"}
    model = mw.compose(models, connect, loop=["target", "draft"], steps=3)
    plan = model.parallelize(
        mesh={"target": {"dp": 2, "tp": 3}, "draft": {"dp": 3, "tp": 2}}, sequence_parallel="off"
    )
    check(plan, {"target.x": x}, want)


@pytest.mark.parametrize(
    "mesh, message",
    [
        ({"target": {"tp": 2}, "draft": {"tp": 3}}, "stage 'draft': expected a mesh of 2 ranks, .*, got 3"),
        ({"target": {"tp": 2}}, "stage 'draft' has no mesh"),
        ({"target": {"tp": 2}, "draft": {"tp": 2}, "other": {"tp": 2}}, "no stage 'other'"),
        ({"target": {"tp": 2}, "draft": 2}, "stage 'draft': expected axes, .*, got 2"),
    ],
)
def test_refusals(mesh, message):
    model, _, _ = pipeline(2, 4)
    with pytest.raises(mw.Error, match=message):
        model.parallelize(mesh=mesh)


@pytest.mark.parametrize("batch, sequence", [(6, 12), (5, 7), (1, 1)])
@pytest.mark.parametrize(
    "target, draft",
    [
        ({"dp": 2, "tp": 3}, {"dp": 3, "ring": 2}),
        ({"dp": 2, "tp": 2}, {"ring": 2, "sp": 2}),
        ({"ring": 4}, {"dp": 2, "ring": 2}),
        ({"tp": 2, "ring": 3}, {"sp": 2, "ring": 3}),
    ],
)
def test_rings(target, draft, batch, sequence):
    """Tokens in a ring of one stage, in another's, and on their way between them."""
    model, inputs, want = pipeline(batch, sequence)
    plan = model.parallelize(
        mesh={"target": target, "draft": draft},
        context_parallel={"ring": "ring", "ulysses": "sp" if "sp" in draft else None},
    )
    assert sequence == 1 or "dist.permute" in plan.ir()
    check(plan, inputs, want)


def test_order_of_all_stages():
    model, _, _ = pipeline(2, 4)
    with pytest.raises(mw.Error, match="expected order contiguous or auto, got 'zigzag'"):
        model.parallelize(
            mesh={"target": {"tp": 2}, "draft": {"sp": 2}},
            context_parallel={"ring": "sp", "order": "zigzag"},
        )


def test_stages_without_a_composed_model():
    x = torch.randn(2, 3, HIDDEN)
    model = mw.from_torch(Next(), (x,))
    with pytest.raises(mw.Error, match="not composed of stages"):
        model.parallelize(mesh={"target": {"tp": 2}, "draft": {"tp": 2}})
