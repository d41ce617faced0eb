# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A GPU through the driver's functions, and its rate of copies."""

import ctypes as C
import statistics

import fakegpu_cuda
import numpy as np
from sessions import DTYPES

ATTRIBUTES = {"major": 75, "minor": 76, "multiprocessors": 16}  # CU_DEVICE_ATTRIBUTE_...


class Gpu(fakegpu_cuda.Driver):
    """The first GPU. Raises an OSError if there is no driver."""

    def __init__(self):
        super().__init__(path="libcuda.so.1")
        self.generator = np.random.default_rng(0)

    def describe(self):
        name, version = C.create_string_buffer(256), C.c_int()
        self.call("cuDeviceGetName", name, 256, 0)
        self.call("cuDriverGetVersion", C.byref(version))
        values = {}
        for key, attribute in ATTRIBUTES.items():
            value = C.c_int()
            self.call("cuDeviceGetAttribute", C.byref(value), attribute, 0)
            values[key] = value.value
        return {"name": name.value.decode(), "cuda": version.value / 1000,
                "capability": f"{values['major']}.{values['minor']}", "multiprocessors": values["multiprocessors"]}  # fmt: skip

    def event(self):
        event = C.c_void_p()
        self.call("cuEventCreate", C.byref(event), 0)
        return event

    def measure_copy(self, size, repeats=9):
        """Bytes that a second moves, read and written, in a copy of `size` bytes: the median."""
        source, to = self.alloc(size), self.alloc(size)
        self.call("cuMemsetD8", C.c_uint64(source), 1, C.c_size_t(size))
        begin, end, rates = self.event(), self.event(), []
        for turn in range(repeats + 1):
            self.call("cuEventRecord", begin, None)
            self.call("cuMemcpyDtoDAsync", C.c_uint64(to), C.c_uint64(source), C.c_size_t(size), None)
            self.call("cuEventRecord", end, None)
            self.synchronize()
            elapsed = C.c_float()
            self.call("cuEventElapsedTime", C.byref(elapsed), begin, end)
            if turn:
                rates.append(2 * size / max(elapsed.value * 1e-3, 1e-9))
        self.free(source), self.free(to)
        return statistics.median(rates)

    def draw(self, port):
        """Random numbers of a port's type and shape, as an array of the host; bf16 in 16-bit words."""
        shape, dtype = port.get_shape(), DTYPES[port.dtype]
        if dtype in ("i64", "i32"):
            return self.generator.integers(0, max(port.index_bound, 1), shape, np.int64 if dtype == "i64" else np.int32)
        array = self.generator.standard_normal(shape, np.float32)
        if dtype == "bf16":
            return (array.view(np.uint32) >> 16).astype(np.uint16)
        return array.astype({"f16": np.float16, "f32": np.float32, "f64": np.float64}[dtype])
