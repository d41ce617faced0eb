# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Mixtures of experts: indices out of range, tokens with a single choice, dropout, and remarks."""
import meshwright as mw
import pytest
import torch
import torch.nn.functional as F
from import_checks import count
from meshwright.importer.graph import rewrites
from meshwright.importer.graph.lift_experts import lift_experts
from meshwright.importer.torch import import_module
from test_import_experts import FEATURES, Experts, gathered, grouped_mm, randn, same
from torch import nn


@pytest.mark.parametrize("index,ok", [(4, True), (-5, True), (5, False), (-6, False)])
@pytest.mark.parametrize("shape", [(4, 2), (4,)])
def test_range_of_indices(shape, index, ok):
    class Given(Experts):
        def forward(self, x, i, w):
            return self.form(self, x, w, i)

    i = torch.zeros(shape, dtype=torch.int64)
    args = randn(4, FEATURES), i, randn(*shape)
    module = Given(gathered if i.dim() > 1 else single)
    plan = mw.from_torch(module, args).parallelize(mesh={"ep": 2})
    i[1] = index
    if ok:
        torch.testing.assert_close(plan.run(*args)[0], module(*args), rtol=2e-5, atol=2e-5)
    else:
        with pytest.raises(mw.Error, match="out of range"):
            plan.run(*args)


def test_indices_in_floats():
    class Given(Experts):
        def forward(self, x, i, w):
            return gathered(self, x, w, i.long())

    i = torch.tensor([[0.0, 2.9], [4.2, 1.0], [3.0, 3.5]])
    imported = same(Given(None), (randn(3, FEATURES), i, randn(3, 2)))
    assert count(imported)["combine"] == 1


# One expert of each token, and no dimension of choices.

def single(m, y, w, i):
    w, i = w.view(len(y), -1)[:, :1], i.view(len(y), -1)[:, 0]
    h = torch.einsum("td,tfd->tf", y, m.up[i])
    h = m.act(h + m.up_bias[i] if m.bias else h)
    h = torch.einsum("tf,tdf->td", h, m.down[i])
    return (h + m.down_bias[i] if m.bias else h) * w


def single_bmm(m, y, w, i):
    i = i.squeeze(-1)
    h = torch.bmm(y[:, None], m.up[i].mT)
    h = m.act(h + m.up_bias[i][:, None] if m.bias else h)
    h = torch.bmm(h, m.down[i].mT)
    return (h + m.down_bias[i][:, None] if m.bias else h).squeeze(1) * w


def single_taken(m, y, w, i):
    every = m.dense(y).transpose(0, 1)
    return every.gather(1, i[..., None].expand(-1, -1, y.shape[-1])).squeeze(1) * w


def single_one_hot(m, y, w, i):
    return torch.einsum("etd,te->td", m.dense(y), F.one_hot(i[:, 0], m.experts).to(y.dtype)) * w


def single_masked(m, y, w, i):
    return sum(f(y) * (i == e) for e, f in enumerate(m.list)) * w


def by_topk(m, y):
    return m.router(y).softmax(-1).topk(1)


def by_max(m, y):
    return m.router(y).softmax(-1).max(-1, keepdim=True)


def by_argmax(m, y):
    i = m.router(y).argmax(-1, keepdim=True)
    return m.router(y).softmax(-1).gather(1, i), i


class Top(Experts):
    def __init__(self, route, form, bias=False):
        super().__init__(form, form is single_masked, bias=bias, k=1)
        self.by = route

    def route(self, y):
        return self.by(self, y)


