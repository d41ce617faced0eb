# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Values known at import time, described without writing them out.

Positions, rotary tables and masks are functions of shapes and constants. Written out, a mask has
queries x keys elements; here it is one of

- `Dense`: an array that keeps only the dimensions along which the value varies;
- `Diagonal`: a function of one linear combination of the indices (say, key - query), as a table.

Arrays are NumPy's. A front end runs an operation on forms by the library that it imports from, on
the array or the table: `fold_pointwise` takes a function for this. Where a result would be neither,
it returns None and the operation becomes part of the program.
"""
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from ...tensors import NUMPY_TYPES

# A folded table may be as large as sequence x head features; where its two largest dimensions
# both exceed LARGEST_MINOR it may be sequence x sequence, and is computed by the program.
SMALL, LARGEST_MINOR, LARGEST = 4096, 256, 1 << 26


@dataclass
class Dense:
    """`values` has the value's rank; a dimension of size 1 may stand for any size."""
    values: np.ndarray
    #: Of a value of which only the shape and the type are known, such as a buffer on the meta device:
    #: what it was made from, and how. Two of them are equal where this is.
    origin: tuple | None = None

    @property
    def known(self) -> bool:
        return self.origin is None

    @property
    def uniform(self) -> bool:
        return self.known and self.values.size == 1

    def moved(self, values: np.ndarray, *how) -> "Dense":
        """A view of the value."""
        return Dense(values, None if self.known else (*self.origin, how))


@dataclass
class Diagonal:
    """The element at `index` is `table[dot(coefficients, index) - low]`."""
    coefficients: tuple[int, ...]
    low: int
    table: np.ndarray


Form = Dense | Diagonal

_ORIGINS = itertools.count()


def unknown(shape, dtype: str, name: str | None = None) -> Dense:
    """A value of which only this is known. It takes no memory. Values of one name are equal."""
    values = np.broadcast_to(np.zeros((), NUMPY_TYPES[dtype]), tuple(shape))
    return Dense(values, (next(_ORIGINS) if name is None else name,))


def cast(values, dtype: str) -> np.ndarray:
    """Numbers in an element type. As in PyTorch and in the program, they reach f16 and bf16 by way
    of f32."""
    values = np.asarray(values)
    with np.errstate(all="ignore"):
        if dtype in ("bf16", "f16") and values.dtype != NUMPY_TYPES[dtype]:
            values = values.astype(np.float32)
        return values.astype(NUMPY_TYPES[dtype])


def rounded(value: float, dtype: str) -> float:
    """A number as an element type holds it."""
    return cast(float(value), dtype).item()


def greatest(dtype: str) -> float:
    """The greatest finite number of an element type."""
    return float(ml_dtypes.finfo(NUMPY_TYPES[dtype]).max)


def times(values: np.ndarray, factor: float) -> np.ndarray:
    """Floats times a factor, in f32 at least, rounded once."""
    wide = np.float64 if values.dtype == np.float64 else np.float32
    with np.errstate(all="ignore"):
        return (values.astype(wide) * wide(factor)).astype(values.dtype)


def largest(dense: Dense) -> float:
    """The largest absolute value; not finite where one of them is not. 0 if none is known."""
    if not dense.known or not dense.values.size:
        return 0.0
    with np.errstate(all="ignore"):
        return max(abs(float(dense.values.min())), abs(float(dense.values.max())))


def affordable(shape) -> bool:
    shape = tuple(map(int, shape))
    if math.prod(shape) <= SMALL:
        return True
    return math.prod(shape) <= LARGEST and sorted(shape)[-2:][0] <= LARGEST_MINOR if len(shape) > 1 \
        else math.prod(shape) <= LARGEST


def compress(form: Dense) -> Dense:
    """Drops the dimensions along which the value does not vary."""
    values = form.values
    if form.known and values.size:
        for dim, size in enumerate(values.shape):
            if size > 1:
                first = values[(slice(None),) * dim + (slice(0, 1),)]
                if values.strides[dim] == 0 or _equal(values, first):
                    values = first
    return Dense(values, form.origin)


def _equal(values: np.ndarray, first: np.ndarray) -> bool:
    """Whether the elements are those of the first slice; NaN equals NaN."""
    same = values == first
    if same.all():
        return True
    return values.dtype.kind not in "iub" and bool((same | (values != values) & (first != first)).all())


