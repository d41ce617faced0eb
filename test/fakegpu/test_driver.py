# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The stand-in for the CUDA driver: arithmetic, divergence, barriers, races, faults and limits."""

import ctypes as C
import json
import os
import pathlib
import subprocess
import sys

import fakegpu_cuda as cuda
import numpy as np
import pytest

HERE = pathlib.Path(__file__).resolve().parent
pytestmark = cuda.needs("libcuda.so.1")

HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
REGS = ".reg .b16 %h<8>; .reg .b32 %r<16>; .reg .b64 %rd<16>; .reg .f32 %f<8>; .reg .pred %p<8>;\n"


def kernel(body, params="a, o", shared=""):
    declared = ", ".join(f".param .u64 {p.strip()}" for p in params.split(","))
    return f"{HEAD}.visible .entry k({declared})\n{{\n{REGS}{shared}{body}\nret;\n}}\n"


#: Reads a[tid] into %r1; %rd2 is &o[tid].
LOAD = """
ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [o];
mov.u32 %r0, %tid.x; mul.wide.u32 %rd3, %r0, 4;
add.s64 %rd2, %rd1, %rd3; add.s64 %rd4, %rd0, %rd3;
ld.global.u32 %r1, [%rd4];
"""


@pytest.fixture(scope="module")
def driver():
    return cuda.Driver()


def words(driver, body, a, block=None, shared=""):
    a = np.asarray(a, np.uint32)
    block = block or len(a)
    ptx = kernel(LOAD + body + "st.global.u32 [%rd2], %r2;", shared=shared)
    return driver.run(ptx, "k", [a], [((block,), np.uint32)], block=block)[0]


A = np.random.default_rng(1).integers(0, 2**32, 64, dtype=np.uint32)

REVERSE = """
mov.u32 %r4, buffer; shl.b32 %r5, %r0, 2; add.u32 %r5, %r5, %r4; st.shared.u32 [%r5], %r1;
BARRIER
xor.b32 %r6, %r0, 63; shl.b32 %r6, %r6, 2; add.u32 %r6, %r6, %r4; ld.shared.u32 %r2, [%r6];
"""
SHARED = ".shared .align 4 .b8 buffer[256];\n"


def test_shared_memory_and_barrier(driver):
    got = words(driver, REVERSE.replace("BARRIER", "bar.sync 0;"), A, shared=SHARED)
    np.testing.assert_array_equal(got, A[::-1])


def counted(driver, name, body):
    """Requests, wavefronts and conflicts of a warp's accesses of shared memory; %r5 is the address of the buffer."""
    ptx = kernel(f"mov.u32 %r0, %tid.x; mov.u32 %r5, buffer; {body}", shared=".shared .align 16 .b8 buffer[16384];\n")
    driver.run(ptx.replace(".entry k", f".entry {name}"), name, [A], [((64,), np.uint32)])
    counts = driver.log()["kernels"][name]
    return [counts[f"shared_{what}"] for what in ("requests", "wavefronts", "conflicts")]


#: The lane's address is its number times so many bytes.
EACH = "mad.lo.u32 %r5, %r0, BYTES, %r5; "
WIDE = "mov.b32 %r1, 0; mov.b32 %r2, 0; mov.b32 %r3, 0; mov.b32 %r4, 0; "


