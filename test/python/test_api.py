# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Models and plans from Python."""

import concurrent.futures
import copy
import json
import os
import re
import subprocess
import sys
import threading
import warnings

import meshwright as mw
import ml_dtypes
import numpy as np
import pytest
import torch
from mlp import Mlp, close
from torch import nn


def test_snippet(module, x):
    model = mw.from_torch(module, (x,))
    plan = model.parallelize(mesh={"dp": 2, "tp": 2}, sequence_parallel="auto")
    assert "plan for 4 ranks, mesh dp=2,tp=2" in plan.report()
    assert "dist.spmd = @mesh" in plan.ir()
    outputs = plan.run(x)
    want = module(x)
    assert len(outputs) == 2 and all(isinstance(o, torch.Tensor) for o in outputs)
    close(outputs[0], want["y"])
    close(outputs[1], want["last"])
    assert all(torch.equal(a, b) for a, b in zip(outputs, plan.run(x), strict=True))
    differences = plan.check(x)
    assert list(differences) == model.outputs and max(differences.values()) <= 1e-5


def test_phases(module, x):
    plan = mw.from_torch(module, (x,)).parallelize(mesh={"tp": 2})
    assert "dist.sharding" not in plan.ir(phase="global")
    assert "dist.sharding" in plan.ir(phase="annotated")
    assert plan.ir(phase="propagated").count("dist.sharding") > plan.ir(
        phase="annotated"
    ).count("dist.sharding")
    assert "dist.global" in plan.ir(phase="spmd")
    assert 'loc("' in plan.ir(locations=True) and "loc(" not in plan.ir()
    with pytest.raises(mw.Error, match="phase: expected one of global, annotated, .*, got 'lowered'"):
        plan.ir(phase="lowered")
    assert "rt.arena" in plan.ir(phase="rt") and "rt.kernel" not in plan.ir(phase="spmd")


def test_numpy_in_numpy_out(module, x):
    plan = mw.from_torch(module, (x,)).parallelize(mesh={"tp": 2})
    outputs = plan.run(x.numpy())
    assert all(isinstance(o, np.ndarray) for o in outputs)
    close(torch.from_numpy(outputs[0]), module(x)["y"])
    # Strides are not the caller's concern.
    turned = np.asfortranarray(x.numpy())
    np.testing.assert_array_equal(plan.run(turned)[0], outputs[0])


def test_dlpack_in(module, x):
    class Foreign:
        def __dlpack__(self, **kwargs):
            return x.__dlpack__(**kwargs)

        def __dlpack_device__(self):
            return x.__dlpack_device__()

    plan = mw.from_torch(module, (x,)).parallelize(mesh={"tp": 2})
    np.testing.assert_array_equal(plan.run(Foreign())[0], plan.run(x.numpy())[0])


def test_bfloat16(module, x):
    module, x = copy.deepcopy(module).bfloat16(), x.bfloat16()
    plan = mw.from_torch(module, (x,)).parallelize(mesh={"tp": 2})
    (y, _) = plan.run(x)
    assert y.dtype == torch.bfloat16
    close(y, module(x)["y"], 2e-2)
    given = x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    (z, _) = plan.run(given)
    assert z.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(z.view(np.int16), y.view(torch.int16).numpy())


def test_keywords(module, x):
    scale = torch.full((2, 6, 16), 2.0)
    plan = mw.from_torch(module, (x,), {"scale": scale}).parallelize(mesh={"tp": 2})
    want = module(x, scale=scale)["y"]
    close(plan.run(x, scale=scale)[0], want)
    # By the names in the program too, as a model that was loaded takes them.
    close(plan.run(scale=scale, x=x)[0], want)


