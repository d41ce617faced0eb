# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Whole kernels on the stand-in: PTX that LLVM wrote (Inputs/), and matrix and copy instructions.

Inputs/*.ptx come from MLIR by convert-nvgpu-to-nvvm, convert-gpu-to-nvvm and gpu-module-to-binary:
a pipelined bf16 GEMM by cp.async, ldmatrix and mma.sync; an RMSNorm; a GEMM by TMA and wgmma.
"""

import ctypes as C
import pathlib

import fakegpu_cuda as cuda
import numpy as np
import pytest

ml_dtypes = pytest.importorskip("ml_dtypes")
HERE = pathlib.Path(__file__).resolve().parent
pytestmark = cuda.needs("libcuda.so.1")
BF16 = ml_dtypes.bfloat16


@pytest.fixture(scope="module")
def driver():
    return cuda.Driver()


def text(name):
    return (HERE / "Inputs" / f"{name}.ptx").read_text()


def values(rng, *shape):
    return (rng.random(shape) - 0.5).astype(BF16)


def start(driver, ptx, name, args, grid, block, shared=0):
    function = driver.kernel(driver.load(ptx), name)
    if shared:
        driver.call("cuFuncSetAttribute", function, 8, shared)
    driver.launch(function, grid, block, *args, shared=shared)
    driver.synchronize()


def test_gemm_by_mma(driver):
    rng = np.random.default_rng(0)
    m = 512
    a, b = values(rng, m, m), values(rng, m, m)
    pa, pb, pc = driver.put(a.view(np.uint16)), driver.put(b.view(np.uint16)), driver.alloc(m * m * 2)
    args = [0] * 21
    args[1], args[8], args[15] = pa, pb, pc
    start(driver, text("mma_pipelined"), "gemm128", args, (2, 2), 256)
    got = driver.get(pc, (m, m), np.uint16).view(BF16).astype(float)[:256, :256]
    want = (a.astype(float) @ b.astype(float).T)[:256, :256]
    assert np.abs(got - want).max() <= 4e-3 * np.abs(want).max()
    for at in (pa, pb, pc):
        driver.free(at)


def test_rms_norm(driver):
    rng = np.random.default_rng(1)
    x, w = values(rng, 8, 4096), values(rng, 4096)
    px, pw, po = driver.put(x.view(np.uint16)), driver.put(w.view(np.uint16)), driver.alloc(x.size * 2)
    args = [0] * 20
    args[1], args[8], args[13], args[19] = px, pw, po, C.c_float(1e-5)
    start(driver, text("rmsnorm"), "rmsnorm", args, 8, 256)
    got = driver.get(po, x.shape, np.uint16).view(BF16).astype(float)
    v = x.astype(float)
    want = v / np.sqrt((v * v).mean(1, keepdims=True) + 1e-5) * w.astype(float)
    assert np.abs(got - want).max() <= 8e-3


def tensor_map(driver, at, n, box):
    raw = C.create_string_buffer(256)
    base = (C.addressof(raw) + 63) // 64 * 64
    driver.call(
        "cuTensorMapEncodeTiled",
        C.c_void_p(base),
        9,  # CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
        2,
        C.c_void_p(at),
        (C.c_uint64 * 2)(n, n),
        (C.c_uint64 * 1)(n * 2),
        (C.c_uint32 * 2)(*box),
        (C.c_uint32 * 2)(1, 1),
        0,
        3,  # CU_TENSOR_MAP_SWIZZLE_128B
        0,
        0,
    )
    return driver.put(np.frombuffer(C.string_at(base, 128), np.uint8).copy())


def wgmma(driver, ptx):
    """The error of the first tile against f64."""
    n = 1024
    rng = np.random.default_rng(2)
    a, b = values(rng, n, n), values(rng, n, n)
    pa, pb, pc = driver.put(a.view(np.uint16)), driver.put(b.view(np.uint16)), driver.alloc(n * n * 4)
    maps = tensor_map(driver, pa, n, (64, 128)), tensor_map(driver, pb, n, (64, 64))
    start(driver, ptx, "gemm", [*maps, pc, pc, 0, n, n, n, 1], 1, 128, 32768)
    got = driver.get(pc, (n, n), np.float32)[:128, :128].astype(float)
    for at in (pa, pb, pc, *maps):
        driver.free(at)
    return np.abs(got - a[:128].astype(float) @ b[:, :128].astype(float)).max()


def test_gemm_by_tma_and_wgmma(driver):
    assert wgmma(driver, text("wgmma_tma")) < 1e-4


def test_results_of_wgmma_that_are_not_awaited_are_poison(driver):
    ptx = text("wgmma_tma").replace("wgmma.wait_group.sync.aligned \t0", "wgmma.wait_group.sync.aligned \t1")
    assert ptx != text("wgmma_tma")
    assert np.isnan(wgmma(driver, ptx))


HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"


ASYNC = f"""{HEAD}.visible .entry k(.param .u64 a, .param .u64 o) {{
.reg .b32 %r<8>; .reg .b64 %rd<8>; .shared .align 16 .b8 buffer[512];
ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [o]; mov.u32 %r0, %tid.x; mul.wide.u32 %rd2, %r0, 16;
add.s64 %rd3, %rd0, %rd2; mov.u32 %r1, buffer; shl.b32 %r2, %r0, 4; add.u32 %r2, %r1, %r2;
cp.async.cg.shared.global [%r2], [%rd3], 16; cp.async.commit_group;
WAIT
xor.b32 %r3, %r0, 31; shl.b32 %r3, %r3, 4; add.u32 %r3, %r3, %r1; ld.shared.u32 %r4, [%r3];
mul.wide.u32 %rd4, %r0, 4; add.s64 %rd5, %rd1, %rd4; st.global.u32 [%rd5], %r4; ret; }}"""


def test_copies_of_threads(driver):
    a = np.arange(128, dtype=np.uint32)
    ptx = ASYNC.replace("WAIT", "cp.async.wait_group 0; bar.sync 0;")
    (got,) = driver.run(ptx, "k", [a], [((32,), np.uint32)])
    np.testing.assert_array_equal(got, a[::4][::-1])


CLUSTER = f"""{HEAD}.visible .entry k(.param .u64 o) .reqnctapercluster 4, 1, 1 {{
.reg .b32 %r<8>; .reg .b64 %rd<4>; .shared .align 4 .b8 word[4];
ld.param.u64 %rd0, [o]; mov.u32 %r0, %cluster_ctarank; mov.u32 %r1, word; st.shared.u32 [%r1], %r0;
barrier.cluster.arrive; barrier.cluster.wait;
xor.b32 %r2, %r0, 3; mapa.shared::cluster.u32 %r3, %r1, %r2; ld.shared::cluster.u32 %r4, [%r3];
mul.wide.u32 %rd1, %r0, 4; add.s64 %rd2, %rd0, %rd1; st.global.u32 [%rd2], %r4;
barrier.cluster.arrive; barrier.cluster.wait; ret; }}"""


def test_shared_memory_of_a_cluster(driver):
    (got,) = driver.run(CLUSTER, "k", [], [((4,), np.uint32)], grid=4, block=1)
    np.testing.assert_array_equal(got, [3, 2, 1, 0])
