# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Builds the archive that scripts/gpu.sh runs on a machine with a GPU: gpu.sh and archive.tar.gz.

The archive has the runtime with the libraries that it needs, bundles without weights, what they should
compute, the corpus of PTX and the scripts beside this one. Called by `scripts/gpu.sh --pack`.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

import torch
from safetensors.torch import save_file

import meshwright as mw
import models
import programs

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHIPS = ["sm_80", "sm_90a"]
# Every system has these. Others would hide those of the machine's PyTorch.
OF_THE_SYSTEM = re.compile(r"(ld-linux|linux-vdso|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s))[.-]")
LIMIT = 60 << 20
SEED = "1"
ONE = "mesh=tp=1"
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
TINY = models.Shape(hidden=128, inner=192, heads=8, key_heads=2, features=16, layers=2, tokens=24, vocabulary=96)


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"error: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


class Archive:
    def __init__(self, folder, build, size):
        self.folder, self.build, self.size = folder, build, size
        self.tools = build / "bin"
        self.description = {"size": size, "seed": int(SEED), "chips": CHIPS, "benches": {}, "tests": []}

    def copy_runtime(self):
        for name in ("bin", "lib"):
            (self.folder / name).mkdir()
        shutil.copy(self.tools / "sharding-run", self.folder / "bin")
        libraries = [self.build / "lib" / f"libMeshwright{name}.so" for name in ("Runtime", "Backend_nccl")]
        for library in libraries:
            shutil.copy(library, self.folder / "lib")
        for name, path in re.findall(r"(\S+) => (/\S+)", run("ldd", *libraries)):
            if not OF_THE_SYSTEM.match(name) and not (self.folder / "lib" / name).exists():
                shutil.copy(path, self.folder / "lib" / name)

    def copy_scripts(self):
        to = self.folder / "python"
        to.mkdir()
        for name in ("run", "corpus_table", "programs", "models", "sessions", "device"):
            shutil.copy(ROOT / "bench" / "gpu" / f"{name}.py", to)
        shutil.copy(ROOT / "test" / "fakegpu" / "fakegpu_cuda.py", to)
        shutil.copytree(ROOT / "test" / "fakegpu" / "corpus", to / "corpus", ignore=shutil.ignore_patterns("__pycache__"))

    def compile(self, name, text, chips=CHIPS, plan=None):
        """Bundles of a program without weights, one for each chip."""
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder, "model.mlir")
            model.write_text(text)
            for chip in chips:
                print(f"  {name} for {chip}", flush=True)
                run(self.tools / "sharding-compile", model, "--without-weights", f"--target=gpu:{chip}",
                    *[f"--parallelize={plan}"] * (plan is not None), "-o", self.folder / "bundles" / f"{name}-{chip}")  # fmt: skip

    def add_benches(self):
        sizes, cases = programs.SIZES[self.size], self.description["benches"]
        copies = sizes["copies"]
        for m, n, k in sizes["gemm"]:
            name = f"gemm-{m}-{n}-{k}"
            self.compile(name, programs.product(m, n, k, copies), CHIPS[:1])
            cases.setdefault("gemm", []).append({"bundle": name, "m": m, "n": n, "k": k})
        for kernel in programs.KERNELS:
            self.compile(f"rows-{kernel}", programs.row_kernel(kernel, *sizes["rows"], copies))
            cases.setdefault("rows", []).append({"bundle": f"rows-{kernel}", "kernel": kernel})
        for heads, tokens, features in sizes["attention"]:
            name = f"attention-{tokens}"
            self.compile(name, programs.attention(heads, tokens, features, copies=copies), ["sm_80", "sm_90", "sm_90a"])
            cases.setdefault("attention", []).append({"bundle": name, "heads": heads, "tokens": tokens, "features": features})
        shape = models.Shape(**sizes["layers"])
        self.compile("layers", import_meta(models.Stack(shape), (1, shape.tokens, shape.hidden)), plan=ONE)
        cases["layers"] = [{"bundle": "layers", "shape": vars(shape)}]
        shape = models.Shape(**sizes["decode"])
        self.compile("decode", import_decoder(shape), plan=ONE)
        cases["decode"] = [{"bundle": "decode", "shape": vars(shape)}]

    def add_test(self, name, text, inputs, plan=ONE, tolerance=None, steps=1):
        """A program whose outputs on the backend `local` are what a GPU should compute, in the last of some steps,
        each of which goes on from the state of the one before."""
        folder = self.folder / "tests" / name
        folder.mkdir(parents=True)
        self.compile(f"test-{name}", text, plan=plan)
        save_file(inputs, folder / "inputs.safetensors")
        with tempfile.TemporaryDirectory() as scratch:
            model = pathlib.Path(scratch, "model.mlir")
            model.write_text(text)
            for step in range(steps):
                run(self.tools / "sharding-run", model, f"--random-weights={SEED}", f"--parallelize={plan}",
                    f"--inputs={folder}/inputs.safetensors", f"--outputs={folder}/outputs.safetensors",
                    *programs.continue_state(scratch, step, steps))  # fmt: skip
        self.description["tests"].append({"name": name, "bundle": f"test-{name}", "tolerance": tolerance, "steps": steps})

    def add_tests(self):
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(0, 96, (2, TINY.tokens), generator=generator)

        def random(*shape, dtype=F32):
            return torch.randn(*shape, generator=generator).to(dtype)

        def module(build, dtype, *inputs, **options):
            # Of meta tensors, so that the program is made for any weights.
            imported = mw.from_torch(build().to("meta", dtype).eval(), tuple(x.to("meta") for x in inputs))
            return imported.ir(), dict(zip(imported.inputs, inputs, strict=True)), options

        llama, small = (lambda: models.Llama(TINY)), self.size == "small"
        cases = {
            "llama-f32": module(llama, F32, ids),
            "llama-bf16-tp2": module(llama, BF16, ids, plan="mesh=tp=2 sequence-parallel=on"),
            "llama-f32-tp2": module(llama, F32, ids, plan="mesh=tp=2 sequence-parallel=off"),
            "llama-f32-dp2": module(llama, F32, ids, plan="mesh=dp=2"),
            "llama-f32-ring2": module(llama, F32, ids, plan="mesh=ring=2 context-parallel={ring=ring}"),
            "llama-bf16-ulysses2": module(llama, BF16, ids, plan="mesh=u=2 context-parallel={ulysses=u}"),
            "classic-f32": module(models.Classic, F32, ids),
            "classic-bf16-tp2": module(models.Classic, BF16, ids, plan="mesh=tp=2"),
            "classic-f16": module(models.Classic, F16, ids),
            "rows-f32-dp3": module(models.Rows, F32, ids[:, :11] % 57, plan="mesh=dp=3"),
            "rows-bf16": module(models.Rows, BF16, ids[:, :11] % 57),
        }
        for dtype in (F32, BF16, F16):
            name = str(dtype).removeprefix("torch.")
            cases[f"linears-{name}-tp2"] = module(models.Linears, dtype, random(130, 97, dtype=dtype), plan="mesh=tp=2")
            heads = [random(2, 4, 70, 64, dtype=dtype) for _ in range(3)]
            visible = torch.arange(70) < torch.tensor([70, 41])[:, None, None, None]
            cases[f"masked-{name}"] = module(models.Masked, dtype, *heads, visible)
            cases[f"biased-{name}-tp2"] = module(models.Masked, dtype, *heads, random(1, 1, 70, 70, dtype=dtype), plan="mesh=tp=2")
        x = random(64, 97, dtype=BF16)
        cases["linears-bfloat16-tp2-sums-f32"] = module(models.Linears, BF16, x, plan="mesh=tp=2 reduce-type=f32")
        for name, plan in (("random-f32", ONE), ("random-f32-dp2", "mesh=dp=2")):
            x = random(16, 40)
            cases[name] = (mw.from_torch(models.Noisy(), (x,), training=True).ir(), {"x": x}, {"plan": plan})
        for name, plan in (("train-f32", ONE), ("train-f32-dp2", "mesh=dp=2")):
            inputs = {"ids": ids, "labels": ids.roll(-1, 1)}
            model = mw.from_torch(models.Loss(), (ids, inputs["labels"]), training=True).train(mw.AdamW(lr=1e-2))
            cases[name] = (model.ir(), inputs, {"plan": plan, "steps": 3, "tolerance": 1e-4})
        for features, causal, dtype in ((64, True, "bf16"), (128, True, "bf16"), (128, False, "f16"), (256, True, "bf16"),
                                        (80, False, "bf16"), (64, True, "f32"), (32, False, "f64")):  # fmt: skip
            kind = {"bf16": BF16, "f16": F16, "f32": F32, "f64": torch.float64}[dtype]
            text = programs.attention(4, 160, features, dtype, 2, "{causal}" if causal else "")
            shapes = {"q": 4, "k": 2, "v": 2}
            inputs = {name: random(1, heads, 160, features, dtype=kind) for name, heads in shapes.items()}
            cases[f"attention-{features}-{dtype}{'-causal' * causal}"] = (text, inputs, {})
        kept = ("llama-bf16-tp2", "attention-128-bf16-causal", "train-f32-dp2")
        for name, (text, inputs, options) in cases.items():
            if not small or name in kept:
                self.add_test(name, text, inputs, **options)
        shape = models.Shape(**programs.SIZES["small"]["decode"])
        self.compile("test-decode", import_decoder(shape), plan=ONE)
        self.description["decode_test"] = {"bundle": "test-decode", "tokens": shape.tokens}


