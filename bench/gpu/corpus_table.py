# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs the kernels of one table of the corpus and prints a line of JSON for each family.

A process of its own: after a kernel that faults, a real device takes no more work from its process.
"""

import importlib
import json
import sys

from corpus import harness
from device import Gpu


def main():
    table, most = sys.argv[1], int(sys.argv[2]) or None
    gpu, families = Gpu(), importlib.import_module(f"corpus.{table}").FAMILIES
    for family in list(families)[:most]:
        cases = list(families[family]())
        try:
            wrong = harness.run(gpu, cases)
        except Exception as problem:  # of the driver
            wrong = [str(problem)]
        print(json.dumps({"case": f"{table} {family}", "kernels": len(cases), "wrong": len(wrong),
                          "first": wrong[0][-300:] if wrong else ""}), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
