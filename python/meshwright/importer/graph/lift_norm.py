# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""RMS norm and layer norm, however they are written.

Three rules, applied operands first, make up for the many spellings:

1. y / sqrt(mean(y^2) + eps) is a norm; where y = x - mean(x), it is layer norm;
2. a norm times a vector is a norm with that weight (1 + w: Gemma's), plus a vector, with that bias;
3. a norm of a widened value, narrowed again, is the norm of the value: norms compute in f32.
"""

from .match import constant_of, same, scalar_operand, strip_casts
from .nodes import Builder, Graph, Node


def lift_norms(graph: Graph):
    build = Builder()

    def pattern(node: Node) -> Node | None:
        build.at(node)
        if node.op in ("mul", "div"):
            return _normalised(build, node) or (_weighted(build, node) if node.op == "mul"
                                                else None)
        if node.op == "add":
            return _biased(build, node)
        if node.op == "cast":
            return _narrowed(build, node)
        return None

    graph.rewrite(pattern)


def _mean_square(node: Node) -> tuple[Node, float] | None:
    """(y, eps) of mean(y^2) + eps over the last dimension."""
    eps = 0.0
    found = scalar_operand(node, "add")
    if found:
        node, eps = found
    node = strip_casts(node)
    if node.op != "reduce" or node.attrs["kind"] != "mean" or not node.attrs["keep_dims"] or \
            node.attrs["dims"] != [node.rank - 1]:
        return None
    square = node.operands[0]
    if square.op == "mul" and same(*square.operands):
        return square.operands[0], eps
    return None


def _root_mean_square(node: Node) -> tuple[Node, float] | None:
    node = strip_casts(node)
    return _mean_square(node.operands[0]) if node.op == "sqrt" else None


def _inverse_root(node: Node) -> tuple[Node, float] | None:
    node = strip_casts(node)
    if node.op == "rsqrt":
        return _mean_square(node.operands[0])
    if node.op == "reciprocal":
        return _root_mean_square(node.operands[0])
    if node.op == "div" and constant_of(node.operands[0]) == 1:
        return _root_mean_square(node.operands[1])
    return None


def _normalised(build: Builder, node: Node) -> Node | None:
    if node.op == "div":
        pairs, root = [(node.operands[0], node.operands[1])], _root_mean_square
    else:
        pairs = [tuple(node.operands), tuple(reversed(node.operands))]
        root = _inverse_root
    for value, scale in pairs:
        if scale.shape != node.shape[:-1] + (1,):
            continue
        found = root(scale)
        if found is None:
            continue
        y, eps = found
        centre, squared = _centred(value), _centred(y)
        # A variance is computed in f32, what is divided by its root perhaps is not.
        if y.shape != node.shape or not (same(strip_casts(y), strip_casts(value)) or
                                         centre is not None and squared is not None and
                                         same(strip_casts(centre), strip_casts(squared))):
            continue
        if centre is not None:
            return build.make("layer_norm", [build.cast(centre, node.dtype)], node.shape,
                              node.dtype, eps=eps, given=())
        y = build.cast(y, node.dtype)
        return build.make("rms_norm", [y], node.shape, node.dtype, eps=eps, unit_offset=False)
    return None


def _centred(y: Node) -> Node | None:
    """x of x - mean(x)."""
    y = strip_casts(y)
    if y.op != "sub":
        return None
    x, mean = y.operands
    mean = strip_casts(mean)
    if mean.op == "reduce" and mean.attrs["kind"] == "mean" and mean.attrs["keep_dims"] and \
            mean.attrs["dims"] == [x.rank - 1] and \
            same(strip_casts(mean.operands[0]), strip_casts(x)):
        return x
    return None


def _vector(node: Node, size: int) -> Node | None:
    """A weight of the last dimension: [size], leading dimensions of size 1 left out."""
    if node.shape[-1:] != (size,) or any(n != 1 for n in node.shape[:-1]) or size == 1:
        return None
    return node


def _weighted(build: Builder, node: Node) -> Node | None:
    for norm, weight in (node.operands, node.operands[::-1]):
        if norm.op not in ("rms_norm", "layer_norm") or norm.shape != node.shape or \
                len(norm.operands) > 1:
            continue
        weight = _vector(weight, node.shape[-1])
        if weight is None:
            continue
        attrs, unit_offset = dict(norm.attrs), False
        if norm.op == "rms_norm":
            plus_one = scalar_operand(strip_casts(weight), "add")
            if plus_one and plus_one[1] == 1 and plus_one[0].rank == 1:
                weight, unit_offset = plus_one[0], True
            attrs["unit_offset"] = unit_offset
        else:
            attrs["given"] = ("weight",)
        weight = build.cast(build.reshape(weight, node.shape[-1:]), norm.dtype)
        return build.make(norm.op, [norm.operands[0], weight], node.shape, node.dtype, **attrs)
    return None


def _biased(build: Builder, node: Node) -> Node | None:
    for norm, bias in (node.operands, node.operands[::-1]):
        if norm.op != "layer_norm" or norm.has("bias") or norm.shape != node.shape:
            continue
        bias = _vector(bias, node.shape[-1])
        if bias is None or constant_of(bias) is not None:
            continue
        bias = build.cast(build.reshape(bias, node.shape[-1:]), norm.dtype)
        return build.make("layer_norm", [*norm.operands, bias], node.shape, node.dtype,
                          **{**norm.attrs, "given": (*norm.attrs["given"], "bias")})
    return None


def _narrowed(build: Builder, node: Node) -> Node | None:
    norm = node.operands[0]
    if norm.op not in ("rms_norm", "layer_norm"):
        return None
    x = strip_casts(norm.operands[0])
    if x.dtype != node.dtype or norm.dtype not in ("f32", "f64") or \
            node.dtype not in ("bf16", "f16", "f32"):
        return None
    rest = [build.cast(strip_casts(o) if strip_casts(o).dtype == node.dtype else o, node.dtype)
            for o in norm.operands[1:]]
    return build.make(norm.op, [x, *rest], node.shape, node.dtype, **norm.attrs)
