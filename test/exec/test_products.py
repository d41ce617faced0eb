# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Ops that are fused into a product's kernel, on its operand or its results, against PyTorch op by op:
rows and columns that fill no tile, few rows, several blocks of k, several results, both types."""
import pytest
import torch
import torch.nn.functional as F
from harness import assert_close, run_module, type_of

SHAPES = [(1, 31, 70), (3, 1, 12), (8, 64, 64), (61, 67, 1037), (40, 1100, 2300), (600, 40, 33)]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.6e-2}


def randn(*shape, seed, dtype):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def run(folder, body, inputs, weights, outputs, arguments=(), tolerance=None):
    """`body` names tensors as inputs and weights do, types as `T.name`."""
    tensors = {**inputs, **weights, **outputs}
    for name in sorted(tensors, key=len, reverse=True):
        body = body.replace(f"T.{name}", type_of(tensors[name]))
    marks = [f'%{n}: {type_of(x)} {{nn.{kind} = "{n}"}}'
             for kind, group in (("input", inputs), ("parameter", weights)) for n, x in group.items()]
    results = ", ".join(f'{type_of(x)} {{nn.output = "{n}"}}' for n, x in outputs.items())
    text = (f"func.func @main({', '.join(marks)}) -> ({results}) {{\n{body}\n  return "
            f"{', '.join('%' + n for n in outputs)} : {', '.join(type_of(x) for x in outputs.values())}\n}}\n")
    got = run_module(folder, text, inputs, weights, arguments=arguments)
    for name, want in outputs.items():
        assert_close(got[name], want, tolerance or TOLERANCE[inputs["x"].dtype], f"{name}\n{text}")
    return got


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["f32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gate(tmp_path, shape, dtype):
    m, n, k = shape
    inputs = {"x": randn(m, k, seed=0, dtype=dtype)}
    weights = {"g": randn(n, k, seed=1, dtype=dtype) / k**0.5, "u": randn(n, k, seed=2, dtype=dtype) / k**0.5,
               "b": randn(n, seed=3, dtype=dtype)}
    gate = F.linear(inputs["x"], weights["g"])
    up = F.linear(inputs["x"], weights["u"], weights["b"])
    body = """
      %gate = nn.linear %x, %g : (T.x, T.g) -> T.r
      %up = nn.linear %x, %u bias %b : (T.x, T.u, T.b) -> T.r
      %act = nn.silu %gate : T.r
      %r = nn.mul %act, %up : (T.r, T.r) -> T.r"""
    outputs = {"r": F.silu(gate) * up}
    alone = run(tmp_path, body, inputs, weights, outputs)
    # One result more, and the values between: the same bits.
    both = run(tmp_path, body, inputs, weights, {**outputs, "up": up})
    assert torch.equal(alone["r"], both["r"])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["f32", "bf16"])
@pytest.mark.parametrize("kind", ["gelu", "gelu tanh", "relu", "tanh"])
def test_activation(tmp_path, kind, dtype):
    m, n, k = 37, 75, 96
    inputs = {"x": randn(m, k, seed=0, dtype=dtype)}
    weights = {"w": randn(k, n, seed=1, dtype=dtype) / k**0.5, "b": randn(n, seed=3, dtype=dtype)}
    y = inputs["x"] @ weights["w"] + weights["b"]
    functions = {"gelu": F.gelu, "gelu tanh": lambda v: F.gelu(v, approximate="tanh"), "relu": F.relu, "tanh": torch.tanh}
    op = {"gelu tanh": "nn.gelu %y {approximate_tanh}"}.get(kind, f"nn.{kind} %y")
    run(tmp_path, f"""
      %y = nn.linear %x, %w bias %b {{in_out}} : (T.x, T.w, T.b) -> T.r
      %r = {op} : T.r""", inputs, weights, {"r": functions[kind](y)})


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["f32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_residual(tmp_path, shape, dtype):
    m, n, k = shape
    inputs = {"x": randn(m, k, seed=0, dtype=dtype), "h": randn(1, m, n, seed=1, dtype=dtype)}
    weights = {"w": randn(n, k, seed=2, dtype=dtype) / k**0.5, "s": randn(n, seed=3, dtype=dtype)}
    y = F.linear(inputs["x"], weights["w"])
    total = inputs["h"] + y * weights["s"]
    norm = F.rms_norm(total, (n,), weights["s"], 1e-5)
    run(tmp_path, """
      %y = nn.linear %x, %w : (T.x, T.w) -> T.x2
      %v = nn.reshape %y : (T.x2) -> T.h
      %scaled = nn.mul %v, %s : (T.h, T.s) -> T.h
      %total = nn.add %h, %scaled : (T.h, T.h) -> T.h
      %norm = nn.rms_norm %total weight %s eps 1.0e-5 : (T.h, T.s) -> T.h
      %wide = nn.cast %total : (T.h) -> T.wide""".replace("T.x2", type_of(y)),
        inputs, weights, {"total": total, "norm": norm, "wide": total.double()})


def test_rows_in_several_dimensions(tmp_path):
    """The added value is broadcast over some dimensions."""
    x = randn(3, 5, 24, seed=0, dtype=torch.float32)
    other, row = randn(5, 40, seed=1, dtype=torch.float32), randn(3, 1, 40, seed=2, dtype=torch.float32)
    scale = randn(3, 5, 1, seed=4, dtype=torch.float32)
    weights = {"w": randn(40, 24, seed=3, dtype=torch.float32)}
    run(tmp_path, """
      %y = nn.linear %x, %w : (T.x, T.w) -> T.r
      %a = nn.add %y, %other : (T.r, T.other) -> T.r
      %b = nn.mul %a, %row : (T.r, T.row) -> T.r
      %r = nn.mul %b, %scale : (T.r, T.scale) -> T.r""",
        {"x": x, "other": other, "row": row, "scale": scale}, weights,
        {"r": (F.linear(x, weights["w"]) + other) * row * scale})


def test_product_that_is_added_to_what_it_reads(tmp_path):
    x, w = randn(64, 64, seed=0, dtype=torch.float32), randn(64, 64, seed=1, dtype=torch.float32)
    run(tmp_path, """
      %y = nn.linear %x, %w : (T.x, T.w) -> T.x
      %r = nn.add %y, %x : (T.x, T.x) -> T.x""", {"x": x}, {"w": w}, {"r": F.linear(x, w) + x})


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["f32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_operand(tmp_path, shape, dtype):
    """Features that are scaled, shifted and cast are read by two products, of which one goes on."""
    m, n, k = shape
    inputs = {"x": randn(m, k, seed=0, dtype=torch.float32), "s": randn(k, seed=1, dtype=torch.float32),
              "z": randn(k, seed=2, dtype=dtype)}
    weights = {"p": randn(n, k, seed=3, dtype=dtype) / k**0.5, "q": randn(n, k, seed=4, dtype=dtype) / k**0.5,
               "b": randn(n, seed=5, dtype=dtype)}
    a = (inputs["x"] * inputs["s"]).to(dtype) + inputs["z"]
    scaled = "%a0 = nn.mul %x, %s : (T.x, T.s) -> T.x"
    if dtype == torch.float32:
        cast = "%a1 = nn.add %a0, %z : (T.a, T.z) -> T.a"
    else:
        cast = "%c = nn.cast %a0 : (T.x) -> T.a\n      %a1 = nn.add %c, %z : (T.a, T.z) -> T.a"
    body = f"""
      {scaled}
      {cast}
      %y = nn.linear %a1, %p bias %b : (T.a, T.p, T.b) -> T.y
      %l = nn.linear %a1, %q bias %b : (T.a, T.q, T.b) -> T.r
      %r = nn.relu %l : T.r"""
    y, r = F.linear(a, weights["p"], weights["b"]), F.relu(F.linear(a, weights["q"], weights["b"]))
    fused = run(tmp_path, body.replace("T.a", type_of(a)), inputs, weights, {"y": y, "r": r},
                arguments=["--threads-per-rank=2"], tolerance=TOLERANCE[dtype])
    # Looked at, it is in memory: the same bits.
    looked = body.replace("%a1", "%a").replace("T.a", type_of(a))
    alone = run(tmp_path, looked, inputs, weights, {"y": y, "r": r, "a": a}, tolerance=TOLERANCE[dtype])
    assert all(torch.equal(fused[name], alone[name]) for name in fused)


def test_operand_in_several_dimensions(tmp_path):
    """Rows that a view joins, a scale for each row, a mask that all features share."""
    x, scale = randn(2, 3, 40, seed=0, dtype=torch.float32), randn(2, 3, 1, seed=1, dtype=torch.float32)
    keep = torch.tensor([[True], [False], [True]])
    weights = {"p": randn(50, 40, seed=2, dtype=torch.float32)}
    zero = torch.zeros(())
    body = """
      %0 = nn.mul %x, %scale : (T.x, T.scale) -> T.x
      %1 = nn.select %keep, %0, %zero : (T.keep, T.x, T.zero) -> T.x
      %2 = nn.reshape %1 : (T.x) -> tensor<6x40xf32>
      %y = nn.linear %2, %p : (tensor<6x40xf32>, T.p) -> T.y"""
    y = F.linear(torch.where(keep, x * scale, zero).reshape(6, 40), weights["p"])
    run(tmp_path, body, {"x": x, "scale": scale, "keep": keep, "zero": zero}, weights, {"y": y})


# Shapes of batch, m, n, k that the library's product cuts into tiles of rows, columns or matrices, and the
# last tile is smaller.
LIBRARY = [((), 520, 1030, 70), ((), 1100, 40, 300), ((5,), 300, 290, 129), ((2, 3), 130, 700, 64)]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["f32", "bf16"])
@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize("batch,m,n,k", LIBRARY, ids=str)
def test_products_of_inputs(tmp_path, batch, m, n, k, transposed, dtype):
    """The threads of a rank share such a product, and their number does not show."""
    x = randn(*batch, m, k, seed=0, dtype=dtype)
    y = randn(*batch, *((n, k) if transposed else (k, n)), seed=1, dtype=dtype)
    want = x.double() @ (y.double().mT if transposed else y.double()) / k**0.5
    body = "  %r = nn.matmul %x, %y" + (" {transpose_rhs}" if transposed else "") + " : (T.x, T.y) -> T.r"
    inputs, outputs = {"x": x / k**0.5, "y": y}, {"r": want.to(dtype)}
    one, *others = (run(tmp_path, body, inputs, {}, outputs, [f"--threads-per-rank={t}"]) for t in (1, 2, 3))
    assert all(torch.equal(one["r"], other["r"]) for other in others)


SMALL = [(1, 1, 1, 1), (1, 5, 17, 3), (3, 4, 16, 9), (2, 7, 33, 31), (1, 9, 30, 72), (1, 44, 41, 18), (1, 6, 32, 128)]


@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize("batch,m,n,k", SMALL, ids=str)
def test_small_products_sum_in_order(tmp_path, batch, m, n, k, transposed):
    """A small product has the bits of a packed weight's, so it does not show which weights a plan packs."""
    x, w = randn(m, k, seed=0, dtype=torch.float32), randn(n, k, seed=1, dtype=torch.float32)
    body = "%r = nn.linear %x, %w : (T.x, T.w) -> T.r"
    packed = run(tmp_path, body, {"x": x}, {"w": w}, {"r": F.linear(x, w)})["r"]
    y = w.expand(batch, n, k) if transposed else w.T.expand(batch, k, n).contiguous()
    inputs, outputs = {"x": x.expand(batch, m, k).contiguous(), "y": y.contiguous()}, {"r": packed.expand(batch, m, n)}
    body = "%r = nn.matmul %x, %y" + (" {transpose_rhs}" if transposed else "") + " : (T.x, T.y) -> T.r"
    assert torch.equal(run(tmp_path, body, inputs, {}, outputs)["r"], outputs["r"])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["f32", "bf16"])
