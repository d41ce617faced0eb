# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The backend `nccl` with a rank in each process of a launcher, on the stand-ins (test/fakegpu)."""
import contextlib
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import time

import pytest
import torch
from harness import TIMEOUT, tool
from mpi_programs import assert_same_bits, mpirun
from safetensors.torch import load_file
from test_gpu_running import FAKEGPU, PROGRAM, check, pytestmark  # noqa: F401

LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "MESHWRIGHT_TOKEN", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """Two ranks, with the outputs of threads of one process."""
    folder = tmp_path_factory.mktemp("bundle")
    check(f"net, x = make()\nmw.from_torch(net, (x,)).parallelize(mesh={{'tp': 2}}).compile('{folder}/b', target='gpu:sm_90a')")
    said = [p.communicate(timeout=TIMEOUT) for p in start(folder, [{}], "threads")]
    assert (folder / "threads").exists(), said
    return folder


def environment(variables):
    clean = {k: v for k, v in os.environ.items() if k not in LAUNCHERS}
    path = os.pathsep.join(p for p in [str(FAKEGPU), os.environ.get("LD_LIBRARY_PATH", "")] if p)
    return {**clean, "LD_LIBRARY_PATH": path, **variables}


def start(folder, processes, name, *more, backend="nccl", **variables):
    """A process of sharding-run for each dictionary of variables."""
    command = [tool(), str(folder / "b"), f"--backend={backend}", "--random-inputs=1", f"--outputs={folder / name}", *more]
    return [subprocess.Popen(command, env=environment({**variables, **own}), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for own in processes]


def finish(processes):
    said = [p.communicate(timeout=TIMEOUT)[1] for p in processes]
    return [p.returncode for p in processes], said


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def torchrun(ranks, size=None):
    port = free_port()
    return [{"RANK": str(r), "WORLD_SIZE": str(size or len(ranks)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} for r in ranks]


def slurm(ranks, file):
    return [{"SLURM_PROCID": str(r), "SLURM_STEP_NUM_TASKS": str(len(ranks)), "MESHWRIGHT_RENDEZVOUS": str(file)} for r in ranks]


def same(folder, name):
    assert_same_bits(load_file(folder / name), load_file(folder / "threads"))


def test_torchruns_variables(bundle):
    codes, said = finish(start(bundle, torchrun(range(2)), "torchrun"))
    assert codes == [0, 0], said
    same(bundle, "torchrun")


def test_a_file(bundle, tmp_path):
    """Variables of srun, and a file of an earlier job at the place of the rendezvous."""
    (tmp_path / "meet").write_text("17 1 127.0.0.1\n")
    codes, said = finish(start(bundle, slurm(range(2), tmp_path / "meet"), "slurm"))
    assert codes == [0, 0], said
    same(bundle, "slurm")
    assert not (tmp_path / "meet").exists()


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed (openmpi-bin)")
def test_mpirun(bundle):
    command = mpirun(2, tool(), bundle / "b", "--backend=nccl", "--random-inputs=1", f"--outputs={bundle}/mpirun")
    done = subprocess.run(command, env=environment({}), capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr
    same(bundle, "mpirun")


def test_torchrun_itself(bundle, tmp_path):
    """Its agent has a store at the master's port."""
    (tmp_path / "script.py").write_text(PROGRAM + f"""
import os
from safetensors.torch import save_file
net, x = make()
plan = mw.from_torch(net, (x,)).parallelize(mesh={{'tp': 2}})
first = plan.run(x, backend='nccl')[0]
with plan.start(backend='nccl') as session:
    assert all(torch.equal(session.run(x)[0], first) for _ in range(3))
save_file({{'y': first}}, '{tmp_path}/' + os.environ['RANK'])
""")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}", str(tmp_path / "script.py")]
    done = subprocess.run(command, env=environment({}), capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr[-2000:]
    assert torch.equal(load_file(tmp_path / "0")["y"], load_file(tmp_path / "1")["y"])


def test_refusals(bundle):
    alone = {"WORLD_SIZE": "2", "RANK": "0"}
    for variables, backend, words in (
        (alone, "nccl", "nothing says where the processes meet: expected MASTER_ADDR and MASTER_PORT, Open MPI's mpirun, or a file"),
        ({"WORLD_SIZE": "2"}, "nccl", "RANK: expected 0 to 1, as WORLD_SIZE is 2, got no value"),
        ({**alone, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}, "nccl", "MASTER_PORT: expected 1 to 65535, got '0'"),
        ({"WORLD_SIZE": "3", "RANK": "1"}, "nccl", "the program has 2 ranks, and there are 3 processes: expected a process for each rank"),
        (alone, "nccl:peer", "WORLD_SIZE is 2, and ranks of 'nccl:peer' are threads of one process: expected no launcher"),
    ):
        codes, said = finish(start(bundle, [variables], "never", backend=backend))
        assert codes == [1] and words in said[0], said
    assert not (bundle / "never").exists()


def test_too_few_devices(bundle):
    codes, said = finish(start(bundle, torchrun(range(2)), "never", FAKEGPU_DEVICES="1"))
    assert codes == [1, 1], said
    assert "process 2 of this machine has rank 1, and there are 1 devices: expected a device for each process" in said[1]


def listening(process):
    """The addresses at which a process listens, as /proc has them."""
    sockets = set()
    for file in pathlib.Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError):
            sockets.add(os.readlink(file).removeprefix("socket:[").removesuffix("]"))
    found = []
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in sockets:
                found.append(words[1].split(":")[0])
    return found


def test_where_rank_0_listens(bundle):
    """At MASTER_ADDR alone. A process without the token is turned away, and one with it is not."""
    variables = torchrun(range(2))
    for own in variables:
        own["MASTER_ADDR"] = "127.0.0.2"
    (first,) = start(bundle, variables[:1], "listens")
    end = time.monotonic() + TIMEOUT
    while not listening(first.pid) and first.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    assert listening(first.pid) == ["0200007F"]
    # A stranger with the wrong token, and with that of an earlier version, 0.
    for token in (0, 17):
        hello = struct.pack("<5q", token, 1, 2, 4711, 4) + b"else" + struct.pack("<q", 3) + b"all"
        with socket.create_connection(("127.0.0.2", int(variables[0]["MASTER_PORT"]))) as stranger:
            stranger.sendall(struct.pack("<IIQ", 0x4D574E31, 0, len(hello)) + hello)
    (second,) = start(bundle, variables[1:], "listens")
    codes, said = finish([first, second])
    assert codes == [0, 0], said
    same(bundle, "listens")


def test_addresses_of_the_network(bundle):
    """They need a token that the processes are given."""
    host = socket.gethostbyname(socket.gethostname())
    if host.startswith("127."):
        pytest.skip("this machine has no address of a network")
    for token in ("", "a text of this job"):
        variables = torchrun(range(2))
        for own in variables:
            own.update(MASTER_ADDR=host, MESHWRIGHT_TOKEN=token)
        codes, said = finish(start(bundle, variables, "network" if token else "never"))
        assert codes == ([0, 0] if token else [1, 1]), said
        assert token or "expected a text that only processes of this job know in MESHWRIGHT_TOKEN" in said[0], said
    same(bundle, "network")


def test_a_missing_process(bundle):
    codes, said = finish(start(bundle, torchrun([0], size=2), "never", MESHWRIGHT_TIMEOUT="0.1"))
    assert codes == [1] and "not all processes have come to MASTER_ADDR:MASTER_PORT" in said[0] and "missing rank 1" in said[0], said


@pytest.mark.parametrize("kind, words", [("throw", "a fault was asked for"), ("kill", "its process"), ("stall", "timed out after 5 s waiting for")])
def test_a_fault(bundle, kind, words):
    """It ends the run in all processes, with rank, and op where that is known."""
    codes, said = finish(start(bundle, torchrun(range(2)), "never", MESHWRIGHT_FAULT=f"{kind} 1 nn.linear", MESHWRIGHT_TIMEOUT="5"))
    assert 0 not in codes, said
    assert "rank 1" in said[0] and words in said[0], said
    # The op's place in the model. A process may die before it has told where it is.
    assert kind == "kill" or "nn.linear at up" in said[0], said
    assert not (bundle / "never").exists()


SESSION = """
import os, signal, time
net, x = make()
with mw.from_torch(net, (x,)).parallelize(mesh={'tp': 2}).start(backend='nccl', timeout=10) as session:
    want = session.run(x)[0]
    if os.environ['RANK'] == '1':
        %s
    begin = time.monotonic()
    try:
        for _ in range(%d): assert torch.equal(session.run(x)[0], want)
        print('ran')
    except mw.Error as error:
        print('after %%g s:' %% (time.monotonic() - begin), error)
"""


def session(what, calls=1):
    scripts = [subprocess.Popen([sys.executable, "-c", PROGRAM + SESSION % (what, calls)], env=environment(own), stdout=subprocess.PIPE, text=True)
               for own in torchrun(range(2))]
    return [p.communicate(timeout=TIMEOUT)[0] for p in scripts]


def test_sessions():
    assert session("pass", 3) == ["ran\n"] * 2


def test_a_killed_process():
    said = session("os.kill(os.getpid(), signal.SIGKILL)")
    assert "rank 1: " in said[0] and ") has died" in said[0] and said[1] == "", said


ROWS = """
import os, signal, sys, threading, time
sys.path.insert(0, %r)
from test_moved_rows import Experts, inputs
torch.manual_seed(0)
net, given = Experts().eval(), inputs('random')
with torch.no_grad(): want = net(*given)
plan = mw.from_torch(net, given).parallelize(mesh={'dp': 2}, expert_parallel='dp', target='gpu:sm_90a')
assert 'dist.all_to_all' in plan.ir()
with plan.start(backend='nccl', timeout=10) as session:
    assert (session.run(*given)[0] - want).abs().max() < 1e-5 * want.abs().max()
    if os.environ['RANK'] == '1' and %r == 'kill': os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        session.run(*given)
        print('ran')
    except mw.Error as error:
        print('after %%g s:' %% (time.monotonic() - begin), error)
"""


@pytest.mark.parametrize("what", ["run", "kill"])
def test_rows_of_experts(what):
    """Ranks that are processes send rows to one another. One that has died is named while another waits for its numbers."""
    scripts = [subprocess.Popen([sys.executable, "-c", PROGRAM + ROWS % (os.path.dirname(os.path.abspath(__file__)), what)],
                                env=environment(own), stdout=subprocess.PIPE, text=True) for own in torchrun(range(2))]
    said = [p.communicate(timeout=TIMEOUT)[0] for p in scripts]
    assert said == ["ran\n"] * 2 if what == "run" else "rank 1: " in said[0] and ") has died" in said[0] and said[1] == "", said


def test_a_process_that_ends():
    said = session("raise SystemExit")
    assert "rank 1: its process has ended before the run" in said[0], said


def test_a_value_that_is_not_finite():
    """All processes report the same op, and go on."""
    body = """
with mw.from_torch(make()[0], (make()[1],)).parallelize(mesh={'tp': 2}).start(backend='nccl') as session:
    x = make()[1]
    try: session.run(x * float('nan'), check_finite=True)
    except mw.Error as error: print(error)
    print(session.run(x)[0].isfinite().all().item())
"""
    scripts = [subprocess.Popen([sys.executable, "-c", PROGRAM + body], env=environment(own), stdout=subprocess.PIPE, text=True)
               for own in torchrun(range(2))]
    said = [p.communicate(timeout=TIMEOUT)[0] for p in scripts]
    assert said[0] == said[1] and "is NaN at element 0" in said[0] and said[0].endswith("True\n"), said
