# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Values known at import time, described without writing them out.

Positions, rotary tables and masks are functions of shapes and constants. Written out, a mask has
queries x keys elements; here it is one of

- `Dense`: a tensor that keeps only the dimensions along which the value varies;
- `Diagonal`: a function of one linear combination of the indices (say, key - query), as a table.

An operation on forms is run by PyTorch itself on the tensor or the table. Where a result would be
neither, `fold` returns None and the operation becomes part of the program.
"""
import math
from dataclasses import dataclass

import torch

# A folded table may be as large as sequence x head features; where its two largest dimensions
# both exceed LARGEST_MINOR it may be sequence x sequence, and is computed by the program.
SMALL, LARGEST_MINOR, LARGEST = 4096, 256, 1 << 26


@dataclass
class Dense:
    """`tensor` has the value's rank; a dimension of size 1 may stand for any size."""
    tensor: torch.Tensor

    @property
    def uniform(self) -> bool:
        return self.tensor.numel() == 1 and self.tensor.device.type != "meta"


@dataclass
class Diagonal:
    """The element at `index` is `table[dot(coefficients, index) - low]`."""
    coefficients: tuple[int, ...]
    low: int
    table: torch.Tensor


Form = Dense | Diagonal


def affordable(shape) -> bool:
    if math.prod(shape) <= SMALL:
        return True
    return math.prod(shape) <= LARGEST and sorted(shape)[-2:][0] <= LARGEST_MINOR if len(shape) > 1 \
        else math.prod(shape) <= LARGEST


def compress(tensor: torch.Tensor) -> Dense:
    """Drops the dimensions along which the tensor does not vary."""
    if tensor.device.type != "meta" and tensor.numel():
        for dim, size in enumerate(tensor.shape):
            if size > 1:
                first = tensor.narrow(dim, 0, 1)
                if tensor.stride(dim) == 0 or bool(((tensor == first) |
                                                    ((tensor != tensor) & (first != first))).all()):
                    tensor = first
    return Dense(tensor)


def written_out(form: Form, shape) -> torch.Tensor | None:
    """The value itself, if it is small enough to write out."""
    if not affordable(shape):
        return None
    if isinstance(form, Dense):
        return form.tensor.expand(shape)
    index = torch.full(shape, -form.low, dtype=torch.int64)
    for dim, coefficient in enumerate(form.coefficients):
        steps = torch.arange(shape[dim]) * coefficient
        index += steps.view([-1 if d == dim else 1 for d in range(len(shape))])
    return form.table[index]


def as_affine(form: Form) -> tuple[int, int, int] | None:
    """(dimension, step, start) of an integer value that grows evenly along a single dimension."""
    if not isinstance(form, Dense) or form.tensor.dtype not in (torch.int64, torch.int32) \
            or form.tensor.device.type == "meta":
        return None
    varying = [d for d, n in enumerate(form.tensor.shape) if n > 1]
    if len(varying) != 1:
        return None
    values = form.tensor.reshape(-1)
    step = int(values[1] - values[0])
    if step == 0 or not bool((values[1:] - values[:-1] == step).all()):
        return None
    return varying[0], step, int(values[0])


def diagonal(shape, coefficients, offset: int, dtype=torch.int64) -> Diagonal:
    """The linear combination itself, plus an offset."""
    ends = [(size - 1) * c for size, c in zip(shape, coefficients)]
    low = sum(min(0, e) for e in ends)
    high = sum(max(0, e) for e in ends)
    return Diagonal(tuple(coefficients), low, torch.arange(low, high + 1, dtype=dtype) + offset)


_COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge"}


