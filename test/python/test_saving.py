# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Models that are saved and loaded, and files that are broken."""
import json
import os
import stat

import meshwright as mw
import numpy as np
import pytest
import torch
from mlp import Mlp, close
from torch import nn


def test_save_and_load(module, x, tmp_path):
    model = mw.from_torch(module, (x,))
    program, weights = tmp_path / "m.mlir", tmp_path / "m.safetensors"
    model.save(program, weights)
    assert sorted(os.listdir(tmp_path)) == ["m.mlir", "m.safetensors"]
    import safetensors.torch

    stored = safetensors.torch.load_file(weights)
    assert torch.equal(stored["up.weight"], module.up.weight)
    loaded = mw.load(program, weights)
    assert loaded.ir(locations=True) == model.ir(locations=True)
    plan = loaded.parallelize(mesh={"tp": 2})
    assert torch.equal(plan.run(x)[0], model.parallelize(mesh={"tp": 2}).run(x)[0])
    np.testing.assert_array_equal(plan.run(x=x.numpy())[0], plan.run(x.numpy())[0])
    with pytest.raises(mw.InputError, match="input 'x' is missing"):
        plan.run()
    with pytest.raises(mw.InputError, match="no input is named 'y'"):
        plan.run(x, y=x)
    with pytest.raises(mw.Error, match="has no weights"):
        mw.load(program).parallelize(mesh={"tp": 2}).run(x)


def test_save_types(tmp_path):
    from meshwright import weights
    from meshwright.tensors import dense

    tensors = {
        "a": torch.randn(3, 4).bfloat16(),
        "b": torch.arange(5),
        "c": torch.randn(4, 3).T,
        "d": torch.tensor([True, False]),
        "e": torch.tensor(2.5, dtype=torch.float16),
        "f": torch.zeros(0, 3),
    }
    path = tmp_path / "t.safetensors"
    with weights.whole_file(path) as file:
        weights.write(file, {name: dense(tensor) for name, tensor in tensors.items()})
    import safetensors.torch

    theirs, ours = safetensors.torch.load_file(path), weights.load(path)
    for name, tensor in tensors.items():
        assert torch.equal(theirs[name], tensor) and theirs[name].dtype == tensor.dtype
        assert ours[name].shape == tuple(tensor.shape)
        np.testing.assert_array_equal(
            ours[name].astype(np.float64), tensor.double().numpy()
        )


def test_a_parameter_that_files_cannot_name(x, tmp_path):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_parameter("__metadata__", nn.Parameter(torch.ones(16)))

        def forward(self, x):
            return x * self.get_parameter("__metadata__")

    model = mw.from_torch(Named().eval(), (x,))
    close(model.parallelize(mesh={"tp": 1}).run(x)[0], x)
    with pytest.raises(mw.Error, match="cannot save '__metadata__'"):
        model.save(tmp_path / "m.mlir", tmp_path / "m.safetensors")
    assert not list(tmp_path.iterdir())


def test_broken_weights(module, x, tmp_path):
    program, weights = tmp_path / "m.mlir", tmp_path / "m.safetensors"
    mw.from_torch(module, (x,)).save(program, weights)
    data = weights.read_bytes()
    broken = tmp_path / "broken.safetensors"

    def load(content):
        broken.write_bytes(content)
        with pytest.raises(mw.Error) as error:
            mw.load(program, broken)
        return str(error.value)

    assert "truncated" in load(data[:-4])
    assert "truncated" in load(data[:20])
    assert "at least 8 bytes, got 4" in load(b"1234")
    assert "not JSON" in load((8).to_bytes(8, "little") + b"nonsense")
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])

    def load_with(change):
        entries = json.loads(json.dumps(header))
        change(entries)
        text = json.dumps(entries).encode()
        text += b" " * (-len(text) % 8)
        return load(len(text).to_bytes(8, "little") + text + data[8 + length :])

    assert "have no 'up.weight'" in load_with(lambda e: e.pop("up.weight"))
    assert "expected f32[40, 16]" in load_with(lambda e: e["up.weight"].update(shape=[16, 40]))
    assert "malformed" in load_with(lambda e: e["up.weight"].pop("shape"))
    assert "malformed" in load_with(lambda e: e["up.weight"].update(shape=[40.0, "16"]))
    assert "malformed" in load_with(lambda e: e["up.weight"].update(data_offsets=[0.5, 1]))
    assert "got 2560" in load_with(lambda e: e["up.weight"].update(shape=[41, 16]))
    with pytest.raises(mw.Error, match="No such file"):
        mw.load(program, tmp_path / "none.safetensors")


