# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attention, from PyTorch's own operation or from matmul, softmax, matmul.

Attention that is not recognised stays matmul and softmax, which compute the same function.
"""
import math
from dataclasses import dataclass

from .forms import Dense, Diagonal, diagonal, greatest, times
from .mask_bounds import take_bounds
from .masks import Mask, MaskReader, finish
from .match import constant_of, same, scalar_operand
from .nodes import Builder, Graph, Node, numel
from .streams import apply, index_of, states

#: Numbers from here down absorb the scores that are added to them.
_ABSORBING = -1e12


def lift_attention(graph: Graph):
    uses = graph.uses()
    build = Builder()

    def pattern(node: Node) -> Node | None:
        build.at(node)
        if node.op == "sdpa":
            return _from_sdpa(build, graph, node)
        if node.op == "matmul":
            return _from_softmax(build, graph, node, uses)
        return None

    graph.rewrite(pattern)


def without_repeats(x: Node) -> Node:
    """Keys or values [batch, heads, ...] before their heads were repeated for the query's."""
    if x.op == "broadcast":
        inner = x.operands[0]
        if inner.rank == x.rank and inner.shape[0] == x.shape[0] and \
                inner.shape[2:] == x.shape[2:] and inner.shape[1] == 1:
            return inner
    if x.op == "reshape" and x.operands[0].op == "broadcast":
        wide, inner = x.operands[0], x.operands[0].operands[0]
        if wide.rank == 5 and inner.rank == 5 and \
                wide.shape == (x.shape[0], inner.shape[1], x.shape[1] // inner.shape[1],
                               *x.shape[2:]) and \
                inner.shape == (wide.shape[0], wide.shape[1], 1, *wide.shape[3:]):
            build = Builder(x.loc, x.position)
            return build.reshape(inner, (x.shape[0], inner.shape[1], *x.shape[2:]))
    return x


@dataclass
class _Dropout:
    """The dropout of the weights of attention."""
    graph: Graph
    probability: float
    stream: int


def _from_sdpa(build: Builder, graph: Graph, node: Node) -> Node | None:
    q, k, v, *masks = node.operands
    dropout = node.attrs["dropout"] and _Dropout(graph, node.attrs["dropout"], node.attrs["stream"])
    if masks and masks[0].rank > node.rank:
        return _written(build, node, dropout)
    four = _four_dimensions(build, q, k, v, node.rank)
    if four is None:
        return _written(build, node, dropout)
    q, k, v, widen = four
    mask = Mask()
    scores = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    reader = MaskReader(build, scores)
    if node.attrs["causal"]:
        mask.interval(-math.inf, 0)
    for extra in masks:
        extra = widen(extra)
        (reader.boolean if extra.dtype == "i1" else reader.additive)(mask, extra)
    q, scale = _unscaled(q, node.attrs["scale"])
    k, scale = _unscaled(k, scale)
    result = _attention(build, q, k, v, mask, scale, None, node.dtype, dropout)
    return build.reshape(result, node.shape)


