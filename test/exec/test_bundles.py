# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Bundles hold the program that `plan.run` runs, and say clearly what is wrong with them."""
import copy
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import time

import meshwright as mw
import pytest
import torch
from harness import TIMEOUT, launch, tool
from safetensors.torch import load_file, save_file
from torch import nn

VOCABULARY = 61  # divides by nothing


class Decoder(nn.Module):
    """Shared, sharded and tied weights, a buffer, ids as indices."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 32)
        self.norm = nn.RMSNorm(32)
        self.up, self.down = nn.Linear(32, 48), nn.Linear(48, 32, bias=False)
        self.head = nn.Linear(32, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.linspace(0.5, 2, 32))

    def forward(self, ids):
        x = self.embed(ids)
        x = x + self.down(nn.functional.silu(self.up(self.norm(x))))
        return self.head(x * self.scale), x


@pytest.fixture
def ids():
    return torch.randint(0, VOCABULARY, (2, 6), generator=torch.Generator().manual_seed(1))


def make_model(ids, dtype=torch.float32):
    torch.manual_seed(0)
    return mw.from_torch(Decoder().to(dtype), (ids,))


@pytest.fixture
def plan(ids):
    return make_model(ids).parallelize(mesh={"tp": 2})


@pytest.fixture
def bundle(plan, ids, tmp_path):
    """A bundle, with its inputs and what the plan says they give beside it."""
    plan.compile(tmp_path / "bundle")
    save_file({"ids": ids}, tmp_path / "in.safetensors")
    names = [port.name for port in plan._plan.outputs]
    outputs = [output.contiguous() for output in plan.run(ids)]
    save_file(dict(zip(names, outputs)), tmp_path / "want.safetensors")
    return tmp_path / "bundle"


def run(bundle, *arguments, status=0, env=None):
    """Outputs by name, or what was said where it should fail."""
    folder = bundle.parent
    done = launch(bundle, f"--inputs={folder}/in.safetensors",
                  f"--outputs={folder}/out.safetensors", *arguments, env=env)
    assert done.returncode == status, f"status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stderr if status else load_file(folder / "out.safetensors")


def code_of(bundle):
    (code,) = bundle.glob("program-*.so")
    return code


def compile_module(folder, text, weights, *arguments, env=None):
    """The finished process of sharding-compile, to `bundle`."""
    (folder / "m.mlir").write_text(text)
    save_file(weights, folder / "w.safetensors")
    compiler = pathlib.Path(tool()).with_name("sharding-compile")
    return subprocess.run([compiler, "m.mlir", "--weights=w.safetensors", *arguments, "-o", "bundle"],
                          cwd=folder, capture_output=True, text=True, env={**os.environ, **(env or {})})


def while_linking(folder, command):
    """An environment whose linker does that first."""
    name = next(name for name in ("ld.lld-22", "ld.lld", "cc") if shutil.which(name))
    (folder / "bin").mkdir()
    linker = folder / "bin" / name
    linker.write_text(f'#!/bin/sh\n{command}\nexec {shutil.which(name)} "$@"\n')
    linker.chmod(0o755)
    return {"PATH": f"{folder}/bin:{os.environ['PATH']}"}


def assert_same(got, folder):
    want = load_file(folder / "want.safetensors")
    assert got.keys() == want.keys()
    for name in want:
        assert got[name].dtype == want[name].dtype and torch.equal(got[name], want[name]), name


def write_json(file, manifest):
    """As if a compiler or a session had written it: the hash is right."""
    manifest.pop("hash", None)
    value = 0xcbf29ce484222325
    text = json.dumps(manifest, separators=(",", ":"), ensure_ascii=False).encode()
    for at in range(0, len(text), 8):
        value = (value ^ int.from_bytes(text[at:at + 8], "little")) * 0x9e3779b97f4a7c15 % 2**64
        value ^= value >> 32
    manifest["hash"] = f"{value:016x}"
    file.write_text(json.dumps(manifest))


def write_manifest(bundle, manifest):
    write_json(bundle / "manifest.json", manifest)


def change_json(file, change):
    manifest = json.loads(file.read_text())
    change(manifest)
    write_json(file, manifest)


def change_manifest(bundle, change):
    change_json(bundle / "manifest.json", change)


@pytest.mark.parametrize("mesh", [{"tp": 1}, {"tp": 4}, {"dp": 2, "tp": 2}, {"dp": 2, "tp": 3}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_equals_the_plan(ids, tmp_path, mesh, dtype):
    plan = make_model(ids, dtype).parallelize(mesh=mesh, sequence_parallel="on")
    plan.compile(tmp_path / "bundle")
    save_file({"ids": ids}, tmp_path / "in.safetensors")
    got = run(tmp_path / "bundle")
    for port, want in zip(plan._plan.outputs, plan.run(ids)):
        assert got[port.name].dtype == want.dtype and torch.equal(got[port.name], want)


def test_tool_and_python_write_the_same(bundle, ids, tmp_path):
    make_model(ids).save(tmp_path / "m.mlir", tmp_path / "m.safetensors")
    compiler = pathlib.Path(tool()).with_name("sharding-compile")
    subprocess.run([compiler, "m.mlir", "--weights", "m.safetensors", "--parallelize=mesh=tp=2",
                    "-o", "made/"], cwd=tmp_path, check=True)
    assert sorted(os.listdir(tmp_path / "made")) == sorted(os.listdir(bundle))
    assert_same(run(tmp_path / "made"), tmp_path)
    # As it is, on one rank.
    subprocess.run([compiler, "m.mlir", "--weights=m.safetensors", "-o", "one"], cwd=tmp_path,
                   check=True)
    got, want = run(tmp_path / "one"), load_file(tmp_path / "want.safetensors")
    for name in want:
        torch.testing.assert_close(got[name], want[name], rtol=1e-4, atol=1e-5)
    run(tmp_path / "one", f"--report={tmp_path}/one.json")
    report = json.loads((tmp_path / "one.json").read_text())
    assert report["ranks"] == 1 and report["collectives"] == [] and report["run"]["ranks"] == 1


def test_weights_lie_once(ids, tmp_path):
    """Ranks that hold the same part share a file; what all hold is in one."""
    plan = make_model(ids).parallelize(mesh={"dp": 2, "tp": 2})
    plan.compile(tmp_path / "bundle")
    files = sorted(os.listdir(tmp_path / "bundle" / "weights"))
    assert files == ["rank-0.bin", "rank-1.bin", "shared.bin"]


def test_moves_and_is_only_read(bundle, tmp_path):
    moved = tmp_path / "else where" / "b"
    moved.parent.mkdir()
    shutil.copy(tmp_path / "in.safetensors", moved.parent)
    bundle.rename(moved)
    before = {path: path.stat().st_mtime_ns for path in [moved, *moved.rglob("*")]}
    for path in before:
        path.chmod(0o555 if path.is_dir() else 0o444)
    assert_same(run(moved), tmp_path)
    assert {path: path.stat().st_mtime_ns for path in [moved, *moved.rglob("*")]} == before
    for path in before:
        path.chmod(0o755)


def test_needs_no_compiler(bundle):
    linked = subprocess.run(["ldd", tool()], capture_output=True, text=True, check=True).stdout
    assert "libMeshwrightRuntime.so" in linked
    assert "LLVM" not in linked and "MLIR" not in linked and "libMeshwright.so" not in linked
    log = bundle.parent / "log"
    run(bundle, env={"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": str(log)})
    (opened,) = [path.read_text() for path in bundle.parent.glob("log.*")]
    assert code_of(bundle).name in opened
    assert "libLLVM" not in opened and "libMLIR" not in opened and "libMeshwright.so" not in opened


def test_program_calls_only_the_runtime(bundle):
    said = subprocess.run(["nm", "-D", "--undefined-only", code_of(bundle)],
                          capture_output=True, text=True, check=True).stdout
    called = {line.split()[-1].split("@")[0] for line in said.splitlines()}
    mathematics = {"memcpy", "memset", "memmove", "sinf", "cosf", "powf", "fmodf"}
    assert called and all(name.startswith("mw_rt_") or name in mathematics for name in called)


def test_without_weights(ids, bundle):
    """One bundle runs any weights of its shapes. Those of the model give the plan's bits."""
    folder, model = bundle.parent, make_model(ids)
    plan = model.parallelize(mesh={"tp": 2})
    model.save(folder / "m.mlir", folder / "w.safetensors")
    plan.compile(bundle, weights=False)
    code = mw.load_bundle(bundle)
    with code.start(weights=folder / "w.safetensors") as session:
        assert all(torch.equal(torch.from_numpy(a), b) for a, b in zip(session.run(ids.numpy()), plan.run(ids)))
    drawn = [code.start(random_weights=seed).run(ids.numpy())[0] for seed in (1, 1, 2)]
    assert (drawn[0] == drawn[1]).all() and not (drawn[0] == drawn[2]).all()
    for options, wanted in (({}, "the bundle has no weights: expected a file of weights or a seed of random ones"),
                            ({"weights": "w", "random_weights": 1}, "expected one of them"),
                            ({"weights": folder / "in.safetensors"}, "in.safetensors has no tensor 'embed.weight'")):
        with pytest.raises(mw.Error, match=wanted):
            code.start(**options)
    for damage, wanted in ((lambda tensors: tensors.pop(0), "damaged: parameter '.*' is no part of a tensor"),
                           (lambda tensors: tensors[0]["shape"].append(2), "parameter '.*': expected f32.*, got f32")):
        plan.compile(bundle, weights=False)
        change_manifest(bundle, lambda manifest, damage=damage: damage(manifest["tensors"]))
        with pytest.raises(mw.Error, match=wanted):
            mw.load_bundle(bundle).start(random_weights=1)
    plan.compile(bundle)
    with pytest.raises(mw.Error, match="the bundle has its weights: expected no random weights"):
        mw.load_bundle(bundle).start(random_weights=1)


