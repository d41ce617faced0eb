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

EXPERTS, WIDTH, CHOICES = 8, 8, 2


class Experts(nn.Module):
    """Products of experts that the caller chooses, and a weight for each choice."""

    def __init__(self, width=WIDTH, experts=EXPERTS):
        super().__init__()
        self.up = nn.Parameter(torch.randn(experts, 24, width) * 0.3)
        self.down = nn.Parameter(torch.randn(experts, width, 24) * 0.3)

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


def inputs(kind, width=WIDTH):
    rng = torch.Generator().manual_seed(3)
    return (torch.randn(4, 6, width, generator=rng), torch.rand(4, 6, CHOICES, generator=rng),
            choices(kind, rng))


def shares_rows(plan):
    """Whether a token goes to a rank once."""
    return "shared = " in plan.ir()


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


def test_many_runs(module, plan):
    """Numbers of rows change from run to run. A run has the bits of the one before with the same inputs."""
    with plan.start() as session:
        for run in range(200):
            rng = torch.Generator().manual_seed(run)
            given = (torch.randn(4, 6, WIDTH, generator=rng), torch.rand(4, 6, CHOICES, generator=rng),
                     choices(("even", "one", "random")[run % 3], rng))
            got, again = (torch.as_tensor(session.run(*given)[0]).clone() for _ in range(2))
            assert torch.equal(got, again), run
            with torch.no_grad():
                torch.testing.assert_close(got, module(*given), rtol=1e-5, atol=1e-5)


def test_bytes_are_those_of_balanced_load(plan):
    """Rows and weights go to the experts, and rows back."""
    most = 6 * CHOICES * (WIDTH + 1 + WIDTH) * 4  # of the tokens of a rank, in f32
    sent = [e for e in plan.report(format="json")["collectives"] if e["kind"] == "all_to_all_v"]
    assert sum(entry["bytes_per_rank"] for entry in sent) == most * 3 // 4
    assert sum(entry["bytes_at_capacity"] for entry in sent) >= most


def test_few_ranks_gather_narrow_tokens(module):
    """A row for each rank, with its choices, is more bytes than the token on all ranks."""
    narrow, given = Experts(2).eval(), inputs("even")
    plan = mw.from_torch(narrow, (given[0][..., :2], *given[1:])).parallelize(mesh={"dp": 2}, expert_parallel="dp")
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


@pytest.mark.parametrize("width", [WIDTH, 64])
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=NEEDS_MPI) for kind in ("one", "random")])
def test_processes_have_the_bits_of_threads(tmp_path, kind, width):
    """Wide tokens go to a rank once."""
    torch.manual_seed(0)
    module, given = Experts(width).eval(), inputs(kind, width)
    plan = mw.from_torch(module, given).parallelize(mesh={"dp": 4}, expert_parallel="dp")
    assert "all_to_all_v" in kinds_of(plan) and shares_rows(plan) == (width != WIDTH)
    given = dict(zip(["x", "weights", "chosen"], given, strict=True))
    files = Files(tmp_path, plan.ir(phase="spmd"), given, dict(module.named_parameters()))
    assert_same_bits(files.mpi(4), files.local())


def test_bytes_of_tokens_that_go_once(module):
    """A token has rows on 4 (1 - (6/8)^2) = 1.75 of 4 ranks, as the caller may repeat choices."""
    given = inputs("random", 64)
    plan = mw.from_torch(Experts(64).eval(), given).parallelize(mesh={"dp": 4}, expert_parallel="dp")
    sent = [e["bytes_per_rank"] for e in plan.report(format="json")["collectives"] if e["kind"] == "all_to_all_v"]
    rows, others = 6 * 1.75, 3 / 4
    assert sum(sent) == pytest.approx(others * 4 * (rows * (64 + CHOICES + 64) + 6 * CHOICES), rel=0.01)


# A token with several experts on a rank goes there once.


