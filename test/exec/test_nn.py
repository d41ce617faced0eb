# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Each nn op, compiled and run on one rank, against PyTorch."""

import pytest
import torch
import torch.nn.functional as F
from harness import ELEMENT, Program, assert_close, run_module, type_of

FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3, torch.float64: 1e-14}


def randn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def randint(low, high, *shape, seed=0, dtype=torch.int64):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def by_f32(function, *operands):
    """The reference of an op on bf16 or f16: computed in f32, rounded once."""
    dtype = next(x.dtype for x in operands if x.dtype.is_floating_point)
    if dtype == torch.float64:
        return function(*operands)
    wide = [x.float() if x.dtype.is_floating_point else x for x in operands]
    return function(*wide).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
def test_unary(tmp_path, dtype):
    x = randn(3, 37, dtype=dtype) * 3
    big = torch.linspace(-8000, 8000, 64).to(dtype)
    positive = x.abs() + 0.1
    p = Program()
    for name, function in {
            "neg": torch.neg, "abs": torch.abs, "exp": torch.exp, "erf": torch.erf,
            "floor": torch.floor, "relu": torch.relu, "silu": F.silu, "tanh": torch.tanh,
            "sigmoid": torch.sigmoid, "sin": torch.sin, "cos": torch.cos, "gelu": F.gelu}.items():
        p.op(f"nn.{name} {{}}", [x], by_f32(function, x), "same")
    p.op("nn.gelu {} {{approximate_tanh}}", [x],
         by_f32(lambda v: F.gelu(v, approximate="tanh"), x), "same")
    for name in ("sin", "cos"):
        p.op(f"nn.{name} {{}}", [big], by_f32(getattr(torch, name), big), "same")
    for name in ("log", "sqrt", "rsqrt", "reciprocal"):
        p.op(f"nn.{name} {{}}", [positive], by_f32(getattr(torch, name), positive), "same")
    p.check(tmp_path, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
def test_binary(tmp_path, dtype):
    x, y = randn(2, 3, 5, dtype=dtype), randn(3, 1, seed=1, dtype=dtype)
    p = Program()
    for name, function in {
            "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
            "rem": torch.remainder, "maximum": torch.maximum, "minimum": torch.minimum}.items():
        p.op(f"nn.{name} {{}}, {{}}", [x, y], by_f32(function, x, y))
        p.op(f"nn.{name} {{}}, {{}}", [y, x], by_f32(function, y, x))
    positive = x.abs() + 0.1
    p.op("nn.pow {}, {}", [positive, y], by_f32(torch.pow, positive, y))
    p.check(tmp_path, TOLERANCE[dtype] * 3)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=ELEMENT.get)
def test_integers(tmp_path, dtype):
    x, y = randint(-9, 10, 4, 5, dtype=dtype), randint(1, 4, 5, seed=1, dtype=dtype)
    y[1], y[2] = -3, -1
    least = torch.full((5,), torch.iinfo(dtype).min, dtype=dtype)
    p = Program()
    p.op("nn.neg {}", [x], -x, "same")
    p.op("nn.abs {}", [x], x.abs(), "same")
    for name, function in {
            "add": torch.add, "sub": torch.sub, "mul": torch.mul,
            "div": lambda a, b: torch.div(a, b, rounding_mode="floor"), "rem": torch.remainder,
            "maximum": torch.maximum, "minimum": torch.minimum}.items():
        p.op(f"nn.{name} {{}}, {{}}", [x, y], function(x, y))
    # A division without a quotient must not trap.
    minus = torch.full((5,), -1, dtype=dtype)
    p.op("nn.div {}, {}", [least, minus], least)
    p.op("nn.div {}, {}", [x, torch.zeros(5, dtype=dtype)], torch.zeros_like(x))
    p.op("nn.rem {}, {}", [least, minus], torch.zeros_like(least))
    for kind, want in {"sum": x.sum(1), "max": x.amax(1), "min": x.amin(1)}.items():
        p.op(f"nn.reduce {kind} {{}} dims [1]", [x], want.to(dtype))
    p.op("nn.cumsum {} dim 1", [x], x.cumsum(1).to(dtype), "same")
    p.check(tmp_path, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64])
