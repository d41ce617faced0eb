# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The dimension of a rank's value that an axis of the mesh shards, as far as the operations before show it.

A gather that is not tiled, and an exchange of blocks within a dimension, may be written in several ways, of which
each fits another layout. All give the same values. This answers which one fits; the proof does not trust it.
"""
from collections.abc import Mapping

from ..graph.dialect import POINTWISE
from ..graph.nodes import Node, reshape_groups

#: By axis: the dimension that it shards.
Coordinates = Mapping[str, int]


class CoordinateAnalysis:
    def __init__(self):
        self._known: dict[Node, Coordinates] = {}

    def of(self, node: Node) -> Coordinates:
        """The axes that shard a value, each with its dimension."""
        stack = [node]
        while stack:
            x = stack[-1]
            missing = [o for o in x.operands if o not in self._known]
            if missing:
                stack += missing
                continue
            stack.pop()
            if x not in self._known:
                self._known[x] = self._compute(x)
        return self._known[node]

    def _compute(self, x: Node) -> Coordinates:
        if x.op in ("input", "parameter"):
            sharding = x.attrs.get("sharding")
            return {} if sharding is None else {
                axis.name: d for d, dim in enumerate(sharding.dims) for factor in dim for axis in factor.axes}
        sources = [self._known.get(o, {}) for o in x.operands]
        if x.op.startswith("dist."):
            return self._moved(x, dict(sources[0]) if sources else {})
        if x.op == "reshape":
            return _reshaped(sources[0], x.operands[0].shape, x.shape)
        if x.op == "transpose":
            return {axis: x.attrs["permutation"].index(d) for axis, d in sources[0].items()}
        if x.op == "reduce":
            dims, keep = x.attrs["dims"], x.attrs["keep_dims"]
            return {axis: d if keep else d - sum(r < d for r in dims) for axis, d in sources[0].items() if d not in dims}
        if x.op == "dot":
            return _multiplied(x, sources)
        if x.op in ("gather", "embedding"):
            return self._looked_up(x, sources)
        if x.op in POINTWISE or x.op in ("broadcast", "concat", "slice", "softmax", "cumsum", "pad", "dist.pad"):
            found: dict[str, int] = {}
            for operand, source in zip(x.operands, sources):
                found |= {axis: d + x.rank - operand.rank for axis, d in source.items()}
            return found
        return {}

    @staticmethod
    def _moved(x: Node, source: dict) -> Coordinates:
        a, names = x.attrs, [axis.name for axis in x.attrs.get("axes", ())]
        if x.op in ("dist.reduce_scatter", "dist.slice"):
            return source | dict.fromkeys(names, a["dim"])
        if x.op == "dist.all_to_all":
            return source | dict.fromkeys(names, a["target"])
        if x.op in ("dist.all_gather", "dist.all_reduce"):
            return {axis: d for axis, d in source.items() if axis not in names or x.op == "dist.all_reduce"}
        if x.op == "dist.redistribute":
            return {axis.name: d for d, dim in enumerate(a["target"].dims) for f in dim for axis in f.axes}
        return source

    @staticmethod
    def _looked_up(x: Node, sources) -> Coordinates:
        data, indices, dim = (1, 0, 0) if x.op == "embedding" else (0, 1, x.attrs["dim"])
        more = x.operands[indices].rank - 1
        found = {axis: d if d < dim else d + more for axis, d in sources[data].items() if d != dim}
        return found | {axis: d + dim for axis, d in sources[indices].items()}


def _reshaped(source: Coordinates, shape, target) -> Coordinates:
    """A chunk's coordinate is major to its dimension, and goes where the elements before that begin."""
    groups = reshape_groups(shape, target) or []
    found = {}
    for axis, d in source.items():
        for before, after in groups:
            if d not in before:
                continue
            ahead = 1
            for k in range(before.start, d):
                ahead *= shape[k]
            for t in after:
                if ahead <= 1:
                    found[axis] = t
                    break
                ahead //= target[t]
    return found


def _multiplied(x: Node, sources) -> Coordinates:
    found: dict[str, int] = {}
    sides = [(o, s, x.attrs[f"{side}_batch"], x.attrs[f"{side}_sum"])
             for o, s, side in zip(x.operands, sources, ("lhs", "rhs"))]
    place = len(sides[0][2])
    for operand, source, shared, summed in sides:
        names = {d: i for i, d in enumerate(shared)}
        for d in range(operand.rank):
            if d not in names and d not in summed:
                names[d] = place
                place += 1
        found |= {axis: names[d] for axis, d in source.items() if d in names}
    return found
