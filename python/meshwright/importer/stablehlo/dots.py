# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Arranges general products: as linear layers where a factor is a weight, else as matrix products.

A `dot` has dimensions of the batch, of the sum and free ones anywhere in its operands. Its result is often
transposed at once. A matrix product has them in the order batch, rows, columns. The order is chosen so that
attention has [..., queries, keys] for the scores, and reads its weights as softmax left them.
"""
from ..graph.dialect import POINTWISE
from ..graph.nodes import Builder, Graph, Node, numel, ones_are_chunks
from .weights import is_weight


def arrange_dots(graph: Graph):
    _squeeze(graph)
    build, uses = Builder(), graph.uses()
    keep = graph.nodes()
    wanted = {id(node): _wanted(node, uses) for node in keep if node.op == "dot"}
    #: Products with a batch, and what is computed of them before and in a softmax.
    scores: dict[int, Node] = {}

    def pattern(node: Node) -> Node | None:
        build.at(node)
        if node.op == "dot":
            result = _Dot(build, node, wanted[id(node)]).arranged()
            product = result.operands[0] if result.op == "transpose" else result
            if product.op == "matmul" and node.attrs["lhs_batch"]:
                scores[id(product)] = product
            return result
        if node.op == "transpose" and node.operands[0].op == "transpose":
            return build.transpose(node.operands[0], node.attrs["permutation"])
        if node.op == "reshape" and node.operands[0].op == "reshape":
            return build.reshape(node.operands[0], node.shape)
        if node.op in POINTWISE or node.op == "softmax":
            return _transposed_later(build, node, scores)
        return None

    graph.rewrite(pattern)
    _read_whole_softmax(graph)
    _add_biases(graph)


def _read_whole_softmax(graph: Graph):
    """A product with a softmax that a reshape takes dimensions of size 1 from, as einsum does with a batch of one: a
    product with the softmax itself."""
    build = Builder()

    def pattern(node: Node) -> Node | None:
        if node.op != "matmul" or node.operands[0].op != "reshape" or node.attrs["transpose_lhs"]:
            return None
        narrow, other = node.operands
        source = narrow.operands[0]
        units = _units(narrow.shape, source.shape)
        if not _is_softmax(source) or units is None or source.rank <= narrow.rank or \
                source.shape[-2:] != narrow.shape[-2:] or other.rank != narrow.rank:
            return None
        lead = [1 if u is None else other.shape[u] for u in units[:-2]]
        if numel(lead) != numel(other.shape[:-2]):
            return None
        build.at(node)
        whole = build.matmul(source, build.reshape(other, (*lead, *other.shape[-2:])),
                             transpose_rhs=node.attrs["transpose_rhs"])
        return build.reshape(whole, node.shape)

    graph.rewrite(pattern)


def _add_biases(graph: Graph):
    """A linear layer plus a vector of weights is a linear layer with a bias."""
    build, uses = Builder(), graph.uses()

    def pattern(node: Node) -> Node | None:
        if node.op != "add":
            return None
        for y, bias in (node.operands, node.operands[::-1]):
            product = y.operands[0] if y.op == "reshape" else y
            if product.op != "linear" or len(product.operands) > 2 or y.shape != node.shape or not is_weight(bias) or \
                    product.dtype != product.operands[0].dtype:
                continue
            out, width = product.shape[-1], numel(bias.shape)
            if width != out or len(uses.get(id(product), ())) > 1 or len(uses.get(id(y), ())) > 1:
                continue
            tail = [n for n in bias.shape if n != 1]
            rest = [n for n in node.shape if n != 1]
            if tail != rest[len(rest) - len(tail):] or out == 1 or node.shape[-1] == 1:
                continue
            vector = build.at(node).reshape(bias, (out,))
            if vector.dtype != product.dtype:
                continue
            whole = build.make("linear", [*product.operands, vector], product.shape, product.dtype, **product.attrs)
            return build.reshape(whole, node.shape)
        return None

    graph.rewrite(pattern)


def _squeeze(graph: Graph):
    """Free dimensions of size 1, such as a group of one head, leave products that have others."""
    if ones_are_chunks():
        return
    build = Builder()

    def pattern(node: Node) -> Node | None:
        if node.op != "dot":
            return None
        build.at(node)
        a, operands, attrs = node.attrs, [], {}
        for x, side in zip(node.operands, ("lhs", "rhs")):
            bound = [*a[f"{side}_batch"], *a[f"{side}_sum"]]
            gone = [d for d in range(x.rank) if d not in bound and x.shape[d] == 1]
            if len(gone) == x.rank - len(bound):
                gone = gone[1:]
            kept = [d for d in range(x.rank) if d not in gone]
            operands.append(build.reshape(x, [x.shape[d] for d in kept]))
            attrs |= {key: [kept.index(d) for d in a[key]] for key in (f"{side}_batch", f"{side}_sum")}
        if all(o.rank == x.rank for o, x in zip(operands, node.operands)):
            return None
        shape = [operands[0].shape[d] for d in attrs["lhs_batch"]]
        for x, side in zip(operands, ("lhs", "rhs")):
            shape += [n for d, n in enumerate(x.shape) if d not in (*attrs[f"{side}_batch"], *attrs[f"{side}_sum"])]
        return build.reshape(build.make("dot", operands, shape, node.dtype, **attrs), node.shape)

    graph.rewrite(pattern)


def _units(source, target) -> list[int | None] | None:
    """Of a reshape that adds or drops dimensions of size 1: for each dimension of the target that of the source,
    None for one of size 1 alone."""
    if [n for n in source if n != 1] != [n for n in target if n != 1]:
        return None
    kept = iter([d for d, n in enumerate(source) if n != 1])
    return [next(kept) if n != 1 else None for n in target]


def _wanted(node: Node, uses) -> list[int]:
    """The order in which a product is read: by the softmax of which it gives the scores, else by the users that
    transpose it at once."""
    order, value = list(range(node.rank)), node
    for _ in range(32):
        users = _readers(uses.get(id(value), ()))
        if len(users) != 1 or users[0] is None:
            break
        user = users[0]
        units = _units(value.shape, user.shape) if user.op == "reshape" else None
        if user.op == "transpose":
            order = [order[p] for p in user.attrs["permutation"]]
        elif units is not None:
            order = [None if u is None else order[u] for u in units]
        elif user.op == "softmax":
            order = [d for d in order if d is not None]
            return [*(d for d in range(node.rank) if d not in order), *order]
        elif user.op not in POINTWISE or user.shape != value.shape:
            break
        value = user
    users = uses.get(id(node), [])
    if users and all(u is not None and u.op == "transpose" for u in users) and \
            len({tuple(u.attrs["permutation"]) for u in users}) == 1:
        return users[0].attrs["permutation"]
    return list(range(node.rank))


def _readers(users) -> list[Node | None]:
    return list({id(u): u for u in users}.values())


def _transposed_later(build: Builder, node: Node, scores) -> Node | None:
    """f(transpose(scores), ...): transpose(f(scores, ...)), so that softmax and masks read products as they are.
    Reshapes that add dimensions of size 1 move in the same way."""
    moved = next((o for o in node.operands if o.op in ("transpose", "reshape") and id(o.operands[0]) in scores), None)
    if moved is None or moved.shape != node.shape:
        return None
    source, attrs = moved.operands[0], dict(node.attrs)
    if moved.op == "transpose":
        places = moved.attrs["permutation"]  # for each dimension of the result that of the scores
    else:
        places = _units(source.shape, moved.shape)
        if places is None:
            return None
    if node.op == "softmax":
        if places[attrs["dim"]] is None:
            return None
        attrs["dim"] = places[attrs["dim"]]
    inverse = [places.index(d) if d in places else None for d in range(source.rank)]
    operands = []
    for operand in node.operands:
        if numel(operand.shape) != 1:
            operand = build.reshape(operand, (1,) * (node.rank - operand.rank) + operand.shape)
            if moved.op == "transpose":
                operand = build.transpose(operand, inverse)
            operand = build.reshape(operand, [1 if d is None else operand.shape[i if moved.op == "transpose" else d]
                                              for i, d in enumerate(inverse)])
        operands.append(operand)
    inner = build.make(node.op, operands, source.shape, node.dtype, **attrs)
    scores[id(inner)] = inner
    if moved.op == "transpose":
        return build.transpose(inner, moved.attrs["permutation"])
    return build.reshape(inner, node.shape)


class _Side:
    """An operand: the dimensions of its batch and its sum, in an order common to both, and the others."""

    def __init__(self, x: Node, batch, summed):
        self.x, self.batch, self.summed = x, list(batch), list(summed)
        self.free = [d for d in range(x.rank) if d not in batch and d not in summed]

    def sizes(self, dims) -> list[int]:
        return [self.x.shape[d] for d in dims]


class _Dot:
    def __init__(self, build: Builder, node: Node, wanted):
        a = node.attrs
        self.build, self.node = build, node
        self.lhs = _Side(node.operands[0], a["lhs_batch"], a["lhs_sum"])
        self.rhs = _Side(node.operands[1], a["rhs_batch"], a["rhs_sum"])
        #: The order in which the user reads the result.
        self.wanted = list(range(node.rank)) if wanted is None else wanted

    def arranged(self) -> Node:
        lhs, rhs = self.lhs, self.rhs
        if not lhs.batch:
            for x, w in ((lhs, rhs), (rhs, lhs)):
                if is_weight(w.x) and not is_weight(x.x):
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
            y = self._typed(b.linear(rows, b.reshape(w.x, (outer, inner))))
        else:
            matrix = b.reshape(b.transpose(w.x, [*w_sum, *w.free]), (inner, outer))
            y = self._typed(b.linear(rows, matrix, in_out=True))
        y = b.reshape(y, (*x.sizes(x.free), *w.sizes(w.free)))
        if x is self.lhs:
            return y
        lead = len(x.free)
        return b.transpose(y, [*range(lead, y.rank), *range(lead)])

    def _typed(self, product: Node) -> Node:
        """A product of bf16 or f16 may be asked for in f32."""
        product.dtype = self.node.dtype
        return product

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
        lead = [*batch, *[1] * len(groups)] if batch else []
        q = b.reshape(q, (*lead, numel(second.sizes(second.free)), summed))
        y = self._typed(b.matmul(p, q, transpose_rhs=True))
        y = b.reshape(y, (*y.shape[:-1], *second.sizes(second.free)))
        made = [*range(len(batch)), *groups, rows, *seconds]
        return b.transpose(y, [made.index(n) for n in range(self.node.rank)])

    def _merged(self, first: _Side, second: _Side, firsts, seconds) -> Node:
        """Rows and columns are all free dimensions of a side."""
        b, batch, summed = self.build, first.sizes(first.batch), numel(first.sizes(first.summed))
        p, q = (b.reshape(b.transpose(s.x, [*s.batch, *s.free, *s.summed]), (*batch, numel(s.sizes(s.free)), summed))
                for s in (first, second))
        y = self._typed(b.matmul(p, q, transpose_rhs=True))
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
        """The free dimensions of a side, rows last: of weights of attention as softmax has them, else as the user
        reads them."""
        place = {n: i for i, n in enumerate(self.wanted)}
        seen = _softmax_order(side.x)
        if seen is not None:
            place = {n: seen.index(d) for n, d in zip(names, side.free)}
        return sorted(names, key=place.__getitem__)


def _softmax_order(x: Node) -> list[int] | None:
    """The dimensions of a value in the order that they have in the softmax that it is, or None."""
    order, units_gone = list(range(x.rank)), []
    while x.op in ("cast", "transpose", "reshape"):
        if x.op == "transpose":
            # Dimension i of x is dimension permutation[i] of what it transposes.
            order = [order[x.attrs["permutation"].index(d)] for d in range(x.rank)]
        elif x.op == "reshape":
            units = _units(x.shape, x.operands[0].shape)
            if units is None:
                return None
            units_gone += [d for i, d in enumerate(order) if i not in units and d is not None]
            order = [None if u is None else order[u] for u in units]
        x = x.operands[0]
    return [*units_gone, *(d for d in order if d is not None)] if x.op == "softmax" else None


def _is_softmax(x: Node) -> bool:
    while x.op in ("cast", "reshape", "transpose", "broadcast"):
        x = x.operands[0]
    return x.op == "softmax"
