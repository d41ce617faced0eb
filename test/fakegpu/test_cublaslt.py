# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The stand-in for cuBLASLt: products and epilogues against f64, and what it refuses."""

import ctypes as C
import os
import pathlib
import subprocess
import sys

import fakegpu_cuda as cuda
import fakegpu_cublaslt as lt
import numpy as np
import pytest

ml_dtypes = pytest.importorskip("ml_dtypes")
pytestmark = [pytest.mark.gpu, cuda.needs("libcublasLt.so.13")]
HERE = pathlib.Path(__file__).resolve().parent
DTYPES = {lt.F32: np.dtype("float32"), lt.F16: np.dtype("float16"), lt.BF16: np.dtype(ml_dtypes.bfloat16), lt.F64: np.dtype("float64")}
ERROR = {lt.F32: 3e-6, lt.F16: 1e-3, lt.BF16: 8e-3, lt.F64: 1e-13}


@pytest.fixture(scope="module")
def blas():
    return lt.CublasLt(cuda.Driver())


def draw(seed, shape, kind):
    return (np.random.default_rng(seed).random(shape) - 0.5).astype(DTYPES[kind])


def columns(matrix):
    """A matrix (or a batch of them) as column order stores it."""
    return np.ascontiguousarray(np.swapaxes(matrix, -1, -2))


class Case:
    """A product of random matrices on the device, with leading dimensions that have a gap."""

    def __init__(self, blas, m, n, k, kind=lt.F32, out=None, ta=0, tb=0, batches=1, gap=8, **description):
        self.blas, self.m, self.n, self.batches, self.gap = blas, m, n, batches, gap
        self.out = kind if out is None else out
        shapes = [(k, m) if ta else (m, k), (n, k) if tb else (k, n)]
        self.host = [draw(i, (batches, *s), kind) for i, s in enumerate(shapes)]
        self.layouts = [self.layout(kind, *s) for s in shapes] + [self.layout(self.out, m, n)] * 2
        self.at = [self.put(x) for x in self.host]
        self.initial = draw(7, (batches, m, n), self.out)
        self.c, self.d = self.put(self.initial), self.put(np.zeros((batches, m, n), DTYPES[self.out]))
        f64 = kind == lt.F64
        self.scalar = C.c_double if f64 else C.c_float
        self.description = blas.description(lt.COMPUTE_64F if f64 else lt.COMPUTE_32F, lt.F64 if f64 else lt.F32, transa=ta, transb=tb, **description)
        a, b = (x.astype(float) for x in self.host)
        self.product = (a.swapaxes(1, 2) if ta else a) @ (b.swapaxes(1, 2) if tb else b)

    def layout(self, kind, rows, cols):
        ld = rows + self.gap
        return self.blas.layout(kind, rows, cols, ld, batches=self.batches, batch_stride=ld * cols)

    def put(self, x):
        stored = np.zeros((self.batches, x.shape[2], x.shape[1] + self.gap), x.dtype)
        stored[:, :, : x.shape[1]] = columns(x)
        return self.blas.driver.put(stored)

    def run(self, **options):
        self.blas.matmul(self.description, self.layouts, *self.at, self.c, self.d, scalar=self.scalar, **options)
        return self.get()

    def get(self):
        self.blas.driver.synchronize()
        got = self.blas.driver.get(self.d, (self.batches, self.n, self.m + self.gap), DTYPES[self.out])
        return got[:, :, : self.m].swapaxes(1, 2).astype(float)

    def check(self, got, want):
        assert np.abs(got - want).max() <= ERROR[self.out] * np.abs(want).max()


@pytest.mark.parametrize("ta", [0, 1], ids=["n", "t"])
@pytest.mark.parametrize("tb", [0, 1], ids=["n", "t"])
@pytest.mark.parametrize("kind", DTYPES, ids=[str(d) for d in DTYPES.values()])
def test_products(blas, kind, ta, tb):
    case = Case(blas, 40, 24, 56, kind, ta=ta, tb=tb, batches=3)
    case.check(case.run(alpha=0.5, beta=2.0), 0.5 * case.product + 2 * case.initial.astype(float))


