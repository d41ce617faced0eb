#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How fast do row kernels go over memory, beside a plain copy?

For norms, gated activation and softmax over 2048 rows of 4096, prints gigabytes per second of useful
bytes (inputs and results once each), and the ratio to a copy of 32 MiB with plain vector stores.
Both take turns on one thread pinned to one core; the figures are medians. The compile time goes from
the MLIR of a kernel to its object code.

    ninja -C build bench-rows && python bench/rows.py [--repeats 15] [--rounds 3] [--json FILE]
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

TOOL = pathlib.Path(__file__).resolve().parents[1] / "build" / "bench" / "bench-rows"
ROWS, COLUMNS = 2048, 4096

# Inputs (x: a matrix, w: a row), the body, results.
KERNELS = {
    "rms_norm": ("xw", "%r = nn.rms_norm %0 weight %1 eps 1.0e-5 : (X, W) -> X", "%r"),
    "add + rms_norm": ("xxw", "%h = nn.add %0, %1 : (X, X) -> X\n"
                       "%r = nn.rms_norm %h weight %2 eps 1.0e-5 : (X, W) -> X", "%h, %r"),
    "layer_norm": ("xww", "%r = nn.layer_norm %0 weight %1 bias %2 eps 1.0e-5 : (X, W, W) -> X", "%r"),
    "swiglu": ("xx", "%a = nn.silu %0 : X\n%r = nn.mul %a, %1 : (X, X) -> X", "%r"),
    "softmax": ("x", "%r = nn.softmax %0 dim 1 : X", "%r"),
}
WANTED = {"rms_norm": 0.85, "add + rms_norm": 0.85, "swiglu": 0.85, "softmax": 0.5}


def module(kernel, dtype):
    inputs, body, results = KERNELS[kernel]
    types = {"x": f"tensor<{ROWS}x{COLUMNS}x{dtype}>", "w": f"tensor<{COLUMNS}x{dtype}>"}
    body = body.replace("X", types["x"]).replace("W", types["w"])
    for i in range(len(inputs)):
        body = body.replace(f"%{i}", f"%in{i}")
    arguments = ", ".join(f"%in{i}: {types[kind]}" for i, kind in enumerate(inputs))
    outputs = ", ".join([types["x"]] * len(results.split(",")))
    return f"func.func @main({arguments}) -> ({outputs}) {{\n{body}\nreturn {results} : {outputs}\n}}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=3, help="processes, of which the median counts")
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--kernels", nargs="+", choices=list(KERNELS), default=list(KERNELS))
    parser.add_argument("--dtypes", nargs="+", choices=["f32", "bf16"], default=["f32", "bf16"])
    parser.add_argument("--tool", default=TOOL)
    parser.add_argument("--json")
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.core})
    cases = [(kernel, dtype) for kernel in options.kernels for dtype in options.dtypes]
    runs = {case: [] for case in cases}
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for kernel, dtype in cases:
            files.append(pathlib.Path(folder) / f"{len(files)}.mlir")
            files[-1].write_text(module(kernel, dtype))
        for _ in range(options.rounds):
            done = subprocess.run([options.tool, str(options.repeats), *map(str, files)],
                                  capture_output=True, text=True)
            if done.returncode:
                sys.exit(done.stderr)
            for case, line in zip(cases, done.stdout.splitlines()):
                compiled, size, time, copied, copy = map(float, line.split(","))
                runs[case].append({"compile_ms": compiled, "gigabytes_per_second": size / time / 1e9,
                                   "copy": copied / copy / 1e9, "ratio": size / time / (copied / copy)})
    result = []
    print(f"{'kernel':<16} {'type':<5} {'GB/s':>7} {'copy':>7} {'ratio':>6} {'wanted':>7} {'compile ms':>11}")
    for (kernel, dtype), measured in runs.items():
        row = {"kernel": kernel, "dtype": dtype, "rows": ROWS, "columns": COLUMNS}
        row.update({key: statistics.median(m[key] for m in measured) for key in measured[0]})
        wanted = WANTED.get(kernel)
        print(f"{kernel:<16} {dtype:<5} {row['gigabytes_per_second']:>7.1f} {row['copy']:>7.1f} {row['ratio']:>6.2f} "
              f"{wanted or '':>7} {row['compile_ms']:>11.1f}")
        result.append(row)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"cores": os.cpu_count(), "rows": result}, file, indent=1)


if __name__ == "__main__":
    main()
