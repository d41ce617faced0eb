# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attention over parts of the keys, in any order, and parts put together, against NumPy and PyTorch
in f64."""
import math

import numpy as np
import pytest
import torch
from harness import ELEMENT, assert_close, run_module, type_of
from test_attention import FLOATS, TOLERANCE, attend, log_sum_exp, name, randn, tensors


class Module:
    """A program of ops with several results, what is expected of each of its outputs."""

    def __init__(self):
        self.inputs, self.lines, self.outputs = {}, [], {}

    def input(self, tensor):
        for known, other in self.inputs.items():
            if other is tensor:
                return "%" + known
        self.inputs[f"in{len(self.inputs)}"] = tensor
        return f"%in{len(self.inputs) - 1}"

    def op(self, text, operands, results):
        """Values of an op; operands and results are pairs of a value and something of its type."""
        at = f"%v{len(self.lines)}"
        types = ", ".join(type_of(x) for _, x in operands)
        made = ", ".join(type_of(x) for x in results)
        self.lines.append(f"{at}:{len(results)} = {text.format(*(v for v, _ in operands))} : "
                          f"({types}) -> ({made})")
        return [(f"{at}#{i}", x) for i, x in enumerate(results)]

    def attention(self, operands, text):
        """The result and its log-sum-exp; `operands` are tensors."""
        q, v = operands[0], operands[2]
        result = torch.empty(*q.shape[:3], v.shape[3], dtype=q.dtype)
        lse = torch.empty(q.shape[:3], dtype=lse_type(q.dtype))
        return self.op("nn.attention {}, {}, {} " + text, [(self.input(x), x) for x in operands],
                       [result, lse])

    def merge(self, first, second):
        return self.op("nn.merge_attention {}, {}, {}, {}", [*first, *second],
                       [first[0][1], first[1][1]])

    def expect(self, value, expected, tolerance):
        self.outputs[value[0]] = (expected, tolerance)

    def check(self, folder, *options):
        arguments = ", ".join(f'%{key}: {type_of(x)} {{nn.input = "{key}"}}'
                              for key, x in self.inputs.items())
        results = ", ".join(f'{type_of(x)} {{nn.output = "r{i}"}}'
                            for i, (x, _) in enumerate(self.outputs.values()))
        types = ", ".join(type_of(x) for x, _ in self.outputs.values())
        body = "\n  ".join(self.lines)
        got = run_module(folder, f"func.func @main({arguments}) -> ({results}) {{\n  {body}\n"
                         f"  return {', '.join(self.outputs)} : {types}\n}}\n", self.inputs,
                         arguments=options)
        for i, (value, (want, tolerance)) in enumerate(self.outputs.items()):
            assert_close(got[f"r{i}"], want, tolerance, value + "\n" + body)


def lse_type(dtype):
    return torch.float64 if dtype == torch.float64 else torch.float32


def merge(first, first_lse, second, second_lse):
    """In NumPy's f64."""
    a, la, b, lb = (x.double().numpy() for x in (first, first_lse, second, second_lse))
    with np.errstate(invalid="ignore"):
        lse = np.logaddexp(la, lb)
        shares = [np.where(np.isneginf(lse), 0, np.exp(x - lse))[..., None] for x in (la, lb)]
    return (torch.from_numpy(a * shares[0] + b * shares[1]).to(first.dtype),
            torch.from_numpy(lse).to(first_lse.dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
def test_merge(tmp_path, dtype):
    """Rows and columns that fill vectors and that do not; -inf on one side and on both."""
    module = Module()
    for shape in ((1, 1, 1, 1), (1, 3, 5, 7), (2, 4, 33, 16), (1, 2, 16, 40), (3, 1, 100, 128)):
        a, b = randn(*shape, dtype=dtype), randn(*shape, seed=1, dtype=dtype)
        la, lb = (20 * randn(*shape[:3], seed=s).to(lse_type(dtype)) for s in (2, 3))
        for lse, part, seed in ((la, a, 4), (lb, b, 5)):
            hidden = torch.rand(*shape[:3], generator=torch.Generator().manual_seed(seed)) < 0.3
            lse[hidden], part[hidden] = -math.inf, 0
        want = merge(a, la, b, lb)
        if math.prod(shape) > 1000:
            assert torch.isneginf(want[1]).any() and (want[0][torch.isneginf(want[1])] == 0).all()
        got = module.op("nn.merge_attention {}, {}, {}, {}",
                        [(module.input(x), x) for x in (a, la, b, lb)], want)
        for value, expected in zip(got, want):
            module.expect(value, expected, TOLERANCE[expected.dtype])
    module.check(tmp_path)


def split(order, parts):
    """Places of a sequence in chunks, one for each part."""
    size = len(order) // parts
    return [order[i * size:(i + 1) * size if i + 1 < parts else None] for i in range(parts)]


def orders(tokens, parts):
    """Which tokens each part has."""
    chunks = split(torch.arange(tokens), 2 * parts)
    return {
        "contiguous": split(torch.arange(tokens), parts),
        "zigzag": [torch.cat([chunks[i], chunks[-1 - i]]) for i in range(parts)],
        "striped": [torch.arange(i, tokens, parts) for i in range(parts)],
        "any": split(torch.randperm(tokens, generator=torch.Generator().manual_seed(7)), parts),
    }


MASKS = {
    "": lambda i, j: (j >= 0).expand(i.shape[0], j.shape[1]),
    "causal": lambda i, j: j <= i,
    "causal, window_left = 20": lambda i, j: (j <= i) & (j >= i - 20),
    "window_left = 7, window_right = 30": lambda i, j: (j >= i - 7) & (j <= i + 30),
    "window_left = 90": lambda i, j: j >= i - 90,
}


ORDERS = ["contiguous", "zigzag", "striped", "any"]
# Every kernel takes a while to compile.
RINGS = [(*size, order, torch.float32) for size in ((24, 3), (601, 3)) for order in ORDERS] + [
    (150, 2, "zigzag", dtype) for dtype in (torch.bfloat16, torch.float64)]


@pytest.mark.parametrize("tokens,parts,order,dtype", RINGS, ids=name)
def test_parts_make_the_whole(tmp_path, tokens, parts, order, dtype):
    """As a ring has it: each part's queries against each part's keys, merged one by one."""
    q, k, v = tensors(2, 4, 2, tokens, tokens, 16, 12, dtype)
    padding = torch.rand(2, tokens, generator=torch.Generator().manual_seed(3)) > 0.2
    bias = randn(4, tokens, tokens, seed=5, dtype=dtype)
    places = orders(tokens, parts)[order]
    every = torch.arange(tokens)
    module = Module()
    for rank, own in enumerate(places[:2]):
        queries = q[:, :, own].contiguous()
        for attributes, mask in MASKS.items():
            extras = {"causal": ("key_padding", "cap"), "": ("bias",)}.get(attributes, ())
            text = f" scale 0.25 {{{{{attributes}}}}}"
            if "cap" in extras:
                text = text.replace("}}", ", soft_cap = 2.0}}")
            whole = None
            for step in range(parts):
                of = places[(rank + step) % parts]
                operands = [queries, k[:, :, of].contiguous(), v[:, :, of].contiguous()]
                kind = ""
                if "key_padding" in extras:
                    operands.append(padding[:, of].contiguous())
                    kind += "key_padding {} "
                if "bias" in extras:
                    operands.append(bias[:, own][:, :, of].contiguous())
                    kind += "bias {} "
                operands += [own, of]
                part = module.attention(operands, kind + "positions {}, {}" + text)
                whole = module.merge(whole, part) if whole else part
            seen = mask(own[:, None], every[None])
            if "key_padding" in extras:
                seen = seen & padding[:, None, None]
            more = {"cap": 2.0 if "cap" in extras else None,
                    "bias": bias[:, own] if "bias" in extras else None}
            # A part is rounded before it is merged.
            tolerance = TOLERANCE[dtype] * (2 if dtype == torch.bfloat16 else 1)
            module.expect(whole[0], attend(queries, k, v, 0.25, seen, **more), tolerance)
            module.expect(whole[1], log_sum_exp(queries, k, 0.25, seen, **more), TOLERANCE[dtype])
    module.check(tmp_path)


def hidden_places(keys, kind, generator):
    """Which of the keys are padding."""
    hidden = torch.zeros(keys, dtype=torch.bool)
    if kind == "some":
        hidden = torch.rand(keys, generator=generator) < 0.3
    elif kind == "tail":
        hidden[keys - keys // 3:] = True
    elif kind == "runs":
        for at in range(0, keys, 130):
            hidden[at:at + 65] = True
    elif kind == "all":
        hidden[:] = True
    return hidden


PLACES = [(*size, hide, torch.float32) for size in ((5, 640), (40, 63), (129, 65), (300, 400))
          for hide in ("none", "some", "tail", "runs", "all")] + [
    (1, 300, "some", torch.bfloat16), (300, 401, "runs", torch.bfloat16)]


@pytest.mark.parametrize("queries,keys,hide,dtype", PLACES, ids=name)
def test_places(tmp_path, queries, keys, hide, dtype):
    """Places of all kinds, with padding among the keys and the queries, where blocks of keys are
    seen by none of a block of queries, by all, and by some."""
    generator = torch.Generator().manual_seed(queries + keys)
    x = q, k, v = tensors(2, 4, 2, queries, keys, 16, 12, dtype)
    hidden = hidden_places(keys, hide, generator)
    kinds = {
        "behind": (torch.arange(queries) + 1000, torch.arange(keys)),
        "before": (torch.arange(queries), torch.arange(keys) + 1000),
        "within": (torch.arange(queries) + keys // 2, torch.arange(keys)),
        "reversed": (torch.arange(queries).flip(0), torch.arange(keys).flip(0)),
        "striped": (torch.arange(queries) * 3 + 1, torch.arange(keys) * 3 + 2),
        "random": (torch.randint(0, 500, (queries,), generator=generator),
                   torch.randint(0, 500, (keys,), generator=generator)),
        "blocks": (torch.randperm(queries, generator=generator) // 32 * 200,
                   torch.randperm((keys + 63) // 64, generator=generator)
                   .repeat_interleave(64)[:keys] * 70),
        "far": (torch.arange(queries) + 2**40, torch.arange(keys) + 2**40 - 30),
    }
    module = Module()
    for kind, (at, of) in kinds.items():
        at, of = at.clone(), torch.where(hidden, -1 - torch.arange(keys), of)
        at[queries // 2] = -1
        i, j = at[:, None], of[None]
        masks = MASKS if kind in ("within", "random") else dict(list(MASKS.items())[1:4])
        for attributes, mask in masks.items():
            seen = mask(i, j) & (j >= 0)
            got = module.attention([*x, at, of], f"positions {{}}, {{}} scale 0.25 {{{{{attributes}}}}}")
            module.expect(got[0], attend(*x, 0.25, seen), TOLERANCE[dtype])
            module.expect(got[1], log_sum_exp(q, k, 0.25, seen), TOLERANCE[dtype])
    module.check(tmp_path)


@pytest.mark.parametrize("queries", [3, 40])
def test_kv_length_counts_slots(tmp_path, queries):
    """With places as operands too; a window that is the widest hides nothing."""
    x = q, k, v = tensors(1, 2, 1, queries, 150, 16, 16, torch.float32)
    at = torch.arange(queries) + 40
    of = torch.randperm(150, generator=torch.Generator().manual_seed(1))
    slots = torch.arange(150)[None] < 70
    module = Module()
    for attributes, seen in {
            "kv_length = 70": slots.expand(queries, 150),
            "kv_length = 70, causal": slots & (of[None] <= at[:, None]),
            f"causal, window_left = {2**63 - 1}": of[None] <= at[:, None]}.items():
        got = module.attention([*x, at, of], f"positions {{}}, {{}} scale 0.25 {{{{{attributes}}}}}")
        module.expect(got[0], attend(*x, 0.25, seen), 3e-6)
        module.expect(got[1], log_sum_exp(q, k, 0.25, seen), 3e-6)
    module.check(tmp_path)


@pytest.mark.parametrize("queries", [3, 40])
def test_empty_parts_are_no_fault(tmp_path, queries):
    """--check-finite leaves log-sum-exps alone; results of queries that see no key are zeros."""
    x = tensors(1, 2, 1, queries, 70, 16, 16, torch.float32)
    future, past = torch.arange(70) + queries, torch.arange(70) - 70
    module = Module()
    parts = [module.attention([*x, torch.arange(queries), of], "positions {}, {} scale 0.25 {{causal}}")
             for of in (future, past)]
    whole = module.merge(*parts)
    for part in (*parts, whole):
        module.expect(part[0], torch.zeros(1, 2, queries, 16), 0)
        module.expect(part[1], torch.full((1, 2, queries), -math.inf), 0)
    module.check(tmp_path, "--check-finite")
