# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Clean-ups that keep values as they are and bring the graph into the shape that lifting expects.

- reshapes and transposes that undo each other go;
- flatten / unflatten pairs around token-wise operations go: a reshape that merges dimensions
  moves down, past operations that do not care, until it meets the one that splits them again;
- slices move up through transposes and reshapes, to the projection that they cut;
- broadcasts that an operation does by itself go, and so do repeated key and value heads.
"""

import math

from .dialect import FLOATS, POINTWISE
from .forms import Dense, Diagonal, form_slice
from .merging import merge_source, merged_dims, merges, tight
from .nodes import Builder, Graph, Node, broadcast_shapes, numel, ones_are_chunks, reshape_groups


def simplify(graph: Graph):
    for _ in range(8):
        changed = graph.rewrite(_Simplify(graph).pattern)
        if not changed:
            return


#: Operations on which experts and tokens of rows stay where they are.
_OVER_TOKENS = ("linear", "rms_norm", "layer_norm", "softmax", "reduce", "transpose", "broadcast")


class _Simplify:
    def __init__(self, graph: Graph):
        self.build = Builder()

    def pattern(self, node: Node) -> Node | None:
        handler = getattr(self, f"_{node.op}", None)
        if node.op in POINTWISE:
            handler = self._pointwise
        if handler is None or node.routed and node.op in _OVER_TOKENS:
            return None
        self.build.at(node)
        return handler(node)

    # Reshapes and transposes.

    def _reshape(self, node: Node):
        x = node.operands[0]
        if x.shape == node.shape:
            return x
        if x.op == "reshape":
            return self.build.reshape(x, node.shape)
        if x.op == "transpose":
            return self._split_after_transpose(node, x)
        if x.op == "broadcast":
            inner = x.operands[0]
            if numel(inner.shape) == 1:
                return self.build.broadcast(self.build.reshape(inner, ()), node.shape)
            return self._reshape_of_broadcast(node, x, inner)
        return None

    def _split_after_transpose(self, node: Node, x: Node):
        """reshape(transpose(y)) that splits dimensions: transpose(reshape(y))."""
        groups = reshape_groups(x.shape, node.shape)
        if groups is None or any(len(s) > 1 and sum(x.shape[d] != 1 for d in s) > 1 for s, _ in groups):
            return None
        if ones_are_chunks() and any(len(s) != 1 or not t for s, t in groups):
            return None
        if all(len(s) == 1 and len(t) == 1 for s, t in groups):
            return None
        # Each source dimension (of size > 1) maps to a range of target dimensions.
        parts: dict[int, list[int]] = {d: [] for d in range(x.rank)}
        for source, target in groups:
            real = [d for d in source if x.shape[d] != 1] or list(source)
            if real:
                parts[real[0]].extend(target)
            else:  # dimensions of size 1 that appear: keep them beside the previous one
                parts[source.start - 1 if source.start else 0].extend(target) \
                    if x.rank else None
        y, permutation = x.operands[0], x.attrs["permutation"]
        inverse = {p: d for d, p in enumerate(permutation)}
        shape, origin = [], []
        for p in range(y.rank):
            for t in sorted(parts[inverse[p]]):
                shape.append(node.shape[t])
                origin.append(t)
        if len(origin) != node.rank or numel(shape) != numel(node.shape):
            return None
        order = [origin.index(t) for t in range(node.rank)]
        return self.build.transpose(self.build.reshape(y, shape), order)

    def _reshape_of_broadcast(self, node, x, inner):
        """reshape(broadcast(y)), where each merged or split dimension is all broadcast or none."""
        inner = self.build.reshape(inner, (1,) * (x.rank - inner.rank) + inner.shape)
        groups = reshape_groups(x.shape, node.shape)
        if groups is None:
            return None
        shape = []
        for source, target in groups:
            sizes = [inner.shape[d] for d in source]
            if sizes == [x.shape[d] for d in source]:
                shape += [node.shape[t] for t in target]
            elif all(n == 1 for n in sizes):
                shape += [1] * len(target)
            else:
                return None
        return self.build.broadcast(self.build.reshape(inner, shape), node.shape)

    def _transpose(self, node: Node):
        x = node.operands[0]
        if x.op == "transpose":
            return self.build.transpose(x, node.attrs["permutation"])
        if x.op == "reshape":
            return self._transpose_of_merge(node, x)
        if x.op == "broadcast":
            inner = x.operands[0]
            inner = self.build.reshape(inner, (1,) * (x.rank - inner.rank) + inner.shape)
            return self.build.broadcast(self.build.transpose(inner, node.attrs["permutation"]),
                                        node.shape)
        return None

    def _transpose_of_merge(self, node: Node, x: Node):
        """transpose(reshape(y)) that merges dimensions: reshape(transpose(y))."""
        y = merge_source(self.build, x) or x.operands[0]
        groups = merged_dims(y.shape, x.shape)
        if groups is None or all(len(g) == 1 for g in groups):
            return None
        order = [d for p in node.attrs["permutation"] for d in groups[p]]
        if len(order) != y.rank:
            return None
        return self.build.reshape(self.build.transpose(y, order), node.shape)

    def _broadcast(self, node: Node):
        x = node.operands[0]
        if x.shape == node.shape:
            return x
        if x.op == "broadcast":
            return self.build.broadcast(x, node.shape)
        wide = self._apart(x, node.shape)
        if wide is None:
            return None
        inner = self._widened(x, merged_dims(wide, node.shape), wide, node.rank)
        return inner and self.build.reshape(self.build.broadcast(inner, wide), node.shape)

    # Slices move up.

    def _slice(self, node: Node):
        x = node.operands[0]
        a = node.attrs
        if x.op == "slice":
            return self.build.slice(x, a["starts"], a["limits"], a["strides"])
        if x.op == "transpose":
            permutation = x.attrs["permutation"]
            moved = [[0] * x.rank for _ in range(3)]
            for d, p in enumerate(permutation):
                for values, key in zip(moved, ("starts", "limits", "strides")):
                    values[p] = a[key][d]
            return self.build.transpose(self.build.slice(x.operands[0], *moved), permutation)
        if x.op == "reshape":
            return self._slice_of_reshape(node, x)
        if x.op == "concat":
            return self._slice_of_concat(node, x)
        return None

    def _slice_of_reshape(self, node: Node, x: Node):
        """Past dimensions of size 1 that a reshape adds or drops."""
        y = x.operands[0]
        if [n for n in y.shape if n != 1] != [n for n in x.shape if n != 1]:
            return None
        kept = iter(d for d, n in enumerate(x.shape) if n != 1)
        source = [next(kept) if n != 1 else None for n in y.shape]
        pick = lambda key, default: [default if s is None else node.attrs[key][s] for s in source]
        limits = [n if s is None else node.attrs["limits"][s] for s, n in zip(source, y.shape)]
        if any(node.shape[d] != 1 for d, n in enumerate(x.shape) if n == 1):
            return None
        piece = self.build.slice(y, pick("starts", 0), limits, pick("strides", 1))
        return self.build.reshape(piece, node.shape)

    def _slice_of_concat(self, node: Node, x: Node):
        """Within a single piece of a concatenation."""
        dim, a = x.attrs["dim"], node.attrs
        if node.shape[dim] == 0:
            return None
        first = a["starts"][dim]
        last = first + (node.shape[dim] - 1) * a["strides"][dim]
        offset = 0
        for piece in x.operands:
            size = piece.shape[dim]
            if offset <= first and last < offset + size:
                starts, limits = list(a["starts"]), list(a["limits"])
                starts[dim] -= offset
                limits[dim] = min(limits[dim] - offset, size)
                return self.build.slice(piece, starts, limits, a["strides"])
            offset += size
        return None

    # Merging reshapes and needless broadcasts move down.

    def _pointwise(self, node: Node):
        if node.op == "cast":
            x = node.operands[0]
            if x.dtype == node.dtype:
                return x
        neutral = self._without_neutral(node)
        if neutral is not None:
            return neutral
        self._drop_broadcasts(node)
        if any(o.op == "broadcast" for o in node.operands):
            operands = [o.operands[0] if o.op == "broadcast" else o for o in node.operands]
            shape = broadcast_shapes(*(o.shape for o in operands))
            if numel(shape) < numel(node.shape):
                inner = Node(node.op, operands, node.attrs, shape, node.dtype, node.loc,
                             node.position)
                return self.build.broadcast(inner, node.shape)
        return None if node.routed else self._untransposed(node) or self._unmerge(node)

    def _untransposed(self, node: Node):
        """f(transpose(x), transpose(y)): transpose(f(x, y))."""
        first = next((o for o in node.operands if o.op == "transpose"), None)
        if first is None or first.rank != node.rank:
            return None
        permutation = first.attrs["permutation"]
        inverse = [permutation.index(d) for d in range(node.rank)]
        operands = []
        for operand in node.operands:
            shape = (1,) * (node.rank - operand.rank) + operand.shape
            if operand.op == "transpose" and operand.attrs["permutation"] == permutation:
                operands.append(operand.operands[0])
            elif all(n == 1 or permutation[d] == d for d, n in enumerate(shape)):
                operands.append(operand)  # reads the same either way
            elif operand.op == "static":
                operands.append(self.build.transpose(self.build.reshape(operand, shape), inverse))
            else:
                return None
        shape = [node.shape[p] for p in inverse]
        if broadcast_shapes(*(o.shape for o in operands)) != tuple(shape):
            return None
        inner = Node(node.op, operands, node.attrs, tuple(shape), node.dtype, node.loc,
                     node.position)
        return self.build.transpose(inner, permutation)

    def _tokens_transposed(self, node: Node):
        """Token-wise operations: transposed tokens are transposed afterwards."""
        x = node.operands[0]
        if x.op == "reshape" and x.operands[0].op == "transpose" and node.op == "linear":
            x = self._features_first(x)
        if x is None or x.op != "transpose" or x.attrs["permutation"][-1] != x.rank - 1:
            return None
        permutation, y = x.attrs["permutation"], x.operands[0]
        inner = Node(node.op, [y, *node.operands[1:]], node.attrs,
                     y.shape[:-1] + node.shape[-1:], node.dtype, node.loc, node.position)
        return self.build.transpose(inner, permutation)

    def _features_first(self, x: Node):
        """reshape(transpose(y)) that merges the last dimensions, as transpose(reshape(y'))."""
        moved = x.operands[0]
        groups = merged_dims(moved.shape, x.shape)
        if groups is None or any(len(g) != 1 for g in groups[:-1]) or \
                [d for g in groups for d in g] != list(range(moved.rank)):
            return None
        permutation, lead = moved.attrs["permutation"], x.rank - 1
        tokens = sorted(permutation[:lead])
        if tokens == permutation[:lead]:
            return None
        inner = self.build.transpose(moved.operands[0], tokens + permutation[lead:])
        merged = self.build.reshape(inner, [moved.operands[0].shape[t] for t in tokens] +
                                    [x.shape[-1]])
        return Node("transpose", [merged], {"permutation": [tokens.index(p) for p in
                                                            permutation[:lead]] + [lead]},
                    x.shape, x.dtype, x.loc, x.position)

    def _rotary(self, node: Node):
        """Before heads are repeated, and before dimensions are merged."""
        x, *tables = node.operands
        for i, table in enumerate(tables, 1):
            if table.op == "broadcast" and table.operands[0].shape[-1:] == table.shape[-1:]:
                node.operands[i] = table.operands[0]
        tables = node.operands[1:]
        if x.op == "broadcast" and x.operands[0].shape[-1:] == x.shape[-1:]:
            y = x.operands[0]
            if all(broadcast_shapes(t.shape[:-1], y.shape[:-1]) == y.shape[:-1] for t in tables):
                inner = Node("rotary", [y, *tables], node.attrs, y.shape, node.dtype, node.loc,
                             node.position)
                return self.build.broadcast(inner, node.shape)
        source = merge_source(self.build, x)
        if source is not None and source.shape[-1:] == x.shape[-1:]:
            wide = source.shape
            groups = merged_dims(wide, x.shape)
            apart = []
            for table in tables:
                if table.shape[-1] != x.shape[-1]:
                    return None
                wider = self._widened(table, groups, wide, node.rank)
                if wider is None:
                    return None
                apart.append(wider)
            inner = Node("rotary", [source, *apart], node.attrs, wide, node.dtype, node.loc,
                         node.position)
            return self.build.reshape(inner, node.shape)
        return None

    @staticmethod
    def _without_neutral(node: Node):
        """x + 0, x * 1, x and all bits, x or no bit; a choice that is known."""
        def known(x):
            while x.op == "broadcast":
                x = x.operands[0]
            return x.form.values.item() if x.op == "static" and \
                getattr(x.form, "uniform", False) else None

        if node.op == "select":
            condition = known(node.operands[0])
            if condition is not None:
                chosen = node.operands[1 if condition else 2]
                return chosen if chosen.shape == node.shape else None
        bits = True if node.dtype == "i1" else -1
        neutral = {"add": 0, "sub": 0, "mul": 1, "div": 1, "and": bits, "or": 0}.get(node.op)
        if neutral is None:
            return None
        # -0.0 + 0.0 is 0.0: of the zeros only one leaves every number as it is.
        sign = {"add": -1, "sub": 1}.get(node.op) if node.dtype in FLOATS else None

        def is_neutral(x):
            value = known(x)
            return value == neutral and (sign is None or math.copysign(1, value) == sign)

        lhs, rhs = node.operands
        if is_neutral(rhs) and lhs.shape == node.shape:
            return lhs
        if node.op not in ("sub", "div") and is_neutral(lhs) and rhs.shape == node.shape:
            return rhs
        return None

    def _drop_broadcasts(self, node: Node):
        for i, operand in enumerate(node.operands):
            if operand.op != "broadcast":
                continue
            inner = operand.operands[0]
            others = [o.shape for j, o in enumerate(node.operands) if j != i]
            if others and broadcast_shapes(inner.shape, *others) == node.shape:
                node.operands[i] = inner

    def _unmerge(self, node: Node):
        """f(reshape(x), ...) where the reshape merges dimensions: reshape(f(x, ...))."""
        for wide in filter(None, (self._apart(o, node.shape) for o in node.operands)):
            groups = merged_dims(wide, node.shape)
            operands = [self._widened(o, groups, wide, node.rank) for o in node.operands]
            if all(o is not None for o in operands):
                inner = Node(node.op, operands, node.attrs, wide, node.dtype, node.loc,
                             node.position)
                return self.build.reshape(inner, node.shape)
        return None

    def _apart(self, operand: Node, shape) -> tuple[int, ...] | None:
        """`shape` with those dimensions apart that an operand merges, all of them in full."""
        source = merge_source(self.build, operand) if operand.rank == len(shape) else None
        if source is None:
            return None
        wide = tight(source.shape, operand.shape)
        groups = merged_dims(wide, operand.shape)
        if any(len(g) > 1 and n != m for g, n, m in zip(groups, operand.shape, shape)):
            return None
        return tuple(n for d, g in enumerate(groups) if g or shape[d] != 1
                     for n in ([wide[i] for i in g] if len(g) > 1 else [shape[d]]))

    def _widened(self, operand: Node, groups, wide, rank) -> Node | None:
        """An operand as it reads with the merged dimensions apart, if that needs no new split."""
        source = merge_source(self.build, operand) if operand.rank == rank else None
        if source is not None and \
                [n for n in source.shape if n != 1] == [n for n in wide if n != 1]:
            return self.build.reshape(operand, wide)
        missing = rank - operand.rank
        full = [wide[g] for size, group in zip(operand.shape, groups[missing:]) if size != 1
                for g in group]
        shape, free = [], operand.op in ("static", "parameter", "input", "constant") or \
            source is not None and ([n for n in source.shape if n != 1] ==
                                    [n for n in full if n != 1] or merges(source.shape, full))
        for size, group in zip(operand.shape, groups[missing:]):
            if size == 1:
                shape += [1] * len(group)
            elif len(group) == 1 or sum(wide[g] != 1 for g in group) == 1 or free:
                shape += [wide[g] for g in group]
            else:
                return None
        return self.build.reshape(operand, shape)

    def _unmerge_leading(self, node: Node, untouched: int):
        """Token-wise operations: only the last `untouched` dimensions matter to them."""
        x = node.operands[0]
        if x.op != "reshape":
            return None
        if numel(x.shape) == 0:
            return None
        y = merge_source(self.build, x) or x.operands[0]
        # Keep the last dimensions as they are, take the leading ones apart.
        tail = numel(x.shape[x.rank - untouched:])
        lead, product = y.rank, 1
        while lead > 0 and product < tail:
            lead -= 1
            product *= y.shape[lead]
        if product != tail:
            return None
        while lead > 0 and y.shape[lead - 1] == 1 and lead > x.rank - untouched:
            lead -= 1
        leading, last = y.shape[:lead], x.shape[x.rank - untouched:]
        target = x.shape[:x.rank - untouched]
        if merges(leading, target):
            leading = tight(leading, target)
        elif len(leading) >= len(target) or \
                [n for n in leading if n != 1] != [n for n in target if n != 1]:
            return None
        inner = self.build.reshape(x, leading + last)
        result = Node(node.op, [inner, *node.operands[1:]], dict(node.attrs),
                      leading + node.shape[node.rank - untouched:], node.dtype, node.loc,
                      node.position)
        return self.build.reshape(result, node.shape)

    def _linear(self, node: Node):
        return self._tokens_transposed(node) or self._unmerge_leading(node, 1)

    def _rms_norm(self, node: Node):
        return self._tokens_transposed(node) or self._unmerge_leading(node, 1)

    def _layer_norm(self, node: Node):
        return self._tokens_transposed(node) or self._unmerge_leading(node, 1)

    def _softmax(self, node: Node):
        if node.attrs["dim"] != node.rank - 1:
            return None
        moved = self._unmerge_leading(node, 1)
        if moved is not None:
            moved.operands[0].attrs["dim"] = moved.operands[0].rank - 1
        return moved

    def _top_k(self, node: Node):
        x = node.operands[0]
        if x.op == "softmax" and x.attrs["dim"] == x.rank - 1:  # keeps the order
            return self.build.top_k(x.operands[0], node.attrs["k"])
        return self._tokens_transposed(node) or self._unmerge_leading(node, 1)

    def _embedding(self, node: Node):
        ids, table, *offset = node.operands
        if offset:
            return None
        if ids.op == "reshape" and merges(ids.operands[0].shape, ids.shape):
            return self.build.reshape(self.build.embedding(ids.operands[0], table), node.shape)
        if ids.op == "broadcast":
            inner = self.build.embedding(ids.operands[0], table)
            return self.build.broadcast(inner, node.shape)
        if ids.op == "static" and isinstance(ids.form, Dense) and \
                ids.form.values.shape != ids.shape:
            small = self.build.static(ids.form, ids.form.values.shape, ids.dtype)
            return self.build.broadcast(self.build.embedding(small, table), node.shape)
        return None

    def _matmul(self, node: Node):
        lhs, rhs = node.operands
        changed = False
        flags = dict(node.attrs)
        for i, key in enumerate(("transpose_lhs", "transpose_rhs")):
            x = node.operands[i]
            if x.op == "transpose" and x.attrs["permutation"] == \
                    [*range(x.rank - 2), x.rank - 1, x.rank - 2]:
                node.operands[i] = x.operands[0]
                flags[key] = not flags[key]
                changed = True
            elif x.op == "broadcast":
                inner, other = x.operands[0], node.operands[1 - i]
                if inner.shape[-2:] == x.shape[-2:] and \
                        broadcast_shapes(inner.shape[:-2], other.shape[:-2]) == node.shape[:-2]:
                    node.operands[i] = inner
        lhs, rhs = node.operands
        if changed:
            node.attrs = flags
        return self._unmerge_batch(node, lhs, rhs)

    def _unmerge_batch(self, node: Node, lhs: Node, rhs: Node):
        """Products over merged (batch, heads) dimensions, as torch.bmm wants them."""
        for x in (lhs, rhs):
            y = merge_source(self.build, x) if x.rank >= 3 else None
            if y is None or y.rank <= x.rank or y.shape[-2:] != x.shape[-2:] or \
                    not merges(y.shape[:-2], x.shape[:-2]):
                continue
            y = self.build.reshape(y, tight(y.shape[:-2], x.shape[:-2]) + y.shape[-2:])
            other = rhs if x is lhs else lhs
            if other.shape[:-2] != x.shape[:-2]:
                continue
            wide = self.build.reshape(other, y.shape[:-2] + other.shape[-2:])
            pair = (y, wide) if x is lhs else (wide, y)
            result = self.build.matmul(*pair, node.attrs["transpose_lhs"],
                                       node.attrs["transpose_rhs"])
            return self.build.reshape(result, node.shape)
        return None

    def _gather(self, node: Node):
        data, index = node.operands
        if index.op != "reshape" or not merges(index.operands[0].shape, index.shape):
            return None
        inner = self.build.gather(data, index.operands[0], node.attrs["dim"])
        return self.build.reshape(inner, node.shape)

    def _take_along(self, node: Node):
        """Past merged dimensions along which the indices do not vary."""
        x, index = node.operands
        source, dim = merge_source(self.build, x), node.attrs["dim"]
        apart = self._take_along_apart(node, source)
        if apart is not None:
            return apart
        if source is None or index.op not in ("broadcast", "static"):
            return None
        groups = merged_dims(source.shape, x.shape)
        if groups is None or len(groups[dim]) != 1 or \
                any(len(g) > 1 and x.shape[d] != index.shape[d] for d, g in enumerate(groups)):
            return None
        wide = tight(source.shape, x.shape)
        groups = merged_dims(wide, x.shape)
        inner = index.operands[0] if index.op == "broadcast" else index
        if index.op == "static":
            if not isinstance(index.form, Diagonal):
                return None
            varying = [c != 0 for c in index.form.coefficients]
        else:
            varying = [False] * (node.rank - inner.rank) + [n != 1 for n in inner.shape]
        if any(v and len(g) > 1 for v, g in zip(varying, groups)):
            return None
        small = [1 if len(g) > 1 else index.shape[d] for d, g in enumerate(groups)]
        if index.op == "static":
            form = index.form
            for d, g in enumerate(groups):
                if len(g) > 1:
                    form = form_slice(form, index.shape, d, 0, 1, 1)
            inner = self.build.static(form, small, index.dtype)
        apart = [n for d, g in enumerate(groups) for n in ([1] * len(g) if len(g) > 1
                                                           else [small[d]])]
        full = [n for d, g in enumerate(groups) for n in ([wide[i] for i in g] if len(g) > 1
                                                          else [index.shape[d]])]
        inner = self.build.reshape(self.build.broadcast(inner, small), apart)
        result = self.build.make("take_along", [self.build.reshape(x, wide),
                                                self.build.broadcast(inner, full)], full, x.dtype,
                                 dim=list(groups[dim])[0])
        return self.build.reshape(result, node.shape)

    def _take_along_apart(self, node: Node, source: Node | None):
        """Past dimensions that the data and the indices merge alike."""
        x, index = node.operands
        if source is None:
            return None
        dim, wide = node.attrs["dim"], tight(source.shape, x.shape)
        groups = merged_dims(wide, x.shape)
        if len(groups[dim]) != 1 or wide == x.shape:
            return None
        at = list(groups[dim])[0]
        full = (*wide[:at], index.shape[dim], *wide[at + 1:])
        inner = self._widened(index, groups, full, node.rank)
        if inner is None or inner.shape != full:
            return None
        taken = self.build.make("take_along", [self.build.reshape(x, wide), inner], full, x.dtype,
                                dim=at)
        return self.build.reshape(taken, node.shape)

    def _reduce(self, node: Node):
        """Past merged dimensions: all parts of one are reduced, or none."""
        x, dims = node.operands[0], node.attrs["dims"]
        source = merge_source(self.build, x)
        if source is None:
            return None
        wide = tight(source.shape, x.shape)
        groups = merged_dims(wide, x.shape)
        inner = self.build.reduce(node.attrs["kind"], self.build.reshape(x, wide),
                                  [g for d in dims for g in groups[d]], node.attrs["keep_dims"])
        return self.build.reshape(inner, node.shape)

    def _concat(self, node: Node):
        dim = node.attrs["dim"]
        if all(o.op == "broadcast" for o in node.operands):
            inner = [o.operands[0] for o in node.operands]
            shapes = [(1,) * (node.rank - i.rank) + i.shape for i in inner]
            keep = [tuple(n for d, n in enumerate(s) if d != dim) for s in shapes]
            if len(set(keep)) == 1 and all(s[dim] == o.shape[dim]
                                           for s, o in zip(shapes, node.operands)):
                joined = self.build.concat([self.build.reshape(i, s)
                                            for i, s in zip(inner, shapes)], dim)
                return self.build.broadcast(joined, node.shape)
        return None
