#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How near are expected times to measured ones, after a calibration of this machine?

Calibrates, then plans and runs 20 programs that no calibration contains: a Llama, a GPT-2 and an MLP
with random weights over 16 to 2,048 tokens, in f32 and bf16, on one and two ranks, and training steps.

For each program the table has the expected time, the median and the least of the measured ones,
expected over median, and the share of the cores that other processes took meanwhile. Below are the classes of kernels, how many programs are between 0.8 and 1.25, and
Spearman's correlation of the orders, of all programs and of those during which other processes took
less than 5 % of the cores: expected times are those of ranks that each have a core.

    PYTHONPATH=build/python python bench/calibration.py [--repeats 7] [--device FILE] [--only PART]
        [--json FILE]
"""

import argparse
import collections
import json
import os
import statistics
import tempfile
import time

import meshwright as mw
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def llama(dtype):
    config = LlamaConfig(
        hidden_size=384, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, vocab_size=2000, max_position_embeddings=2048, use_cache=False,
    )
    return LlamaForCausalLM(config).to(dtype)


def gpt2(dtype):
    config = GPT2Config(n_embd=320, n_layer=3, n_head=5, vocab_size=1500, n_positions=2048, use_cache=False)
    return GPT2LMHeadModel(config).to(dtype)


class Mlp(torch.nn.Module):
    def __init__(self, size=768):
        super().__init__()
        self.up, self.down = torch.nn.Linear(size, 3 * size), torch.nn.Linear(3 * size, size)
        self.norm = torch.nn.LayerNorm(size)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def programs():
    """Names, and functions that return a plan and the arguments of its calls."""
    for ranks in (1, 2):
        for dtype, tokens in (("f32", 16), ("f32", 200), ("f32", 2048), ("bf16", 16), ("bf16", 500)):
            yield f"llama {dtype} {tokens}", ranks, (llama, dtype, tokens, {"tp": ranks})
        yield "gpt2 f32 128", ranks, (gpt2, "f32", 128, {"tp": ranks})
        yield "gpt2 bf16 1024", ranks, (gpt2, "bf16", 1024, {"tp": ranks})
        yield "mlp f32 96", ranks, (Mlp, "f32", 96, {"tp": ranks})
        yield "train llama f32 2x128", ranks, (llama, "f32", 128, {"dp": ranks})
        yield "train gpt2 f32 2x64", ranks, (gpt2, "f32", 64, {"dp": ranks})


def plan_of(name, build, dtype, tokens, mesh, device):
    torch.manual_seed(0)
    if build is Mlp:
        net, inputs = Mlp().eval(), (torch.randn(tokens, 768),)
        return mw.from_torch(net, inputs).parallelize(mesh=mesh, device=device), inputs, {}
    net = build(TYPES[dtype])
    ids = torch.randint(0, 1000, (2 if name.startswith("train") else 1, tokens))
    if name.startswith("train"):
        batch = dict(input_ids=ids, labels=ids)
        model = mw.from_torch(net.train(), (), batch, training=True).train(mw.AdamW(lr=1e-4))
        return model.parallelize(mesh=mesh, device=device), (), batch
    return mw.from_torch(net.eval(), (ids,)).parallelize(mesh=mesh, device=device), (ids,), {}


def busy():
    """Seconds of processors so far: of all processes, and of this one."""
    ticks = [int(word) for word in open("/proc/stat").readline().split()[1:]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK"), time.process_time()


def measure(plan, args, kwargs, repeats):
    """The expected seconds, the measured ones, both by class, and the share of the cores that others took."""
    times, classes = [], collections.defaultdict(list)
    begin, before = time.monotonic(), busy()
    for i in range(repeats + 2):  # the first ones warm up
        plan.run(*args, **kwargs, measure=True)
        if i < 2:
            continue
        run = plan.report(format="json")["run"]
        times.append(run["seconds"])
        for kernels in run["kernels"]:
            classes[kernels["class"]].append(kernels["seconds"])
        classes["collectives"].append(run["communication"]["seconds"])
    spent, after = time.monotonic() - begin, busy()
    others = ((after[0] - before[0]) - (after[1] - before[1])) / (spent * os.cpu_count())
    expected = plan.report(format="json")["communication"]
    seconds = dict(expected["kernel_seconds"], collectives=expected["exposed_seconds"] + expected["hidden_seconds"])
    by_class = {name: (seconds.get(name, 0), statistics.median(own)) for name, own in classes.items()}
    return expected["run_seconds"], times, by_class, min(1, max(0, others))


def spearman(first, second):
    """The correlation of ranks; times are all different."""
    def ranks(values):
        order = sorted(range(len(values)), key=values.__getitem__)
        return [order.index(i) for i in range(len(values))]

    a, b = ranks(first), ranks(second)
    n = len(a)
    return 1 - 6 * sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) / max(1, n * (n * n - 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", help="a device file; default: calibrate first")
    parser.add_argument("--only", default="", help="programs whose names contain this")
    parser.add_argument("--json")
    options = parser.parse_args()
    device = options.device
    if device is None:
        device = os.path.join(tempfile.mkdtemp(), "device.json")
        mw.calibrate(device)

    rows, classes = [], collections.defaultdict(lambda: [0.0, 0.0])
    print(f"{'program':22} {'ranks':>5} {'expected':>10} {'median':>10} {'least':>10} {'quotient':>8} {'others':>6}  by class")
    for name, ranks, how in programs():
        if options.only not in name:
            continue
        plan, args, kwargs = plan_of(name, *how, device)
        expected, times, by_class, others = measure(plan, args, kwargs, options.repeats)
        median = statistics.median(times)
        rows.append(dict(name=name, ranks=ranks, expected=expected, median=median, measured=times, classes=by_class,
                         others=others))
        parts = ", ".join(f"{key} {a / b:.2f} ({b / median:.0%})" for key, (a, b) in by_class.items() if b > 0)
        print(f"{name:22} {ranks:5} {expected * 1e3:7.3f} ms {median * 1e3:7.3f} ms {min(times) * 1e3:7.3f} ms "
              f"{expected / median:8.2f} {others:6.0%}  {parts}", flush=True)
        for key, (a, b) in by_class.items():
            classes[key][0] += a
            classes[key][1] += b
    print("\nexpected over measured, by class: "
          + ", ".join(f"{key} {a / b:.2f}" for key, (a, b) in classes.items() if b > 0))
    results = {}
    for label, chosen in (("all", rows), ("undisturbed", [row for row in rows if row["others"] < 0.05])):
        inside = sum(0.8 <= row["expected"] / row["median"] <= 1.25 for row in chosen)
        order = spearman([row["expected"] for row in chosen], [row["median"] for row in chosen])
        results[label] = dict(programs=len(chosen), inside=inside, spearman=order)
        print(f"{label}: {inside} of {len(chosen)} programs between 0.8 and 1.25; Spearman {order:.3f}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(dict(device=device, results=results, rows=rows), file, indent=1)


if __name__ == "__main__":
    main()
