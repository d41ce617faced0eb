# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Whether the values of a token depend on the number of tokens.

A model that serves is imported at the greatest length. A shorter sequence takes the first rows of each
table that depends on positions. So the same module, imported at a shorter length, must compute the first
rows of the same values. `find_difference` compares both graphs, as the front end builds them, value by
value. The dimensions whose sizes differ are those along tokens. A value of the shorter graph is

- *equal*: the first elements of that of the longer graph, along tokens;
- *shifted*: that plus a number that is the same for all tokens. Attention with ALiBi may count from the
  last key: softmax takes no notice of the shift.

Values of the inputs must be computed alike. The serve pass, which comes later, rejects ops that mix
tokens of such values. Values of parameters and positions alone may be mixed by any op, so each op of them
has a rule here.
"""
import math
from typing import NamedTuple

import numpy as np

from . import forms
from .dialect import POINTWISE
from .forms import Dense
from .nodes import Builder, Graph, Location, Node, reshape_groups

#: Attributes that are places in a shape. Of values of the inputs they may follow the length.
_PLACES = {"starts", "limits", "strides", "shape", "sizes"}
#: Attributes that do not change a value.
_SILENT = {"tensor", "aliases", "trained", "exact", "largest", "parts"}
#: A score that this is added to, or that it stands for, is masked.
_MASKED = -1e4


class Difference(NamedTuple):
    """What differs with the length, and where."""
    subject: str
    loc: Location | None


class _Differs(Exception):
    """Two nodes that are paired do not compute the same."""


class _Pair(NamedTuple):
    """A value at both lengths, and how the two were found to compare."""
    long: Node
    short: Node
    shifted: bool
    of_inputs: bool

    @property
    def along(self) -> list[int]:
        """The dimensions along tokens."""
        return [d for d, (a, b) in enumerate(zip(self.long.shape, self.short.shape)) if a != b]


def find_difference(long: Graph, short: Graph) -> Difference | None:
    """The first value of `long` that is not that of `short`, for the first tokens. None if there is none."""
    return _Compare().run(long, short)


def sizes_in(graph: Graph) -> set[int]:
    """The sizes of dimensions."""
    return {int(n) for node in graph.nodes() for n in node.shape}


class _Compare:
    def __init__(self):
        self.pairs: dict[tuple[int, int], _Pair] = {}
        self.keep: list[Node] = []  # nodes that recipes make, whose ids are keys
        self.loc: Location | None = None

    def run(self, long: Graph, short: Graph) -> Difference | None:
        a, b = long.outputs[0], short.outputs[0]
        try:
            result = self._compare(a, b)
            if result.shifted:
                raise _Differs(a.loc)
        except _Differs as found:
            loc = found.args[0]
            return Difference("the result of a token", loc)
        return None

    def _compare(self, long: Node, short: Node) -> _Pair:
        """Compares operands first, without recursion: models are deep."""
        stack = [(long, short)]
        while stack:
            a, b = stack[-1]
            key = id(a), id(b)
            if key in self.pairs:
                stack.pop()
                continue
            x, y = self._alike(a, b)
            waiting = [pair for pair in zip(x.operands, y.operands) if (id(pair[0]), id(pair[1])) not in self.pairs]
            if waiting:
                stack += reversed(waiting)
                continue
            operands = [self.pairs[id(p), id(q)] for p, q in zip(x.operands, y.operands)]
            self.pairs[key] = self._judge(a, b, x, y, operands)
            self.keep += [a, b, x, y]
            stack.pop()
        return self.pairs[id(long), id(short)]

    def _alike(self, a: Node, b: Node) -> tuple[Node, Node]:
        """The nodes themselves, or the operations that they stand for, so that both have one kind."""
        key = "unfolded", id(a), id(b)
        if key in self.pairs:
            return self.pairs[key]
        x, y = a, b
        if a.op != b.op:
            x = _unfolded(a) if a.op == "static" else a
            y = _unfolded(b) if b.op == "static" else b
            x, y = _as_slices(*_as_rows(x, y))
        if x.op != y.op or len(x.operands) != len(y.operands) or x.dtype != y.dtype or x.rank != y.rank:
            raise _Differs(a.loc or b.loc)
        self.pairs[key] = x, y
        self.keep += [a, b, x, y]
        return x, y

    def _judge(self, a: Node, b: Node, x: Node, y: Node, operands: list[_Pair]) -> _Pair:
        of_inputs = x.op == "input" or any(o.of_inputs for o in operands)
        made = lambda shifted=False: _Pair(a, b, shifted, of_inputs)
        if x.op == "static":
            return made(_shift_of_constants(x, y))
        _check_attributes(x, y, of_inputs)
        if any(o.shifted for o in operands):
            if not _keeps_shift(x, operands, made()) and not _drops_shift(x, y, operands):
                raise _Differs(x.loc)
            return made(not _drops_shift(x, y, operands))
        if not of_inputs and not _keeps_first(x, y, operands):
            raise _Differs(x.loc)
        return made()


def _as_slices(a: Node, b: Node) -> tuple[Node, Node]:
    """A table as long as the sequence is the slice of all of its rows."""
    for cut, whole in ((a, b), (b, a)):
        if cut.op == "slice" and whole.op != "slice" and cut.operands[0].shape == whole.shape:
            every = Builder().at(cut).make("slice", [whole], whole.shape, whole.dtype, starts=[0] * whole.rank,
                                           limits=list(whole.shape), strides=[1] * whole.rank)
            return (cut, every) if cut is a else (every, cut)
    return a, b


def _as_rows(a: Node, b: Node) -> tuple[Node, Node]:
    """Rows of a table by positions are a slice of it where the positions are few. Both nodes take rows then."""
    for cut, taken in ((a, b), (b, a)):
        if cut.op != "slice" or taken.op not in ("gather", "embedding") or not cut.rank:
            continue
        dim = taken.attrs.get("dim", 0)
        data, indices = taken.operands if taken.op == "gather" else reversed(taken.operands)
        whole = [d for d in range(cut.rank) if d != dim]
        source = cut.operands[0]
        if indices.rank != 1 or dim >= cut.rank or data.shape != source.shape or \
                any((cut.attrs["starts"][d], cut.attrs["limits"][d]) != (0, source.shape[d]) for d in whole):
            continue
        rows = cut.attrs["starts"][dim] + cut.attrs["strides"][dim] * np.arange(cut.shape[dim])
        build = Builder().at(cut)
        index = build.static(Dense(rows), rows.shape, "i64")
        made = build.embedding(index, source) if taken.op == "embedding" else build.gather(source, index, dim)
        return (made, taken) if cut is a else (taken, made)
    return a, b


def _unfolded(node: Node) -> Node:
    made = node.recipe() if node.recipe else None
    return node if made is None else made


# Constants.

def _shift_of_constants(a: Node, b: Node) -> bool:
    """Whether a constant is shifted; it is equal otherwise. Raises _Differs if it is neither."""
    if a.form is b.form:
        return False
    x, y = _first(a, b), _first(b, b)
    if x is None or y is None:
        unknown = [isinstance(n.form, Dense) and not n.form.known for n in (a, b)]
        if all(unknown) or a.form is None and b.form is None:
            return False  # buffers without values
        raise _Differs(a.loc)
    if _close(x, y):
        return False
    if not np.issubdtype(x.dtype, np.number) and x.dtype.kind not in "iuf" and x.dtype.name != "bfloat16":
        raise _Differs(a.loc)
    x, y = (v.astype(np.float64) for v in np.broadcast_arrays(x, y))
    with np.errstate(all="ignore"):
        apart = x - y
    tokens = tuple(d for d, (m, n) in enumerate(zip(a.shape, b.shape)) if m != n)
    same = (x == y) & ~np.isfinite(x)  # both are -inf
    apart = np.where(same, np.nan, apart)
    masked = same | ((x <= _MASKED) & (y <= _MASKED))
    apart = np.where(masked, np.nan, apart)
    with np.errstate(all="ignore"):
        low, high = np.nanmin(apart, tokens), np.nanmax(apart, tokens)
    scale = max(float(np.nanmax(np.abs(np.where(masked, 0, x)))), float(np.nanmax(np.abs(np.where(masked, 0, y)))))
    if not (high - low <= _precision(a.dtype) * scale).all():
        raise _Differs(a.loc)
    return True


def _first(node: Node, short: Node) -> np.ndarray | None:
    """The first elements of a constant, so many as the shorter one has; a dimension of size 1 may stand
    for more."""
    if node.form is None:
        return None
    if not isinstance(node.form, Dense):
        return forms.written_out(node.form, short.shape)
    if not node.form.known:
        return None
    values = node.form.values
    values = values.reshape((1,) * (short.rank - values.ndim) + values.shape)
    return values[tuple(slice(0, n if have > 1 else 1) for n, have in zip(short.shape, values.shape))]


def _precision(dtype: str) -> float:
    bits = {"bf16": 7, "f16": 10, "f32": 23, "f64": 52}.get(dtype)
    return 0.0 if bits is None else 2.0 ** (4 - bits)


def _close(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether numbers are equal, but for rounding."""
    if x.shape != y.shape:
        x, y = np.broadcast_arrays(x, y)
    equal = (x == y) | (x != x) & (y != y)
    if equal.all():
        return True
    dtype = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64"}.get(x.dtype.name)
    if dtype is None:
        return False
    a, b = (v.astype(np.float64) for v in (x, y))
    finite = np.isfinite(a) & np.isfinite(b)
    if not (equal | finite).all():
        return False
    scale = float(np.max(np.abs(a), initial=0.0, where=finite))
    with np.errstate(all="ignore"):
        return bool((equal | (np.abs(a - b) <= _precision(dtype) * scale)).all())


