# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Ranks as processes of mpirun that end, stop or fail: ends of runs are bounded."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import threading
import time

import meshwright as mw
import pytest
import torch
from harness import TIMEOUT, tool
from mpi_programs import BIN, NEEDS_MPI, Files, RankProgram, assert_same_bits, launch, mpirun, run_python
from safetensors.torch import load_file, save_file
from test_moved_rows import Experts, inputs
from test_ranks import Mesh, values

pytestmark = NEEDS_MPI

# A collective that takes long enough to strike in, on a mesh with two groups.
SLOW = """dist.mesh @m = <["x"=2, "y"=2]>
func.func @main(%a: tensor<1x1x1000xf32> {nn.input = "a", dist.global = tensor<2x2x1000xf32>, dist.sharding = #dist.sharding<@m, [{"x"}, {"y"}, {}]>})
  -> (tensor<1000xf32> {nn.output = "y", dist.global = tensor<1000xf32>, dist.sharding = #dist.sharding<@m, [{}]>}) attributes {dist.spmd = @m} {
  %p = nn.reduce sum %a dims [1] : (tensor<1x1x1000xf32>) -> tensor<1x1000xf32> loc("model.py":10:0)
  %0 = dist.all_reduce sum %p axes ["y"] : (tensor<1x1000xf32>) -> tensor<1x1000xf32> loc("model.py":11:0)
  %1 = nn.exp %0 : tensor<1x1000xf32> loc("model.py":12:0)
  %q = nn.reduce sum %1 dims [0] : (tensor<1x1000xf32>) -> tensor<1000xf32> loc("model.py":12:0)
  %2 = dist.all_reduce sum %q axes ["x"] : (tensor<1000xf32>) -> tensor<1000xf32> loc("model.py":13:0)
  return %2 : tensor<1000xf32>
}
"""


@pytest.fixture
def slow(tmp_path):
    return Files(tmp_path, SLOW, {"a": values(2, 2, 1000)})


def rank_of(process):
    try:
        words = pathlib.Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        name = pathlib.Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:
        return None
    rank = [w for w in words if w.startswith(b"OMPI_COMM_WORLD_RANK=")]
    return int(rank[0].split(b"=")[1]) if rank and name.startswith("sharding-run") else None


def read(file):
    """Of a thread that may end meanwhile."""
    try:
        return file.read_text()
    except OSError:
        return ""


def children(process):
    return [int(p) for file in pathlib.Path(f"/proc/{process}/task").glob("*/children") for p in read(file).split()]


def sleeps(process):
    """How often the threads of a process's rank and of its streams have gone to sleep; none before they are there."""
    counts = []
    for task in pathlib.Path(f"/proc/{process}/task").glob("*"):
        if re.match(r"mw (rank|\d+ stream)", read(task / "comm")):
            counted = re.search(r"^voluntary_ctxt_switches:\s*(\d+)", read(task / "status"), re.MULTILINE)
            counts += [int(counted[1])] if counted else []
    return sum(counts) if counts else None


def strike(files, rank, what, timeout, link="latency=4s", ranks=4, later=0):
    """Starts the program, sends a signal to a rank while it runs, or some seconds later, and waits; what it said."""
    out = files.folder / "out.safetensors"
    process = subprocess.Popen(mpirun(ranks, tool(), *files.arguments, "--backend=mpi", f"--outputs={out}"),
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env={**os.environ, "MESHWRIGHT_TIMEOUT": str(timeout), "MESHWRIGHT_LINK": link})
    try:
        struck = first = None
        end = time.monotonic() + TIMEOUT
        # On a slow link the rank sleeps again and again; before, it computes.
        while first is None or (sleeps(struck) or 0) < first + 10:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end
            time.sleep(0.02)
            struck = struck or next((p for p in children(process.pid) if rank_of(p) == rank), None)
            first = first if first is not None or struck is None else sleeps(struck)
        time.sleep(later)
        assert process.poll() is None, process.communicate()
        os.kill(struck, what)
        said = process.communicate(timeout=TIMEOUT)
    finally:
        process.kill()
        process.wait()
    assert process.returncode != 0, said
    # No process is left behind, and no half-written output.
    end = time.monotonic() + 60
    while pathlib.Path(f"/proc/{struck}").exists() and time.monotonic() < end:
        time.sleep(0.1)
    assert not pathlib.Path(f"/proc/{struck}").exists()
    assert {p.name for p in files.folder.iterdir()} <= {"in.safetensors", "m.mlir", "w.safetensors"}
    return "".join(said)


