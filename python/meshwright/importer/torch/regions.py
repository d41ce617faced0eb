# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Regions of a graph: those of torch.no_grad() and of autocast, and the parts of operations."""
import operator

import torch

_WRAPPERS = {"wrap_with_set_grad_enabled", "wrap_with_autocast"}
#: In the meta of an operation from a region: whether gradients were on there.
GRADIENTS = "gradients"


def inline_regions(module: torch.fx.GraphModule):
    """Replaces each region, such as that of torch.no_grad(), by its operations."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or getattr(node.target, "__name__", "") not in _WRAPPERS:
            continue
        at = next(i for i, a in enumerate(node.args)
                  if isinstance(a, torch.fx.Node) and a.op == "get_attr")
        inner = getattr(module, node.args[at].target)
        inline_regions(inner)
        region = node.args[at]
        if node.target.__name__ == "wrap_with_set_grad_enabled":
            for operation in inner.graph.nodes:
                operation.meta.setdefault(GRADIENTS, bool(node.args[0]))
            if not node.args[0]:
                _detach_results(inner.graph)
        replace(graph, node, inner.graph, node.args[at + 1:])
        if not region.users:
            graph.erase_node(region)


def _detach_results(graph):
    """Ends the dependence of a loss on what the results of a region depend on."""
    output = graph.output_node()

    def detached(node):
        if not isinstance(node, torch.fx.Node) or node.op == "placeholder":
            return node
        # A function of autograd turns gradients on behind its forward without a trace. Within
        # torch.vmap only a region inside this one tells.
        if requires_gradient(node) or node.meta.get(GRADIENTS):
            return node
        with graph.inserting_before(output):
            copy = graph.call_function(torch.ops.aten.detach.default, (node,))
        copy.meta.update(node.meta)
        return copy

    output.args = (torch.fx.node.map_arg(output.args[0], detached),)


def requires_gradient(node) -> bool | None:
    """Whether the value required a gradient when it was traced; None where that is unknown."""
    recorded = node.meta.get("tensor_meta")
    return getattr(recorded, "requires_grad", None)


def replace(graph, node, inner, operands):
    """Replaces `node` by the operations of `inner`, whose placeholders become `operands`."""
    placeholders = [n for n in inner.nodes if n.op == "placeholder"]
    copies = dict(zip(placeholders, operands, strict=True))
    with graph.inserting_before(node):
        results = graph.graph_copy(inner, copies)
    if isinstance(results, torch.fx.Node):
        node.replace_all_uses_with(results)
    else:
        for user in list(node.users):
            if user.target is operator.getitem:
                user.replace_all_uses_with(results[user.args[1]])
                graph.erase_node(user)
    if not node.users:
        graph.erase_node(node)
