# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Traces, reports and progress of a run, and the end of a run that fails."""
import json
import os
import resource
import select
import subprocess
import sys
import time

import pytest
import torch
from harness import TIMEOUT, launch, tool
from safetensors.torch import load_file, save_file

ROWS = 64


def model(ranks, body=""):
    """An MLP split over its inner dimension; the second product's sum is reduced."""
    inner = 128 // ranks
    return f"""dist.mesh @m = <["x"={ranks}]>
func.func @main(%x: tensor<{ROWS}x96xf32> {{nn.input = "x", dist.global = tensor<{ROWS}x96xf32>, dist.sharding = #dist.sharding<@m, [{{}}, {{}}]>}},
                %w: tensor<{inner}x96xf32> {{nn.parameter = "w", dist.global = tensor<128x96xf32>, dist.sharding = #dist.sharding<@m, [{{"x"}}, {{}}]>}},
                %v: tensor<96x{inner}xf32> {{nn.parameter = "v", dist.global = tensor<96x128xf32>, dist.sharding = #dist.sharding<@m, [{{}}, {{"x"}}]>}})
    -> (tensor<{ROWS}x96xf32> {{nn.output = "y", dist.global = tensor<{ROWS}x96xf32>, dist.sharding = #dist.sharding<@m, [{{}}, {{}}]>}})
    attributes {{dist.spmd = @m}} {{
  %0 = nn.linear %x, %w : (tensor<{ROWS}x96xf32>, tensor<{inner}x96xf32>) -> tensor<{ROWS}x{inner}xf32>
  %1 = nn.tanh %0 : tensor<{ROWS}x{inner}xf32>
  %2 = nn.linear %1, %v : (tensor<{ROWS}x{inner}xf32>, tensor<96x{inner}xf32>) -> tensor<{ROWS}x96xf32>
  %3 = dist.all_reduce sum %2 axes ["x"] : (tensor<{ROWS}x96xf32>) -> tensor<{ROWS}x96xf32>
  %4 = nn.exp %3 : tensor<{ROWS}x96xf32>
  return %4 : tensor<{ROWS}x96xf32>
}}
"""

WHOLE = f"""func.func @main(%x: tensor<{ROWS}x96xf32> {{nn.input = "x"}}, %w: tensor<128x96xf32> {{nn.parameter = "w"}},
                %v: tensor<96x128xf32> {{nn.parameter = "v"}}) -> (tensor<{ROWS}x96xf32> {{nn.output = "y"}}) {{
  %0 = nn.linear %x, %w : (tensor<{ROWS}x96xf32>, tensor<128x96xf32>) -> tensor<{ROWS}x128xf32>
  %1 = nn.tanh %0 : tensor<{ROWS}x128xf32>
  %2 = nn.linear %1, %v : (tensor<{ROWS}x128xf32>, tensor<96x128xf32>) -> tensor<{ROWS}x96xf32>
  return %2 : tensor<{ROWS}x96xf32>
}}
"""


@pytest.fixture
def files(tmp_path):
    generator = torch.Generator().manual_seed(3)
    draw = lambda *shape: torch.randn(*shape, generator=generator) / 8
    save_file({"x": draw(ROWS, 96)}, tmp_path / "x.safetensors")
    save_file({"w": draw(128, 96), "v": draw(96, 128)}, tmp_path / "w.safetensors")
    return tmp_path


def run(files, *arguments, ranks=4, text=None, **more):
    path = files / "m.mlir"
    path.write_text(text or model(ranks))
    return launch(path, f"--weights={files}/w.safetensors", f"--inputs={files}/x.safetensors",
                  f"--outputs={files}/y.safetensors", *arguments, **more)


def outputs(files):
    return load_file(files / "y.safetensors")["y"]


def test_threads_change_no_bit(files):
    done = run(files)
    assert done.returncode == 0, done.stderr
    first = outputs(files)
    for threads in (2, 3):
        assert run(files, f"--threads-per-rank={threads}").returncode == 0
        assert torch.equal(outputs(files), first)
    assert run(files, env={"MESHWRIGHT_THREADS": "2"}).returncode == 0
    assert torch.equal(outputs(files), first)
    for wrong in ("0", "-1", "two"):
        assert run(files, f"--threads-per-rank={wrong}").returncode == 2


