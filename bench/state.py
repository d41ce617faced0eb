#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How much does state add to a call?

 - small: a program on two ranks that adds to a state of 1 KiB, as a session, beside the same program
   that takes the old value as an input and returns the new one;
 - rows: a step that replaces one row of a cache and reads one, for caches of three sizes;
 - decode: attention of one token over a cache of 64 MiB into which the step puts a row, beside
   attention over a cache that only is read.

The calls of a comparison alternate in blocks. Figures are medians over blocks: of the time of a
call, and of the ratio of neighbouring blocks. `--no-recover` starts sessions that do not recover.

    PYTHONPATH=build/python python bench/state.py [--only small rows decode] [--json FILE]
"""

import argparse
import json
import pathlib
import statistics
import tempfile
import time

import numpy as np
from safetensors.numpy import save_file

import meshwright as mw

SMALL = """
{declaration}
func.func @main(%x: tensor<8x64xf32> {{nn.input = "x"}}, %w: tensor<256x64xf32> {{nn.parameter = "w"}}{argument})
    -> ({results}) {{
  {read}
  %0 = nn.linear %x, %w : (tensor<8x64xf32>, tensor<256x64xf32>) -> tensor<8x256xf32>
  %1 = nn.reduce sum %0 dims [0] : (tensor<8x256xf32>) -> tensor<256xf32>
  %2 = nn.add %s, %1 : (tensor<256xf32>, tensor<256xf32>) -> tensor<256xf32>
  {write}
}}
"""
WITH_STATE = {
    "declaration": "nn.state @s {fill = 0.0 : f32} : tensor<256xf32>", "argument": "",
    "results": 'tensor<8x256xf32> {nn.output = "y"}', "read": "%s = nn.read @s : tensor<256xf32>",
    "write": "nn.write @s, %2 : tensor<256xf32>\n  return %0 : tensor<8x256xf32>",
}  # fmt: skip
WITHOUT = {
    "declaration": "", "argument": ', %s: tensor<256xf32> {nn.input = "s"}',
    "results": 'tensor<8x256xf32> {nn.output = "y"}, tensor<256xf32> {nn.output = "t"}', "read": "",
    "write": "return %0, %2 : tensor<8x256xf32>, tensor<256xf32>",
}  # fmt: skip

ROWS = """
nn.state @c {{fill = 0.0 : f32}} : tensor<{rows}x1024xf32>
func.func @main(%i: tensor<1xi64> {{nn.input = "i"}}, %x: tensor<1x1024xf32> {{nn.input = "x"}})
    -> (tensor<1x1024xf32> {{nn.output = "y"}}) {{
  %c = nn.read @c : tensor<{rows}x1024xf32>
  %1 = nn.index_copy %c, %i, %x dim 0 : (tensor<{rows}x1024xf32>, tensor<1xi64>, tensor<1x1024xf32>) -> tensor<{rows}x1024xf32>
  nn.write @c, %1 : tensor<{rows}x1024xf32>
  %2 = nn.gather %1, %i dim 0 : (tensor<{rows}x1024xf32>, tensor<1xi64>) -> tensor<1x1024xf32>
  return %2 : tensor<1x1024xf32>
}}
"""

# 8 heads of 128, 8192 keys and as many values: two caches of 32 MiB.
DECODE = """
nn.state @k {{fill = 0.5 : f32}} : tensor<1x8x8192x128xf32>
nn.state @v {{fill = 0.5 : f32}} : tensor<1x8x8192x128xf32>
func.func @main(%i: tensor<1xi64> {{nn.input = "i"}}, %q: tensor<1x8x1x128xf32> {{nn.input = "q"}})
    -> (tensor<1x8x1x128xf32> {{nn.output = "y"}}) {{
  %k = nn.read @k : tensor<1x8x8192x128xf32>
  %v = nn.read @v : tensor<1x8x8192x128xf32>
  {body}
}}
"""
PUT = """%{new} = nn.index_copy %{old}, %i, %q dim 2 : (tensor<1x8x8192x128xf32>, tensor<1xi64>, tensor<1x8x1x128xf32>) -> tensor<1x8x8192x128xf32>
  nn.write @{old}, %{new} : tensor<1x8x8192x128xf32>
  """
ATTEND = "%y = nn.attention %q, %{k}, %{v} scale 1.0 : (tensor<1x8x1x128xf32>, tensor<1x8x8192x128xf32>, tensor<1x8x8192x128xf32>) -> tensor<1x8x1x128xf32>\n  return %y : tensor<1x8x1x128xf32>"


def plan_of(text, mesh, **parameters):
    with tempfile.TemporaryDirectory() as folder:
        program, weights = pathlib.Path(folder, "m.mlir"), pathlib.Path(folder, "w.safetensors")
        program.write_text(text)
        save_file(parameters, weights)
        return mw.load(program, weights).parallelize(mesh=mesh)


def compare(first, second, blocks, calls):
    """Medians of the microseconds of a call of each, and of the ratio."""
    def measure(call):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - start) / calls * 1e6

    measure(first), measure(second)
    times = []
    for block in range(blocks):
        order = (first, second) if block % 2 else (second, first)
        taken = {call: measure(call) for call in order}
        times.append((taken[first], taken[second]))
    return {"microseconds": statistics.median(t for t, _ in times),
            "without_microseconds": statistics.median(t for _, t in times),
            "ratio": statistics.median(a / b for a, b in times)}


def small(start, blocks):
    w = np.random.default_rng(0).standard_normal((256, 64)).astype(np.float32)
    x, s = np.ones((8, 64), np.float32), np.zeros(256, np.float32)
    results = []
    for ranks in (1, 2):
        plan = plan_of(SMALL.format(**WITHOUT), {"tp": ranks}, w=w)
        with start(plan_of(SMALL.format(**WITH_STATE), {"tp": ranks}, w=w)) as session:
            figures = compare(lambda: session.run(x), lambda: plan.run(x, s), blocks, 500)
        results.append({"case": f"1 KiB, {ranks} rank{'s' * (ranks > 1)}", **figures})
    return results


def rows(start, blocks):
    results = []
    i, x = np.array([3]), np.ones((1, 1024), np.float32)
    with start(plan_of(ROWS.format(rows=16), {"tp": 1})) as tiny:
        for mebibytes in (1, 16, 64):
            with start(plan_of(ROWS.format(rows=256 * mebibytes), {"tp": 1})) as session:
                figures = compare(lambda s=session: s.run(i, x), lambda: tiny.run(i, x), blocks, 200)
            results.append({"case": f"row of {mebibytes} MiB, beside 64 KiB", **figures})
    return results


def decode(start, blocks):
    body = PUT.format(old="k", new="kn") + PUT.format(old="v", new="vn") + ATTEND.format(k="kn", v="vn")
    i, q = np.array([3]), np.ones((1, 8, 1, 128), np.float32)
    with start(plan_of(DECODE.format(body=body), {"tp": 1})) as session, \
            start(plan_of(DECODE.format(body=ATTEND.format(k="k", v="v")), {"tp": 1})) as reader:
        figures = compare(lambda: session.run(i, q), lambda: reader.run(i, q), blocks, 10)
    return [{"case": "decoding, 64 MiB, beside reading", **figures}]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    cases = {"small": small, "rows": rows, "decode": decode}
    parser.add_argument("--only", nargs="+", choices=cases, default=list(cases))
    parser.add_argument("--blocks", type=int, default=31)
    parser.add_argument("--no-recover", action="store_true")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    results = []
    print(f"{'case':34} {'with':>10} {'without':>10} {'ratio':>6}")
    for name in arguments.only:
        for result in cases[name](lambda plan: plan.start(recover=not arguments.no_recover), arguments.blocks):
            print(f"{result['case']:34} {result['microseconds']:7.0f} us {result['without_microseconds']:7.0f} us "
                  f"{result['ratio']:6.3f}", flush=True)
            results.append(result)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