def test_an_end_while_outputs_are_written(tmp_path):
    files = Files(tmp_path, f"""func.func @main(%a: tensor<1x{2**12}xf32> {{nn.input = "a"}}) -> (tensor<{2**14}x{2**12}xf32> {{nn.output = "y"}}) {{
      %0 = nn.broadcast %a : (tensor<1x{2**12}xf32>) -> tensor<{2**14}x{2**12}xf32>
      return %0 : tensor<{2**14}x{2**12}xf32>
    }}""", {"a": values(1, 2**12)})
    there, out = {p.name for p in tmp_path.iterdir()}, tmp_path / "y.safetensors"
    command = mpirun(2, tool(), *files.arguments, "--parallelize=mesh=dp=2", "--backend=mpi", f"--outputs={out}")
    for _ in range(20):
        # The parent process of the tests may ignore the signal.
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True,
                                   preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
        writer = None
        while process.poll() is None and not any(tmp_path.glob(f"{out.name}.partial.*")):
            writer = writer or next((p for p in children(process.pid) if rank_of(p) == 0), None)
            time.sleep(0.002)
        if writer:
            with contextlib.suppress(ProcessLookupError):
                os.kill(writer, signal.SIGTERM)
        said = process.communicate(timeout=TIMEOUT)
        assert {p.name for p in tmp_path.iterdir()} <= {*there, out.name}, said
        if not out.exists():
            break
        # On a busy machine the signal may come when all is written.
        out.unlink()
    assert process.returncode != 0 and {p.name for p in tmp_path.iterdir()} == there, said


def test_a_killed_rank(slow):
    said = strike(slow, 2, signal.SIGKILL, 30)
    named = re.findall(r"rank 2: (.*)its process \(\d+\) has died", said)
    assert len(named) == 3 and all("dist.all_reduce" in n and "model.py:1" in n for n in named), said


@pytest.mark.parametrize("what, timeout, words", [
    (signal.SIGKILL, 60, r"rank 1: nn.send_rows.*its process \(\d+\) has died"),
    (signal.SIGSTOP, 12, r"rank 0: nn.send_rows.*timed out after 12 s waiting for rank 1\b"),
], ids=["killed", "stopped"])
@pytest.mark.parametrize("overlap", ["off", "on"])
def test_an_end_between_the_numbers_of_rows_and_the_rows(tmp_path, what, timeout, words, overlap):
    """Ranks have sent the numbers after 5 s, and wait until the rows have arrived after 10 s: on the compute stream,
    or on a stream of communication."""
    torch.manual_seed(0)
    module, given = Experts().eval(), inputs("random")
    plan = mw.from_torch(module, given).parallelize(mesh={"dp": 2, "ep": 1}, expert_parallel="dp", target="cpu",
                                                           overlap=overlap)
    text = plan.ir(phase="spmd")
    assert "dist.all_to_all" in text and "dist.all_gather" not in text
    files = Files(tmp_path, text, dict(zip(["x", "weights", "chosen"], given, strict=True)), dict(module.named_parameters()))
    begin = time.monotonic()
    said = strike(files, 1, what, timeout, "latency=5s", ranks=2, later=7)
    assert re.search(words, said), said
    assert time.monotonic() - begin < 60, said


