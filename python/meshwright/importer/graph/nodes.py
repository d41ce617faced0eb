# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The importer's graph: `nn` operations on tensors of static shape, before they become text.

A node is an operation, and stands for its result. An operation with several results stands for the
first; `Builder.result` gives a node for another one. Besides the operations of the `nn` dialect
(dialect.py) there are `input` and `parameter` (arguments), `size` (a size that the call decides, see
sizes.py), `state` (the value before the call of memory that the module writes to), `static` (a value
that depends on shapes and constants only, described by its `form`, see forms.py), `result` (a further
result of its operand), `sdpa` (attention with masks as values, before they are understood), `histc`
(counts of numbers by bins), `grouped_mm` (rows in the order of experts, times their weights) and `owner` (the expert of each row
in that order), which lift_experts.py takes away. The last two read where the rows of each expert
end. A `grouped_mm` that is `whole`, as each `owner`, has no rows behind the last end.

Attributes have the dialect's names. `given` names the optional operands that an operation has, where
several could be left out.
"""
import contextlib
import contextvars
import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional

import numpy as np

from . import forms
from .dialect import CODES, FLOATS
from .forms import Dense
from .sizes import Quantity, Size, dynamic_dims, number_of

_SERIAL = itertools.count()

#: Whether values are parts of ranks. A dimension of size 1 is then a chunk of a longer one perhaps, and has
#: its place among the others.
_PARTS = contextvars.ContextVar("parts", default=False)


@contextlib.contextmanager
def values_of_ranks():
    """Within, graphs are made and rewritten whose values are parts of ranks."""
    token = _PARTS.set(True)
    try:
        yield
    finally:
        _PARTS.reset(token)


def ones_are_chunks() -> bool:
    """Whether a dimension of size 1 may be a rank's chunk of a longer one."""
    return _PARTS.get()


class Routing(NamedTuple):
    """Of a tensor [experts, tokens..., features...] that has a row for each choice of a token: the
    number of choices, and whether a token may choose an expert twice."""
    choices: int
    repeats: bool


class Location(NamedTuple):
    """A place in the model's source: the module's path, its file and line."""
    name: str
    file: str
    line: int


class Remark(NamedTuple):
    """A note for users of something that the import did not recognise, and its place."""
    message: str
    loc: Location | None


@dataclass(eq=False)
class Node:
    op: str
    operands: list["Node"]
    attrs: dict[str, Any]
    shape: tuple[int, ...]
    dtype: str
    loc: Location | None = None
    position: float = 0
    #: The structure of a `static` node's value, as far as it is known (see forms.py).
    form: Any = None
    #: For a `static` node: how the program computes the value, where it is not written out.
    recipe: Callable[[], Optional["Node"]] | None = None
    #: Computes the value from constants, or gives None where it cannot (for buffers, whose values may
    #: be inspected only).
    thunk: Callable[[], np.ndarray | None] | None = None
    #: The shapes and element types of further results.
    further: tuple[tuple[tuple[int, ...], str], ...] = ()
    #: Of a tensor of experts' rows (`nn.dispatch` and what is computed from it).
    routed: Routing | None = None
    #: Order of creation, which breaks ties of `position`.
    serial: int = field(default_factory=lambda: next(_SERIAL))

    def __post_init__(self):
        if self.routed is None and self.op != "combine":
            self.routed = next((o.routed for o in self.operands if o.routed), None)

    @property
    def rank(self) -> int:
        return len(self.shape)

    def has(self, operand: str) -> bool:
        """Whether an optional operand is given, of an operation that names them."""
        return operand in self.attrs["given"]

    def __repr__(self):
        return f"{self.op}({len(self.operands)}){list(self.shape)}{self.dtype}"


@dataclass
class Write:
    """Of a `state` node: the value after the call."""
    state: Node
    value: Node
    loc: Location | None


