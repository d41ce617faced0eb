# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Model.check: imported programs beside their modules in PyTorch."""

import datetime
import inspect
import os
import random
import time
import warnings

import meshwright as mw
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mlp import Mlp
from torch import nn


def randn(*shape, seed=4):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X, Y = randn(4, 6, 16), torch.tensor([1, 0, 5, 15])


class Loss(nn.Module):
    def __init__(self, drop=0.2, **how):
        super().__init__()
        torch.manual_seed(3)
        self.net, self.norm, self.drop = Mlp(), nn.BatchNorm1d(16), nn.Dropout(drop)
        self.attention = nn.MultiheadAttention(16, 4, dropout=drop, batch_first=True)

    def forward(self, x, y):
        x = self.net(x)["y"]
        x = self.drop(x) + self.attention(x, x, x, need_weights=False)[0]
        return F.cross_entropy(self.norm(x.mean(1)), y), x


class Lines(nn.Module):
    """Each operation stands on a line of its own, and `between` sees the values of the second."""

    def __init__(self, between=lambda self, x: x):
        super().__init__()
        torch.manual_seed(3)
        self.a, self.b = nn.Linear(16, 24), nn.Linear(24, 16)
        self.between = between

    def forward(self, x):
        y = self.a(x)
        y = F.gelu(y)
        y = y * self.between(self, y)
        y = self.b(y)
        return y + x


def line(text):
    """The line of Lines.forward with this text."""
    lines, first = inspect.getsourcelines(Lines.forward)
    return first + next(i for i, one in enumerate(lines) if text in one)


def failed(model, *args, **kwargs):
    with pytest.raises(mw.CheckFailed) as error:
        model.check(*args, **kwargs)
    return error.value


@pytest.mark.parametrize("dtype,bound", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float64, 1e-12)])
def test_outputs(dtype, bound):
    module, x = Mlp().eval().to(dtype), X.to(dtype)
    model = mw.from_torch(module, (x,))
    differences = model.check(x)
    assert list(differences) == model.outputs and 0 <= max(differences.values()) <= bound
    assert model.check(x=x) == differences


def test_numpy_and_integers():
    class Picks(nn.Module):
        def forward(self, x):
            return x.argmax(-1), x > 0, x.masked_fill(x > 0, -float("inf")), x * float("nan")

    assert set(mw.from_torch(Picks(), (X,)).check(X.numpy()).values()) == {0.0}


