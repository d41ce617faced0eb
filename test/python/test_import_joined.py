# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Parameters of a list of modules that a model stacks: one parameter, unless it trains."""
import copy

import meshwright as mw
import numpy as np
import pytest
import torch
from import_checks import verify
from meshwright.importer.graph.join_parameters import joined_name
from meshwright.importer.torch import import_module
from torch import nn

EXPERTS = 4


class Listed(nn.Module):
    """Linear layers in a list, of which one product is made."""

    def __init__(self, bias=True, experts=EXPERTS):
        super().__init__()
        torch.manual_seed(0)
        self.experts = nn.ModuleList(nn.Linear(6, 5, bias) for _ in range(experts))
        self.scale = nn.Parameter(torch.randn(5))

    def stacked(self, name):
        return torch.stack([getattr(e, name) for e in self.experts])

    def forward(self, x):
        y = x @ self.stacked("weight").mT
        return (y + self.stacked("bias")[:, None]) * self.scale


class Loss(Listed):
    def forward(self, x):
        return super().forward(x).square().mean()


WEIGHT, BIAS = "experts.*.weight", "experts.*.bias"
X = (torch.arange(18.0).view(3, 6).cos(),)


def run(model, *args):
    return model.parallelize(mesh={"tp": 2}).run(*args)[0]


def close(got, want):
    torch.testing.assert_close(got, want.detach(), rtol=2e-5, atol=2e-5)


def test_names():
    assert joined_name(["a.0.b", "a.1.b", "a.11.b"]) == "a.*.b"
    assert joined_name(["l.3.e.0.w", "l.3.e.1.w"]) == "l.3.e.*.w"
    assert joined_name(["w1", "w2"]) == "w*"
    for others in (["a.0.b", "a.1.c"], ["a.0.b.0", "a.1.b.1"], ["up", "down"], ["a.0", "a.0.b"]):
        assert joined_name(others) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_parameter(dtype):
    module = Listed().to(dtype)
    x = X[0].to(dtype)
    imported = import_module(module, (x,))
    verify(imported.mlir)
    assert "concat" not in imported.mlir
    assert list(imported.parameters) == ["scale", WEIGHT, BIAS]
    model = mw.from_torch(module, (x,))
    values = model.parameters
    assert list(values) == ["scale", WEIGHT, BIAS]
    assert torch.equal(values[WEIGHT], module.stacked("weight"))
    tolerance = {} if dtype == torch.bfloat16 else {"rtol": 2e-5, "atol": 2e-5}
    torch.testing.assert_close(run(model, x), module(x).detach(), **tolerance)
    model.check(x)
    with model.parallelize(mesh={"tp": 2}).start() as session:
        assert torch.equal(session.parameters()[BIAS], module.stacked("bias"))


def test_is_on_disk_as_one(tmp_path):
    module, files = Listed(), (tmp_path / "p.mlir", tmp_path / "w.safetensors")
    model = mw.from_torch(module, X)
    model.save(*files)
    loaded = mw.load(*files)
    assert np.array_equal(loaded.parameters[WEIGHT], module.stacked("weight").detach().numpy())
    close(run(loaded, *X), module(*X))
    plan = model.parallelize(mesh={"tp": 2})
    for weights in (True, False):
        plan.compile(tmp_path / "bundle", weights=weights)
        given = {} if weights else {"weights": files[1]}
        with mw.load_bundle(tmp_path / "bundle").start(**given) as session:
            close(torch.from_numpy(session.run(X[0].numpy())[0]), module(*X))


def test_follows_the_module():
    module = Listed()
    model = mw.from_torch(module, X)
    plan = model.parallelize(mesh={"tp": 2})
    plan.run(*X)
    known = model._parameter(WEIGHT)
    plan.run(*X)
    assert model._parameter(WEIGHT) is known  # nothing is stacked anew without need
    with torch.no_grad():
        module.experts[2].weight.mul_(3)
    close(plan.run(*X)[0], module(*X))
    for _ in range(2):
        other = {k: torch.randn_like(v) for k, v in module.state_dict().items()}
        module.load_state_dict(other, assign=True)
        close(plan.run(*X)[0], module(*X))
    module.experts[1].weight = nn.Parameter(torch.zeros(2, 6))
    with pytest.raises(mw.Error, match=r"experts\.1\.weight was assigned anew"):
        plan.run(*X)


