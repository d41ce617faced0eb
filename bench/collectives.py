#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How fast do collectives of the local backend move memory, beside memcpy?

For each kind and size, prints the microseconds of a collective on 2 and 4 ranks, the microseconds
of a memcpy on all ranks at once that reads and writes as many bytes, and their ratio (1: as fast as
memcpy). Both are measured in turns in one run. The figures are medians of the slowest rank. Small
sizes show the cost of meeting; with more ranks than cores this is the cost of the scheduler.

    ninja -C build bench-collectives && python bench/collectives.py [--ranks 2 4] [--json FILE]
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

TOOL = pathlib.Path(__file__).resolve().parents[1] / "build" / "bench" / "bench-collectives"


def measure(tool, ranks, size):
    done = subprocess.run([tool, str(ranks), str(size)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    rows = []
    for line in done.stdout.splitlines():
        kind, size, collective, copy = line.split(",")
        rows.append({"kind": kind, "ranks": ranks, "bytes": int(size), "microseconds": float(collective),
                     "memcpy_microseconds": float(copy), "of_memcpy": float(copy) / float(collective)})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--bytes", type=int, nargs="+", default=[8 << 10, 1 << 20, 64 << 20])
    parser.add_argument("--tool", default=TOOL)
    parser.add_argument("--json")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores\n{'collective':<16} {'ranks':>5} {'bytes':>10} {'us':>10} {'memcpy us':>10} {'ratio':>6}")
    result = []
    for ranks in options.ranks:
        for size in options.bytes:
            for row in measure(options.tool, ranks, size):
                print(f"{row['kind']:<16} {ranks:>5} {row['bytes']:>10} {row['microseconds']:>10.1f} "
                      f"{row['memcpy_microseconds']:>10.1f} {row['of_memcpy']:>6.2f}")
                result.append(row)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"cores": os.cpu_count(), "rows": result}, file, indent=1)


if __name__ == "__main__":
    main()
