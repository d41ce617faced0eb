# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Small questions about nodes that the lifting patterns share."""

from .dialect import FLOATS
from .forms import Dense
from .nodes import Node


def constant_of(node: Node) -> float | None:
    """The value of a constant that is the same everywhere."""
    node = strip_casts(node)
    if node.op == "broadcast":
        return constant_of(node.operands[0])
    if node.op == "static" and isinstance(node.form, Dense) and node.form.uniform:
        return node.attrs.get("exact", node.form.values.item())
    return None


def strip_casts(node: Node) -> Node:
    """Past conversions between float types."""
    while node.op == "cast" and node.dtype in FLOATS and node.operands[0].dtype in FLOATS:
        node = node.operands[0]
    return node


def same(a: Node, b: Node) -> bool:
    return a is b


def scalar_operand(node: Node, op: str) -> tuple[Node, float] | None:
    """(x, c) of op(x, c), or of op(c, x) where op commutes."""
    if node.op != op:
        return None
    lhs, rhs = node.operands
    value = constant_of(rhs)
    if value is not None:
        return lhs, value
    if op in ("add", "mul"):
        value = constant_of(lhs)
        if value is not None:
            return rhs, value
    return None


def exact(node: Node) -> Node:
    """Past reshapes and conversions that change no small integer."""
    while (inner := _converted(node)) is not None:
        node = inner
    return node


def _converted(node: Node) -> Node | None:
    if node.op == "reshape" or node.op == "cast" and \
            not {node.dtype, node.operands[0].dtype} & {"i1", "bf16", "f16"}:
        return node.operands[0]
    return truncated(node)


def truncated(node: Node) -> Node | None:
    """x of the integer between x and 0 that is next to x, as conversions to integers compute it."""
    if node.op != "select" or node.dtype not in FLOATS or node.operands[1].op != "neg":
        return None
    negative, _, down = node.operands
    x = negative.operands[0] if negative.op == "compare" and negative.attrs["kind"] == "lt" else None
    is_size = down.op == "floor" and down.operands[0].op == "abs" and down.operands[0].operands[0] is x
    return x if is_size and constant_of(negative.operands[1]) == 0 and \
        node.operands[1].operands[0] is down else None


def strip(node: Node) -> Node:
    """Past reshapes and conversions of integers."""
    whole = node
    while (inner := _converted(node)) is not None:
        node = inner
        if node.dtype not in FLOATS:
            whole = node
    return whole


def is_natural(node: Node) -> bool:
    """Whether integers are known to be no less than zero: positions."""
    return node.dtype not in FLOATS and strip(node).op in ("top_k", "iota")