@dataclass
class Graph:
    inputs: list[Node] = field(default_factory=list)
    parameters: list[Node] = field(default_factory=list)
    states: list[Node] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    outputs: list[Node] = field(default_factory=list)
    output_names: list[str] = field(default_factory=list)
    #: The keys of large constants that the import computed, by their type and content.
    constants: dict[tuple, str] = field(default_factory=dict)
    #: Buffers whose values the import has read, by their keys.
    read: dict[str, Any] = field(default_factory=dict)
    #: Notes on what was not recognised, with reasons.
    remarks: list[Remark] = field(default_factory=list)
    #: Whether parameters that are only stacked become one.
    joins: bool = False
    #: The names of sizes that a call decides, in the order of the program's arguments.
    sizes: list[str] = field(default_factory=list)
    #: The mesh that shardings are on, and those of the outputs, None where one has none.
    mesh: Any = None
    output_shardings: list[Any] = field(default_factory=list)
    #: Whether the graph is what each rank does, on its parts of arguments (distribution.py).
    is_spmd: bool = False
    #: Random operations so far. Each has its own stream of numbers.
    streams: int = 0

    def results(self) -> list[Node]:
        """The values that a call leaves behind."""
        return self.outputs + [write.value for write in self.writes]

    def replace_results(self, replace: Callable[[Node], Node]):
        self.outputs = [replace(o) for o in self.outputs]
        for write in self.writes:
            write.value = replace(write.value)

    def nodes(self) -> list[Node]:
        """The live operations: operands first, otherwise in the order of the model's code."""
        waiting, users, ready = {}, {}, []
        stack, seen = self.results(), set()
        while stack:
            node = stack.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            waiting[id(node)] = len(node.operands)
            if not node.operands:
                heapq.heappush(ready, (node.position, node.serial, node))
            for operand in node.operands:
                users.setdefault(id(operand), []).append(node)
                stack.append(operand)
        order = []
        while ready:
            node = heapq.heappop(ready)[2]
            order.append(node)
            for user in users.get(id(node), ()):
                waiting[id(user)] -= 1
                if not waiting[id(user)]:
                    heapq.heappush(ready, (user.position, user.serial, user))
        return order

    def uses(self) -> dict[int, list[Node]]:
        """The users of each live node (a result counts as a user: None)."""
        uses: dict[int, list] = {}
        for node in self.nodes():
            for operand in node.operands:
                uses.setdefault(id(operand), []).append(node)
        for result in self.results():
            uses.setdefault(id(result), []).append(None)
        return uses

    def rewrite(self, pattern: Callable[[Node], Node | None]) -> bool:
        """Visits each operation once, operands first, and replaces it by what `pattern` returns."""
        replaced: dict[int, Node] = {}
        keep = self.nodes()
        for node in keep:
            node.operands = [replaced.get(id(o), o) for o in node.operands]
            new = pattern(node)
            if new is not None and new is not node:
                replaced[id(node)] = new
        self.replace_results(lambda node: replaced.get(id(node), node))
        return bool(replaced)