@pytest.mark.parametrize("name, body, wavefronts, conflicts", [
    ("words", EACH.replace("BYTES", "4") + "st.shared.u32 [%r5], %r0;", 1, 0),
    ("odd", EACH.replace("BYTES", "132") + "st.shared.u32 [%r5], %r0;", 1, 0),
    ("pairs", EACH.replace("BYTES", "8") + "st.shared.u32 [%r5], %r0;", 2, 1),
    ("lines", EACH.replace("BYTES", "128") + "st.shared.u32 [%r5], %r0;", 32, 31),
    ("bytes", EACH.replace("BYTES", "1") + "st.shared.u8 [%r5], %r0;", 1, 0),
    ("one", "ld.shared.u32 %r1, [%r5];", 1, 0),
    ("halves", "and.b32 %r1, %r0, 1; mad.lo.u32 %r5, %r1, 256, %r5; ld.shared.u32 %r1, [%r5];", 2, 1),
    ("few", EACH.replace("BYTES", "128") + "setp.lt.u32 %p0, %r0, 3; @%p0 st.shared.u32 [%r5], %r0;", 3, 2),
    ("eight", WIDE + EACH.replace("BYTES", "8") + "st.shared.v2.u32 [%r5], {%r1, %r2};", 2, 0),
    ("eight_apart", WIDE + EACH.replace("BYTES", "16") + "st.shared.v2.u32 [%r5], {%r1, %r2};", 4, 2),
    ("sixteen", WIDE + EACH.replace("BYTES", "16") + "st.shared.v4.u32 [%r5], {%r1, %r2, %r3, %r4};", 4, 0),
    ("sixteen_padded", WIDE + EACH.replace("BYTES", "144") + "st.shared.v4.u32 [%r5], {%r1, %r2, %r3, %r4};", 4, 0),
    ("sixteen_apart", WIDE + EACH.replace("BYTES", "128") + "st.shared.v4.u32 [%r5], {%r1, %r2, %r3, %r4};", 32, 28),
    ("matrices", EACH.replace("BYTES", "80") + "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2, %r3, %r4}, [%r5];", 4, 0),
    ("matrices_apart", EACH.replace("BYTES", "64") + "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2, %r3, %r4}, [%r5];", 16, 12),
    ("one_matrix", EACH.replace("BYTES", "32") + "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r5];", 2, 1),
    ("stored_matrices", WIDE + EACH.replace("BYTES", "128") + "stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r5], {%r1, %r2};", 16, 14),
])
def test_bank_conflicts(driver, name, body, wavefronts, conflicts):
    """32 banks of 4 bytes: lanes that read one word share it, and lanes that read different words of a bank take turns."""
    assert counted(driver, f"banks_{name}", body) == [1, wavefronts, conflicts]


@pytest.mark.parametrize("name, bytes_apart, vector, sectors", [
    ("words", 4, "", 4), ("pairs", 8, "", 8), ("lines", 128, "", 32), ("one", 0, "", 1), ("sixteen", 16, ".v4", 16), ("offset", 4, "", 5)])
def test_sectors(driver, name, bytes_apart, vector, sectors):
    """A request of a warp takes all sectors of 32 bytes that its lanes read."""
    regs, offset = "{%r1, %r2, %r3, %r4}" if vector else "%r1", 16 if name == "offset" else 0
    body = f"ld.param.u64 %rd0, [a]; mov.u32 %r0, %tid.x; mad.wide.u32 %rd1, %r0, {bytes_apart}, %rd0; ld.global{vector}.u32 {regs}, [%rd1+{offset}];"
    ptx = kernel(body).replace(".entry k", f".entry sectors_{name}")
    driver.run(ptx, f"sectors_{name}", [np.zeros(2048, np.uint32)], [((1,), np.uint32)])
    counts = driver.log()["kernels"][f"sectors_{name}"]
    assert (counts["global_requests"], counts["global_sectors"], counts["global_bytes"]) == (1, sectors, 32 * (16 if vector else 4))


def test_a_call(driver):
    ptx = (
        HEAD
        + ".func (.param .b32 r) triple(.param .b32 x) { .reg .b32 %r<3>; ld.param.u32 %r0, [x];"
        + " mul.lo.u32 %r1, %r0, 3; st.param.b32 [r], %r1; ret; }\n"
        + kernel(
            LOAD
            + "{ .param .b32 p; .param .b32 q; st.param.b32 [p], %r1; call.uni (q), triple, (p);"
            + " ld.param.b32 %r2, [q]; } st.global.u32 [%rd2], %r2;"
        ).replace(HEAD, "")
    )
    (got,) = driver.run(ptx, "k", [A], [((64,), np.uint32)], block=64)
    np.testing.assert_array_equal(got, A * np.uint32(3))


