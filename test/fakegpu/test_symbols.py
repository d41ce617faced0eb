# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The functions that the backend loads, in NVIDIA's libraries and in the stand-ins.

fakegpu_layouts, which the build makes where NVIDIA's headers are installed, compares our
declarations with them when it is compiled, and prints the functions.
"""

import ctypes
import pathlib
import subprocess
import sys
import sysconfig

import fakegpu_cuda as cuda
import pytest

pytestmark = [pytest.mark.gpu, cuda.needs("fakegpu_layouts")]
NVIDIA = pathlib.Path(sysconfig.get_path("purelib")) / "nvidia"
REAL = {"libnccl.so.2": NVIDIA / "nccl/lib", "libcublasLt.so.13": NVIDIA / "cu13/lib"}


def functions(library):
    lines = subprocess.run([cuda.library_path("fakegpu_layouts")], capture_output=True, text=True, check=True)
    return [line.split()[1] for line in lines.stdout.splitlines() if line.split()[0] == library]


@pytest.mark.parametrize("library", REAL)
def test_real_libraries_load_without_a_driver_and_have_the_functions(library):
    """In a process of its own: the stand-in of the same name may be loaded in this one."""
    path = REAL[library] / library
    if not path.exists():
        pytest.skip(f"{path} is not installed: run scripts/setup.sh --gpu")
    code = "import ctypes, sys; l = ctypes.CDLL(sys.argv[1]); print(*[f for f in sys.argv[2:] if not hasattr(l, f)])"
    names = functions(library)
    assert len(names) > 10
    run = subprocess.run([sys.executable, "-c", code, str(path), *names], capture_output=True, text=True)
    assert (run.returncode, run.stdout.split()) == (0, []), run.stderr


@pytest.mark.parametrize("library", REAL)
def test_stand_ins_have_the_functions(library):
    loaded = ctypes.CDLL(cuda.library_path(library))
    assert [f for f in functions(library) if not hasattr(loaded, f)] == []


def test_the_driver_finds_the_functions():
    driver = cuda.Driver()
    for name in functions("libcuda.so.1"):
        assert driver.function(name)