@pytest.mark.parametrize("kind", [lt.F16, lt.BF16], ids=["f16", "bf16"])
def test_wide_results_of_narrow_operands(blas, kind):
    case = Case(blas, 32, 16, 128, kind, out=lt.F32)
    case.check(case.run(), case.product)


def test_rows_in_order(blas):
    """D = A B in row order is the same bytes as D^T = B^T A^T in column order."""
    a, b = draw(0, (24, 16), lt.F32), draw(1, (16, 40), lt.F32)
    d = blas.driver.alloc(24 * 40 * 4)
    layouts = [blas.layout(lt.F32, r, c, c, order=1) for r, c in ((24, 16), (16, 40), (24, 40), (24, 40))]
    blas.matmul(blas.description(), layouts, blas.driver.put(a), blas.driver.put(b), d, d)
    blas.driver.synchronize()
    np.testing.assert_allclose(blas.driver.get(d, (24, 40), np.float32), a @ b, atol=1e-5)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("kind", [lt.F32, lt.F16, lt.BF16], ids=["f32", "f16", "bf16"])
@pytest.mark.parametrize("name, function", [("none", lambda x: x), ("relu", lambda x: np.maximum(x, 0)), ("gelu", gelu)], ids=["none", "relu", "gelu"])
@pytest.mark.parametrize("biased", [False, True], ids=["", "bias"])
def test_epilogues(blas, kind, name, function, biased):
    flags = {"none": 0, "relu": lt.RELU, "gelu": lt.GELU}[name] | (lt.BIAS if biased else 0)
    bias = draw(3, 32, kind)
    case = Case(blas, 32, 16, 64, kind, epilogue=flags or 1, bias=blas.driver.put(bias))
    case.check(case.run(), function(case.product + (bias.astype(float)[:, None] if biased else 0)))


def test_auxiliary_outputs(blas):
    aux = blas.driver.put(np.zeros((16, 40), np.float32))
    case = Case(blas, 32, 16, 64, epilogue=lt.GELU | lt.AUX, aux=aux, aux_ld=40)
    case.check(case.run(), gelu(case.product))
    case.check(blas.driver.get(aux, (16, 40), np.float32)[:, :32].T, case.product[0])
    aux = blas.driver.put(np.zeros((16, 16), np.uint8))
    case = Case(blas, 32, 16, 64, epilogue=lt.RELU | lt.AUX, aux=aux, aux_ld=128)
    case.run()
    bits = np.unpackbits(blas.driver.get(aux, (16, 16), np.uint8), axis=1, bitorder="little")[:, :32].T
    np.testing.assert_array_equal(bits, case.product[0] > 0)


def test_scalars_on_the_device(blas):
    at = blas.driver.put(np.array([0.25, 3], np.float32))
    case = Case(blas, 8, 8, 16, pointer_mode=1)
    case.check(case.run(alpha=at, beta=at + 4), 0.25 * case.product + 3 * case.initial)


def test_in_place(blas):
    case = Case(blas, 16, 16, 16)
    case.c = case.d
    case.check(case.run(beta=1.0), case.product)


def test_split_sums_have_the_same_bits_unless_they_are_in_place(blas):
    case = Case(blas, 16, 16, 512)
    workspace = blas.driver.alloc(1 << 20)

    def bits(reductions):
        chosen = blas.heuristics(case.description, case.layouts, reductions=reductions, workspace=1 << 20)[0]
        runs = [case.run(algo=chosen.algo, workspace=(workspace, 1 << 20)).tobytes() for _ in range(4)]
        return chosen.workspace, len(set(runs))

    assert bits(0) == (0, 1)
    assert bits(2) == (1 << 20, 1)
    used, different = bits(7)
    assert used == 0 and different > 1


