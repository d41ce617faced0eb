# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Device files: their measurement, their use by plans, and damaged ones."""
import json
import os
import subprocess
import warnings

import meshwright as mw
import pytest
import torch


def processor():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    pytest.skip("the processor has no name")


def contents(**changes):
    """A device file with simple numbers. `changes` are top-level members; None removes one."""
    file = {
        "format": "meshwright device", "version": 1, "machine": {"processor": processor(), "cores": 2},
        "date": "2026-03-04T05:06:07Z", "backend": "local", "target": "cpu", "ranks": 2, "threads": 1,
        "device": {"flops_f32": 1e10, "memory_bandwidth": 1e9, "launch": 1e-6, "link_bandwidth": 2e9,
                   "link_latency": 1e-6, "overlap": 0, "product_f32": [[1, 1e9], [64, 4e9]]},
    }
    file.update(changes)
    return {key: value for key, value in file.items() if value is not None}


def with_device(**changes):
    return contents(device=contents()["device"] | changes)


@pytest.fixture
def write(tmp_path):
    def write(file, name="this.json"):
        path = tmp_path / name
        path.write_text(file if isinstance(file, str) else json.dumps(file))
        return str(path)

    return write


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """A home folder without a calibration, and no variable that names a device."""
    monkeypatch.delenv("MESHWRIGHT_DEVICE")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "meshwright" / "device.json"


@pytest.fixture
def model():
    return mw.from_torch(torch.nn.Linear(48, 32, bias=False).eval(), (torch.randn(64, 48),))


def first_line(plan):
    return plan.report().splitlines()[0]


def test_usual_device(model, alone):
    """A target that is named as a processor has the preset of one."""
    named = {"target": "cpu"}, {"target": "cpu:x86-64-v3"}
    for options, device in [({}, "h100"), ({"target": "gpu:sm_90a"}, "h100"), *((own, "cpu") for own in named)]:
        line = first_line(model.parallelize(mesh={"tp": 2}, **options))
        assert line.startswith(f"plan for 2 ranks, mesh tp=2, device {device} (the usual device: no calibration at ")
        assert str(alone) in line


def test_calibration_of_this_machine(model, alone):
    alone.parent.mkdir(parents=True)
    alone.write_text(json.dumps(contents()))
    report = model.parallelize(mesh={"tp": 1}).report(format="json")
    assert report["device"] == "device"
    assert report["device_reason"] == (
        f"measured 2026-03-04 on {processor()}, the calibration of this machine, {alone}")
    # A file that was measured for this machine says nothing of another processor, or of a GPU.
    for target, device in (("cpu:x86-64-v3", "cpu"), ("gpu:sm_90a", "h100")):
        assert model.parallelize(mesh={"tp": 1}, target=target).report(format="json")["device"] == device


def test_variable(model, alone, monkeypatch, write):
    monkeypatch.setenv("MESHWRIGHT_DEVICE", "a100")
    assert "device a100 (as MESHWRIGHT_DEVICE says)" in first_line(model.parallelize(mesh={"tp": 2}))
    assert "device h200 (as the option device says)" in first_line(model.parallelize(mesh={"tp": 2}, device="h200"))
    monkeypatch.setenv("MESHWRIGHT_DEVICE", write(contents()))
    assert "device this (measured 2026-03-04 on " in first_line(model.parallelize(mesh={"tp": 2}))
    monkeypatch.setenv("MESHWRIGHT_DEVICE", "none")
    with pytest.raises(mw.Error, match="^MESHWRIGHT_DEVICE: unknown device 'none'"):
        model.parallelize(mesh={"tp": 2})


