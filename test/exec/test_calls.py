# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Calls of several steps: `nn.call`."""
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from harness import TIMEOUT, launch, saved_state
from mpi_programs import NEEDS_MPI, mpirun
from safetensors.numpy import load_file, save_file
from test_bundles import change_manifest

import meshwright as mw

# Least squares by gradient descent: a call sums the gradients of four chunks of three rows, which dp=2 pads.
MODEL = """
nn.state @w {parameter = "start", role = "parameter"} : tensor<5xf32>
nn.state @grad {fill = 0.0 : f32, transient, role = "gradient"} : tensor<5xf32>
nn.state @loss {fill = 0.0 : f32, transient} : tensor<f32>
nn.state @steps {fill = 0 : i64} : tensor<i64>
func.func @step(%rate: tensor<f32> {nn.input = "rate", nn.default = 0.5 : f32})
    -> (tensor<f32> {nn.output = "loss"}, tensor<5xf32> {nn.output = "new"})
    attributes {nn.call = #nn.call<[<@accumulate chunks 4>, <@step>]>} {
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
        loss, new, error = session.run(x=X, y=Y)
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
    assert np.allclose(session.run(x=X, y=Y, rate=0.0)[1], follow(3), atol=1e-5)
    assert session.state()["steps"] == 4
    with pytest.raises(mw.Error, match="no entry 'accumulate': expected one of 'step', 'peek'"):
        session.run(x=X, y=Y, entry="accumulate")
    with pytest.raises(mw.InputError, match=r"input 'x': expected f32\[12, 5\], got f32\[3, 5\]"):
        session.run(x=X[:3], y=Y)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("recover", [True, False])
def test_sessions(model, mesh, recover):
    plan = model.parallelize(mesh=mesh)
    with plan.start(recover=recover) as session:
        assert_session(session)
    loss, new, error = plan.run(x=X, y=Y)
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


# Newton's method for square roots. A call goes on from the guess of the call before, three steps at a time: `refine` runs on
# each chunk of x until its error is small, `count` runs three times, and the entry gives how often `refine` ran.
LOOP = """
nn.state @guess {fill = 1.0 : f32, transient} : tensor<5xf32>
nn.state @runs {fill = 0 : i64, transient} : tensor<i64>
nn.state @counted {fill = 0 : i64, transient} : tensor<i64>
nn.state @calls {fill = 0 : i64} : tensor<i64>
func.func @root(%scale: tensor<f32> {nn.input = "scale", nn.default = 1.0 : f32})
    -> (tensor<i64> {nn.output = "runs"}, tensor<i64> {nn.output = "counted"}, tensor<f32> {nn.output = "scaled"})
    attributes {nn.call = #nn.call<[<@refine chunks 2 times 20 until "converged">, <@count times 3>, <@root>]>} {
  %n = nn.read @calls : tensor<i64>
  %one = nn.constant dense<1> : tensor<i64>
  %next = nn.add %n, %one : (tensor<i64>, tensor<i64>) -> tensor<i64>
  %zero = nn.constant dense<0> : tensor<i64>
  %runs = nn.read @runs : tensor<i64>
  %counted = nn.read @counted : tensor<i64>
  nn.write @calls, %next : tensor<i64>
  nn.write @runs, %zero : tensor<i64>
  nn.write @counted, %zero : tensor<i64>
  return %runs, %counted, %scale : tensor<i64>, tensor<i64>, tensor<f32>
}
func.func private @refine(%x: tensor<5xf32> {nn.input = "x"}, %most: tensor<1xf32> {nn.input = "most", nn.batch = false})
    -> (tensor<5xf32> {nn.output = "root"}, tensor<i1> {nn.output = "converged"}) {
  %g = nn.read @guess : tensor<5xf32>
  %n = nn.read @runs : tensor<i64>
  %one = nn.constant dense<1> : tensor<i64>
  %next = nn.add %n, %one : (tensor<i64>, tensor<i64>) -> tensor<i64>
  %q = nn.div %x, %g : (tensor<5xf32>, tensor<5xf32>) -> tensor<5xf32>
  %sum = nn.add %q, %g : (tensor<5xf32>, tensor<5xf32>) -> tensor<5xf32>
  %half = nn.constant dense<0.5> : tensor<f32>
  %new = nn.mul %sum, %half : (tensor<5xf32>, tensor<f32>) -> tensor<5xf32>
  %square = nn.mul %new, %new : (tensor<5xf32>, tensor<5xf32>) -> tensor<5xf32>
  %difference = nn.sub %square, %x : (tensor<5xf32>, tensor<5xf32>) -> tensor<5xf32>
  %error = nn.abs %difference : tensor<5xf32>
  %largest = nn.reduce max %error dims [0] {keep_dims} : (tensor<5xf32>) -> tensor<1xf32>
  %small = nn.compare lt %largest, %most : (tensor<1xf32>, tensor<1xf32>) -> tensor<1xi1>
  %converged = nn.reshape %small : (tensor<1xi1>) -> tensor<i1>
  nn.write @guess, %new : tensor<5xf32>
  nn.write @runs, %next : tensor<i64>
  return %new, %converged : tensor<5xf32>, tensor<i1>
}
func.func private @count() {
  %n = nn.read @counted : tensor<i64>
  %one = nn.constant dense<1> : tensor<i64>
  %next = nn.add %n, %one : (tensor<i64>, tensor<i64>) -> tensor<i64>
  nn.write @counted, %next : tensor<i64>
  return
}
"""
SQUARES = np.array([4, 9, 2, 16, 25, 1, 3, 5, 7, 30], np.float32)


def newton(x, most, times=20):
    """Roots, how often each of two chunks is refined in all, and whether the last one converged, of call after call."""
    guess = np.ones(5, np.float32)
    while True:
        roots, runs = [], 0
        for chunk in (x[:5], x[5:]):
            for _ in range(times):
                guess = (chunk / guess + guess) * np.float32(0.5)
                runs += 1
                converged = np.abs(guess * guess - chunk).max() < most
                if converged:
                    break
            roots.append(guess)
        yield np.concatenate(roots), runs, converged


def assert_loop(session):
    for most in (1e-2, 1.0, 0.0):
        wanted = newton(SQUARES, most)
        session.set_state({"calls": np.array(0)})
        for n, (roots, runs, converged) in zip(range(3), wanted, strict=False):
            got, counted, scale, root, end = session.run(x=SQUARES, most=np.array([most], np.float32))
            assert np.allclose(root, roots, rtol=1e-6) and end == converged == (most > 0), (most, n)
            assert counted == 3 and scale == 1 and session.state()["calls"] == n + 1
            # An error above 0 ends no loop: each chunk has 20 runs.
            assert got == runs and (most > 0 or got == 40)
        # A call that fails in a run in the middle changes nothing, and the next one begins with the first guess.
        bad = np.where(SQUARES == 3, np.nan, SQUARES).astype(np.float32)
        with pytest.raises(mw.Error, match="nn.div|nn.add|nn.mul"):
            session.run(x=bad, most=np.array([1], np.float32), check_finite=True)
        assert session.state()["calls"] == 3


@pytest.fixture
def loop(tmp_path):
    (tmp_path / "m.mlir").write_text(LOOP)
    return mw.load(tmp_path / "m.mlir")


@pytest.mark.parametrize("recover", [True, False])
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_loops(loop, mesh, recover, tmp_path):
    plan = loop.parallelize(mesh=mesh)
    with plan.start(recover=recover) as session:
        assert_loop(session)
    plan.compile(tmp_path / "b")
    with mw.load_bundle(tmp_path / "b").start(recover=recover) as session:
        assert_loop(session)


def test_loops_run_for_run(loop, monkeypatch):
    monkeypatch.setenv("MESHWRIGHT_RUNS", "2")
    with loop.parallelize(mesh={"dp": 2}).start() as session:
        assert_loop(session)


def test_reports_of_loops(loop):
    """A report counts the most runs of a loop."""
    report = loop.parallelize(mesh={"dp": 2}).report(format="json")
    assert report["launches_per_rank"] == 40, report["collectives"]


PROCESS = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import meshwright as mw
from test_calls import SQUARES, newton
with mw.load(sys.argv[2]).parallelize(mesh={"dp": 2}).start(backend="mpi") as session:
    for n, (roots, runs, converged) in zip(range(3), newton(SQUARES, 1e-2)):
        got, counted, _, root, end = session.run(x=SQUARES, most=np.array([1e-2], np.float32))
        assert got == runs and np.allclose(root, roots, rtol=1e-6) and end
print("done")
"""


