# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""PyTorch's tensors and types beside those of the graph: element types, NumPy's arrays, forms.

Arrays and tensors share their memory.
"""
import math

import numpy as np
import torch

from ...tensors import (
    ELEMENT_TYPES,
    NUMPY_TYPES,
    Joined,
    elements_per_byte,
    numpy_of,
    torch_names,
    torch_of,
    torch_types,
)
from ..errors import Uncovered
from ..graph import forms
from ..graph.forms import Dense, Form

TORCH_DTYPES = torch_types()


def element_type(dtype: torch.dtype) -> str:
    """The type in the program. Numbers of uint8 are computed in i32."""
    if dtype == torch.uint8:
        return "i32"
    # PyTorch counts bytes of elements that share them.
    covered = [name for name in ELEMENT_TYPES if elements_per_byte(name) == 1]
    if torch_names().get(dtype) not in covered:
        raise Uncovered(f"element type {str(dtype).removeprefix('torch.')} is not covered; "
                        f"expected one of {', '.join(covered)}")
    return torch_names()[dtype]


def to_array(tensor: torch.Tensor) -> np.ndarray:
    try:
        return numpy_of(tensor.detach().cpu().resolve_conj().resolve_neg())
    except TypeError:
        raise Uncovered(f"element type {str(tensor.dtype).removeprefix('torch.')} is not covered") from None


def dense(tensor: torch.Tensor, name: str | None = None) -> Dense:
    """The form of a tensor. Of one on the meta device only shape and type are known, and the name."""
    if tensor.device.type != "meta":
        array = to_array(tensor)
        return Dense(array.astype(np.int32) if array.dtype == np.uint8 else array)
    return forms.unknown(tensor.shape, element_type(tensor.dtype), name)


def compress(tensor: torch.Tensor) -> Dense:
    """The form of a tensor, without the dimensions along which it does not vary."""
    return forms.compress(dense(tensor))


def to_tensor(values: np.ndarray) -> torch.Tensor:
    if not values.flags.writeable:  # a broadcast one, say
        values = values.copy()
    return torch_of(values)


def tensor_of(form: Dense) -> torch.Tensor:
    if form.known:
        return to_tensor(form.values)
    return torch.empty(form.values.shape, dtype=_of_numpy(form.values.dtype), device="meta")


def written_out(form: Form, shape) -> torch.Tensor | None:
    """The value itself, if it is small enough to write out."""
    if isinstance(form, Dense):
        return tensor_of(form).expand(shape) if forms.affordable(shape) else None
    values = forms.written_out(form, shape)
    return None if values is None else to_tensor(values)


def _of_numpy(dtype: np.dtype) -> torch.dtype:
    return next(TORCH_DTYPES[name] for name, own in NUMPY_TYPES.items() if own == dtype)


def run(function, operands: dict) -> Dense:
    """A function of tensors by position, on forms. It runs on the meta device where one of them is
    not known."""
    tensors = {i: tensor_of(form) for i, form in operands.items()}
    if not all(form.known for form in operands.values()):
        tensors = {i: t.to("meta") for i, t in tensors.items()}
    return dense(function(tensors))


def largest(tensor: torch.Tensor | Joined) -> float:
    """The largest absolute value of floats; not finite where one of them is not. 0 if none is known,
    and for codes."""
    if isinstance(tensor, Joined):
        # Infinity for NaN, which compares with nothing.
        return max(n if n == n else math.inf for n in map(largest, tensor.parts))
    element = ELEMENT_TYPES.get(torch_names().get(tensor.dtype))
    if tensor.device.type == "meta" or element is None or element.use != "Float" or not tensor.numel():
        return 0.0
    return max(abs(float(bound)) for bound in torch.aminmax(tensor.detach()))
