#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A decoder's sequence on several ranks: Ulysses, ring attention and both.

Imports a small Llama of transformers with random weights, shards its sequence in several ways,
runs each on as many ranks and compares the logits with PyTorch's in f64.

    python examples/context_parallel.py [--ranks 4] [--tokens 256] [--why]
"""

import argparse
import copy
import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")

import meshwright as mw
import torch
import transformers


def build():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=8,
        num_key_value_heads=4, vocab_size=199, max_position_embeddings=4096,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def plans(ranks):
    """Mesh and context_parallel of each row: all ways to write `ranks` as ulysses x ring."""
    for ulysses in range(ranks, 0, -1):
        if ranks % ulysses:
            continue
        ring = ranks // ulysses
        mesh = {"ring": ring, "ulysses": ulysses}
        for order in ("contiguous", "zigzag", "striped") if ring > 1 else ("contiguous",):
            yield mesh, {"ulysses": "ulysses", "ring": "ring", "order": order}
    yield {"sp": ranks}, "auto"


def describe(mesh, context):
    if context == "auto":
        return ["auto", "auto", "auto"]
    return [str(mesh["ulysses"]), str(mesh["ring"]), context["order"]]


def size(count):
    return f"{count / 1024:.0f} KiB"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--why", action="store_true", help="print what auto compared")
    options = parser.parse_args()
    net = build()
    ids = torch.randint(0, 199, (1, options.tokens), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        exact = copy.deepcopy(net).double()(ids).logits
        own = (net(ids).logits - exact).abs().max().item() / exact.abs().max().item()
    model = mw.from_torch(net, (ids,), {"use_cache": False})

    heads = ["ulysses", "ring", "order", "sent by a rank", "launches", "weights", "activations",
             "largest/mean work", "error"]  # fmt: skip
    rows, largest = [], 0.0
    for mesh, context in plans(options.ranks):
        plan = model.parallelize(mesh=mesh, context_parallel=context)
        logits = plan.run(ids, use_cache=False)[0]
        error = (logits - exact).abs().max().item() / exact.abs().max().item()
        largest = max(largest, error)
        report = plan.report(format="json")
        memory = report["memory_per_rank"]
        rows.append(
            [*describe(mesh, context), size(report["bytes_per_rank"]),
             str(report["launches_per_rank"]), size(memory["weights"]),
             size(memory["activations_peak"]),
             f"{report['attention_work']['largest_over_mean']:.2f}", f"{error:.1e}"]
        )  # fmt: skip
        if context == "auto":
            chosen = next(d for d in report["decisions"] if d["pass"] == "choose-context-parallel")
            if options.why:
                print(plan.report())
    print(f"{options.tokens} tokens on {options.ranks} ranks; auto: {chosen['message']}")
    print(f"errors are relative to the largest logit of PyTorch in f64; its own in f32 is {own:.1e}")
    print()
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    for row in [heads, *rows]:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    if largest > max(1e-5, 1.25 * own):
        sys.exit("error: the logits differ")


if __name__ == "__main__":
    main()
