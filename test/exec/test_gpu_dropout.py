# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attention with dropout for GPUs, forward and backward, on the stand-in for the driver: against autograd of PyTorch
in f64 with the generator of test_dropout. ptxas assembles the kernels."""
import functools
import math

import gpu_programs
import pytest
import test_attention_parts
import torch
from test_attention import ELEMENT, TOLERANCE, log_sum_exp, name, places, randn, tensors
from test_attention import scores as scores_of
from test_attention_parts import Module, orders
from test_dropout import kept
from test_gpu_attention import WGMMA, instruction

pytestmark = pytest.mark.skipif(gpu_programs.missing() is not None, reason=str(gpu_programs.missing()))
FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
P, SEED, STEP, STREAM = 0.4, torch.tensor((5 << 32) + 3), torch.tensor(11), 4
DROP = f"dropout = {P} : f64, stream = {STREAM} : i64"


@pytest.fixture
def chip():
    return "sm_90"


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch, chip):
    run = functools.partial(gpu_programs.run_program, target=f"gpu:{chip}")
    monkeypatch.setattr(test_attention_parts, "run_module", run)


class Case:
    """Attention of x with weights dropped at the indices rows + keys, of more than 32 bits."""

    def __init__(self, x, seen=None, bias=None, cap=None):
        q, k, v = self.x = x
        self.seed, self.step, self.bias = SEED, STEP, bias
        self.keys = torch.randperm(k.shape[2], generator=torch.Generator().manual_seed(9))
        self.rows = torch.arange(math.prod(q.shape[:3])).reshape(q.shape[:3]) * k.shape[2] + (1 << 33) - 99
        index = self.rows[..., None] + self.keys
        self.kept = kept(index.numpy(), P, SEED.item(), STEP.item(), STREAM)
        leaves = [t.double().requires_grad_() for t in x]
        scores = scores_of(*leaves[:2], 0.25, seen, bias, cap)
        weights = torch.exp(scores - scores.detach().amax(-1, keepdim=True).clamp_min(-1e300))
        weights = weights / weights.sum(-1, keepdim=True).clamp_min(1e-300) * self.kept / (1 - P)
        out = weights @ leaves[2].repeat_interleave(q.shape[1] // v.shape[1], 1)
        self.cotangent = randn(*out.shape, seed=7, dtype=q.dtype)
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        self.gradients = [g.to(wide) for g in torch.autograd.grad(out, leaves, self.cotangent.double())]
        self.out = out.detach().to(q.dtype)
        self.lse = log_sum_exp(q, k, 0.25, seen, bias, cap)
        self.delta = (out.detach() * self.cotangent.double()).sum(-1).to(wide)

    def add(self, module, attributes="", gradient=True, **masks):
        """`masks` has the operands of each clause of the mask, in the order of the op's text."""
        if self.bias is not None:
            masks = {"bias": [self.bias], **masks}
        masks["drop_at"], masks["seed"], masks["step"] = [self.rows, self.keys], [self.seed], [self.step]
        attributes = ", ".join(filter(None, [attributes, DROP]))

        def text(**clauses):
            return "".join(f"{key} {', '.join('{}' for _ in tensors)} " for key, tensors in clauses.items())

        def operands(**clauses):
            return [*self.x, *(t for tensors in clauses.values() for t in tensors)]

        out, lse = module.attention(operands(**masks), f"{text(**masks)}scale 0.25 {{{{{attributes}}}}}")
        module.expect(out, self.out, TOLERANCE[self.x[0].dtype] / (1 - P))
        module.expect(lse, self.lse, TOLERANCE[self.x[0].dtype])
        if not gradient:
            return
        masks.update(lse=[self.lse], delta=[self.delta], cotangent=[self.cotangent])
        grads = module.op(f"nn.attention_grad {{}}, {{}}, {{}} {text(**masks)}scale 0.25 {{{{{attributes}}}}}",
                          [(module.input(t), t) for t in operands(**masks)], self.gradients)
        # Errors are relative to the largest entry of all gradients.
        largest = max(g.abs().max().item() for g in self.gradients)
        for got, want in zip(grads, self.gradients, strict=True):
            exact = 1e-12 if want.dtype == torch.float64 else 1e-5
            module.expect(got, want, exact * largest / max(want.abs().max().item(), 1e-30))


