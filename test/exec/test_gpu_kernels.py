# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels for GPUs on the stand-in for the driver: the programs of test_rows and test_nn, against PyTorch;
ptxas assembles them."""
import re
import shutil
import subprocess

import gpu_programs
import harness
import pytest
import test_nn
import test_rows
import torch
from test_nn import (test_binary, test_bits, test_casts, test_integers, test_logarithms_of_small_numbers,  # noqa: F401
                     test_nan, test_truth_values, test_unary)
from test_rows import (test_a_choice_for_each_row, test_add_norm, test_elements_of_all_types,  # noqa: F401
                       test_exponentials_of_all_sizes, test_f32_between_bf16, test_gated_activations, test_heads,
                       test_masked_softmax, test_moves, test_norm_of_sum_with_norm, test_reductions_of_rows,
                       test_threads_do_not_show)

pytestmark = pytest.mark.skipif(gpu_programs.missing() is not None, reason=str(gpu_programs.missing()))


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch, request):
    if request.node.name in ("test_binary[f64]", "test_unary[f64]"):
        pytest.skip("functions of libdevice use instructions that the stand-in does not have")
    for module in (harness, test_nn, test_rows):
        monkeypatch.setattr(module, "run_module", gpu_programs.run_program)


ROWS = """func.func @main(%x: tensor<ROWSxCOLUMNSxT> {nn.input = "x"}, %y: tensor<ROWSxCOLUMNSxT> {nn.input = "y"},
    %w: tensor<COLUMNSxT> {nn.input = "w"})
    -> (tensor<ROWSxCOLUMNSxT> {nn.output = "h"}, tensor<ROWSxCOLUMNSxT> {nn.output = "n"}, tensor<ROWSxCOLUMNSxT> {nn.output = "s"}) {
  %h = nn.add %x, %y : (tensor<ROWSxCOLUMNSxT>, tensor<ROWSxCOLUMNSxT>) -> tensor<ROWSxCOLUMNSxT>
  %n = nn.rms_norm %h weight %w eps 1.0e-5 : (tensor<ROWSxCOLUMNSxT>, tensor<COLUMNSxT>) -> tensor<ROWSxCOLUMNSxT>
  %s = nn.softmax %y dim 1 : tensor<ROWSxCOLUMNSxT>
  return %h, %n, %s : tensor<ROWSxCOLUMNSxT>, tensor<ROWSxCOLUMNSxT>, tensor<ROWSxCOLUMNSxT>
}
"""


def rows_program(rows, columns, dtype):
    return ROWS.replace("ROWS", str(rows)).replace("COLUMNS", str(columns)).replace("xT", f"x{dtype}")


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("columns", [64, 256, 520, 4096, 4101, 9000])
def test_rows_of_all_lengths(tmp_path, dtype, columns):
    """Lanes of a warp, a block, a block of registers, and loops. Two runs give the same bits."""
    kind = gpu_programs.TYPES[dtype]
    generator = torch.Generator().manual_seed(0)
    x, y, w = (torch.randn(*shape, generator=generator).to(kind) for shape in ((5, columns), (5, columns), (columns,)))
    program = rows_program(5, columns, dtype)
    got = gpu_programs.run_program(tmp_path, program, {"x": x, "y": y, "w": w})
    h = x + y
    norm = h.float() * torch.rsqrt(h.float().pow(2).mean(-1, keepdim=True) + 1e-5) * w.float()
    bound = {"f32": 2e-6, "bf16": 1.6e-2, "f16": 2e-3}[dtype]
    for name, want in {"h": h, "n": norm, "s": y.float().softmax(-1)}.items():
        assert (got[name].float() - want.float()).abs().max() <= bound * want.float().abs().max(), name
    again = gpu_programs.run_program(tmp_path, program, {"x": x, "y": y, "w": w})
    assert all(torch.equal(got[name], again[name]) for name in got)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_accesses(tmp_path, dtype):
    """Rows are read and written by 16 bytes, once, and reduced by shuffles."""
    _, code = gpu_programs.compile_kernels(tmp_path, rows_program(64, 4096, dtype))
    for text in code.values():
        loads = re.findall(r"ld\.global[.\w]*", text)
        assert loads and all(".v4.b32" in load or ".v2.b64" in load for load in loads), loads
        assert all(".v4.b32" in s or ".v2.b64" in s for s in re.findall(r"st\.global[.\w]*", text))
        assert text.count("shfl.sync.bfly") in (8, 16)
    # Each block reads the row of x, y and w once: 16 elements a thread and 512 threads at most.
    norm = next(text for text in code.values() if "rsqrt" in text or "sqrt.rn" in text)
    threads = int(re.search(r"\.reqntid (\d+)", norm).group(1))
    bytes_each = 4096 * (4 if dtype == "f32" else 2) // threads
    assert len(re.findall(r"ld\.global", norm)) == 3 * bytes_each // 16


def test_logarithms_of_f64(tmp_path):
    """Numbers of all sizes, also those that are not normal, and those without a logarithm."""
    x = torch.randn(500, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).mul(230).exp()
    x = torch.cat([x, 1 + torch.linspace(-1e-3, 1e-3, 100, dtype=torch.float64), torch.tensor(
        [5e-324, 1e-310, 2.2250738585072014e-308, 1.7976931348623157e308, 1.0, float("inf"), 0.0, -1.0,
         float("nan"), -float("inf")], dtype=torch.float64)])
    program = (f'func.func @main(%x: tensor<{len(x)}xf64> {{nn.input = "x"}}) -> (tensor<{len(x)}xf64> '
               f'{{nn.output = "y"}}) {{\n  %y = nn.log %x : tensor<{len(x)}xf64>\n'
               f"  return %y : tensor<{len(x)}xf64>\n}}\n")
    got = gpu_programs.run_program(tmp_path, program, {"x": x})["y"]
    assert torch.allclose(got, x.log(), rtol=5e-16, atol=0, equal_nan=True), (got - x.log()).abs().max()


MASKS = """dist.mesh @mesh = <["tp"=4]>
func.func @main(
    %x: tensor<5x12xT> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, (10 pad 12)]>, dist.global = tensor<5x10xT>},
    %r: tensor<12x6xT> {nn.input = "r", dist.sharding = #dist.sharding<@mesh, [(10 pad 12), {}]>, dist.global = tensor<10x6xT>})
    -> (tensor<5x12xT> {nn.output = "columns", dist.sharding = #dist.sharding<@mesh, [{}, (10 pad 12)]>, dist.global = tensor<5x10xT>},
        tensor<12x6xT> {nn.output = "rows", dist.sharding = #dist.sharding<@mesh, [(10 pad 12), {}]>, dist.global = tensor<10x6xT>},
        tensor<12xi64> {nn.output = "places", dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<46xi64>})
    attributes {dist.spmd = @mesh} {
  %t = dist.positions <10 pad 12> : tensor<12xi64>
  %zero = nn.constant dense<0> : tensor<i64>
  %n = nn.constant dense<0.0> : tensor<T>
  %c = nn.compare ge %t, %zero : (tensor<12xi64>, tensor<i64>) -> tensor<12xi1>
  %e = nn.exp %x : tensor<5x12xT>
  %m = nn.select %c, %e, %n : (tensor<12xi1>, tensor<5x12xT>, tensor<T>) -> tensor<5x12xT>
  %v = nn.reshape %c : (tensor<12xi1>) -> tensor<12x1xi1>
  %s = nn.select %v, %r, %n : (tensor<12x1xi1>, tensor<12x6xT>, tensor<T>) -> tensor<12x6xT>
  %p = dist.positions <46 pad 48{"tp"}> shift 1 : tensor<12xi64>
  %d = nn.mul %p, %p : (tensor<12xi64>, tensor<12xi64>) -> tensor<12xi64>
  return %m, %s, %d : tensor<5x12xT>, tensor<12x6xT>, tensor<12xi64>
}
"""


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_masks_of_padding(tmp_path, dtype):
    """On the first rank, whose chunk of the shifted dimension is the last one."""
    kind = gpu_programs.TYPES[dtype]
    x, r = (torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(kind) for shape in ((5, 12), (12, 6)))
    x[:, 10:], r[10:] = float("inf"), float("nan")
    got = gpu_programs.run_program(tmp_path, MASKS.replace("xT>", f"x{dtype}>").replace("<T>", f"<{dtype}>"),
                                   {"x": x, "r": r})
    assert not got["columns"][:, 10:].any() and not got["rows"][10:].any()
    want = x[:, :10].double().exp()
    assert (got["columns"][:, :10].double() - want).abs().max() <= 1e-2 * want.max()
    assert torch.equal(got["rows"][:10], r[:10])
    assert got["places"].tolist() == [i * i for i in range(36, 46)] + [1, 1]


@pytest.mark.parametrize("chip", ["sm_80", "sm_90a", "sm_100", "sm_120"])
def test_ptxas_accepts_kernels(tmp_path, chip):
    ptxas = shutil.which("ptxas")
    if not ptxas:
        pytest.skip("ptxas is not on the path")
    for dtype in ("f32", "bf16", "f16"):
        for columns in (97, 4096, 9000):
            folder = tmp_path / f"{dtype}-{columns}"
            folder.mkdir()
            _, code = gpu_programs.compile_kernels(folder, rows_program(16, columns, dtype), f"gpu:{chip}")
            for name in code:
                done = subprocess.run([ptxas, f"-arch={chip}", "-v", folder / "kernels" / f"{name}.ptx",
                                       "-o", folder / "cubin"], capture_output=True, text=True)
                assert done.returncode == 0, done.stderr
                assert " 0 bytes spill stores, 0 bytes spill loads" in done.stderr, done.stderr


INDICES = """func.func @main(%t: tensor<7xCOLUMNSxT> {nn.input = "t"}, %i: tensor<3x2xi64> {nn.input = "i"},
    %j: tensor<4xCOLUMNSxi32> {nn.input = "j"}) -> (tensor<3x2xCOLUMNSxT> {nn.output = "e"},
    tensor<7x3x2xT> {nn.output = "g"}, tensor<4xCOLUMNSxT> {nn.output = "a"}) {
  %e = ROWS -> tensor<3x2xCOLUMNSxT>
  %g = nn.gather %t, %i dim 1 : (tensor<7xCOLUMNSxT>, tensor<3x2xi64>) -> tensor<7x3x2xT>
  %a = nn.take_along %t, %j dim 0 : (tensor<7xCOLUMNSxT>, tensor<4xCOLUMNSxi32>) -> tensor<4xCOLUMNSxT>
  return %e, %g, %a : tensor<3x2xCOLUMNSxT>, tensor<7x3x2xT>, tensor<4xCOLUMNSxT>
}
"""


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i64", "i1"])
@pytest.mark.parametrize("columns", [7, 64])
def test_reads_by_index(tmp_path, dtype, columns):
    rows = ("nn.gather %t, %i dim 0 : (tensor<7xCOLUMNSxT>, tensor<3x2xi64>)" if dtype[0] == "i" else
            "nn.embedding %i, %t : (tensor<3x2xi64>, tensor<7xCOLUMNSxT>)")
    program = INDICES.replace("ROWS", rows).replace("COLUMNS", str(columns)).replace("xT", f"x{dtype}")
    generator = torch.Generator().manual_seed(0)
    table = torch.randint(0, 9, (7, columns), generator=generator).to(gpu_programs.TYPES[dtype])
    i = torch.randint(0, 7, (3, 2), generator=generator)
    j = torch.randint(0, 7, (4, columns), generator=generator).int()
    got = gpu_programs.run_program(tmp_path, program, {"t": table, "i": i, "j": j})
    assert torch.equal(got["e"], table[i])
    assert torch.equal(got["g"], table[:, i])
    assert torch.equal(got["a"], table.gather(0, j.long()))
    for wrong in (-1, 7):
        i[1, 1] = wrong
        with pytest.raises(IndexError, match="3"):
            gpu_programs.run_program(tmp_path, program, {"t": table, "i": i, "j": j})