def test_inputs_that_do_not_fit(module, x):
    plan = mw.from_torch(module, (x,)).parallelize(mesh={"tp": 2})
    with pytest.raises(mw.InputError, match=r"input 'x': expected f32\[2, 6, 16\], got f32\[2, 7, 16\]"):
        plan.run(torch.zeros(2, 7, 16))
    with pytest.raises(mw.InputError, match=r"input 'x': expected f32\[2, 6, 16\], got f64\[2, 6, 16\]"):
        plan.run(x.double())
    with pytest.raises(mw.InputError):
        plan.run()
    with pytest.raises(mw.InputError):
        plan.run(x, x, x)
    with pytest.raises(mw.InputError, match="meta device"):
        plan.run(x.to("meta"))
    with pytest.raises(mw.InputError, match="no array|got object"):
        plan.run(object())
    with pytest.raises(mw.InputError, match="input 'x': the tensor's layout: expected a dense one, got torch.sparse_coo"):
        plan.run(x.to_sparse())
    with pytest.raises(mw.Error, match="backend 'smoke' is not available"):
        plan.run(x, backend="smoke")
    for threads in ("2", 1.5, 0):
        with pytest.raises(mw.Error, match=f"threads_per_rank: expected an integer above 0, got {threads!r}"):
            plan.run(x, threads_per_rank=threads)
    for timeout in ("soon", -1, float("nan")):
        with pytest.raises(mw.Error, match=f"timeout: expected a number above 0, got {timeout!r}"):
            plan.run(x, timeout=timeout)
    for tolerance in ("small", -1, -1e-9, float("nan")):
        with pytest.raises(mw.Error, match=f"^tolerance: expected a number from 0 on, got {tolerance!r}"):
            plan.check(x, tolerance=tolerance)
    assert plan.check(x, tolerance=float("inf"))
    plan.run(x, threads_per_rank=np.int64(2), timeout=1e300)
    assert issubclass(mw.InputError, mw.Error)


def test_weights_that_change_in_place(module, x):
    plan = mw.from_torch(module, (x,)).parallelize(mesh={"tp": 2})
    close(plan.run(x)[0], module(x)["y"])
    module.load_state_dict({name: value + 0.25 for name, value in module.state_dict().items()})
    close(plan.run(x)[0], module(x)["y"])
    optimiser = torch.optim.SGD(module.parameters(), lr=0.5)
    module(x)["y"].square().mean().backward()
    optimiser.step()
    close(plan.run(x)[0], module(x)["y"])
    plan.check(x)


def test_check_under_a_ceiling(module, x):
    """Looking for the first difference takes more memory than the program."""
    model = mw.from_torch(module, (x,))
    with pytest.raises(mw.Error) as refused:
        model.parallelize(mesh={"tp": 2}, memory_ceiling=1)
    least = int(re.search(r"needs (\d+) bytes", str(refused.value)).group(1))
    plan = model.parallelize(mesh={"tp": 2}, memory_ceiling=least)
    close(plan.run(x)[0], module(x)["y"])
    with pytest.raises(mw.CheckFailed, match="first in program order"):
        plan.check(x, tolerance=1e-12)


class TiedHead(nn.Module):
    def __init__(self, tokens=32768, d=256):
        super().__init__()
        torch.manual_seed(5)
        self.embed, self.head = nn.Embedding(tokens, d), nn.Linear(d, tokens, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.embed(ids)).amax(-1)


def anonymous_memory():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon"))


def test_memory_of_weights_in_two_forms():
    """A weight that one op reads packed and another as stored is held twice, in reports and ceilings too."""
    module, ids = TiedHead().eval(), torch.arange(12)[None]
    model = mw.from_torch(module, (ids,))
    plan = model.parallelize(mesh={"tp": 2})
    memory = plan.report(format="json")["memory_per_rank"]
    assert memory["packing"] == memory["weights"] == 32768 * 256 * 4 // 2
    assert re.search(r"their packing, besides +16\.0 MiB", plan.report())
    with pytest.raises(mw.Error, match=rf"\({memory['packing']} of them for packing\)"):
        model.parallelize(mesh={"tp": 2}, memory_ceiling=memory["weights"] + memory["activations_peak"])
    model.parallelize(mesh={"tp": 2}, memory_ceiling=sum(memory.values()))
    before = anonymous_memory()
    close(plan.run(ids)[0], module(ids))
    seen, planned = anonymous_memory() - before, 2 * sum(memory.values())
    if "MESHWRIGHT_SANITIZER" not in os.environ:
        # The compiler's own, and PyTorch's, are in it.
        assert 0.9 * planned < seen < planned + (40 << 20), (seen, planned)