def import_meta(module, shape, *others):
    """The program of a module in bf16, of which no weight is allocated."""
    inputs = [torch.zeros(shape, dtype=BF16, device="meta"), *(x.to("meta") for x in others)]
    return mw.from_torch(module.to("meta").to(BF16).eval(), tuple(inputs)).ir()


def import_decoder(shape):
    return import_meta(models.Decoder(shape), (1, 1, shape.hidden), torch.zeros(1, dtype=torch.int64))


def count_tree():
    """Bytes of the files of the working tree that git does not ignore."""
    listed = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return sum(path.stat().st_size for path in paths if path.is_file() and not path.is_symlink())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        archive = Archive(pathlib.Path(folder), options.build.resolve(), "small" if options.small else "full")
        (archive.folder / "bundles").mkdir()
        archive.copy_runtime()
        archive.copy_scripts()
        archive.add_benches()
        archive.add_tests()
        (archive.folder / "archive.json").write_text(json.dumps(archive.description, indent=1))
        for name in ("report.txt", "report.json"):
            for report in archive.folder.glob(f"bundles/*/{name}"):
                report.unlink()
        partial = options.folder / "archive.tar.gz.partial"
        with tarfile.open(partial, "w:gz", compresslevel=6) as tar:
            tar.add(archive.folder, arcname=".")
    os.replace(partial, options.folder / "archive.tar.gz")
    shutil.copy(ROOT / "scripts" / "gpu.sh", options.folder)
    size, tree = (options.folder / "archive.tar.gz").stat().st_size, count_tree()
    inside = options.folder.resolve().is_relative_to(ROOT) and subprocess.run(
        ["git", "check-ignore", "-q", options.folder.resolve()], cwd=ROOT).returncode != 0  # fmt: skip
    total = tree if inside else tree + size
    print(f"{options.folder}: {size / 2**20:.1f} MiB; with the working tree {total / 2**20:.1f} MiB of at most {LIMIT >> 20}")
    if total > LIMIT:
        sys.exit(f"error: the archive and the working tree have {total / 2**20:.1f} MiB, expected at most {LIMIT >> 20}")


if __name__ == "__main__":
    main()
