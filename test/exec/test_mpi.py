# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Ranks as processes of mpirun: the bits of `local`, and ends that are bounded."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
import torch
from harness import ELEMENT, TIMEOUT, tool, type_of
from safetensors.torch import load_file, save_file
from test_parallelize import LOOKUP
from test_ranks import Mesh, spell, values

BIN = pathlib.Path(tool()).parent
BACKEND = next(iter(BIN.parent.glob("lib*/libMeshwrightBackend_mpi.so")), None)
pytestmark = [
    pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed (openmpi-bin)"),
    pytest.mark.skipif(BACKEND is None, reason="built without MPI: no libMeshwrightBackend_mpi.so"),
]


def mpirun(ranks, *command):
    return [str(BIN / "meshwright-mpirun"), "-np", str(ranks), *map(str, command)]


def launch(ranks, *arguments, env=None, timeout=TIMEOUT):
    return subprocess.run(mpirun(ranks, tool(), *arguments), capture_output=True, text=True,
                          timeout=timeout, env={**os.environ, **(env or {})})


def assert_same_bits(got, want):
    assert got.keys() == want.keys()
    for name in want:
        assert got[name].dtype == want[name].dtype and got[name].shape == want[name].shape, name
        assert torch.equal(got[name].view(torch.uint8), want[name].view(torch.uint8)), name