def test_weight_grads_on_threads(tmp_path, dtype):
    x, y = randn(3, 50, 530, seed=0, dtype=dtype), randn(3, 50, 600, seed=1, dtype=dtype)
    want = torch.einsum("bri,brj->ij", x.double(), y.double()).float()
    body = "  %r = nn.weight_grad %x, %y : (T.x, T.y) -> T.r"
    one, *others = (run(tmp_path, body, {"x": x, "y": y}, {}, {"r": want}, [f"--threads-per-rank={t}"])
                    for t in (1, 2, 3))
    assert all(torch.equal(one["r"], other["r"]) for other in others)


@pytest.mark.parametrize("rows", [1, 40])
def test_long_sums(tmp_path, rows):
    """Errors do not grow with the number of terms: of one sum of 16,384 they would be 2e-6 and more."""
    x, y = randn(rows, 16384, seed=0, dtype=torch.float32), randn(64, 16384, seed=1, dtype=torch.float32)
    want, columns = x.double() @ y.double().T, y.T.contiguous()
    body = ("  %r = nn.linear %x, %y : (T.x, T.y) -> T.r\n"
            "  %s = nn.reduce sum %c dims [0] : (T.c) -> T.s")
    sums = columns.double().sum(0)
    got = run(tmp_path, body, {"x": x, "c": columns}, {"y": y}, {"r": want.float(), "s": sums.float()})
    for result, exact in ((got["r"], want), (got["s"], sums)):
        error = (result.double() - exact).square().mean() / exact.square().mean()
        assert error.sqrt() <= 5e-7
