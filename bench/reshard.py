#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How much does it cost to move a value between layouts, beside gathering all of it?

Moves a value of 16 x 16 x 16 f32 from one layout to another by `sharding-opt --partition`. The table
shows the collectives, the bytes that a rank sends (on links without latency), and the bytes of
gathering all dimensions that differ and slicing the result. With --all it plans every pair of
layouts on a 2 x 2 x 2 mesh and shows the distribution.

    PATH=build/bin:$PATH python bench/reshard.py [--all] [--json FILE]
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from math import prod

EXTENT, BYTES = 16, 4
CASES = [  # mesh, from, to
    ({"x": 4, "y": 2}, (("y",), (), ("x",)), ((), ("x", "y"), ())),
    ({"x": 4, "y": 2}, (("x",), (), ()), ((), ("x",), ())),
    ({"x": 4, "y": 2}, (("x", "y"), (), ()), (("y", "x"), (), ())),
    ({"x": 4, "y": 2}, (("x",), ("y",), ()), (("y",), ("x",), ())),
    ({"x": 4, "y": 4}, (("x",), (), ()), (("y",), (), ())),
    ({"x": 4, "y": 2}, (("x",), ("y",), ()), ((), ("y",), ())),
]
SENDS = ("all_gather", "all_reduce", "all_to_all", "permute", "redistribute", "reduce_scatter")


def spell(layout):
    return "[" + ", ".join("{" + ", ".join(f'"{a}"' for a in axes) + "}" for axes in layout) + "]"


def whole_gather(mesh, source, target):
    """Bytes of gathering all that is sharded, unless the layouts are equal."""
    shards = prod(mesh[a] for axes in source for a in axes)
    size = EXTENT**3 * BYTES
    return 0 if source == target else size * (shards - 1) // shards


def plan(mesh, pairs):
    """Ops of each move and the bytes that a rank sends, and the seconds of all together."""
    kind = f"tensor<{EXTENT}x{EXTENT}x{EXTENT}xf32>"
    axes = ", ".join(f'"{name}"={size}' for name, size in mesh.items())
    text = [f"dist.mesh @mesh = <[{axes}]>"]
    for i, (source, target) in enumerate(pairs):
        lies = [f"dist.sharding = #dist.sharding<@mesh, {spell(s)}>" for s in (source, target)]
        text.append(
            f'func.func @f{i}(%x: {kind} {{nn.input = "x", {lies[0]}}}) -> '
            f'({kind} {{nn.output = "y", {lies[1]}}}) {{\n  return %x : {kind}\n}}'
        )
    with tempfile.NamedTemporaryFile("w", suffix=".mlir") as file:
        file.write("\n".join(text))
        file.flush()
        begin = time.perf_counter()
        done = subprocess.run(
            ["sharding-opt", file.name, "--propagate-shardings", "--partition"],
            capture_output=True, text=True,
        )
        seconds = time.perf_counter() - begin
    if done.returncode:
        sys.exit(done.stderr)
    plans = []
    for body in done.stdout.split("func.func")[1:]:
        ops, sent = [], 0
        for line in body.splitlines():
            match = re.search(r"dist\.(\w+) +(?:sum )?%\S+ (.*) : \(tensor<(\S+)xf32>\) -> tensor<(\S+)xf32>", line)
            if not match:
                continue
            name, rest, before, after = match.groups()
            ops.append(name)
            if name not in SENDS:
                continue
            sides = [BYTES * prod(map(int, side.split("x"))) for side in (before, after)]
            if name == "redistribute":
                sent += redistributed(mesh, *pairs_of(rest), sides[1])
                continue
            k = prod(mesh[a] for a in re.findall(r'"(\w+)"', rest.split("]")[0]))
            share = {"permute": 1, "all_reduce": 2 * (k - 1) / k}.get(name, (k - 1) / k)
            sent += round(share * max(sides))
        plans.append((ops, sent))
    return plans, seconds


def pairs_of(text):
    """The two layouts that a redistribute names."""
    sides = []
    for part in re.findall(r"#?(?:dist\.sharding)?<@mesh, \[(.*?)\]>", text):
        sides.append([re.findall(r'"(\w+)"', axes) for axes in re.findall(r"\{(.*?)\}", part)])
    return sides


def redistributed(mesh, source, target, needed):
    """The most that a rank is sent, rank by rank."""
    names = list(mesh)
    worst = 0
    for rank in range(prod(mesh.values())):
        place, rest = {}, rank
        for name in reversed(names):
            place[name], rest = rest % mesh[name], rest // mesh[name]
        held = BYTES
        for a, b in zip(source, target):
            bounds = []
            for axes in (a, b):
                index, count = 0, 1
                for axis in axes:
                    index, count = index * mesh[axis] + place[axis], count * mesh[axis]
                bounds.append((index * EXTENT // count, (index + 1) * EXTENT // count))
            held *= max(0, min(bounds[0][1], bounds[1][1]) - max(bounds[0][0], bounds[1][0]))
        worst = max(worst, needed - held)
    return worst


def layouts(axes):
    result = [((), (), ())]
    for axis in axes:
        result += [
            tuple(dims[:place] + (axis,) + dims[place:] if i == d else dims for i, dims in enumerate(layout))
            for layout in result for d in range(3) for place, dims in
            [(p, layout[d]) for p in range(len(layout[d]) + 1)]
        ]
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    rows = []
    print(f"{'mesh':<10} {'from':<26} {'to':<26} {'bytes':>7} {'gather all':>10}  collectives")
    for mesh, source, target in CASES:
        (ops, sent), = plan(mesh, [(source, target)])[0]
        gather = whole_gather(mesh, source, target)
        shape = ",".join(f"{n}={s}" for n, s in mesh.items())
        print(f"{shape:<10} {spell(source):<26} {spell(target):<26} {sent:>7} {gather:>10}  {', '.join(ops)}")
        rows.append({"mesh": mesh, "from": source, "to": target, "bytes": sent, "gather_all": gather, "collectives": ops})
    result = {"cases": rows}
    if options.all:
        mesh = {"x": 2, "y": 2, "z": 2}
        every = layouts(list(mesh))
        pairs = [(a, b) for a in every for b in every if a != b]
        plans, seconds = plan(mesh, pairs)
        ratios = [
            whole_gather(mesh, a, b) / sent for (a, b), (_, sent) in zip(pairs, plans) if sent
        ]
        result["all"] = {
            "pairs": len(pairs), "seconds": seconds, "median_gain": statistics.median(ratios),
            "largest_gain": max(ratios), "gains": sum(r > 1 for r in ratios) / len(ratios),
        }
        print(
            f"\nall {len(pairs)} pairs on 2 x 2 x 2, {seconds:.1f} s: gathering all is worse for "
            f"{result['all']['gains']:.0%}, by {result['all']['median_gain']:.1f} times in the median, "
            f"{result['all']['largest_gain']:.0f} at most"
        )
    if options.json:
        with open(options.json, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
