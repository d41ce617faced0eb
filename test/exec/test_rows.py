# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Ops that are fused into one row kernel, against PyTorch op by op: odd numbers of columns, rows of one,
all float types, several results, rows that are cut into blocks."""
import pytest
import torch
import torch.nn.functional as F
from harness import ELEMENT, assert_close, run_module, type_of

FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1.6e-2, torch.float16: 2e-3, torch.float64: 1e-13}
COLUMNS = [1, 7, 17, 97, 1000]


def randn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


class Chains:
    """Several chains of ops in one program; names stand for tensors."""

    def __init__(self):
        self.inputs, self.lines, self.outputs = {}, [], {}
        self.count = 0

    def input(self, tensor):
        name = f"in{len(self.inputs)}"
        self.inputs[name] = tensor
        return "%" + name, tensor

    def op(self, text, operands, result, short=False):
        """`text` with {} for operands; the result as PyTorch has it. Ops that compute in f32 round
        once, so does `result`'s caller."""
        name = f"%v{self.count}"
        self.count += 1
        types = ", ".join(type_of(x) for _, x in operands)
        signature = type_of(result) if short else f"({types}) -> {type_of(result)}"
        self.lines.append(f"{name} = {text.format(*[n for n, _ in operands])} : {signature}")
        return name, result

    def output(self, value):
        self.outputs[f"o{len(self.outputs)}"] = value

    def text(self):
        arguments = ", ".join(f'%{n}: {type_of(x)} {{nn.input = "{n}"}}' for n, x in self.inputs.items())
        results = ", ".join(f'{type_of(x)} {{nn.output = "{n}"}}' for n, (_, x) in self.outputs.items())
        names = ", ".join(v for v, _ in self.outputs.values())
        types = ", ".join(type_of(x) for _, x in self.outputs.values())
        body = "\n  ".join(self.lines)
        return f"func.func @main({arguments}) -> ({results}) {{\n  {body}\n  return {names} : {types}\n}}\n"

    def check(self, folder, tolerance, arguments=()):
        got = run_module(folder, self.text(), self.inputs, arguments=arguments)
        for name, (value, want) in self.outputs.items():
            assert_close(got[name], want, tolerance, f"{name} = {value}\n{self.text()}")
        return got


def wide(function, *operands):
    """Computed in f32 (f64 for f64), rounded once."""
    dtype = operands[0].dtype
    if dtype == torch.float64:
        return function(*operands)
    return function(*[x.float() for x in operands]).to(dtype)


