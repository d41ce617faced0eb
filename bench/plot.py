#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Draws the figures of docs/benchmarks.md that the README shows, by matplotlib.

    python -m pip install matplotlib
    python bench/plot.py            writes docs/measured.svg
    python bench/plot.py --check    fails if the picture lacks a figure of the tables; needs no matplotlib
"""

import argparse
import pathlib
import re
import sys

DOCS = pathlib.Path(__file__).resolve().parents[1] / "docs"
PICTURE = DOCS / "measured.svg"
OURS, OTHER = "#2a6fbb", "#c9ced6"


def table(section, first):
    """The table of a section whose header begins with the cells given, as {row: {column: cell}}."""
    text = (DOCS / "benchmarks.md").read_text()
    begin = text.index(f"## {section}")
    lines = text[begin : text.find("\n## ", begin + 1)].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line[:1] == "|"]
    at = next(i for i, row in enumerate(rows) if row[: len(first)] == first)
    count = 1
    while at + count < len(rows) and len(rows[at + count]) == len(rows[at]):
        count += 1
    return {row[0]: dict(zip(rows[at], row)) for row in rows[at + 2 : at + count]}


def first(cell):
    """The first number of a cell, as it is written."""
    return re.match(r"[\d.]+", cell)[0]


def panels():
    """(title, bars): each bar is a label, a number as text, and whether it is highlighted."""
    xla = table("How long does partitioning a Llama take", ["layers", "ours"])
    passes = []
    for layers, row in xla.items():
        if not layers.isdigit():  # a further run
            continue
        passes.append((f"{layers} layers, ours", first(row["ours"]), True))
        passes.append((f"{layers} layers, XLA", first(row["XLA"]), False))
    forward = table("How long does a whole forward pass take", ["", "512 tokens, f32"])
    ratios = [
        (column, first(cell), True) for column, cell in forward["times as fast"].items() if column
    ]
    ranks = table("How long does a whole forward pass take", ["512 tokens", "one rank"])
    scaling = []
    for dtype, row in ranks.items():
        scaling.append((f"tp = 2, {dtype}", first(row["tp = 2 over one rank"]), True))
        scaling.append((f"dp = 2, {dtype}", first(row["dp = 2 over one rank"]), False))
    return [
        ("annotation to SPMD IR, ms\n(Llama, 8 ranks)", passes),
        ("forward pass of one rank:\ntimes as fast as PyTorch", ratios),
        ("two ranks: times as fast as one\n(dp = 2: nothing to communicate)", scaling),
    ]


def draw():
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "meshwright", "font.size": 9})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(10, 2.2), layout="constrained")
    for axis, (title, bars) in zip(axes, panels()):
        labels, texts, ours = zip(*bars)
        values = [float(text) for text in texts]
        places = range(len(bars), 0, -1)
        drawn = axis.barh(places, values, color=[OURS if own else OTHER for own in ours], height=0.7)
        axis.bar_label(drawn, labels=texts, padding=3)
        axis.set_yticks(places, labels)
        axis.set_title(title, fontsize=9)
        axis.set_xlim(0, 1.2 * max(values))
        axis.set_xticks([])
        axis.spines[["top", "right", "bottom"]].set_visible(False)
    figure.savefig(PICTURE, metadata={"Date": None})


def check():
    texts = re.findall(r">([^<>\n]+)</text>", PICTURE.read_text()) if PICTURE.exists() else []
    missing = [
        f"{label}: {text}" for _, bars in panels() for label, text, _ in bars if text not in texts
    ]
    for bar in missing:
        print(f"error: docs/measured.svg lacks {bar}: run bench/plot.py", file=sys.stderr)
    print(f"{len(missing)} figures missing in the picture")
    return 1 if missing else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        return check()
    draw()
    return 0


if __name__ == "__main__":
    sys.exit(main())
