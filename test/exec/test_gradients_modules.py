# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Gradients of PyTorch modules on several meshes, against autograd in f64, and their bytes."""

import copy

import meshwright as mw
import pytest
import torch
import torch.nn.functional as F
from torch import nn

MESHES = {
    "dp=2": dict(mesh={"dp": 2}),
    "tp=2 sp": dict(mesh={"tp": 2}, sequence_parallel="on"),
    "tp=3": dict(mesh={"tp": 3}, sequence_parallel="off"),
    "dp=2,tp=2": dict(mesh={"dp": 2, "tp": 2}),
    "ulysses=2": dict(mesh={"ulysses": 2, "ring": 1},
                      context_parallel={"ulysses": "ulysses", "ring": "ring"}),
    "ring=2": dict(mesh={"ulysses": 1, "ring": 2},
                   context_parallel={"ulysses": "ulysses", "ring": "ring", "order": "zigzag"}),
    # Two ranks hold the heads of queries that share a head of keys, one of them with padding.
    "tp=2,ring=2,ulysses=2": dict(mesh={"tp": 2, "ring": 2, "ulysses": 2},
                                  context_parallel={"ulysses": "ulysses", "ring": "ring"}),
}


class Block(nn.Module):
    """A decoder layer with grouped queries and rotary positions."""

    def __init__(self, width=24, heads=6, groups=2):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.norm, self.norm2 = nn.RMSNorm(width), nn.LayerNorm(width)
        self.q, self.o = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, groups * self.size) for _ in range(2))
        self.gate, self.up, self.down = nn.Linear(width, 40), nn.Linear(width, 40), nn.Linear(40, width)

    def rotate(self, x):
        angle = torch.arange(x.shape[2], dtype=x.dtype)[:, None] / torch.tensor([1.0, 10.0], dtype=x.dtype)
        angle = torch.cat([angle, angle], -1)
        a, b = x.chunk(2, -1)
        return x * angle.cos() + torch.cat([-b, a], -1) * angle.sin()

    def forward(self, x):
        h = self.norm(x)
        q, k, v = (p(h).unflatten(-1, (n, self.size)).transpose(1, 2) for p, n in
                   ((self.q, self.heads), (self.k, self.groups), (self.v, self.groups)))
        a = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True, enable_gqa=True)
        x = x + self.o(a.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    """A decoder whose table is its head, too, and a loss over labels of which some do not count."""

    def __init__(self, vocabulary=37, width=24):
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(2))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids, labels):
        x = self.table(ids)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


class Ends(nn.Module):
    """Gradients end at a detached value, in a region without gradients and at a row of padding."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 12, padding_idx=3)
        self.a, self.b, self.c = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 12)
        self.c.weight.requires_grad_(False)

    def forward(self, ids):
        x = self.table(ids)
        with torch.no_grad():
            gate = self.b(x).sigmoid()
        h = self.a(x)
        return (self.c(h * h.detach() * gate) + x).square().mean()


class FixedRows(nn.Module):
    """Rows that the module itself names, a row of padding among them."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 12, padding_idx=3)
        self.kinds = nn.Embedding(2, 12, padding_idx=0)
        self.a = nn.Linear(12, 12)

    def forward(self, x):
        rows = self.table(torch.tensor([3, 1, 2, 3, 4, 5, 6]))
        kinds = self.kinds(torch.zeros(x.shape[:2], dtype=torch.long))
        return (self.a(x + kinds).tanh() + rows).square().mean()