def test_gradients_and_buffers():
    model = mw.from_torch(Loss().train(), (X, Y), training=True)
    differences = model.check(X, Y)
    names = [f"grad.{name}" for name, _ in Loss().named_parameters()]
    assert set(differences) == {"output.0", "output.1", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked", *names}
    assert set(model.differentiate(parameters=["norm.*"]).check(X, Y)) >= {"grad.norm.weight", "grad.norm.bias"}


def test_gradients_without_a_loss():
    differences = mw.from_torch(Lines().train(), (X,), training=True).check(X)
    assert set(differences) == {"output", "grad.a.weight", "grad.a.bias", "grad.b.weight", "grad.b.bias"}


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("optimizer", [mw.SGD(0.1, momentum=0.9, weight_decay=0.01), mw.AdamW(1e-2)], ids=["sgd", "adamw"])
def test_steps(optimizer, microbatches):
    module = Loss().train()
    train = mw.from_torch(module, (X, Y), training=True).train(optimizer, clip_norm=0.5, microbatches=microbatches)
    differences = train.check(X, Y)
    assert {f"step.{name}" for name, _ in module.named_parameters()} <= set(differences)
    assert {"evaluate.output.0", "evaluate.output.1", "grad.norm.weight", "norm.running_var"} <= set(differences)
    assert train.check(X, Y, entry="evaluate")


def test_first_output_without_gradient():
    class Detached(Lines):
        def forward(self, x):
            y = super().forward(x)
            return y.detach().mean(), y

    names = {name for name in mw.from_torch(Detached().train(), (X,), training=True).check(X)}
    assert names == {"output.0", "output.1", "grad.a.weight", "grad.a.bias", "grad.b.weight", "grad.b.bias"}


def test_steps_in_bfloat16():
    module, x = Lines().train().bfloat16(), X.bfloat16()

    class Square(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = module

        def forward(self, x):
            return self.net(x).float().square().mean()

    assert mw.from_torch(Square().train(), (x,), training=True).train(mw.Adam(1e-2), loss_scale="auto").check(x)


def test_module_stays_as_it_was():
    module = Loss().train()
    module(X, Y)[0].backward()
    gradients = {name: p.grad.clone() for name, p in module.named_parameters()}
    state = {name: value.clone() for name, value in module.state_dict().items()}
    generators = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    mw.from_torch(module, (X, Y), training=True).train(mw.SGD(0.1)).check(X, Y)
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
    assert all(torch.equal(p.grad, gradients[name]) for name, p in module.named_parameters())
    assert torch.equal(generators[0], torch.get_rng_state()) and generators[1] == random.getstate()
    assert np.array_equal(generators[2], np.random.get_state()[1]) and module.training and module.drop.p == 0.2


FIXED = {
    "time": lambda self, y: time.time() % 7,
    "datetime": lambda self, y: datetime.datetime.now().microsecond / 1e6 + 0.1,
    "counter": lambda self, y: self.counter,
}


@pytest.mark.parametrize("how", FIXED)
def test_values_that_change(how):
    module = Lines(FIXED[how]).eval()
    module.counter = 2.0
    model = mw.from_torch(module, (X,))
    module.counter = 3.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        error = failed(model, X)
    first = error.diagnostics[0]
    assert "a second import of the module gives another program" in first.message
    assert first.file.endswith("test_check.py") and first.line == line("self.between")
    assert set(error.differences) == {"output"}


def test_large_constants_that_change():
    module = Lines(lambda self, y: torch.tensor(self.table)).eval()
    module.table = randn(24, 24)[:6].tolist() * 1
    model = mw.from_torch(module, (X,))
    module.table = randn(24, 24, seed=5)[:6].tolist()
    assert "a second import" in str(failed(model, X))


@pytest.mark.parametrize("read,what", [
    (lambda self, y: float(os.environ["MESHWRIGHT_TEST_SCALE"]), r"os.environ\['MESHWRIGHT_TEST_SCALE'\]"),
    (lambda self, y: float(os.environ.get("MESHWRIGHT_TEST_SCALE")), r"os.environ\['MESHWRIGHT_TEST_SCALE'\]"),
    (lambda self, y: float(os.getenv("MESHWRIGHT_TEST_SCALE")), r"os.environ\['MESHWRIGHT_TEST_SCALE'\]"),
    (lambda self, y: 2.0 + 0 * time.perf_counter(), r"time.perf_counter\(\)"),
    (lambda self, y: 2.0 + 0 * os.getpid(), r"os.getpid\(\)"),
    (lambda self, y: float(len(open(__file__).read()) > 0), "a file"),
], ids=["environ", "environ.get", "getenv", "clock", "process", "file"])
def test_reads_are_shown(monkeypatch, read, what):
    monkeypatch.setenv("MESHWRIGHT_TEST_SCALE", "2")
    model = mw.from_torch(Lines(read).eval(), (X,))
    with pytest.warns(mw.MeshwrightWarning, match=rf"test_check.py:\d+: warning: the module reads {what} when it is called"):
        model.check(X)
    if "environ" in what:
        monkeypatch.setenv("MESHWRIGHT_TEST_SCALE", "3")
        with pytest.warns(mw.MeshwrightWarning):
            assert failed(model, X).diagnostics[0].line == line("self.between")


def test_no_warning_of_libraries():
    with warnings.catch_warnings():
        warnings.simplefilter("error", mw.MeshwrightWarning)
        mw.from_torch(Lines().eval(), (X,)).check(X)


def test_first_value_that_differs(monkeypatch):
    """A program that is wrong in one operation."""
    from meshwright.importer.graph.emit import emit
    from meshwright.importer.torch import program as importer

    right = importer.import_module

    def wrong(*args, **kwargs):
        imported = right(*args, **kwargs)
        for node in imported.graph.nodes():
            if node.op == "gelu":
                node.attrs["approximate_tanh"] = True
        imported.mlir = emit(imported.graph)
        return imported

    monkeypatch.setattr(importer, "import_module", wrong)
    error = failed(mw.from_torch(Lines().eval(), (X,)), X)
    assert "the first value that differs, in program order, is the result of nn.gelu" in str(error)
    assert error.diagnostics[0].line == line("F.gelu") and error.differences["output"] > 1e-5
    error = failed(mw.from_torch(Lines().train(), (X,), training=True), X)
    assert any(d.message.startswith("the gradient of 'a.weight': expected a difference from PyTorch's of at most ") for d in error.diagnostics)


def test_tolerance():
    model = mw.from_torch(Lines().eval(), (X,))
    error = failed(model, X, tolerance=1e-12)
    assert "output 'output': expected a difference from PyTorch's of at most " in str(error) and error.diagnostics[0].line
    assert model.check(X, tolerance=1.0)
    for tolerance in ("small", -1, float("nan"), True):
        with pytest.raises(mw.Error, match="tolerance: expected a number from 0 on, got"):
            model.check(X, tolerance=tolerance)


def test_modules_that_cannot_be_checked(tmp_path):
    model = mw.from_torch(Lines().eval(), (X,))
    model.save(tmp_path / "m.mlir", tmp_path / "m.safetensors")
    for other in (mw.load(tmp_path / "m.mlir", tmp_path / "m.safetensors"), mw.compose({"a": model, "b": model}, {"b.x": "a.0"})):
        with pytest.raises(mw.Error, match="the model comes from no PyTorch module"):
            other.check(X)
    with torch.device("meta"):
        meta = mw.from_torch(Lines().eval(), (torch.zeros(4, 6, 16),))
    with pytest.raises(mw.Error, match="the model's weights are on the meta device: expected real ones for a check"):
        meta.check(X)
    with pytest.raises(mw.InputError, match=r"input 'x': expected f32\[4, 6, 16\], got f32\[4, 7, 16\]"):
        model.check(randn(4, 7, 16))
    with pytest.raises(mw.Error, match="there is no entry 'other'"):
        model.check(X, entry="other")

    class Locked(Lines):
        def __deepcopy__(self, memo):
            raise ValueError("one of a kind")

    with pytest.raises(mw.Error, match="copy.deepcopy fails: ValueError: one of a kind"):
        mw.from_torch(Locked().eval(), (X,)).check(X)


def test_operations_without_f64():
    class Narrow(Lines):
        def forward(self, x):
            y = super().forward(x)
            if x.dtype == torch.float64:
                raise NotImplementedError("no kernel for double")
            return y

    with pytest.warns(mw.MeshwrightWarning, match="does not run in PyTorch in f64: NotImplementedError: no kernel for double"):
        assert mw.from_torch(Narrow().eval(), (X,)).check(X)["output"] <= 1e-5


def test_entries():
    one, other = Lines().eval(), Lines().eval()
    model = mw.join({"first": mw.from_torch(one, (X,)), "second": mw.from_torch(other, (X[:2],))})
    assert model.check(X) and model.check(X[:2], entry="second")