def test_capture_and_stream_order(blas):
    case = Case(blas, 16, 16, 16)
    driver, stream, graph, ready = blas.driver, C.c_void_p(), C.c_void_p(), C.c_void_p()
    driver.call("cuStreamCreate", C.byref(stream), 1)
    driver.call("cuStreamBeginCapture", stream, 2)
    blas.matmul(case.description, case.layouts, *case.at, case.c, case.d, stream=stream)
    blas.matmul(case.description, case.layouts, *case.at, case.d, case.d, stream=stream, beta=1.0)
    driver.call("cuStreamEndCapture", stream, C.byref(graph))
    driver.call("cuGraphInstantiate", C.byref(ready), graph, C.c_ulonglong(0))
    assert (case.get() == 0).all()
    driver.call("cuGraphLaunch", ready, stream)
    driver.call("cuStreamSynchronize", stream)
    case.check(case.get(), 2 * case.product)


@pytest.mark.parametrize(
    "options, change, said",
    [
        (dict(kind=lt.BF16, gap=1), {}, "NOT_SUPPORTED"),
        (dict(epilogue=lt.BIAS), dict(null="bias"), "INVALID_VALUE"),
        (dict(kind=lt.BF16, epilogue=lt.BIAS, bias_type=lt.F32), {}, "NOT_SUPPORTED"),
        (dict(epilogue=16), {}, "NOT_SUPPORTED"),
        (dict(epilogue=lt.RELU | lt.GELU), {}, "NOT_SUPPORTED"),
        (dict(kind=lt.F64, epilogue=lt.RELU), {}, "NOT_SUPPORTED"),
        (dict(kind=lt.F16, out=lt.BF16), {}, "NOT_SUPPORTED"),
        ({}, dict(compute=lt.COMPUTE_TF32), "NOT_SUPPORTED"),
        ({}, dict(compute=64), "NOT_SUPPORTED"),
        ({}, dict(shape=True), "INVALID_VALUE"),
        ({}, dict(move=4), "INVALID_VALUE"),
        ({}, dict(overlap=True), "INVALID_VALUE"),
        ({}, dict(workspace=True), "INVALID_VALUE"),
        ({}, dict(other=True), "INVALID_VALUE"),
        ({}, dict(host=True), "INVALID_VALUE"),
    ],
    ids="ld bias-null bias-type epilogue two-epilogues f64-epilogue types tf32 f16-sums shape alignment overlap workspace other-algorithm host".split(),
)
def test_refused(blas, options, change, said):
    case = Case(blas, 32, 16, 512, **options)
    preference = dict(workspace=1 << 20, reductions=2)
    extra = {}
    if "compute" in change:
        case.description = blas.description(change["compute"])
    if "shape" in change:
        case.layouts[1] = case.layout(lt.F32, 256, 16)
    if "move" in change:
        case.at[0] += change["move"]
    if "overlap" in change:
        case.d = case.at[1]
    if "host" in change:
        case.at[0] = np.zeros(1 << 16).ctypes.data // 256 * 256
    with pytest.raises(lt.CublasError, match=said):
        chosen = blas.heuristics(case.description, case.layouts, **preference)[-1 if "workspace" not in change else 0]
        if "other" in change:
            case.layouts[0] = case.layout(lt.F32, 32, 512)
            chosen = blas.heuristics(case.description, [case.layout(lt.F32, 32, 512), case.layout(lt.F32, 512, 8), *[case.layout(lt.F32, 32, 8)] * 2])[0]
        case.run(algo=chosen.algo, **extra)


def test_tf32_rounds_its_operands_where_it_is_asked_for():
    program = f"""
import sys; sys.path.insert(0, {str(HERE)!r})
import fakegpu_cuda as cuda, fakegpu_cublaslt as lt, numpy as np
b = lt.CublasLt(cuda.Driver()); d = b.driver.alloc(4)
x = b.driver.put(np.array([1 + 2**-12], np.float32)); y = b.driver.put(np.array([1], np.float32))
b.matmul(b.description(lt.COMPUTE_TF32), [b.layout(0, 1, 1, 1)] * 4, x, y, d, d)
b.driver.synchronize(); print(b.driver.get(d, 1, np.float32)[0])
"""
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, "FAKEGPU_TF32": "1"})
    assert out.stdout == "1.0\n", out.stderr
