# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Weights that are stored in 8 or 4 bits, however they are brought back: `dequantize`.

Codes become numbers (`widen`), or are looked up in a table, and are multiplied by the scales of their
blocks. Blocks may be dimensions of their own meanwhile, or scales may be repeated for each element.
"""
import math

import numpy as np

from .block_scales import Places
from .dialect import FLOATS
from .forms import Dense
from .match import constant_of
from .nodes import Builder, Graph, Node, numel

#: The numbers of the codes of 4 bits: a sign, two bits of an exponent, a bit of a mantissa.
_F4 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def lift_stored(graph: Graph):
    _Lift(graph).run()


class _Lift:
    def __init__(self, graph: Graph):
        self.graph, self.build = graph, Builder()

    def run(self):
        if not any(node.op == "widen" for node in self.graph.nodes()):
            return
        self.uses = self.graph.uses()
        self.graph.rewrite(self._pattern)

    def _pattern(self, node: Node) -> Node | None:
        self.build.at(node)
        if node.op == "mul" and node.dtype in FLOATS:
            lhs, rhs = node.operands
            return self._scaled(node, lhs, rhs) or self._scaled(node, rhs, lhs)
        if node.op == "cast" and node.dtype in FLOATS:
            return self._rounded(node)
        return None

    def _scaled(self, node: Node, numbers: Node, scales: Node) -> Node | None:
        """numbers * scales."""
        if numbers.shape != node.shape:
            return None
        codes = _Codes.of(numbers, node, self.uses)
        if codes is None:
            return None
        places = Places.of(scales).broadcast(node.shape)
        for shape in self._shapes(node, codes):
            own = places.reshaped(shape)
            block = own and own.blocks()
            if block is not None:
                made = self.build.dequantize(
                    self.build.reshape(codes.take(self.build), shape), self._scales(own, node), block,
                    node.dtype, codes.table)
                return self.build.reshape(made, node.shape)
        return None

    def _shapes(self, node: Node, codes: "_Codes"):
        """Shapes in which the weight may be read: as it is used, as it is multiplied, as it is stored."""
        shapes, user = [node.shape], node
        while len(users := self.uses.get(id(user), ())) == 1 and users[0] is not None and \
                users[0].op in ("reshape", "cast"):
            user = users[0]
            shapes.insert(0, user.shape)
        return dict.fromkeys([*shapes, codes.shape])

    def _scales(self, places: Places, reader: Node) -> Node:
        exponents = _exponents(places, reader, self.uses)
        if exponents is not None:
            _reinterpret(exponents, "f8E8M0FNU")
            places = Places(exponents, places.shape, places.tables, [])
        return places.scales(self.build)

    def _rounded(self, node: Node) -> Node | None:
        """A dequantisation computes in f32, and rounds once."""
        inner, shape = node.operands[0], node.shape
        while inner.op == "reshape":
            inner = inner.operands[0]
        if inner.op != "dequantize" or inner.dtype != "f32" or node.dtype == "f64":
            return None
        made = self.build.make(inner.op, inner.operands, inner.shape, node.dtype, **inner.attrs)
        return self.build.reshape(made, shape)


class _Codes:
    """Codes behind a value, and the table of their numbers, if they are indices into one."""

    def __init__(self, node: Node, table: Node | None = None, is_four=False):
        self.node, self.table, self.is_four = node, table, is_four

    @classmethod
    def of(cls, node: Node, reader: Node, uses) -> "_Codes | None":
        is_cast = False
        while node.op == "reshape" or node.op == "cast" and {node.dtype, node.operands[0].dtype} <= {*FLOATS}:
            is_cast |= node.op == "cast"
            node = node.operands[0]
        if node.op == "widen" and node.dtype in FLOATS:
            codes = node.operands[0]
            return None if codes.dtype == "f8E8M0FNU" else cls(codes)
        pairs = cls._pairs(node, reader, uses)
        # Each float type holds the numbers of codes, but not those of a table.
        return None if pairs is None or pairs.table is not None and is_cast else pairs

    @classmethod
    def _pairs(cls, node: Node, reader: Node, uses) -> "_Codes | None":
        """Two codes of a byte side by side, the low one first."""
        if node.op != "concat" or len(node.operands) != 2 or node.attrs["dim"] != node.rank - 1:
            return None
        looked_up = [_lookup(o) for o in node.operands]
        if any(x is None for x in looked_up) or looked_up[0][0] is not looked_up[1][0]:
            return None
        low, high = (_half(index) for _, index in looked_up)
        if low is None or high is None or (low[1], high[1]) != (0, 1) or low[0] is not high[0] or \
                node.shape[-1] != 2 or numel(node.shape) != 2 * numel(low[0].shape):
            return None
        code, table = low[0], looked_up[0][0]
        if not _alone(code, reader, uses):
            return None
        is_f4 = isinstance(table.form, Dense) and table.form.known and \
            np.array_equal(np.broadcast_to(table.form.values, table.shape).astype(np.float32), _F4)
        return cls(code, None if is_f4 else table, is_four=True)

    @property
    def shape(self):
        shape = self.node.shape
        return (*shape[:-1], 2 * shape[-1]) if self.is_four else shape

    def take(self, build: Builder) -> Node:
        if self.is_four:
            _reinterpret(self.node, "f4E2M1FN", self.shape)
        return self.node


def _lookup(node: Node) -> tuple[Node, Node] | None:
    """The table of 16 numbers and the indices of a lookup, in their order."""
    while node.op == "reshape":
        node = node.operands[0]
    if node.op != "gather" or node.operands[0].shape != (16,):
        return None
    return node.operands[0], node.operands[1]


def _plain(index: Node) -> Node:
    while index.op in ("cast", "reshape"):
        index = index.operands[0]
    return index


def _half(index: Node) -> tuple[Node, int] | None:
    """The bytes of which an index is the low half (0) or the high one (1), in their order."""
    half, index = None, _plain(index)
    if index.op == "and" and constant_of(index.operands[1]) == 15:
        half, index = 0, _plain(index.operands[0])
    if index.op == "div" and constant_of(index.operands[1]) == 16:
        half, index = 1, _plain(index.operands[0])
    if half is None or index.op != "widen" or index.operands[0].op != "parameter":
        return None
    return index.operands[0], half


def _alone(parameter: Node, reader: Node, uses) -> bool:
    """Whether all that reads a parameter, and what is computed of it, is for one operation."""
    pending, seen = [parameter], set()
    while pending:
        for user in uses.get(id(pending.pop()), (None,)):
            if user is None or len(seen) > 64:
                return False
            if user is not reader and id(user) not in seen:
                seen.add(id(user))
                pending.append(user)
    return True


def _exponents(places: Places, reader: Node, uses) -> Node | None:
    """The parameter of bytes of which scales are 2 ** (byte - 127), and which nothing else reads."""
    chain = [f for f in places.functions if f.op != "cast"]
    source = places.source
    if source.op == "widen":
        chain.insert(0, source)
        source = source.operands[0]
    if source.op != "parameter" or source.dtype != "i8" or [f.op for f in chain[:2]] != ["widen", "sub"] or \
            constant_of(chain[1].operands[1]) != 127:
        return None
    power = chain[2:]
    if [f.op for f in power] == ["pow"]:
        is_power = constant_of(power[0].operands[0]) == 2
    else:
        is_power = [f.op for f in power] == ["mul", "exp"] and \
            constant_of(power[0].operands[1]) == math.log(2)
    if not is_power:
        return None
    return source if _alone(source, reader, uses) else None


def _reinterpret(parameter: Node, dtype: str, shape=None):
    """Reads the bytes of a parameter as codes of another type."""
    parameter.dtype = dtype
    parameter.shape = tuple(shape or parameter.shape)
