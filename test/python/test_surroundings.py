# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Imports, runs and training under PyTorch's settings of the caller."""

import contextlib
import os
import subprocess
import sys

import meshwright as mw
import pytest
import torch
from mlp import close
from torch import nn


class Made(nn.Module):
    """Makes tensors without stating their type or device."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.l = nn.Linear(12, 12)
        self.register_buffer("k", torch.arange(12.0))

    def forward(self, x):
        p = torch.arange(x.shape[1])
        w = torch.zeros(5, 5).masked_fill(p[None] > p[:, None], -1e4).softmax(-1)
        return self.l(x) * torch.ones(12) + w.to(x) @ x + torch.linspace(0, 1, 5)[:, None] + (x > 0).sum(-1, True) / 3 + self.k


class Loss(Made):
    def forward(self, x):
        return super().forward(x).square().mean()


@contextlib.contextmanager
def default_device(device):
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def default_dtype(dtype):
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


AROUND = {
    "meta": lambda: torch.device("meta"),
    "default meta": lambda: default_device("meta"),
    "a device that is missing": lambda: default_device("cuda"),
    "f64": lambda: default_dtype(torch.float64),
    "bf16": lambda: default_dtype(torch.bfloat16),
    "inference": torch.inference_mode,
    "no gradients": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}
X = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(4))
nothing = contextlib.nullcontext


@pytest.mark.filterwarnings("ignore::meshwright.MeshwrightWarning")
@pytest.mark.parametrize("where", ["import", "plan", "run", "check"])
@pytest.mark.parametrize("around", AROUND)
def test_forward(around, where):
    setting, module = AROUND[around], Made().eval()
    if around == "autocast" and where == "import":
        with setting(), pytest.raises(mw.Error, match='torch.autocast."cpu". is on around the import'):
            mw.from_torch(module, (X,))
        return
    with setting() if where == "import" else nothing():
        model = mw.from_torch(module, (X,))
        if where == "import" and around in ("f64", "bf16"):
            with torch.no_grad():
                want = module(X)  # the type of what the module makes is the caller's
        else:
            want = None
    if want is None:
        want = module(X)
    with setting() if where == "plan" else nothing():
        plan = model.parallelize(mesh={"tp": 2})
    with setting() if where == "run" else nothing():
        got = plan.run(X)[0]
        plan.check(X)
    assert got.device.type == "cpu" and got.dtype == want.dtype
    close(got, want)
    with setting() if where == "check" else nothing():
        model.check(X)


@pytest.mark.parametrize("where", ["train", "session"])
@pytest.mark.parametrize("around", AROUND)
def test_training(around, where, tmp_path):
    setting, module = AROUND[around], Loss().train()
    model = mw.from_torch(module, (X,), training=True)
    with setting() if where == "train" else nothing():
        plan = model.train(mw.AdamW(1e-2), microbatches=2).parallelize(mesh={"dp": 2})
    with setting() if where == "session" else nothing(), plan.start() as session:
        first = session.run(X)[0]
        saved, parameters, state = session.state_dict(), session.parameters(), session.state()
        session.load_state_dict(saved)
        session.save(tmp_path / "state")
        session.run(X, entry="evaluate")
    parts = [module(x) for x in X.chunk(2)]
    close(first, sum(parts).detach() / 2)
    for value in (*saved["model"].values(), *parameters.values(), *state.values()):
        assert value.device.type == "cpu" and value.dtype in (torch.float32, torch.int64)
    assert saved["optimizer"]["state"][0]["step"].dtype == torch.float32


def test_first_import_on_another_device():
    """The package's own tables are made at its first import."""
    script = """
import torch, meshwright as mw
torch.set_default_device("meta")
net = torch.nn.Sequential(torch.nn.Linear(4, 6, device="cpu"), torch.nn.GELU(approximate="tanh"))
x = torch.randn(3, 4, device="cpu")
y = mw.from_torch(net.eval(), (x,)).parallelize(mesh={"dp": 1}).run(x)[0]
assert torch.allclose(y, net(x), atol=1e-5) and y.device.type == "cpu"
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr


def test_meta_model_within_its_device():
    with torch.device("meta"):
        model = mw.from_torch(Made().eval(), (torch.zeros(2, 5, 12),))
    assert model.parallelize(mesh={"dp": 2}).report(format="json")["memory_per_rank"]["weights"]
