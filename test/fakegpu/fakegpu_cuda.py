# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The CUDA driver API through ctypes, for tests of the stand-in and of kernels."""

import ctypes as C
import json
import os
import pathlib
import tempfile

import numpy as np


class CudaError(Exception):
    def __init__(self, call, code, name, log=""):
        super().__init__(f"{call}: {name}{': ' + log if log else ''}")
        self.call, self.code, self.name, self.log = call, code, name, log


def library_path(name="libcuda.so.1"):
    """A library of the stand-in: FAKEGPU names its folder, else the build's."""
    root = pathlib.Path(__file__).resolve().parents[2]
    folder = os.environ.get("FAKEGPU") or os.path.join(
        os.environ.get("MESHWRIGHT_BUILD_DIR", str(root / "build")), "fakegpu"
    )
    return os.path.join(folder, name)


def needs(name):
    """The mark of tests that need this library of the stand-in."""
    import pytest

    missing = {"libcuda.so.1": "cuda.h was not found"}.get(name, "run scripts/setup.sh --gpu")
    return pytest.mark.skipif(
        not os.path.exists(library_path(name)), reason=f"the stand-in {name} is not built: {missing}"
    )


class Driver:
    """One device of a driver, its context current in this thread."""

    def __init__(self, ordinal=0, path=None):
        self.lib = C.CDLL(path or library_path())
        self.call("cuInit", 0)
        self.context = C.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", C.byref(self.context), ordinal)
        self.call("cuCtxSetCurrent", self.context)

    def function(self, name):
        pointer, status = C.c_void_p(), C.c_int()
        self.lib.cuGetProcAddress_v2(
            name.encode(), C.byref(pointer), 12080, C.c_uint64(0), C.byref(status)
        )
        if not pointer.value:
            raise CudaError("cuGetProcAddress", 500, f"no {name}")
        return C.CFUNCTYPE(C.c_int)(pointer.value)

    def name(self, code):
        text = C.c_char_p()
        self.lib.cuGetErrorName(code, C.byref(text))
        return text.value.decode() if text.value else str(code)

    def call(self, name, *args, log=None):
        function = self.function(name)
        function.argtypes = None
        code = function(*args)
        if code:
            raise CudaError(name, code, self.name(code), log.value.decode() if log else "")

    def load(self, ptx):
        """A module; an error has the log of the load."""
        module, log = C.c_void_p(), C.create_string_buffer(4096)
        options = (C.c_int * 2)(5, 6)  # CU_JIT_ERROR_LOG_BUFFER and its size
        values = (C.c_void_p * 2)(C.cast(log, C.c_void_p), C.c_void_p(4096))
        self.call(
            "cuModuleLoadDataEx", C.byref(module), ptx.encode(), 2, options, values, log=log
        )
        return module

    def kernel(self, module, name):
        function = C.c_void_p()
        self.call("cuModuleGetFunction", C.byref(function), module, name.encode())
        return function

    def alloc(self, size):
        at = C.c_uint64()
        self.call("cuMemAlloc", C.byref(at), C.c_size_t(size))
        return at.value

    def free(self, at):
        self.call("cuMemFree", C.c_uint64(at))

    def put(self, array):
        array = np.ascontiguousarray(array)
        at = self.alloc(max(1, array.nbytes))
        if array.nbytes:
            self.call(
                "cuMemcpyHtoD", C.c_uint64(at), array.ctypes.data_as(C.c_void_p), C.c_size_t(array.nbytes)
            )
        return at

    def get(self, at, shape, dtype):
        array = np.empty(shape, dtype)
        self.call(
            "cuMemcpyDtoH", array.ctypes.data_as(C.c_void_p), C.c_uint64(at), C.c_size_t(array.nbytes)
        )
        return array

    def launch(self, function, grid, block, *args, shared=0, stream=None):
        """args are ctypes values; an int is an address."""
        args = [C.c_uint64(a) if isinstance(a, int) else a for a in args]
        pointers = (C.c_void_p * max(1, len(args)))(*[C.cast(C.byref(a), C.c_void_p) for a in args])
        grid, block = ((v if isinstance(v, tuple) else (v,)) for v in (grid, block))
        grid, block = grid + (1,) * (3 - len(grid)), block + (1,) * (3 - len(block))
        self.call("cuLaunchKernel", function, *grid, *block, shared, stream, pointers, None)

    def synchronize(self):
        self.call("cuCtxSynchronize")

    def log(self):
        """The stand-in's counts so far, as FAKEGPU_LOG has them at the end."""
        with tempfile.NamedTemporaryFile() as file:
            self.lib.fakegpuWriteLog(file.name.encode())
            return json.loads(file.read())

    def run(self, ptx, name, inputs, outputs, grid=1, block=32, shared=0, scalars=()):
        """Loads, runs a kernel over arrays, and returns its outputs, (shape, dtype) each."""
        module = self.load(ptx)
        ins = [self.put(a) for a in inputs]
        outs = [self.alloc(int(np.prod(s)) * np.dtype(t).itemsize) for s, t in outputs]
        try:
            self.launch(self.kernel(module, name), grid, block, *ins, *outs, *scalars, shared=shared)
            self.synchronize()
            return [self.get(at, s, t) for at, (s, t) in zip(outs, outputs)]
        finally:
            for at in ins + outs:
                try:
                    self.free(at)
                except CudaError:
                    pass
