# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The importer's graph by itself: without PyTorch, with several results, and its table of ops."""
import json
import math
import os
import re
import subprocess
import sys

import graph_by_hand as hand
import pytest
import torch
import torch.nn.functional as F
from graph_by_hand import THETA, B, D, H, T
from import_checks import count, verify
from meshwright.importer.graph.dialect import operand_names, operation
from meshwright.importer.graph.emit import emit
from meshwright.importer.graph.nodes import Builder, Graph
from meshwright.importer.graph.rewrites import rewrite
from meshwright.importer.torch import import_module

_HERE = os.path.dirname(os.path.abspath(__file__))
_WRITER = os.path.join(_HERE, "..", "..", "python", "write_op_table.py")


class Block(torch.nn.Module):
    """The block of graph_by_hand.py."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.Parameter(torch.ones(H * D))
        for name in ("q", "k", "v", "o"):
            setattr(self, name, torch.nn.Parameter(torch.ones(H * D, H * D)))

    def forward(self, x):
        wide = x.float()
        y = self.norm * (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
        q, k, v = (F.linear(y, w).view(B, T, H, D).transpose(1, 2) for w in (self.q, self.k, self.v))
        angles = torch.arange(T).float()[:, None] * (1 / THETA ** (torch.arange(0, D, 2).float() / D))
        angles = torch.cat([angles, angles], -1)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        turn = lambda z: torch.cat([-z[..., D // 2:], z[..., :D // 2]], -1)
        q, k = (z * cos + turn(z) * sin for z in (q, k))
        scores = q @ k.transpose(2, 3) * (1 / math.sqrt(D))
        scores = scores + torch.full((T, T), -torch.inf, dtype=x.dtype).triu(1)
        y = torch.softmax(scores, -1) @ v
        return x + F.linear(y.transpose(1, 2).reshape(B, T, H * D), self.o)


def plain(text):
    """A program without its locations."""
    return re.sub(r"^#loc.*\n| loc\(.*\)", "", text, flags=re.M)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_without_torch(dtype):
    """A front end without PyTorch has all rewrites, and the text of an import from PyTorch."""
    done = subprocess.run([sys.executable, os.path.join(_HERE, "graph_by_hand.py"), dtype],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    type = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
    imported = import_module(Block().eval().to(type), (torch.zeros(B, T, H * D, dtype=type),))
    ops = count(imported)
    assert ops["rms_norm"] == 1 and ops["rotary"] == 2 and ops["attention"] == 1
    assert plain(done.stdout) == plain(imported.mlir)
    verify(done.stdout)


def test_known_values():
    """The graph computes known values as PyTorch does."""
    graph = hand.block("bf16")
    rewrite(graph)
    attention = next(n for n in graph.nodes() if n.op == "attention")
    assert attention.attrs["causal"] and attention.attrs["given"] == ()
    assert attention.attrs["scale"] == pytest.approx(1 / math.sqrt(D))


def attention_with_lse():
    graph, build = Graph(), Builder()
    q, k, v = (build.make("input", [], (2, 3, 5, 8), "f32", name=name) for name in "qkv")
    graph.inputs = [q, k, v]
    whole = build.make("attention", [q, k, v], (2, 3, 5, 8), "f32", further=[((2, 3, 5), "f32")],
                       scale=0.5, causal=True, given=())
    return graph, build, whole


def test_several_results():
    graph, build, whole = attention_with_lse()
    first = build.unary("neg", build.result(whole, 0))
    graph.outputs = [first, build.unary("exp", build.result(whole, 1)), build.result(whole, 1)]
    graph.output_names = ["o", "p", "l"]
    rewrite(graph)
    text = emit(graph)
    verify(text)
    results = "-> (tensor<2x3x5x8xf32>, tensor<2x3x5xf32>)"
    assert re.search(r"%0:2 = nn.attention %arg0, .* " + re.escape(results), text)
    assert "nn.neg %0#0" in text and "nn.exp %0#1" in text
    assert re.search(r"return %\d+, %\d+, %0#1 : ", text)


def test_share_several_results():
    """Two ops that differ in their results alone are two."""
    graph, build, whole = attention_with_lse()
    alone = build.make("attention", whole.operands, whole.shape, "f32", **whole.attrs)
    graph.outputs, graph.output_names = [build.result(whole, 1), alone], ["l", "o"]
    rewrite(graph)
    assert [n.op for n in graph.nodes()].count("attention") == 2
    verify(emit(graph))


def test_optional_operands():
    names = operand_names("attention", 5, ("bias", "kv_lengths"))
    assert names == ["query", "key", "value", "bias", "kv_lengths"]
    assert operand_names("linear", 2) == ["input", "weight"]
    assert operand_names("linear", 3) == ["input", "weight", "bias"]
    assert operand_names("concat", 3) == ["inputs"] * 3
    with pytest.raises(ValueError, match="nn.attention: expected the operands query, key, value, got 4"):
        operand_names("attention", 4, ())


def test_unknown_attributes():
    x = ("%x", (2, 3), "f32")
    with pytest.raises(ValueError, match="nn.exp has no attribute 'base'"):
        operation("exp", [x], [x[1:]], {"base": 2})
    with pytest.raises(ValueError, match="the attribute: expected one of eq, ne, lt, le, gt, ge, got 'near'"):
        operation("compare", [x, x], [((2, 3), "i1")], {"kind": "near"})


def record(name, *supers, **fields):
    return name, {"!name": name, "!anonymous": False, "!superclasses": list(supers), **fields}


@pytest.mark.parametrize("form, kind, message", [
    ("$input attr-dict custom<Layout>($input)", "F64Attr", "the assembly format at 'custom<Layout>($input)'"),
    ("$input attr-dict", "StrangeAttr", "the attribute kind StrangeAttr"),
])
def test_unknown_syntax(tmp_path, form, kind, message):
    """The build fails where the table cannot say what the dialect says."""
    op = {"opName": "odd", "assemblyFormat": form, "traits": [], "results": {"args": []},
          "arguments": {"args": [[{"def": "Tensor"}, "input"], [{"def": kind}, "eps"]]}}
    records = dict([record("Odd", "Op", **op), record("Tensor", "TypeConstraint"),
                    record(kind, "Attr", "AttrConstraint")])
    given = tmp_path / "nn.json"
    given.write_text(json.dumps({"!instanceof": {"Op": ["Odd"]}, **records}))
    done = subprocess.run([sys.executable, _WRITER, given, tmp_path / "_nn.py"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == f"error: nn.odd has {message}, which python/write_op_table.py does not know\n"
