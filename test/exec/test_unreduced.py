# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Results, states and inputs that stay unreduced: each rank has a part of a sum or of a maximum."""
import pathlib
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from harness import TIMEOUT, launch, saved_state, tool
from mpi_programs import NEEDS_MPI, mpirun
from safetensors.numpy import load_file, save_file

import meshwright as mw

# Gradients of a weight and the largest |dy| of each column add up over calls of `main`; `apply` updates the weight and
# clears the gradient. 6 rows are padded where the axis b shards them.
MODEL = """
dist.mesh @mesh = <[MESH]>
nn.state @grad {fill = 0.0 : f32, dist.sharding = #dist.sharding<@mesh, [{ROWS}, {}]SUM>} : tensor<6x8xf32>
nn.state @peak {fill = 0.0 : f32, dist.sharding = #dist.sharding<@mesh, [{ROWS}]MAX>} : tensor<6xf32>
nn.state @w {parameter = "w"} : tensor<6x8xf32>
func.func @main(%dy: tensor<8x6xf32> {nn.input = "dy", dist.sharding = #dist.sharding<@mesh, [{TOKENS}, {}]>},
                %x: tensor<8x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{TOKENS}, {}]>})
    -> (tensor<6x8xf32> {nn.output = "own", dist.sharding = #dist.sharding<@mesh, [{}, {}]SUM>},
        tensor<6xf32> {nn.output = "top", dist.sharding = #dist.sharding<@mesh, [{}]MAX>}) {
  %t = nn.transpose %dy [1, 0] : (tensor<8x6xf32>) -> tensor<6x8xf32>
  %g = nn.matmul %t, %x : (tensor<6x8xf32>, tensor<8x8xf32>) -> tensor<6x8xf32>
  %old = nn.read @grad : tensor<6x8xf32>
  %new = nn.add %old, %g : (tensor<6x8xf32>, tensor<6x8xf32>) -> tensor<6x8xf32>
  nn.write @grad, %new : tensor<6x8xf32>
  %a = nn.abs %dy : tensor<8x6xf32>
  %m = nn.reduce max %a dims [0] : (tensor<8x6xf32>) -> tensor<6xf32>
  %before = nn.read @peak : tensor<6xf32>
  %after = nn.maximum %before, %m : (tensor<6xf32>, tensor<6xf32>) -> tensor<6xf32>
  nn.write @peak, %after : tensor<6xf32>
  return %g, %m : tensor<6x8xf32>, tensor<6xf32>
}
func.func @apply(%lr: tensor<1xf32> {nn.input = "lr"}) -> (tensor<6x8xf32> {nn.output = "new"}) {
  %g = nn.read @grad : tensor<6x8xf32>
  %w = nn.read @w : tensor<6x8xf32>
  %step = nn.mul %g, %lr : (tensor<6x8xf32>, tensor<1xf32>) -> tensor<6x8xf32>
  %next = nn.sub %w, %step : (tensor<6x8xf32>, tensor<6x8xf32>) -> tensor<6x8xf32>
  nn.write @w, %next : tensor<6x8xf32>
  %zero = nn.constant dense<0.0> : tensor<6x8xf32>
  nn.write @grad, %zero : tensor<6x8xf32>
  return %next : tensor<6x8xf32>
}
"""


def spell(mesh, tokens, rows=""):
    axes = ", ".join(f'"{axis}"={size}' for axis, size in mesh.items())
    quoted = ", ".join(f'"{axis}"' for axis in tokens)
    text = MODEL.replace("MESH", axes).replace("TOKENS", quoted).replace("ROWS", f'"{rows}"' if rows else "")
    return text.replace("SUM", f", unreduced = {{{quoted}}}" if tokens else "").replace(
        "MAX", f", unreduced = max {{{quoted}}}" if tokens else "")


PLANS = {
    "four": spell({"a": 4}, "a"),
    "two axes": spell({"a": 2, "c": 2}, "ac"),
    "padded": spell({"a": 2, "b": 4}, "a", "b"),
    "reduced": spell({"a": 2}, ""),
}


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


WEIGHT = random(6, 8, seed=9)
CALLS = [(random(8, 6, seed=i), random(8, 8, seed=10 + i)) for i in range(3)]
LR = np.full(1, 0.1, np.float32)


