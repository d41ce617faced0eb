# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Inputs and outputs in the memory of GPUs, by DLPack, on the stand-ins (test/fakegpu)."""
import json
import math
import pathlib
import subprocess
import sys

import pytest
from harness import TIMEOUT
from test_gpu_processes import environment, torchrun
from test_gpu_running import PROGRAM, ROOT, check, pytestmark  # noqa: F401

#: An array of another library: its values arrive late, on a stream of its own.
OTHER = """
import ctypes as C, sys
import numpy as np
sys.path.insert(0, 'ROOT/test/fakegpu')
from fakegpu_cuda import Driver

class Tensor(C.Structure):
    _fields_ = [("data", C.c_void_p), ("device", C.c_int32 * 2), ("ndim", C.c_int32), ("code", C.c_uint8), ("bits", C.c_uint8),
                ("lanes", C.c_uint16), ("shape", C.POINTER(C.c_int64)), ("strides", C.POINTER(C.c_int64)), ("offset", C.c_uint64)]
class Managed(C.Structure):
    _fields_ = [("tensor", Tensor), ("context", C.c_void_p), ("deleter", C.c_void_p)]
C.pythonapi.PyCapsule_New.restype = C.py_object
C.pythonapi.PyCapsule_New.argtypes = [C.c_void_p, C.c_char_p, C.c_void_p]
C.pythonapi.PyCapsule_GetPointer.restype = C.c_void_p
C.pythonapi.PyCapsule_GetPointer.argtypes = [C.py_object, C.c_char_p]
CODES = {"f": 2, "i": 0, "b": 6}

class Other:
    def __init__(self, array, gpu=0, offset=0, strides=None):
        self.driver, self.gpu, self.streams = Driver(gpu), gpu, []
        self.source, self.offset = np.ascontiguousarray(array), offset
        self.address = self.driver.alloc(offset + array.nbytes)
        self.stream = C.c_void_p()
        self.driver.call("cuStreamCreate", C.byref(self.stream), 1)
        # The host's memory is read when the stream gets there.
        self.pinned = C.c_void_p()
        self.driver.call("cuMemHostAlloc", C.byref(self.pinned), C.c_size_t(array.nbytes), 0)
        C.memmove(self.pinned, self.source.ctypes.data, array.nbytes)
        self.late()
        self.strides = (C.c_int64 * array.ndim)(*strides) if strides else None
    def late(self):
        self.driver.call("cuMemcpyHtoDAsync", C.c_uint64(self.address + self.offset), self.pinned, C.c_size_t(self.source.nbytes), self.stream)
    def __dlpack_device__(self): return (2, self.gpu)
    def __dlpack__(self, stream=None):
        self.streams.append(stream)
        self.driver.call("cuCtxSetCurrent", self.driver.context)
        if stream != -1:
            event = C.c_void_p()
            self.driver.call("cuEventCreate", C.byref(event), 2)
            self.driver.call("cuEventRecord", event, self.stream)
            self.driver.call("cuStreamWaitEvent", C.c_void_p(stream), event, 0)
        dtype = self.source.dtype
        self.shape = (C.c_int64 * self.source.ndim)(*self.source.shape)
        self.managed = Managed(Tensor(self.address, (2, self.gpu), self.source.ndim, CODES[dtype.kind], dtype.itemsize * 8, 1, self.shape,
                                      self.strides, self.offset), None, None)
        return C.pythonapi.PyCapsule_New(C.addressof(self.managed), b"dltensor", None)

def read(array):
    assert isinstance(array, mw.DeviceArray) and array.__dlpack_device__() == (2, array.gpu)
    capsule = array.__dlpack__(stream=1)
    tensor = C.cast(C.pythonapi.PyCapsule_GetPointer(capsule, b"dltensor"), C.POINTER(Managed)).contents.tensor
    assert tuple(tensor.device) == (2, array.gpu) and [tensor.shape[d] for d in range(tensor.ndim)] == list(array.shape)
    types = {"f32": np.float32, "i64": np.int64, "i1": np.bool_}
    return torch.from_numpy(Driver(array.gpu).get(tensor.data + tensor.offset, array.shape, types[array.dtype]))
""".replace("ROOT", str(ROOT))


ATTEND = """
class Attend(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.q = nn.Embedding(11, 32), nn.Linear(32, 96)
    def forward(self, ids, scale):
        b, t = ids.shape
        q, k, v = (y.view(b, t, 2, 16).transpose(1, 2) for y in self.q(self.e(ids) * scale).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.transpose(1, 2).reshape(b, t, 32), ids + 1, y.sum() > 0
net, ids, scale = Attend().eval(), torch.randint(0, 11, (1, 13)), torch.randn(32)
plan = mw.from_torch(net, (ids, scale)).parallelize(mesh={'ring': 2}, context_parallel={'ring': 'ring'})
"""


