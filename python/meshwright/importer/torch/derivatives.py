# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Derivatives of operations that the importer composes of others.

The derivative of a composition is the sum over its pieces. It is wrong where a piece has a kink and
the whole has none (softplus at 0), or where a piece that a `where` leaves out is infinite. So an
operation states its derivative as PyTorch computes it, with its values at bounds, ties and
infinities. Only a program for training has it.

    @derivative("softplus")
    def softplus(d, x, beta=1, threshold=20):
        return d(x) * where(x * beta > threshold, 1.0, sigmoid(x * beta))

A rule gets the operation's arguments. Tensors are formulas (formulas.py) in at least f32, through
which no gradient flows. `d(x)` is the differential of an argument; `d.result` is the result. The
rule returns the differential of the result, which is linear in those of the arguments. Where it has
a condition, that applies to `d(x)` itself, `d(x).where(near) * slope`, if no gradient is to flow
where the condition fails: 0 times an infinite slope is NaN.
"""
from collections.abc import Callable
from typing import Any

from ..graph.dialect import FLOATS
from ..graph.nodes import Node
from .formulas import Formula

DERIVATIVES: dict[str, Callable] = {}


def derivative(*names):
    """Registers the derivative of ATen operations, with or without their overloads."""
    def register(rule):
        for name in names:
            DERIVATIVES[name] = rule
        return rule
    return register


def rule_of(name: str) -> Callable | None:
    return DERIVATIVES.get(name) or DERIVATIVES.get(name.split(".")[0])


class Differential:
    """The differentials of the arguments of an operation, with its name and its result."""

    def __init__(self, name: str, result: Formula):
        self.name, self.result = name, result

    def __call__(self, x) -> Formula:
        """The differential of an argument: zero for a number or an integer."""
        if isinstance(x, Formula) and x.tangent is not None:
            return x.of(x.tangent)
        return self.result.number(0)


def with_derivative(convert, y, name: str, args, kwargs):
    """The result `y` of an operation, with the derivative that its rule states. Of several results
    the first one has it."""
    if isinstance(y, list) and y and rule_of(name):
        return [with_derivative(convert, y[0], name, args, kwargs), *y[1:]]
    rule = rule_of(name)
    if rule is None or not isinstance(y, Node):
        return y
    nodes = [a for a in _leaves((args, kwargs)) if isinstance(a, Node) and a.dtype in FLOATS]
    if not convert.exported.training or y.dtype not in FLOATS or \
            y.form is not None or y.thunk is not None or all(n.op == "static" for n in nodes):
        return y
    wide = "f64" if y.dtype == "f64" else "f32"
    build = convert.build

    def formula(a):
        if isinstance(a, (list, tuple)):
            return type(a)(formula(x) for x in a)
        if not isinstance(a, Node):
            return a
        if a.dtype not in FLOATS:
            return Formula(build, a)
        tangent = build.cast(a, wide)
        return Formula(build, convert.stopped(tangent), tangent)

    result = Formula(build, convert.stopped(build.cast(y, wide)))
    like = rule(Differential(name, result), *(formula(a) for a in args),
                **{key: formula(a) for key, a in kwargs.items()}).node
    like = build.broadcast(build.cast(like, y.dtype), y.shape)
    return build.make("with_derivative", [y, like], y.shape, y.dtype)


def stated(result, operation, args, kwargs) -> Any:
    """In a graph of ATen operations: `result`, with the derivative of the operation that the graph
    composes it of (decompose.py)."""
    raise AssertionError("a node of a graph, which nothing calls")


def _leaves(tree):
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, (list, tuple)):
        yield tree
        return
    for item in tree:
        yield from _leaves(item)
