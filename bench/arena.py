#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How much larger is the arena than the largest live set?

Plans transformers on several meshes, with overlap off, auto and on, and reads `rt.arena` and
`rt.live` from the schedule. Some models have real sizes. The others have a few features: they have
more values of similar sizes per byte. Nothing runs; the weights are on the meta device.

    PYTHONPATH=build/python python bench/arena.py [--json FILE]
"""

import argparse
import json
import re
import statistics

import meshwright as mw
import torch
import transformers as tf

MESHES = {
    "tp=2": {"mesh": {"tp": 2}},
    "tp=2 sp": {"mesh": {"tp": 2}, "sequence_parallel": "on"},
    "tp=3 sp": {"mesh": {"tp": 3}, "sequence_parallel": "on"},
    "dp=2,tp=2": {"mesh": {"dp": 2, "tp": 2}},
    "dp=2,tp=2 sp": {"mesh": {"dp": 2, "tp": 2}, "sequence_parallel": "on"},
    "cp=2,tp=2 ring": {"mesh": {"cp": 2, "tp": 2}, "context_parallel": {"ring": "cp"}},
    "cp=2 ulysses": {"mesh": {"cp": 2}, "context_parallel": {"ulysses": "cp"}},
}


def ids(batch, tokens):
    return torch.zeros(batch, tokens, dtype=torch.int64)


def small(**more):
    return {"vocab_size": 97, "num_hidden_layers": 2, "max_position_embeddings": 64, **more}


def pixels(batch, size):
    return torch.zeros(batch, 3, size, size)


MODELS = {
    "small": {
        "llama": lambda: (tf.LlamaForCausalLM(tf.LlamaConfig(**small(
            hidden_size=48, intermediate_size=100, num_attention_heads=6, num_key_value_heads=2))), ids(2, 13)),
        "gemma": lambda: (tf.GemmaForCausalLM(tf.GemmaConfig(**small(
            hidden_size=48, intermediate_size=100, num_attention_heads=4, num_key_value_heads=1, head_dim=16))), ids(2, 13)),
        "qwen2": lambda: (tf.Qwen2ForCausalLM(tf.Qwen2Config(**small(
            hidden_size=56, intermediate_size=100, num_attention_heads=7, num_key_value_heads=1))), ids(1, 17)),
        "gpt2": lambda: (tf.GPT2LMHeadModel(tf.GPT2Config(
            vocab_size=97, n_embd=48, n_layer=2, n_head=4, n_positions=64)), ids(2, 13)),
        "bert": lambda: (tf.BertModel(tf.BertConfig(**small(
            hidden_size=48, intermediate_size=100, num_attention_heads=4))), ids(3, 11)),
        "vit": lambda: (tf.ViTModel(tf.ViTConfig(
            hidden_size=48, intermediate_size=100, num_hidden_layers=2, num_attention_heads=4, image_size=32,
            patch_size=8)), pixels(2, 32)),
    },
    "real": {
        "llama-1b": lambda: (tf.LlamaForCausalLM(tf.LlamaConfig(
            hidden_size=2048, intermediate_size=5504, num_hidden_layers=16, num_attention_heads=16,
            num_key_value_heads=8)), ids(1, 2048)),
        "gpt2": lambda: (tf.GPT2LMHeadModel(tf.GPT2Config()), ids(2, 512)),
        "bert-base": lambda: (tf.BertModel(tf.BertConfig()), ids(4, 384)),
        "vit-base": lambda: (tf.ViTModel(tf.ViTConfig()), pixels(4, 224)),
    },
}  # fmt: skip


def measure(model, way, overlap):
    text = model.parallelize(**way, overlap=overlap).ir("rt")
    arena, live = (int(re.search(rf"rt\.{what} = (\d+)", text)[1]) for what in ("arena", "live"))
    return arena / live


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="write the measurements to this file")
    arguments = parser.parse_args()
    rows = []
    for size, models in MODELS.items():
        for name, build in models.items():
            with torch.device("meta"):
                module, example = build()
            module.config.use_cache = False
            model = mw.from_torch(module.eval(), (example,))
            for mesh, way in MESHES.items():
                for overlap in ("off", "auto", "on"):
                    try:
                        ratio = measure(model, way, overlap)
                    except mw.Error as error:
                        print(f"{name} {mesh}: {str(error).splitlines()[0]}")
                        continue
                    rows.append({"size": size, "model": name, "mesh": mesh, "overlap": overlap, "ratio": ratio})
    print(f"{'models':8} {'overlap':8} {'plans':>5} {'median':>7} {'most':>7} {'above 1.05':>11}")
    for size in MODELS:
        for overlap in ("off", "auto", "on"):
            ratios = [row["ratio"] for row in rows if (row["size"], row["overlap"]) == (size, overlap)]
            over = sum(ratio > 1.05 for ratio in ratios)
            print(f"{size:8} {overlap:8} {len(ratios):5} {statistics.median(ratios):7.3f} {max(ratios):7.3f} {over:11}")
    for row in sorted(rows, key=lambda row: -row["ratio"])[:5]:
        print(f"{row['ratio']:.3f}  {row['size']} {row['model']}, {row['mesh']}, overlap={row['overlap']}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
