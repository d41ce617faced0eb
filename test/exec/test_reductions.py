# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Softmax, losses and extremes over a sharded dimension: equal to PyTorch, without a gather."""
import math

import meshwright as mw
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F


class Head(nn.Module):
    """Logits over classes that no axis divides, and a function of them."""

    def __init__(self, how, classes=37, features=16):
        super().__init__()
        self.how, self.head = how, nn.Linear(features, classes)

    def forward(self, x, y):
        return self.how(self.head(x), y)


def flat(z, y, **options):
    return F.cross_entropy(z.flatten(0, -2), y.flatten(), **options)


def some(y, ignored=-100):
    return torch.where(y % 3 == 0, ignored, y)


WEIGHTS = torch.linspace(0.5, 2, 37)
# The most numbers of four bytes that are reduced for a token.
CASES = {
    "mean": (3, flat),
    "none": (3, lambda z, y: flat(z, y, reduction="none")),
    "sum of some": (3, lambda z, y: flat(z, some(y), reduction="sum")),
    "weights": (3, lambda z, y: flat(z, some(y, 5), weight=WEIGHTS, ignore_index=5)),
    "smoothing": (4, lambda z, y: flat(z, some(y), label_smoothing=0.3)),
    "classes in the middle": (3, lambda z, y: F.cross_entropy(z.transpose(1, 2), y)),
    "probabilities": (4, lambda z, y: F.cross_entropy(
        z.transpose(1, 2), (torch.arange(37)[:, None] == y[:, None]).float(), label_smoothing=0.1)),
    "nll": (3, lambda z, y: F.nll_loss(z.log_softmax(-1).flatten(0, 1), some(y).flatten())),
    "softmax": (2, lambda z, y: z.softmax(-1)[..., :1] * 1.0),
    "minimum, mean": (2, lambda z, y: (z.amin(-1), z.mean(-1))),
    "positions": (8, lambda z, y: (z.argmax(-1), z.argmin(-1))),
    "minus infinity": (3, lambda z, y: z.masked_fill(
        torch.arange(37) % 4 > 0, -math.inf).softmax(-1).sum(-1)),
}


def plan_of(net, args, mesh):
    model = mw.from_torch(net, args)
    return model.parallelize(mesh=mesh, sequence_parallel="off",
                             shardings={"head.weight": '[{"tp"}, {}]'})