def test_meta_tensors_are_enough(ids, tmp_path):
    with torch.device("meta"):
        decoder = Decoder()
    model = mw.from_torch(decoder, (ids,))
    model.parallelize(mesh={"tp": 2}).compile(tmp_path / "bundle", weights=False)
    assert mw.load_bundle(tmp_path / "bundle").start(random_weights=1).run(ids.numpy())[0].shape == (2, 6, VOCABULARY)


def test_report(bundle, plan):
    done = launch(bundle, "--random-inputs=1", "--report")
    assert done.returncode == 0
    assert done.stdout.startswith(plan.report(verbose=True) + "run: ")
    done = launch(bundle, "--random-inputs=1", f"--report={bundle.parent}/r.json")
    assert done.returncode == 0
    report = json.loads((bundle.parent / "r.json").read_text())
    assert report.pop("run")["ranks"] == plan.ranks
    assert report == plan.report("json")


def test_a_report_that_is_missing(bundle):
    for name, option in (("report.txt", "--report"), ("report.json", f"--report={bundle.parent}/r.json")):
        (bundle / name).write_text("")
        done = launch(bundle, "--random-inputs=1", option)
        assert done.returncode == 1 and f"bundle/{name}: 0 bytes, no report" in done.stderr
        (bundle / name).unlink()
        done = launch(bundle, "--random-inputs=1", option)
        assert done.returncode == 1 and f"bundle/{name}: No such file or directory" in done.stderr
    assert launch(bundle, "--random-inputs=1").returncode == 0


