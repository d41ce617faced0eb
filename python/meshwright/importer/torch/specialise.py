# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Shapes and numbers that depend on values, where the values are constants.

    i = nonzero(mask)      # [u0, 1], where mask is a constant: [3, 1]
    n = sym_size(i, 0)     # u0: 3
    y = x[:, flatten(i)]   # [2, u0]: [2, 3]

torch.export gives such shapes names. This computes what depends on constants alone, replaces rows
that are split and joined again (pieces.py), and infers the other shapes again.
"""
import torch
from torch._guards import detect_fake_mode
from torch.fx.node import map_arg

from .dynamic import is_known
from .pieces import Pieces, is_join

_aten = torch.ops.aten
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_ASSERTIONS = {"_assert_scalar", "_assert_async", "sym_constrain_range_for_size",
               "sym_constrain_range"}
# Larger values are not computed at import.
_LARGEST = 1 << 22


def is_symbolic(value) -> bool:
    """Whether a value is a number that is not known, or has such a shape. Sizes of the inputs that
    change from call to call are known, as far as an import goes."""
    if isinstance(value, torch.Tensor):
        return any(map(is_symbolic, value.shape))
    if isinstance(value, (list, tuple)):
        return any(map(is_symbolic, value))
    return isinstance(value, _SYMBOLS) and not is_known(value)


def has_varying_shape(target) -> bool:
    """Whether the result of an operation may have a shape, or be a number, that depends on values."""
    tags = getattr(target, "tags", ())
    return target is _aten.where.default or torch.Tag.dynamic_output_shape in tags or \
        torch.Tag.data_dependent_output in tags


def has_symbols(graph: torch.fx.Graph) -> bool:
    return any(is_symbolic(n.meta.get("val")) for n in graph.nodes)


def specialise(graph: torch.fx.Graph, constants: dict[str, torch.Tensor]) -> bool:
    """Computes the values that depend on `constants` alone, and the shapes that depend on these.

    `constants` are tensors by the names of placeholders. A node with a known value gets it as
    `meta["constant"]`. Returns whether anything has changed.
    """
    return has_symbols(graph) and _Specialise(graph, constants).run()


class _Unknown(Exception):
    pass


class _Specialise:
    def __init__(self, graph, constants):
        self.graph, self.constants = graph, constants
        self.known: dict = {}
        self.mode = detect_fake_mode([n.meta.get("val") for n in graph.nodes
                                      if n.op == "placeholder"])
        self.pieces = Pieces(graph, self.mode, is_symbolic)

    def run(self) -> bool:
        numbers, changed = {}, set()
        for node in list(self.graph.nodes):
            node.args, node.kwargs = map_arg((node.args, node.kwargs),
                                             lambda n: numbers.get(n, n))
            if node.op != "call_function":
                continue
            symbolic = is_symbolic(node.meta.get("val"))
            if symbolic and node.target is _aten.masked_select.default and \
                    node.args[0].meta["val"].shape == node.args[1].meta["val"].shape:
                node.target, node.args = _aten.index.Tensor, (node.args[0], [node.args[1]])
            if symbolic and node.target is _aten.index.Tensor:
                self._number_masks(node)
            elif symbolic and node.target is _aten.repeat_interleave.self_Tensor:
                self._number_repeats(node)
            if _base(node) in _ASSERTIONS and not node.all_input_nodes:
                self.graph.erase_node(node)
            elif symbolic and self._is_known(node):
                value = self.known[node]
                if isinstance(value, torch.Tensor):
                    self._set(node, value)
                    changed.add(node)
                elif isinstance(value, (int, float)):
                    numbers[node] = value
            elif symbolic and (number := _number(node.meta["val"])) is not None:
                numbers[node] = number
            elif symbolic and is_join(node) and \
                    any(is_symbolic(n.meta.get("val")) for n in node.all_input_nodes):
                whole = self.pieces.joined(node)
                if whole is not None:
                    node.replace_all_uses_with(whole)
                    changed.add(whole)
                    numbers.update(self.pieces.numbers())
            elif symbolic or changed.intersection(node.all_input_nodes):
                if self._infer(node):
                    changed.add(node)
                    if isinstance(node.meta["val"], (int, float)):  # the size of a dimension
                        numbers[node] = node.meta["val"]
        for node in reversed(numbers):
            if not node.users:
                self.graph.erase_node(node)
        return bool(numbers or changed)

    def _set(self, node, value: torch.Tensor):
        node.meta["constant"] = value
        with self.mode:
            node.meta["val"] = torch.empty(value.shape, dtype=value.dtype)

    def _number_masks(self, node):
        """Replaces a known mask in x[mask] by the positions at which it is true."""
        indices = []
        for index in node.args[1]:
            if index is None or index.meta["val"].dtype != torch.bool or not self._is_known(index):
                indices.append(index)
                continue
            for positions in torch.nonzero(self.known[index], as_tuple=True):
                with self.graph.inserting_before(node):
                    indices.append(self.graph.call_function(_aten.clone.default, (index,)))
                self._set(indices[-1], positions)
        node.args = (node.args[0], indices)

    def _number_repeats(self, node):
        """Each row as often as a number, which is known, says: rows by index."""
        x, repeats, dim, *_ = *node.args, *([None] * (3 - len(node.args)))
        dim = node.kwargs.get("dim", dim)
        if not self._is_known(repeats):
            return
        with self.graph.inserting_before(node):
            if dim is None:
                dim, flat = 0, self.graph.call_function(_aten.flatten.using_ints, (x,))
                with self.mode:
                    flat.meta["val"] = x.meta["val"].flatten()
                x = flat
            rows = x.meta["val"].shape[dim]
            index = self.graph.call_function(_aten.clone.default, (repeats,))
        self._set(index, torch.repeat_interleave(self.known[repeats].expand(rows)))
        node.target, node.args, node.kwargs = _aten.index_select.default, (x, dim, index), {}

    def _infer(self, node) -> bool:
        values = [n.meta.get("val") for n in node.all_input_nodes]
        if any(v is None or is_symbolic(v) for v in values):
            return False
        args, kwargs = map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        with self.mode:
            node.meta["val"] = node.target(*args, **kwargs)
        return True

    def _is_known(self, node) -> bool:
        try:
            self._value(node)
        except (_Unknown, RecursionError):
            return False
        return True

    def _value(self, node):
        if node not in self.known:
            if node.op == "placeholder" and node.name in self.constants:
                self.known[node] = self.constants[node.name]
            elif node.op != "call_function" or not _is_pure(node):
                raise _Unknown
            else:
                args, kwargs = map_arg((node.args, node.kwargs), self._value)
                size = node.meta.get("val")
                if isinstance(size, torch.Tensor) and not is_symbolic(size) and \
                        size.numel() > _LARGEST:
                    raise _Unknown
                self.known[node] = node.target(*args, **kwargs)
        return self.known[node]


def _number(value) -> int | None:
    """The only integer that a shape of the module leaves for a value: a single part has all rows."""
    expression = value.node.expr if isinstance(value, torch.SymInt) else None
    return int(expression) if expression is not None and expression.is_Integer else None


def _base(node) -> str:
    schema = getattr(node.target, "_schema", None)
    return schema.name.removeprefix("aten::") if schema else ""


def _is_pure(node) -> bool:
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return getattr(node.target, "__module__", "") in ("_operator", "math")
    return not schema.is_mutable and torch.Tag.nondeterministic_seeded not in node.target.tags
