# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Codes: elements that programs store and move, bit by bit, and that nothing computes on."""
import json
import os
import re

import ml_dtypes
import mpi_programs
import numpy as np
import pytest
import torch
from harness import launch
from test_gpu_running import FAKEGPU
from test_gpu_running import pytestmark as needs_gpu
from torch import nn

import meshwright as mw

#: By the name in IR: NumPy's type and the name in files.
CODES = {
    "i8": (np.int8, "I8"),
    "f8E4M3FN": (ml_dtypes.float8_e4m3fn, "F8_E4M3"),
    "f8E5M2": (ml_dtypes.float8_e5m2, "F8_E5M2"),
    "f8E8M0FNU": (ml_dtypes.float8_e8m0fnu, "F8_E8M0"),
    "f4E2M1FN": ("V1", "F4"),
}
TORCH = {"i8": torch.int8, "f8E4M3FN": torch.float8_e4m3fn, "f8E5M2": torch.float8_e5m2,
         "f8E8M0FNU": torch.float8_e8m0fnu, "f4E2M1FN": torch.float4_e2m1fn_x2}
each_code = pytest.mark.parametrize("code", CODES)


def shared(code):
    """The elements that share a byte. Arrays have bytes of them; programs and files count elements."""
    return 2 if code == "f4E2M1FN" else 1


def typed(text, code):
    """The text of a program, whose rows have a number of bytes."""
    return re.sub(r"(\d+)xT>", lambda size: f"{int(size[1]) * shared(code)}x{code}>", text)


def draw(code, *shape, seed=0):
    """All bit patterns, NaN too."""
    bits = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    return bits.view(CODES[code][0])


def same(got, want):
    return got.dtype == want.dtype and got.shape == want.shape and got.tobytes() == want.tobytes()