def test_random_inputs_stay_below_the_tables(bundle):
    for seed in range(5):
        assert launch(bundle, f"--random-inputs={seed}").returncode == 0


# The error, for each damage.


def test_reference(bundle, tmp_path):
    want = load_file(tmp_path / "want.safetensors")
    assert launch(bundle, f"--inputs={tmp_path}/in.safetensors", "--check",
                  f"--reference={tmp_path}/want.safetensors").returncode == 0
    changed = {name: tensor + 1 for name, tensor in want.items()}
    save_file(changed, tmp_path / "changed.safetensors")
    done = launch(bundle, f"--inputs={tmp_path}/in.safetensors",
                  f"--reference={tmp_path}/changed.safetensors")
    assert done.returncode == 3 and "FAILED" in done.stdout


@pytest.mark.parametrize("arguments, expected", [
    (["--check"], "--check needs --reference"),
    (["--parallelize=mesh=tp=2"], "expected no --parallelize"),
])
def test_wrong_usage(bundle, arguments, expected):
    assert expected in run(bundle, *arguments, status=2)


def test_no_bundle(tmp_path):
    (tmp_path / "folder").mkdir()
    done = launch(tmp_path / "folder")
    assert done.returncode == 1 and "folder: no bundle: it has no manifest.json" in done.stderr


