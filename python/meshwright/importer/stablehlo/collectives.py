# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Collectives of a manual computation, and the number of a rank in it.

The groups of a collective are those of axes of the mesh, or of parts of axes; others are refused. A permute
sends chunks to other ranks, where they are those of another value.
"""
import math
from typing import NamedTuple

import numpy as np
from jax.extend.mlir import ir

from ..errors import Uncovered
from ..graph import forms
from ..graph.layouts import axes_of_groups, shards
from ..graph.match import constant_of
from ..graph.nodes import Builder, Node
from . import ops_control, ops_elementwise, ops_index, ops_shape  # noqa: F401 (their handlers come first)
from .attributes import direction, integer, integers
from .handlers import HANDLERS, Context, handles
from .lift_tables import lift_tables
from .ops_reduce import combination

_KINDS = {"add": "sum", "maximum": "max"}


def _table(attribute) -> list[list[int]]:
    return np.array(ir.DenseIntElementsAttr(attribute)).tolist()


def _expect_manual(c: Context, op):
    if c.manual is None:
        raise Uncovered(f"operation {op.name} is not covered outside of a function that shard_map writes over a mesh")


def _axes(c: Context, op):
    """The axes of a collective's groups. Empty groups are one of all ranks."""
    _expect_manual(c, op)
    groups = [[rank for rank in ranks if rank >= 0] for ranks in _table(op.attributes["replica_groups"])]
    if not any(groups):
        groups = [list(range(c.manual.ranks))]
    axes = axes_of_groups(c.manual, groups)
    if axes is None:
        raise Uncovered(f"{op.name} with the groups {groups} is not covered: expected those of axes of the mesh "
                        f"{c.manual}, or of parts of axes")
    return tuple(axes)


def _reduction(op) -> str:
    stated = combination(op)
    if stated not in _KINDS and stated != "minimum":
        raise Uncovered(f"{op.name} by {stated and 'stablehlo.' + stated or 'a region of its own'} is not covered: "
                        "expected add, maximum or minimum")
    return stated


def _reduced(c: Context, op, name: str, x: Node, shape, **attributes) -> Node:
    """A collective that combines parts; the smallest is the negative of the largest of the negatives."""
    stated, build = _reduction(op), c.build
    turned = build.unary("neg", x) if stated == "minimum" else x
    result = build.make(name, [turned], shape, x.dtype, reduction=_KINDS.get(stated, "max"), **attributes)
    return build.unary("neg", result) if stated == "minimum" else result


@handles("all_reduce")
def all_reduce(c: Context, op, *operands):
    axes = _axes(c, op)
    return [_reduced(c, op, "dist.all_reduce", x, x.shape, axes=axes) if axes else x for x in operands]


@handles("reduce_scatter")
def reduce_scatter(c: Context, op, x):
    axes, dim = _axes(c, op), integer(op, "scatter_dimension")
    return _reduced(c, op, "dist.reduce_scatter", x, c.shape, axes=axes, dim=dim) if axes else x


@handles("all_gather")
def all_gather(c: Context, op, *operands):
    axes, dim = _axes(c, op), integer(op, "all_gather_dim")
    if not axes:
        return list(operands)
    return [_gathered(c, x, axes, dim) for x in operands]


def _sharded_dim(c: Context, x: Node, axes) -> int | None:
    """The dimension that all of these axes shard, if it is known."""
    found = {c.coordinates.of(x).get(axis.name) for axis in axes}
    return found.pop() if len(found) == 1 else None


def _gathered(c: Context, x: Node, axes, dim: int) -> Node:
    """Chunks one behind the other along a dimension. If the axes shard another one, the ranks become a dimension
    before that one, which then moves to its place."""
    build, ranks, own = c.build, shards(axes), _sharded_dim(c, x, axes)
    if own is None or own == dim:
        shape = [n * ranks if d == dim else n for d, n in enumerate(x.shape)]
        return build.make("dist.all_gather", [x], shape, x.dtype, axes=axes, dim=dim)
    apart = build.reshape(x, (*x.shape[:own], 1, *x.shape[own:]))
    whole = build.make("dist.all_gather", [apart], (*x.shape[:own], ranks, *x.shape[own:]), x.dtype, axes=axes, dim=own)
    order = [d for d in range(whole.rank) if d != own]
    order.insert(dim, own)
    return build.reshape(build.transpose(whole, order), [n * ranks if d == dim else n for d, n in enumerate(x.shape)])


