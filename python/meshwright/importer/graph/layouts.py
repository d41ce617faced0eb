# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Meshes and shardings of `dist`, read from the text of their attributes."""
import math
import re
from typing import NamedTuple


class Axis(NamedTuple):
    """An axis of a mesh, or a part of one: the axis seen as (pre, size, rest)."""
    name: str
    pre: int
    size: int
    whole: bool

    def __str__(self):
        return f'"{self.name}"' if self.whole else f'"{self.name}":({self.pre}){self.size}'


class Mesh(NamedTuple):
    """Axes with their sizes, major to minor."""
    axes: dict[str, int]

    @property
    def ranks(self) -> int:
        return math.prod(self.axes.values())

    def __str__(self):
        return "<[" + ", ".join(f'"{name}"={size}' for name, size in self.axes.items()) + "]>"

    def axis(self, name: str, pre: int | None = None, size: int | None = None) -> Axis:
        whole = self.axes[name]
        return Axis(name, pre or 1, size or whole, size in (None, whole))

    def digit(self, axis: Axis) -> tuple[int, int]:
        """How far apart two ranks are that are neighbours along the axis, and its size."""
        stride = 1
        for name, size in reversed(self.axes.items()):
            if name == axis.name:
                return stride * (size // (axis.pre * axis.size)), axis.size
            stride *= size
        raise KeyError(axis.name)

    def coordinate(self, rank: int, axes) -> int:
        """A rank's linear coordinate over axes, the first one major."""
        index = 0
        for stride, size in map(self.digit, axes):
            index = index * size + rank // stride % size
        return index

    def groups(self, axes) -> list[list[int]]:
        """The ranks that differ along the axes alone, in the order of their coordinates."""
        groups: dict[int, list[int]] = {}
        for rank in range(self.ranks):
            base = rank - sum(rank // stride % size * stride for stride, size in map(self.digit, axes))
            groups.setdefault(base, []).append(rank)
        return [sorted(ranks, key=lambda rank: self.coordinate(rank, axes)) for ranks in groups.values()]


def shards(axes) -> int:
    return math.prod(axis.size for axis in axes)


class Factor(NamedTuple):
    """A factor of a dimension: its true and its padded size, the axes that shard it, and the order of
    its elements: "" (that of their numbers), "zigzag" or "striped", for `ranks` ranks."""
    size: int
    padded: int
    axes: tuple[Axis, ...]
    order: str = ""
    ranks: int = 1

    @property
    def local(self) -> int:
        return self.padded // shards(self.axes)

    def __str__(self):
        padded = f" pad {self.padded}" if self.padded != self.size else ""
        order = f" {self.order} {self.ranks}" if self.order else ""
        axes = "{" + ", ".join(map(str, self.axes)) + "}" if self.axes else ""
        return f"{self.size}{padded}{order}{axes}"

    def tokens(self) -> list[int]:
        """The number of the element in each slot, -1 for padding (getTokenInSlot)."""
        return [self._token(slot) for slot in range(self.padded)]

    def _token(self, slot: int) -> int:
        if slot >= self.size:
            return -1
        if not self.order:
            return slot
        chunk = self.padded // self.ranks
        rank, i = divmod(slot, chunk)
        own = min(chunk, self.size - rank * chunk)
        if self.order == "zigzag":
            front = (own + 1) // 2
            if i < front:
                return rank * ((chunk + 1) // 2) + i
            return self.size - rank * (chunk // 2) - own + i
        full, rest = divmod(self.size, chunk)
        if i < rest:
            return i * (full + 1) + rank
        return rest * (full + 1) + (i - rest) * full + rank


class Sharding(NamedTuple):
    """The factors of each dimension, the axes over which a value is a part of a sum, or of a maximum, and
    which dimensions are open: propagation may add axes to them."""
    dims: tuple[tuple[Factor, ...], ...]
    unreduced: tuple[Axis, ...] = ()
    reduction: str = "sum"
    open: tuple[bool, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the whole value."""
        return tuple(math.prod(f.size for f in dim) for dim in self.dims)

    @property
    def local(self) -> tuple[int, ...]:
        """The shape of a rank's part."""
        return tuple(math.prod(f.local for f in dim) for dim in self.dims)

    @property
    def is_replicated(self) -> bool:
        return not self.unreduced and all(f == Factor(f.size, f.size, ()) for dim in self.dims for f in dim)

    def text(self, states_sizes=False) -> str:
        """`<@mesh, [{"dp"}, (2, 3{"tp"})]>`; with the sizes of all factors, if they are to be stated."""
        dims = []
        for d, factors in enumerate(self.dims):
            first, *more = factors
            if more or first.order or (states_sizes and first.axes):
                dims.append("(" + ", ".join(map(str, factors)) + ")")
            else:
                axes = [*map(str, first.axes), *(["?"] if self.open and self.open[d] else [])]
                dims.append("{" + ", ".join(axes) + "}")
        unreduced = ""
        if self.unreduced:
            kind = "max " if self.reduction == "max" else ""
            unreduced = f", unreduced = {kind}{{{', '.join(map(str, self.unreduced))}}}"
        return f"<@mesh, [{', '.join(dims)}]{unreduced}>"


def replicated(shape) -> Sharding:
    return Sharding(tuple((Factor(n, n, ()),) for n in shape))


def axes_of_groups(mesh: Mesh, groups) -> list[Axis] | None:
    """The axes, or parts of axes, along which the ranks of each group differ, in the order in which the
    groups list them; None if the groups are not those of axes."""
    first = next((ranks for ranks in groups if 0 in ranks), None)
    if first is None or len({len(ranks) for ranks in groups}) != 1:
        return None
    axes: list[Axis] = []
    period = 1
    while period < len(first):
        # The next digit of a rank's place in its group: how far apart two ranks are, and its size.
        stride, size = first[period] - first[0], 1
        while size * period < len(first) and first[size * period] - first[0] == size * stride:
            size += 1
        parts = _axes_of_digit(mesh, stride, size)
        if parts is None:
            return None
        axes = parts + axes
        period *= size
    same = sorted(map(tuple, groups)) == sorted(map(tuple, mesh.groups(axes)))
    return axes if same else None


def _axes_of_digit(mesh: Mesh, stride: int, size: int) -> list[Axis] | None:
    """The axes of a digit, the first one major: a digit may go on in the next axis."""
    axes, below = [], 1
    for name, whole in reversed(mesh.axes.items()):
        above = below * whole
        if size > 1 and below <= stride < above:
            if stride % below or whole % (stride // below):
                return None
            post = stride // below
            taken = min(size, whole // post)
            if size % taken or whole % (post * taken):
                return None
            axes.insert(0, mesh.axis(name, whole // (post * taken), taken))
            size, stride = size // taken, above
        below = above
    return axes if size == 1 else None


_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|@[\w$.-]+|@"[^"]*"|\d+|\w+|[\[\](){}<>,:=?#.])')


class _Reader:
    """The words of an attribute's text."""

    def __init__(self, text: str):
        self.words, at = [], 0
        while at < len(text.rstrip()):
            found = _TOKEN.match(text, at)
            if not found:
                raise ValueError(f"unexpected text in {text!r}")
            self.words.append(found[1])
            at = found.end()
        self.at = 0
        #: Whether the last dimension was open.
        self.is_open = False
        #: Whether sizes of run time are skipped, or are an error as any other unknown word.
        self.at_run_time = False

    @property
    def next(self) -> str:
        return self.words[self.at] if self.at < len(self.words) else ""

    def take(self, word: str | None = None) -> str:
        got = self.next
        if word is not None and got != word:
            raise ValueError(f"expected {word!r}, got {got!r}")
        self.at += 1
        return got

    def accept(self, word: str) -> bool:
        if self.next == word:
            self.at += 1
            return True
        return False

    def axes(self, mesh: Mesh) -> tuple[Axis, ...]:
        """`{"dp", "tp":(1)2, ?}`"""
        axes, self.is_open = [], False
        self.take("{")
        while not self.accept("}"):
            if self.accept("?"):
                self.is_open = True
            else:
                axes.append(self.axis(mesh))
            self.accept(",")
        return tuple(axes)

    def axis(self, mesh: Mesh) -> Axis:
        name = self.take()[1:-1]
        if not self.accept(":"):
            return mesh.axis(name)
        self.take("(")
        pre = int(self.take())
        self.take(")")
        return mesh.axis(name, pre, int(self.take()))

    def runtime_size(self):
        """` size @tokens`"""
        if self.at_run_time and self.accept("size"):
            self.take()

    def factor(self, mesh: Mesh) -> Factor:
        """`3 pad 4 zigzag 2{"tp"}`"""
        size = padded = int(self.take())
        order, ranks = "", 1
        if self.accept("pad"):
            padded = int(self.take())
        if self.next in ("zigzag", "striped"):
            order, ranks = self.take(), int(self.take())
        self.runtime_size()
        return Factor(size, padded, self.axes(mesh) if self.next == "{" else (), order, ranks)


def read_mesh(text: str) -> Mesh:
    return Mesh({name: int(size) for name, size in re.findall(r'"([^"]+)"\s*=\s*(\d+)', text)})


def read_axis(text: str, mesh: Mesh) -> Axis:
    """`#dist.axis_ref<"tp":(1)2>`"""
    return _Reader(text[text.index("<") + 1:text.rindex(">")]).axis(mesh)


def read_factor(text: str, mesh: Mesh) -> Factor:
    """`#dist.factor_sharding<8{"ring"}>`"""
    return _Reader(text[text.index("<") + 1:text.rindex(">")]).factor(mesh)


def read_sharding(text: str, mesh: Mesh, sizes, local=None, at_run_time=False) -> Sharding:
    """`#dist.sharding<@mesh, [dims], unreduced = {axes}>` of a value with these sizes; `local` are
    those of a rank, which say how a dimension is padded. With `at_run_time` a dimension may have a size
    of run time (`{} size @tokens`), of which the result is the most that it may be."""
    reader = _Reader(text[text.index("<") + 1:text.rindex(">")])
    reader.at_run_time = at_run_time
    reader.take()
    reader.take(",")
    reader.take("[")
    dims, is_open = [], []
    while not reader.accept("]"):
        d, reader.is_open = len(dims), False
        if reader.accept("("):
            factors = []
            while not reader.accept(")"):
                factors.append(reader.factor(mesh))
                reader.accept(",")
            dims.append(tuple(factors))
        else:
            axes = reader.axes(mesh)
            rows = -(-sizes[d] // shards(axes)) if local is None else local[d]
            dims.append((Factor(sizes[d], rows * shards(axes), axes),))
            reader.runtime_size()
        is_open.append(reader.is_open)
        reader.accept(",")
    unreduced, reduction = (), "sum"
    if reader.accept(","):
        reader.take("unreduced")
        reader.take("=")
        if reader.next == "max":
            reduction = reader.take()
        unreduced = reader.axes(mesh)
    return Sharding(tuple(dims), unreduced, reduction, tuple(is_open))
