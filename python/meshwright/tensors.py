# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Arrays of PyTorch, NumPy and other libraries with DLPack, as dense memory of the host."""

import functools
import itertools
import math
import sys
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from . import _core
from .errors import Error

#: The table of element types (include/meshwright-c/ElementTypes.def), by their names in IR.
ELEMENT_TYPES = {element.name: element for element in _core.ELEMENT_TYPES}
NUMPY_TYPES = {
    name: np.dtype(getattr(ml_dtypes, element.numpy, element.numpy))
    for name, element in ELEMENT_TYPES.items()
}
_FROM_NUMPY = {dtype: name for name, dtype in NUMPY_TYPES.items()}


@functools.cache
def torch_types():
    import torch

    return {name: getattr(torch, element.torch) for name, element in ELEMENT_TYPES.items()}


@functools.cache
def torch_names():
    return {dtype: name for name, dtype in torch_types().items()}


def elements_per_byte(name: str) -> int:
    """How many elements share a byte. The last dimension of arrays counts bytes, that of files and
    of the program's text elements."""
    return max(1, 8 // ELEMENT_TYPES[name].bits)


class Joined:
    """A parameter of the program that consists of several tensors: parameters of a module, or entries
    of files. They are stacked along a new dimension or concatenated along one, and may be joined of
    others in turn. The memory of the whole is made where it is asked for."""

    def __init__(self, parts, dim=0, stacked=True, *, keys=(), like=None, mapped=()):
        self.parts, self.dim, self.stacked = list(parts), dim, stacked
        #: The names of the parts in a module that may assign them anew.
        self.keys = list(keys)
        #: The parameter of a module whose value this is, where the parts are no parameters.
        self.like = like
        #: Arrays of the mapped files that the parts are in.
        self.mapped = list(mapped)
        self._changes = 0

    @property
    def shape(self):
        shape = list(self.parts[0].shape)
        if self.stacked:
            shape.insert(self.dim, len(self.parts))
        elif len(self.parts) > 1:
            shape[self.dim] = sum(part.shape[self.dim] for part in self.parts)
        return tuple(shape)

    @property
    def dtype(self):
        return self.parts[0].dtype

    def boxes(self):
        """The tensors, each with the index at which it begins: views of the parts."""
        at = 0
        for part in self.parts:
            inner = part.boxes() if isinstance(part, Joined) else [((0,) * part.ndim, part)]
            for offsets, tensor in inner:
                offsets = list(offsets)
                if self.stacked:
                    offsets.insert(self.dim, at)
                    tensor = tensor.unsqueeze(self.dim)
                elif at:
                    offsets[self.dim] += at
                yield tuple(offsets), tensor
            at += 1 if self.stacked else (*part.shape, 0)[self.dim]

    def follow(self, tensors):
        """Takes tensors that were assigned to the module anew, by their names."""
        if not self.keys:
            return
        parts = [tensors.get(key, part) for key, part in zip(self.keys, self.parts, strict=True)]
        if any(new is not old for new, old in zip(parts, self.parts, strict=True)):
            self.parts, self._changes = parts, self._changes + 1

    def state(self):
        return self._changes, *map(state_of, self.parts)

    def dense(self):
        """The memory of the parts."""
        boxes = [(offsets, _on_host(tensor)) for offsets, tensor in self.boxes()]
        if len(boxes) == 1 or is_meta(self):
            return dense(self.whole())
        pieces = [
            (list(offsets), list(t.shape), list(t.stride()), t.data_ptr()) for offsets, t in boxes
        ]
        return Dense(_name_of(self.dtype), self.shape, 0, (self, boxes), pieces=pieces)

    def slabs(self):
        """Copies of its rows along dimension 0, from one end of a part to the next."""
        boxes = [(*offsets, tensor) for offsets, tensor in self.boxes()]
        ends = sorted({end for at, *_, t in boxes for end in (at, at + t.shape[0])})
        for begin, end in itertools.pairwise(ends):
            here = [
                ((0, *rest), t[begin - at : end - at])
                for at, *rest, t in boxes
                if at <= begin and end <= at + t.shape[0]
            ]
            yield _assembled(here, (end - begin, *self.shape[1:]), self.dtype)

    def whole(self):
        """The parts in one tensor of the host; a copy if there are several."""
        boxes = list(self.boxes())
        if len(boxes) == 1:
            return boxes[0][1].detach()
        return _assembled(boxes, self.shape, self.dtype, "meta" if is_meta(self) else "cpu")


def _assembled(boxes, shape, dtype, device="cpu"):
    """A tensor of boxes at their offsets."""
    import torch

    result = torch.empty(shape, dtype=dtype, device=device)
    # PyTorch copies no codes.
    plain = [t.view(torch.uint8) if t.element_size() == 1 else t for t in (result, *(b for _, b in boxes))]
    for (offsets, _), tensor in zip(boxes, plain[1:] if device == "cpu" else (), strict=False):
        at = tuple(slice(o, o + n) for o, n in zip(offsets, tensor.shape, strict=True))
        plain[0][at].copy_(tensor.detach())
    return result


class Shape(NamedTuple):
    """An array of which only the shape and the element type are known: the weights of a model that is
    planned, not run."""

    shape: tuple[int, ...]
    #: As in IR.
    dtype: str
    is_trained: bool = True


class Fixed(np.ndarray):
    """An array that no gradient reaches: a constant that an import computed, or a variable of a module that
    is no parameter, such as a running mean."""


def unjoined(value):
    """A parameter as an array of its own."""
    return value.whole() if isinstance(value, Joined) else value


def is_torch(value) -> bool:
    # A caller that holds a tensor has imported torch. Other callers need no torch.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_jax(value) -> bool:
    # As for PyTorch: a caller that holds an array has imported jax.
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)