def test_a_stopped_rank(slow):
    said = strike(slow, 1, signal.SIGSTOP, 8)
    assert re.search(r"rank 0: dist.all_reduce.*model.py:1.*timed out after 8 s waiting for rank 1\b", said), said
    assert len(re.findall(r"error: .*waiting for rank 1\b", said)) >= 3, said


@pytest.mark.parametrize("fault, words", [
    ("throw 3 model.py:11", r"rank 3: dist.all_reduce.*model.py:11.*a fault was asked for"),
    ("memory 1 all_reduce", r"rank 1: dist.all_reduce.*model.py:11.*"),
])
def test_a_rank_that_fails(slow, fault, words):
    out = slow.folder / "out.safetensors"
    done = launch(4, *slow.arguments, "--backend=mpi", f"--outputs={out}", env={"MESHWRIGHT_FAULT": fault})
    assert done.returncode == 1 and not out.exists()
    # Each rank says so that mpirun lets come to it: it ends all when the first has ended.
    assert 1 <= len(re.findall(f"error: {words}", done.stderr)) <= 4, done.stderr


def test_a_rank_that_never_comes_back(slow):
    out = slow.folder / "out.safetensors"
    done = launch(4, *slow.arguments, "--backend=mpi", f"--outputs={out}",
                  env={"MESHWRIGHT_FAULT": "stall 3 model.py:12", "MESHWRIGHT_TIMEOUT": "8"})
    assert done.returncode == 1 and not out.exists()
    # Where it is, and not the collective that it was in before.
    words = r"error: rank [012]: dist.all_reduce.*model.py:13.*timed out after 8 s waiting for rank 3 \(last at nn\..*model.py:12"
    assert len(re.findall(words, done.stderr)) >= 3, done.stderr


def test_a_rank_that_does_not_come_to_the_end(tmp_path):
    """Behind the last collective no rank waits for it."""
    program = RankProgram(Mesh([("x", 2)]), ["x"], [])
    program.line(f'dist.all_reduce sum {program.partial(4, 3, torch.float32)} axes ["x"] : (tensor<1x4x3xf32>) -> tensor<1x4x3xf32>')
    program.output(program.line("nn.neg %v1 : tensor<1x4x3xf32>"), (4, 3), (4, 3), "f32", [], [])
    files = Files(tmp_path, program.text(), program.inputs)
    done = launch(2, *files.arguments, "--backend=mpi", f"--outputs={tmp_path}/out.safetensors", "--timeout=3",
                  env={"MESHWRIGHT_FAULT": "stall 1 nn.neg"})
    assert done.returncode == 1 and not (tmp_path / "out.safetensors").exists()
    assert re.search(r"error: rank 1: nn.neg .*: does not end: other ranks have ended", done.stderr), done.stderr


@pytest.mark.parametrize("host", ["begins and ends MPI", "begins MPI"])
def test_mpi_that_somebody_else_has_begun(tmp_path, host):
    """As mpi4py does, which ends it before this library is told that the process ends."""
    done = run_python(tmp_path, 2, f"""
import atexit, ctypes
mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
mpi.MPI_Init_thread(None, None, 3, ctypes.byref(ctypes.c_int()))
plan = model.parallelize(mesh={{"tp": 2}})
x = torch.randn(3, 5, 12, generator=torch.Generator().manual_seed(0))
assert torch.equal(plan.run(x, backend="mpi")[0], plan.run(x)[0])
print("equal\\n", end="", flush=True)
atexit.register(mpi.MPI_Finalize if "ends" in "{host}" else lambda: None)
""")
    assert done.stdout.count("equal") == 2, done.stdout + done.stderr
    assert "MPI_FINALIZE" not in done.stderr or "ends" not in host, done.stderr
    if "ends" in host:
        assert done.returncode == 0, done.stderr


