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
