# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Writes StableHLO operations as text."""
import math
from typing import NamedTuple

import numpy as np

FLOATS = ("f16", "bf16", "f32", "f64")


class Value(NamedTuple):
    """An SSA value: its name, shape and element type."""
    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def type(self) -> str:
        return tensor(self.shape, self.dtype)


def tensor(shape, dtype: str) -> str:
    return f"tensor<{''.join(f'{d}x' for d in shape)}{dtype}>"


def number(value, dtype: str) -> str:
    """A literal of an element type."""
    if dtype == "i1":
        return "true" if value else "false"
    if dtype not in FLOATS:
        return str(int(value))
    if math.isfinite(value):
        text = repr(float(value))
        mantissa, e, exponent = text.partition("e")
        return (mantissa if "." in mantissa else mantissa + ".0") + e + exponent
    bits = {"f16": (0x7C00, 0x8000, 0x7E00, 4), "bf16": (0x7F80, 0x8000, 0x7FC0, 4),
            "f32": (0x7F800000, 1 << 31, 0x7FC00000, 8),
            "f64": (0x7FF << 52, 1 << 63, 0x7FF8 << 48, 16)}[dtype]
    code = bits[2] if math.isnan(value) else bits[0] | (bits[1] if value < 0 else 0)
    return f"0x{code:0{bits[3]}X}"


def ints(values) -> str:
    return "[" + ", ".join(str(int(v)) for v in values) + "]"


def array(values) -> str:
    return "array<i64: " + ", ".join(str(int(v)) for v in values) + ">" if len(list(values)) else "array<i64>"


