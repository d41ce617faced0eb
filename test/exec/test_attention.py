# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""nn.attention, compiled and run on one rank, against PyTorch in f64."""
import math
import resource

import pytest
import torch
from harness import ELEMENT, Program, assert_close, run_module, type_of

FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 1e-2, torch.float16: 1e-3, torch.float64: 1e-14}
# Queries and keys: fewer and more than a vector, a tile, a block of either.
LENGTHS = [(1, 1), (1, 97), (7, 9), (33, 7), (97, 97), (130, 300)]
# Every kernel takes a while to compile: f16 and f64 differ from f32 in a few places only.
MASKS = [(*lengths, dtype) for dtype in FLOATS
         for lengths in (LENGTHS if dtype in FLOATS[:2] else [(7, 9), (97, 97)])]
BIASES = [(*lengths, dtype) for dtype in FLOATS
          for lengths in ([(1, 70), (7, 9), (97, 70)] if dtype in FLOATS[:2] else [(97, 70)])]


def name(value):
    return ELEMENT.get(value, value) if isinstance(value, torch.dtype) else str(value)


def randn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def tensors(batch, heads, kv_heads, queries, keys, features, value_features, dtype):
    return (randn(batch, heads, queries, features, dtype=dtype),
            randn(batch, kv_heads, keys, features, seed=1, dtype=dtype),
            randn(batch, kv_heads, keys, value_features, seed=2, dtype=dtype))


