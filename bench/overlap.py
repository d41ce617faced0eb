#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How much of tensor-parallel communication hides behind arithmetic on slow links?

A Llama on two ranks, one core each, whose links are slowed down so that communication takes a
quarter of the compute time: the time to compute is measured first, without overlap and at full
speed; the bandwidth of the links follows from it and the bytes that a rank sends. The cost model
gets the same numbers. Then the model runs as it is and with overlap=auto (collectives and products
in chunks, in an order that hides them), with and without sequence parallelism. Hidden is the time
of collectives in which the compute stream works.

    PATH=build/bin:$PATH PYTHONPATH=build/python python bench/overlap.py
        [--backend mpi] [--tokens 512] [--hidden 2048] [--layers 4] [--share 0.25] [--runs 5]
        [--json FILE]
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import meshwright as mw
import torch
from transformers import LlamaConfig, LlamaForCausalLM

RANKS = 2
LATENCY = 20e-6


def build(options):
    heads = options.hidden // 128
    config = LlamaConfig(
        hidden_size=options.hidden, intermediate_size=options.hidden * 11 // 4,
        num_hidden_layers=options.layers, num_attention_heads=heads,
        num_key_value_heads=max(RANKS, heads // 2), vocab_size=4096,
        max_position_embeddings=options.tokens, use_cache=False, tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    module = LlamaForCausalLM(config).eval()
    return mw.from_torch(module, (torch.zeros(1, options.tokens, dtype=torch.long),))


def run(bundle, options, link=None):
    """The run reports of several runs, the first one left out."""
    command = ["meshwright-mpirun", "-np", str(RANKS)] if options.backend == "mpi" else []
    command += ["sharding-run", bundle, "--random-inputs=1", f"--backend={options.backend}"]
    if link:
        command.append(f"--link=latency={LATENCY * 1e6:g}us,bandwidth={link / 1e6:.6g}MB/s")
    reports = []
    for _ in range(options.runs + 1):
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder) / "report.json"
            done = subprocess.run([*command, f"--report={report}"], capture_output=True, text=True,
                                  env={**os.environ, "MESHWRIGHT_THREADS": "1"})
            if done.returncode:
                sys.exit(done.stderr)
            reports.append(json.loads(report.read_text())["run"])
    return reports[1:]


def rate_of_products(report):
    products = next(k for k in report["kernels"] if k["class"] == "gemm")
    return products["flops"] / products["seconds"]


def median(reports, key):
    return statistics.median(key(report) for report in reports)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="local")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--share", type=float, default=0.25, help="communication / compute time")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json")
    options = parser.parse_args()

    model = build(options)
    rows = []
    print(f"{'plan':<24}{'ms':>9}{'compute':>9}{'collectives':>13}{'exposed':>9}{'hidden':>8}"
          f"{'links MB/s':>12}")
    with tempfile.TemporaryDirectory() as folder:
        for sequence_parallel in ("off", "on"):
            def compiled(name, **more):
                plan = model.parallelize(mesh={"tp": RANKS}, sequence_parallel=sequence_parallel,
                                         **more)
                path = os.path.join(folder, f"{name}-{sequence_parallel}")
                plan.compile(path)
                return path, plan

            path, plan = compiled("plain", device="cpu", overlap="off")
            plain = run(path, options)
            compute = median(plain, lambda r: r["seconds"] - r["communication"]["exposed_seconds"])
            sent = plan.report(format="json")["bytes_per_rank"]
            bandwidth = sent / (options.share * compute)
            flops = median(plain, rate_of_products)
            device = (f"cpu flops_f32={flops:.4g} link_bandwidth={bandwidth:.6g} "
                      f"link_latency={LATENCY:g} overlap=1")
            for overlap in ("off", "auto"):
                path, _ = compiled(f"overlap-{overlap}", device=device, overlap=overlap)
                reports = run(path, options, link=bandwidth)
                total = median(reports, lambda r: r["communication"]["seconds"])
                exposed = median(reports, lambda r: r["communication"]["exposed_seconds"])
                row = {
                    "sequence_parallel": sequence_parallel, "overlap": overlap,
                    "seconds": median(reports, lambda r: r["seconds"]),
                    "compute_seconds": compute, "collective_seconds": total,
                    "exposed_seconds": exposed, "hidden_share": max(0.0, 1 - exposed / total),
                    "bytes_sent": sent, "link_bytes_per_second": bandwidth,
                }
                rows.append(row)
                print(f"tp={RANKS} sp={sequence_parallel:<4}{overlap:<12}"
                      f"{row['seconds'] * 1e3:>9.1f}{compute * 1e3:>9.1f}{total * 1e3:>13.1f}"
                      f"{exposed * 1e3:>9.1f}{row['hidden_share']:>8.1%}{bandwidth / 1e6:>12.0f}",
                      flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"bench": "overlap", "options": vars(options), "rows": rows}, file, indent=2)


if __name__ == "__main__":
    main()
