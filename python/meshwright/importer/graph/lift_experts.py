# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Mixtures of experts, however they are written, as dispatch, products of experts, combine.

All forms compute y[t] = sum over j of w[t, j] f(x[t]; weights of expert i[t, j]). They differ in
where the sum stands:

1. over the choices of each token, of values for each choice: rows ordered by expert and back,
   weights gathered for each choice, or all experts' results, of which those of the choices are
   taken;
2. over all experts, of results for each expert and token times what is zero for experts that are
   not chosen: one-hot products, slots;
3. as a chain of additions, one of each expert: a loop with masks;
4. nowhere, if each token has one expert.

What is summed becomes rows of experts (expert_rows.py), if each is proved to be its own choice's.
What is not proved stays as it is: products of rows in the order of experts are dispatched by their
offsets.
"""
from .dialect import FLOATS
from .expert_choices import (
    NotRows,
    bound_of,
    chosen_by,
    constant_expert,
    counted_choices,
    counts,
    scores_of,
)
from .expert_rows import THROUGH, Rows
from .match import constant_of, strip
from .nodes import Builder, Graph, Node, Remark, numel

#: Operations between a sum and the products of experts, as far as is looked for them.
_BELOW = THROUGH | {"matmul", "grouped_mm", "take_along", "embedding", "linear"}
_MOST_STEPS = 400


#: These are no reasons for users: nothing is known of a product of experts then.
_NO_PRODUCT, _NO_SUM = "no product of experts", "no sum over choices or experts"


def lift_experts(graph: Graph):
    build = Builder()
    #: Why values that depend on indices are not lifted, by the ids of the indices.
    reasons: dict[int, str] = {}
    keep = graph.nodes()  # so that the ids stay taken
    uses = graph.uses()
    #: Additions of which the result is a term of another one, and nothing else.
    inner = {id(node) for node in keep if node.op == "add" and
             [u.op if u else None for u in uses[id(node)]] == ["add"]}

    def pattern(node: Node) -> Node | None:
        build.at(node)
        if node.op == "reduce" and node.attrs["kind"] == "sum" and len(node.attrs["dims"]) == 1 or \
                node.op == "matmul" and 1 in node.shape[-2:]:
            return _lifted(build, node, _routings(node), _sum, reasons)
        if node.op == "add" and id(node) not in inner:
            return _from_loop(build, node, inner)
        return None

    graph.rewrite(pattern)
    graph.rewrite(lambda node: _lifted(build.at(node), node, _alone(node), _single, reasons))
    _remark(graph, reasons)
    graph.rewrite(lambda node: _plain(build.at(node), node))


def _remark(graph: Graph, reasons: dict[int, str]):
    """Takes down which choices have products that stay as they are, and why."""
    known = set()
    for node in graph.nodes():
        for x in map(_unmoved, node.operands if node.op == "matmul" else [node]):
            index, _ = _index_of(x) if x.op in ("gather", "grouped_mm") else (None, 0)
            why = "no sum over the choices of a token"
            if index is None and x.op == "grouped_mm":
                index, why = x.operands[2], "the numbers of its rows count no choices of tokens"
            if index is None or id(index) in known or x.op == "gather" and \
                    (node is x or _unmoved(x.operands[0]).op != "parameter"):
                continue
            known.add(id(index))
            why = reasons.get(id(index), why)
            graph.remarks.append(Remark(f"a product of experts stays as it is: {why}", node.loc))


def _lifted(build: Builder, node: Node, routings, rule, reasons) -> Node | None:
    for indices, experts in routings:
        try:
            result, wider = rule(build, node, indices, experts, None)
            if wider:  # once more, with the batch apart from the sequence
                result, _ = rule(build.at(node), node, indices, experts, wider)
            return result
        except NotRows as why:
            if str(why) not in (_NO_PRODUCT, _NO_SUM):
                reasons[id(indices)] = str(why)
    return None


def _routings(node: Node) -> list[tuple[Node, int]]:
    """Indices of experts that a sum may depend on, and the numbers of experts."""
    found: dict[tuple, tuple[Node, int]] = {}
    queue, seen = list(node.operands), set()
    while queue and len(seen) < _MOST_STEPS:
        x = queue.pop(0)
        if id(x) in seen or x.op not in _BELOW:
            continue
        seen.add(id(x))
        queue += x.operands
        index, experts = _index_of(x)
        if index is not None and index.op not in ("static", "iota") and \
                index.dtype not in (*FLOATS, "i1"):
            found.setdefault((id(index), experts), (index, experts))
    return list(found.values())


def _index_of(x: Node) -> tuple[Node | None, int]:
    """The indices of experts that a node reads, and the number of experts."""
    if x.op == "grouped_mm":
        return _counted_index(x.operands[2])
    if x.op == "gather" and x.attrs["dim"] == 0 and x.operands[0].rank > 2:
        return strip(x.operands[1]), x.operands[0].shape[0]
    if x.op == "take_along":
        index = x.operands[1]
        while index.op in ("broadcast", "reshape"):
            index = index.operands[0]
        return strip(index), x.operands[0].shape[x.attrs["dim"]]
    if x.op == "compare" and x.attrs["kind"] == "eq":
        for index, count in (x.operands, x.operands[::-1]):
            size = numel(count.shape)
            if any(counts(count, d, size) for d in range(count.rank)):
                while index.op in ("broadcast", "reshape", "gather"):
                    index = index.operands[1 if index.op == "gather" else 0]
                return strip(index), size
    return None, 0


def _counted_index(ends: Node) -> tuple[Node | None, int]:
    """The indices of experts that are counted up to `ends`, and the number of experts."""
    counted = counted_choices(ends)
    if counted is None:
        return None, 0
    queue, seen = [counted], 0
    while queue and seen < _MOST_STEPS:
        x, seen = queue.pop(0), seen + 1
        if x.op == "histc":
            index = strip(x.operands[0])
            if index.op in ("take_along", "gather"):
                index = strip(index.operands[0])
            return index, counted.shape[0]
        if x.op == "compare":
            index = _index_of(x)[0] or (constant_expert(x) or (None,))[0]
            if index is not None:
                return index, counted.shape[0]
        queue += x.operands
    return None, 0


def _sum(build: Builder, node: Node, indices: Node, experts: int, tokens):
    """A sum over choices or over experts; with the dimensions that tokens have before a reshape
    merges them, if those of `indices` are fewer."""
    if node.op == "reduce":
        size = node.operands[0].shape[node.attrs["dims"][0]]
    else:
        size = node.operands[0].shape[-2 if node.attrs["transpose_lhs"] else -1]
    reason = NotRows(_NO_SUM)
    every = [("e", k) for k in _numbers(indices)] if size == experts else []
    for label, k in [("k", size), *every]:
        if not k or numel(indices.shape) % k:
            continue
        rows = Rows(build, indices, experts, tokens or _tokens(indices, k), k)
        parts = _summands(rows, node, label)
        if parts is None:
            continue
        try:
            return _combined(build, rows, node, *parts)
        except NotRows as why:
            reason = why
    raise reason


def _numbers(indices: Node) -> list[int]:
    """How many choices a token may have: one without a dimension of choices."""
    return sorted({indices.shape[-1] if indices.rank else 1, 1}, reverse=True)


def _tokens(indices: Node, k: int) -> tuple[int, ...]:
    """The dimensions of tokens."""
    if indices.rank > 1 and indices.shape[-1] == k:
        return indices.shape[:-1]
    return indices.shape if k == 1 and indices.rank else (numel(indices.shape) // k,)


def _summands(rows: Rows, node: Node, label: str):
    """The factors of what is summed, with their labels, and the labels of the result."""
    x = node.operands[0]
    if node.op == "reduce":
        dim = node.attrs["dims"][0]
        inner = _with_tokens(x.shape, dim, rows.count)
        if inner is None:
            return None
        outer = inner if node.attrs["keep_dims"] else inner[:dim] + inner[dim + 1:]
        inner = [*inner[:dim], label, *inner[dim + 1:]]
        factors = rows.factors(x, inner) if label == "e" else [(x, inner)]
    else:
        outer = _with_tokens(node.shape[:-2], None, rows.count)
        if outer is None:
            return None
        outer = [*outer, "", ""]
        both = rows.labels_of_product(node, outer, label)
        factors = [f for y, own in zip(node.operands, both)
                   for f in (rows.factors(y, own) if label == "e" else [(y, own)])]
    if label == "e":
        factors = _without_choice(rows, factors)
    return None if factors is None else (factors, outer)


def _with_tokens(shape, skipped, count: int) -> list[str] | None:
    """Labels of which "t" are neighbours that have as many elements as there are tokens."""
    for first in range(len(shape)):
        for last in range(first + 1, len(shape) + 1):
            if skipped in range(first, last):
                break
            if numel(shape[first:last]) == count:
                return ["t" if first <= d < last else "" for d in range(len(shape))]
    return [""] * len(shape) if count == 1 else None


def _without_choice(rows: Rows, factors, expert: int | None = None):
    """Factors of a product that is zero for experts that are not chosen, as functions of the
    choice: the one that proves it is replaced by what it is for the choice."""
    for n, (x, own) in enumerate(factors):
        weights = rows.chosen(x, own, expert)
        if weights is not None:
            return factors[:n] + weights + factors[n + 1:]
    if expert is None and rows.distinct and \
            any(rows.is_zero_elsewhere(x, own) for x, own in factors):
        return factors
    return None


def _combined(build: Builder, rows: Rows, node: Node, factors, labels):
    """The sum over choices of products of factors."""
    parts = [rows.row([build.cast(n, node.dtype) for n in ([x] if isinstance(x, Node) else x)], own)
             for x, own in factors]
    build.at(node)
    widest = max(parts, key=lambda p: numel(p.shape[rows.lead:]))
    if any(numel(p.shape[rows.lead:]) not in (1, numel(widest.shape[rows.lead:])) for p in parts):
        raise NotRows("a sum of outer products")
    flat = [build.reshape(p, (*p.shape[:rows.lead], numel(p.shape[rows.lead:]))) for p in parts]
    total = flat[0]
    for part in flat[1:]:
        total = build.binary("mul", total, part)
    return _of_tokens(build, rows, node, total, labels)


def _of_tokens(build: Builder, rows: Rows, node: Node, total: Node, labels):
    """The sum over choices, in the shape of a node; and more dimensions that tokens may have."""
    sizes = [n for n, label in zip(node.shape, labels) if n != 1 and not label]
    own = [label for n, label in zip(node.shape, labels) if n != 1]
    if numel(sizes) != total.shape[-1] or own != sorted(own, reverse=True) or \
            not _has_product(total):
        raise NotRows(_NO_PRODUCT)
    result = build.reshape(build.combine(total, rows.indices), node.shape)
    wider = next((w for w in rows.wider if len(w) > len(rows.tokens) == 1 and
                  numel(w) == rows.count), None)
    return result, wider


def _has_product(node: Node) -> bool:
    stack, seen = [node], set()
    while stack:
        x = stack.pop()
        if x.op == "grouped_linear":
            return True
        if id(x) not in seen and x.routed:
            seen.add(id(x))
            stack += x.operands
    return False


def _alone(node: Node) -> list[tuple[Node, int]]:
    """The experts, one of each token, whose weights or results a node has: their indices, and the
    numbers of experts."""
    if node.op == "add":
        moved = [_unmoved(x) for x in node.operands]
        return [(chosen_by(x.operands[1]), x.operands[0].shape[0]) for x, other in
                (moved, moved[::-1]) if x.op == "combine" and other.op in ("gather", "embedding")]
    if node.op == "gather" and node.attrs["dim"] == 0 and _goes_back(strip(node.operands[1])):
        return _routings(node)
    taken = {"matmul": node.operands, "take_along": [node]}.get(node.op, [])
    found = [_index_of(x) for x in map(_unmoved, taken) if x.op in ("gather", "take_along")]
    return [(index, experts) for index, experts in found if index is not None and index.rank]


def _goes_back(index: Node) -> bool:
    """Whether an index may take rows back from the order of experts."""
    if index.op == "top_k" and index.rank == 1 and index.operands[0].op in ("sub", "neg"):
        return strip(index.operands[0].operands[-1]).op == "top_k"
    return index.op == "index_copy"


def _unmoved(node: Node) -> Node:
    while node.op in ("reshape", "transpose", "broadcast", "cast"):
        node = node.operands[0]
    return node


def _single(build: Builder, node: Node, indices: Node, experts: int, tokens):
    """The result of the only expert of each token: a product, or a product and a bias. Where rows in
    the order of experts go back, each choice is a token of its own."""
    if node.op == "gather":
        rows = Rows(build, indices, experts, indices.shape, 1, again=True)
        if not rows.in_range:
            raise NotRows("an index may be out of range")
        labels = ["t"] + [""] * (node.rank - 1)
        total = rows.row(node, labels)
        size = numel(total.shape[rows.lead:])
        total = build.at(node).reshape(total, (*total.shape[:rows.lead], size))
        return _of_tokens(build, rows, node, total, labels)[0], None
    if scores_of(indices) is not None and indices.shape[-1] > 1 or \
            bound_of(indices) is None and sum(n > 1 for n in indices.shape) > 1:
        raise NotRows(_NO_SUM)
    rows = Rows(build, indices, experts, tokens or _tokens(indices, 1), 1, again=True)
    last = 2 if node.op == "matmul" else 0
    labels = _with_tokens(node.shape[:node.rank - last], None, rows.count)
    if labels is None:
        raise NotRows("no dimension of tokens")
    labels += [""] * last
    if node.op == "add" and all(
            rows.value(x, labels[node.rank - x.rank:]).kind != "expert" for x in node.operands):
        raise NotRows("no bias of the experts")
    total = rows.row(node, labels)
    size = numel(total.shape[rows.lead:])
    if size == 1:  # an element of a vector by its index
        raise NotRows(_NO_PRODUCT)
    total = build.at(node).reshape(total, (*total.shape[:rows.lead], size))
    return _of_tokens(build, rows, node, total, labels)


def _from_loop(build: Builder, node: Node, inner: set[int]) -> Node | None:
    """A sum of terms, of which some are those of experts."""
    terms, rest = {}, []
    for leaf in _leaves(node, inner):
        found = constant_expert(leaf)
        if found is None or found[1] in terms.get(id(found[0]), (None, {}))[1]:
            rest.append(leaf)
        else:
            terms.setdefault(id(found[0]), (found[0], {}))[1][found[1]] = leaf
    results = []
    for indices, leaves in terms.values():
        found = None
        if sorted(leaves) == list(range(len(leaves))):
            for k in _numbers(indices):
                try:
                    found = found or _loop(build.at(node), indices,
                                           [leaves[e] for e in sorted(leaves)], k)
                except NotRows:
                    pass
        results += [found] if found is not None else []
        rest += [] if found is not None else leaves.values()
    if not results:
        return None
    build.at(node)
    total = None
    for part in rest + results:
        if constant_of(part) != 0:
            total = part if total is None else build.binary("add", total, part)
    return build.broadcast(total, node.shape)


def _leaves(node: Node, inner: set[int]) -> list[Node]:
    """What a chain of additions sums, in its order."""
    chain, leaves = [node], []
    while chain:
        x = chain.pop()
        if x is node or id(x) in inner:
            chain += reversed(x.operands)
        else:
            leaves.append(x)
    return leaves


def _loop(build: Builder, indices: Node, leaves, k: int) -> Node | None:
    node, experts = leaves[0], len(leaves)
    if any(leaf.shape != node.shape for leaf in leaves):
        return None
    rows = Rows(build, indices, experts, _tokens(indices, k), k)
    labels = _with_tokens(node.shape, None, rows.count)
    if labels is None or not rows.in_range:
        return None
    alike = []
    for expert, leaf in enumerate(leaves):
        factors = _without_choice(rows, rows.factors(leaf, labels), expert)
        if factors is None:
            return None
        alike.append(factors)
    if len({tuple(own for _, own in map(_tuple, factors)) for factors in alike}) > 1:
        return None
    joined = [(tuple(factors[i][0] for factors in alike), own)
              for i, (_, own) in enumerate(alike[0])]
    return _combined(build, rows, node, joined, labels)[0]


def _tuple(factor):
    return factor[0], tuple(factor[1])


def _plain(build: Builder, node: Node) -> Node | None:
    """The operations that only this step knows, by others."""
    if node.op == "grouped_mm":
        rows, weight, ends = node.operands
        count, experts = rows.shape[0], weight.shape[0]
        expert = build.reshape(_owner(build, ends, count, node.attrs["whole"]), (count, 1))
        own = build.dispatch(rows, expert, experts, False)
        return build.combine(build.grouped_linear(own, weight, True), expert)
    if node.op == "owner":
        return _owner(build, node.operands[0], node.shape[0], True)
    if node.op == "histc":
        return _histogram(build, node)
    return None


def _owner(build: Builder, ends: Node, count: int, whole: bool) -> Node:
    """The expert of each of `count` rows, by the ends of the rows of each expert; -1 behind the last
    end. If the ends are `whole`, the run fails where the last one is not that of the rows, or where an
    expert has fewer rows than none."""
    experts = ends.shape[0]
    ends = build.cast(ends, "i64")
    if whole:
        starts = build.concat([build.broadcast(build.scalar(0, "i64"), (1,)),
                               build.slice(ends, [0], [experts - 1])], 0) if experts > 1 else \
            build.broadcast(build.scalar(0, "i64"), (1,))
        ends = build.binary("add", starts, _checked(build, build.binary("sub", ends, starts), count + 1))
        last = build.binary("sub", build.slice(ends, [experts - 1], [experts]), build.scalar(count, "i64"))
        ends = build.binary("add", ends, _checked(build, last, 1))
    steps = build.make("iota", [], (count, 1), "i64", dim=0)
    before = build.compare("le", build.reshape(ends, (1, experts)), steps)
    expert = build.reduce("sum", build.cast(before, "i64"), [1], False)
    if whole:
        return expert
    behind = build.compare("ge", expert, build.scalar(experts, "i64"))
    return build.select(behind, build.scalar(-1, "i64"), expert)


def _checked(build: Builder, numbers: Node, size: int) -> Node:
    """Numbers that are none of 0, ..., size - 1 make the run fail."""
    return build.gather(build.make("iota", [], (size,), "i64", dim=0), numbers, 0)


def _histogram(build: Builder, node: Node) -> Node:
    """How many elements each bin has. The last bin has both of its ends."""
    x, bins, low, high = node.operands[0], node.shape[0], node.attrs["low"], node.attrs["high"]
    if low == high:
        return build.broadcast(build.scalar(numel(x.shape), x.dtype), node.shape)
    number = lambda value: build.scalar(value, x.dtype)
    place = build.binary("mul", build.binary("sub", x, number(low)), number(bins))
    place = build.binary("div", place, number(high - low))
    if x.dtype not in ("i64", "i32"):
        place = build.unary("floor", place)
    place = build.binary("minimum", place, number(bins - 1))
    inside = build.binary("and", build.compare("ge", x, number(low)),
                          build.compare("le", x, number(high)))
    steps = build.cast(build.make("iota", [], (1, bins), "i64", dim=1), x.dtype)
    column = lambda y: build.reshape(y, (numel(x.shape), 1))
    hit = build.binary("and", build.compare("eq", column(place), steps), column(inside))
    return build.reduce("sum", build.cast(hit, x.dtype), [0], False)