@pytest.mark.parametrize("backend, mesh, options", [
    ("nccl", {"tp": 1}, ""), ("nccl", {"dp": 2}, ""), ("nccl", {"dp": 4}, ""), ("nccl", {"tp": 3}, ", sequence_parallel='on'"), ("nccl:peer", {"dp": 2}, ""),
])
def test_bits(backend, mesh, options):
    """The bits of a call with arrays of the host, in a run and in a session with graphs; on the GPU of a rank and on another one."""
    check(OTHER + f"""
net, x = make()
plan = mw.from_torch(net, (x,)).parallelize(mesh={mesh}{options})
want, = plan.run(x, backend='{backend}')
for gpu, offset in ((0, 0), (0, 12), (1, 0), (7, 256)):
    got, = plan.run(Other(x.numpy(), gpu, offset), backend='{backend}')
    assert got.gpu == gpu and got.dtype == 'f32' and got.shape == (6, 32)
    assert torch.equal(read(got), want), (gpu, offset)
with plan.start(backend='{backend}') as session:
    for call in range(6):
        y = torch.randn(6, 32)
        a, b = session.run(Other(y.numpy()))[0], session.run(y)[0]
        assert torch.equal(read(a), b), call
# The output outlives the session and the plan.
del plan, session
assert torch.equal(read(got), want)
""")


def test_no_copies(tmp_path):
    """No byte of inputs or outputs goes to the host, and the host does not wait between launches."""
    sizes = []
    for given in ("x", "Other(x.numpy())"):
        check(OTHER + f"""
x = torch.randn(4096, 16)
net = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16)).eval()
plan = mw.from_torch(net, (x,)).parallelize(mesh={{'dp': 2}})
plan.run({given}, backend='nccl')
""", FAKEGPU_LOG=str(tmp_path / "log"))
        log = json.loads((tmp_path / "log").read_text())
        assert log["waits"] == 0
        sizes.append(log["copies"])
    nbytes = 4096 * 16 * 4
    assert sizes[0]["h2d"] > nbytes and sizes[0]["d2h"] >= nbytes
    # The producer copies its array to the GPU. Weights and fault words are small.
    assert sizes[1]["h2d"] < nbytes + 65536 and sizes[1]["d2h"] < 4096


def test_streams():
    """The producer is asked for its shape without an order, and then for its values in the order of our stream."""
    check(OTHER + """
net, x = make()
other = Other(x.numpy())
mw.from_torch(net, (x,)).parallelize(mesh={'tp': 1}).run(other, backend='nccl')
assert len(other.streams) == 2 and other.streams[0] == -1 and other.streams[1] > 2, other.streams
""")


def test_threads():
    """Sessions that other threads start and call, which use no GPU themselves."""
    check(OTHER + """
import threading
net, x = make()
plan = mw.from_torch(net, (x,)).parallelize(mesh={'dp': 2})
want, = plan.run(x, backend='nccl')
done = []
def work():
    with plan.start(backend='nccl') as session:
        done.append(torch.equal(read(session.run(Other(x.numpy(), 1))[0]), want))
for _ in range(2):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
assert done == [True, True], done
""")


def test_other_layouts():
    """Token orders of a ring, padding, integers, several inputs of which one is the host's, and partial sums."""
    check(OTHER + ATTEND + """
want = plan.run(ids, scale, backend='nccl')
for inputs in ((Other(ids.numpy()), scale), (ids, Other(scale.numpy())), (Other(ids.numpy()), Other(scale.numpy(), 1))):
    for a, b in zip(plan.run(*inputs, backend='nccl'), want): assert torch.equal(read(a), b)
""")


def test_refusals():
    make = "net, x = make(); plan = mw.from_torch(net, (x,)).parallelize(mesh={'tp': 1}); "
    run = OTHER + "\ndef call(**options):\n    " + make + "plan.run(Other(x.numpy()[:, :options.pop('width', 32)], **options.pop('of', {})), **options)\n"
    def said(text):
        return refusal_of(run, text)
    assert "expected the memory of the host, got that of GPU 0" in said("call()")
    assert "not dense in row-major order" in said("call(of=dict(strides=[1, 6]), backend='nccl')")
    assert "expected f32[6, 32], got f32[6, 31]" in said("call(width=31, backend='nccl')")
    assert "MESHWRIGHT_RUNS compares outputs on the host" in said("import os; os.environ['MESHWRIGHT_RUNS'] = '2'; call(backend='nccl')")


def refusal_of(program, body):
    done = check(program + f"\ntry:\n    {body}\n    print('accepted')\nexcept mw.Error as error:\n    print(error)")
    return done.strip()