def _four_dimensions(build, q, k, v, rank):
    """Operands as [batch, heads, tokens, features], and how masks follow."""
    if rank == 4:
        sizes = {x.shape[0] for x in (q, k, v)}
        if len(sizes) > 1:
            batch = max(sizes)
            q, k, v = (build.broadcast(x, (batch, *x.shape[1:])) for x in (q, k, v))
        k, v = _paired(build, k, v)
        if q.shape[1] % k.shape[1]:
            heads = max(q.shape[1], k.shape[1])
            if heads % q.shape[1]:
                return None
            q = build.broadcast(q, (q.shape[0], heads, *q.shape[2:]))
        return q, k, v, lambda m: m
    if rank == 2:
        one = lambda x: build.reshape(x, (1, 1, *x.shape))
        return one(q), one(k), one(v), lambda m: m
    if rank == 3:
        if len({x.shape[0] for x in (q, k, v)}) > 1:
            return None
        # The leading dimension is heads where it was cut out of the features, else batch.
        heads = _strip_scale(q).op != "linear"
        wide = lambda x: (1, *x.shape) if heads else (x.shape[0], 1, *x.shape[1:])
        widen = lambda m: build.reshape(m, wide(m)) if m.rank == 3 else m
        return *(build.reshape(x, wide(x)) for x in (q, k, v)), widen
    if rank == 5:
        batch, outer, inner = q.shape[:3]
        if k.shape[:3] == v.shape[:3] == (batch, outer, 1):  # grouped queries
            merged = [build.reshape(q, (batch, outer * inner, *q.shape[3:])),
                      *(build.reshape(x, (batch, outer, *x.shape[3:])) for x in (k, v))]
        elif k.shape[:3] == v.shape[:3] == q.shape[:3]:
            merged = [build.reshape(x, (batch * outer, inner, *x.shape[3:])) for x in (q, k, v)]
        else:
            return None

        def widen(m):
            m = build.reshape(m, (1,) * (5 - m.rank) + m.shape)
            if all(n == 1 for n in m.shape[:3]):
                return build.reshape(m, (1, 1, *m.shape[3:]))
            if m.shape[1] == m.shape[2] == 1 and merged[0].shape[0] == batch:
                return build.reshape(m, (m.shape[0], 1, *m.shape[3:]))
            full = build.broadcast(m, (batch, outer, inner, *m.shape[3:]))
            return build.reshape(full, (*merged[0].shape[:2], *m.shape[3:]))

        return *merged, widen
    return None


def _paired(build, k, v):
    """Keys and values without repeated heads, if both can do without."""
    plain_k, plain_v = without_repeats(k), without_repeats(v)
    if plain_k.shape[1] == plain_v.shape[1]:
        return plain_k, plain_v
    heads = max(k.shape[1], v.shape[1])
    return tuple(build.broadcast(x, (x.shape[0], heads, *x.shape[2:])) for x in (k, v))


def _strip_scale(x: Node) -> Node:
    while x.op in ("mul", "div") and scalar_operand(x, x.op):
        x = scalar_operand(x, x.op)[0]
    return x


def _unscaled(x: Node, scale: float):
    """Takes a constant factor out of an operand, into the scale."""
    if x.dtype in ("f32", "f64"):
        while True:
            found = scalar_operand(x, "mul")
            if found:
                x, scale = found[0], scale * found[1]
                continue
            found = scalar_operand(x, "div")
            if found and found[1]:
                x, scale = found[0], scale / found[1]
                continue
            break
    return x, scale


def _attention(build, q, k, v, mask: Mask, scale, soft_cap, dtype, dropout=None,
               sinks: Node | None = None) -> Node:
    shape = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    bounds = take_bounds(build, mask, shape)
    structure, padding, bias = finish(build, mask, shape, q.dtype)
    if bounds.q_positions is not None:
        structure = {**structure, "causal": True, "window_left": bounds.window_left}
    optional = {"key_padding": padding, "bias": bias, **bounds.operands}
    attrs = {"scale": float(scale), "causal": structure.pop("causal")}
    if dropout:
        keys, ones = shape[3], (*shape[:3], 1)
        rows = build.binary("mul", index_of(build, ones), build.scalar(keys, "i64"))
        optional["drop_rows"] = build.broadcast(build.reshape(rows, rows.shape[:3]), shape[:3])
        optional["drop_keys"] = build.make("iota", [], (keys,), "i64", dim=0)
        optional["seed"], optional["step"] = states(dropout.graph)
        attrs |= {"dropout": dropout.probability, "stream": dropout.stream}
    optional = {name: x for name, x in optional.items() if x is not None}
    wide = "f64" if q.dtype == "f64" else "f32"
    result = build.make("attention", [q, k, v, *optional.values()], (*q.shape[:3], v.shape[3]), q.dtype,
                        further=[(q.shape[:3], wide)] if sinks is not None else (),
                        **attrs, **structure, soft_cap=soft_cap, given=tuple(optional))
    if sinks is not None:
        # The weights of the keys are a part of all weights: e^lse of e^lse + e^sink.
        part = build.binary("sub", build.result(result, 1), build.cast(sinks, wide))
        part = build.reshape(build.unary("sigmoid", part), (*q.shape[:3], 1))
        result = build.binary("mul", build.cast(result, wide), part)
    return build.cast(result, dtype)


