# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Gradients of tables with the options of nn.Embedding, against autograd in f64."""

import copy

import meshwright as mw
import pytest
import torch
import torch.nn.functional as F
from torch import nn

MESHES = {
    "one rank": dict(mesh={"tp": 1}),
    "dp=2": dict(mesh={"dp": 2}),
    "dp=4": dict(mesh={"dp": 4}),
    "tp=2 sp": dict(mesh={"tp": 2}, sequence_parallel="on"),
    "rows of the table": dict(mesh={"tp": 2}, shardings={"*table.weight": '[{"tp"}, {}]'}),
}
IDS = torch.tensor([[1, 1, 4, 7, 1], [0, 8, 4, 4, 1], [3, 3, 1, 0, 7]])


class Lookup(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.table, self.head = nn.Embedding(9, 12, **options), nn.Linear(12, 9)

    def forward(self, ids):
        return F.cross_entropy(self.head(self.table(ids)).flatten(0, 1), ids.flatten())


class Twice(Lookup):
    """Each lookup counts its own ids."""

    def forward(self, ids):
        return super().forward(ids) + self.table(ids[:, :2]).square().mean()


class Fixed(Lookup):
    """Rows that the module names itself."""

    def forward(self, ids):
        return super().forward(ids) + self.table(torch.tensor([2, 2, 3, 2])).square().mean()


class Bag(nn.Module):
    def __init__(self, mode, weighted=False, **options):
        super().__init__()
        self.table, self.head = nn.EmbeddingBag(9, 12, mode=mode, **options), nn.Linear(12, 9)
        self.weights = nn.Parameter(torch.rand(3, 5) + 0.5) if weighted else None

    def forward(self, ids):
        return self.head(self.table(ids, per_sample_weights=self.weights)).square().mean()


MODULES = {
    "scaled": lambda: Lookup(scale_grad_by_freq=True),
    "scaled, with padding": lambda: Lookup(scale_grad_by_freq=True, padding_idx=1),
    "scaled, twice": lambda: Twice(scale_grad_by_freq=True),
    "scaled, fixed rows": lambda: Fixed(scale_grad_by_freq=True),
    "sparse": lambda: Lookup(sparse=True),
    "bag of sums, weighted": lambda: Bag("sum", weighted=True),
    "bag of means, with padding": lambda: Bag("mean", padding_idx=1),
    "bag of maxima": lambda: Bag("max"),
}


def gradients(net, ids, dtype):
    net = copy.deepcopy(net).to(dtype)
    net(ids).backward()
    return {name: p.grad.to_dense().double() for name, p in net.named_parameters()}


@pytest.mark.parametrize("name", MODULES)
def test_gradients(name):
    torch.manual_seed(0)
    net = MODULES[name]()
    want = gradients(net, IDS, torch.float64)
    largest = max(float(w.abs().max()) for w in want.values())
    model = mw.from_torch(net, (IDS,), training=True).differentiate()
    for mesh, options in MESHES.items():
        outputs = dict(zip(model.outputs, model.parallelize(**options).run(IDS), strict=True))
        value = outputs[model.outputs[0]].double()
        assert torch.allclose(value, copy.deepcopy(net).double()(IDS), rtol=1e-5), mesh
        for parameter, w in want.items():
            error = float((outputs[f"grad.{parameter}"].double() - w).abs().max())
            assert error <= 1e-6 * largest, (mesh, parameter, error, largest)


def test_value_is_the_row():
    """The forward pass keeps its bits."""
    net = nn.Embedding(9, 12, scale_grad_by_freq=True)
    model = mw.from_torch(net, (IDS,), training=True)
    assert torch.equal(model.parallelize(mesh={"dp": 2}).run(IDS)[0], net(IDS))


def test_microbatches_count_their_own_ids():
    torch.manual_seed(0)
    net, ids = Lookup(scale_grad_by_freq=True), torch.cat([IDS, IDS[:1]])
    model = mw.from_torch(net, (ids,), training=True)
    train = model.train(mw.SGD(lr=0.5), microbatches=2)
    with train.parallelize(mesh={"dp": 2}).start() as session:
        session.run(ids)
        got = session.parameters()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for half in ids.chunk(2):
        (net(half) / 2).backward()
    optimizer.step()
    for name, p in net.named_parameters():
        assert torch.allclose(torch.as_tensor(got[name]), p.detach(), atol=1e-6), name


def test_refused():
    """PyTorch divides a bag's gradients by the counts of other rows."""
    net = Bag("sum", scale_grad_by_freq=True)
    with pytest.raises(mw.Error, match="scale_grad_by_freq is not covered in training"):
        mw.from_torch(net, (IDS,), training=True)
    model = mw.from_torch(net, (IDS,))
    assert torch.allclose(model.parallelize(mesh={"tp": 1}).run(IDS)[0], net(IDS))
    with pytest.raises(mw.Error, match="is written to where gradients are off"):
        mw.from_torch(Lookup(max_norm=1.0), (IDS,), training=True)
