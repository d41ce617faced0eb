# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The derivative of each nn op, on one rank and on several, against PyTorch's autograd."""

import re

import meshwright as mw
import pytest
import torch
import torch.nn.functional as F
from harness import ELEMENT, assert_close, type_of
from meshwright import _core
from meshwright.errors import unwrap
from meshwright.model import Model

SUM = {torch.float64: torch.float64, torch.float32: torch.float32, torch.bfloat16: torch.float32}
TOLERANCE = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: 4e-2}


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def randint(low, high, *shape, seed=0):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


class Case:
    """An op on operands, and the function that it computes. Floats are parameters.

    `text` has {} for each operand, or {0} for one that it names. `same`: the op states the type
    of its result alone.
    """

    def __init__(self, text, function, *operands, same=False):
        self.text, self.function, self.operands, self.same = text, function, operands, same

    def cast(self, dtype):
        return [x.to(dtype) if x.is_floating_point() else x for x in self.operands]

    def program(self, dtype):
        """A loss to which each entry of the result matters. Operands depend on an input, as
        activations do."""
        operands = self.cast(dtype)
        result = self.function(*operands).to(dtype)
        kind, wide = type_of(result), type_of(result.to(SUM[dtype]))
        scalar, total = f"tensor<{ELEMENT[dtype]}>", f"tensor<{ELEMENT[SUM[dtype]]}>"
        arguments, body, names = [f'%one: {scalar} {{nn.input = "one"}}', f'%c: {wide} {{nn.input = "c"}}'], [], []
        for i, x in enumerate(operands):
            if x.is_floating_point():
                arguments.append(f'%p{i}: {type_of(x)} {{nn.parameter = "p{i}"}}')
                body.append(f"%x{i} = nn.mul %p{i}, %one : ({type_of(x)}, {scalar}) -> {type_of(x)}")
            else:
                arguments.append(f'%x{i}: {type_of(x)} {{nn.input = "x{i}"}}')
            names.append(f"%x{i}")
        places = [int(i or n) for n, i in enumerate(re.findall(r"{(\d*)}", self.text))]
        types = kind if self.same else f"({', '.join(type_of(operands[i]) for i in places)}) -> {kind}"
        body += [f"%y = {self.text.format(*names)} : {types}",
                 f"%w = nn.cast %y : ({kind}) -> {wide}",
                 f"%z = nn.mul %w, %c : ({wide}, {wide}) -> {wide}",
                 f"%l = nn.reduce sum %z dims {list(range(result.dim()))} : ({wide}) -> {total}"]
        return (f"func.func @main({', '.join(arguments)}) -> ({total} {{nn.output = \"loss\"}}) {{\n  "
                + "\n  ".join(body) + f"\n  return %l : {total}\n}}\n")

    def model(self, dtype):
        leaves = {f"p{i}": x.clone().requires_grad_() for i, x in enumerate(self.cast(dtype))
                  if x.is_floating_point()}
        program = unwrap(_core.Program.parse(self.program(dtype), "<test>"))
        return Model(program, leaves).differentiate()

    def inputs(self, dtype):
        result = self.function(*self.operands)
        cotangent = torch.arange(result.numel()).cos().view(result.shape)
        return {"one": torch.ones((), dtype=dtype), "c": cotangent.to(SUM[dtype]),
                **{f"x{i}": x for i, x in enumerate(self.operands) if not x.is_floating_point()}}

    def wanted(self, dtype):
        """In f64, at the operands of this type."""
        leaves = [x.double().clone().requires_grad_() if x.is_floating_point() else x for x in self.cast(dtype)]
        result = self.function(*leaves)
        (result * self.inputs(torch.float64)["c"]).sum().backward()
        return {f"grad.p{i}": torch.zeros_like(x) if x.grad is None else x.grad
                for i, x in enumerate(leaves) if x.is_floating_point()}