def expected(calls):
    """The states after these calls."""
    grad = sum((dy.astype(np.float64).T @ x for dy, x in calls), np.zeros((6, 8)))
    peak = np.max([np.abs(dy).max(0) for dy, _ in calls] or [np.zeros(6)], axis=0)
    return {"grad": grad, "peak": peak, "w": WEIGHT}


def assert_state(state, want):
    assert state.keys() == want.keys()
    for name in want:
        assert np.allclose(state[name], want[name], atol=1e-5), name
    assert np.array_equal(state["peak"], want["peak"].astype(np.float32))


def load(folder, name):
    (folder / "m.mlir").write_text(PLANS[name])
    save_file({"w": WEIGHT}, folder / "w.safetensors")
    return mw.load(folder / "m.mlir", folder / "w.safetensors")


def assert_session(session, before=()):
    """A session adds to its state call by call."""
    done = list(before)
    for dy, x in CALLS:
        own, top = session.run(dy, x)
        assert np.allclose(own, dy.astype(np.float64).T @ x, atol=1e-5)
        assert np.array_equal(top, np.abs(dy).max(0))
        done.append((dy, x))
        assert_state(session.state(), expected(done))
    return done


@pytest.mark.parametrize("name", PLANS)
def test_accumulates(tmp_path, name):
    plan = load(tmp_path, name).parallelize()
    if name != "reduced":
        # Nothing is reduced before `apply` reads the sum.
        kinds = {entry["kind"] for entry in plan.report(format="json")["collectives"]}
        assert not kinds & {"all_reduce", "reduce_scatter"}, kinds
    assert plan.check(*CALLS[0]).keys() == {"own", "top"}
    with plan.start() as session:
        done = assert_session(session)
        (new,) = session.run(LR, entry="apply")
        want = WEIGHT - 0.1 * expected(done)["grad"]
        assert np.allclose(new, want, atol=1e-5)
        state = session.state()
        assert not state["grad"].any() and np.allclose(state["w"], want, atol=1e-5)
        assert np.array_equal(state["peak"], expected(done)["peak"].astype(np.float32))
        # A call that fails leaves the parts as they were.
        with pytest.raises(mw.Error):
            session.run(CALLS[0][0] * np.inf, CALLS[0][1], check_finite=True)
        assert all(np.array_equal(a, b) for a, b in zip(state.values(), session.state().values(), strict=True))


@pytest.mark.parametrize("to", PLANS)
def test_saves_for_another_mesh(tmp_path, to):
    with load(tmp_path, "four").parallelize().start() as session:
        done = assert_session(session)
        session.save(tmp_path / "state")
        state = session.state()
    saved = saved_state(tmp_path / "state")
    assert saved.keys() == state.keys() and all(np.array_equal(saved[n], state[n]) for n in saved)
    with load(tmp_path, to).parallelize().start(state=tmp_path / "state") as session:
        assert all(np.array_equal(a, state[n]) for n, a in session.state().items())
        assert_session(session, done)
        session.set_state({"grad": np.ones((6, 8), np.float32)})
        assert np.array_equal(session.state()["grad"], np.ones((6, 8)))


def test_bundles_and_the_tool(tmp_path):
    plan = load(tmp_path, "padded").parallelize()
    plan.compile(tmp_path / "b")
    with mw.load_bundle(tmp_path / "b").start() as session:
        assert_session(session)
    dy, x = CALLS[0]
    save_file({"dy": dy, "x": x}, tmp_path / "in.safetensors")
    for model in ([tmp_path / "b"], [tmp_path / "m.mlir", f"--weights={tmp_path}/w.safetensors", "--parallelize="]):
        done = launch(*model, f"--inputs={tmp_path}/in.safetensors", f"--outputs={tmp_path}/out.safetensors",
                      f"--save-state={tmp_path}/s")
        assert done.returncode == 0, done.stderr
        out = load_file(tmp_path / "out.safetensors")
        assert np.allclose(out["own"], dy.T @ x, atol=1e-5) and np.array_equal(out["top"], np.abs(dy).max(0))
        assert_state(saved_state(tmp_path / "s"), expected(CALLS[:1]))


