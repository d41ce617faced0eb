# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""True rows of groups travel between GPUs as they do between processors, on the stand-ins for CUDA and NCCL."""
import os

import pytest
from harness import run_module
from test_counted_rows import Case
from test_gpu_running import FAKEGPU, pytestmark  # noqa: F401

BACKENDS = pytest.mark.parametrize("backend", ["nccl", "nccl:peer"])


def run(folder, case, backend, status=0):
    path = os.pathsep.join(p for p in [str(FAKEGPU), os.environ.get("LD_LIBRARY_PATH", "")] if p)
    return run_module(folder, case.text(), {"x": case.x, "n": case.n}, {"a": case.a, "b": case.b},
                      ["--parallelize=", f"--backend={backend}"], status, {"LD_LIBRARY_PATH": path})


@BACKENDS
@pytest.mark.parametrize("seed", range(12))
def test_random(backend, seed, tmp_path):
    """Replicas, several outer indices, ranks with some of a group's rows, groups without rows, f32 and bf16."""
    case = Case(seed)
    case.check(run(tmp_path, case, backend)["y"])


@BACKENDS
def test_numbers_that_do_not_fit(backend, tmp_path):
    case = next(c for c in map(Case, range(100)) if c.groups > 1 and c.dp == 1)
    case.n[1] = case.tokens + 1
    said = run(tmp_path, case, backend, status=1)
    assert f"expected 0 to {case.tokens} rows of group 1, got {case.tokens + 1}" in said, said
