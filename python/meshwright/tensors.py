# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Arrays of PyTorch, NumPy and other libraries with DLPack, as dense memory of the host."""

import sys
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from .errors import Error

NUMPY_TYPES = {
    "f32": np.dtype(np.float32),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
    "f64": np.dtype(np.float64),
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i1": np.dtype(np.bool_),
}
_FROM_NUMPY = {dtype: name for name, dtype in NUMPY_TYPES.items()}


def torch_types():
    import torch

    return {
        "f32": torch.float32,
        "bf16": torch.bfloat16,
        "f16": torch.float16,
        "f64": torch.float64,
        "i64": torch.int64,
        "i32": torch.int32,
        "i1": torch.bool,
    }


def is_torch(value) -> bool:
    # A caller that holds a tensor has imported torch. Other callers need no torch.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_meta(value) -> bool:
    return is_torch(value) and value.device.type == "meta"


def is_trained(value) -> bool:
    """Whether a parameter has a gradient: it is no tensor of PyTorch, or requires one. Buffers and
    frozen parameters do not."""
    return not is_torch(value) or value.requires_grad


def is_parameter(value) -> bool:
    """Whether a tensor is a parameter, trained or frozen, and no buffer of PyTorch."""
    return not is_torch(value) or isinstance(value, sys.modules["torch"].nn.Parameter)


def state_of(value):
    """A value that changes when a tensor is written to in place. None for NumPy arrays, which do
    not count their writes."""
    if not is_torch(value) or is_meta(value):
        return None
    try:
        return value.data_ptr(), value._version
    except RuntimeError:
        # Made in inference mode: without a version.
        return value.data_ptr()


class Dense(NamedTuple):
    """Dense row-major memory of the host, or an array in the memory of a GPU (`devices`)."""

    #: The element type's name in IR, or PyTorch's or NumPy's where it has none.
    dtype: str
    shape: tuple[int, ...]
    #: 0 for a tensor on the meta device, and for an array of a GPU until a call asks for it.
    address: int
    #: Keeps the memory alive.
    owner: Any
    #: The number of the GPU in whose memory the array is; -1 for the host's.
    gpu: int = -1

    def __str__(self):
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    @property
    def raw(self):
        """The array as `_core` takes it: (element type, shape, address, GPU or -1)."""
        return (self.dtype, list(self.shape), self.address, self.gpu)


def dense(value) -> Dense:
    """`value`'s memory where it is dense already, else a copy's.

    TypeError or ValueError for what is no array, Error for a sparse tensor.
    """
    if not is_torch(value) and not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
        try:
            value = np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError):
            import torch

            value = torch.from_dlpack(value)
    if is_torch(value):
        if value.is_nested:
            raise Error("the tensor is nested: expected a dense one")
        names = {dtype: name for name, dtype in torch_types().items()}
        name = names.get(value.dtype, str(value.dtype).removeprefix("torch."))
        if is_meta(value):
            return Dense(name, tuple(value.shape), 0, value)
        if str(value.layout) != "torch.strided":
            raise Error(f"the tensor's layout is {value.layout}: expected a dense one")
        value = value.detach().cpu().contiguous().resolve_conj().resolve_neg()
        return Dense(name, tuple(value.shape), value.data_ptr(), value)
    value = np.asarray(value)
    shape = value.shape
    value = np.ascontiguousarray(value)
    if not value.dtype.isnative:
        value = value.astype(value.dtype.newbyteorder("="))
    if not value.flags.aligned:
        value = value.copy()
    return Dense(_FROM_NUMPY.get(value.dtype, value.dtype.name), shape, value.ctypes.data, value)


def as_numpy(value: Dense) -> np.ndarray:
    """The memory as a NumPy array, not copied."""
    if isinstance(value.owner, np.ndarray):
        return value.owner.reshape(value.shape)
    import torch

    tensor = value.owner
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def empty(dtype: str, shape, torch_like: bool):
    """Memory for an output, uninitialised, as the kind of array the user gave."""
    if torch_like:
        import torch

        # The caller's default device may be another one.
        return torch.empty(tuple(shape), dtype=torch_types()[dtype], device="cpu")
    return np.empty(tuple(shape), dtype=NUMPY_TYPES[dtype])
