# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels for GPUs on the stand-in for the driver: the programs of test_rows and test_nn, against PyTorch;
ptxas assembles them."""
import re

import gpu_programs
import harness
import pytest
import test_dropout
import test_nn
import test_rows
import torch
from test_dropout import test_channels_and_what_is_not_finite, test_elements  # noqa: F401
from test_nn import (test_binary, test_bits, test_casts, test_integers, test_logarithms_of_small_numbers,  # noqa: F401
                     test_nan, test_truth_values, test_unary)
from test_nn import test_products as test_products_of_shapes  # noqa: F401
from test_nn import test_scatter_add, test_weight_grad  # noqa: F401
from test_rows import (test_a_choice_for_each_row, test_add_norm, test_elements_of_all_types,  # noqa: F401
                       test_exponentials_of_all_sizes, test_f32_between_bf16, test_gated_activations, test_heads,
                       test_masked_softmax, test_moves, test_norm_of_sum_with_norm, test_reductions_of_rows,
                       test_threads_do_not_show)

pytestmark = pytest.mark.skipif(gpu_programs.missing() is not None, reason=str(gpu_programs.missing()))


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch, request):
    if request.node.name in ("test_binary[f64]", "test_unary[f64]"):
        pytest.skip("functions of libdevice use instructions that the stand-in does not have")
    for module in (harness, test_dropout, test_nn, test_rows):
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


PRODUCT = """func.func @main(%x: tensor<ROWSxINxT> {nn.input = "x"}, %w: tensor<OUTxINxT> {nn.parameter = "w"},
    %b: tensor<OUTxT> {nn.parameter = "b"}) -> (tensor<ROWSxOUTxT> {nn.output = "y"}) {
  %y = nn.linear %x, %w bias %b : (tensor<ROWSxINxT>, tensor<OUTxINxT>, tensor<OUTxT>) -> tensor<ROWSxOUTxT>
  return %y : tensor<ROWSxOUTxT>
}
"""


def product_program(rows, inputs, outputs, dtype):
    text = PRODUCT.replace("ROWS", str(rows)).replace("IN", str(inputs)).replace("OUT", str(outputs))
    return text.replace("xT>", f"x{dtype}>")


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("rows,inputs,outputs", [
    (1, 128, 96), (16, 70, 33), (33, 97, 203), (130, 97, 61), (64, 36, 66),
    (1, 2056, 9), (3, 1032, 40), (8, 64, 33), (9, 72, 22), (17, 512, 35), (40, 136, 25), (64, 1024, 66)])
def test_products(tmp_path, dtype, rows, inputs, outputs):
    """Of all sizes and alignments, and two runs with the same bits."""
    kind = gpu_programs.TYPES[dtype]
    generator = torch.Generator().manual_seed(0)
    x, w, b = (torch.randn(*shape, generator=generator).to(kind) for shape in ((rows, inputs), (outputs, inputs), (outputs,)))
    if dtype == "f32" and rows > 64:
        pytest.skip("the library multiplies")
    text = product_program(rows, inputs, outputs, dtype)
    got = gpu_programs.run_program(tmp_path, text, {"x": x}, {"w": w, "b": b})["y"]
    want = x.double() @ w.double().T + b.double()
    bound = {"f32": 1e-6, "bf16": 4e-3, "f16": 6e-4}[dtype]
    assert (got.double() - want).abs().max() <= bound * want.abs().max()
    assert torch.equal(got, gpu_programs.run_program(tmp_path, text, {"x": x}, {"w": w, "b": b})["y"])


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("rows", [1, 3, 20])
def test_batches_of_products_of_few_rows(tmp_path, dtype, rows):
    """One operand is the same for the first dimension of the batch, the other for the second."""
    text = f"""func.func @main(%x: tensor<2x1x{rows}x48x{dtype}> {{nn.input = "x"}}, %w: tensor<3x21x48x{dtype}> {{nn.input = "w"}})
    -> (tensor<2x3x{rows}x21x{dtype}> {{nn.output = "y"}}) {{
  %y = nn.matmul %x, %w {{transpose_rhs}} : (tensor<2x1x{rows}x48x{dtype}>, tensor<3x21x48x{dtype}>) -> tensor<2x3x{rows}x21x{dtype}>
  return %y : tensor<2x3x{rows}x21x{dtype}>
}}
"""
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(*shape, generator=generator).to(gpu_programs.TYPES[dtype]) for shape in ((2, 1, rows, 48), (3, 21, 48)))
    got = gpu_programs.run_program(tmp_path, text, {"x": x, "w": w})["y"]
    want = x.double() @ w.double().mT
    bound = {"f32": 1e-6, "bf16": 4e-3, "f16": 6e-4}[dtype]
    assert (got.double() - want).abs().max() <= bound * want.abs().max()


@pytest.mark.parametrize("dtype,rows", [("f32", 1), ("f32", 8), ("bf16", 1), ("bf16", 16), ("f16", 64)])
def test_accesses_of_a_product_of_few_rows(tmp_path, dtype, rows):
    """Weights are read by 16 bytes, by many blocks with many bytes on their way, and not by way of shared memory."""
    program, code = gpu_programs.compile_kernels(tmp_path, product_program(rows, 4096, 4096, dtype))
    (launch,), (text,) = program["launches"], code.values()
    assert launch["blocks"] >= 128
    # The bias is read apart.
    wide = re.findall(r"ld\.global[.\w]*(?:v4\.b32|v2\.b64)", text)
    assert len(wide) == len(re.findall(r"ld\.global", text)) - 1
    assert "ldmatrix" not in text
    lines = rows if dtype == "f32" else -(-rows // 8)
    on_their_way = launch["blocks"] * launch["threads"] * 16 * len(wide)
    assert on_their_way >= (8 << 20 if lines == 1 else 2 << 20)


FUSED = """func.func @main(%x: tensor<2xROWSx48xT> {nn.input = "x"}, %g: tensor<2xROWSxOUTxT> {nn.input = "g"},
    %w: tensor<OUTx48xT> {nn.parameter = "w"}, %b: tensor<OUTxT> {nn.parameter = "b"})
    -> (tensor<2xROWSxOUTxT> {nn.output = "z"}, tensor<2xROWSxOUTxi1> {nn.output = "above"}) {
  %0 = nn.linear %x, %w bias %b : (tensor<2xROWSx48xT>, tensor<OUTx48xT>, tensor<OUTxT>) -> tensor<2xROWSxOUTxT>
  %1 = nn.silu %0 : tensor<2xROWSxOUTxT>
  %2 = nn.mul %1, %g : (tensor<2xROWSxOUTxT>, tensor<2xROWSxOUTxT>) -> tensor<2xROWSxOUTxT>
  %3 = nn.add %2, %b : (tensor<2xROWSxOUTxT>, tensor<OUTxT>) -> tensor<2xROWSxOUTxT>
  %4 = nn.compare gt %3, %g : (tensor<2xROWSxOUTxT>, tensor<2xROWSxOUTxT>) -> tensor<2xROWSxOUTxi1>
  return %3, %4 : tensor<2xROWSxOUTxT>, tensor<2xROWSxOUTxi1>
}
"""


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("rows,outputs", [(1, 96), (7, 61), (32, 66)])
def test_ops_after_a_product(tmp_path, dtype, rows, outputs):
    """The kernel of a product of few rows computes them."""
    kind = gpu_programs.TYPES[dtype]
    generator = torch.Generator().manual_seed(0)
    x, g, w, b = (torch.randn(*shape, generator=generator).to(kind)
                  for shape in ((2, rows, 48), (2, rows, outputs), (outputs, 48), (outputs,)))
    text = FUSED.replace("ROWS", str(rows)).replace("OUT", str(outputs)).replace("xT>", f"x{dtype}>")
    program, _ = gpu_programs.compile_kernels(tmp_path, text)
    assert len(program["launches"]) == 1
    got = gpu_programs.run_program(tmp_path, text, {"x": x, "g": g}, {"w": w, "b": b})
    want = torch.nn.functional.silu(x.double() @ w.double().T + b.double()) * g.double() + b.double()
    bound = {"f32": 1e-6, "bf16": 1e-2, "f16": 1.5e-3}[dtype]
    assert (got["z"].double() - want).abs().max() <= bound * want.abs().max()
    assert torch.equal(got["above"], got["z"] > g)


GRADIENTS = """func.func @main(%y: tensor<70x97xT> {nn.input = "y"}, %x: tensor<70x64xT> {nn.input = "x"},
    %i: tensor<70xi64> {nn.input = "i"}, %j: tensor<70x64xi32> {nn.input = "j"})
    -> (tensor<97x64xf32> {nn.output = "w"}, tensor<203x64xf32> {nn.output = "s"}, tensor<70x9xf32> {nn.output = "a"}) {
  %w = nn.weight_grad %y, %x : (tensor<70x97xT>, tensor<70x64xT>) -> tensor<97x64xf32>
  %s = nn.scatter_add %x, %i dim 0 : (tensor<70x64xT>, tensor<70xi64>) -> tensor<203x64xf32>
  %a = nn.scatter_add %x, %j dim 1 {along} : (tensor<70x64xT>, tensor<70x64xi32>) -> tensor<70x9xf32>
  return %w, %s, %a : tensor<97x64xf32>, tensor<203x64xf32>, tensor<70x9xf32>
}
"""


def gradients_program(dtype, rows):
    return GRADIENTS.replace("x97x", f"x{rows}x").replace("<97x", f"<{rows}x").replace("xT>", f"x{dtype}>")


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_gradients(tmp_path, dtype):
    """Weight gradients and sums by index, whose sums have one order; indices out of range are found."""
    generator = torch.Generator().manual_seed(0)
    # The library takes more than 64 rows of f32, and of 16 bits if they are whole 16 bytes.
    rows = 61 if dtype == "f32" else 97
    y, x = (torch.randn(70, n, generator=generator).to(gpu_programs.TYPES[dtype]) for n in (rows, 64))
    i, j = torch.randint(0, 203, (70,), generator=generator), torch.randint(0, 9, (70, 64), generator=generator)
    i[30:60] = 7
    text, given = gradients_program(dtype, rows), {"y": y, "x": x, "i": i, "j": j.int()}
    got = gpu_programs.run_program(tmp_path, text, given)
    want = y.double().T @ x.double()
    assert (got["w"].double() - want).abs().max() <= 1e-6 * want.abs().max()
    rows, places = torch.zeros(203, 64), torch.zeros(70, 9)
    for row, to in enumerate(i):
        rows[to] += x[row].float()
    for column in range(64):
        places[torch.arange(70), j[:, column]] += x[:, column].float()
    assert torch.equal(got["s"], rows) and torch.equal(got["a"], places)
    for name, at in (("i", (3,)), ("j", (1, 5))):
        for wrong in (-1, 203):
            bad = given[name].clone()
            bad[at] = wrong
            with pytest.raises(IndexError):
                gpu_programs.run_program(tmp_path, text, {**given, name: bad})


@pytest.mark.parametrize("chip", ["sm_80", "sm_90a", "sm_100", "sm_120"])
def test_ptxas_accepts_kernels(tmp_path, chip):
    for dtype in ("f32", "bf16", "f16"):
        programs = [rows_program(16, columns, dtype) for columns in (97, 4096, 9000)]
        programs += [product_program(rows, 97, 203, dtype) for rows in (5, 64)]
        programs += [product_program(rows, 4096, 66, dtype) for rows in (1, 4, 8, 12, 24, 64)]
        programs += [FUSED.replace("ROWS", str(rows)).replace("OUT", "66").replace("xT>", f"x{dtype}>") for rows in (4, 32)]
        programs.append(gradients_program(dtype, 61 if dtype == "f32" else 97))
        for number, program in enumerate(programs):
            gpu_programs.assemble(tmp_path / f"{dtype}-{number}", program, chip)
