# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which values are the choices of a routing, in which order, and which are one where an expert is
chosen.

A routing has `indices`: k choices among some experts for each token. The dimensions of values have
labels:

- "t" tokens (perhaps several dimensions), "k" choices, "e" experts, "" features;
- "p" choices of all tokens in their order, "s" the same ordered by expert;
- "c" the slots of an expert, each of which holds one token.

A dimension of size 1 has any label.
"""
import math

from .dialect import FLOATS
from .forms import Dense, as_affine
from .match import constant_of, exact, is_natural, strip, truncated
from .nodes import Node, numel

#: Functions whose value at 0 is 0.
_OF_ZERO = ("cast", "silu", "relu", "gelu", "tanh", "neg", "abs", "erf", "sin", "sqrt", "floor",
            "stop_gradient", "with_derivative")


class NotRows(Exception):
    """The reason why a value is no function of the choice."""

    def __init__(self, message: str, is_sure=False):
        """`is_sure`: no other way to read a product has a better reason."""
        super().__init__(message)
        self.is_sure = is_sure


def counted_choices(ends: Node) -> Node | None:
    """The counts of which `ends` are the sums up to each expert."""
    ends = exact(ends)
    return exact(ends.operands[0]) if ends.op == "cumsum" else None


def scores_of(node: Node) -> Node | None:
    """The scores of which the indices are the largest ones: no row has an index twice."""
    while node.op in ("reshape", "transpose", "slice", "cast") and node.dtype not in FLOATS:
        inner = node.operands[0]
        if node.op == "reshape" and inner.shape[-1:] != node.shape[-1:] or \
                node.op == "transpose" and node.attrs["permutation"][-1] != node.rank - 1:
            return None
        node = inner
    return node.operands[0] if node.op == "top_k" else None


def bound_of(node: Node) -> int | None:
    """The number below which indices are that cannot be negative, if that is known: the number of
    elements of which they are positions, by top_k or as argmax is written."""
    scores = scores_of(node)
    if scores is not None:
        return scores.shape[-1]
    node = strip(node)
    if node.op == "reduce" and node.attrs["kind"] == "min" and len(node.attrs["dims"]) == 1 and \
            node.operands[0].op == "select":
        (_, steps, last), dim = node.operands[0].operands, node.attrs["dims"][0]
        size = node.operands[0].shape[dim]
        dim -= node.operands[0].rank - steps.rank
        if constant_of(last) == size - 1 and dim >= 0 and counts(steps, dim, size):
            return size
    return None


def chosen_by(indices: Node) -> Node:
    """The choices of which indices are made; see `Rows`."""
    indices = strip(indices)
    return strip(indices.operands[2]) if indices.op == "select" and \
        constant_of(indices.operands[1]) is not None else indices


class Choices:
    """The choices of one routing."""

    def __init__(self, indices: Node, experts: int, count: int, k: int):
        self.base, self.experts, self.count, self.k = indices, experts, count, k
        scores = scores_of(indices) if indices.shape[-1:] == (k,) else None
        #: Whether no token chooses an expert twice.
        self.distinct = k == 1 or scores is not None
        #: Whether no index can be out of range; whether one can be that PyTorch does not refuse.
        self.bound = bound_of(indices) if scores is not None or k == 1 else None
        self.in_range = self.bound == experts
        self.may_exceed = scores is not None and scores.shape[-1] > experts

    def varying(self, node: Node, labels) -> set[str]:
        return {label for n, label in zip(node.shape, labels) if n > 1 and label}

    @property
    def pairs(self) -> str:
        """The label of all choices in their order."""
        return "t" if self.k == 1 else "p"

    # Labels.

    def through_reshape(self, node: Node, labels) -> list[str]:
        """The labels of what is reshaped."""
        x = node.operands[0]
        source = [d for d, n in enumerate(x.shape) if n != 1]
        target = [d for d, n in enumerate(node.shape) if n != 1]
        result = [""] * x.rank
        i = j = 0
        while i < len(source) and j < len(target):
            i0, j0, a, b = i, j, x.shape[source[i]], node.shape[target[j]]
            i, j = i + 1, j + 1
            while a != b:
                if a < b:
                    a, i = a * x.shape[source[i]], i + 1
                else:
                    b, j = b * node.shape[target[j]], j + 1
            own = self._labels_of_group([x.shape[d] for d in source[i0:i]],
                                        [labels[d] for d in target[j0:j]])
            for d, label in zip(source[i0:i], own):
                result[d] = label
        return result

    def through_transpose(self, node: Node, labels) -> list[str]:
        """The labels of what is transposed."""
        permutation = node.attrs["permutation"]
        inner = [""] * node.rank
        for d, p in enumerate(permutation):
            inner[p] = labels[d]
        tokens = [p for d, p in enumerate(permutation) if labels[d] == "t" and node.shape[d] != 1]
        if tokens != sorted(tokens):
            raise NotRows("tokens are transposed")
        return inner

    def _labels_of_group(self, sizes, labels) -> list[str]:
        kinds = "".join(sorted(set(labels), key="tk".find))
        if len(sizes) == 1 and labels in (["p"], ["s"], ["e"], ["k"], ["c"]):
            return labels
        if kinds in ("", "t"):
            return [kinds] * len(sizes)
        if labels == ["p"] and sizes[-1] == self.k:
            return ["t"] * (len(sizes) - 1) + ["k"]
        if kinds == "tk" and labels.count("k") == 1 and labels[-1] == "k":
            if len(sizes) == 1:
                return ["p"]
            if sizes[-1] == self.k:
                return ["t"] * (len(sizes) - 1) + ["k"]
        raise NotRows("a reshape mixes rows and features")

    @staticmethod
    def labels_of_product(node: Node, labels, contracted: str):
        """The labels of the operands of a matmul."""
        batch, m, n = tuple(labels[:-2]), labels[-2], labels[-1]
        result = []
        for x, key, own in zip(node.operands, ("transpose_lhs", "transpose_rhs"),
                               ((m, contracted), (contracted, n))):
            own = own[::-1] if node.attrs[key] else own
            result.append((*batch[len(batch) - (x.rank - 2):], *own))
        return result

    # Orders of choices.

    def is_choice(self, index: Node, labels) -> bool:
        """Whether an integer is the expert of the choice."""
        if index.op == "broadcast":
            inner = index.operands[0]
            return self.is_choice(inner, labels[index.rank - inner.rank:])
        while index.op == "gather" and counts(index.operands[0], 0, self.experts):
            index = index.operands[1]  # a lookup that fails where the index is out of range
        if index.op == "reshape" and strip(index) is not self.base:
            try:
                return self.is_choice(index.operands[0], self.through_reshape(index, labels))
            except NotRows:
                return False
        if index.op == "cast":
            return strip(index) is not index and self.is_choice(index.operands[0], labels)
        if index.op == "owner" and tuple(labels) == ("s",):
            return self.is_ends(index.operands[0])
        if index.op in ("take_along", "gather") and tuple(labels) == ("s",):
            return self.is_order(index.operands[1]) and \
                self.is_choice(index.operands[0], (self.pairs,))
        own = [label for n, label in zip(index.shape, labels) if n > 1]
        if strip(index) is not self.base or numel(index.shape) != self.count * self.k:
            return False
        if own == ["p"] or not own:
            return True
        choices = [label for label in own if label == "k"]
        return set(own) <= {"t", "k"} and own == sorted(own, key="tk".index) and \
            len(choices) == (self.k > 1) and ("t" in own or self.count == 1)

    def is_order(self, index: Node) -> bool:
        """Whether an index has the choices by expert: the order of sort."""
        x = self._sorted(index)
        return x is not None and strip(x) is self.base

    def _sorted(self, index: Node) -> Node | None:
        """What `index` puts in ascending order."""
        index = strip(index)
        if index.op != "top_k" or index.attrs["k"] != self.count * self.k or index.rank != 1:
            return None
        x = strip(index.operands[0])
        if x.op == "neg":
            return x.operands[0]
        return x.operands[1] if x.op == "sub" and constant_of(x.operands[0]) is not None else None

    def is_token(self, index: Node) -> bool:
        """Whether an index has the tokens of the choices in the order of experts."""
        index = strip(index)
        if self.k == 1 and self.is_order(index):
            return True
        return index.op == "div" and index.dtype not in FLOATS and \
            constant_of(index.operands[1]) == self.k and self.is_order(index.operands[0])

    def is_inverse(self, index: Node) -> bool:
        """Whether an index takes the order of experts back."""
        index = strip(index)
        order = self._sorted(index)
        if order is not None:
            return self.is_order(order)
        return index.op == "index_copy" and index.rank == 1 and \
            self.is_order(index.operands[1]) and counts(index.operands[2], 0, self.count * self.k)

    def is_ends(self, ends: Node) -> bool:
        """Whether a value counts the choices of the experts up to each one."""
        counted = counted_choices(ends)
        if counted is None or counted.shape != (self.experts,):
            return False
        if counted.op == "histc":
            if counted.attrs["low"] != 0 or \
                    counted.attrs["high"] not in (self.experts - 1, self.experts):
                return False
            x = strip(counted.operands[0])
            return x is self.base or self.is_choice(x, ("s",))
        own, k = self, self.base.shape[-1] if self.base.rank > 1 else 1
        if k != self.k:  # a token of its own for each choice, which is counted with the others
            own = Choices(self.base, self.experts, numel(self.base.shape) // k, k)
        if counted.op == "concat":
            return all(own._is_count(exact(x), (), e) for e, x in enumerate(counted.operands))
        return own._is_count(counted, ("e",))

    def _is_count(self, node: Node, outer, expert: int | None = None) -> bool:
        """Whether a value is the number of choices of each expert, or of one."""
        if node.op == "add":
            return any(constant_of(x) == 0 and self._is_count(exact(y), outer, expert)
                       for x, y in (node.operands, node.operands[::-1]))
        if node.op != "reduce" or node.attrs["kind"] != "sum" or node.dtype in ("bf16", "f16"):
            return False
        x, dims = node.operands[0], node.attrs["dims"]
        rest = [d for d in range(x.rank) if d not in dims]
        if len([d for d in rest if x.shape[d] > 1 or self.experts == 1]) > len(outer):
            return False
        size = numel([x.shape[d] for d in dims])
        label = lambda own: [own.get(d, "e" if x.shape[d] == self.experts else "") for d in range(x.rank)]
        pairs = label(dict.fromkeys(dims, "p"))
        if size == self.count and self._is_hit(x, label(dict.fromkeys(dims, "t")), expert):
            return True
        if size != self.count * self.k:
            return False
        apart = label({d: "k" if d == dims[-1] and self.k > 1 else "t" for d in dims})
        return self.is_indicator(x, pairs, expert) or \
            len(dims) > 1 and x.shape[dims[-1]] == self.k and self.is_indicator(x, apart, expert)

    # Which choices are an expert's.

    def is_indicator(self, node: Node, labels, expert: int | None = None) -> bool:
        """Whether a value is 1 where the choice is the expert, and 0 elsewhere. `expert`: the one,
        where no dimension counts them."""
        if node.op == "cast" or truncated(node) is not None:
            return self.is_indicator(truncated(node) or node.operands[0], labels, expert)
        if node.op in ("reshape", "transpose", "broadcast"):
            return self._is_moved(node, labels, lambda x, own: self.is_indicator(x, own, expert))
        if _is_of_condition(node):
            hit = node.operands[0]
            return self.is_indicator(hit, labels[node.rank - hit.rank:], expert)
        if node.op != "compare" or node.attrs["kind"] != "eq":
            return False
        for index, count in (node.operands, node.operands[::-1]):
            own = [labels[node.rank - x.rank:] for x in (index, count)]
            checked = self.in_range or _is_looked_up(index, self.experts)
            if expert is not None:
                is_same = constant_of(count) == expert
            else:
                is_same = self._counts_experts(count, own[1])
            if is_same and checked and self.is_choice(index, own[0]):
                return True
        return False

    def _is_moved(self, node: Node, labels, test) -> bool:
        x = node.operands[0]
        try:
            if node.op == "reshape":
                own = self.through_reshape(node, labels)
            elif node.op == "transpose":
                own = self.through_transpose(node, labels)
            else:
                own = labels[node.rank - x.rank:]
        except NotRows:
            return False
        return test(x, tuple(own))

    def _counts_experts(self, node: Node, labels) -> bool:
        dims = [d for d, label in enumerate(labels) if label == "e"]
        return len(dims) == 1 and counts(node, dims[0], self.experts)

    def factors(self, node: Node, labels) -> list[tuple[Node, tuple]]:
        """The factors of a product, with their labels."""
        labels = tuple(labels)
        if node.op == "mul" or node.op == "select" and constant_of(node.operands[2]) == 0:
            return [f for x in node.operands[:2]
                    for f in self.factors(x, labels[node.rank - x.rank:])]
        found: list = []
        if node.op in ("reshape", "transpose", "broadcast"):
            self._is_moved(node, labels, lambda x, own: found.extend(self.factors(x, own)))
        return found if len(found) > 1 else [(node, labels)]

    def chosen(self, node: Node, labels, expert: int | None = None):
        """The factors, functions of the choice, of a value that is the sum of their products over
        those choices that are the expert; None if a value is no such sum."""
        labels = tuple(labels)
        found: list = []
        if self.k == 1 and self.is_indicator(node, labels, expert):
            return []
        if node.op == "cast" and node.operands[0].dtype != "i1" and \
                (node.dtype in FLOATS or node.operands[0].dtype not in FLOATS):
            return self.chosen(node.operands[0], labels, expert)
        if node.op in ("reshape", "transpose", "broadcast"):
            self._is_moved(node, labels, lambda x, own: found.append(self.chosen(x, own, expert)))
            return found[0] if found else None
        if node.op == "reduce" and node.attrs["kind"] == "sum" and len(node.attrs["dims"]) == 1:
            inner, dim = list(labels), node.attrs["dims"][0]
            if node.attrs["keep_dims"]:
                inner[dim] = "k"
            else:
                inner.insert(dim, "k")
            parts = self.factors(node.operands[0], inner)
        elif node.op == "matmul":
            both = self.labels_of_product(node, labels, "k")
            parts = [f for x, own in zip(node.operands, both) for f in self.factors(x, own)]
        else:
            return None
        rest = [(x, own) for x, own in parts if not self.is_indicator(x, own, expert)]
        if len(rest) != len(parts) - 1 or \
                any(self.varying(x, own) - {"t", "k"} for x, own in rest):
            return None
        return rest

    def is_zero_elsewhere(self, node: Node, labels) -> bool:
        """Whether a value is 0 for experts that a token did not choose."""
        labels = tuple(labels)
        inner = lambda i: self.is_zero_elsewhere(
            node.operands[i], labels[node.rank - node.operands[i].rank:])
        every = range(len(node.operands))
        if not {"t", "e"} & self.varying(node, labels):
            return False
        if node.op in ("reshape", "transpose", "broadcast"):
            return self._is_moved(node, labels, self.is_zero_elsewhere)
        if node.op == "slice":
            return all(n == m or not label for n, m, label in
                       zip(node.shape, node.operands[0].shape, labels)) and inner(0)
        if node.op in _OF_ZERO:
            return inner(0)
        if node.op == "mul":
            return any(map(inner, every))
        if node.op in ("add", "sub", "maximum", "minimum", "concat"):
            return all(map(inner, every))
        if node.op == "select" and self._is_chosen(node.operands[0], labels):
            return constant_of(node.operands[2]) == 0
        if node.op in ("sigmoid", "exp"):
            x = node.operands[0]
            while x.op in ("cast", "with_derivative"):
                x = x.operands[0]
            return x.op == "select" and x.rank == node.rank and \
                constant_of(x.operands[2]) == -math.inf and \
                self._is_chosen(x.operands[0], labels[node.rank - x.operands[0].rank:])
        if node.op == "matmul":
            both = self.labels_of_product(node, labels, "")
            return any(self.is_zero_elsewhere(x, own) for x, own in zip(node.operands, both))
        return self.chosen(node, labels) is not None

    def _is_chosen(self, node: Node, labels, exactly=False) -> bool:
        """Whether a value is true only where a token chose the expert; with `exactly`, all there."""
        if node.op in ("reshape", "transpose", "broadcast"):
            return self._is_moved(node, labels, lambda x, own: self._is_chosen(x, own, exactly))
        if node.op != "compare" or node.attrs["kind"] != "ge" or constant_of(node.operands[1]) != 0:
            return False
        x = node.operands[0]
        if x.op != "reduce" or x.attrs["kind"] != "max" or len(x.attrs["dims"]) != 1:
            return False
        inner, dim, places = list(labels), x.attrs["dims"][0], x.operands[0]
        inner[dim:dim + x.attrs["keep_dims"]] = ["k"]
        if exactly and places.op == "select" and not is_natural(places.operands[1]):
            return False
        return places.op == "select" and (constant_of(places.operands[2]) or 0) < 0 and \
            self.is_indicator(places.operands[0], inner[places.rank - places.operands[0].rank:])

    def is_place(self, node: Node, labels) -> bool:
        """Whether a value is 1 where a slot of an expert holds a token, and 0 elsewhere.

        The slot is the number of tokens before it that the expert has. There are as many slots as
        tokens, and a token that did not choose the expert is in none."""
        if node.op in ("reshape", "transpose", "broadcast"):
            return self._is_moved(node, labels, self.is_place)
        if not self.distinct:
            return False
        parts = self.factors(_without_casts(node), labels)
        hits = [(x, own) for x, own in parts if self._is_hit(x, own)]
        slots = [(x, own) for x, own in parts if self._is_slot(x, own)]
        return len(parts) == 2 and len(hits) == len(slots) == 1

    def _is_hit(self, node: Node, labels, expert: int | None = None) -> bool:
        """Whether a value is 1 where a token chose the expert."""
        if node.op == "cast" or truncated(node) is not None:
            return self._is_hit(truncated(node) or node.operands[0], labels, expert)
        if _is_of_condition(node) and expert is None and self.distinct:
            hit = node.operands[0]
            if self._is_chosen(hit, labels[node.rank - hit.rank:], exactly=True):
                return True
        return self.chosen(node, labels, expert) == []

    def _is_slot(self, node: Node, labels) -> bool:
        """Whether a value is one-hot: the slot that the token has, if it chose the expert."""
        if node.op == "cast":
            return self._is_slot(node.operands[0], labels)
        if node.op in ("reshape", "transpose", "broadcast"):
            return self._is_moved(node, labels, self._is_slot)
        if node.op != "compare" or node.attrs["kind"] != "eq":
            return False
        for index, count in (node.operands, node.operands[::-1]):
            own = [tuple(labels[node.rank - x.rank:]) for x in (index, count)]
            dims = [d for d, label in enumerate(own[1]) if label == "c"]
            if len(dims) == 1 and counts(count, dims[0], self.count) and \
                    self._is_number(index, own[0]):
                return True
        return False

    def _is_number(self, node: Node, labels) -> bool:
        """Whether a value is, of a token that chose the expert, the number of those before it."""
        if node.op in ("reshape", "transpose", "broadcast", "cast"):
            return self._is_moved(node, labels, self._is_number) if node.op != "cast" else \
                self._is_number(node.operands[0], labels)
        if node.op == "gather" and counts(node.operands[0], 0, self.count):
            return self._is_number(node.operands[1], labels)
        parts = self.factors(node, labels)
        rest = [(x, own) for x, own in parts if not self._is_hit(x, own)]
        if len(rest) != 1:
            return False
        x, own = rest[0]
        while x.op == "reshape":
            own, x = tuple(self.through_reshape(x, own)), x.operands[0]
        if x.op != "sub" or constant_of(x.operands[1]) != 1 or x.operands[0].op != "cumsum":
            return False
        total = x.operands[0]
        return own[total.attrs["dim"]] == "t" and own.count("t") == 1 and \
            self._is_hit(total.operands[0], own)


def constant_expert(node: Node) -> tuple[Node, int] | None:
    """The indices that a value compares with one expert's number, and that number."""
    queue, seen = [node], 0
    while queue and seen < 40:
        x, seen = queue.pop(0), seen + 1
        if x.op == "compare" and x.attrs["kind"] == "eq":
            for index, number in (x.operands, x.operands[::-1]):
                value = constant_of(number)
                if value is not None and index.dtype not in FLOATS:
                    return strip(index), int(value)
        if x.op in ("mul", "cast", "reduce", "reshape", "broadcast", "select", "matmul"):
            queue += x.operands
    return None


