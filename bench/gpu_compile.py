#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How long does compiling a kernel to PTX take, and a model for a GPU beside one for a processor?

Compiles a Llama of two layers for 2 ranks, and attention with heads of several sizes, to bundles with
an empty cache. The time of a kernel is the time of one thread, from its text to PTX, as the best of
several runs. No GPU is needed.

    PYTHONPATH=build/python python bench/gpu_compile.py [--target gpu:sm_90a] [--runs 3] [--json FILE]
"""

import argparse
import json
import os
import statistics
import tempfile
import time

import meshwright as mw
import torch
from compile import make_plan
from torch.nn import functional


class Attention(torch.nn.Module):
    def forward(self, query, key, value):
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def make_attention(features, dtype):
    x = torch.randn(1, 4, 512, features).to(dtype)
    return mw.from_torch(Attention().eval(), (x, x, x)).parallelize(mesh={"tp": 1})


def compile_bundle(plan, target):
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MESHWRIGHT_CACHE"] = os.path.join(folder, "cache")
        start = time.perf_counter()
        summary = plan.compile(os.path.join(folder, "bundle"), target=target)
        return summary["compiled_kernels"], time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--target", default="gpu:sm_90a")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json")
    arguments = parser.parse_args()

    types = (torch.float32, torch.bfloat16)
    plans = {("llama, 2 layers", dtype): make_plan(2, dtype, 512) for dtype in types}
    plans |= {(f"attention, heads of {features}", dtype): make_attention(features, dtype)
              for features in (64, 128, 256) for dtype in types}
    results = []
    print(f"{'model':26} {'type':9} {'kernels':>7} {'median':>9} {'largest':>9} {'GPU':>8} {'CPU':>8}")
    for (name, dtype), plan in plans.items():
        best, seconds = {}, {}
        for _ in range(arguments.runs):
            for target in (arguments.target, "cpu"):
                kernels, elapsed = compile_bundle(plan, target)
                seconds[target] = min(seconds.get(target, elapsed), elapsed)
                for key, milliseconds in enumerate(kernels if target != "cpu" else []):
                    best[key] = min([milliseconds, *([best[key]] if key in best else [])], key=lambda kernel: kernel[1])
        times = [milliseconds for _, milliseconds in best.values()]
        row = {"model": name, "dtype": str(dtype).removeprefix("torch."), "kernels": len(times),
               "median_milliseconds": statistics.median(times), "largest_milliseconds": max(times),
               "gpu_seconds": seconds[arguments.target], "cpu_seconds": seconds["cpu"],
               "compiled": [list(kernel) for kernel in best.values()]}
        results.append(row)
        print(f"{name:26} {row['dtype']:9} {len(times):7} {row['median_milliseconds']:6.1f} ms "
              f"{row['largest_milliseconds']:6.1f} ms {row['gpu_seconds']:6.2f} s {row['cpu_seconds']:6.2f} s")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