def test_wrong_inputs(bundle, ids, tmp_path):
    save_file({"ids": ids.int()}, tmp_path / "in.safetensors")
    assert ": expected i64[2, 6], got i32[2, 6]" in run(bundle, status=1)
    save_file({"ids": ids, "more": ids.clone()}, tmp_path / "in.safetensors")
    assert "'more' is not an input of the program" in run(bundle, status=1)
    save_file({"other": ids}, tmp_path / "in.safetensors")
    assert "has no tensor 'ids'" in run(bundle, status=1)
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize("file", ["program-*.so", "weights/rank-1.bin", "weights/shared.bin"])
def test_missing_and_changed_files(bundle, file, tmp_path):
    (path,) = bundle.glob(file)
    file = path.relative_to(bundle)
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    assert f"bundle/{file}: " in run(bundle, status=1)
    # Of another bundle, or of a build that was interrupted.
    path.write_bytes(content.replace(b"mw_main", b"mw_mein").replace(b"weights\n", b"weights!"))
    assert f"bundle/{file}: " in run(bundle, status=1)
    path.unlink()
    assert f"bundle/{file}: No such file or directory" in run(bundle, status=1)
    os.mkfifo(path)  # no process writes to it
    assert f"bundle/{file}: not a file" in run(bundle, status=1)
    path.unlink()
    path.write_bytes(content)
    assert_same(run(bundle), tmp_path)


def test_files_in_each_others_places(bundle, tmp_path):
    """Of one size and one bundle: only what they begin with tells them apart."""
    first, second = (bundle / f"weights/rank-{rank}.bin" for rank in (0, 1))
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    assert "weights/rank-0.bin: not the file of this name in the bundle" in run(bundle, status=1)
    first.write_bytes(contents[0])
    assert "weights/rank-1.bin: not the file of this name in the bundle" in run(bundle, status=1)
    second.write_bytes(contents[1])
    assert_same(run(bundle), tmp_path)


@pytest.mark.parametrize("file", ["weights/rank-0.bin", "weights/rank-1.bin", "weights/shared.bin"])
def test_changed_weights(bundle, file, tmp_path):
    assert_same(run(bundle, "--verify-weights"), tmp_path)
    path = bundle / file
    content = bytearray(path.read_bytes())
    for place in (128, len(content) // 2, len(content) - 1):
        changed = content.copy()
        changed[place] ^= 1
        path.write_bytes(changed)
        assert f"bundle/{file}: changed since the bundle was written" in run(bundle, "--verify-weights", status=1)


@pytest.mark.parametrize("key, value, expected", [
    ("version", 99, "which this runtime reads, got 99"),
    ("version", 1, "which this runtime reads, got 1"),
    ("abi", 77, "which this runtime reads, got 77"),
    ("format", "other", "not a manifest of a bundle"),
    ("ranks", 0, "damaged: no ranks"),
    ("ranks", -2, "damaged: ranks is not a natural number"),
    ("ranks", 10**9, "damaged: expected at most 65536 ranks, got 1000000000"),
    ("arguments", [{"input": 7}], "damaged: input: expected less than 1, got 7"),
    ("state_results", [0], "damaged: state_results: expected numbers less than 0, got 0"),
    ("prepared", [-1], "damaged: prepared: expected numbers less than "),
    ("entries", [], "damaged: no entries"),
])
def test_manifests_of_others(bundle, key, value, expected):
    def change(manifest):
        of_entry = key in ("arguments", "state_results", "prepared")
        (manifest["entries"][0] if of_entry else manifest).update({key: value})

    change_manifest(bundle, change)
    message = run(bundle, status=1)
    assert "manifest.json: " in message and expected in message


@pytest.mark.parametrize("axes, expected", [
    ([[1, 4]], "damaged: an axis is beyond the ranks"),
    ([[1, 3]], "damaged: a constant has parts of different sizes"),
])
def test_constants_of_ranks(tmp_path, axes, expected):
    """A mask of padding reads a number of the rank."""
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(8, 5), nn.Sigmoid(), nn.Linear(5, 8)), torch.randn(3, 8)
    mw.from_torch(net, (x,)).parallelize(mesh={"dp": 1, "tp": 2}).compile(tmp_path / "bundle")
    save_file({"input": x}, tmp_path / "in.safetensors")
    [y] = run(tmp_path / "bundle").values()
    assert (y - net(x)).abs().max() < 1e-5

    def change(manifest):
        manifest["ranks"] = max(manifest["ranks"], axes[0][1] if "parts" in expected else 0)
        [constant] = [c for c in manifest["entries"][0]["constants"] if "axes" in c]
        assert constant["axes"] == [[1, 2]] and constant["bytes"] == 16
        constant["axes"] = axes

    change_manifest(tmp_path / "bundle", change)
    assert expected in run(tmp_path / "bundle", status=1)