def written_out(form: Form, shape) -> np.ndarray | None:
    """The value itself, if it is known and small enough to write out."""
    if not affordable(shape) or isinstance(form, Dense) and not form.known:
        return None
    shape = tuple(map(int, shape))  # NumPy divides sizes, of which those of a call make no number
    if isinstance(form, Dense):
        return np.broadcast_to(form.values, shape)
    index = np.full(shape, -form.low, dtype=np.int64)
    for dim, coefficient in enumerate(form.coefficients):
        steps = np.arange(shape[dim]) * coefficient
        index += steps.reshape([-1 if d == dim else 1 for d in range(len(shape))])
    return form.table[index]


def as_affine(form: Form) -> tuple[int, int, int] | None:
    """(dimension, step, start) of an integer value that grows evenly along a single dimension."""
    if not isinstance(form, Dense) or form.values.dtype not in (np.int64, np.int32) or not form.known:
        return None
    varying = [d for d, n in enumerate(form.values.shape) if n > 1]
    if len(varying) != 1:
        return None
    values = form.values.reshape(-1)
    step = int(values[1] - values[0])
    if step == 0 or not (values[1:] - values[:-1] == step).all():
        return None
    return varying[0], step, int(values[0])


def diagonal(shape, coefficients, offset: int) -> Diagonal:
    """The linear combination itself, plus an offset."""
    ends = [(int(size) - 1) * c for size, c in zip(shape, coefficients)]
    low = sum(min(0, e) for e in ends)
    high = sum(max(0, e) for e in ends)
    return Diagonal(tuple(coefficients), low, np.arange(low, high + 1, dtype=np.int64) + offset)


_COMPARISONS = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
                "gt": np.greater, "ge": np.greater_equal}


def fold_pointwise(run: Callable[[dict[int, Dense]], Dense], name: str | None, shape, forms) -> Form | None:
    """Folds an elementwise operation.

    `forms` maps the positions of its operands to (form, shape), and `run` computes it on some values
    in their place. `name` is add, sub or a comparison if the operation is that of its two operands
    and nothing else.
    """
    rank = len(shape)
    padded = {}
    for i, (form, own) in forms.items():
        missing = rank - len(own)
        if isinstance(form, Diagonal):
            form = Diagonal((0,) * missing + form.coefficients, form.low, form.table)
        padded[i] = form
    diagonals = {i: f for i, f in padded.items() if isinstance(f, Diagonal)}
    if not diagonals:
        plane = _plane(name, shape, padded.values())
        if plane is not None:
            return plane
        result = np.broadcast_shapes(*(f.values.shape for f in padded.values()))
        if not affordable(result):
            return None
        value = run(padded)
        # Results may lack leading dimensions (a scalar, say): give them the value's rank.
        values = value.values
        return compress(Dense(values.reshape((1,) * (rank - values.ndim) + values.shape), value.origin))
    reference = next(iter(diagonals.values()))
    operands = {}
    for i, form in padded.items():
        if isinstance(form, Dense):
            if not form.uniform:
                return None
            operands[i] = Dense(form.values.reshape(() if len(forms[i][1]) == 0 else 1))
            continue
        if form.coefficients == reference.coefficients:
            low, table = form.low, form.table
        elif form.coefficients == tuple(-c for c in reference.coefficients):
            low, table = -(form.low + form.table.size - 1), form.table[::-1].copy()
        else:
            return None
        if low != reference.low or table.size != reference.table.size:
            return None
        operands[i] = Dense(table)
    table = run(operands).values
    if table.ndim == 1 and (table == table[0]).all():
        return Dense(table[:1].reshape((1,) * rank))
    return Diagonal(reference.coefficients, reference.low, table)


def _plane(name: str | None, shape, forms) -> Diagonal | None:
    """A sum, a difference or a comparison of integers that grow along a dimension each."""
    rank = len(shape)
    if name not in ("add", "sub", *_COMPARISONS) or len(forms) != 2:
        return None
    lhs, rhs = (as_affine(f.moved(f.values.reshape((1,) * (rank - f.values.ndim) + f.values.shape)))
                for f in forms)
    if not lhs or not rhs or lhs[0] == rhs[0]:
        return None
    coefficients = [0] * rank
    sign = 1 if name == "add" else -1
    coefficients[lhs[0]], coefficients[rhs[0]] = lhs[1], sign * rhs[1]
    form = diagonal(shape, coefficients, lhs[2] + sign * rhs[2])
    if name in _COMPARISONS:
        form.table = _COMPARISONS[name](form.table, 0)
    return form


