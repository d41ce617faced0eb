#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How much does attention around a ring cost, beside attention on one rank?

Steps: the queries of one rank against the keys of one rank, half of a sequence each, with the
positions of a ring, on one thread pinned to one core. Prints the time of a step over the time of a
step that sees every key, beside the share of the pairs that its mask leaves; a causal step should
take this share of the time. Also prints the time of merging two parts, beside the steps that it
joins. All take turns. The times are those of kernels in the trace of a run.

Layer: an attention layer with its projections, on a ring of two ranks on two cores with one thread
each, in turn with one rank on one core. Prints the ratio of the times, the processor time of both
ranks over that of one (which other work on the machine changes less), and the share of merging in
the kernels of the ring.

    PATH=build/bin:$PATH PYTHONPATH=build/python python bench/ring.py [--only steps|layer]
        [--tokens 8192] [--heads 4] [--dtypes f32,bf16] [--rounds 7] [--core 0] [--json FILE]
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
ELEMENTS = {torch.float32: "f32", torch.bfloat16: "bf16", torch.int64: "i64"}
FEATURES = 128
RANKS = 2


def orders(tokens):
    """Positions of the tokens of two ranks."""
    quarters = torch.arange(tokens).view(4, -1)
    shuffled = torch.randperm(tokens, generator=torch.Generator().manual_seed(0))
    return {"contiguous": (quarters[:2].flatten(), quarters[2:].flatten()),
            "zigzag": (quarters[[0, 3]].flatten(), quarters[[1, 2]].flatten()),
            "striped": tuple(torch.arange(tokens).view(-1, 2).T.contiguous()),
            "any": tuple(shuffled.view(2, -1))}


def steps(tokens):
    """Positions of queries and keys, none where every key is seen."""
    cases = {"no mask": None}
    for name, (first, second) in orders(tokens).items():
        cases[f"{name}, rank 0 on 0"] = (first, first)
        cases[f"{name}, rank 0 on 1"] = (first, second)
        cases[f"{name}, rank 1 on 0"] = (second, first)
    return cases


def count_visible(queries, keys):
    return torch.searchsorted(keys.sort()[0], queries, right=True).sum().item()


class Kernel:
    """A program of one kernel, that is run again and again."""

    def __init__(self, folder, name, op, inputs, results):
        def type_of(tensor):
            return f"tensor<{'x'.join(map(str, tensor.shape))}x{ELEMENTS[tensor.dtype]}>"
        names = [f"in{i}" for i in range(len(inputs))]
        arguments = ", ".join(f'%{n}: {type_of(x)} {{nn.input = "{n}"}}'
                              for n, x in zip(names, inputs))
        types = ", ".join(map(type_of, inputs))
        outputs = ", ".join(f'{type_of(x)} {{nn.output = "out{i}"}}' for i, x in enumerate(results))
        made = ", ".join(map(type_of, results))
        self.model, self.inputs = folder / f"{name}.mlir", folder / f"{name}.safetensors"
        self.trace = folder / f"{name}.json"
        self.model.write_text(
            f"func.func @main({arguments}) -> ({outputs}) {{\n"
            f"  %0:2 = {op.format(*('%' + n for n in names))} : ({types}) -> ({made})\n"
            f"  return %0#0, %0#1 : {made}\n}}\n")
        save_file(dict(zip(names, (x.clone() for x in inputs))), self.inputs)

    def run(self):
        """Seconds of the kernel."""
        subprocess.run(["sharding-run", self.model, f"--inputs={self.inputs}",
                        f"--outputs={self.inputs}.out", f"--trace={self.trace}",
                        "--threads-per-rank=1"], check=True)
        events = json.loads(self.trace.read_text())["traceEvents"]
        return sum(e["dur"] for e in events if e.get("cat") in ("attention", "rows")) * 1e-6


