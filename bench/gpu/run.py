# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs a part of an archive of scripts/gpu.sh on a GPU, writes PART.json, and adds its table to results.txt.

Times of kernels are those of the GPU's clock in a trace of a call. Times of whole models are those of the
host, from the start of a call on arrays of the GPU to its end. PyTorch is measured in turns with ours.
Figures are medians.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

try:
    import numpy as np
    from device import Gpu
except ImportError as problem:
    sys.exit(f"error: {problem}: the parts need the Python package numpy")
import programs
from sessions import Failed, open_session

TABLES = ["integers", "floats", "conversions", "warps", "memory", "matrices"]
ROUNDS = 15
# Cycles of the GPU in which PyTorch's calls are enqueued.
CYCLES = 2_000_000


class Run:
    """What the parts share: the archive, the GPU, PyTorch, and the rows of results."""

    def __init__(self, archive):
        self.archive, self.description = archive, json.loads((archive / "archive.json").read_text())
        try:
            self.gpu = Gpu()
        except OSError:
            sys.exit("error: no NVIDIA driver: libcuda.so.1 was not found")
        except Exception as problem:  # of the driver
            sys.exit(f"error: no GPU: {problem}")
        self.device = self.gpu.describe()
        major, minor = map(int, self.device["capability"].split("."))
        if (major, minor) < (8, 0):
            sys.exit(f"error: {self.device['name']} has compute capability {major}.{minor}, expected 8.0 or later")
        self.chips = ["sm_80"] + ["sm_90a"] * (major == 9)
        self.small = self.description["size"] == "small"
        self.sizes = programs.SIZES[self.description["size"]]
        self.torch, self.why = find_torch()
        self.rows, self.failures = [], 0

    def bundle(self, name, chip=None):
        """The bundle for a chip, or the best one for this GPU."""
        chips = [chip] if chip else self.chips[::-1]
        paths = [self.archive / "bundles" / f"{name}-{chip}" for chip in chips]
        return next((path for path in paths if path.is_dir()), None) or sys.exit(f"error: {paths[0]} is not in the archive")

    def open(self, path, **options):
        return open_session(str(self.archive / "lib" / "libMeshwrightRuntime.so"), path,
                            seed=self.description["seed"], **options)  # fmt: skip

    def place(self, session, copies=1):
        """Random inputs as arrays of the host, and the addresses of inputs and outputs in the GPU's memory.
        The inputs of all copies are alike."""
        arrays = [self.gpu.draw(port) for port in session.inputs[: len(session.inputs) // copies]] * copies
        return arrays, [self.gpu.put(a) for a in arrays], [self.gpu.alloc(port.get_bytes()) for port in session.outputs]

    def free(self, *lists):
        for at in sum(lists, []):
            self.gpu.free(at)

    def to_torch(self, array, session_port):
        """An array of the host as a tensor of PyTorch on the GPU."""
        tensor = self.torch.from_numpy(array)
        return (tensor.view(self.torch.bfloat16) if array.dtype == np.uint16 else tensor).cuda()

    def differ(self, session, outputs, wanted):
        """The largest difference of our first output from PyTorch's, relative to the largest entry."""
        ours = self.gpu.get(outputs[0], session.outputs[0].get_shape(), np.uint16)
        ours = (ours.astype(np.uint32) << 16).view(np.float32)
        wanted = wanted.float().cpu().numpy().reshape(ours.shape)
        return float(np.abs(ours - wanted).max() / np.abs(wanted).max())

    def measure_kernels(self, path, category, peer=None):
        """Seconds of our kernels of a category, and of the peer, a function of the inputs. Takes turns.

        A call does the same on several sets of inputs, and so does the peer. The first set is left out,
        since the GPU was idle before it."""
        copies = self.sizes["copies"]
        with tempfile.TemporaryDirectory() as folder:
            trace = pathlib.Path(folder, "trace.json")
            with self.open(path, trace=trace) as session:
                arrays, inputs, outputs = self.place(session, copies)
                call, ours, theirs, difference = session.prepare(inputs, outputs), [], [], None
                if self.torch and peer:
                    tensors = [self.to_torch(*pair) for pair in zip(arrays, session.inputs)]
                    each = len(tensors) // copies
                    sets = [tensors[i : i + each] for i in range(0, len(tensors), each)]
                skipped = 1 if self.small else 3
                for _ in range(skipped + (1 if self.small else ROUNDS)):
                    call()
                    events = json.loads(trace.read_text())["traceEvents"]
                    kernels = sorted((e["ts"], e["dur"]) for e in events if e.get("cat") == category)
                    first = len(kernels) // copies if copies > 1 else 0
                    ours.append(sum(dur for _, dur in kernels[first:]) * 1e-6 / max(1, copies - 1))
                    if self.torch and peer:
                        elapsed, result = self.time_torch(peer, sets)
                        theirs.append(elapsed)
                if self.torch and peer:
                    difference = self.differ(session, outputs, result)
                self.free(inputs, outputs)
        if not any(ours):
            raise Failed(f"the trace of {path.name} has no kernel of kind '{category}'")
        return median(ours, skipped), median(theirs, skipped), difference

    def time_torch(self, call, sets):
        """Seconds of a call on the GPU's clock, and its result. Each set of inputs has a call. They begin
        when all are enqueued, so that the GPU does not wait for the host; the first is left out."""
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.torch.cuda.synchronize()
        self.torch.cuda._sleep(CYCLES)
        for i, inputs in enumerate(sets):
            if i == min(1, len(sets) - 1):
                begin.record()
            result = call(*inputs)
        end.record()
        self.torch.cuda.synchronize()
        return begin.elapsed_time(end) * 1e-3 / max(1, len(sets) - 1), result

    def measure_calls(self, path, graphs=None, peer=None, inputs=None):
        """Seconds of a whole call of ours and of the peer, by the host's clock. Takes turns."""
        with self.open(path, graphs=graphs) as session:
            arrays, given, outputs = self.place(session)
            for position, array in (inputs or {}).items():
                self.gpu.free(given[position])
                given[position] = self.gpu.put(array)
            call, ours, theirs = session.prepare(given, outputs), [], []
            skipped = 2 if self.small else 5
            for _ in range(skipped + (1 if self.small else ROUNDS)):
                self.gpu.synchronize()
                begin = time.perf_counter()
                call()
                ours.append(time.perf_counter() - begin)
                if peer:
                    self.torch.cuda.synchronize()
                    begin = time.perf_counter()
                    peer()
                    self.torch.cuda.synchronize()
                    theirs.append(time.perf_counter() - begin)
            states = sum(port.get_bytes() for port in session.states)
            self.free(given, outputs)
        return median(ours, skipped), median(theirs, skipped), states

    def add(self, case, **figures):
        self.rows.append({"case": case, **figures})

    @contextlib.contextmanager
    def case(self, name):
        """A case that fails does not keep the part from the others."""
        try:
            yield
        except Exception as problem:  # of the runtime, the driver or PyTorch
            self.failures += 1
            self.add(name, error=f"{type(problem).__name__}: {problem}"[:1000])

    def rate(self, value, bar):
        """Whether a figure reaches its bar; nothing on a stand-in or without the peer."""
        return {"bar": bar, "reached": None if self.small or value is None else value >= bar}


def median(seconds, skipped):
    """Without the first ones; None if there are none."""
    return statistics.median(seconds[skipped:]) if seconds else None


def find_torch():
    """PyTorch with a GPU, or None and the reason."""
    try:
        import torch
    except ImportError:
        return None, "PyTorch is not installed"
    return (torch, "") if torch.cuda.is_available() else (None, "this PyTorch has no GPU")


def run_corpus(run):
    """Small kernels of PTX whose outputs are known from the manual."""
    if not importlib.util.find_spec("ml_dtypes"):
        sys.exit("error: the part corpus needs the Python package ml_dtypes")
    for name in TABLES:
        script = pathlib.Path(__file__).with_name("corpus_table.py")
        done = subprocess.run([sys.executable, script, name, str(int(run.small))], capture_output=True, text=True)
        found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        run.rows += found
        run.failures += sum(row["wrong"] > 0 for row in found)
        with run.case(name):
            if done.returncode:
                raise Failed(done.stderr.strip().splitlines()[-1])


def run_test(run, test, bundle):
    """Whether the outputs of the last step are as they should be, and by how much they differ."""
    folder, steps = run.archive / "tests" / test["name"], test["steps"]
    command = [run.archive / "bin" / "sharding-run", bundle, "--backend=nccl:peer", "--check-finite", "--quiet",
               f"--random-weights={run.description['seed']}", f"--inputs={folder}/inputs.safetensors"]  # fmt: skip
    compare = [f"--reference={folder}/outputs.safetensors"] + [f"--tolerance={test['tolerance']}"] * (test["tolerance"] is not None)
    with tempfile.TemporaryDirectory() as scratch:
        for step in range(steps):
            options = programs.continue_state(scratch, step, steps) + compare * (step + 1 == steps)
            done = subprocess.run([str(c) for c in command + options], capture_output=True, text=True)
            if done.returncode:
                break
    said = [line for line in (done.stderr + done.stdout).splitlines() if "error" in line or "differs" in line]
    return done.returncode == 0, said[0] if said else ""


def run_tests(run):
    """Bundles of small models against what `local` computes, ranks sharing the GPU; and graphs against none."""
    for test in run.description["tests"]:
        for chip in run.chips:
            passed, said = run_test(run, test, run.bundle(test["bundle"], chip))
            run.failures += not passed
            run.add(f"{test['name']} {chip}", passed=passed, said=said)
    for chip in run.chips:
        with run.case(f"decode, graphs on and off {chip}"):
            compare_graphs(run, run.description["decode_test"], chip)


def compare_graphs(run, case, chip):
    results = {}
    for graphs in ("off", "on"):
        with run.open(run.bundle(case["bundle"], chip), graphs=graphs) as session:
            _, inputs, outputs = run.place(session)
            results[graphs] = []
            for position in range(6):
                run.gpu.generator = np.random.default_rng(position)
                fresh = [run.gpu.put(run.gpu.draw(session.inputs[0])), run.gpu.put(np.array([position]))]
                session.prepare(fresh, outputs)()
                results[graphs].append(run.gpu.get(outputs[0], session.outputs[0].get_shape(), np.uint16))
                run.free(fresh)
            run.free(inputs, outputs)
    same = all(np.array_equal(a, b) for a, b in zip(*results.values()))
    run.failures += not same
    run.add(f"decode, graphs on and off {chip}", passed=same, said="equal bits" if same else "other bits")


def run_gemm(run):
    for case in run.description["benches"]["gemm"]:
        m, n, k = (case[key] for key in "mnk")
        name = f"{m} x {n} x {k}"
        with run.case(name):
            ours, theirs, difference = run.measure_kernels(run.bundle(case["bundle"], "sm_80"), "gemm",
                                                           lambda x, w: run.torch.matmul(x, w.mT))  # fmt: skip
            ratio = theirs / ours if theirs else None
            run.add(name, tflops=2e-12 * m * n * k / ours, torch_tflops=2e-12 * m * n * k / theirs if theirs else None,
                    ratio=ratio, difference=difference, **run.rate(ratio, 0.97))  # fmt: skip


def get_row_peer(run, kernel):
    f = run.torch and run.torch.nn.functional
    return {
        "rms_norm": lambda x, w: f.rms_norm(x, x.shape[-1:], w, 1e-5),
        "add_rms_norm": lambda x, y, w: [s := x + y, f.rms_norm(s, s.shape[-1:], w, 1e-5)][0],
        "layer_norm": lambda x, w, b: f.layer_norm(x, x.shape[-1:], w, b, 1e-5),
        "swiglu": lambda x, y: f.silu(x) * y,
        "softmax": lambda x: x.softmax(-1),
    }[kernel]


def run_rows(run):
    copy, (rows, columns) = run.gpu.measure_copy(run.sizes["copy"]), run.sizes["rows"]
    for case in run.description["benches"]["rows"]:
        kinds, _, results = programs.KERNELS[case["kernel"]]
        moved = 2 * rows * columns * (kinds.count("x") + len(results.split(",")))
        peer = get_row_peer(run, case["kernel"])
        with run.case(case["kernel"]):
            ours, theirs, difference = run.measure_kernels(run.bundle(case["bundle"]), "rows", peer)
            share = moved / ours / copy
            run.add(case["kernel"], mebibytes=moved / 2**20, gbps=moved / ours * 1e-9, copy_gbps=copy * 1e-9, of_copy=share,
                    torch_of_copy=moved / theirs / copy if theirs else None, difference=difference, **run.rate(share, 0.85))  # fmt: skip


def run_attention(run):
    chips = {"sm_90": ("mma.sync", 300), "sm_90a": ("wgmma", 450)} if "sm_90a" in run.chips else {"sm_80": ("mma.sync", 300)}
    for case in run.description["benches"]["attention"]:
        flops = 4 * case["heads"] * case["tokens"] ** 2 * case["features"]
        for chip, (by, bar) in chips.items():
            name = f"{case['tokens']} tokens, {by}"
            with run.case(name):
                peer = run.torch and run.torch.nn.functional.scaled_dot_product_attention
                ours, theirs, difference = run.measure_kernels(run.bundle(case["bundle"], chip), "attention", peer)
                tflops = flops / ours * 1e-12
                run.add(name, tflops=tflops, torch_tflops=flops / theirs * 1e-12 if theirs else None,
                        difference=difference, **run.rate(tflops, bar))  # fmt: skip


def compile_stack(run, shape):
    """A function that runs PyTorch's stack once, compiled if that works here, and its name."""
    import models

    stack = models.Stack(models.Shape(**shape)).to(run.torch.bfloat16).cuda().eval()
    x = run.torch.randn(1, shape["tokens"], shape["hidden"], device="cuda", dtype=run.torch.bfloat16)
    with run.torch.inference_mode():
        compiled, name = run.torch.compile(stack), "torch.compile"
        try:
            compiled(x)
        except Exception as problem:  # of a compiler that is missing, for example
            compiled, name = stack, f"eager, because torch.compile fails: {type(problem).__name__}"

    def call():
        with run.torch.inference_mode():
            compiled(x)

    return call, name


def run_layers(run):
    case, = run.description["benches"]["layers"]
    shape = case["shape"]
    label = f"{shape['layers']} layers, {shape['tokens']} tokens"
    with run.case(label):
        peer, name = compile_stack(run, shape) if run.torch else (None, "")
        ours, theirs, _ = run.measure_calls(run.bundle(case["bundle"]), peer=peer)
        ratio = theirs / ours if theirs else None
        run.add(label, milliseconds=ours * 1e3, torch_milliseconds=theirs * 1e3 if theirs else None, peer=name,
                ratio=ratio, aim=1.05, **run.rate(ratio, 1.0))  # fmt: skip


def run_decode(run):
    case, = run.description["benches"]["decode"]
    shape, copy = case["shape"], run.gpu.measure_copy(run.sizes["copy"])
    last = np.array([shape["tokens"] - 1])
    width = (shape["heads"] + shape["key_heads"]) * shape["features"]
    layer = shape["hidden"] * (2 * width + 3 * shape["inner"])
    weights = 2 * (shape["layers"] * layer + shape["vocabulary"] * shape["hidden"])
    for graphs in ("on", "off"):
        name = f"{shape['layers']} layers, graphs {graphs}"
        with run.case(name):
            ours, _, cache = run.measure_calls(run.bundle(case["bundle"]), graphs=graphs, inputs={1: last})
            share = (weights + cache) / ours / copy
            run.add(name, milliseconds=ours * 1e3, weights_gib=weights / 2**30, cache_gib=cache / 2**30,
                    copy_gbps=copy * 1e-9, of_copy=share, **(run.rate(share, 0.8) if graphs == "on" else {}))  # fmt: skip


def run_kernels(run):
    """The kernels of a decoded token by kind and bytes, from a trace of a call without graphs."""
    case, = run.description["benches"]["decode"]
    copy, groups = run.gpu.measure_copy(run.sizes["copy"]), {}
    with tempfile.TemporaryDirectory() as folder, run.case("kernels"):
        trace = pathlib.Path(folder, "trace.json")
        with run.open(run.bundle(case["bundle"]), graphs="off", trace=trace) as session:
            _, inputs, outputs = run.place(session)
            run.gpu.free(inputs[1])
            inputs[1] = run.gpu.put(np.array([case["shape"]["tokens"] - 1]))
            call = session.prepare(inputs, outputs)
            for _ in range(1 if run.small else 4):
                call()
            run.free(inputs, outputs)
        for event in json.loads(trace.read_text())["traceEvents"]:
            size = event.get("args", {}).get("bytes")
            if size and event.get("dur"):
                groups.setdefault((event["cat"], size), []).append(event["dur"])
        for (kind, size), times in sorted(groups.items(), key=lambda item: -sum(item[1])):
            took = statistics.median(times)
            run.add(f"{kind} of {size / 1e6:.3g} MB", count=len(times), microseconds=took, of_copy=size / took * 1e6 / copy)


PARTS = {"corpus": run_corpus, "tests": run_tests, "gemm": run_gemm, "rows": run_rows, "attention": run_attention,
         "layers": run_layers, "decode": run_decode, "kernels": run_kernels}  # fmt: skip


def spell(value):
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return "-" if value is None else str(value)


def table(rows):
    keys = list(dict.fromkeys(key for row in rows for key in row))
    lines = [keys] + [[spell(row.get(key)) for key in keys] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(keys))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def spell_part(result):
    return f"{result['part']} on {result['device']['name']}, peer {result['peer']}\n{table(result['rows'])}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("archive", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    options = parser.parse_args()
    run, begin = Run(options.archive.resolve()), time.time()
    PARTS[options.part](run)
    peer = f"PyTorch {run.torch.__version__}" if run.torch else f"skipped: {run.why}"
    result = {"part": options.part, "device": run.device, "peer": peer, "size": run.description["size"],
              "seconds": time.time() - begin, "failures": run.failures, "rows": run.rows}  # fmt: skip
    print(spell_part(result), end="", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{options.part}.json").write_text(json.dumps(result, indent=1))
    files = [options.out / f"{part}.json" for part in PARTS]
    tables = [spell_part(json.loads(file.read_text())) for file in files if file.exists()]
    (options.out / "results.txt").write_text("\n".join(tables))
    # Ends without destructors: a library of PyTorch's may be unloaded before ours.
    os._exit(1 if run.failures else 0)


if __name__ == "__main__":
    main()