def test_atomics_of_many_blocks(driver):
    ptx = kernel("ld.param.u64 %rd0, [a]; atom.global.add.u32 %r1, [%rd0], 1;", "a")
    module = driver.load(ptx)
    at = driver.put(np.zeros(1, np.uint32))
    driver.launch(driver.kernel(module, "k"), 100, 96, at)
    assert driver.get(at, 1, np.uint32)[0] == 9600
    driver.free(at)


@pytest.mark.parametrize(
    "body,words",
    [
        ("foo.u32 %r1, %r1;", ["line 7", "foo.u32 %r1, %r1"]),
        ("add.bar.u32 %r1, %r1, 1;", ["line 7", ".bar"]),
        ("add.u32 %r1, %r99, 1;", ["%r99"]),
        ("add.u32 %r1, %rd1, 1;", ["%rd1", "64 bits"]),
        ("bra NOWHERE;", ["NOWHERE"]),
    ],
)
def test_load_errors(driver, body, words):
    with pytest.raises(cuda.CudaError) as error:
        driver.load(kernel(body))
    assert error.value.name == "CUDA_ERROR_INVALID_PTX"
    assert all(w in error.value.log for w in words), error.value.log


def apart(code, **env):
    """Runs code in a process of its own; its standard output and error."""
    head = (
        f"import sys, json, ctypes as C, numpy as np\nsys.path.insert(0, {str(HERE)!r})\n"
        f"import fakegpu_cuda as cuda\nLOAD, SHARED, REVERSE, REGS, HEAD = {LOAD!r}, {SHARED!r}, {REVERSE!r}, {REGS!r}, {HEAD!r}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", head + code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **env},
    )
    return done.stdout + done.stderr


RUN = """
d = cuda.Driver()
a = np.arange(64, dtype=np.uint32)
try:
    d.run({ptx!r}, "k", [a], [((64,), np.uint32)], block=64)
    print("ran")
except cuda.CudaError as e: print("error", e)
"""
FAULTS = {
    "out of bounds": ("add.s64 %rd4, %rd4, 256; ld.global.u32 %r2, [%rd4];", "CUDA_ERROR_ILLEGAL_ADDRESS"),
    "misaligned": ("add.s64 %rd4, %rd4, 2; ld.global.u32 %r2, [%rd4];", "CUDA_ERROR_MISALIGNED_ADDRESS"),
    "race": (REVERSE.replace("BARRIER", ""), "race: "),
    "divergent barrier": ("setp.lt.u32 %p1, %r0, 5; @%p1 bar.sync 0;", "only some threads"),
    "a copy that is not awaited": (
        "mov.u32 %r4, buffer; shl.b32 %r5, %r0, 2; add.u32 %r5, %r5, %r4;"
        " cp.async.ca.shared.global [%r5], [%rd4], 4; ld.shared.u32 %r2, [%r5];",
        "an asynchronous copy has yet to write",
    ),
    "trap": ("trap;", "CUDA_ERROR_LAUNCH_FAILED"),
    "endless loop": ("L: bra L;", "CUDA_ERROR_LAUNCH_TIMEOUT"),
    "nc": ("ld.global.nc.u32 %r2, [%rd4]; st.global.u32 [%rd4], %r2;", "ld.global.nc"),
}


@pytest.mark.parametrize("what", FAULTS)
def test_faults_name_the_instruction(what):
    body, expected = FAULTS[what]
    ptx = kernel(LOAD + "mov.u32 %r2, 0;" + body + "st.global.u32 [%rd2], %r2;", shared=SHARED)
    said = apart(RUN.format(ptx=ptx), FAKEGPU_DEADLINE="100000")
    assert expected in said and "kernel k, line" in said, said


