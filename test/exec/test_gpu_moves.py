# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Moves that depend on the coordinate of a rank, and rows written by index, by the backend `nccl` as by `local`."""
import os
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_gpu_running import FAKEGPU, pytestmark  # noqa: F401

MOVES = """dist.mesh @mesh = <["tp"=4]>
func.func @main(
    %x: tensor<3x5x8xT> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {}, {}]>, dist.global = tensor<3x5x8xT>},
    %y: tensor<11xT> {nn.input = "y", dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<11xT>},
    %d: tensor<3x10x7xT> {nn.input = "d", dist.sharding = #dist.sharding<@mesh, [{}, {}, {}]>, dist.global = tensor<3x10x7xT>},
    %i: tensor<4xi64> {nn.input = "i", dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<4xi64>},
    %s: tensor<3x4x7xT> {nn.input = "s", dist.sharding = #dist.sharding<@mesh, [{}, {}, {}]>, dist.global = tensor<3x4x7xT>})
    -> (tensor<3x5x8xT> {nn.output = "mask", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}]>, dist.global = tensor<3x13x8xT>},
        tensor<3x2x8xT> {nn.output = "slice", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}]>, dist.global = tensor<3x8x8xT>},
        tensor<3xT> {nn.output = "short", dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<12xT>},
        tensor<3x5x8xT> {nn.output = "partial", dist.sharding = #dist.sharding<@mesh, [{}, {}, {}], unreduced = {"tp"}>, dist.global = tensor<3x5x8xT>},
        tensor<1xi64> {nn.output = "first", dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<4xi64>},
        tensor<4xi64> {nn.output = "zigzag", dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<16xi64>},
        tensor<4xi64> {nn.output = "places", dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<16xi64>},
        tensor<3x10x7xT> {nn.output = "rows", dist.sharding = #dist.sharding<@mesh, [{}, {}, {}]>, dist.global = tensor<3x10x7xT>},
        tensor<3x10x7xT> {nn.output = "order", dist.sharding = #dist.sharding<@mesh, [{}, {}, {}]>, dist.global = tensor<3x10x7xT>},
        tensor<3x8x8xT> {nn.output = "place", dist.sharding = #dist.sharding<@mesh, [{}, {}, {}], unreduced = {"tp"}>, dist.global = tensor<3x8x8xT>})
    attributes {dist.spmd = @mesh} {
  %m = dist.mask_padding %x axes ["tp"] dim 1 size 13 value -2.0 : tensor<3x5x8xT>
  %c, %h = dist.slice %x, %y axes ["tp"] dims [1, 0] shift 1 : (tensor<3x5x8xT>, tensor<11xT>) -> (tensor<3x2x8xT>, tensor<3xT>)
  %p = dist.partial %x axes ["tp"] : (tensor<3x5x8xT>) -> tensor<3x5x8xT>
  %a = dist.axis_index ["tp"] chunk 7 : tensor<i64>
  %f = nn.reshape %a : (tensor<i64>) -> tensor<1xi64>
  %z = dist.positions <14 pad 16 zigzag 4{"tp"}> : tensor<4xi64>
  %n = dist.positions <14 pad 16{"tp"}> : tensor<4xi64>
  %r = nn.index_copy %d, %i, %s dim 1 : (tensor<3x10x7xT>, tensor<4xi64>, tensor<3x4x7xT>) -> tensor<3x10x7xT>
  %o = dist.reorder %d dim 1 from <9 pad 10> to <9 pad 10 zigzag 2> : tensor<3x10x7xT>
  %w = dist.place %c axes ["tp"] dim 1 shifts [1] : (tensor<3x2x8xT>) -> tensor<3x8x8xT>
  return %m, %c, %h, %p, %f, %z, %n, %r, %o, %w : tensor<3x5x8xT>, tensor<3x2x8xT>, tensor<3xT>, tensor<3x5x8xT>, tensor<1xi64>, tensor<4xi64>, tensor<4xi64>, tensor<3x10x7xT>, tensor<3x10x7xT>, tensor<3x8x8xT>
}
"""
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i64": torch.int64}


def run(folder, backend):
    path = os.pathsep.join(p for p in [str(FAKEGPU), os.environ.get("LD_LIBRARY_PATH", "")] if p)
    return subprocess.run(["sharding-run", folder / "m.mlir", f"--inputs={folder}/i.safetensors",
                           f"--outputs={folder}/{backend}.safetensors", f"--backend={backend}"], capture_output=True,
                          text=True, timeout=120, env={**os.environ, "LD_LIBRARY_PATH": path})


@pytest.mark.parametrize("dtype", TYPES)
def test_moves(tmp_path, dtype):
    generator = torch.Generator().manual_seed(0)
    given = {name: torch.randint(-99, 99, shape, generator=generator).to(TYPES[dtype])
             for name, shape in {"x": (3, 5, 8), "y": (11,), "d": (3, 10, 7), "s": (3, 4, 7)}.items()}
    given["i"] = torch.tensor([2, 9, 0, 2])
    (tmp_path / "m.mlir").write_text(MOVES.replace("xT>", f"x{dtype}>"))
    save_file(given, tmp_path / "i.safetensors")
    results = []
    for backend in ("local", "nccl"):
        done = run(tmp_path, backend)
        assert done.returncode == 0, done.stderr
        results.append(load_file(tmp_path / f"{backend}.safetensors"))
    for name, want in results[0].items():
        assert torch.equal(results[1][name], want), name
    want = given["d"].clone()
    for row, at in enumerate(given["i"]):
        want[:, at] = given["s"][:, row]
    assert torch.equal(results[1]["rows"], want)
    # A slice pads what the ranks do not divide.
    assert torch.equal(results[1]["place"], torch.cat([given["x"], given["x"].new_zeros(3, 3, 8)], 1))
    for wrong in (-1, 10):
        given["i"][2] = wrong
        save_file(given, tmp_path / "i.safetensors")
        done = run(tmp_path, "nccl")
        assert done.returncode == 1 and "nn.index_copy" in done.stderr and "out of range" in done.stderr, done.stderr