def test_comparisons_with_constants(tmp_path, dtype):
    x = randn(3, 17).round().to(dtype)
    element = type_of(torch.zeros((), dtype=dtype))[7:-1]
    kinds = [(name, bound) for name in ("eq", "ne", "lt", "le", "gt", "ge") for bound in (0, 1)]
    ops = [f"%c{i} = nn.constant dense<{bound if element[0] == 'i' else float(bound)}> : tensor<{element}>\n"
           f"%{i} = nn.compare {name} %x, %c{i} : ({type_of(x)}, tensor<{element}>) -> tensor<3x17xi1>"
           for i, (name, bound) in enumerate(kinds)]
    results = ", ".join(f'tensor<3x17xi1> {{nn.output = "y{i}"}}' for i in range(len(kinds)))
    lines = "\n".join(ops)
    text = (f'func.func @main(%x: {type_of(x)} {{nn.input = "x"}}) -> ({results}) {{\n{lines}\n'
            f'return {", ".join(f"%{i}" for i in range(len(kinds)))} : {", ".join(["tensor<3x17xi1>"] * len(kinds))}\n}}')
    got = run_module(tmp_path, text, {"x": x})
    for i, (name, bound) in enumerate(kinds):
        assert torch.equal(got[f"y{i}"], getattr(torch, name)(x, bound)), (name, bound)


def test_truth_values(tmp_path):
    a, b = randint(0, 2, 3, 17).bool(), randint(0, 2, 17, seed=1).bool()
    x, y = randn(3, 17).round(), randn(17, seed=1).round()
    i, j = x.long(), y.long()
    p = Program()
    p.op("nn.not {}", [a], ~a, "same")
    for name, function in {"and": torch.logical_and, "or": torch.logical_or,
                           "xor": torch.logical_xor}.items():
        p.op(f"nn.{name} {{}}, {{}}", [a, b], function(a, b))
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        p.op(f"nn.compare {name} {{}}, {{}}", [x, y], getattr(torch, name)(x, y))
        p.op(f"nn.compare {name} {{}}, {{}}", [i, j], getattr(torch, name)(i, j))
    p.op("nn.compare eq {}, {}", [a, b], a == b)
    p.op("nn.select {}, {}, {}", [a, x, y], torch.where(a, x, y))
    p.op("nn.select {}, {}, {}", [a, b, a], torch.where(a, b, a))
    p.check(tmp_path, 0)


def test_bits(tmp_path):
    p = Program()
    for dtype in (torch.int32, torch.int64):
        i, j = randint(-99, 99, 3, 17, dtype=dtype), randint(-99, 99, 17, seed=1, dtype=dtype)
        for name, function in {"and": torch.bitwise_and, "or": torch.bitwise_or,
                               "xor": torch.bitwise_xor}.items():
            p.op(f"nn.{name} {{}}, {{}}", [i, j], function(i, j))
    p.check(tmp_path, 0)


def test_nan(tmp_path):
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -1.0])
    p = Program()
    for name, function in {"relu": torch.relu, "neg": torch.neg, "exp": torch.exp}.items():
        p.op(f"nn.{name} {{}}", [x], function(x), "same")
    zero = torch.zeros(1)
    p.op("nn.maximum {}, {}", [x, zero], torch.maximum(x, zero))
    p.op("nn.compare ne {}, {}", [x, x], x != x)
    for dtype in (torch.bfloat16, torch.float16):
        p.op("nn.cast {}", [x], x.to(dtype))
    p.check(tmp_path, 0)


def test_logarithms_of_small_numbers(tmp_path):
    """Below the normal ones."""
    x = torch.tensor([1e-38, 5e-39, 1e-39, 1e-42, 1.4e-45, 1.17549435e-38, 0.0, -0.0, -1e-39, 1.0] * 2)
    p = Program()
    for dtype in (torch.float32, torch.bfloat16):
        y = x.to(dtype)
        p.op("nn.log {}", [y], y.double().log().to(dtype), "same")
    p.check(tmp_path, 1e-6)


def test_casts(tmp_path):
    x = randn(7, 9) * 50
    values = {dtype: x.to(dtype) for dtype in ELEMENT}
    p = Program()
    for source, value in values.items():
        for target in ELEMENT:
            if source != target:
                want = value.float().to(target) if {source, target} == {torch.bfloat16, torch.float16} else value.to(target)
                p.op("nn.cast {}", [value], want)
    p.check(tmp_path, 0)