PROCESS = """
import sys, pathlib
sys.path.insert(0, sys.argv[2])
import numpy as np
import meshwright as mw
import test_unreduced as t
folder = pathlib.Path(sys.argv[1])
model = mw.load(folder / "m.mlir", folder / "w.safetensors")
with model.parallelize().start(backend="mpi", timeout=60) as session:
    done = t.assert_session(session)
    session.save(folder / "state")
"""


@NEEDS_MPI[0]
@NEEDS_MPI[1]
def test_processes(tmp_path):
    model = load(tmp_path, "four")
    (tmp_path / "p.py").write_text(PROCESS)
    done = subprocess.run(mpirun(4, sys.executable, tmp_path / "p.py", tmp_path, pathlib.Path(__file__).parent),
                          capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stdout + done.stderr
    with model.parallelize().start() as session:
        assert_session(session)
        state = session.state()
    saved = saved_state(tmp_path / "state")
    assert all(np.array_equal(saved[n], state[n]) for n in state)


@pytest.mark.parametrize("type", [ml_dtypes.bfloat16, np.float16])
def test_parts_are_rounded_once(tmp_path, type):
    """1 and four times half a unit in the last place: adding them one by one in the type would stay at 1."""
    spelt = "bf16" if type is ml_dtypes.bfloat16 else "f16"
    tiny = float(ml_dtypes.finfo(type).eps) / 2
    (tmp_path / "m.mlir").write_text(f"""
dist.mesh @mesh = <["a"=8]>
func.func @main(%x: tensor<8x3x{spelt}> {{nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{{"a"}}, {{}}]>}})
    -> (tensor<3x{spelt}> {{nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{{}}], unreduced = {{"a"}}>}}) {{
  %y = nn.reduce sum %x dims [0] : (tensor<8x3x{spelt}>) -> tensor<3x{spelt}>
  return %y : tensor<3x{spelt}>
}}""")
    x = np.zeros((8, 3), type)
    x[0], x[2:6] = 1, tiny
    (y,) = mw.load(tmp_path / "m.mlir").parallelize().run(x)
    assert y.dtype == type and np.array_equal(y.astype(np.float64), np.full(3, 1 + 4 * tiny))


@pytest.mark.parametrize("kind", ["", "max "])
@pytest.mark.parametrize("type", [np.float32, np.int64])
def test_inputs(tmp_path, kind, type):
    """An unreduced input: the parts make up the value that the caller gives."""
    spelt = "f32" if type is np.float32 else "i64"
    unreduced = f'unreduced = {kind}{{"a"}}'
    (tmp_path / "m.mlir").write_text(f"""
dist.mesh @mesh = <["a"=2, "b"=2]>
func.func @main(%x: tensor<3x4x{spelt}> {{nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{{"b"}}, {{}}], {unreduced}>}})
    -> (tensor<3x4x{spelt}> {{nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{{}}, {{}}]>}},
        tensor<4x3x{spelt}> {{nn.output = "z", dist.sharding = #dist.sharding<@mesh, [{{}}, {{}}], {unreduced}>}}) {{
  %c = dist.constrain %x <@mesh, [{{}}, {{"b"}}], {unreduced}> : tensor<3x4x{spelt}>
  %z = nn.transpose %c [1, 0] : (tensor<3x4x{spelt}>) -> tensor<4x3x{spelt}>
  return %x, %z : tensor<3x4x{spelt}>, tensor<4x3x{spelt}>
}}""")
    x = (10 * random(3, 4)).astype(type)
    plan = mw.load(tmp_path / "m.mlir").parallelize()
    y, z = plan.run(x)
    assert np.array_equal(y, x) and np.array_equal(z, x.T)
    assert plan.check(x) == {"y": 0, "z": 0}


def test_truth_values_are_refused(tmp_path):
    (tmp_path / "m.mlir").write_text("""
dist.mesh @mesh = <["a"=2]>
func.func @main(%x: tensor<4xi1> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}], unreduced = {"a"}>, dist.global = tensor<4xi1>})
    -> (tensor<4xi1> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}], unreduced = {"a"}>, dist.global = tensor<4xi1>})
    attributes {dist.spmd = @mesh} {
  return %x : tensor<4xi1>
}""")
    done = subprocess.run([tool(), str(tmp_path / "m.mlir"), "--random-inputs=1"], capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 1
    assert "argument 'x': expected numbers, which have sums and maxima, as it is unreduced over {\"a\"}, got 'tensor<4xi1>'" in done.stderr
