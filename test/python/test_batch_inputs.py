# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Inputs whose dimension 0 is the batch, which data parallelism splits and microbatches cut."""

import copy

import meshwright as mw
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mlp import Mlp
from torch import nn


def randn(*shape, seed=4):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.net = Mlp()

    def pooled(self, x):
        return self.net(x)["y"].mean(1)


class Weighted(Base):
    """Weights of classes."""

    def forward(self, x, y, weights):
        return F.cross_entropy(self.pooled(x), y, weight=weights)


class WeightsFirst(Base):
    def forward(self, weights, x, y):
        return F.cross_entropy(self.pooled(x), y, weight=weights)


class Queue(Base):
    """A queue of negatives, which the loss works with for any number of rows."""

    def forward(self, x, queue):
        z = self.pooled(x)
        positive = z.square().sum(1, keepdim=True)
        return F.cross_entropy(torch.cat([positive, z @ queue.T], 1) / 20, torch.zeros(len(z), dtype=torch.long))


class QueueFirst(Queue):
    def forward(self, queue, x, y):
        return super().forward(x, queue) + F.cross_entropy(self.pooled(x), y)


class Positions(Base):
    """Positions [3, tokens, features], which all rows share."""

    def forward(self, x, positions, scale):
        return (self.pooled(x + positions.sum(0)) * scale).square().mean()


class Flat(Base):
    """Labels of all tokens in one dimension, and rows beside the loss."""

    def forward(self, x, labels):
        y = self.net(x)["y"]
        return F.cross_entropy(y.flatten(0, 1), labels), y[:, 0]


def reference(module, inputs, cut, n):
    """The loss and the parameters after PyTorch's step of n chunks, in f64."""
    module = copy.deepcopy(module).double()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    losses = []
    for i in range(n):
        values = {k: v.chunk(n)[i] if k in cut else v for k, v in inputs.items()}
        out = module(**{k: v.double() if v.is_floating_point() else v for k, v in values.items()})
        loss = out[0] if isinstance(out, tuple) else out
        (loss / n).backward()
        losses.append(float(loss.detach()))
    optimizer.step()
    return np.mean(losses), dict(module.named_parameters())


def steps(module, inputs, n, mesh, **how):
    model = mw.from_torch(module.train(), (), inputs, training=True, **how)
    return model.train(mw.SGD(0.5), microbatches=n).parallelize(mesh=mesh)


X, Y = randn(4, 6, 16), torch.tensor([1, 0, 5, 15])
CASES = {
    "weights of classes": (Weighted, dict(x=X, y=Y, weights=randn(16).abs()), None, ["x", "y"]),
    "weights that are as many as rows": (lambda: Scaled(), dict(x=X, y=Y, each=randn(4).abs()), ["x", "y"], ["x", "y"]),
    "weights first": (WeightsFirst, dict(weights=randn(16).abs(), x=X, y=Y), ["x", "y"], ["x", "y"]),
    "a queue": (Queue, dict(x=X, queue=randn(6, 16)), None, ["x"]),
    "a queue as long as the batch": (Queue, dict(x=X, queue=randn(4, 16)), ["x"], ["x"]),
    "a queue as long as a microbatch": (Queue, dict(x=X, queue=randn(2, 16)), None, ["x"]),
    "a queue first": (QueueFirst, dict(queue=randn(8, 16), x=X, y=Y), ["x", "y"], ["x", "y"]),
    "positions and a scalar": (Positions, dict(x=X, positions=randn(3, 6, 16), scale=torch.tensor(0.5)), None, ["x"]),
    "flat labels": (Flat, dict(x=X, labels=torch.arange(24) % 16), ["x", "labels"], ["x", "labels"]),
}


class Scaled(Base):
    """A vector that has one entry for each of the first features."""

    def forward(self, x, y, each):
        z = self.pooled(x)
        return F.cross_entropy(z * F.pad(each, (0, 12), value=1.0), y)


