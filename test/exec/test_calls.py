# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Entries that run another function first, on chunks of rows: `nn.repeat`."""
import numpy as np
import pytest
from harness import launch, saved_state
from safetensors.numpy import load_file, save_file

import meshwright as mw

# Least squares by gradient descent: a call sums the gradients of four chunks of three rows, which dp=2 pads.
MODEL = """
nn.state @w {parameter = "start", role = "parameter"} : tensor<5xf32>
nn.state @grad {fill = 0.0 : f32, transient, role = "gradient"} : tensor<5xf32>
nn.state @loss {fill = 0.0 : f32, transient} : tensor<f32>
nn.state @steps {fill = 0 : i64} : tensor<i64>
func.func @step(%rate: tensor<f32> {nn.input = "rate", nn.default = 0.5 : f32})
    -> (tensor<f32> {nn.output = "loss"}, tensor<5xf32> {nn.output = "new"})
    attributes {nn.repeat = {function = "accumulate", times = 4 : i64, outputs = ["loss", "error", "new"]}} {
  %w = nn.read @w : tensor<5xf32>
  %g = nn.read @grad : tensor<5xf32>
  %l = nn.read @loss : tensor<f32>
  %n = nn.read @steps : tensor<i64>
  %one = nn.constant dense<1> : tensor<i64>
  %next = nn.add %n, %one : (tensor<i64>, tensor<i64>) -> tensor<i64>
  %twelfth = nn.constant dense<0.083333333> : tensor<f32>
  %mean = nn.mul %l, %twelfth : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %scale = nn.mul %rate, %twelfth : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %by = nn.mul %g, %scale : (tensor<5xf32>, tensor<f32>) -> tensor<5xf32>
  %new = nn.sub %w, %by : (tensor<5xf32>, tensor<5xf32>) -> tensor<5xf32>
  %zeros = nn.constant dense<0.0> : tensor<5xf32>
  %zero = nn.constant dense<0.0> : tensor<f32>
  nn.write @w, %new : tensor<5xf32>
  nn.write @grad, %zeros : tensor<5xf32>
  nn.write @loss, %zero : tensor<f32>
  nn.write @steps, %next : tensor<i64>
  return %mean, %new : tensor<f32>, tensor<5xf32>
}
func.func @peek() -> (tensor<5xf32> {nn.output = "w"}, tensor<5xf32> {nn.output = "grad"}) {
  %w = nn.read @w : tensor<5xf32>
  %g = nn.read @grad : tensor<5xf32>
  return %w, %g : tensor<5xf32>, tensor<5xf32>
}
func.func private @accumulate(%x: tensor<3x5xf32> {nn.input = "x"}, %y: tensor<3xf32> {nn.input = "y"})
    -> (tensor<3xf32> {nn.output = "error"}) {
  %w = nn.read @w : tensor<5xf32>
  %g = nn.read @grad : tensor<5xf32>
  %l = nn.read @loss : tensor<f32>
  %0 = nn.mul %x, %w : (tensor<3x5xf32>, tensor<5xf32>) -> tensor<3x5xf32>
  %1 = nn.reduce sum %0 dims [1] : (tensor<3x5xf32>) -> tensor<3xf32>
  %e = nn.sub %1, %y : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
  %square = nn.mul %e, %e : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
  %own = nn.reduce sum %square dims [0] : (tensor<3xf32>) -> tensor<f32>
  %loss = nn.add %l, %own : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %column = nn.reshape %e : (tensor<3xf32>) -> tensor<3x1xf32>
  %products = nn.mul %x, %column : (tensor<3x5xf32>, tensor<3x1xf32>) -> tensor<3x5xf32>
  %sum = nn.reduce sum %products dims [0] : (tensor<3x5xf32>) -> tensor<5xf32>
  %grad = nn.add %g, %sum : (tensor<5xf32>, tensor<5xf32>) -> tensor<5xf32>
  nn.write @grad, %grad : tensor<5xf32>
  nn.write @loss, %loss : tensor<f32>
  return %e : tensor<3xf32>
}
"""
START = np.array([1, -1, 2, 0.5, 0], np.float32)
X = np.random.default_rng(0).standard_normal((12, 5)).astype(np.float32)
Y = X @ np.array([3, 1, 0, 0, -2], np.float32)
NAN = np.where(np.arange(60).reshape(12, 5) == 40, np.nan, X).astype(np.float32)  # in the third chunk
MESHES = [{"dp": 1}, {"dp": 2}, {"dp": 2, "tp": 2}]


