# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Rows of experts travel beside products: those of a shared expert, and those of other tokens."""
import copy

import meshwright as mw
import pytest
import torch
from mpi_programs import NEEDS_MPI, Files, assert_same_bits
from test_expert_chunks import find_chunks
from torch import nn
from torch.nn import functional as F

DEVICE = "cpu flops_f32=1e11 link_bandwidth=1e9 link_latency=1e-6 overlap=1"
EXPERTS, WIDTH, INNER = 8, 64, 48


class Mlp(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, inner, bias=False), nn.Linear(WIDTH, inner, bias=False)
        self.down = nn.Linear(inner, WIDTH, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    """As in DeepSeek: experts by a router, and an expert that all tokens share."""

    def __init__(self, shared=True):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.gate, self.up = (nn.Parameter(torch.randn(EXPERTS, INNER, WIDTH) * 0.2) for _ in range(2))
        self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, INNER) * 0.2)
        self.shared = Mlp(4 * INNER) if shared else None

    def forward(self, x):
        weights, chosen = self.router(x).softmax(-1).topk(2)
        h = F.silu(torch.einsum("btd,btkfd->btkf", x, self.gate[chosen])) * torch.einsum("btd,btkfd->btkf", x, self.up[chosen])
        rows = torch.einsum("btkf,btkdf->btkd", h, self.down[chosen])
        out = (rows * weights[..., None]).sum(2)
        return x + out + self.shared(x) if self.shared else x + out


def tokens(batch=4):
    return torch.randn(batch, 24, WIDTH, generator=torch.Generator().manual_seed(1))


def make(shared=True):
    torch.manual_seed(0)
    return Layer(shared).eval()


def parallelize(net, overlap, x=None, **options):
    model = mw.from_torch(net, (tokens() if x is None else x,))
    plan = model.parallelize(mesh={"dp": 2}, expert_parallel="dp", overlap=overlap, device=DEVICE, target="cpu", **options)
    assert "all_to_all_v" in {e["kind"] for e in plan.report(format="json")["collectives"]}
    return plan


def beside(plan, op):
    """The kinds of the launches between a start and its wait, for each launch of an op."""
    launches = plan.report("json", verbose=True)["program"]["launches"]
    return [{l["kind"] for l in launches[i + 1:launch["wait"]]} for i, launch in enumerate(launches) if launch["op"] == op]


def test_the_report_shows_what_the_shared_expert_hides():
    plans = {overlap: parallelize(make(), overlap) for overlap in ("on", "off")}
    on, off = (plans[overlap].report(format="json")["communication"] for overlap in ("on", "off"))
    assert off["hidden_seconds"] == 0 < on["hidden_seconds"]
    assert on["exposed_seconds"] < off["exposed_seconds"] and on["run_seconds"] < off["run_seconds"]
    # Both directions: products are between each start and its wait.
    assert any("gemm" in kinds for kinds in beside(plans["on"], "nn.send_rows"))
    assert not any(beside(plans["off"], "nn.send_rows"))
    launches = plans["on"].report("json", verbose=True)["program"]["launches"]
    rows = [l for l in launches if l["op"] in ("nn.send_rows", "nn.return_rows")]
    assert rows and len({(l["stream"], l["role"], *l["axes"]) for l in rows}) == 1
    assert all(l["kind"] == "collective" and l["stream"] > 0 and l["bytes"] > 0 for l in rows)


def test_reported_bytes_of_launches_are_those_of_collectives():
    """Types of rows that exist have room for the worst load. The price of a launch is that of the rows expected."""
    plan = parallelize(make(), "on")
    report = plan.report("json", verbose=True)
    sent = sum(e["bytes_per_rank"] for e in report["collectives"] if e["kind"] == "all_to_all_v")
    rows = [l["bytes"] for l in report["program"]["launches"] if l["op"] in ("nn.send_rows", "nn.return_rows")]
    assert sum(rows) == pytest.approx(sent, rel=0.02)


@pytest.mark.parametrize("shared", [True, False])
def test_outputs_are_those_without_overlap(shared):
    net, x = make(shared), tokens()
    on, off = (torch.as_tensor(parallelize(net, overlap).run(x)[0]).clone() for overlap in ("on", "off"))
    assert torch.equal(on, off)
    with torch.no_grad():
        torch.testing.assert_close(on, net(x), rtol=1e-4, atol=1e-4)


def test_a_run_needs_the_planned_memory():
    """Ranks write as much of the arena as the plan says."""
    plan = parallelize(make(), "on")
    plan.run(tokens(), measure=True)
    measured = plan.report(format="json")["run"]
    assert measured["arena"]["seen"] == measured["arena"]["planned"] > 0


def test_many_runs():
    """Numbers of rows change from run to run, and the memory of rows is that of the run before."""
    net = make()
    with parallelize(net, "on").start() as session:
        for run in range(30):
            x = torch.randn(4, 24, WIDTH, generator=torch.Generator().manual_seed(run))
            x = x + (run % 3) * torch.ones(WIDTH) * 3  # many tokens of few experts
            got, again = (torch.as_tensor(session.run(x)[0]).clone() for _ in range(2))
            assert torch.equal(got, again), run
            with torch.no_grad():
                torch.testing.assert_close(got, net(x), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("overlap", [pytest.param(overlap, marks=NEEDS_MPI) for overlap in ("on", "off")])
def test_processes_have_the_bits_of_threads(tmp_path, overlap):
    net, x = make(), tokens()
    plan = parallelize(net, overlap)
    files = Files(tmp_path, plan.ir(phase="spmd"), {"x": x}, dict(net.named_parameters()))
    assert_same_bits(files.mpi(2), files.local())


def test_gradients():
    """Rows of the backward pass, too."""
    class Loss(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(x).square().mean()

    net, x = Loss(make()).train(), tokens()
    model = mw.from_torch(net, (x,), training=True).differentiate()
    plan = model.parallelize(mesh={"dp": 2}, expert_parallel="dp", overlap="on", device=DEVICE, target="cpu")
    assert any("gemm" in kinds for op in ("nn.send_rows", "nn.return_rows") for kinds in beside(plan, op))
    got = dict(zip(model.outputs, plan.run(x), strict=True))
    wide = copy.deepcopy(net).double()
    wide(x.double()).backward()
    for name, parameter in wide.named_parameters():
        error = (torch.as_tensor(got[f"grad.{name}"]).double() - parameter.grad).abs().max()
        assert error < 1e-5 * parameter.grad.abs().max(), name


def test_rows_of_a_chunk_travel_beside_products_of_another():
    """Experts run in chunks of tokens under a ceiling. There is no shared expert."""
    net, x = make(shared=False), tokens(16)
    whole = parallelize(net, "on", x)
    memory = whole.report(format="json")["memory_per_rank"]
    peak = memory["activations_peak"]
    ceiling = sum(memory.values()) - peak + int(0.5 * peak)
    on, off = (parallelize(net, overlap, x, memory_ceiling=ceiling) for overlap in ("on", "off"))
    chunks, = find_chunks(on)
    assert chunks > 1 and find_chunks(off) == [chunks]
    # The rows of all chunks but the last return while another one computes.
    assert sum("gemm" in kinds for kinds in beside(on, "nn.return_rows")) >= chunks - 1
    times = [plan.report(format="json")["communication"]["exposed_seconds"] for plan in (on, off)]
    assert times[0] < 0.2 * times[1]
    got, want = (torch.as_tensor(plan.run(x)[0]).clone() for plan in (on, off))
    assert torch.equal(got, want)
    with torch.no_grad():
        torch.testing.assert_close(got, net(x), rtol=1e-4, atol=1e-4)
