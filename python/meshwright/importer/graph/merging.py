# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Reshapes that merge dimensions: which they are, and what they merge."""

from .nodes import Builder, Node, ones_are_chunks, reshape_groups


def merges(source, target) -> bool:
    """Whether a reshape only merges dimensions (and really merges some)."""
    groups = merged_dims(source, target)
    return groups is not None and any(sum(source[d] != 1 for d in g) > 1 for g in groups)


def merge_source(build: Builder, x: Node) -> Node | None:
    """y, where x is a reshape of y that only merges dimensions (and really merges some).

    A reshape that splits some dimensions and merges others is taken as two.
    """
    if x.op != "reshape":
        return None
    source = x.operands[0].shape
    if merges(source, x.shape):
        return x.operands[0]
    groups = reshape_groups(source, x.shape)
    if groups is None:
        return None
    refined = []
    for s, t in groups:
        cuts = {1}
        for dims, shape in ((s, source), (t, x.shape)):
            product = 1
            for d in dims:
                product *= shape[d]
                cuts.add(product)
        steps = sorted(cuts)
        if any(b % a for a, b in zip(steps, steps[1:])):
            return None
        refined += [b // a for a, b in zip(steps, steps[1:])]
    refined = refined or [1]
    if not merges(refined, x.shape) or tuple(refined) == x.shape:
        return None
    return Node("reshape", [x.operands[0]], {}, tuple(refined), x.dtype, x.loc, x.position) \
        if tuple(refined) != source else x.operands[0]


def tight(source, target) -> tuple[int, ...]:
    """The source shape of a merging reshape without the needless dimensions of size 1."""
    shape = []
    for group in merged_dims(source, target):
        sizes = [source[d] for d in group]
        shape += [n for n in sizes if n != 1] or [1]
    return tuple(shape)


def merged_dims(source, target) -> list[range] | None:
    """For each target dimension the source dimensions that it merges; None where one is split."""
    groups = reshape_groups(source, target)
    if groups is None:
        return None
    result: list = [None] * len(target)
    pending = []
    for s, t in groups:
        real = [d for d in t if target[d] != 1]
        if len(real) > 1 or len(t) > 1 and ones_are_chunks():
            return None
        if not t:  # source dimensions of size 1 that vanish
            pending = list(s)
            if not result:
                return None
            previous = t.start - 1
            if previous < 0:
                return None
            result[previous] = [*result[previous], *pending]
            continue
        keep = real[0] if real else t[0]
        for d in t:
            result[d] = list(s) if d == keep else []
    return result if all(r is not None for r in result) else None
