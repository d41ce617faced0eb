# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Programs without a file of weights: --random-weights."""
import subprocess

import pytest
import torch
from harness import TIMEOUT, launch, tool
from safetensors.torch import load_file

# A token's embedding through a norm, an MLP and a sum; `part` is half of a stored tensor.
MODEL = """func.func @main(%ids: tensor<2x5xi64> {nn.input = "ids"}, %t: tensor<7x16xf32> {nn.parameter = "table"},
                %n: tensor<16xf32> {nn.parameter = "norm"}, %p: tensor<5xi64> {nn.parameter = "positions"},
                %w: tensor<32x16xf32> {nn.parameter = "up"},
                %a: tensor<16x16xf32> {nn.parameter = "down", nn.parameter_offsets = array<i64: 0, 0>},
                %b: tensor<16x16xf32> {nn.parameter = "down", nn.parameter_offsets = array<i64: 0, 16>})
    -> (tensor<2x5x16xf32> {nn.output = "y"}) {
  %0 = nn.embedding %ids, %t : (tensor<2x5xi64>, tensor<7x16xf32>) -> tensor<2x5x16xf32>
  %1 = nn.embedding %p, %t : (tensor<5xi64>, tensor<7x16xf32>) -> tensor<5x16xf32>
  %2 = nn.add %0, %1 : (tensor<2x5x16xf32>, tensor<5x16xf32>) -> tensor<2x5x16xf32>
  %3 = nn.rms_norm %2 weight %n eps 1.0e-05 : (tensor<2x5x16xf32>, tensor<16xf32>) -> tensor<2x5x16xf32>
  %4 = nn.linear %3, %w : (tensor<2x5x16xf32>, tensor<32x16xf32>) -> tensor<2x5x32xf32>
  %5 = nn.relu %4 : tensor<2x5x32xf32>
  %6 = nn.slice %5 starts [0, 0, 0] limits [2, 5, 16] strides [1, 1, 1] : (tensor<2x5x32xf32>) -> tensor<2x5x16xf32>
  %7 = nn.slice %5 starts [0, 0, 16] limits [2, 5, 32] strides [1, 1, 1] : (tensor<2x5x32xf32>) -> tensor<2x5x16xf32>
  %8 = nn.linear %6, %a : (tensor<2x5x16xf32>, tensor<16x16xf32>) -> tensor<2x5x16xf32>
  %9 = nn.linear %7, %b : (tensor<2x5x16xf32>, tensor<16x16xf32>) -> tensor<2x5x16xf32>
  %10 = nn.add %8, %9 : (tensor<2x5x16xf32>, tensor<2x5x16xf32>) -> tensor<2x5x16xf32>
  return %10 : tensor<2x5x16xf32>
}
"""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "m.mlir"
    path.write_text(MODEL)
    return path


def outputs(model, seed, *arguments):
    file = model.parent / "y.safetensors"
    done = launch(model, f"--random-weights={seed}", "--random-inputs=1", f"--outputs={file}", *arguments)
    assert done.returncode == 0, done.stderr
    return load_file(file)["y"]


def test_seed_decides(model):
    y = outputs(model, 1)
    assert y.isfinite().all() and 0.05 < y.std() < 20
    assert torch.equal(outputs(model, 1), y)
    assert not torch.equal(outputs(model, 2), y)


def test_no_mesh_changes_the_weights(model):
    y = outputs(model, 3)
    split = outputs(model, 3, "--parallelize=mesh=tp=2", "--check")
    assert (split - y).abs().max() <= 1e-5 * y.abs().max()


def test_name_decides(model):
    """Two parameters of one type differ, in any order."""
    y = outputs(model, 1)
    model.write_text(MODEL.replace('"up"', '"gate"'))
    assert not torch.equal(outputs(model, 1), y)


def test_bundle(model):
    """A bundle of random weights gives the same bits, and takes no other weights."""
    y, bundle = outputs(model, 5), model.parent / "bundle"
    compiler = tool().replace("sharding-run", "sharding-compile")
    subprocess.run([compiler, model, "--random-weights=5", "-o", bundle], check=True, timeout=TIMEOUT)
    file = model.parent / "b.safetensors"
    assert launch(bundle, "--random-inputs=1", f"--outputs={file}").returncode == 0
    assert torch.equal(load_file(file)["y"], y)
    done = launch(bundle, "--random-weights=5", "--random-inputs=1")
    assert done.returncode == 2 and "a bundle brings its weights: expected no --random-weights" in done.stderr


def test_weights_are_asked_for(model):
    done = launch(model, "--random-inputs=1")
    assert done.returncode == 1 and "give --weights or --random-weights" in done.stderr
