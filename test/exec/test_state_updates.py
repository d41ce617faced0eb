# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Updates of states in place: calls that fail leave the state as it was."""
import os
import pathlib
import re
import shutil
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from harness import TIMEOUT, launch, saved_state, tool
from safetensors.numpy import load_file, save_file

import meshwright as mw

# Replaces rows of a cache, twice where `again` names others, and counts. `late` fails after that if a token is out of range.
MODEL = """
nn.state @cache {fill = 1.0 : f32} : tensor<3x8x6xf32>
nn.state @count {fill = 0 : i64} : tensor<i64>
nn.state @mean {fill = 0.0 : f32} : tensor<3x6xf32>
func.func @main(%i: tensor<2xi64> {nn.input = "i"}, %again: tensor<1xi64> {nn.input = "again"}, %x: tensor<3x2x6xf32> {nn.input = "x"},
                %late: tensor<2xi64> {nn.input = "late"}, %e: tensor<5x6xf32> {nn.parameter = "e"})
    -> (tensor<3x8x6xf32> {nn.output = "new"}, tensor<3x6xf32> {nn.output = "y"}, tensor<2x6xf32> {nn.output = "z"}) {
  %c = nn.read @cache : tensor<3x8x6xf32>
  %1 = nn.index_copy %c, %i, %x dim 1 : (tensor<3x8x6xf32>, tensor<2xi64>, tensor<3x2x6xf32>) -> tensor<3x8x6xf32>
  %first = nn.slice %x starts [0, 0, 0] limits [3, 1, 6] strides [1, 1, 1] : (tensor<3x2x6xf32>) -> tensor<3x1x6xf32>
  %2 = nn.index_copy %1, %again, %first dim 1 : (tensor<3x8x6xf32>, tensor<1xi64>, tensor<3x1x6xf32>) -> tensor<3x8x6xf32>
  nn.write @cache, %2 : tensor<3x8x6xf32>
  %n = nn.read @count : tensor<i64>
  %one = nn.constant dense<1> : tensor<i64>
  %next = nn.add %n, %one : (tensor<i64>, tensor<i64>) -> tensor<i64>
  nn.write @count, %next : tensor<i64>
  %m = nn.read @mean : tensor<3x6xf32>
  %s = nn.reduce sum %2 dims [1] : (tensor<3x8x6xf32>) -> tensor<3x6xf32>
  %y = nn.add %m, %s : (tensor<3x6xf32>, tensor<3x6xf32>) -> tensor<3x6xf32>
  nn.write @mean, %y : tensor<3x6xf32>
  %z = nn.embedding %late, %e : (tensor<2xi64>, tensor<5x6xf32>) -> tensor<2x6xf32>
  %big = nn.exp %z : tensor<2x6xf32>
  return %2, %y, %big : tensor<3x8x6xf32>, tensor<3x6xf32>, tensor<2x6xf32>
}
"""
E = np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32)
# Its exponential is infinite.
E[4] = 100
MESHES = [{"tp": 1}, {"dp": 3}, {"tp": 2}, {"tp": 4}, {"dp": 2, "tp": 2}]


def call(n, late=0, at=None):
    x = np.random.default_rng(n).standard_normal((3, 2, 6)).astype(np.float32)
    return [np.array(at or [n % 8, (n + 3) % 8]), np.array([(n + 3) % 8]), x, np.array([0, late])]


def follow(state, i, again, x, late):
    """The state after a call."""
    cache = state["cache"].copy()
    for row, index in enumerate(i):
        cache[:, index] = x[:, row]
    cache[:, again] = x[:, :1]
    return {"cache": cache, "count": state["count"] + 1, "mean": state["mean"] + cache.sum(1)}


START = {"cache": np.ones((3, 8, 6), np.float32), "count": np.array(0), "mean": np.zeros((3, 6), np.float32)}


