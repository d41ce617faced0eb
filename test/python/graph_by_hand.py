# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Builds the graph of a block as a front end without PyTorch does, and prints its program.

    python graph_by_hand.py f32
"""
import math
import sys

if __name__ == "__main__":
    sys.modules["torch"] = None  # an import of it fails

import numpy as np
from meshwright.importer.graph.emit import emit
from meshwright.importer.graph.forms import Dense, cast, compress, diagonal, fold_pointwise
from meshwright.importer.graph.nodes import Builder, Graph
from meshwright.importer.graph.rewrites import rewrite

#: Batch, tokens, heads, features of a head, and the theta of the rotary embedding.
B, T, H, D, THETA = 2, 7, 3, 8, 10000.0


class Steps(Builder):
    """Gives each node the place of its step."""

    def make(self, *args, **kwargs):
        self.position += 1
        return super().make(*args, **kwargs)


def weights(graph, build, dtype):
    shapes = {"norm": (H * D,), **{name: (H * D, H * D) for name in ("q", "k", "v", "o")}}
    for name, shape in shapes.items():
        graph.parameters.append(build.make("parameter", [], shape, dtype, key=name, aliases=[]))
    return graph.parameters


def mean(build, x):
    return build.reduce("mean", x, [-1], True)


def fold(build, function, shape, *operands):
    """An elementwise function of known values, by NumPy."""
    forms = {i: (x.form, x.shape) for i, x in enumerate(operands)}
    run = lambda given: Dense(function(*(given[i].values for i in range(len(operands)))))
    return build.static(fold_pointwise(run, None, shape, forms), shape, operands[0].dtype)


def tables(build, dtype):
    """cos and sin of [tokens, features of a head]. Known values are cast at once."""
    steps = np.arange(0, D, 2, dtype=np.float32) / np.float32(D)
    rates = build.static(Dense((1 / np.float32(THETA) ** steps)[None]), (1, D // 2), "f32")
    places = build.static(Dense(np.arange(T, dtype=np.float32)[:, None]), (T, 1), "f32")
    angles = fold(build, np.multiply, (T, D // 2), places, rates).form.values
    angles = np.concatenate([angles, angles], -1)
    return [build.static(compress(Dense(cast(f(angles), dtype))), (T, D), dtype) for f in (np.cos, np.sin)]


def block(dtype):
    """x + o(attention(rotary(q(rms(x))), ...)), all of it written out."""
    graph, build = Graph(), Steps()
    x = build.make("input", [], (B, T, H * D), dtype, name="x")
    graph.inputs.append(x)
    norm, q, k, v, o = weights(graph, build, dtype)
    # The norm, in f32.
    wide = build.cast(x, "f32")
    square = build.binary("mul", wide, wide)
    root = build.unary("rsqrt", build.binary("add", mean(build, square), build.scalar(1e-6, "f32")))
    y = build.binary("mul", norm, build.cast(build.binary("mul", wide, root), dtype))
    q, k, v = (build.transpose(build.reshape(build.linear(y, w), (B, T, H, D)), (0, 2, 1, 3))
               for w in (q, k, v))
    q, k = (rotated(build, part, dtype) for part in (q, k))
    # Attention: the mask is minus infinity above the diagonal.
    scores = build.matmul(q, build.transpose(k, (0, 1, 3, 2)))
    scores = build.binary("mul", scores, build.scalar(1 / math.sqrt(D), dtype))
    plane = diagonal((T, T), (-1, 1), 0)
    plane.table = cast(np.where(plane.table > 0, -math.inf, 0.0), dtype)
    scores = build.binary("add", scores, build.static(plane, (T, T), dtype))
    weight = build.make("softmax", [scores], scores.shape, dtype, dim=3)
    y = build.transpose(build.matmul(weight, v), (0, 2, 1, 3))
    graph.outputs = [build.binary("add", x, build.linear(build.reshape(y, (B, T, H * D)), o))]
    graph.output_names = ["output"]
    return graph


def rotated(build, x, dtype):
    cos, sin = tables(build, dtype)
    low, high = (build.slice_dim(x, 3, start, start + D // 2) for start in (0, D // 2))
    turned = build.concat([build.unary("neg", high), low], 3)
    return build.binary("add", build.binary("mul", x, cos), build.binary("mul", turned, sin))


if __name__ == "__main__":
    made = block(sys.argv[1])
    rewrite(made)
    print(emit(made), end="")