def measure_steps(dtype, options, folder):
    local = options.tokens // RANKS
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, options.heads, local, FEATURES, generator=generator).to(DTYPES[dtype])
               for _ in range(3))
    lse = torch.randn(1, options.heads, local, generator=generator)
    call, scale = "nn.attention {}, {}, {} ", f"scale {FEATURES**-0.5!r}"
    kernels, visible = {}, {}
    for name, places in steps(options.tokens).items():
        mask = f"positions {{}}, {{}} {scale} {{{{causal}}}}" if places else scale
        kernels[name] = Kernel(folder, f"{dtype} {name}", call + mask, [q, k, v, *(places or ())],
                               [q, lse])
        visible[name] = count_visible(*places) / local**2 if places else 1
    kernels["merge"] = Kernel(folder, f"{dtype} merge", "nn.merge_attention {}, {}, {}, {}",
                              [q, lse, k, lse], [q, lse])
    seconds = {name: [] for name in kernels}
    for turn in range(options.rounds + 1):
        for name, kernel in kernels.items():
            taken = kernel.run()
            if turn:
                seconds[name].append(taken)
    rows = []
    for name, times in seconds.items():
        of_full = statistics.median(a / b for a, b in zip(times, seconds["no mask"]))
        row = {"step": name, "dtype": dtype, "seconds": statistics.median(times),
               "of_full": of_full, "visible": visible.get(name)}
        rows.append(row)
        share = f"{row['visible']:>9.1%}" if name in visible else f"{'':>9}"
        print(f"{name:<26} {dtype:<5} {row['seconds'] * 1e3:>9.2f} {of_full:>9.1%} {share}",
              flush=True)
    return rows


class Layer(torch.nn.Module):
    def __init__(self, heads, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        hidden = heads * FEATURES
        self.q, self.k, self.v, self.o = (
            torch.nn.Linear(hidden, hidden, bias=False) for _ in range(4))

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for p in (self.q, self.k, self.v))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.o(y.transpose(1, 2).flatten(2))


def merge_share(trace):
    """The part of a rank's time in kernels that goes into merges."""
    kernels = [e for e in json.loads(trace.read_text())["traceEvents"]
               if e.get("cat") in ("attention", "rows", "gemm", "move")]
    merges = sum(e["dur"] for e in kernels if "merge_attention" in e["name"])
    return merges / sum(e["dur"] for e in kernels)


def measure_layer(dtype, causal, options, folder):
    import meshwright as mw

    torch.manual_seed(0)
    module = Layer(options.heads, causal).eval().to(DTYPES[dtype])
    x = torch.randn(1, options.tokens, options.heads * FEATURES).to(DTYPES[dtype])
    model = mw.from_torch(module, (x,))
    one = model.parallelize(mesh={"ring": 1}, device="cpu")
    order = "zigzag" if causal else "contiguous"
    ring = model.parallelize(mesh={"ring": RANKS}, device="cpu",
                             context_parallel={"ring": "ring", "order": order})
    cores = sorted(os.sched_getaffinity(0))
    seconds, work = {"one": [], "ring": []}, {"one": [], "ring": []}
    results = {}
    for turn in range(options.rounds + 1):
        for name, plan, use in (("one", one, {options.core}), ("ring", ring, set(cores))):
            os.sched_setaffinity(0, use)
            begin, begin_work = time.perf_counter(), time.process_time()
            results[name] = plan.run(x, threads_per_rank=1)[0]
            if turn:
                seconds[name].append(time.perf_counter() - begin)
                work[name].append(time.process_time() - begin_work)
    trace = folder / "ring.json"
    ring.run(x, threads_per_rank=1, trace=trace)
    difference = (results["ring"].double() - results["one"].double()).abs().max()
    row = {"layer": "causal, zigzag" if causal else "no mask", "dtype": dtype,
           "one_seconds": statistics.median(seconds["one"]),
           "ring_seconds": statistics.median(seconds["ring"]),
           "times_as_fast": statistics.median(a / b for a, b in zip(*seconds.values())),
           "work": statistics.median(b / a for a, b in zip(*work.values())),
           "merge_share": merge_share(trace),
           "difference": (difference / results["one"].double().abs().max()).item()}
    print(f"{row['layer']:<26} {dtype:<5} {row['one_seconds'] * 1e3:>9.0f} "
          f"{row['ring_seconds'] * 1e3:>9.0f} {row['times_as_fast']:>9.2f} {row['work']:>9.2f} "
          f"{row['merge_share']:>9.2%} {row['difference']:>10.1e}", flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=["steps", "layer"])
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, every = [], os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory() as folder:
        if options.only != "layer":
            print(f"{'step':<26} {'':<5} {'ms':>9} {'of full':>9} {'pairs':>9}")
            os.sched_setaffinity(0, {options.core})
            for dtype in options.dtypes.split(","):
                rows += measure_steps(dtype, options, Path(folder))
            os.sched_setaffinity(0, every)
        if options.only != "steps":
            print(f"{'layer':<26} {'':<5} {'one ms':>9} {'ring ms':>9} {'faster':>9} {'work':>9} "
                  f"{'merging':>9} {'difference':>10}")
            for dtype in options.dtypes.split(","):
                for causal in (False, True):
                    rows.append(measure_layer(dtype, causal, options, Path(folder)))
                    os.sched_setaffinity(0, every)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"bench": "ring", "options": vars(options), "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
