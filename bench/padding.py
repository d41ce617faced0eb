#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What does padding cost, beside a model that the user has padded by hand?

Each case is a model with a dimension that the ranks do not divide, and the same model with the
dimension that the ranks hold after padding. Both programs have the same local shapes. Only the first
one has padding, and masks where they are needed. The two run in turns in one process, and the order of
a pair alternates. The result is the median of the ratios of the pairs, with its quartiles. A further
session of the second program beside it shows the noise of the machine. `kernels` counts the kernels of the
first program, and those that both programs run.

    PYTHONPATH=build/python python bench/padding.py [--pairs 200] [--dtypes f32,bf16] [--json FILE]
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import tempfile
import time

os.environ.setdefault("MESHWRIGHT_THREADS", "1")

import meshwright as mw  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


class Feed(nn.Module):
    def __init__(self, features, activation):
        super().__init__()
        self.up, self.down = nn.Linear(512, features), nn.Linear(features, 512)
        self.activation = activation

    def forward(self, x):
        return self.down(self.activation(self.up(x)))


class Loss(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.head = nn.Linear(256, vocabulary, bias=False)

    def forward(self, x, labels):
        return F.cross_entropy(self.head(x).float(), labels)


def build_llama(heads, features, vocabulary):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=448, intermediate_size=features, num_hidden_layers=2, num_attention_heads=heads,
        num_key_value_heads=heads, head_dim=64, vocab_size=vocabulary, max_position_embeddings=128,
        use_cache=False, tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config), (torch.zeros(1, 128, dtype=torch.long),)


def build_feed(features, activation, tokens=256):
    return Feed(features, activation), (torch.randn(tokens, 512),)


def build_loss(vocabulary):
    return Loss(vocabulary), (torch.randn(128, 256), torch.arange(128))


#: The ranks, the model with padding, and the model padded by hand.
CASES = {
    "Llama, 7 heads over tp=2": (2, lambda: build_llama(7, 1024, 2048), lambda: build_llama(8, 1024, 2048)),
    "Llama, 1021 features over tp=2": (2, lambda: build_llama(8, 1021, 2048), lambda: build_llama(8, 1022, 2048)),
    "Llama, vocabulary of 2047 over tp=2": (2, lambda: build_llama(8, 1024, 2047), lambda: build_llama(8, 1024, 2048)),
    "sigmoid of 2047 features, tp=2": (2, lambda: build_feed(2047, torch.sigmoid), lambda: build_feed(2048, torch.sigmoid)),
    "sigmoid of 255 features, 1 token, tp=2": (2, lambda: build_feed(255, torch.sigmoid, 1),
                                               lambda: build_feed(256, torch.sigmoid, 1)),
    "softmax of 2047 features, tp=2": (2, lambda: build_feed(2047, lambda u: u.softmax(-1)),
                                       lambda: build_feed(2048, lambda u: u.softmax(-1))),
    "loss over 8191 words, tp=2": (2, lambda: build_loss(8191), lambda: build_loss(8192)),
}


def plan(build, tp, dtype):
    torch.manual_seed(0)
    net, inputs = build()
    inputs = tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)
    return mw.from_torch(net.to(dtype).eval(), inputs).parallelize(mesh={"tp": tp}), inputs


def count_launches(program):
    text = program.ir(phase="rt")
    return text.count("rt.kernel") + text.count("rt.start")


def get_kernels(program):
    """The names of a program's kernels, which are hashes of their texts."""
    with tempfile.TemporaryDirectory() as folder:
        program.compile(folder + "/bundle")
        [code] = pathlib.Path(folder, "bundle").glob("program-*.so")
        return set(re.findall(rb"kernel_[0-9A-Fa-f]{16}", code.read_bytes()))


def measure(first, second, inputs, pairs):
    """The ratios of the times of two sessions, pair by pair, and the median time of each."""
    times = ([], [])
    for i in range(pairs + 5):
        for which in (0, 1) if i % 2 == 0 else (1, 0):
            begin = time.perf_counter()
            (first, second)[which].run(*inputs)
            if i >= 5:
                times[which].append(time.perf_counter() - begin)
    ratios = [a / b for a, b in zip(*times)]
    return statistics.quantiles(ratios, n=4), [statistics.median(own) for own in times]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--only", default="", help="a part of the names of cases")
    parser.add_argument("--json")
    options = parser.parse_args()
    rows = []
    print(f"{'case':<40}{'type':<6}{'launches':>10}{'kernels':>10}{'padded':>10}{'by hand':>10}{'ratio (quartiles)':>24}{'noise':>24}")
    for name, (tp, padded, whole) in CASES.items():
        if options.only not in name:
            continue
        for dtype in options.dtypes.split(","):
            (ours, inputs), (theirs, _) = (plan(build, tp, DTYPES[dtype]) for build in (padded, whole))
            with ours.start() as first, theirs.start() as second, theirs.start() as third:
                ratio, (own, other) = measure(first, second, inputs, options.pairs)
                noise, _ = measure(third, second, inputs, options.pairs)
            launches = count_launches(ours), count_launches(theirs)
            kernels = get_kernels(ours)
            shared = len(kernels & get_kernels(theirs))
            rows.append({"case": name, "dtype": dtype, "launches": launches, "kernels": len(kernels),
                         "shared_kernels": shared, "seconds": own,
                         "by_hand_seconds": other, "ratio": ratio, "noise": noise})
            spread, around = (f"{q[1]:.3f} ({q[0]:.3f} to {q[2]:.3f})" for q in (ratio, noise))
            print(f"{name:<40}{dtype:<6}{f'{launches[0]}, {launches[1]}':>10}"
                  f"{f'{len(kernels)}, {shared}':>10}{own * 1e3:>8.2f}ms{other * 1e3:>8.2f}ms"
                  f"{spread:>24}{around:>24}", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
