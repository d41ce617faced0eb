# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Rows that are split by numbers that are data, and joined again in their order.

    parts = x.split(counts.tolist())                      # [u0, 8], [u1, 8], where x is [9, 8]
    y = cat([linear(p, w) for p, w in zip(parts, ws)])    # [u0 + u1, 6]

PyTorch checks that the numbers count all rows. So the parts are the rows of x, and y has as many:

    y = grouped_product(x, stack(ws).transpose(1, 2), counts)    # [9, 6]

This holds if the parts go through the same functions, each of which sees a row alone. Weights and
other values of fixed shape may be a part's own.
"""
import functools
import operator
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from .functionalize import possible_roots, written_arguments
from .names import operation_name

_aten = torch.ops.aten

#: Functions of elements that PyTorch does not tag as such.
_ELEMENTWISE = {"to", "_to_copy", "type_as", "clone", "contiguous", "alias", "detach"}
#: Functions of the elements along dimensions that an argument names.
_ALONG = {"softmax", "_softmax", "log_softmax", "_log_softmax", "chunk", "split", "split_with_sizes",
          "narrow", "slice", "select", "unbind", "unsqueeze", "squeeze", "sum", "mean", "amax", "amin",
          "glu", "cat"}
_DIMENSIONS = ("dim", "dims")
_ITEMS = ("item", "_local_scalar_dense")
_VIEWS = {"t", "numpy_T", "mT", "transpose", "permute"}


def grouped_product(rows: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """In a graph of ATen operations: the first rows times the first matrix, as many as the first
    number says, the next ones times the next, and so on. The numbers count all rows."""
    parts = zip(rows.split(counts.tolist()), weight, strict=True)
    return torch.cat([part @ matrix for part, matrix in parts])


class NotPieces(Exception):
    """The reason why values are no parts of one."""


class Whole(NamedTuple):
    """One value for several, one of each part. Of `kind` "rows" it joins them, of "each" it stacks
    them, and of "shared" it is each of them."""
    kind: str
    node: torch.fx.Node


def base_name(node) -> str:
    """cat for aten.cat.default."""
    is_aten = isinstance(node, torch.fx.Node) and hasattr(node.target, "_schema")
    return operation_name(node.target).split(".")[0] if is_aten else ""


def is_join(node) -> bool:
    return base_name(node) in ("cat", "concat", "concatenate")


class Pieces:
    """The values of a graph of which parts are joined."""

    def __init__(self, graph: torch.fx.Graph, mode, is_symbolic: Callable[[Any], bool]):
        self.graph, self.mode = graph, mode
        self.is_symbolic = lambda node: is_symbolic(node.meta.get("val"))
        self._numbers: dict[tuple, torch.fx.Node] = {}
        self._owners: dict[torch.fx.Node, torch.fx.Node] = {}
        self._places = {node: place for place, node in enumerate(graph.nodes)}
        self._writes = [(node, written) for node in graph.nodes if (written := written_arguments(node))]
        self._roots = possible_roots(graph) if self._writes else {}
        #: Of which numbers of rows the run checks that they count all.
        self._checked: set[torch.fx.Node] = set()
        self._start()

    def _start(self):
        """Forgets about other values that are joined."""
        self._known: dict[tuple, Whole] = {}
        #: Where the parts are joined, some values are read there and others are computed again.
        self._read: set[torch.fx.Node] = set()
        self._repeated: set[torch.fx.Node] = set()
        #: The numbers of rows of the parts, the terms of their sum, and the sum: that of all rows.
        self._counts: torch.fx.Node | None = None
        self._terms: Counter = Counter()
        self._size = 0

    def joined(self, cat: torch.fx.Node) -> torch.fx.Node | None:
        """The value that a concatenation makes of the parts of another one. Where there is none, the
        numbers by which it is split are told why, as `meta["declined"]`."""
        nodes = tuple(cat.args[0])
        dim = cat.args[1] if len(cat.args) > 1 else cat.kwargs.get("dim", 0)
        if dim % nodes[0].meta["val"].dim():  # the features of a part
            return None
        self._start()
        try:
            with self.graph.inserting_before(cat):
                whole = self._whole(nodes)
            if whole.kind != "rows":
                raise NotPieces("what is joined has rows of other numbers")
            if self._counts not in self._checked:
                raise NotPieces("the parts have no values of their own")
            self._check_writes(cat)
            return whole.node
        except NotPieces as why:
            self._decline(cat, str(why))
        return None

    def numbers(self) -> dict[torch.fx.Node, int]:
        """The sums of the graph that are the number of rows joined last."""
        return {n: self._size for n, total in self._sums.items() if total == self._terms}

    @functools.cached_property
    def _sums(self) -> dict[torch.fx.Node, Counter]:
        return {n: _total([n]) for n in self._places if n.target is operator.add}

    def _check_writes(self, cat):
        """Refuses a write to what is read later than in the module."""
        first = min(self._places[n] for n in self._repeated if n in self._places)
        roots = {self._roots.get(n) for n in self._read}
        for node, written in self._writes:
            if first < self._places[node] < self._places[cat] and \
                    not roots.isdisjoint(self._roots.get(w) for w in written):
                raise NotPieces("a write in place changes what they are computed from")

    def _decline(self, node, why: str):
        stack, seen = [node], set()
        while stack:
            x = stack.pop()
            if x in seen or not self.is_symbolic(x) and x is not node:
                continue
            seen.add(x)
            x.meta.setdefault("declined", why)
            stack += x.all_input_nodes

    # Values of parts.

    def _whole(self, nodes: tuple) -> Whole:
        self._read.update(nodes)
        self._repeated.update(filter(self.is_symbolic, nodes))
        if nodes not in self._known:
            found = self._known[nodes] = self._computed(nodes)
            value, like = found.node.meta["val"], nodes[0].meta["val"]
            if found.kind == "rows" and isinstance(like, torch.Tensor) and \
                    (value.dtype, value.shape[1:]) != (like.dtype, like.shape[1:]):
                raise NotPieces(f"{base_name(nodes[0])} gives another type where the parts are joined")
        return self._known[nodes]

    def _computed(self, nodes) -> Whole:
        first = nodes[0]
        if len(nodes) > 1 and all(n is first for n in nodes):
            if self.is_symbolic(first):
                raise NotPieces("a part is joined more than once")
            return Whole("shared", first)
        if not any(map(self.is_symbolic, nodes)):
            if any(self.is_symbolic(x) for n in nodes for x in n.all_input_nodes):
                raise NotPieces(_refusal(first))
            return Whole("each", self._stacked(nodes))
        if not isinstance(first.meta["val"], (torch.Tensor, list, tuple)):
            raise NotPieces("the numbers of rows are used as numbers")
        rows = self._split(nodes)
        if rows is not None:
            return Whole("rows", rows)
        if any(n.op != "call_function" or n.target is not first.target for n in nodes):
            raise NotPieces("the parts go through different functions")
        args, kwargs = self._operands(nodes)
        if first.target is operator.getitem:
            return Whole("rows", self._call(first, operator.getitem, args[0].node, args[1]))
        name = base_name(first)
        if name in ("linear", "mm", "matmul", "addmm"):
            return Whole("rows", self._product(first, name, args, kwargs))
        if self._is_elementwise(first, name):
            rank = first.meta["val"].dim()
            align = lambda x: self._aligned(first, x, rank) if isinstance(x, Whole) else x
        elif name in _ALONG or name in ("layer_norm", "rms_norm"):
            self._check_rows(first, name)
            align = lambda x: self._without_own(first, x) if isinstance(x, Whole) else x
        else:
            raise NotPieces(_refusal(first))
        args, kwargs = pytree.tree_map(align, (args, kwargs), is_leaf=lambda x: isinstance(x, Whole))
        return Whole("rows", self._call(first, first.target, *args, **kwargs))

    def _operands(self, nodes):
        """The arguments, with a `Whole` for each of them that is a value."""
        flat, specs = zip(*(pytree.tree_flatten((n.args, n.kwargs)) for n in nodes))
        if any(spec != specs[0] for spec in specs):
            raise NotPieces("the parts go through different functions")
        leaves = []
        for values in zip(*flat):
            if isinstance(values[0], torch.fx.Node):
                if not all(isinstance(v, torch.fx.Node) for v in values):
                    raise NotPieces("the parts go through different functions")
                leaves.append(self._whole(values))
            elif all(type(v) is type(values[0]) and v == values[0] for v in values):
                leaves.append(values[0])
            else:
                raise NotPieces("the parts go through functions with different numbers")
        return pytree.tree_unflatten(leaves, specs[0])

    @staticmethod
    def _is_elementwise(node, name) -> bool:
        if not name or node.target._schema.is_mutable:
            return False
        tags = node.target.tags
        return name in _ELEMENTWISE or name == "dropout" and not (node.args[1] and node.args[2]) or \
            torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags

    def _aligned(self, like, x: Whole, rank: int):
        """An operand of a function of elements whose result has a rank."""
        value = x.node.meta["val"]
        if x.kind == "rows":
            if value.dim() != rank:
                raise NotPieces("a function of the parts has another dimension for rows")
            return x.node
        own = value.shape[1:] if x.kind == "each" else value.shape
        if len(own) == rank and own[0] != 1:
            raise NotPieces("a function of the parts has rows of other numbers")
        if x.kind == "shared":
            return x.node
        own = (1,) * (rank - 1 - len(own)) + tuple(own[len(own) == rank:])
        node = self._call(like, _aten.reshape.default, x.node, [value.shape[0], *own])
        return self._call(like, _aten.index_select.default, node, 0, self._owner(like))

    @staticmethod
    def _without_own(node, x: Whole):
        if x.kind == "each":
            raise NotPieces(f"{node.target} has other values for each part")
        return x.node

    @staticmethod
    def _check_rows(node, name):
        """Refuses a function along the dimension of rows."""
        rank = node.all_input_nodes[0].meta["val"].dim() + (name == "unsqueeze")
        arguments = node.target._schema.arguments
        given = {a.name: a.default_value for a in arguments if a.has_default_value()}
        given |= dict(zip((a.name for a in arguments), node.args), **node.kwargs)
        if name in ("layer_norm", "rms_norm"):
            alone = len(given["normalized_shape"]) < rank
        else:
            dims = next((given.get(d) for d in _DIMENSIONS if given.get(d) is not None), 0)
            dims = dims if isinstance(dims, (list, tuple)) else [dims]
            alone = bool(dims) and all(d % rank for d in dims)
        if not alone:
            raise NotPieces(f"{node.target} mixes rows")

    def _product(self, node, name, args, kwargs):
        """A product of rows and a matrix, which may be the part's own."""
        if name == "addmm":
            (bias, rows, matrix), is_plain = args[:3], len(args) == 3 and not kwargs
        else:
            (rows, matrix), bias = args[:2], args[2] if len(args) > 2 else kwargs.get("bias")
            is_plain = True
        value = rows.node.meta["val"]
        if rows.kind != "rows" or matrix.kind == "rows" or value.dim() != 2 or not is_plain or \
                matrix.node.meta["val"].dim() != 2 + (matrix.kind == "each"):
            raise NotPieces(f"{node.target} may mix rows")
        if matrix.kind == "shared":
            if name == "linear":
                result = self._call(node, _aten.linear.default, rows.node, matrix.node)
            else:
                result = self._call(node, _aten.mm.default, rows.node, matrix.node)
        else:
            weight = matrix.node
            if name == "linear":
                weight = self._call(node, _aten.transpose.int, weight, 1, 2)
            with self.mode:
                like = value.new_empty(value.shape[0], weight.meta["val"].shape[2])
            result = self._made(node, grouped_product, (rows.node, weight, self._counts), {}, like)
            self._checked.add(self._counts)
        if bias is not None:
            bias = self._aligned(node, bias, 2)
            result = self._call(node, _aten.add.Tensor, result, bias)
        return result

    # The parts themselves.

    def _split(self, nodes) -> torch.fx.Node | None:
        """The value whose parts, all in their order, are `nodes`."""
        parts = [_part(n) for n in nodes]
        if any(p is None for p in parts):
            return None
        rows, end = parts[0].rows, Counter()
        if any(p.rows is not rows or p.parts not in (None, len(nodes)) for p in parts):
            raise NotPieces("they are not all parts of one value")
        for part in parts:
            if part.start != end:
                raise NotPieces("the parts are joined in another order")
            end = part.end
        if self.is_symbolic(rows):
            raise NotPieces("the number of rows that are split depends on values")
        sizes = [_without(p.end, p.start) for p in parts]
        counts, size = self._counted(sizes), rows.meta["val"].shape[0]
        if self._counts is not None and (counts is not self._counts or size != self._size):
            raise NotPieces("the parts are split by several lists of numbers")
        self._counts, self._size, self._terms = counts, size, end
        self._read.add(rows)
        return rows

    def _counted(self, sizes: list[Counter]) -> torch.fx.Node:
        """A tensor of the numbers of rows."""
        if any(list(size.values()) != [1] or base_name(*size) not in _ITEMS for size in sizes):
            raise NotPieces("a number of rows is no element of a tensor")
        numbers = tuple(item.args[0] for size in sizes for item in size)
        if any(n.meta["val"].is_floating_point() for n in numbers):
            raise NotPieces("a number of rows is no integer")
        self._read.update(numbers)
        self._repeated.update(item for size in sizes for item in size)
        if numbers not in self._numbers:
            self._numbers[numbers] = self._stacked(numbers)
        return self._numbers[numbers]

    def _owner(self, like) -> torch.fx.Node:
        """The number of the part that each row is in."""
        if self._counts not in self._owners:
            counts = self._call(like, _aten.to.dtype, self._counts, torch.int64)
            self._owners[self._counts] = self._call(
                like, _aten.repeat_interleave.Tensor, counts, output_size=self._size)
            self._checked.add(self._counts)
        return self._owners[self._counts]

    # Values of fixed shape.

    def _stacked(self, nodes) -> torch.fx.Node:
        """A value that has those of all parts along a new first dimension."""
        self._read.update(nodes)
        first, name = nodes[0], base_name(nodes[0])
        values = [n.meta.get("val") for n in nodes]
        if not all(isinstance(v, torch.Tensor) and v.shape == values[0].shape and
                   v.dtype == values[0].dtype for v in values):
            raise NotPieces("the parts have values of unequal shapes")
        if all(n.target is first.target for n in nodes) and len(set(nodes)) == len(nodes):
            source = _source_of_elements(nodes)
            if source is not None:
                return source
            rest = [(n.args[1:], n.kwargs) for n in nodes]
            if name in _VIEWS | _ELEMENTWISE and all(r == rest[0] for r in rest) and \
                    len(first.all_input_nodes) == 1:
                self._repeated.update(nodes if name in _ELEMENTWISE else ())
                return self._moved(first, name, self._stacked(tuple(n.args[0] for n in nodes)))
        return self._call(first, _aten.stack.default, list(nodes))

    def _moved(self, like, name, stacked):
        """The same view of each element."""
        if name in _ELEMENTWISE:
            return self._call(like, like.target, stacked, *like.args[1:], **like.kwargs)
        sizes = tuple(range(like.meta["val"].dim()))  # as many as dimensions, all different
        order = like.target(torch.empty(sizes, device="meta"), *like.args[1:], **like.kwargs).shape
        return self._call(like, _aten.permute.default, stacked, [0, *(d + 1 for d in order)])

    # New operations.

    def _call(self, like, target, *args, **kwargs) -> torch.fx.Node:
        values = torch.fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
        with self.mode:
            return self._made(like, target, args, kwargs, target(*values[0], **values[1]))

    def _made(self, like, target, args, kwargs, value) -> torch.fx.Node:
        node = self.graph.call_function(target, tuple(args), kwargs)
        node.meta.update({k: like.meta[k] for k in ("stack_trace", "nn_module_stack", "custom")
                          if k in like.meta}, val=value)
        return node