@NEEDS_MPI[0]
@NEEDS_MPI[1]
def test_processes_end_a_loop_together(loop, tmp_path):
    (tmp_path / "p.py").write_text(PROCESS)
    done = subprocess.run(mpirun(2, sys.executable, tmp_path / "p.py", pathlib.Path(__file__).parent, tmp_path / "m.mlir"),
                          capture_output=True, text=True, timeout=TIMEOUT)  # fmt: skip
    assert done.returncode == 0 and done.stdout.count("done") == 2, done.stdout + done.stderr


@pytest.mark.parametrize("old, new, expected", [
    ("private @count()", "@count()", "'root' runs 'count': expected a private function with a body"),
    ("<@count times 3>", "<@counts>", "'root' runs 'counts': expected a private function with a body"),
    ('until "converged"', 'until "small"', "'root' runs 'refine' until \"small\": expected the name of one of its outputs"),
    ('until "converged"', 'until "root"', "'root' runs 'refine' until output \"root\": expected tensor<i1>, got 'tensor<5xf32>'"),
    ("private @count()", "private @count() attributes {nn.call = #nn.call<[<@count>]>}",
     "'root' runs 'count', which has steps of its own: expected a function without nn.call"),
    ("@counted {fill = 0 : i64, transient}", "@counted {fill = 0 : i64}",
     "'root' runs 'count', which writes the state 'counted': expected writes of transient states alone"),
    ('%scale: tensor<f32> {nn.input = "scale", nn.default = 1.0 : f32}',
     '%scale: tensor<f32> {nn.input = "scale"}, %most: tensor<1xf32> {nn.input = "most"}',
     "input 'most' of 'root' lacks nn.batch = false, which 'refine' has: expected it in all steps of a call or in none"),
    ('tensor<i64> {nn.output = "counted"}', 'tensor<i64> {nn.output = "converged"}',
     "'converged': expected one type, got 'tensor<i64>' of 'root' and 'tensor<i1>' of 'refine'"),
])  # fmt: skip
def test_steps_that_are_refused(tmp_path, old, new, expected):
    assert LOOP.count(old) == 1
    (tmp_path / "m.mlir").write_text(LOOP.replace(old, new))
    with pytest.raises(mw.Error) as error:
        mw.load(tmp_path / "m.mlir")
    assert expected in str(error.value)


