# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Brings parts that JAX and its libraries write out into the form that the importer's rewrites know from PyTorch."""
import math

from ..graph.dialect import FLOATS, POINTWISE
from ..graph.match import constant_of, strip_casts
from ..graph.nodes import Builder, Graph, Node, numel
from ..graph.share import share
from . import lift_indices
from .dots import arrange_dots
from .weights import is_weight


def lift(graph: Graph):
    """Prepares the graph of a walk for the rewrites of all front ends."""
    share(graph)
    _each(graph, _mean)
    keep_dims(graph)
    share(graph)
    _each(graph, _variance, _scaled_root, _scaled_before, _rotated_parts)
    share(graph)
    _each(graph, _softmax, _softmax_where, lift_indices.rows, lift_indices.natural, lift_indices.label_of_log_softmax,
          lift_indices.label_of_sums, lift_indices.label_of_one_hot, lift_indices.in_range)
    share(graph)
    arrange_dots(graph)


def _each(graph: Graph, *patterns):
    build = Builder()

    def pattern(node: Node) -> Node | None:
        build.at(node)
        for one in patterns:
            found = one(build, node)
            if found is not None:
                return found
        return None

    graph.rewrite(pattern)


def keep_dims(graph: Graph):
    """f(reshape(r), ...) where the reshape drops the dimensions that r reduced: reshape(f(r, ...)). So all that is
    computed of a norm's statistics has the rank of the value."""
    build = Builder()
    kept: dict[int, Node] = {}

    def pattern(node: Node) -> Node | None:
        if node.op == "reduce" and node.attrs["keep_dims"]:
            kept[id(node)] = node
        if node.op not in POINTWISE or not node.rank:
            return None
        wide = [o.operands[0] for o in node.operands if o.op == "reshape" and id(o.operands[0]) in kept]
        shapes = {w.shape for w in wide}
        if len(shapes) != 1 or any(o.op != "reshape" and numel(o.shape) != 1 or o.shape == node.shape and
                                   o.op == "reshape" and id(o.operands[0]) not in kept for o in node.operands):
            if all(id(o) in kept or numel(o.shape) == 1 for o in node.operands):
                kept[id(node)] = node
            return None
        shape, = shapes
        if len(shape) <= node.rank or [n for n in shape if n != 1] != [n for n in node.shape if n != 1]:
            return None
        operands = [o.operands[0] if o.op == "reshape" and id(o.operands[0]) in kept else build.at(node).reshape(o, ())
                    for o in node.operands]
        inner = build.at(node).make(node.op, operands, shape, node.dtype, **node.attrs)
        kept[id(inner)] = inner
        return build.reshape(inner, node.shape)

    graph.rewrite(pattern)


def plain(node: Node) -> Node:
    """Past reshapes, broadcasts and casts between floats."""
    while node.op in ("reshape", "broadcast") or \
            node.op == "cast" and node.dtype in FLOATS and node.operands[0].dtype in FLOATS:
        node = node.operands[0]
    return node


def _past(node: Node, *ops) -> Node:
    while node.op in ops:
        node = node.operands[0]
    return node


def _mean(build: Builder, node: Node) -> Node | None:
    """A sum divided by the number of its elements."""
    if node.op not in ("div", "mul") or node.dtype not in FLOATS:
        return None
    x, count = node.operands
    value = constant_of(count)
    if node.op == "mul" and value is None:
        (count, x), value = (x, count), constant_of(x)
    if not value or x.shape != node.shape:
        return None
    total = _past(x, "reshape")
    narrowed = total.op == "cast" and total.operands[0].op in ("reshape", "reduce")
    inner = _past(total.operands[0], "reshape") if narrowed else total
    if inner.op != "reduce" or inner.attrs["kind"] != "sum":
        return None
    number = math.prod(inner.operands[0].shape[d] for d in inner.attrs["dims"])
    is_mean = value == number if node.op == "div" else abs(value * number - 1) < 1e-6 and number > 1
    if not is_mean:
        return None
    mean = build.reduce("mean", inner.operands[0], inner.attrs["dims"], inner.attrs["keep_dims"])
    return build.reshape(build.cast(mean, node.dtype), node.shape)


def _variance(build: Builder, node: Node) -> Node | None:
    """mean(x^2) - mean(x)^2, which Flax cuts off at 0: the mean of (x - mean)^2."""
    if node.op == "relu":
        y = node.operands[0]
        inner = _past(y, "reshape", "broadcast")
        return y if _is_mean(inner) and _is_square(inner.operands[0]) else None
    y = node
    if y.op != "sub":
        return None
    squares, square = (_past(o, "reshape", "broadcast") for o in y.operands)
    if not _is_square(square):
        return None
    mean = _past(square.operands[0], "reshape", "broadcast")
    if not _is_mean(mean) or not _is_mean(squares) or mean.attrs["dims"] != squares.attrs["dims"]:
        return None
    x, inner = mean.operands[0], squares.operands[0]
    if not _is_square(inner) or inner.operands[0] is not x:
        return None
    dims = mean.attrs["dims"]
    centred = build.binary("sub", x, build.reduce("mean", x, dims, True))
    return build.reshape(build.reduce("mean", build.binary("mul", centred, centred), dims, True), node.shape)


def _is_square(node: Node) -> bool:
    return node.op == "mul" and node.operands[0] is node.operands[1]


def _is_mean(node: Node) -> bool:
    return node.op == "reduce" and node.attrs["kind"] == "mean"


