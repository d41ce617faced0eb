# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Ranks that `python -m meshwright.launch` starts, launchers that MPI does not know, and the version."""

import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time

import meshwright as mw
import pytest
from meshwright import launch
from meshwright.backends import OF_MPI, backend_name

needs_mpirun = pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed (openmpi-bin)")
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMI", "SLURM_"))}
ENVIRONMENT.pop("PYTHONUNBUFFERED", None)  # it splits lines


def command(*arguments):
    return [sys.executable, "-m", "meshwright.launch", *map(str, arguments)]


def run(*arguments, **environment):
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, env={**ENVIRONMENT, **environment}, timeout=120
    )


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(
        "import os, sys, time\n"
        "rank = os.environ['OMPI_COMM_WORLD_RANK']\n"
        "print(f'rank {rank} of', os.environ['OMPI_COMM_WORLD_SIZE'], sys.argv[1:], flush=True)\n"
        "if sys.argv[1] == 'wait':\n"
        "    time.sleep(100)\n"
        "sys.exit(7 if rank == sys.argv[1] else 0)\n"
    )
    return path


@needs_mpirun
def test_ranks_arguments_and_exit_codes(script):
    done = run("-n", 3, script, "x", "-n", "--flag")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {i} of 3 ['x', '-n', '--flag']" for i in range(3)]
    assert run("-n", 3, script, "1").returncode == 7


def test_version_of_the_launcher():
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"meshwright {mw.__version__}\n", "")


@needs_mpirun
def test_module(script):
    done = run("-n", 2, "-m", "script", "x", "--flag", PYTHONPATH=f"{script.parent}:{os.environ.get('PYTHONPATH', '')}")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {i} of 2 ['x', '--flag']" for i in range(2)]


@needs_mpirun
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_the_ranks(script, number):
    with subprocess.Popen(command("-n", 2, script, "wait"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=ENVIRONMENT) as process:
        lines = [process.stdout.readline() for _ in range(2)]
        process.send_signal(number)
        assert all(line.startswith(b"rank") for line in lines)
        begin = time.monotonic()
        assert process.wait(30) != 0
        # The ranks hold the pipe as long as they run.
        assert not process.stdout.read()
        assert time.monotonic() - begin < 30


@needs_mpirun
def test_runs_of_the_backend(tmp_path):
    (tmp_path / "m.mlir").write_text(
        'func.func @main(%x: tensor<2x4xf32> {nn.input = "x"}, %w: tensor<4x4xf32> {nn.parameter = "w"}) -> '
        '(tensor<2x4xf32> {nn.output = "y"}) {\n'
        "  %y = nn.linear %x, %w : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>\n"
        "  return %y : tensor<2x4xf32>\n}\n"
    )
    script = tmp_path / "script.py"
    script.write_text(
        "import meshwright as mw, numpy as np, sys\n"
        f"model = mw.load({str(tmp_path / 'm.mlir')!r})\n"
        "model = mw.Model(model._program, {'w': np.eye(4, dtype=np.float32)})\n"
        "x = np.arange(8, dtype=np.float32).reshape(2, 4)\n"
        "y = model.parallelize(mesh={'tp': 2}).run(x, backend='mpi')[0]\n"
        "print('equal' if (x == y).all() else y)\n"
    )
    done = run("-n", 2, script)
    if "unknown backend" in done.stderr or "available" in done.stderr:
        pytest.skip("built without MPI")
    assert done.returncode == 0 and done.stdout.splitlines() == ["equal", "equal"], done.stderr


def test_what_is_missing(tmp_path, script):
    done = run("-n", 2, script, PATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr == "error: mpirun is not installed, or not on the PATH: install Open MPI (Debian: openmpi-bin)\n"
    other = tmp_path / "mpirun"
    other.write_text("#!/bin/sh\necho HYDRA build details\n")
    other.chmod(0o755)
    done = run("-n", 2, script, PATH=str(tmp_path))
    assert done.returncode == 1 and done.stderr == f"error: expected mpirun of Open MPI, got '{other}' of another MPI\n"
    for arguments, said in (
        (["-n", 0, script], "-n: expected a number of ranks from 1 on, got 0"),
        (["-n", 2], "expected a script, or -m and a module"),
        (["-n", 2, tmp_path / "none.py"], f"no such script: '{tmp_path}/none.py'"),
        ([script], "the following arguments are required: -n/--ranks"),
    ):
        done = run(*arguments)
        assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
    done = run("-n", 2, script, OMPI_COMM_WORLD_SIZE="2")
    assert done.returncode == 2 and "this process is a rank of mpirun already" in done.stderr


def test_settings_are_those_of_the_tool():
    tool = os.path.join(os.path.dirname(__file__), "..", "..", "tools", "meshwright-mpirun", "meshwright-mpirun")
    with open(tool) as file:
        found = dict(re.findall(r'export (\w+)="\$\{\w+:-(\w+)\}"', file.read()))
    assert found == {**launch.SETTINGS, **launch.SETTINGS_OF_ROOT}


def test_launchers_without_mpi(monkeypatch):
    for variable in (*OF_MPI, "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(sys, "argv", ["/home/user/train.py", "--steps", "3"])
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert backend_name("local") == "local" and backend_name("nccl") == "nccl"
    with pytest.raises(mw.Error) as error:
        backend_name("mpi:fast")
    assert str(error.value) == (
        "backend 'mpi:fast': the 4 processes of torchrun are not connected by MPI: start them by "
        "'python -m meshwright.launch -n 4 train.py ...'"
    )
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    with pytest.raises(mw.Error, match="the 8 processes of srun are not connected by MPI: start them by 'srun --mpi=pmix"):
        backend_name("mpi")
    monkeypatch.setenv("PMIX_RANK", "0")
    assert backend_name("mpi") == "mpi"


def test_version():
    version = mw.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", version.project) and version.abi > 0
    assert version.commit is None or re.fullmatch(r"[0-9a-f]{7,40}(\.dirty)?", version.commit)
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", version.llvm)
    assert version.startswith(f"{version.project}+") and f"llvm.{version.llvm}.abi.{version.abi}" in version
    assert vars(pickle.loads(pickle.dumps(version))) == vars(version)
