# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Replaces operations that write to their operand by functions, if no other user sees the write.

    scores = matmul(q, k)                 scores = matmul(q, k)
    added = scores.add_(bias)        ->   added = scores.add(bias)
    softmax(scores)                       softmax(added)
"""
import torch

# Composed of others, but never of views alone.
_FRESH = {torch.ops.aten.linear.default, torch.ops.aten.matmul.default}


def remove_writes(graph: torch.fx.Graph):
    """Leaves those alone whose operand may be a view, or have one."""
    place = {node: i for i, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        function = _function_of(node)
        if function is None or not isinstance(node.args[0], torch.fx.Node) or \
                not _is_fresh(node.args[0]):
            continue
        written = node.args[0]
        others = [user for user in written.users if user is not node]
        if any(user.op == "output" or place[user] < place[node] and not _is_fresh(user)
               for user in others):
            continue
        node.target = function
        after = {user for user in others if place[user] > place[node]}
        written.replace_all_uses_with(node, delete_user_cb=after.__contains__)


def _function_of(node):
    """add.Tensor for add_.Tensor, on operands of one type; else none."""
    schema = getattr(node.target, "_schema", None) if node.op == "call_function" else None
    if schema is None or not schema.name.startswith("aten::") or not schema.name.endswith("_"):
        return None
    if [a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write] != ["self"]:
        return None
    values = [n.meta.get("val") for n in node.all_input_nodes]
    if not all(isinstance(v, torch.Tensor) for v in values) or len({v.dtype for v in values}) > 1:
        return None
    packet = getattr(torch.ops.aten, schema.name.removeprefix("aten::")[:-1], None)
    return getattr(packet, node.target._overloadname, None)


def _is_fresh(node) -> bool:
    """Whether the result has memory of its own."""
    schema = getattr(node.target, "_schema", None) if node.op == "call_function" else None
    if schema is None or any(value.alias_info for value in schema.returns):
        return False
    # A composite operation may return an operand itself, though its schema declares no alias.
    return node.target in _FRESH or not torch._C._dispatch_has_kernel_for_dispatch_key(
        node.target.name(), "CompositeImplicitAutograd")
