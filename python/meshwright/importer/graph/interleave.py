# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Values that are written over parts of another one in turn, until nothing of that is left."""

import numpy as np

from .forms import Dense
from .nodes import Builder, Node


def interleaved(build: Builder, node: Node) -> Node | None:
    """Rows written over each second one of a dimension, or each third, and so on, until all are: their join,
    in turn."""
    dim, size, step, parts, x = node.attrs["dim"], node.shape[node.attrs["dim"]], None, {}, node
    while x.op == "index_copy" and x.attrs["dim"] == dim and len(parts) != step:
        index = x.operands[1]
        if not isinstance(index.form, Dense) or not index.form.known or index.rank != 1 or \
                not index.shape[0] or size % index.shape[0]:
            return None
        rows, own = np.broadcast_to(index.form.values, index.shape), size // index.shape[0]
        if not np.array_equal(rows, rows[0] + own * np.arange(len(rows))) or step not in (None, own):
            return None
        step = own
        # The last write of a row counts.
        parts.setdefault(int(rows[0]), x.operands[2])
        x = x.operands[0]
    if step is None or sorted(parts) != list(range(step)):
        return None
    apart = [build.reshape(parts[i], (*node.shape[:dim], size // step, 1, *node.shape[dim + 1:]))
             for i in range(step)]
    return build.reshape(build.concat(apart, dim + 1), node.shape)
