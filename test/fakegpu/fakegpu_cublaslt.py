# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""cuBLASLt through ctypes, for tests of the stand-in. Matrices are in column order unless said."""

import ctypes as C

import fakegpu_cuda as cuda

F32, F64, F16, BF16 = 0, 1, 2, 14
COMPUTE_32F, COMPUTE_TF32, COMPUTE_64F = 68, 77, 70
RELU, BIAS, GELU, AUX = 2, 4, 32, 128
DESC = dict(pointer_mode=2, transa=3, transb=4, epilogue=7, bias=8, bias_stride=10, aux=11, aux_ld=12, bias_type=26)
LAYOUT = dict(order=1, batches=5, batch_stride=6)
PREFERENCE = dict(workspace=1, reductions=3, align_a=5, align_b=6, align_c=7, align_d=8)
WIDE = {"bias", "bias_stride", "aux", "aux_ld", "batch_stride", "workspace"}


class CublasError(Exception):
    pass


class Heuristic(C.Structure):
    _fields_ = [("algo", C.c_uint64 * 8), ("workspace", C.c_size_t), ("state", C.c_int),
                ("waves", C.c_float), ("reserved", C.c_int * 4)]  # fmt: skip


class CublasLt:
    def __init__(self, driver):
        self.driver = driver
        self.lib = C.CDLL(cuda.library_path("libcublasLt.so.13"))
        self.lib.cublasLtGetStatusName.restype = C.c_char_p
        self.handle = C.c_void_p()
        self.call("cublasLtCreate", C.byref(self.handle))

    def call(self, name, *args):
        code = getattr(self.lib, name)(*args)
        if code:
            raise CublasError(f"{name}: {self.lib.cublasLtGetStatusName(code).decode()}")

    def set(self, kind, table, handle, values):
        for key, value in values.items():
            held = (C.c_int64 if key in WIDE else C.c_int32)(value)
            self.call(f"cublasLt{kind}SetAttribute", handle, table[key], C.byref(held), C.c_size_t(C.sizeof(held)))

    def layout(self, kind, rows, columns, ld, **values):
        made = C.c_void_p()
        self.call("cublasLtMatrixLayoutCreate", C.byref(made), kind, C.c_uint64(rows), C.c_uint64(columns), C.c_int64(ld))
        self.set("MatrixLayout", LAYOUT, made, values)
        return made

    def description(self, compute=COMPUTE_32F, scale=F32, **values):
        made = C.c_void_p()
        self.call("cublasLtMatmulDescCreate", C.byref(made), compute, scale)
        self.set("MatmulDesc", DESC, made, values)
        return made

    def heuristics(self, description, layouts, wanted=4, **preference):
        made, count = C.c_void_p(), C.c_int()
        self.call("cublasLtMatmulPreferenceCreate", C.byref(made))
        self.set("MatmulPreference", PREFERENCE, made, preference)
        results = (Heuristic * wanted)()
        self.call("cublasLtMatmulAlgoGetHeuristic", self.handle, description, *layouts, made, wanted, results, C.byref(count))
        return list(results[: count.value])

    def matmul(self, description, layouts, a, b, c, d, algo=None, workspace=(0, 0), stream=None, alpha=1.0, beta=0.0, scalar=C.c_float):
        """alpha and beta: numbers, or addresses (int) in device memory."""
        held = [C.c_void_p(v) if isinstance(v, int) else C.byref(scalar(v)) for v in (alpha, beta)]
        self.call(
            "cublasLtMatmul", self.handle, description, held[0], C.c_void_p(a), layouts[0], C.c_void_p(b),
            layouts[1], held[1], C.c_void_p(c), layouts[2], C.c_void_p(d), layouts[3],
            C.byref(algo) if algo is not None else None, C.c_void_p(workspace[0]),
            C.c_size_t(workspace[1]), stream,
        )  # fmt: skip