def test_reports_where_numbers_have_a_comma(tmp_path):
    made = subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", tmp_path / "de_DE.UTF-8"], capture_output=True)
    if made.returncode > 1 or not (tmp_path / "de_DE.UTF-8").exists():
        pytest.skip("no locale with a decimal comma can be made here")
    script = tmp_path / "script.py"
    script.write_text("""
import json, locale, sys, torch, meshwright as mw
locale.setlocale(locale.LC_ALL, "de_DE.UTF-8")
assert locale.localeconv()["decimal_point"] == ","
x = torch.randn(4, 8)
plan = mw.from_torch(torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.Linear(6, 8)), (x,)).parallelize(mesh={"tp": 2})
plan.run(x, measure=True, trace=sys.argv[1])
assert plan.report("json")["run"]["seconds"] > 0
assert json.load(open(sys.argv[1]))["traceEvents"]
""")
    done = subprocess.run([sys.executable, script, tmp_path / "trace.json"], capture_output=True, text=True,
                          env={**os.environ, "LOCPATH": str(tmp_path), "MESHWRIGHT_LINK": "latency=2.5us"})
    assert done.returncode == 0, done.stderr


def test_threads_share_a_plan(module, x):
    plan = mw.from_torch(module, (x,)).parallelize(mesh={"tp": 2})
    inputs = [x + i for i in range(4)]
    together = threading.Barrier(len(inputs))

    def use(mine):
        together.wait()
        close(plan.run(mine)[0], module(mine)["y"])
        plan.report()
        close(plan.run(mine, target="cpu:x86-64-v3")[0], module(mine)["y"])

    with concurrent.futures.ThreadPoolExecutor(len(inputs)) as pool:
        for done in [pool.submit(use, mine) for mine in inputs]:
            done.result()


def test_arrays_of_a_run_that_failed(tmp_path):
    """A rank that is still in a kernel reads on where the caller has let go."""
    script = tmp_path / "script.py"
    script.write_text("""
import gc, time, torch, meshwright as mw
module = torch.nn.Sequential(torch.nn.Linear(2048, 6144, bias=False), torch.nn.SiLU(), torch.nn.Linear(6144, 64))
x = torch.randn(2048, 2048)
plan = mw.from_torch(module, (x,)).parallelize(mesh={"tp": 2}, sequence_parallel="off")
try:
    plan.run(x, timeout=0.02)
except mw.Error as error:
    print(error)
del x, module
gc.collect()
time.sleep(1)
""")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True,
                          env={**os.environ, "MESHWRIGHT_FAULT": "throw 1 linear"})
    assert done.returncode == 0 and "rank 1: nn.linear" in done.stdout, done


def test_options(module, x):
    model = mw.from_torch(module, (x,))
    with pytest.raises(mw.Error, match="unknown option 'pipeline-parallel'; supported are mesh, "):
        model.parallelize(mesh={"tp": 2}, pipeline_parallel="pp")
    with pytest.raises(mw.Error, match="expert-parallel"):
        model.parallelize(mesh={"tp": 2}, expert_parallel="experts")
    with pytest.raises(mw.Error, match="expert-capacity: expected a number above 0, got '0'"):
        model.parallelize(mesh={"tp": 2}, expert_capacity=0)
    with pytest.raises(mw.Error, match="sequence-parallel: expected on, off or auto, got 'often'"):
        model.parallelize(mesh={"tp": 2}, sequence_parallel="often")
    with pytest.raises(mw.Error, match="overlap: expected on, off or auto, got 'often'"):
        model.parallelize(mesh={"tp": 2}, overlap="often")
    assert 'rt.overlap = "off"' in model.parallelize(mesh={"tp": 2}, overlap=False).ir()
    with pytest.raises(mw.Error, match="axis 'tp': expected a size of at least 1, got 0"):
        model.parallelize(mesh={"tp": 0})
    with pytest.raises(mw.Error) as error:
        model.parallelize(mesh={"tp": 2}, tensor_parallel="model")
    assert "model" in error.value.diagnostics[0].message
    assert error.value.diagnostics[0].severity == "error"
    with pytest.raises(mw.Error, match="unknown device 'h900': expected one of"):
        model.parallelize(mesh={"tp": 2}, device="h900")
    plan = model.parallelize(mesh={"tp": 2}, device="a100 memory_size=4e10")
    assert plan.report(format="json")["device"] == "a100 memory_size=4e10"
    assert model.parallelize(mesh={"tp": 2}, device={"link_bandwidth": 1e9}).ranks == 2
    with pytest.raises(mw.Error, match="bytes on a rank, .* expected at most 1024, the memory"):
        model.parallelize(mesh={"tp": 2}, memory_ceiling="1K")
    assert model.parallelize(mesh={"tp": 2}, memory_ceiling=1 << 20).ranks == 2
    with pytest.raises(mw.Error):
        model.parallelize()  # neither the program nor the caller has a mesh
    assert model.parallelize(mesh="tp=2", sequence_parallel=True).ranks == 2


