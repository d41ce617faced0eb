# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Rotary position embedding: y * cos + rotate(y) * sin, on all of a head or its first part."""

from .nodes import Builder, Graph, Node, broadcast_shapes


def lift_rotary(graph: Graph):
    build = Builder()

    def pattern(node: Node) -> Node | None:
        build.at(node)
        if node.op == "add":
            return _rotated_sum(build, node)
        if node.op == "reshape":
            return _pairs(build, node)
        if node.op == "concat":
            return _halves(build, node) or _partial(build, node)
        return None

    graph.rewrite(pattern)


def _last_slice(node: Node) -> tuple[Node, int, int, int] | None:
    """(x, start, size, stride) of a slice of the last dimension alone."""
    if node.op != "slice":
        return None
    a, x = node.attrs, node.operands[0]
    last = x.rank - 1
    if any(a["starts"][d] or node.shape[d] != x.shape[d] for d in range(last)):
        return None
    return x, a["starts"][last], node.shape[last], a["strides"][last]


def _part(node: Node):
    """Like _last_slice, for any value: itself, from 0."""
    return _last_slice(node) or (node, 0, node.shape[-1], 1)


def _rotate_halves(node: Node) -> tuple | None:
    """The value whose halves (a, b) are (-b, a) in `node`: (x, start, size) of a part of x."""
    if node.op != "concat" or node.attrs["dim"] != node.rank - 1 or len(node.operands) != 2:
        return None
    second, first = node.operands
    if second.op != "neg":
        return None
    b, a = _part(second.operands[0]), _part(first)
    half = node.shape[-1] // 2
    if a[0] is b[0] and a[2] == b[2] == half and a[3] == b[3] == 1 and b[1] == a[1] + half:
        return a[0], a[1], 2 * half
    return None


def _rotate_pairs(node: Node) -> tuple | None:
    """The same for neighbours (a, b): stack([-x[1::2], x[0::2]], -1).flatten(-2)."""
    if node.op != "reshape":
        return None
    joined = node.operands[0]
    if joined.op != "concat" or joined.rank != node.rank + 1 or joined.shape[-1] != 2 or \
            joined.attrs["dim"] != joined.rank - 1 or len(joined.operands) != 2:
        return None
    parts = []
    for operand in joined.operands:
        negative = False
        while operand.op in ("reshape", "neg"):
            negative ^= operand.op == "neg"
            operand = operand.operands[0]
        parts.append((_last_slice(operand), negative))
    (b, b_negative), (a, a_negative) = parts
    if not a or not b or not b_negative or a_negative or a[0] is not b[0] or \
            a[3] != 2 or b[3] != 2 or b[1] != a[1] + 1 or a[2] != b[2] or \
            a[0].rank != node.rank:
        return None
    return a[0], a[1], 2 * a[2]


def _rotated_sum(build: Builder, node: Node) -> Node | None:
    if any(o.op != "mul" for o in node.operands):
        return None
    for plain, turned in (node.operands, node.operands[::-1]):
        for rotated, sin in (turned.operands, turned.operands[::-1]):
            for find, interleaved in ((_rotate_halves, False), (_rotate_pairs, True)):
                found = find(rotated)
                if found is None:
                    continue
                for value, cos in (plain.operands, plain.operands[::-1]):
                    x, start, size, stride = _part(value)
                    whole = (value, 0, value.shape[-1])
                    if (x, start, size) != found and whole != found:
                        continue
                    if stride == 1 and value.shape == node.shape:
                        return _rotary(build, value, cos, sin, interleaved)
    return None


def _rotary(build: Builder, x: Node, cos: Node, sin: Node, interleaved: bool) -> Node | None:
    for table in (cos, sin):
        if table.shape[-1:] != x.shape[-1:] or x.shape[-1] % 2 or \
                broadcast_shapes(table.shape, x.shape) != x.shape:
            return None
    return build.make("rotary", [x, cos, sin], x.shape, x.dtype, interleaved=interleaved)


