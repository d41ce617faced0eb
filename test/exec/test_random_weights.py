# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Programs without a file of weights: --random-weights, and bundles without weights."""
import json
import subprocess

import pytest
import torch
from harness import TIMEOUT, launch, tool
from safetensors.torch import load_file, save_file

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
    """Those of a program or a bundle."""
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
    for option, what in (("--random-weights=5", "random weights"), ("--weights=w", "file of weights")):
        done = launch(bundle, option, "--random-inputs=1")
        assert done.returncode == 1 and f"the bundle has its weights: expected no {what}" in done.stderr


def compile_without(model, *arguments):
    bundle = model.parent / "bundle"
    compiler = tool().replace("sharding-run", "sharding-compile")
    subprocess.run([compiler, model, "--without-weights", *arguments, "-o", bundle], check=True, timeout=TIMEOUT)
    return bundle


@pytest.mark.parametrize("mesh", ["tp=1", "tp=2", "dp=2,tp=3"])
def test_bundle_without_weights(model, mesh):
    """It is filled with the weights that the program gets: packed, sharded, padded, and parts of a tensor."""
    plan = f"--parallelize=mesh={mesh}"
    bundle = compile_without(model, plan)
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert {t["name"]: t["shape"] for t in manifest["tensors"]} == {
        "table": [7, 16], "norm": [16], "positions": [5], "up": [32, 16], "down": [16, 32]}
    assert not any("data" in value for key in ("parameters", "prepared") for value in manifest[key])
    assert outputs(model, 5, plan).equal(outputs(bundle, 5))
    assert not outputs(bundle, 5).equal(outputs(bundle, 6))


def test_a_file_fills_a_bundle(model):
    bundle, weights = compile_without(model, "--parallelize=mesh=tp=2"), model.parent / "w.safetensors"
    tensors = {"table": torch.randn(7, 16), "norm": torch.rand(16), "positions": torch.arange(5),
               "up": torch.randn(32, 16), "down": torch.randn(16, 32)}
    results = []
    for wanted, changes in ((None, {}), ("has no tensor 'up', a parameter of the program", {"up": None}),
                            ("parameter 'norm': expected f32[16], got f32[15]", {"norm": torch.rand(15)})):
        kept = {**tensors, **changes}
        save_file({name: tensor for name, tensor in kept.items() if tensor is not None}, weights)
        for program in (bundle, model):
            file = model.parent / "y.safetensors"
            done = launch(program, f"--weights={weights}", "--random-inputs=1", f"--outputs={file}",
                          *["--parallelize=mesh=tp=2"] * (program == model))
            assert done.returncode == (wanted is not None), done.stderr
            if wanted is None:
                results.append(load_file(file)["y"])
            elif program == bundle:
                assert wanted in done.stderr
    assert results[0].equal(results[1])


def test_a_bundle_asks_for_weights(model):
    bundle = compile_without(model)
    done = launch(bundle, "--random-inputs=1")
    assert done.returncode == 1 and ("bundle/manifest.json: the bundle has no weights: expected a file of weights or a "
                                     "seed of random ones") in done.stderr
    assert "parameter 'table' has no data" not in done.stderr


def test_state_begins_with_random_weights(tmp_path):
    """A state, and an entry that reads the parameter packed only."""
    model = tmp_path / "m.mlir"
    model.write_text("""
nn.state @s {parameter = "start"} : tensor<6x8xf32>
func.func @main(%x: tensor<5x8xf32> {nn.input = "x"}, %w: tensor<8x8xf32> {nn.parameter = "w"})
    -> (tensor<5x6xf32> {nn.output = "y"}) {
  %s = nn.read @s : tensor<6x8xf32>
  %0 = nn.linear %x, %w : (tensor<5x8xf32>, tensor<8x8xf32>) -> tensor<5x8xf32>
  %1 = nn.linear %0, %s : (tensor<5x8xf32>, tensor<6x8xf32>) -> tensor<5x6xf32>
  %2 = nn.add %s, %s : (tensor<6x8xf32>, tensor<6x8xf32>) -> tensor<6x8xf32>
  nn.write @s, %2 : tensor<6x8xf32>
  return %1 : tensor<5x6xf32>
}
""")
    y = outputs(model, 4)
    assert y.abs().max() > 0
    assert y.equal(outputs(compile_without(model), 4))


def test_weights_are_asked_for(model):
    done = launch(model, "--random-inputs=1")
    assert done.returncode == 1 and "give --weights or --random-weights" in done.stderr
