# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attention over a sequence that is sharded: results beside PyTorch's in f64, bytes moved."""

import copy

import pytest
import torch
import transformers as tf

import meshwright as mw

SMALL = dict(
    hidden_size=64, num_hidden_layers=2, intermediate_size=96, vocab_size=101,
    max_position_embeddings=256, use_cache=False,
)  # fmt: skip
MODELS = {
    "llama 8:2": lambda: tf.LlamaForCausalLM(
        tf.LlamaConfig(**SMALL, num_attention_heads=8, num_key_value_heads=2)
    ),
    "llama 8:1": lambda: tf.LlamaForCausalLM(
        tf.LlamaConfig(**SMALL, num_attention_heads=8, num_key_value_heads=1)
    ),
    "mistral": lambda: tf.MistralForCausalLM(
        tf.MistralConfig(**SMALL, num_attention_heads=4, num_key_value_heads=4, sliding_window=9)
    ),
    "gpt2": lambda: tf.GPT2LMHeadModel(
        tf.GPT2Config(n_embd=48, n_layer=2, n_head=6, vocab_size=101, n_positions=64, use_cache=False)
    ),
    "bert": lambda: tf.BertModel(tf.BertConfig(**SMALL, num_attention_heads=4)),
    "t5": lambda: tf.T5EncoderModel(
        tf.T5Config(d_model=48, d_kv=8, d_ff=96, num_layers=2, num_heads=6, vocab_size=101)
    ),
}  # fmt: skip


def compare(model, ids, mesh, context, **kwargs):
    with torch.no_grad():
        want = copy.deepcopy(model).double()(ids, **kwargs)[0]
    plan = mw.from_torch(model, (ids,), kwargs).parallelize(mesh=mesh, context_parallel=context)
    got = plan.run(ids, **kwargs)[0].double()
    assert (got - want).abs().max() <= 1e-5 * want.abs().max()
    return plan


MESHES = [
    ({"ulysses": 2}, 3, 7),
    ({"ulysses": 4}, 1, 33),
    ({"tp": 2, "ulysses": 2}, 1, 31),
    ({"ulysses": 2}, 1, 1),
    ({"ulysses": 3}, 2, 16),
    ({"ulysses": 8}, 1, 5),
    ({"dp": 2, "ulysses": 2}, 3, 9),
]
# Every model on three of them, every one of them for two models at least.
CASES = [(name, *MESHES[(2 * i + j) % len(MESHES)]) for i, name in enumerate(MODELS) for j in range(3)]


@pytest.mark.parametrize("name, mesh, batch, length", CASES, ids=str)
def test_ulysses(name, mesh, batch, length):
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    ids = torch.randint(0, 101, (batch, length))
    compare(model, ids, mesh, {"ulysses": "ulysses"})


def test_padding_mask():
    torch.manual_seed(0)
    model = MODELS["bert"]().eval()
    ids = torch.randint(0, 101, (3, 7))
    mask = (torch.arange(7)[None] < torch.tensor([[7], [3], [1]])).long()
    compare(model, ids, {"ulysses": 2}, {"ulysses": "ulysses"}, attention_mask=mask)


def test_bytes_of_ulysses():
    """(U-1)/U of the local q, k, v and output, in two launches a layer, nothing gathered."""
    torch.manual_seed(0)
    config = tf.LlamaConfig(**SMALL, num_attention_heads=8, num_key_value_heads=4)
    model = tf.LlamaForCausalLM(config).eval()
    ids = torch.randint(0, 101, (1, 64))
    plan = compare(model, ids, {"ulysses": 4}, {"ulysses": "ulysses"})
    report = plan.report(format="json")
    assert {c["kind"] for c in report["collectives"]} == {"all_to_all"}
    local = 64 // 4 * 8 * 4  # tokens x head size x bytes
    heads = 8 + 4 + 4 + 8
    assert report["bytes_per_rank"] == 2 * local * heads * 3 // 4
    assert report["launches_per_rank"] == 4
