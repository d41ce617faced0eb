# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Arrays in the memory of GPUs, which come and go by DLPack."""

from . import _core, arguments
from .errors import Diagnostic, Error, InputError, unwrap
from .tensors import Dense, dense, empty, finished, is_jax, is_torch, kind_of, torch_names

#: DLPack's number for the memory of NVIDIA's GPUs.
_CUDA = 2
#: The stream for a producer that is to wait for nothing.
_UNORDERED = -1


class DeviceArray:
    """An output of a call whose inputs were in the memory of a GPU: a dense array there.

    `torch.from_dlpack(array)`, and other libraries with DLPack, take it without a copy. Its values are
    there when the call returns, so no stream has to wait for them.
    """

    def __init__(self, array, dtype: str, shape, gpu: int):
        if not hasattr(array, "__dlpack__"):
            arguments.fail("array", array, "an array with DLPack")
        arguments.text("dtype", dtype, "the name of an element type")
        arguments.instance("shape", shape, (tuple, list), "a tuple of sizes")
        self._array = array
        #: The element type: "f32", "bf16", "f16", "f64", "i64", "i32" or "i1".
        self.dtype = dtype
        self.shape = tuple(shape)
        #: The number of the GPU.
        self.gpu = gpu

    def __dlpack__(self, **kwargs):
        return self._array.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return (_CUDA, self.gpu)

    def __repr__(self):
        return f"<meshwright.DeviceArray {self.dtype}{list(self.shape)} on GPU {self.gpu}>"


def on_gpu(value) -> Dense | None:
    """The array of a GPU that a value is, without its address; None for other values."""
    if not hasattr(value, "__dlpack_device__"):
        return None
    if is_torch(value) and value.device.type != "cuda":
        return None
    if is_jax(value) and len(value.devices()) > 1:
        return None  # its parts are gathered on the host
    kind, gpu = value.__dlpack_device__()
    if kind != _CUDA:
        return None
    if is_torch(value):
        value = value.detach()
        name = torch_names().get(value.dtype, str(value.dtype))
        return Dense(name, tuple(value.shape), 0, value, gpu, kind="torch")
    array = _core.import_dlpack(value.__dlpack__(stream=_UNORDERED))
    if not array.is_dense:
        raise Error("the array is not dense in row-major order")
    return Dense(array.dtype, tuple(array.shape), 0, value, gpu, kind="jax" if is_jax(value) else "numpy")


def on_host(inputs: list[Dense]) -> list[Dense]:
    """Inputs with those of GPUs copied to the host, which only PyTorch and JAX can."""
    problems = [
        f"the input {value}: expected the memory of the host, got that of GPU {value.gpu}"
        for value in inputs
        if value.gpu >= 0 and not is_torch(value.owner) and not is_jax(value.owner)
    ]
    if problems:
        raise InputError([Diagnostic(problem) for problem in problems])
    return [dense(value.owner) if value.gpu >= 0 else value for value in inputs]


class Call:
    """The arrays of one call: inputs as `_core` takes them, and memory for outputs.

    If an input is in the memory of a GPU, and the backend computes on GPUs, all outputs are on that
    GPU. Other backends get copies on the host.
    """

    def __init__(self, backend: str, inputs: list[Dense], ports, kind: str):
        self._kept = []
        #: The library of inputs on GPUs, and so of outputs there: "torch", "jax" or "numpy" for others.
        self._kind = kind_of(value.owner for value in inputs if value.gpu >= 0)
        gpu = next((value.gpu for value in inputs if value.gpu >= 0), -1)
        if gpu >= 0 and backend.split(":")[0] in ("local", "mpi"):
            inputs, gpu = on_host(inputs), -1
        #: The GPU of the outputs, or -1.
        self.gpu = gpu
        self.inputs = [value.raw if value.gpu < 0 else self._take(backend, value) for value in inputs]
        if gpu < 0:
            self._kind = kind
            self.outputs = [empty(port.dtype, port.shape, kind) for port in ports]
            self.addresses = [o.data_ptr() if kind == "torch" else o.ctypes.data for o in self.outputs]
            return
        memory = unwrap(_core.GpuMemory.open(backend, gpu))
        self.outputs, self.addresses = [], []
        for port in ports:
            array, address = unwrap(memory.allocate(port.dtype, port.shape, gpu))
            self.outputs.append(DeviceArray(array, port.dtype, port.shape, gpu))
            self.addresses.append(address)

    def _take(self, backend, value):
        """The array, which its producer has in place in the order of the stream of copies."""
        memory = unwrap(_core.GpuMemory.open(backend, value.gpu))
        owner = value.owner.contiguous() if is_torch(value.owner) else value.owner
        array = _core.import_dlpack(owner.__dlpack__(stream=memory.stream))
        self._kept.append((memory, array))
        return (value.dtype, list(value.shape), array.address, value.gpu)

    def finish(self) -> list:
        """The outputs, as the caller gave the inputs."""
        if self.gpu < 0:
            return [finished(array, self._kind) for array in self.outputs]
        if self._kind == "torch":
            import torch

            return [torch.from_dlpack(array) for array in self.outputs]
        if self._kind == "jax":
            import jax

            return [jax.dlpack.from_dlpack(array) for array in self.outputs]
        return self.outputs
