# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Caches and groups of a model that serves, where its options leave them open: chosen by the cost of plans."""
import functools

import meshwright as mw
import pytest
import torch
import transformers as tf


@functools.cache
def served(kv_heads, requests):
    """A layer of a size at which bytes count, without weights."""
    config = tf.LlamaConfig(hidden_size=1024, intermediate_size=2048, num_hidden_layers=1, num_attention_heads=16,
                            num_key_value_heads=kv_heads, vocab_size=4096, max_position_embeddings=4096)
    with torch.device("meta"):
        net = tf.LlamaForCausalLM(config).eval()
        ids = torch.zeros(1, 8, dtype=torch.long)
    return mw.from_torch(net, (ids,)).serve(max_length=4096, page_size=16, max_requests=requests, buckets=(requests,))


def plan(kv_heads, requests, tp=4, **options):
    made = served(kv_heads, requests).parallelize(mesh={"tp": tp}, device="h100", **options)
    report = made.report(format="json")
    return made, report["serving"], [d for d in report["decisions"] if d["pass"] == "serve"]


@pytest.mark.parametrize("options", [{}, {"target": "gpu:sm_90a"}], ids=["", "gpu"])
def test_large_copies_are_dealt(options):
    made, serving, decisions = plan(1, 32, **options)
    assert serving["cache"] == "sequence"
    heads, sequence = decisions[0]["alternatives"]
    assert sequence["chosen"] and not heads["chosen"]
    assert sequence["numbers"]["seconds"] < heads["numbers"]["seconds"]
    assert sequence["numbers"]["memory_bytes"] < heads["numbers"]["memory_bytes"]
    assert "serve: cache-sharding: one group, cache by sequence: a step takes" in made.report(verbose=True)


@pytest.mark.parametrize(("kv_heads", "requests", "options"), [
    (4, 32, {}),  # no copies
    (1, 32, {"cache_sharding": "heads"}),
])
def test_other_caches_are_by_heads(kv_heads, requests, options):
    _, serving, decisions = plan(kv_heads, requests, **options)
    assert serving["cache"] == "heads" and not decisions


def test_groups_by_cost():
    _, serving, (decision,) = plan(1, 32, data_parallel_attention="auto")
    chosen, = (other for other in decision["alternatives"] if other["chosen"])
    assert {other["name"].split(",")[0] for other in decision["alternatives"]} == {"one group", "2 groups", "4 groups"}
    assert chosen["name"].startswith(f"{serving['groups']} groups" if serving["groups"] > 1 else "one group")


def test_memory_of_the_device():
    """The quickest number of groups holds more copies of the cache than this device does."""
    def choose(memory):
        made = served(1, 32).parallelize(mesh={"tp": 4}, device=f"h100 memory_size={memory}", cache_sharding="heads",
                                         data_parallel_attention="auto")
        decision, = (d for d in made.report(format="json")["decisions"] if d["pass"] == "serve")
        return decision, {other["name"]: other for other in decision["alternatives"]}

    _, others = choose("80e9")
    quickest = next(name for name, other in others.items() if other["chosen"])
    least = min(others, key=lambda name: others[name]["numbers"]["memory_bytes"])
    assert quickest != least
    bound = others[quickest]["numbers"]["memory_bytes"] - 1
    decision, others = choose(str(bound))
    chosen = next(other for other in others.values() if other["chosen"])
    assert chosen["name"] != quickest and chosen["numbers"]["memory_bytes"] <= bound
    assert f"{quickest} takes" in decision["message"] and "which does not fit" in decision["message"]
