# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs programs given as text through sharding-run."""
import json
import os
import pathlib
import shutil
import subprocess

import numpy as np
import safetensors.numpy
import torch
from safetensors.torch import load_file, save_file

ELEMENT = {
    torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.float64: "f64",
    torch.int64: "i64", torch.int32: "i32", torch.bool: "i1",
}
# Seconds after which a process hangs; what takes one may take twenty on a busy machine.
TIMEOUT = 600


def tool():
    found = shutil.which("sharding-run")
    build = pathlib.Path(__file__).resolve().parents[2] / "build" / "bin" / "sharding-run"
    return found or str(build)


def type_of(tensor):
    sizes = "".join(f"{size}x" for size in tensor.shape)
    return f"tensor<{sizes}{ELEMENT[tensor.dtype]}>"


def launch(*arguments, env=None, timeout=TIMEOUT):
    """The finished process; also where it fails."""
    return subprocess.run([tool(), *map(str, arguments)], capture_output=True, text=True,
                          timeout=timeout, env={**os.environ, **(env or {})})


def run_module(folder, text, inputs, weights=None, arguments=(), status=0, env=None):
    """Runs a module; its outputs by name, or what it said where it should fail."""
    model = folder / "model.mlir"
    model.write_text(text)
    save_file({k: v.contiguous().clone() for k, v in inputs.items()}, folder / "in.safetensors")
    command = [model, f"--inputs={folder}/in.safetensors", f"--outputs={folder}/out.safetensors"]
    if weights:
        save_file({k: v.contiguous().clone() for k, v in weights.items()}, folder / "w.safetensors")
        command.append(f"--weights={folder}/w.safetensors")
    done = launch(*command, *arguments, env=env)
    assert done.returncode == status, f"status {done.returncode}\n{done.stdout}{done.stderr}\n{text}"
    if status:
        return done.stderr
    return load_file(folder / "out.safetensors")


def saved_state(folder, is_clean=True):
    """The states in a folder that a session saved, by name, read as docs/checkpoints.md says. With
    `is_clean` there is no other file."""
    folder = pathlib.Path(folder)
    index = json.loads((folder / "checkpoint.json").read_text())
    files, states = {}, {}
    for name, state in index["states"].items():
        parts = []
        for part in state["parts"]:
            file = part["file"]
            files[file] = files.get(file) or safetensors.numpy.load_file(folder / file)
            where = tuple(slice(o, o + n) for o, n in zip(part["offset"], part["shape"], strict=True))
            parts.append((where, files[file][name]))
        states[name] = np.zeros(state["shape"], parts[0][1].dtype)
        for where, values in parts:
            states[name][where] = values
    if is_clean:
        assert {file.name for file in folder.iterdir()} == {"checkpoint.json", *files}
    return states


class Program:
    """A global program, op by op, with what PyTorch says each output is."""

    def __init__(self):
        self.inputs, self.body, self.outputs = {}, [], []
        self.names = {}

    def input(self, tensor):
        for name, known in self.inputs.items():
            if known is tensor:
                return "%" + name
        name = f"in{len(self.inputs)}"
        self.inputs[name] = tensor
        return "%" + name

    def op(self, text, operands, expected, between=""):
        """`text` up to the operands, in which {} stands for each operand."""
        names = [self.input(x) for x in operands]
        result = f"%r{len(self.outputs)}"
        types = ", ".join(type_of(x) for x in operands)
        if text.startswith(("nn.constant", "nn.iota")):
            line = f"{result} = {text} : {type_of(expected)}"
        elif between == "same":
            line = f"{result} = {text.format(*names)} : {type_of(expected)}"
        else:
            line = f"{result} = {text.format(*names)} : ({types}) -> {type_of(expected)}"
        self.body.append(line)
        self.outputs.append(expected)

    def text(self):
        arguments = ", ".join(f'%{name}: {type_of(x)} {{nn.input = "{name}"}}'
                              for name, x in self.inputs.items())
        results = ", ".join(f'{type_of(x)} {{nn.output = "r{i}"}}'
                            for i, x in enumerate(self.outputs))
        names = ", ".join(f"%r{i}" for i in range(len(self.outputs)))
        types = ", ".join(type_of(x) for x in self.outputs)
        body = "\n  ".join(self.body)
        return (f"func.func @main({arguments}) -> ({results}) {{\n  {body}\n"
                f"  return {names} : {types}\n}}\n")

    def check(self, folder, tolerance, arguments=()):
        got = run_module(folder, self.text(), self.inputs, arguments=arguments)
        for i, want in enumerate(self.outputs):
            assert_close(got[f"r{i}"], want, tolerance, self.body[i])


def assert_close(got, want, tolerance, what=""):
    assert got.dtype == want.dtype and got.shape == want.shape, what
    if not want.dtype.is_floating_point:
        assert torch.equal(got, want), f"{what}\ngot {got}\nwant {want}"
        return
    got, want = got.double(), want.double()
    assert torch.equal(got.isnan(), want.isnan()), f"{what}\ngot {got}\nwant {want}"
    infinite = want.isinf() | got.isinf()
    assert torch.equal(got[infinite], want[infinite]), f"{what}\ngot {got}\nwant {want}"
    keep = ~(want.isnan() | infinite)
    if keep.any():
        error = (got - want)[keep].abs().max() / want[keep].abs().max().clamp_min(1e-30)
        assert error <= tolerance, f"{what}\nerror {error:.2e}, tolerance {tolerance:.0e}"
