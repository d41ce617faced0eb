# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Updates of states in place: calls that fail leave the state as it was."""
import numpy as np
import pytest
from harness import launch
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
    assert_state(load_file(tmp_path / "s" / "state.safetensors"), follow(START, *call(2)))


def test_memory_of_recovery(folder):
    """The report counts logs and second buffers."""
    plan = mw.load(folder / "m.mlir", folder / "w.safetensors").parallelize(mesh={"tp": 1})
    cache, rows, indices = 3 * 8 * 6 * 4, 3 * 6 * 4, 64
    logs = 2 * indices + 192 + 128
    assert rows == 72
    memory = plan.report(format="json")["memory_per_rank"]
    assert memory["state"] == cache + logs + 2 * (8 + rows)
