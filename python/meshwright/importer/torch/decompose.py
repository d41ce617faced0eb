# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Replaces operations without a handler by the operations that PyTorch composes them of."""
import contextlib

import torch
from torch._C import DispatchKey
from torch._decomp import decomposition_table
from torch._guards import detect_fake_mode
from torch.utils import _pytree as pytree

from .derivatives import rule_of, stated
from .functionalize import functional_graph
from .names import operation_name
from .regions import replace

#: Operations with a handler that PyTorch composes of others by itself, where gradients are on.
_WHOLE = (torch.ops.aten.multi_margin_loss.default,
          torch.ops.aten.multilabel_margin_loss_forward.default)


@contextlib.contextmanager
def kept_whole():
    """Within it, a trace keeps the operations of `_WHOLE`."""
    kernels = [(op, op.py_kernels.pop(DispatchKey.Autograd, None)) for op in _WHOLE]

    def forget():
        for op in _WHOLE:
            op._dispatch_cache.clear()

    forget()
    try:
        yield
    finally:
        for op, kernel in kernels:
            if kernel is not None:
                op.py_kernels[DispatchKey.Autograd] = kernel
        forget()


def _grid_sampler(x, grid, mode=0, padding=0, corners=False):
    """PyTorch's composition. Where the border pads the image, linear interpolation has no gradient
    at the border and beyond."""
    def inside(coordinates, size):
        # The place of PyTorch's composition, in elements.
        place = coordinates * ((size - 1) / 2 if corners else size / 2) + (size - 1) / 2
        beyond = (place <= 0) | (place >= size - 1)
        return torch.where(beyond, coordinates.detach(), coordinates)

    if padding == 1 and mode == 0:
        grid = torch.stack([inside(grid[..., n], x.shape[-1 - n]) for n in (0, 1)], -1)
    composition = decomposition_table[torch.ops.aten.grid_sampler_2d.default]
    return composition(x, grid, mode, padding, corners)


#: Compositions whose pieces have the derivative of the operation where PyTorch's have not.
_FOR_TRAINING = {torch.ops.aten.grid_sampler_2d.default: _grid_sampler}


def take_apart(graph: torch.fx.Graph, has_handler, training: bool):
    """Replaces each operation without a handler by the operations that PyTorch composes it of.

    `has_handler(operation, is_complex)` states whether the importer converts an operation itself.
    An operation without a decomposition stays, and is reported later. With `training`, a result
    keeps the derivative that its operation states.
    """
    values = [n.meta.get("val") for n in graph.nodes if n.op == "placeholder"]
    mode, table = detect_fake_mode(values), None
    for node in list(graph.nodes):
        if node.op == "call_function" and hasattr(node.target, "_schema") and \
                not has_handler(node.target, _is_complex(node)):
            table = table or {op: function for op, function in decomposition_table.items()
                              if not has_handler(_functional(op))} | (_FOR_TRAINING if training else {})
            inner, operands = _decomposed(node, mode, table, has_handler)
            if inner is not None:
                if training and rule_of(operation_name(node.target)):
                    _state_derivative(inner, node, operands)
                replace(graph, node, inner, operands)


def _functional(operation):
    """The operation that returns what an operation in place writes; another operation itself."""
    name = operation_name(operation)
    base, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, base[:-1], None) if base.endswith("_") and not base.startswith("_") else None
    return getattr(packet, overload, operation) if packet is not None else operation


def _state_derivative(inner, node, operands):
    """Gives the result of the parts of `node`, or the first one of several, its derivative."""
    output, placeholders = inner.output_node(), inner.find_nodes(op="placeholder")
    results, copies = output.args[0], dict(zip(operands, placeholders))
    result = results if isinstance(results, torch.fx.Node) else results[0]
    arguments = torch.fx.node.map_arg((node.args, node.kwargs), copies.__getitem__)
    with inner.inserting_before(output):
        copy = inner.call_function(stated, (result, node.target, *arguments))
    copy.meta.update(result.meta)
    output.args = (copy if result is results else (copy, *results[1:]),)


def _is_complex(node) -> bool:
    values = [node.meta.get("val"), *(n.meta.get("val") for n in node.all_input_nodes)]
    return any(isinstance(v, torch.Tensor) and v.dtype.is_complex for v in values)


def _decomposed(node, mode, table, has_handler):
    """Returns the graph of an operation's parts, and its operands: the graph's arguments. Returns
    (None, None) if PyTorch has no decomposition."""
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
            # With oneDNN a recurrent layer would be one operation of its own.
            with torch.backends.mkldnn.flags(enabled=False):
                inner = make_fx(run, decomposition_table=table)(*[n.meta["val"] for n in operands])
    except Exception:  # PyTorch raises exceptions of any type: the node stays, and is reported
        return None, None
    inner = inner.graph
    calls = [n for n in inner.nodes if n.op == "call_function"]
    if any(n.target is node.target for n in calls) or \
            any(n.op == "get_attr" for n in inner.nodes) or not functional_graph(inner):
        return None, None
    uncovered = _uncovered(inner, has_handler)
    if uncovered:
        node.meta["needs"] = uncovered[0]
        return None, None
    calls = [n for n in inner.nodes if n.op == "call_function"]
    for call in calls:
        call.meta.update({k: node.meta[k] for k in ("stack_trace", "nn_module_stack")
                          if k in node.meta})
    return inner, operands


def _uncovered(graph, has_handler) -> list[str]:
    """The operations that depend on an operand and cannot be read; others can be computed."""
    dependent, found = set(), []
    for node in graph.nodes:
        if node.op == "placeholder" or not dependent.isdisjoint(node.all_input_nodes):
            dependent.add(node)
            if node.op == "call_function" and not has_handler(node.target, _is_complex(node)):
                found.append(str(node.target))
    return found
