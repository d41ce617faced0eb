# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Buckets: entries for calls of several sizes. A call takes the smallest one that holds it.

An entry has static shapes. The inputs of a call are padded to them with zeros, and outputs are cut to the
call's own sizes, which the entry has as arguments behind its inputs.
"""

import functools
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from . import arguments
from .devices import on_gpu
from .errors import Diagnostic, Error, InputError
from .tensors import as_numpy, dense, is_meta, is_torch, torch_names


def memory_of_machine() -> int:
    """The bytes of this machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def checked(buckets) -> dict[str, list[int]]:
    """The argument `buckets`: sizes by name, ascending, each once."""
    expected = '{"batch": [1, 8], "tokens": [128, 512]}, sizes by name'
    arguments.mapping("buckets", buckets, expected)
    result = {}
    for name, sizes in buckets.items():
        if isinstance(sizes, (str, bytes, Mapping)) or not hasattr(sizes, "__iter__"):
            arguments.fail(f"buckets['{name}']", sizes, "a list of sizes")
        found = [arguments.integer(f"a size of buckets['{name}']", n, 1) for n in sizes]
        if not found:
            raise Error(f"buckets['{name}']: expected one size at least, got none")
        result[name] = sorted(set(found))
    if not result:
        raise Error(f"buckets: expected {expected}, got none")
    return result


@dataclass
class BucketSizes:
    """How the program of a bucket relates to the sizes of a call."""

    #: The name of each size -> the bucket's.
    capacities: dict[str, int]
    #: Input -> dimension -> the name of its size.
    inputs: dict[str, dict[int, str]]
    #: The sizes that are arguments of the program, with their expressions in the names.
    arguments: dict[str, object]
    #: Of each output the shape: numbers, and sizes with their expressions.
    outputs: list[tuple]
    #: Conditions on the sizes of a call under which the program is that of the module.
    checks: list
    _values: dict = field(default_factory=dict)

    def at(self, sizes: dict[str, int]) -> "CallSizes":
        """The arguments and the cuts of a call. Raises InputError for sizes that the module does not take."""
        key = tuple(sizes[name] for name in self.capacities)
        if key not in self._values:
            if len(self._values) >= _MOST_KNOWN:
                self._values.clear()
            self._values[key] = self._at(sizes)
        return self._values[key]

    def _at(self, sizes):
        number = functools.partial(_evaluate, sizes)
        problems = [
            Diagnostic(
                f"sizes {_said(sizes)}: the module needs {check.condition}",
                "error",
                check.file,
                check.line,
            )
            for check in self.checks
            if not number(check.condition)
        ]
        if problems:
            raise InputError(problems)
        cuts = []
        for shape in self.outputs:
            parts = [p for n in shape for p in getattr(n, "parts", (n,))]
            own = [number(p.expr) if hasattr(p, "expr") else p for p in parts]
            cut = None
            if own != [int(p) for p in parts]:
                whole = [number(n.expr) if hasattr(n, "expr") else n for n in shape]
                cut = Cut(tuple(map(int, parts)), tuple(slice(n) for n in own), tuple(whole))
            cuts.append(cut)
        values = {name: number(expr) for name, expr in self.arguments.items()}
        return CallSizes(values, cuts)


#: So many combinations of sizes are remembered by a bucket.
_MOST_KNOWN = 4096


@dataclass
class Cut:
    """Takes the elements of a call out of an output: apart, within the bucket, and as they are."""

    parts: tuple[int, ...]
    pieces: tuple[slice, ...]
    shape: tuple[int, ...]

    def __call__(self, array):
        if not is_torch(array) and not isinstance(array, np.ndarray):
            import torch

            array = torch.from_dlpack(array)
        piece = array.reshape(self.parts)[self.pieces].reshape(self.shape)
        return piece.clone() if is_torch(piece) else np.array(piece)


@dataclass
class CallSizes:
    """The arguments of a call that are sizes, and how its outputs are cut."""

    arguments: dict[str, int]
    cuts: list[Cut | None]

    def cut(self, outputs):
        """The outputs of the module, cut, and further outputs of the program."""
        own = zip(outputs, self.cuts)  # noqa: B905 (gradients have no sizes that change)
        cut = [array if cut is None else cut(array) for array, cut in own]
        return cut + outputs[len(self.cuts) :]


def _evaluate(sizes, expr):
    value = expr.subs({s: sizes[str(s)] for s in expr.free_symbols})
    return bool(value) if value.is_Boolean else int(value)


def _said(sizes) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