def test_a_changed_manifest(bundle, tmp_path):
    path = bundle / "manifest.json"
    text = path.read_text()
    # Another spelling of the same JSON is accepted.
    path.write_text(json.dumps(json.loads(text)))
    assert_same(run(bundle), tmp_path)
    for old, new in (('"offset": 128', '"offset": 192'), ('"read": false', '"read": true'), ('"hash"', '"hush"')):
        assert old in text
        path.write_text(text.replace(old, new, 1))
        assert "manifest.json: changed since the bundle was written" in run(bundle, status=1)


def test_damaged_manifests_never_crash(bundle):
    """Any value replaced by any other: it runs, or says what is wrong."""
    original = json.loads((bundle / "manifest.json").read_text())
    generator = random.Random(0)

    def places(value, path=()):
        yield path
        items = value.items() if isinstance(value, dict) else (
            enumerate(value) if isinstance(value, list) else [])
        for key, child in items:
            yield from places(child, (*path, key))

    paths = [path for path in places(original) if path and path[0] != "ops"]
    for path in generator.sample(paths, 60):
        manifest = copy.deepcopy(original)
        at = manifest
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = generator.choice([None, -1, 0, 3, 2**62, 2**64, "x", [], {}, [[]], True])
        write_manifest(bundle, manifest)
        done = launch(bundle, f"--inputs={bundle.parent}/in.safetensors")
        assert done.returncode in (0, 1), f"{path} -> {at[path[-1]]}: {done.returncode}"
        assert done.returncode == 0 or "error: " in done.stderr


PRODUCT = """func.func @main(%x: tensor<4x8xf32> {nn.input = "x"}, %w: tensor<8x8xf32> {nn.parameter = "w"},
    %u: tensor<8x6xf32> {nn.parameter = "unused"}) -> (tensor<4x8xf32> {nn.output = "y"}) {
  %0 = nn.linear %x, %w : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}
"""


@pytest.mark.parametrize("arguments", [[], ["--parallelize=mesh=tp=2"]], ids=str)
def test_a_parameter_that_nothing_reads(tmp_path, arguments):
    x, w = torch.ones(4, 8), torch.arange(64.).reshape(8, 8)
    done = compile_module(tmp_path, PRODUCT, {"w": w, "unused": torch.ones(8, 6)}, *arguments)
    assert done.returncode == 0, done.stderr
    save_file({"x": x}, tmp_path / "in.safetensors")
    for bundle in (tmp_path / "bundle", tmp_path / "m.mlir"):
        weights = [f"--weights={tmp_path}/w.safetensors", *arguments] if bundle.suffix else []
        assert torch.equal(run(bundle, *weights)["y"], x @ w.T)


def test_cut_manifest(bundle):
    path = bundle / "manifest.json"
    path.write_text(path.read_text()[:1000])
    assert "manifest.json: not a manifest of a bundle" in run(bundle, status=1)


# Processors.


def test_older_processor(bundle, plan, tmp_path):
    features = set(json.loads((bundle / "manifest.json").read_text())["target"]["features"])
    if not {"avx2", "fma", "bmi2"} <= features:
        pytest.skip("this machine is older")
    for cpu in ["x86-64-v3", "haswell"]:
        plan.compile(bundle, target=f"cpu:{cpu}")
        target = json.loads((bundle / "manifest.json").read_text())["target"]
        assert target["cpu"] == cpu and "avx2" in target["features"]
        assert not any(name.startswith("avx512") for name in target["features"])
        code = subprocess.run(["objdump", "-d", code_of(bundle)], capture_output=True,
                              text=True, check=True).stdout
        assert "%ymm" in code and "%zmm" not in code
        got, want = run(bundle), load_file(tmp_path / "want.safetensors")
        for name in want:
            torch.testing.assert_close(got[name], want[name], rtol=1e-4, atol=1e-5)


def test_newer_processor(bundle, plan):
    """One that has what this machine lacks."""
    flags = pathlib.Path("/proc/cpuinfo").read_text()
    if "amx_tile" in flags:
        pytest.skip("this machine has tiles")
    plan.compile(bundle, target="cpu:sapphirerapids")
    message = run(bundle, status=1)
    assert "compiled for 'sapphirerapids', this processor has no " in message
    assert "amx-tile" in message and "compile with another --target" in message


