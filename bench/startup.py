#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How long does a process take that runs a bundle once, beyond the run itself?

Runs bundles of Llamas with few and with many layers, compiled for one token on 2 ranks, by
`sharding-run`. Also measures the tool alone (--help), and the program in a process that has run
before. The rest of the time is spent on reading the manifest, loading code, mapping weights,
starting ranks, and reading the pages of the weights for the first time. The figures are medians.

    PYTHONPATH=build/python PATH=build/bin:$PATH python bench/startup.py [--layers 2 80] [--json FILE]
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

import torch
from compile import make_plan
from safetensors.torch import save_file


def median_milliseconds(call, runs):
    call()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 80])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--json")
    arguments = parser.parse_args()

    def launch(*command):
        subprocess.run(["sharding-run", *command], check=True, stdout=subprocess.DEVNULL)

    results = []
    alone = median_milliseconds(lambda: launch("--help"), arguments.runs)
    print(f"{'model':10} {'weights':>9} {'process':>9} {'tool':>9} {'run':>9} {'rest':>9}")
    for layers in arguments.layers:
        plan = make_plan(layers, torch.float32, tokens=1)
        with tempfile.TemporaryDirectory() as folder:
            ids = torch.zeros(1, 1, dtype=torch.int64)
            save_file({"input_ids": ids}, os.path.join(folder, "in.safetensors"))
            bundle = os.path.join(folder, "bundle")
            plan.compile(bundle)
            weights = sum(f.stat().st_size for f in pathlib.Path(bundle, "weights").iterdir())
            inputs = f"--inputs={folder}/in.safetensors"
            process = median_milliseconds(lambda: launch(bundle, inputs), arguments.runs)
        run = median_milliseconds(lambda: plan.run(input_ids=ids), arguments.runs)
        rest = process - alone - run
        results.append({"layers": layers, "weights_bytes": weights, "process_milliseconds": process,
                        "tool_milliseconds": alone, "run_milliseconds": run,
                        "rest_milliseconds": rest})
        print(f"{layers:3} layers {weights / 2**20:5.0f} MiB {process:6.1f} ms {alone:6.1f} ms "
              f"{run:6.1f} ms {rest:6.1f} ms")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