def test_rules(module, x):
    model = mw.from_torch(module, (x,))
    plan = model.parallelize(
        mesh={"tp": 2}, shardings={"up.weight": "[{}, {}]", "down.weight": "[{}, {}]"}
    )
    ir = plan.ir()
    assert "tensor<40x16xf32> {dist.global = tensor<40x16xf32>" in ir
    close(plan.run(x)[0], module(x)["y"])
    with pytest.warns(mw.MeshwrightWarning, match="nothing"):
        model.parallelize(mesh={"tp": 2}, shardings={"nothing.*": "[{}, {}]"})
    with pytest.raises(mw.Error):
        model.parallelize(mesh={"tp": 2}, shardings={"up.weight": '[{"nope"}, {}]'})
    with pytest.raises(mw.Error, match="expected a pattern and the sharding's text"):
        model.parallelize(mesh={"tp": 2}, shardings={"up.weight": ["tp", None]})


def test_meta(x):
    with torch.device("meta"):
        module = Mlp(64, 256).eval()
        x = torch.zeros(1, 512, 64)
    model = mw.from_torch(module, (x,))
    plan = model.parallelize(mesh={"tp": 4}, sequence_parallel="off")
    report = plan.report(format="json")
    assert report["bytes_per_rank"] == 2 * 3 * 512 * 64 * 4 // 4
    with pytest.raises(mw.Error, match="it can be planned, not run"):
        plan.run(torch.zeros(1, 512, 64))
    with pytest.raises(mw.Error, match="nothing to save"):
        model.save("m.mlir", "m.safetensors")


def test_report(module, x):
    model = mw.from_torch(module, (x,))
    report = model.parallelize(mesh={"tp": 2}, sequence_parallel="off").report(format="json")
    assert report["schema"] == 1 and report["ranks"] == 2 and report["mesh"] == {"tp": 2}
    assert report["device"] == "h100"
    (entry,) = report["collectives"]
    assert entry["kind"] == "all_reduce" and entry["axes"] == ["tp"] and entry["dims"] == []
    assert entry["dtype"] == "f32" and entry["count"] == 1
    assert entry["bytes_per_rank"] == 2 * 6 * 16 * 4
    assert entry["location"]["file"].endswith("mlp.py")
    assert report["before"] == {"bytes_per_rank": 768, "launches_per_rank": 1}
    weights = (16 * 40 * 2 + 40) // 2 + 16 + 2 * 16
    assert report["memory_per_rank"]["weights"] == weights * 4
    assert report["decisions"] and all(
        d["outcome"] in ("applied", "declined", "note") for d in report["decisions"]
    )
    sharded = model.parallelize(mesh={"tp": 2}, sequence_parallel="on").report(format="json")
    collectives = {c["kind"]: c for c in sharded["collectives"]}
    assert "reduce_scatter" in collectives
    # Only the last token, which one rank has, is still summed.
    assert collectives["all_reduce"]["bytes_per_rank"] == 2 * 16 * 4
    assert sharded["before"] == report["before"]
    with pytest.raises(mw.Error, match="format: expected text, json or html, got 'xml'"):
        model.parallelize(mesh={"tp": 2}).report(format="xml")


