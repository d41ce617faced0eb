#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How fast is attention to a cache in pages, beside attention to a dense cache of the same lengths?

A layer of Llama's shape: 16 query heads on 8 key heads of 128 features, pages of 16 rows in random
order. Eight requests decode with 200 and with 2,000 keys each, and one request reads a prompt of 512
tokens. Both kernels take turns, on threads pinned to cores. The times are those of kernels in the
trace of a run, the merging of parts included. Prints medians, and the median of the ratio within a
round: the time of the dense kernel over that of the paged one, of which 0.95 is expected.

    PYTHONPATH=build/python python bench/paged.py [--rounds 15] [--cores 0] [--dtypes f32,bf16] [--json FILE]
"""

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path

import meshwright as mw
import torch

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
HEADS, KEY_HEADS, FEATURES, SIZE = 16, 8, 128, 16
# Requests, tokens of each, keys of each.
CASES = {"decode 200": (8, 1, 200), "decode 2000": (8, 1, 2000), "prompt 512": (1, 512, 512)}
ELEMENTS = {torch.float32: "f32", torch.bfloat16: "bf16", torch.int64: "i64"}


def load(folder, op, inputs, result):
    def type_of(tensor):
        return f"tensor<{'x'.join(map(str, tensor.shape))}x{ELEMENTS[tensor.dtype]}>"
    arguments = ", ".join(f'%a{i}: {type_of(x)} {{nn.input = "a{i}"}}' for i, x in enumerate(inputs))
    types = ", ".join(map(type_of, inputs))
    path = Path(folder) / "program.mlir"
    path.write_text(f"func.func @main({arguments}) -> ({type_of(result)} {{nn.output = \"out\"}}) {{\n"
                    f"  %0 = {op.format(*(f'%a{i}' for i in range(len(inputs))))} : ({types}) -> {type_of(result)}\n"
                    f"  return %0 : {type_of(result)}\n}}\n")
    return mw.load(path).parallelize(mesh={"tp": 1}, device="cpu")


def programs(case, dtype, folder):
    """Plans and inputs of the dense and of the paged form."""
    requests, tokens, keys = CASES[case]
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, generator=generator).to(DTYPES[dtype])
    q = random(requests, HEADS, tokens, FEATURES)
    k, v = (random(requests, KEY_HEADS, keys, FEATURES) for _ in range(2))
    scale = f"scale {FEATURES**-0.5!r}"
    dense = load(folder, f"nn.attention {{}}, {{}}, {{}} {scale} {'{{causal}}' if tokens > 1 else ''}", (q, k, v), q)
    blocks = -(-keys // SIZE)
    tables = torch.randperm(requests * blocks, generator=generator).view(requests, blocks)
    caches = []
    for x in (k, v):
        rows = torch.zeros(requests, blocks * SIZE, KEY_HEADS, FEATURES, dtype=x.dtype)
        rows[:, :keys] = x.transpose(1, 2)
        pages = torch.empty(1, requests * blocks, SIZE, KEY_HEADS, FEATURES, dtype=x.dtype)
        pages[0, tables.flatten()] = rows.view(-1, SIZE, KEY_HEADS, FEATURES)
        caches.append(pages)
    inputs = (q.transpose(1, 2).reshape(1, requests * tokens, HEADS, FEATURES).contiguous(), *caches, tables[None],
              (torch.arange(requests + 1) * tokens)[None], torch.full((1, requests), keys))
    paged = load(folder, f"nn.paged_attention {{}}, {{}}, {{}} tables {{}} starts {{}} lengths {{}} {scale}", inputs,
                 inputs[0])
    return (dense, (q, k, v)), (paged, inputs)


def measure(case, dtype, options):
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        both = programs(case, dtype, folder)

        def run(plan, inputs):
            result = plan.run(*inputs, threads_per_rank=len(options.cores.split(",")), trace=trace)[0]
            events = json.loads(trace.read_text())["traceEvents"]
            taken = [e["dur"] for e in events if e.get("cat") == "attention" or "merge_parts" in e.get("name", "")]
            return result, sum(taken) * 1e-6
        want, got = (run(*program)[0] for program in both)
        requests, tokens, _ = CASES[case]
        got = got.view(requests, tokens, HEADS, FEATURES).transpose(1, 2)
        difference = ((got.double() - want.double()).abs().max() / want.double().abs().max()).item()
        rounds = [[run(*program)[1] for program in both] for _ in range(options.rounds)]
    dense, paged = (statistics.median(times) for times in zip(*rounds))
    ratio = statistics.median(a / b for a, b in rounds)
    print(f"{case:<12} {dtype:<5} dense {dense * 1e6:>9.1f} us  paged {paged * 1e6:>9.1f} us  speed {ratio:>6.2f}  "
          f"difference {difference:.1e}", flush=True)
    return {"case": case, "dtype": dtype, "dense": dense, "paged": paged, "speed": ratio, "difference": difference}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cores", default="0")
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.sched_setaffinity(0, set(map(int, options.cores.split(","))))
    rows = [measure(case, dtype, options) for dtype in options.dtypes.split(",") for case in options.cases.split(",")]
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
