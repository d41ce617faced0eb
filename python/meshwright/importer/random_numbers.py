# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Dropout, by random numbers that depend on the indices of elements."""
from .convert import aten
from .errors import Uncovered
from .graph import Builder, Graph, Node, numel

#: The states that random numbers depend on.
SEED, STEP = "random.seed", "random.step"


@aten("dropout")
def dropout(c, x, p=0.5, train=False):
    return dropped(c, x, p, x.shape) if train else x


@aten("native_dropout")
def dropout_with_mask(c, x, p, train):
    return [dropped(c, x, p, x.shape) if train else x, None]


@aten("feature_dropout")
def channel_dropout(c, x, p=0.5, train=False):
    """Drops channels, which are all elements of dimensions 0 and 1."""
    return dropped(c, x, p, x.shape[:2] + (1,) * (x.rank - 2)) if train else x


@aten("alpha_dropout", "feature_alpha_dropout")
def alpha_dropout(c, x, p=0.5, train=False):
    if train and p > 0:
        raise Uncovered("alpha dropout in training mode is not covered")
    return x


def dropped(c, x: Node, p: float, shape) -> Node:
    """`x`, of which elements or, where `shape` has a size of 1, whole slices are dropped."""
    if p == 0:
        return x
    if p == 1:
        return c.build.binary("mul", x, c.build.scalar(0.0, x.dtype))
    return apply(c.build, c.graph, x, shape, float(p), next_stream(c))


def apply(build: Builder, graph: Graph, x: Node, shape, probability: float, stream: int) -> Node:
    return build.make("dropout", [x, index_of(build, shape), *states(graph)], x.shape, x.dtype,
                      probability=probability, stream=stream)


def next_stream(c) -> int:
    """The number of another random operation."""
    if not c.exported.training:
        raise Uncovered("dropout in training mode is not covered; expected an import with "
                        "training=True")
    c.graph.streams += 1
    return c.graph.streams - 1


def index_of(build: Builder, shape) -> Node:
    """The row-major index of each element."""
    total = None
    for dim, size in enumerate(shape):
        if size == 1:
            continue
        steps = build.make("iota", [], [size if d == dim else 1 for d in range(len(shape))], "i64",
                           dim=dim)
        stride = numel(shape[dim + 1:])
        if stride != 1:
            steps = build.binary("mul", steps, build.scalar(stride, "i64"))
        total = steps if total is None else build.binary("add", total, steps)
    return build.scalar(0, "i64") if total is None else total


def states(graph: Graph) -> list[Node]:
    """The seed and the number of the step."""
    known = {state.attrs["key"]: state for state in graph.states}
    for key in (SEED, STEP):
        if key not in known:
            known[key] = Builder().make("state", [], (), "i64", key=key, fill=0)
            graph.states.append(known[key])
    return [known[SEED], known[STEP]]
