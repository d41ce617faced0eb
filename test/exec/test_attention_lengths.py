# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attention whose rows of the batch have lengths and positions of their own, on one rank and on
several, against PyTorch in f64."""
import copy

import meshwright as mw
import pytest
import torch
import torch.nn.functional as F
from harness import assert_close, run_module, type_of
from test_attention import TOLERANCE, attend, log_sum_exp, name, tensors
from test_attention_parts import MASKS, Module
from torch import nn

# Queries and keys for both kinds of kernel; blocks of keys that lengths leave out and cut.
SIZES = [(1, 300), (3, 70), (40, 63), (129, 65), (300, 401)]
CASES = [(*size, torch.float32) for size in SIZES] + [
    (1, 300, torch.bfloat16), (300, 401, torch.bfloat16), (40, 63, torch.float64)]


def lengths_of(keys):
    """No key, some keys, all keys, and numbers that are no lengths: below 0 and above the keys."""
    return torch.tensor([0, keys // 3, keys, 1, -5, keys + 7])


@pytest.mark.parametrize("queries,keys,dtype", CASES, ids=name)
def test_lengths(tmp_path, queries, keys, dtype):
    x = q, k, v = tensors(6, 4, 2, queries, keys, 16, 12, dtype)
    lengths = lengths_of(keys)
    i, j = torch.arange(queries)[:, None], torch.arange(keys)[None]
    shown = (j < lengths[:, None, None])[:, None]
    padding = torch.rand(6, keys, generator=torch.Generator().manual_seed(3)) > 0.3
    module = Module()
    for attributes, mask in MASKS.items():
        for extra in ("", "key_padding", "kv_length") if attributes == "causal" else ("",):
            seen, operands, kind, more = mask(i, j) & shown, [*x], "", ""
            if extra == "key_padding":
                seen, operands, kind = seen & padding[:, None, None], [*x, padding], "key_padding {} "
            if extra == "kv_length":
                seen, more = seen & (j < keys // 2), f", kv_length = {keys // 2}"
            got = module.attention([*operands, lengths],
                                   f"{kind}kv_lengths {{}} scale 0.25 {{{{{attributes}{more}}}}}")
            module.expect(got[0], attend(*x, 0.25, seen), TOLERANCE[dtype])
            module.expect(got[1], log_sum_exp(q, k, 0.25, seen), TOLERANCE[dtype])
    module.check(tmp_path, "--check-finite")


@pytest.mark.parametrize("queries,keys,dtype", CASES, ids=name)
def test_positions_of_rows(tmp_path, queries, keys, dtype):
    """Positions for each row, for queries and keys or one of them, with lengths, which then count
    positions."""
    x = q, k, v = tensors(6, 4, 2, queries, keys, 16, 12, dtype)
    generator = torch.Generator().manual_seed(queries + keys)
    start = torch.tensor([0, 3, keys - 1, 17, 2**40, keys // 2])[:, None]
    kinds = {
        "left padding": (torch.arange(queries).expand(6, -1), torch.arange(keys) - start),
        "prefix": (torch.maximum(torch.arange(queries), start), torch.arange(keys)),
        "cache": (torch.arange(queries) + keys // 3, torch.arange(keys).expand(6, -1)),
        "any": (torch.randint(0, 500, (6, queries), generator=generator),
                torch.randint(-50, 500, (6, keys), generator=generator)),
    }
    module = Module()
    for kind, (at, of) in kinds.items():
        at, of = at.contiguous(), of.contiguous()
        i, j = (p[..., None, :, None] if q_ else p[..., None, None, :]
                for p, q_ in ((at, True), (of, False)))
        for attributes in ("causal", "causal, window_left = 20", ""):
            low, high = ("20" in attributes), ("causal" in attributes)
            seen = (j >= 0) & ((j <= i) | (not high)) & ((j >= i - 20) | (not low))
            for lengths in (None, lengths_of(keys)):
                operands, more = [*x, at, of], ""
                if lengths is not None:
                    seen = seen & (j < lengths[:, None, None, None])
                    operands, more = operands + [lengths], " kv_lengths {}"
                got = module.attention(operands, "positions {}, {}" + more +
                                       f" scale 0.25 {{{{{attributes}}}}}")
                full = seen.expand(6, 1, queries, keys)
                module.expect(got[0], attend(*x, 0.25, full), TOLERANCE[dtype])
                module.expect(got[1], log_sum_exp(q, k, 0.25, full), TOLERANCE[dtype])
    module.check(tmp_path, "--check-finite")


@pytest.mark.parametrize("queries", [1, 40])
def test_no_key_behind_a_length_is_read(tmp_path, queries):
    """A cache may have something behind the length that is no number."""
    for dtype in (torch.float32, torch.bfloat16):
        x = q, k, v = tensors(2, 4, 2, queries, 150, 16, 16, dtype)
        lengths = torch.tensor([77, 5])
        seen = (torch.arange(150) < lengths[:, None])[:, None, None]
        want = attend(*x, 0.25, seen.expand(2, 1, queries, 150))
        nan = torch.where(seen.transpose(2, 3), 0.0, float("nan")).to(dtype)
        module = Module()
        got = module.attention([q, k + nan, v + nan, lengths], "kv_lengths {} scale 0.25")
        module.expect(got[0], want, TOLERANCE[dtype])
        module.check(tmp_path)


MESHES = [
    "mesh=tp=4",
    "mesh=dp=2",
    "mesh=ring=2 context-parallel={ring=ring}",
    "mesh=ring=4 context-parallel={ring=ring order=contiguous}",
    "mesh=ring=4 context-parallel={ring=ring order=zigzag}",
    "mesh=ring=3 context-parallel={ring=ring order=striped}",
    "mesh=ring=16 context-parallel={ring=ring}",
    "mesh=dp=2,ring=3 context-parallel={ring=ring}",
    "mesh=ulysses=4 context-parallel={ulysses=ulysses}",
    "mesh=ulysses=2,ring=3 context-parallel={ulysses=ulysses ring=ring}",
    "mesh=dp=2,ulysses=2,ring=2 context-parallel={ulysses=ulysses ring=ring}",
]
KINDS = ["lengths", "lengths, causal", "lengths, window", "positions", "positions of rows",
         "positions of rows, window", "positions and lengths"]


def program(kind):
    """(operands behind q, k and v; their text; the attributes; what is seen), of batch 3, 13 tokens."""
    i, j, n = torch.arange(13), torch.arange(13), torch.tensor([0, 5, 12])
    at, of = (i + 2) % 13, (j + 5) % 13
    if "of rows" in kind or "and lengths" in kind:
        at, of = torch.maximum(i, n[:, None] - 1), torch.where(j >= n[:, None] // 2, j, -1 - j)
    text, operands = "", []
    if "positions" in kind:
        text, operands = "positions {}, {} ", [at, of]
    else:
        at, of = i, j
    a, b = at[..., None, :, None], of[..., None, None, :]
    seen = b >= 0
    if "lengths" in kind:
        text, operands = text + "kv_lengths {} ", operands + [n]
        seen = seen & (b < n[:, None, None, None])
    attributes = ""
    if kind != "lengths":
        attributes, seen = "causal", seen & (b <= a)
    if "window" in kind:
        attributes, seen = attributes + ", window_left = 3", seen & (b >= a - 3)
    return operands, text, attributes, seen.expand(3, 1, 13, 13)


@pytest.mark.parametrize("mesh", MESHES)
def test_on_several_ranks(tmp_path, mesh):
    """6 heads and 3 of keys, 13 tokens, batch 3: what a mesh divides and does not, rings with more
    ranks than tokens, and rows of the batch that see nothing."""
    x = q, k, v = tensors(3, 6, 3, 13, 13, 8, 8, torch.float32)
    for kind in KINDS:
        operands, text, attributes, seen = program(kind)
        inputs = dict(zip("qkv", x)) | {f"m{i}": m for i, m in enumerate(operands)}
        arguments = ", ".join(f'%{n}: {type_of(t)} {{nn.input = "{n}"}}' for n, t in inputs.items())
        types = ", ".join(map(type_of, inputs.values()))
        names = [f"%{n}" for n in list(inputs)[3:]]
        body = f"nn.attention %q, %k, %v {text.format(*names)}scale 0.25 {{{attributes}}}"
        got = run_module(tmp_path, f"""func.func @main({arguments}) -> ({type_of(q)} {{nn.output = "o"}}) {{
          %o = {body} : ({types}) -> {type_of(q)}
          return %o : {type_of(q)}
        }}""", inputs, arguments=[f"--parallelize={mesh}", "--check"])
        assert_close(got["o"], attend(*x, 0.25, seen), TOLERANCE[torch.float32], f"{mesh}: {kind}")


class Layers(nn.Module):
    """Two layers of attention whose mask `how` makes of places and of numbers of each row."""

    def __init__(self, how, heads=6, features=48):
        super().__init__()
        torch.manual_seed(1)
        self.how, self.heads = how, heads
        self.embed, self.last = nn.Embedding(97, features), nn.Linear(features, 31)
        self.qkv = nn.ModuleList(nn.Linear(features, 3 * features) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(features, features) for _ in range(2))

    def forward(self, ids, *numbers):
        i, x = torch.arange(ids.shape[1]), self.embed(ids)
        mask = self.how(i[:, None], i, *(n[:, None, None] for n in numbers))[:, None]
        for qkv, out in zip(self.qkv, self.out):
            q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                       for y in qkv(x).chunk(3, -1))
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            x = x + out(y.transpose(1, 2).flatten(2))
        return self.last(x)


HOW = {
    "lengths": lambda i, j, n, l: j < n,
    "prefix": lambda i, j, n, l: (j <= i) | (j < n),
    "prefix behind left padding": lambda i, j, n, l: ((j <= i) | (j < n)) & (j >= l),
    "window of rows": lambda i, j, n, l: (j <= i + n) & (j > i + n - 4),
}
PLANS = [
    dict(mesh={"tp": 2}), dict(mesh={"tp": 4}, sequence_parallel="on"), dict(mesh={"tp": 8}),
    dict(mesh={"dp": 2, "tp": 3}, sequence_parallel="on"),
    *(dict(mesh=mesh, context_parallel={kind: kind for kind in ("ulysses", "ring") if kind in mesh})
      for mesh in ({"ring": 2}, {"ring": 4}, {"ring": 12}, {"ulysses": 4}, {"dp": 2, "ring": 2},
                   {"ulysses": 2, "ring": 2}, {"dp": 2, "ulysses": 3, "ring": 2})),
]


@pytest.mark.parametrize("how", HOW)
def test_models(how):
    """No value has an element for each query and key; results are equal on all meshes, also of rows
    that see nothing."""
    net = Layers(HOW[how]).eval()
    ids = torch.randint(0, 97, (3, 9), generator=torch.Generator().manual_seed(3))
    numbers = torch.tensor([4, 0, 7]), torch.tensor([0, 3, 8])
    with torch.no_grad():
        want = copy.deepcopy(net).double()(ids, *numbers)
    model = mw.from_torch(net, (ids, *numbers))
    assert "9x9x" not in model.ir()
    for options in PLANS:
        plan = model.parallelize(**options)
        assert " bias %" not in "".join(line for line in plan.ir().splitlines()
                                        if "nn.attention" in line)
        got, = plan.run(ids, *numbers)
        assert_close(torch.as_tensor(got), want.float(), 1e-5, f"{options}")
