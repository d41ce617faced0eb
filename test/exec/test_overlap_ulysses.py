# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attention of Ulysses in chunks of heads: the same bits as whole, and PyTorch's results."""

import copy

import pytest
import torch
import transformers as tf

import meshwright as mw


def build(heads, kv_heads, batch=1, length=24):
    torch.manual_seed(0)
    config = tf.LlamaConfig(
        hidden_size=64, num_hidden_layers=2, intermediate_size=96, vocab_size=101,
        max_position_embeddings=256, use_cache=False, num_attention_heads=heads,
        num_key_value_heads=kv_heads,
    )  # fmt: skip
    return tf.LlamaForCausalLM(config).eval(), torch.randint(0, 101, (batch, length))


def compare(module, ids, mesh, context):
    """The plan that overlaps, after its results were compared."""
    with torch.no_grad():
        want = copy.deepcopy(module).double()(ids)[0]
    model = mw.from_torch(module, (ids,))
    on, off = (model.parallelize(mesh=mesh, context_parallel=context, overlap=overlap)
               for overlap in ("on", "off"))  # fmt: skip
    got = on.run(ids)[0]
    assert (got - want).abs().max() <= 1e-5 * want.abs().max()
    assert torch.equal(got, off.run(ids)[0])
    return on


@pytest.mark.parametrize("heads, kv_heads, ulysses", [(8, 2, 4), (8, 1, 2), (8, 2, 8)])
def test_shared_keys(heads, kv_heads, ulysses):
    """Ranks that have the same key/value head."""
    module, ids = build(heads, kv_heads)
    compare(module, ids, {"ulysses": ulysses}, {"ulysses": "ulysses"})
