# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The first value of a program that PyTorch does not compute.

    1. The module runs once more in PyTorch. Each result of an operation leaves some numbers behind:
       its products with fixed vectors of random numbers.
    2. The program runs with all values before a wrong output as outputs, some at a time. A value is
       known if it has the numbers of one of PyTorch's, in some order of its dimensions. The program
       and PyTorch need not have the same operations.
    3. From the wrong output the search goes back through values that are not known. The first one
       whose operands are all known is the answer.
"""

import itertools
import math
import warnings

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .. import _core
from ..errors import Diagnostic, Error, unwrap
from ..importer.graph.emit import emit
from ..importer.graph.nodes import Graph
from ..model import Model
from .sessions import session_of

_LEAVES = ("input", "parameter", "state", "constant")
#: The bytes of values that a run of the program gives at once.
_AT_ONCE = 256 << 20
#: Tensors of more elements are compared in one order of dimensions.
_ALL_ORDERS = 1 << 20


def place_of_output(source, name):
    """The file and line of the operation that computes an output."""
    if name not in source.outputs:
        return None, None
    return _place(source.graph.outputs[source.outputs.index(name)])


def last_uses(source) -> dict[str, tuple]:
    """The file and line of the last operation that reads a parameter, for each one, in the order in
    which the backward pass comes to them."""
    found = {}
    for node in reversed(source.graph.nodes()):
        for operand in node.operands:
            if operand.op in ("parameter", "state"):
                found.setdefault(operand.attrs["key"], _place(node))
    return found


def _place(node):
    loc = node.loc
    return (loc.file, loc.line) if loc and loc.file else (None, None)


class _Numbers(TorchDispatchMode):
    """The products of all values that PyTorch computes, by their count of elements."""

    def __init__(self):
        super().__init__()
        self.known: dict[int, list[tuple[torch.Tensor, float]]] = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else [result]:
            self.add(value)
        return result

    def add(self, value):
        if isinstance(value, torch.Tensor) and value.numel() and not value.is_complex():
            products = _products(value.detach().double().reshape(-1))
            self.known.setdefault(value.numel(), []).append(products)

    def has(self, value, tolerance) -> bool:
        """True if the value is one of PyTorch's."""
        candidates = self.known.get(value.numel(), ())
        if not candidates:
            return False
        orders = [None]
        if value.dim() <= 4 and value.numel() <= _ALL_ORDERS:
            orders = itertools.permutations(range(value.dim()))
        for order in orders:
            moved = value if order is None else value.permute(order)
            products, size = _products(moved.reshape(-1))
            slack = tolerance * math.sqrt(value.numel())
            for other, most in candidates:
                if float((products - other).abs().max()) <= slack * max(size, most):
                    return True
        return False


def _products(flat):
    """Products with random numbers, and the largest entry."""
    flat = flat.nan_to_num(1e30, 1e31, -1e31)
    generator = torch.Generator().manual_seed(flat.numel())
    factors = torch.randn(4, flat.numel(), generator=generator, dtype=torch.float64, device="cpu")
    return factors @ flat, float(flat.abs().max())


def first_difference(check, values, output, tolerance) -> Diagnostic | None:
    """The first value, in the order of the program, through which output number `output` differs
    from PyTorch's. Values that are off by `tolerance` count as equal. None if it is not found."""
    source = check.source
    numbers = _Numbers()
    with numbers:
        check.reference().outputs(values)
    wrong = source.graph.outputs[output]
    nodes = [n for n in _ancestors(wrong, source.graph.nodes()) if n.op not in _LEAVES]
    try:
        known = _known(source, nodes, values, numbers, tolerance)
    except Error:  # too large a program, or an operation whose result cannot be an output
        return None
    first = _first_unknown(wrong, nodes, known)
    if first is None or _place(first) == (None, None):
        return None
    name = source.outputs[output]
    return Diagnostic(
        f"output '{name}' differs from PyTorch's; the first value that differs, in program order, is "
        f"the result of nn.{first.op}", "error", *_place(first))


def _ancestors(node, order):
    wanted = {id(node)}
    for other in reversed(order):
        if id(other) in wanted:
            wanted.update(id(o) for o in other.operands)
    return [other for other in order if id(other) in wanted]


def _known(source, nodes, values, numbers, tolerance):
    """The ids of the nodes whose values PyTorch computes, too."""
    known, part, size = set(), [], 0
    for i, node in enumerate(nodes):
        part.append(node)
        size += 8 * math.prod(node.shape)
        if size < _AT_ONCE and i + 1 < len(nodes):
            continue
        with session_of(_model(source, part)) as session:
            found = session.run(**values)
        for value_of, value in zip(part, found, strict=True):
            if numbers.has(value.double(), tolerance):
                known.add(id(value_of))
        part, size = [], 0
    return known


def _model(source, nodes):
    """The program with these values as its outputs."""
    graph = source.graph
    names = [f"value.{i}" for i in range(len(nodes))]
    text = emit(Graph(inputs=graph.inputs, parameters=graph.parameters, states=graph.states,
                      outputs=nodes, output_names=names))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = unwrap(_core.Program.parse(text, "<check>"))
    ports = {port.name for port in [*program.parameters, *program.states]}
    return Model(program, {k: v for k, v in source.parameters.items() if k in ports})


def _first_unknown(wrong, nodes, known):
    """The first node on the way to the wrong one that is not known, and whose operands are. Values
    that depend on no input are left out: PyTorch may have computed them in another way."""
    varies = set()
    for node in nodes:
        if any(o.op in ("input", "state") or id(o) in varies for o in node.operands):
            varies.add(id(node))
    region, stack = set(), [wrong]
    while stack:
        node = stack.pop()
        if id(node) in region or (id(node) in known and node is not wrong) or node.op in _LEAVES:
            continue
        if id(node) not in varies and node is not wrong:
            continue
        region.add(id(node))
        stack.extend(node.operands)
    for node in nodes:
        if id(node) in region and not any(id(o) in region for o in node.operands):
            return node
    return None