def test_trace(files):
    done = run(files, f"--trace={files}/t.json")
    assert done.returncode == 0, done.stderr
    events = json.loads((files / "t.json").read_text())["traceEvents"]
    names = {(e["pid"], e["name"]): e["args"]["name"] for e in events if e["ph"] == "M" and "name" in e["args"]}
    assert [names[rank, "process_name"] for rank in range(4)] == [f"rank {r}" for r in range(4)]
    assert names[0, "thread_name"] == "compute"
    spans = [e for e in events if e["ph"] == "X"]
    for rank in range(4):
        mine = [e for e in spans if e["pid"] == rank]
        reduced = [e for e in mine if e["cat"] == "collective"]
        assert len(reduced) == 1 and reduced[0]["name"] == "dist.all_reduce (m.mlir:10)"
        # Where it stands in the file, and what it sends.
        assert reduced[0]["args"]["source"] == f"{files}/m.mlir:10"
        assert reduced[0]["args"]["bytes"] == 2 * 3 * ROWS * 96 * 4 // 4
        assert sum(e["cat"] == "gemm" for e in mine) == 2
        assert sum(e["args"]["flops"] for e in mine if e["cat"] == "gemm") == 2 * 2 * ROWS * 96 * 32
        assert all(e["dur"] >= 0 for e in mine)
    # An arrow joins the four ranks, in the order in which they begin, and counters end at 0.
    arrows = [e for e in events if e["ph"] in "stf"]
    assert [e["ph"] for e in arrows] == ["s", "t", "t", "f"] and {e["pid"] for e in arrows} == {0, 1, 2, 3}
    assert [e["ts"] for e in arrows] == sorted(e["ts"] for e in arrows) and len({e["id"] for e in arrows}) == 1
    counters = [e for e in events if e["ph"] == "C" and e["pid"] == 2]
    flying = [e["args"]["bytes"] for e in counters if e["name"] == "bytes in flight"]
    assert flying == [reduced[0]["args"]["bytes"], 0]
    arena = [e["args"]["bytes"] for e in counters if e["name"] == "arena"]
    assert arena[-1] == 0 and max(arena) > 0
    assert run(files, f"--trace={files}/absent/t.json").returncode == 1


def test_page(files, tmp_path):
    """The Python package writes pages; without it the tool says so before the run."""
    pytest.importorskip("jinja2")
    pytest.importorskip("svg")
    # The tool runs the first python3 of the PATH: this interpreter's folder need not be in it.
    (tmp_path / "python3").symlink_to(sys.executable)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = run(files, f"--report={files}/plan.html", f"--trace={files}/page.json", env=path)
    assert done.returncode == 0, done.stderr
    page = (files / "plan.html").read_text()
    assert page.startswith("<!doctype html>") and 'id="picture-measured"' in page and "rank 3: compute" in page
    (tmp_path / "python3").unlink()
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    done = run(files, f"--report={files}/other.html", env=path)
    assert done.returncode == 1 and not (files / "other.html").exists()
    assert "cannot write page" in done.stderr and "meshwright[report]" in done.stderr


def test_report(files):
    done = run(files, f"--report={files}/r.json")
    assert done.returncode == 0, done.stderr
    report = json.loads((files / "r.json").read_text())
    assert report["ranks"] == 4
    measured = report["run"]
    assert measured["ranks"] == 4 and measured["threads_per_rank"] == 1
    kernels = {k["class"]: k for k in measured["kernels"]}
    assert kernels["gemm"]["launches"] == 2
    assert kernels["gemm"]["flops"] == 2 * 2 * ROWS * 96 * 32
    assert kernels["gemm"]["of_ceiling"] > 0
    times = measured["communication"]
    assert times["collectives"] == 1
    # On the compute stream nothing is hidden.
    assert times["exposed_seconds"] == pytest.approx(times["seconds"]) and times["hidden_seconds"] == 0
    assert measured["communication"]["bytes_sent"] == report["bytes_per_rank"]
    assert measured["communication"]["bytes_sent_by_all"] == report["bytes_of_all_ranks"] == 4 * report["bytes_per_rank"]
    done = run(files, "--report")
    assert "run: 4 ranks, 1 thread each" in done.stdout and "of ceiling" in done.stdout


