# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attention that computes its bias from values of the queries and of the keys, against PyTorch in
f64."""
import math
import re
import subprocess

import pytest
import torch
from harness import ELEMENT, assert_close, run_module, tool, type_of
from test_attention import FLOATS, TOLERANCE, attend, name, randn, tensors

LENGTHS = [(1, 70), (7, 9), (33, 7), (97, 70), (130, 300)]
CASES = [(*lengths, dtype) for dtype in FLOATS
         for lengths in (LENGTHS if dtype in FLOATS[:2] else [(7, 9), (97, 70)])]


class Expression:
    """Values by name, written as ops and computed by PyTorch."""

    def __init__(self):
        self.inputs, self.lines, self.values = {}, [], {}

    def add(self, line, value):
        at = f"%e{len(self.lines)}"
        self.lines.append(f"{at} = {line} -> {type_of(value)}")
        self.values[at] = value
        return at

    def input(self, value):
        at = f"%in{len(self.inputs)}"
        self.inputs[at[1:]] = self.values[at] = value
        return at

    def constant(self, number, dtype):
        at = f"%e{len(self.lines)}"
        self.values[at] = torch.tensor(number, dtype=dtype)
        text = {-math.inf: {32: "0xFF800000", 16: "0xFF80" if dtype == torch.bfloat16 else "0xFC00",
                            64: "0xFFF0000000000000"}}.get(number, {}).get(8 * dtype.itemsize)
        self.lines.append(f"{at} = nn.constant dense<{text or repr(number)}> : "
                          f"{type_of(self.values[at])}")
        return at

    def iota(self, shape, dim):
        at = f"%e{len(self.lines)}"
        places = torch.arange(shape[dim]).reshape([-1 if i == dim else 1 for i in range(len(shape))])
        self.values[at] = places.expand(shape)
        self.lines.append(f"{at} = nn.iota dim {dim} : {type_of(self.values[at])}")
        return at

    def op(self, text, *operands):
        op, *rest = text.split(" ")
        x = [self.values[o] for o in operands]
        value = {
            "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
            "and": lambda a, b: a & b, "or": lambda a, b: a | b, "select": torch.where,
            "compare": {"eq": torch.eq, "le": torch.le, "lt": torch.lt}.get(rest[0] if rest else ""),
        }[op](*x)  # fmt: skip
        types = ", ".join(type_of(v) for v in x)
        return self.add(f"nn.{text} {', '.join(operands)} : ({types})", value)

    def move(self, text, operand, value):
        return self.add(f"nn.{text.format(operand)} : ({type_of(self.values[operand])})", value)

    def cast(self, operand, dtype):
        return self.move("cast {}", operand, self.values[operand].to(dtype))

    def hide(self, seen, dtype):
        return self.op("select", seen, self.constant(0.0, dtype), self.constant(-math.inf, dtype))

    def module(self, x, biases, attributes=""):
        """Attention with each of the biases."""
        inputs = {"q": x[0], "k": x[1], "v": x[2], **self.inputs}
        result = type_of(x[0].new_empty(*x[0].shape[:3], x[2].shape[3]))
        arguments = ", ".join(f'%{n}: {type_of(t)} {{nn.input = "{n}"}}' for n, t in inputs.items())
        results = ", ".join(f'{result} {{nn.output = "r{i}"}}' for i in range(len(biases)))
        lines = list(self.lines)
        for i, bias in enumerate(biases):
            types = ", ".join(map(type_of, (*x, self.values[bias])))
            lines.append(f"%r{i} = nn.attention %q, %k, %v bias {bias} scale 0.25 {attributes} : "
                         f"({types}) -> {result}")
        body = "\n  ".join(lines)
        return inputs, (f"func.func @main({arguments}) -> ({results}) {{\n  {body}\n  return "
                        f"{', '.join(f'%r{i}' for i in range(len(biases)))} : "
                        f"{', '.join([result] * len(biases))}\n}}\n")

    def check(self, folder, x, biases, tolerance):
        inputs, text = self.module(x, biases)
        got = run_module(folder, text, inputs)
        for i, bias in enumerate(biases):
            want = attend(*x, 0.25, bias=self.values[bias])
            assert_close(got[f"r{i}"], want, tolerance, bias + "\n" + text)
        return text


def biases_read(folder, text):
    """How many attentions read their bias from memory."""
    (folder / "model.mlir").write_text(text)
    opt = re.sub("run$", "opt", tool())
    ir = subprocess.run([opt, str(folder / "model.mlir"), "--form-kernels"], capture_output=True,
                        text=True, check=True).stdout
    return len(re.findall(r"nn\.attention %arg\d+, %arg\d+, %arg\d+ bias %arg", ir))


@pytest.mark.parametrize("queries,keys,dtype", CASES, ids=name)
def test_expressions(tmp_path, queries, keys, dtype):
    x = tensors(2, 4, 2, queries, keys, 16, 12, dtype)
    e = Expression()
    segments = torch.randint(0, 3, (2, max(queries, keys)), generator=torch.Generator().manual_seed(1))
    of_query = e.input(segments[:, None, :queries, None].contiguous())
    of_key = e.input(segments[:, None, None, :keys].contiguous())
    same = e.op("compare eq", of_query, of_key)
    # Causal by indices, which are not in memory either.
    shape = (1, 1, queries, keys)
    causal = e.op("compare le", e.iota(shape, 3), e.iota(shape, 2))
    padding = e.input(torch.rand(2, 1, 1, keys, generator=torch.Generator().manual_seed(2)) > 0.4)
    seen = e.op("and", e.op("and", same, causal), padding)
    # A slope for each head, times a distance.
    distance = e.op("sub", e.iota((queries, 1), 0), e.iota((1, keys), 1))
    slopes = e.op("mul", e.input(randn(4, 1, 1).mul(0.02).to(dtype)), e.cast(distance, dtype))
    # Parts of the two, transposed.
    rows, columns = e.input(randn(4, queries + 3, 1, seed=3, dtype=dtype)), e.input(
        randn(keys, 1, seed=4, dtype=dtype))
    rows = e.move(f"slice {{}} starts [0, 2, 0] limits [4, {queries + 2}, 1] strides [1, 1, 1]", rows,
                  e.values[rows][:, 2:queries + 2])
    # The bias of keys that all queries share, stretched.
    shared = e.hide(e.op("or", padding, e.input(torch.zeros(1, 1, 1, 1, dtype=torch.bool))), dtype)
    wide = e.move("broadcast {}", shared, e.values[shared].expand(2, 1, queries, keys))
    summed = e.op("add", rows, e.move("transpose {} [1, 0]", columns, e.values[columns].T))
    text = e.check(tmp_path, x, [e.hide(seen, dtype), slopes, summed, wide,
                                 e.op("add", slopes, e.hide(seen, dtype))], 2 * TOLERANCE[dtype])
    # With one query a bias is a value for each key; small ones are read where what they are
    # computed from is not smaller.
    if queries == 1 or queries * keys > 100:
        assert biases_read(tmp_path, text) == (5 if queries == 1 else 0)


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
@pytest.mark.parametrize("attributes", ["{causal}", "{window_left = 40, soft_cap = 2.0}"])
def test_with_other_masks(tmp_path, dtype, attributes):
    """A mask of its own, a soft cap, fewer query heads than a block has room for."""
    x = tensors(1, 3, 1, 70, 200, 20, 8, dtype)
    e = Expression()
    of_query, of_key = (e.input(torch.randint(0, 4, shape, generator=torch.Generator().manual_seed(6)))
                        for shape in ((70, 1), (1, 200)))
    bias = e.hide(e.op("compare le", of_key, of_query), dtype)
    inputs, text = e.module(x, [bias], attributes)
    got = run_module(tmp_path, text, inputs)["r0"]
    i, j = torch.arange(70)[:, None], torch.arange(200)[None]
    seen = j <= i if "causal" in attributes else j >= i - 40
    want = attend(*x, 0.25, seen, e.values[bias], 2.0 if "cap" in attributes else None)
    assert_close(got, want, 2 * TOLERANCE[dtype], text)
    assert biases_read(tmp_path, text) == 0


@pytest.mark.parametrize("queries", [5, 200])
def test_rows_that_see_nothing(tmp_path, queries):
    """They are zeros; blocks that are hidden as a whole do not count."""
    x = tensors(1, 2, 2, queries, 300, 16, 16, torch.float32)
    e = Expression()
    of_query = torch.arange(queries) // 60
    of_query[1] = 7
    of_key = torch.arange(300) // 100 - 1
    bias = e.hide(e.op("compare eq", e.input(of_query[:, None].contiguous()), e.input(of_key[None])),
                  torch.float32)
    e.check(tmp_path, x, [bias], TOLERANCE[torch.float32])
    assert not attend(*x, 0.25, bias=e.values[bias])[:, :, 1].any()


def test_large_values_stay_in_memory(tmp_path):
    """A bias that is given, and one that is computed of what is given."""
    x = tensors(1, 2, 2, 40, 50, 16, 16, torch.float32)
    e = Expression()
    given = e.input(torch.rand(1, 1, 40, 50, generator=torch.Generator().manual_seed(2)) > 0.4)
    padding = e.input(torch.rand(1, 1, 1, 50, generator=torch.Generator().manual_seed(3)) > 0.2)
    text = e.check(tmp_path, x, [e.hide(given, torch.float32), e.input(randn(1, 1, 40, 50)),
                                 e.hide(e.op("and", given, padding), torch.float32)],
                   TOLERANCE[torch.float32])
    assert biases_read(tmp_path, text) == 3