def write(path, tensors):
    """A safetensors file, independent of our own writer."""
    header, data = {}, b""
    for name, (stored, array) in tensors.items():
        shape = [*array.shape[:-1], array.shape[-1] * (2 if stored == "F4" else 1)]
        header[name] = {"dtype": stored, "shape": shape,
                        "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def read(path):
    """The tensors of a safetensors file: type, shape and bytes."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + size])
    header.pop("__metadata__", None)
    data = raw[8 + size:]
    return {name: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for name, t in header.items()}


COLLECTIVES = """
#rows = #dist.sharding<@mesh, [{"tp"}, {}]>
#columns = #dist.sharding<@mesh, [{}, {"tp"}]>
#whole = #dist.sharding<@mesh, [{}, {}]>
dist.mesh @mesh = <["tp"=4]>
func.func @main(%x: tensor<2x12xT> {nn.input = "x", dist.sharding = #rows, dist.global = tensor<8x12xT>})
    -> (tensor<8x12xT> {nn.output = "gathered", dist.sharding = #whole, dist.global = tensor<8x12xT>},
        tensor<8x3xT> {nn.output = "moved", dist.sharding = #columns, dist.global = tensor<8x12xT>},
        tensor<2x12xT> {nn.output = "shifted", dist.sharding = #rows, dist.global = tensor<8x12xT>},
        tensor<8x3xT> {nn.output = "sliced", dist.sharding = #columns, dist.global = tensor<8x12xT>},
        tensor<8x3xT> {nn.output = "redistributed", dist.sharding = #columns, dist.global = tensor<8x12xT>})
    attributes {dist.spmd = @mesh} {
  %g = dist.all_gather %x axes ["tp"] dims [0] : (tensor<2x12xT>) -> tensor<8x12xT>
  %m = dist.all_to_all %x axes ["tp"] from [0] to [1] : (tensor<2x12xT>) -> tensor<8x3xT>
  %p = dist.permute %x axes ["tp"] shift 1 : (tensor<2x12xT>) -> tensor<2x12xT>
  %q = dist.permute %p axes ["tp"] shift -1 : (tensor<2x12xT>) -> tensor<2x12xT>
  %s = dist.slice %g axes ["tp"] dims [1] : (tensor<8x12xT>) -> tensor<8x3xT>
  %r = dist.redistribute %x from [#rows] to [#columns] : (tensor<2x12xT>) -> tensor<8x3xT>
  return %g, %m, %q, %s, %r : tensor<8x12xT>, tensor<8x3xT>, tensor<2x12xT>, tensor<8x3xT>, tensor<8x3xT>
}
"""


def local(*arguments):
    return launch(*arguments)


def mpi(*arguments):
    return mpi_programs.launch(4, *arguments, "--backend=mpi")


def nccl(*arguments):
    path = os.pathsep.join(filter(None, [str(FAKEGPU), os.environ.get("LD_LIBRARY_PATH")]))
    return launch(*arguments, "--backend=nccl", env={"LD_LIBRARY_PATH": path})


@each_code
@pytest.mark.parametrize("backend", [local, pytest.param(mpi, marks=mpi_programs.NEEDS_MPI),
                                     pytest.param(nccl, marks=needs_gpu)])
def test_collectives(code, backend, tmp_path):
    x = draw(code, 8, 12)
    (tmp_path / "m.mlir").write_text(typed(COLLECTIVES, code))
    write(tmp_path / "x.safetensors", {"x": (CODES[code][1], x)})
    done = backend(tmp_path / "m.mlir", f"--inputs={tmp_path}/x.safetensors", f"--outputs={tmp_path}/y.safetensors")
    assert done.returncode == 0, done.stderr
    outputs = read(tmp_path / "y.safetensors")
    assert outputs.keys() == {"gathered", "moved", "shifted", "sliced", "redistributed"}
    for name, (stored, shape, data) in outputs.items():
        assert (stored, shape) == (CODES[code][1], [8, 12 * shared(code)]), name
        assert data == x.tobytes(), name


#: Rows of a state are replaced. Other ops move elements of a parameter. FIRST and LAST count elements.
MODEL = """
nn.state @pages : tensor<6x12xT>
func.func @main(%rows: tensor<2x12xT> {nn.input = "rows"}, %at: tensor<2xi64> {nn.input = "at"},
                %w: tensor<10x12xT> {nn.parameter = "w"})
    -> (tensor<6x12xT> {nn.output = "old"}, tensor<2x5x12xT> {nn.output = "swapped"},
        tensor<5x8xT> {nn.output = "cut"}, tensor<12x12xT> {nn.output = "joined"},
        tensor<2x12xT> {nn.output = "taken"}, tensor<3x10x12xT> {nn.output = "stretched"},
        tensor<5x24xT> {nn.output = "reshaped"}, tensor<3x12xT> {nn.output = "filled"}) {
  %old = nn.read @pages : tensor<6x12xT>
  %new = nn.index_copy %old, %at, %rows dim 0 : (tensor<6x12xT>, tensor<2xi64>, tensor<2x12xT>) -> tensor<6x12xT>
  nn.write @pages, %new : tensor<6x12xT>
  %p = nn.reshape %w : (tensor<10x12xT>) -> tensor<5x2x12xT>
  %t = nn.transpose %p [1, 0, 2] : (tensor<5x2x12xT>) -> tensor<2x5x12xT>
  %c = nn.slice %w starts [1, FIRST] limits [10, LAST] strides [2, 1] : (tensor<10x12xT>) -> tensor<5x8xT>
  %j = nn.concat %rows, %w dim 0 : (tensor<2x12xT>, tensor<10x12xT>) -> tensor<12x12xT>
  %g = nn.gather %w, %at dim 0 : (tensor<10x12xT>, tensor<2xi64>) -> tensor<2x12xT>
  %b = nn.broadcast %w : (tensor<10x12xT>) -> tensor<3x10x12xT>
  %r = nn.reshape %w : (tensor<10x12xT>) -> tensor<5x24xT>
  %k = nn.constant dense<ONE> : tensor<3x12xT>
  return %old, %t, %c, %j, %g, %b, %r, %k : tensor<6x12xT>, tensor<2x5x12xT>, tensor<5x8xT>, tensor<12x12xT>,
      tensor<2x12xT>, tensor<3x10x12xT>, tensor<5x24xT>, tensor<3x12xT>
}
"""
MESHES = [{"tp": 1}, {"tp": 4}, {"dp": 2, "tp": 2}]


def model_of(code, folder):
    """The model, its parameter and its state."""
    w, pages = draw(code, 10, 12, seed=1), draw(code, 6, 12, seed=2)
    text = typed(MODEL, code).replace("FIRST", str(2 * shared(code))).replace("LAST", str(10 * shared(code)))
    (folder / "m.mlir").write_text(text.replace("ONE", "1" if code == "i8" else "1.0"))
    stored = CODES[code][1]
    write(folder / "w.safetensors", {"w": (stored, w), "pages": (stored, pages)})
    return mw.load(folder / "m.mlir", folder / "w.safetensors"), w, pages


def expected(code, w, pages, rows, at):
    # 1.0 is 0b0010 in four bits.
    one = np.full((3, 12), 0x22, np.uint8).view("V1") if code == "f4E2M1FN" else \
        np.ones((3, 12), np.float32).astype(CODES[code][0])
    return [pages, w.reshape(5, 2, 12).transpose(1, 0, 2), w[1:10:2, 2:10], np.concatenate([rows, w]), w[at],
            np.broadcast_to(w, (3, 10, 12)), w.reshape(5, 24), one]


@each_code
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("sharding", [None, '[{"tp"}, {}]', '[{}, {"tp"}]'])
def test_program(code, mesh, sharding, tmp_path):
    model, w, pages = model_of(code, tmp_path)
    plan = model.parallelize(mesh=mesh, shardings={"w": sharding} if sharding else {})
    rows, at = draw(code, 2, 12, seed=3), np.array([4, 1])
    with plan.start() as session:
        got = session.run(rows, at)
        for array, want in zip(got, expected(code, w, pages, rows, at), strict=True):
            assert same(array, np.ascontiguousarray(want))
        pages = pages.copy()
        pages[at] = rows
        assert same(session.state()["pages"], pages)
        session.save(tmp_path / "saved")
        session.set_state({"pages": pages[::-1]})
        assert same(session.state()["pages"], np.ascontiguousarray(pages[::-1]))
    # Another plan goes on from the files.
    with model.parallelize(mesh={"tp": 2}).start(state=tmp_path / "saved") as session:
        assert same(session.run(rows, at)[0], pages)


@each_code
def test_bundle(code, tmp_path):
    model, w, pages = model_of(code, tmp_path)
    model.parallelize(mesh={"tp": 2}).compile(tmp_path / "bundle")
    rows, at = draw(code, 2, 12, seed=3), np.array([4, 1])
    with mw.load_bundle(tmp_path / "bundle").start() as session:
        got = session.run(rows, at)
    for array, want in zip(got, expected(code, w, pages, rows, at), strict=True):
        assert same(array, np.ascontiguousarray(want))


@each_code
def test_model_is_saved(code, tmp_path):
    model, w, pages = model_of(code, tmp_path)
    model.save(tmp_path / "again.mlir", tmp_path / "again.safetensors")
    stored = read(tmp_path / "again.safetensors")
    assert stored["w"] == (CODES[code][1], [10, 12 * shared(code)], w.tobytes())
    assert stored["pages"] == (CODES[code][1], [6, 12 * shared(code)], pages.tobytes())


@each_code
def test_random_weights(code, tmp_path):
    model_of(code, tmp_path)
    done = launch(tmp_path / "m.mlir", "--random-weights=3", "--random-inputs=5", f"--outputs={tmp_path}/y.safetensors")
    assert done.returncode == 0, done.stderr
    (stored, _, data) = read(tmp_path / "y.safetensors")["cut"]
    assert stored == CODES[code][1] and len(set(data)) > 8
    values = np.frombuffer(data, np.uint8)
    if shared(code) == 1:
        values = values.view(CODES[code][0])
    assert np.isfinite(values.astype(np.float32)).all()


class Moves(nn.Module):
    """Moves a buffer of codes, and codes of its input."""

    def __init__(self, table):
        super().__init__()
        self.register_buffer("table", table)

    def forward(self, x):
        return self.table.transpose(0, 1)[2:5], torch.cat([self.table[:4], x]), x.reshape(4, 6)


def tensor(code, *shape, seed):
    return torch.from_numpy(draw(code, *shape, seed=seed).view(np.uint8)).view(TORCH[code])


@pytest.mark.parametrize("code", [code for code in CODES if shared(code) == 1])
def test_module(code):
    table, x = tensor(code, 8, 12, seed=1), tensor(code, 2, 12, seed=2)
    module = Moves(table)
    model = mw.from_torch(module, (x,))
    for mesh in MESHES:
        got = model.parallelize(mesh=mesh).run(x)
        for array, want in zip(got, module(x), strict=True):
            assert array.dtype == TORCH[code]
            assert torch.equal(array.view(torch.uint8), want.contiguous().view(torch.uint8))


@each_code
def test_tensors(code, tmp_path):
    model, w, pages = model_of(code, tmp_path)
    rows, at = tensor(code, 2, 12, seed=3), torch.tensor([4, 1])
    got = model.parallelize(mesh={"tp": 2}).run(rows, at)
    for array, want in zip(got, expected(code, w, pages, draw(code, 2, 12, seed=3), at.numpy()), strict=True):
        assert array.dtype == TORCH[code] and array.shape == want.shape
        assert array.view(torch.uint8).numpy().tobytes() == want.tobytes()


def test_parts_of_bytes(tmp_path):
    model, w, _ = model_of("f4E2M1FN", tmp_path)
    with pytest.raises(mw.Error, match="'f4E2M1FN' share a byte"):
        model.parallelize(mesh={"tp": 8}, shardings={"w": '[{}, {"tp"}]'})
    write(tmp_path / "odd.safetensors", {"w": ("F4", w)})
    raw = (tmp_path / "odd.safetensors").read_bytes().replace(b"[10, 24]", b"[16, 15]")
    (tmp_path / "odd.safetensors").write_bytes(raw)
    with pytest.raises(mw.Error, match=r"'w': expected an even last dimension, got F4\[16, 15\]"):
        mw.load(tmp_path / "m.mlir", tmp_path / "odd.safetensors")
    done = launch(tmp_path / "m.mlir", f"--weights={tmp_path}/odd.safetensors", "--random-inputs=1")
    assert done.returncode == 1
    assert "tensor 'w': expected an even last dimension, since two elements share a byte, got 15" in done.stderr
    with pytest.raises(mw.Error, match="float4_e2m1fn_x2 is not covered"):
        mw.from_torch(Moves(tensor("f4E2M1FN", 8, 12, seed=1)), (tensor("f4E2M1FN", 2, 12, seed=2),))