def test_axis_that_shards_nothing(module, x):
    model = mw.from_torch(module, (x,))
    with pytest.warns(mw.MeshwrightWarning, match='mesh axis "tpp" of size 4 shards nothing'):
        plan = model.parallelize(mesh={"tpp": 4})
    (warning,) = plan.report(format="json")["warnings"]
    assert 'policies look for "dp", "tp", "gtp", "ep" and the axes' in warning["message"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.parallelize(mesh={"tp": 2, "pp": 1})


def test_report_of_the_schedule():
    """Exposed and hidden communication, by the device's numbers."""
    x = torch.zeros(1, 512, 256)
    model = mw.from_torch(Mlp(256, 1024).eval(), (x,))
    device = "cpu flops_f32=1e11 link_bandwidth=1e9 link_latency=1e-6"
    def report(overlap, format="json"):
        plan = model.parallelize(mesh={"tp": 2}, sequence_parallel="off", overlap=overlap,
                                 device=f"{device} overlap=1")
        return plan.report(format=format)

    off, on = report("off")["communication"], report("on")["communication"]
    # An all-reduce sends each half once, in two steps; a launch takes 5 us.
    assert off["exposed_seconds"] == pytest.approx(512 * 256 * 4 / 1e9 + 2 * 1e-6 + 5e-6)
    assert off["hidden_seconds"] == 0
    assert 0 < on["exposed_seconds"] < off["exposed_seconds"] and on["hidden_seconds"] > 0
    assert on["run_seconds"] < off["run_seconds"]
    assert any(d["pass"] == "split-collectives" for d in report("on")["decisions"])
    assert "communication that shows" in report("on", "text")


def test_check_fails(module, x):
    model = mw.from_torch(module, (x,))
    plan = model.parallelize(mesh={"tp": 2})
    with pytest.raises(mw.CheckFailed) as error:
        plan.check(x, tolerance=1e-12)
    (diagnostic,) = error.value.diagnostics
    assert diagnostic.message.startswith("output '")
    assert "first in program order, the result of nn." in diagnostic.message
    assert diagnostic.file.endswith("mlp.py") and diagnostic.line > 0
    assert set(error.value.differences) == set(model.outputs)


def test_bundle(module, x, tmp_path):
    plan = mw.from_torch(module, (x,)).parallelize(mesh={"tp": 2}, sequence_parallel="on")
    plan.compile(tmp_path / "bundle")
    manifest = json.loads((tmp_path / "bundle" / "manifest.json").read_text())
    assert manifest["ranks"] == 2
    assert [entry["name"] for entry in manifest["entries"][0]["outputs"]] == [o.name for o in plan._plan.outputs]
    with pytest.raises(mw.Error, match="target 'cpu:none': unknown processor 'none'"):
        plan.compile(tmp_path / "bundle", target="cpu:none")


def test_targets(module, x, tmp_path):
    model = mw.from_torch(module, (x,))
    plan = model.parallelize(mesh={"tp": 2}, target="cpu:x86-64-v3")
    assert 'rt.target = "cpu:x86-64-v3"' in plan.ir() and 'rt.target' in plan.ir(phase="rt")
    assert plan.report(format="json")["target"] == "cpu:x86-64-v3"
    assert "target cpu:x86-64-v3" in plan.report()
    close(plan.run(x)[0], module(x)["y"])

    # A run for another target schedules anew, and the report follows.
    close(plan.run(x, target="cpu")[0], module(x)["y"])
    assert plan.report(format="json")["target"] == "cpu"
    assert "rt.target" not in plan.ir()
    plain = model.parallelize(mesh={"tp": 2})
    memory = plain.report(format="json")["memory_per_rank"]
    assert plan.report(format="json")["memory_per_rank"] == memory
    plan.compile(tmp_path / "bundle")  # the plan's own target
    assert plan.report(format="json")["target"] == "cpu:x86-64-v3"
    manifest = json.loads((tmp_path / "bundle" / "manifest.json").read_text())
    assert manifest["target"]["cpu"] == "x86-64-v3"

    for use in (lambda: plan.run(x, target="gpu:sm_12"),
                lambda: plan.compile(tmp_path / "other", target="gpu:sm_12"),
                lambda: model.parallelize(mesh={"tp": 2}, target="gpu:sm_12")):
        with pytest.raises(mw.Error, match="target 'gpu:sm_12': unknown chip 'sm_12': expected one of sm_80"):
            use()
    # A program for a GPU compiles without one. A backend of processors refuses it.
    other = model.parallelize(mesh={"tp": 2}, target="gpu:sm_90a")
    assert other.report(format="json")["target"] == "gpu:sm_90a"
    with pytest.raises(mw.Error, match="the target that the program is compiled for: expected 'cpu', got 'gpu:sm_90a'"):
        other.run(x)
    other.compile(tmp_path / "other")
    manifest = json.loads((tmp_path / "other" / "manifest.json").read_text())
    assert manifest["target"]["chip"] == "sm_90a"
    for kernel in manifest["kernels"]:
        text = (tmp_path / "other" / "kernels" / f"{kernel['name']}.ptx").read_text()
        assert ".target sm_90a" in text and len(text) == kernel["ptx"]["bytes"]
    with pytest.raises(mw.Error, match="the target that the program is compiled for: expected 'cpu', got 'gpu:sm_90a'"):
        mw.load_bundle(tmp_path / "other").start().__enter__()
    if manifest["kernels"]:
        (tmp_path / "other" / "kernels" / f"{manifest['kernels'][0]['name']}.ptx").write_text("changed")
        with pytest.raises(mw.Error, match="ptx: changed since the bundle was written"):
            mw.load_bundle(tmp_path / "other").start().__enter__()
    with pytest.raises(mw.Error, match="unknown target 'x86-64-v3': expected cpu"):
        plan.run(x, target="x86-64-v3")
    for use in (lambda: plan.run(x, target_cpu="x86-64-v3"),
                lambda: plan.compile(tmp_path / "other", target_cpu="x86-64-v3"),
                lambda: model.parallelize(mesh={"tp": 2}, target_cpu="x86-64-v3")):
        with pytest.raises(mw.Error, match="'target[-_]cpu' is now 'target'"):
            use()


def test_ceiling_of_another_target(x):
    """A ceiling that holds for the plan's target alone is an error for another one."""

    class Products(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(48, 40)
            self.second = nn.Linear(40, 8)

        def forward(self, x):
            return self.second(torch.relu(self.first(x)))

    rows = torch.randn(6, 48)
    model = mw.from_torch(Products().eval(), (rows,))

    def held(target):
        report = model.parallelize(mesh={"dp": 1}, target=target).report(format="json")
        memory = report["memory_per_rank"]
        return memory["weights"] + memory["packing"] + memory["activations_peak"]

    targets = ["cpu:x86-64", "cpu:x86-64-v4"]
    less, more = sorted(targets, key=held)
    assert held(less) < held(more)
    plan = model.parallelize(mesh={"dp": 1}, target=less, memory_ceiling=held(less))
    with pytest.raises(mw.Error, match="the memory ceiling"):
        plan.run(rows, target=more)


def test_input_named_target(x):
    class Scaled(nn.Module):
        def forward(self, x, target):
            return x * target

    plan = mw.from_torch(Scaled().eval(), (x,), {"target": x + 1}).parallelize(mesh={"dp": 1})
    close(plan.run(x, target=x + 1)[0], x * (x + 1))


def test_indices_of_several_dimensions(x):
    class Reads(nn.Module):
        def forward(self, x, i, j):
            return x[i, j - 3]

    x, i = x[0], torch.tensor([-6, 5, 0])
    j = torch.tensor([0, 1, 18])
    plan = mw.from_torch(Reads(), (x, i, j)).parallelize(mesh={"tp": 2})
    assert torch.equal(plan.run(x, i, j)[0], Reads()(x, i, j))
    # None is read as an element of another row.
    for i, j in (([0, 1, 0], [3, 3, 19]), ([0, 1, 1], [3, 3, -14]), ([0, 6, 1], [3, 3, 3]),
                 ([0, -7, 1], [3, 18, 3])):
        with pytest.raises(mw.Error, match="out of range"):
            plan.run(x, torch.tensor(i), torch.tensor(j))


def test_weights_are_referenced(module, x):
    model = mw.from_torch(module, (x,))
    assert model.parameters["up.weight"].data_ptr() == module.up.weight.data_ptr()


def test_import_errors_are_ours(x):
    class Odd(nn.Module):
        def forward(self, x):
            return torch.linalg.svd(x)[1]

    with pytest.raises(mw.Error) as error:
        mw.from_torch(Odd(), (x,))
    assert error.value.diagnostics[0].file.endswith("test_api.py")
