# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The stand-in for NCCL: results, groups, streams, graphs, several processes, and what it refuses."""

import ctypes as C
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

import fakegpu_cuda as cuda
import fakegpu_nccl as nccl
import numpy as np
import pytest

ml_dtypes = pytest.importorskip("ml_dtypes")
pytestmark = [pytest.mark.gpu, cuda.needs("libnccl.so.2")]
HERE = pathlib.Path(__file__).resolve().parent
BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [np.dtype(t) for t in ("float32", "float16", "int32", "int64")] + [BF16]


@pytest.fixture(scope="module")
def three():
    ranks = nccl.world(3)
    yield ranks
    nccl.finish(ranks)


def values(seed, count, dtype):
    return np.random.default_rng(seed).integers(-99, 99, count).astype(dtype)


def run(ranks, name, inputs, received, dtype, count, *rest):
    """Calls a collective for all ranks in one group; returns each rank's result."""
    ins = [r.put(x) for r, x in zip(ranks, inputs)]
    outs = [r.use().driver.alloc(received * dtype.itemsize) for r in ranks]
    with nccl.group(ranks[0].nccl):
        for r, i, o in zip(ranks, ins, outs):
            r.collective(name, i, o, count, dtype, *rest)
    return [r.get(o, received, dtype) for r, o in zip(ranks, outs)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op, reduce", [(nccl.SUM, np.add), (nccl.MAX, np.maximum), (nccl.MIN, np.minimum)], ids=["sum", "max", "min"])
def test_reductions(three, dtype, op, reduce):
    x = [values(r, 39, dtype) for r in range(3)]
    want = reduce(reduce(x[0], x[1]).astype(dtype), x[2]).astype(dtype)
    for got in run(three, "ncclAllReduce", x, 39, dtype, 39, op):
        np.testing.assert_array_equal(got, want)
    for r, got in enumerate(run(three, "ncclReduceScatter", x, 13, dtype, 13, op)):
        np.testing.assert_array_equal(got, want[13 * r : 13 * r + 13])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_moves(three, dtype):
    x = [values(r, 12, dtype) for r in range(3)]
    for got in run(three, "ncclAllGather", x, 36, dtype, 12):
        np.testing.assert_array_equal(got, np.concatenate(x))
    for got in run(three, "ncclBroadcast", x, 12, dtype, 12, 2):
        np.testing.assert_array_equal(got, x[2])
    for r, got in enumerate(run(three, "ncclAlltoAll", x, 12, dtype, 4)):
        np.testing.assert_array_equal(got, np.concatenate([y[4 * r : 4 * r + 4] for y in x]))


def test_in_place(three):
    ats = [r.put(np.full(6, k, np.float32)) for k, r in enumerate(three)]
    with nccl.group(three[0].nccl):
        for k, (r, at) in enumerate(zip(three, ats)):
            r.collective("ncclAllGather", at + 8 * k, at, 2, np.float32)
            r.collective("ncclAllReduce", at, at, 6, np.float32, nccl.SUM)
    for r, at in zip(three, ats):
        np.testing.assert_array_equal(r.get(at, 6, np.float32), [0, 0, 3, 3, 6, 6])


def test_messages_in_a_group(three):
    """A ring in which each rank also sends to itself, and two messages between the same ranks."""
    ins = [r.put(np.arange(4, dtype=np.int32) + 10 * k) for k, r in enumerate(three)]
    outs = [r.put(np.zeros(5, np.int32)) for r in three]
    with nccl.group(three[0].nccl):
        for k, (r, i, o) in enumerate(zip(three, ins, outs)):
            r.message("ncclRecv", o, 2, np.int32, (k + 2) % 3)
            r.message("ncclRecv", o + 8, 1, np.int32, (k + 2) % 3)
            r.message("ncclRecv", o + 12, 2, np.int32, k)
            r.message("ncclSend", i, 2, np.int32, (k + 1) % 3)
            r.message("ncclSend", i + 8, 1, np.int32, (k + 1) % 3)
            r.message("ncclSend", i + 4, 2, np.int32, k)
    for k, (r, o) in enumerate(zip(three, outs)):
        left = 10 * ((k + 2) % 3)
        np.testing.assert_array_equal(r.get(o, 5, np.int32), [left, left + 1, left + 2, 10 * k + 1, 10 * k + 2])


def test_a_result_waits_for_its_stream(three):
    """Without a wait the destination is poison or the result, and never what was there before."""
    ins = [r.put(np.ones(4, np.float32)) for r in three]
    outs = [r.put(np.full(4, 7, np.float32)) for r in three]
    for r, i, o in list(zip(three, ins, outs))[:2]:
        r.use().collective("ncclAllReduce", i, o, 4, np.float32, nccl.SUM)
    end = time.monotonic() + 30
    while time.monotonic() < end:  # the third rank is missing: the others are poisoned and wait
        seen = three[0].use().driver.get(outs[0], 4, np.float32)
        if np.isnan(seen).all():
            break
    assert np.isnan(seen).all()
    three[2].use().collective("ncclAllReduce", ins[2], outs[2], 4, np.float32, nccl.SUM)
    for r, o in zip(three, outs):
        np.testing.assert_array_equal(r.get(o, 4, np.float32), np.full(4, 3, np.float32))


def test_capture(three):
    """A captured collective sees new inputs at each replay; a kernel's order in the stream holds."""
    ins = [r.put(np.ones(4, np.float32)) for r in three]
    outs = [r.put(np.zeros(4, np.float32)) for r in three]
    graphs = []
    for r, i, o in zip(three, ins, outs):
        graph, executable = C.c_void_p(), C.c_void_p()
        r.use().driver.call("cuStreamBeginCapture", r.stream, 2)
        r.collective("ncclAllReduce", i, o, 4, np.float32, nccl.SUM)
        r.collective("ncclAllReduce", o, o, 4, np.float32, nccl.SUM)
        r.driver.call("cuStreamEndCapture", r.stream, C.byref(graph))
        r.driver.call("cuGraphInstantiate", C.byref(executable), graph, C.c_ulonglong(0))
        graphs.append(executable)
    for scale in (1, 5):
        for r, i, g in zip(three, ins, graphs):
            host = np.full(4, scale, np.float32)
            r.use().driver.call("cuMemcpyHtoD", C.c_uint64(i), host.ctypes.data_as(C.c_void_p), C.c_size_t(16))
            r.driver.call("cuGraphLaunch", g, r.stream)
        for r, o in zip(three, outs):
            np.testing.assert_array_equal(r.get(o, 4, np.float32), np.full(4, 9 * scale, np.float32))


def test_split(three):
    made = [C.c_void_p() for _ in three]
    with nccl.group(three[0].nccl):
        for k, (r, new) in enumerate(zip(three, made)):
            r.use()
            r.nccl.call("ncclCommSplit", r.comm, -1 if k == 1 else 0, -k, C.byref(new), None)
    assert made[1].value is None
    pair = [nccl.Rank(three[0].nccl, three[k].driver, made[k]) for k in (2, 0)]
    number = C.c_int()
    pair[0].nccl.call("ncclCommUserRank", pair[0].comm, C.byref(number))
    assert number.value == 0  # the lower key
    got = run(pair, "ncclAllGather", [np.full(2, 2, np.int32), np.full(2, 0, np.int32)], 4, np.dtype("int32"), 2)
    np.testing.assert_array_equal(got[1], [2, 2, 0, 0])
    nccl.finish(pair)


def test_init_by_threads():
    """Each rank in a thread of its own, as a runtime has them; blocking calls meet."""
    library, results = nccl.Nccl(), [None] * 4
    unique = library.unique_id()

    def rank(k):
        r = nccl.Rank(library, cuda.Driver(k), None)
        r.comm = library.init_rank(4, unique, k)
        i, o = r.put(np.full(8, k, np.float32)), r.driver.alloc(32)
        r.collective("ncclAllReduce", i, o, 8, np.float32, nccl.SUM)
        results[k] = r.get(o, 8, np.float32)
        nccl.finish([r])

    threads = [threading.Thread(target=rank, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for got in results:
        np.testing.assert_array_equal(got, np.full(8, 6, np.float32))


@pytest.mark.parametrize(
    "change, said",
    [
        (dict(count=0x4000), "is not in one allocation"),
        (dict(dtype=11), "unknown or unsupported data type 11"),
        (dict(op=9), "unknown reduction 9"),
        (dict(offset=2), "is not aligned to its elements"),
        (dict(overlap=8), "the buffers overlap"),
        (dict(host=True), "the send buffer is not in one allocation"),
        (dict(stream=1), "the stream is not one of device 0"),
    ],
    ids=lambda v: "" if isinstance(v, str) else next(iter(v)),
)
def test_refused(three, change, said):
    r = three[0]
    at = r.put(np.zeros(64, np.float32))
    send, receive = at + change.get("offset", 0), at + 128
    if "overlap" in change:
        receive = send + change["overlap"]
    if "host" in change:
        send = np.zeros(64).ctypes.data
    stream = three[change.get("stream", 0)].stream
    with pytest.raises(nccl.NcclError, match=said):
        r.nccl.call("ncclAllReduce", C.c_void_p(send), C.c_void_p(receive), C.c_size_t(change.get("count", 4)),
                    change.get("dtype", 7), change.get("op", 0), r.comm, stream)  # fmt: skip


def test_an_error_in_a_group_stops_the_group(three):
    r = three[0]
    at = r.put(np.ones(8, np.float32))
    with pytest.raises(nccl.NcclError, match="ncclGroupEnd: InvalidArgument"):
        r.nccl.call("ncclGroupStart")
        r.collective("ncclAllReduce", at, at, 4, np.float32, nccl.SUM)
        with pytest.raises(nccl.NcclError):
            r.collective("ncclAllReduce", at, at, 4, np.float32, 77)
        r.nccl.call("ncclGroupEnd")
    np.testing.assert_array_equal(r.get(at, 4, np.float32), np.ones(4))
    with pytest.raises(nccl.NcclError, match="ncclGroupEnd without ncclGroupStart"):
        r.nccl.call("ncclGroupEnd")


PROGRAM = f"""
import sys, ctypes as C, numpy as np
sys.path.insert(0, {str(HERE)!r})
import fakegpu_cuda as cuda, fakegpu_nccl as nccl
"""


def start(body, *args, **env):
    env = {**os.environ, **{k: str(v) for k, v in env.items()}}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM + body, *map(str, args)], env=env, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def said(body, *args, **env):
    process = start(body, *args, **env)
    return process.communicate(timeout=60)[0]


TWO = """
ranks = nccl.world(2)
at = [r.put(np.ones(64, np.float32)) for r in ranks]
"""
SYNC = """
for r in ranks:
    try:
        r.use().driver.call("cuStreamSynchronize", r.stream)
    except cuda.CudaError as e:
        print("error:", e, r.nccl.async_error(r.comm))
"""


@pytest.mark.parametrize(
    "second, what",
    [
        ("'ncclAllReduce', at[1], at[1], 8, np.float32, 0", "ncclAllReduce of 8 float32 by sum"),
        ("'ncclAllReduce', at[1], at[1], 4, np.int32, 0", "ncclAllReduce of 4 int32 by sum"),
        ("'ncclAllReduce', at[1], at[1], 4, np.float32, 2", "ncclAllReduce of 4 float32 by max"),
        ("'ncclAllGather', at[1], at[1] + 64, 4, np.float32", "ncclAllGather of 4 float32"),
    ],
    ids=["count", "type", "reduction", "kind"],
)
def test_mismatches_are_reported(second, what):
    body = "ranks[0].collective('ncclAllReduce', at[0], at[0], 4, np.float32, 0)\n"
    out = said(TWO + body + f"ranks[1].collective({second})\n" + SYNC)
    assert f"rank 0 calls ncclAllReduce of 4 float32 by sum, rank 1 calls {what}" in out
    assert out.count("InvalidUsage") == 2 and out.count("error:") == 2, out


def test_messages_that_differ_are_reported():
    body = "ranks[0].message('ncclSend', at[0], 4, np.float32, 1)\nranks[1].message('ncclRecv', at[1], 5, np.float32, 0)\n"
    out = said(TWO + body + SYNC)
    assert "rank 1 calls ncclRecv of 5 float32 from rank 0, which calls ncclSend of 4 float32" in out


def test_deadlocks_end_by_the_clock():
    """Two ranks that both send first, without a group; and collectives in another order."""
    body = "for k in (0, 1):\n    for call in ('ncclSend', 'ncclRecv'):\n        ranks[k].message(call, at[k], 4, np.float32, 1 - k)\n"
    out = said(TWO + body + SYNC, FAKEGPU_NCCL_DEADLINE=200)
    assert "deadlock: rank 0 of 2 waits in ncclSend of 4 float32 to rank 1, number 1, for rank 1" in out
    assert "CUDA_ERROR_LAUNCH_TIMEOUT" in out and "Timeout" in out
    body = "ranks[0].collective('ncclAllReduce', at[0], at[0], 4, np.float32, 0)\n"
    out = said(TWO + body + SYNC, FAKEGPU_NCCL_DEADLINE=200)
    assert "for rank 1 (0 collectives begun)" in out


def test_two_communicators_need_one_order():
    """Device 0 is ready for the second one first, device 1 for the first."""
    body = """
others = nccl.world(2, ranks[0].nccl)
at += [r.put(np.ones(64, np.float32)) for r in others]
for slow in (ranks[0], others[1]):
    slow.use().driver.call("cuMemsetD8Async", C.c_uint64(slow.driver.alloc(1 << 27)), 0, C.c_size_t(1 << 27), slow.stream)
ranks += others
for r, a in zip(ranks, at):
    r.use().collective('ncclAllReduce', a, a, 4, np.float32, 0)
"""
    assert said(TWO + body + SYNC, NCCL_LAUNCH_ORDER_IMPLICIT=1) == ""
    out = said(TWO + body + SYNC, FAKEGPU_NCCL_DEADLINE=200)
    assert "deadlock" in out and "CUDA_ERROR_LAUNCH_TIMEOUT" in out


def test_abort_ends_a_wait():
    body = """
ranks[0].collective('ncclAllReduce', at[0], at[0], 4, np.float32, 0)
ranks[0].nccl.call('ncclCommAbort', ranks[0].comm)
ranks[0].use().driver.call("cuStreamSynchronize", ranks[0].stream)
ranks[1].collective('ncclAllReduce', at[1], at[1], 4, np.float32, 0)
import time
while ranks[1].nccl.async_error(ranks[1].comm) == 'Success': time.sleep(0.01)
print(ranks[1].nccl.async_error(ranks[1].comm))
ranks[1].nccl.call('ncclCommAbort', ranks[1].comm)
ranks[1].use().driver.call("cuStreamSynchronize", ranks[1].stream)
print("ended")
"""
    assert said(TWO + body).endswith("RemoteError\nended\n")


def test_failures_on_demand_and_the_log(tmp_path):
    body = "[r.collective('ncclAllReduce', a, a, 4, np.float32, 0) for r, a in zip(ranks, at)]\n" + SYNC
    log = tmp_path / "log"
    assert said(TWO + body, FAKEGPU_LOG=log) == ""
    seen = json.loads(log.read_text())
    assert seen["launches"] == {"ncclAllReduce": 2}
    assert seen["calls"] == {"ncclAllReduce": 2, "ncclCommInitAll": 1, "ncclGetUniqueId": 1}
    out = said(TWO + body, FAKEGPU_FAIL="ncclAllReduce:2")
    assert "ncclAllReduce: SystemError: ncclAllReduce fails by request of FAKEGPU_FAIL" in out
    broken = "import time\nwhile ranks[0].nccl.async_error(ranks[0].comm) == 'Success': time.sleep(0.01)\nprint(ranks[0].nccl.async_error(ranks[0].comm))\n[r.nccl.call('ncclCommAbort', r.comm) for r in ranks]\n"
    body = "[r.collective('ncclAllReduce', a, a, 4, np.float32, 0) for r, a in zip(ranks, at)]\n"
    assert said(TWO + body + broken, FAKEGPU_FAIL="ncclAsyncError:1") == "RemoteError\n"


def test_duplicate_devices_are_refused_unless_hosts_differ():
    body = """
unique = nccl.UniqueId(internal=sys.argv[1].encode())
d = cuda.Driver(0); n = nccl.Nccl()
try: n.init_rank(2, unique, int(sys.argv[2])); print("joined")
except nccl.NcclError as e: print(e)
"""
    library = nccl.Nccl()
    for hosts, expected in (("aa", "duplicate GPU detected"), ("ab", "joined")):
        name = library.unique_id().internal.decode()
        both = [start(body, name, k, NCCL_HOSTID=hosts[k]) for k in (0, 1)]
        for p in both:
            assert expected in p.communicate(timeout=60)[0]


PROCESS = """
unique, ranks, rank = nccl.UniqueId(internal=sys.argv[1].encode()), int(sys.argv[2]), int(sys.argv[3])
r = nccl.Rank(nccl.Nccl(), cuda.Driver(0), None)
r.comm = r.nccl.init_rank(ranks, unique, rank)
at = r.put(np.full(1 << 20, rank + 1, np.float32))
r.collective("ncclAllReduce", at, at, 1 << 20, np.float32, 0)
"""


def test_several_processes():
    """Each process sees one device by CUDA_VISIBLE_DEVICES, as launchers do."""
    name = nccl.Nccl().unique_id().internal.decode()
    body = PROCESS + "x = r.get(at, 1 << 20, np.float32); print(x.min(), x.max()); nccl.finish([r])"
    all_ = [start(body, name, 3, k, CUDA_VISIBLE_DEVICES=k) for k in range(3)]
    for p in all_:
        assert p.communicate(timeout=60)[0] == "6.0 6.0\n"
    for folder in ("/dev/shm", "/tmp"):
        assert not os.path.exists(f"{folder}/{name}")


def test_a_killed_peer_is_an_asynchronous_error():
    name = nccl.Nccl().unique_id().internal.decode()
    wait = """
r.driver.call("cuStreamSynchronize", r.stream); print("ready", flush=True)
"""
    stays = wait + """
import time
r.collective("ncclAllReduce", at, at, 4, np.float32, 0)
while r.nccl.async_error(r.comm) == "Success": time.sleep(0.01)
print(r.nccl.async_error(r.comm), r.nccl.lib.ncclGetLastError(r.comm).decode())
r.nccl.call("ncclCommAbort", r.comm)
r.driver.call("cuStreamSynchronize", r.stream); print("ended")
"""
    first = start(PROCESS + stays, name, 2, 0, CUDA_VISIBLE_DEVICES=0)
    second = start(PROCESS + wait + "sys.stdin.read()", name, 2, 1, CUDA_VISIBLE_DEVICES=1)
    assert second.stdout.readline() == "ready\n"
    second.kill()
    second.wait()
    out = first.communicate(timeout=60)[0]
    assert "RemoteError rank 1's process has ended\nended" in out
