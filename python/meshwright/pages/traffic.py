# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Bytes from rank to rank."""

from .facts import Facts


def matrix(facts: Facts) -> list[list[float]]:
    """The bytes of a call from each rank (row) to each rank (column)."""
    sent = [[0.0] * facts.ranks for _ in range(facts.ranks)]
    for i, j, count in facts.sent:
        sent[i][j] = count
    return sent


def top_pairs(facts: Facts) -> tuple[float, list[tuple[int, int]]]:
    """The most bytes that a rank sends another, and the pairs that send as many."""
    top = max((count for _, _, count in facts.sent), default=0.0)
    return top, [(i, j) for i, j, count in facts.sent if count > top * 0.9999]
