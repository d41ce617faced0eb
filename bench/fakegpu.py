#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How fast is the interpreter of the GPU stand-in?

Runs kernels of test/fakegpu/Inputs on the stand-in several times and prints the best
rate in lane instructions a second and a processor. The rate decides how large a model the GPU tests
can run.

    bench/fakegpu.py [--json=FILE] [--threads=N]
"""

import argparse
import ctypes as C
import json
import os
import pathlib
import subprocess
import sys
import time

TESTS = pathlib.Path(__file__).resolve().parents[1] / "test" / "fakegpu"
sys.path.insert(0, str(TESTS))


def prepared(driver, name):
    """A kernel, its arguments and its shape."""
    import numpy as np

    def load(file, kernel):
        return driver.kernel(driver.load((TESTS / "Inputs" / f"{file}.ptx").read_text()), kernel)

    ones = lambda count: driver.put(np.full(count, 0x3F80, np.uint16))
    if name == "mma GEMM":
        args = [0] * 21
        args[1], args[8], args[15] = ones(512 * 512), ones(512 * 512), ones(512 * 512)
        return load("mma_pipelined", "gemm128"), args, (2, 2), 256
    args = [0] * 20
    args[1], args[8], args[13], args[19] = ones(8 * 4096), ones(4096), ones(8 * 4096), C.c_float(1e-5)
    return load("rmsnorm", "rmsnorm"), args, 8, 256


def worker(name, repeats):
    """Seconds of the fastest launch."""
    import fakegpu_cuda as cuda

    driver = cuda.Driver()
    function, args, grid, block = prepared(driver, name)
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        driver.launch(function, grid, block, *args)
        driver.synchronize()
        best = min(best, time.perf_counter() - begin)
    print(best)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--worker")
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, options.repeats)
        return
    rows = []
    for name in ("mma GEMM", "RMSNorm"):
        log = f"/tmp/fakegpu-bench-{os.getpid()}.json"
        mine = sorted(os.sched_getaffinity(0))[: options.threads]
        command = [sys.executable, __file__, "--worker", name, "--repeats", str(options.repeats)]
        done = subprocess.run(
            command, env={**os.environ, "FAKEGPU_LOG": log, "FAKEGPU_SEED": "0"}, text=True,
            capture_output=True, check=True, preexec_fn=lambda: os.sched_setaffinity(0, mine),
        )  # fmt: skip
        counters = next(iter(json.load(open(log))["kernels"].values()))
        os.remove(log)
        lanes = counters["lane_instructions"] / options.repeats
        rate = lanes / float(done.stdout) / len(mine)
        rows.append({"kernel": name, "lane_instructions": lanes, "seconds": float(done.stdout), "rate": rate})
    print(f"{'kernel':10} {'lane instructions':>18} {'time':>10} {'M lane instructions/s and processor':>36}")
    for r in rows:
        print(f"{r['kernel']:10} {r['lane_instructions']:18.0f} {r['seconds'] * 1e3:7.1f} ms {r['rate'] / 1e6:36.0f}")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
