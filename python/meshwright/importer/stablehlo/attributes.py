# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""StableHLO's types and attributes as Python values."""
import re

import ml_dtypes
import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ..errors import Uncovered
from ..graph.forms import NUMPY_TYPES

#: The element type of the program for each of a module. Narrow integers are computed in wider ones.
_ELEMENTS = {"f64": "f64", "f32": "f32", "bf16": "bf16", "f16": "f16", "i64": "i64", "i32": "i32", "i1": "i1",
             "i16": "i32", "i8": "i32", "ui8": "i32", "ui16": "i32", "ui32": "i64"}
#: Integers that wrap at another size than those of the program: their sizes in bits, signed or not.
NARROW = {"i8": (8, True), "i16": (16, True), "ui8": (8, False), "ui16": (16, False), "ui32": (32, False)}
#: The same by NumPy's names.
PROGRAM_INTEGERS = {f"{'int' if signed else 'uint'}{bits}": np.dtype(np.int64 if (bits, signed) == (32, False) else np.int32)
                    for bits, signed in NARROW.values()}
#: Element types of parameters that stay as they are stored.
STORED = {"i8": "i8", "f8E4M3FN": "f8E4M3FN", "f8E5M2": "f8E5M2"}


class Types:
    """Shapes and element types of tensors, each read once."""

    def __init__(self):
        self._known = {}

    def of(self, value) -> tuple[tuple[int, ...], str]:
        """The shape and the element type of the program for a value."""
        shape, element = self.written(value)
        if element not in _ELEMENTS:
            raise Uncovered(_uncovered(element))
        return shape, _ELEMENTS[element]

    def written(self, value) -> tuple[tuple[int, ...], str]:
        """The shape and the element type as the module has them."""
        type = value.type
        known = self._known.get(type)
        if known is None:
            known = self._known[type] = _shape_and_element(type)
        return known


def _shape_and_element(type) -> tuple[tuple[int, ...], str]:
    try:
        tensor = ir.RankedTensorType(type)
    except ValueError:
        raise Uncovered(f"a value of type {type} is not covered: expected tensors") from None
    if not tensor.has_static_shape:
        raise Uncovered(f"the shape of {type} is dynamic: expected static shapes. Import the function again "
                        "with arguments of the sizes that it is to run with")
    return tuple(tensor.shape), str(tensor.element_type)


def _uncovered(element: str) -> str:
    if element.startswith("complex"):
        return f"complex numbers ({element}) are not covered: expected their real and imaginary parts apart"
    return f"element type {element} is not covered"


def integers(attribute) -> list[int]:
    """Integers of an array, or of a dense attribute."""
    try:
        return [int(n) for n in ir.DenseI64ArrayAttr(attribute)]
    except ValueError:
        return [int(n) for n in ir.DenseIntElementsAttr(attribute)]


def booleans(attribute) -> list[bool]:
    return [bool(n) for n in ir.DenseBoolArrayAttr(attribute)]


def optional_integers(op, name: str, default) -> list[int]:
    return integers(op.attributes[name]) if name in op.attributes else list(default)


def integer(op, name: str, default: int | None = None) -> int:
    if default is not None and name not in op.attributes:
        return default
    return ir.IntegerAttr(op.attributes[name]).value


def direction(op) -> str:
    """The kind of a comparison: eq, ne, ..."""
    return stablehlo.ComparisonDirectionAttr(op.attributes["comparison_direction"]).value.lower()


def text(attribute) -> str:
    return ir.StringAttr(attribute).value


def symbol(attribute) -> str:
    return ir.FlatSymbolRefAttr(attribute).value


def constant(attribute, shape, element: str) -> np.ndarray:
    """The elements of a dense attribute, in the element type of the program. A dimension of size 1 may
    stand for any size."""
    kind = _ELEMENTS.get(element)
    if kind is None:
        raise Uncovered(_uncovered(element))
    try:
        values = ir.DenseElementsAttr(attribute)
    except ValueError:
        return _resource(attribute, shape, element).astype(NUMPY_TYPES[kind])
    if values.is_splat:
        return np.full((1,) * len(shape), _number(values.get_splat_value()), NUMPY_TYPES[kind])
    return _elements(values, element).reshape(shape).astype(NUMPY_TYPES[kind])


def _number(attribute):
    value = getattr(attribute, "value", None)
    return float(str(attribute).split()[0]) if value is None else value


def _elements(values, element: str) -> np.ndarray:
    if element != "bf16":
        return np.array(values)
    # NumPy's protocol has no bf16. The text of many elements is their bytes.
    written = re.search(r'"0x([0-9A-Fa-f]*)"', str(values))
    if written:
        return np.frombuffer(bytes.fromhex(written[1]), ml_dtypes.bfloat16)
    return np.array([float(v) for v in ir.DenseFPElementsAttr(values)])


def _resource(attribute, shape, element: str) -> np.ndarray:
    """The elements of a resource of the module."""
    reader = getattr(ir, _RESOURCES.get(element, ""), None)
    if reader is None:
        raise Uncovered(f"a constant {list(shape)} of {element} in a resource of the module is not covered: "
                        "expected it as an argument of the function")
    return np.array(reader(attribute)).reshape(shape)


_RESOURCES = {"f32": "DenseF32ResourceElementsAttr", "f64": "DenseF64ResourceElementsAttr",
              "i32": "DenseI32ResourceElementsAttr", "i64": "DenseI64ResourceElementsAttr",
              "i8": "DenseI8ResourceElementsAttr", "i1": "DenseBoolResourceElementsAttr"}
