# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Equal expressions, computed once; projections that several users cut, cut for good."""
from .nodes import Builder, Graph, Node
from .sizes import names


def share(graph: Graph):
    """Computes equal expressions once."""
    known: dict[tuple, Node] = {}
    keep = []

    def pattern(node: Node):
        keep.append(node)
        if node.op in ("input", "parameter", "state", "constant"):
            return None
        if node.op == "static":
            if not getattr(node.form, "uniform", False):
                return None
            key = (node.shape, names(node.shape), node.dtype, node.form.values.tobytes(),
                   repr(node.attrs))
            return known.setdefault(key, node)
        key = (node.op, tuple(id(o) for o in node.operands), node.shape, names(node.shape),
               node.dtype, node.further, repr(node.attrs))
        return known.setdefault(key, node)

    graph.rewrite(pattern)


def separate_chunks(graph: Graph):
    """A projection that is cut into equal chunks gets a dimension of chunks.

    Fused query-key-value and gate-up projections are cut so; the chunks' own features can then be
    sharded.
    """
    uses = graph.uses()
    build = Builder()

    def chunk_of(node: Node):
        """The size of a chunk of the last dimension; None for any other slice."""
        a, x = node.attrs, node.operands[0]
        size, last = node.shape[-1], x.rank - 1
        if node.shape[:-1] != x.shape[:-1] or a["strides"][last] != 1 or \
                a["starts"][last] % size or x.shape[-1] % size:
            return None
        return size

    def pattern(node: Node):
        if node.op != "slice" or node.operands[0].op != "linear":
            return None
        x = node.operands[0]
        users = uses.get(id(x), ())
        sizes = {chunk_of(u) if u is not None and u.op == "slice" else None for u in users}
        if len(sizes) != 1 or None in sizes or len(users) < 2:
            return None
        size = sizes.pop()
        build.at(x)
        chunks = build.reshape(x, (*x.shape[:-1], x.shape[-1] // size, size))
        build.at(node)
        index = node.attrs["starts"][-1] // size
        return build.reshape(build.slice_dim(chunks, x.rank - 1, index, index + 1), node.shape)

    graph.rewrite(pattern)