def _refusal(node) -> str:
    """Why an operation on the parts is none on all rows."""
    schema = getattr(node.target, "_schema", None)
    if schema is not None and schema.is_mutable:
        return f"{node.target} writes to a part in place"
    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
        return f"{node.target} draws random numbers for each part"
    return f"{getattr(node.target, '__name__', node.target)} may mix rows"


class _Part(NamedTuple):
    """Rows of a value: the bounds, as sums of numbers that are data, and of how many parts it is one,
    where that is known."""
    rows: torch.fx.Node
    start: Counter
    end: Counter
    parts: int | None


def _part(node) -> _Part | None:
    if node.target is operator.getitem and base_name(node.args[0]) in ("split", "split_with_sizes"):
        split, index = node.args
        rows, sizes, dim, *_ = *split.args, *[split.kwargs.get("dim", 0)] * (3 - len(split.args))
        if isinstance(sizes, (list, tuple)) and not dim % rows.meta["val"].dim():
            return _Part(rows, _total(sizes[:index]), _total(sizes[:index + 1]), len(sizes))
    if base_name(node) == "slice":
        rows, dim, start, end, step, *_ = *node.args, *[0, 0, None, 1][len(node.args) - 1:]
        is_from_end = any(isinstance(x, int) and x < 0 for x in (start, end))
        if not dim % rows.meta["val"].dim() and step == 1 and end is not None and not is_from_end:
            return _Part(rows, _total([start or 0]), _total([end]), None)
    return None