class Regrouped(nn.Module):
    """A mean over groups of tokens: the cotangents of a group's tokens differ, those of groups do not."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(12), nn.Linear(12, 24), nn.Linear(24, 12)
        self.table, self.head = nn.Embedding(11, 12), nn.Linear(48, 3)

    def forward(self, ids):
        x = self.table(ids)
        x = self.norm(x + self.down(self.up(x).relu()))
        return self.head(x.reshape(x.shape[0], -1, 48).mean(1)).square().mean()


class Filled(nn.Module):
    """Scores are replaced where a key is padding: no gradient flows from a query that sees no key."""

    def __init__(self, after=False):
        super().__init__()
        self.table = nn.Embedding(11, 24)
        self.q, self.k, self.v, self.o = (nn.Linear(24, 24) for _ in range(4))
        self.bias = nn.Parameter(torch.randn(4, 7, 7))
        self.late = nn.Parameter(torch.randn(7, 1)) if after else 0

    def forward(self, ids, seen):
        x = self.table(ids)
        q, k, v = (p(x).unflatten(-1, (4, 6)).transpose(1, 2) for p in (self.q, self.k, self.v))
        scores = (q @ k.mT / 6 ** 0.5 + self.bias).masked_fill(~seen[:, None, None], torch.finfo(x.dtype).min)
        scores = torch.where(torch.ones(7, 7).tril().bool(), scores, torch.finfo(x.dtype).min)
        weights = (scores + self.late).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).flatten(2)).square().mean()


class Sure(nn.Module):
    """A loss that is far smaller than the logits."""

    def __init__(self, smoothing=0.0):
        super().__init__()
        self.table, self.smoothing = nn.Parameter(torch.randn(21, 16)), smoothing

    def forward(self, ids):
        rows = F.normalize(self.table, dim=-1)
        logits = 14 * F.embedding(ids, rows) @ rows.T
        return F.cross_entropy(logits.flatten(0, 1), ids.flatten(), label_smoothing=self.smoothing)


class Sizes(nn.Module):
    """Sizes of rows of which some are zero."""

    def __init__(self, size):
        super().__init__()
        self.size, self.a = size, nn.Linear(10, 12)

    def forward(self, x, mask):
        return (self.size(self.a(x) * mask) - 0.5).square().sum()


SIZES = {
    "norm": lambda h: h.norm(dim=-1),
    "norm of order 3": lambda h: h.norm(p=3, dim=-1),
    "normalize": lambda h: F.normalize(h, dim=-1),
    "cosine": lambda h: F.cosine_similarity(h[:, 1:], h[:, :-1], dim=-1),
    "deviation": lambda h: h.std(-1),
    "deviation and mean": lambda h: torch.stack(torch.std_mean(h, -1)),
    "distances": lambda h: torch.cdist(h, h),
}


def wanted(module, inputs, dtype=torch.float64):
    module = copy.deepcopy(module).to(dtype)
    loss = module(**{n: x.to(dtype) if x.is_floating_point() else x for n, x in inputs.items()})
    loss.backward()
    return {f"grad.{n}": p.grad for n, p in module.named_parameters() if p.requires_grad}, loss


def check(module, inputs, model=None, **options):
    """Gradients are as exact as PyTorch's in f32, relative to the largest of all."""
    model = model or mw.from_torch(module, (), inputs, training=True).differentiate()
    want, loss = wanted(module, inputs)
    own, _ = wanted(module, inputs, torch.float32)
    got = dict(zip(model.outputs, model.parallelize(**options).run(**inputs), strict=True))
    assert list(got)[1:] == list(want)
    top = max(float(g.abs().max()) for g in want.values() if g is not None)
    for name, gradient in want.items():
        if gradient is None:
            assert not got[name].any(), name
            continue
        error = float((got[name].double() - gradient).abs().max()) / top
        torch_error = float((own[name].double() - gradient).abs().max()) / top
        assert error <= max(1e-6, 1.25 * torch_error), (name, error, torch_error)
    assert abs(float(got[model.outputs[0]]) - float(loss.detach())) <= 1e-5 * abs(float(loss.detach()))


def decoder(batch=3, tokens=13):
    torch.manual_seed(3)
    ids = torch.randint(0, 37, (batch, tokens))
    labels = ids.roll(-1, 1)
    labels[0, 2:5] = -100
    return Decoder().train(), dict(ids=ids, labels=labels)


@pytest.mark.parametrize("mesh", MESHES)
def test_decoder(mesh):
    check(*decoder(), **MESHES[mesh])


