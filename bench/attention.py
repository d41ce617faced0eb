#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How fast is attention, beside PyTorch and the machine's peak?

Measures causal attention of one head of 128 features over 1,024 and 4,096 tokens, and a step of
decoding with grouped queries (32 heads, 8 kv heads, 4,096 keys), on one thread pinned to one core.
Our kernel and PyTorch's scaled_dot_product_attention (is_causal) take turns. In each round
`bench-gemm` measures the peak of the processor, for f32 fused multiply-adds or bf16 dot products.
The results are medians over the rounds, of ratios within a round. Only operations on visible keys
count. Our time is the time of the kernel in the trace of a run; PyTorch's is the time of the call.
With --backward it measures the backward pass instead: nn.attention_grad beside PyTorch's backward
of the same call, for 4,096 tokens with heads of 64 and of 128 features.

    ninja -C build bench-gemm
    PYTHONPATH=build/python python bench/attention.py [--rounds 15] [--core 0] [--json FILE] [--backward]
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import meshwright as mw
import torch

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
# Heads, key heads, queries, keys, features.
CASES = {"causal 1024": (1, 1, 1024, 1024, 128), "causal 4096": (1, 1, 4096, 4096, 128),
         "decode 32:8": (32, 8, 1, 4096, 128)}
BACKWARD = {"4096x64": (2, 2, 4096, 4096, 64), "4096x128": (2, 2, 4096, 4096, 128),
            "1024x64": (8, 8, 1024, 1024, 64), "4096x64 4:1": (4, 1, 4096, 4096, 64)}


class Attention(torch.nn.Module):
    def __init__(self, causal):
        super().__init__()
        self.causal = causal

    def forward(self, q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=self.causal, enable_gqa=q.shape[1] != k.shape[1])


def measure_peak(build, dtype):
    """Operations per second of one core."""
    tool = Path(build) / "bench" / "bench-gemm"
    done = subprocess.run([tool, "1", "host", f"32,64,64,{dtype}"], check=True,
                          stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)[0]["rounds"][0]["peak"]


def summarize(name, dtype, rounds, counts, difference):
    def median(value):
        return statistics.median(map(value, rounds))
    return {
        "case": name, "dtype": dtype, "seconds": median(lambda r: r["ours"]),
        "gflops": median(lambda r: counts["flops"] / r["ours"]) / 1e9,
        "peak_gflops": median(lambda r: r["peak"]) / 1e9,
        "of_peak": median(lambda r: counts["flops"] / r["ours"] / r["peak"]),
        "gbps": median(lambda r: counts["bytes"] / r["ours"]) / 1e9,
        "pytorch_seconds": median(lambda r: r["pytorch"]),
        "times_pytorch": median(lambda r: r["pytorch"] / r["ours"]),
        "difference": difference, "rounds": rounds,
    }


def measure(name, dtype, options):
    heads, key_heads, queries, keys, features = CASES[name]
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, generator=generator).to(DTYPES[dtype])
    inputs = (random(1, heads, queries, features), random(1, key_heads, keys, features),
              random(1, key_heads, keys, features))
    module = Attention(queries > 1)
    plan = mw.from_torch(module, inputs).parallelize(mesh={"tp": 1}, device="cpu")

    def run_ours(trace):
        result = plan.run(*inputs, threads_per_rank=1, trace=trace)[0]
        events = json.loads(Path(trace).read_text())["traceEvents"]
        event, = (e for e in events if e.get("cat") == "attention")
        return result, event["dur"] * 1e-6, event["args"]

    rounds = []
    with torch.inference_mode(), tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        theirs = module(*inputs).double()
        result, _, counts = run_ours(trace)
        difference = ((result.double() - theirs).abs().max() / theirs.abs().max()).item()
        for _ in range(options.rounds):
            _, ours, _ = run_ours(trace)
            begin = time.perf_counter()
            module(*inputs)
            rounds.append({"ours": ours, "pytorch": time.perf_counter() - begin,
                           "peak": measure_peak(options.build, dtype)})

    return summarize(name, dtype, rounds, counts, difference)


