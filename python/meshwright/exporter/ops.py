# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""An op of a program that is exported, and the table of the functions that write one."""
from collections.abc import Callable

from .._nn import OPS
from ..importer.graph.layouts import Axis, Mesh, read_axis
from .text import FLOATS, Value, Writer

#: The functions that write an op, by its name. Each has the op and a writer, and returns the values of
#: its results, or the value of the only one.
EXPANSIONS: dict[str, Callable] = {}


class Refused(Exception):
    """An op, or this use of it, that has no form in StableHLO."""


def expands(*names: str):
    """Registers the function that writes ops of these names."""
    def add(function):
        EXPANSIONS.update((name, function) for name in names)
        return function
    return add


class Op:
    """An op, with its operands as values of the written program."""

    def __init__(self, operation, operands: list[Value], mesh: Mesh | None):
        self.operation = operation
        self.name: str = operation.name
        self.operands = operands
        self.mesh = mesh
        self._named: dict[str, Value] | None = None

    @property
    def x(self) -> Value:
        return self.operands[0]

    @property
    def results(self) -> list[tuple[tuple[int, ...], str]]:
        """The shapes and element types of the results."""
        return [shape_of(result.type) for result in self.operation.results]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.results[0][0]

    @property
    def dtype(self) -> str:
        return self.results[0][1]

    def has(self, name: str) -> bool:
        """Whether an attribute is there."""
        return name in self.operation.attributes

    def attribute(self, name: str, default=None):
        """A number, a list of numbers, or the text of any other attribute."""
        if not self.has(name):
            return default
        return read(self.operation.attributes[name])

    @property
    def axes(self) -> list[Axis]:
        return [read_axis(str(axis), self.mesh) for axis in self.operation.attributes["axes"]]

    def named(self, name: str) -> Value | None:
        """An operand by its name; None if it is left out."""
        if self._named is None:
            self._named = dict(self._name_operands())
        return self._named.get(name)

    def _name_operands(self):
        kinds = OPS[self.name.partition(".")[2]]["operands"]
        sizes = self.attribute("operandSegmentSizes")
        if sizes is None:
            spare = len(self.operands) - list(kinds.values()).count("1")
            sizes = []
            for kind in kinds.values():
                sizes.append(1 if kind == "1" else spare)
                spare -= 0 if kind == "1" else spare
        values = iter(self.operands)
        for name, size in zip(kinds, sizes):
            for _ in range(size):
                yield name, next(values)


def shape_of(type) -> tuple[tuple[int, ...], str]:
    """The shape and the element type of a tensor's type."""
    from jax.extend.mlir import ir

    tensor = ir.RankedTensorType(type)
    if tensor.encoding is not None:
        raise Refused(f"values of type {type}: expected dense tensors")
    return tuple(tensor.shape), str(tensor.element_type)


def read(attribute):
    """The value of an attribute of numbers; the text of another one."""
    from jax.extend.mlir import ir

    if isinstance(attribute, (ir.BoolAttr, ir.IntegerAttr, ir.FloatAttr, ir.StringAttr)):
        return attribute.value
    if isinstance(attribute, (ir.DenseI64ArrayAttr, ir.DenseI32ArrayAttr)):
        return list(attribute)
    return str(attribute)


def wide(dtype: str) -> str:
    """The type in which an op computes."""
    return "f32" if dtype in ("bf16", "f16") else dtype


def computed(op: Op, w: Writer, function) -> Value:
    """`function` of the operands in the type in which ops compute, rounded once."""
    values = [w.convert(v, wide(v.dtype)) if v.dtype in FLOATS else v for v in op.operands]
    return w.convert(function(*values), op.dtype)