def test_other_architecture(bundle):
    change_manifest(bundle, lambda manifest: manifest["target"].update(architecture="vax"))
    assert "this machine, got one for vax" in run(bundle, status=1)


def test_unknown_processor(plan, tmp_path):
    with pytest.raises(mw.Error, match="unknown processor 'i486dx'"):
        plan.compile(tmp_path / "bundle", target="cpu:i486dx")
    with pytest.raises(mw.Error, match="processor 'i386' has no 64-bit code: expected one for x86_64"):
        plan.compile(tmp_path / "bundle", target="cpu:i386")
    assert os.listdir(tmp_path) == []


# Writing.


def test_replaces_only_bundles(bundle, plan, tmp_path):
    old = (bundle / "manifest.json").read_text()
    plan.compile(bundle)
    plan.compile(str(bundle) + "/")
    assert (bundle / "manifest.json").read_text() != old
    assert_same(run(bundle), tmp_path)
    (tmp_path / "empty").mkdir()
    plan.compile(tmp_path / "empty")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("mine")
    (tmp_path / "link").symlink_to(bundle)
    for name in ["taken", "link", "in.safetensors"]:
        with pytest.raises(mw.Error, match="something else is there"):
            plan.compile(tmp_path / name)
    with pytest.raises(mw.Error, match="cannot write bundle"):
        plan.compile(tmp_path / "none" / "bundle")
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


@pytest.mark.parametrize("name", ["notes.txt", "report.txt.orig", "program-mine.so", "weights/notes.txt",
                                  "weights/rank-0.bin.orig", "more/", "weights/more/", "link@", "weights/rank-9.bin@"])
def test_what_others_put_into_a_bundle_stays(bundle, plan, tmp_path, name):
    own = bundle / name.rstrip("@")
    if name.endswith("@"):
        own.symlink_to(tmp_path / "in.safetensors")
    elif name.endswith("/"):
        own.mkdir()
    else:
        own.write_text("mine")
    before = sorted(bundle.rglob("*"))
    with pytest.raises(mw.Error, match=f"'{name.rstrip('/@')}' in it is no part of a bundle and would be deleted"):
        plan.compile(bundle)
    assert sorted(bundle.rglob("*")) == before
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


@pytest.mark.parametrize("text", ['{"manifest_version": 3, "name": "an extension"}', '{"format": "meshwright"}', "[]", ""])
def test_manifests_of_others_stay(plan, tmp_path, text):
    path = tmp_path / "extension" / "manifest.json"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(mw.Error, match=r"something else is there: its manifest\.json is not one of a bundle"):
        plan.compile(path.parent)
    assert path.read_text() == text and os.listdir(tmp_path) == ["extension"]


def test_replaces_old_and_damaged_bundles(bundle, plan, tmp_path):
    def make_old():
        change_manifest(bundle, lambda manifest: manifest.update(version=1))
        code_of(bundle).rename(bundle / "program.so")

    def damage():
        text = (bundle / "manifest.json").read_text()
        (bundle / "manifest.json").write_text(text.replace('"hash"', '"hush"'))
        code_of(bundle).unlink()

    for change in (make_old, damage):
        change()
        run(bundle, status=1)
        plan.compile(bundle)
        assert_same(run(bundle), tmp_path)


def test_what_comes_while_it_compiles_stays(tmp_path):
    weights = {"w": torch.ones(8, 8), "unused": torch.ones(8, 6)}
    env = while_linking(tmp_path, f"mkdir {tmp_path}/bundle && echo mine > {tmp_path}/bundle/notes.txt")
    done = compile_module(tmp_path, PRODUCT, weights, env=env)
    assert done.returncode == 1 and "something else is there: a folder without manifest.json" in done.stderr
    assert (tmp_path / "bundle" / "notes.txt").read_text() == "mine\n"
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_weights_that_are_cut_while_it_compiles(tmp_path):
    weights = {"w": torch.ones(8, 8), "unused": torch.ones(8, 6)}
    done = compile_module(tmp_path, PRODUCT, weights, env=while_linking(tmp_path, ": > w.safetensors"))
    assert done.returncode == 1, done.stderr
    assert "sharding-compile: error: w.safetensors: cannot be read any more" in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["bin", "m.mlir", "w.safetensors"]


