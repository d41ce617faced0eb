# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Modules whose weights are codes and scales, drawn at random: forms, blocks and spellings."""

import random

import torch
import torch.nn.functional as F
from torch import nn

E4M3, E5M2, E8M0 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu
FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
LARGEST = {E4M3: 448.0, E5M2: 57344.0, torch.int8: 127.0}


def ceil(a, b):
    return -(-a // b)


def stretched(scales, shape, block, how):
    """The scale of each element; the last blocks may be cut."""
    r, c = block
    if how == "repeat":
        return scales.repeat_interleave(r, -2)[..., : shape[0], :].repeat_interleave(c, -1)[..., : shape[1]]
    if how == "expand":
        wide = scales[..., :, None, :, None].expand(*scales.shape[:-1], r, scales.shape[-1], c)
        return wide.reshape(*scales.shape[:-2], scales.shape[-2] * r, -1)[..., : shape[0], : shape[1]]
    rows, columns = torch.arange(shape[0]) // r, torch.arange(shape[1]) // c
    return scales[..., rows, :][..., columns]


def quantised(w, dtype, block, scale):
    n, k = w.shape[-2:]
    r, c = block
    blocks = F.pad(w, (0, ceil(k, c) * c - k, 0, ceil(n, r) * r - n)).unflatten(-2, (-1, r)).unflatten(-1, (-1, c))
    scales = blocks.abs().amax((-3, -1)).clamp(min=1e-6) / LARGEST[dtype]
    if scale is E8M0:
        scales = scales.log2().ceil().exp2()
    wide = stretched(scales, (n, k), block, "repeat")
    codes = w / wide
    return (codes.round() if dtype is torch.int8 else codes).to(dtype), scales.to(scale)


class Weight(nn.Module):
    """A weight of codes in 8 bits, and scales of blocks."""

    def __init__(self, w, dtype, block, scale, how):
        super().__init__()
        codes, scales = quantised(w, dtype, block, scale)
        self.register_buffer("codes", codes)
        self.register_buffer("scales", scales)
        self.block, self.how = block, how

    def forward(self):
        shape, (r, c) = self.codes.shape[-2:], self.block
        codes, scales = self.codes.to(torch.float32), self.scales.to(torch.float32)
        if self.how == "apart":
            apart = codes.unflatten(-1, (-1, c)).unflatten(-3, (-1, r))
            return (apart * scales[..., :, None, :, None]).flatten(-2).flatten(-3, -2)
        return codes * stretched(scales, shape, self.block, self.how)


class Weight4(nn.Module):
    """A weight of two codes a byte, and powers of two."""

    def __init__(self, w, how):
        super().__init__()
        groups = w.unflatten(-1, (-1, 32))
        exponents = (groups.abs().amax(-1).clamp(min=1e-6) / 6).log2().ceil()
        table = torch.tensor(FP4)
        codes = ((groups / exponents.exp2()[..., None])[..., None] - table).abs().argmin(-1).to(torch.uint8)
        self.register_buffer("blocks", codes[..., 0::2] | (codes[..., 1::2] << 4))
        self.register_buffer("scales", (exponents + 127).to(torch.uint8))
        self.register_buffer("table", table, persistent=False)
        self.how = how

    def forward(self):
        # transformers' way: groups are rows, halves are written in place, and so are powers of two.
        shape = self.blocks.shape
        blocks = self.blocks.reshape(-1) if self.how == "flat" else self.blocks
        if self.how == "rows":
            blocks = self.blocks.reshape(-1, shape[-1])
        low, high = self.table[(blocks & 15).int()], self.table[(blocks >> 4).int()]
        if self.how == "rows":
            out = torch.empty(len(blocks), 2 * shape[-1])
            out[:, 0::2], out[:, 1::2] = low, high
            torch.ldexp(out, self.scales.reshape(-1, 1).int() - 127, out=out)
            return out.reshape(*shape[:-2], -1)
        pairs = torch.stack([low, high], -1).reshape(*shape[:-1], -1)
        if self.how == "repeat":
            return torch.ldexp(pairs, self.scales.int()[..., None] - 127).flatten(-2)
        return (pairs * torch.exp2(self.scales.float() - 127)[..., None]).flatten(-2)


class Linear(nn.Module):
    def __init__(self, weight, bias):
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, x):
        return F.linear(x, self.weight().to(x.dtype), self.bias)


class Mlp(nn.Module):
    """x + down(silu(up(x))): a product that shards its columns, and one that shards its rows."""

    def __init__(self, draw, hidden, inner):
        super().__init__()
        make = lambda n, k: Linear(draw(torch.randn(n, k) * k**-0.5),
                                   nn.Parameter(torch.randn(n) * 0.1, requires_grad=False))
        self.up, self.down = make(inner, hidden), make(hidden, inner)

    def forward(self, x):
        return x + self.down(F.silu(self.up(x)))


def drawn(seed) -> tuple[nn.Module, dict]:
    """A module in f32, and a mesh."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    form = rng.choice(["f8", "f8", "i8", "f4"])
    hidden, inner = (32 * rng.randint(1, 4), 32 * rng.randint(1, 5)) if form == "f4" else (
        rng.randint(9, 90), rng.randint(9, 120))
    if form == "f4":
        how = rng.choice(["repeat", "power", "flat", "rows"])
        draw = lambda w: Weight4(w, how)
    else:
        dtype = torch.int8 if form == "i8" else rng.choice([E4M3, E4M3, E5M2])
        block = (rng.choice([1, 4, 16, 32, 128]), rng.choice([1, 8, 16, 32, 128]))
        scale = torch.float32 if form == "i8" else rng.choice([torch.float32, torch.bfloat16, E8M0])
        how = rng.choice(["repeat", "expand", "index", "apart"])
        if how == "apart":
            hidden, inner = (ceil(n, block[0] * block[1]) * block[0] * block[1] for n in (hidden, inner))
        if max(hidden, inner) > 600:
            block = (8, 8)
            hidden, inner = 48, 72
        draw = lambda w: Weight(w, dtype, block, scale, how)
    net = Mlp(draw, hidden, inner).eval()
    mesh = rng.choice([{"tp": 2}, {"tp": 3}, {"tp": 4}, {"dp": 2}, {"dp": 2, "tp": 2}])
    return net, mesh
