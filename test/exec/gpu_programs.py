# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs programs of kernels for a GPU on the stand-in for the CUDA driver (test/fakegpu)."""
import ctypes
import glob
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess

import numpy as np
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("MESHWRIGHT_BUILD_DIR", ROOT / "build"))
TOOL = BUILD / "test" / "lib" / "meshwright-test-kernels"
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64,
         "i64": torch.int64, "i32": torch.int32, "i1": torch.bool}
spec = importlib.util.spec_from_file_location("fakegpu_cuda", ROOT / "test" / "fakegpu" / "fakegpu_cuda.py")
cuda = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cuda)


def missing():
    """Why programs cannot run here, or None."""
    return None if os.path.exists(cuda.library_path()) else "the stand-in is not built: cuda.h was not found"


def compile_kernels(folder, text, target="gpu:sm_90"):
    """The program as a list of launches, and the PTX of each kernel."""
    (folder / "gpu.mlir").write_text(text)
    done = subprocess.run([TOOL, folder / "gpu.mlir", target, folder / "kernels"], capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{text}"
    program = json.loads((folder / "kernels" / "program.json").read_text())
    names = {launch["kernel"] for launch in program["launches"]}
    return program, {name: (folder / "kernels" / f"{name}.ptx").read_text() for name in names}


def assemble(folder, text, chip):
    """Compiles the program's kernels and assembles them by ptxas, which must be there. Rejects spills, and returns
    the PTX of each kernel."""
    found = shutil.which("ptxas") or next(iter(sorted(glob.glob("/usr/local/cuda*/bin/ptxas"))), None)
    assert found, "ptxas was not found, on the path or in /usr/local/cuda*/bin: it is part of the CUDA toolkit"
    folder.mkdir()
    _, code = compile_kernels(folder, text, f"gpu:{chip}")
    for name in code:
        done = subprocess.run([found, f"-arch={chip}", "-v", folder / "kernels" / f"{name}.ptx", "-o", folder / "cubin"],
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert " 0 bytes spill stores, 0 bytes spill loads" in done.stderr, done.stderr
    return code


def to_bytes(tensor):
    """At least one byte: an allocation is not empty."""
    raw = tensor.contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else torch.zeros(1, dtype=torch.uint8)
    return raw.numpy()


def tensor_map(driver, fields, buffers):
    """The descriptor of a tensor map, as the runtime makes it (`mw_rt_tensor_map`)."""
    buffer, dtype, columns, rows, matrix_rows, matrices, *box = fields
    raw = ctypes.create_string_buffer(256)
    base = -(-ctypes.addressof(raw) // 128) * 128
    sizes = (ctypes.c_uint64 * 3)(columns, rows, matrices)
    strides = (ctypes.c_uint64 * 2)(2 * columns, 2 * columns * matrix_rows)
    element = {1: 9, 2: 6}[dtype]  # CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 and FLOAT16
    driver.call("cuTensorMapEncodeTiled", ctypes.c_void_p(base), element, 3, ctypes.c_void_p(buffers[buffer]), sizes,
                strides, (ctypes.c_uint32 * 3)(*box, 1), (ctypes.c_uint32 * 3)(1, 1, 1), 0, 3, 3, 0)
    return (ctypes.c_char * 128).from_buffer_copy(ctypes.string_at(base, 128))


_drivers = {}


def run_program(folder, text, inputs, weights=None, target="gpu:sm_90", **_):
    """The outputs by name, as `run_module` of the harness gives them."""
    program, code = compile_kernels(folder, text, target)
    driver = _drivers.get("driver") or _drivers.setdefault("driver", cuda.Driver())
    given = {**inputs, **(weights or {})}
    arena = driver.alloc(max(program["arena"], 1))
    places = {"arena": [arena],
              "argument": [driver.put(to_bytes(given[a["name"]])) for a in program["arguments"]],
              "constant": [driver.put(np.frombuffer(bytes.fromhex(c), np.uint8)) for c in program["constants"]]}

    def address(place):
        kind, index, offset = place
        return (arena + index if kind == "arena" else places[kind][index]) + offset

    kernels = {name: driver.kernel(driver.load(ptx), name) for name, ptx in code.items()}
    # All launches share it, as on a device.
    scratch = driver.put(np.zeros(max([launch["scratch"] for launch in program["launches"]] + [1]), np.uint8))
    places["scratch"] = [scratch]
    places["fault"] = [driver.put(np.full(1, -1, np.int64)) for _ in program["launches"]]
    try:
        for launch, fault in zip(program["launches"], places["fault"], strict=True):
            buffers = [address(place) for place in launch["buffers"]]
            maps = [tensor_map(driver, fields, buffers) for fields in launch["tensorMaps"]]
            kernel, shared = kernels[launch["kernel"]], launch["shared"]
            if shared:
                driver.call("cuFuncSetAttribute", kernel, 8, shared)  # the most dynamic shared memory
            if launch["blocks"]:
                driver.launch(kernel, launch["blocks"], launch["threads"], *buffers, *[fault] * launch["checksIndices"],
                              *[scratch] * bool(launch["scratch"]), *maps, shared=shared)
        driver.synchronize()
        for fault in places["fault"]:
            if (position := driver.get(fault, (1,), np.int64)[0]) != -1:
                raise IndexError(position)
        outputs = {}
        for result in program["results"]:
            dtype = TYPES[result["type"]]
            count = int(np.prod(result["shape"]))
            raw = driver.get(address(result["place"]), (count * dtype.itemsize,), np.uint8)
            outputs[result["name"]] = torch.from_numpy(raw).view(dtype).reshape(result["shape"])
        return outputs
    finally:
        for at in sum(places.values(), []):
            driver.free(at)


def count_accesses(folder, text, inputs, weights=None, target="gpu:sm_90"):
    """For each kernel of the program, the stand-in's counts of one run."""
    _, code = compile_kernels(folder, text, target)
    driver = _drivers.get("driver") or _drivers.setdefault("driver", cuda.Driver())
    before = driver.log()["kernels"]
    run_program(folder, text, inputs, weights, target)
    after = driver.log()["kernels"]
    return {name: {kind: count - before.get(name, {}).get(kind, 0) for kind, count in after[name].items()} for name in code}