class Files:
    """A model with its inputs and weights in a folder."""

    def __init__(self, folder, text, inputs, weights=None):
        self.folder = folder
        (folder / "m.mlir").write_text(text)
        save_file({k: v.contiguous().clone() for k, v in inputs.items()}, folder / "in.safetensors")
        self.arguments = [folder / "m.mlir", f"--inputs={folder}/in.safetensors"]
        if weights:
            save_file({k: v.contiguous().clone() for k, v in weights.items()}, folder / "w.safetensors")
            self.arguments.append(f"--weights={folder}/w.safetensors")

    def local(self, *more):
        done = subprocess.run([tool(), *map(str, self.arguments), *more,
                               f"--outputs={self.folder}/local.safetensors"], capture_output=True, text=True, timeout=TIMEOUT)
        assert done.returncode == 0, done.stdout + done.stderr
        return load_file(self.folder / "local.safetensors")

    def mpi(self, ranks, *more, env=None, backend="mpi"):
        done = launch(ranks, *self.arguments, *more, f"--backend={backend}",
                      f"--outputs={self.folder}/mpi.safetensors", env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        self.said = done.stdout
        return load_file(self.folder / "mpi.safetensors")


def layout(*dims, mesh="m"):
    return f"#dist.sharding<@{mesh}, [" + ", ".join("{" + spell(axes)[1:-1] + "}" for axes in dims) + "]>"


class RankProgram:
    """Collectives over `group`; the ranks of the other axes, `rest`, have rows of their own."""

    def __init__(self, mesh, group, rest):
        self.mesh, self.group, self.rest = mesh, group, rest
        self.size = len(mesh.group(0, group))
        self.rows = mesh.ranks // self.size
        self.inputs, self.arguments, self.lines, self.results = {}, [], [], []

    def input(self, whole, local, *dims):
        name = f"a{len(self.inputs)}"
        self.arguments.append(f'%{name}: {local} {{nn.input = "{name}", dist.global = {type_of(whole)}, dist.sharding = {layout(*dims)}}}')
        self.inputs[name] = whole
        return f"%{name}"

    def partial(self, a, b, dtype, reduction="sum"):
        """A term of a sum on each rank of the group: [1, a, b]."""
        kind = ELEMENT[dtype]
        whole = (values(self.size, self.rows, a, b, seed=len(self.inputs)) * 3).to(dtype)
        x = self.input(whole, f"tensor<1x1x{a}x{b}x{kind}>", self.group, self.rest, [], [])
        return self.line(f"nn.reduce {reduction} {x} dims [0] : (tensor<1x1x{a}x{b}x{kind}>) -> tensor<1x{a}x{b}x{kind}>")

    def sharded(self, a, b, d, dtype):
        """Chunks of [a, b] along dimension d, padded where that does not divide."""
        local = [a, b]
        local[d] = -(-local[d] // self.size)
        dims = [self.rest, [], []]
        dims[1 + d] = self.group
        whole = (values(self.rows, a, b, seed=len(self.inputs)) * 3).to(dtype)
        return self.input(whole, f"tensor<1x{local[0]}x{local[1]}x{ELEMENT[dtype]}>", *dims), local

    def line(self, text, results=1):
        self.lines.append(f"%v{len(self.lines)}{f':{results}' if results > 1 else ''} = {text}")
        return f"%v{len(self.lines) - 1}"

    def output(self, value, local, shape, kind, *dims):
        name, whole = f"r{len(self.results)}", "x".join(map(str, (self.rows, *shape)))
        local = f"tensor<1x{local[0]}x{local[1]}x{kind}>"
        self.results.append((value, local, f'{local} {{nn.output = "{name}", dist.global = tensor<{whole}x{kind}>, '
                                           f'dist.sharding = {layout(self.rest, *dims)}}}'))

    def text(self):
        body = "\n  ".join(self.lines)
        return (f"{self.mesh.definition()}func.func @main({', '.join(self.arguments)}) -> ({', '.join(r[2] for r in self.results)}) "
                f"attributes {{dist.spmd = @m}} {{\n  {body}\n  return {', '.join(r[0] for r in self.results)} : "
                f"{', '.join(r[1] for r in self.results)}\n}}\n")


def collectives(mesh, group, rest):
    """Every kind, on types that are added in different ways, with and without padding."""
    program = RankProgram(mesh, group, rest)
    n, at = program.size, spell(group)
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        kind = ELEMENT[dtype]
        for a, b in ((2 * n, 3 * n), (2 * n + 1, 3 * n - 1))[:1 if dtype == torch.bfloat16 else 2]:
            whole = f"tensor<1x{a}x{b}x{kind}>"
            for reduction in ("sum", "max"):
                x = program.partial(a, b, dtype, reduction)
                r = program.line(f"dist.all_reduce {reduction} {x} axes {at} : ({whole}) -> {whole}")
                program.output(r, (a, b), (a, b), kind, [], [])
            x = program.partial(a, b, dtype)
            for permutation in ("shift 1", "pairs [" + ", ".join(f"[{i}, {n - 1 - i}]" for i in range(n)) + "]"):
                r = program.line(f"dist.permute {x} axes {at} {permutation} : ({whole}) -> {whole}")
                r = program.line(f"dist.all_reduce sum {r} axes {at} : ({whole}) -> {whole}")
                program.output(r, (a, b), (a, b), kind, [], [])
            for d in (0, 1):
                x, local = program.sharded(a, b, d, dtype)
                part = f"tensor<1x{local[0]}x{local[1]}x{kind}>"
                padded = [a, b]
                padded[d] = local[d] * n
                large = f"tensor<1x{padded[0]}x{padded[1]}x{kind}>"
                r = program.line(f"dist.all_gather {x} axes {at} dims [{1 + d}] : ({part}) -> {large}")
                r = program.line(f"nn.slice {r} starts [0, 0, 0] limits [1, {a}, {b}] strides [1, 1, 1] : ({large}) -> {whole}")
                program.output(r, (a, b), (a, b), kind, [], [])
                dims = [[], []]
                dims[d] = group
                x = program.partial(a, b, dtype)
                if padded != [a, b]:
                    x = program.line(f"dist.pad {x} dims [{1 + d}] : ({whole}) -> {large}")
                r = program.line(f"dist.reduce_scatter sum {x} axes {at} dims [{1 + d}] : ({large}) -> {part}")
                program.output(r, local, (a, b), kind, *dims)
                if a % n or b % n:
                    continue
                x, _ = program.sharded(a, b, d, dtype)
                moved = [a, b]
                moved[1 - d] //= n
                r = program.line(f"dist.all_to_all {x} axes {at} from [{1 + d}] to [{2 - d}] : ({part}) -> "
                                 f"tensor<1x{moved[0]}x{moved[1]}x{kind}>")
                program.output(r, moved, (a, b), kind, *dims[::-1])
    return program


@pytest.mark.parametrize("axes, group, rest", [
    ([("x", 2)], ["x"], []), ([("x", 3)], ["x"], []), ([("x", 2), ("y", 2)], ["x"], ["y"]),
    ([("x", 2), ("y", 2)], ["y", "x"], []), ([("x", 4)], [("x", 1, 2)], [("x", 2, 2)]),
    ([("x", 4)], [("x", 2, 2)], [("x", 1, 2)]),
], ids=["2", "3", "2x2 major", "2x2 all, reversed", "major part of 4", "minor part of 4"])
def test_collectives_have_the_bits_of_local(tmp_path, axes, group, rest):
    program = collectives(Mesh(axes), group, rest)
    files = Files(tmp_path, program.text(), program.inputs)
    want = files.local()
    assert_same_bits(files.mpi(program.mesh.ranks), want)
    fast = files.mpi(program.mesh.ranks, backend="mpi:fast")
    for name, tensor in want.items():
        assert torch.allclose(fast[name].double(), tensor.double(), rtol=1e-6, atol=1e-5), name


def test_redistribute(tmp_path):
    """Several dimensions at once, on sizes that do not divide."""
    a, b, c = layout(["x"], [], []), layout([], ["y", "x"], []), layout([], ["x"], ["y"])
    text = f"""dist.mesh @m = <["x"=2, "y"=2]>
    func.func @main(%x: tensor<4x8x6xf32> {{nn.input = "x", dist.global = tensor<7x8x6xf32>, dist.sharding = {a}}})
      -> (tensor<7x2x6xf32> {{nn.output = "y", dist.global = tensor<7x8x6xf32>, dist.sharding = {b}}},
          tensor<7x4x3xf32> {{nn.output = "z", dist.global = tensor<7x8x6xf32>, dist.sharding = {c}}}) attributes {{dist.spmd = @m}} {{
      %l = dist.all_gather %x axes ["x"] dims [0] : (tensor<4x8x6xf32>) -> tensor<8x8x6xf32>
      %g = nn.slice %l starts [0, 0, 0] limits [7, 8, 6] strides [1, 1, 1] : (tensor<8x8x6xf32>) -> tensor<7x8x6xf32>
      %s = dist.slice %g axes ["y", "x"] dims [1] : (tensor<7x8x6xf32>) -> tensor<7x2x6xf32>
      %r = dist.redistribute %s from [{b}] to [{c}] : (tensor<7x2x6xf32>) -> tensor<7x4x3xf32>
      return %s, %r : tensor<7x2x6xf32>, tensor<7x4x3xf32>
    }}"""
    x = values(7, 8, 6)
    files = Files(tmp_path, text, {"x": x})
    want = files.local()
    assert torch.equal(want["y"], x) and torch.equal(want["z"], x)
    assert_same_bits(files.mpi(4), want)


def test_redistribute_between_cuts_that_do_not_fit(tmp_path):
    """Six ranks as 2 x 3 and as 3 x 2, each side padded for itself."""
    a = '#dist.sharding<@m, [{"x":(1)2}, {"x":(2)3}]>'
    b = '#dist.sharding<@m, [{"x":(1)3}, {"x":(3)2}]>'
    text = f"""dist.mesh @m = <["x"=6]>
    func.func @main(%x: tensor<4x2xf32> {{nn.input = "x", dist.global = tensor<7x5xf32>, dist.sharding = {a}}})
      -> (tensor<3x3xf32> {{nn.output = "y", dist.global = tensor<7x5xf32>, dist.sharding = {b}}}) attributes {{dist.spmd = @m}} {{
      %r = dist.redistribute %x from [{a}] to [{b}] : (tensor<4x2xf32>) -> tensor<3x3xf32>
      return %r : tensor<3x3xf32>
    }}"""
    x = values(7, 5)
    files = Files(tmp_path, text, {"x": x})
    want = files.local()
    assert torch.equal(want["y"], x)
    assert_same_bits(files.mpi(6), want)


def test_several_tensors_in_one_launch(tmp_path):
    program = RankProgram(Mesh([("x", 2), ("y", 2)]), ["x", "y"], [])
    x, y = program.partial(4, 3, torch.float32), program.partial(1, 5, torch.int64)
    types = "(tensor<1x4x3xf32>, tensor<1x1x5xi64>) -> (tensor<1x4x3xf32>, tensor<1x1x5xi64>)"
    r = program.line(f'dist.all_reduce sum {x}, {y} axes ["x", "y"] : {types}', results=2)
    program.output(f"{r}#0", (4, 3), (4, 3), "f32", [], [])
    program.output(f"{r}#1", (1, 5), (1, 5), "i64", [], [])
    files = Files(tmp_path, program.text(), program.inputs)
    # A time that no clock can count is as good as none.
    assert_same_bits(files.mpi(4, "--timeout=1e300"), files.local("--timeout=1e300"))


ATTENTION = """func.func @main(%q: tensor<1x4x14x8xf32> {nn.input = "q"}, %k: tensor<1x4x14x8xf32> {nn.input = "k"},
    %v: tensor<1x4x14x8xf32> {nn.input = "v"}) -> (tensor<1x4x14x8xf32> {nn.output = "y"}) {
  %0 = nn.attention %q, %k, %v scale 0.3 {causal, nn.id = 0 : i64} : (tensor<1x4x14x8xf32>, tensor<1x4x14x8xf32>, tensor<1x4x14x8xf32>) -> tensor<1x4x14x8xf32>
  return %0 : tensor<1x4x14x8xf32>
}
"""


@pytest.mark.parametrize("mesh, axes", [
    ("ring=4", "ring=ring"), ("ring=3", "ring=ring"), ("ring=2,ulysses=2", "ring=ring ulysses=ulysses"),
])
def test_a_ring_that_leaves_ranks_out(tmp_path, mesh, axes):
    ranks = 3 if mesh == "ring=3" else 4
    files = Files(tmp_path, ATTENTION, {name: values(1, 4, 14, 8, seed=i) for i, name in enumerate("qkv")})
    for overlap in ("on", "off"):
        parallel = f"--parallelize=mesh={mesh} context-parallel={{{axes} order=contiguous}} overlap={overlap}"
        want = files.local(parallel, "--check", f"--report={tmp_path}/local.json")
        assert_same_bits(files.mpi(ranks, parallel, f"--report={tmp_path}/mpi.json"), want)
        for backend in ("local", "mpi"):
            report = json.loads((tmp_path / f"{backend}.json").read_text())
            seen = report["run"]["communication"]
            assert seen["bytes_sent_by_all"] == report["bytes_of_all_ranks"] > 0
            assert seen["bytes_sent"] == report["bytes_per_rank"]


BLOCK = """func.func @main(%x: tensor<3x7x24xf32> {nn.input = "x"},
    %n: tensor<24xf32> {nn.parameter = "n"}, %up: tensor<50x24xf32> {nn.parameter = "up"},
    %upb: tensor<50xf32> {nn.parameter = "upb"}, %down: tensor<24x50xf32> {nn.parameter = "down"},
    %downb: tensor<24xf32> {nn.parameter = "downb"}) -> (tensor<3x7x24xf32> {nn.output = "y"}) {
  %0 = nn.rms_norm %x weight %n eps 1.0e-6 {nn.id = 0 : i64} : (tensor<3x7x24xf32>, tensor<24xf32>) -> tensor<3x7x24xf32>
  %1 = nn.linear %0, %up bias %upb {nn.id = 1 : i64} : (tensor<3x7x24xf32>, tensor<50x24xf32>, tensor<50xf32>) -> tensor<3x7x50xf32>
  %2 = nn.gelu %1 {nn.id = 2 : i64} : tensor<3x7x50xf32>
  %3 = nn.linear %2, %down bias %downb {nn.id = 3 : i64} : (tensor<3x7x50xf32>, tensor<24x50xf32>, tensor<24xf32>) -> tensor<3x7x24xf32>
  %4 = nn.add %x, %3 {nn.id = 4 : i64} : (tensor<3x7x24xf32>, tensor<3x7x24xf32>) -> tensor<3x7x24xf32>
  return %4 : tensor<3x7x24xf32>
}
"""


@pytest.fixture
def block(tmp_path):
    shapes = {"n": (24,), "up": (50, 24), "upb": (50,), "down": (24, 50), "downb": (24,)}
    return Files(tmp_path, BLOCK, {"x": values(3, 7, 24)},
                 {k: values(*s, seed=i) for i, (k, s) in enumerate(shapes.items())})


@pytest.mark.parametrize("ranks, options", [
    (2, "mesh=tp=2 sequence-parallel=on"), (3, "mesh=tp=3 sequence-parallel=off"),
    (4, "mesh=tp=4 sequence-parallel=on"), (4, "mesh=dp=2,tp=2"),
])
def test_a_parallelized_block(block, ranks, options):
    parallel = f"--parallelize={options}"
    want = block.local(parallel)
    got = block.mpi(ranks, parallel, "--check", f"--reference={block.folder}/local.safetensors", "--tolerance=1e-5")
    assert_same_bits(got, want)
    # Each of the processes checked; one of them says so.
    assert block.said.count("y: differs by 0") == 1, block.said


def test_a_bundle(block):
    folder = block.folder / "bundle"
    done = subprocess.run([BIN / "sharding-compile", block.arguments[0], f"--weights={block.folder}/w.safetensors",
                           "--parallelize=mesh=dp=2,tp=2", "-o", folder], capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stdout + done.stderr
    block.arguments = [folder, f"--inputs={block.folder}/in.safetensors"]
    assert_same_bits(block.mpi(4), block.local())


PYTHON = """
import meshwright as mw, torch, sys, resource
torch.manual_seed(0)
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.head = torch.nn.Linear(12, 30), torch.nn.Linear(30, 12), torch.nn.Linear(12, 7)
    def forward(self, x):
        x = x + self.down(torch.nn.functional.gelu(self.up(x)))
        return self.head(x), x
model = mw.from_torch(Block().eval(), (torch.randn(3, 5, 12),))
"""


def run_python(folder, ranks, body, env=None, timeout=TIMEOUT):
    (folder / "script.py").write_text(PYTHON + body)
    return subprocess.run(mpirun(ranks, sys.executable, folder / "script.py"), capture_output=True, text=True,
                          timeout=timeout, env={**os.environ, **(env or {})})


def test_python_has_the_outputs_on_every_process(tmp_path):
    done = run_python(tmp_path, 4, """
for mesh in ({"tp": 4}, {"dp": 2, "tp": 2}):
    plan = model.parallelize(mesh=mesh)
    for seed in range(3):
        x = torch.randn(3, 5, 12, generator=torch.Generator().manual_seed(seed))
        got, want = plan.run(x, backend="mpi"), plan.run(x)
        assert all(torch.equal(a, b) for a, b in zip(got, want))
print("equal\\n", end="")
""")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("equal") == 4


def test_a_thousand_plans_leave_nothing_behind(tmp_path):
    done = run_python(tmp_path, 2, """
import gc, os, resource, time, torch
x = torch.randn(3, 5, 12)
def held():
    gc.collect()
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), int(open("/proc/self/statm").read().split()[1]) // 256
def held_after(before):
    # A thread is listed for a moment after it was joined.
    end = time.monotonic() + 60
    while held()[1] > before[1] and time.monotonic() < end:
        time.sleep(0.01)
    return held()
plan = model.parallelize(mesh={"tp": 2})
for i in range(1000):
    plan.run(x, backend="mpi")
    if i == 100:
        before = held()
after = held_after(before)
print(f"runs {before} {after}\\n", end="")
assert after[0] <= before[0] and after[1] <= before[1] and after[2] < before[2] + 8
for i in range(40):
    model.parallelize(mesh={"tp": 2}).run(x, backend="mpi")
    if i == 10:
        before = held()
after = held_after(before)
print(f"plans {before} {after}\\n", end="")
assert after[0] <= before[0] and after[1] <= before[1] and after[2] < before[2] + 40
""")
    assert done.returncode == 0, done.stdout + done.stderr


#
# Errors and faults
#


def test_the_number_of_processes(block):
    done = launch(2, *block.arguments, "--parallelize=mesh=tp=4", "--backend=mpi")
    assert done.returncode == 1
    assert "the program has 4 ranks, and there are 2 processes: start it by 'mpirun -np 4 ...'" in done.stderr
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMI"))}
    done = subprocess.run([tool(), *map(str, block.arguments), "--parallelize=mesh=tp=4", "--backend=mpi"],
                          capture_output=True, text=True, timeout=TIMEOUT, env=environment)
    assert done.returncode == 1
    assert "the program has 4 ranks, and there is 1 process: start it by 'mpirun -np 4 ...'" in done.stderr


def test_modes(block):
    done = launch(2, *block.arguments, "--parallelize=mesh=tp=2", "--backend=mpi:swift")
    assert done.returncode == 1 and "there is no mode 'swift', expected 'mpi' or 'mpi:fast'" in done.stderr
    done = launch(2, *block.arguments, "--parallelize=mesh=tp=2", "--backend=mpi", env={"MESHWRIGHT_MPI_DETERMINISTIC": "yes"})
    assert done.returncode == 1 and "expected 0 or 1" in done.stderr


def test_check_with_the_model_as_it_was(block):
    done = launch(2, *block.arguments, "--parallelize=mesh=tp=2", "--backend=mpi", "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("output 'y' differs by") == 1, done.stderr


def test_trace(block):
    done = launch(2, *block.arguments, "--parallelize=mesh=tp=2 sequence-parallel=off", "--backend=mpi",
                  f"--trace={block.folder}/t.json")
    assert done.returncode == 0, done.stdout + done.stderr
    events = json.loads((block.folder / "t.json").read_text())["traceEvents"]
    # Rows of all ranks in one file.
    for rank in range(2):
        mine = [e for e in events if e["pid"] == rank and e["ph"] == "X"]
        assert sum(e["cat"] == "gemm" for e in mine) == 2, mine
        assert sum(e["cat"] == "collective" for e in mine) == 1, mine


def test_report(block):
    done = launch(2, *block.arguments, "--parallelize=mesh=tp=2 sequence-parallel=off", "--backend=mpi",
                  f"--report={block.folder}/r.json")
    assert done.returncode == 0, done.stdout + done.stderr
    measured = json.loads((block.folder / "r.json").read_text())["run"]
    assert measured["ranks"] == 2 and measured["communication"]["collectives"] == 1
    assert measured["arena"]["seen"] == measured["arena"]["planned"] > 0


def test_check_finite(block):
    arguments = ["--parallelize=mesh=tp=2", "--backend=mpi", "--check-finite", f"--outputs={block.folder}/y.safetensors"]
    assert launch(2, *block.arguments, *arguments).returncode == 0
    (block.folder / "y.safetensors").unlink()
    x = values(3, 7, 24)
    x[0, 0, 0] = float("nan")
    save_file({"x": x}, block.folder / "in.safetensors")
    done = launch(2, *block.arguments, *arguments)
    assert done.returncode == 1 and "is NaN at element" in done.stderr, done.stderr
    assert not (block.folder / "y.safetensors").exists()


def test_an_index_that_no_rank_has(tmp_path):
    files = Files(tmp_path, LOOKUP, {"i": torch.full((3, 5), 31)}, {"e": values(31, 8)})
    done = launch(2, *files.arguments, "--parallelize=mesh=tp=2", "--backend=mpi")
    assert done.returncode == 1
    assert "m.mlir:2" in done.stderr and "index 31 at position 0 is out of range, expected 0 to 30" in done.stderr, done.stderr


def test_a_failed_check_fails_everywhere(block):
    save_file({"y": torch.zeros(3, 7, 24)}, block.folder / "zeros.safetensors")
    done = launch(4, *block.arguments, "--parallelize=mesh=tp=4", "--backend=mpi", f"--reference={block.folder}/zeros.safetensors")
    assert done.returncode == 3 and "FAILED" in done.stdout, done.stdout + done.stderr


def test_outputs_that_cannot_be_written(block):
    done = launch(2, *block.arguments, "--parallelize=mesh=tp=2", "--backend=mpi", f"--outputs={block.folder}/absent/y.safetensors")
    assert done.returncode == 1 and "No such file or directory" in done.stderr


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
    """How often the thread of a process's rank has gone to sleep; none before it is there."""
    for task in pathlib.Path(f"/proc/{process}/task").glob("*"):
        if read(task / "comm").startswith("mw rank"):
            counted = re.search(r"^voluntary_ctxt_switches:\s*(\d+)", read(task / "status"), re.MULTILINE)
            return int(counted[1]) if counted else None
    return None


def strike(files, rank, what, timeout, link="latency=4s"):
    """Starts the program, sends a signal to a rank while it runs, and waits; what it said."""
    out = files.folder / "out.safetensors"
    process = subprocess.Popen(mpirun(4, tool(), *files.arguments, "--backend=mpi", f"--outputs={out}"),
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
    assert sorted(p.name for p in files.folder.iterdir()) == ["in.safetensors", "m.mlir"]
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
        assert 1 <= len(said) <= 3 and set(said) == {f"rank 1 runs {what}, expected bundle {ids['a']} as on rank 0: "
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
