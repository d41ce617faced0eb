# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""nn.attention_grad, compiled and run, against autograd of PyTorch in f64."""
import math

import pytest
import torch
from harness import ELEMENT, run_module, type_of

import meshwright as mw

FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
# Operands are exact and sums in f32, so their type makes a difference only where a processor
# multiplies bf16: weights and gradients of scores are then rounded, except for the bias.
EXACT = 4e-6
TOLERANCE = {torch.float32: EXACT, torch.bfloat16: 4e-3, torch.float16: EXACT, torch.float64: 1e-13}
# Queries and keys: fewer and more than a vector, a tile, a block of either.
LENGTHS = [(1, 1), (1, 97), (7, 9), (33, 7), (97, 97), (130, 300)]
MASKS = [(*lengths, dtype) for dtype in FLOATS
         for lengths in (LENGTHS if dtype in FLOATS[:2] else [(7, 9), (97, 97)])]
NAMES = ("query", "key", "value", "bias")


def name(value):
    return ELEMENT.get(value, value) if isinstance(value, torch.dtype) else str(value)


def randn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def tensors(batch, heads, kv_heads, queries, keys, features, value_features, dtype):
    return (randn(batch, heads, queries, features, dtype=dtype),
            randn(batch, kv_heads, keys, features, seed=1, dtype=dtype),
            randn(batch, kv_heads, keys, value_features, seed=2, dtype=dtype))


def places(queries, keys):
    return torch.arange(queries)[:, None], torch.arange(keys)[None]


def sums(dtype):
    return torch.float64 if dtype == torch.float64 else torch.float32


class Case:
    """One op: its operands and what autograd says that its results are."""

    def __init__(self, x, scale, seen=None, bias=None, cap=None, wants_bias=False, wide=False,
                 make=randn):
        q, k, v = x
        self.x, self.scale, self.bias, self.cap = x, scale, bias, cap
        leaves = [t.double().requires_grad_() for t in (*x, *([] if bias is None else [bias]))]
        group = q.shape[1] // k.shape[1]
        s = leaves[0] @ leaves[1].repeat_interleave(group, 1).mT * scale
        if cap:
            s = cap * torch.tanh(s / cap)
        if bias is not None:
            s = s + leaves[3]
        if seen is not None:
            s = s.masked_fill(~seen, -math.inf)
        top = s.detach().amax(-1, keepdim=True).clamp_min(-1e300)
        e = torch.exp(s - top)
        total = e.sum(-1, keepdim=True)
        out = e / total.clamp_min(1e-300) @ leaves[2].repeat_interleave(group, 1)
        self.cotangent = make(*out.shape, seed=7, dtype=q.dtype)
        grads = torch.autograd.grad(out, leaves, self.cotangent.double())
        self.want = [g.to(sums(q.dtype)) for g in (grads if wants_bias else grads[:3])]
        self.lse = (torch.log(total) + top)[..., 0].detach().to(
            torch.float64 if wide else sums(q.dtype))
        self.lse[(total == 0)[..., 0]] = -math.inf
        self.delta = (out.detach() * self.cotangent.double()).sum(-1).to(sums(q.dtype))