def is_meta(value) -> bool:
    if isinstance(value, Joined):
        return any(map(is_meta, value.parts))
    return isinstance(value, Shape) or is_torch(value) and value.device.type == "meta"


def is_trained(value) -> bool:
    """Whether a parameter has a gradient: a tensor of PyTorch that requires one, or another array that is
    not fixed. Buffers and frozen parameters do not."""
    if isinstance(value, Joined):
        return all(map(is_trained, value.parts if value.like is None else [value.like]))
    if isinstance(value, Shape):
        return value.is_trained
    return value.requires_grad if is_torch(value) else not isinstance(value, Fixed)


def is_parameter(value) -> bool:
    """Whether a tensor is a parameter, trained or frozen, and no buffer of PyTorch."""
    if isinstance(value, Joined):
        return all(map(is_parameter, value.parts if value.like is None else [value.like]))
    if is_torch(value):
        return isinstance(value, sys.modules["torch"].nn.Parameter)
    return is_trained(value)


def state_of(value):
    """A value that changes when a tensor is written to in place. None for NumPy arrays, which do
    not count their writes."""
    if isinstance(value, Joined):
        return value.state()
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
    #: Of an array that is not in one place: its boxes, as (offsets, shape, strides, address).
    pieces: Any = ()
    #: The library of the array that the caller gave.
    kind: str = "numpy"

    def __str__(self):
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    @property
    def place(self):
        """Where the array is, or its boxes are."""
        return self.address, self.pieces

    @property
    def raw(self):
        """The array as `_core` takes it: (element type, shape, address, GPU or -1)."""
        return (self.dtype, list(self.shape), self.address, self.gpu)


def dense(value) -> Dense:
    """`value`'s memory where it is dense already, else a copy's.

    TypeError or ValueError for what is no array, Error for a sparse tensor.
    """
    if isinstance(value, Joined):
        return value.dense()
    if isinstance(value, Shape):
        return Dense(value.dtype, value.shape, 0, value)
    if is_jax(value):
        # NumPy's view of a JAX array on the host copies nothing.
        return dense(np.asarray(value))._replace(kind="jax")
    if not is_torch(value) and not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
        try:
            value = np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError):
            import torch

            value = torch.from_dlpack(value)
    if is_torch(value):
        name = _name_of(value.dtype)
        if is_meta(value):
            return Dense(name, tuple(value.shape), 0, value, kind="torch")
        value = _on_host(value).contiguous()
        return Dense(name, tuple(value.shape), value.data_ptr(), value, kind="torch")
    value = np.asarray(value)
    shape = value.shape
    value = np.ascontiguousarray(value)
    if not value.dtype.isnative:
        value = value.astype(value.dtype.newbyteorder("="))
    if not value.flags.aligned:
        value = value.copy()
    return Dense(_FROM_NUMPY.get(value.dtype, value.dtype.name), shape, value.ctypes.data, value)