def test_rates(model, write):
    """A product of 64 rows takes its operations over the rate of 64 rows, and its launch."""
    plan = model.parallelize(mesh={"tp": 1}, device=write(contents()))
    seconds = plan.report(format="json")["communication"]
    assert seconds["kernel_seconds"]["gemm"] == pytest.approx(1e-6 + 2 * 64 * 48 * 32 / 4e9, rel=1e-6)
    assert seconds["kernel_seconds"]["rows"] == 0
    assert seconds["run_seconds"] == pytest.approx(seconds["kernel_seconds"]["gemm"], rel=1e-6)
    # Numbers behind the file override its numbers.
    slower = model.parallelize(mesh={"tp": 1}, device=write(contents()) + " launch=3e-6")
    assert slower.report(format="json")["communication"]["run_seconds"] == pytest.approx(
        seconds["run_seconds"] + 2e-6, rel=1e-6)


def test_between_sizes(write):
    """Between 1 row (1e9) and 64 rows (4e9) the time of a row grows evenly."""
    rows = 22
    model = mw.from_torch(torch.nn.Linear(48, 32, bias=False).eval(), (torch.randn(rows, 48),))
    plan = model.parallelize(mesh={"tp": 1}, device=write(contents()))
    first, last = 2 * 48 * 32 / 1e9, 2 * 64 * 48 * 32 / 4e9
    want = 1e-6 + first + (last - first) * (rows - 1) / 63
    assert plan.report(format="json")["communication"]["run_seconds"] == pytest.approx(want, rel=1e-6)


def test_plan_keeps_the_numbers(model, write):
    """The program does not depend on the file once it is planned."""
    path = write(contents())
    plan = model.parallelize(mesh={"tp": 2}, device=path)
    os.remove(path)
    x = torch.randn(64, 48)
    plan.check(x)
    assert 'device = "name=this flops_f32=1e+10' in plan.ir()
    assert "product_f32=1:1e+09;64:4e+09" in plan.ir()


def test_another_machine(model, write):
    path = write(contents(machine={"processor": "Some Processor", "cores": 8}))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        plan = model.parallelize(mesh={"tp": 2}, device=path)
    messages = [str(w.message) for w in found if issubclass(w.category, mw.MeshwrightWarning)]
    assert len(messages) == 1
    assert f"device file '{path}': was measured on another machine, Some Processor: this one is" in messages[0]
    plan.check(torch.randn(64, 48))


