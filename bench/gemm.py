#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How fast are generated matrix products, beside oneDNN and the machine?

`bench-gemm` (built from bench/gemm.cpp) measures in turns on one core: the peak of the processor,
the bandwidth of reading memory, our kernel, and oneDNN with weights in the layout that it chooses.
Products of at most 16 rows read weights that no cache holds. The results are medians over the
rounds, of ratios within a round. `of bandwidth` counts the weights alone. To pack the weights takes
as long as the product of so many `rows`.

    ninja -C build bench-gemm && python bench/gemm.py [--rounds 15] [--target CPU] [--json FILE] [M,N,K,TYPE ...]
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

SHAPES = [
    f"{m},{n},{k},{dtype}"
    for m, n, k in [(512, 4096, 4096), (128, 4096, 1024), (8, 4096, 4096), (1, 4096, 4096)]
    for dtype in ("f32", "bf16")
]


def summarise(case):
    m, n, k = case["m"], case["n"], case["k"]
    flops, weights = 2 * m * n * k, n * k * (4 if case["dtype"] == "f32" else 2)
    rounds = case["rounds"]

    def median(value):
        return statistics.median(map(value, rounds))

    return {
        "shape": f"{m}x{k}x{n}", "dtype": case["dtype"],
        "gflops": median(lambda r: flops / r["ours"]) / 1e9,
        "peak_gflops": median(lambda r: r["peak"]) / 1e9,
        "of_peak": median(lambda r: flops / r["ours"] / r["peak"]),
        "gbps": median(lambda r: weights / r["ours"]) / 1e9,
        "read_gbps": median(lambda r: r["bandwidth"]) / 1e9,
        "of_bandwidth": median(lambda r: weights / r["ours"] / r["bandwidth"]),
        "onednn_gflops": median(lambda r: flops / r["onednn"]) / 1e9,
        "of_onednn": median(lambda r: r["onednn"] / r["ours"]),
        "compile_ms": case["compile_ms"], "pack_gbps": case["pack_gbps"],
        "pack_rows": median(lambda r: m * weights / case["pack_gbps"] / 1e9 / r["ours"]),
        "difference": case["difference"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shapes", nargs="*", default=SHAPES)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--target", default="host")
    parser.add_argument("--build", default="build", help="the build tree")
    parser.add_argument("--json")
    options = parser.parse_args()
    tool = Path(options.build) / "bench" / "bench-gemm"
    done = subprocess.run(
        [tool, str(options.rounds), options.target, *options.shapes], stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        sys.exit(done.returncode)
    cases = json.loads(done.stdout)
    rows = [summarise(case) for case in cases]
    print(f"{'m x k x n':<15} {'':<5} {'GF/s':>6} {'of peak':>8} {'GB/s':>6} {'of bandwidth':>13} "
          f"{'oneDNN':>7} {'of oneDNN':>10} {'compile':>8} {'packing':>8} {'rows':>5}")
    for row in rows:
        print(f"{row['shape']:<15} {row['dtype']:<5} {row['gflops']:>6.0f} {row['of_peak']:>8.0%} "
              f"{row['gbps']:>6.1f} {row['of_bandwidth']:>13.0%} {row['onednn_gflops']:>7.0f} "
              f"{row['of_onednn']:>10.2f} {row['compile_ms']:>5.0f} ms {row['pack_gbps']:>3.0f} GB/s "
              f"{row['pack_rows']:>5.0f}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"target": options.target, "summary": rows, "cases": cases}, file, indent=1)


if __name__ == "__main__":
    main()