class Layer(nn.Module):
    """Tokens and weights depend on parameters, so their gradients come back from the experts."""

    def __init__(self, width, experts):
        super().__init__()
        # With sequence parallelism, the sum over its inner features scatters the tokens.
        self.mlp = nn.Sequential(nn.Linear(width, 12), nn.SiLU(), nn.Linear(12, width))
        self.gate, self.experts = nn.Linear(width, experts), Experts(width, experts)

    def forward(self, x, chosen):
        h = self.mlp(x)
        weights = self.gate(h).softmax(-1).gather(-1, chosen)
        return h + self.experts(h, weights, chosen)


class LayerLoss(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, chosen):
        return self.layer(x, chosen).square().mean()


def chosen_experts(kind, shape, experts, k, rng):
    if kind == "repeated":
        return torch.randint(experts, (*shape, 1), generator=rng).expand(*shape, k).contiguous()
    if kind == "first":
        return torch.arange(k).expand(*shape, k).contiguous()
    scores = torch.rand(*shape, experts, generator=rng)
    if kind == "skewed":
        scores += torch.arange(experts) * (2 / experts)
    return scores.topk(k).indices


def draw_layer(seed):
    """A layer, its inputs and how it is parallelized. One of two layers sends a token once."""
    rng = torch.Generator().manual_seed(seed)
    pick = lambda options: options[int(torch.randint(len(options), (1,), generator=rng))]
    mesh, axes = pick([({"dp": 2}, "dp"), ({"dp": 3}, "dp"), ({"dp": 4}, "dp"), ({"dp": 2, "ep": 2}, ["dp", "ep"]),
                       ({"dp": 2, "tp": 2}, "dp"), ({"dp": 2, "tp": 2}, ["dp", "tp"]), ({"dp": 2, "tp": 2}, "tp"),
                       ({"tp": 2}, "tp"), ({"tp": 4}, "tp")])
    options = {"mesh": mesh, "expert_parallel": axes}
    if "tp" in mesh:
        options["sequence_parallel"] = pick(["on", "on", "off"])
    experts = pick([4, 6, 8, 12, 12])
    k = int(torch.randint(1, min(experts, 5) + 1, (1,), generator=rng))
    # Padded tokens and experts are gathered, so most of them divide.
    width, batch = pick([8, 64, 128]), pick([1, 3, 4, 12, 12, 12])
    shape = (batch, pick([1, 4, 5, 12, 12, 12]))
    kind = pick(["random", "skewed", "first", "repeated"])
    torch.manual_seed(seed)
    layer = Layer(width, experts)
    given = (torch.randn(*shape, width, generator=rng), chosen_experts(kind, shape, experts, k, rng))
    return layer, given, options, f"{seed}: {shape}, {k} of {experts} experts, {kind}, {options}"


def check_layer(seed):
    """Returns whether the plan sends a token once."""
    layer, given, options, what = draw_layer(seed)
    plan = mw.from_torch(layer.eval(), given).parallelize(**options)
    got, again = (torch.as_tensor(plan.run(*given)[0]) for _ in range(2))
    with torch.no_grad():
        torch.testing.assert_close(got, layer(*given), rtol=1e-5, atol=1e-5, msg=lambda m: f"{what}: {m}")
    assert torch.equal(got, again), what
    (load,) = plan.report(format="json")["experts"]
    if options["expert_parallel"] in ([*options["mesh"]], "".join(options["mesh"])):
        assert sum(load["rows_per_rank"]) == given[1].numel(), what
    return shares_rows(plan)


def check_gradients(layer, given, options, what):
    """Compares a layer's gradients with PyTorch's, and those of two runs. Returns the plan."""
    net = LayerLoss(layer).train()
    model = mw.from_torch(net, given, training=True).differentiate()
    plan = model.parallelize(**options)
    got, again = (dict(zip(model.outputs, plan.run(*given), strict=True)) for _ in range(2))
    net(*given).backward()
    largest = max(p.grad.abs().max() for p in net.parameters())
    for name, parameter in net.named_parameters():
        value = torch.as_tensor(got[f"grad.{name}"])
        assert (value - parameter.grad).abs().max() <= 1e-5 * largest, f"{what}: {name}"
        assert torch.equal(value, torch.as_tensor(again[f"grad.{name}"])), f"{what}: {name}"
    return plan


