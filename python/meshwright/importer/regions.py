# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Puts other graphs in the place of operations of an exported graph."""
import operator

import torch
from torch._decomp import decomposition_table
from torch._guards import detect_fake_mode
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

_WRAPPERS = {"wrap_with_set_grad_enabled", "wrap_with_autocast"}


def inline_regions(module: torch.fx.GraphModule):
    """Puts the operations of a region (of torch.no_grad(), say) beside the others."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or getattr(node.target, "__name__", "") not in _WRAPPERS:
            continue
        at = next(i for i, a in enumerate(node.args)
                  if isinstance(a, torch.fx.Node) and a.op == "get_attr")
        inner = getattr(module, node.args[at].target)
        inline_regions(inner)
        region = node.args[at]
        _replace(graph, node, inner.graph, node.args[at + 1:])
        if not region.users:
            graph.erase_node(region)


def take_apart(graph: torch.fx.Graph, has_handler):
    """Puts what PyTorch composes an operation of in its place, where it has no handler."""
    values = [n.meta.get("val") for n in graph.nodes if n.op == "placeholder"]
    mode, table = detect_fake_mode(values), None
    for node in list(graph.nodes):
        if node.op == "call_function" and hasattr(node.target, "_schema") and \
                not has_handler(node.target, _is_complex(node)):
            table = table or {op: function for op, function in decomposition_table.items()
                              if not has_handler(op)}
            inner, operands = _decomposed(node, mode, table)
            if inner is not None:
                _replace(graph, node, inner, operands)


def _is_complex(node) -> bool:
    values = [node.meta.get("val"), *(n.meta.get("val") for n in node.all_input_nodes)]
    return any(isinstance(v, torch.Tensor) and v.dtype.is_complex for v in values)


def _decomposed(node, mode, table):
    """(graph, operands) of the parts of an operation; (None, None) if PyTorch has none."""
    from torch.fx.experimental.proxy_tensor import make_fx
    flat, spec = pytree.tree_flatten((node.args, node.kwargs))
    operands = [a for a in flat if isinstance(a, torch.fx.Node)]

    def run(*tensors):
        rest = iter(tensors)
        args, kwargs = pytree.tree_unflatten(
            [next(rest) if isinstance(a, torch.fx.Node) else a for a in flat], spec)
        return node.target(*args, **kwargs)

    try:
        with mode:
            inner = make_fx(torch.func.functionalize(run, remove="mutations"),
                            decomposition_table=table)(*[n.meta["val"] for n in operands]).graph
    except Exception:  # PyTorch raises exceptions of any type: the node stays, and is reported
        return None, None
    calls = [n for n in inner.nodes if n.op == "call_function"]
    if any(n.target is node.target for n in calls) or \
            any(n.op == "get_attr" for n in inner.nodes):
        return None, None
    for call in calls:
        call.meta.update({k: node.meta[k] for k in ("stack_trace", "nn_module_stack")
                          if k in node.meta})
    return inner, operands


def _replace(graph, node, inner, operands):
    """The operations of `inner`, whose arguments are `operands`, for a node."""
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
