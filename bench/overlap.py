#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How much of tensor-parallel communication hides behind arithmetic on slow links?

A Llama on two ranks, one core each, whose links are slowed down so that communication takes a
quarter of the compute time: the time to compute is measured first, at full speed and with
collectives that block; the bandwidth of the links follows from it and the bytes that a rank sends.
The cost model gets the same numbers. Then the model runs on slow links as it is and with
overlap=auto (collectives and products in chunks, in an order that hides them), with and without
sequence parallelism.

What shows is what the slow links add to the time of the same plan at full speed; hidden is the
rest of what they add to the plan that blocks. All is measured from outside, run by run in turn.

    PATH=build/bin:$PATH PYTHONPATH=build/python python bench/overlap.py
        [--backend local|mpi] [--tokens 512] [--hidden 1024] [--layers 4] [--share 0.25] [--runs 7]
        [--json FILE]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

RANKS = 2
LATENCY = 20e-6


def build(options):
    import meshwright as mw
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = options.hidden // 128
    config = LlamaConfig(
        hidden_size=options.hidden, intermediate_size=options.hidden * 11 // 4,
        num_hidden_layers=options.layers, num_attention_heads=heads,
        num_key_value_heads=max(RANKS, heads // 2), vocab_size=4096,
        max_position_embeddings=options.tokens, use_cache=False, tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    module = LlamaForCausalLM(config).eval()
    ids = torch.zeros(1, options.tokens, dtype=torch.long)
    return mw.from_torch(module, (ids,)), ids


def work(options):
    """Prints the seconds of one plan's runs and the bytes that a rank sends in one."""
    job = json.loads(options.job)
    model, ids = build(options)
    plan = model.parallelize(mesh={"tp": RANKS}, **job)
    plan.run(ids, backend=options.backend)
    seconds = []
    for _ in range(options.runs):
        begin = time.perf_counter()
        plan.run(ids, backend=options.backend)
        seconds.append(time.perf_counter() - begin)
    if os.environ.get("OMPI_COMM_WORLD_RANK", "0") == "0":
        sent = plan.report(format="json")["bytes_per_rank"]
        print(json.dumps({"seconds": seconds, "sent": sent}))


def measure(options, link=None, **job):
    """Median seconds of a plan's runs, and the bytes that a rank sends in one."""
    command = [sys.executable, __file__, f"--backend={options.backend}",
               f"--tokens={options.tokens}", f"--hidden={options.hidden}",
               f"--layers={options.layers}", f"--runs={options.runs}", f"--job={json.dumps(job)}"]
    if options.backend == "mpi":
        command = ["meshwright-mpirun", "-np", str(RANKS), *command]
    environment = {**os.environ, "MESHWRIGHT_THREADS": "1", "OMP_NUM_THREADS": "1"}
    if link:
        environment["MESHWRIGHT_LINK"] = (
            f"latency={LATENCY * 1e6:g}us,bandwidth={link / 1e9:.6g}GB/s")
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(done.stderr)
    result = json.loads(done.stdout.strip().splitlines()[-1])
    return statistics.median(result["seconds"]), result["sent"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="local")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--share", type=float, default=0.25, help="communication / compute time")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        work(options)
        return

    rows = []
    print(f"{'plan':<22}{'full speed':>12}{'slow links':>12}{'added':>9}{'hidden':>9}"
          f"{'link':>13}")
    for sequence_parallel in ("off", "on"):
        plain = {"sequence_parallel": sequence_parallel, "device": "cpu", "overlap": "off"}
        compute, sent = measure(options, **plain)
        bandwidth = sent / (options.share * compute)
        blocked, _ = measure(options, link=bandwidth, **plain)
        # What a rank does of its products in a second, for the cost model.
        layer = options.hidden**2 * (3 + 3 * 11 / 4)
        weights = options.layers * layer + 4096 * options.hidden
        flops = 2 * weights * options.tokens / RANKS / compute
        hides = {"sequence_parallel": sequence_parallel, "overlap": "auto",
                 "device": f"cpu flops_f32={flops:.4g} link_bandwidth={bandwidth:.6g} "
                           f"link_latency={LATENCY:g} overlap=1"}
        chunks, _ = measure(options, **hides)
        hidden, _ = measure(options, link=bandwidth, **hides)
        for name, fast, slow in (("off", compute, blocked), ("auto", chunks, hidden)):
            row = {"sequence_parallel": sequence_parallel, "overlap": name,
                   "full_speed_seconds": fast, "slow_links_seconds": slow,
                   "added_seconds": slow - fast,
                   "hidden_share": 1 - (slow - fast) / (blocked - compute),
                   "bytes_sent": sent, "link_bytes_per_second": bandwidth}
            rows.append(row)
            print(f"sp={sequence_parallel:<4}overlap={name:<7}{fast * 1e3:>10.1f}ms"
                  f"{slow * 1e3:>10.1f}ms{(slow - fast) * 1e3:>7.1f}ms{row['hidden_share']:>9.1%}"
                  f"{bandwidth / 1e6:>8.0f} MB/s", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"bench": "overlap", "options": vars(options), "rows": rows}, file, indent=2)


if __name__ == "__main__":
    main()