@pytest.mark.parametrize("mesh", [{"tp": 2}, {"tp": 3}, {"dp": 2, "tp": 4}], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_over_classes(name, mesh):
    numbers, how = CASES[name]
    torch.manual_seed(1)
    net = Head(how).eval()
    args = torch.randn(3, 5, 16), torch.randint(0, 37, (3, 5))
    plan = plan_of(net, args, mesh)
    wanted = net(*args)
    for got, want in zip(plan.run(*args), wanted if isinstance(wanted, tuple) else [wanted],
                         strict=True):
        np.testing.assert_allclose(got, want.detach(), rtol=2e-5, atol=2e-6)
    report = plan.report(format="json")
    if name != "softmax":  # which takes a slice of a whole row
        assert {c["kind"] for c in report["collectives"]} == {"all_reduce"}
        tokens = 10 if "dp" in mesh else 15
        assert report["bytes_per_rank"] <= 8 * numbers * tokens + 64


def test_bf16():
    torch.manual_seed(1)
    net = Head(flat).to(torch.bfloat16).eval()
    args = torch.randn(3, 5, 16).bfloat16(), torch.randint(0, 37, (3, 5))
    got = plan_of(net, args, {"tp": 2}).run(*args)[0]
    assert got.dtype == torch.bfloat16
    assert abs(float(got) - net.float()(args[0].float(), args[1]).item()) < 2e-2


@pytest.mark.parametrize("mesh", [{"tp": 1}, {"tp": 3}, {"dp": 2, "tp": 2}], ids=str)
@pytest.mark.parametrize("how", ["cross_entropy", "nll", "picked"])
@pytest.mark.parametrize("label", [37, -1, 2 ** 40])
def test_label_that_is_no_class(label, how, mesh):
    losses = {"cross_entropy": flat, "nll": CASES["nll"][1],
              "picked": lambda z, y: z.gather(-1, y[..., None])}
    net = Head(losses[how]).eval()
    y = torch.full((2, 5), 36)
    plan = plan_of(net, (torch.randn(2, 5, 16), y), mesh)
    plan.run(torch.randn(2, 5, 16), y)
    y[1, 2] = label
    with pytest.raises(mw.Error, match=f"index {label} at position . is out of range: expected 0 "
                                       "to 36"):
        plan.run(torch.randn(2, 5, 16), y)


def test_ignored_label_is_no_class():
    net = Head(lambda z, y: flat(z, y, ignore_index=50, reduction="none")).eval()
    args = torch.randn(1, 5, 16), torch.tensor([[0, 50, 1, 50, 36]])
    got, = plan_of(net, args, {"tp": 2}).run(*args)
    np.testing.assert_allclose(got, net(*args).detach(), rtol=2e-5)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("labels", ["classes", "probabilities"])
def test_weights_of_classes(labels, smoothing, reduction):
    def loss(z, y):
        z = z.transpose(1, 2)
        if labels == "probabilities":
            return F.cross_entropy(z, (z.detach() * 3).softmax(1), WEIGHTS, reduction=reduction,
                                   label_smoothing=smoothing)
        return F.cross_entropy(z, some(y, 5), WEIGHTS, ignore_index=5, reduction=reduction,
                               label_smoothing=smoothing)

    net = Head(loss).eval()
    args = torch.randn(3, 5, 16), torch.randint(0, 37, (3, 5))
    got, = plan_of(net, args, {"tp": 3}).run(*args)
    np.testing.assert_allclose(got, net(*args).detach(), rtol=2e-5, atol=2e-6)


# Reductions of rows that are no losses, and the numbers that they send of a token.
ROWS = {
    "maximum and its place": (6, lambda z: torch.max(z, -1)),
    "minimum and its place": (6, lambda z: torch.min(z, -1, keepdim=True)),
    "extremes": (2, lambda z: torch.aminmax(z, dim=-1)),
    "distance from the maximum": (2, lambda z: (z - z.amax(-1, keepdim=True)).sum(-1)),
    "log-sum-exp in the middle": (2, lambda z: z.transpose(1, 2).logsumexp(1, keepdim=True)),
    "softmax in the middle": (3, lambda z: z.transpose(1, 2).softmax(1).pow(2).sum(1)),
    "variance": (2, lambda z: z.var(-1)),
    "deviation and mean": (3, lambda z: torch.std_mean(z, -1, unbiased=False, keepdim=True)),
    "norms": (2, lambda z: (z.norm(dim=-1), z.norm(p=1, dim=-1))),
    "entropy": (5, lambda z: -(z.softmax(-1) * z.log_softmax(-1)).sum(-1)),
    "any, all": (2, lambda z: ((z > 1).any(-1), (z > -9).all(-1))),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows(name):
    """Over two axes, and beside sharded tokens, which are padded."""
    numbers, how = ROWS[name]
    torch.manual_seed(1)
    net = Head(lambda z, y: how(z)).eval()
    args = torch.randn(3, 5, 16), torch.randint(0, 37, (3, 5))
    wanted = net(*args)
    model = mw.from_torch(net, args)
    for mesh, axes, tokens, options in [
            ({"a": 2, "b": 2}, '"a", "b"', 15, {"data_parallel": "none", "tensor_parallel": "none"}),
            ({"dp": 2, "tp": 4}, '"tp"', 10, {"sequence_parallel": "on"})]:
        plan = model.parallelize(mesh=mesh, shardings={"head.weight": f"[{{{axes}}}, {{}}]"},
                                 **options)
        for got, want in zip(plan.run(*args), wanted if isinstance(wanted, tuple) else [wanted],
                             strict=True):
            np.testing.assert_allclose(got, want.detach(), rtol=2e-5, atol=1e-5)
        report = plan.report(format="json")
        assert {c["kind"] for c in report["collectives"]} == {"all_reduce"}
        assert report["bytes_per_rank"] <= 6 * numbers * tokens + 64
