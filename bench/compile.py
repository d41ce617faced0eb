#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How long does compiling a kernel take, and does it grow with the layers of a model?

Compiles Llamas with few and with many layers to bundles for 2 ranks: with an empty cache, with the
kernels of the first model in the cache, and with all kernels in the cache. The time of a kernel is
the time of one thread, from its text to object code, as the best of several runs.

    PYTHONPATH=build/python python bench/compile.py [--layers 2 80] [--runs 3] [--json FILE]
"""

import argparse
import json
import os
import statistics
import tempfile
import time

import meshwright as mw
import torch
from transformers import LlamaConfig, LlamaForCausalLM


def make_plan(layers, dtype, tokens):
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        use_cache=False,
    )
    torch.manual_seed(0)
    ids = torch.arange(tokens).reshape(1, tokens)
    module = LlamaForCausalLM(config).to(dtype).eval()
    model = mw.from_torch(module, (), {"input_ids": ids})
    return model.parallelize(mesh={"tp": 2})


def compile_bundle(plan, cache):
    os.environ["MESHWRIGHT_CACHE"] = cache
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        summary = plan.compile(os.path.join(folder, "bundle"))
        return summary | {"seconds": time.perf_counter() - start}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 80])
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json")
    arguments = parser.parse_args()

    results = []
    print(f"{'model':22} {'kernels':>7} {'new':>4} {'median':>9} {'largest':>9} {'entry':>9} {'again':>9} "
          f"{'cold':>8} {'cached':>8}")
    for dtype in (torch.float32, torch.bfloat16):
        plans = {n: make_plan(n, dtype, arguments.tokens) for n in arguments.layers}
        best, cold, warm = {}, {}, {}
        for _ in range(arguments.runs):
            for layers, plan in plans.items():
                with tempfile.TemporaryDirectory() as cache:
                    run = compile_bundle(plan, cache)
                    if layers not in cold or run["seconds"] < cold[layers]["seconds"]:
                        cold[layers] = run
                    again = compile_bundle(plan, cache)
                    if layers not in warm or again["seconds"] < warm[layers]["seconds"]:
                        warm[layers] = again
                for i, (purpose, milliseconds) in enumerate(run["compiled_kernels"]):
                    key = layers, i, purpose
                    best[key] = min(best.get(key, milliseconds), milliseconds)
        first = arguments.layers[0]
        with tempfile.TemporaryDirectory() as cache:
            compile_bundle(plans[first], cache)
            new = {n: 0 if n == first else len(compile_bundle(plan, cache)["compiled_kernels"])
                   for n, plan in plans.items()}
        for layers in arguments.layers:
            kernels = {purpose: ms for (n, _, purpose), ms in best.items() if n == layers}
            times = [ms for (n, _, _), ms in best.items() if n == layers]
            row = {
                "layers": layers,
                "dtype": str(dtype).removeprefix("torch."),
                "tokens": arguments.tokens,
                "kernels": cold[layers]["kernels"],
                "kernels_beyond_first_model": new[layers],
                "median_milliseconds": statistics.median(times),
                "largest_milliseconds": max(times),
                "entry_milliseconds": cold[layers]["entry_milliseconds"],
                "cached_entry_milliseconds": warm[layers]["entry_milliseconds"],
                "cold_seconds": cold[layers]["seconds"],
                "cached_seconds": warm[layers]["seconds"],
                "compiled": kernels,
            }
            results.append(row)
            print(f"{layers:3} layers, {row['dtype']:10} {row['kernels']:7} {new[layers]:4} "
                  f"{row['median_milliseconds']:6.1f} ms {row['largest_milliseconds']:6.1f} ms "
                  f"{row['entry_milliseconds']:6.1f} ms {row['cached_entry_milliseconds']:6.1f} ms "
                  f"{row['cold_seconds']:6.2f} s "
                  f"{row['cached_seconds']:6.2f} s")
        print("  slowest:")
        for purpose, ms in sorted(kernels.items(), key=lambda item: -item[1])[:6]:
            print(f"    {ms:6.1f} ms  {purpose}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
