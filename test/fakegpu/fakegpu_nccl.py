# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""NCCL through ctypes, for tests of the stand-in."""

import ctypes as C

import fakegpu_cuda as cuda
import numpy as np

TYPES = {"int32": 2, "int64": 4, "float16": 6, "float32": 7, "bfloat16": 9}
SUM, MAX, MIN = 0, 2, 3
RESULTS = ["Success", "UnhandledCudaError", "SystemError", "InternalError", "InvalidArgument"]
RESULTS += ["InvalidUsage", "RemoteError", "InProgress", "Timeout"]


class NcclError(Exception):
    pass


class UniqueId(C.Structure):
    _fields_ = [("internal", C.c_char * 128)]


class Nccl:
    def __init__(self):
        self.lib = C.CDLL(cuda.library_path("libnccl.so.2"))
        self.lib.ncclGetLastError.restype = C.c_char_p

    def call(self, name, *args):
        code = getattr(self.lib, name)(*args)
        if code:
            text = self.lib.ncclGetLastError(None).decode()
            raise NcclError(f"{name}: {RESULTS[code]}: {text}")

    def unique_id(self):
        made = UniqueId()
        self.call("ncclGetUniqueId", C.byref(made))
        return made

    def init_all(self, devices):
        comms = (C.c_void_p * len(devices))()
        self.call("ncclCommInitAll", comms, len(devices), (C.c_int * len(devices))(*devices))
        return [C.c_void_p(c) for c in comms]

    def init_rank(self, ranks, unique, rank):
        comm = C.c_void_p()
        self.call("ncclCommInitRank", C.byref(comm), ranks, unique, rank)
        return comm

    def async_error(self, comm):
        code = C.c_int()
        self.call("ncclCommGetAsyncError", comm, C.byref(code))
        return RESULTS[code.value]


class Rank:
    """A rank of a communicator, with a stream of its own. Its context is current after `use`."""

    def __init__(self, nccl, driver, comm):
        self.nccl, self.driver, self.comm = nccl, driver, comm
        self.stream = C.c_void_p()
        self.use()
        driver.call("cuStreamCreate", C.byref(self.stream), 1)

    def use(self):
        self.driver.call("cuCtxSetCurrent", self.driver.context)
        return self

    def put(self, array):
        self.use()
        return self.driver.put(array)

    def get(self, at, shape, dtype):
        self.use()
        self.driver.call("cuStreamSynchronize", self.stream)
        return self.driver.get(at, shape, dtype)

    def collective(self, name, send, receive, count, dtype, *rest):
        """rest: a reduction, a root, or both."""
        self.nccl.call(
            name, C.c_void_p(send), C.c_void_p(receive), C.c_size_t(count),
            TYPES[np.dtype(dtype).name], *rest, self.comm, self.stream,
        )  # fmt: skip

    def message(self, name, at, count, dtype, peer):
        self.nccl.call(
            name, C.c_void_p(at), C.c_size_t(count), TYPES[np.dtype(dtype).name], peer, self.comm,
            self.stream,
        )  # fmt: skip


class group:
    """`with group(nccl):` calls ncclGroupStart and ncclGroupEnd."""

    def __init__(self, nccl):
        self.nccl = nccl

    def __enter__(self):
        self.nccl.call("ncclGroupStart")

    def __exit__(self, kind, *rest):
        if kind is None:
            self.nccl.call("ncclGroupEnd")
        else:
            self.nccl.lib.ncclGroupEnd()


def world(ranks, nccl=None):
    """A communicator of all ranks in this process."""
    nccl = nccl or Nccl()
    drivers = [cuda.Driver(i) for i in range(ranks)]
    return [Rank(nccl, d, c) for d, c in zip(drivers, nccl.init_all(list(range(ranks))))]


def finish(ranks):
    for r in ranks:
        r.nccl.call("ncclCommDestroy", r.comm)
        r.use().driver.call("cuStreamDestroy", r.stream)
