# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How generated kernels access memory, by the counters of the stand-in for the driver: conflicts of banks of shared
memory, and sectors of global memory."""
import gpu_programs
import pytest
import test_gpu_attention
import test_gpu_attention_grad
import test_gpu_kernels
import torch

pytestmark = pytest.mark.skipif(gpu_programs.missing() is not None, reason=str(gpu_programs.missing()))
FLOATS = ["f32", "bf16", "f16"]


def random(dtype, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(gpu_programs.TYPES[dtype])


def count(folder, text, inputs, weights=None, target="gpu:sm_90"):
    """The counts of all kernels together: bank conflicts for each wavefront that is needed, requests of shared memory,
    and bytes of the sectors of global memory for each byte that is accessed."""
    counts = gpu_programs.count_accesses(folder, text, inputs, weights, target).values()
    total = {kind: sum(c[kind] for c in counts) for kind in next(iter(counts))}
    needed = total["shared_wavefronts"] - total["shared_conflicts"]
    return (total["shared_conflicts"] / max(needed, 1), total["shared_requests"],
            32 * total["global_sectors"] / total["global_bytes"])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("columns", [128, 4096, 9000])
def test_rows(tmp_path, dtype, columns):
    """Lanes of a row read neighbouring chunks. Statistics of a block go through shared memory."""
    x, y, w = random(dtype, 8, columns), random(dtype, 8, columns), random(dtype, columns)
    conflicts, shared, sectors = count(tmp_path, test_gpu_kernels.rows_program(8, columns, dtype), {"x": x, "y": y, "w": w})
    assert conflicts == 0 and (shared > 0) == (columns > 128) and sectors <= 1.01


COLUMNS = """func.func @main(%x: tensor<64x512xT> {nn.input = "x"}) -> (tensor<512xT> {nn.output = "s"}, tensor<64x512xT> {nn.output = "c"}) {
  %s = nn.reduce sum %x dims [0] : (tensor<64x512xT>) -> tensor<512xT>
  %c = nn.cumsum %x dim 0 : tensor<64x512xT>
  return %s, %c : tensor<512xT>, tensor<64x512xT>
}
"""


@pytest.mark.parametrize("dtype", FLOATS)
def test_columns(tmp_path, dtype):
    """Sums over rows: neighbouring threads have neighbouring columns."""
    conflicts, shared, sectors = count(tmp_path, COLUMNS.replace("xT", f"x{dtype}"), {"x": random(dtype, 64, 512)})
    assert (conflicts, shared) == (0, 0) and sectors <= 1.01


TRANSPOSE = """func.func @main(%x: tensor<192x320xT> {nn.input = "x"}) -> (tensor<320x192xT> {nn.output = "y"}) {
  %0 = nn.transpose %x [1, 0] : (tensor<192x320xT>) -> tensor<320x192xT>
  return %0 : tensor<320x192xT>
}
"""


@pytest.mark.parametrize("dtype,most", [("f32", 4.5), ("bf16", 8.5)])
def test_transposes(tmp_path, dtype, most):
    """Writes are whole sectors. Each element that is read takes a sector of its own, of which later reads find the rest
    in the cache: the kernel goes over rows of the result, without shared memory."""
    conflicts, shared, sectors = count(tmp_path, TRANSPOSE.replace("xT", f"x{dtype}"), {"x": random(dtype, 192, 320)})
    assert (conflicts, shared) == (0, 0) and sectors <= most


@pytest.mark.parametrize("dtype,features,chip", [
    *((dtype, features, "sm_90") for dtype in FLOATS for features in (16, 32, 64, 80, 128)),
    *((dtype, features, "sm_90a") for dtype in FLOATS[1:] for features in (64, 80, 128)),
    ("f32", 36, "sm_90"), ("bf16", 36, "sm_90"), ("bf16", 264, "sm_90")])
def test_attention(tmp_path, dtype, features, chip):
    q, k, v = random(dtype, 1, 4, 200, features), random(dtype, 1, 2, 200, features), random(dtype, 1, 2, 200, features)
    text = test_gpu_attention.one_program(dtype, features)
    conflicts, shared, sectors = count(tmp_path, text, {"q": q, "k": k, "v": v}, target=f"gpu:{chip}")
    # Tiles are copied in the order of memory if rows do not begin at sectors, and such rows share sectors. Blocks that
    # share keys count themselves, one word each.
    exact = (0, 1.003 if dtype == "f32" else 1)
    most = {36: (0.23 if dtype == "bf16" else 0.013, 1.12), 264: (0, 1.11)}.get(features, exact)
    assert shared > 0 and conflicts <= most[0] and sectors <= most[1]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("features", [16, 72, 128])
def test_attention_grad(tmp_path, dtype, features):
    p = test_gpu_attention_grad.one_case(features, gpu_programs.TYPES[dtype])
    conflicts, shared, sectors = count(tmp_path, p.text(), p.inputs)
    most = (0.0015, 1.19) if features == 72 and dtype != "f32" else (0, 1)
    assert shared > 0 and conflicts <= most[0] and sectors <= most[1]


MATMUL = """func.func @main(%x: tensor<ONExT> {nn.input = "x"}, %y: tensor<TWOxT> {nn.input = "y"}) -> (tensor<MxNxT> {nn.output = "z"}) {
  %0 = nn.matmul %x, %y MODE : (tensor<ONExT>, tensor<TWOxT>) -> tensor<MxNxT>
  return %0 : tensor<MxNxT>
}
"""


@pytest.mark.parametrize("dtype", [*FLOATS, "f64"])
@pytest.mark.parametrize("mode", ["", "{transpose_lhs}", "{transpose_rhs}", "{transpose_lhs, transpose_rhs}"])
@pytest.mark.parametrize("m,n,k", [(16, 128, 128), (64, 128, 96), (33, 98, 70), (64, 99, 97)])
def test_products(tmp_path, dtype, mode, m, n, k):
    """Of both orders and all alignments."""
    x, y = (k, m) if "lhs" in mode else (m, k), (n, k) if "rhs" in mode else (k, n)
    text = MATMUL.replace("ONE", f"{x[0]}x{x[1]}").replace("TWO", f"{y[0]}x{y[1]}").replace("MxN", f"{m}x{n}")
    text = text.replace("MODE", mode).replace("xT>", f"x{dtype}>")
    conflicts, shared, sectors = count(tmp_path, text, {"x": random(dtype, *x), "y": random(dtype, *y)})
    # Four lanes of mma.sync have 16 bytes of a row of the result. Lines of odd lengths do not begin at sectors.
    aligned = n % 16 == 0
    most = {"f32": (1, 1.51), "f64": (1, 1.22)}.get(dtype, (1.25, 2.53))[not aligned]
    assert shared > 0 and conflicts == 0 and sectors <= most


@pytest.mark.parametrize("dtype", FLOATS)
def test_sums_by_index(tmp_path, dtype):
    """Rows of a gradient, whose indices are read again for each row, and a weight gradient of odd sizes."""
    generator = torch.Generator().manual_seed(0)
    i, j = torch.randint(0, 203, (70,), generator=generator), torch.randint(0, 9, (70, 64), generator=generator).int()
    rows = 61 if dtype == "f32" else 97
    given = {"y": random(dtype, 70, rows), "x": random(dtype, 70, 64), "i": i, "j": j}
    conflicts, shared, sectors = count(tmp_path, test_gpu_kernels.gradients_program(dtype, rows), given)
    assert shared > 0 and conflicts == 0 and sectors <= 1.54
