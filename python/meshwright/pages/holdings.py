# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The part of a tensor that a rank holds, and drawings of layouts in characters."""

import fnmatch
import itertools

import numpy as np

from ..importer.graph.layouts import Mesh, shards
from .facts import Facts, Layout
from .numbers import bytes_text, plural

#: Dimensions with more elements are described by their chunks, not by their elements.
_LISTED = 1 << 22
_CELLS = 16


def coordinate(layout: Layout, mesh: Mesh, rank: int) -> tuple[int, ...]:
    """The chunk of each dimension that a rank holds."""
    return tuple(_coordinate(dim, mesh, rank) for dim in layout.sharding.dims)


def _coordinate(dim, mesh, rank) -> int:
    index = 0
    for factor in dim:
        index = index * shards(factor.axes) + mesh.coordinate(rank, factor.axes)
    return index


def chunks(dim) -> int:
    """Into how many chunks a dimension is cut."""
    return int(np.prod([shards(factor.axes) for factor in dim], dtype=np.int64))


def ranges(dim, index: int) -> list[tuple[int, int]]:
    """The elements of a chunk of a dimension, as ranges that end before their second number."""
    indices = []
    for factor in reversed(dim):
        index, own = divmod(index, shards(factor.axes))
        indices.append((factor, own))
    if len(dim) == 1 and not dim[0].order:
        factor, own = indices[0]
        begin = min(own * factor.local, factor.size)
        end = min(begin + factor.local, factor.size)
        return [(begin, end)] if end > begin else []
    if np.prod([factor.size for factor in dim], dtype=np.int64) > _LISTED:
        return []
    found = np.zeros(1, np.int64)
    for factor, own in reversed(indices):
        tokens = np.array(factor.tokens()[own * factor.local : (own + 1) * factor.local], np.int64)
        found = (found[:, None] * factor.size + tokens[tokens >= 0]).ravel()
    found.sort()
    if not len(found):
        return []
    cuts = np.flatnonzero(np.diff(found) != 1) + 1
    return [(int(part[0]), int(part[-1]) + 1) for part in np.split(found, cuts)]


def ranges_text(dim, index: int) -> str:
    """`0:32`, `0:4, 28:32`, or the first of many ranges."""
    found = ranges(dim, index)
    if not found:
        return "padding"
    shown = ", ".join(f"{begin}:{end}" for begin, end in found[:3])
    return shown + (f", ... ({len(found)} ranges)" if len(found) > 3 else "")


def held(layout: Layout, mesh: Mesh, rank: int) -> str:
    """The part that a rank holds: `rows 32:64 of 64, all 64 columns`."""
    parts = []
    names = ["rows", "columns"] if len(layout.sharding.dims) == 2 else None
    for d, (dim, index) in enumerate(zip(layout.sharding.dims, coordinate(layout, mesh, rank))):
        size = layout.whole.shape[d]
        name = names[d] if names else "elements" if len(layout.whole.shape) == 1 else f"dimension {d}"
        if chunks(dim) == 1:
            parts.append(f"all {size} {name}" if names or name == "elements" else f"all {size} of {name}")
        else:
            parts.append(f"{name} {ranges_text(dim, index)} of {size}")
    return "; ".join(parts) or "all of it"


def holders(layout: Layout, mesh: Mesh) -> dict[tuple[int, ...], list[int]]:
    """The ranks that hold each chunk."""
    found: dict[tuple[int, ...], list[int]] = {}
    for rank in range(mesh.ranks):
        found.setdefault(coordinate(layout, mesh, rank), []).append(rank)
    return found


