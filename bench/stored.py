#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How fast are products of stored weights, beside those of the same weights in bf16?

A chain of square products in bf16 whose weights no cache holds: in bf16, in f8 with a scale for each
128 x 128, in MXFP4, and in int8 with a scale for each row. All run in turns; the ratios are medians over
the rounds. With --activation an activation follows each product.

    python bench/stored.py [--rounds 15] [--size 4096] [--layers 6] [--threads 2] [--rows 1 512] [--activation]
"""
import argparse
import statistics
import time

import meshwright as mw
import torch
import torch.nn.functional as F
from torch import nn

FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]


class Plain(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.register_buffer("weight", (torch.randn(size, size) * size**-0.5).bfloat16())

    def forward(self):
        return self.weight


class F8(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.register_buffer("codes", torch.randn(size, size).to(torch.float8_e4m3fn))
        self.register_buffer("scales", torch.rand(size // 128, size // 128) * size**-0.5)

    def forward(self):
        scales = self.scales.repeat_interleave(128, 0).repeat_interleave(128, 1)
        return (self.codes.float() * scales).bfloat16()


class Int8(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.register_buffer("codes", torch.randint(-127, 128, (size, size), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(size, 1) * size**-0.5 / 64)

    def forward(self):
        return (self.codes.float() * self.scales).bfloat16()


class Mxfp4(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.register_buffer("codes", torch.randint(0, 256, (size, size // 32, 16), dtype=torch.uint8))
        self.register_buffer("scales", torch.randint(118, 121, (size, size // 32), dtype=torch.uint8))
        self.register_buffer("table", torch.tensor(FP4), persistent=False)

    def forward(self):
        pairs = torch.stack([self.table[(self.codes & 15).int()], self.table[(self.codes >> 4).int()]], -1)
        return torch.ldexp(pairs.flatten(-2), self.scales.int()[..., None] - 127).flatten(-2).bfloat16()


class Chain(nn.Module):
    def __init__(self, kind, size, layers, follow):
        super().__init__()
        self.follow = follow
        self.weights = nn.ModuleList(kind(size) for _ in range(layers))

    def forward(self, x):
        for weight in self.weights:
            x = self.follow(F.linear(x, weight()))
        return x


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2, help="of the one rank")
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 512])
    parser.add_argument("--activation", action="store_true", help="behind each product")
    options = parser.parse_args()
    follow = F.silu if options.activation else nn.Identity()
    kinds = {"bf16": Plain, "f8": F8, "mxfp4": Mxfp4, "int8": Int8}
    print(f"{'rows':>5} " + " ".join(f"{name:>6}" for name in list(kinds)[1:]) + "   (time of bf16 / time)")
    for rows in options.rows:
        x = torch.randn(rows, options.size, generator=torch.Generator().manual_seed(1)).bfloat16()
        sessions = {}
        for name, kind in kinds.items():
            torch.manual_seed(0)
            net = Chain(kind, options.size, options.layers, follow).eval()
            sessions[name] = mw.from_torch(net, (x,)).parallelize(mesh={"dp": 1}).start(threads_per_rank=options.threads)
        times = {name: [] for name in kinds}
        for i in range(options.rounds + 2):
            for name, session in sessions.items():
                begin = time.perf_counter()
                session.run(x)
                if i >= 2:
                    times[name].append(time.perf_counter() - begin)
        ratios = {name: statistics.median(b / t for b, t in zip(times["bf16"], own, strict=True))
                  for name, own in times.items()}
        print(f"{rows:>5} " + " ".join(f"{ratios[name]:>6.2f}" for name in list(kinds)[1:]))
        for session in sessions.values():
            session.close()


if __name__ == "__main__":
    main()