def test_movement(tmp_path):
    x = randn(2, 3, 4)
    y, flags = randn(2, 5, 4, seed=1), randint(0, 2, 2, 3, 4).bool()
    p = Program()
    p.op("nn.reshape {}", [x], x.reshape(6, 4))
    p.op("nn.transpose {} [2, 0, 1]", [x], x.permute(2, 0, 1).contiguous())
    p.op("nn.transpose {} [2, 0, 1]", [flags], flags.permute(2, 0, 1).contiguous())
    p.op("nn.slice {} starts [0, 1, 0] limits [2, 3, 4] strides [1, 1, 2]", [x], x[:, 1:3, ::2])
    p.op("nn.slice {} starts [0, 0, 1] limits [1, 2, 3] strides [1, 1, 1]", [x], x[:1, :2, 1:3])
    p.op("nn.concat {}, {} dim 1", [x, y], torch.cat([x, y], 1))
    p.op("nn.concat {}, {}, {} dim 0", [x, x, x], torch.cat([x, x, x], 0))
    small = randn(3, 1)
    p.op("nn.broadcast {}", [small], small.expand(2, 3, 4).contiguous())
    p.op("nn.constant dense<[[1.5, 2.0], [3.0, 4.0]]>", [], torch.tensor([[1.5, 2], [3, 4]]))
    p.op("nn.constant dense<[true, false, true]>", [], torch.tensor([True, False, True]))
    p.op("nn.constant dense<7>", [], torch.full((2, 2), 7))
    p.op("nn.constant dense<true>", [], torch.full((2, 2), True))
    p.op("nn.iota dim 1", [], torch.arange(3)[None, :, None].expand(2, 3, 4).contiguous())
    p.op("nn.iota dim 0", [], torch.arange(5).to(torch.bfloat16))
    indices = randint(0, 3, 2, 2)
    p.op("nn.gather {}, {} dim 1", [x, indices], x[:, indices])
    along = randint(0, 3, 2, 6, 4, dtype=torch.int32)
    p.op("nn.take_along {}, {} dim 1", [x, along], torch.gather(x, 1, along.long()))
    rows = torch.tensor([2, 0], dtype=torch.int32)
    p.op("nn.index_copy {}, {}, {} dim 1", [x, rows, y[:, :2].contiguous()],
         x.index_copy(1, rows.long(), y[:, :2]))  # fmt: skip
    p.check(tmp_path, 0)


def test_scalars(tmp_path):
    x, y = torch.tensor(2.5), torch.tensor(4.0)
    p = Program()
    p.op("nn.add {}, {}", [x, y], x + y)
    p.op("nn.exp {}", [x], x.exp(), "same")
    p.op("nn.broadcast {}", [x], x.expand(3).contiguous())
    p.op("nn.reduce sum {} dims [0]", [torch.ones(5)], torch.tensor(5.0))
    p.check(tmp_path, 1e-6)


