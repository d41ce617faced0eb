# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""nn.dropout and dropout of attention, compiled and run, against a generator written here."""
import math

import numpy as np
import pytest
import torch
from harness import ELEMENT, run_module, type_of

FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def philox(index, seed, step, stream):
    """The first word of Philox-4x32-10 for each index."""
    low = (1 << 32) - 1
    word = lambda value: np.uint64(value & low)
    index = np.asarray(index).astype(np.int64).astype(np.uint64)
    shift, mask = np.uint64(32), np.uint64(low)
    counter = [index & mask, index >> shift, np.full_like(index, word(step)), np.full_like(index, word(stream))]
    keys = [seed & low, seed >> 32 & low]
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * counter[0], np.uint64(0xCD9E8D57) * counter[2]
        counter = [(b >> shift) ^ counter[1] ^ np.uint64(keys[0]), b & mask,
                   (a >> shift) ^ counter[3] ^ np.uint64(keys[1]), a & mask]
        keys = [keys[0] + 0x9E3779B9 & low, keys[1] + 0xBB67AE85 & low]
    return counter[0]


def kept(index, p, seed=0, step=0, stream=0):
    return torch.from_numpy(philox(index, seed, step, stream) >= np.uint64(round(p * 2**32)))


def test_the_generator_is_philox():
    """The known answers of the authors' library (Random123) for counters and keys of zeros and of ones."""
    assert philox([0], 0, 0, 0)[0] == 0x6627E8D5
    assert philox([-1], -1, -1, -1)[0] == 0x408F276D


