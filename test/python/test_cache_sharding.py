# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""`cache_sharding="sequence"`: ranks hold every n-th page of each request, and merge what they see."""

import functools

import meshwright as mw
import numpy as np
import pytest
import torch
import transformers as tf

SIZES = {"max_length": 36, "page_size": 4, "max_requests": 3, "buckets": (3, 12)}
PROMPTS, NEW = (1, 9, 22), 6


@functools.cache
def net(heads, window):
    torch.manual_seed(11)
    config = tf.MistralConfig(
        hidden_size=60,
        intermediate_size=70,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=heads,
        head_dim=10,
        vocab_size=131,
        max_position_embeddings=64,
        sliding_window=window,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    made = tf.MistralForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 1.3 * parameter.shape[-1] ** -0.5)
    return made


@functools.cache
def served(heads, window):
    model = mw.from_torch(net(heads, window), (torch.ones(1, 6, dtype=torch.long),))
    return model.serve(**SIZES)


@functools.cache
def prompts():
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(3, 131, (n,), generator=generator).tolist() for n in PROMPTS]


@functools.cache
def reference(heads, window):
    """For each prompt the logits of its new tokens, and the tokens."""
    found = []
    for prompt in prompts():
        ids, rows = list(prompt), []
        with torch.no_grad():
            for _ in range(NEW):
                rows.append(net(heads, window)(torch.tensor([ids]), use_cache=False).logits[0, -1])
                ids.append(int(rows[-1].argmax()))
        found.append((ids[len(prompt) :], torch.stack(rows).numpy()))
    return found


@pytest.mark.parametrize(
    "heads, window, mesh, more",
    [
        (1, None, {"tp": 2}, {}),
        (1, None, {"tp": 3}, {}),
        (2, None, {"tp": 4}, {}),
        (3, 7, {"tp": 4}, {}),
        (1, None, {"dp": 2, "tp": 2}, {}),
        (1, None, {"tp": 4}, {"data_parallel_attention": 2}),
    ],
)
def test_tokens_are_those_of_one_rank(heads, window, mesh, more):
    plan = served(heads, window).parallelize(mesh=mesh, cache_sharding="sequence", **more)
    ranks = mesh["tp"] // more.get("data_parallel_attention", 1)
    with plan.start() as session:
        requests = [session.submit(p, max_new_tokens=NEW, logits=True) for p in prompts()]
        while session.step():
            pass
        caches = [np.shape(v) for name, v in session.state().items() if name.startswith("cache.")]
    for request, (tokens, logits) in zip(requests, reference(heads, window), strict=True):
        own = np.asarray(request.logits)
        assert np.abs(own - logits).max() / np.abs(logits).max() < 1e-4
        assert list(request.tokens) == tokens
    blocks = -(-36 // (4 * ranks)) * ranks
    assert caches and all(shape[1] == blocks * 3 for shape in caches)
    # A rank holds its share of the pages of its group.
    elements = sum(int(np.prod(shape)) for shape in caches) // caches[0][0]
    memory = plan.report(format="json")["memory_per_rank"]
    assert memory["cache"] == elements * 4 // ranks


@functools.cache
def deep(layers):
    """A model of a size at which bytes count, without weights."""
    sizes = dict(hidden_size=2048, intermediate_size=4096, num_attention_heads=16, num_key_value_heads=1,
                 vocab_size=32000, max_position_embeddings=1024)
    with torch.device("meta"):
        net = tf.MistralForCausalLM(tf.MistralConfig(**sizes, num_hidden_layers=layers, sliding_window=None)).eval()
        ids = torch.zeros(1, 8, dtype=torch.long)
    return mw.from_torch(net, (ids,)).serve(max_length=1024, page_size=16, max_requests=8, buckets=(1024,))


@pytest.mark.parametrize("mode", ["on", "auto"])
def test_bytes_of_a_layer(mode):
    """Queries are gathered and parts exchanged, in a launch each; no page and no key moves."""
    plans = [deep(n).parallelize(mesh={"tp": 4}, cache_sharding="sequence", sequence_parallel=mode)
             .report(format="json", entry="tokens=1024") for n in (1, 2)]
    sent, launches = (plans[1][k] - plans[0][k] for k in ("bytes_per_rank", "launches_per_rank"))
    rows = 4 * 1024 * 3 / 4 + 2 * 1024 * 3 / 4
    assert sent <= (rows * 2048 + 1024 * 16 * 3 / 4) * 4
    assert launches <= 7
