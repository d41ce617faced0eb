# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Models with latent keys cache the latent where that costs less, and give the tokens of PyTorch.

A longer run draws more models: `python test/python/test_latent_cache.py --long 200`.
"""

import sys

import latent_modules
import meshwright as mw
import numpy as np
import pytest
import torch
import transformers as tf

PAGE, LENGTH, REQUESTS, NEW = 4, 24, 2, 4


def greedy(net, prompt):
    """The logits of the new tokens, in f64, and the tokens."""
    ids, logits = torch.tensor([prompt]), []
    with torch.no_grad():
        for _ in range(NEW):
            logits.append(net(ids)[0, -1])
            ids = torch.cat([ids, logits[-1].argmax()[None, None]], 1)
    return ids[0, len(prompt) :].tolist(), torch.stack(logits).numpy()


def check(seed, mesh, sharding="heads"):
    choice, net = latent_modules.make(seed)
    prompts = [
        torch.randint(choice.vocabulary, (n,), generator=torch.Generator().manual_seed(seed + n)).tolist()
        for n in (7, 3)
    ]
    model = mw.from_torch(net, (torch.zeros(1, 8, dtype=torch.long),))
    served = model.serve(max_length=LENGTH, page_size=PAGE, max_requests=REQUESTS, buckets=(2, 16))
    with served.parallelize(mesh=mesh, cache_sharding=sharding).start() as session:
        requests = [session.submit(prompt, max_new_tokens=NEW, logits=True) for prompt in prompts]
        while session.step():
            pass
        caches = {name: np.shape(value) for name, value in session.state().items() if name.startswith("cache.")}
    double = net.double()
    for prompt, request in zip(prompts, requests, strict=True):
        tokens, logits = greedy(double, prompt)
        scale = np.abs(logits).max()
        for own, at in zip(np.asarray(request.logits, np.float64), range(NEW), strict=True):
            assert np.abs(own - logits[at]).max() / scale < 2e-5, (seed, choice)
            if request.tokens[at] != tokens[at]:
                # Rounding chose between two equal logits.
                assert np.ptp(np.sort(logits[at])[-2:]) / scale < 1e-4, (seed, choice)
                break
    dealt = mesh["tp"] if sharding == "sequence" else 1
    pages = -(-LENGTH // (PAGE * dealt)) * dealt * REQUESTS
    elements = sum(np.prod(shape[3:]) for shape in caches.values())
    assert elements == choice.layers * choice.cached, (seed, choice, caches)
    assert all(shape[:3] == (1, pages, PAGE) for shape in caches.values()), caches


@pytest.mark.parametrize("seed", range(8))
def test_drawn_models_cache_the_latent(seed):
    check(seed, {"tp": 1 + seed % 2})


@pytest.mark.parametrize("seed", range(8, 12))
def test_ranks_hold_pages_of_the_latent(seed):
    check(seed, {"tp": 2 + seed % 3}, "sequence")


DEEPSEEK = tf.DeepseekV3Config(
    hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
    vocab_size=203, max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=2, q_lora_rank=24,
    kv_lora_rank=20, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=12, first_k_dense_replace=2)
#: Elements of a token, layer and head, and the number of kv heads.
CACHES = {
    "gpt2": (tf.GPT2LMHeadModel, tf.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=203, n_positions=128,
                                               bos_token_id=1, eos_token_id=2), 32, 4),
    "bloom": (tf.BloomForCausalLM, tf.BloomConfig(hidden_size=64, n_layer=2, n_head=4, vocab_size=203), 32, 4),
    "opt": (tf.OPTForCausalLM, tf.OPTConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, ffn_dim=96,
                                            vocab_size=203, max_position_embeddings=128, word_embed_proj_dim=64), 32, 4),
    "deepseek": (tf.DeepseekV3ForCausalLM, DEEPSEEK, 28, 1),
}


@pytest.mark.parametrize("name", CACHES)
def test_multi_head_models_cache_heads(name):
    """A hidden state is half as wide as keys and values, but attention to it takes `heads` times the arithmetic."""
    kind, config, elements, heads = CACHES[name]
    model = mw.from_torch(kind(config).eval(), (torch.zeros(1, 8, dtype=torch.long),))
    served = model.serve(max_length=LENGTH, page_size=PAGE, max_requests=REQUESTS, buckets=(2, 16))
    for tp in (1, 4):
        report = served.parallelize(mesh={"tp": tp}, cache_sharding="heads").report(format="json")
        of_token = 2 * 4 * elements * -(-heads // tp)
        assert report["serving"]["cache_bytes_per_token"] == of_token
        assert report["memory_per_rank"]["cache"] == of_token * LENGTH * REQUESTS
        assert report["serving"]["cache"] == "heads"


if __name__ == "__main__":
    for seed in range(int(sys.argv[sys.argv.index("--long") + 1])):
        check(seed, {"tp": 1 + seed % 3}, ("heads", "sequence")[seed % 2])
    print("equal")
