# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Sessions of bundles through the C interface of the runtime (meshwright-c/Session.h), by ctypes."""

import contextlib
import ctypes as C
import math

DTYPES = ["f32", "bf16", "f16", "f64", "i64", "i32", "i1"]
WIDTHS = {"f32": 4, "bf16": 2, "f16": 2, "f64": 8, "i64": 8, "i32": 4, "i1": 1}
INPUT, OUTPUT, STATE = 0, 2, 3
ERROR = 3
SAY = C.CFUNCTYPE(None, C.c_void_p, C.c_int32, C.c_char_p, C.c_char_p)


class Tensor(C.Structure):
    _fields_ = [("dtype", C.c_int64), ("rank", C.c_int64), ("shape", C.POINTER(C.c_int64)), ("data", C.c_void_p)]


class Port(C.Structure):
    _fields_ = [("name", C.c_char_p), ("dtype", C.c_int64), ("rank", C.c_int64), ("shape", C.POINTER(C.c_int64)),
                ("num_aliases", C.c_int64), ("aliases", C.c_void_p), ("index_bound", C.c_int64),
                ("default_element", C.c_void_p)]  # fmt: skip

    def get_shape(self):
        return tuple(self.shape[: self.rank])

    def get_bytes(self):
        return math.prod(self.get_shape()) * WIDTHS[DTYPES[self.dtype]]


class Options(C.Structure):
    _fields_ = [("backend", C.c_char_p), ("threads_per_rank", C.c_int64), ("timeout", C.c_double),
                ("check_finite", C.c_int32), ("measure", C.c_int32), ("trace", C.c_char_p), ("target", C.c_char_p),
                ("state", C.c_char_p), ("save_state", C.c_char_p), ("no_recover", C.c_int32), ("weights", C.c_char_p),
                ("random_weights", C.POINTER(C.c_uint64)), ("graphs", C.c_char_p)]  # fmt: skip


class Failed(Exception):
    """An error of the runtime."""


class Session:
    """A session of a bundle on one GPU. Its inputs and outputs are addresses in the GPU's memory."""

    def __init__(self, library, bundle, seed=None, graphs=None, trace=None, timeout=120, backend="nccl:peer"):
        self.library, self.messages = C.CDLL(library), []
        self.library.mw_bundle_start.restype = self.library.mw_session_port.restype = C.c_void_p
        self.library.mw_session_count.restype = C.c_int64
        self.say = SAY(lambda _, severity, where, what: self.messages.append(what.decode()))
        options = Options(backend=backend.encode(), timeout=timeout, graphs=graphs and graphs.encode(),
                          trace=trace and str(trace).encode(), no_recover=1)  # fmt: skip
        if seed is not None:
            options.random_weights = C.pointer(C.c_uint64(seed))
        self.handle = C.c_void_p(self.library.mw_bundle_start(str(bundle).encode(), C.byref(options), self.say, None))
        if not self.handle:
            raise Failed("; ".join(self.messages))
        self.inputs, self.outputs, self.states = (self.get_ports(kind) for kind in (INPUT, OUTPUT, STATE))

    def get_ports(self, kind):
        count = self.library.mw_session_count(self.handle, C.c_int64(0), kind)
        return [C.cast(self.library.mw_session_port(self.handle, C.c_int64(0), kind, C.c_int64(i)),
                       C.POINTER(Port)).contents for i in range(count)]  # fmt: skip

    def prepare(self, inputs, outputs, gpu=0):
        """A function that runs the first entry once, and returns when its outputs are there."""
        tensors = (Tensor * max(1, len(inputs)))(
            *(Tensor(port.dtype, port.rank, port.shape, at) for port, at in zip(self.inputs, inputs, strict=True)))  # fmt: skip
        results = (C.c_void_p * max(1, len(outputs)))(*outputs)
        run = self.library.mw_session_run_on_gpu
        run.argtypes = [C.c_void_p, C.c_int64, C.c_void_p, C.c_void_p, C.c_int64, C.c_int32]

        def call():
            if run(self.handle, 0, tensors, results, gpu, 0):
                raise Failed("; ".join(self.messages))

        return call

    def close(self):
        self.library.mw_session_close(self.handle)


def open_session(*arguments, **options):
    return contextlib.closing(Session(*arguments, **options))
