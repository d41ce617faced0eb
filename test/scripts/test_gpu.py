# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""scripts/gpu.sh packs an archive, and runs its parts without the build tree, on the stand-ins (test/fakegpu)."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile

import pytest
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("MESHWRIGHT_BUILD_DIR", ROOT / "build"))
FAKEGPU = BUILD / "fakegpu"
PARTS = ["corpus", "tests", "gemm", "rows", "attention", "layers", "decode", "kernels"]

pytestmark = [pytest.mark.slow, pytest.mark.skipif(
    not (FAKEGPU / "libcublasLt.so.13").exists(),
    reason="the stand-ins are not built: cuda.h, nccl.h or cublasLt.h was not found")]


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """A small archive, and the output of --pack."""
    folder = tmp_path_factory.mktemp("gpu") / "archive"
    done = subprocess.run([ROOT / "scripts" / "gpu.sh", "--pack", folder, "--small"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout


def run(folder, *arguments, libraries=FAKEGPU):
    """As on another machine: nothing of the build tree is on a path."""
    kept = {key: value for key, value in os.environ.items() if key in ("HOME", "TMPDIR", "LANG") or key.startswith("FAKEGPU_")}
    env = {**kept, "PATH": "/usr/bin:/bin", "PYTHON": sys.executable, "LD_LIBRARY_PATH": str(libraries)}
    return subprocess.run([folder / "gpu.sh", *arguments], capture_output=True, text=True, cwd=folder.parent, env=env)


def test_the_archive_is_small_and_has_no_weights(packed):
    folder, said = packed
    assert {p.name for p in folder.iterdir()} == {"archive.tar.gz", "gpu.sh"}
    assert re.search(r"with the working tree \d+\.\d MiB of at most 60", said)
    with tarfile.open(folder / "archive.tar.gz") as tar:
        names = tar.getnames()
        libraries = {pathlib.Path(name).name for name in names if name.startswith("./lib/")}
        assert {"libMeshwrightRuntime.so", "libMeshwrightBackend_nccl.so", "libgomp.so.1"} <= libraries
        assert not any(re.match(r"libMeshwright\.so|libMLIR|libLLVM|libc\.|libstdc", name) for name in libraries)
        manifests = [json.load(tar.extractfile(name)) for name in names if name.endswith("manifest.json")]
    assert manifests and all("tensors" in manifest for manifest in manifests)


@pytest.mark.parametrize("part", PARTS)
def test_parts(packed, part):
    folder, _ = packed
    done = run(folder, "--run", part, "--out", folder.parent / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((folder.parent / "out" / f"{part}.json").read_text())
    text = (folder.parent / "out" / "results.txt").read_text()
    assert done.stdout in text and result["failures"] == 0 and result["rows"]
    assert result["device"]["name"].startswith("Stand-in") and result["size"] == "small"
    for row in result["rows"]:
        assert row["case"] in text
        assert row.get("passed", True) and row.get("wrong", 0) == 0, row
        # A stand-in reaches no bar, and misses none.
        assert row.get("reached") is None
        assert all(value > 0 for key, value in row.items() if key in ("tflops", "of_copy", "milliseconds"))
    if part == "attention":
        assert [row["bar"] for row in result["rows"]] == [300, 450]


def test_a_part_that_fails(packed, monkeypatch):
    """A failed launch is an error of the part, in its JSON too."""
    folder, _ = packed
    monkeypatch.setenv("FAKEGPU_FAIL", "cuLaunchKernel:1")
    done = run(folder, "--run", "attention", "--out", folder.parent / "failed")
    result = json.loads((folder.parent / "failed" / "attention.json").read_text())
    # The other case is measured: it is the first launch alone that fails in a process.
    assert done.returncode == 1 and result["failures"] == 1, done.stderr
    assert "cuLaunchKernel" in result["rows"][0]["error"] and result["rows"][1]["tflops"] > 0


def test_wrong_outputs(packed, tmp_path):
    """A model that gives other outputs than `local` fails the part. An archive may be unpacked already."""
    folder, _ = packed
    with tarfile.open(folder / "archive.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    name = "attention-128-bf16-causal"
    (wanted,) = (tmp_path / "tests" / name).glob("outputs.safetensors")
    outputs = load_file(wanted)
    outputs["y"][..., -1] += 1
    save_file(outputs, wanted)
    done = run(folder, "--run", "tests", "--archive", tmp_path, "--out", tmp_path / "out")
    result = json.loads((tmp_path / "out" / "tests.json").read_text())
    failed = {row["case"] for row in result["rows"] if not row["passed"]}
    assert done.returncode == 1 and failed == {f"{name} sm_80", f"{name} sm_90a"}, done.stdout + done.stderr
    assert all("FAILED" in row["said"] for row in result["rows"] if not row["passed"])


def test_errors(packed, tmp_path):
    folder, _ = packed
    for arguments, libraries, status, wanted in (
        (["--run", "gemm"], "", 1, "error: no NVIDIA driver: libcuda.so.1 was not found"),
        (["--run", "speed"], FAKEGPU, 2, "unknown part 'speed': expected one of corpus tests gemm"),
        (["--run"], FAKEGPU, 2, "no part: expected some of corpus"),
        (["--run", "gemm", "--archive", tmp_path], FAKEGPU, 2, "has no archive.tar.gz"),
        (["--pack=x"], FAKEGPU, 2, "unknown option '--pack=x'"),
        ([], FAKEGPU, 2, "--run PART..."),
    ):
        done = run(folder, *arguments, libraries=libraries)
        assert done.returncode == status and wanted in done.stderr, done.stderr