@pytest.mark.parametrize("shape", [(3, 7, FEATURES), (9, FEATURES), (1, FEATURES)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("form", [single, single_bmm, single_taken, single_one_hot, single_masked])
@pytest.mark.parametrize("route", [by_topk, by_max, by_argmax])
def test_one_choice(route, form, bias, shape):
    imported = same(Top(route, form, bias), (randn(*shape),))
    ops = count(imported)
    assert (ops["grouped_linear"], ops["combine"]) == (2, 1) and ops["dispatch"] in (1, 2)
    assert not ops["matmul"]


def test_one_choice_of_batch_and_sequence():
    class Whole(Experts):
        def forward(self, x):
            w, i = self.router(x).softmax(-1).max(-1)
            h = self.act(torch.einsum("bsd,bsfd->bsf", x, self.up[i]))
            return x + torch.einsum("bsf,bsdf->bsd", h, self.down[i]) * w[..., None]

    imported = same(Whole(None), (randn(3, 7, FEATURES),))
    assert "5x3x7x12xf32, #nn.routed<1>" in imported.mlir and not count(imported)["matmul"]


def test_features_before_tokens():
    """Values of rows of fewer dimensions than others."""
    def form(m, y, w, i):
        h = m.act(torch.einsum("td,tfd->tf", y, m.up[i[:, 0]]))
        h = (torch.stack([h, 2 * h, -h]) * w[:, :1]).sum(0)
        return torch.einsum("tf,tdf->td", h, m.down[i[:, 0]])

    ops = count(same(Top(by_topk, form), (randn(3, 7, FEATURES),)))
    assert (ops["grouped_linear"], ops["combine"]) == (2, 1)


def test_one_choice_that_mixes_rows():
    """The sum over rows between the products is that of tokens."""
    def form(m, y, w, i):
        h = torch.einsum("td,tfd->tf", y, m.up[i[:, 0]])
        return torch.einsum("tf,tdf->td", m.act(h - h.mean(0)), m.down[i[:, 0]]) * w

    ops = count(same(Top(by_topk, form), (randn(3, 7, FEATURES),)))
    assert (ops["grouped_linear"], ops["combine"], ops["dispatch"]) == (2, 2, 1)


def test_one_expert_for_a_sequence():
    """Products of several rows of a choice stay as they are: adapters, say."""
    class Adapters(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(randn(4, 6, FEATURES))

        def forward(self, x, i):
            return torch.bmm(x, self.weight[i].mT)

    assert not count(same(Adapters(), (randn(3, 7, FEATURES), torch.tensor([2, 0, 2]))))["dispatch"]


# Dropout between the products drops the same elements as without rows of experts.

def dropped(m, y, w, i):
    h = F.dropout(m.act(torch.einsum("td,tkfd->tkf", y, m.up[i])), 0.4, m.training)
    return (torch.einsum("tkf,tkdf->tkd", h, m.down[i]) * w[..., None]).sum(1)


def dropped_by_expert(m, y, w, i):
    h = F.dropout(m.act(y @ m.up.mT), 0.3, m.training) @ m.down.mT
    return torch.einsum("etd,tke,tk->td", h, F.one_hot(i, m.experts).to(y.dtype), w)


def dropped_channels(m, y, w, i):
    h = m.act(torch.einsum("td,tkfd->tkf", y, m.up[i]))
    h = F.dropout1d(h, 0.3, m.training)
    return (torch.einsum("tkf,tkdf->tkd", h, m.down[i]) * w[..., None]).sum(1)


def dropped_once(m, y, w, i):
    h = F.dropout(m.act(torch.einsum("td,tfd->tf", y, m.up[i[:, 0]])), 0.3, m.training)
    return torch.einsum("tf,tdf->td", h, m.down[i[:, 0]]) * w[:, :1]


def dropped_in_list(m, y, w, i):
    """Each expert has random numbers of its own."""
    scale = [(w * (i == e)).sum(-1, keepdim=True) for e in range(m.experts)]
    return sum(f[2](F.dropout(f[1](f[0](y)), 0.3, m.training)) * s
               for f, s in zip(m.list, scale, strict=True))


@pytest.mark.parametrize("form,lifted", [(dropped, True), (dropped_by_expert, True),
                                         (dropped_channels, True), (dropped_once, True),
                                         (dropped_in_list, False)],
                         ids=lambda f: getattr(f, "__name__", None))
def test_dropout(form, lifted, monkeypatch):
    class Loss(Experts):
        def forward(self, x):
            y = super().forward(x)
            return y, y.square().mean()

    module = Loss(form, form is dropped_in_list, k=1 if form is dropped_once else 2).train()
    args = (randn(2, 5, FEATURES),)

    def run(mesh):
        ops = count(import_module(module, args, training=True))
        assert ops["dropout"]
        model = mw.from_torch(module, args, training=True).differentiate(1)
        return ops["grouped_linear"], model.parallelize(mesh=mesh).run(*args)

    products, results = run({"ep": 2})
    assert products == 2 * lifted
    monkeypatch.setattr(rewrites, "REWRITES",
                        [step for step in rewrites.REWRITES if step.apply is not lift_experts])
    products, want = run({"tp": 1})
    assert products == 0
    for got, value in zip(results, want, strict=True):
        torch.testing.assert_close(got, value, rtol=2e-5, atol=2e-5)


# What is not lifted says so in the report.

def mixes_rows(m, y, w, i):
    h = torch.einsum("td,tkfd->tkf", y, m.up[i])
    h = m.act(h - h.mean(0))
    return (torch.einsum("tkf,tkdf->tkd", h, m.down[i]) * w[..., None]).sum(1)


def another_expert(m, y, w, i):
    h = m.act(torch.einsum("td,tkfd->tkf", y, m.up[i]))
    return (torch.einsum("tkf,tkdf->tkd", h, m.down[i.flip(1)]) * w[..., None]).sum(1)


def other_order(m, y, w, i):
    """The products are of experts, each row with a choice of its own."""
    e, order = torch.sort(i.flatten())
    ends = torch.histc(e.float(), m.experts, 0, m.experts - 1).cumsum(0, dtype=torch.int32)
    h = grouped_mm(m.act(grouped_mm(y[order % len(y)], m.up.mT, ends)), m.down.mT, ends)
    return (h * w.flatten()[order][:, None])[order.argsort()].view(len(y), m.k, -1).sum(1)


@pytest.mark.parametrize("form,reason,number", [
    (mixes_rows, "nn.reduce mixes the rows of tokens", 1),
    (another_expert, "taken by an index that is not the routing's", 2),
    (other_order, "taken by an index that is not the routing's", 1),
    (gathered, "", 0)])
def test_remarks(form, reason, number):
    model = mw.from_torch(Experts(form), (randn(3, 7, FEATURES),))
    plan = model.parallelize(mesh={"tp": 1})
    told = [d for d in plan.report(format="json")["decisions"] if d["pass"] == "import"]
    assert len(told) == number == len(model._remarks)
    for decision in told:
        assert decision["outcome"] == "declined" and reason in decision["message"]
        assert decision["location"]["file"].endswith(".py") and decision["location"]["line"] > 0
    assert ("import: a product of experts stays as it is" in plan.report(verbose=True)) == (number > 0)
