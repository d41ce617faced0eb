# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Masks that the program computes: bounds become lengths and positions, the rest stays a bias."""
import math

import pytest
import torch
import torch.nn.functional as F
from import_checks import same
from torch import nn

Q, K = 7, 9


def arange(n):
    return torch.arange(n)


def keys():
    return arange(K)


def queries():
    return arange(Q)[:, None]


class Masked(nn.Module):
    """sdpa under a mask of integers: n [batch, 1, 1], p [queries] and r [batch, queries]."""

    def __init__(self, mask, queries):
        super().__init__()
        self.mask, self.queries = mask, queries

    def forward(self, x, y, n, p, r):
        m = self.mask(n, p[:self.queries, None], r[:, :self.queries, None])
        m = m[:, None] if m.dim() == 3 else m
        return F.scaled_dot_product_attention(x[:, :, :self.queries], y, y, attn_mask=m)


# A mask becomes these: key padding, a bias, positions, lengths, and the window.
BOUNDS = {
    "lengths": (lambda n, p, r: keys() < n, "lengths"),
    "lengths, from the other side": (lambda n, p, r: n >= keys() + 2, "lengths"),
    "two lengths": (lambda n, p, r: (keys() < n) & ~(keys() >= n * 2 - 1), "lengths"),
    "left padding": (lambda n, p, r: keys() >= n, "key_padding"),
    "between": (lambda n, p, r: (keys() >= n - 3) & (keys() <= n), "key_padding lengths"),
    "causal": (lambda n, p, r: (keys() <= queries()) & (keys() < n), "lengths causal"),
    "prefix": (lambda n, p, r: (keys() <= queries()) | (keys() < n), "positions"),
    "prefix behind left padding": (lambda n, p, r: ((keys() <= queries()) | (keys() < n)) &
                                   (keys() >= n - 4), "key_padding positions"),
    "prefix, negated": (lambda n, p, r: ~((keys() > queries()) & ~(keys() < n)), "positions"),
    "cache": (lambda n, p, r: keys() <= p, "positions"),
    "cache of rows": (lambda n, p, r: keys() < r + 1, "positions"),
    "cache and lengths": (lambda n, p, r: (keys() <= p) & (n > keys()), "positions lengths"),
    "cache, window": (lambda n, p, r: (keys() <= p) & (keys() > p - 3), "positions window_left = 2"),
    "cache, difference": (lambda n, p, r: (p - keys() >= 0) & (p - keys() < 4),
                          "positions window_left = 3"),
    "causal cache": (lambda n, p, r: (keys() <= p) & (keys() <= queries() + 2), "positions"),
    "offset of rows": (lambda n, p, r: keys() <= queries() + n, "positions"),
    # No bounds, or none that attention takes.
    "stripes": (lambda n, p, r: keys() % 2 == p % 2, "bias"),
    "equal": (lambda n, p, r: keys() == r, "bias"),
    "window without an end": (lambda n, p, r: keys() >= p, "bias"),
    "window of another place": (lambda n, p, r: (keys() <= p) & (keys() >= r), "bias"),
    "window that begins behind": (lambda n, p, r: (keys() <= p - 4) & (keys() >= p - 2), "bias"),
    "a length and stripes": (lambda n, p, r: (keys() < n) & (keys() % 2 == p % 2), "lengths bias"),
    "prefix or stripes": (lambda n, p, r: (keys() < n) | (keys() % 2 == p % 2), "bias"),
    "key times two": (lambda n, p, r: keys() * 2 <= p, "bias"),
}
PARTS = {"key_padding": " key_padding %", "bias": " bias %", "positions": " positions %",
         "lengths": " kv_lengths %"}


def arguments(seed=3):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randint(-2, K + 2, shape, generator=generator)
    return (torch.randn(3, 2, Q, 8, generator=generator), torch.randn(3, 2, K, 8, generator=generator),
            draw(3, 1, 1), draw(Q), draw(3, Q))


def check(mask, count, expected):
    imported = same(Masked(mask, count), arguments())
    line, = [line for line in imported.mlir.splitlines() if "= nn.attention" in line]
    found = {name for name, text in PARTS.items() if text in line}
    wanted = set(expected.split()) & set(PARTS)
    assert found == wanted, line
    for attribute in ("causal", "window_left = 2", "window_left = 3"):
        if attribute in expected:
            assert attribute in line
    return line


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds(name):
    """Rows that see nothing are among them."""
    mask, expected = BOUNDS[name]
    check(mask, Q, expected)


@pytest.mark.parametrize("name,expected", [
    ("cache", "lengths"), ("cache, window", "key_padding lengths"), ("prefix", "lengths"),
    ("cache and lengths", "lengths")])
def test_one_query(name, expected):
    """Of a single query, as in a step of decoding, all bounds are those of the row."""
    mask = BOUNDS[name][0]
    if name == "prefix":
        mask = lambda n, p, r: (keys() <= p) | (keys() < n)
    check(mask, 1, expected)


def test_int32_and_offsets():
    check(lambda n, p, r: keys().to(torch.int32) + 1 <= p.to(torch.int32), Q, "positions")


class Hidden(nn.Module):
    """Scores that are replaced where a mask is false."""

    def forward(self, x, y, n, p):
        scores = x @ y.mT
        seen = (keys() <= p[:, None]) & (keys() >= n[:, None])
        return scores.masked_fill(~seen, -math.inf).softmax(-1) @ y


def test_written_attention():
    x, y, n, p, r = arguments()
    imported = same(Hidden(), (x, y, torch.zeros(3, 1, 1, dtype=torch.long), p.clamp(min=0)))
    assert " positions %" in imported.mlir and " key_padding %" in imported.mlir
    assert " bias %" not in imported.mlir.split("nn.attention")[1].splitlines()[0]
