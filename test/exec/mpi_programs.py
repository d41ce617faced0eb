# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Programs that tests run on processes of mpirun, and helpers to start them."""
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import torch
from harness import ELEMENT, TIMEOUT, tool, type_of
from safetensors.torch import load_file, save_file
from test_ranks import spell, values

BIN = pathlib.Path(tool()).parent
BACKEND = next(iter(BIN.parent.glob("lib*/libMeshwrightBackend_mpi.so")), None)
#: What the tests of this backend need.
NEEDS_MPI = [
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


def make_block(folder):
    shapes = {"n": (24,), "up": (50, 24), "upb": (50,), "down": (24, 50), "downb": (24,)}
    return Files(folder, BLOCK, {"x": values(3, 7, 24)},
                 {k: values(*s, seed=i) for i, (k, s) in enumerate(shapes.items())})


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