def ranks_text(ranks: list[int]) -> str:
    """`rank 3`, `ranks 0 to 3`, `ranks 1, 3`, `32 ranks: 0, 4, 8, ...`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if ranks[-1] - ranks[0] == len(ranks) - 1 and len(ranks) > 2:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    if len(ranks) <= 6:
        return "ranks " + ", ".join(map(str, ranks))
    return f"{len(ranks)} ranks: " + ", ".join(map(str, ranks[:3])) + ", ..."


def summary(layout: Layout) -> str:
    """A line of a layout."""
    return (f"{layout.pattern}  {layout.whole}, {layout.text}: {layout.local} "
            f"({bytes_text(layout.bytes)}) on a rank")


def drawn_dims(layout: Layout) -> tuple[int | None, int | None]:
    """The dimensions that a drawing has as rows and columns: the first two that are sharded, else the
    last two."""
    rank = len(layout.whole.shape)
    cut = [d for d, dim in enumerate(layout.sharding.dims) if chunks(dim) > 1][:2]
    if len(cut) == 1 and rank > 1:
        other = rank - 1 if cut[0] != rank - 1 else rank - 2
        cut = sorted([*cut, other])
    if not cut:
        cut = list(range(max(0, rank - 2), rank))
    return (cut[0] if len(cut) > 1 else None), (cut[-1] if cut else None)


def drawing(layout: Layout, mesh: Mesh) -> str:
    """A layout in characters: the chunks of the tensor, each with the ranks that hold it."""
    lines = [summary(layout)]
    if len(layout.names) > 1:
        lines[0] += f", {plural(len(layout.names), 'tensor')}"
    row_dim, column_dim = drawn_dims(layout)
    rows, columns = _cuts(layout, row_dim), _cuts(layout, column_dim)
    by_chunk: dict[tuple[int, int], list[int]] = {}
    for chunk, ranks in holders(layout, mesh).items():
        key = (chunk[row_dim] if row_dim is not None else 0, chunk[column_dim] if column_dim is not None else 0)
        by_chunk.setdefault(key, []).extend(ranks)
    cells = [[ranks_text(sorted(by_chunk.get((i, j), [0]))) if i >= 0 and j >= 0 else "..."
              for j, _ in columns] for i, _ in rows]
    labels = [label for _, label in rows]
    margin = max(map(len, labels))
    widths = [max(len(cell) for cell in (label, *column)) + 2
              for (_, label), column in zip(columns, zip(*cells))]
    rule = lambda left, middle, right: " " * margin + " " + left + middle.join("─" * w for w in widths) + right
    lines.append(" " * margin + "  " + " ".join(label.center(w) for (_, label), w in zip(columns, widths)).rstrip())
    lines.append(rule("┌", "┬", "┐"))
    for k, (label, row) in enumerate(zip(labels, cells)):
        if k:
            lines.append(rule("├", "┼", "┤"))
        lines.append(f"{label:>{margin}} │" + "│".join(c.center(w) for c, w in zip(row, widths)) + "│")
    lines.append(rule("└", "┴", "┘"))
    others = [d for d, dim in enumerate(layout.sharding.dims)
              if chunks(dim) > 1 and d not in (row_dim, column_dim)]
    if others:
        lines.append("the ranks of a cell share it by dimension " + ", ".join(map(str, others)))
    if layout.sharding.unreduced:
        axes = ", ".join(a.name for a in layout.sharding.unreduced)
        lines.append(f"each rank holds a part of a {layout.sharding.reduction} over {axes}")
    return "\n".join(lines)


def _cuts(layout: Layout, d) -> list[tuple[int, str]]:
    """The chunks of a dimension with their labels; -1 stands for chunks that are left out."""
    if d is None:
        return [(0, "")]
    dim = layout.sharding.dims[d]
    count = chunks(dim)
    shown = list(range(count)) if count <= _CELLS else [*range(4), -1, count - 1]
    if count == 1:
        return [(0, f"0:{layout.whole.shape[d]}")]
    return [(i, ranges_text(dim, i) if i >= 0 else "...") for i in shown]


def drawings(facts: Facts, pattern: str) -> str | None:
    """The drawings of all layouts with a tensor that the shell pattern matches; None without one.

    Names within a layout that do not match are left out.
    """
    found = []
    for layout in facts.layouts:
        names = [name for name in layout.names if fnmatch.fnmatchcase(name, pattern)]
        if names:
            found.append(drawing(layout.of(names), facts.mesh))
    return "\n\n".join(found) or None


def chunk_numbers(layout: Layout, mesh: Mesh) -> list[int]:
    """The number of the chunk that each rank holds, in the order of the chunks."""
    sizes = [chunks(dim) for dim in layout.sharding.dims]
    order = {c: k for k, c in enumerate(itertools.product(*map(range, sizes)))} if sizes else {(): 0}
    return [order[coordinate(layout, mesh, rank)] for rank in range(mesh.ranks)]
