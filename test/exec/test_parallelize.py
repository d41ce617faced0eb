# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""sharding-run that rewrites a program for several ranks first."""
import json

import pytest
import torch
from harness import launch, type_of
from safetensors.torch import load_file, save_file

BLOCK = """func.func @main(%x: tensor<2x7x24xf32> {nn.input = "x"},
    %n: tensor<24xf32> {nn.parameter = "n"}, %up: tensor<50x24xf32> {nn.parameter = "up"},
    %upb: tensor<50xf32> {nn.parameter = "upb"}, %down: tensor<24x50xf32> {nn.parameter = "down"},
    %downb: tensor<24xf32> {nn.parameter = "downb"}) -> (tensor<2x7x24xf32> {nn.output = "y"}) {
  %0 = nn.rms_norm %x weight %n eps 1.0e-6 {nn.id = 0 : i64} : (tensor<2x7x24xf32>, tensor<24xf32>) -> tensor<2x7x24xf32>
  %1 = nn.linear %0, %up bias %upb {nn.id = 1 : i64} : (tensor<2x7x24xf32>, tensor<50x24xf32>, tensor<50xf32>) -> tensor<2x7x50xf32>
  %2 = nn.gelu %1 {nn.id = 2 : i64} : tensor<2x7x50xf32>
  %3 = nn.linear %2, %down bias %downb {nn.id = 3 : i64} : (tensor<2x7x50xf32>, tensor<24x50xf32>, tensor<24xf32>) -> tensor<2x7x24xf32>
  %4 = nn.add %x, %3 {nn.id = 4 : i64} : (tensor<2x7x24xf32>, tensor<2x7x24xf32>) -> tensor<2x7x24xf32>
  return %4 : tensor<2x7x24xf32>
}
"""


@pytest.fixture
def files(tmp_path):
    generator = torch.Generator().manual_seed(0)
    (tmp_path / "m.mlir").write_text(BLOCK)
    shapes = {"n": (24,), "up": (50, 24), "upb": (50,), "down": (24, 50), "downb": (24,)}
    save_file({k: torch.randn(*s, generator=generator) for k, s in shapes.items()}, tmp_path / "w.safetensors")
    save_file({"x": torch.randn(2, 7, 24, generator=generator)}, tmp_path / "x.safetensors")
    return tmp_path


def run(files, *arguments):
    return launch(files / "m.mlir", f"--weights={files}/w.safetensors", f"--inputs={files}/x.safetensors", *arguments)


@pytest.mark.parametrize("options", ["mesh=tp=1", "mesh=tp=2 sequence-parallel=on", "mesh=tp=3 sequence-parallel=off",
                                     "mesh=dp=2,tp=4", "mesh=tp=8 sequence-parallel=on"])
def test_equal_to_one_rank_and_to_itself(files, options):
    reference = files / "one.safetensors"
    assert run(files, f"--outputs={reference}").returncode == 0
    results = []
    for i in range(2):
        done = run(files, f"--parallelize={options}", "--check", f"--reference={reference}", f"--outputs={files}/{i}.safetensors")
        assert done.returncode == 0, done.stderr
        results.append(load_file(files / f"{i}.safetensors")["y"])
    assert torch.equal(*results)


@pytest.mark.parametrize("options", ["mesh=dp=2", "mesh=dp=4", "mesh=dp=2,tp=2 sequence-parallel=on"])
def test_padding_is_no_index(tmp_path, options):
    # Three sequences for two ranks. The index computed from padding, -1, is in no table.
    (tmp_path / "m.mlir").write_text("""func.func @main(%i: tensor<3x5xi64> {nn.input = "i"}, %x: tensor<3x7xf32> {nn.input = "x"}, %e: tensor<31x8xf32> {nn.parameter = "e"})
        -> (tensor<3x5x8xf32> {nn.output = "rows"}, tensor<3x5x8xf32> {nn.output = "again"}, tensor<3x5xf32> {nn.output = "elements"}) {
      %one = nn.constant dense<1> : tensor<i64>
      %0 = nn.sub %i, %one {nn.id = 0 : i64} : (tensor<3x5xi64>, tensor<i64>) -> tensor<3x5xi64>
      %1 = nn.embedding %0, %e {nn.id = 1 : i64} : (tensor<3x5xi64>, tensor<31x8xf32>) -> tensor<3x5x8xf32>
      %2 = nn.gather %e, %0 dim 0 {nn.id = 2 : i64} : (tensor<31x8xf32>, tensor<3x5xi64>) -> tensor<3x5x8xf32>
      %3 = nn.take_along %x, %0 dim 1 {nn.id = 3 : i64} : (tensor<3x7xf32>, tensor<3x5xi64>) -> tensor<3x5xf32>
      return %1, %2, %3 : tensor<3x5x8xf32>, tensor<3x5x8xf32>, tensor<3x5xf32>
    }""")
    generator = torch.Generator().manual_seed(0)
    indices = torch.randint(1, 8, (3, 5), generator=generator)
    x, e = torch.randn(3, 7, generator=generator), torch.randn(31, 8, generator=generator)
    save_file({"i": indices, "x": x}, tmp_path / "x.safetensors")
    save_file({"e": e}, tmp_path / "w.safetensors")
    done = run(tmp_path, f"--parallelize={options}", "--check", f"--outputs={tmp_path}/y.safetensors")
    assert done.returncode == 0, done.stdout + done.stderr
    got = load_file(tmp_path / "y.safetensors")
    assert torch.equal(got["rows"], e[indices - 1]) and torch.equal(got["again"], e[indices - 1])
    assert torch.equal(got["elements"], x.gather(1, indices - 1))