class Program:
    def __init__(self):
        self.inputs, self.body, self.wants = {}, [], {}

    def input(self, tensor):
        for known, x in self.inputs.items():
            if x is tensor:
                return "%" + known
        self.inputs[f"in{len(self.inputs)}"] = tensor
        return f"%in{len(self.inputs) - 1}"

    def add(self, case, attributes="", padding=None, positions=None, lengths=None):
        operands = [*case.x]
        text = "nn.attention_grad {}, {}, {}"
        masks = ""
        for tag, tensor in (("key_padding", padding), ("bias", case.bias)):
            if tensor is not None:
                masks += f" {tag} {{}}"
                operands.append(tensor)
        if positions is not None:
            masks += " positions {}, {}"
            operands.extend(positions)
        if lengths is not None:
            masks += " kv_lengths {}"
            operands.append(lengths)
        operands += [case.lse, case.delta, case.cotangent]
        masks += " lse {} delta {} cotangent {}"
        attributes = ", ".join(filter(None, [attributes, case.cap and f"soft_cap = {case.cap!r}"]))
        text += masks + f" scale {case.scale!r}" + (f" {{{{{attributes}}}}}" if attributes else "")
        types = ", ".join(map(type_of, operands))
        results = ", ".join(map(type_of, case.want))
        i = len(self.body)
        self.body.append(f"%r{i}:{len(case.want)} = {text.format(*map(self.input, operands))} : "
                         f"({types}) -> ({results})")
        for j, want in enumerate(case.want):
            self.wants[f"r{i}.{NAMES[j]}"] = (f"%r{i}#{j}", want)

    def text(self, mesh="", shardings=()):
        """Sharded inputs are x - 1, to which the program adds 1, so their padding becomes 1."""
        own = {name: sharding for name, x in self.inputs.items() for y, sharding in shardings if x is y}
        marks = {name: f", dist.sharding = #dist.sharding<@mesh, {text}>" for name, text in own.items()}
        arguments = ", ".join(f'%{n}{"_" * (n in own)}: {type_of(x)} {{nn.input = "{n}"{marks.get(n, "")}}}'
                              for n, x in self.inputs.items())
        results = ", ".join(f'{type_of(x)} {{nn.output = "{n}"}}' for n, (_, x) in self.wants.items())
        lines = []
        for name in own:
            of = type_of(self.inputs[name])
            if self.inputs[name].is_floating_point():
                lines += [f"%{name}o = nn.constant dense<1.0> : {of}",
                          f"%{name} = nn.add %{name}_, %{name}o : ({of}, {of}) -> {of}"]
            else:
                lines.append(f"%{name} = nn.reshape %{name}_ : ({of}) -> {of}")
        body = "\n  ".join(lines + self.body)
        values = ", ".join(v for v, _ in self.wants.values())
        types = ", ".join(type_of(x) for _, x in self.wants.values())
        head = f"dist.mesh @mesh = <[{mesh}]>\n" if mesh else ""
        return (f"{head}func.func @main({arguments}) -> ({results}) {{\n  {body}\n"
                f"  return {values} : {types}\n}}\n")

    def check(self, folder, tolerance, **kwargs):
        got = run_module(folder, self.text(), self.inputs, **kwargs)
        self.compare(got, tolerance)

    def compare(self, got, tolerance):
        """Errors are relative to the largest entry of all gradients of an op."""
        for i, text in enumerate(self.body):
            names = [key for key in self.wants if key.startswith(f"r{i}.")]
            largest = max(self.wants[key][1].abs().max().item() for key in names) or 1.0
            for key in names:
                want, x = self.wants[key][1].double(), got[key]
                assert x.dtype == self.wants[key][1].dtype and x.shape == want.shape, key
                error = (x.double() - want).abs().max().item() / largest
                limit = min(tolerance, 1e-5) if key.endswith(".bias") else tolerance
                assert error <= limit, f"{key}: error {error:.2e} > {limit:.0e}\n{text}"