class Writer:
    """Operations of a block, one line each. Values broadcast by NumPy's rule where a method says so."""

    def __init__(self, indent: str = "    "):
        self.lines: list[str] = []
        self.indent = indent
        #: The location of new operations, as it stands behind one.
        self.location = " loc(unknown)"
        self.count = 0
        self._constants: dict[tuple, Value] = {}

    # Operations.

    def fresh(self) -> str:
        self.count += 1
        return f"%{self.count - 1}"

    def line(self, text: str):
        self.lines.append(f"{self.indent}{text}{self.location}")

    def make(self, text: str, shape, dtype: str, types: str | None = None) -> Value:
        """An operation with one result; `types` is its functional type, or that of the result."""
        value = Value(self.fresh(), tuple(int(d) for d in shape), dtype)
        self.line(f"{value.name} = {text} : {types or value.type}")
        return value

    def generic(self, name: str, operands, attributes: str, shape, dtype: str, region: str = "") -> Value:
        types = ", ".join(o.type for o in operands)
        names = ", ".join(o.name for o in operands)
        return self.make(f'"stablehlo.{name}"({names}) <{{{attributes}}}>{region}', shape, dtype,
                         f"({types}) -> {tensor(shape, dtype)}")

    def combiner(self, op: str, dtype: str) -> str:
        """The region of a reduction by one op; "second" keeps the second value."""
        t, body, back = tensor((), dtype), "", "%b"
        if op != "second":
            body, back = f"%c = stablehlo.{op} %a, %b : {t}\n{self.indent}  ", "%c"
        return (f" ({{\n{self.indent}^bb0(%a: {t}, %b: {t}):\n{self.indent}  {body}"
                f"stablehlo.return {back} : {t}\n{self.indent}}})")

    # Constants.

    def scalar(self, value, dtype: str) -> Value:
        return self.full((), value, dtype)

    def full(self, shape, value, dtype: str) -> Value:
        return self.make(f"stablehlo.constant dense<{number(value, dtype)}>", shape, dtype)

    def table(self, values, dtype: str = "i64") -> Value:
        """A constant of a NumPy array of integers."""
        def nested(v):
            return "[" + ", ".join(map(nested, v)) + "]" if isinstance(v, list) else number(v, dtype)
        if values.size == 0:
            return self.full(values.shape, 0, dtype)
        return self.make(f"stablehlo.constant dense<{nested(values.tolist())}>", values.shape, dtype)

    def array(self, values, dtype: str) -> Value:
        """A constant of many elements, by their bytes."""
        if dtype == "i1":
            return self.convert(self.array(values.astype("i1"), "i8"), "i1")
        if not values.size:
            return self.full(values.shape, 0, dtype)
        data = np.ascontiguousarray(values).tobytes().hex().upper()
        return self.make(f'stablehlo.constant dense<"0x{data}">', values.shape, dtype)

    def iota(self, shape, dim: int, dtype: str = "i64") -> Value:
        return self.make(f"stablehlo.iota dim = {dim}", shape, dtype)

    # Elements.

    def unary(self, op: str, x: Value, dialect: str = "stablehlo") -> Value:
        types = f"{x.type} -> {x.type}" if dialect == "chlo" else None
        return self.make(f"{dialect}.{op} {x.name}", x.shape, x.dtype, types)

    def binary(self, op: str, x: Value, y: Value) -> Value:
        """Operands broadcast; a Python number is one of the other operand's type."""
        x, y = self.pair(x, y)
        return self.make(f"stablehlo.{op} {x.name}, {y.name}", x.shape, x.dtype)

    def pair(self, x, y) -> tuple[Value, Value]:
        if not isinstance(x, Value):
            x = self.full(y.shape, x, y.dtype)
        if not isinstance(y, Value):
            y = self.full(x.shape, y, x.dtype)
        shape = broadcast_shape(x.shape, y.shape)
        return self.broadcast(x, shape), self.broadcast(y, shape)

    def compare(self, kind: str, x, y) -> Value:
        x, y = self.pair(x, y)
        return self.make(f"stablehlo.compare {kind.upper()}, {x.name}, {y.name}", x.shape, "i1",
                         f"({x.type}, {y.type}) -> {tensor(x.shape, 'i1')}")

    def select(self, condition: Value, x, y) -> Value:
        x, y = self.pair(x, y)
        shape = broadcast_shape(condition.shape, x.shape)
        c, x, y = (self.broadcast(v, shape) for v in (condition, x, y))
        return self.make(f"stablehlo.select {c.name}, {x.name}, {y.name}", shape, x.dtype,
                         f"{c.type}, {x.type}")

    def convert(self, x: Value, dtype: str) -> Value:
        if x.dtype == dtype:
            return x
        if dtype == "i1":
            return self.compare("ne", x, 0)
        return self.make(f"stablehlo.convert {x.name}", x.shape, dtype,
                         f"({x.type}) -> {tensor(x.shape, dtype)}")

    # Shapes.

    def reshape(self, x: Value, shape) -> Value:
        shape = tuple(shape)
        if x.shape == shape:
            return x
        return self.make(f"stablehlo.reshape {x.name}", shape, x.dtype,
                         f"({x.type}) -> {tensor(shape, x.dtype)}")

    def spread(self, x: Value, shape, dims) -> Value:
        """Dimension i of x becomes dimension dims[i]; the others repeat."""
        shape = tuple(shape)
        return self.make(f"stablehlo.broadcast_in_dim {x.name}, dims = {ints(dims)}", shape, x.dtype,
                         f"({x.type}) -> {tensor(shape, x.dtype)}")

    def broadcast(self, x: Value, shape) -> Value:
        """To a shape, by NumPy's rule."""
        shape = tuple(shape)
        if x.shape == shape:
            return x
        return self.spread(x, shape, range(len(shape) - x.rank, len(shape)))

    def transpose(self, x: Value, permutation) -> Value:
        permutation = list(permutation)
        if permutation == list(range(x.rank)):
            return x
        shape = [x.shape[p] for p in permutation]
        return self.make(f"stablehlo.transpose {x.name}, dims = {ints(permutation)}", shape, x.dtype,
                         f"({x.type}) -> {tensor(shape, x.dtype)}")

    def slice(self, x: Value, starts, limits, strides=None) -> Value:
        strides = strides or [1] * x.rank
        shape = [max(0, -(-(b - a) // s)) for a, b, s in zip(starts, limits, strides)]
        if tuple(shape) == x.shape:
            return x
        box = ", ".join(f"{a}:{b}" + (f":{s}" if s != 1 else "")
                        for a, b, s in zip(starts, limits, strides))
        return self.make(f"stablehlo.slice {x.name} [{box}]", shape, x.dtype,
                         f"({x.type}) -> {tensor(shape, x.dtype)}")

    def slice_dim(self, x: Value, dim: int, start: int, limit: int, stride: int = 1) -> Value:
        starts, limits, strides = [0] * x.rank, list(x.shape), [1] * x.rank
        starts[dim], limits[dim], strides[dim] = start, limit, stride
        return self.slice(x, starts, limits, strides)

    def dynamic_slice(self, x: Value, dim: int, start: Value, size: int) -> Value:
        """`size` rows of a dimension from a scalar on."""
        zero = self.scalar(0, start.dtype)
        starts = [start if d == dim else zero for d in range(x.rank)]
        shape = [size if d == dim else n for d, n in enumerate(x.shape)]
        names = ", ".join(s.name for s in starts)
        types = ", ".join(s.type for s in starts)
        return self.make(f"stablehlo.dynamic_slice {x.name}, {names}, sizes = {ints(shape)}", shape, x.dtype,
                         f"({x.type}, {types}) -> {tensor(shape, x.dtype)}")

    def dynamic_update(self, x: Value, update: Value, dim: int, start: Value) -> Value:
        zero = self.scalar(0, start.dtype)
        starts = [start if d == dim else zero for d in range(x.rank)]
        names = ", ".join(s.name for s in starts)
        types = ", ".join(s.type for s in starts)
        return self.make(f"stablehlo.dynamic_update_slice {x.name}, {update.name}, {names}", x.shape, x.dtype,
                         f"({x.type}, {update.type}, {types}) -> {x.type}")

    def concat(self, values, dim: int) -> Value:
        values = list(values)
        if len(values) == 1:
            return values[0]
        shape = list(values[0].shape)
        shape[dim] = sum(v.shape[dim] for v in values)
        names = ", ".join(v.name for v in values)
        types = ", ".join(v.type for v in values)
        return self.make(f"stablehlo.concatenate {names}, dim = {dim}", shape, values[0].dtype,
                         f"({types}) -> {tensor(shape, values[0].dtype)}")

    def pad(self, x: Value, low, high, interior=None, value=0) -> Value:
        interior = list(interior or [0] * x.rank)
        shape = [a + n + max(n - 1, 0) * i + b for n, a, b, i in zip(x.shape, low, high, interior)]
        if tuple(shape) == x.shape:
            return x
        fill = self.scalar(value, x.dtype)
        return self.make(f"stablehlo.pad {x.name}, {fill.name}, low = {ints(low)}, high = {ints(high)}, "
                         f"interior = {ints(interior)}", shape, x.dtype,
                         f"({x.type}, {fill.type}) -> {tensor(shape, x.dtype)}")

    def grow(self, x: Value, shape) -> Value:
        """Appends zeros at the tail of dimensions."""
        return self.pad(x, [0] * x.rank, [n - m for n, m in zip(shape, x.shape)])

    # Sums and products.

    def reduce(self, op: str, x: Value, dims, keep=False) -> Value:
        """By "add", "maximum" or "minimum"."""
        dims = sorted(dims)
        shape = [n for d, n in enumerate(x.shape) if d not in dims]
        result = x
        if dims:
            start = self.scalar(neutral(op, x.dtype), x.dtype)
            result = self.make(f"stablehlo.reduce({x.name} init: {start.name}) applies stablehlo.{op} "
                               f"across dimensions = {ints(dims)}", shape, x.dtype,
                               f"({x.type}, {start.type}) -> {tensor(shape, x.dtype)}")
        if keep:
            result = self.reshape(result, [1 if d in dims else n for d, n in enumerate(x.shape)])
        return result

    def dot(self, x: Value, y: Value, batch, contract, dtype: str) -> Value:
        """`batch` and `contract` are the dimensions of both operands: ([0], [0])."""
        (xb, yb), (xc, yc) = batch, contract
        free = [n for d, n in enumerate(x.shape) if d not in (*xb, *xc)] + \
            [n for d, n in enumerate(y.shape) if d not in (*yb, *yc)]
        shape = [x.shape[d] for d in xb] + free
        batches = f"batching_dims = {ints(xb)} x {ints(yb)}, " if len(xb) else ""
        return self.make(f"stablehlo.dot_general {x.name}, {y.name}, {batches}"
                         f"contracting_dims = {ints(xc)} x {ints(yc)}", shape, dtype,
                         f"({x.type}, {y.type}) -> {tensor(shape, dtype)}")

    def take(self, x: Value, indices: Value, dim: int) -> Value:
        """Rows of a dimension by index, as NumPy's `take`."""
        shape = x.shape[:dim] + indices.shape + x.shape[dim + 1:]
        offset = [d for d in range(len(shape)) if not dim <= d < dim + indices.rank]
        sizes = [1 if d == dim else n for d, n in enumerate(x.shape)]
        return self.generic(
            "gather", [x, indices],
            f"dimension_numbers = #stablehlo.gather<{_of('offset_dims', offset)}collapsed_slice_dims = [{dim}], "
            f"start_index_map = [{dim}], index_vector_dim = {indices.rank}>, "
            f"indices_are_sorted = false, slice_sizes = {array(sizes)}", shape, x.dtype)


def _of(name: str, dims) -> str:
    return f"{name} = {ints(dims)}, " if len(dims) else ""


def neutral(op: str, dtype: str):
    """The number that a reduction begins with."""
    if op == "add":
        return 0
    if dtype in FLOATS:
        return -math.inf if op == "maximum" else math.inf
    bits = {"i1": 1, "i8": 8, "i32": 32}.get(dtype, 64)
    if dtype == "i1":
        return op == "minimum"
    return -2 ** (bits - 1) if op == "maximum" else 2 ** (bits - 1) - 1


def broadcast_shape(*shapes) -> tuple[int, ...]:
    rank = max(map(len, shapes))
    result = [1] * rank
    for shape in shapes:
        for d, n in enumerate(shape, rank - len(shape)):
            if n != 1:
                result[d] = n
    return tuple(result)
