# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Arranges general products: as linear layers where a factor is a weight, else as matrix products.

A `dot` has dimensions of the batch, of the sum and free ones anywhere in its operands. Its result is often
transposed at once. A matrix product has them in the order batch, rows, columns. The order is chosen so that
attention has [..., queries, keys] for the scores, and reads its weights as softmax left them.
"""
from ..graph.nodes import Builder, Graph, Node, numel

#: Operations that keep a value a weight: on a rank they are done once.
_OF_WEIGHTS = ("reshape", "transpose", "cast", "slice", "widen", "dequantize")


def arrange_dots(graph: Graph):
    build, uses = Builder(), graph.uses()
    weights: dict[int, bool] = {}

    def is_weight(node: Node) -> bool:
        if id(node) not in weights:
            weights[id(node)] = node.op == "parameter" or node.op in _OF_WEIGHTS and is_weight(node.operands[0])
        return weights[id(node)]

    # A product whose only user transposes it is made in the order that this user wants.
    wanted: dict[int, list[int]] = {}
    keep = graph.nodes()
    for node in keep:
        if node.op == "dot":
            users = uses.get(id(node), [])
            if users and all(u is not None and u.op == "transpose" for u in users) and \
                    len({tuple(u.attrs["permutation"]) for u in users}) == 1:
                wanted[id(node)] = users[0].attrs["permutation"]

    def pattern(node: Node) -> Node | None:
        if node.op == "dot":
            build.at(node)
            return _Dot(build, node, wanted.get(id(node)), is_weight).arranged()
        if node.op == "transpose" and node.operands[0].op == "transpose":
            return build.at(node).transpose(node.operands[0], node.attrs["permutation"])
        return None

    graph.rewrite(pattern)


class _Side:
    """An operand: the dimensions of its batch and its sum, in an order common to both, and the others."""

    def __init__(self, x: Node, batch, summed):
        self.x, self.batch, self.summed = x, list(batch), list(summed)
        self.free = [d for d in range(x.rank) if d not in batch and d not in summed]

    def sizes(self, dims) -> list[int]:
        return [self.x.shape[d] for d in dims]


class _Dot:
    def __init__(self, build: Builder, node: Node, wanted, is_weight):
        a = node.attrs
        self.build, self.node, self.is_weight = build, node, is_weight
        self.lhs = _Side(node.operands[0], a["lhs_batch"], a["lhs_sum"])
        self.rhs = _Side(node.operands[1], a["rhs_batch"], a["rhs_sum"])
        #: The order in which the user reads the result.
        self.wanted = list(range(node.rank)) if wanted is None else wanted

    def arranged(self) -> Node:
        lhs, rhs = self.lhs, self.rhs
        if not lhs.batch:
            for x, w in ((lhs, rhs), (rhs, lhs)):
                if self.is_weight(w.x) and not self.is_weight(x.x):
                    return self._linear(x, w)
        return self._matmul()

    def _linear(self, x: _Side, w: _Side) -> Node:
        b = self.build
        # The order of the sum that moves nothing of the weight.
        order = sorted(range(len(w.summed)), key=lambda i: w.summed[i])
        w_sum, x_sum = [w.summed[i] for i in order], [x.summed[i] for i in order]
        inner, outer = numel(w.sizes(w_sum)), numel(w.sizes(w.free))
        rows = b.reshape(b.transpose(x.x, [*x.free, *x_sum]), (*x.sizes(x.free), inner))
        if w.free + w_sum == list(range(w.x.rank)):
            y = b.linear(rows, b.reshape(w.x, (outer, inner)))
        else:
            matrix = b.reshape(b.transpose(w.x, [*w_sum, *w.free]), (inner, outer))
            y = b.linear(rows, matrix, in_out=True)
        y = b.reshape(y, (*x.sizes(x.free), *w.sizes(w.free)))
        if x is self.lhs:
            return y
        lead = len(x.free)
        return b.transpose(y, [*range(lead, y.rank), *range(lead)])

    def _names(self):
        """The dimensions of the result by side: of the batch, of lhs and of rhs."""
        batch, left = len(self.lhs.batch), len(self.lhs.free)
        return range(batch), range(batch, batch + left), range(batch + left, self.node.rank)

    def _matmul(self) -> Node:
        _, left, right = self._names()
        left_first = self._left_is_first()
        first, second = (self.lhs, self.rhs) if left_first else (self.rhs, self.lhs)
        firsts, seconds = (left, right) if left_first else (right, left)
        b = self.build
        if len(first.free) <= 1 or len(second.free) > 1:
            return self._merged(first, second, firsts, seconds)
        # [batch..., groups..., rows, sum] times [batch..., 1..., columns, sum]: groups share the second one.
        *groups, rows = self._order(first, firsts)
        own = [first.free[firsts.index(n)] for n in (*groups, rows)]
        summed = numel(first.sizes(first.summed))
        batch = first.sizes(first.batch)
        p = b.reshape(b.transpose(first.x, [*first.batch, *own, *first.summed]), (*batch, *first.sizes(own), summed))
        q = b.transpose(second.x, [*second.batch, *second.free, *second.summed])
        q = b.reshape(q, (*batch, *[1] * len(groups), numel(second.sizes(second.free)), summed))
        y = b.matmul(p, q, transpose_rhs=True)
        y = b.reshape(y, (*y.shape[:-1], *second.sizes(second.free)))
        made = [*range(len(batch)), *groups, rows, *seconds]
        return b.transpose(y, [made.index(n) for n in range(self.node.rank)])

    def _merged(self, first: _Side, second: _Side, firsts, seconds) -> Node:
        """Rows and columns are all free dimensions of a side."""
        b, batch, summed = self.build, first.sizes(first.batch), numel(first.sizes(first.summed))
        p, q = (b.reshape(b.transpose(s.x, [*s.batch, *s.free, *s.summed]), (*batch, numel(s.sizes(s.free)), summed))
                for s in (first, second))
        y = b.matmul(p, q, transpose_rhs=True)
        y = b.reshape(y, (*batch, *first.sizes(first.free), *second.sizes(second.free)))
        made = [*range(len(batch)), *firsts, *seconds]
        return b.transpose(y, [made.index(n) for n in range(self.node.rank)])

    def _left_is_first(self) -> bool:
        """Whether lhs has the rows: the weights of attention do, then the side with more free dimensions, then the
        one whose dimensions the user reads first."""
        if self.lhs.batch or len(self.lhs.free) == len(self.rhs.free) == 1:
            soft = [_is_softmax(s.x) for s in (self.lhs, self.rhs)]
            if soft[0] != soft[1]:
                return soft[0]
        if len(self.lhs.free) != len(self.rhs.free):
            return len(self.lhs.free) > len(self.rhs.free)
        _, left, right = self._names()
        place = {n: i for i, n in enumerate(self.wanted)}
        return sum(place[n] for n in left) <= sum(place[n] for n in right)

    def _order(self, side: _Side, names) -> list[int]:
        """The free dimensions of a side, rows last: as it has them, if it has the order of a matrix product
        already, else as the user reads them."""
        if side.batch + side.free + side.summed == list(range(side.x.rank)):
            return list(names)
        place = {n: i for i, n in enumerate(self.wanted)}
        return sorted(names, key=place.__getitem__)


def _is_softmax(x: Node) -> bool:
    while x.op in ("cast", "reshape", "transpose", "broadcast"):
        x = x.operands[0]
    return x.op == "softmax"
