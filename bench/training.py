#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How long does a training step take, beside PyTorch, and on two ranks beside one?

Steps of a Llama of transformers with random weights (hidden 1024, 4 layers, 16 heads, 4 kv heads,
inner 2816, vocabulary 4096) over 512 tokens: forward, backward and AdamW, in f32 and in bf16 with
masters in f32 on both sides.

- threads: one rank with two threads, beside PyTorch eager and `torch.compile` with two threads and
  the fused AdamW.
- ranks: tp = 2, one thread per rank, beside one rank on one thread; and two times 512 tokens on
  dp = 2 with two shards of the optimizer.
- ring: one layer over 8,192 tokens on ring = 2 (zigzag), beside one rank on one thread.

The runs of a group take turns. The results are medians of the times, and of the ratios within a
turn. A ratio above 1 means that ours is faster.

    PYTHONPATH=build/python python bench/training.py [--layers 4] [--repeats 7] [--no-compile]
        [--only threads|ranks|ring] [--dtypes f32,bf16] [--json FILE] [--trace FILE]
"""

import argparse
import contextlib
import copy
import json
import os

import meshwright as mw
import torch
from forward import DTYPES, medians, ratio, spell, take_turns
from transformers import LlamaConfig, LlamaForCausalLM

RATE = 1e-4


def build(layers, dtype, positions=512):
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=layers,
        num_attention_heads=16, num_key_value_heads=4, vocab_size=4096,
        max_position_embeddings=positions, use_cache=False,
    )
    return LlamaForCausalLM(config).train().to(dtype)


def batch_of(rows, tokens):
    ids = torch.randint(0, 4096, (rows, tokens), generator=torch.Generator().manual_seed(1))
    return dict(input_ids=ids, labels=ids)


def plan_of(net, batch, **options):
    model = mw.from_torch(net, (), batch, training=True).train(mw.AdamW(lr=RATE))
    return model.parallelize(device="cpu", overlap="off", **options)


def in_pytorch(net, batch, compiled):
    """A step of PyTorch. Parameters in bf16 have masters in f32, which the optimizer updates."""
    own = [p for p in net.parameters() if p.requires_grad]
    wide = own[0].dtype == torch.float32
    masters = own if wide else [p.detach().float().requires_grad_() for p in own]
    optimizer = torch.optim.AdamW(masters, lr=RATE, fused=True)
    forward = torch.compile(net) if compiled else net

    def step():
        loss = forward(**batch).loss
        loss.backward()
        if not wide:
            for master, p in zip(masters, own, strict=True):
                master.grad = p.grad.float()
                p.grad = None
        optimizer.step()
        optimizer.zero_grad()
        if not wide:
            with torch.no_grad():
                torch._foreach_copy_(own, masters)
        return loss.item()

    return step


def beside_pytorch(dtype, options):
    net, batch = build(options.layers, DTYPES[dtype]), batch_of(1, 512)
    with contextlib.ExitStack() as stack:
        plan = plan_of(net, batch, mesh={"tp": 1})
        session = stack.enter_context(plan.start(threads_per_rank=2))
        runs = {
            "ours": lambda: session.run(**batch),
            "eager": in_pytorch(copy.deepcopy(net), batch, False),
        }
        if options.compile:
            runs["compile"] = in_pytorch(copy.deepcopy(net), batch, True)
        first = session.run(**batch)[0].item(), runs["eager"]()
        seconds = take_turns(runs, options.repeats)
        if options.trace:
            plan.run(**batch, threads_per_rank=2, trace=options.trace)
    times = medians(seconds)
    best = min((name for name in runs if name != "ours"), key=times.get)
    row = {"dtype": dtype, "ratio": ratio(seconds, best, "ours"), "losses": first, **times}
    print(f"{dtype:<5} {spell(times)}  ratio {row['ratio']:.2f}  first losses {first[0]:.4f} {first[1]:.4f}", flush=True)
    return row


def on_ranks(dtype, options):
    net = build(options.layers, DTYPES[dtype])
    one, two = batch_of(1, 512), batch_of(2, 512)
    plans = {
        "one rank": (one, {"mesh": {"tp": 1}}),
        "tp=2": (one, {"mesh": {"tp": 2}, "sequence_parallel": "off"}),
        "tp=2 sp": (one, {"mesh": {"tp": 2}, "sequence_parallel": "on"}),
        "dp=2": (two, {"mesh": {"dp": 2}, "shard_optimizer": "on"}),
    }
    return compare(dtype, net, plans, options, lambda s: {
        "tp": ratio(s, "one rank", "tp=2"),
        "dp": 2 * ratio(s, "one rank", "dp=2"),
        "tp_over_dp": ratio(s, "dp=2", "tp=2") / 2,
        "sequence_parallel": ratio(s, "tp=2", "tp=2 sp"),
    })


def on_a_ring(dtype, options):
    net, batch = build(1, DTYPES[dtype], 8192), batch_of(1, 8192)
    ring = {"ring": "ring", "ulysses": "ulysses", "order": "zigzag"}
    plans = {
        "one rank": (batch, {"mesh": {"tp": 1}}),
        "ring=2": (batch, {"mesh": {"ring": 2, "ulysses": 1}, "context_parallel": ring}),
    }
    return compare(dtype, net, plans, options, lambda s: {"ring": ratio(s, "one rank", "ring=2")})


def compare(dtype, net, plans, options, ratios):
    with contextlib.ExitStack() as stack:

        def prepare(batch, how):
            session = stack.enter_context(plan_of(net, batch, **how).start(threads_per_rank=1))
            return lambda: session.run(**batch)

        seconds = take_turns({name: prepare(*how) for name, how in plans.items()}, options.repeats)
    times, found = medians(seconds), ratios(seconds)
    said = "  ".join(f"{name} {value:.2f}" for name, value in found.items())
    print(f"{dtype:<5} {spell(times)}  {said}", flush=True)
    return {"dtype": dtype, **found, **times}


GROUPS = {"threads": beside_pytorch, "ranks": on_ranks, "ring": on_a_ring}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--only", choices=GROUPS)
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--json")
    parser.add_argument("--trace", help="a trace of one of our steps, of the group threads")
    options = parser.parse_args()
    torch.set_num_threads(2)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    result = {"layers": options.layers}
    for group, run in GROUPS.items():
        if options.only in (None, group):
            result[group] = [run(dtype, options) for dtype in options.dtypes.split(",")]
    if options.json:
        with open(options.json, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
