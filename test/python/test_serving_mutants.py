# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The proof refuses each fault in programs that serve, and none of these programs."""
import collections
import functools
import os
import re

import meshwright as mw
import placement_mutants
import pytest
import torch
import transformers as tf

pytestmark = [pytest.mark.slow,
              pytest.mark.skipif(not placement_mutants.PLUGIN or not os.path.exists(placement_mutants.PLUGIN),
                                 reason="needs sharding-opt and the test passes")]

SIZES = dict(hidden_size=40, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             vocab_size=83, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)
LATENT = dict(num_key_value_heads=4, q_lora_rank=20, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=12,
              v_head_dim=10, n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1,
              moe_intermediate_size=24, n_shared_experts=1, first_k_dense_replace=1)
MODELS = {
    "llama": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**SIZES)),
    "deepseek": lambda: tf.DeepseekV3ForCausalLM(tf.DeepseekV3Config(**{**SIZES, **LATENT})),
    "mixtral": lambda: tf.MixtralForCausalLM(tf.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2)),
    "bloom": lambda: tf.BloomForCausalLM(tf.BloomConfig(hidden_size=40, n_layer=1, n_head=4, vocab_size=83)),
    "gpt_oss": lambda: tf.GptOssForCausalLM(tf.GptOssConfig(**SIZES, head_dim=12, num_local_experts=4,
                                                           num_experts_per_tok=2, sliding_window=6)),
}
PLANS = {
    "tp": dict(mesh={"tp": 2}),
    "dp": dict(mesh={"dp": 2}),
    "groups": dict(mesh={"tp": 4}, data_parallel_attention=2),
    "sum": dict(mesh={"tp": 4}, data_parallel_attention=2, token_gather="sum"),
    "sum, ranks of one": dict(mesh={"tp": 2}, data_parallel_attention=2, token_gather="sum", sequence_parallel="on"),
    "sequence": dict(mesh={"tp": 2}, cache_sharding="sequence"),
    "groups, sequence": dict(mesh={"tp": 4}, data_parallel_attention=2, cache_sharding="sequence"),
}
#: The kinds of faults, and the plans that have a place for each.
KINDS = {
    "wrong-tables": set(PLANS) - {"tp"},
    "wrong-cache": {"dp", "groups", "sum", "sum, ranks of one", "sequence", "groups, sequence"},
    "stale-pages": set(PLANS),
    "wrong-parts": {"sequence", "groups, sequence"},
    "wrong-counts": {"sum", "sum, ranks of one"},
    "sum-rows": set(PLANS),
    "residual-in-sum": {"tp", "groups", "sum", "sequence"},
}
LINE = re.compile(r"^\S+ (\S+): (\d+) of (\d+) caught")


@functools.cache
def served(name):
    torch.manual_seed(3)
    model = mw.from_torch(MODELS[name]().eval(), (torch.ones(1, 6, dtype=torch.long),))
    return model.serve(max_length=20, page_size=4, max_requests=2, buckets=(3, 8))


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", MODELS)
def test_faults_are_refused(name, plan):
    text = served(name).parallelize(**PLANS[plan]).ir(phase="spmd")
    right = placement_mutants.opt(text, "--verify-placement", "-o", os.devnull, check=False)
    assert not right.returncode, right.stderr
    places = collections.Counter()
    for kind, plans in KINDS.items():
        done = placement_mutants.opt(text, f"--load-pass-plugin={placement_mutants.PLUGIN}", "-o", os.devnull,
                                     f"--pass-pipeline=builtin.module(test-mutate-placement{{count=0 kind={kind}}})")
        assert "escaped" not in done.stdout, done.stdout
        for line in filter(None, map(LINE.match, done.stdout.splitlines())):
            assert line[2] == line[3], line[0]
            places[kind] += int(line[3])
        assert places[kind] or plan not in plans, kind