def rotate(x, cos, sin, interleaved=False):
    r = cos.shape[-1]
    y, rest = x[..., :r], x[..., r:]
    if interleaved:
        turned = torch.stack([-y[..., 1::2], y[..., ::2]], -1).flatten(-2)
    else:
        turned = torch.cat([-y[..., r // 2:], y[..., :r // 2]], -1)
    return torch.cat([y * cos + turned * sin, rest], -1)


def rms(x, weight=None, offset=0):
    y = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)
    return y if weight is None else y * (weight + offset)


def loss(z, y, smoothing=0.0, ignored=-100):
    return F.cross_entropy(z.movedim(1, 1), y, reduction="none", label_smoothing=smoothing,
                           ignore_index=ignored)


def attend(q, k, v, scale=0.3, seen=None, bias=None, cap=None):
    """Attention written out. `seen` broadcasts to the scores."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * scale
    if cap:
        scores = cap * torch.tanh(scores / cap)
    if bias is not None:
        scores = scores + bias
    if seen is None:
        return scores.softmax(-1) @ v
    some = seen.expand(scores.shape).any(-1, keepdim=True)
    return torch.where(some, scores.masked_fill(~seen & some, -torch.inf).softmax(-1) @ v, 0)


def near(queries, keys, left=None, right=None):
    """Query i sees keys i - left to i + right."""
    i, j = torch.arange(queries)[:, None], torch.arange(keys)
    low = torch.ones(queries, keys, dtype=torch.bool) if left is None else j >= i - left
    return low if right is None else low & (j <= i + right)


def heads(batch, query_heads, key_heads, queries, keys, features=8, value_features=8):
    return (randn(batch, query_heads, queries, features), randn(batch, key_heads, keys, features, seed=1),
            randn(batch, key_heads, keys, value_features, seed=2))


X, Y = randn(4, 6, 9), randn(6, 1, seed=1)
POSITIVE = X.abs() + 0.2
IDS, LABELS = randint(0, 7, 4, 5), randint(0, 6, 4, 9)
LABELS[1, 2:4] = -100
FLAGS = randint(0, 2, 6, 9).bool()

CASES = {
    **{name: Case(f"nn.{name} {{}}", function, X, same=True) for name, function in {
        "neg": torch.neg, "abs": torch.abs, "exp": torch.exp, "sin": torch.sin, "cos": torch.cos,
        "erf": torch.erf, "floor": torch.floor, "relu": torch.relu, "silu": F.silu,
        "tanh": torch.tanh, "sigmoid": torch.sigmoid, "gelu": F.gelu}.items()},
    **{name: Case(f"nn.{name} {{}}", getattr(torch, name), POSITIVE, same=True)
       for name in ("log", "sqrt", "rsqrt", "reciprocal")},
    "gelu tanh": Case("nn.gelu {} {{approximate_tanh}}", lambda x: F.gelu(x, approximate="tanh"), X, same=True),
    **{name: Case(f"nn.{name} {{}}, {{}}", function, X, Y) for name, function in {
        "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
        "rem": torch.remainder, "maximum": torch.maximum, "minimum": torch.minimum}.items()},
    "pow": Case("nn.pow {}, {}", torch.pow, POSITIVE, Y),
    "square": Case("nn.mul {0}, {0}", lambda x: x * x, X),
    "ties": Case("nn.maximum {}, {}", torch.maximum, X, X.clone()),
    "select": Case("nn.select {}, {}, {}", torch.where, FLAGS, X, Y),
    "reshape": Case("nn.reshape {}", lambda x: x.reshape(4, 54), X),
    "transpose": Case("nn.transpose {} [2, 0, 1]", lambda x: x.permute(2, 0, 1), X),
    "slice": Case("nn.slice {} starts [0, 1, 2] limits [4, 5, 9] strides [1, 1, 3]", lambda x: x[:, 1:5, 2::3], X),
    "slice of one": Case("nn.slice {} starts [3, 5, 0] limits [4, 6, 9] strides [1, 1, 2]", lambda x: x[3:, 5:, ::2], X),
    "concat": Case("nn.concat {}, {} dim 1", lambda *x: torch.cat(x, 1), X, randn(4, 2, 9, seed=1)),
    "broadcast": Case("nn.broadcast {}", lambda y: y.expand(4, 6, 9), Y),
    "pad": Case("nn.pad {} low [0, 1, 0] high [0, 0, 2] interior [0, 2, 0]", lambda x: F.pad(
        torch.stack([x, 0 * x, 0 * x], 2).flatten(1, 2)[:, :-2], (0, 2, 1, 0)), X),
    "gather": Case("nn.gather {}, {} dim 1", lambda x, i: x[:, i], X, randint(0, 6, 2, 4)),
    "gather one": Case("nn.gather {}, {} dim 1", lambda x, i: x[:, i], X, torch.tensor([4])),
    "take_along": Case("nn.take_along {}, {} dim 1", lambda x, i: x.gather(1, i), X, randint(0, 6, 4, 3, 9)),
    "take one along": Case("nn.take_along {}, {} dim 1", lambda x, i: x.gather(1, i), X, randint(0, 6, 4, 1, 9)),
    "index_copy": Case("nn.index_copy {}, {}, {} dim 1", lambda x, i, y: x.index_copy(1, i, y),
                       X, torch.tensor([4, 0]), randn(4, 2, 9, seed=1)),
    "embedding": Case("nn.embedding {1}, {0}", lambda t, i: t[i], randn(7, 6), IDS),
    "scatter_add": Case("nn.scatter_add {}, {} dim 1", lambda x, i: torch.zeros(
        4, 8, 9, dtype=x.dtype).index_add(1, i, x), X, randint(0, 8, 6)),
    "scatter_add along": Case("nn.scatter_add {}, {} dim 2 {{along}}", lambda x, i: torch.zeros(
        4, 6, 5, dtype=x.dtype).scatter_add(2, i, x), X, randint(0, 5, 4, 6, 9)),
    "sum": Case("nn.reduce sum {} dims [0, 2]", lambda x: x.sum((0, 2)), X),
    "mean": Case("nn.reduce mean {} dims [1] {{keep_dims}}", lambda x: x.mean(1, keepdim=True), X),
    "max": Case("nn.reduce max {} dims [1]", lambda x: x.amax(1), X),
    "min": Case("nn.reduce min {} dims [0, 2] {{keep_dims}}", lambda x: x.amin((0, 2), keepdim=True), X),
    "max of ties": Case("nn.reduce max {} dims [2]", lambda x: x.amax(2), X.relu()),
    "cumsum": Case("nn.cumsum {} dim 1", lambda x: x.cumsum(1), X, same=True),
    "softmax": Case("nn.softmax {} dim 2", lambda x: x.softmax(2), X, same=True),
    "softmax of columns": Case("nn.softmax {} dim 1", lambda x: x.softmax(1), X, same=True),
    "cross_entropy": Case("nn.cross_entropy {}, {} dim 1 {{ignore_index = -100 : i64}}", loss, X, LABELS),
    "smoothing": Case("nn.cross_entropy {}, {} dim 1 {{ignore_index = -100 : i64, label_smoothing = 0.3 : f64}}",
                      lambda z, y: loss(z, y, 0.3), X, LABELS),
    "rms_norm": Case("nn.rms_norm {} eps 1.0e-5", rms, X),
    "rms_norm weight": Case("nn.rms_norm {} weight {} eps 1.0e-5", rms, X, randn(9, seed=1)),
    "rms_norm offset": Case("nn.rms_norm {} weight {} eps 1.0e-5 {{unit_offset}}",
                            lambda x, w: rms(x, w, 1), X, randn(9, seed=1)),
    "layer_norm": Case("nn.layer_norm {} eps 1.0e-5", lambda x: F.layer_norm(x, (9,)), X),
    "layer_norm weight": Case("nn.layer_norm {} weight {} eps 1.0e-5", lambda x, w: F.layer_norm(x, (9,), w),
                              X, randn(9, seed=1)),
    "layer_norm bias": Case("nn.layer_norm {} weight {} bias {} eps 1.0e-5",
                            lambda x, w, b: F.layer_norm(x, (9,), w, b), X, randn(9, seed=1), randn(9, seed=2)),
    "rotary": Case("nn.rotary {}, {}, {}", rotate, randn(4, 6, 10), randn(6, 8, seed=1), randn(4, 1, 8, seed=2)),
    "rotary pairs": Case("nn.rotary {}, {}, {} {{interleaved}}", lambda *x: rotate(*x, interleaved=True),
                         randn(4, 6, 8), randn(6, 8, seed=1), randn(8, seed=2)),
    "linear": Case("nn.linear {}, {}", F.linear, X, randn(5, 9, seed=1)),
    "linear bias": Case("nn.linear {}, {} bias {}", F.linear, X, randn(5, 9, seed=1), randn(5, seed=2)),
    "linear in_out": Case("nn.linear {}, {} bias {} {{in_out}}", lambda x, w, b: x @ w + b,
                          X, randn(9, 5, seed=1), randn(5, seed=2)),
    "matmul": Case("nn.matmul {}, {}", torch.matmul, X, randn(4, 9, 5, seed=1)),
    "matmul tl": Case("nn.matmul {}, {} {{transpose_lhs}}", lambda a, b: a.mT @ b, X, randn(4, 6, 5, seed=1)),
    "matmul tr": Case("nn.matmul {}, {} {{transpose_rhs}}", lambda a, b: a @ b.mT, X, randn(4, 5, 9, seed=1)),
    "matmul tl tr": Case("nn.matmul {}, {} {{transpose_lhs, transpose_rhs}}", lambda a, b: a.mT @ b.mT,
                         X, randn(4, 5, 6, seed=1)),
    "matmul shared": Case("nn.matmul {}, {}", torch.matmul, X, randn(9, 5, seed=1)),
    "matmul shared tr": Case("nn.matmul {}, {} {{transpose_rhs}}", lambda a, b: a @ b.mT, X, randn(1, 5, 9, seed=1)),
    "matmul broadcast": Case("nn.matmul {}, {}", torch.matmul, randn(6, 9), randn(3, 1, 9, 5, seed=1)),
    "matmul heads": Case("nn.matmul {}, {} {{transpose_rhs}}", lambda a, b: a @ b.mT,
                         randn(2, 4, 6, 8), randn(2, 1, 5, 8, seed=1)),
    "weight_grad": Case("nn.weight_grad {}, {}", lambda a, b: torch.einsum("...m,...n->mn", a, b),
                        X, randn(4, 6, 5, seed=1)),
}
KEYS = torch.arange(75) < torch.tensor([[75], [40], [0]])
ATTENTION = {
    "attention": Case("nn.attention {}, {}, {} scale 0.3", attend, *heads(2, 3, 3, 7, 5)),
    "attention of groups": Case("nn.attention {}, {}, {} scale 0.3", attend, *heads(2, 6, 2, 7, 5, 10, 7)),
    "attention causal": Case("nn.attention {}, {}, {} scale 0.3 {{causal}}", lambda *x: attend(
        *x, seen=near(150, 150, right=0)), *heads(1, 2, 1, 150, 150)),
    "attention windows": Case("nn.attention {}, {}, {} scale 0.3 {{window_left = 20 : i64, window_right = 3 : i64}}",
                              lambda *x: attend(*x, seen=near(140, 200, 20, 3)), *heads(2, 2, 2, 140, 200)),
    "attention padding": Case("nn.attention {}, {}, {} key_padding {} scale 0.3", lambda q, k, v, m: attend(
        q, k, v, seen=m[:, None, None]), *heads(3, 2, 1, 9, 75), KEYS),
    "attention kv_length": Case("nn.attention {}, {}, {} scale 0.3 {{kv_length = 66 : i64}}", lambda *x: attend(
        *x, seen=torch.arange(75) < 66), *heads(1, 2, 2, 9, 75)),
    "attention kv_lengths": Case("nn.attention {}, {}, {} kv_lengths {} scale 0.3 {{causal}}", lambda q, k, v, n: attend(
        q, k, v, seen=near(75, 75, right=0) & (torch.arange(75) < n[:, None, None, None])),
        *heads(3, 2, 1, 75, 75), torch.tensor([75, 30, 0])),
    "attention positions": Case(
        "nn.attention {}, {}, {} positions {}, {} scale 0.3 {{causal, window_left = 30 : i64}}",
        lambda q, k, v, p, r: attend(q, k, v, seen=(r >= 0) & (r <= p[:, None]) & (r >= p[:, None] - 30)),
        *heads(1, 2, 1, 70, 90), torch.arange(70) * 37 % 90, torch.arange(90) * 53 % 90 - 4),
    "attention cap": Case("nn.attention {}, {}, {} scale 0.3 {{soft_cap = 1.5 : f64}}", lambda *x: attend(*x, cap=1.5),
                          *heads(2, 2, 1, 7, 20)),
    "attention cap bias": Case("nn.attention {}, {}, {} bias {} scale 0.3 {{soft_cap = 1.5 : f64}}", lambda q, k, v, b:
                               attend(q, k, v, bias=b, cap=1.5), *heads(2, 2, 1, 7, 20), randn(2, 7, 20, seed=3)),
    **{f"attention bias {shape}": Case("nn.attention {}, {}, {} bias {} scale 0.3", lambda q, k, v, b: attend(
        q, k, v, bias=b), *heads(2, 4, 2, 7, 70), randn(*shape, seed=3))
       for shape in ((2, 4, 7, 70), (1, 4, 7, 70), (2, 1, 1, 70), (70,))},
}
CASES.update(ATTENTION)
# The wide result of these is no bf16.
WIDE = ("scatter_add", "weight_grad")


def run(case, dtype, **options):
    model = case.model(dtype)
    plan = model.parallelize(sequence_parallel="off", **options)
    got = dict(zip(model.outputs, plan.run(**case.inputs(dtype)), strict=True))
    for name, want in case.wanted(dtype).items():
        assert got[name].dtype == SUM[dtype]
        assert_close(got[name].double(), want, TOLERANCE[dtype], f"{name}\n{plan.ir('propagated')}")
    return plan


@pytest.mark.parametrize("dtype", TOLERANCE, ids=ELEMENT.get)
@pytest.mark.parametrize("name", CASES)
def test_one_rank(name, dtype):
    if dtype == torch.bfloat16 and name.startswith(WIDE):
        return
    run(CASES[name], dtype, mesh={"x": 1})


def shardings(case):
    """Each operand sharded along its first dimension, along its last, and along both. Sizes are no
    multiples of the axes."""
    floats = {f"p{i}": x.shape for i, x in enumerate(case.operands) if x.is_floating_point()}
    for mesh in ({"a": 3}, {"b": 2}, {"a": 3, "b": 2}):
        rules = {}
        for name, shape in floats.items():
            dims = [[] for _ in shape]
            for axis, dim in (("a", 0), ("b", len(shape) - 1)):
                if axis in mesh and shape[dim] > 1 and not dims[dim]:
                    dims[dim] = [f'"{axis}"']
            rules[name] = "[" + ", ".join("{" + "".join(axes) + "}" for axes in dims) + "]"
        yield mesh, rules


@pytest.mark.parametrize("name", CASES)
def test_sharded(name):
    for mesh, rules in shardings(CASES[name]):
        run(CASES[name], torch.float64, mesh=mesh, shardings=rules)
