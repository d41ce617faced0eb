# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Groups of data-parallel attention meet in the capacity of their sum: tokens, entries, bytes, options."""

import meshwright as mw
import numpy as np
import pytest
import random_serving
import torch

LENGTH = 24
MESHES = (({"tp": 4}, 2), ({"tp": 3}, 3), ({"dp": 2, "tp": 2}, 2), ({"tp": 6}, 2), ({"tp": 4}, 4))


def model_of(seed, buckets=(3, 8)):
    net = random_serving.build(random_serving.draw(seed), LENGTH, seed)
    model = mw.from_torch(net, (torch.ones(1, 5, dtype=torch.long),))
    return net, model.serve(max_length=LENGTH, page_size=4, max_requests=2, buckets=buckets)


@pytest.mark.parametrize(("seed", "gather"), [(50, "sum"), (51, "auto"), (52, "sum"), (53, "sum"), (54, "auto")])
def test_random(seed, gather):
    net, served = model_of(seed)
    mesh, groups = MESHES[seed % len(MESHES)]
    wanted = random_serving.prompts(net, (9, 1, 13), 6, seed)
    plan = served.parallelize(mesh=mesh, data_parallel_attention=groups, token_gather=gather)
    with plan.start() as session:
        requests = [session.submit(prompt, max_new_tokens=6, logits=True) for prompt, _, _ in wanted]
        while session.step():
            pass
    for request, (_, tokens, rows) in zip(requests, wanted, strict=True):
        assert list(request.tokens) == tokens
        assert np.abs(np.asarray(request.logits) - rows.numpy()).max() / rows.abs().max() < 2e-5


def test_entries():
    _, served = model_of(3, buckets=(2, 5, 8))
    names = {}
    for gather in ("max", "sum", "auto"):
        with served.parallelize(mesh={"tp": 2}, data_parallel_attention=2, token_gather=gather).start() as session:
            names[gather] = list(session.stats()["entries"])
    sums = ["tokens=2,sum=2", "tokens=5,sum=5", "tokens=5,sum=8", "tokens=8,sum=8"]
    assert names["max"] == ["tokens=2", "tokens=5", "tokens=8"] and names["sum"] == sums
    assert sorted(names["auto"]) == sorted(names["max"] + sums)


def test_a_step_holds_the_largest_sum():
    net, served = model_of(4)
    wanted = random_serving.prompts(net, (12, 12), 4, 4)
    plan = served.parallelize(mesh={"tp": 2}, data_parallel_attention=2, token_gather="sum")
    with plan.start() as session:
        requests = [session.submit(prompt, max_new_tokens=4, group=i) for i, (prompt, _, _) in enumerate(wanted)]
        assert session.step() <= 8
        while tokens := session.step():
            assert tokens <= 8
    assert [list(r.tokens) for r in requests] == [tokens for _, tokens, _ in wanted]


def test_kinds_and_bytes():
    import transformers

    config = transformers.LlamaConfig(hidden_size=2048, intermediate_size=4096, num_hidden_layers=1, vocab_size=64,
                                      num_attention_heads=16, num_key_value_heads=8, max_position_embeddings=512)
    reports = []
    for layers in (1, 2):
        config.num_hidden_layers = layers
        with torch.device("meta"):
            net = transformers.LlamaForCausalLM(config).eval()
        model = mw.from_torch(net, (torch.zeros(1, 8, dtype=torch.long, device="meta"),))
        served = model.serve(max_length=512, max_requests=4, buckets=(512,))
        plan = served.parallelize(mesh={"tp": 4}, data_parallel_attention=4, token_gather="sum")
        reports.append(plan.report(format="json", entry="tokens=512,sum=512"))
    kinds = {c["kind"] for c in reports[1]["collectives"]}
    assert {"all_gather_v", "reduce_scatter_v"} <= kinds
    sent, launches = (reports[1][k] - reports[0][k] for k in ("bytes_per_rank", "launches_per_rank"))
    assert launches == 2 and sent == 2 * 512 * 3 // 4 * 2048 * 4


def test_entries_for_gpus():
    """Graphs repeat messages of fixed sizes, so groups are padded there, unless the user asks for true rows."""
    _, served = model_of(5)
    for gather, expected in (("auto", False), ("max", False), ("sum", True)):
        plan = served.parallelize(mesh={"tp": 2}, data_parallel_attention=2, token_gather=gather, target="gpu:sm_90a")
        names = [entry["name"] for entry in plan.report(format="json")["serving"]["entries"]]
        assert all(("sum=" in name) == expected for name in names), (gather, names)
