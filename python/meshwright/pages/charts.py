# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The pictures of a page as SVG. The page's style gives classes their colours, light and dark."""

import math
from typing import NamedTuple

import svg
from markupsafe import escape

from . import holdings
from .facts import Facts, Launch, Layer, Layout
from .numbers import bytes_text, plural, seconds_text
from .traffic import matrix as traffic_matrix

WIDTH = 960
#: More boxes than these have no titles, and boxes of one colour are one path.
_TITLED = 2400
_RANKS_OF_MATRIX = 32
_RANKS_OF_MESH = 64
_TRACED_RANKS = 8


class Box(NamedTuple):
    x: float
    y: float
    width: float
    height: float
    kind: str
    title: str = ""


def _rounded(value: float) -> float:
    value = round(value, 1)
    return int(value) if value == int(value) else value


def _text(x, y, content, *kinds, anchor=None) -> svg.Text:
    return svg.Text(x=_rounded(x), y=_rounded(y), text=str(escape(content)), class_=list(kinds) or None,
                    text_anchor=anchor)


def _rect(box: Box) -> svg.Rect:
    title = [svg.Title(text=str(escape(box.title)))] if box.title else None
    return svg.Rect(x=_rounded(box.x), y=_rounded(box.y), width=_rounded(max(box.width, 0.4)),
                    height=_rounded(max(box.height, 0.4)), class_=box.kind.split(), elements=title)


def _boxes(boxes: list[Box]) -> list[svg.Element]:
    if len(boxes) <= _TITLED:
        return [_rect(box) for box in boxes]
    rows: dict[tuple, list[list[float]]] = {}
    for box in sorted(boxes, key=lambda b: (b.kind, b.y, b.height, b.x)):
        row = rows.setdefault((box.kind, _rounded(box.y), _rounded(max(box.height, 0.4))), [])
        end = box.x + max(box.width, 0.4)
        if row and box.x - row[-1][1] < 0.3:
            row[-1][1] = max(row[-1][1], end)
        else:
            row.append([box.x, end])
    paths: dict[str, list[svg.PathData]] = {}
    for (kind, y, height), row in rows.items():
        data = paths.setdefault(kind, [])
        for begin, end in row:
            width = _rounded(end - begin)
            data += [svg.M(_rounded(begin), y), svg.HorizontalLineToRel(width),
                     svg.VerticalLineToRel(height), svg.HorizontalLineToRel(-width), svg.ClosePath()]
    return [svg.Path(d=data, class_=kind.split()) for kind, data in paths.items()]


def _picture(width, height, items, label: str, fixed=False) -> str:
    """The text of a picture. A fixed one keeps its size; others are as wide as the page."""
    size = {"width": _rounded(width), "height": _rounded(height)} if fixed else {}
    # The page is HTML, so the name space of SVG is known.
    return svg.SVG(viewBox=svg.ViewBoxSpec(0, 0, _rounded(width), _rounded(height)), xmlns=None,
                   elements=items, extra={"role": "img", "aria-label": str(escape(label))}, **size).as_str()


def _axis(left, right, y, ticks) -> list[svg.Element]:
    """Labels below a chart at shares of its width."""
    items: list[svg.Element] = [svg.Line(x1=left, x2=right, y1=_rounded(y), y2=_rounded(y), class_=["rule"])]
    for share, label in ticks:
        anchor = "start" if share == 0 else "end" if share == 1 else "middle"
        items.append(_text(left + share * (right - left), y + 13, label, "small", anchor=anchor))
    return items


# The mesh, and layouts over it.


def _grid(facts: Facts) -> tuple[int, int]:
    """Rows and columns of the ranks: the last axis is a row."""
    columns = list(facts.mesh.axes.values())[-1] if facts.mesh.axes else 1
    if columns > 16:
        columns = next(n for n in range(16, 0, -1) if columns % n == 0)
    return math.ceil(facts.ranks / columns), columns