def test_the_arena_is_as_planned(files):
    for ranks in (1, 2, 4):
        assert run(files, f"--report={files}/r.json", ranks=ranks).returncode == 0
        arena = json.loads((files / "r.json").read_text())["run"]["arena"]
        assert arena["planned"] > 0 and arena["seen"] == arena["planned"]


def test_check_finite(files):
    assert run(files, "--check-finite").returncode == 0
    # Above 88 the exponential is infinite, and infinity minus infinity is no number.
    text = model(4).replace("%4 = nn.exp %3", "%s = nn.add %3, %3 : (tensor<64x96xf32>, tensor<64x96xf32>) -> tensor<64x96xf32>\n  %4 = nn.exp %s")
    save_file({"w": torch.ones(128, 96), "v": torch.ones(96, 128)}, files / "w.safetensors")
    save_file({"x": torch.ones(ROWS, 96)}, files / "x.safetensors")
    assert run(files, text=text).returncode == 0
    (files / "y.safetensors").unlink()
    done = run(files, "--check-finite", text=text)
    assert done.returncode == 1
    assert "rank 0: nn.exp" in done.stderr and "m.mlir:12): is infinity at element 0" in done.stderr, done.stderr
    assert not (files / "y.safetensors").exists()


def test_check_finite_in_a_kernel(files):
    """Values between ops of one kernel are not in memory: all ops that may be the first are named."""
    t = f"tensor<{ROWS}x96xf32>"
    text = f"""func.func @main(%x: {t} {{nn.input = "x"}}) -> ({t} {{nn.output = "y"}}) {{
  %0 = nn.exp %x : {t}
  %1 = nn.log %0 : {t}
  %2 = nn.log %1 : {t}
  %3 = nn.transpose %2 [1, 0] : ({t}) -> tensor<96x{ROWS}xf32>
  %4 = nn.transpose %3 [1, 0] : (tensor<96x{ROWS}xf32>) -> {t}
  %5 = nn.add %4, %x : ({t}, {t}) -> {t}
  return %5 : {t}
}}
"""
    (files / "m.mlir").write_text(text)
    bundle = subprocess.run([tool().replace("sharding-run", "sharding-compile"), files / "m.mlir", "-o", files / "b"])
    assert bundle.returncode == 0
    save_file({"x": torch.full((ROWS, 96), -3.0)}, files / "x.safetensors")
    for program in ("m.mlir", "b"):
        done = launch(files / program, f"--inputs={files}/x.safetensors", "--check-finite")
        at = lambda op, line: f"nn.{op} ({files}/m.mlir:{line})"
        assert done.returncode == 1
        assert (f"rank 0: {at('add', 7)}: is NaN at element 0 of result 0; "
                f"in one kernel with {at('exp', 2)}, {at('log', 3)}, {at('log', 4)}\n") in done.stderr, done.stderr


@pytest.mark.parametrize("kind, words", [
    ("throw 2 all_reduce", "rank 2: dist.all_reduce (%s:10): a fault was asked for"),
    ("memory 1 nn.exp", "rank 1: nn.exp (%s:11): out of memory"),
    ("stall 3 linear", "dist.all_reduce (%s:10): timed out after 3 s waiting for rank 3 (at nn.linear (%s:7))"),
    ("stall 3 exp", "rank 3: nn.exp (%s:11): does not end: other ranks have ended"),
])
def test_faults_end_a_run(files, kind, words):
    """On all ranks, soon, without a half file; also where a rank never comes back."""
    begin = time.monotonic()
    # Time enough for ranks that the machine keeps waiting.
    done = run(files, "--timeout=3", env={"MESHWRIGHT_FAULT": kind})
    assert done.returncode == 1, done.stderr
    assert time.monotonic() - begin < 60
    assert words.replace("%s", f"{files}/m.mlir") in done.stderr, done.stderr
    assert sorted(p.name for p in files.iterdir()) == ["m.mlir", "w.safetensors", "x.safetensors"]