def _scaled_root(build: Builder, node: Node) -> Node | None:
    """x * (rsqrt(v) * weight): (x * rsqrt(v)) * weight."""
    if node.op != "mul":
        return None
    for x, factor in (node.operands, node.operands[::-1]):
        inner = _past(factor, "broadcast")
        if inner.op != "mul" or x.shape != node.shape or node.rank == 0:
            continue
        for root, weight in (inner.operands, inner.operands[::-1]):
            root = _past(root, "broadcast")
            if strip_casts(root).op == "rsqrt" and root.shape == node.shape[:-1] + (1,) and \
                    weight.shape[-1:] == node.shape[-1:]:
                return build.binary("mul", build.binary("mul", x, root), _past(weight, "broadcast"))
    return None


def _scaled_before(build: Builder, node: Node) -> Node | None:
    """(weight * y) * rsqrt(v), or divided by sqrt(v): weight * (y * rsqrt(v))."""
    if node.op not in ("mul", "div"):
        return None
    pairs = (node.operands, node.operands[::-1]) if node.op == "mul" else (node.operands,)
    for product, root in pairs:
        root = _past(root, "broadcast")
        if product.op != "mul" or product.shape != node.shape or root.shape != node.shape[:-1] + (1,) or \
                strip_casts(root).op != ("rsqrt" if node.op == "mul" else "sqrt"):
            continue
        for y, weight in (product.operands, product.operands[::-1]):
            vector = _past(weight, "broadcast")
            if y.shape == node.shape and vector.shape[-1:] == node.shape[-1:] and numel(vector.shape) == node.shape[-1] and \
                    is_weight(vector):
                return build.binary("mul", build.binary(node.op, y, root), vector)
    return None


def _rotated_parts(build: Builder, node: Node) -> Node | None:
    """concat([transpose(-x[..., h:]), transpose(x[..., :h])]), as vmap writes rotations: of the parts of transpose(x)."""
    last = node.rank - 1
    if node.op != "concat" or node.attrs["dim"] != last or any(o.op != "transpose" for o in node.operands):
        return None
    permutation = node.operands[0].attrs["permutation"]
    if permutation[-1] != last or any(o.attrs["permutation"] != permutation for o in node.operands):
        return None

    def moved(x: Node) -> Node | None:
        if x.op == "neg":
            inner = moved(x.operands[0])
            return inner and build.unary("neg", inner)
        if x.op != "slice" or x.shape[:-1] != x.operands[0].shape[:-1]:
            return None
        a = x.attrs
        return build.slice_dim(build.transpose(x.operands[0], permutation), last, a["starts"][last], a["limits"][last],
                               a["strides"][last])

    parts = [moved(o.operands[0]) for o in node.operands]
    return None if None in parts else build.concat(parts, last)


def _softmax_where(build: Builder, node: Node) -> Node | None:
    """select(mask, e / sum(select(mask, e, 0)), 0) for e = exp(x - m): the softmax of jax.nn with `where`."""
    if node.op != "select" or constant_of(node.operands[2]) != 0 or node.operands[1].op != "div":
        return None
    mask, quotient = node.operands[:2]
    e, total = quotient.operands
    total = plain(total)
    if total.op != "reduce" or total.attrs["kind"] != "sum" or len(total.attrs["dims"]) != 1 or e.op != "exp" or \
            e.shape != node.shape:
        return None
    chosen, dim = total.operands[0], total.attrs["dims"][0]
    if chosen.op != "select" or chosen.operands[1] is not e or constant_of(chosen.operands[2]) != 0 or \
            plain(chosen.operands[0]) is not plain(mask):
        return None
    x = _without_row_term(e.operands[0], dim)
    if not (x.op == "select" and x.operands[0] is mask and constant_of(x.operands[2]) == -math.inf):
        x = build.broadcast(build.select(mask, x, build.scalar(-math.inf, x.dtype)), node.shape)
    return build.make("softmax", [x], node.shape, x.dtype, dim=dim)


def _softmax(build: Builder, node: Node) -> Node | None:
    """e / sum(e) for e = exp(x - m), perhaps where a mask is true, and 0 elsewhere. The number m of a row does
    not matter: softmax subtracts the largest one."""
    if node.op != "div":
        return None
    e, total = node.operands
    total = plain(total)
    if total.op != "reduce" or total.attrs["kind"] != "sum" or len(total.attrs["dims"]) != 1:
        return None
    if strip_casts(total.operands[0]) is not strip_casts(e) or e.shape != node.shape:
        return None
    dim = total.attrs["dims"][0]
    exp, mask = strip_casts(e), None
    if exp.op == "select" and constant_of(exp.operands[2]) == 0:
        mask, exp = exp.operands[0], strip_casts(exp.operands[1])
    if exp.op != "exp" or exp.shape != node.shape:
        return None
    x = _without_row_term(strip_casts(exp.operands[0]), dim)
    if mask is not None:
        x = build.broadcast(build.select(mask, x, build.scalar(-math.inf, x.dtype)), node.shape)
    return build.cast(build.make("softmax", [x], node.shape, x.dtype, dim=dim), node.dtype)


def _without_row_term(x: Node, dim: int) -> Node:
    """x of x - m, where m does not vary along a dimension."""
    if x.op != "sub":
        return x
    value, row = x.operands
    shape = (1,) * (x.rank - row.rank) + row.shape
    if row.op == "broadcast":
        inner = row.operands[0]
        shape = (1,) * (x.rank - inner.rank) + inner.shape
    return value if value.shape == x.shape and shape[dim] == 1 else x