class Builder:
    """Makes nodes, infers shapes and folds what costs nothing to fold.

    New nodes get the location and position of `at`: the operation that they stand for.
    """

    def __init__(self, loc: Location | None = None, position: float = 0):
        self.loc, self.position = loc, position

    def at(self, node: Node) -> "Builder":
        self.loc, self.position = node.loc, node.position
        return self

    def make(self, op, operands, shape, dtype, *, further=(), **attrs) -> Node:
        return Node(op, list(operands), attrs, shape_of(shape), dtype, self.loc, self.position,
                    further=tuple(further))

    def result(self, node: Node, index: int) -> Node:
        """A result of an operation with several."""
        if not index:
            return node
        shape, dtype = node.further[index - 1]
        return self.make("result", [node], shape, dtype, index=index)

    def unary(self, op: str, x: Node, **attrs) -> Node:
        return self.make(op, [x], x.shape, x.dtype, **attrs)

    def binary(self, op: str, lhs: Node, rhs: Node) -> Node:
        return self.make(op, [lhs, rhs], broadcast_shapes(lhs.shape, rhs.shape), lhs.dtype)

    def compare(self, kind: str, lhs: Node, rhs: Node) -> Node:
        return self.make("compare", [lhs, rhs], broadcast_shapes(lhs.shape, rhs.shape), "i1",
                         kind=kind)

    def select(self, condition: Node, lhs: Node, rhs: Node) -> Node:
        return self.make("select", [condition, lhs, rhs],
                         broadcast_shapes(condition.shape, lhs.shape, rhs.shape), lhs.dtype)

    def cast(self, x: Node, dtype: str) -> Node:
        if x.dtype == dtype:
            return x
        if x.dtype in CODES:
            return self.cast(self.widen(x, "f32"), dtype)
        return self.make("cast", [x], x.shape, dtype)

    def widen(self, codes: Node, dtype: str) -> Node:
        """The numbers of codes, or with an integer type their bits."""
        return self.make("widen", [codes], codes.shape, dtype)

    def dequantize(self, codes: Node, scales: Node, block, dtype: str, table: Node | None = None) -> Node:
        """Codes times the scales of their blocks; `block` has a size for each dimension."""
        operands = [codes, scales] if table is None else [codes, scales, table]
        return self.make("dequantize", operands, codes.shape, dtype, block=list(block),
                         given=() if table is None else ("table",))

    def scalar(self, value, dtype: str) -> Node:
        """A rank-0 constant; its exact value is kept for types that would round it. Of a number that
        a call decides the program computes it."""
        if isinstance(value, (Size, Quantity)):
            return number_of(self, value, dtype)
        node = self.make("static", [], (), dtype)
        node.form = Dense(forms.cast(value, dtype))
        if dtype in FLOATS:
            node.attrs["exact"] = float(value)
        return node

    def static(self, form, shape, dtype) -> Node:
        node = self.make("static", [], shape, dtype)
        node.form = form
        return node

    def reshape(self, x: Node, shape) -> Node:
        shape = shape_of(shape)
        while x.op == "reshape":
            x = x.operands[0]
        if x.shape == shape:
            return x
        return self._moved(x, "reshape", shape, {}, "form_reshape", x.shape, shape) or \
            self.make("reshape", [x], shape, x.dtype)

    def _moved(self, x: Node, op: str, shape, attrs, how: str, *arguments) -> Node | None:
        """A view of a known value is a known value."""
        if x.op != "static":
            return None
        form = getattr(forms, how)(x.form, *arguments)
        if form is None:
            return None
        node = self.static(form, tuple(shape), x.dtype)
        node.attrs = dict(x.attrs)
        node.recipe = lambda: Builder(x.loc, x.position).make(op, [x], shape, x.dtype, **attrs)
        return node

    def transpose(self, x: Node, permutation) -> Node:
        permutation = [int(p) for p in permutation]
        if x.op == "transpose":
            inner = x.attrs["permutation"]
            permutation = [inner[p] for p in permutation]
            x = x.operands[0]
        if permutation == list(range(x.rank)):
            return x
        known = self._moved(x, "transpose", [x.shape[p] for p in permutation],
                            {"permutation": permutation}, "form_permute", permutation)
        if known:
            return known
        moved = [p for p in permutation if x.shape[p] != 1]
        if moved == sorted(moved) and not ones_are_chunks():  # only dimensions of size 1 move
            return self.reshape(x, [x.shape[p] for p in permutation])
        return self.make("transpose", [x], [x.shape[p] for p in permutation], x.dtype,
                         permutation=permutation)

    def broadcast(self, x: Node, shape) -> Node:
        shape = shape_of(shape)
        if x.shape == shape:
            return x
        if x.op == "broadcast" and x.operands[0].rank <= len(shape):
            x = x.operands[0]
        if x.shape == shape:
            return x
        return self._moved(x, "broadcast", shape, {}, "form_expand", x.shape, shape) or \
            self.make("broadcast", [x], shape, x.dtype)

    def slice(self, x: Node, starts, limits, strides=None) -> Node:
        strides = list(strides) if strides else [1] * x.rank
        starts, limits = list(starts), list(limits)
        shape = [_extent(*s) for s in zip(x.shape, starts, limits, strides)]
        if tuple(shape) == x.shape and all(s == 1 for s in strides):
            return x
        cut = [d for d, n in enumerate(shape) if n != x.shape[d] or strides[d] != 1]
        if len(cut) == 1 and x.op == "static" and shape[cut[0]]:
            known = self._moved(
                x, "slice", shape, {"starts": starts, "limits": limits, "strides": strides},
                "form_slice", x.shape, cut[0], starts[cut[0]], strides[cut[0]], shape[cut[0]])
            if known:
                return known
        if x.op == "slice":
            inner = x.attrs
            starts = [s0 + s * t0 for s0, t0, s in zip(inner["starts"], inner["strides"], starts)]
            strides = [t0 * t for t0, t in zip(inner["strides"], strides)]
            limits = [min(s + (n - 1) * t + 1, size) for s, t, n, size in
                      zip(starts, strides, shape, x.operands[0].shape)]
            x = x.operands[0]
        return self.make("slice", [x], shape, x.dtype, starts=starts, limits=limits,
                         strides=strides)

    def slice_dim(self, x: Node, dim: int, start: int, limit: int, stride: int = 1) -> Node:
        starts, limits, strides = [0] * x.rank, list(x.shape), [1] * x.rank
        starts[dim], limits[dim], strides[dim] = start, limit, stride
        return self.slice(x, starts, limits, strides)

    def concat(self, inputs, dim: int) -> Node:
        if len(inputs) == 1:
            return inputs[0]
        shape = list(inputs[0].shape)
        shape[dim] = sum(i.shape[dim] for i in inputs)
        return self.make("concat", inputs, shape, inputs[0].dtype, dim=dim)

    def gather(self, data: Node, indices: Node, dim: int) -> Node:
        shape = data.shape[:dim] + indices.shape + data.shape[dim + 1:]
        return self.make("gather", [data, indices], shape, data.dtype, dim=dim)

    def embedding(self, ids: Node, table: Node) -> Node:
        return self.make("embedding", [ids, table], ids.shape + (table.shape[1],), table.dtype)

    def scatter_add(self, updates: Node, indices: Node, rows: int) -> Node:
        """Sums of rows of `updates` in `rows` rows, by index."""
        shape = (rows,) + updates.shape[indices.rank:]
        dtype = "f32" if updates.dtype in ("bf16", "f16") else updates.dtype
        return self.make("scatter_add", [updates, indices], shape, dtype, dim=0)

    def reduce(self, kind: str, x: Node, dims, keep_dims: bool) -> Node:
        dims = sorted(d % x.rank for d in dims)
        shape = [1 if d in dims else n for d, n in enumerate(x.shape)] if keep_dims else \
            [n for d, n in enumerate(x.shape) if d not in dims]
        if kind == "mean" and dynamic_dims([x.shape[d] for d in dims]):
            return self._mean(x, dims, keep_dims)
        return self.make("reduce", [x], shape, x.dtype, kind=kind, dims=dims, keep_dims=keep_dims)

    def _mean(self, x: Node, dims, keep_dims: bool) -> Node:
        """The sum divided by the number of elements that the call has, rounded once."""
        wide = self.cast(x, "f32" if x.dtype in ("bf16", "f16") else x.dtype)
        count = self.scalar(numel([x.shape[d] for d in dims]), wide.dtype)
        return self.cast(self.binary("div", self.reduce("sum", wide, dims, keep_dims), count), x.dtype)

    def top_k(self, scores: Node, k: int) -> Node:
        return self.make("top_k", [scores], (*scores.shape[:-1], k), "i64", k=k)

    def dispatch(self, x: Node, indices: Node, experts: int, repeats: bool, each=False) -> Node:
        """The rows of each expert; of each choice the number, with `each`."""
        node = self.make("dispatch", [x, indices], (experts, *(x.shape[:-1] if each else x.shape)),
                         x.dtype, each=each, given=())
        node.routed = Routing(indices.shape[-1], repeats)
        return node

    def grouped_linear(self, rows: Node, weight: Node, in_out=False) -> Node:
        out = weight.shape[2] if in_out else weight.shape[1]
        return self.make("grouped_linear", [rows, weight], (*rows.shape[:-1], out), rows.dtype,
                         in_out=in_out)

    def combine(self, rows: Node, indices: Node) -> Node:
        return self.make("combine", [rows, indices], rows.shape[1:], rows.dtype, each=False,
                         given=())

    def matmul(self, lhs: Node, rhs: Node, transpose_lhs=False, transpose_rhs=False) -> Node:
        rows = lhs.shape[-1] if transpose_lhs else lhs.shape[-2]
        columns = rhs.shape[-2] if transpose_rhs else rhs.shape[-1]
        batch = broadcast_shapes(lhs.shape[:-2], rhs.shape[:-2])
        return self.make("matmul", [lhs, rhs], (*batch, rows, columns), lhs.dtype,
                         transpose_lhs=transpose_lhs, transpose_rhs=transpose_rhs)

    def linear(self, x: Node, weight: Node, bias: Node | None = None, in_out=False) -> Node:
        out = weight.shape[1] if in_out else weight.shape[0]
        return self.make("linear", [x, weight] + ([bias] if bias else []), (*x.shape[:-1], out),
                         x.dtype, in_out=in_out)