def fold_pointwise(target, name: str, args, kwargs, shape, forms) -> Form | None:
    """Folds an elementwise operation; `forms` maps positions of `args` to (form, shape)."""
    def run(replacements):
        return target(*[replacements.get(i, a) for i, a in enumerate(args)], **kwargs)

    rank = len(shape)
    padded = {}
    for i, (form, own) in forms.items():
        missing = rank - len(own)
        if isinstance(form, Diagonal):
            form = Diagonal((0,) * missing + form.coefficients, form.low, form.table)
        padded[i] = form
    diagonals = {i: f for i, f in padded.items() if isinstance(f, Diagonal)}
    if not diagonals:
        tensors = {i: f.tensor for i, f in padded.items()}
        if len(tensors) == 2 and name in _COMPARISONS | {"add", "sub"} and not kwargs:
            (i, a), (j, b) = tensors.items()
            lhs, rhs = (as_affine(Dense(t.reshape((1,) * (rank - t.dim()) + t.shape)))
                        for t in (a, b))
            if lhs and rhs and lhs[0] != rhs[0]:
                coefficients = [0] * rank
                sign = 1 if name == "add" else -1
                coefficients[lhs[0]], coefficients[rhs[0]] = lhs[1], sign * rhs[1]
                form = diagonal(shape, coefficients, lhs[2] + sign * rhs[2])
                if name in _COMPARISONS:
                    form.table = getattr(torch, name)(form.table, 0)
                return form
        result = torch.broadcast_shapes(*(t.shape for t in tensors.values()))
        if not affordable(result):
            return None
        if any(t.device.type == "meta" for t in tensors.values()):
            tensors = {i: t.to("meta") for i, t in tensors.items()}
        value = run(tensors)
        # Results may lack leading dimensions (a scalar, say): give them the value's rank.
        return compress(value.reshape((1,) * (rank - value.dim()) + value.shape))
    reference = next(iter(diagonals.values()))
    operands = {}
    for i, form in padded.items():
        if isinstance(form, Dense):
            if not form.uniform:
                return None
            operands[i] = form.tensor.reshape(())if len(forms[i][1]) == 0 else \
                form.tensor.reshape(1)
            continue
        if form.coefficients == reference.coefficients:
            low, table = form.low, form.table
        elif form.coefficients == tuple(-c for c in reference.coefficients):
            low, table = -(form.low + form.table.numel() - 1), form.table.flip(0)
        else:
            return None
        if low != reference.low or table.numel() != reference.table.numel():
            return None
        operands[i] = table
    table = run(operands)
    if table.dim() == 1 and bool((table == table[0]).all()):
        return Dense(table[0].reshape((1,) * rank))
    return Diagonal(reference.coefficients, reference.low, table)


def triangle(form: Form, shape, keep_upper: bool, offset: int) -> Form | None:
    """triu and tril on the last two dimensions."""
    rank = len(shape)
    coefficients = (0,) * (rank - 2) + (-1, 1)
    if isinstance(form, Dense):
        if not form.uniform:
            return None
        value = form.tensor.reshape(())
        plane = diagonal(shape, coefficients, 0)
        table = value.expand(plane.table.shape)
    elif form.coefficients == coefficients:
        plane, table = diagonal(shape, coefficients, 0), form.table
        if form.low != plane.low or table.shape != plane.table.shape:
            return None
    else:
        return None
    kept = plane.table >= offset if keep_upper else plane.table <= offset
    return Diagonal(coefficients, plane.low, torch.where(kept, table, torch.zeros_like(table)))


# The operations that move dimensions, on forms.

def form_permute(form: Form, permutation) -> Form:
    if isinstance(form, Dense):
        return Dense(form.tensor.permute(permutation))
    return Diagonal(tuple(form.coefficients[p] for p in permutation), form.low, form.table)


def form_slice(form: Form, shape, dim: int, start: int, step: int, size: int) -> Form:
    if isinstance(form, Dense):
        if form.tensor.shape[dim] == 1 and shape[dim] != 1:
            return form
        return compress(form.tensor.narrow(dim, start, max(0, (size - 1) * step + 1))
                        [(slice(None),) * dim + (slice(None, None, step),)])
    # Indices count from the slice's start: the table moves, and is cut to what is reachable.
    coefficients = list(form.coefficients)
    low = form.low - coefficients[dim] * start
    coefficients[dim] *= step
    sizes = list(shape)
    sizes[dim] = size
    ends = [(n - 1) * c for n, c in zip(sizes, coefficients)]
    first, last = sum(min(0, e) for e in ends), sum(max(0, e) for e in ends)
    table = form.table[first - low:last - low + 1]
    if not any(coefficients) or table.numel() == 1:
        return Dense(table[:1].reshape((1,) * len(coefficients)))
    varying = [d for d, n in enumerate(sizes) if n > 1 and coefficients[d]]
    if len(varying) == 1:
        d = varying[0]
        index = torch.arange(sizes[d]) * coefficients[d] - first
        return compress(table[index].view([-1 if i == d else 1 for i in range(len(sizes))]))
    return Diagonal(tuple(coefficients), first, table)


def form_expand(form: Form, shape, target) -> Form:
    missing = len(target) - len(shape)
    if isinstance(form, Dense):
        return Dense(form.tensor.reshape((1,) * missing + form.tensor.shape))
    return Diagonal((0,) * missing + form.coefficients, form.low, form.table)


def form_reshape(form: Form, shape, target) -> Form | None:
    """A reshape: of a uniform value, by dimensions of size 1, or of a small tensor."""
    if isinstance(form, Dense) and form.tensor.numel() == 1:
        return Dense(form.tensor.reshape((1,) * len(target)))
    if [n for n in shape if n != 1] == [n for n in target if n != 1]:
        kept = iter([d for d, n in enumerate(shape) if n != 1])
        source = [next(kept) if n != 1 else None for n in target]
        if isinstance(form, Dense):
            return Dense(form.tensor.reshape([1 if s is None else form.tensor.shape[s]
                                              for s in source]))
        return Diagonal(tuple(0 if s is None else form.coefficients[s] for s in source), form.low,
                        form.table)
    value = written_out(form, shape)
    return None if value is None else compress(value.reshape(target))