def mesh(facts: Facts) -> str:
    rows, columns = _grid(facts)
    shown = min(rows, max(1, _RANKS_OF_MESH // columns))
    width, height = min(150, 880 // columns), 46
    items: list[svg.Element] = []
    names = list(facts.mesh.axes)
    for rank in range(min(facts.ranks, shown * columns)):
        i, j = divmod(rank, columns)
        x, y = j * (width + 8), i * (height + 8)
        where = ", ".join(f"{name} {facts.mesh.coordinate(rank, [facts.mesh.axis(name)])}" for name in names)
        if j:
            items.append(svg.Line(x1=x - 8, x2=x, y1=y + height // 2, y2=y + height // 2, class_=["link"]))
        if i:
            items.append(svg.Line(x1=x + width // 2, x2=x + width // 2, y1=y - 8, y2=y, class_=["link", "outer"]))
        items.append(_rect(Box(x, y, width, height, "rank", f"rank {rank}: {where}")))
        items.append(_text(x + width / 2, y + 19, f"rank {rank}" if width > 50 else rank, anchor="middle"))
        if width > 90:
            items.append(_text(x + width / 2, y + 36, where, "small", anchor="middle"))
    return _picture(columns * (width + 8), shown * (height + 8), items, "the ranks of the mesh", fixed=True)


def _colour(number: int, count: int) -> str:
    """The class of a chunk: one of eight hues, or a neutral one for a tensor in one piece."""
    return "whole" if count == 1 else f"hue{number % 8}"


def layout(facts: Facts, found: Layout) -> str:
    """A tensor in its chunks, and the ranks of the mesh in the colours of the chunks that they hold."""
    rows_of, columns_of = holdings.drawn_dims(found)
    sizes = [holdings.chunks(dim) for dim in found.sharding.dims]
    count = math.prod(sizes)
    rows = sizes[rows_of] if rows_of is not None else 1
    columns = sizes[columns_of] if columns_of is not None else 1
    items: list[svg.Element] = []
    width, height = 64, 36 if len(found.whole.shape) > 1 else 14
    if rows * columns <= 256:
        rest = count // max(rows * columns, 1)
        for i in range(rows):
            for j in range(columns):
                number = (i * columns + j) * rest
                items.append(_rect(Box(j * width / columns, i * height / rows, width / columns - 1,
                                       height / rows - 1, _colour(number, count))))
    else:
        items.append(_rect(Box(0, 0, width, height, "hue0", plural(count, "chunk"))))
    mesh_columns = 0
    if facts.ranks <= 256:
        mesh_rows, mesh_columns = _grid(facts)
        step = min(12, 36 / mesh_rows)
        held = holdings.chunk_numbers(found, facts.mesh)
        for rank, number in enumerate(held):
            i, j = divmod(rank, mesh_columns)
            items.append(_rect(Box(width + 20 + j * step, i * step, step - 1, step - 1,
                                   _colour(number, count), f"rank {rank}")))
    label = f"{found.pattern}: {plural(count, 'chunk')}"
    return _picture(width + 20 + 12 * mesh_columns, 37, items, label, fixed=True)


# Time.


def _ends(facts: Facts) -> tuple[float, float]:
    """The seconds that the pictures of expected and of measured times show. They have one scale, unless
    one of the two times is more than four times the other."""
    expected = max((l.start + l.seconds for l in facts.launches), default=0.0) or 1.0
    measured = max((span.begin + span.length for span in facts.spans), default=0.0) * 1e-6
    if measured and 0.25 < measured / expected < 4:
        return max(expected, measured), max(expected, measured)
    return expected, measured or 1.0


def _times(end: float) -> list[tuple[float, str]]:
    return [(k / 4, seconds_text(end * k / 4)) for k in range(5)]


def _launch_title(launch: Launch) -> str:
    text = f"launch {launch.number}: {launch.title}, {seconds_text(launch.seconds)}"
    if launch.is_collective:
        return (f"{text}, {seconds_text(launch.exposed)} of it show, sends {bytes_text(launch.bytes)} over "
                f"{', '.join(launch.axes) or 'the mesh'}")
    if launch.least is not None and launch.seconds:
        text += f", at {launch.least / launch.seconds:.0%} of the ceiling"
    return text


def timeline(facts: Facts) -> str:
    """A row for each stream. x is the expected time, or the program's order on a device without times."""
    left, right, height = 150, WIDTH - 4, 22
    streams = sorted({launch.stream for launch in facts.launches} | {0})
    timed = facts.has_times
    span = lambda l: (l.start, l.start + l.seconds) if timed else (l.number, max(l.number + 1, l.wait))
    end = _ends(facts)[0] if timed else max((span(launch)[1] for launch in facts.launches), default=1) or 1
    scale = (right - left) / end
    boxes = []
    for launch in facts.launches:
        begin, stop = span(launch)
        boxes.append(Box(left + begin * scale, streams.index(launch.stream) * height + 3,
                         (stop - begin) * scale, height - 6, launch.kind, _launch_title(launch)))
    items = _boxes(boxes)
    for k, stream in enumerate(streams):
        items.append(_text(0, k * height + 15, stream_name(facts, stream), "small"))
    ticks = _times(end) if timed else [(k / 4, f"launch {round(end * k / 4)}") for k in range(5)]
    bottom = len(streams) * height + 2
    items += _axis(left, right, bottom, ticks)
    return _picture(WIDTH, bottom + 18, items, "the launches of a rank, a row for each stream")


def close_up(facts: Facts) -> str:
    """The expected times of one layer, with the names of its launches."""
    layer = shown_layer(facts)
    own = [launch for launch in facts.launches if layer and launch.layer == layer.name]
    if not own or not facts.has_times:
        return ""
    # A layer runs again in the backward pass: the picture shows the longest stretch of it.
    stretches = [[own[0]]]
    for launch in own[1:]:
        if launch.number - stretches[-1][-1].number > 8:
            stretches.append([])
        stretches[-1].append(launch)
    shown = max(stretches, key=lambda part: part[-1].start + part[-1].seconds - part[0].start)
    begin = min(launch.start for launch in shown)
    end = max(launch.start + launch.seconds for launch in shown)
    if end <= begin:
        return ""
    left, right, height = 150, WIDTH - 4, 30
    scale = (right - left) / (end - begin)
    streams = sorted({launch.stream for launch in facts.launches} | {0})
    items: list[svg.Element] = []
    for launch in facts.launches:
        first, last = max(launch.start, begin), min(launch.start + launch.seconds, end)
        if last <= first:
            continue
        x, y = left + (first - begin) * scale, streams.index(launch.stream) * height + 3
        width = (last - first) * scale
        other = "" if launch.layer == layer.name else " other"
        items.append(_rect(Box(x, y, width - 0.6, height - 6, launch.kind + other, _launch_title(launch))))
        name = _short_name(launch, width)
        if name:
            items.append(_text(x + width / 2, y + 16, name, "small", f"on-{launch.kind}", anchor="middle"))
    for k, stream in enumerate(streams):
        items.append(_text(0, k * height + 19, stream_name(facts, stream), "small"))
    bottom = len(streams) * height + 2
    items += _axis(left, right, bottom, [(k / 4, seconds_text(begin + (end - begin) * k / 4)) for k in range(5)])
    return _picture(WIDTH, bottom + 18, items, f"the launches of {layer.name}")


def shown_layer(facts: Facts) -> Layer | None:
    """The longest of the layers with half as many launches as any: a head may take longer, but has few."""
    most = max((layer.kernels + layer.collectives for layer in facts.modules), default=0)
    found = [layer for layer in facts.modules if 2 * (layer.kernels + layer.collectives) >= most]
    return max(found, key=lambda layer: layer.whole, default=None)


def _short_name(launch: Launch, width: float) -> str:
    """The last words of a launch's name that have room in its box: `q_proj`, or the op."""
    op = launch.op.rpartition(".")[2]
    module = launch.module.rpartition(".")[2]
    words = [op] if launch.is_collective or not module or module.isdigit() else [module, op]
    return next((word for word in words if 6.2 * len(word) + 4 < width), "")


def measured(facts: Facts) -> str:
    """The spans of a traced run: a row for each rank and stream."""
    rows = sorted({(span.rank, span.stream) for span in facts.spans if span.rank < _TRACED_RANKS})
    if not rows:
        return ""
    left, right, height = 150, WIDTH - 4, 18
    end = _ends(facts)[1]
    scale = (right - left) / end
    boxes = []
    for span in facts.spans:
        if span.rank >= _TRACED_RANKS:
            continue
        name = facts.launches[span.launch].title
        title = f"{'wait for ' * (span.kind == 'wait')}{name}, {seconds_text(span.length * 1e-6)}"
        boxes.append(Box(left + span.begin * 1e-6 * scale, rows.index((span.rank, span.stream)) * height + 2,
                         span.length * 1e-6 * scale, height - 4, span.kind, title))
    items = _boxes(boxes)
    for k, (rank, stream) in enumerate(rows):
        name = "compute" if stream == 0 else f"stream {stream}"
        items.append(_text(0, k * height + 13, f"rank {rank}: {name}", "small"))
    bottom = len(rows) * height + 2
    items += _axis(left, right, bottom, _times(end))
    return _picture(WIDTH, bottom + 18, items, "the launches of a traced run")


def stream_name(facts: Facts, stream: int) -> str:
    if stream == 0:
        return "compute"
    launches = [launch for launch in facts.launches if launch.stream == stream]
    axes = sorted({axis for launch in launches for axis in launch.axes})
    roles = sorted({launch.role for launch in launches if launch.role and launch.role != "data"})
    return f"stream {stream}: {' '.join([','.join(axes), *roles])}".rstrip(": ")


# Memory.


def arena(facts: Facts) -> str:
    """The buffers over the program's order, and the bytes that are needed at each launch."""
    left, right, height = 80, WIDTH - 4, 220
    launches = len(facts.launches)
    found = facts.peak
    if not facts.arena or not found:
        return ""
    across, up = (right - left) / launches, height / facts.arena
    boxes = []
    for launch in facts.launches:
        for buffer in launch.buffers:
            title = (f"{buffer.tensor} of launch {launch.number}, {launch.title}: {bytes_text(buffer.bytes)} "
                     f"at {buffer.offset}, needed to launch {buffer.last}")
            is_peak = buffer.launch <= found.launch.number <= buffer.last
            kind = ("collective" if buffer.is_sent else "gemm") + ("" if is_peak else " other")
            boxes.append(Box(left + buffer.launch * across,
                             height - (buffer.offset + buffer.bytes) * up,
                             (buffer.last - buffer.launch + 1) * across, buffer.bytes * up, kind, title))
    items = _boxes(boxes)
    x = left + (found.launch.number + 0.5) * across
    items.append(svg.Line(x1=_rounded(x), x2=_rounded(x), y1=0, y2=height, class_=["mark"]))
    items.append(_text(left - 6, 10, bytes_text(facts.arena), "small", anchor="end"))
    items.append(_text(left - 6, height, "0", "small", anchor="end"))
    items += _axis(left, right, height + 2, [(k / 4, f"launch {round(launches * k / 4)}") for k in range(5)])
    return _picture(WIDTH, height + 20, items, "the arena over the program's order")


# Bytes from rank to rank.


def matrix(facts: Facts) -> str:
    """Bytes from each rank (row) to each rank (column). Empty for more ranks than a picture can show."""
    if facts.ranks > _RANKS_OF_MATRIX or facts.ranks < 2:
        return ""
    sent = traffic_matrix(facts)
    top = max(map(max, sent))
    if not top:
        return ""
    cell = max(22, min(64, 860 // facts.ranks))
    left, above = 62, 18
    items: list[svg.Element] = []
    for rank in range(facts.ranks):
        items.append(_text(left + rank * cell + cell / 2, 12, f"to {rank}" if cell > 36 else rank,
                           "small", anchor="middle"))
        items.append(_text(left - 6, above + rank * cell + cell / 2 + 4, f"from {rank}", "small", anchor="end"))
    for i, row in enumerate(sent):
        for j, count in enumerate(row):
            x, y = left + j * cell, above + i * cell
            shade = 0 if not count else 1 + min(4, int(count / top * 4.999))
            items.append(_rect(Box(x, y, cell - 2, cell - 2, f"heat{shade}",
                                   f"rank {i} to rank {j}: {bytes_text(count)}")))
            if count and cell >= 56:
                items.append(_text(x + cell / 2 - 1, y + cell / 2 + 4, bytes_text(count), "small",
                                   f"on{shade}", anchor="middle"))
    size = facts.ranks * cell
    return _picture(left + size, above + size, items, "bytes from rank to rank", fixed=True)


# Prefetch chains.


def prefetch(gtp: dict) -> str:
    """A row for each place in the arena, and the gathered weights that are in it."""
    gathers = [(weight, gather) for weight in gtp["weights"] for gather in weight["gathers"]]
    if not gathers:
        return ""
    left, right, height = 130, WIDTH - 4, 18
    end = max(gather["last"] for _, gather in gathers) + 1
    scale = (right - left) / end
    phases = {"forward": "hue0", "recompute": "hue3", "backward": "hue1"}
    boxes, labels = [], []
    for weight, gather in gathers:
        x, y = left + gather["first"] * scale, gather["slot"] * height + 1
        width = (gather["last"] - gather["first"] + 1) * scale
        title = (f"{weight['name']}, {gather['phase']}: {bytes_text(gather['bytes_per_rank'])}, "
                 f"{seconds_text(gather['seconds'])}, {seconds_text(gather['exposed_seconds'])} of it show; "
                 f"{gather['ahead']} ahead; launches {gather['first']} to {gather['last']}")
        boxes.append(Box(x, y, width - 0.5, height - 3, phases.get(gather["phase"], "hue4"), title))
        short = weight["name"].removesuffix(".weight").rpartition(".")[2]
        if width > 7 * len(short) + 6:
            labels.append(_text(x + 3, y + 11, short, "small", "onhue"))
    items = _boxes(boxes) + labels
    for k, slot in enumerate(gtp["slots"]):
        items.append(_text(0, k * height + 13, f"place {k}: {bytes_text(slot['bytes'])}", "small"))
    bottom = len(gtp["slots"]) * height + 2
    items += _axis(left, right, bottom, [(k / 4, f"launch {round(end * k / 4)}") for k in range(5)])
    return _picture(WIDTH, bottom + 18, items, "gathered weights and their places")


def bar(share: float, kind="gemm", width=90, more=0.0) -> str:
    """A bar for a cell of a table, and a second one in the colour of collectives behind it."""
    share, more = max(0.0, min(1.0, share)), max(0.0, min(1.0, more))
    filled = [_rect(Box(0, 1, width * share, 8, kind))] if share else []
    if more:
        filled.append(_rect(Box(width * share, 1, width * more, 8, "collective")))
    return _picture(width, 10, [_rect(Box(0, 1, width, 8, "trough")), *filled], f"{share + more:.0%}", fixed=True)
