# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The corpus of small PTX kernels on the stand-in: an instruction and modifier each (corpus/)."""

import importlib
import shutil
import subprocess

import fakegpu_cuda as cuda
import pytest

pytest.importorskip("ml_dtypes")
from corpus import harness  # noqa: E402

pytestmark = cuda.needs("libcuda.so.1")
TABLES = ["integers", "floats", "conversions", "warps", "memory", "matrices"]
FAMILIES = [(t, f) for t in TABLES for f in importlib.import_module(f"corpus.{t}").FAMILIES]


@pytest.fixture(scope="module")
def driver():
    return cuda.Driver()


def cases(table, family):
    return list(importlib.import_module(f"corpus.{table}").FAMILIES[family]())


@pytest.mark.parametrize("table, family", FAMILIES, ids=[f"{t}-{f}" for t, f in FAMILIES])
def test_results(driver, table, family):
    wrong = harness.run(driver, cases(table, family))
    assert not wrong, "\n".join(wrong)


@pytest.mark.skipif(not shutil.which("ptxas"), reason="ptxas is not installed")
@pytest.mark.parametrize("table", TABLES)
def test_the_corpus_is_valid_ptx(table, tmp_path):
    """ptxas takes each kernel, so that no case tests a dialect of the interpreter's own."""
    families = importlib.import_module(f"corpus.{table}").FAMILIES
    text = harness.module([c for f in families.values() for c in f()])
    (tmp_path / "corpus.ptx").write_text(text)
    command = ["ptxas", "-arch=sm_90", "-O0", str(tmp_path / "corpus.ptx"), "-o", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:2000]
