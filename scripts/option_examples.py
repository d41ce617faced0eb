#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Writes scripts/option_examples.json, the examples of docs/options.md: plans with an option and without it.

    scripts/option_examples.py            writes the file; scripts/options_page.py then writes the page
    scripts/option_examples.py --check    compares the numbers, and fails where one has changed by a quarter

The models have layers of the size of Llama 3 8B and of Mixtral, on H100s, without numbers in their
weights: a plan needs none. Times are those of the cost model; bytes are counted.
"""

import argparse
import json
import pathlib
import sys

FILE = pathlib.Path(__file__).with_suffix(".json")
TOLERANCE = 0.25

#: option: (model, what both plans have, the value of the option, the quantity)
EXAMPLES = {
    "mesh": ("llama", {"mesh": {"tp": 8}}, {"dp": 2, "tp": 4}, "time"),
    "ranks": ("llama", {"mesh": {"tp": 8}}, 8, "time"),
    "objective": ("llama", {"ranks": 8}, "memory", "memory"),
    "data-parallel": ("llama", {"mesh": {"dp": 2, "tp": 4}}, "none", "time"),
    "tensor-parallel": ("llama", {"mesh": {"tp": 8}}, "none", "weights"),
    "gtp": ("llama", {"mesh": {"dp": 8}}, "dp", "weights"),
    "expert-parallel": ("mixtral", {"mesh": {"ep": 8}}, "none", "weights"),
    "sequence-parallel": ("llama", {"mesh": {"tp": 8}}, "off", "activations_peak"),
    "cache-sharding": ("server", {"mesh": {"tp": 8}}, "heads", "token"),
    "data-parallel-attention": ("server", {"mesh": {"tp": 8}}, 4, "rows"),
    "dense-tp": ("server", {"mesh": {"tp": 8}, "data_parallel_attention": 4}, 1, "step"),
    "dp-lm-head": ("server", {"mesh": {"tp": 8}, "data_parallel_attention": 4}, "on", "weights"),
    "token-gather": ("server", {"mesh": {"tp": 8}, "data_parallel_attention": 4}, "max", "step"),
    "context-parallel": ("llama", {"mesh": {"sp": 8}}, "auto", "time"),
    "shardings": ("llama", {"mesh": {"tp": 8}}, {"*.down_proj.weight": "[{}, {}]"}, "weights"),
    "device": ("llama", {"mesh": {"tp": 8}}, "a100", "time"),
    "overlap": ("llama", {"mesh": {"tp": 8}}, "off", "time"),
    "shard-optimizer": ("trained", {"mesh": {"dp": 4}}, "off", "optimizer"),
    "gtp-align": ("llama", {"mesh": {"gtp": 8}}, 384, "weights"),
    "gtp-prefetch": ("llama", {"mesh": {"gtp": 8}}, 0, "time"),
    "gtp-keep": ("trained", {"mesh": {"gtp": 4}}, "on", "sent"),
    "gtp-reduce": ("trained", {"mesh": {"gtp": 4}}, "bf16", "sent"),
    "gtp-gather": ("llama", {"mesh": {"gtp": 8}}, "mxfp8", "sent"),
    "shard-saved": ("trained", {"mesh": {"tp": 4}}, "on", "activations_peak"),
    "recompute": ("trained", {"mesh": {"dp": 4}}, "full", "activations_peak"),
    "memory-ceiling": ("trained", {"mesh": {"dp": 4}}, "20G", "memory"),
    "reduce-type": ("llama", {"mesh": {"tp": 8}}, "f32", "sent"),
}
#: The names of quantities.
QUANTITIES = {
    "time": "{} a run",
    "weights": "{} of weights on a rank",
    "activations_peak": "{} of activations on a rank",
    "memory": "{} of memory on a rank",
    "optimizer": "{} of averages on a rank",
    "sent": "a rank sends {} a run",
    "step": "a rank sends {} in a step of 512 tokens",
    "token": "{} of cache on a rank for a token",
    "rows": "{} tokens in the caches",
}


def make_models():
    import meshwright as mw
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

    sizes = {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 2,
        "num_attention_heads": 32, "num_key_value_heads": 8, "use_cache": False,
    }  # fmt: skip

    def module(kind, config):
        with torch.device("meta"):
            return kind(config).to(torch.bfloat16).eval()

    def tokens(batch, length):
        return torch.zeros(batch, length, dtype=torch.int64)

    def llama(**others):
        return module(LlamaForCausalLM, LlamaConfig(**{**sizes, **others}))

    ids = tokens(32, 2048)
    trained = llama(num_hidden_layers=4, vocab_size=4096).train()
    return {
        "llama": mw.from_torch(llama(), (), {"input_ids": tokens(2, 4096)}),
        "mixtral": mw.from_torch(module(MixtralForCausalLM, MixtralConfig(**sizes)), (), {"input_ids": tokens(2, 4096)}),
        "trained": mw.from_torch(trained, (), {"input_ids": ids, "labels": ids}, training=True).train(mw.AdamW(lr=1e-4)),
        "server": mw.from_torch(llama(num_key_value_heads=2), (tokens(1, 64),)).serve(),
    }


def measure(model, quantity, options):
    report = model.parallelize(device=options.pop("device", "h100"), **options).report(format="json")
    if quantity == "time":
        return report["communication"]["run_seconds"]
    if quantity == "sent":
        return report["bytes_per_rank"]
    if quantity == "token":
        return report["serving"]["cache_bytes_per_token"]
    if quantity == "rows":
        return report["serving"]["groups"] * report["serving"]["pages"] * report["serving"]["page_size"]
    if quantity == "memory":
        return sum(report["memory_per_rank"].values())
    if quantity == "step":
        entries = [entry for entry in report["serving"]["entries"] if entry["tokens"] == 512]
        return min(entry["bytes_per_rank"] for entry in entries)
    return report["memory_per_rank"][quantity]


def spell(quantity, value):
    if quantity == "time":
        return f"{value * 1e3:.3g} ms"
    if quantity == "rows":
        return f"{value:,}"
    if value < 1 << 20:
        return f"{value:,} bytes"
    return f"{value / 2**20:.3g} MiB" if value < 1 << 30 else f"{value / 2**30:.3g} GiB"


def examples():
    """option: its example, {"model": ..., "plan": ..., "value": ..., "with": ..., "without": ..., "text": ...}."""
    models, found = make_models(), {}
    for option, (model, base, value, quantity) in EXAMPLES.items():
        # The planner chooses a mesh of so many ranks.
        kept = {name: each for name, each in base.items() if option != "ranks" or name != "mesh"}
        after = measure(models[model], quantity, {**kept, option.replace("-", "_"): value})
        before = measure(models[model], quantity, {**base})
        numbers = f"{spell(quantity, after)} instead of {spell(quantity, before)}"
        text = QUANTITIES[quantity].format(numbers)
        found[option] = {"model": model, "plan": base, "value": value, "with": after, "without": before, "text": text}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare the numbers, and write nothing")
    options, found = parser.parse_args(), examples()
    if not options.check:
        FILE.write_text(json.dumps(found, indent=1) + "\n")
        return 0
    known, status = json.loads(FILE.read_text()), 0
    for option in {*known} | {*found}:
        for side in ("with", "without"):
            now, then = found.get(option, {}).get(side), known.get(option, {}).get(side)
            if now is None or then is None or abs(now - then) > TOLERANCE * then:
                print(f"error: example of {option}: {side} it: expected {then}, got {now}: run "
                      "scripts/option_examples.py", file=sys.stderr)
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