@pytest.mark.parametrize("mesh", [{"dp": 1}, {"dp": 2}, {"dp": 2, "tp": 2}], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_steps(name, mesh):
    build, inputs, stated, cut = CASES[name]
    module = build()
    plan = steps(module, inputs, 2, mesh, batch_inputs=stated)
    loss, want = reference(module, inputs, cut, 2)
    with plan.start() as session:
        outputs = session.run(**inputs)
        evaluated = session.run(entry="evaluate", **inputs)
        parameters = session.parameters()
    assert abs(float(outputs[0]) / loss - 1) <= 1e-5
    for key, value in want.items():
        assert (parameters[key].double() - value).abs().max() <= 1e-5 * value.abs().max(), key
    assert [o.shape for o in evaluated] == [o.shape for o in outputs]
    if build is Flat:
        assert outputs[1].shape == (4, 16)
    plan.check(**inputs)


def test_check_of_a_model():
    build, inputs, stated, _ = CASES["a queue first"]
    train = mw.from_torch(build().train(), (), inputs, training=True, batch_inputs=stated).train(mw.SGD(0.5), microbatches=2)
    assert "step.net.up.weight" in train.check(**inputs)


def test_layouts():
    """Data parallelism follows the same statement."""
    inputs = dict(queue=randn(8, 16), x=X, y=Y)
    plain = mw.from_torch(QueueFirst().eval(), (), inputs)
    assert "nn.batch" not in plain.ir()
    model = mw.from_torch(QueueFirst().eval(), (), inputs, batch_inputs=["x", "y"])
    plan = model.parallelize(mesh={"dp": 2})
    assert "a batch of 4 is split over 2 ranks" in str(plan.report(format="json")["decisions"])
    arguments = plan.ir().split("func.func @main(")[1].split(") ->")[0]
    layouts = {part.split('nn.input = "')[1].split('"')[0]: '{"dp"}' in part
               for part in arguments.split("%arg") if "nn.input" in part}
    assert layouts == {"queue": False, "x": True, "y": True}
    plan.check(**inputs)


def test_bundles_and_saved_programs(tmp_path):
    build, inputs, stated, cut = CASES["a queue as long as the batch"]
    module = build()
    plan = steps(module, inputs, 2, {"dp": 2}, batch_inputs=stated)
    plan.compile(tmp_path / "bundle")
    with mw.load_bundle(tmp_path / "bundle").start() as session:
        loss = session.run(**{k: v.numpy() for k, v in inputs.items()})[0]
    assert abs(float(loss) / reference(module, inputs, cut, 2)[0] - 1) <= 1e-5
    assert '"whole":true' in (tmp_path / "bundle" / "manifest.json").read_text().replace(" ", "")


@pytest.mark.parametrize("build,inputs,stated,said", [
    (Weighted, dict(x=X[:3], y=Y[:3], weights=randn(16)), None, "a number that divides the 3 rows of input 'x', got 2"),
    (QueueFirst, dict(queue=randn(8, 16), x=X, y=Y), None,
     "the first one, 'queue', has 8 rows alone, and 'x' and 'y' share another number; .*batch_inputs"),
    (Flat, dict(x=X, labels=torch.arange(24) % 16), None, "1 / 2 of the rows of 'x' and all of 'labels'; .*batch_inputs"),
    (lambda: Turned(), dict(scale=torch.tensor(0.5), x=X), None, "the first input, 'scale', has no dimensions; .*batch_inputs"),
])
def test_errors_of_microbatches(build, inputs, stated, said):
    with pytest.raises(mw.Error, match="(?s)microbatch.*" + said if "1 / 2" not in said else "(?s)" + said):
        steps(build(), inputs, 2, {"dp": 2}, batch_inputs=stated)


class Turned(Base):
    def forward(self, scale, x):
        return (self.pooled(x) * scale).square().mean()


def test_errors_of_names():
    for names, said in ((["z"], "batch_inputs names 'z': expected one of scale, x"), ("scale", "'scale', which has no dimensions"),
                        (3, "batch_inputs: expected names of inputs, or None, got 3"), ([3], "an element of batch_inputs: expected names of inputs, or None, got 3")):
        with pytest.raises(mw.Error, match=said):
            mw.from_torch(Turned().eval(), (), dict(scale=torch.tensor(0.5), x=X), batch_inputs=names)
