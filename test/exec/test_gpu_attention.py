# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attention for GPUs on the stand-in for the driver, against PyTorch in f64; ptxas assembles its kernels.

Kernels for sm_90a multiply by wgmma where sizes allow it (docs/rationale/attention-wgmma.md).
"""
import functools
import math

import gpu_programs
import harness
import pytest
import test_attention
import test_attention_bias
import test_attention_parts
import torch
from test_attention import ELEMENT, TOLERANCE, Program, attend, log_sum_exp, name, places, randn, tensors
from test_attention_bias import Expression
from test_attention_parts import MASKS, Module, orders

pytestmark = pytest.mark.skipif(gpu_programs.missing() is not None, reason=str(gpu_programs.missing()))
FLOATS = [torch.float32, torch.bfloat16, torch.float16]


WGMMA = "sm_90a"
CHIPS = pytest.mark.parametrize("dtype,chip", [
    *((dtype, "sm_90") for dtype in FLOATS), *((dtype, WGMMA) for dtype in FLOATS[1:])], ids=name)


@pytest.fixture
def chip():
    return "sm_90"


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch, chip):
    run = functools.partial(gpu_programs.run_program, target=f"gpu:{chip}")
    for module in (harness, test_attention, test_attention_bias, test_attention_parts):
        monkeypatch.setattr(module, "run_module", run)


def few(chip):
    """Features of values: rows of 24 bytes, and of 48 bytes, which wgmma needs a multiple of 16 of."""
    return 24 if chip == WGMMA else 12


@pytest.mark.parametrize("queries,keys,dtype,chip", [
    *((*size, torch.float32, "sm_90") for size in ((1, 40), (33, 7), (70, 97), (3, 330))),
    (1, 700, torch.bfloat16, WGMMA), (9, 515, torch.float16, "sm_90"),
    *((*case, chip) for case in ((70, 130, torch.bfloat16), (40, 64, torch.float16)) for chip in ("sm_90", WGMMA)),
    (300, 150, torch.bfloat16, WGMMA)], ids=name)
def test_masks(tmp_path, queries, keys, dtype, chip):
    """Structure, padding and lengths; fewer and more queries than a block, fewer and more keys than a tile, and so
    many keys for few queries that blocks share them."""
    q, k, v = x = tensors(2, 4, 2, queries, keys, 16, few(chip), dtype)
    i, j = places(queries, keys)
    padding = torch.rand(2, keys, generator=torch.Generator().manual_seed(3)) > 0.4
    padding[1] = False
    lengths = torch.tensor([keys // 2, keys + 3])
    module = Module()
    for operands, text, seen, cap in (
            ([], "", torch.ones(queries, keys, dtype=torch.bool), None),
            ([], "causal", j <= i, None),
            ([], "causal, soft_cap = 1.5, window_left = 20", (j <= i) & (j >= i - 20), 1.5),
            ([], f"kv_length = {keys // 2}, window_right = 30", (j < keys // 2) & (j <= i + 30), None),
            ([padding], "causal", (j <= i) & padding[:, None, None], None),
            ([lengths], "window_right = 3", (j <= i + 3) & (j < lengths[:, None, None])[:, None], None)):
        kind = "" if not operands else "key_padding {} " if operands[0] is padding else "kv_lengths {} "
        got = module.attention([*x, *operands], f"{kind}scale 0.25 {{{{{text}}}}}")
        module.expect(got[0], attend(*x, 0.25, seen, cap=cap), TOLERANCE[dtype])
        module.expect(got[1], log_sum_exp(q, k, 0.25, seen, cap=cap), TOLERANCE[dtype])
    module.check(tmp_path)


@CHIPS
def test_heads(tmp_path, dtype, chip):
    """Heads of 1 to 256 features and more, odd ones too."""
    p = Program()
    sizes = ((8, 8), (72, 40), (64, 200), (128, 128), (256, 256)) if chip == WGMMA else (
        (1, 1), (7, 5), (20, 36), (128, 128), (256, 256), (264, 8))
    for features, value_features in sizes:
        keys = 70 if chip == WGMMA else 40
        x = tensors(1, 2, 1, 37, keys, features, value_features, dtype)
        i, j = places(37, keys)
        scale = features**-0.5
        p.op(f"nn.attention {{}}, {{}}, {{}} scale {scale!r} {{{{causal}}}}", x, attend(*x, scale, j <= i))
    p.check(tmp_path, TOLERANCE[dtype])


@CHIPS
def test_bias(tmp_path, dtype, chip):
    """From memory, in all shapes; rows that it hides are zeros."""
    keys = 150 if chip == WGMMA else 50
    x = tensors(2, 4, 2, 34, keys, 16, few(chip), dtype)
    p = Program()
    for shape in ((34, keys), (2, 1, 34, keys), (4, 34, 1), (keys,)):
        bias = randn(*shape, seed=5, dtype=dtype)
        if shape == (34, keys):
            bias[0], bias[1, 30:] = -math.inf, -math.inf
        p.op("nn.attention {}, {}, {} bias {} scale 0.25", [*x, bias], attend(*x, 0.25, bias=bias))
    p.check(tmp_path, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype,chip", [
    (torch.float32, "sm_90"), (torch.bfloat16, "sm_90"), (torch.bfloat16, WGMMA)], ids=name)
def test_segments(tmp_path, dtype, chip):
    """A bias that the kernel computes from values of queries and keys."""
    x = tensors(2, 4, 2, 40, 70, 16, few(chip), dtype)
    e = Expression()
    segments = torch.arange(70).div(25, rounding_mode="floor").expand(2, 70)
    of_query = e.input(segments[:, None, :40, None].contiguous())
    of_key = e.input(segments[:, None, None, :].contiguous())
    text = e.check(tmp_path, x, [e.hide(e.op("compare eq", of_query, of_key), dtype)], TOLERANCE[dtype])
    program, _ = gpu_programs.compile_kernels(tmp_path, text)
    assert len(program["launches"]) == 1


@pytest.mark.parametrize("tokens,dtype,chip", [
    (60, torch.float32, "sm_90"), (140, torch.bfloat16, "sm_90"), (140, torch.bfloat16, WGMMA)], ids=name)
@pytest.mark.parametrize("order", ["zigzag", "striped"])
def test_parts_make_the_whole(tmp_path, tokens, dtype, order, chip):
    """The steps of a ring, merged one by one."""
    q, k, v = tensors(1, 4, 2, tokens, tokens, 16, few(chip), dtype)
    chunks = orders(tokens, 2)[order]
    module = Module()
    for own, attributes in zip(chunks, ("causal", "causal, window_left = 20")):
        queries = q[:, :, own].contiguous()
        parts = [module.attention([queries, k[:, :, of].contiguous(), v[:, :, of].contiguous(), own, of],
                                  f"positions {{}}, {{}} scale 0.25 {{{{{attributes}}}}}") for of in chunks]
        whole = module.merge(*parts)
        seen = MASKS[attributes](own[:, None], torch.arange(tokens)[None])
        tolerance = TOLERANCE[dtype] * (2 if dtype == torch.bfloat16 else 1)
        module.expect(whole[0], attend(queries, k, v, 0.25, seen), tolerance)
        module.expect(whole[1], log_sum_exp(queries, k, 0.25, seen), TOLERANCE[dtype])
    module.check(tmp_path)


@pytest.mark.parametrize("chip", ["sm_90", WGMMA])
def test_memory_behind_lengths(tmp_path, chip):
    """Memory behind a length is not read, or hidden, also where the length cuts a tile."""
    module = Module()
    for features, attributes in ((64, ""), (128, "causal"), (256, "window_left = 90")):
        q, k, v = tensors(6, 2, 1, 70, 300, features, features, torch.bfloat16)
        lengths = torch.tensor([0, 1, 127, 128, 290, 400])
        clean = [k.clone(), v.clone()]
        for row, length in enumerate(lengths):
            k[row, :, length:], v[row, :, length:] = math.nan, math.nan
            clean[0][row, :, length:], clean[1][row, :, length:] = 0, 0
        i, j = places(70, 300)
        seen = MASKS[attributes](i, j) & (j < lengths[:, None, None])[:, None]
        got = module.attention([q, k, v, lengths], f"kv_lengths {{}} scale 0.1 {{{{{attributes}}}}}")
        module.expect(got[0], attend(q, *clean, 0.1, seen), TOLERANCE[torch.bfloat16])
        module.expect(got[1], log_sum_exp(q, clean[0], 0.1, seen), TOLERANCE[torch.bfloat16])
    module.check(tmp_path)


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
def test_merge(tmp_path, dtype):
    module = Module()
    for shape in ((1, 3, 5, 7), (1, 2, 9, 128)):
        a, b = randn(*shape, dtype=dtype), randn(*shape, seed=1, dtype=dtype)
        la, lb = (20 * randn(*shape[:3], seed=s) for s in (2, 3))
        la[0, 0, 0], la[0, 0, 1], lb[0, 0, 1] = -math.inf, -math.inf, -math.inf
        a[0, 0, :2], b[0, 0, 1] = 0, 0
        want = test_attention_parts.merge(a, la, b, lb)
        got = module.op("nn.merge_attention {}, {}, {}, {}", [(module.input(t), t) for t in (a, la, b, lb)], want)
        for value, expected in zip(got, want):
            module.expect(value, expected, TOLERANCE[expected.dtype])
    module.check(tmp_path)


def test_log_sum_exp_of_f64(tmp_path):
    """Of scores of f32, also in the merge; a mask of the least finite number leaves the number of keys."""
    x = q, k, v = tensors(1, 2, 1, 5, 40, 16, 12, torch.float32)
    bias = torch.zeros(5, 40)
    bias[1] = torch.finfo(torch.float32).min
    wide, module = torch.empty(1, 2, 5, dtype=torch.float64), Module()
    result = torch.empty(1, 2, 5, 12)
    parts = []
    for size in (40, 8):
        operands = [q, k[:, :, :size].contiguous(), v[:, :, :size].contiguous(), bias[:, :size].contiguous()]
        parts.append(module.op("nn.attention {}, {}, {} bias {} scale 0.25",
                               [(module.input(t), t) for t in operands], [result, wide]))
    whole = module.merge(*parts)
    places = [*range(40), *range(8)]
    x = [q, k[:, :, places], v[:, :, places], bias[:, places]]
    want = attend(*x[:3], 0.25, bias=x[3])
    want[:, :, 1] = x[2].mean(2)
    module.expect(whole[0], want, 3e-6)
    module.check(tmp_path)


def one_program(dtype, features, tokens=200, queries=None):
    q = f"tensor<1x4x{queries or tokens}x{features}x{dtype}>"
    k = f"tensor<1x2x{tokens}x{features}x{dtype}>"
    return (f'func.func @main(%q: {q} {{nn.input = "q"}}, %k: {k} {{nn.input = "k"}}, %v: {k} {{nn.input = "v"}}) -> '
            f'({q} {{nn.output = "o"}}) {{\n  %o = nn.attention %q, %k, %v scale 0.1 {{causal}} : ({q}, {k}, {k}) -> '
            f"{q}\n  return %o : {q}\n}}\n")


@pytest.mark.parametrize("dtype,chip", [("f32", "sm_90"), ("bf16", "sm_90"), ("bf16", WGMMA)])
def test_hidden_tiles_are_left_out(tmp_path, dtype, chip):
    """A query reads nothing behind the tile that has it; two runs give the same bits."""
    generator = torch.Generator().manual_seed(0)
    kind = gpu_programs.TYPES[dtype]
    x = {n: torch.randn(1, h, 200, 16, generator=generator).to(kind) for n, h in (("q", 4), ("k", 2), ("v", 2))}
    run = functools.partial(gpu_programs.run_program, tmp_path, target=f"gpu:{chip}")
    program = one_program(dtype, 16)
    first = run(program, x)["o"]
    assert torch.equal(first, run(program, x)["o"])
    x["k"][:, :, 128:], x["v"][:, :, 128:] = math.nan, math.nan
    got = run(program, x)["o"]
    assert torch.equal(got[:, :, :128], first[:, :, :128]) and got[:, :, 128:].isnan().all()


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_blocks_share_the_keys_of_few_queries(tmp_path, dtype):
    """A block for a key head would leave most of a GPU idle. The last block to end merges the parts, in their order,
    and leaves the counters at 0 for the next launch."""
    text = one_program(dtype, 64, 4096, 1).replace("causal", "")
    program, _ = gpu_programs.compile_kernels(tmp_path, text)
    (launch,) = program["launches"]
    assert launch["blocks"] >= 64 and launch["scratch"] > 4096
    generator = torch.Generator().manual_seed(0)
    x = {n: torch.randn(1, *shape, 64, generator=generator).to(gpu_programs.TYPES[dtype])
         for n, shape in (("q", (4, 1)), ("k", (2, 4096)), ("v", (2, 4096)))}
    x["q"] *= 5
    got = gpu_programs.run_program(tmp_path, text, x)["o"]
    want = attend(x["q"], x["k"], x["v"], 0.1)
    assert (got.double() - want).abs().max() <= TOLERANCE[gpu_programs.TYPES[dtype]] * want.abs().max()
    assert torch.equal(got, gpu_programs.run_program(tmp_path, text, x)["o"])
    (few,) = gpu_programs.compile_kernels(tmp_path, one_program(dtype, 64, 64, 1))[0]["launches"]
    assert few["blocks"] == 2 and few["scratch"] == 0


def instruction(code):
    """How the one kernel multiplies."""
    (text,) = code.values()
    found = [kind for kind in ("wgmma.mma_async", "mma.sync") if kind in text]
    assert len(found) <= 1 and ("cp.async.bulk.tensor" in text) == ("wgmma.mma_async" in found)
    return found[0] if found else "fma"


@pytest.mark.parametrize("chip", ["sm_80", WGMMA, "sm_100", "sm_120"])
def test_ptxas_accepts_kernels(tmp_path, chip):
    for dtype, features in (("f32", 128), ("f32", 20), ("bf16", 64), ("bf16", 128), ("bf16", 256), ("f16", 72)):
        code = gpu_programs.assemble(tmp_path / f"{dtype}-{features}", one_program(dtype, features), chip)
        assert instruction(code) == ("fma" if dtype == "f32" else "wgmma.mma_async" if chip == WGMMA else "mma.sync")
        code = gpu_programs.assemble(tmp_path / f"{dtype}-{features}-few", one_program(dtype, features, 2000, 1), chip)
        assert instruction(code) == ("fma" if dtype == "f32" else "mma.sync")


@pytest.mark.parametrize("dtype,features,tokens,expected", [
    ("bf16", 64, 64, "wgmma.mma_async"), ("f16", 8, 200, "wgmma.mma_async"), ("f32", 64, 200, "fma"),
    ("bf16", 20, 200, "mma.sync"), ("bf16", 264, 200, "fma"), ("f16", 64, 40, "mma.sync")])
def test_choice_of_products(tmp_path, dtype, features, tokens, expected):
    """wgmma needs 16 bits, rows of a multiple of 16 bytes, and half a block of queries and a tile of keys."""
    _, code = gpu_programs.compile_kernels(tmp_path, one_program(dtype, features, tokens), f"gpu:{WGMMA}")
    assert instruction(code) == expected


@pytest.mark.parametrize("features", [128, 256])
@pytest.mark.parametrize("more", ["key_padding %m", "bias %c", "positions %i, %i", "kv_lengths %n"])
def test_ptxas_accepts_masks_from_memory(tmp_path, more, features):
    q, kinds = f"tensor<2x2x200x{features}xbf16>", {"key_padding %m": "tensor<2x200xi1>", "bias %c": "tensor<200x200xbf16>",
                                            "positions %i, %i": "tensor<200xi64>", "kv_lengths %n": "tensor<2xi64>"}
    kind = kinds[more]
    operand = more.split()[1].rstrip(",")
    operands = ", ".join([q] * 3 + [kind] * more.count("%"))
    text = (f'func.func @main(%q: {q} {{nn.input = "q"}}, {operand}: {kind} {{nn.input = "m"}}) -> '
            f'({q} {{nn.output = "o"}}) {{\n  %o = nn.attention %q, %q, %q {more} scale 0.1 {{causal, soft_cap = 30.0}} : ({operands}) -> '
            f"{q}\n  return %o : {q}\n}}\n")
    assert instruction(gpu_programs.assemble(tmp_path / "kernel", text, WGMMA)) == "wgmma.mma_async"
