# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Errors of sharding-run: their texts and exit statuses."""
import json
import os
import pathlib
import resource
import stat
import struct
import subprocess

import pytest
import torch
from harness import launch, tool
from safetensors.torch import load_file, save_file

MODEL = """func.func @main(%x: tensor<2x3xf32> {nn.input = "x"}, %w: tensor<4x3xf32> {nn.parameter = "w"})
    -> (tensor<2x4xf32> {nn.output = "y"}) {
  %0 = nn.linear %x, %w : (tensor<2x3xf32>, tensor<4x3xf32>) -> tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "m.mlir").write_text(MODEL)
    save_file({"x": torch.ones(2, 3)}, tmp_path / "x.safetensors")
    save_file({"w": torch.ones(4, 3)}, tmp_path / "w.safetensors")
    return tmp_path


def expect(status, words, *arguments, env=None):
    done = launch(*arguments, env=env)
    assert done.returncode == status, done.stdout + done.stderr
    for word in [words] if isinstance(words, str) else words:
        assert word in done.stderr, done.stderr


def test_usage(files):
    model = files / "m.mlir"
    expect(2, "no model given")
    expect(2, "unknown option '--nonsense'", model, "--nonsense")
    # Two lines, not a page of help.
    done = launch(model, "--nonsense")
    assert done.stderr.splitlines() == [
        "sharding-run: error: unknown option '--nonsense'", "see sharding-run --help"]
    for option in ("--random-inputs", "--random-weights"):
        expect(2, f"{option}: expected a natural number below 2^64, got 'x'", model, f"{option}=x")
    expect(2, "--weights and --random-weights exclude each other", model, "--weights=w", "--random-weights=1")
    expect(2, "more than one model", model, model)
    for seed in ("some", "", "-1", " -1", "1.5", 2**64, "9" * 23):
        expect(2, f"--random-inputs: expected a natural number below 2^64, got '{seed}'", model, f"--random-inputs={seed}")
    for threads in (0, 100000, 2**63 - 1):
        expect(2, f"--threads-per-rank: expected a number from 1 to 4096, got '{threads}'", model, f"--threads-per-rank={threads}")
    expect(2, "exclude each other", model, "--random-inputs=1", "--inputs=x")
    expect(2, "--weights needs a value", model, "--weights=")
    expect(2, "--report= needs a value", model, "--report=")
    expect(2, "--calibrate= needs a value", "--calibrate=")
    expect(2, "--calibrate measures this machine, not a model: expected no '", model, "--calibrate")
    expect(1, "backend 'swift' is not available", "--calibrate=none.json", "--backend=swift")
    assert launch("--help").returncode == 0
    weights = f"--weights={files}/w.safetensors"
    assert launch(model, weights, f"--random-inputs={2**64 - 1}").returncode == 0
    # Without a value the options of a plan are the usual ones, and the mesh is the program's.
    for arguments in (["--parallelize"], ["--parallelize", "--check"], ["--parallelize=", "--check"]):
        expect(1, "no mesh: expected a 'mesh' option or a dist.mesh in the module", model, weights, "--random-inputs=1", *arguments)


WRONG_OPTIONS = {
    "mesh=tp=x": "mesh: cannot read 'tp=x': expected name=size",
    "mesh=tp=2 sequence-parallel=maybe": "sequence-parallel: expected on, off or auto, got 'maybe'",
    "mesh=tp=2 nothing=1": "unknown option 'nothing'; supported are mesh",
    "mesh=tp=2 memory-ceiling=1X": "memory-ceiling: expected a positive number of bytes",
    "mesh=tp=2 context-parallel={ring=}": "cannot read 'ring=': expected ulysses=axis, ring=axis, order=contiguous",
    "mesh=tp=2 fold={a: b}": "cannot read 'a: b': expected a stage and sp, ulysses",
    "mesh=tp=2 shardings={": "a bracket or quote stays open",
    "mesh=tp=2 device=none": "unknown device 'none': expected one of h100",
    "mesh=tp=2 target=none": "unknown target 'none': expected cpu",
    "mesh=tp=2 target=cpu:none": "target 'cpu:none': unknown processor 'none'",
}


@pytest.mark.parametrize("name, arguments", [
    ("sharding-opt", []), ("sharding-run", ["--random-weights=1", "--random-inputs=1"]),
    ("sharding-compile", ["--random-weights=1", "-o", "bundle"])])
def test_wrong_values_of_options(files, name, arguments):
    """An option that is wrong for every program is wrong usage: two lines, status 2. An error that
    depends on the program or on files has status 1, and no made-up place."""
    def run(*more):
        command = [os.path.join(os.path.dirname(tool()), name), *more]
        return subprocess.run(command, cwd=files, capture_output=True, text=True)

    def refuse(expected, *more):
        done = run("m.mlir", *arguments, *more)
        lines = done.stderr.splitlines()
        assert done.returncode == 2 and len(lines) == 2, done.stderr
        assert lines[0].startswith(f"{name}: ") and expected in lines[0] and lines[1] == f"see {name} --help"

    for options, expected in WRONG_OPTIONS.items():
        refuse(expected, f"--parallelize={options}")
    if name != "sharding-opt":
        refuse("unknown target 'none'", "--target=none")
    else:
        for option in ("--decompose-all-reduce=when=never", "--split-collectives=chunks=1", "--report-decisions=outcomes=none",
                       "--annotate-context-parallel=ring="):
            refuse("expected", option)
        for option in ("--canonicalize=none=1", "--pass-pipeline=builtin.module(none)", "--pass-pipeline=none"):
            done = run("m.mlir", option)
            assert done.returncode == 2 and done.stderr.endswith("see sharding-opt --help\n"), done.stderr
    if name == "sharding-run":
        refuse("link 'fast': 'fast' is no part of a link", "--link=fast")
    wrong = [["m.mlir", *arguments, "--parallelize=mesh=tp=2 data-parallel=none_such"], ["none.mlir", *arguments]]
    for command in wrong:
        done = run(*command)
        assert done.returncode == 1 and "error: " in done.stderr and "<unknown>" not in done.stderr, done.stderr
        assert ":0:" not in done.stderr


def test_two_results_in_one_file(files):
    model, weights, inputs = files / "m.mlir", f"--weights={files}/w.safetensors", f"--inputs={files}/x.safetensors"
    (files / "link").symlink_to(files / "old")
    (files / "old").write_text("old")
    (files / "folder").symlink_to(files)
    (files / "ahead").symlink_to("none")
    for one, other, first, second in (("--outputs", "--trace", "none", "ahead"), ("--outputs", "--trace", "y", "y"), ("--outputs", "--report", "y", "none/../y"),
                                      ("--trace", "--report", "old", "link"), ("--outputs", "--trace", "y", "folder/y")):
        expect(2, f"{one} and {other} are one file, '{files}/{second}'", model, weights, inputs, f"{one}={files}/{first}", f"{other}={files}/{second}")
    # As its name is given, from here or from the root.
    done = subprocess.run([tool(), model, "--outputs=y", f"--trace={files}/y"], cwd=files, capture_output=True, text=True)
    assert done.returncode == 2 and f"--outputs and --trace are one file, '{files}/y'" in done.stderr
    assert (files / "old").read_text() == "old" and not (files / "y").exists()
    done = launch(model, weights, inputs, "--outputs=/dev/null", "--trace=/dev/null", "--report=/dev/null")
    assert done.returncode == 0, done.stderr


def test_results_over_what_is_read(files):
    inputs, weights, reference = (f"{files}/{name}.safetensors" for name in "xwr")
    save_file({"y": torch.full((2, 4), 3.0)}, reference)
    read = [f"{files}/m.mlir", f"--weights={weights}", f"--inputs={inputs}", f"--reference={reference}"]
    compiler = os.path.join(os.path.dirname(tool()), "sharding-compile")
    subprocess.run([compiler, *read[:2], "-o", files / "b"], check=True)
    (files / "link").symlink_to(inputs)
    (files / "folder").symlink_to(files)
    before = {path: path.read_bytes() for path in files.rglob("*") if path.is_file()}
    for option in ("--outputs", "--trace", "--report"):
        for name, path in (("the model", f"{files}/m.mlir"), ("--weights", weights), ("--inputs", inputs), ("--inputs", f"{files}/link"),
                           ("--reference", f"{files}/folder/r.safetensors"), ("--inputs", os.path.relpath(inputs))):
            expect(2, f"{name} and {option} are one file, '{path}'", *read, f"{option}={path}")
        for path in (f"{files}/b/manifest.json", f"{files}/folder/b/weights/new"):
            expect(2, f"{option} is inside the bundle, '{path}'", files / "b", *read[2:], f"{option}={path}")
        expect(2, f"the bundle and {option} are one file, '{files}/b/'", files / "b", *read[2:], f"{option}={files}/b/")
    for name, path in (("the model", f"{files}/folder/m.mlir"), ("--weights", weights)):
        done = subprocess.run([compiler, *read[:2], "-o", path], capture_output=True, text=True)
        assert done.returncode == 2 and f"sharding-compile: error: {name} and -o are one file, '{path}'" in done.stderr, done.stderr
    assert {path: path.read_bytes() for path in files.rglob("*") if path.is_file()} == before
    # Beside a bundle, and under another name of the file: that one stays.
    os.link(inputs, files / "b.safetensors")
    assert launch(files / "b", f"--inputs={inputs}", f"--outputs={files}/b.safetensors").returncode == 0
    assert "y" in load_file(files / "b.safetensors") and "x" in load_file(inputs)


def test_output_that_nobody_takes(files):
    model, weights, inputs = files / "m.mlir", f"--weights={files}/w.safetensors", f"--inputs={files}/x.safetensors"
    save_file({"y": torch.full((2, 4), 3.0)}, files / "r.safetensors")
    compiler = os.path.join(os.path.dirname(tool()), "sharding-compile")
    for command in ([tool(), model, weights, inputs, "--report"], [tool(), "--help"], [compiler, "--help"],
                    [tool(), model, weights, inputs, f"--reference={files}/r.safetensors"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 1, done.stderr
        assert "error: standard output cannot be written: No space left on device" in done.stderr


def test_models(files):
    expect(1, "No such file", files / "absent.mlir")
    bad = files / "bad.mlir"
    bad.write_text("func.func @main(")
    expect(1, "error", bad)
    bad.write_text("func.func private @other() { return }")
    expect(1, "'main'", bad)
    bad.write_text("func.func @main(%x: tensor<2xf32>) { return }")
    expect(1, "argument 0 of 'main'", bad)
    bad.write_text("""dist.mesh @m = <["x"=2]>
    func.func @main(%x: tensor<2xf32> {nn.input = "x"}) -> (tensor<2xf32> {nn.output = "y"}) attributes {dist.spmd = @m} {
      return %x : tensor<2xf32>
    }""")
    expect(1, "dist.sharding", bad, "--random-inputs=1")


def test_arguments(files):
    model, weights, inputs = files / "m.mlir", f"--weights={files}/w.safetensors", f"--inputs={files}/x.safetensors"
    assert launch(model, weights, inputs).returncode == 0
    assert launch(model, weights, "--random-inputs=7").returncode == 0
    expect(1, "give --weights", model, inputs)
    expect(1, "give --inputs or --random-inputs", model, weights)
    expect(1, "backend 'smoke' is not available", model, weights, inputs, "--backend=smoke")
    expect(1, "No such file", model, f"--weights={files}/absent", inputs)
    other = files / "other.safetensors"
    for tensors, words in (({"v": torch.ones(4, 3)}, "no tensor 'w'"),
                           ({"w": torch.ones(4, 4)}, "expected f32[4, 3], got f32[4, 4]"),
                           ({"w": torch.ones(4, 3).bfloat16()}, "expected f32[4, 3], got bf16[4, 3]"),
                           ({"w": torch.ones(4, 3).to(torch.int8)}, "expected f32[4, 3], got i8[4, 3]"),
                           ({"w": torch.ones(4, 3).to(torch.uint8)}, "of type U8")):
        save_file(tensors, other)
        expect(1, words, model, f"--weights={other}", inputs)
    for tensors, words in (({"z": torch.ones(2, 3)}, "no tensor 'x'"),
                           ({"x": torch.ones(3, 2)}, "f32[3, 2]"),
                           ({"x": torch.ones(2, 3).long()}, "i64[2, 3]"),
                           ({"x": torch.ones(2, 3), "u": torch.ones(1)}, "'u' is not an input")):
        save_file(tensors, other)
        expect(1, words, model, weights, f"--inputs={other}")


def test_damaged_files(files):
    model, inputs = files / "m.mlir", f"--inputs={files}/x.safetensors"
    whole = (files / "w.safetensors").read_bytes()
    bad = files / "bad.safetensors"

    def header(entries):
        text = json.dumps(entries).encode()
        return struct.pack("<Q", len(text)) + text + bytes(48)
    good = {"dtype": "F32", "shape": [4, 3], "data_offsets": [0, 48]}
    for data, words in ((b"", "at least 8 bytes, got 0"), (whole[:5], "at least 8 bytes, got 5"), (whole[:30], "bytes behind their number, got 22"),
                        (whole[:-1], "within the 47 bytes of data, got 0 to 48"), (struct.pack("<Q", 2**63) + whole[8:], "bytes behind their number, got"),
                        (struct.pack("<Q", 4) + b"nope", "not a JSON object"),
                        (header({"w": 3}), "expected dtype, shape"),
                        (header({"w": {**good, "dtype": "F3"}}), "unknown dtype 'F3'"),
                        (header({"w": {**good, "shape": [4, -3]}}), "not a natural number"),
                        (header({"w": {**good, "shape": [2**40, 2**40]}}), "too large"),
                        (header({"w": {**good, "shape": [4, 4]}}), "expected the 64 bytes of its dtype and shape, got 48"),
                        (header({"w": {**good, "data_offsets": [8, 4]}}), "8 to 4"),
                        (header({"w": {**good, "data_offsets": [0, "a"]}}), "not natural numbers"),
                        (header({"w": good, "W": good}).replace(b"W", b"w"), "its header has 'w' twice"),
                        (header({"w": {**good, "Shape": [4, 4]}}).replace(b"Shape", b"shape"), "its header has 'shape' twice"),
                        (header({"w": good, "v": {**good, "shape": [3], "data_offsets": [36, 48]}}), "tensors 'w' and 'v' overlap"),
                        (header({"w": good, "v": good}), "tensors 'v' and 'w' overlap"),
                        (header({"w": good, "v": {**good, "shape": [0], "data_offsets": [8, 8]}}), "tensors 'w' and 'v' overlap"),
                        (header({"w": {**good, "shape": [3], "data_offsets": [36, 48]}}),
                         "tensor 'w': expected its data to begin at 0, where that before it ends, got 36"),
                        (header({"w": {**good, "shape": [3], "data_offsets": [0, 12]}}), "36 bytes of data belong to no tensor, behind 'w'"),
                        (header({}), "48 bytes of data belong to no tensor")):
        bad.write_bytes(data)
        expect(1, ["bad.safetensors: not a valid safetensors file", words], model, f"--weights={bad}", inputs)


def test_files_that_are_whole(files):
    """In any order, with tensors without elements anywhere, and with what else the format allows."""
    tensor = torch.arange(12.0).reshape(4, 3)
    others = {"a": torch.ones(0, 3), "b": torch.ones(5, dtype=torch.bool), "z": torch.ones(3, 0, dtype=torch.int64)}
    weights = files / "w.safetensors"
    save_file({"w": tensor, **others}, weights, metadata={"format": "pt", "w": "a name within is another one"})
    save_file({"y": torch.ones(2, 3) @ tensor.T}, files / "r.safetensors")
    arguments = [files / "m.mlir", f"--weights={weights}", f"--inputs={files}/x.safetensors", f"--outputs={files}/y.safetensors"]
    done = launch(*arguments, f"--reference={files}/r.safetensors")
    assert done.returncode == 0, done.stderr
    entries = {"z": ([0], [4, 4]), "w": ([4, 3], [4, 52]), "v": ([1], [0, 4]), "e": ([0, 7], [52, 52]), "a": ([0], [0, 0])}
    text = json.dumps({name: {"dtype": "F32", "shape": shape, "data_offsets": at} for name, (shape, at) in entries.items()}).encode()
    weights.write_bytes(struct.pack("<Q", len(text)) + text + bytes(4) + tensor.numpy().tobytes())
    # The tool reads a file that it wrote itself.
    done = launch(*arguments[:-1], f"--reference={files}/y.safetensors")
    assert done.returncode == 0, done.stderr


def test_unaligned_weights(files):
    """A header of odd length is legal; the tensors behind it are then not aligned."""
    tensor = torch.arange(12.0).reshape(4, 3)
    text = json.dumps({"w": {"dtype": "F32", "shape": [4, 3], "data_offsets": [0, 48]}}).encode()
    text += b" " * (1 - len(text) % 2)
    (files / "w.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + tensor.numpy().tobytes())
    save_file({"y": torch.ones(2, 3) @ tensor.T}, files / "r.safetensors")
    done = launch(files / "m.mlir", f"--weights={files}/w.safetensors", f"--inputs={files}/x.safetensors",
                  f"--reference={files}/r.safetensors")
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_half_written_output(files):
    model, weights, inputs = files / "m.mlir", f"--weights={files}/w.safetensors", f"--inputs={files}/x.safetensors"
    expect(1, "No such file or directory", model, weights, inputs, f"--outputs={files}/absent/y.safetensors")
    assert launch(model, weights, inputs, f"--outputs={files}/y.safetensors").returncode == 0
    assert sorted(p.name for p in files.iterdir()) == ["m.mlir", "w.safetensors", "x.safetensors", "y.safetensors"]


def test_a_name_that_files_keep(files):
    (files / "n.mlir").write_text(MODEL.replace('"y"', '"__metadata__"'))
    expect(1, [f"{files}/z.safetensors: cannot hold '__metadata__'"], files / "n.mlir", f"--weights={files}/w.safetensors",
           f"--inputs={files}/x.safetensors", f"--outputs={files}/z.safetensors")
    assert not (files / "z.safetensors").exists()


def test_files_that_cannot_be_written(files):
    # Before any work: the model is not even looked at.
    inputs, absent = f"--inputs={files}/x.safetensors", files / "absent"
    for option in ("--outputs", "--trace", "--report"):
        expect(1, [f"{absent}/y: cannot be written: No such file or directory"], files / "none.mlir", inputs, f"{option}={absent}/y")
        expect(1, [f"{files}: cannot be written: Is a directory"], files / "none.mlir", inputs, f"{option}={files}")


def test_what_is_no_file_stays(files):
    model, weights, inputs = files / "m.mlir", f"--weights={files}/w.safetensors", f"--inputs={files}/x.safetensors"
    pipe, link, target = files / "pipe", files / "link", files / "target"
    os.mkfifo(pipe)
    link.symlink_to(target)
    with subprocess.Popen([tool(), model, weights, inputs, f"--report={pipe}"], stderr=subprocess.PIPE) as process:
        said = pipe.read_text()
        assert process.wait(60) == 0, process.stderr.read()
    assert "\nrun: 1 rank" in said and stat.S_ISFIFO(pipe.stat().st_mode)
    target.write_bytes(b"old")
    assert launch(model, weights, inputs, f"--outputs={link}").returncode == 0
    assert link.is_symlink() and load_file(target)["y"].shape == (2, 4)


def test_reference(files):
    model, weights, inputs = files / "m.mlir", f"--weights={files}/w.safetensors", f"--inputs={files}/x.safetensors"
    reference = files / "r.safetensors"
    save_file({"y": torch.full((2, 4), 3.0)}, reference)
    done = launch(model, weights, inputs, f"--reference={reference}")
    assert done.returncode == 0 and "y: differs by 0" in done.stdout
    save_file({"y": torch.full((2, 4), 3.01)}, reference)
    assert launch(model, weights, inputs, f"--reference={reference}").returncode == 3
    assert launch(model, weights, inputs, f"--reference={reference}", "--tolerance=0.01").returncode == 0
    save_file({"y": torch.full((2, 4), float("nan"))}, reference)
    assert launch(model, weights, inputs, f"--reference={reference}").returncode == 3
    save_file({"z": torch.zeros(1)}, reference)
    expect(1, "no tensor 'y'", model, weights, inputs, f"--reference={reference}")


def test_more_than_anybody_has(files):
    model, weights, inputs = files / "m.mlir", f"--weights={files}/w.safetensors", f"--inputs={files}/x.safetensors"
    expect(1, "the program: expected 1 to 65536 ranks, got 1000000000", model, weights, inputs, "--parallelize=mesh=dp=1000000000")
    expect(1, "ranks of 100000 threads, 1 in this process: expected at most 4096 threads in all", model, weights, inputs,
           env={"MESHWRIGHT_THREADS": "100000"})
    expect(1, "ranks of 4096 threads, 2 in this process", model, weights, inputs, "--parallelize=mesh=dp=2", "--threads-per-rank=4096")
    large = files / "large.mlir"
    large.write_text("""func.func @main(%x: tensor<1099511627776x1024xf32> {nn.input = "x"}) -> (tensor<f32> {nn.output = "y"}) {
      %0 = nn.reduce sum %x dims [0, 1] : (tensor<1099511627776x1024xf32>) -> tensor<f32>
      return %0 : tensor<f32>
    }""")
    expect(1, "out of memory for input 'x'", large, "--random-inputs=1")


def test_more_ranks_than_memory_allows(files):
    (files / "m.mlir").write_text("""dist.mesh @m = <["x"=65536]>
    func.func @main(%x: tensor<1024x1024x64xf32> {nn.input = "x", dist.global = tensor<1024x1024x64xf32>, dist.sharding = #dist.sharding<@m, [{}, {}, {}]>})
      -> (tensor<f32> {nn.output = "y", dist.global = tensor<f32>, dist.sharding = #dist.sharding<@m, []>}) attributes {dist.spmd = @m} {
      %0 = nn.exp %x : tensor<1024x1024x64xf32>
      %1 = nn.cumsum %0 dim 0 : tensor<1024x1024x64xf32>
      %2 = nn.reduce sum %1 dims [0, 1, 2] : (tensor<1024x1024x64xf32>) -> tensor<f32>
      return %2 : tensor<f32>
    }""")
    done = launch(files / "m.mlir", "--random-inputs=1")
    assert done.returncode == 1 and "running on 65536 ranks needs 32.0 TiB" in done.stderr, done.stderr


def test_where_a_placement_is_proved(files):
    """A program that lacks its sum: as it stands it runs, wrong as it is."""
    (files / "m.mlir").write_text("""dist.mesh @m = <["x"=2]>
    func.func @main(%x: tensor<2x2xf32> {nn.input = "x", dist.global = tensor<2x4xf32>, dist.sharding = #dist.sharding<@m, [{}, {"x"}]>})
      -> (tensor<2xf32> {nn.output = "y", dist.global = tensor<2xf32>, dist.sharding = #dist.sharding<@m, [{}]>}) attributes {dist.spmd = @m} {
      %0 = nn.reduce sum %x dims [1] : (tensor<2x2xf32>) -> tensor<2xf32>
      return %0 : tensor<2xf32>
    }""")
    wrong = 'expected layout [{}], which the signature promises, got [{}] unreduced {"x"}'
    model, seed = files / "m.mlir", "--random-inputs=1"
    assert launch(model, seed).returncode == 0
    expect(1, wrong, model, seed, "--report")
    expect(1, wrong, model, seed, "--parallelize=")
    folder = os.path.dirname(tool())
    for command in (["sharding-compile", "-o", files / "b"], ["sharding-opt", "--verify-placement"]):
        done = subprocess.run([os.path.join(folder, command[0]), model, *command[1:]], capture_output=True, text=True)
        assert done.returncode == 1 and wrong in done.stderr, done.stderr
    assert not (files / "b").exists()


def test_memory_that_runs_out(files):
    """Under each limit a product works or is an error, and the process does not crash."""
    # Weights that are inputs are not packed, so oneDNN multiplies them.
    (files / "p.mlir").write_text(MODEL.replace("nn.parameter", "nn.input").replace("2x3x", "64x96x").replace("4x3x", "80x96x").replace("2x4x", "64x80x"))
    compiler = pathlib.Path(tool()).with_name("sharding-compile")
    subprocess.run([compiler, files / "p.mlir", "--parallelize=mesh=tp=1", "-o", files / "b"], check=True)
    said = set()
    for megabytes in range(48, 320, 4):
        def limit(bytes=megabytes << 20):
            resource.setrlimit(resource.RLIMIT_AS, (bytes, bytes))

        done = subprocess.run([tool(), files / "b", "--random-inputs=1"], capture_output=True, text=True, preexec_fn=limit)
        # 127: the loader has no memory for the libraries.
        assert done.returncode in (0, 1, 127), (megabytes, done.returncode, done.stderr)
        said.add("works" if done.returncode == 0 else done.stderr.rsplit(": ", 1)[-1].strip())
    assert "out of memory in a matrix product" in said or "MESHWRIGHT_SANITIZER" in os.environ, said
