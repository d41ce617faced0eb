# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Reads an attention mask as a predicate over (query, key).

Boolean masks are taken apart at their conjunctions, additive ones at their sums. Each term is an
interval of key - query (causal masks and windows), a row of keys per batch entry (padding), or
neither, and then it stays a bias.

A mask that hides keys by a finite number stays a bias if it depends on an input: softmax gives a
query that it hides every key from the mean of all values, and a structure would give zeros.
"""
import math
from dataclasses import dataclass, field

import numpy as np

from . import forms
from .dialect import FLOATS, POINTWISE
from .forms import Dense, Diagonal
from .match import constant_of
from .nodes import Builder, Node, numel
from .position_biases import over_positions

# A score lowered by this much has no weight after softmax.
INVISIBLE = -9999.0


@dataclass
class Mask:
    """Query i sees key j where low <= j - i <= high and every one of `keys` and `others` holds."""
    low: float = -math.inf
    high: float = math.inf
    #: Booleans [batch or 1, keys].
    keys: list[Node] = field(default_factory=list)
    #: Booleans of other shapes: they become a bias.
    others: list[Node] = field(default_factory=list)
    bias: list[Node] = field(default_factory=list)
    #: Additive terms that hide keys by a finite number, and what each of them says.
    finite: list[tuple[Node, "Mask"]] = field(default_factory=list)

    def settle(self):
        """Makes the finite terms structure, or a bias where a query may see no key."""
        is_bias = self.hides_by_inputs()
        terms, self.finite = self.finite, []
        if is_bias:
            self.bias += [node for node, _ in terms]
            return
        for _, part in terms:
            part.settle()
            self.interval(part.low, part.high)
            self.bias += part.bias

    def depends_on_inputs(self) -> bool:
        return bool(self.keys or self.others) or self.hides_by_inputs()

    def hides_by_inputs(self) -> bool:
        """Whether inputs decide which keys a finite number hides."""
        return any(part.depends_on_inputs() for _, part in self.finite)

    def interval(self, low: float, high: float):
        self.low, self.high = max(self.low, low), min(self.high, high)


class MaskReader:
    """Reads masks that stretch to `shape` = [batch, heads, queries, keys]."""

    def __init__(self, build: Builder, shape):
        self.build, self.shape = build, tuple(shape)

    # Booleans: true where the key is seen.

    def boolean(self, mask: Mask, node: Node, seen: bool = True):
        """Adds: node is `seen`."""
        value = self._known(node)
        if value is not None and self._known_boolean(mask, value, seen):
            return
        if node.op == "not":
            return self.boolean(mask, node.operands[0], not seen)
        if node.op == ("and" if seen else "or"):
            for operand in node.operands:
                self.boolean(mask, operand, seen)
            return
        if node.op == "broadcast":
            return self.boolean(mask, node.operands[0], seen)
        if node.op == "cast" and node.operands[0].dtype == "i1":
            return self.boolean(mask, node.operands[0], seen)
        inner = self._through_view(node)
        if inner is not None:
            return self.boolean(mask, inner, seen)
        if not seen:
            node = self.build.unary("not", node)
        keys = self._row_of_keys(node)
        if keys is not None:
            mask.keys.append(keys)
        else:
            mask.others.append(node)

    def _known_boolean(self, mask: Mask, form, seen: bool) -> bool:
        if isinstance(form, Dense) and form.uniform:
            if bool(form.values.item()) != seen:
                mask.interval(math.inf, -math.inf)
                return False
            return True
        diagonal = self._difference(form)
        if diagonal is None:
            return False
        low, table = diagonal
        interval = _interval(table if seen else ~table, low, self.shape)
        if interval is None:
            return False
        mask.interval(*interval)
        return True

    def _row_of_keys(self, node: Node) -> Node | None:
        shape = (1,) * (4 - node.rank) + node.shape
        if len(shape) != 4 or shape[1] != 1 or shape[2] != 1 or shape[3] != self.shape[3]:
            return None
        row = (shape[0], shape[3])
        if node.op == "not":
            return self.build.unary("not", self.build.reshape(node.operands[0], row))
        return self.build.reshape(node, row)

    # Known values.

    def _known(self, node: Node):
        if node.form is not None:
            return node.form
        if node.thunk is None or node.shape[-2:] != self.shape[-2:] and \
                numel(node.shape) > forms.SMALL:
            return None
        values = node.thunk()
        return None if values is None else forms.compress(Dense(values))

    def _difference(self, form) -> tuple[int, np.ndarray] | None:
        """The value as a function of key - query: (lowest difference, table)."""
        if isinstance(form, Diagonal):
            *rest, query, key = form.coefficients
            if any(rest) or query != -key or abs(key) != 1:
                return None
            if key == 1:
                return form.low, form.table
            return -(form.low + form.table.size - 1), form.table[::-1]
        values = form.values
        queries, keys = self.shape[-2:]
        if not form.known or values.ndim < 2 or any(n != 1 for n in values.shape[:-2]) or \
                values.shape[-2:] != (queries, keys):
            return None
        plane = values.reshape(queries, keys)
        if not (plane[1:, 1:] == plane[:-1, :-1]).all():
            return None
        return 1 - queries, np.concatenate([plane[::-1, 0], plane[0, 1:]])

    # Additive masks: 0 where the key is seen, very negative where not.

    def additive(self, mask: Mask, node: Node):
        value = self._known(node)
        if value is not None and self._known_bias(mask, node, value):
            return
        if node.op in ("broadcast", "cast") and \
                (node.op == "broadcast" or node.operands[0].dtype in FLOATS):
            return self.additive(mask, node.operands[0])
        if node.op == "add":
            for operand in node.operands:
                self.additive(mask, operand)
            return
        if node.op == "select":
            condition, a, b = node.operands
            for seen, hidden, rest in ((True, b, a), (False, a, b)):
                if self.invisible(hidden):
                    part = self._part(mask, node, constant_of(hidden))
                    self.boolean(part, condition, seen)
                    return self.additive(part, rest)
        if node.op == "mul":
            for factor, scale in (node.operands, node.operands[::-1]):
                if self.invisible(scale):
                    hidden = self._indicator(factor)
                    if hidden is not None:
                        part = self._part(mask, node, constant_of(scale))
                        return self.boolean(part, hidden[0], not hidden[1])
        inner = self._through_view(node)
        if inner is not None:
            return self.additive(mask, inner)
        mask.bias.append(node)

    def _part(self, mask: Mask, node: Node, hidden: float) -> Mask:
        """Where to write what a term says that hides keys by a number."""
        if not math.isfinite(hidden):
            return mask
        mask.finite.append((node, Mask()))
        return mask.finite[-1][1]

    def _through_view(self, node: Node) -> Node | None:
        """A transpose of f(x, ...), or a reshape by dimensions of size 1, as f of such views of x, ...."""
        if node.op == "transpose" and node.operands[0].op in POINTWISE:
            return self._through_transpose(node, node.operands[0])
        if node.op != "reshape" or node.operands[0].op not in POINTWISE:
            return None
        inner = node.operands[0]
        if [n for n in inner.shape if n != 1] != [n for n in node.shape if n != 1]:
            return None
        kept = iter(d for d, n in enumerate(inner.shape) if n != 1)
        source = [next(kept) if n != 1 else None for n in node.shape]
        operands = []
        for operand in inner.operands:
            shape = (1,) * (inner.rank - operand.rank) + operand.shape
            operands.append(self.build.reshape(operand, [1 if s is None else shape[s]
                                                         for s in source]))
        return Node(inner.op, operands, inner.attrs, node.shape, node.dtype, node.loc,
                    node.position)

    def _through_transpose(self, node: Node, inner: Node) -> Node:
        operands = []
        for operand in inner.operands:
            wide = self.build.reshape(operand, (1,) * (inner.rank - operand.rank) + operand.shape)
            operands.append(self.build.transpose(wide, node.attrs["permutation"]))
        return Node(inner.op, operands, inner.attrs, node.shape, node.dtype, node.loc, node.position)

    def _indicator(self, node: Node) -> tuple[Node, bool] | None:
        """(b, s) where the number is 1 if b == s, else 0."""
        if node.op == "cast" and node.operands[0].dtype == "i1":
            return node.operands[0], True
        if node.op in ("cast", "broadcast"):
            return self._indicator(node.operands[0])
        if node.op in ("reshape", "transpose"):
            inner = self._through_view(node)
            return None if inner is None else self._indicator(inner)
        if node.op == "sub":
            if constant_of(node.operands[0]) == 1:
                inner = self._indicator(node.operands[1])
                return inner and (inner[0], not inner[1])
        return None

    def keeps(self, node: Node, mask: Mask) -> bool:
        """Whether a factor is 1 wherever the mask lets a key be seen, else 0."""
        value = self._known(node)
        diagonal = None if value is None else self._difference(value)
        if diagonal is None:
            return False
        low, table = diagonal
        if not bool(((table == 0) | (table == 1)).all()):
            return False
        interval = _interval(table == 1, low, self.shape)
        return interval is not None and interval[0] <= mask.low and mask.high <= interval[1]

    def invisible(self, node: Node) -> bool:
        value = constant_of(node)
        return value is not None and value <= INVISIBLE

    def _known_bias(self, mask: Mask, node: Node, form) -> bool:
        if isinstance(form, Dense) and form.uniform:
            return float(form.values.item()) == 0
        diagonal = self._difference(form)
        if diagonal is None:
            return False
        low, table = diagonal
        hidden = table <= INVISIBLE
        if not bool((hidden | (table == 0)).all()):
            return False
        interval = _interval(~hidden, low, self.shape)
        if interval is None:
            return False
        lowest = float(table[hidden].max()) if bool(hidden.any()) else -math.inf
        self._part(mask, node, lowest).interval(*interval)
        return True


def _interval(table: np.ndarray, low: int, shape) -> tuple[float, float] | None:
    """The differences at which a table is true, where they are one interval."""
    queries, keys = shape[-2:]
    positions = np.flatnonzero(table)
    if not len(positions):
        return None
    first, last = int(positions[0]), int(positions[-1])
    if last - first + 1 != len(positions):
        return None
    return (low + first if low + first > 1 - queries else -math.inf,
            low + last if low + last < keys - 1 else math.inf)


def finish(build: Builder, mask: Mask, shape, dtype: str):
    """(attributes, key padding or None, bias or None) of nn.attention."""
    mask.settle()
    batch, _, _, keys = shape
    attrs = {"causal": False, "window_left": None, "window_right": None}
    low, high = mask.low, mask.high
    if high == 0:
        attrs["causal"] = True
        high = math.inf
    if high < 0 or low > 0:  # windows that leave out the query's own key
        mask.others.append(_interval_node(build, low, high, shape))
    else:
        if low > -math.inf:
            attrs["window_left"] = int(-low)
        if high < math.inf:
            attrs["window_right"] = int(high)
    padding = None
    for row in mask.keys:
        padding = row if padding is None else build.binary("and", padding, row)
    if padding is not None:
        padding = build.broadcast(padding, (batch, keys))
    bias = None
    hidden = -math.inf
    for node in mask.bias:
        if attrs["causal"]:
            node = over_positions(build, node, shape)
        node = build.cast(node, dtype)
        bias = node if bias is None else build.binary("add", bias, node)
    for condition in mask.others:
        other = bias if bias is not None else build.scalar(0.0, dtype)
        bias = build.select(condition, other, build.scalar(hidden, dtype))
    return attrs, padding, bias


def _interval_node(build: Builder, low, high, shape) -> Node:
    form = forms.diagonal(shape[-2:], (-1, 1), 0)
    form.table = (form.table >= low) & (form.table <= high)
    return build.static(form, shape[-2:], "i1")