def triangle(form: Form, shape, keep_upper: bool, offset: int) -> Form | None:
    """triu and tril on the last two dimensions."""
    rank = len(shape)
    coefficients = (0,) * (rank - 2) + (-1, 1)
    plane = diagonal(shape, coefficients, 0)
    if isinstance(form, Dense):
        if not form.uniform:
            return None
        table = np.broadcast_to(form.values.reshape(()), plane.table.shape)
    elif form.coefficients == coefficients:
        table = form.table
        if form.low != plane.low or table.shape != plane.table.shape:
            return None
    else:
        return None
    kept = plane.table >= offset if keep_upper else plane.table <= offset
    return Diagonal(coefficients, plane.low, np.where(kept, table, np.zeros_like(table)))


# The operations that move dimensions, on forms.

def form_permute(form: Form, permutation) -> Form:
    if isinstance(form, Dense):
        return form.moved(form.values.transpose(permutation), "permute", tuple(permutation))
    return Diagonal(tuple(form.coefficients[p] for p in permutation), form.low, form.table)


def form_slice(form: Form, shape, dim: int, start: int, step: int, size: int) -> Form:
    if isinstance(form, Dense):
        if form.values.shape[dim] == 1 and shape[dim] != 1:
            return form
        piece = slice(start, start + max(0, (size - 1) * step + 1), step)
        return compress(form.moved(form.values[(slice(None),) * dim + (piece,)], "slice", dim, start, step,
                                   size))
    # Indices count from the slice's start: the table moves, and is cut to what is reachable.
    coefficients = list(form.coefficients)
    low = form.low - coefficients[dim] * start
    coefficients[dim] *= step
    sizes = list(map(int, shape))
    sizes[dim] = int(size)
    ends = [(n - 1) * c for n, c in zip(sizes, coefficients)]
    first, last = sum(min(0, e) for e in ends), sum(max(0, e) for e in ends)
    table = form.table[first - low:last - low + 1]
    if not any(coefficients) or table.size == 1:
        return Dense(table[:1].reshape((1,) * len(coefficients)))
    varying = [d for d, n in enumerate(sizes) if n > 1 and coefficients[d]]
    if len(varying) == 1:
        d = varying[0]
        index = np.arange(sizes[d]) * coefficients[d] - first
        return compress(Dense(table[index].reshape([-1 if i == d else 1 for i in range(len(sizes))])))
    return Diagonal(tuple(coefficients), first, table)


def form_expand(form: Form, shape, target) -> Form:
    missing = len(target) - len(shape)
    if isinstance(form, Dense):
        return form.moved(form.values.reshape((1,) * missing + form.values.shape), "reshape",
                          len(target))
    return Diagonal((0,) * missing + form.coefficients, form.low, form.table)


def form_reshape(form: Form, shape, target) -> Form | None:
    """A reshape: of a uniform value, by dimensions of size 1, or of a small value."""
    target = tuple(target)
    if isinstance(form, Dense) and form.values.size == 1:
        return form.moved(form.values.reshape((1,) * len(target)), "reshape", len(target))
    if [n for n in shape if n != 1] == [n for n in target if n != 1]:
        kept = iter([d for d, n in enumerate(shape) if n != 1])
        source = [next(kept) if n != 1 else None for n in target]
        if isinstance(form, Dense):
            own = [1 if s is None else form.values.shape[s] for s in source]
            return form.moved(form.values.reshape(own), "reshape", tuple(own))
        return Diagonal(tuple(0 if s is None else form.coefficients[s] for s in source), form.low,
                        form.table)
    if isinstance(form, Dense) and not form.known:
        return form.moved(np.broadcast_to(form.values, shape).reshape(target), "reshape", target) \
            if affordable(shape) else None
    value = written_out(form, shape)
    return None if value is None else compress(Dense(value.reshape(target)))
