#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How long does it take to plan a model, and to compile the plan?

Sends transformers of many layers and their training steps through `sharding-opt --parallelize`, and
smaller ones through `sharding-compile` without a cache of kernels. A time is the processor time of
the tool without its start: the least of several runs. With `--instructions` valgrind counts
instructions instead, which no other process disturbs.

    PYTHONPATH=build/python PATH=build/bin:$PATH python bench/planning.py [--repeats 3] [--instructions] [--json FILE]

With `--grow` it asks how the time grows: training steps of the shape of Llama-3-8B with 32, 128 and 256
layers are planned on gtp=8, or another mesh, and reported, without a memory ceiling, with one half-way between the
least that a plan needs and all that it takes, and with twice of all. The ratios are of processor times of one process,
measured in turn.

    PYTHONPATH=build/python python bench/planning.py --grow [--mesh dp=2,gtp=8,tp=2] [--repeats 3]

With `--experts` it plans DeepSeek-V3 (671 billion parameters) and Llama-3-70B, on the meta device, on 8 times 8
ranks, and prints the ratio of the processor times, reports included, and the memory of a rank.

    PYTHONPATH=build/python python bench/planning.py --experts [--repeats 3]

With `--ranks` it asks how long the planner searches: for a training step of the shape of Llama-3.1-405B on 1,024
ranks, and for the forward pass of a Llama-3-8B on 32. The chosen plan is then made alone, with its schedule, and
the seconds are those of a clock, of the whole tool.

    PYTHONPATH=build/python PATH=build/bin:$PATH python bench/planning.py --ranks [--repeats 3]
