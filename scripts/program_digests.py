#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Prints digests of compiled programs, to show that a refactoring changes none of them.

Each line names a model, a plan and a target, with digests of the SPMD IR, the planned rt program,
the machine code of all kernels and the entry, the report, and the bits of the outputs. Two builds
that print the same lines compile the same programs:

    PYTHONPATH=before/python python scripts/program_digests.py > before.txt
    PYTHONPATH=after/python python scripts/program_digests.py > after.txt
    diff before.txt after.txt
"""

import argparse
import hashlib
import json
import os
import pathlib
import sys
import tempfile

import meshwright as mw
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))
from arena import MESHES, MODELS  # noqa: E402

#: Each is a precision, a target ("" is this machine's), further options, and the meshes.
VARIANTS = [
    ("f32", "", {}, list(MESHES)),
    ("f32", "", {"overlap": "on"}, ["tp=2 sp", "cp=2,tp=2 ring"]),
    ("bf16", "", {}, ["tp=2", "tp=3 sp"]),
    ("f32", "x86-64-v3", {}, ["dp=2,tp=2 sp"]),
    ("bf16", "x86-64-v3", {}, ["tp=2 sp"]),
]
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def digest(data):
    return hashlib.sha256(data if isinstance(data, bytes) else data.encode()).hexdigest()[:12]


def bits(outputs):
    return b"".join(o.contiguous().view(torch.uint8).numpy().tobytes() for o in outputs)


def compile_for(plan, folder, target):
    """The machine code of a plan. Older trees call the option target_cpu."""
    try:
        plan.compile(folder, target=f"cpu:{target}" if target else None)
    except TypeError:
        plan.compile(folder, target_cpu=target or None)
    return b"".join(p.read_bytes() for p in sorted(pathlib.Path(folder).glob("program-*.so")))


def lines(only):
    for model, build in MODELS["small"].items():
        torch.manual_seed(0)
        net, example = build()
        net = net.eval()
        for dtype, target, options, meshes in VARIANTS:
            wanted = [m for m in meshes if all(o in f"{model} {m} {dtype} {target}" for o in only)]
            if not wanted:
                continue
            typed = net.to(DTYPES[dtype])
            args = (example.to(DTYPES[dtype]) if example.is_floating_point() else example,)
            imported = mw.from_torch(typed, args)
            for mesh in wanted:
                name = f"{model} {mesh} {dtype} {target or 'host'} {options or ''}".strip()
                try:
                    plan = imported.parallelize(**MESHES[mesh], **options)
                    parts = {"spmd": digest(plan.ir()), "rt": digest(plan.ir(phase="rt"))}
                    with tempfile.TemporaryDirectory() as folder:
                        parts["code"] = digest(compile_for(plan, folder + "/b", target))
                    parts["report"] = digest(json.dumps(plan.report("json"), sort_keys=True))
                    parts["outputs"] = digest(bits(plan.run(*args)))
                    yield name + ": " + " ".join(f"{k}={v}" for k, v in parts.items())
                except mw.Error as error:
                    yield f"{name}: refused: {digest(str(error))}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("only", nargs="*", help="parts of names: all must be in a line's name")
    only = parser.parse_args().only
    with tempfile.TemporaryDirectory() as cache:
        # Each build compiles anew, and the two do not read each other's kernels.
        os.environ["MESHWRIGHT_CACHE"] = cache
        for line in lines(only):
            print(line, flush=True)


if __name__ == "__main__":
    main()