def _is_of_condition(node: Node) -> bool:
    """Whether a value is 1 where a condition holds, and 0 elsewhere."""
    return node.op == "select" and constant_of(node.operands[1]) == 1 and \
        constant_of(node.operands[2]) == 0


def _without_casts(node: Node) -> Node:
    while node.op == "cast":
        node = node.operands[0]
    return node


def _is_looked_up(index: Node, size: int) -> bool:
    """Whether a lookup fails where an index is out of range."""
    while index.op in ("reshape", "broadcast", "cast"):
        index = index.operands[0]
    return index.op == "gather" and counts(index.operands[0], 0, size)


def counts(node: Node, dim: int, size: int) -> bool:
    """Whether a value is 0, 1, 2, ... along a dimension."""
    while node.op == "cast" and node.operands[0].dtype not in FLOATS:
        node = node.operands[0]
    if dim >= node.rank or numel(node.shape) != size or node.shape[dim] != size:
        return False
    if node.op == "iota":
        return node.attrs["dim"] == dim or size == 1
    if node.op == "static" and isinstance(node.form, Dense) and node.form.known:
        if size == 1:
            return bool((node.form.values == 0).all())
        return as_affine(node.form) == (dim, 1, 0)
    if node.op == "reshape":
        inner = node.operands[0]
        return any(counts(inner, d, size) for d in range(inner.rank))
    return False