# Operations.

def _check_attributes(a: Node, b: Node, of_inputs: bool):
    for name in {*a.attrs, *b.attrs} - _SILENT:
        if name in _PLACES or name == "k" and _sorts(a) and _sorts(b):
            continue
        if not _same(a.attrs.get(name), b.attrs.get(name)):
            raise _Differs(a.loc)


def _sorts(node: Node) -> bool:
    """Whether a `top_k` takes all scores, as the order of the experts' rows does."""
    return node.op == "top_k" and node.attrs["k"] == node.operands[0].shape[-1]


def _same(a, b) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(a, b)
    if isinstance(a, float) and isinstance(b, float):
        return a == b or math.isnan(a) and math.isnan(b)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, Node) or isinstance(b, Node) or callable(a):
        return True
    return type(a) is type(b) and a == b


def _keeps_first(x: Node, y: Node, operands: list[_Pair]) -> bool:
    """Whether the first elements along tokens follow from those of the operands."""
    made = _Pair(x, y, False, False)
    tokens = [o.along for o in operands]
    if not any(tokens) and not made.along:
        return True
    if x.op in POINTWISE or x.op in ("broadcast", "transpose", "iota", "cast", "select", "compare", "widen"):
        return True
    if x.op in ("parameter", "state", "input"):
        return False
    if x.op == "reshape":
        return _keeps_major(operands[0], made)
    if x.op == "slice":
        ends_alike = lambda d: x.attrs["limits"][d] == y.attrs["limits"][d] or d in (*tokens[0], *made.along)
        return x.attrs["starts"] == y.attrs["starts"] and x.attrs["strides"] == y.attrs["strides"] and \
            all(map(ends_alike, range(x.rank)))
    if x.op == "concat":
        return not any(x.attrs["dim"] in t for t in tokens[:-1])
    if x.op in ("gather", "take_along"):
        return True  # rows that both have: the indices are equal
    if x.op == "embedding":
        return True
    if x.op == "cumsum":
        return True
    if x.op == "reduce":
        return not set(x.attrs["dims"]) & set(tokens[0])
    if x.op in ("softmax", "rms_norm", "layer_norm"):
        return x.attrs.get("dim", x.rank - 1) % x.rank not in tokens[0] and not any(tokens[1:])
    if x.op == "linear":
        return x.operands[0].rank - 1 not in tokens[0] and not any(tokens[1:])
    if x.op == "matmul":
        a, b = x.operands
        return (a.rank - (2 if x.attrs["transpose_lhs"] else 1)) not in tokens[0] and \
            (b.rank - (1 if x.attrs["transpose_rhs"] else 2)) not in tokens[1]
    return False