@pytest.mark.parametrize("step, change, expected", [
    (0, {"entry": 7}, "runs entry 7: expected the entry itself, last, and others before"),
    (0, {"entry": 0}, "runs entry 0: expected the entry itself, last, and others before"),
    (2, {"entry": 1}, "runs entry 1: expected the entry itself, last, and others before"),
    (0, {"chunks": 0}, "0 chunks, 20 times, until output 1: expected positive numbers, and once for the last step"),
    (2, {"times": 2}, "1 chunks, 2 times, until output -1: expected positive numbers, and once for the last step"),
    (0, {"until": 5}, "2 chunks, 20 times, until output 5: expected"),
    (0, {"until": 0}, "output 'root': expected i1[] to end a step, got f32[5]"),
    (0, {"chunks": 2**60}, "'x' has 1152921504606846978 chunks, which are too large"),
])  # fmt: skip
def test_damaged_steps(loop, tmp_path, step, change, expected):
    loop.parallelize(mesh={"dp": 1}).compile(tmp_path / "bundle")
    change_manifest(tmp_path / "bundle", lambda manifest: manifest["entries"][0]["steps"][step].update(change))
    with pytest.raises(mw.Error) as error:
        mw.load_bundle(tmp_path / "bundle").start()
    assert "damaged: a step of entry 'root': " in str(error.value) and expected in str(error.value)


def test_names_that_are_equal(loop, tmp_path):
    loop.parallelize(mesh={"dp": 1}).compile(tmp_path / "bundle")
    change_manifest(tmp_path / "bundle", lambda manifest: manifest["entries"][1]["inputs"][1].update(name="x"))
    with pytest.raises(mw.Error, match="damaged: entry 'refine' has two values named 'x': expected names that differ"):
        mw.load_bundle(tmp_path / "bundle").start()
