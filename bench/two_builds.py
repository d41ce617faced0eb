#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Does another build of Meshwright run as fast as this one?

Runs the benches of two checkouts in turns: forward.py, training.py, gemm.py, attention.py, overlap.py
and planning.py, small and short. Each checkout has its own `build` folder (with the target
bench-gemm) and its own `bench`. The order of the two alternates from turn to turn. For each figure
the result is the median, over the turns, of the new time over the old time, with its quartiles; for
each bench, the same of the sums. A checkout beside itself shows the noise of the machine.

    python bench/two_builds.py OLD NEW [--turns 10] [--benches forward,gemm] [--json FILE]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

COMMANDS = {
    "forward": ["forward.py", "--no-compile", "--layers", "1", "--repeats", "3"],
    "training": ["training.py", "--no-compile", "--layers", "2", "--repeats", "3", "--only", "threads"],
    "gemm": ["gemm.py", "--rounds", "3"],
    "attention": ["attention.py", "--rounds", "3"],
    "overlap": ["overlap.py", "--runs", "5", "--layers", "2", "--tokens", "256"],
    "planning": ["planning.py", "--layers", "24", "--repeats", "2"],
}


def get_times(bench, result):
    """Times by name, from the JSON of a bench."""
    if bench == "forward":
        times = {f"{row['dtype']} {row['tokens']} tokens": row["ours"] for row in result["beside_pytorch"]}
        for row in result["on_ranks"]:
            times.update({f"{row['dtype']} {name}": row[name] for name in ("one rank", "tp=2", "tp=2 sp", "dp=2")})
        return times
    if bench == "training":
        return {f"{row['dtype']} step": row["ours"] for row in result["threads"]}
    if bench == "gemm":
        return {f"{row['shape']} {row['dtype']}": 1 / row["gflops"] for row in result["summary"]}
    if bench == "attention":
        return {f"{row['case']} {row['dtype']}": row["seconds"] for row in result}
    if bench == "planning":
        return {f"{row['kind']} {row['model']} {row['plan']}": row["cost"] for row in result["rows"]}
    times = {}
    for row in result["rows"]:
        for speed in ("full_speed", "slow_links"):
            times[f"{row['variant']} overlap={row['overlap']} {speed}"] = row[f"{speed}_seconds"]
    return times


def run(checkout, bench):
    build = checkout / "build"
    environment = {**os.environ, "PYTHONPATH": str(build / "python"), "HF_HUB_OFFLINE": "1",
                   "PATH": f"{build / 'bin'}:{os.environ['PATH']}"}
    script, *options = COMMANDS[bench]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "times.json"
        done = subprocess.run([sys.executable, checkout / "bench" / script, *options, f"--json={file}"],
                              cwd=checkout, env=environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"error: {checkout / 'bench' / script} ended with {done.returncode}:\n{done.stderr}")
        return get_times(bench, json.loads(file.read_text()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path, help="a checkout with a build")
    parser.add_argument("new", type=Path)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--benches", default=",".join(COMMANDS))
    parser.add_argument("--json")
    options = parser.parse_args()
    benches = options.benches.split(",")
    if unknown := set(benches) - set(COMMANDS):
        parser.error(f"unknown bench '{unknown.pop()}': expected some of {', '.join(COMMANDS)}")
    checkouts = [options.old.resolve(), options.new.resolve()]
    ratios = defaultdict(list)
    for turn in range(options.turns):
        for bench in benches:
            order = checkouts if turn % 2 == 0 else checkouts[::-1]
            times = [run(checkout, bench) for checkout in order]
            old, new = times if turn % 2 == 0 else times[::-1]
            shared = old.keys() & new.keys()
            for name in shared:
                ratios[bench, name].append(new[name] / old[name])
            ratios[bench, "sum"].append(sum(new[name] for name in shared) / sum(old[name] for name in shared))
        print(f"turn {turn + 1} of {options.turns}", file=sys.stderr, flush=True)
    rows = []
    for (bench, name), values in sorted(ratios.items()):
        low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
        rows.append({"bench": bench, "case": name, "median": middle, "quartiles": [low, high]})
        print(f"{bench:<10} {name:<36} {middle:>6.2f}  ({low:.2f} to {high:.2f})")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"turns": options.turns, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