def processes(body, count=2, logs=None):
    """Runs the script in processes of torchrun, with a GPU each."""
    started = [subprocess.Popen(
        [sys.executable, "-c", PROGRAM + OTHER + body], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment({**own, **({"FAKEGPU_LOG": f"{logs}/{rank}"} if logs else {})})) for rank, own in enumerate(torchrun(range(count)))]
    said = [p.communicate(timeout=TIMEOUT) for p in started]
    assert all(p.returncode == 0 for p in started), [err[-1500:] for _, err in said]
    return [out for out, _ in said]


@pytest.mark.parametrize("mesh, options", [({"dp": 2}, ""), ({"tp": 2}, ", sequence_parallel='on'"), ({"dp": 2, "tp": 2}, "")])
def test_processes(mesh, options):
    """Each has the whole outputs on its GPU, or on the one of its input, with the bits of a call with arrays of the host."""
    processes(f"""
import os
net, x = make()
plan, rank = mw.from_torch(net, (x,)).parallelize(mesh={mesh}{options}), int(os.environ['RANK'])
want, = plan.run(x, backend='nccl')
for gpu in (rank, 6):
    got, = plan.run(Other(x.numpy(), gpu), backend='nccl')
    assert got.gpu == gpu and torch.equal(read(got), want), gpu
with plan.start(backend='nccl') as session:
    for call in range(5):
        y = torch.randn(6, 32)
        a, b = session.run(Other(y.numpy(), rank))[0], session.run(y)[0]
        assert torch.equal(read(a), b), call
""", count=math.prod(mesh.values()))


def test_processes_with_other_layouts():
    """Token orders of a ring, and outputs that all ranks have."""
    processes(ATTEND + """
import os
rank = int(os.environ['RANK'])
want = plan.run(ids, scale, backend='nccl')
for a, b in zip(plan.run(Other(ids.numpy(), rank), scale, backend='nccl'), want): assert torch.equal(read(a), b)
""")


def test_processes_copy_nothing_to_the_host(tmp_path):
    processes("""
import os
x = torch.randn(4096, 16)
net = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16)).eval()
plan, given = mw.from_torch(net, (x,)).parallelize(mesh={'dp': 2}), Other(x.numpy(), int(os.environ['RANK']))
with plan.start(backend='nccl') as session:
    for _ in range(5): session.run(given)
""", logs=tmp_path)
    for rank in range(2):
        log = json.loads((tmp_path / str(rank)).read_text())
        assert log["copies"]["d2h"] < 4096 and log["waits"] == 0 and log["calls"]["ncclBroadcast"] == 10, log


def test_processes_of_different_calls():
    """One has its input on a GPU and the other one on the host."""
    said = processes("""
import os
net, x = make()
plan = mw.from_torch(net, (x,)).parallelize(mesh={'dp': 2})
with plan.start(backend='nccl') as session:
    try: session.run(Other(x.numpy(), 1) if os.environ['RANK'] == '1' else x)
    except mw.Error as error: print(error)
    print(session.run(x)[0].isfinite().all().item())
""")
    assert said[0] == said[1] and said[0].endswith("True\n"), said
    assert "rank 1: expected to run entry 'main' as on rank 0, got entry 'main' with outputs on a GPU" in said[0], said


def test_a_process_that_dies():
    """The other one waits for its part of the output, and ends with an error."""
    said = processes("""
import os, threading, time
net, x = make()
plan, rank = mw.from_torch(net, (x,)).parallelize(mesh={'dp': 2}), int(os.environ['RANK'])
with plan.start(backend='nccl', timeout=5) as session:
    session.run(Other(x.numpy(), rank))
    if rank == 1: os._exit(0)
    try: session.run(Other(x.numpy(), rank))
    except mw.Error as error: print(error)
""")
    assert "rank 1: " in said[0] and "died" in said[0], said


@pytest.mark.parametrize("options", ["", ", graphs='off'"])
def test_loops(tmp_path, options):
    """The host reads the output that ends a loop, also where the outputs are in the memory of a GPU."""
    check(OTHER + f"""
import pathlib
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
from test_calls import LOOP, SQUARES, newton
file = pathlib.Path({str(tmp_path)!r}) / "m.mlir"
file.write_text(LOOP)
most = np.array([1e-2], np.float32)
with mw.load(file).parallelize(mesh={{'dp': 2}}).start(backend='nccl'{options}) as session:
    for n, (roots, runs, converged) in zip(range(4), newton(SQUARES, 1e-2)):
        got = session.run(x=Other(SQUARES), most=Other(most)) if n % 2 else session.run(x=SQUARES, most=most)
        got, counted, _, root, end = [read(a) if n % 2 else torch.as_tensor(a) for a in got]
        assert got == runs and counted == 3 and end == converged, n
        assert np.allclose(root, roots, rtol=1e-5), n
""")
