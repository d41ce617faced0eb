#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How close does the planner come to the best plan, and how many plans does it price?

Draws models of two layers, plans each of them with `ranks=`, and by hand with every mesh over dp, tp, ring and
ulysses (and gtp, of a model that trains, and ep, of one with experts), sequence parallelism, optimizer shards,
recomputation and overlap.

With `--autos N` it draws N combinations of a model, a mesh and options instead. One option is `auto`, and the
plan is compared with those of each value of this option.

    PYTHONPATH=build/python python bench/planner.py [--models 4] [--ranks 2 4 8] [--most 600] [--architecture gpt2]
    PYTHONPATH=build/python python bench/planner.py --autos 200 [--first 0] [--json FILE]
"""

import argparse
import itertools
import json
import random
import re
import time

import meshwright as mw
import torch
import transformers as tf


def configure(architecture, sizes, tokens):
    """A module of an architecture, on the meta device. `sizes` are those of a Llama."""
    width, heads, layers = sizes["hidden_size"], sizes["num_attention_heads"], sizes["num_hidden_layers"]
    vocabulary, inner = sizes["vocab_size"], sizes["intermediate_size"]
    if architecture == "gpt2":
        return tf.GPT2LMHeadModel(tf.GPT2Config(n_embd=width, n_head=heads, n_layer=layers, n_inner=inner, use_cache=False,
                                                vocab_size=vocabulary, n_positions=tokens))
    if architecture == "bert":
        return tf.BertForMaskedLM(tf.BertConfig(hidden_size=width, num_attention_heads=heads, num_hidden_layers=layers,
                                                intermediate_size=inner, vocab_size=vocabulary,
                                                max_position_embeddings=tokens))
    if architecture == "mixtral":
        return tf.MixtralForCausalLM(tf.MixtralConfig(max_position_embeddings=tokens, num_local_experts=8, **sizes))
    return tf.LlamaForCausalLM(tf.LlamaConfig(max_position_embeddings=tokens, **sizes))


def draw(seed, architecture="llama"):
    """A model of two layers and its description."""
    rng = random.Random(seed)
    heads = rng.choice([2, 4, 8])
    sizes = dict(hidden_size=heads * rng.choice([16, 64, 128]), num_attention_heads=heads,
                 num_key_value_heads=rng.choice([h for h in (1, 2, 4, 8) if heads % h == 0]),
                 vocab_size=rng.choice([128, 1000, 4096]), num_hidden_layers=2, use_cache=False)
    sizes["intermediate_size"] = sizes["hidden_size"] * rng.choice([2, 3])
    batch, tokens = rng.choice([1, 2, 4, 8]), rng.choice([32, 256, 2048])
    trains = rng.random() < 0.5
    with torch.device("meta"):
        module = configure(architecture, sizes, tokens).to(torch.bfloat16)
        ids = torch.zeros(batch, tokens, dtype=torch.long)
    inputs = {"input_ids": ids, **({"labels": ids} if trains else {})}
    model = mw.from_torch(module if trains else module.eval(), (), inputs, training=trains)
    what = f"{'train' if trains else 'infer'} {architecture} {batch}x{tokens} width {sizes['hidden_size']} heads {heads}"
    return (model.train(mw.AdamW(lr=1e-3)) if trains else model), trains, what


def meshes(ranks, trains, architecture="llama"):
    """Options with each mesh."""
    names = ["dp", *(["gtp"] if trains else []), *(["ep"] if architecture == "mixtral" else []), "ring", "ulysses", "tp"]
    divisors = [n for n in range(1, ranks + 1) if ranks % n == 0]
    for sizes in itertools.product(divisors, repeat=len(names)):
        mesh = {name: size for name, size in zip(names, sizes) if size > 1}
        product = 1
        for size in sizes:
            product *= size
        if product != ranks:
            continue
        context = {axis: axis for axis in ("ring", "ulysses") if axis in mesh}
        yield {"mesh": mesh or {"dp": 1}, **({"context_parallel": context} if context else {})}


def combinations(ranks, trains, most, architecture="llama", seed=0):
    """All options; a sample of them if there are more than `most`."""
    found = []
    for mesh in meshes(ranks, trains, architecture):
        scatter = ["on", "off"] if "tp" in mesh["mesh"] else ["auto"]
        for own in itertools.product(scatter, ["on", "off"], ["on", "off"] if trains else [None],
                                     ["none", "full"] if trains else [None]):
            names = "sequence_parallel", "overlap", "shard_optimizer", "recompute"
            found.append(mesh | {k: v for k, v in zip(names, own) if v is not None})
    return found if len(found) <= most else random.Random(seed).sample(found, most)


def brute_force(model, ranks, trains, most=600, architecture="llama"):
    """Seconds and options of the best plan."""
    best = (float("inf"), None)
    for options in combinations(ranks, trains, most, architecture):
        best = min(best, (run_seconds(model, options), str(options)))
    return best


def measure(seed, ranks, most, architecture="llama"):
    model, trains, what = draw(seed, architecture)
    begin = time.perf_counter()
    report = model.parallelize(ranks=ranks).report("json")
    own = time.perf_counter() - begin
    (decision,) = [d for d in report["decisions"] if d["pass"] == "choose-plan"]
    best, options = brute_force(model, ranks, trains, most, architecture)
    return {"model": what, "ranks": ranks, "choice": decision["alternatives"][0]["name"], "best": options,
            "plans": int(re.search(r"of (\d+) plan", decision["message"])[1]), "planner_seconds": own,
            "ratio": report["communication"]["run_seconds"] / best}


#: Values of each option that a user may spell out as auto: for all models, and for models that train.
VALUES = {"sequence_parallel": ["on", "off"], "overlap": ["on", "off"]}
TRAINING = {"shard_optimizer": ["on", "off"], "recompute": ["none", "full"], "shard_saved": ["on", "off"],
            "gtp_keep": ["on", "off"]}


def draw_options(rng, trains, architecture="llama"):
    """A mesh of 2 to 8 ranks, and some options."""
    ranks = rng.choice([2, 3, 4, 6, 8])
    options = dict(rng.choice([*meshes(ranks, trains, architecture)]))
    values = {**VALUES, **(TRAINING if trains else {})}
    if "gtp" not in options["mesh"]:
        values.pop("gtp_keep", None)
    auto = rng.choice([*values])
    for name, choices in values.items():
        if name != auto and rng.random() < 0.5:
            options[name] = rng.choice(choices)
    return options, auto, values[auto]


def run_seconds(model, options):
    """Seconds of a call by the cost model; infinite where there is no such plan."""
    try:
        communication = model.parallelize(**options).report("json").get("communication")
    except mw.Error:
        return float("inf")
    return communication["run_seconds"] if communication else float("inf")


def compare_auto(seed, architecture="llama"):
    """The time of a plan with one option that is auto, over the least time with one of its values."""
    model, trains, what = draw(seed, architecture)
    options, auto, values = draw_options(random.Random(seed), trains, architecture)
    times = {value: run_seconds(model, options | {auto: value}) for value in ["auto", *values]}
    best = min(times[value] for value in values)
    return {"seed": seed, "model": what, "options": options, "auto": auto, "times": times,
            "ratio": times["auto"] / best if best < float("inf") else 1.0}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=4)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--most", type=int, default=600)
    parser.add_argument("--autos", type=int, default=0)
    parser.add_argument("--architecture", choices=["llama", "gpt2", "bert", "mixtral"], default="llama")
    parser.add_argument("--json")
    options = parser.parse_args()
    rows = []
    for seed in range(options.first, options.first + options.autos):
        rows.append(compare_auto(seed, options.architecture))
        print("{seed:4} {ratio:.4f} {auto} {model} {options}".format(**rows[-1]), flush=True)
    for seed in range(options.first, options.first + (0 if options.autos else options.models)):
        for ranks in options.ranks:
            rows.append(measure(seed, ranks, options.most, options.architecture))
            row = rows[-1]
            print(f"{row['model']:50} {ranks:3} ranks  {row['plans']:4} plans {row['planner_seconds']:6.2f} s  "
                  f"ratio {row['ratio']:.4f}\n    choice {row['choice']}\n    best   {row['best']}", flush=True)
    print(f"largest ratio {max(row['ratio'] for row in rows):.4f}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