def test_a_product_of_a_scalar(tmp_path):
    text = """func.func @main(%x: tensor<f32> {nn.input = "x"}, %w: tensor<5x1xf32> {nn.parameter = "w"})
        -> (tensor<1x5xf32> {nn.output = "y"}) {
      %0 = nn.neg %x : tensor<f32>
      %1 = nn.reshape %0 : (tensor<f32>) -> tensor<1x1xf32>
      %2 = nn.linear %1, %w : (tensor<1x1xf32>, tensor<5x1xf32>) -> tensor<1x5xf32>
      return %2 : tensor<1x5xf32>
    }"""
    x, w = torch.tensor(2.5), torch.randn(5, 1)
    got = run_module(tmp_path, text, {"x": x}, {"w": w})["y"]
    assert_close(got, -2.5 * w.T, 1e-6)


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
def test_rows(tmp_path, dtype):
    x = randn(2, 3, 33, dtype=dtype)
    w, b = randn(33, seed=1, dtype=dtype), randn(33, seed=2, dtype=dtype)
    rms = lambda v: v * torch.rsqrt(v.pow(2).mean(-1, keepdim=True) + 1e-5)
    p = Program()
    p.op("nn.rms_norm {} eps 1.0e-5", [x], by_f32(rms, x))
    p.op("nn.rms_norm {} weight {} eps 1.0e-5", [x, w], by_f32(lambda v, s: rms(v) * s, x, w))
    p.op("nn.rms_norm {} weight {} eps 1.0e-5 {{unit_offset}}", [x, w],
         by_f32(lambda v, s: rms(v) * (1 + s), x, w))
    p.op("nn.layer_norm {} weight {} bias {} eps 1.0e-5", [x, w, b],
         by_f32(lambda v, s, t: F.layer_norm(v, (33,), s, t, 1e-5), x, w, b))
    p.op("nn.layer_norm {} weight {} eps 1.0e-5", [x, w],
         by_f32(lambda v, s: F.layer_norm(v, (33,), s, None, 1e-5), x, w))
    p.op("nn.layer_norm {} bias {} eps 1.0e-5", [x, b],
         by_f32(lambda v, t: F.layer_norm(v, (33,), None, t, 1e-5), x, b))
    for dim in range(3):
        p.op(f"nn.softmax {{}} dim {dim}", [x], by_f32(lambda v: F.softmax(v, dim), x), "same")
    masked = x.clone()
    masked[0, 1] = -float("inf")
    masked[1, 0, :30] = -float("inf")
    p.op("nn.softmax {} dim 2", [masked],
         by_f32(lambda v: F.softmax(v, 2).nan_to_num(0), masked), "same")
    for kind, function in {"sum": torch.sum, "mean": torch.mean, "max": torch.amax,
                           "min": torch.amin}.items():
        for dims in ([0], [2], [0, 2], [1, 2]):
            p.op(f"nn.reduce {kind} {{}} dims {dims}", [x], by_f32(lambda v: function(v, dims), x))
        p.op(f"nn.reduce {kind} {{}} dims [1] {{{{keep_dims}}}}", [x],
             by_f32(lambda v: function(v, [1], keepdim=True), x))
    p.op("nn.cumsum {} dim 1", [x], by_f32(lambda v: v.cumsum(1), x), "same")
    p.check(tmp_path, TOLERANCE[dtype])


def rotate(x, interleaved):
    if interleaved:
        return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