def as_codes(value: Dense, dtype: str) -> Dense:
    """Bytes of uint8 where a program has codes of another type in each."""
    is_code = dtype in ELEMENT_TYPES and ELEMENT_TYPES[dtype].use == "Code"
    return value._replace(dtype=dtype) if is_code and value.dtype == "uint8" else value


def _name_of(dtype) -> str:
    return torch_names().get(dtype, str(dtype).removeprefix("torch."))


def _on_host(tensor):
    """A tensor in the memory of the host, where its elements are as they count."""
    if tensor.is_nested:
        raise Error("the tensor is nested: expected a dense one")
    if is_meta(tensor):
        return tensor
    if str(tensor.layout) != "torch.strided":
        raise Error(f"the tensor's layout: expected a dense one, got {tensor.layout}")
    return tensor.detach().cpu().resolve_conj().resolve_neg()


def slabs_of(value: Dense):
    """The memory as NumPy arrays, one behind the other; copies of one that is not in one place."""
    return map(numpy_of, value.owner[0].slabs()) if value.pieces else [as_numpy(value)]


def as_numpy(value: Dense) -> np.ndarray:
    """The memory as a NumPy array; a copy of one that is not in one place."""
    if value.pieces:
        return numpy_of(value.owner[0].whole())
    if isinstance(value.owner, np.ndarray):
        return value.owner.reshape(value.shape)
    return numpy_of(value.owner)


def _bits(dtype):
    """PyTorch's and NumPy's integers as which the two exchange arrays of an element type, or None.
    NumPy has no bf16, for example: it is a type of ml_dtypes."""
    import torch

    sizes = {1: (torch.uint8, np.uint8), 2: (torch.int16, np.int16)}
    return None if dtype.isbuiltin == 1 else sizes.get(dtype.itemsize)


def numpy_of(tensor) -> np.ndarray:
    """A tensor of the host as a NumPy array, not copied."""
    name = torch_names().get(tensor.dtype)
    bits = name and _bits(NUMPY_TYPES[name])
    return tensor.view(bits[0]).numpy().view(NUMPY_TYPES[name]) if bits else tensor.numpy()


def torch_of(values: np.ndarray):
    """A NumPy array as a tensor of PyTorch, not copied."""
    import torch

    bits = _bits(values.dtype)
    if not bits:
        return torch.from_numpy(values)
    return torch.from_numpy(values.view(bits[1])).view(torch_types()[_FROM_NUMPY[values.dtype]])


def kind_of(values) -> str:
    """The library of which outputs are arrays, where these are inputs: "torch" if PyTorch's are among
    them, else "jax" if JAX's are, else "numpy"."""
    kinds = {"torch" if is_torch(v) or isinstance(v, Joined) else "jax" if is_jax(v) else "numpy" for v in values}
    return next((kind for kind in ("torch", "jax") if kind in kinds), "numpy")


def kind_of_inputs(inputs: list["Dense"]) -> str:
    """The same for the inputs of a call."""
    kinds = [i.kind for i in inputs]
    return next((kind for kind in ("torch", "jax") if kind in kinds), "numpy")


#: JAX takes memory of the host as it is if its address has a multiple of this.
_JAX_ALIGNMENT = 64


def empty(dtype: str, shape, kind: str):
    """Memory of the host for an output, uninitialised: a tensor of PyTorch for "torch", else a NumPy array,
    of which `finished` makes one of JAX."""
    shape = tuple(shape)
    if kind == "torch":
        import torch

        # The caller's default device may be another one.
        return torch.empty(shape, dtype=torch_types()[dtype], device="cpu")
    if kind == "jax":
        size = math.prod(shape) * NUMPY_TYPES[dtype].itemsize
        memory = np.empty(size + _JAX_ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % _JAX_ALIGNMENT
        return memory[start : start + size].view(NUMPY_TYPES[dtype]).reshape(shape)
    return np.empty(shape, dtype=NUMPY_TYPES[dtype])


def finished(array, kind: str):
    """The output that `empty` made, once its values are there. JAX's has the same memory; without x64,
    JAX's own types of 32 bits take the place of those of 64."""
    if kind != "jax":
        return array
    import jax

    return jax.device_put(array, jax.local_devices(backend="cpu")[0], may_alias=True)
