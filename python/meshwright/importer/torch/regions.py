# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Regions of a graph: those of torch.no_grad() and of autocast, and the parts of operations."""
import contextlib
import operator

import torch
from torch.fx.node import map_arg
from torch.utils._python_dispatch import TorchDispatchMode

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
        # Regions within have their own types.
        if node.target.__name__ == "wrap_with_autocast":
            _write_casts(inner.graph, *node.args[:3])
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


class _CastLog(TorchDispatchMode):
    """Notes the operands that an operation casts before all else, as autocast lets it."""

    def __init__(self, operands):
        super().__init__()
        self.operands = {id(value) for value in operands}
        self.types = {}

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation is torch.ops.aten._to_copy.default and id(args[0]) in self.operands:
            self.types[id(args[0])] = kwargs.get("dtype")
        elif operation.namespace != "prim":
            self.operands = set()
        return operation(*args, **kwargs or {})


def _write_casts(graph, device, dtype, enabled):
    """Writes the casts of a region of autocast, which its operations do without a trace."""
    casts = {}
    for node in list(graph.nodes):
        operands = {n: n.meta["val"] for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)}
        if not isinstance(node.target, torch._ops.OpOverload) or \
                not any(v.device.type == device for v in operands.values()):
            continue
        args, kwargs = map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
        log = _CastLog(operands.values())
        with contextlib.suppress(Exception), torch.no_grad(), \
                torch.autocast(device, dtype, enabled, cache_enabled=False), log:
            node.target(*args, **kwargs)

        def cast(operand, node=node, log=log):
            kind = log.types.get(id(operand.meta.get("val")))
            if kind is None or kind == operand.meta["val"].dtype:
                return operand
            if (operand, kind) not in casts:
                with graph.inserting_before(node):
                    copy = graph.call_function(torch.ops.aten.to.dtype, (operand, kind))
                copy.meta.update(node.meta)
                copy.meta["val"] = operand.meta["val"].to(kind)
                casts[operand, kind] = copy
            return casts[operand, kind]

        node.args, node.kwargs = map_arg(node.args, cast), map_arg(node.kwargs, cast)


def _detach_results(graph):
    """Ends the dependence of a loss on what the results of a region depend on."""
    output = graph.output_node()

    def detached(node):
        if not isinstance(node, torch.fx.Node) or node.op == "placeholder" or \
                isinstance(node.meta.get("val"), torch.SymInt):
            return node
        # A function of autograd turns gradients on behind its forward without a trace. Within
        # torch.vmap only a region inside this one tells.
        if requires_gradient(node) or node.meta.get(GRADIENTS):
            return node
        with graph.inserting_before(output):
            copy = graph.call_function(torch.ops.aten.detach.default, (node,))
        copy.meta.update(node.meta)
        return copy

    output.args = (map_arg(output.args[0], detached),)


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
