# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How fold="auto" chooses: at real sizes, planned without weights, and what bounds memory."""

import functools

import meshwright as mw
import pytest
import torch
import transformers as tf
from torch import nn


class Reader(nn.Module):
    """Stands for a denoiser that wants the text whole."""

    def forward(self, text):
        return 2 * text


@functools.cache
def encoder(kind, batch, tokens, layers=24):
    """The composed model of an encoder in bf16 and who reads it, on the meta device."""
    with torch.device("meta"):
        if kind == "t5-xxl":
            net = tf.T5EncoderModel(
                tf.T5Config(
                    d_model=4096, d_kv=64, d_ff=10240, num_layers=layers, num_heads=64,
                    vocab_size=32128, feed_forward_proj="gated-gelu",
                )
            )  # fmt: skip
        else:
            net = tf.CLIPTextModel(tf.CLIPTextConfig())
        net = net.to(torch.bfloat16).eval()
        ids = torch.zeros(batch, tokens, dtype=torch.long)
        width = net.config.hidden_size
        text = torch.zeros(batch, tokens, width, dtype=torch.bfloat16)
    models = {"encoder": mw.from_torch(net, (ids,)), "reader": mw.from_torch(Reader(), (text,))}
    return mw.compose(models, {"reader.text": "encoder.0"})


def choose(kind, batch, tokens, group, layers=24, **options):
    plan = encoder(kind, batch, tokens, layers).parallelize(
        mesh={"ulysses": group},
        context_parallel={"ulysses": "ulysses"},
        fold={"encoder": "auto"},
        device=options.pop("device", "h100"),
        **options,
    )
    report = plan.report(format="json")
    (decision,) = [d for d in report["decisions"] if "alternatives" in d]
    assert decision["pass"] == "fold-encoder"
    (chosen,) = [a["name"] for a in decision["alternatives"] if a["chosen"]]
    return chosen.split()[0], decision, report, plan


# As measured on two H100s (text encoders of diffusion pipelines): T5-XXL of batch 1 is
# faster folded (11.68 against 15.32 ms), of batch 2 and 8 with its batch split (15.52 against
# 21.09 and 58.7 against 74.8 ms). How long the prompts were is not said: any length goes that way.
@pytest.mark.parametrize("layers", [4, pytest.param(24, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "tokens", [77, 512, *(pytest.param(n, marks=pytest.mark.slow) for n in (64, 128, 226, 256))]
)
@pytest.mark.parametrize("batch, expected", [(1, "fold"), (2, "batch"), (8, "batch")])
def test_t5_xxl(batch, expected, tokens, layers):
    chosen, decision, _, plan = choose("t5-xxl", batch, tokens, 2, layers)
    assert chosen == expected
    if tokens != 512:
        return
    table = {a["name"].split()[0]: a for a in decision["alternatives"]}
    for alternative in table.values():
        assert {"seconds", "bytes", "memory_bytes"} <= set(alternative["numbers"])
    times = {name: a["numbers"]["seconds"] for name, a in table.items() if not a["note"]}
    assert min(times, key=times.get) == expected
    assert ("batch" in times) == (batch > 1)
    whole = table["replicate"]["numbers"]["weights_bytes"]
    assert table["fold"]["numbers"]["weights_bytes"] == pytest.approx(whole / 2, rel=0.001)
    text = plan.report(verbose=True)
    assert "alternative" in text and 'fold sp over {"ulysses"}' in text


@pytest.mark.parametrize("batch, group", [(1, 2), (2, 2), (1, 8)])
def test_small_encoder_stays_whole(batch, group):
    chosen, decision, _, plan = choose("clip", batch, 77, group)
    assert chosen == "replicate"
    assert decision["outcome"] == "declined"
    assert "all_reduce" not in plan.ir()


def test_memory_ceiling_folds():
    """A stage that is fastest unsharded is folded if it does not fit."""
    chosen, _, report, _ = choose("clip", 1, 77, 8, memory_ceiling="100M")
    assert chosen == "fold"
    assert report["memory_per_rank"]["weights"] < 100e6


def test_slow_links_and_processor():
    """Links that cost nothing make folding worth it, so the devices' numbers are what decides."""
    chosen, *_ = choose("clip", 1, 77, 8, device="h100 launch=0 link_latency=0 link_bandwidth=1e15")
    assert chosen == "fold"


@pytest.mark.slow
def test_t5_xxl_share():
    """A rank of eight holds an eighth of the weights: 9.5 GB, planned without them."""
    model = encoder("t5-xxl", 1, 512)
    options = dict(mesh={"ulysses": 8}, context_parallel={"ulysses": "ulysses"})
    plan = model.parallelize(**options, fold={"encoder": "ulysses"})
    whole = model.parallelize(**options, fold={"encoder": None})
    share, all_of_it = (p.report(format="json")["memory_per_rank"]["weights"] for p in (plan, whole))
    assert all_of_it == pytest.approx(4762e6 * 2, rel=0.01)
    assert all_of_it / 8 <= share <= all_of_it / 8 * 1.001
