# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Streams of random numbers, which depend on the indices of elements, a seed and the step."""
from .nodes import Builder, Graph, Node, numel

#: The states that random numbers depend on.
SEED, STEP = "random.seed", "random.step"


def apply(build: Builder, graph: Graph, x: Node, shape, probability: float, stream: int) -> Node:
    return build.make("dropout", [x, index_of(build, shape), *states(graph)], x.shape, x.dtype,
                      probability=probability, stream=stream)


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
