# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Values of tokens, choices and experts, as rows of experts.

What a model computes for each choice (token t, j) with its expert e = indices[t, j], or for each
expert and token, is a function of (t, j). `Rows` evaluates it on tensors [experts, tokens...,
features...] that have a row for each choice (`nn.dispatch`). Each rule proves that the value of a
row depends on its own token, choice and expert alone; `NotRows` says where none does. Labels of
dimensions are those of expert_choices.py.
"""
from dataclasses import dataclass

from .dialect import FLOATS, POINTWISE
from .expert_choices import Choices, NotRows, chosen_by
from .match import constant_of, strip
from .nodes import Builder, Node, broadcast_shapes, numel

#: Operations behind which a value may be computed from rows of experts.
THROUGH = POINTWISE | {"dropout", "reshape", "transpose", "broadcast", "slice", "concat", "reduce",
                       "softmax", "rms_norm", "layer_norm", "gather", "take_along"}

_MOST_STEPS = 1000


@dataclass
class Value:
    """Of `kind` "row" it is [experts, tokens..., features...], of "expert" [experts, 1...,
    features...], of "plain" [features...]. Features may be 1 where the value does not vary."""
    node: Node
    kind: str


class Rows(Choices):
    """Evaluates values as rows of the experts that a routing chooses."""

    def __init__(self, build: Builder, indices: Node, experts: int, tokens, k: int, again=False):
        """With `again` rows go on behind a sum over one choice, which has been made of them."""
        super().__init__(indices, experts, numel(tokens), k)
        self.build, self.tokens, self.lead = build, tuple(tokens), 1 + len(tokens)
        self.again = again and k == 1
        self.indices = build.reshape(indices, (*self.tokens, k))
        if self.bound is None:
            # The run fails for them. A row of expert -1 would go nowhere.
            negative = build.compare("lt", self.indices, build.scalar(0, indices.dtype))
            outside = build.scalar(experts, indices.dtype)
            self.indices = build.select(negative, outside, self.indices)
        #: The dimensions that tokens have before a reshape merges them.
        self.wider: list[tuple[int, ...]] = []
        self._known: dict[tuple, Value | NotRows] = {}
        self._keep: list = []  # so that the ids stay taken
        self._heavy: dict[int, bool] = {}

    # What a value is.

    def features(self, node: Node, labels) -> tuple[int, ...]:
        return tuple(n for n, label in zip(node.shape, labels) if not label)

    def value(self, nodes, labels) -> Value:
        """The value of a node; of several nodes, one of each expert, that are computed alike."""
        nodes = (nodes,) if isinstance(nodes, Node) else tuple(nodes)
        if all(n is nodes[0] for n in nodes):
            nodes = nodes[:1]
        if self.k == 1:
            labels = ["t" if label == "p" else label for label in labels]
        labels = tuple(labels)
        key = (*map(id, nodes), labels)
        if key not in self._known:
            self._keep.append(nodes)
            try:
                self._known[key] = self._leaf(nodes, labels) or self._computed(nodes, labels)
            except NotRows as why:
                self._known[key] = self._leaf(nodes, labels, True) or why
        if isinstance(self._known[key], NotRows):
            raise self._known[key]
        return self._known[key]

    def row(self, nodes, labels) -> Node:
        return self.as_row(self.value(nodes, labels))

    def as_row(self, value: Value) -> Node:
        if value.kind == "row":
            return value.node
        if value.kind == "expert":
            raise NotRows("an expert's value takes the place of its rows")
        shape = value.node.shape
        x = self.build.broadcast(value.node, (*self.tokens, *shape))
        return self._dispatched(x, shape)

    def _leaf(self, nodes, labels, always=False) -> Value | None:
        """The rows of a value that the program computes before tokens go to experts. Without
        `always` None where products of experts may be among it."""
        node = nodes[0]
        varying, features = self.varying(node, labels), self.features(node, labels)
        if len(nodes) > 1:
            if varying or any(n.shape != node.shape or n.dtype != node.dtype for n in nodes) or \
                    any(n.op not in ("parameter", "input", "state", "static") for n in nodes):
                return None
            shape = (1, *(1,) * len(self.tokens), *features)
            parts = [self.build.reshape(n, shape) for n in nodes]
            return Value(self.build.concat(parts, 0), "expert")
        # Where there is one token, or one choice of each, products vary along no other dimensions.
        alone = self.k == 1 if "t" in varying else self.count == 1
        if not always and (alone or varying - {"t", "e"}) and self._is_heavy(node):
            return None
        if not varying:
            return Value(self.build.reshape(node, features), "plain")
        if varying == {"e"}:
            node = self._in_order(node, labels, "e")
            shape = (self.experts, *(1,) * len(self.tokens), *features)
            return Value(self.build.reshape(node, shape), "expert")
        if varying == {"t"} and (self.k > 1 or numel(features) > 1):
            x = self._in_order(node, labels, "t")
            self.wider.append(x.operands[0].shape[:-1] if x.op == "reshape" and
                              x.operands[0].shape[-1:] == x.shape[-1:] else x.shape[:-1])
            x = self.build.reshape(x, (*self.tokens, *features))
            return Value(self._dispatched(x, features), "row")
        if numel(features) != 1:
            return None
        if varying <= {"t", "k", "p"}:
            v = self._in_order(node, labels, "tkp")
            if varying == {"k"} and self.count > 1:
                v = self.build.broadcast(self.build.reshape(v, (self.k,)), (*self.tokens, self.k))
            elif numel(node.shape) != self.count * self.k:
                return None
            return Value(self._each(v, features), "row")
        if varying == {"e", "t"} and self.distinct:
            v = self.build.reshape(self._in_order(node, labels, "te"), (*self.tokens, self.experts))
            v = self.build.make("take_along", [v, self.indices], self.indices.shape, v.dtype,
                                dim=v.rank - 1)
            return Value(self._each(v, features), "row")
        return None

    def _in_order(self, node: Node, labels, order: str) -> Node:
        """With the dimensions in the order of their labels, features last."""
        rank = {label: i for i, label in enumerate(order)}
        dims = sorted(range(node.rank), key=lambda d: rank.get(labels[d], len(rank)))
        return self.build.transpose(node, dims)

    def _dispatched(self, x: Node, features) -> Node:
        x = self.build.reshape(x, (*self.tokens, numel(features)))
        rows = self.build.dispatch(x, self.indices, self.experts, not self.distinct)
        return self._reshaped(rows, features)

    def _each(self, v: Node, features) -> Node:
        v = self.build.reshape(v, (*self.tokens, self.k))
        rows = self.build.dispatch(v, self.indices, self.experts, not self.distinct, each=True)
        return self._reshaped(rows, features)

    def _reshaped(self, rows: Node, features) -> Node:
        return self.build.reshape(rows, (self.experts, *self.tokens, *features))

    def _is_heavy(self, node: Node) -> bool:
        """Whether a value may depend on rows of experts."""
        if id(node) not in self._heavy:
            self._keep.append(node)
            index = {"gather": 1, "embedding": 0}.get(node.op)
            self._heavy[id(node)] = node.op in ("grouped_mm", "matmul") or \
                node.op == "combine" and self._is_own(node) or \
                index is not None and strip(node.operands[index]) is self.base and \
                node.operands[1 - index].rank > 1 or \
                node.op in THROUGH and any(map(self._is_heavy, node.operands))
        return self._heavy[id(node)]

    # The rules.

    def _computed(self, nodes, labels) -> Value:
        node = nodes[0]
        if any((n.op, n.shape, n.dtype, repr(n.attrs), len(n.operands)) !=
               (node.op, node.shape, node.dtype, repr(node.attrs), len(node.operands))
               for n in nodes[1:]):
            raise NotRows("experts compute different functions")
        rule = self._pointwise if node.op in POINTWISE else getattr(self, f"_{node.op}", None)
        if rule is None:
            raise NotRows(f"nn.{node.op} may mix rows")
        place = self.build.loc, self.build.position
        value = rule(nodes, labels)
        self.build.loc, self.build.position = place
        return value

    def _operands(self, nodes, index: int):
        return tuple(n.operands[index] for n in nodes)

    def _full(self, value: Value, features) -> Value:
        own = value.node.shape[self.lead:] if value.kind != "plain" else value.node.shape
        if own != tuple(features):
            raise NotRows("features of rows are repeated")
        return value

    def _aligned(self, value: Value, labels) -> Value:
        """With as many dimensions of features as there are among the labels."""
        if value.kind == "plain":
            return value
        shape = value.node.shape
        missing = self.lead + list(labels).count("") - len(shape)
        shape = (*shape[:self.lead], *(1,) * missing, *shape[self.lead:])
        return Value(self.build.reshape(value.node, shape), value.kind)

    def _shape_like(self, value: Value, features) -> Value:
        """With other dimensions of features, of the same number of elements or of one."""
        lead = value.node.shape[:self.lead] if value.kind != "plain" else ()
        own = value.node.shape[len(lead):]
        if numel(own) != numel(features):
            if numel(own) != 1:
                raise NotRows("features of rows are repeated")
            features = (1,) * len(features)
        return Value(self.build.reshape(value.node, (*lead, *features)), value.kind)

    def _pointwise(self, nodes, labels):
        node = nodes[0]
        own = [labels[node.rank - o.rank:] for o in node.operands]
        values = [self._aligned(self.value(self._operands(nodes, i), labels_of), labels)
                  for i, labels_of in enumerate(own)]
        kinds = {v.kind for v in values}
        kind = "row" if "row" in kinds else "expert" if "expert" in kinds else "plain"
        shape = broadcast_shapes(*(v.node.shape for v in values))
        self.build.at(node)
        return Value(self.build.make(node.op, [v.node for v in values], shape, node.dtype,
                                     **node.attrs), kind)

    def _dropout(self, nodes, labels):
        """Elements keep the numbers by which they are dropped: those of their indices."""
        node, (x, index, *state) = nodes[0], nodes[0].operands
        rows = self.row(self._operands(nodes, 0), labels)
        if rows.shape[self.lead:] != self.features(x, labels):
            raise NotRows("features of rows are repeated")
        places = Value(self.row(index, labels[node.rank - index.rank:]), "row")
        places = self._aligned(places, labels)
        self.build.at(node)
        return Value(self.build.make("dropout", [rows, places.node, *state], rows.shape, node.dtype,
                                     **node.attrs), "row")

    def _reshape(self, nodes, labels):
        node = nodes[0]
        inner = self.through_reshape(node, labels)
        x = node.operands[0]
        value = self.value(self._operands(nodes, 0), inner)
        own = value.node.shape[self.lead:] if value.kind != "plain" else value.node.shape
        if numel(own) != 1:
            self._full(value, self.features(x, inner))
        self.build.at(node)
        return self._shape_like(value, self.features(node, labels))

    def _transpose(self, nodes, labels):
        node = nodes[0]
        permutation = node.attrs["permutation"]
        inner = self.through_transpose(node, labels)
        value = self.value(self._operands(nodes, 0), inner)
        before = [d for d in range(node.rank) if not inner[d]]
        order = [before.index(p) for d, p in enumerate(permutation) if not labels[d]]
        lead = self.lead if value.kind != "plain" else 0
        moved = [o for o in order if value.node.shape[lead + o] != 1]
        if value.kind == "row" and moved != sorted(moved):
            raise NotRows("features of rows are transposed")
        self.build.at(node)
        order = [*range(lead), *(lead + o for o in order)]
        return Value(self.build.transpose(value.node, order), value.kind)

    def _broadcast(self, nodes, labels):
        node, x = nodes[0], nodes[0].operands[0]
        value = self.value(self._operands(nodes, 0), labels[node.rank - x.rank:])
        features = sum(not label for label in labels)
        lead = value.node.shape[:self.lead] if value.kind != "plain" else ()
        own = value.node.shape[len(lead):]
        return self._shape_like(value, (1,) * (features - len(own)) + own)

    def _slice(self, nodes, labels):
        node, x = nodes[0], nodes[0].operands[0]
        a = node.attrs
        if any(label and n != m for label, n, m in zip(labels, node.shape, x.shape)):
            raise NotRows("a slice takes some of the rows")
        value = self.value(self._operands(nodes, 0), labels)
        lead = value.node.shape[:self.lead] if value.kind != "plain" else ()
        self._full(value, self.features(x, labels))
        own = {key: [v for v, label in zip(a[key], labels) if not label]
               for key in ("starts", "limits", "strides")}
        self.build.at(node)
        return Value(self.build.slice(value.node, [0] * len(lead) + own["starts"],
                                      [*lead, *own["limits"]], [1] * len(lead) + own["strides"]),
                     value.kind)

    def _concat(self, nodes, labels):
        node = nodes[0]
        dim = node.attrs["dim"]
        if labels[dim]:
            raise NotRows("a concatenation joins rows")
        parts = []
        for i, o in enumerate(node.operands):
            value = self.value(self._operands(nodes, i), labels)
            parts.append(self._full(value, self.features(o, labels)))
        if len({v.kind for v in parts}) != 1:
            raise NotRows("a concatenation joins rows and other values")
        self.build.at(node)
        lead = self.lead if parts[0].kind != "plain" else 0
        at = lead + sum(not label for label in labels[:dim])
        return Value(self.build.concat([v.node for v in parts], at), parts[0].kind)

    def _over_features(self, nodes, labels, dims):
        """The value of the operand, and where dimensions of features are in it."""
        x = nodes[0].operands[0]
        if any(labels[d] for d in dims):
            raise NotRows(f"nn.{nodes[0].op} mixes rows")
        value = self._full(self.value(self._operands(nodes, 0), labels), self.features(x, labels))
        lead = self.lead if value.kind != "plain" else 0
        self.build.at(nodes[0])
        return value, [lead + sum(not label for label in labels[:d]) for d in dims]

    def _reduce(self, nodes, labels):
        node = nodes[0]
        dims, keep, inner = node.attrs["dims"], node.attrs["keep_dims"], list(labels)
        if not keep:
            for d in sorted(dims):
                inner.insert(d, "")
        try:
            value, at = self._over_features(nodes, inner, dims)
        except NotRows:
            if numel([node.operands[0].shape[d] for d in dims]) == self.count:
                raise NotRows("nn.reduce mixes the rows of tokens", True) from None
            raise
        return Value(self.build.reduce(node.attrs["kind"], value.node, at, keep), value.kind)

    def _softmax(self, nodes, labels):
        value, (at,) = self._over_features(nodes, labels, [nodes[0].attrs["dim"]])
        return Value(self.build.unary("softmax", value.node, dim=at), value.kind)

    def _norm(self, nodes, labels):
        node = nodes[0]
        value, _ = self._over_features(nodes, labels, [node.rank - 1])
        if any(n.operands[1:] != node.operands[1:] for n in nodes):
            raise NotRows("experts have norms of their own")
        return Value(self.build.make(node.op, [value.node, *node.operands[1:]], value.node.shape,
                                     node.dtype, **node.attrs), value.kind)

    _rms_norm = _layer_norm = _norm

    # Values by index.

    def _gather(self, nodes, labels):
        data, index = nodes[0].operands
        value = self._taken(nodes, labels, data, index, nodes[0].attrs["dim"])
        return self._shape_like(value, self.features(nodes[0], labels))

    def _embedding(self, nodes, labels):
        index, data = nodes[0].operands
        value = self._taken(nodes, labels, data, index, 0)
        return self._shape_like(value, self.features(nodes[0], labels))

    def _taken(self, nodes, labels, data, index, dim):
        own, rest = labels[dim:dim + index.rank], labels[:dim] + labels[dim + index.rank:]
        if len(nodes) > 1 or dim and labels[:dim] != ("",) * dim:
            raise NotRows("rows are taken by an index")
        whole = lambda label: [*labels[:dim], label, *labels[dim + index.rank:]]
        if self.is_choice(index, own) and not any(rest) and data.shape[dim] == self.experts:
            return self.value(data, whole("e"))
        if own == ("s",) and self.is_order(index):
            return self.value(data, whole("p"))
        if own == ("s",) and self.is_token(index):
            return self.value(data, whole("t"))
        if own == ("s",) and self.k == 1:
            repeated = self._repeated(data, index, dim)
            if repeated is not None:
                return self.value(repeated, whole("t"))
        # The choices of one token are all pairs.
        if (own == (self.pairs,) or self.count == 1 and own == ("k",)) and self.is_inverse(index):
            return self.value(data, whole("s"))
        raise NotRows("values are taken by an index that is not the routing's", True)

    def _repeated(self, data: Node, index: Node, dim: int) -> Node | None:
        """Where each choice is a token of its own: the rows of the tokens that make several choices, once
        for each of them, if an index has these tokens in the order of experts."""
        index = strip(index)
        times = constant_of(index.operands[1]) if index.op == "div" else None
        if times is None or index.dtype in FLOATS or data.shape[dim] * times != self.count or \
                not self.is_order(index.operands[0]):
            return None
        outer, features = data.shape[:dim + 1], data.shape[dim + 1:]
        if data.op == "reshape" and dim == 0 and data.operands[0].shape[-len(features):] == features:
            # The dimensions that tokens have before a reshape merges them.
            data = data.operands[0]
            outer = data.shape[:data.rank - len(features)]
        data = self.build.reshape(data, (*outer, 1, *features))
        data = self.build.broadcast(data, (*outer, int(times), *features))
        return self.build.reshape(data, (*outer[:dim], self.count, *features))

    def _take_along(self, nodes, labels):
        """Of all experts' results those of the choices."""
        node = nodes[0]
        (data, index), dim = node.operands, node.attrs["dim"]
        if len(nodes) == 1 and labels == ("s",) and self.is_order(index):
            return self.value(data, ["p"])
        if len(nodes) == 1 and (labels[dim] == "k" or self.k == 1 and index.shape[dim] == 1) and \
                data.shape[dim] == self.experts and self.is_choice(index, labels):
            value = self.value(data, [*labels[:dim], "e", *labels[dim + 1:]])
            return self._shape_like(value, self.features(node, labels))
        raise NotRows("values are taken by an index that is not the routing's", True)

    # Products.

    def _combine(self, nodes, labels):
        """The rows of the only choice of each token."""
        rows, indices = nodes[0].operands
        # Dimensions of tokens have their labels, and no other one has.
        has_labels = not labels[-1] and numel(self.features(indices, labels)) == 1
        if len(nodes) > 1 or not has_labels or not self._is_own(nodes[0]):
            raise NotRows("rows are those of another routing")
        return Value(self._reshaped(rows, self.features(nodes[0], labels)), "row")

    def _is_own(self, node: Node) -> bool:
        """Whether a value has, of each token, the row of the routing's only choice."""
        return self.again and chosen_by(node.operands[1]) is self.base and \
            node.operands[0].shape[0] == self.experts

    def _grouped_mm(self, nodes, labels):
        node = nodes[0]
        rows, weight, ends = node.operands
        if len(nodes) > 1 or labels != ("s", "") or not self.is_ends(ends) or self.may_exceed:
            raise NotRows("a grouped product has other rows than those of the routing's experts")
        return self._product(node, self.row(rows, labels), weight, True)

    def _product(self, node: Node, rows: Node, weight: Node, in_out: bool) -> Value:
        """The rows [experts, tokens..., in] times [experts, out, in] (or in, out)."""
        if weight.op == "transpose" and weight.attrs["permutation"] == [0, 2, 1]:
            weight, in_out = weight.operands[0], not in_out
        if weight.shape[0] != self.experts:
            raise NotRows("the weights have another number of experts")
        if self._depends_on_choices(weight):
            raise NotRows("a product of rows with others")
        size = weight.shape[1 if in_out else 2]
        if numel(rows.shape[self.lead:]) != size:
            raise NotRows("features of rows are repeated")
        self.build.at(node)
        rows = self._reshaped(rows, (size,))
        return Value(self.build.grouped_linear(rows, weight, in_out), "row")

    def _depends_on_choices(self, node: Node) -> bool:
        """Whether a value may depend on the indices: it does if it is computed in many steps."""
        stack, seen = [node], set()
        while stack and len(seen) < _MOST_STEPS:
            x = stack.pop()
            if x is self.base:
                return True
            if id(x) not in seen:
                seen.add(id(x))
                stack += x.operands
        return bool(stack)

    def _weight(self, value: Value) -> Node:
        """[experts, ., .] of a weight of each expert."""
        if value.kind == "row" or value.kind == "plain" and self.experts > 1:
            raise NotRows("a product of rows has no weight for each expert")
        return self.build.reshape(value.node, (self.experts, *value.node.shape[-2:]))

    def _linear(self, nodes, labels):
        """A linear layer of each expert."""
        node = nodes[0]
        weight = self._weight(self.value(self._operands(nodes, 1), ["", ""]))
        rows = self.row(self._operands(nodes, 0), labels)
        if numel(self.features(node, labels)) != node.shape[-1]:
            raise NotRows("a linear layer of several vectors for each row")
        result = self._product(node, rows, weight, node.attrs["in_out"])
        if len(node.operands) > 2:
            bias = self.value(self._operands(nodes, 2), [""])
            result = Value(self.build.binary("add", result.node, bias.node), "row")
        return self._shape_like(result, self.features(node, labels))

    def _matmul(self, nodes, labels):
        node, reason = nodes[0], NotRows("a product mixes rows")
        for contracted, rule in (("e", self._of_choices), ("c", self._through_slots),
                                 ("t", self._through_slots), ("", self._times_weight)):
            both = self.labels_of_product(node, labels, contracted)
            for other in (1, 0):
                try:
                    value = rule(nodes, both, other)
                    if value is not None:
                        return self._shape_like(value, self.features(node, labels))
                except NotRows as why:
                    reason = reason if reason.is_sure else why
        raise reason

    def _times_weight(self, nodes, labels, w: int):
        """Rows times weights of experts, which are operand `w`."""
        node, x = nodes[0], 1 - w
        flags = [node.attrs["transpose_lhs"], node.attrs["transpose_rhs"]]
        if any(labels[w][-2:]):
            return None
        free = -2 if (x == 0) != flags[x] else -1
        if not labels[x][free] and node.operands[x].shape[free] != 1:
            raise NotRows("a product of several vectors for each row")
        weight = self._weight(self.value(self._operands(nodes, w), labels[w]))
        try:
            rows = self.row(self._operands(nodes, x), labels[x])
        except NotRows as why:
            raise NotRows(str(why), True) from None
        return self._product(node, rows, weight, (w == 1) != flags[w])

    def _of_choices(self, nodes, labels, hot: int):
        """All experts' results times one-hot choices: those of the choices."""
        x = 1 - hot
        if len(nodes) > 1 or not self.is_indicator(nodes[0].operands[hot], labels[hot]):
            return None
        return self.value(nodes[0].operands[x], labels[x])

    def _through_slots(self, nodes, labels, place: int):
        """Tokens that places bring to slots, or back. No other row arrives."""
        x = 1 - place
        if len(nodes) > 1 or not self.is_place(nodes[0].operands[place], labels[place]):
            return None
        return Value(self.row(nodes[0].operands[x], labels[x]), "row")