@pytest.mark.parametrize("options", ["mesh=tp=1", "mesh=tp=4", "mesh=tp=2 sequence-parallel=on", "mesh=dp=2,tp=3"])
def test_rows_replaced_by_index(tmp_path, options):
    # As a cache of keys is written: 6 heads, which 4 ranks do not divide, at given positions.
    (tmp_path / "m.mlir").write_text("""func.func @main(%x: tensor<3x2x8xf32> {nn.input = "x"}, %c: tensor<3x6x7x4xf32> {nn.input = "c"}, %i: tensor<2xi64> {nn.input = "i"}, %w: tensor<24x8xf32> {nn.parameter = "w"})
        -> (tensor<3x6x7x4xf32> {nn.output = "y"}) {
      %0 = nn.linear %x, %w {nn.id = 0 : i64} : (tensor<3x2x8xf32>, tensor<24x8xf32>) -> tensor<3x2x24xf32>
      %1 = nn.reshape %0 {nn.id = 1 : i64} : (tensor<3x2x24xf32>) -> tensor<3x2x6x4xf32>
      %2 = nn.transpose %1 [0, 2, 1, 3] {nn.id = 2 : i64} : (tensor<3x2x6x4xf32>) -> tensor<3x6x2x4xf32>
      %3 = nn.index_copy %c, %i, %2 dim 2 {nn.id = 3 : i64} : (tensor<3x6x7x4xf32>, tensor<2xi64>, tensor<3x6x2x4xf32>) -> tensor<3x6x7x4xf32>
      return %3 : tensor<3x6x7x4xf32>
    }""")
    generator = torch.Generator().manual_seed(0)
    x, c, w = (torch.randn(*shape, generator=generator) for shape in ((3, 2, 8), (3, 6, 7, 4), (24, 8)))
    save_file({"w": w}, tmp_path / "w.safetensors")
    for index in ([5, 0], [3, 3], [6, 7], [-1, 2]):
        save_file({"x": x, "c": c, "i": torch.tensor(index)}, tmp_path / "x.safetensors")
        done = run(tmp_path, f"--parallelize={options}", "--check", f"--outputs={tmp_path}/y.safetensors")
        if index in ([6, 7], [-1, 2]):
            assert done.returncode == 1 and "nn.index_copy" in done.stderr and "m.mlir:6" in done.stderr, done.stderr
            assert "is out of range: expected 0 to 6" in done.stderr
            continue
        assert done.returncode == 0, done.stdout + done.stderr
        want = c.clone()
        for n, position in enumerate(index):
            want[:, :, position] = (x[:, n] @ w.mT).reshape(3, 6, 4)
        assert torch.allclose(load_file(tmp_path / "y.safetensors")["y"], want, atol=1e-5)


@pytest.mark.parametrize("mesh,before,after,sharding", [
    ('"x"=8', (2, 6, 16, 13), (6, 16, 2, 13), '[{}, {"x"}, {}, {}]'),
    ('"x"=6', (1, 3, 40), (6, 1, 20), '[{}, {}, {"x"}]'),
    ('"x"=4', (3, 28), (1, 6, 14, 1), '[{}, {"x"}]'),
    ('"x"=2, "y"=2', (1, 1, 9, 14), (18, 7), '[{}, {}, {"y"}, {"x"}]'),
])
def test_reshapes_of_padded_dimensions(tmp_path, mesh, before, after, sharding):
    # The coordinate of a shard moves to another dimension, and the local order of elements stays.
    x = torch.randn(before, generator=torch.Generator().manual_seed(0))
    (tmp_path / "m.mlir").write_text(f"""dist.mesh @mesh = <[{mesh}]>
    func.func @main(%x: {type_of(x)} {{nn.input = "x", dist.sharding = #dist.sharding<@mesh, {sharding}>}}) -> ({type_of(x.reshape(after))} {{nn.output = "y"}}) {{
      %0 = nn.reshape %x {{nn.id = 0 : i64}} : ({type_of(x)}) -> {type_of(x.reshape(after))}
      return %0 : {type_of(x.reshape(after))}
    }}""")
    save_file({"x": x}, tmp_path / "x.safetensors")
    save_file({}, tmp_path / "w.safetensors")
    done = run(tmp_path, "--parallelize=data-parallel=none tensor-parallel=none", "--check", f"--outputs={tmp_path}/y.safetensors")
    assert done.returncode == 0, done.stdout + done.stderr
    assert torch.equal(load_file(tmp_path / "y.safetensors")["y"], x.reshape(after))