def _keeps_major(source: _Pair, made: _Pair) -> bool:
    """Whether a reshape splits and merges dimensions so that only the major one of each has tokens."""
    groups = [reshape_groups(getattr(source, n).shape, getattr(made, n).shape) for n in ("long", "short")]
    if None in groups:
        return False
    if groups[0] != groups[1]:
        return False
    for before, after in groups[0]:
        for pair, dims in ((source, before), (made, after)):
            major = next((d for d in dims if pair.long.shape[d] != 1 or pair.short.shape[d] != 1), None)
            if any(d in pair.along and d != major for d in dims):
                return False
    return True


def _keeps_shift(x: Node, operands: list[_Pair], made: _Pair) -> bool:
    """Whether the result is shifted where operands are."""
    moved = [o for o in operands if o.shifted]
    rest = [o for o in operands if not o.shifted]
    if x.op in ("add", "sub", "neg", "broadcast", "transpose") or x.op == "cast" and x.dtype != "i1":
        return True
    if x.op == "slice":
        return True
    if x.op == "reshape":
        return made.of_inputs or _keeps_major(operands[0], made)
    if x.op == "mul":
        return len(moved) == 1 and not rest[0].along and not rest[0].of_inputs
    if x.op == "div":
        return moved == operands[:1] and not rest[0].along and not rest[0].of_inputs
    if x.op == "select":
        return not operands[0].shifted and all(o.shifted or _is_masked(o.long) for o in operands[1:])
    return False


def _is_masked(node: Node) -> bool:
    while node.op in ("broadcast", "reshape", "cast"):
        node = node.operands[0]
    return node.op == "static" and isinstance(node.form, Dense) and node.form.uniform and \
        float(node.form.values.reshape(())) <= _MASKED


def _drops_shift(x: Node, y: Node, operands: list[_Pair]) -> bool:
    """Whether a softmax over tokens, which a shift of all does not change, takes the shifted operand."""
    if x.op == "softmax":
        return x.attrs.get("dim", x.rank - 1) % x.rank in operands[0].along
    return x.op == "sdpa" and not any(o.shifted for o in operands[:3])