def test_weights_that_are_cut_before_they_are_read(module, x, tmp_path):
    program, weights = tmp_path / "m.mlir", tmp_path / "m.safetensors"
    mw.from_torch(module, (x,)).save(program, weights)
    size = weights.stat().st_size
    model = mw.load(program, weights)
    plan = mw.compose({"a": model}, {}).parallelize(mesh={"tp": 2})
    os.truncate(weights, 10)
    for read in (
        lambda: plan.run(x),
        lambda: plan.check(x),
        lambda: plan.compile(tmp_path / "bundle"),
        lambda: model.save(tmp_path / "n.mlir", tmp_path / "n.safetensors"),
    ):
        with pytest.raises(mw.Error, match=f"m.safetensors': cut to 10 bytes .*, of {size}$"):
            read()
    assert sorted(os.listdir(tmp_path)) == ["m.mlir", "m.safetensors"]


def test_broken_programs(tmp_path):
    def load(text):
        (tmp_path / "m.mlir").write_text(text)
        with pytest.raises(mw.Error) as error:
            mw.load(tmp_path / "m.mlir")
        assert all(d.file == str(tmp_path / "m.mlir") for d in error.value.diagnostics)
        return str(error.value)

    assert "expected a function 'main'" in load("module {}")
    assert "expected one of 'nn.input' and 'nn.parameter', got none" in load(
        "func.func @main(%x: tensor<2xf32>) -> (tensor<2xf32> {nn.output = \"y\"}) {\n"
        "  return %x : tensor<2xf32>\n}"
    )
    assert "result 0 of 'main' has no 'nn.output'" in load(
        "func.func @main(%x: tensor<2xf32> {nn.input = \"x\"}) -> tensor<2xf32> {\n"
        "  return %x : tensor<2xf32>\n}"
    )
    assert "m.mlir:1" in load("func.func @main(")


def test_no_half_written_file(module, x, tmp_path):
    model = mw.from_torch(module, (x,))
    with pytest.raises(mw.Error, match="cannot write"):
        model.save(tmp_path / "m.mlir", tmp_path / "none" / "m.safetensors")
    assert os.listdir(tmp_path) == []
    program, parameters = tmp_path / "m.mlir", tmp_path / "m.safetensors"
    model.save(program, parameters)
    files = program.read_bytes(), parameters.read_bytes()
    (tmp_path / "folder").mkdir()
    other = mw.from_torch(Mlp(f=20).eval(), (x,))
    for wrong in ((tmp_path / "folder", parameters), (tmp_path / "none" / "m", parameters), (program, tmp_path / "folder")):
        with pytest.raises(mw.Error, match="cannot write '.*': (Is a directory|No such file)"):
            other.save(*wrong)
    assert (program.read_bytes(), parameters.read_bytes()) == files
    assert sorted(os.listdir(tmp_path)) == ["folder", "m.mlir", "m.safetensors"]


def test_what_is_saved_to_is_kept(module, x, tmp_path):
    """A link leads on to its file; a pipe is written to, not replaced."""
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(tmp_path / "m.mlir")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR)
    mw.from_torch(module, (x,)).save(link, pipe)
    assert link.is_symlink() and "func.func @main" in (tmp_path / "m.mlir").read_text()
    assert stat.S_ISFIFO(pipe.stat().st_mode) and b'"down.bias"' in os.read(reader, 1 << 16)
    os.close(reader)
