# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Masks as bounds on the keys that a query sees, which the program computes.

A comparison of a key's index with numbers of the batch's row and the query is a bound: `j < n` is
j <= n - 1. Bounds compose: `(j <= i) | (j < n)` is j <= max(i, n - 1), and so are prefixes, caches
of keys that are filled up to a position, and left padding. nn.attention takes bounds of rows as
lengths, and bounds of queries as positions, and then reads no mask of queries x keys.
"""
import math
from dataclasses import dataclass, field

from .forms import Dense, as_affine
from .masks import Mask, MaskReader
from .nodes import Builder, Node

_FLIPPED = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le"}


@dataclass
class Sum:
    """key * j + terms + constant. Each term is an integer [batch or 1, 1, queries or 1, 1] with its
    factor, by its identity."""
    constant: int = 0
    key: int = 0
    terms: dict[tuple, tuple[int, Node]] = field(default_factory=dict)

    def plus(self, other: "Sum", sign: int = 1) -> "Sum":
        terms = dict(self.terms)
        for name, (factor, node) in other.terms.items():
            factor = terms.get(name, (0, node))[0] + sign * factor
            terms[name] = (factor, node)
        return Sum(self.constant + sign * other.constant, self.key + sign * other.key,
                   {name: term for name, term in terms.items() if term[0]})

    def varies(self) -> bool:
        """Whether queries have bounds of their own."""
        return any(node.shape[2] != 1 for _, node in self.terms.values())


@dataclass
class Span:
    """A query sees key j where lower <= j <= upper for all of these, and each of `rows` holds."""
    uppers: list[Sum] = field(default_factory=list)
    lowers: list[Sum] = field(default_factory=list)
    #: Booleans [batch or 1, keys].
    rows: list[Node] = field(default_factory=list)


class BoundReader(MaskReader):
    """Reads masks as bounds."""

    def __init__(self, build: Builder, shape):
        super().__init__(build, shape)
        self.index, self.keys = self._iota(2), self._iota(3)

    def _iota(self, dim: int) -> Node:
        shape = [size if d == dim else 1 for d, size in enumerate(self.shape)]
        return self.build.make("iota", [], shape, "i64", dim=dim)

    def span(self, node: Node, seen: bool = True) -> Span | None:
        """The keys that are seen where a boolean is `seen`, if they are bounded."""
        value = self._known(node)
        if value is not None:
            known = Mask()
            if self._known_boolean(known, value, seen):
                return self.of_interval(known)
        if node.op == "not":
            return self.span(node.operands[0], not seen)
        if node.op in ("and", "or"):
            parts = [self.span(operand, seen) for operand in node.operands]
            if None in parts:
                return None
            return _both(*parts) if node.op == ("and" if seen else "or") else \
                self._either(*parts)
        if node.op == "broadcast" or node.op == "cast" and node.operands[0].dtype == "i1":
            return self.span(node.operands[0], seen)
        inner = self._through_view(node)
        if inner is not None:
            return self.span(inner, seen)
        compared = self._comparison(node, seen) if node.op == "compare" else None
        if compared is not None:
            return compared
        row = self._row_of_keys(node if seen else self.build.unary("not", node))
        return None if row is None else Span(rows=[row])

    def of_interval(self, mask: Mask) -> Span:
        bound = lambda offset: [self._of_index().plus(Sum(int(offset)))] \
            if math.isfinite(offset) else []
        return Span(bound(mask.high), bound(mask.low))

    def _of_index(self) -> Sum:
        return Sum(terms={("index",): (1, self.index)}) if self.shape[2] > 1 else Sum()

    def _comparison(self, node: Node, seen: bool) -> Span | None:
        kind = node.attrs["kind"] if seen else _FLIPPED.get(node.attrs["kind"])
        sums = [self._sum(operand) for operand in node.operands]
        if kind not in _FLIPPED or None in sums:
            return None
        # difference <= 0
        difference = sums[0].plus(sums[1], -1)
        if kind in ("gt", "ge"):
            difference = Sum().plus(difference, -1)
        if kind in ("lt", "gt"):
            difference = difference.plus(Sum(1))
        sign, rest = difference.key, Sum(difference.constant, 0, difference.terms)
        if sign == 1:
            return Span(uppers=[Sum().plus(rest, -1)])
        return Span(lowers=[rest]) if sign == -1 else None

    def _sum(self, node: Node) -> Sum | None:
        """An integer as a sum; None if it varies with the key in another way."""
        if node.dtype not in ("i64", "i32"):
            return None
        if node.form is not None:
            known = self._known_sum(node)
            return known if known is not None else self._term(node)
        if node.op in ("add", "sub"):
            parts = [self._sum(operand) for operand in node.operands]
            return None if None in parts else parts[0].plus(parts[1], 1 if node.op == "add" else -1)
        if node.op == "neg":
            inner = self._sum(node.operands[0])
            return None if inner is None else Sum().plus(inner, -1)
        if node.op == "broadcast" or node.op == "cast" and node.operands[0].dtype == "i32":
            return self._sum(node.operands[0])
        inner = self._through_view(node)
        return self._sum(inner) if inner is not None else self._term(node)

    def _known_sum(self, node: Node) -> Sum | None:
        form, missing = node.form, 4 - node.rank
        if missing < 0:
            return None
        if isinstance(form, Dense):
            if form.uniform:
                return Sum(int(form.values.item()))
            affine = as_affine(form)
            if affine is None:
                return None
            dim, step, start = affine
            coefficients = [step if d == dim + missing else 0 for d in range(4)]
        else:
            table = form.table
            step = int(table[1] - table[0]) if table.size > 1 else 0
            if not bool((table[1:] - table[:-1] == step).all()):
                return None
            coefficients = [0] * missing + [step * c for c in form.coefficients]
            start = int(table[0]) - step * form.low
        batch, heads, query, key = coefficients
        if batch or heads or abs(query) > 1:
            return None
        return Sum(start, key).plus(self._of_index(), query)

    def _term(self, node: Node) -> Sum | None:
        """A value that does not vary with the key, as a whole."""
        shape = (1,) * (4 - node.rank) + node.shape
        if len(shape) != 4 or shape[1] != 1 or shape[3] != 1 or \
                shape[0] not in (1, self.shape[0]) or shape[2] not in (1, self.shape[2]):
            return None
        base = node
        while base.op == "reshape":
            base = base.operands[0]
        term = self.build.cast(self.build.reshape(node, shape), "i64")
        # The node keeps its base alive, so that the identity stays its own.
        return Sum(terms={(id(base), shape): (1, term)})

    def _either(self, a: Span, b: Span) -> Span | None:
        """Where one of two spans holds, which both have upper bounds alone, or lower ones."""
        if a.rows or b.rows:
            return None
        if a.uppers and b.uppers and not a.lowers and not b.lowers:
            return Span(uppers=[self.extreme("maximum", [self.extreme("minimum", a.uppers),
                                                         self.extreme("minimum", b.uppers)])])
        if a.lowers and b.lowers and not a.uppers and not b.uppers:
            return Span(lowers=[self.extreme("minimum", [self.extreme("maximum", a.lowers),
                                                         self.extreme("maximum", b.lowers)])])
        return None

    def extreme(self, kind: str, bounds: list[Sum]) -> Sum:
        """The largest or the smallest of some bounds."""
        best = bounds[0]
        for other in bounds[1:]:
            difference = other.plus(best, -1)
            if not difference.terms:
                if (difference.constant > 0) == (kind == "maximum"):
                    best = other
                continue
            node = self.build.binary(kind, self.node(best), self.node(other))
            best = Sum(terms={(id(node), node.shape): (1, node)})
        return best

    def node(self, bound: Sum) -> Node:
        """The number itself, [batch or 1, 1, queries or 1, 1]."""
        result = None
        for factor, node in bound.terms.values():
            if factor == -1 and result is not None:
                result = self.build.binary("sub", result, node)
                continue
            if factor != 1:
                node = self.build.binary("mul", node, self.build.scalar(factor, "i64"))
            result = node if result is None else self.build.binary("add", result, node)
        if result is None:
            return self.build.reshape(self.build.scalar(bound.constant, "i64"), (1, 1, 1, 1))
        if bound.constant:
            result = self.build.binary("add", result, self.build.scalar(bound.constant, "i64"))
        return result


def _both(a: Span, b: Span) -> Span:
    return Span(a.uppers + b.uppers, a.lowers + b.lowers, a.rows + b.rows)


@dataclass
class Structure:
    """The operands of nn.attention that stand for bounds: positions of queries and keys, lengths of rows."""
    q_positions: Node | None = None
    kv_positions: Node | None = None
    kv_lengths: Node | None = None
    window_left: int | None = None
    #: Booleans [batch or 1, keys].
    rows: list[Node] = field(default_factory=list)

    @property
    def operands(self) -> dict[str, Node | None]:
        return {name: getattr(self, name) for name in ("q_positions", "kv_positions", "kv_lengths")}


def take_bounds(build: Builder, mask: Mask, shape) -> Structure:
    """Takes out of a mask what bounds express. Takes all conditions of queries or none: a bias for
    one of them has the size of all."""
    mask.settle()
    reader = BoundReader(build, shape)
    span = Span()
    for condition in mask.others:
        part = reader.span(condition)
        span = None if part is None or span is None else _both(span, part)
    structure = None if span is None else _structure(reader, mask, span)
    if structure is not None:
        mask.others = []
    else:
        structure = _structure(reader, mask, Span())
    mask.keys = structure.rows
    if structure.q_positions is not None:
        mask.low, mask.high = -math.inf, math.inf
    return structure


def _structure(reader: BoundReader, mask: Mask, span: Span) -> Structure | None:
    """The structure of a mask whose conditions of queries are `span`; None if nn.attention does not
    have it."""
    build, (batch, _, _, keys) = reader.build, reader.shape
    result = Structure()
    for row in mask.keys + span.rows:
        part = reader.span(build.reshape(row, (row.shape[0], 1, 1, keys)))
        if part is None or part.rows or any(b.varies() for b in part.uppers + part.lowers):
            result.rows.append(row)
        else:
            span = _both(span, part)
    flat = [bound for bound in span.uppers if not bound.varies()]
    if flat:
        length = reader.node(reader.extreme("minimum", flat).plus(Sum(1)))
        length = build.reshape(length, (length.shape[0],))
        result.kv_lengths = build.broadcast(length, (batch,))
    for bound in span.lowers:
        if not bound.varies():
            row = build.compare("ge", reader.keys, reader.node(bound))
            result.rows.append(build.reshape(row, (row.shape[0], keys)))
    varying = Span([bound for bound in span.uppers if bound.varies()],
                   [bound for bound in span.lowers if bound.varies()])
    if not varying.uppers and not varying.lowers:
        return result
    return result if _place(reader, _both(varying, reader.of_interval(mask)), result) else None


def _place(reader: BoundReader, span: Span, result: Structure) -> bool:
    """Adds positions. The last key that a query sees is its position, and the first one is behind
    it by a number that is the same for all queries."""
    if not span.uppers:
        return False
    build, (_, _, queries, keys) = reader.build, reader.shape
    place = reader.extreme("minimum", span.uppers)
    windows = []
    for bound in span.lowers:
        window = place.plus(bound, -1)
        if window.terms or window.constant < 0:
            return False
        windows.append(window.constant)
    node = reader.node(place)
    node = build.broadcast(node, (node.shape[0], 1, queries, 1))
    result.q_positions = build.reshape(
        node, (queries,) if node.shape[0] == 1 else (node.shape[0], queries))
    result.kv_positions = build.make("iota", [], (keys,), "i64", dim=0)
    result.window_left = min(windows, default=None)
    return True
