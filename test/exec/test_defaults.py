# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Inputs that a call may leave out: `nn.default`."""
import numpy as np
import pytest
from harness import launch
from safetensors.numpy import load_file, save_file

import meshwright as mw

# `shift` has a part on each rank, and dp=4 pads it.
MODEL = """
nn.state @calls {fill = 0 : i64} : tensor<i64>
func.func @main(%rate: tensor<f32> {nn.input = "rate", nn.default = 2.5 : f32},
                %x: tensor<6xf32> {nn.input = "x"},
                %shift: tensor<6xf32> {nn.input = "shift", nn.default = -1.0 : f32},
                %keep: tensor<6xi1> {nn.input = "keep", nn.default = true},
                %by: tensor<i64> {nn.input = "by", nn.default = 3 : i64},
                %w: tensor<6xf32> {nn.parameter = "w"}) -> (tensor<6xf32> {nn.output = "y"}) {
  %0 = nn.mul %x, %rate : (tensor<6xf32>, tensor<f32>) -> tensor<6xf32>
  %1 = nn.add %0, %shift : (tensor<6xf32>, tensor<6xf32>) -> tensor<6xf32>
  %y = nn.select %keep, %1, %w : (tensor<6xi1>, tensor<6xf32>, tensor<6xf32>) -> tensor<6xf32>
  %n = nn.read @calls : tensor<i64>
  %next = nn.add %n, %by : (tensor<i64>, tensor<i64>) -> tensor<i64>
  nn.write @calls, %next : tensor<i64>
  return %y : tensor<6xf32>
}
func.func @peek(%by: tensor<i64> {nn.input = "by", nn.default = 0 : i64}) -> (tensor<i64> {nn.output = "n"}) {
  %n = nn.read @calls : tensor<i64>
  %next = nn.add %n, %by : (tensor<i64>, tensor<i64>) -> tensor<i64>
  return %next : tensor<i64>
}
"""
X = np.arange(6, dtype=np.float32)
W = np.full(6, 9, np.float32)


@pytest.fixture
def model(tmp_path):
    (tmp_path / "m.mlir").write_text(MODEL)
    save_file({"w": W}, tmp_path / "w.safetensors")
    return mw.load(tmp_path / "m.mlir", tmp_path / "w.safetensors")


def assert_session(session):
    """Each default by itself, then values in their place."""
    assert np.array_equal(session.run(x=X)[0], 2.5 * X - 1)
    assert np.array_equal(session.run(x=X, rate=2, shift=None)[0], 2 * X - 1)
    assert np.array_equal(session.run(np.float32(0.5), X, X)[0], 1.5 * X)
    assert np.array_equal(session.run(x=X, keep=X < 2)[0], np.where(X < 2, 2.5 * X - 1, 9))
    assert session.run(entry="peek")[0] == 12
    session.run(x=X, by=np.array(7))
    assert session.run(entry="peek", by=-19)[0] == 0
    with pytest.raises(mw.InputError, match="input 'x' is missing"):
        session.run(rate=1.0)
    with pytest.raises(mw.InputError, match=r"input 'rate': expected f32\[\], got f32\[1\]"):
        session.run(x=X, rate=np.ones(1, np.float32))


@pytest.mark.parametrize("mesh", [{"dp": 1}, {"dp": 4}, {"dp": 2, "tp": 2}])
def test_sessions(model, mesh):
    plan = model.parallelize(mesh=mesh)
    with plan.start() as session:
        assert_session(session)
    assert np.array_equal(plan.run(x=X)[0], 2.5 * X - 1)
    assert plan.check(x=X, by=5)["y"] <= 1e-6


def test_bundles_and_the_tool(model, tmp_path):
    model.parallelize(mesh={"dp": 2}).compile(tmp_path / "b")
    with mw.load_bundle(tmp_path / "b").start() as session:
        assert_session(session)
    save_file({"x": X}, tmp_path / "x.safetensors")
    save_file({"x": X, "rate": np.array(3, np.float32)}, tmp_path / "rate.safetensors")
    save_file({"rate": np.array(3, np.float32)}, tmp_path / "no.safetensors")
    out = tmp_path / "out.safetensors"
    for program in ([tmp_path / "b"], [tmp_path / "m.mlir", f"--weights={tmp_path}/w.safetensors", "--parallelize=mesh=dp=2"]):
        for file, rate in (("x", 2.5), ("rate", 3)):
            done = launch(*program, f"--inputs={tmp_path}/{file}.safetensors", f"--outputs={out}")
            assert done.returncode == 0, done.stderr
            assert np.array_equal(load_file(out)["y"], rate * X - 1)
        done = launch(*program, "--entry=peek", f"--outputs={out}")
        assert done.returncode == 0 and load_file(out)["n"] == 0, done.stderr
        done = launch(*program, f"--inputs={tmp_path}/no.safetensors")
        assert done.returncode == 1 and "has no tensor 'x'" in done.stderr