def rms(x, w=None, eps=1e-5):
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return y if w is None else y * w


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
@pytest.mark.parametrize("rows", [1, 5])
def test_add_norm(tmp_path, dtype, rows):
    c = Chains()
    for columns in COLUMNS:
        x, y = (c.input(randn(rows, columns, seed=s, dtype=dtype)) for s in (0, 1))
        w, b = (c.input(randn(columns, seed=s, dtype=dtype)) for s in (2, 3))
        h = c.op("nn.add {}, {}", [x, y], wide(torch.add, x[1], y[1]))
        c.output(h)
        c.output(c.op("nn.rms_norm {} weight {} eps 1.0e-5", [h, w], wide(rms, h[1], w[1])))
        g = c.op("nn.mul {}, {}", [x, y], wide(torch.mul, x[1], y[1]))
        if columns > 1:
            c.output(c.op("nn.layer_norm {} weight {} bias {} eps 1.0e-5", [g, w, b],
                          wide(lambda v, s, t: F.layer_norm(v, v.shape[-1:], s, t, 1e-5), g[1], w[1], b[1])))
    c.check(tmp_path, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
def test_norm_of_sum_with_norm(tmp_path, dtype):
    """Three passes: a norm, a sum with it that is a result too, and the sum's norm."""
    c = Chains()
    for columns in COLUMNS:
        x, y = (c.input(randn(2, 3, columns, seed=s, dtype=dtype)) for s in (0, 1))
        w = c.input(randn(columns, seed=2, dtype=dtype))
        n = c.op("nn.rms_norm {} weight {} eps 1.0e-5", [y, w], wide(rms, y[1], w[1]))
        h = c.op("nn.add {}, {}", [x, n], wide(torch.add, x[1], n[1]))
        c.output(h)
        c.output(c.op("nn.rms_norm {} eps 1.0e-5", [h], wide(rms, h[1])))
    c.check(tmp_path, TOLERANCE[dtype] * 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=ELEMENT.get)
def test_rows_beyond_caches(tmp_path, dtype):
    """Kernels that fetch the next row and the lines they will write, of columns that do not fill vectors."""
    c = Chains()
    x, y = (c.input(randn(1100, 4101, seed=s, dtype=dtype)) for s in (0, 1))
    w = c.input(randn(4101, seed=2, dtype=dtype))
    h = c.op("nn.add {}, {}", [x, y], wide(torch.add, x[1], y[1]))
    c.output(h)
    c.output(c.op("nn.rms_norm {} weight {} eps 1.0e-5", [h, w], wide(rms, h[1], w[1])))
    c.output(c.op("nn.softmax {} dim 1", [y], wide(lambda v: v.softmax(-1), y[1]), short=True))
    c.check(tmp_path, TOLERANCE[dtype], ["--threads-per-rank=2"])


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
def test_gated_activations(tmp_path, dtype):
    c = Chains()
    for columns in COLUMNS + [10007]:
        x, y = (c.input(randn(3, columns, seed=s, dtype=dtype)) for s in (0, 1))
        b = c.input(randn(columns, seed=2, dtype=dtype))
        biased = c.op("nn.add {}, {}", [x, b], wide(torch.add, x[1], b[1]))
        for name, function in {"silu": F.silu, "gelu": F.gelu, "relu": F.relu, "sigmoid": torch.sigmoid}.items():
            a = c.op(f"nn.{name} {{}}", [biased], wide(function, biased[1]), short=True)
            c.output(c.op("nn.mul {}, {}", [a, y], wide(torch.mul, a[1], y[1])))
    c.check(tmp_path, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
def test_masked_softmax(tmp_path, dtype):
    c = Chains()
    for columns in COLUMNS:
        x = c.input(randn(4, columns, dtype=dtype) * 3)
        keep = torch.rand(4, columns, generator=torch.Generator().manual_seed(1)) < 0.7
        keep[2] = False
        m = c.input(keep)
        low = c.op("nn.constant dense<0xFF800000>" if dtype == torch.float32 else
                   "nn.constant dense<0xFFF0000000000000>" if dtype == torch.float64 else
                   "nn.constant dense<0xFF80>" if dtype == torch.bfloat16 else "nn.constant dense<0xFC00>",
                   [], torch.tensor(-float("inf"), dtype=dtype), short=True)
        chosen = c.op("nn.select {}, {}, {}", [m, x, low], torch.where(m[1], x[1], low[1]))
        want = wide(lambda v: F.softmax(v, -1).nan_to_num(0), chosen[1])
        s = c.op("nn.softmax {} dim 1", [chosen], want, short=True)
        c.output(s)
        c.output(c.op("nn.cast {}", [s], s[1].float() if dtype != torch.float32 else s[1].to(torch.bfloat16)))
    c.check(tmp_path, TOLERANCE[dtype])


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
def test_heads(tmp_path, dtype, interleaved):
    """Norm of heads, transposition and rotation, of all or of the first features."""
    c = Chains()
    for features, rotated in ((2, 2), (16, 16), (34, 34), (34, 12), (130, 128)):
        x = c.input(randn(2, 5, 3, features, dtype=dtype))
        w = c.input(randn(features, seed=1, dtype=dtype))
        cos, sin = (c.input(randn(1, 1, 5, rotated, seed=s, dtype=dtype)) for s in (2, 3))
        n = c.op("nn.rms_norm {} weight {} eps 1.0e-5", [x, w], wide(rms, x[1], w[1]))
        t = c.op("nn.transpose {} [0, 2, 1, 3]", [n], n[1].transpose(1, 2).contiguous())

        def rotate(v, cosine, sine):
            y, rest = v[..., :rotated], v[..., rotated:]
            if interleaved:
                turned = torch.stack([-y[..., 1::2], y[..., 0::2]], -1).flatten(-2)
            else:
                turned = torch.cat([-y[..., rotated // 2:], y[..., :rotated // 2]], -1)
            return torch.cat([y * cosine + turned * sine, rest], -1)

        r = c.op("nn.rotary {}, {}, {}" + (" {{interleaved}}" if interleaved else ""), [t, cos, sin],
                 wide(rotate, t[1], cos[1], sin[1]))
        if features == 16:
            # From the middle of a pair on.
            r = c.op("nn.slice {} starts [0, 0, 0, 1] limits [2, 3, 5, 14] strides [1, 1, 1, 1]", [r],
                     r[1][..., 1:14].contiguous())
            r = c.op("nn.neg {}", [r], -r[1], short=True)
        c.output(r)
    c.check(tmp_path, TOLERANCE[dtype])


@pytest.mark.parametrize("columns", [2, 32, 40, 64, 100])
def test_f32_between_bf16(tmp_path, columns):
    """Ops across columns, and column indices, of values that are f32 in the kernel only."""
    c = Chains()
    x, cos, sin = (c.input(randn(5, columns, seed=s, dtype=torch.bfloat16)) for s in (0, 1, 2))
    wide_ones = [c.op("nn.cast {}", [v], v[1].float()) for v in (x, cos, sin)]
    f, g, h = (v for _, v in wide_ones)
    for mode, turned in (("", torch.cat([-f[:, columns // 2:], f[:, :columns // 2]], -1)),
                         (" {{interleaved}}", torch.stack([-f[:, 1::2], f[:, 0::2]], -1).flatten(-2))):
        r = c.op("nn.rotary {}, {}, {}" + mode, wide_ones, f * g + turned * h)
        c.output(c.op("nn.cast {}", [r], r[1].bfloat16()))
    places = torch.arange(columns).float().expand(5, columns).contiguous()
    i = c.op("nn.iota dim 1", [], places, short=True)
    s = c.op("nn.add {}, {}", [wide_ones[0], i], f + places)
    c.output(c.op("nn.cast {}", [s], s[1].bfloat16()))
    c.check(tmp_path, TOLERANCE[torch.bfloat16])


@pytest.mark.parametrize("processor", ["x86-64-v3", "x86-64-v4"])
def test_a_choice_for_each_row(tmp_path, processor):
    """One bf16 element, not a vector of them."""
    if processor == "x86-64-v4" and "avx512bw" not in open("/proc/cpuinfo").read():
        pytest.skip("this processor has no AVX-512")
    c = Chains()
    chosen = c.input(randn(5, 1) > 0)
    a, b = (c.input(randn(5, 1, seed=s, dtype=torch.bfloat16)) for s in (1, 2))
    t = c.op("nn.tanh {}", [a], wide(torch.tanh, a[1]), short=True)
    s = c.op("nn.select {}, {}, {}", [chosen, t, b], torch.where(chosen[1], t[1], b[1]))
    c.output(s)
    x = c.input(randn(5, 40, seed=3, dtype=torch.bfloat16))
    c.output(c.op("nn.mul {}, {}", [x, s], wide(torch.mul, x[1], s[1])))
    c.check(tmp_path, TOLERANCE[torch.bfloat16], arguments=[f"--target=cpu:{processor}"])


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
def test_reductions_of_rows(tmp_path, dtype):
    """Statistics as results, and read by elements of their rows."""
    c = Chains()
    for columns in COLUMNS:
        x = c.input(randn(3, 2, columns, dtype=dtype))
        for kind, function in {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin}.items():
            r = c.op(f"nn.reduce {kind} {{}} dims [2] {{{{keep_dims}}}}", [x],
                     wide(lambda v: function(v, -1, keepdim=True), x[1]))
            c.output(r)
            c.output(c.op("nn.sub {}, {}", [x, r], wide(torch.sub, x[1], r[1])))
    y = c.input(randn(3, 8, 25, dtype=dtype))
    c.output(c.op("nn.reduce sum {} dims [1, 2]", [y], wide(lambda v: v.sum((1, 2)), y[1])))
    squared = c.op("nn.mul {}, {}", [y, y], wide(torch.mul, y[1], y[1]))
    c.output(c.op("nn.reduce mean {} dims [2]", [squared], wide(lambda v: v.mean(2), squared[1])))
    c.check(tmp_path, TOLERANCE[dtype] * 2)


def test_elements_of_all_types(tmp_path):
    """Long rows are cut into blocks; what is gathered or counted is, too."""
    c = Chains()
    for count in (1, 33, 8192, 100003):
        i = c.input(torch.randint(-50, 50, (count,), generator=torch.Generator().manual_seed(0)))
        f = c.input(randn(count))
        d = c.op("nn.cast {}", [i], i[1].double())
        e = c.op("nn.add {}, {}", [d, d], d[1] + d[1])
        c.output(c.op("nn.cast {}", [e], e[1].to(torch.int32)))
        b = c.op("nn.compare lt {}, {}", [i, i], i[1] < i[1])
        n = c.op("nn.not {}", [b], ~b[1], short=True)
        h = c.op("nn.cast {}", [f], f[1].bfloat16())
        c.output(n)
        c.output(c.op("nn.select {}, {}, {}", [n, h, h], h[1]))
        k = c.op("nn.iota dim 0", [], torch.arange(count), short=True)
        c.output(c.op("nn.mul {}, {}", [k, i], k[1] * i[1]))
    x = c.input(randn(70, 90))
    t = c.op("nn.transpose {} [1, 0]", [x], x[1].T.contiguous())
    c.output(c.op("nn.add {}, {}", [t, t], t[1] + t[1]))
    s = c.op("nn.slice {} starts [1, 2] limits [70, 89] strides [3, 2]", [x], x[1][1:70:3, 2:89:2].contiguous())
    c.output(c.op("nn.neg {}", [s], -s[1], short=True))
    j = c.op("nn.concat {}, {} dim 1", [t, t], torch.cat([t[1], t[1]], 1))
    c.output(c.op("nn.abs {}", [j], j[1].abs(), short=True))
    r = c.op("nn.reshape {}", [x], x[1].reshape(7, 10, 90))
    c.output(c.op("nn.rms_norm {} eps 1.0e-5", [r], rms(r[1])))
    c.check(tmp_path, 2e-6)


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
def test_moves(tmp_path, dtype):
    c = Chains()
    for columns in (1, 5, 33):
        x = c.input(randn(3, columns, dtype=dtype))
        c.output(c.op("dist.pad {} dims [0, 1]", [x], F.pad(x[1], (0, 3, 0, 2))))
        c.output(c.op("nn.concat {}, {} dim 1", [x, x], torch.cat([x[1], x[1]], 1)))
        c.output(c.op("nn.concat {}, {} dim 0", [x, x], torch.cat([x[1], x[1]], 0)))
    # With parts that have no elements, read and computed.
    x = c.input(randn(3, 4, dtype=dtype))
    for dim, shape in ((0, (0, 4)), (1, (3, 0))):
        nothing = c.input(randn(*shape, dtype=dtype))
        n = c.op("nn.neg {}", [nothing], -nothing[1], short=True)
        for part in (nothing, n):
            c.output(c.op(f"nn.concat {{}}, {{}} dim {dim}", [part, x], torch.cat([part[1], x[1]], dim)))
    c.check(tmp_path, 0)


def test_threads_do_not_show(tmp_path):
    """Items are cut over threads; what they compute is the same, bit for bit."""
    results = []
    for threads in (1, 3):
        c = Chains()
        x, y = c.input(randn(301, 517)), c.input(randn(301, 517, seed=1))
        h = c.op("nn.add {}, {}", [x, y], x[1] + y[1])
        c.output(h)
        c.output(c.op("nn.rms_norm {} eps 1.0e-5", [h], rms(h[1])))
        c.output(c.op("nn.softmax {} dim 1", [x], F.softmax(x[1], 1), short=True))
        c.output(c.op("nn.softmax {} dim 0", [x], F.softmax(x[1], 0), short=True))
        c.output(c.op("nn.reduce sum {} dims [0]", [x], x[1].sum(0)))
        c.output(c.op("nn.gelu {}", [y], F.gelu(y[1]), short=True))
        results.append(c.check(tmp_path, 3e-6, [f"--threads-per-rank={threads}"]))
    for name, value in results[0].items():
        assert torch.equal(value, results[1][name]), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=ELEMENT.get)
@pytest.mark.parametrize("columns", [1, 5, 32, 96, 150])
def test_exponentials_of_all_sizes(tmp_path, dtype, columns):
    """Overflow, underflow, infinity and NaN, in whole vectors and in what is left of them."""
    infinity = float("inf")
    special = [0.0, -0.0, 1.0, -1.0, 87.0, 88.5, 89.5, -86.0, -88.5, -95.0, -103.0, -105.0, 3e38, -3e38,
               infinity, -infinity, float("nan"), 1e-30, -1e-30, 300.0, -300.0]
    values = torch.tensor((special * columns)[:21 * columns]).reshape(21, columns).to(dtype)
    c = Chains()
    x = c.input(values)
    # A subnormal number may be zero.
    for name, function in (("exp", torch.exp), ("sigmoid", torch.sigmoid), ("silu", F.silu)):
        c.output(c.op(f"nn.{name} {{}}", [x], wide(function, x[1]), short=True))
    got = c.check(tmp_path, TOLERANCE[dtype])
    small = values[(values > -80) & (values < 80)]
    want, have = small.double().exp(), got["o0"][(values > -80) & (values < 80)].double()
    assert ((have - want).abs() / want).max() < (2e-7 if dtype == torch.float32 else 1 / 200)