def assert_state(state, want):
    assert state.keys() == want.keys()
    assert np.array_equal(state["cache"], want["cache"]) and state["count"] == want["count"]
    assert np.allclose(state["mean"], want["mean"], rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    (folder / "m.mlir").write_text(MODEL)
    save_file({"e": E}, folder / "w.safetensors")
    return folder


@pytest.fixture(scope="module", params=MESHES, ids=str)
def plan(folder, request):
    return mw.load(folder / "m.mlir", folder / "w.safetensors").parallelize(mesh=request.param)


def assert_calls(session, recovers=True):
    want = START
    for n in range(6):
        arguments = call(n)
        want = follow(want, *arguments)
        new, y, _ = session.run(*arguments)
        assert np.array_equal(new, want["cache"]) and np.allclose(y, want["mean"], rtol=1e-4, atol=1e-4)
        assert_state(session.state(), want)
        if not recovers:
            continue
        for bad, options in [
            (call(n + 1, late=5), {}), (call(n + 1, late=-1), {}),
            (call(n + 1, late=4), {"check_finite": True}),
            (call(n + 1, at=[2, 8]), {}), (call(n + 1, at=[2, -1]), {}),
        ]:  # fmt: skip
            with pytest.raises(mw.Error):
                session.run(*bad, **options)
            assert_state(session.state(), want)


def test_rows_are_restored(plan):
    assert 'over ["cache"]' in plan.ir("rt") and 'over ["count"' in plan.ir("rt")
    with plan.start() as session:
        assert_calls(session)
    with plan.start(recover=False) as session:
        assert_calls(session, recovers=False)


def test_bundles(plan, tmp_path):
    plan.compile(tmp_path / "b")
    with mw.load_bundle(tmp_path / "b").start() as session:
        assert_calls(session)
    with mw.load_bundle(tmp_path / "b").start(recover=False) as session:
        assert_calls(session, recovers=False)


def test_repetitions(folder, tmp_path):
    names = ["i", "again", "x", "late"]
    save_file(dict(zip(names, call(2), strict=True)), tmp_path / "in.safetensors")
    done = launch(folder / "m.mlir", f"--weights={folder}/w.safetensors", "--parallelize=mesh=tp=2",
                  f"--inputs={tmp_path}/in.safetensors", f"--save-state={tmp_path}/s", env={"MESHWRIGHT_RUNS": "4"})
    assert done.returncode == 0, done.stderr
    assert_state(saved_state(tmp_path / "s"), follow(START, *call(2)))


@pytest.mark.parametrize("from_bundle", [False, True])
def test_shell_without_recovery(folder, tmp_path, from_bundle):
    names = ["i", "again", "x", "late"]
    model = [folder / "m.mlir", f"--weights={folder}/w.safetensors", "--parallelize=mesh=tp=2"]
    if from_bundle:
        mw.load(folder / "m.mlir", folder / "w.safetensors").parallelize(mesh={"tp": 2}).compile(tmp_path / "b")
        model = [tmp_path / "b"]
    run = [*model, "--no-recover", f"--inputs={tmp_path}/in.safetensors", f"--save-state={tmp_path}/s"]
    save_file(dict(zip(names, call(2), strict=True)), tmp_path / "in.safetensors")
    done = launch(*run)
    assert done.returncode == 0, done.stderr
    want = follow(START, *call(2))
    assert_state(saved_state(tmp_path / "s"), want)
    # A run that fails saves nothing.
    save_file(dict(zip(names, call(3, late=5), strict=True)), tmp_path / "in.safetensors")
    done = launch(*run, f"--state={tmp_path}/s")
    assert done.returncode == 1 and "out of range" in done.stderr, done.stderr
    assert_state(saved_state(tmp_path / "s"), want)


def test_memory_of_recovery(folder):
    """The report counts logs and second buffers."""
    plan = mw.load(folder / "m.mlir", folder / "w.safetensors").parallelize(mesh={"tp": 1})
    cache, rows, indices = 3 * 8 * 6 * 4, 3 * 6 * 4, 64
    logs = 2 * indices + 192 + 128
    assert rows == 72
    memory = plan.report(format="json")["memory_per_rank"]
    assert memory["state"] == cache + logs + 2 * (8 + rows)


def test_memory_of_recovery_of_all_entries(tmp_path):
    (tmp_path / "m.mlir").write_text(SLICES)
    save_file({}, tmp_path / "w.safetensors")
    plan = mw.load(tmp_path / "m.mlir", tmp_path / "w.safetensors").parallelize(mesh={"tp": 1})
    state = {entry: plan.report(format="json", entry=entry)["memory_per_rank"]["state"] for entry in ("prompt", "swap")}
    # `prompt` logs three indices and rows. `swap` copies a state aside.
    assert state["prompt"] == 320 + 2 * 24 + 64 + 128 and state["swap"] == state["prompt"] + 24


# A static cache that a prompt fills by slices and steps fill one row at a time, and `swap`, which exchanges two states.
SLICES = """
nn.state @c {fill = 2.0 : f32} : tensor<2x10x4xf32>
nn.state @a {fill = 1.0 : f32} : tensor<6xf32>
nn.state @b {fill = 2.0 : f32} : tensor<6xf32>
func.func @prompt(%x: tensor<2x3x4xf32> {nn.input = "x"}) -> (tensor<2x4xf32> {nn.output = "old"}) {
  %c = nn.read @c : tensor<2x10x4xf32>
  %0 = nn.slice %c starts [0, 0, 0] limits [2, 2, 4] strides [1, 1, 1] : (tensor<2x10x4xf32>) -> tensor<2x2x4xf32>
  %1 = nn.slice %c starts [0, 5, 0] limits [2, 10, 4] strides [1, 1, 1] : (tensor<2x10x4xf32>) -> tensor<2x5x4xf32>
  %2 = nn.concat %0, %x, %1 dim 1 : (tensor<2x2x4xf32>, tensor<2x3x4xf32>, tensor<2x5x4xf32>) -> tensor<2x10x4xf32>
  nn.write @c, %2 : tensor<2x10x4xf32>
  %3 = nn.reduce sum %c dims [1] : (tensor<2x10x4xf32>) -> tensor<2x4xf32>
  return %3 : tensor<2x4xf32>
}
func.func @swap(%x: tensor<6xf32> {nn.input = "x"}, %i: tensor<1xi64> {nn.input = "i"}) -> (tensor<2x1x4xf32> {nn.output = "y"}) {
  %a = nn.read @a : tensor<6xf32>
  %b = nn.read @b : tensor<6xf32>
  %c = nn.read @c : tensor<2x10x4xf32>
  %0 = nn.add %b, %x : (tensor<6xf32>, tensor<6xf32>) -> tensor<6xf32>
  nn.write @a, %0 : tensor<6xf32>
  nn.write @b, %a : tensor<6xf32>
  %y = nn.gather %c, %i dim 1 : (tensor<2x10x4xf32>, tensor<1xi64>) -> tensor<2x1x4xf32>
  return %y : tensor<2x1x4xf32>
}
"""


@pytest.mark.parametrize("recover", [True, False])
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_slices_and_swaps(tmp_path, mesh, recover):
    (tmp_path / "m.mlir").write_text(SLICES)
    plan = mw.load(tmp_path / "m.mlir").parallelize(mesh=mesh)
    assert 'over ["c"]' in plan.ir("rt")
    cache, a, b = np.full((2, 10, 4), 2, np.float32), np.full(6, 1, np.float32), np.full(6, 2, np.float32)
    with plan.start(recover=recover) as session:
        for n in range(4):
            x = np.random.default_rng(n).standard_normal((2, 3, 4)).astype(np.float32)
            (old,) = session.run(x)
            assert np.allclose(old, cache.sum(1), atol=1e-5)
            cache[:, 2:5] = x
            (y,) = session.run(np.full(6, n, np.float32), np.array([3]), entry="swap")
            a, b = b + n, a
            assert np.array_equal(y, cache[:, 3:4])
            if recover:
                with pytest.raises(mw.Error, match="index 10"):
                    session.run(a, np.array([10]), entry="swap")
            state = session.state()
            assert all(np.array_equal(state[k], v) for k, v in {"a": a, "b": b, "c": cache}.items())


# One loop computes the new values of three states, each of which reads the old ones of others.
MIXED = """
nn.state @a {{fill = 0.5 : f32}} : tensor<{shape}xf32>
nn.state @b {{fill = -0.25 : bf16}} : tensor<{shape}xbf16>
nn.state @c {{fill = 2.0 : f32}} : tensor<{shape}xf32>
func.func @main(%x: tensor<{shape}xf32> {{nn.input = "x"}}) {{
  %a = nn.read @a : tensor<{shape}xf32>
  %b = nn.read @b : tensor<{shape}xbf16>
  %c = nn.read @c : tensor<{shape}xf32>
  %wide = nn.cast %b : (tensor<{shape}xbf16>) -> tensor<{shape}xf32>
  %0 = nn.sub %a, %wide : (tensor<{shape}xf32>, tensor<{shape}xf32>) -> tensor<{shape}xf32>
  %1 = nn.sub %c, %wide : (tensor<{shape}xf32>, tensor<{shape}xf32>) -> tensor<{shape}xf32>
  %2 = nn.sub %1, %0 : (tensor<{shape}xf32>, tensor<{shape}xf32>) -> tensor<{shape}xf32>
  %3 = nn.mul %x, %c : (tensor<{shape}xf32>, tensor<{shape}xf32>) -> tensor<{shape}xf32>
  %4 = nn.sub %2, %3 : (tensor<{shape}xf32>, tensor<{shape}xf32>) -> tensor<{shape}xf32>
  %5 = nn.sub %4, %0 : (tensor<{shape}xf32>, tensor<{shape}xf32>) -> tensor<{shape}xf32>
  %6 = nn.cast %5 : (tensor<{shape}xf32>) -> tensor<{shape}xbf16>
  nn.write @c, %2 : tensor<{shape}xf32>
  nn.write @a, %0 : tensor<{shape}xf32>
  nn.write @b, %6 : tensor<{shape}xbf16>
  return
}}
"""


@pytest.mark.parametrize("recover", [True, False])
@pytest.mark.parametrize("shape", [(7,), (1,), (5, 1), (3, 37), (2, 4100), (6, 5, 32)], ids=str)
def test_states_in_one_loop(tmp_path, shape, recover):
    (tmp_path / "m.mlir").write_text(MIXED.format(shape="x".join(map(str, shape))))
    plan = mw.load(tmp_path / "m.mlir").parallelize(mesh={"tp": 1})
    assert sorted(re.findall(r'"([abc])"', re.search(r"over (\[.*?\])", plan.ir("rt"))[1])) == ["a", "b", "c"]
    a, b, c = (np.full(shape, value, np.float32) for value in (0.5, -0.25, 2))
    with plan.start(recover=recover) as session:
        for n in range(3):
            x = np.random.default_rng(n).standard_normal(shape).astype(np.float32)
            session.run(x)
            new, other = a - b, (c - b) - (a - b)
            a, b, c = new, (other - x * c - new).astype(ml_dtypes.bfloat16).astype(np.float32), other
            state = session.state()
            assert all(np.array_equal(np.asarray(state[k], np.float32), v) for k, v in {"a": a, "b": b, "c": c}.items())


PROCESS = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from test_state_updates import *

rank, folder = int(os.environ["OMPI_COMM_WORLD_RANK"]), sys.argv[2]
plan = mw.load(f"{folder}/m.mlir", f"{folder}/w.safetensors").parallelize(mesh={"tp": 2})
with plan.start(backend="mpi", timeout=20) as session:
    want = START
    for n in range(3):
        want = follow(want, *call(n))
        session.run(*call(n))
        # A value that is not finite is found behind the updates: the session goes on.
        try:
            session.run(*call(n + 1, late=4), check_finite=True)
        except mw.Error as error:
            print(f"nan on {rank}: {error}", flush=True)
        assert_state(session.state(), want)
    session.save(f"{folder}/state")
    # An index that is out of range in one process.
    if sys.argv[3] == "kill" and rank:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        session.run(*call(4, late=5 if rank else 0))
    except mw.Error as error:
        print(f"range on {rank}: {error}", flush=True)
    try:
        session.run(*call(4))
    except mw.Error as error:
        print(f"next on {rank}: {error}", flush=True)
"""


@pytest.mark.parametrize("how", ["fail", "kill"])
def test_processes(folder, tmp_path, how):
    runner = pathlib.Path(tool()).with_name("meshwright-mpirun")
    backends = list(pathlib.Path(tool()).parent.parent.glob("lib*/libMeshwrightBackend_mpi.so"))
    if shutil.which("mpirun") is None or not backends:
        pytest.skip("no MPI")
    for name in ("m.mlir", "w.safetensors"):
        shutil.copy(folder / name, tmp_path)
    (tmp_path / "s.py").write_text(PROCESS)
    done = subprocess.run([runner, "-np", "2", sys.executable, tmp_path / "s.py", pathlib.Path(__file__).parent, tmp_path, how],
                          capture_output=True, text=True, timeout=TIMEOUT)  # fmt: skip
    assert done.stdout.count("nan on 0") == done.stdout.count("nan on 1") == 3, done.stdout + done.stderr
    assert "range on 0: rank 1: " in done.stdout and "next on 0: " in done.stdout, done.stdout + done.stderr
    want = START
    for n in range(3):
        want = follow(want, *call(n))
    assert_state(saved_state(tmp_path / "state"), want)


FAULTY = """
import os, sys
sys.path.insert(0, sys.argv[1])
from test_state_updates import *

plan = mw.load(f"{sys.argv[2]}/m.mlir", f"{sys.argv[2]}/w.safetensors").parallelize(mesh={"tp": 2})
session = plan.start(timeout=1)
for action in (lambda: session.run(*call(0)), lambda: assert_state(session.state(), START)):
    try:
        action()
        print("fine")
    except mw.Error as error:
        print(error)
sys.stdout.flush()
# A rank may be stuck.
os._exit(0)
"""


@pytest.mark.parametrize("fault, said", [
    ("throw 1 nn.exp", "fine"), ("memory 0 nn.exp", "fine"), ("throw 0 nn.index_copy", "fine"),
    # Until it comes back, a rank may write the state.
    ("stall 1 nn.exp", "a rank has not come back from a call that failed and may write the state"),
])  # fmt: skip
def test_faults(folder, tmp_path, fault, said):
    (tmp_path / "s.py").write_text(FAULTY)
    done = subprocess.run([sys.executable, tmp_path / "s.py", pathlib.Path(__file__).parent, folder], capture_output=True,
                          text=True, timeout=TIMEOUT, env={**os.environ, "MESHWRIGHT_FAULT": fault})  # fmt: skip
    lines = done.stdout.splitlines()
    assert len(lines) == 2 and lines[0].startswith("rank ") and lines[1] == said, done.stdout + done.stderr


@pytest.mark.slow
def test_ten_thousand_calls(folder):
    def memory():
        return int(next(line for line in open("/proc/self/status") if line.startswith("RssAnon")).split()[1])

    plan = mw.load(folder / "m.mlir", folder / "w.safetensors").parallelize(mesh={"tp": 2})
    with plan.start() as session:
        def calls(count):
            for n in range(count):
                session.run(*call(n))
                if n % 10 == 0:
                    with pytest.raises(mw.Error):
                        session.run(*call(n, late=5))
        calls(500)
        before = memory()
        calls(10_000)
        # Sanitizers keep freed memory.
        assert memory() - before < 2048 or "MESHWRIGHT_SANITIZER" in os.environ
        assert session.state()["count"] == 10_500