def test_rotary(tmp_path, dtype):
    x = randn(2, 4, 7, 16, dtype=dtype)
    p = Program()
    for features in (16, 6):
        for interleaved in (False, True):
            cos, sin = randn(7, features, dtype=dtype), randn(1, 1, 7, features, seed=1, dtype=dtype)

            def function(v, c, s):
                y = v[..., :features]
                return torch.cat([y * c + rotate(y, interleaved) * s, v[..., features:]], -1)
            p.op("nn.rotary {}, {}, {}" + (" {{interleaved}}" if interleaved else ""),
                 [x, cos, sin], by_f32(function, x, cos, sin))
    p.check(tmp_path, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
def test_products(tmp_path, dtype):
    x, w, b = randn(2, 5, 24, dtype=dtype), randn(10, 24, seed=1, dtype=dtype), randn(10, seed=2, dtype=dtype)
    p = Program()
    p.op("nn.linear {}, {}", [x, w], by_f32(F.linear, x, w))
    p.op("nn.linear {}, {} bias {}", [x, w, b], by_f32(F.linear, x, w, b))
    flipped = w.t().contiguous()
    p.op("nn.linear {}, {} bias {} {{in_out}}", [x, flipped, b], by_f32(F.linear, x, w, b))
    row = randn(24, seed=9, dtype=dtype)
    p.op("nn.linear {}, {}", [row, w], by_f32(F.linear, row, w))
    for left, right in (((3, 4, 5, 6), (3, 4, 6, 7)), ((3, 4, 5, 6), (6, 7)), ((5, 6), (3, 4, 6, 7)),
                        ((3, 1, 5, 6), (4, 6, 7)), ((3, 4, 5, 6), (3, 1, 6, 7)), ((1, 1, 5, 6), (1, 6, 7))):
        a, c = randn(*left, dtype=dtype), randn(*right, seed=1, dtype=dtype)
        want = by_f32(torch.matmul, a, c)
        p.op("nn.matmul {}, {}", [a, c], want)
        p.op("nn.matmul {}, {} {{transpose_rhs}}", [a, c.mT.contiguous()], want)
        p.op("nn.matmul {}, {} {{transpose_lhs}}", [a.mT.contiguous(), c], want)
        p.op("nn.matmul {}, {} {{transpose_lhs, transpose_rhs}}",
             [a.mT.contiguous(), c.mT.contiguous()], want)
    p.check(tmp_path, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
def test_embedding(tmp_path, dtype):
    ids, table = randint(0, 11, 2, 3), randn(11, 6, dtype=dtype)
    p = Program()
    p.op("nn.embedding {}, {}", [ids, table], table[ids])
    part, offset = table[3:7].contiguous(), torch.tensor(3)
    inside = ((ids >= 3) & (ids < 7))[..., None]
    p.op("nn.embedding {}, {} offset {}", [ids, part, offset], torch.where(inside, table[ids], torch.zeros((), dtype=dtype)))
    p.check(tmp_path, 0)


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
def test_weight_grad(tmp_path, dtype):
    p, sums = Program(), torch.float64 if dtype == torch.float64 else torch.float32
    for rows in ([2, 7], [40], [], [3, 1]):
        dy, x = randn(*rows, 19, dtype=dtype), randn(*rows, 37, seed=1, dtype=dtype)
        want = dy.double().reshape(-1, 19).mT @ x.double().reshape(-1, 37)
        p.op("nn.weight_grad {}, {}", [dy, x], want.to(sums))
    # Its f32 is not that of a sum in bf16.
    p.check(tmp_path, 1e-14 if dtype == torch.float64 else 1e-6)


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
def test_scatter_add(tmp_path, dtype):
    p, sums = Program(), torch.float64 if dtype == torch.float64 else torch.float32
    x, ids = randn(3, 4, 5, 6, dtype=dtype), randint(0, 7, 4, 5)
    want = torch.zeros(3, 7, 6, dtype=sums)
    p.op("nn.scatter_add {}, {} dim 1", [x, ids],
         want.index_add(1, ids.flatten(), x.to(sums).flatten(1, 2)))
    along = randint(0, 9, 3, 4, 5, 6, dtype=torch.int32)
    for dim in range(4):
        shape = [9 if d == dim else n for d, n in enumerate(x.shape)]
        p.op(f"nn.scatter_add {{}}, {{}} dim {dim} {{{{along}}}}", [x, along],
             torch.zeros(shape, dtype=sums).scatter_add(dim, along.long(), x.to(sums)))
    offset, inside = torch.tensor(2, dtype=torch.int32), (ids >= 2) & (ids < 5)
    part = want.index_add(1, ids.flatten(), (x.to(sums) * inside[..., None]).flatten(1, 2))[:, 2:5]
    p.op("nn.scatter_add {}, {} offset {} dim 1", [x, ids, offset], part.contiguous())
    p.check(tmp_path, 1e-14 if dtype == torch.float64 else 1e-6)


@pytest.mark.parametrize("along", ["", " {{along}}"])
@pytest.mark.parametrize("index", [9, -1, 2**40])
def test_scatter_out_of_range(tmp_path, index, along):
    ids = torch.tensor([0, 8, index])
    p = Program()
    p.op(f"nn.scatter_add {{}}, {{}} dim 0{along}", [randn(3), ids], torch.zeros(9))
    said = run_module(tmp_path, p.text(), p.inputs, status=1)
    assert "nn.scatter_add" in said, said
    assert f"index {index} at position 2 is out of range: expected 0 to 8" in said, said


def test_pad(tmp_path):
    x, flags, i = randn(2, 3, 4), randint(0, 2, 5).bool(), randint(-5, 5, 2, 3)
    p = Program()
    p.op("nn.pad {} low [0, 1, 0] high [0, 0, 2] interior [0, 0, 0]", [x], F.pad(x, (0, 2, 1, 0)))
    p.op("nn.pad {} low [1, 0, 0] high [2, 0, 0] interior [0, 0, 0]", [x],
         F.pad(x, (0, 0, 0, 0, 1, 2)))
    spread = torch.zeros(2, 5, 11)
    spread[:, ::2, 1::3] = x
    p.op("nn.pad {} low [0, 0, 1] high [0, 0, 0] interior [0, 1, 2]", [x], spread)
    p.op("nn.pad {} low [1] high [1] interior [0]", [flags], F.pad(flags, (1, 1)))
    p.op("nn.pad {} low [0, 0] high [0, 1] interior [1, 0]", [i],
         torch.stack([F.pad(i[0], (0, 1)), torch.zeros(4).long(), F.pad(i[1], (0, 1))]))
    p.check(tmp_path, 0)


def test_fused_groups_round_like_single_ops(tmp_path):
    """A chain of bf16 ops rounds after each."""
    x, y = randn(4, 40, dtype=torch.bfloat16), randn(40, seed=1, dtype=torch.bfloat16)
    text = f"""func.func @main(%x: {type_of(x)} {{nn.input = "x"}}, %y: {type_of(y)} {{nn.input = "y"}})
        -> ({type_of(x)} {{nn.output = "z"}}, tensor<40x4xbf16> {{nn.output = "t"}}) {{
      %c = nn.constant dense<3.0> : tensor<bf16>
      %0 = nn.mul %x, %y : ({type_of(x)}, {type_of(y)}) -> {type_of(x)}
      %1 = nn.add %0, %c : ({type_of(x)}, tensor<bf16>) -> {type_of(x)}
      %2 = nn.mul %1, %x : ({type_of(x)}, {type_of(x)}) -> {type_of(x)}
      %3 = nn.transpose %2 [1, 0] : ({type_of(x)}) -> tensor<40x4xbf16>
      %4 = nn.sub %3, %c : (tensor<40x4xbf16>, tensor<bf16>) -> tensor<40x4xbf16>
      return %2, %4 : {type_of(x)}, tensor<40x4xbf16>
    }}"""
    got = run_module(tmp_path, text, {"x": x, "y": y})
    want = (x * y + 3) * x
    assert torch.equal(got["z"], want)
    assert torch.equal(got["t"], want.t() - 3)


def test_results_that_are_arguments(tmp_path):
    x = randn(2, 6)
    text = """func.func @main(%x: tensor<2x6xf32> {nn.input = "x"})
        -> (tensor<2x6xf32> {nn.output = "a"}, tensor<12xf32> {nn.output = "b"}, tensor<12xf32> {nn.output = "c"}) {
      %0 = nn.reshape %x : (tensor<2x6xf32>) -> tensor<12xf32>
      return %x, %0, %0 : tensor<2x6xf32>, tensor<12xf32>, tensor<12xf32>
    }"""
    got = run_module(tmp_path, text, {"x": x})
    assert torch.equal(got["a"], x) and torch.equal(got["b"], x.flatten()) and torch.equal(got["c"], x.flatten())


def test_annotations_do_not_matter(tmp_path):
    x = randn(4, 6)
    text = """dist.mesh @m = <["x"=2]>
    func.func @main(%x: tensor<4x6xf32> {nn.input = "x"}) -> (tensor<4x6xf32> {nn.output = "y"}) {
      %0 = dist.constrain %x <@m, [{"x"}, {}]> : tensor<4x6xf32>
      %1 = nn.neg %0 : tensor<4x6xf32>
      %2 = dist.constrain %1 <@m, [{}, {"x"}]> : tensor<4x6xf32>
      return %2 : tensor<4x6xf32>
    }"""
    assert torch.equal(run_module(tmp_path, text, {"x": x})["y"], -x)


def test_parameters_from_parts_and_aliases(tmp_path):
    stored = randn(6, 8)
    text = """func.func @main(%x: tensor<1x4xf32> {nn.input = "x"},
        %a: tensor<3x4xf32> {nn.parameter = "w", nn.parameter_offsets = array<i64: 0, 2>},
        %b: tensor<2x4xf32> {nn.parameter = "w", nn.parameter_offsets = array<i64: 4, 4>},
        %c: tensor<2xf32> {nn.parameter = "c", nn.aliases = ["d"]})
        -> (tensor<1x3xf32> {nn.output = "p"}, tensor<1x2xf32> {nn.output = "q"}) {
      %0 = nn.linear %x, %a : (tensor<1x4xf32>, tensor<3x4xf32>) -> tensor<1x3xf32>
      %1 = nn.linear %x, %b bias %c : (tensor<1x4xf32>, tensor<2x4xf32>, tensor<2xf32>) -> tensor<1x2xf32>
      return %0, %1 : tensor<1x3xf32>, tensor<1x2xf32>
    }"""
    x, c = randn(1, 4, seed=3), randn(2, seed=4)
    got = run_module(tmp_path, text, {"x": x}, {"w": stored, "d": c})
    assert_close(got["p"], x @ stored[0:3, 2:6].T, 1e-6)
    assert_close(got["q"], x @ stored[4:6, 4:8].T + c, 1e-6)
