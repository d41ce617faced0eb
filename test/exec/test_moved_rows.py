# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Rows travel to the ranks of their experts and back, however uneven the choices are."""
import copy

import meshwright as mw
import pytest
import torch
from mpi_programs import NEEDS_MPI, Files, assert_same_bits
from torch import nn
from torch.nn import functional as F

EXPERTS, WIDTH, CHOICES = 8, 16, 2


class Experts(nn.Module):
    """Products of experts that the caller chooses, and a weight for each choice."""

    def __init__(self):
        super().__init__()
        self.up = nn.Parameter(torch.randn(EXPERTS, 24, WIDTH) * 0.3)
        self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, 24) * 0.3)

    def forward(self, x, weights, chosen):
        h = F.silu(torch.einsum("btd,btkfd->btkf", x, self.up[chosen]))
        y = torch.einsum("btkf,btkdf->btkd", h, self.down[chosen])
        return (y * weights[..., None]).sum(2)


def choices(kind, rng):
    """Experts for 4 x 6 tokens: two different ones for each."""
    shape = (4, 6, CHOICES)
    if kind == "even":
        first = torch.arange(24).view(4, 6) % EXPERTS
        return torch.stack([first, (first + 3) % EXPERTS], -1)
    if kind == "one":
        return torch.tensor([5, 6]).expand(shape).contiguous()
    return torch.rand(4, 6, EXPERTS, generator=rng).topk(CHOICES).indices


@pytest.fixture(scope="module")
def module():
    torch.manual_seed(0)
    return Experts().eval()


def inputs(kind):
    rng = torch.Generator().manual_seed(3)
    return (torch.randn(4, 6, WIDTH, generator=rng), torch.rand(4, 6, CHOICES, generator=rng),
            choices(kind, rng))


def kinds_of(plan):
    return {entry["kind"] for entry in plan.report(format="json")["collectives"]}


@pytest.fixture(scope="module")
def plan(module):
    plan = mw.from_torch(module, inputs("even")).parallelize(mesh={"dp": 4}, expert_parallel="dp")
    assert "all_to_all_v" in kinds_of(plan)
    return plan


@pytest.mark.parametrize("kind", ["even", "one", "random"])
def test_one_plan_runs_all_choices(module, plan, kind):
    given = inputs(kind)
    got = torch.as_tensor(plan.run(*given)[0])
    with torch.no_grad():
        torch.testing.assert_close(got, module(*given), rtol=1e-5, atol=1e-5)
    layer, = plan.report(format="json")["experts"]
    per_expert = torch.bincount(given[2].flatten(), minlength=EXPERTS)
    assert layer["rows_per_rank"] == per_expert.view(4, 2).sum(1).tolist()


def test_bytes_are_those_of_balanced_load(plan):
    """Rows and weights go to the experts, and rows back."""
    most = 6 * CHOICES * (WIDTH + 1 + WIDTH) * 4  # of the tokens of a rank, in f32
    sent = [e for e in plan.report(format="json")["collectives"] if e["kind"] == "all_to_all_v"]
    assert sum(entry["bytes_per_rank"] for entry in sent) == most * 3 // 4
    assert sum(entry["bytes_at_capacity"] for entry in sent) >= most


def test_few_ranks_gather_tokens(module):
    plan = mw.from_torch(module, inputs("even")).parallelize(mesh={"dp": 2}, expert_parallel="dp")
    assert "all_to_all_v" not in kinds_of(plan)


class Loss(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.experts = module

    def forward(self, x, weights, chosen):
        return self.experts(x, weights, chosen).square().mean()


@pytest.mark.parametrize("kind", ["one", "random"])
def test_gradients(module, kind):
    net, given = Loss(copy.deepcopy(module)).train(), inputs(kind)
    model = mw.from_torch(net, given, training=True).differentiate()
    plan = model.parallelize(mesh={"dp": 4}, expert_parallel="dp")
    assert "all_to_all_v" in kinds_of(plan)
    got = dict(zip(model.outputs, plan.run(*given), strict=True))
    net(*given).backward()
    for name, parameter in net.named_parameters():
        want = parameter.grad
        error = (torch.as_tensor(got[f"grad.{name}"]) - want).abs().max() / want.abs().max()
        assert error < 1e-5, name


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=NEEDS_MPI) for kind in ("one", "random")])
def test_processes_have_the_bits_of_threads(module, plan, tmp_path, kind):
    given = dict(zip(["x", "weights", "chosen"], inputs(kind), strict=True))
    files = Files(tmp_path, plan.ir(phase="spmd"), given, dict(module.named_parameters()))
    assert_same_bits(files.mpi(4), files.local())