def _written(build: Builder, node: Node, dropout) -> Node:
    """sdpa of a shape that nn.attention does not have, as matmul and softmax."""
    q, k, v, *masks = node.operands
    scores = build.matmul(q, k, transpose_rhs=True)
    scores = build.binary("mul", scores, build.scalar(node.attrs["scale"], node.dtype))
    if node.attrs["causal"]:
        form = diagonal(scores.shape[-2:], (-1, 1), 0)
        form.table = form.table <= 0
        masks.append(build.static(form, scores.shape[-2:], "i1"))
    for mask in masks:
        if mask.dtype == "i1":
            scores = build.select(mask, scores, build.scalar(-math.inf, node.dtype))
        else:
            scores = build.binary("add", scores, mask)
    weights = build.make("softmax", [scores], scores.shape, scores.dtype, dim=scores.rank - 1)
    if dropout:
        weights = apply(build, dropout.graph, weights, weights.shape, dropout.probability,
                        dropout.stream)
    return build.matmul(weights, v)


# matmul, softmax, matmul.

@dataclass
class _Scores:
    """scores = factor * q k^T, then what the mask adds, cap * tanh(. / cap) in between."""
    product: Node
    factor: float
    soft_cap: float | None
    #: The finite numbers that replace hidden scores.
    fills: set[float]


def _from_softmax(build: Builder, graph: Graph, node: Node, uses) -> Node | None:
    if node.attrs["transpose_lhs"] or node.rank not in (2, 3, 4, 5):
        return None
    found = _read_weights(graph, node.operands[0], uses)
    if found is None:
        return None
    weights, dropout, has_sinks, is_regrouped = found
    if weights.op != "softmax" or weights.attrs["dim"] != weights.rank - 1 or \
            not is_regrouped and weights.shape[:-2] != node.shape[:-2]:
        return None
    logits, sinks = weights.operands[0], None
    if has_sinks:
        split = _without_sinks(logits, node.operands[0].shape[-1])
        if split is None:
            return None
        logits, sinks = split
    found = _read_scores(build, logits)
    if found is None:
        return None
    scores, terms = found
    product = scores.product
    q, k = product.operands
    v = node.operands[1]
    swap = lambda x: build.transpose(x, [*range(x.rank - 2), x.rank - 1, x.rank - 2])
    if product.attrs["transpose_lhs"]:
        q = swap(q)
    if not product.attrs["transpose_rhs"]:
        k = swap(k)
    if node.attrs["transpose_rhs"]:
        v = swap(v)
    if q.shape[:-2] != product.shape[:-2]:
        return None
    inner, outer, own = product.shape[:-2], node.shape[:-2], weights.shape[:-2]
    leads = [own, inner] if inner != outer or (len(outer), len(own)) == (1, 2) else [outer]
    for lead in leads:
        operands = [_regrouped_operand(build, x, its, lead) for x, its in ((q, inner), (k, inner), (v, outer))]
        if None not in operands:
            break
    else:
        return None
    q, k, v = operands
    terms = [(kind, _regrouped(build, term, lead)) for kind, term in terms]
    four = _four_dimensions(build, q, k, v, q.rank)
    if four is None:
        return None
    q, k, v, widen = four
    terms = [(kind, widen(term)) for kind, term in terms]
    reader = MaskReader(build, (q.shape[0], q.shape[1], q.shape[2], k.shape[2]))
    mask = _read_mask(build, reader, terms, weights.dtype)
    filled = [term for term in terms if term[0] == "filled"]
    if _read_mask(build, reader, filled, weights.dtype).hides_by_inputs():
        if not _fill_is_last(terms, scores.fills):
            return None
        seen = _sees_a_key(build, terms)
        q = build.select(seen, q, build.scalar(0.0, q.dtype))
        mask = _read_mask(build, reader, terms, weights.dtype, seen)
    mask.settle()
    if not all(reader.keeps(term, mask) for kind, term in terms if kind == "kept"):
        return None
    q, scale = _unscaled(q, scores.factor)
    k, scale = _unscaled(k, scale)
    dtype = v.dtype
    q, k = build.cast(q, dtype), build.cast(k, dtype)
    if sinks is not None:
        heads = 1
        for size in lead[1:]:
            heads *= size
        if heads != q.shape[1] or lead[0] != q.shape[0] or dropout or mask.depends_on_inputs():
            return None
        sinks = build.broadcast(sinks, (1, heads, 1)) if numel(sinks.shape) == 1 else \
            build.reshape(sinks, (1, heads, 1))
    result = _attention(build, q, k, v, mask, scale, scores.soft_cap, node.dtype,
                        dropout, sinks)
    return build.reshape(result, node.shape)


