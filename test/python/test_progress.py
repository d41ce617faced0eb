# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Long phases say that they are at work, in terminals and notebooks and nowhere else; the logger has them."""

import io
import logging
import os
import subprocess
import sys
import textwrap
import time
import types

import meshwright as mw
import pytest
from meshwright import progress

#: Each slow function takes a second. A mark stands before each call.
BEGIN = """
import os, sys, tempfile, time
import numpy as np
import meshwright as mw
from meshwright import _core

def slow(owner, name):
    function = getattr(owner, name)
    def delayed(*args, **kwargs):
        time.sleep(1)
        return function(*args, **kwargs)
    setattr(owner, name, delayed)

def mark(name):
    print(f"<{name}>", file=sys.stderr, flush=True)

if "quiet" in sys.argv:
    mw.quiet()
folder = tempfile.mkdtemp()
"""
PLANS = """
text = '''
nn.state @count {fill = 0.0 : f32} : tensor<2x4xf32>
func.func @main(%x: tensor<2x4xf32> {nn.input = "x"}, %w: tensor<4x4xf32> {nn.parameter = "w"}) -> (tensor<2x4xf32> {nn.output = "y"}) {
  %y = nn.linear %x, %w : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  nn.write @count, %y : tensor<2x4xf32>
  return %y : tensor<2x4xf32>
}
'''
model = mw.Model(mw.errors.unwrap(_core.Program.parse(text, "text")), {"w": np.ones((4, 4), np.float32)})
for owner, name in ((_core.Plan, "parallelize"), (_core.Plan, "start"), (_core.Session, "run"), (_core.Session, "save"),
                    (_core.Plan, "compile"), (mw.weights, "write"), (mw.weights, "load")):
    slow(owner, name)
x = np.ones((2, 4), np.float32)
mark("parallelize")
plan = model.parallelize(mesh={"tp": 2})
mark("start")
session = plan.start()
mark("run")
session.run(x)
mark("again")
session.run(x)
mark("save")
session.save(folder + "/state")
mark("compile")
plan.compile(folder + "/bundle")
mark("write")
model.save(folder + "/m.mlir", folder + "/m.safetensors")
mark("load")
mw.load(folder + "/m.mlir", folder + "/m.safetensors")
mark("end")
"""
TORCH = """
import torch
import meshwright.importer.torch.program as program
import meshwright.training as training

slow(program, "emit")
slow(training, "output")
mark("import")
model = mw.from_torch(torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.Flatten(0)), (torch.ones(1, 4),), training=True)
mark("train")
model.train(mw.SGD(lr=0.1))
mark("end")
"""
JAX = """
import jax
import meshwright.importer.stablehlo.program as program

slow(program, "emit")
mark("import")
def product(w, x):
    return x @ w
mw.from_jax(product, (np.ones((4, 4), np.float32), np.ones((2, 4), np.float32)))
mark("end")
"""


def said(code, *arguments, terminal=True, env=None):
    """The text on standard error behind each mark."""
    out, end = os.openpty() if terminal else os.pipe()
    command = [sys.executable, "-W", "ignore", "-c", BEGIN + code, *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=end, env={**os.environ, **(env or {})}) as process:
        os.close(end)
        text = b""
        while True:
            try:
                part = os.read(out, 4096)
            except OSError:  # the process has closed the terminal
                break
            if not part:
                break
            text += part
    os.close(out)
    text = text.decode()
    assert process.returncode == 0, text
    parts = [part.partition(">") for part in text.split("<")[1:]]
    assert parts[-1][0] == "end", text
    return {name: rest.strip("\r\n") for name, _, rest in parts}


@pytest.mark.slow
def test_phases_of_plans_on_a_terminal():
    text = said(PLANS)
    expected = {"parallelize": "planning", "start": "starting", "run": "running", "save": "saving state",
                "compile": "compiling", "write": "saving model: 0 of 1", "load": "loading model"}
    for name, line in expected.items():
        assert f"\r{line}, 0 s" in text[name], (name, text)
        assert text[name].endswith("\r\x1b[K"), (name, text)
    # A user's own lines may show how far the later calls are.
    assert "running" not in text["again"]


