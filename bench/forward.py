#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How long does a Llama's forward pass take, beside PyTorch, and on two ranks beside one?

Runs a Llama of transformers with random weights (hidden 2048, 8 layers, 32 heads, 4 kv heads, inner
5632, vocabulary 32000) over 512 tokens and over one, in f32 and bf16, and with `--dtypes autocast` in
f32 under torch.autocast to bf16:

- one rank with two threads, beside PyTorch eager and `torch.compile` with two threads;
- 512 tokens on tp = 2, one thread per rank, with and without sequence parallelism, beside one rank
  on one thread; and two times 512 tokens on dp = 2, without communication, which shows the most
  that two cores with shared caches and memory can give on this machine.

The runs of a group take turns. The results are medians of the times, and of the ratios within a
turn. A ratio above 1 means that ours is faster.

    PYTHONPATH=build/python python bench/forward.py [--layers 8] [--repeats 9] [--no-compile]
        [--only threads|ranks] [--dtypes f32,bf16,autocast] [--json FILE]
"""

import argparse
import json
import os
import statistics
import time

import meshwright as mw
import torch
from transformers import LlamaConfig, LlamaForCausalLM

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "autocast": torch.float32}


class Autocast(torch.nn.Module):
    """A model whose weights are f32 and whose products are bf16."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        with torch.autocast("cpu", torch.bfloat16):
            return self.model(ids)


def build(layers, dtype):
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=2048, intermediate_size=5632, num_hidden_layers=layers,
        num_attention_heads=32, num_key_value_heads=4, vocab_size=32000,
        max_position_embeddings=2048, use_cache=False,
    )
    return LlamaForCausalLM(config).eval().to(dtype)


def take_turns(runs, repeats):
    """Seconds of each in every turn, after one turn that is not counted."""
    seconds = {name: [] for name in runs}
    for turn in range(repeats + 1):
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            if turn:
                seconds[name].append(time.perf_counter() - begin)
    return seconds


def medians(seconds):
    return {name: statistics.median(values) for name, values in seconds.items()}


def ratio(seconds, slow, fast):
    """How many times as long `slow` takes: the median over the turns."""
    return statistics.median(s / f for s, f in zip(seconds[slow], seconds[fast], strict=True))


def spell(times):
    return "  ".join(f"{name} {value * 1e3:8.1f} ms" for name, value in times.items())


def largest_difference(ours, theirs):
    ours, theirs = ours.double(), theirs.double()
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def beside_pytorch(model, dtype, tokens, options):
    ids = torch.randint(0, 32000, (1, tokens))
    plan = mw.from_torch(model, (ids,)).parallelize(mesh={"tp": 1}, device="cpu", overlap="off")
    runs = {
        "ours": lambda: plan.run(ids, threads_per_rank=2),
        "eager": lambda: model(ids).logits,
    }
    if options.compile:
        compiled = torch.compile(model)
        runs["compile"] = lambda: compiled(ids).logits
    with torch.inference_mode():
        error = largest_difference(plan.run(ids, threads_per_rank=2)[0], model(ids).logits)
        repeats = options.repeats if tokens > 1 else 3 * options.repeats
        seconds = take_turns(runs, repeats)
    times = medians(seconds)
    best = min((name for name in runs if name != "ours"), key=times.get)
    row = {"dtype": dtype, "tokens": tokens, "ratio": ratio(seconds, best, "ours"), "error": error, **times}
    print(f"{dtype:<5} {tokens:>4} tokens  {spell(times)}  ratio {row['ratio']:.2f}  difference {error:.1e}", flush=True)
    return row


def on_ranks(model, dtype, options):
    ids = torch.randint(0, 32000, (2, 512))
    one, two = mw.from_torch(model, (ids[:1],)), mw.from_torch(model, (ids,))
    plans = {
        "one rank": (one, ids[:1], {"mesh": {"tp": 1}}),
        "tp=2": (one, ids[:1], {"mesh": {"tp": 2}, "sequence_parallel": "off"}),
        "tp=2 sp": (one, ids[:1], {"mesh": {"tp": 2}, "sequence_parallel": "on"}),
        "dp=2": (two, ids, {"mesh": {"dp": 2}}),
    }

    def prepare(imported, x, options):
        plan = imported.parallelize(device="cpu", overlap="off", **options)
        return lambda: plan.run(x, threads_per_rank=1)

    seconds = take_turns({name: prepare(*how) for name, how in plans.items()}, options.repeats)
    times = medians(seconds)
    row = {
        "dtype": dtype,
        "tp": ratio(seconds, "one rank", "tp=2"),
        "most": 2 * ratio(seconds, "one rank", "dp=2"),
        "sequence_parallel": ratio(seconds, "tp=2", "tp=2 sp"),
        **times,
    }
    print(
        f"{dtype:<5}  {spell(times)}  tp=2 over one rank {row['tp']:.2f} of at most {row['most']:.2f}  "
        f"sp over plain tp {row['sequence_parallel']:.2f}", flush=True,
    )
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--only", choices=["threads", "ranks"])
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--json")
    options = parser.parse_args()
    torch.set_num_threads(2)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    result = {"layers": options.layers, "beside_pytorch": [], "on_ranks": []}
    for dtype in options.dtypes.split(","):
        model = build(options.layers, DTYPES[dtype])
        if dtype == "autocast":
            model = Autocast(model)
        if options.only != "ranks":
            for tokens in (512, 1):
                result["beside_pytorch"].append(beside_pytorch(model, dtype, tokens, options))
        if options.only != "threads":
            result["on_ranks"].append(on_ranks(model, dtype, options))
        del model
    if options.json:
        with open(options.json, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