def shape_of(sizes) -> tuple[int, ...]:
    return tuple(n if isinstance(n, Size) else int(n) for n in sizes)


def broadcast_shapes(*shapes) -> tuple[int, ...]:
    rank = max(map(len, shapes))
    result = [1] * rank
    for shape in shapes:
        for dim, size in enumerate(shape, rank - len(shape)):
            if size != 1 and not isinstance(result[dim], Size):
                result[dim] = size
    return tuple(result)


def _extent(size: int, start: int, limit: int, stride: int) -> int:
    """The size of a slice of a dimension."""
    if start == 0 and stride == 1:
        return size if size == limit and not isinstance(limit, Size) else limit
    return max(0, -(-(int(limit) - int(start)) // stride))


def numel(shape) -> int:
    return math.prod(shape)


def reshape_groups(source, target) -> list[tuple[range, range]] | None:
    """Pairs of dimension ranges with equal products, as short as can be; None for empty tensors."""
    if 0 in source or 0 in target:
        return None
    groups, i, j = [], 0, 0
    while i < len(source) or j < len(target):
        i0, j0, a, b = i, j, 1, 1
        if i < len(source):
            a, i = source[i], i + 1
        if j < len(target):
            b, j = target[j], j + 1
        while a != b:
            if a < b:
                a, i = a * source[i], i + 1
            else:
                b, j = b * target[j], j + 1
        groups.append((range(i0, i), range(j0, j)))
    return groups
