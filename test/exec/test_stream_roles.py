# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Collectives of several roles in flight over the same ranks, on streams of their own and with random delays, give
the bits of the same collectives one by one."""
import os
import pathlib
import random
import subprocess

import pytest
import test_gpu_running
import torch
from harness import TIMEOUT, tool
from mpi_programs import NEEDS_MPI, assert_same_bits, mpirun
from safetensors.torch import load_file, save_file
from test_gpu_processes import environment

ROLES = ("data", "weights", "gradients", "saved")


class Shapes:
    """A rank holds n x n of 2n x 2n elements. `local` copies up to 16 KiB and exchanges larger tensors in place."""

    def __init__(self, n):
        self.part, self.rows, self.columns = f"tensor<{n}x{n}xf32>", f"tensor<{n}x{2 * n}xf32>", f"tensor<{2 * n}x{n}xf32>"
        self.vector, self.whole = f"tensor<{2 * n}xf32>", f"tensor<{2 * n}x{2 * n}xf32>"
        #: The ops before the last collective, that collective, and the type and the layout of its result.
        self.ways = [
            ((), 'dist.all_gather {} axes ["x"] dims [1]', self.rows, '[{"y"}, {}]'),
            ((), 'dist.all_gather {} axes ["y"] dims [0]', self.columns, '[{}, {"x"}]'),
            ((), 'dist.all_to_all {} axes ["x"] from [1] to [0]', f"tensor<{n // 2}x{2 * n}xf32>", '[{"y", "x"}, {}]'),
            (("linear",), 'dist.all_reduce sum {} axes ["x"]', self.rows, '[{"y"}, {}]'),
            (("linear",), 'dist.reduce_scatter sum {} axes ["x"] dims [1]', self.part, '[{"y"}, {"x"}]'),
            (("linear", "reduce"), 'dist.all_reduce sum {} axes ["y", "x"]', self.vector, "[{}]"),
            (("permute",), 'dist.permute {} axes ["y"] shift 1', self.part, '[{"y"}, {"x"}]'),
        ]


def kernel(to, operands, op, result):
    names = [f"%k{i}" for i in range(len(operands))]
    block = ", ".join(f"{name}: {kind}" for name, (_, kind) in zip(names, operands, strict=True))
    values, kinds = zip(*operands, strict=True)
    return (f"  {to} = rt.kernel {', '.join(values)} : ({', '.join(kinds)}) -> {result} {{\n  ^bb0({block}):\n"
            f"    %r = {op.format(*names)} : ({', '.join(kinds)}) -> {result}\n    rt.yield %r : {result}\n  }}\n")


def collective(to, value, kind, op, result, role):
    """Its start and its wait."""
    words = "" if role == "data" else f" role {role}"
    return [f"  {to}f = rt.start {value} stream {1 + ROLES.index(role)} : ({kind}) -> !rt.future<{result}> {{\n"
            f"  ^bb0(%k: {kind}):\n    %r = {op.format('%k')}{words} : ({kind}) -> {result}\n    rt.yield %r : {result}\n  }}\n",
            f"  {to} = rt.wait {to}f : !rt.future<{result}>\n"]


def chain(shapes, way, name, role, argument):
    """The launches and waits of a way, in order."""
    before, op, result, _ = way
    value, kind = name + "0", shapes.part
    steps = [kernel(value, [(argument, kind), ("%x", kind)], "nn.mul {}, {}", kind)]
    for step in before:
        to = value + "0"
        if step == "linear":
            steps.append(kernel(to, [(value, kind), ("%w", shapes.columns)], "nn.linear {}, {}", shapes.rows))
            kind = shapes.rows
        elif step == "reduce":
            steps.append(kernel(to, [(value, kind)], "nn.reduce sum {} dims [0]", shapes.vector))
            kind = shapes.vector
        else:
            steps += collective(to, value, kind, op, kind, role)
        value = to
    return steps + collective(name, value, kind, op, result, role)


def declare(kind, layout, whole, key):
    return f"{kind} {{dist.sharding = #dist.sharding<@mesh, {layout}>, dist.global = {whole}, {key}}}"


def write(folder, seed, n, count=24):
    """Writes two programs of the same random collectives: in `many` they begin and are waited for in a random order,
    in `one` each is waited for where it begins."""
    shapes, numbers = Shapes(n), random.Random(seed)
    ways = [numbers.choice(shapes.ways) for _ in range(count)]
    chains = [chain(shapes, way, f"%v{i}_", numbers.choice(ROLES), numbers.choice(["%x", "%z"])) for i, way in enumerate(ways)]
    order = [i for i, steps in enumerate(chains) for _ in steps]
    numbers.shuffle(order)
    left = [iter(steps) for steps in chains]
    bodies = {"many": "".join(next(left[i]) for i in order), "one": "".join(step for steps in chains for step in steps)}
    arguments = ", ".join(f"%{name}: " + declare(kind, layout, shapes.whole, f'nn.input = "{name}"') for name, kind, layout in (
        ("x", shapes.part, '[{"y"}, {"x"}]'), ("z", shapes.part, '[{"y"}, {"x"}]'), ("w", shapes.columns, '[{}, {"x"}]')))
    results = ", ".join(declare(kind, layout, kind if kind == shapes.vector else shapes.whole, f'nn.output = "o{i}"')
                        for i, (_, _, kind, layout) in enumerate(ways))
    names, kinds = ", ".join(f"%v{i}_" for i in range(count)), ", ".join(way[2] for way in ways)
    for name, body in bodies.items():
        (folder / f"{name}.mlir").write_text(
            f'dist.mesh @mesh = <["y"=2, "x"=2]>\nfunc.func @main({arguments}) -> ({results})\n'
            f"    attributes {{dist.spmd = @mesh}} {{\n{body}  return {names} : {kinds}\n}}\n")
        tools(folder, "sharding-opt", f"{name}.mlir", "--plan-buffers", "--verify-placement", "-o", f"{name}.rt.mlir")
    generator = torch.Generator().manual_seed(seed)
    save_file({name: torch.randn(2 * n, 2 * n, generator=generator) for name in "xzw"}, folder / "in.safetensors")


def tools(folder, name, *arguments, before=(), env=None):
    command = [*before, pathlib.Path(tool()).with_name(name), *arguments]
    done = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True, text=True, timeout=TIMEOUT, env=env)
    assert done.returncode == 0, done.stdout + done.stderr


def run(folder, program, *arguments, before=(), runs=1, env=None):
    """The outputs of a number of runs, which have the same bits."""
    tools(folder, "sharding-run", program, "--inputs=in.safetensors", "--outputs=out.safetensors", *arguments, before=before,
          env={**(env or os.environ), "MESHWRIGHT_RUNS": str(runs)})
    return load_file(folder / "out.safetensors")


def most_in_flight(text):
    """The most streams that have a collective in flight at once."""
    most, flying = 0, {}
    for line in text.splitlines():
        words = line.split()
        if "rt.start" in line:
            flying[words[0]] = words[words.index("stream") + 1]
            most = max(most, len(set(flying.values())))
        elif "rt.wait" in line:
            del flying[words[3]]
    return most


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("n", [8, 96])
def test_local(tmp_path, n, seed):
    write(tmp_path, seed, n)
    assert most_in_flight((tmp_path / "many.mlir").read_text()) == len(ROLES)
    want = run(tmp_path, "one.rt.mlir")
    assert_same_bits(run(tmp_path, "many.rt.mlir", "--link=jitter=400us", runs=20), want)
    assert_same_bits(run(tmp_path, "many.rt.mlir", runs=20), want)


@NEEDS_MPI[0]
@NEEDS_MPI[1]
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("n", [8, 96])
@pytest.mark.parametrize("backend", ["mpi", "mpi:fast"])
def test_mpi(tmp_path, backend, n, seed):
    """Groups make their communicators at random times, too."""
    write(tmp_path, seed, n)
    want = run(tmp_path, "one.rt.mlir", f"--backend={backend}", before=mpirun(4))
    jitter = [f"--backend={backend}", "--link=jitter=400us"]
    assert_same_bits(run(tmp_path, "many.rt.mlir", *jitter, before=mpirun(4), runs=10), want)
    if backend == "mpi":
        assert_same_bits(want, run(tmp_path, "one.rt.mlir"))


@test_gpu_running.pytestmark
@pytest.mark.parametrize("backend", ["nccl", "nccl:peer"])
@pytest.mark.parametrize("seed", range(3))
def test_nccl(tmp_path, seed, backend):
    """The stand-in delays streams at random, and a device runs one kernel of NCCL at a time: devices that begin those
    of several communicators in different orders wait without end. The backend sets the order that it needs."""
    write(tmp_path, seed, 8)
    outputs = []
    for program, seeds in (("one", "0"), ("many", "0123")):
        tools(tmp_path, "sharding-compile", f"{program}.mlir", "--target=gpu:sm_90a", "-o", program)
        for fakegpu in seeds:
            variables = {"FAKEGPU_SEED": fakegpu, "FAKEGPU_NCCL_DEADLINE": "20000", "NCCL_LAUNCH_ORDER_IMPLICIT": "0"}
            outputs.append(run(tmp_path, program, f"--backend={backend}", runs=4, env=environment(variables)))
    for output in outputs[1:]:
        assert_same_bits(output, outputs[0])