def test_random_layers():
    assert sum(check_layer(seed) for seed in range(16)) >= 3


def test_random_gradients():
    assert sum(shares_rows(check_gradients(*draw_layer(seed))) for seed in range(100, 112)) >= 3


@pytest.mark.parametrize("mesh", [{"tp": 2}, {"dp": 2, "tp": 2}, {"ep": 2, "tp": 2}, {"ep": 2, "tp": 3}])
@pytest.mark.parametrize("width", [8, 64])
def test_rows_return_as_they_came(mesh, width):
    """With numbers of a CPU, gathers of all rows, or detours over an axis that is idle, would cost less."""
    rng = torch.Generator().manual_seed(2)
    torch.manual_seed(2)
    net = LayerLoss(Layer(width, EXPERTS)).train()
    given = (torch.randn(4, 12, width, generator=rng), chosen_experts("random", (4, 12), EXPERTS, CHOICES, rng))
    model = mw.from_torch(net, given, training=True).differentiate()
    plan = model.parallelize(mesh=mesh, expert_parallel="tp", sequence_parallel="on", device="cpu")
    got = dict(zip(model.outputs, plan.run(*given), strict=True))
    net(*given).backward()
    largest = max(p.grad.abs().max() for p in net.parameters())
    for name, parameter in net.named_parameters():
        assert (torch.as_tensor(got[f"grad.{name}"]) - parameter.grad).abs().max() <= 1e-5 * largest, name
    assert "all_to_all_v" in kinds_of(plan)


def test_an_expert_for_each_rank():
    """Experts on tp, and tokens on dp and tp: the rows of one expert, and of some tokens, are one block of all rows."""
    rng = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    net = LayerLoss(Layer(64, 2)).train()
    given = (torch.randn(8, 4, 64, generator=rng), chosen_experts("random", (8, 4), 2, 1, rng))
    model = mw.from_torch(net, given, training=True).differentiate()
    plan = model.parallelize(mesh={"dp": 2, "tp": 2}, expert_parallel="tp", sequence_parallel="on")
    got = dict(zip(model.outputs, plan.run(*given), strict=True))
    net(*given).backward()
    largest = max(p.grad.abs().max() for p in net.parameters())
    for name, parameter in net.named_parameters():
        assert (torch.as_tensor(got[f"grad.{name}"]) - parameter.grad).abs().max() <= 1e-5 * largest, name


@pytest.mark.parametrize("kind", ["random", "skewed"])
def test_capacity(kind):
    """Choices that an expert does not take have no row; the choices that are left go with the rows."""
    rng = torch.Generator().manual_seed(1)
    torch.manual_seed(1)
    module = Experts(64).eval()
    given = (torch.randn(4, 6, 64, generator=rng), torch.rand(4, 6, 3, generator=rng),
             chosen_experts(kind, (4, 6), EXPERTS, 3, rng))
    model = mw.from_torch(module, given)
    plan = model.parallelize(mesh={"dp": 4}, expert_parallel="dp", expert_capacity=0.75)
    alone = model.parallelize(mesh={"dp": 1}, expert_parallel="dp", expert_capacity=0.75)
    assert shares_rows(plan)
    got, want = (torch.as_tensor(p.run(*given)[0]) for p in (plan, alone))
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    (load,), (one,) = (p.report(format="json")["experts"] for p in (plan, alone))
    assert load["dropped_tokens"] == one["dropped_tokens"] > 0
    assert sum(load["rows_per_rank"]) == given[2].numel() - load["dropped_tokens"]