def test_device_memory_is_no_host_memory():
    said = apart("d = cuda.Driver(); at = d.alloc(64); print('made', flush=True); C.string_at(at, 4); print('read')")
    assert "made" in said and "read" not in said


@pytest.mark.parametrize("call", ["cuMemcpyDtoD", "cuMemcpyDtoDAsync"])
def test_copies_between_devices_take_no_host_memory(driver, call):
    at, host = driver.alloc(64), np.zeros(16, np.uint32)
    stream = [] if call == "cuMemcpyDtoD" else [None]
    for to, source in ((at, host.ctypes.data), (host.ctypes.data, at)):
        with pytest.raises(cuda.CudaError) as error:
            driver.call(call, C.c_uint64(to), C.c_uint64(source), C.c_size_t(64), *stream)
        assert error.value.name == "CUDA_ERROR_INVALID_VALUE"
    driver.free(at)


def test_fresh_memory_is_poison(driver):
    for size in (1024, 32 << 20):
        at = driver.alloc(size)
        assert np.isnan(driver.get(at, size // 4, np.float32)).all()
        driver.free(at)


def test_limits_and_settings(tmp_path):
    log = tmp_path / "log"
    code = """
d = cuda.Driver()
count = C.c_int(); d.call("cuDeviceGetCount", C.byref(count)); print("devices", count.value)
try: d.alloc(1 << 30)
except cuda.CudaError as e: print(e)
f = d.kernel(d.load(HEAD + ".visible .entry k() { ret; }"), "k")
for shape in ((1, 2048, 0), (1, 32, 60000)):
    try: d.launch(f, *shape[:2], shared=shape[2])
    except cuda.CudaError as e: print(e)
d.launch(f, 2, 32); d.synchronize(); d.launch(f, 2, 32)
"""
    said = apart(code, FAKEGPU_DEVICES="3", FAKEGPU_MEMORY="64M", FAKEGPU_LOG=str(log))
    assert "devices 3" in said and "CUDA_ERROR_OUT_OF_MEMORY" in said, said
    assert said.count("cuLaunchKernel: CUDA_ERROR_INVALID_VALUE") == 2, said
    logged = json.loads(log.read_text())
    assert logged["launches"] == {"k": 2} and logged["waits"] == 1


def test_a_call_that_fails_on_purpose():
    said = apart("d = cuda.Driver()\nd.alloc(1)\nprint('one')\nd.alloc(1)", FAKEGPU_FAIL="cuMemAlloc:2")
    assert "one" in said and "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY" in said, said


def test_ptx_for_another_chip():
    said = apart("d = cuda.Driver()\nd.load(HEAD.replace('sm_90', 'sm_100'))")
    assert "CUDA_ERROR_NO_BINARY_FOR_GPU" in said and "sm_100" in said


def test_a_graph_is_captured_and_replayed(driver):
    module = driver.load(kernel("ld.param.u64 %rd0, [a]; atom.global.add.u32 %r1, [%rd0], 1;", "a"))
    function, at = driver.kernel(module, "k"), driver.put(np.zeros(1, np.uint32))
    stream, graph, exec_ = C.c_void_p(), C.c_void_p(), C.c_void_p()
    driver.call("cuStreamCreate", C.byref(stream), 1)
    driver.call("cuStreamBeginCapture", stream, 1)
    for _ in range(3):
        driver.launch(function, 2, 32, at, stream=stream)
    driver.call("cuStreamEndCapture", stream, C.byref(graph))
    assert driver.get(at, 1, np.uint32)[0] == 0
    driver.call("cuGraphInstantiate", C.byref(exec_), graph, C.c_uint64(0))
    for _ in range(5):
        driver.call("cuGraphLaunch", exec_, stream)
    driver.call("cuStreamSynchronize", stream)
    assert driver.get(at, 1, np.uint32)[0] == 5 * 3 * 64
    for call, handle in (("cuGraphExecDestroy", exec_), ("cuGraphDestroy", graph), ("cuStreamDestroy", stream)):
        driver.call(call, handle)