def _read_weights(graph: Graph, weights: Node, uses):
    """Walks from the weights to their softmax: (softmax, dropout, whether the last weights are of
    sinks, whether leading dimensions were regrouped)."""
    dropout, sinks, is_regrouped = None, False, False
    while True:
        if len(uses.get(id(weights), ())) > 1:
            return None
        if weights.op == "cast":
            weights = weights.operands[0]
        elif weights.op == "dropout" and not dropout and weights.operands[1].shape == weights.shape:
            dropout = _Dropout(graph, weights.attrs["probability"], weights.attrs["stream"])
            weights = weights.operands[0]
        elif _regroups(weights):
            weights, is_regrouped = weights.operands[0], True
        elif weights.op == "slice" and not sinks and not any(weights.attrs["starts"]) and \
                weights.shape[:-1] == weights.operands[0].shape[:-1] and \
                weights.shape[-1] + 1 == weights.operands[0].shape[-1]:
            weights, sinks = weights.operands[0], True
        else:
            return weights, dropout, sinks, is_regrouped


def _regroups(node: Node) -> bool:
    """Whether the leading dimensions alone have another shape."""
    return node.op == "reshape" and min(node.rank, node.operands[0].rank) > 2 and \
        node.shape[-2:] == node.operands[0].shape[-2:]


def _regrouped_operand(build: Builder, x: Node, own, lead) -> Node | None:
    """An operand of a product of leading dimensions `own`, for the leading dimensions of the scores, which have batch
    and heads apart. Keys of one head may serve all."""
    shape = x.shape[:-2]
    if len(shape) != len(own):
        return None
    if own == lead:
        return x
    if len(own) == 1 and numel(own) == numel(lead):
        target = lead if shape == own else (1,) * len(lead)
    elif (1,) * (len(lead) - len(own)) + own == lead:
        target = (1,) * (len(lead) - len(own)) + shape
    else:
        return None
    return build.reshape(x, (*target, *x.shape[-2:]))


def _regrouped(build: Builder, term: Node, lead) -> Node:
    """A term of scores [outer..., queries, keys] for scores of other leading dimensions of equal
    number."""
    tail = term.shape[-2:]
    own = term.shape[:-2]
    if term.rank < 3 or len(own) <= len(lead) and all(
            a in (1, b) for a, b in zip(own[::-1], lead[::-1])):
        return term
    if numel(own) == 1:
        return build.reshape(term, (*([1] * len(lead)), *tail))
    if numel(own) == numel(lead):
        return build.reshape(term, (*lead, *tail))
    return term