@handles("all_to_all")
def all_to_all(c: Context, op, *operands):
    axes = _axes(c, op)
    source, target = integer(op, "concat_dimension"), integer(op, "split_dimension")
    if not axes:
        return list(operands)
    return [_exchanged(c, x, axes, source, target) for x in operands]


def _exchanged(c: Context, x: Node, axes, source: int, target: int) -> Node:
    """Block i along `target` goes to the group's rank i, and the blocks of all ranks are joined along `source`.

    If the axes shard `source`, that is an all-to-all. If they shard another dimension, it is one from there, and the
    ranks, which are major in that dimension then, become major in `source`. If they shard `target` itself, ranks and
    blocks change places. The coordinate of a rank becomes major in `target`. Where blocks of another dimension are
    joined along `target`, too, it stands behind these, so that it may as well be that of the next dimension.
    """
    build, ranks, own = c.build, shards(axes), _sharded_dim(c, x, axes)
    own = source if own is None else own
    if own == source != target:
        shape = [n * ranks if d == source else n // ranks if d == target else n for d, n in enumerate(x.shape)]
        return build.make("dist.all_to_all", [x], shape, x.dtype, axes=axes, source=source, target=target)
    # The dimensions in parts: the blocks of `target`, and the ranks, whose dimension is new.
    sizes = {d: n // ranks if d == target else n for d, n in enumerate(x.shape)} | {"rank": 1, "blocks": ranks, "ranks": ranks}
    parts = []
    for d in range(x.rank):
        parts += ["rank"] if d == own else []
        parts += ["blocks", d] if d == target else [d]
    apart = build.reshape(x, [sizes[p] for p in parts])
    at, blocks = parts.index("rank"), parts.index("blocks")
    parts[at], parts[blocks] = "ranks", "rank"
    moved = build.make("dist.all_to_all", [apart], [sizes[p] for p in parts], x.dtype, axes=axes, source=at, target=blocks)
    order = []
    for d in range(x.rank):
        here = ["ranks"] if d == source else []
        if d == target:
            here = ["rank", *here] if own == target else [*here, "rank"]
        order += [*here, d]
    shape = [sizes[d] * (ranks if d == source else 1) for d in range(x.rank)]
    return build.reshape(build.transpose(moved, [parts.index(p) for p in order]), shape)


@handles("collective_permute")
def collective_permute(c: Context, op, x):
    _expect_manual(c, op)
    pairs = [(int(a), int(b)) for a, b in _table(op.attributes["source_target_pairs"])]
    if all(a == b for a, b in pairs) and len(pairs) == c.manual.ranks:
        return x
    axes, moves = _moves(c, pairs)
    return c.build.make("dist.permute", [x], x.shape, x.dtype, axes=axes, pairs=moves)


def _moves(c: Context, pairs):
    """The axes along which a permute sends, and the coordinates of source and destination: the fewest axes
    along which all ranks send alike."""
    mesh = c.manual
    moved = [name for name in mesh.axes
             if any(mesh.coordinate(a, [mesh.axis(name)]) != mesh.coordinate(b, [mesh.axis(name)]) for a, b in pairs)]
    for names in (moved, list(mesh.axes)):
        axes = tuple(mesh.axis(name) for name in names)
        moves = sorted({(mesh.coordinate(a, axes), mesh.coordinate(b, axes)) for a, b in pairs})
        groups = mesh.groups(axes)
        if sorted((g[a], g[b]) for g in groups for a, b in moves) == sorted(pairs):
            return axes, moves
    raise Uncovered("stablehlo.collective_permute over ranks of two meshes is not covered")


# The number of a rank.

@handles("partition_id")
def partition_id(c: Context, op):
    _expect_manual(c, op)
    return _numbered(c, [Digit(1, c.manual.ranks, 1)])


@handles("replica_id")
def replica_id(c: Context, op):
    _expect_manual(c, op)
    return c.build.scalar(0, c.dtype)


class Digit(NamedTuple):
    """A term of a number that depends on the rank: rank / stride % size, times a factor."""
    stride: int
    size: int
    factor: int

    @property
    def most(self) -> int:
        return (self.size - 1) * self.factor


def _numbered(c: Context, digits) -> Node:
    """The sum of digits."""
    digits = tuple(d for d in digits if d.size > 1)
    return c.build.make("rank", [], (), c.dtype, digits=digits) if digits else c.build.scalar(0, c.dtype)


def is_rank(node: Node) -> bool:
    """Whether a node is a number that depends on the rank. `is_first` says where it is 0."""
    return node.op == "rank"


def _plain(node: Node, count) -> Digit | None:
    """The only digit of a number, if a whole count of its values makes its next digit."""
    digits = node.attrs["digits"] if is_rank(node) else ()
    fits = len(digits) == 1 and digits[0].factor == 1 and count and digits[0].size % count == 0
    return digits[0] if fits else None


def _divided(c: Context, op, x, y):
    count = int(constant_of(y) or 0)
    if (digit := _plain(x, count)) is None:
        return None
    return _numbered(c, [Digit(digit.stride * count, digit.size // count, 1)])


def _remainder(c: Context, op, x, y):
    count = int(constant_of(y) or 0)
    if (digit := _plain(x, count)) is None:
        return x if is_rank(x) and count > _most(x) else None
    return _numbered(c, [digit._replace(size=count)])


def _most(x: Node) -> int:
    return sum(digit.most for digit in x.attrs["digits"])


def _converted(c: Context, op, x):
    return _numbered(c, x.attrs["digits"]) if c.dtype in ("i32", "i64") else None


def _multiplied(c: Context, op, x, y):
    for mask, other in ((x, y), (y, x)):
        first = _stretched(mask)
        first = first.operands[0] if first.op == "cast" else first
        if first.op == "is_first" and other.shape == c.shape:
            return _part_of(c, other, first)
    if not is_rank(x) and not is_rank(y):
        return None
    rank, other = (x, y) if is_rank(x) else (y, x)
    count = int(constant_of(other) or 0)
    if count <= 0:
        return None
    return _numbered(c, [d._replace(factor=d.factor * count) for d in rank.attrs["digits"]])


def _added(c: Context, op, x, y):
    if is_rank(x) and is_rank(y):
        return _numbered(c, [*x.attrs["digits"], *y.attrs["digits"]])
    rank, other = (x, y) if is_rank(x) else (y, x)
    return rank if constant_of(other) == 0 else None


def _compared(c: Context, op, x, y):
    """A comparison that has one answer on all ranks."""
    bound = constant_of(y) if is_rank(x) else None
    if bound is None:
        return None
    if bound == 0 and direction(op) == "eq":
        return c.build.make("is_first", [], (), "i1", digits=x.attrs["digits"])
    most = _most(x)
    answers = {"lt": (most < bound, bound <= 0), "ge": (bound <= 0, most < bound),
               "le": (most <= bound, bound < 0), "gt": (bound < 0, most <= bound)}
    yes, no = answers.get(direction(op), (False, False))
    return c.build.scalar(yes, "i1") if yes or no else None


def _selected(c: Context, op, condition, x, y):
    known = constant_of(condition)
    if known is not None:
        return x if known else y
    first = _stretched(condition)
    return _part_of(c, x, first) if first.op == "is_first" and constant_of(y) == 0 else None


def _stretched(x: Node) -> Node:
    """A scalar that is broadcast."""
    while x.op in ("broadcast", "reshape"):
        x = x.operands[0]
    return x


def _part_of(c: Context, x: Node, first: Node) -> Node | None:
    """A value on the first rank, zeros on the others: a part of a sum."""
    axes = _axes_of(c, first.attrs["digits"], min(d.factor for d in first.attrs["digits"]))
    return None if axes is None else c.build.make("dist.partial", [x], x.shape, x.dtype, axes=axes)


def _axes_of(c: Context, digits, rows: int):
    """The axes over which a number is a rank's coordinate times `rows`; None if it is no such number."""
    axes, next_factor = [], rows
    for digit in sorted(digits, key=lambda d: d.factor):
        own = _axes_of_digit(c, digit)
        if digit.factor != next_factor or own is None:
            return None
        axes = own + axes
        next_factor *= digit.size
    return tuple(axes)


def _axes_of_digit(c: Context, digit: Digit):
    mesh = c.manual
    return axes_of_groups(mesh, [[base + i * digit.stride for i in range(digit.size)] for base in range(mesh.ranks)
                                 if base // digit.stride % digit.size == 0])


def _sliced(c: Context, op, x, *starts):
    """A rank's own chunk of a value that all ranks have."""
    sizes = integers(op.attributes["slice_sizes"])
    at = [d for d, start in enumerate(starts) if is_rank(start)]
    dim = at[0]
    axes = _axes_of(c, starts[dim].attrs["digits"], sizes[dim])
    others = all(constant_of(s) == 0 and sizes[d] == x.shape[d] for d, s in enumerate(starts) if d != dim)
    if len(at) > 1 or not others or axes is None or sizes[dim] * shards(axes) != x.shape[dim]:
        raise Uncovered("stablehlo.dynamic_slice at a place that depends on the rank is covered for a rank's own chunk of a "
                        f"dimension alone: expected ranks to have all of its {x.shape[dim]} rows together, each those behind "
                        f"the rows of the rank before, got {sizes[dim]} rows from at most {_most(starts[dim])} on")
    return c.build.make("dist.slice", [x], c.shape, x.dtype, axes=axes, dim=dim)


def _padded(c: Context, op, x, value):
    """Zeros at the tail of dimensions, where the program has padding: they are padding."""
    if not c.pads:
        return None
    low, high, interior = (integers(op.attributes[name])
                           for name in ("edge_padding_low", "edge_padding_high", "interior_padding"))
    if any(low) or any(interior) or min(high) < 0 or constant_of(value) != 0:
        return None
    return c.build.make("dist.pad", [x], c.shape, x.dtype, dims=[d for d, n in enumerate(high) if n])


def _before(name: str, of):
    """Lets a handler of ranks' numbers go before that of all other values."""
    general = HANDLERS[f"stablehlo.{name}"]

    @handles(name)
    def handler(c: Context, op, *operands):
        needs_rank = of not in (_padded, _selected, _multiplied)
        if c.manual is not None and (any(map(is_rank, operands)) or not needs_rank):
            result = of(c, op, *operands)
            if result is not None:
                return result
        return general(c, op, *operands)


for _name, _handler in (("divide", _divided), ("remainder", _remainder), ("convert", _converted),
                        ("multiply", _multiplied), ("add", _added), ("compare", _compared), ("select", _selected),
                        ("dynamic_slice", _sliced), ("pad", _padded)):
    _before(_name, _handler)


def settle_ranks(c: Context):
    """Numbers of ranks become the offsets of tables, or operations where they are read as numbers."""
    lift_tables(c.graph, c.build, lambda digits, rows: _axes_of(c, digits, rows))
    def pattern(node: Node) -> Node | None:
        if node.op == "is_first":
            rank = c.build.at(node).make("rank", [], (), "i64", digits=node.attrs["digits"])
            return c.build.compare("eq", _indexed(c, rank), c.build.scalar(0, "i64"))
        return _indexed(c, node) if is_rank(node) else None

    c.graph.rewrite(pattern)


def _indexed(c: Context, x: Node) -> Node:
    digits, build = x.attrs["digits"], c.build.at(x)
    rows = min(d.factor for d in digits)
    axes = _axes_of(c, digits, rows)
    if axes is not None:
        return build.cast(build.make("dist.axis_index", [], (), "i64", axes=axes, chunk=rows), x.dtype)
    result = None
    for digit in digits:
        axes = _axes_of_digit(c, digit)
        if axes is None:
            raise Uncovered(f"the number of a rank / {digit.stride} % {digit.size} is not covered: expected a coordinate over "
                            f"axes of the mesh {c.manual}")
        term = build.make("dist.axis_index", [], (), "i64", axes=tuple(axes), chunk=digit.factor)
        result = term if result is None else build.binary("add", result, term)
    return build.cast(result, x.dtype)


def settle_parts(graph):
    """Brings operations into forms that parts of sums may go through: means and minima become sums and
    maxima, and casts to narrower types round each part, as the program says."""
    def pattern(node: Node):
        if node.op == "cast" and node.dtype in ("bf16", "f16") and node.operands[0].dtype in ("f32", "f64"):
            node.attrs["parts"] = True
        if node.op == "neg":
            return _negated_twice(node.operands[0])
        if node.op != "reduce" or node.attrs["kind"] not in ("mean", "min"):
            return None
        x, build = node.operands[0], Builder().at(node)
        kind = "sum" if node.attrs["kind"] == "mean" else "max"
        part = build.reduce(kind, x if kind == "sum" else build.unary("neg", x), node.attrs["dims"], node.attrs["keep_dims"])
        if kind == "max":
            return build.unary("neg", part)
        count = build.make("constant", [], (), x.dtype,
                           value=forms.cast(1 / math.prod(x.shape[d] for d in node.attrs["dims"]), x.dtype))
        return build.binary("mul", part, count)

    graph.rewrite(pattern)


def _negated_twice(x: Node) -> Node | None:
    """The negative of a negative that was only moved."""
    if x.op == "neg":
        return x.operands[0]
    if x.op not in ("reshape", "transpose", "broadcast"):
        return None
    inner = _negated_twice(x.operands[0])
    return inner and Node(x.op, [inner], x.attrs, x.shape, x.dtype, x.loc, x.position)