def load_gradient(dtype, shapes, scale):
    """A program of one nn.attention_grad."""
    types = [f"tensor<{'x'.join(map(str, shape))}x{t}>"
             for shape, t in zip(shapes, [dtype] * 3 + ["f32"] * 2 + [dtype])]
    results = [t.replace(dtype, "f32") for t in types[:3]]
    arguments = ", ".join(f'%a{i}: {t} {{nn.input = "a{i}"}}' for i, t in enumerate(types))
    outputs = ", ".join(f'{t} {{nn.output = "r{i}"}}' for i, t in enumerate(results))
    text = f"""func.func @main({arguments}) -> ({outputs}) {{
      %r:3 = nn.attention_grad %a0, %a1, %a2 lse %a3 delta %a4 cotangent %a5 scale {scale!r} {{causal, nn.whole_keys}} : ({", ".join(types)}) -> ({", ".join(results)})
      return %r#0, %r#1, %r#2 : {", ".join(results)}
    }}"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gradient.mlir"
        path.write_text(text)
        return mw.load(path).parallelize(mesh={"tp": 1}, device="cpu")


def measure_backward(name, dtype, options):
    heads, key_heads, queries, keys, features = BACKWARD[name]
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, generator=generator).to(DTYPES[dtype])
    q, k, v, cotangent = (random(1, n, tokens, features) for n, tokens in
                          ((heads, queries), (key_heads, keys), (key_heads, keys), (heads, queries)))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = Attention(True)(*leaves)
    scores = (q.detach().double() @ k.detach().double().repeat_interleave(heads // key_heads, 1).mT)
    scores = (scores * features**-0.5).masked_fill(torch.ones(queries, keys).triu(1).bool(), -torch.inf)
    lse = torch.logsumexp(scores, -1).float()
    del scores
    delta = (out.detach().double() * cotangent.double()).sum(-1).float()
    inputs = (*(x.detach() for x in leaves), lse, delta, cotangent)
    plan = load_gradient(dtype, [x.shape for x in inputs], features**-0.5)

    def run_ours(trace):
        results = plan.run(*inputs, threads_per_rank=1, trace=trace)
        events = json.loads(Path(trace).read_text())["traceEvents"]
        event, = (e for e in events if e.get("cat") == "attention")
        return results, event["dur"] * 1e-6, event["args"]

    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        results, _, counts = run_ours(trace)
        theirs = torch.autograd.grad(out, leaves, cotangent, retain_graph=True)
        largest = max(x.abs().max().item() for x in theirs)
        difference = max((torch.as_tensor(a).double() - b.double()).abs().max().item()
                         for a, b in zip(results, theirs)) / largest
        for _ in range(options.rounds):
            _, ours, _ = run_ours(trace)
            begin = time.perf_counter()
            torch.autograd.grad(out, leaves, cotangent, retain_graph=True)
            rounds.append({"ours": ours, "pytorch": time.perf_counter() - begin,
                           "peak": measure_peak(options.build, dtype)})
    return summarize(name, dtype, rounds, counts, difference)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--build", default="build", help="the build tree")
    parser.add_argument("--json")
    parser.add_argument("--backward", action="store_true")
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.core})
    torch.set_num_threads(1)
    print(f"{'':<12} {'':<5} {'ms':>8} {'GF/s':>6} {'of peak':>8} {'GB/s':>6} {'PyTorch ms':>11} "
          f"{'times PyTorch':>14} {'difference':>11}")
    rows = []
    for name in BACKWARD if options.backward else CASES:
        for dtype in DTYPES:
            row = (measure_backward if options.backward else measure)(name, dtype, options)
            rows.append(row)
            print(f"{row['case']:<12} {row['dtype']:<5} {row['seconds'] * 1e3:>8.2f} "
                  f"{row['gflops']:>6.0f} {row['of_peak']:>8.0%} {row['gbps']:>6.1f} "
                  f"{row['pytorch_seconds'] * 1e3:>11.2f} {row['times_pytorch']:>14.2f} "
                  f"{row['difference']:>11.1e}", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
