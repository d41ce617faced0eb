# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Ranks as processes of mpirun: the bits of `local`, and the errors of runs that end in order."""
import json
import os
import subprocess

import pytest
import torch
from harness import ELEMENT, TIMEOUT, tool
from mpi_programs import BIN, NEEDS_MPI, Files, RankProgram, assert_same_bits, launch, layout, run_python
from safetensors.torch import save_file
from test_parallelize import LOOKUP
from test_ranks import Mesh, spell, values

pytestmark = NEEDS_MPI


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


@pytest.mark.parametrize("weights", [True, False])
def test_a_bundle(block, weights):
    """Without weights, each process is given them."""
    folder, given = block.folder / "bundle", f"--weights={block.folder}/w.safetensors"
    done = subprocess.run([BIN / "sharding-compile", block.arguments[0], given if weights else "--without-weights",
                           "--parallelize=mesh=dp=2,tp=2", "-o", folder], capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stdout + done.stderr
    want = block.local("--parallelize=mesh=dp=2,tp=2")
    block.arguments = [folder, f"--inputs={block.folder}/in.safetensors", *[given] * (not weights)]
    assert_same_bits(block.mpi(4), want)
    assert_same_bits(block.local(), want)


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
# Errors
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
    assert done.returncode == 1 and "there is no mode 'swift': expected 'mpi' or 'mpi:fast'" in done.stderr
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
    assert "m.mlir:2" in done.stderr and "index 31 at position 0 is out of range: expected 0 to 30" in done.stderr, done.stderr


def test_a_failed_check_fails_everywhere(block):
    save_file({"y": torch.zeros(3, 7, 24)}, block.folder / "zeros.safetensors")
    done = launch(4, *block.arguments, "--parallelize=mesh=tp=4", "--backend=mpi", f"--reference={block.folder}/zeros.safetensors")
    assert done.returncode == 3 and "FAILED" in done.stdout, done.stdout + done.stderr


def test_outputs_that_cannot_be_written(block):
    done = launch(2, *block.arguments, "--parallelize=mesh=tp=2", "--backend=mpi", f"--outputs={block.folder}/absent/y.safetensors")
    assert done.returncode == 1 and "No such file or directory" in done.stderr