@pytest.mark.parametrize("experts,batch,ranks,width", [(6, 4, 4, WIDTH), (8, 3, 4, 64), (7, 5, 3, WIDTH), (11, 5, 3, 64)])
def test_ranks_that_divide_neither_experts_nor_tokens(experts, batch, ranks, width):
    """Padding has no rows. Wide tokens go to a rank once where ranks have as many experts each."""
    torch.manual_seed(0)
    net = Loss(Experts(width, experts)).train()
    rng = torch.Generator().manual_seed(1)
    given = (torch.randn(batch, 6, width, generator=rng), torch.rand(batch, 6, CHOICES, generator=rng),
             torch.rand(batch, 6, experts, generator=rng).topk(CHOICES).indices)
    model = mw.from_torch(net, given, training=True).differentiate()
    plan = model.parallelize(mesh={"dp": ranks}, expert_parallel="dp")
    assert "all_to_all_v" in kinds_of(plan)
    got = dict(zip(model.outputs, plan.run(*given), strict=True))
    net(*given).backward()
    for name, parameter in net.named_parameters():
        error = (torch.as_tensor(got[f"grad.{name}"]) - parameter.grad).abs().max() / parameter.grad.abs().max()
        assert error < 1e-5, name
    layer, = plan.report(format="json")["experts"]
    own = -(-experts // ranks)
    per_expert = torch.bincount(given[2].flatten(), minlength=own * ranks)
    assert layer["rows_per_rank"] == per_expert.view(ranks, own).sum(1).tolist()


def test_expected_load(module):
    """Bytes are those of the fullest rank, and more of them may cost more than a gather."""
    given = inputs("even")

    def sent(**options):
        plan = mw.from_torch(module, given).parallelize(mesh={"dp": 4}, expert_parallel="dp", **options)
        found = plan.report(format="json")["collectives"]
        return sum(e["bytes_per_rank"] for e in found if e["kind"] == "all_to_all_v"), kinds_of(plan)

    assert sent(expert_load=1.5)[0] == pytest.approx(1.5 * sent()[0])
    # An expert takes its share of the choices, and no more.
    assert sent(expert_load=1.5, expert_capacity=1.0)[0] == pytest.approx(sent()[0])
    assert "all_to_all_v" not in sent(expert_load=3)[1]
    with pytest.raises(mw.Error, match="expert-load: expected a number from 1 on, got '0.5'"):
        sent(expert_load=0.5)


def test_time_of_the_rows_that_are_expected():
    """Products take the time of the rows that a rank has, not of its capacity."""
    with torch.device("meta"):
        given = (torch.zeros(8, 512, 64), torch.zeros(8, 512, CHOICES), torch.zeros(8, 512, CHOICES, dtype=torch.long))
        model = mw.from_torch(Experts(64), given)

    def gemm(ranks, load=1.0, **options):
        # Products of this device take the time of their operations.
        plan = model.parallelize(mesh={"dp": ranks}, expert_parallel="dp", expert_load=load,
                                 device="h100 flops_f32=1e9 launch=0", **options)
        assert ranks == 1 or "all_to_all_v" in kinds_of(plan)
        return plan.report(format="json")["communication"]["kernel_seconds"]["gemm"]

    assert gemm(4) == pytest.approx(gemm(1) / 4, rel=0.02)
    assert gemm(4, load=1.5) == pytest.approx(1.5 * gemm(4), rel=0.02)


class ThreeLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.routers = nn.ModuleList(nn.Linear(WIDTH, EXPERTS) for _ in range(3))
        self.experts = nn.ModuleList(Experts() for _ in range(3))

    def forward(self, x):
        for router, experts in zip(self.routers, self.experts, strict=True):
            weights, chosen = router(x).softmax(-1).topk(CHOICES)
            x = x + experts(x, weights, chosen)
        return x.square().mean()


@pytest.mark.parametrize("mesh", [{"ep": 2}, {"dp": 2}])
def test_recomputation_keeps_choices(mesh):
    torch.manual_seed(0)
    x = torch.randn(4, 6, WIDTH)
    model = mw.from_torch(ThreeLayers().train(), (x,), training=True).differentiate()
    plain, again = (model.parallelize(mesh=mesh, recompute=mode) for mode in ("none", "full"))
    rows, chosen = ([plan.ir(phase="spmd").count(op) for plan in (plain, again)] for op in ("nn.grouped_linear", "nn.top_k"))
    assert chosen == [3, 3] and rows[1] > rows[0]
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(plain.run(x), again.run(x), strict=True))