def _total(numbers) -> Counter:
    """A sum of numbers of a graph: how often each term is in it. Known numbers are times 1."""
    total: Counter = Counter()
    for x in numbers:
        if isinstance(x, int):
            total[1] += x
        elif x.target is operator.add:
            total.update(_total(x.args))
        else:
            total[x] += 1
    return _without(total, {})


def _without(total, other) -> Counter:
    rest = {x: total[x] - other.get(x, 0) for x in {*total, *other}}
    return Counter({x: times for x, times in rest.items() if times})


def _source_of_elements(nodes) -> torch.fx.Node | None:
    """The value of which these are all the elements along its first dimension, in their order."""
    first, several = nodes[0], base_name(nodes[0])
    if first.target is operator.getitem:
        several = base_name(first.args[0])
        if several != "unbind" or any(n.args != (first.args[0], e) for e, n in enumerate(nodes)):
            return None
        unbind = first.args[0]
        source, dim = unbind.args[0], (*unbind.args[1:], unbind.kwargs.get("dim", 0))[0]
    elif several == "select":
        source, dim = first.args[:2]
        size = source.meta["val"].shape[dim]
        if any(n.args[:2] != first.args[:2] or n.args[2] % size != e for e, n in enumerate(nodes)):
            return None
    else:
        return None
    value = source.meta["val"]
    return source if not dim % value.dim() and value.shape[0] == len(nodes) else None