CASES = [(1, 40, torch.float32, "sm_90"), (70, 97, torch.float32, "sm_90"), (70, 97, torch.float64, "sm_90"),
         (70, 97, torch.bfloat16, "sm_90"), (40, 70, torch.float16, "sm_90"), (150, 140, torch.bfloat16, WGMMA),
         (70, 97, torch.float16, WGMMA)]


@pytest.mark.parametrize("queries,keys,dtype,chip", CASES, ids=name)
def test_structure(tmp_path, queries, keys, dtype, chip):
    """Query heads that share a key head; masks of structure; rows, keys and features that fill no block."""
    x = tensors(2, 4, 2, queries, keys, 16, 24, dtype)
    i, j = places(queries, keys)
    module = Module()
    for attributes, seen, cap in (
            ("", torch.ones(queries, keys, dtype=torch.bool), None), ("causal", j <= i, None),
            ("causal, soft_cap = 1.5, window_left = 20", (j <= i) & (j >= i - 20), 1.5),
            (f"kv_length = {keys // 2}, window_right = 30", (j < keys // 2) & (j <= i + 30), None)):
        Case(x, seen, cap=cap).add(module, attributes)
    module.check(tmp_path)


@pytest.mark.parametrize("queries,keys,dtype,chip", CASES[1:2] + CASES[3:], ids=name)
def test_operands(tmp_path, queries, keys, dtype, chip):
    """Masks from memory."""
    x = tensors(2, 4, 2, queries, keys, 16, 24, dtype)
    i, j = places(queries, keys)
    padding = torch.rand(2, keys, generator=torch.Generator().manual_seed(3)) > 0.4
    lengths = torch.tensor([keys // 2, keys + 3])
    order = torch.randperm(keys, generator=torch.Generator().manual_seed(1))
    bias = randn(4, queries, keys, seed=5, dtype=dtype)
    bias[:, 0], bias[:, 1, 30:] = -math.inf, -math.inf
    module = Module()
    Case(x, (j <= i) & padding[:, None, None]).add(module, "causal", key_padding=[padding])
    Case(x, bias=bias).add(module)
    Case(x, order[None] <= i + 7).add(module, "causal", positions=[torch.arange(queries) + 7, order])
    Case(x, (j <= i + 3) & (j < lengths[:, None, None])[:, None]).add(module, "window_right = 3", kv_lengths=[lengths])
    module.check(tmp_path)


@pytest.mark.parametrize("dtype,chip", [(torch.float32, "sm_90"), (torch.bfloat16, "sm_90"), (torch.bfloat16, WGMMA)],
                         ids=name)
def test_heads(tmp_path, dtype, chip):
    """Heads of few features and of many, also of several slices."""
    module = Module()
    sizes = ((8, 8), (128, 128), (200, 256)) if chip == WGMMA else ((1, 1), (7, 5), (128, 128), (200, 264))
    for features, value_features in sizes:
        x = tensors(1, 2, 1, 70, 70, features, value_features, dtype)
        x[0].mul_(features**-0.5)
        i, j = places(70, 70)
        Case(x, j <= i).add(module, "causal", gradient=chip != WGMMA)
    module.check(tmp_path)


@pytest.mark.parametrize("tokens,dtype,chip", [
    (60, torch.float32, "sm_90"), (140, torch.bfloat16, "sm_90"), (140, torch.bfloat16, WGMMA)], ids=name)
def test_parts_make_the_whole(tmp_path, tokens, dtype, chip):
    """The steps of a ring drop what the whole drops: each has the terms of its chunk of the keys."""
    x = q, k, v = tensors(1, 4, 2, tokens, tokens, 16, 24, dtype)
    i, j = places(tokens, tokens)
    case, module = Case(x, j <= i), Module()
    chunks = orders(tokens, 2)["zigzag"]
    for own in chunks:
        parts = [module.attention(
            [q[:, :, own].contiguous(), k[:, :, of].contiguous(), v[:, :, of].contiguous(), own, of,
             case.rows[:, :, own].contiguous(), case.keys[of].contiguous(), case.seed, case.step],
            f"positions {{}}, {{}} drop_at {{}}, {{}} seed {{}} step {{}} scale 0.25 {{{{causal, {DROP}}}}}")
            for of in chunks]
        whole = module.merge(*parts)
        module.expect(whole[0], case.out[:, :, own], 2 * TOLERANCE[dtype] / (1 - P))
        module.expect(whole[1], case.lse[:, :, own], TOLERANCE[dtype])
    module.check(tmp_path)


def one_program(dtype, features, mask="", gradient=False, tokens=200):
    """Attention or its backward pass with all attributes that need registers."""
    kinds = {"key_padding": f"tensor<2x{tokens}xi1>", "bias": f"tensor<4x{tokens}x{tokens}x{dtype}>",
             "positions": f"tensor<{tokens}xi64>", "kv_lengths": "tensor<2xi64>"}
    q, k = (f"tensor<2x{heads}x{tokens}x{features}x{dtype}>" for heads in (4, 2))
    rows, keys, sums = f"tensor<2x4x{tokens}xi64>", f"tensor<{tokens}xi64>", f"tensor<2x4x{tokens}xf32>"
    masks = [("m", kinds[mask])] * (2 if mask == "positions" else 1) if mask else []
    operands = [("q", q), ("k", k), ("k", k), *masks, ("r", rows), ("j", keys), ("s", "tensor<i64>"), ("s", "tensor<i64>")]
    clause = f"{mask} {', '.join('%m' for _ in masks)} " if mask else ""
    text, results, more = "nn.attention", [q], ""
    if gradient:
        text, more = "nn.attention_grad", "lse %l delta %l cotangent %q "
        results = [t.replace(dtype + ">", "f32>") for t in (q, k, k)]
        operands += [("l", sums), ("l", sums), ("q", q)]
    arguments = ", ".join(f'%{n}: {t} {{nn.input = "{n}"}}' for n, t in dict(operands).items())
    outputs = ", ".join(f'{t} {{nn.output = "o{i}"}}' for i, t in enumerate(results))
    return (f"func.func @main({arguments}) -> ({outputs}) {{\n"
            f"  %o:{len(results)} = {text} %q, %k, %k {clause}drop_at %r, %j seed %s step %s {more}scale 0.1 "
            f"{{causal, {'soft_cap = 30.0, ' if mask else ''}{DROP}}} : ({', '.join(t for _, t in operands)}) -> "
            f"({', '.join(results)})\n"
            f"  return {', '.join(f'%o#{i}' for i in range(len(results)))} : {', '.join(results)}\n}}\n")


@pytest.mark.parametrize("chip", ["sm_80", WGMMA, "sm_100", "sm_120"])
def test_ptxas_accepts_kernels(tmp_path, chip):
    for dtype, features in (("f32", 128), ("f32", 20), ("bf16", 64), ("bf16", 128), ("bf16", 256), ("f16", 72)):
        code = gpu_programs.assemble(tmp_path / f"{dtype}-{features}", one_program(dtype, features), chip)
        assert instruction(code) == ("fma" if dtype == "f32" else "wgmma.mma_async" if chip == WGMMA else "mma.sync")
    for features, dtype in ((128, "f32"), (20, "f32"), (256, "bf16"), (72, "f16")):
        gpu_programs.assemble(tmp_path / f"grad-{dtype}-{features}", one_program(dtype, features, gradient=True), chip)


@pytest.mark.parametrize("mask", ["key_padding", "bias", "positions", "kv_lengths"])
@pytest.mark.parametrize("chip", ["sm_80", WGMMA, "sm_100", "sm_120"])
def test_ptxas_accepts_masks_from_memory(tmp_path, chip, mask):
    for features in (128, 256):
        gpu_programs.assemble(tmp_path / f"{features}", one_program("bf16", features, mask), chip)
    gpu_programs.assemble(tmp_path / "grad", one_program("bf16", 128, mask, gradient=True), chip)