DAMAGED = {
    "truncated": (json.dumps(contents())[:150], "is no JSON"),
    "empty": ("", "is no JSON"),
    "a list": ([1], "expected an object at the top"),
    "another format": (contents(format="device"), "'format': expected 'meshwright device', got 'device'"),
    "no format": (contents(format=None), "'format': is missing"),
    "a later version": (contents(version=2), "'version': expected 1, got 2"),
    "a version as text": (contents(version="1"), "'version': expected a whole number"),
    "no device": (contents(device=None), "'device': is missing"),
    "a device that is a number": (contents(device=3), "'device': expected an object, got 3"),
    "no date": (contents(date=None), "'date': is missing"),
    "an unknown member": (contents(more=1), "'more': is no key of a device file"),
    "an unknown key": (with_device(speed=1), "'device.speed': is no key of a device"),
    "a key missing": (contents(device={"flops_f32": 1}), "'device.memory_bandwidth': is missing"),
    "a negative number": (with_device(launch=-1), "'device.launch': expected a number from 0 to 1e18, got -1"),
    "a huge number": (with_device(launch=1e300), "'device.launch': expected a number from 0 to 1e18, got 1"),
    "text for a number": (with_device(launch="1"), "'device.launch': expected a"),
    "NaN": (json.dumps(contents()).replace("1e-06", "NaN"), "is no JSON"),
    "infinity": (json.dumps(contents()).replace("1e-06", "1e999"), "device"),
    "a table of a number": (with_device(rows=5), "device key 'rows'"),
    "a number of a table": (with_device(launch=[[1, 2]]), "launch"),
    "an empty table": (with_device(rows=[]), "'device.rows': expected a list of 1 to 256 pairs"),
    "a table of single numbers": (with_device(rows=[1, 2]), "'device.rows': expected pairs [size, rate]"),
    "a rate of 0": (with_device(rows=[[1, 0]]), "'device.rows': expected a rate above 0"),
    "a negative size": (with_device(rows=[[-1, 5]]), "'device.rows': expected a size above 0"),
    "sizes that shrink": (with_device(rows=[[8, 5], [4, 5]]), "'device.rows': expected sizes that grow"),
    "a size twice": (with_device(rows=[[8, 5], [8, 6]]), "'device.rows': expected sizes that grow"),
    "deep brackets": ("[" * 200_000, "brackets nest deeper"),
    "deep objects": ('{"device": ' * 50 + "1" + "}" * 50, "brackets nest deeper"),
    "a long text": (contents(date="x" * 1000), "'date': expected a text of 1 to 256 characters"),
    "a text of lines": (contents(date="a\nb"), "'date': expected printable characters"),
    "large": (" " * (2 << 20), "expected at most 1 MiB"),
    "cores of text": (contents(machine={"processor": "p", "cores": "2"}), "'machine.cores': expected a whole number"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged(model, write, name):
    text, message = DAMAGED[name]
    path = write(text)
    with pytest.raises(mw.Error) as error:
        model.parallelize(mesh={"tp": 2}, device=path)
    assert len(error.value.diagnostics) == 1
    assert str(error.value).startswith(f"device file '{path}': ") or "infinity" in name
    assert message in str(error.value)
    assert len(str(error.value)) < 400


def test_damaged_default(model, alone):
    """A damaged calibration of this machine is an error, and not a silent preset."""
    alone.parent.mkdir(parents=True)
    alone.write_text("{")
    with pytest.raises(mw.Error, match=f"device file '{alone}': is no JSON"):
        model.parallelize(mesh={"tp": 2})
    # A plan that names its device does not read it.
    assert "device cpu (as the option device says)" in first_line(model.parallelize(mesh={"tp": 2}, device="cpu"))


def test_no_file(model, tmp_path):
    for path in (tmp_path / "none.json", tmp_path / "folder.json"):
        if path.name == "folder.json":
            path.mkdir()
        with pytest.raises(mw.Error, match=f"device file '{path}': "):
            model.parallelize(mesh={"tp": 2}, device=str(path))


def test_calibrate(model, alone, tmp_path):
    """From the shell, into the place where plans look; then a run with both times."""
    alone.parent.mkdir(parents=True)
    done = subprocess.run(["sharding-run", f"--calibrate={tmp_path}/made.json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"note: calibration written to {tmp_path}/made.json\n"
    made = json.loads((tmp_path / "made.json").read_text())
    assert made["format"] == "meshwright device" and made["machine"]["processor"] == processor()
    tables = {key for key, value in made["device"].items() if isinstance(value, list)}
    assert {"product_f32", "product_bf16", "plain_product_f32", "attention_bf16", "attention_gradient_f32", "rows",
            "moves", "weights"} <= tables
    assert made["ranks"] < 2 or {"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "permute"} <= tables
    os.replace(tmp_path / "made.json", alone)

    plan = model.parallelize(mesh={"tp": 2})
    assert "the calibration of this machine" in first_line(plan)
    plan.run(torch.randn(64, 48), measure=True)
    lines = plan.report().splitlines()
    at = lines.index("expected times beside measured ones, per rank and run")
    assert lines[at + 1].split() == ["expected", "measured", "quotient"]
    assert [line.split()[0] for line in lines[at + 2 : at + 6]][:1] == ["gemm"]
    assert any(line.split()[:3] == ["the", "whole", "run"] for line in lines[at:])
    assert all(0 <= kernels["of_ceiling"] <= 1 for kernels in plan.report(format="json")["run"]["kernels"])


def test_refused_calibrations(tmp_path):
    with pytest.raises(mw.Error, match="none"):
        mw.calibrate(tmp_path / "none" / "x.json")
    with pytest.raises(mw.Error, match="swift"):
        mw.calibrate(tmp_path / "x.json", backend="swift")
    with pytest.raises(mw.Error, match="threads_per_rank"):
        mw.calibrate(tmp_path / "x.json", threads_per_rank=-1)
    assert not os.listdir(tmp_path)
