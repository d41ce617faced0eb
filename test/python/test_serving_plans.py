# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The mesh of a model that serves, chosen by the planner."""

import meshwright as mw
import pytest
import torch
import transformers as tf


@pytest.fixture(scope="module")
def served():
    torch.manual_seed(0)
    config = tf.LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
                            num_key_value_heads=2, vocab_size=61, max_position_embeddings=32)
    model = mw.from_torch(tf.LlamaForCausalLM(config).eval(), (torch.zeros(1, 8, dtype=torch.long),))
    return model.serve(max_length=32, page_size=4, max_requests=2, buckets=[2, 8])


def rate(plan, requests=2):
    serving = plan.report("json")["serving"]
    (step,) = [entry for entry in serving["entries"] if entry["name"] == f"tokens={requests}"]
    return serving["groups"] * requests / step["seconds"]


def test_most_tokens(served):
    """No mesh that a user could type has more."""
    plan = served.parallelize(ranks=4)
    chosen, *others = plan.report("json")["alternatives"]
    assert chosen["chosen"] and not chosen["loses"] and all(other["loses"] for other in others)
    assert chosen["tokens_per_second"] == pytest.approx(rate(plan))
    for options in ({"mesh": {"dp": 4}}, {"mesh": {"tp": 4}}, {"mesh": {"dp": 2, "tp": 2}},
                    {"mesh": {"tp": 4}, "data_parallel_attention": 2},
                    {"mesh": {"tp": 2, "dp": 2}, "data_parallel_attention": 2}):
        assert rate(plan) * 1.002 >= rate(served.parallelize(**options))
    for other in others:
        again = served.parallelize(**other["options"])
        assert rate(again) == pytest.approx(other["tokens_per_second"])
    assert "planner: the chosen plan, and the next best" in plan.report()


def test_groups_that_are_auto(served):
    """The same as where they are left out."""
    options = [served.parallelize(ranks=4, tensor_parallel="tp", **more).report("json")["alternatives"]
               for more in ({}, {"data_parallel_attention": "auto"})]
    assert [a["mesh"] for a in options[0]] == [a["mesh"] for a in options[1]]
    assert any("data_parallel_attention" in a["options"] for a in options[1])


def test_serves(served):
    with served.parallelize(ranks=2).start() as session, served.parallelize(mesh={"tp": 1}).start() as plain:
        prompts = [[1, 2, 3], [4, 5, 6, 7, 8], [9]]
        assert session.generate(prompts, max_new_tokens=5) == plain.generate(prompts, max_new_tokens=5)


def test_objectives(served):
    chosen = {name: served.parallelize(ranks=4, objective=name).report("json")["alternatives"][0]
              for name in ("time", "memory", "time-then-memory")}
    assert chosen["memory"]["memory_per_rank"] <= chosen["time-then-memory"]["memory_per_rank"]
    assert chosen["time-then-memory"]["tokens_per_second"] * 1.05 >= chosen["time"]["tokens_per_second"]


def test_latency(served):
    alternatives = served.parallelize(ranks=4).report("json")["alternatives"]
    slowest, fastest = (pick(a["seconds"] for a in alternatives) for pick in (max, min))
    bound = (slowest + fastest) / 2
    chosen = served.parallelize(ranks=4, latency=bound).report("json")["alternatives"][0]
    assert chosen["seconds"] <= bound


def one_head(requests):
    """A layer of a size at which bytes count, without weights, whose cache has one head."""
    config = tf.LlamaConfig(hidden_size=1024, intermediate_size=2048, num_hidden_layers=1, num_attention_heads=16,
                            num_key_value_heads=1, vocab_size=4096, max_position_embeddings=4096)
    with torch.device("meta"):
        model = mw.from_torch(tf.LlamaForCausalLM(config).eval(), (torch.zeros(1, 8, dtype=torch.long),))
    return model.serve(max_length=4096, page_size=16, max_requests=requests, buckets=(requests,))


#: Ranks may form no groups, so all of them share the cache.
SHARED = {"ranks": 4, "data_parallel": "none", "data_parallel_attention": 1}


def test_cache_by_sequence():
    """Ranks that would read copies of a large cache hold pages of their own, where a user need not ask for it."""
    served = one_head(32)
    plan = served.parallelize(**SHARED, device="h100")
    report = plan.report("json")
    by_cache = {other["options"]["cache_sharding"]: other for other in report["alternatives"]}
    assert report["serving"]["cache"] == "sequence" and by_cache["sequence"]["chosen"]
    assert by_cache["sequence"]["seconds"] < by_cache["heads"]["seconds"]
    for other in by_cache.values():
        assert rate(served.parallelize(**other["options"]), 32) == pytest.approx(other["tokens_per_second"])
    all_groups = served.parallelize(ranks=4, device="h100").report("json")["alternatives"]
    assert all_groups[0]["tokens_per_second"] >= by_cache["sequence"]["tokens_per_second"]
    stated = served.parallelize(**SHARED, device="h100", cache_sharding="heads").report("json")
    assert stated["serving"]["cache"] == "heads" and len(stated["alternatives"]) == 1


def test_cache_by_sequence_for_memory():
    """Copies that cost no time count where memory is short, or where the least memory is asked for."""
    served = one_head(1)

    def choose(memory, **options):
        report = served.parallelize(**SHARED, device=f"{{h100 memory_size={memory}}}", **options).report("json")
        return report["serving"]["cache"], {o["options"].get("cache_sharding"): o for o in report["alternatives"]}

    cache, plans = choose("80e9")
    assert cache == "heads" and set(plans) == {"heads"}
    cache, plans = choose("80e9", objective="memory")
    assert cache == "sequence" and plans["sequence"]["memory_per_rank"] < plans["heads"]["memory_per_rank"]
    cache, plans = choose(str(plans["heads"]["memory_per_rank"] - 1))
    assert cache == "sequence" and "does not fit" in plans["heads"]["loses"]


@pytest.mark.parametrize("options, message", [
    ({"ranks": 0}, "ranks: expected an integer above 0, got 0"),
    ({"ranks": 2, "mesh": {"tp": 2}}, "mesh: expected no mesh beside ranks of a model that serves"),
    ({"ranks": 2, "objective": "speed"}, "objective: expected time, memory or time-then-memory, got 'speed'"),
    ({"ranks": 2, "latency": 1e-9}, "latency: expected at least .* seconds, which a step of mesh=.* takes"),
    ({"latency": 1.0}, "latency: expected it beside ranks"),
    ({"ranks": 2, "device": "{h100 memory_size=1e4}"}, "memory of the device: no plan for 2 ranks fits: the least"),
    ({"ranks": 2, "memory_ceiling": "1K"}, r"memory-ceiling: no plan for 2 ranks fits in 1024 bytes \(1.00 KiB\): the least "
                                           r"that is needed is \d+ bytes \(.*\), with mesh="),
])
def test_errors(served, options, message):
    with pytest.raises(mw.Error, match=message):
        served.parallelize(**options)