def test_a_process_that_ends_before_the_run(tmp_path):
    done = run_python(tmp_path, 2, """
import os, sys, torch
plan = model.parallelize(mesh={"tp": 2})
x = torch.randn(3, 5, 12)
plan.run(x, backend="mpi")
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    sys.exit(5)
try:
    plan.run(x, backend="mpi")
except mw.Error as error:
    print(error)
    sys.exit(7)
""")
    assert done.returncode in (5, 7)
    assert re.search(r"rank 1: its process \(\d+\) has ended before the run", done.stdout), done.stdout + done.stderr


def test_a_file_that_some_processes_lack(block):
    # It ends as the others begin to run: none of them may be left in MPI's end, which mpirun does not survive.
    folder = block.folder / "bundle"
    done = subprocess.run([BIN / "sharding-compile", block.arguments[0], f"--weights={block.folder}/w.safetensors",
                           "--parallelize=mesh=dp=2,tp=2", "-o", folder], capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "weights" / "rank-1.bin").unlink()
    out = block.folder / "out.safetensors"
    for _ in range(2):
        done = launch(4, folder, *block.arguments[1:2], "--backend=mpi", f"--outputs={out}")
        assert done.returncode == 1 and not out.exists(), done.stderr
        assert "weights/rank-1.bin: No such file or directory" in done.stderr
        # The file is rank 3's, too, which has the same part of each weight: either may be the first to end.
        assert re.search(r"rank [13]: its process \(\d+\) has ended before the run", done.stderr), done.stderr


def test_processes_with_other_bundles(block):
    folder, out = block.folder, block.folder / "out.safetensors"
    for name, seed in (("a", 0), ("b", 1)):
        save_file({k: v + seed for k, v in load_file(folder / "w.safetensors").items()}, folder / f"w{name}.safetensors")
        done = subprocess.run([BIN / "sharding-compile", block.arguments[0], f"--weights={folder}/w{name}.safetensors",
                               "--parallelize=mesh=tp=3", "-o", folder / name], capture_output=True, text=True, timeout=TIMEOUT)
        assert done.returncode == 0, done.stdout + done.stderr
    shutil.copytree(folder / "a", folder / "c")

    def run(other, *more):
        (folder / "start.sh").write_text(f"""#!/bin/sh
program={folder}/a
[ "$OMPI_COMM_WORLD_RANK" = 1 ] && program="{' '.join(map(str, (other, *more)))}"
exec {tool()} $program --inputs={folder}/in.safetensors --backend=mpi --outputs={out}
""")
        return subprocess.run(mpirun(3, "/bin/sh", folder / "start.sh"), capture_output=True, text=True, timeout=TIMEOUT)

    ids = {name: json.loads((folder / name / "manifest.json").read_text())["id"] for name in "ab"}
    for other, what in (((folder / "b",), f"bundle {ids['b']}"),
                        ((folder / "m.mlir", f"--weights={folder}/wa.safetensors", "--parallelize=mesh=tp=3"), "no bundle")):
        done = run(*other)
        assert done.returncode == 1 and not out.exists(), done.stderr
        said = re.findall(r"error: (.*)", done.stderr)
        # Each rank says so that mpirun lets come to it.
        assert 1 <= len(said) <= 3 and set(said) == {f"rank 1: expected to run bundle {ids['a']} as on rank 0, got {what}: "
                                                     "all processes run the same one, or copies of it"}, done.stderr
    done = run(folder / "c")
    assert done.returncode == 0, done.stderr
    block.arguments = [folder / "a", f"--inputs={folder}/in.safetensors"]
    assert_same_bits(load_file(out), block.local())