@pytest.mark.skipif("MESHWRIGHT_SANITIZER" in os.environ, reason="sanitizers need all of the address space")
def test_memory_that_is_refused(files):
    """With a limit on the address space that the arenas do not fit."""
    size = 1 << 28
    (files / "m.mlir").write_text(f"""func.func @main(%x: tensor<1xf32> {{nn.input = "x"}}) -> (tensor<1xf32> {{nn.output = "y"}}) {{
  %0 = nn.broadcast %x : (tensor<1xf32>) -> tensor<{size}x1xf32>
  %1 = nn.cumsum %0 dim 0 : tensor<{size}x1xf32>
  %2 = nn.reduce max %1 dims [0] : (tensor<{size}x1xf32>) -> tensor<1xf32>
  return %2 : tensor<1xf32>
}}
""")
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (3 << 29, 3 << 29))
        # A thread for each of many processors would need it all.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])

    done = subprocess.run([tool(), files / "m.mlir", "--random-inputs=1"], capture_output=True, text=True,
                          timeout=TIMEOUT, preexec_fn=limit)
    assert done.returncode == 1
    assert "no memory for rank 0's arena of" in done.stderr, done.stderr


def test_target(files):
    """Code for a lesser processor runs, and gives the same to within rounding."""
    assert run(files).returncode == 0
    here = outputs(files)
    done = run(files, "--target=cpu:x86-64-v3", ranks=2)
    assert done.returncode == 0, done.stderr
    assert (outputs(files) - here).abs().max() < 1e-5 * here.abs().max()
    done = run(files, "--target=cpu:z80")
    assert done.returncode == 2 and "unknown processor 'z80'" in done.stderr
    done = run(files, "--target=gpu:sm_90a")
    assert done.returncode == 1
    assert "the target that the program is compiled for: expected 'cpu', got 'gpu:sm_90a'" in done.stderr
    done = run(files, "--target=gpu:sm_12")
    assert done.returncode == 2
    assert "target 'gpu:sm_12': unknown chip 'sm_12': expected one of sm_80, sm_90, sm_90a" in done.stderr
    done = run(files, "--target-cpu=x86-64-v3")
    assert done.returncode == 2 and "--target-cpu is now --target" in done.stderr


def said_to_a_terminal(until, *arguments, env=None):
    """The text that a terminal shows up to `that`; the tool is then ended, or has ended."""
    terminal, end = os.openpty()
    with subprocess.Popen([tool(), *arguments], stdout=subprocess.DEVNULL, stderr=end, env={**os.environ, **(env or {})}) as process:
        os.close(end)
        said = b""
        while until.encode() not in said and select.select([terminal], [], [], TIMEOUT)[0]:
            try:
                said += os.read(terminal, 4096)
            except OSError:  # the tool has closed the terminal
                break
        process.kill()
    os.close(terminal)
    return said.decode()


def test_progress_on_a_terminal(files):
    (files / "m.mlir").write_text(model(2))
    (files / "g.mlir").write_text(WHOLE)
    subprocess.run([tool().replace("sharding-run", "sharding-compile"), files / "m.mlir", f"--weights={files}/w.safetensors", "-o", files / "b"], check=True)
    inputs, weights = f"--inputs={files}/x.safetensors", f"--weights={files}/w.safetensors"
    stall = {"MESHWRIGHT_FAULT": "stall 1 all_reduce"}
    for arguments in ([files / "m.mlir", weights], [files / "b"]):
        assert "\rrunning, " in said_to_a_terminal("running, ", *arguments, inputs, "--timeout=1000", env=stall)
    said = said_to_a_terminal("differs by", files / "g.mlir", weights, inputs, "--parallelize=mesh=tp=2", "--check", "--link=latency=600ms")
    # A message has a line to itself.
    assert "\rrunning, " in said and "\rchecking, " in said and "\r\x1b[Knote: output 'y' differs by" in said, said