def _without_sinks(logits: Node, keys: int) -> tuple[Node, Node] | None:
    """(scores, sinks) of scores beside one more score of each head [..., heads, 1, 1]."""
    if logits.op == "sub" and logits.operands[1].op == "reduce" and \
            logits.operands[1].attrs["kind"] == "max" and \
            same(logits.operands[1].operands[0], logits.operands[0]):
        logits = logits.operands[0]  # softmax does not depend on it
    if logits.op != "concat" or len(logits.operands) != 2 or logits.attrs["dim"] != logits.rank - 1:
        return None
    scores, sinks = logits.operands
    while sinks.op in ("broadcast", "cast"):
        sinks = sinks.operands[0]
    sinks_shape = (1,) * (logits.rank - sinks.rank) + sinks.shape
    if scores.shape[-1] != keys or sinks_shape[0] != 1 or sinks_shape[-2:] != (1, 1):
        return None
    return scores, sinks


def _read_scores(build: Builder, node: Node):
    """Walks from the softmax's operand to q k^T: (_Scores, mask terms)."""
    terms, factor, cap, fills = [], 1.0, None, set()
    reader = MaskReader(build, node.shape)
    while True:
        if node.op == "matmul":
            return (_Scores(node, factor, cap, fills), terms) if math.isfinite(factor) else None
        if node.op == "cast":
            node = node.operands[0]
            continue
        if _regroups(node):
            lead = node.operands[0].shape[:-2]
            terms = [(kind, _regrouped(build, term, lead)) for kind, term in terms]
            node, reader = node.operands[0], MaskReader(build, node.operands[0].shape)
            continue
        scaled = scalar_operand(node, "mul")
        if scaled:
            node, factor = scaled[0], factor * scaled[1]
            continue
        scaled = scalar_operand(node, "div")
        if scaled and scaled[1]:
            node, factor = scaled[0], factor / scaled[1]
            continue
        if node.op == "tanh" and cap is None and factor > 0 and not _any_bias_inside(node):
            # factor * tanh(x): the cap is the factor, and scores are capped by it.
            cap, node = factor, node.operands[0]
            continue
        if node.op in ("add", "sub"):
            sides = [(node.operands[0], node.operands[1])]
            if node.op == "add":
                sides.append((node.operands[1], node.operands[0]))
            chosen = next(((s, b) for s, b in sides if s.shape == node.shape and _hastimes(s)),
                          None)
            if chosen is None or cap is not None:
                return None
            node, bias = chosen[0], chosen[1]
            sign = -1.0 if len(sides) == 1 else 1.0
            terms.append(("bias", _times(build, bias, sign * factor)))
            continue
        if node.op == "mul":
            # scores * m - c * (1 - m): what m leaves out is hidden by another term.
            sides = [(a, b) for a, b in (node.operands, node.operands[::-1])
                     if a.shape == node.shape and _hastimes(a)]
            if len(sides) == 1 and cap is None:
                node, zero_one = sides[0]
                terms.append(("kept", zero_one))
                continue
        if node.op == "select":
            condition, a, b = node.operands
            if cap is not None or factor <= 0:
                return None
            if reader.invisible(b) and a.shape == node.shape:
                terms.append(_shown(build, condition, b, True, fills))
                node = a
                continue
            if reader.invisible(a) and b.shape == node.shape:
                terms.append(_shown(build, condition, a, False, fills))
                node = b
                continue
        return None


def _shown(build: Builder, condition: Node, value: Node, is_seen: bool, fills: set[float]):
    """The term of a mask for scores that are replaced by a number. Finite ones join `fills`."""
    if not math.isfinite(constant_of(value)):
        return "seen" if is_seen else "hidden", condition
    fills.add(constant_of(value))
    return "filled", condition if is_seen else _negated(build, condition)


def _negated(build: Builder, condition: Node) -> Node:
    return condition.operands[0] if condition.op == "not" else build.unary("not", condition)