def elements_program(x, p, stream):
    t, i = type_of(x), type_of(x.to(torch.int64))
    return f"""func.func @main(%x: {t} {{nn.input = "x"}}, %i: {i} {{nn.input = "i"}}, %s: tensor<i64> {{nn.input = "s"}}, %n: tensor<i64> {{nn.input = "n"}})
    -> ({t} {{nn.output = "y"}}) {{
  %y = nn.dropout %x at %i seed %s step %n probability {p} stream {stream} : ({t}, {i}, tensor<i64>, tensor<i64>) -> {t}
  return %y : {t}
}}
"""


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
@pytest.mark.parametrize("shape", [(1,), (3, 7), (5, 130)], ids=str)
def test_elements(tmp_path, shape, dtype):
    """Indices, seeds and steps of more than 32 bits; negative ones have the bits of their complement."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=g).to(dtype)
    for number, (p, seed, step, stream, first) in enumerate([
            (0.3, 0, 0, 0, 0), (0.9, 5, 3, 2, (1 << 33) - 17), (0.0, 1, 1, 1, 0),
            (0.5, -7, (1 << 40) + 9, 1 << 20, 1 << 50), (1e-3, 1 << 45, 2, 3, -40)]):
        index = torch.arange(x.numel()).reshape(shape) * 3 + first
        inputs = {"x": x, "i": index, "s": torch.tensor(seed), "n": torch.tensor(step)}
        folder = tmp_path / str(number)
        folder.mkdir()
        got = run_module(folder, elements_program(x, p, stream), inputs)["y"]
        wide = x.double() if dtype == torch.float64 else x.float()
        want = (wide * wide.new_tensor(1 / (1 - p))).to(dtype)
        keep = kept(index.numpy(), p, seed, step, stream)
        assert torch.equal(got, torch.where(keep, want, torch.zeros_like(want))), (p, seed)


def test_channels_and_what_is_not_finite(tmp_path):
    """An index that broadcasts. A dropped element is zero, also in place of NaN and infinity."""
    x = torch.full((4, 6, 5), math.nan)
    x[:, ::2] = math.inf
    index = torch.arange(24).reshape(4, 6, 1)
    text = elements_program(x, 0.5, 0).replace("tensor<4x6x5xi64>", "tensor<4x6x1xi64>")
    got = run_module(tmp_path, text, {"x": x, "i": index, "s": torch.tensor(0), "n": torch.tensor(0)})["y"]
    keep = kept(index.numpy(), 0.5).expand(x.shape)
    assert torch.equal(got == 0, ~keep) and keep.any() and not keep.all()


def attention_program(x, causal, p, gradient):
    q, k, v = x
    types = [type_of(t) for t in x]
    rows, keys = f"tensor<{'x'.join(map(str, q.shape[:3]))}xi64>", f"tensor<{k.shape[2]}xi64>"
    drop, dropTypes = "drop_at %r, %j seed %s step %n", f"{rows}, {keys}, tensor<i64>, tensor<i64>"
    attributes = f"{{{'causal, ' if causal else ''}dropout = {p} : f64, stream = 4 : i64}}"
    wide = "f64" if q.dtype == torch.float64 else "f32"
    out = type_of(q[..., :1].expand(*q.shape[:3], v.shape[3]))
    lse = f"tensor<{'x'.join(map(str, q.shape[:3]))}x{wide}>"
    sums = [t.replace(ELEMENT[q.dtype] + ">", wide + ">") for t in types]
    arguments = ", ".join(f'%{n}: {t} {{nn.input = "{n}"}}' for n, t in zip(
        "qkvrjsn", [*types, rows, keys, "tensor<i64>", "tensor<i64>"], strict=True))
    body = (f"  %o, %l = nn.attention %q, %k, %v {drop} scale 0.5 {attributes} : "
            f"({', '.join(types)}, {dropTypes}) -> ({out}, {lse})\n")
    if not gradient:
        return (f'func.func @main({arguments}) -> ({out} {{nn.output = "o"}}) {{\n{body}  return %o : {out}\n}}\n')
    results = ", ".join(f'{t} {{nn.output = "d{n}"}}' for n, t in zip("qkv", sums, strict=True))
    return (f'func.func @main({arguments}, %d: {lse} {{nn.input = "d"}}, %c: {out} {{nn.input = "c"}}) -> ({results}) {{\n{body}'
            f"  %g:3 = nn.attention_grad %q, %k, %v {drop} lse %l delta %d cotangent %c scale 0.5 {attributes} : "
            f"({', '.join(types)}, {dropTypes}, {lse}, {lse}, {out}) -> ({', '.join(sums)})\n"
            f"  return %g#0, %g#1, %g#2 : {', '.join(sums)}\n}}\n")


def attend(x, causal, p, seed, step):
    q, k, v = x
    group = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(group, 1).mT * 0.5
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[2:], dtype=bool).tril(), -math.inf)
    index = np.arange(scores.numel()).reshape(scores.shape)
    return scores.softmax(-1) * kept(index, p, seed, step, 4) / (1 - p) @ v.repeat_interleave(group, 1)


TOLERANCE = {torch.float32: 4e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float64: 1e-12}


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
@pytest.mark.parametrize("queries, keys, causal", [(1, 97, False), (7, 9, False), (33, 33, True), (150, 150, True)])
def test_attention(tmp_path, queries, keys, causal, dtype):
    """Few and many queries, with grouped heads: the result and the gradients, with the sums that autograd has."""
    g = torch.Generator().manual_seed(1)
    x = [torch.randn(2, heads, tokens, features, generator=g).to(dtype)
         for heads, tokens, features in ((4, queries, 6), (2, keys, 6), (2, keys, 5))]
    p, seed, step = 0.4, 3, 11
    wide = [t.double().requires_grad_() for t in x]
    want = attend(wide, causal, p, seed, step)
    cotangent = torch.randn(want.shape, generator=g).to(dtype)
    want.backward(cotangent.double())
    rows = (torch.arange(2 * 4 * queries) * keys).reshape(2, 4, queries)
    inputs = dict(zip("qkvrj", [*x, rows, torch.arange(keys)], strict=True), s=torch.tensor(seed), n=torch.tensor(step))
    got = run_module(tmp_path, attention_program(x, causal, p, False), inputs)["o"]
    assert (got.double() - want).abs().max() <= TOLERANCE[dtype] * want.abs().max()
    sums = torch.float64 if dtype == torch.float64 else torch.float32
    inputs.update(d=(want * cotangent.double()).sum(-1).detach().to(sums), c=cotangent)
    got = run_module(tmp_path, attention_program(x, causal, p, True), inputs)
    exact = 1e-12 if dtype == torch.float64 else 4e-6
    for n, t in zip("qkv", wide, strict=True):
        assert (got[f"d{n}"].double() - t.grad).abs().max() <= exact * t.grad.abs().max(), n