@pytest.mark.parametrize("queries,keys,dtype", MASKS, ids=name)
def test_masks(tmp_path, queries, keys, dtype):
    x = tensors(2, 4, 2, queries, keys, 16, 12, dtype)
    i, j = places(queries, keys)
    padding = torch.rand(2, keys, generator=torch.Generator().manual_seed(3)) > 0.4
    padding[1] = False
    p = Program()
    for attributes, seen in {
            "": None,
            "causal": j <= i,
            "causal, window_left = 5": (j <= i) & (j >= i - 5),
            "causal, window_left = 100": (j <= i) & (j >= i - 100),
            "window_left = 1, window_right = 3": (j >= i - 1) & (j <= i + 3),
            "window_left = 2": j >= i - 2,
            "window_right = 70": j <= i + 70,
            f"kv_length = {keys // 2}": (j < keys // 2).expand(queries, keys),
            "kv_length = 0": torch.zeros(queries, keys, dtype=torch.bool)}.items():
        p.add(Case(x, 0.25, seen), attributes)
    p.add(Case(x, 0.25, padding[:, None, None]), padding=padding)
    p.add(Case(x, 0.25, (j <= i) & padding[:, None, None]), "causal", padding=padding)
    p.add(Case(x, 0.25, j <= i, cap=1.5), "causal")
    p.check(tmp_path, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", FLOATS[:2] + FLOATS[3:], ids=ELEMENT.get)
@pytest.mark.parametrize("heads,kv_heads", [(8, 2), (4, 1), (3, 3)])
def test_heads(tmp_path, heads, kv_heads, dtype):
    """Head sizes that fill vectors and those that do not; rows of several heads in a block."""
    p = Program()
    for queries, keys, features, value_features in (
            (1, 97, 128, 128), (1, 70, 20, 33), (2, 50, 64, 16), (7, 97, 20, 12), (40, 97, 7, 5),
            (128, 128, 16, 64), (150, 97, 80, 256), (70, 70, 12, 48)):
        x = tensors(3, heads, kv_heads, queries, keys, features, value_features, dtype)
        i, j = places(queries, keys)
        scale = features**-0.5
        p.add(Case(x, scale))
        p.add(Case(x, scale, j <= i), "causal")
    p.check(tmp_path, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", FLOATS[:2] + FLOATS[3:], ids=ELEMENT.get)
@pytest.mark.parametrize("queries,keys", [(1, 70), (7, 9), (97, 70)])
def test_bias(tmp_path, queries, keys, dtype):
    """The gradient of a bias is summed to its shape, over heads and rows of the batch, too."""
    x = tensors(2, 4, 2, queries, keys, 16, 12, dtype)
    i, j = places(queries, keys)
    p = Program()
    for shape in ((queries, keys), (4, queries, keys), (2, 4, queries, keys), (2, 1, queries, keys),
                  (1, 4, 1, keys), (2, 1, 1, keys), (4, queries, 1), (4, 1, 1), (keys,)):
        bias = randn(*shape, seed=5, dtype=dtype)
        p.add(Case(x, 0.25, bias=bias, wants_bias=True))
    p.add(Case(x, 0.25, j <= i, bias, 2.0, wants_bias=True), "causal")
    p.add(Case(x, 0.25, j <= i, bias, 2.0), "causal")
    p.check(tmp_path, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
def test_positions_and_lengths(tmp_path, dtype):
    x = tensors(3, 4, 2, 70, 130, 16, 16, dtype)
    order = torch.randperm(130, generator=torch.Generator().manual_seed(1))
    q_places, kv_places = 60 + torch.arange(70), order.clone()
    kv_places[kv_places > 120] = -1
    i, j = q_places[:, None], kv_places[None]
    lengths = torch.tensor([0, 50, 130])
    of_row = torch.stack([q_places, q_places - 30, q_places - 60])
    p = Program()
    p.add(Case(x, 0.25, (j <= i) & (j >= 0)), "causal", positions=(q_places, kv_places))
    p.add(Case(x, 0.25, (j <= i) & (j >= 0) & (j >= i - 20)), "causal, window_left = 20",
          positions=(q_places, kv_places))
    rows = of_row[:, None, :, None]
    p.add(Case(x, 0.25, (j <= rows) & (j >= 0) & (j < lengths[:, None, None, None])), "causal",
          positions=(of_row, kv_places), lengths=lengths)
    index = torch.arange(130)[None]
    p.add(Case(x, 0.25, (index < lengths[:, None, None, None]).expand(3, 1, 70, 130)), lengths=lengths)
    p.check(tmp_path, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
def test_long(tmp_path, dtype):
    x = tensors(1, 2, 1, 500, 500, 20, 8, dtype)
    i, j = places(500, 500)
    p = Program()
    p.add(Case(x, 0.3, j <= i), "causal")
    p.add(Case(x, 0.3, (j <= i) & (j >= i - 150)), "causal, window_left = 150")
    p.check(tmp_path, TOLERANCE[dtype])


@pytest.mark.parametrize("wide", [False, True], ids=["narrow", "wide"])
@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
def test_rows_without_keys(tmp_path, dtype, wide):
    """-inf in all of a row gives zeros."""
    x = tensors(1, 2, 2, 40, 70, 16, 16, dtype)
    bias = randn(40, 70, seed=3, dtype=dtype)
    bias[0], bias[1, 30:], bias[:, 64:] = -math.inf, -math.inf, -math.inf
    case = Case(x, 0.25, bias=bias, wants_bias=True, wide=wide)
    assert case.want[0][:, :, 0].count_nonzero() == 0 and case.want[0].isfinite().all()
    p = Program()
    p.add(case)
    p.check(tmp_path, TOLERANCE[dtype])


def test_large_scores(tmp_path):
    x = tensors(1, 1, 1, 40, 200, 16, 16, torch.float32)
    i, j = places(40, 200)
    p = Program()
    for scale in (30.0, -30.0, 0.0):
        p.add(Case(x, scale, j <= i, wide=True), "causal")
    p.check(tmp_path, 1e-4)


def run_sharded(folder, program, mesh, shardings, tolerance):
    """The collectives of the plan."""
    (folder / "m.mlir").write_text(program.text(mesh, shardings))
    plan = mw.load(folder / "m.mlir").parallelize()
    own = [x for x, _ in shardings]
    results = plan.run(*(x - 1 if any(x is y for y in own) else x for x in program.inputs.values()))
    program.compare(dict(zip(program.wants, results)), tolerance)
    return [c["kind"] for c in plan.report(format="json")["collectives"]]


def coarse(*shape, seed=0, dtype=torch.float32):
    """Numbers that bf16 holds even with 1 subtracted."""
    return torch.round(randn(*shape, seed=seed).clamp(-0.9, 0.9) * 64).div(64).to(dtype)


# Axes that shard batch, heads and tokens of queries and of keys, and whether results are sums over
# ranks.
MESHES = {
    "dp": ('"a"=2', ('"a"', "", ""), ('"a"', "", ""), False),
    "dp padded": ('"a"=4', ('"a"', "", ""), ('"a"', "", ""), False),
    "tp": ('"a"=2', ("", '"a"', ""), ("", '"a"', ""), False),
    "tp in groups": ('"a"=4', ("", '"a"', ""), ("", "", ""), True),
    "queries": ('"a"=2', ("", "", '"a"'), ("", "", ""), True),
    "queries padded": ('"a"=4', ("", "", '"a"'), ("", "", ""), True),
    "keys": ('"a"=2', ("", "", ""), ("", "", '"a"'), True),
    "keys padded": ('"a"=4', ("", "", ""), ("", "", '"a"'), True),
    "all": ('"a"=2, "b"=2, "c"=2', ('"a"', '"b"', '"c"'), ('"a"', '"b"', ""), True),
}


def spell(axes):
    return f"[{', '.join('{' + axis + '}' for axis in axes)}, {{}}]"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=ELEMENT.get)
@pytest.mark.parametrize("name", MESHES)
def test_sharded(tmp_path, name, dtype):
    mesh, rows, keys, is_sum = MESHES[name]
    batch = 3 if name == "dp padded" else 2
    x = (coarse(batch, 4, 18, 16, dtype=dtype), coarse(batch, 2, 26, 16, seed=1, dtype=dtype),
         coarse(batch, 2, 26, 12, seed=2, dtype=dtype))
    q_places, kv_places = torch.arange(4, 22), torch.arange(26)
    case = Case(x, 0.25, kv_places[None] <= q_places[:, None], make=coarse)
    p = Program()
    p.add(case, "causal", positions=(q_places, kv_places))
    shardings = [(t, spell(axes)) for t, axes in ((x[0], rows), (x[1], keys), (x[2], keys),
                                                  (case.cotangent, rows))]
    kinds = run_sharded(tmp_path, p, mesh, shardings, max(1e-5, TOLERANCE[dtype]))
    assert any("reduce" in kind for kind in kinds) == is_sum, kinds


@pytest.mark.parametrize("axes", ["dp", "tp", "queries", "keys"])
@pytest.mark.parametrize("shape", [(1, 4, 10, 14), (2, 1, 1, 14), (4, 10, 1), (2, 4, 10, 14)], ids=str)
def test_sharded_bias(tmp_path, shape, axes):
    """One row of the batch, or one key head, for each rank. The gradient of a bias that broadcasts is a sum."""
    x = (coarse(2, 4, 10, 16), coarse(2, 2, 14, 16, seed=1), coarse(2, 2, 14, 12, seed=2))
    bias = coarse(*shape, seed=5)
    case = Case(x, 0.25, bias=bias, wants_bias=True, make=coarse)
    p = Program()
    p.add(case)
    rows, keys = {"dp": (('"a"', "", ""), ('"a"', "", "")), "tp": (("", '"a"', ""), ("", '"a"', "")),
                  "queries": (("", "", '"a"'), ("", "", "")),
                  "keys": (("", "", ""), ("", "", '"a"'))}[axes]
    shardings = [(t, spell(axes)) for t, axes in ((x[0], rows), (x[1], keys), (x[2], keys),
                                                  (case.cotangent, rows))]
    run_sharded(tmp_path, p, '"a"=2', shardings, 1e-5)


def test_two_runs_have_the_same_bits(tmp_path):
    x = tensors(1, 8, 4, 200, 200, 32, 32, torch.float32)
    i, j = places(200, 200)
    p = Program()
    p.add(Case(x, 0.25, j <= i), "causal")
    first, second = (run_module(tmp_path, p.text(), p.inputs, arguments=[f"--threads-per-rank={n}"])
                     for n in (1, 2))
    assert all(torch.equal(first[name], second[name]) for name in first)