def scores(q, k, scale, seen=None, bias=None, cap=None):
    s = q.double() @ k.double().repeat_interleave(q.shape[1] // k.shape[1], 1).mT * scale
    if cap:
        s = cap * torch.tanh(s / cap)
    if bias is not None:
        s = s + bias.double()
    return s if seen is None else s.masked_fill(~seen, -math.inf)


def attend(q, k, v, scale, *args, **kwargs):
    p = torch.softmax(scores(q, k, scale, *args, **kwargs), -1).nan_to_num(0)
    return (p @ v.double().repeat_interleave(q.shape[1] // v.shape[1], 1)).to(q.dtype)


def places(queries, keys):
    return torch.arange(queries)[:, None], torch.arange(keys)[None]


@pytest.mark.parametrize("queries,keys,dtype", MASKS, ids=name)
def test_masks(tmp_path, queries, keys, dtype):
    q, k, v = x = tensors(2, 4, 2, queries, keys, 16, 12, dtype)
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
        text = f" {{{{{attributes}}}}}" if attributes else ""
        p.op("nn.attention {}, {}, {} scale 0.25" + text, x, attend(*x, 0.25, seen))
    for attributes, seen in {"": padding[:, None, None],
                             " {{causal}}": (j <= i) & padding[:, None, None]}.items():
        p.op("nn.attention {}, {}, {} key_padding {} scale 0.25" + attributes, [*x, padding],
             attend(*x, 0.25, seen))
    p.op("nn.attention {}, {}, {} scale 0.25 {{soft_cap = 1.5, causal}}", x,
         attend(*x, 0.25, j <= i, cap=1.5))
    p.check(tmp_path, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
@pytest.mark.parametrize("heads,kv_heads", [(8, 2), (8, 1), (3, 3)])
def test_heads(tmp_path, heads, kv_heads, dtype):
    """Head sizes that fill vectors and those that do not, odd ones too; batch 3."""
    p = Program()
    for queries, keys, features, value_features in (
            (1, 97, 128, 128), (1, 300, 20, 33), (2, 50, 64, 16), (7, 97, 20, 20), (40, 97, 7, 5),
            (128, 128, 16, 64), (150, 97, 128, 128)):
        x = tensors(3, heads, kv_heads, queries, keys, features, value_features, dtype)
        i, j = places(queries, keys)
        scale = features**-0.5
        p.op(f"nn.attention {{}}, {{}}, {{}} scale {scale!r}", x, attend(*x, scale))
        p.op(f"nn.attention {{}}, {{}}, {{}} scale {scale!r} {{{{causal}}}}", x,
             attend(*x, scale, j <= i))
    p.check(tmp_path, TOLERANCE[dtype])


@pytest.mark.parametrize("queries,keys,dtype", BIASES, ids=name)
def test_bias(tmp_path, queries, keys, dtype):
    x = tensors(2, 4, 2, queries, keys, 16, 12, dtype)
    i, j = places(queries, keys)
    p = Program()
    for shape in ((queries, keys), (4, queries, keys), (2, 4, queries, keys), (2, 1, queries, keys),
                  (1, 4, 1, keys), (2, 1, 1, keys), (4, queries, 1), (4, 1, 1), (keys,)):
        bias = randn(*shape, seed=5, dtype=dtype)
        p.op("nn.attention {}, {}, {} bias {} scale 0.25", [*x, bias], attend(*x, 0.25, bias=bias))
    p.op("nn.attention {}, {}, {} bias {} scale 0.25 {{causal, soft_cap = 2.0}}", [*x, bias],
         attend(*x, 0.25, j <= i, bias, 2.0))
    p.check(tmp_path, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
@pytest.mark.parametrize("left", [0, 10, 33])
def test_bias_in_a_window(tmp_path, dtype, left):
    """Blocks of keys that begin anywhere; many heads, so that threads have neighbours."""
    x = tensors(1, 16, 4, 200, 200, 16, 16, dtype)
    i, j = places(200, 200)
    bias = randn(16, 200, 200, seed=5, dtype=dtype)
    p = Program()
    p.op(f"nn.attention {{}}, {{}}, {{}} bias {{}} scale 0.25 {{{{causal, window_left = {left}}}}}", [*x, bias],
         attend(*x, 0.25, (j <= i) & (j >= i - left), bias))
    p.check(tmp_path, TOLERANCE[dtype], arguments=["--threads-per-rank=2"])


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
@pytest.mark.parametrize("queries", [3, 70])
def test_bias_that_hides(tmp_path, queries, dtype):
    """-inf in all of a row gives zeros; the lowest number in all of a row hides nothing."""
    x = tensors(1, 2, 2, queries, 70, 16, 16, dtype)
    bias = torch.zeros(queries, 70, dtype=dtype)
    bias[0], bias[1, 30:] = -math.inf, -math.inf
    bias[2:] = torch.finfo(dtype).min
    want = attend(*x, 0.25, bias=bias)
    assert torch.equal(want[:, :, 0], torch.zeros_like(want[:, :, 0]))
    if dtype == torch.float64:
        # The scores vanish beside it.
        want[:, :, 2:] = x[2].mean(2, keepdim=True)
    else:
        narrow = (scores(*x[:2], 0.25).float() + bias.float()).double()
        p = torch.softmax(narrow, -1).nan_to_num(0)
        want = (p @ x[2].double()).to(dtype)
    p = Program()
    p.op("nn.attention {}, {}, {} bias {} scale 0.25", [*x, bias], want)
    p.check(tmp_path, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
def test_long(tmp_path, dtype):
    x = tensors(1, 2, 1, 1000, 1000, 20, 8, dtype)
    i, j = places(1000, 1000)
    bias = randn(2, 1000, 1000, seed=3, dtype=dtype)
    p = Program()
    p.op("nn.attention {}, {}, {} scale 0.3 {{causal}}", x, attend(*x, 0.3, j <= i))
    p.op("nn.attention {}, {}, {} scale 0.3 {{causal, window_left = 300}}", x,
         attend(*x, 0.3, (j <= i) & (j >= i - 300)))
    p.op("nn.attention {}, {}, {} bias {} scale 0.3", [*x, bias], attend(*x, 0.3, bias=bias))
    p.check(tmp_path, TOLERANCE[dtype])


def test_large_scores(tmp_path):
    """Exponents that would overflow, and ones that vanish."""
    q, k, v = x = tensors(1, 1, 1, 40, 200, 16, 16, torch.float32)
    p = Program()
    for scale in (30.0, -30.0, 0.0):
        p.op(f"nn.attention {{}}, {{}}, {{}} scale {scale!r} {{{{causal}}}}", x,
             attend(*x, scale, places(40, 200)[1] <= places(40, 200)[0]))
    p.check(tmp_path, 1e-4)


@pytest.mark.parametrize("queries", [1, 40])
def test_not_a_number(tmp_path, queries):
    """A query with one is not a number; others are left alone."""
    q, k, v = x = tensors(1, 2, 2, queries, 70, 16, 16, torch.float32)
    q[0, 1, 0, 3] = math.nan
    p = Program()
    p.op("nn.attention {}, {}, {} scale 0.25", x, attend_with_nan(*x))
    # With bits beside those of the usual one; of a key it is in every query.
    q, k = q.clone(), k.clone()
    q.view(torch.int32)[0, 1, 0, 3] = 0x7fc00001
    p.op("nn.attention {}, {}, {} scale 0.25", (q, x[1], v), attend_with_nan(q, x[1], v))
    k.view(torch.int32)[0, 0, 5, 0] = 0x7fc00001
    p.op("nn.attention {}, {}, {} scale 0.25", (x[0], k, v), attend_with_nan(x[0], k, v))
    p.check(tmp_path, TOLERANCE[torch.float32])


def attend_with_nan(q, k, v):
    return (torch.softmax(scores(q, k, 0.25), -1) @ v.double()).to(q.dtype)


def test_memory_is_linear_in_the_sequence(tmp_path):
    """32,768 tokens: all their scores would be 4 GiB, in f32 and for one head."""
    tokens = 32768
    q, k, v = tensors(1, 1, 1, tokens, tokens, 16, 16, torch.float32)
    text = f"""func.func @main(%q: {type_of(q)} {{nn.input = "q"}}, %k: {type_of(q)} {{nn.input = "k"}},
                               %v: {type_of(q)} {{nn.input = "v"}}) -> ({type_of(q)} {{nn.output = "o"}}) {{
      %0 = nn.attention %q, %k, %v scale 0.25 {{causal}} : ({type_of(q)}, {type_of(q)}, {type_of(q)}) -> {type_of(q)}
      return %0 : {type_of(q)}
    }}"""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    got = run_module(tmp_path, text, {"q": q, "k": k, "v": v})["o"]
    after = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    # The largest child so far, in KiB, compiler and libraries included.
    assert after <= max(before, 1 << 20), f"{after} KiB"
    for first in (0, 5000, tokens - 100):
        part = slice(first, first + 100)
        i, j = torch.arange(tokens)[part, None], torch.arange(tokens)[None]
        assert_close(got[:, :, part], attend(q[:, :, part], k, v, 0.25, j <= i), 3e-6)


def log_sum_exp(q, k, scale, *args, **kwargs):
    wanted = torch.float64 if q.dtype == torch.float64 else torch.float32
    return torch.logsumexp(scores(q, k, scale, *args, **kwargs), -1).to(wanted)


def run_with_lse(folder, operands, text):
    """Result and lse of `text`, which has {} for each operand."""
    q, v = operands[0], operands[2]
    result = f"tensor<{'x'.join(map(str, (*q.shape[:3], v.shape[3])))}x{ELEMENT[q.dtype]}>"
    lse = f"tensor<{'x'.join(map(str, q.shape[:3]))}x{'f64' if q.dtype == torch.float64 else 'f32'}>"
    names = [f"in{i}" for i in range(len(operands))]
    arguments = ", ".join(f'%{n}: {type_of(x)} {{nn.input = "{n}"}}' for n, x in zip(names, operands))
    types = ", ".join(map(type_of, operands))
    module = f"""func.func @main({arguments}) -> ({result} {{nn.output = "o"}}, {lse} {{nn.output = "lse"}}) {{
      %0:2 = {text.format(*("%" + n for n in names))} : ({types}) -> ({result}, {lse})
      return %0#0, %0#1 : {result}, {lse}
    }}"""
    got = run_module(folder, module, dict(zip(names, operands)))
    return got["o"], got["lse"]


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
@pytest.mark.parametrize("queries", [2, 150])
def test_log_sum_exp(tmp_path, queries, dtype):
    """-inf where a query sees no key; two halves of the keys make the whole."""
    x = q, k, v = tensors(2, 4, 2, queries, 70, 16, 12, dtype)
    i, j = places(queries, 70)
    seen = torch.ones(2, 70, dtype=torch.bool)
    seen[1, :40] = False
    visible = (j <= i) & seen[:, None, None]
    call = "nn.attention {}, {}, {}"
    result, lse = run_with_lse(tmp_path, [*x, seen], call + " key_padding {} scale 0.25 {{causal}}")
    assert torch.isneginf(lse[1, :, 0]).all()
    assert_close(result, attend(*x, 0.25, visible), TOLERANCE[dtype])
    assert_close(lse, log_sum_exp(q, k, 0.25, visible), TOLERANCE[dtype])

    bias = randn(queries, 70, seed=4, dtype=dtype)
    parts = []
    for keys in (slice(0, 30), slice(30, 70)):
        part = [q, k[:, :, keys], v[:, :, keys], bias[:, keys]]
        parts.append(run_with_lse(tmp_path, part, call + " bias {} scale 0.25 {{soft_cap = 2.0}}"))
    whole = torch.logaddexp(parts[0][1].double(), parts[1][1].double())
    joined = sum(o.double() * (part - whole).exp()[..., None] for o, part in parts)
    assert_close(joined.to(dtype), attend(*x, 0.25, None, bias, 2.0), TOLERANCE[dtype])
    assert_close(whole.to(lse.dtype), log_sum_exp(q, k, 0.25, None, bias, 2.0), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=ELEMENT.get)
@pytest.mark.parametrize("queries,keys", [(5, 40), (150, 200)])
def test_positions(tmp_path, queries, keys, dtype):
    """Chunks of a longer sequence, in order, in zigzag and in any order."""
    x = tensors(2, 4, 2, queries, keys, 16, 12, dtype)
    shuffled = torch.randperm(4 * keys, generator=torch.Generator().manual_seed(7))
    orders = {
        "later": (torch.arange(queries) + keys // 2, torch.arange(keys)),
        "earlier": (torch.arange(queries), torch.arange(keys) + queries // 2),
        "zigzag": (torch.cat([torch.arange(queries // 2), torch.arange(queries - queries // 2) + 5 * keys]),
                   torch.cat([torch.arange(keys // 2), torch.arange(keys - keys // 2) + 5 * keys])),
        "any": (shuffled[:queries], shuffled[queries:queries + keys]),
        "far": (torch.arange(queries) + 2**40, torch.arange(keys) + 2**40 - 30),
    }
    p = Program()
    for at, of in orders.values():
        at, of = at.clone(), of.clone()
        i, j = at[:, None], of[None]
        for attributes, seen in {
                "causal": j <= i,
                "causal, window_left = 20": (j <= i) & (j >= i - 20),
                "window_left = 10, window_right = 30": (j >= i - 10) & (j <= i + 30)}.items():
            p.op(f"nn.attention {{}}, {{}}, {{}} positions {{}}, {{}} scale 0.25 {{{{{attributes}}}}}",
                 [*x, at, of], attend(*x, 0.25, seen))
    p.check(tmp_path, TOLERANCE[dtype])
