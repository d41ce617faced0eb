# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How context_parallel="auto" chooses axes and order, and what the report says of it."""

import functools

import meshwright as mw
import pytest
import torch
import transformers as tf


@functools.cache
def llama(heads, kv_heads, tokens):
    with torch.device("meta"):
        config = tf.LlamaConfig(
            hidden_size=64 * heads, intermediate_size=256, num_hidden_layers=2, vocab_size=320,
            num_attention_heads=heads, num_key_value_heads=kv_heads,
            max_position_embeddings=tokens,
        )  # fmt: skip
        net = tf.LlamaForCausalLM(config).eval()
        ids = torch.zeros(1, tokens, dtype=torch.long)
    return mw.from_torch(net, (ids,), {"use_cache": False})


def get_choice(plan):
    report = plan.report(format="json")
    (decision,) = [d for d in report["decisions"] if d["pass"] == "choose-context-parallel"]
    (chosen,) = [a["name"] for a in decision["alternatives"] if a["chosen"]]
    return dict(pair.split("=") for pair in chosen.split()), decision, report


@pytest.mark.parametrize("context", ["auto", {"ulysses": "auto", "ring": "auto", "order": "auto"}])
def test_one_host(context):
    plan = llama(8, 4, 4096).parallelize(mesh={"sp": 4}, context_parallel=context)
    choice, decision, report = get_choice(plan)
    assert choice == {"ulysses": "sp", "ring": "none", "order": "contiguous"}
    assert {"seconds", "bytes", "memory_bytes"} <= set(decision["alternatives"][0]["numbers"])
    assert "all_gather" not in {c["kind"] for c in report["collectives"]}
    assert report["attention_work"]["largest_over_mean"] == 1
    assert "ulysses=none ring=sp order=zigzag" in plan.report(verbose=True)


def test_one_that_is_named():
    plan = llama(8, 4, 512).parallelize(mesh={"sp": 2}, context_parallel={"ulysses": "auto"})
    assert get_choice(plan)[0]["ulysses"] == "sp"


def test_tp_keeps_its_axis():
    plan = llama(8, 4, 512).parallelize(mesh={"tp": 2, "sp": 2}, context_parallel="auto")
    assert get_choice(plan)[0]["ulysses"] == "sp"


def test_nothing_to_choose():
    plan = llama(8, 4, 128).parallelize(mesh={"tp": 2}, context_parallel="auto")
    assert "the mesh has no axis of more than one rank" in plan.report(verbose=True)


@pytest.mark.parametrize("order, expected", [("contiguous", 1.75), ("zigzag", 1), ("striped", 1)])
def test_balance_in_report(order, expected):
    """Of causal attention over 4,096 tokens on a ring of four."""
    context = {"ulysses": "ulysses", "ring": "ring", "order": order}
    plan = llama(8, 4, 4096).parallelize(mesh={"ring": 4, "ulysses": 1}, context_parallel=context)
    work = plan.report(format="json")["attention_work"]
    assert work["largest_over_mean"] == pytest.approx(expected, abs=0.002)
    assert {place["order"] for place in work["places"]} == {order}
    pairs = 4096 * 4097 // 2 * 8 * 2
    assert sum(place["mean_pairs"] for place in work["places"]) * 4 == pytest.approx(pairs)
    assert f"work of a rank over the mean: {expected:.2f} ({order} order)" in plan.report()


def test_ring_across_hosts():
    mesh = {"host": 2, "sp": 4}
    plan = llama(8, 4, 4096).parallelize(mesh=mesh, context_parallel="auto")
    choice, _, report = get_choice(plan)
    assert choice == {"ulysses": "sp", "ring": "host", "order": "zigzag"}
    assert report["attention_work"]["largest_over_mean"] <= 1.05
    assert {c["kind"] for c in report["collectives"]} >= {"all_to_all", "permute"}


def test_optimizer_shards_over_the_chosen_axis():
    """An axis that is chosen shards the state of the optimizer as one that is named."""
    torch.manual_seed(0)
    config = tf.LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=1, vocab_size=64, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=16,
    )  # fmt: skip
    ids = torch.randint(0, 64, (1, 16))
    inputs = {"input_ids": ids, "labels": ids, "use_cache": False}
    net = tf.LlamaForCausalLM(config)
    model = mw.from_torch(net, (), inputs, training=True).train(mw.AdamW(lr=1e-3))

    def optimizer(context, shard):
        plan = model.parallelize(mesh={"sp": 2}, context_parallel=context, shard_optimizer=shard)
        return plan.report(format="json")["memory_per_rank"]["optimizer"]

    whole, named, chosen = optimizer("auto", "off"), optimizer({"ulysses": "sp"}, "on"), optimizer("auto", "on")
    assert chosen == named < 0.6 * whole