"""

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import meshwright as mw
import torch
import transformers as tf

IDS = torch.arange(96).reshape(4, 24) % 101
PLANS = [
    ("llama", "mesh=tp=3"),
    ("llama", "mesh=dp=2,tp=4 sequence-parallel=on"),
    ("llama", "mesh=ring=2,ulysses=2 context-parallel={ring=ring ulysses=ulysses}"),
    ("gpt2", "mesh=dp=2,tp=2 sequence-parallel=on"),
    ("step", "mesh=dp=2,tp=2"),
    ("step", "mesh=dp=2,tp=4 sequence-parallel=on recompute=full"),
]
COMPILED = [("llama", "mesh=tp=2"), ("step", "mesh=dp=2")]


def llama(layers):
    config = tf.LlamaConfig(hidden_size=64, num_hidden_layers=layers, intermediate_size=96, vocab_size=101,
                            num_attention_heads=8, num_key_value_heads=4, use_cache=False)
    return tf.LlamaForCausalLM(config)


def gpt2(layers):
    return tf.GPT2LMHeadModel(tf.GPT2Config(n_embd=48, n_layer=layers, n_head=6, vocab_size=101, n_positions=64,
                                            use_cache=False))


def write_models(folder, layers):
    """The models as text; a step trains a Llama of half the layers."""
    torch.manual_seed(0)
    step = mw.from_torch(llama((layers + 1) // 2), (), dict(input_ids=IDS, labels=IDS), training=True)
    models = {"llama": mw.from_torch(llama(layers).eval(), (IDS,)), "gpt2": mw.from_torch(gpt2(layers).eval(), (IDS,)),
              "step": step.train(mw.AdamW(lr=1e-3))}
    for name, model in models.items():
        (folder / f"{name}.mlir").write_text(str(model.ir()))
    (folder / "empty.mlir").write_text('func.func @main(%x: tensor<4xf32> {nn.input = "x"}) -> (tensor<4xf32> '
                                       '{nn.output = "y"}) {\n  %0 = nn.neg %x : tensor<4xf32>\n'
                                       '  return %0 : tensor<4xf32>\n}\n')


def measure(command, options):
    """Seconds, or instructions, of a command."""
    if options.instructions:
        command = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", *command]
    costs = []
    for _ in range(1 if options.instructions else options.repeats):
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True,
                              env={**os.environ, "MESHWRIGHT_CACHE": "off"})
        if done.returncode:
            sys.exit(f"error: {command[0]} ended with {done.returncode}:\n{done.stderr}")
        costs.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)
        if options.instructions:
            costs = [int(re.search(r"I +refs: +([\d,]+)", done.stderr)[1].replace(",", ""))]
    return min(costs)


class Step:
    """A training step of the shape of Llama-3-8B, to plan and report."""

    def __init__(self, layers, mesh):
        self.how = dict(mesh=mesh, recompute="full")
        config = tf.LlamaConfig(hidden_size=4096, intermediate_size=14336, num_hidden_layers=layers,
                                num_attention_heads=32, num_key_value_heads=8, vocab_size=32000, use_cache=False,
                                tie_word_embeddings=False)
        with torch.device("meta"):
            net, ids = tf.LlamaForCausalLM(config).train(), torch.zeros(32, 2048, dtype=torch.long)
        model = mw.from_torch(net, (), dict(input_ids=ids, labels=ids.clone()), training=True)
        self.step = model.train(mw.AdamW(lr=1e-3))

    def measure(self, **ceiling):
        """Processor seconds of plan and report."""
        begin = time.process_time()
        self.report = self.step.parallelize(**self.how, **ceiling).report(format="json")
        return time.process_time() - begin

    def get_ceilings(self):
        """Bytes half-way between the least that a plan needs and all that it takes, and twice of all."""
        self.measure()
        try:
            self.step.parallelize(**self.how, memory_ceiling="1M")
        except mw.Error as error:
            least = int(re.search(r"needs (\d+) bytes", str(error))[1])
        peak = self.report["gtp"]["peak"]["bytes"]
        return (least + peak) // 2, 2 * peak


def compare(repeats, first, second):
    """The median of the ratios of two times, measured in turn."""
    ratios = []
    for _ in range(repeats):
        base = first()
        ratios.append(second() / base)
    return statistics.median(ratios)


def grow(options):
    mesh = {axis: int(size) for axis, size in (each.split("=") for each in options.mesh.split(","))}
    base = Step(32, mesh)
    base.measure()
    for layers in (32, 128, 256):
        step = base if layers == 32 else Step(layers, mesh)
        growth = compare(options.repeats, base.measure, step.measure)
        half, twice = (compare(options.repeats, step.measure, lambda: step.measure(memory_ceiling=ceiling))
                       for ceiling in step.get_ceilings())
        print(f"{layers:>4} layers: {growth:>5.1f} times that of 32; with a ceiling {half:.1f} times that without, "
              f"with twice the memory {twice:.1f}", flush=True)


def plan_released(module, repeats, **options):
    """The least processor time of a plan and its report, and the report."""
    ids = torch.zeros(8, 512, dtype=torch.long, device="meta")
    model = mw.from_torch(module.bfloat16().eval(), (ids,))
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        plan = model.parallelize(mesh={"dp": 8, "tp": 8}, sequence_parallel="on", **options)
        report = plan.report(format="json")
        times.append(time.process_time() - begin)
    return min(times), report


def experts(options):
    llama = tf.LlamaConfig(hidden_size=8192, num_hidden_layers=80, intermediate_size=28672, num_attention_heads=64,
                           num_key_value_heads=8, vocab_size=128256, use_cache=False)
    deepseek = tf.DeepseekV3Config(use_cache=False)
    with torch.device("meta"):
        dense, sparse = tf.LlamaForCausalLM(llama), tf.DeepseekV3ForCausalLM(deepseek)
    first, _ = plan_released(dense, options.repeats)
    second, report = plan_released(sparse, options.repeats, expert_parallel=["dp", "tp"])
    memory = report["memory_per_rank"]
    print(f"DeepSeek-V3: {second / first:.1f} times Llama-3-70B; on a rank {memory['weights'] / 2**30:.1f} GiB of weights "
          f"and {memory['activations_peak'] / 2**20:.0f} MiB of activations")


def clock(file, plan, repeats):
    """The least seconds of a plan with its schedule."""
    times = []
    for _ in range(repeats):
        begin = time.monotonic()
        done = subprocess.run(["sharding-opt", file, f"--parallelize={plan} device=h100", "--schedule", "-o",
                               os.devnull], capture_output=True, text=True)
        times.append(time.monotonic() - begin)
        if done.returncode:
            sys.exit(f"error: sharding-opt ended with {done.returncode}:\n{done.stderr}")
    return min(times)


def search(options):
    large = tf.LlamaConfig(hidden_size=16384, num_hidden_layers=126, intermediate_size=53248, num_attention_heads=128,
                           num_key_value_heads=8, vocab_size=128256, use_cache=False, tie_word_embeddings=False)
    small = tf.LlamaConfig(hidden_size=4096, num_hidden_layers=32, intermediate_size=14336, num_attention_heads=32,
                           num_key_value_heads=8, vocab_size=128256, use_cache=False, tie_word_embeddings=False)
    cases = [("forward pass", small, batch, 2048, 32) for batch in (1, 8, 64)]
    cases.append(("training step", large, 512, 4096, 1024))
    for name, config, batch, tokens, ranks in cases:
        with torch.device("meta"):
            net, ids = tf.LlamaForCausalLM(config).bfloat16(), torch.zeros(batch, tokens, dtype=torch.long)
        if name == "forward pass":
            model = mw.from_torch(net.eval(), (ids,))
        else:
            step = mw.from_torch(net.train(), (), dict(input_ids=ids, labels=ids.clone()), training=True)
            model = step.train(mw.AdamW(lr=1e-3))
        decisions = model.parallelize(ranks=ranks, device="h100").report(format="json")["decisions"]
        chosen = next(filter(None, (re.match(r"(mesh=.*) has the best time of (\d+) plans", each["message"])
                                    for each in decisions)))
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.mlir"
            file.write_text(str(model.ir()))
            found, alone = (clock(file, plan, options.repeats) for plan in (f"ranks={ranks}", chosen[1]))
        print(f"{name}, {config.num_hidden_layers} layers, batch {batch}, {ranks} ranks: {found:.1f} s for {chosen[2]} plans, "
              f"{found / alone:.1f} times the chosen one alone ({chosen[1]})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--instructions", action="store_true", help="count instructions by valgrind")
    parser.add_argument("--no-compile", action="store_true", help="plan only")
    parser.add_argument("--grow", action="store_true", help="how the time grows with layers, and with a ceiling")
    parser.add_argument("--mesh", default="gtp=8", help="the mesh of --grow")
    parser.add_argument("--experts", action="store_true", help="DeepSeek-V3 beside Llama-3-70B")
    parser.add_argument("--ranks", action="store_true", help="the search for a mesh, beside one plan")
    parser.add_argument("--json")
    options = parser.parse_args()
    if options.ranks:
        search(options)
        return
    if options.grow:
        grow(options)
        return
    if options.experts:
        experts(options)
        return
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def plan(model, way):
            return measure(["sharding-opt", folder / f"{model}.mlir", f"--parallelize={way}",
                            "--mlir-disable-threading", "-o", "/dev/null"], options)

        def build(model, way):
            return measure(["sharding-compile", folder / f"{model}.mlir", f"--parallelize={way}", "--quiet",
                            "--random-weights=1", "-o", folder / "bundle"], options)

        def run(kind, one, cases):
            start = one("empty", "mesh=tp=2")
            for model, way in cases:
                cost = one(model, way) - start
                rows.append({"kind": kind, "model": model, "plan": way, "cost": cost})
                shown = f"{cost / 1e6:>9.1f} million" if options.instructions else f"{cost * 1e3:>9.0f} ms"
                print(f"{kind:<8} {model:<6} {way:<70} {shown}", flush=True)

        write_models(folder, options.layers)
        run("plan", plan, PLANS)
        if not options.no_compile:
            write_models(folder, 2)
            run("compile", build, COMPILED)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"layers": options.layers, "instructions": options.instructions, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