def test_without_values():
    module = Listed().to("meta")
    model = mw.from_torch(module, (X[0].to("meta"),))
    values = model.parameters
    assert values[WEIGHT].shape == (EXPERTS, 5, 6) and values[WEIGHT].is_meta
    report = model.parallelize(mesh={"tp": 2}).report(format="json")
    assert report["memory_per_rank"]["weights"] > 0


def test_large_values():
    """The program states their bound."""
    module = Listed()
    with torch.no_grad():
        module.experts[3].weight[0, 0] = 5000
    assert "nn.magnitude = 8192" in import_module(module, X).mlir.replace(".0", "")
    with torch.no_grad():
        module.experts[1].weight[0, 0] = torch.nan
    assert "nn.magnitude = 0x7FF0" in import_module(module, X).mlir


class Used(Listed):
    def forward(self, x):
        return super().forward(x) + self.experts[1].weight.sum()


def tied():
    module = Listed()
    module.experts[2].weight = module.experts[0].weight
    return module


def frozen():
    module = Listed()
    module.experts[1].weight.requires_grad_(False)
    return module


@pytest.mark.parametrize("make", [Used, tied, frozen], ids=lambda f: f.__name__)
def test_stay_apart(make):
    module = make()
    model = mw.from_torch(module, X)
    assert WEIGHT not in model.parameters and BIAS in model.parameters
    close(run(model, *X), module(*X))


class Halves(Listed):
    """Two stacks of one list: the name is one's."""

    def forward(self, x):
        halves = [torch.stack([e.weight for e in self.experts[i:i + 2]]) for i in (0, 2)]
        return torch.cat([x @ w.mT for w in halves]) * self.scale


def test_keys_stay_unique():
    module = Halves()
    model = mw.from_torch(module, X)
    assert list(model.parameters) == ["scale", WEIGHT, "experts.2.weight", "experts.3.weight"]
    close(run(model, *X), module(*X))


# Models that train.

NAMES = {f"experts.{i}.{name}" for i in range(EXPERTS) for name in ("weight", "bias")} | {"scale"}


@pytest.mark.parametrize("training", [True, False])
def test_gradients(training):
    module = Loss()
    model = mw.from_torch(module, X, training=training)
    whole = model.differentiate()
    assert set(whole.parameters) == NAMES
    outputs = dict(zip(whole.outputs, whole.parallelize(mesh={"tp": 2}).run(*X), strict=True))
    module(*X).backward()
    for name, parameter in module.named_parameters():
        close(outputs[f"grad.{name}"], parameter.grad)


@pytest.mark.parametrize("training", [True, False])
def test_steps(training):
    module = Loss()
    model = mw.from_torch(module, X, training=training).train(mw.SGD(lr=0.1))
    reference = copy.deepcopy(module)
    step = torch.optim.SGD(reference.parameters(), lr=0.1)
    with model.parallelize(mesh={"tp": 2}).start() as session:
        for _ in range(2):
            step.zero_grad()
            loss = reference(*X)
            loss.backward()
            step.step()
            close(session.run(*X)[0], loss)
        saved = session.state_dict()["model"]
    for name, value in reference.state_dict().items():
        close(saved[name], value)


def test_entries():
    """Models of one module share parameters, also if some join them."""
    module, other = Listed(), Used()
    other.experts, other.scale = module.experts, module.scale
    one, again = mw.from_torch(module, X), mw.from_torch(module, (X[0][:2],))
    both = mw.join({"one": one, "again": again})
    assert list(both.parameters) == ["scale", WEIGHT, BIAS]
    for second in (mw.from_torch(other, X), mw.from_torch(module, X, training=True)):
        both = mw.join({"one": one, "second": second})
        assert set(both.parameters) == NAMES
        plan = both.parallelize(mesh={"tp": 2})
        close(plan.run(*X, entry="one")[0], module(*X))


def test_composed():
    module = Listed()
    model = mw.from_torch(module, X)
    whole = mw.compose({"a": model}, {})
    assert f"a.{WEIGHT}" in whole.parameters
    with torch.no_grad():
        module.experts[0].bias.add_(1)
    close(run(whole, *X), module(*X))