@pytest.mark.parametrize("overlap", ["on", "off"])
def test_sums_of_equal_rows(tmp_path, overlap):
    # Each rank along "x" owns some of the equal rows; their sum over "tp" stays whole.
    (tmp_path / "m.mlir").write_text("""dist.mesh @mesh = <["x"=2, "tp"=4]>
    func.func @main(%x: tensor<2x8xf32> {nn.input = "x"}, %w: tensor<7x8xf32> {nn.parameter = "w", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>}) -> (tensor<3x2x7xf32> {nn.output = "y"}) {
      %0 = nn.broadcast %x {nn.id = 0 : i64} : (tensor<2x8xf32>) -> tensor<3x2x8xf32>
      %1 = nn.linear %0, %w {nn.id = 1 : i64, dist.sharding = #dist.sharding<@mesh, [{"x"}, {}, {}]>} : (tensor<3x2x8xf32>, tensor<7x8xf32>) -> tensor<3x2x7xf32>
      return %1 : tensor<3x2x7xf32>
    }""")
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(2, 8, generator=generator), torch.randn(7, 8, generator=generator)
    save_file({"x": x}, tmp_path / "x.safetensors")
    save_file({"w": w}, tmp_path / "w.safetensors")
    done = run(tmp_path, f"--parallelize=data-parallel=none tensor-parallel=none overlap={overlap}", "--check", f"--outputs={tmp_path}/y.safetensors")
    assert done.returncode == 0, done.stdout + done.stderr
    assert torch.allclose(load_file(tmp_path / "y.safetensors")["y"], (x @ w.mT).expand(3, 2, 7), atol=1e-5)


LOOKUP = """func.func @main(%i: tensor<3x5xi64> {nn.input = "i"}, %e: tensor<31x8xf32> {nn.parameter = "e"}) -> (tensor<3x5x8xf32> {nn.output = "y"}) {
  %0 = nn.embedding %i, %e {nn.id = 0 : i64} : (tensor<3x5xi64>, tensor<31x8xf32>) -> tensor<3x5x8xf32>
  return %0 : tensor<3x5x8xf32>
}
"""


@pytest.mark.parametrize("options", ["mesh=tp=1", "mesh=tp=2", "mesh=tp=3 sequence-parallel=on", "mesh=dp=2,tp=2"])
def test_indices_that_no_rank_has(tmp_path, options):
    # 31 rows: the last rank's are padded, and what it pads is no row either.
    (tmp_path / "m.mlir").write_text(LOOKUP)
    table = torch.randn(31, 8, generator=torch.Generator().manual_seed(0))
    save_file({"e": table}, tmp_path / "w.safetensors")
    for index in (0, 30, 31, 2**40, -1):
        indices = torch.arange(2, 17).reshape(3, 5)
        indices[1, 3] = index
        save_file({"i": indices}, tmp_path / "x.safetensors")
        done = run(tmp_path, f"--parallelize={options}", f"--outputs={tmp_path}/y.safetensors")
        if 0 <= index < 31:
            assert done.returncode == 0, done.stderr
            assert torch.equal(load_file(tmp_path / "y.safetensors")["y"], table[indices])
            (tmp_path / "y.safetensors").unlink()
        else:
            assert done.returncode == 1 and not (tmp_path / "y.safetensors").exists()
            assert "nn.embedding" in done.stderr and "m.mlir:2" in done.stderr, done.stderr
            assert f"index {index} at position " in done.stderr and "is out of range: expected 0 to 30" in done.stderr


def test_report(files):
    done = run(files, "--parallelize=mesh=tp=2", "--report")
    assert done.returncode == 0 and "all_reduce" in done.stdout or "reduce_scatter" in done.stdout, done.stderr
    done = run(files, "--parallelize=mesh=tp=2", f"--report={files}/r.json")
    assert done.returncode == 0, done.stderr
    assert json.loads((files / "r.json").read_text())["ranks"] == 2


def test_a_failed_check_names_the_value(files):
    done = run(files, "--parallelize=mesh=tp=4 sequence-parallel=on", "--check", "--tolerance=0")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "first in program order" in done.stderr


def test_bad_options(files):
    assert run(files, "--parallelize=mesh=tp").returncode == 2
    assert run(files, "--parallelize=nonsense=1").returncode == 2
    done = run(files, "--check")
    assert done.returncode == 1 and "expected options to parallelize" in done.stderr