def test_a_process_that_stops_as_it_begins(block):
    (block.folder / "start.sh").write_text("""#!/bin/sh
[ "$OMPI_COMM_WORLD_RANK" = 2 ] && kill -STOP $$
exec "$@"
""")
    # mpirun decides what follows, and does not always end the job.
    process = subprocess.Popen(mpirun(4, "/bin/sh", block.folder / "start.sh", tool(), *block.arguments, "--backend=mpi",
                                      "--parallelize=mesh=dp=2,tp=2", "--timeout=2"), stderr=subprocess.PIPE, text=True)
    begun = []
    watch = threading.Timer(TIMEOUT, process.kill)
    watch.start()
    try:
        said = ""
        for line in process.stderr:
            said += line
            begun = children(process.pid) or begun
            if "another process has not come to MPI's beginning within 30 s" in line:
                break
        else:
            pytest.fail(said)
    finally:
        watch.cancel()
        for pid in [process.pid, *begun]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


#
# Two machines
#


@pytest.fixture
def two_machines(tmp_path):
    """Arguments and environment for mpirun with half of four ranks on another machine: a
    network namespace with a host name of its own, reached by a script instead of ssh."""
    name = f"mw{os.getpid() % 100000}"
    # A network of its own: others on this machine may be testing, too.
    network = f"10.{98 + os.getpid() // 256 % 64}.{os.getpid() % 256}"
    steps = [f"ip netns add {name}", f"ip link add {name}a type veth peer name {name}b", f"ip link set {name}b netns {name}",
             f"ip addr add {network}.1/24 dev {name}a", f"ip link set {name}a up",
             f"ip netns exec {name} ip addr add {network}.2/24 dev {name}b",
             f"ip netns exec {name} ip link set {name}b up", f"ip netns exec {name} ip link set lo up"]
    try:
        for step in steps:
            done = subprocess.run(step.split(), capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"no network namespaces here: {step}: {done.stderr.strip()}")
        agent = tmp_path / "agent"
        agent.write_text(f'#!/bin/bash\nhost=$1\nshift\nexec ip netns exec {name} unshare -u bash -c "hostname $host; $*"\n')
        agent.chmod(0o755)
        environment = {"OMPI_MCA_plm_rsh_agent": str(agent), "OMPI_MCA_oob_tcp_if_include": f"{name}a,{name}b",
                       "OMPI_MCA_btl_tcp_if_include": f"{network}.0/24", "MESHWRIGHT_TIMEOUT": "8"}

        def launch_there(*arguments, env=None):
            given = {**environment, **(env or {})}
            exported = [word for name in given if name.startswith("MESHWRIGHT_") for word in ("-x", name)]
            return subprocess.run(mpirun(4, "--host", f"{socket.gethostname()}:2,machinetwo:2", *exported, tool(), *arguments),
                                  capture_output=True, text=True, timeout=TIMEOUT, env={**os.environ, **given})
        yield launch_there
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
        subprocess.run(["ip", "link", "del", f"{name}a"], capture_output=True)


def test_two_machines(slow, two_machines):
    want = slow.local()
    done = two_machines(*slow.arguments, "--backend=mpi", f"--outputs={slow.folder}/mpi.safetensors")
    assert done.returncode == 0, done.stdout + done.stderr
    assert_same_bits(load_file(slow.folder / "mpi.safetensors"), want)
    # Open MPI may end processes that were connecting to one that is killed: one that is left reports it.
    for fault, least, words in (("kill 2 model.py:13", 1, r"rank 2: (dist.all_reduce.*has died|.*has died, rank . being at dist.all_reduce)"),
                                ("throw 1 model.py:13", 2, "rank 1: dist.all_reduce.*a fault was asked for"),
                                ("throw 3 model.py:13", 2, "rank 3: dist.all_reduce.*a fault was asked for"),
                                ("stall 3 model.py:13", 2, r"rank [012]: dist.all_reduce.*waiting for rank 3\b")):
        done = two_machines(*slow.arguments, "--backend=mpi", f"--outputs={slow.folder}/out.safetensors", env={"MESHWRIGHT_FAULT": fault})
        assert done.returncode != 0 and not (slow.folder / "out.safetensors").exists()
        assert len(re.findall(f"error: .*{words}", done.stderr)) >= least, done.stderr