def _halves(build: Builder, node: Node) -> Node | None:
    """cat([a cos - b sin, b cos + a sin]) for the halves a, b of a value."""
    if node.attrs["dim"] != node.rank - 1 or len(node.operands) != 2:
        return None
    low, high = node.operands
    if low.op != "sub" or high.op != "add" or \
            any(o.op != "mul" for o in (*low.operands, *high.operands)):
        return None
    half = node.shape[-1] // 2
    for a, cos in _both(low.operands[0]):
        for b, sin in _both(low.operands[1]):
            for first, second in _both(high):
                if not _is_product(first, b, cos) or not _is_product(second, a, sin):
                    continue
                if a.shape != b.shape or a.shape != low.shape or a.shape[-1] != half or \
                        any(t.shape[-1:] != (half,) for t in (cos, sin)):
                    continue
                left, right = _part(a), _part(b)
                if left[0] is right[0] and left[1] + left[2] == right[1] and \
                        left[3] == right[3] == 1:
                    x = build.slice_dim(left[0], node.rank - 1, left[1], left[1] + 2 * half)
                else:
                    x = build.concat([a, b], node.rank - 1)
                tables = [build.concat([t, t], t.rank - 1) for t in (cos, sin)]
                return _rotary(build, x, *tables, False)
    return None


def _pairs(build: Builder, node: Node) -> Node | None:
    """stack([a cos - b sin, b cos + a sin], -1).flatten(-2) for the pairs (a, b) of a value, also where the
    reshape of the next op is one with that of `flatten`."""
    joined = node.operands[0]
    if joined.op != "concat" or joined.rank < 2 or joined.shape[-1] != 2 or len(joined.operands) != 2 or \
            joined.attrs["dim"] != joined.rank - 1:
        return None
    low, high = (o.operands[0] if o.op == "reshape" else o for o in joined.operands)
    half = joined.shape[-2]
    shape = (*joined.shape[:-2], 2 * half)
    if low.op != "sub" or high.op != "add" or low.shape != joined.shape[:-1] or \
            any(o.op != "mul" for o in (*low.operands, *high.operands)):
        return None
    for a, cos in _both(low.operands[0]):
        for b, sin in _both(low.operands[1]):
            for first, second in _both(high):
                if not _is_product(first, b, cos) or not _is_product(second, a, sin) or \
                        a.shape != low.shape or b.shape != low.shape or \
                        any(t.shape[-1:] != (half,) for t in (cos, sin)):
                    continue
                x = _interleaved(build, a, b, shape)
                tables = []
                for table in (cos, sin):
                    wide = build.broadcast(build.reshape(table, (*table.shape, 1)),
                                           (*table.shape, 2))
                    tables.append(build.reshape(wide, (*table.shape[:-1], 2 * half)))
                rotary = _rotary(build, x, *tables, True)
                return rotary and build.reshape(rotary, node.shape)
    return None


def _interleaved(build: Builder, a: Node, b: Node, shape) -> Node:
    """The value whose even features are a and whose odd ones are b."""
    left, right = (_last_slice(o.operands[0] if o.op == "reshape" else o) for o in (a, b))
    if left and right and left[0] is right[0] and right[1] == left[1] + 1:
        source = left[0]
        if left[2] == right[2] == 1 and left[1] == 0 and source.shape[-1] == 2 and \
                source.shape[:-1] == a.shape:
            return build.reshape(source, shape)
        if left[3] == right[3] == 2 and left[1] == 0 and source.shape == tuple(shape):
            return source
    return build.reshape(build.concat([build.reshape(o, (*o.shape, 1)) for o in (a, b)], a.rank),
                         shape)


def _both(node: Node):
    return (node.operands, node.operands[::-1])


def _is_product(node: Node, a: Node, b: Node) -> bool:
    return {id(o) for o in node.operands} == {id(a), id(b)}


def _partial(build: Builder, node: Node) -> Node | None:
    """cat([rotary(x[..., :r]), x[..., r:]]) is a rotary on part of x."""
    if node.attrs["dim"] != node.rank - 1 or len(node.operands) != 2:
        return None
    rotary, rest = node.operands
    if rotary.op != "rotary":
        return None
    head, tail = _part(rotary.operands[0]), _part(rest)
    if head[0] is not tail[0] or head[3] != 1 or tail[3] != 1 or tail[1] != head[1] + head[2]:
        return None
    whole = build.slice_dim(head[0], node.rank - 1, head[1], tail[1] + tail[2])
    return build.make("rotary", [whole, *rotary.operands[1:]], node.shape, node.dtype,
                      **rotary.attrs)