@pytest.mark.slow
def test_phases_of_pytorch_on_a_terminal():
    text = said(TORCH)
    assert "\rimporting Sequential: 3 of 5, " in text["import"], text
    assert "\radding training steps, 0 s" in text["train"], text


@pytest.mark.slow
def test_phases_of_jax_on_a_terminal():
    pytest.importorskip("jax")
    assert "\rimporting product: 3 of 5, " in said(JAX)["import"]


@pytest.mark.slow
def test_nothing_in_a_pipe_or_when_quiet():
    for text in (said(PLANS, terminal=False), said(PLANS, "quiet")):
        assert not "".join(text.values()), text


@pytest.mark.slow
def test_log_of_phases():
    text = said(PLANS, terminal=False, env={"MESHWRIGHT_LOG": "debug"})
    for name, line in {"parallelize": "planning, 1.", "start": "starting, 1.", "run": "running, 1."}.items():
        assert f"meshwright: debug: {line}" in text[name], text
    assert "setting parameters, " in text["start"] and text["start"].endswith(" s")


def test_level_that_does_not_exist():
    process = subprocess.run([sys.executable, "-c", "import meshwright"], capture_output=True, text=True,
                             env={**os.environ, "MESHWRIGHT_LOG": "loud"})
    assert process.returncode == 0
    assert "MESHWRIGHT_LOG: expected debug, info, warning, error, got 'loud'" in process.stderr


def test_parts_are_steps_and_records(monkeypatch, caplog):
    class Line:
        steps = 0

        def step(self):
            self.steps += 1

        def __exit__(self, *_):
            lines.append(self.steps)

    lines = []
    monkeypatch.setattr(progress, "_in_notebook", lambda: True)
    monkeypatch.setattr(progress, "_NotebookLine", lambda *_: Line())
    with caplog.at_level(logging.DEBUG, "meshwright"), pytest.raises(KeyError), progress.Phase("outer", 2):
        with progress.part("first"):
            pass
        with progress.Phase("inner", 1), progress.part("own"):
            pass
        with progress.part("second"):
            raise KeyError
    assert lines == [1, 2]
    names = [record.getMessage().partition(", ")[0] for record in caplog.records]
    assert names == ["outer: first", "inner: own", "inner", "outer: second", "outer"]
    assert caplog.records[-1].getMessage().endswith(" s, failed")
    assert not progress._phases()


def test_notebook(monkeypatch):
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress.Phase("short"):
        time.sleep(0.1)
    assert not sys.stderr.getvalue()
    with progress.Phase("long", 4) as phase:
        phase.step()
        time.sleep(1)
    assert "long: 1 of 4, 00:00" in sys.stderr.getvalue()
    assert not sys.stderr.getvalue().rpartition("\r")[0].rpartition("\r")[2].strip()


def test_warnings_are_records(caplog):
    text = textwrap.dedent("""
        func.func @main(%x: tensor<2x4xf32> {nn.input = "x"}) -> (tensor<2x4xf32> {nn.output = "y"}) {
          return %x : tensor<2x4xf32>
        }""")
    model = mw.Model(mw.errors.unwrap(mw._core.Program.parse(text, "<text>")), {})
    with pytest.warns(mw.MeshwrightWarning) as caught:
        model.parallelize(mesh={"tp": 2}, shardings={"*.none": '[{"tp"}]'})
    said = 'parallelize: rule "*.none" matches no parameter'
    assert str(caught[0].message) == f"warning: {said}" and caught[0].filename == __file__
    record = caplog.records[0]
    assert (record.name, record.levelname, record.getMessage()) == ("meshwright", "WARNING", said)
    assert record.pathname == __file__