class Buckets:
    """The entries of a model whose sizes change from call to call, by their sizes."""

    def __init__(self, entries: dict[str, BucketSizes]):
        self.entries = entries
        first = next(iter(entries.values()))
        self._inputs = first.inputs
        #: The largest size of each name.
        self.largest = {
            name: max(e.capacities[name] for e in entries.values()) for name in first.capacities
        }

    def sizes(self, names, values) -> dict[str, int]:
        """The sizes of a call, of its inputs by name. Raises InputError where two differ."""
        found: dict[str, tuple[int, str]] = {}
        problems = []
        for name, value in zip(names, values, strict=True):
            shape = getattr(value, "shape", ())
            for dim, size in self._inputs.get(name, {}).items():
                if dim >= len(shape):
                    continue  # reported with the whole shape
                n = int(shape[dim])
                if n < 1:
                    problems.append(f"input '{name}': size '{size}' is 0, expected 1 or more")
                elif size in found and found[size][0] != n:
                    other, at = found[size]
                    problems.append(
                        f"input '{name}': size '{size}' is {n}, but {other} in input '{at}'"
                    )
                found.setdefault(size, (n, name))
        if problems:
            raise InputError([Diagnostic(problem) for problem in problems])
        return {size: found[size][0] if size in found else 1 for size in self.largest}

    def choose(self, sizes: dict[str, int]) -> str:
        """The entry of the least product of sizes that holds a call."""
        holds = [
            (math.prod(e.capacities.values()), name)
            for name, e in self.entries.items()
            if all(sizes[n] <= capacity for n, capacity in e.capacities.items())
        ]
        return min(holds, key=lambda found: found[0])[1]

    def check_fits(self, sizes: dict[str, int], names):
        """Raises InputError for sizes above the largest bucket."""
        self._check("its largest bucket", self.largest, sizes, names)

    def check_holds(self, entry: str, bucket: str, sizes: dict[str, int], names):
        """Raises InputError if an entry that a caller has named does not hold the call."""
        self._check(f"that of the entry '{entry}'", self.entries[bucket].capacities, sizes, names)

    def _check(self, what, capacities, sizes, names):
        problems = [
            f"input '{name}': size '{size}' is {sizes[size]}, above {what}, {capacities[size]}"
            for name in names
            for size in self._inputs.get(name, {}).values()
            if sizes[size] > capacities[size]
        ]
        if problems:
            raise InputError([Diagnostic(problem) for problem in problems])

    def padded(self, entry: str, ports, values) -> list:
        """The inputs of a call with the shapes of an entry: new arrays, with zeros behind the elements."""
        result, problems = [], []
        for port, value in zip(ports, values, strict=True):
            dims = self._inputs.get(port.name, {})
            try:
                result.append(_padded(value, port, dims))
            except _Unfit:
                shape = [dims.get(d, n) for d, n in enumerate(port.shape)]
                expected = f"{port.dtype}[{', '.join(map(str, shape))}]"
                problems.append(f"input '{port.name}': expected {expected}, got {_described(value)}")
        if problems:
            raise InputError([Diagnostic(problem) for problem in problems])
        return result


class _Unfit(Exception):
    """An input that has another shape or type than the entry."""


def _type_of(value) -> str:
    if is_torch(value):
        return torch_names().get(value.dtype, str(value.dtype).removeprefix("torch."))
    return (on_gpu(value) or dense(value)).dtype


def _described(value) -> str:
    if not hasattr(value, "shape"):
        return f"a {type(value).__name__}"
    return f"{_type_of(value)}{list(map(int, value.shape))}"


def _padded(value, port, dims):
    """An array in one of the shape of a port, behind whose elements are zeros."""
    shape = tuple(port.shape)
    if value is None or is_meta(value) or not hasattr(value, "shape") and not dims:
        return value  # reported by the check of inputs
    if not hasattr(value, "shape"):
        raise _Unfit
    given = tuple(map(int, value.shape))
    if _type_of(value) != port.dtype or len(given) != len(shape) or any(
        n > shape[d] if d in dims else n != shape[d] for d, n in enumerate(given)
    ):
        raise _Unfit
    if given == shape:
        return value
    if not is_torch(value) and on_gpu(value) is not None:
        import torch

        value = torch.from_dlpack(value)
    box = tuple(map(slice, given))
    if is_torch(value):
        whole = value.new_zeros(shape)
        whole[box] = value.detach()
        return whole
    array = as_numpy(dense(value))
    whole = np.zeros(shape, array.dtype)
    whole[box] = array
    return whole