def test_a_failure_leaves_the_old_one(bundle, ids, tmp_path):
    """Here: no linker."""
    make_model(ids).save(tmp_path / "m.mlir", tmp_path / "m.safetensors")
    compiler = pathlib.Path(tool()).with_name("sharding-compile")
    done = subprocess.run([compiler, "m.mlir", "--weights=m.safetensors", "-o", bundle],
                          cwd=tmp_path, env={**os.environ, "PATH": "/nowhere"},
                          capture_output=True, text=True)
    assert done.returncode == 1
    assert "no linker found: expected ld.lld-22, ld.lld or cc" in done.stderr
    assert_same(run(bundle), tmp_path)
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_compiler_leaves_nothing(tmp_path, number):
    # 256 MiB to write: long enough to strike in.
    weights = {f"w{i}": torch.zeros(2048, 2048) for i in range(16)}
    save_file(weights, tmp_path / "w.safetensors")
    arguments = ", ".join(f'%{name}: tensor<2048x2048xf32> {{nn.parameter = "{name}"}}' for name in weights)
    steps, last = [], "%x"
    for name in weights:
        steps.append(f"%y{name} = nn.linear {last}, %{name} : (tensor<1x2048xf32>, tensor<2048x2048xf32>) -> tensor<1x2048xf32>")
        last = f"%y{name}"
    (tmp_path / "m.mlir").write_text(
        f'func.func @main(%x: tensor<1x2048xf32> {{nn.input = "x"}}, {arguments}) -> (tensor<1x2048xf32> {{nn.output = "y"}}) {{\n'
        + "\n".join(steps) + f"\nreturn {last} : tensor<1x2048xf32>\n}}\n")
    there = {"m.mlir", "w.safetensors"}
    command = [pathlib.Path(tool()).with_name("sharding-compile"), tmp_path / "m.mlir",
               f"--weights={tmp_path}/w.safetensors", "--parallelize=mesh=tp=4", "-o", tmp_path / "b"]
    for _ in range(20):
        # The parent process of the tests may ignore the signal.
        process = subprocess.Popen(command, stderr=subprocess.PIPE, preexec_fn=lambda: signal.signal(number, signal.SIG_DFL))
        while process.poll() is None and not any((p / "weights").exists() for p in tmp_path.glob(".b.partial-*")):
            time.sleep(0.002)
        process.send_signal(number)
        process.wait(TIMEOUT)
        if process.returncode == -number:
            break
        # On a busy machine the signal may come when all is written.
        assert process.returncode == 0, process.stderr.read()
        shutil.rmtree(tmp_path / "b")
    assert process.returncode == -number
    assert {p.name for p in tmp_path.iterdir()} == there


@pytest.mark.parametrize("arguments, status, expected", [
    ([], 2, "no model given"),
    (["m.mlir"], 2, "expected -o BUNDLE"),
    (["m.mlir", "-o"], 2, "-o needs a value"),
    (["m.mlir", "--weights=", "-o", "b"], 2, "--weights needs a value"),
    (["m.mlir", "--speed=9", "-o", "b"], 2, "unknown option '--speed=9'"),
    (["none.mlir", "-o", "b"], 1, "none.mlir: No such file or directory"),
    (["m.mlir", "-o", "b"], 1, "the program has 1 parameters: give --weights, --random-weights or --without-weights"),
    (["m.mlir", "--without-weights", "--weights=w.safetensors", "-o", "b"], 2,
     "--without-weights and --weights exclude each other"),
    (["m.mlir", "--weights=w.safetensors", "-o", "b"], 1, "has no tensor 'w'"),
])
def test_compiler_errors(tmp_path, arguments, status, expected):
    (tmp_path / "m.mlir").write_text(
        'func.func @main(%w: tensor<4xf32> {nn.parameter = "w"}) -> (tensor<4xf32> '
        '{nn.output = "y"}) {\n  %0 = nn.relu %w : tensor<4xf32>\n'
        "  return %0 : tensor<4xf32>\n}\n")
    save_file({"v": torch.zeros(4)}, tmp_path / "w.safetensors")
    compiler = pathlib.Path(tool()).with_name("sharding-compile")
    done = subprocess.run([compiler, *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == status and expected in done.stderr, done.stderr
    assert not (tmp_path / "b").exists()
