# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Look-ups in a table of which each rank has some rows.

A rank subtracts the number of its first row from the ids, looks up what is in range, and makes zeros of the
rest. There are many spellings of it. So the lift computes what the operations around a `gather` do for each
id on each rank, and takes them for `nn.embedding` with an offset if that is right for all ids.
"""
import numpy as np

from ..graph.match import constant_of
from ..graph.nodes import Graph, Node

#: The most values that are computed for one table.
_MOST = 1 << 24
_BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "maximum": np.maximum, "minimum": np.minimum,
           "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
_COMPARE = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
            "ge": np.greater_equal}


class _Unknown(Exception):
    """An operation that is no function of an id and the rank."""


def lift_tables(graph: Graph, build, axes_of):
    """`axes_of` gives the axes over which a number is a rank's coordinate times a number of rows."""
    uses = graph.uses()
    replaced: dict[int, Node] = {}
    for gather in graph.nodes():
        if gather.op in ("gather", "embedding"):
            found = _lookup(gather, uses)
            if found is not None:
                top, ids, rank = found
                new = _embedding(build.at(gather), gather, ids, rank, axes_of)
                if new is not None:
                    replaced[id(top)] = new
    if replaced:
        graph.rewrite(lambda node: replaced.get(id(node)))


def _lookup(gather: Node, uses) -> tuple[Node, Node, Node] | None:
    """The value that is the look-up, its ids, and the number of a rank's first row."""
    indices, table = (gather.operands[1], gather.operands[0]) if gather.op == "gather" else gather.operands[:2]
    if table.rank != 2 or gather.op == "gather" and gather.attrs["dim"] != 0 or len(gather.operands) > 2:
        return None
    sources, ranks = _sources(indices)
    if len(sources) != 1 or len(ranks) != 1:
        return None
    (ids,), (rank,) = sources.values(), ranks.values()
    rows, digits = table.shape[0], rank.attrs["digits"]
    count = min(rows * int(np.prod([d.size for d in digits])), _rows_of(table))
    ranks_of = _numbers(digits)
    if gather.shape != (*ids.shape, table.shape[1]) or len(ranks_of) * count > _MOST:
        return None
    domain = _Domain(ids, rank, gather, np.arange(count)[None], ranks_of[:, None])
    own = np.arange(count)[None] // rows * rows == ranks_of[:, None]
    node = gather
    for _ in range(8):
        users = uses.get(id(node), ())
        if len(users) != 1 or users[0] is None:
            return None
        node = users[0]
        try:
            rowed, value = domain.of(node)
            index = domain.of(indices)[1]
        except _Unknown:
            return None
        if node.shape == gather.shape and np.array_equal(np.broadcast_to(rowed, own.shape), own) and \
                (np.broadcast_to(value, own.shape)[~own] == 0).all() and \
                (np.broadcast_to(index, own.shape) == np.arange(count)[None] - ranks_of[:, None])[own].all():
            return node, ids, rank
    return None


def _sources(node: Node):
    """The values that a function of elements is computed from, and the numbers of ranks among them."""
    sources, ranks, stack, seen = {}, {}, [node], set()
    while stack:
        x = stack.pop()
        if id(x) in seen:
            continue
        seen.add(id(x))
        if x.op == "rank":
            ranks[x.attrs["digits"]] = x
        elif x.op in _BINARY or x.op in ("compare", "select", "cast", "reshape", "broadcast", "not", "neg"):
            stack += x.operands
        elif constant_of(x) is None:
            sources[id(x)] = x
    return sources, ranks


def _numbers(digits) -> np.ndarray:
    """The number on each rank, in the order of the digits' coordinates."""
    numbers = np.zeros(1, np.int64)
    for digit in digits:
        numbers = (numbers[:, None] + np.arange(digit.size) * digit.factor).reshape(-1)
    return numbers


class _Domain:
    """Values for all ids on all ranks. A value is where it is the row that is looked up, and its number
    elsewhere."""

    def __init__(self, ids: Node, rank: Node, gather: Node, all_ids, all_ranks):
        self.rank, self.known = rank, {id(ids): (False, all_ids), id(gather): (np.ones((1, 1), bool), 0.0)}
        self.all_ranks = all_ranks

    def of(self, node: Node):
        if id(node) not in self.known:
            self.known[id(node)] = self._compute(node)
        return self.known[id(node)]

    def _compute(self, node: Node):
        if node.op == "rank":
            if node.attrs["digits"] != self.rank.attrs["digits"]:
                raise _Unknown
            return False, self.all_ranks
        constant = constant_of(node)
        if constant is not None:
            return False, np.asarray(constant)
        if node.op in ("reshape", "broadcast", "cast"):
            row, value = self.of(node.operands[0])
            if node.op == "cast" and np.asarray(value).dtype.kind == "f" and node.dtype.startswith("i"):
                raise _Unknown
            return row, value != 0 if node.dtype == "i1" and row is False else value
        operands = [self.of(x) for x in node.operands]
        if node.op == "select":
            (no_row, chosen), (row_x, x), (row_y, y) = operands
            self._expect_numbers(no_row)
            row = False if row_x is False and row_y is False else np.where(chosen, row_x, row_y)
            return row, np.where(chosen, x, y)
        if node.op == "mul" and any(row is not False for row, _ in operands):
            return self._masked(*sorted(operands, key=lambda operand: operand[0] is False))
        for row, _ in operands:
            self._expect_numbers(row)
        values = [value for _, value in operands]
        if node.op == "compare":
            return False, _COMPARE[node.attrs["kind"]](*values)
        if node.op in _BINARY:
            return False, _BINARY[node.op](*values)
        if node.op in ("not", "neg"):
            return False, np.logical_not(values[0]) if node.op == "not" else -values[0]
        raise _Unknown

    @staticmethod
    def _expect_numbers(row):
        if row is not False:
            raise _Unknown

    def _masked(self, rows, factors):
        """Rows times one or zero."""
        (row, value), (no_row, factor) = rows, factors
        self._expect_numbers(no_row)
        if not np.isin(factor, (0, 1)).all():
            raise _Unknown
        return np.logical_and(row, factor == 1), value * factor


def _rows_of(table: Node) -> float:
    """The number of true rows of an argument; infinity for any other table."""
    while table.op == "cast":
        table = table.operands[0]
    sharding = table.attrs.get("sharding")
    return sharding.shape[0] if sharding is not None else float("inf")


def _embedding(build, gather: Node, ids: Node, rank: Node, axes_of) -> Node | None:
    table = gather.operands[0] if gather.op == "gather" else gather.operands[1]
    axes = axes_of(rank.attrs["digits"], table.shape[0])
    if axes is None:
        return None
    offset = build.make("dist.axis_index", [], (), "i64", axes=axes, chunk=table.shape[0])
    count = min(table.shape[0] * int(np.prod([a.size for a in axes])), _rows_of(table))
    return build.make("embedding", [build.cast(ids, "i64"), table, offset], gather.shape, gather.dtype, table_rows=count)