@pytest.mark.parametrize("mesh", ["dp=2", "tp=2 sp", "tp=3"])
def test_where_gradients_end(mesh):
    torch.manual_seed(3)
    module = Ends().train()
    check(module, dict(ids=torch.randint(0, 11, (4, 7))), **MESHES[mesh])
    check(FixedRows().train(), dict(x=torch.randn(4, 7, 12)), **MESHES[mesh])


@pytest.mark.parametrize("mesh", ["dp=2", "tp=2 sp"])
def test_mean_over_groups(mesh):
    torch.manual_seed(3)
    check(Regrouped().train(), dict(ids=torch.randint(0, 11, (4, 16))), **MESHES[mesh])


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("mesh", ["dp=2", "tp=2 sp", "ulysses=2"])
def test_queries_that_see_no_key(mesh, after):
    torch.manual_seed(3)
    seen = torch.arange(7) >= torch.tensor([0, 3, 7, 1])[:, None]  # the third row sees none at all
    check(Filled(after).train(), dict(ids=torch.randint(0, 11, (4, 7)), seen=seen), **MESHES[mesh])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("mesh", ["dp=2", "tp=2 sp"])
def test_small_loss(mesh, smoothing):
    torch.manual_seed(3)
    check(Sure(smoothing), dict(ids=torch.arange(20).view(4, 5)), **MESHES[mesh])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mesh", ["dp=2", "tp=3"])
def test_sizes_of_zero(size, mesh):
    """As in PyTorch, their gradients are zero, not that of a root."""
    torch.manual_seed(3)
    mask = (torch.arange(7) < torch.tensor([[7], [2], [0]])).float()[..., None]
    check(Sizes(SIZES[size]), dict(x=torch.randn(3, 7, 10), mask=mask), **MESHES[mesh])


def test_evaluation_mode_has_no_ends():
    """Without `training` a program does not state where gradients end."""
    module = Ends()
    assert "stop_gradient" not in mw.from_torch(module, (), dict(ids=torch.zeros(2, 3).long())).ir()


def test_parameters_by_pattern():
    module, inputs = decoder()
    model = mw.from_torch(module, (), inputs, training=True)
    grads = model.differentiate(loss=model.outputs[0], parameters=["layers.1.*.bias", "head.*"])
    names = [n for n, _ in module.named_parameters() if n.startswith("layers.1.") and n.endswith("bias")
             and n.count(".") == 3]
    assert grads.outputs[1:] == ["grad.table.weight", *(f"grad.{n}" for n in names)]
    with pytest.raises(mw.Error, match=r"pattern 'layers\.9\.\*' matches no parameter"):
        model.differentiate(parameters=["layers.9.*"])
    with pytest.raises(mw.Error, match="no output '4' to differentiate"):
        model.differentiate(loss=4)


def sent(model, **options):
    total = {}
    for c in model.parallelize(**options).report(format="json")["collectives"]:
        axes = ",".join(c["axes"])
        total[axes] = total.get(axes, 0) + c["bytes_per_rank"]
    return total


def test_bytes():
    """A gradient is summed once over the ranks of the batch. The backward pass sends as much over the
    ranks of tensor parallelism as the forward pass, with sequence parallelism, too."""
    module, inputs = decoder(batch=8, tokens=16)
    model = mw.from_torch(module, (), inputs, training=True)
    grads = model.differentiate()
    weights = sum(p.numel() for p in module.parameters()) * 4
    one = sent(grads, mesh={"dp": 2})["dp"]
    # An all-reduce over two ranks sends its operand once. The loss is a sum and a count.
    assert weights <= one <= weights + 64, (one, weights)
    state = 8 * 16 * 24 * 4
    for sequence_parallel in ("off", "on"):
        options = dict(mesh={"tp": 2}, sequence_parallel=sequence_parallel)
        forward, both = sent(model, **options)["tp"], sent(grads, **options)["tp"]
        # The embedding and the head move a state each. Gradients of replicated norms are small.
        assert both <= 2 * forward + 2 * state, (sequence_parallel, forward, both)