def _read_mask(build: Builder, reader: MaskReader, terms, dtype: str,
               sees: Node | None = None) -> Mask:
    """The mask of these terms, the last one of which was applied first.

    `sees` tells which queries see a key. The scores of the others are one number, on which nothing
    depends that was added before: 0 is as good, for queries of 0."""
    mask, is_replaced = Mask(), False
    for kind, term in terms:
        if kind == "filled":
            # The least finite number absorbs the score that it is added to.
            least = build.scalar(-greatest(dtype), dtype)
            term, is_replaced = build.select(term, build.scalar(0.0, dtype), least), True
        if kind in ("seen", "hidden"):
            reader.boolean(mask, term, kind == "seen")
        elif kind in ("bias", "filled"):
            if sees is not None and is_replaced:
                mask.bias.append(build.select(sees, term, build.scalar(0.0, term.dtype)))
            else:
                reader.additive(mask, term)
    return mask


def _fill_is_last(terms, fills: set[float]) -> bool:
    """Whether the scores of a query that sees no key are one number, the one that hides all keys.

    It replaces minus infinity, too, and absorbs what is added later if it is huge. `terms` begin
    with the one that was applied last."""
    first = next(i for i, (kind, _) in enumerate(terms) if kind == "filled")
    later, earlier = terms[:first], terms[first:]
    absorbs = min(fills) <= _ABSORBING and any(
        kind == "bias" and term.shape[-1:] != (1,) and term.rank > 0 for kind, term in later)
    return len(fills) == 1 and not absorbs and all(kind in ("filled", "bias") for kind, _ in earlier)


def _sees_a_key(build: Builder, terms) -> Node:
    """Whether a query sees one key at least, [batch or 1, heads or 1, queries or 1, 1]."""
    seen = None
    for kind, term in terms:
        if kind in ("seen", "hidden", "filled"):
            term = _negated(build, term) if kind == "hidden" else term
            seen = term if seen is None else build.binary("and", seen, term)
    any_key = build.reduce("max", build.cast(seen, "i32"), [-1], True)
    return build.cast(any_key, "i1")


def _times(build: Builder, x: Node, factor: float) -> Node:
    """factor * x; a known value stays known."""
    if factor == 1.0:
        return x
    if x.op == "broadcast":
        result = build.broadcast(_times(build, x.operands[0], factor), x.shape)
    elif x.op == "static":
        form = x.form
        scaled = form.moved(times(form.values, factor), "times", factor) \
            if isinstance(form, Dense) else \
            Diagonal(form.coefficients, form.low, times(form.table, factor))
        return build.static(scaled, x.shape, x.dtype)
    else:
        found = scalar_operand(x, "mul")
        rest, value = (found[0], found[1] * factor) if found else (x, factor)
        result = build.binary("mul", rest, build.scalar(value, x.dtype))
    if x.thunk is not None:
        result.thunk = lambda: None if (values := x.thunk()) is None else times(values, factor)
    return result


def _any_bias_inside(node: Node) -> bool:
    """Whether something is added before the cap: nn.attention adds after it."""
    node = node.operands[0]
    while node.op in ("mul", "div", "cast"):
        node = next((o for o in node.operands if constant_of(o) is None), node.operands[0])
    return node.op != "matmul"


def _hastimes(node: Node) -> bool:
    for _ in range(12):
        if node.op == "matmul":
            return True
        if node.op in ("cast", "tanh"):
            node = node.operands[0]
        elif node.op in ("mul", "div", "add", "sub"):
            candidates = [o for o in node.operands if o.shape == node.shape and
                          constant_of(o) is None]
            if not candidates:
                return False
            if len(candidates) > 1:
                return any(_hastimes(c) for c in candidates)
            node = candidates[0]
        elif _regroups(node):
            node = node.operands[0]
        elif node.op == "select":
            candidates = [o for o in node.operands[1:] if o.shape == node.shape and
                          constant_of(o) is None]
            if not candidates:
                return False
            node = candidates[0]
        else:
            return False
    return False
