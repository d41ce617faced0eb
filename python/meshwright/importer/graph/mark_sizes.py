# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""States which elements of a value are padding, where its operands do not tell.

    %0 = iota                               %0 = iota
    %1 = reduce sum %0 over [0]      ->     %1 = cut %0 sizes ["tokens"]
                                            %2 = reduce sum %1 over [0]

An input of the program states its sizes. A value that is computed from it has them, too. Constants,
positions, broadcasts and slices of tables have the bucket's size and no operand that has the call's.
Where they only meet a value that has it, elementwise, they need no mark.
"""
from .dialect import POINTWISE
from .nodes import Builder, Graph, Node
from .sizes import Size, dynamic_dims

_MOVES = ("reshape", "transpose", "broadcast", "slice", "concat", "gather", "embedding")
#: They read a part of their operand, at places that padding may have, too.
_READS = ("slice", "gather", "take_along", "embedding")


def mark_sizes(graph: Graph, training: bool):
    """Inserts a `cut` before each user that reads over a dimension whose size it cannot know. With
    `training` slices and elements by index have one at once: their derivatives take nothing of what
    is behind it."""
    marks, build, unknown = {}, Builder(), {}

    def marked(x: Node) -> Node:
        if not unknown.get(id(x)):
            return x
        if id(x) not in marks:
            marks[id(x)] = x, _cut(build.at(x), x)
        return marks[id(x)][1]

    for node in graph.nodes():
        if training:
            node.operands = [marked(o) if o.op in _READS else o for o in node.operands]
        dims = set(dynamic_dims(node.shape))
        if node.op in ("input", "cut", "size"):
            continue
        if node.op in POINTWISE:
            unknown[id(node)] = _unknown_to_all(node, dims, unknown)
        elif node.op in _MOVES:
            unknown[id(node)] = dims and _unknown_after(node, dims, unknown)
        else:
            if not _ties(node, unknown):
                node.operands = [marked(o) for o in node.operands]
            unknown[id(node)] = _untold(node, dims, unknown)


def _cut(build: Builder, x: Node) -> Node:
    """The value with its sizes. A merged size has no name: its parts have."""
    apart = [p for n in x.shape for p in (n.parts if isinstance(n, Size) else (n,))]
    inner = build.reshape(x, apart)
    return build.reshape(build.make("cut", [inner], inner.shape, x.dtype), x.shape)


def _unknown_to_all(node: Node, dims, unknown):
    """Of an elementwise operation: the dimensions of which no operand tells the size."""
    return {d for d in dims if not any(_tells(o, d - node.rank + o.rank, unknown) for o in node.operands)}


def _tells(x: Node, dim: int, unknown) -> bool:
    return dim >= 0 and isinstance(x.shape[dim], Size) and dim not in unknown.get(id(x), ())


def _untold(node: Node, dims, unknown):
    """The dimensions of which the size is in no operand."""
    told = {p.name for o in node.operands for d in range(o.rank) if _tells(o, d, unknown)
            for p in o.shape[d].parts if isinstance(p, Size)}
    return {d for d in dims if any(isinstance(p, Size) and p.name not in told for p in node.shape[d].parts)}


def _unknown_after(node: Node, dims, unknown):
    """Of an operation that moves elements: the dimensions that begin with it, or stay unknown."""
    x, *_ = node.operands
    if node.op == "broadcast":
        return {d for d in dims if not _tells(x, d - node.rank + x.rank, unknown)}
    if node.op == "slice":
        return {d for d in dims if not _tells(x, d, unknown) or x.shape[d].expr != node.shape[d].expr}
    if node.op == "transpose":
        return {d for d in dims if not _tells(x, node.attrs["permutation"][d], unknown)}
    if node.op == "concat":
        return {d for d in dims if d == node.attrs["dim"] or not any(_tells(o, d, unknown) for o in node.operands)}
    if node.op in ("gather", "embedding"):
        return _unknown_by_index(node, dims, unknown)
    names = {p.name for d in unknown.get(id(x), ()) for p in x.shape[d].parts if isinstance(p, Size)}
    return {d for d in dims if any(isinstance(p, Size) and p.name in names for p in node.shape[d].parts)} | \
        _untold(node, dims, unknown)


def _unknown_by_index(node: Node, dims, unknown):
    """Of elements by index: where the indices, or the other dimensions of the data, do not tell."""
    ids, data = node.operands if node.op == "embedding" else reversed(node.operands)
    at = node.attrs.get("dim", 0)
    result = set()
    for d in dims:
        x, own = (data, d) if d < at else (ids, d - at) if d < at + ids.rank else (data, d - ids.rank + 1)
        if not _tells(x, own, unknown):
            result.add(d)
    return result


def _ties(node: Node, unknown) -> bool:
    """Whether each operand that does not tell its sizes meets another one that does."""
    if node.op == "rotary":
        x, *tables = node.operands
        return not unknown.get(id(x)) and all(_tells(x, d - t.rank + x.rank, unknown)
                                              for t in tables for d in unknown.get(id(t), ()))
    if node.op == "attention":
        return not any(unknown.get(id(x)) for x in node.operands[:3])
    return not any(unknown.get(id(o)) for o in node.operands)