def follow(steps, rate=0.5):
    w = START.astype(np.float64)
    for _ in range(steps):
        w = w - rate / 12 * (X.T @ (X @ w - Y))
    return w


@pytest.fixture
def model(tmp_path):
    (tmp_path / "m.mlir").write_text(MODEL)
    save_file({"start": START}, tmp_path / "w.safetensors")
    save_file({"x": X, "y": Y}, tmp_path / "in.safetensors")
    return mw.load(tmp_path / "m.mlir", tmp_path / "w.safetensors")


def assert_session(session, recovers=True):
    assert session.entries == ["step", "peek"]
    for n in range(3):
        loss, error, new = session.run(x=X, y=Y)
        wanted = X @ follow(n) - Y
        assert np.allclose(error, wanted, atol=1e-4) and np.allclose(loss, (wanted**2).mean(), rtol=1e-5)
        assert np.allclose(new, follow(n + 1), atol=1e-5)
        assert session.state().keys() == {"w", "steps"} and session.state()["steps"] == n + 1
    # A call that fails in a part changes nothing, and leaves nothing behind.
    before = session.state()
    with pytest.raises(mw.Error, match="nn.mul"):
        session.run(x=NAN, y=Y, check_finite=True)
    w, grad = session.run(entry="peek")
    assert not grad.any()
    assert all(np.array_equal(a, before[n]) for n, a in session.state().items())
    assert np.array_equal(w, before["w"])
    assert np.allclose(session.run(x=X, y=Y, rate=0.0)[2], follow(3), atol=1e-5)
    assert session.state()["steps"] == 4
    with pytest.raises(mw.Error, match="no entry 'accumulate': expected one of 'step', 'peek'"):
        session.run(x=X, y=Y, entry="accumulate")
    with pytest.raises(mw.InputError, match=r"input 'x' is f32\[3, 5\]: expected f32\[12, 5\]"):
        session.run(x=X[:3], y=Y)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("recover", [True, False])
def test_sessions(model, mesh, recover):
    plan = model.parallelize(mesh=mesh)
    with plan.start(recover=recover) as session:
        assert_session(session)
    loss, error, new = plan.run(x=X, y=Y)
    assert np.allclose(new, follow(1), atol=1e-5)
    assert max(plan.check(x=X, y=Y).values()) < 1e-5


def test_repetitions(model, monkeypatch):
    monkeypatch.setenv("MESHWRIGHT_RUNS", "3")
    with model.parallelize(mesh={"dp": 2}).start() as session:
        assert_session(session)


def test_bundles_and_the_tool(model, tmp_path):
    model.parallelize(mesh={"dp": 2}).compile(tmp_path / "b")
    with mw.load_bundle(tmp_path / "b").start() as session:
        assert_session(session)
    out, state = tmp_path / "out.safetensors", tmp_path / "state"
    for program in ([tmp_path / "b"], [tmp_path / "m.mlir", f"--weights={tmp_path}/w.safetensors", "--parallelize=mesh=dp=2"]):
        for n in range(2):
            more = [f"--state={state}"] if n else []
            done = launch(*program, f"--inputs={tmp_path}/in.safetensors", f"--outputs={out}", f"--save-state={state}", *more)
            assert done.returncode == 0, done.stderr
            assert np.allclose(load_file(out)["new"], follow(n + 1), atol=1e-5)
            assert saved_state(state).keys() == {"w", "steps"}
        done = launch(*program, "--entry=accumulate", f"--inputs={tmp_path}/in.safetensors")
        assert done.returncode == 1 and "no entry 'accumulate'" in done.stderr and "'step', 'peek'" in done.stderr


def test_reports(model):
    report = model.parallelize(mesh={"dp": 2}).report(format="json")
    sums = [c for c in report["collectives"] if c["kind"] in ("all_reduce", "reduce_scatter")]
    # The sums of four chunks are sent once.
    assert sums and report["launches_per_rank"] <= 2
    assert report["memory_per_rank"]["gradients"] == 20
