# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Rows of tokens cross slower links once for a group of ranks, and go on inside the group."""
import copy
import math
import re

import meshwright as mw
import pytest
import torch
from mpi_programs import NEEDS_MPI, Files, assert_same_bits
from test_moved_rows import CHOICES, EXPERTS, Experts, Layer, check_gradients, chosen_experts, inputs

# Links between hosts are the slowest by far, so that bytes there decide.
SLOW = "h100 network_bandwidth=1e6 network_latency=0"
MESHES = [  # the mesh, the axes of experts and those of the batch
    ({"host": 2, "ep": 2}, ["host", "ep"], ["host", "ep"]),
    ({"host": 2, "ep": 3}, ["host", "ep"], ["host", "ep"]),
    ({"host": 3, "ep": 2}, ["host", "ep"], ["host", "ep"]),
    ({"host": 2, "dp": 2}, ["host", "dp"], ["host", "dp"]),
    ({"host": 2, "tp": 2}, ["host", "tp"], ["host"]),
    ({"host": 2, "dp": 2, "ep": 2}, ["host", "ep"], ["host", "dp", "ep"]),
    ({"host": 2, "dp": 2, "ep": 2}, ["host", "dp", "ep"], ["host", "dp", "ep"]),
    ({"host": 2, "ep": 2, "tp": 2}, ["host", "ep"], ["host", "ep"]),
    ({"host": 2, "dp": 2, "tp": 2}, ["host", "tp"], ["host", "dp"]),
]


def get_steps(plan):
    """The axes of each launch that sends rows to experts."""
    found = re.findall(r"nn\.send_rows .* axes \[(.*?)\]", plan.ir(phase="rt"))
    return [re.findall(r'"(\w+)"', axes) for axes in found]


def draw_layer(seed):
    rng = torch.Generator().manual_seed(seed)
    pick = lambda options: options[int(torch.randint(len(options), (1,), generator=rng))]
    mesh, experts_on, batch_on = pick(MESHES)
    options = dict(mesh=mesh, expert_parallel=experts_on, data_parallel=batch_on, device=SLOW)
    if "tp" in mesh:
        options["sequence_parallel"] = "on"
    experts = max(pick([4, 6, 8, 12, 24]), math.prod(mesh[axis] for axis in experts_on))
    k = int(torch.randint(1, min(experts, 6) + 1, (1,), generator=rng))
    width, batch = pick([8, 64]), pick([4, 12, 24])
    shape = (batch, pick([1, 4, 6]))
    torch.manual_seed(seed)
    layer = Layer(width, experts)
    given = (torch.randn(*shape, width, generator=rng),
             chosen_experts(pick(["random", "skewed", "first", "repeated"]), shape, experts, k, rng))
    return layer, given, options, f"{seed}: {shape} of {width}, {k} of {experts} experts, {options}"


def check_layer(seed):
    """Returns whether rows take two steps."""
    layer, given, options, what = draw_layer(seed)
    check_gradients(layer, given, options, what)
    forward = mw.from_torch(copy.deepcopy(layer).eval(), given).parallelize(**options)
    with torch.no_grad():
        torch.testing.assert_close(torch.as_tensor(forward.run(*given)[0]), layer(*given), rtol=1e-5, atol=1e-5,
                                   msg=lambda m: f"{what}: {m}")
    return ["host"] in get_steps(forward)


def test_random_layers():
    assert sum(check_layer(seed) for seed in range(16)) >= 4


@pytest.fixture(scope="module")
def module():
    torch.manual_seed(0)
    return Experts(64).eval()


def parallelize(module, device=SLOW, **options):
    return mw.from_torch(module, inputs("random", 64)).parallelize(
        mesh={"host": 2, "ep": 2}, data_parallel=["host", "ep"], expert_parallel=["host", "ep"], device=device, **options)


def test_slow_links_are_crossed_once(module):
    assert get_steps(parallelize(module))[:2] == [["host"], ["host"]]
    # Two steps send more rows in all.
    assert ["host"] not in get_steps(parallelize(module, device="h100 network_bandwidth=4.5e11 network_latency=1e-6"))


def test_links_of_one_kind_take_one_launch():
    """Though two launches would have fewer messages, one after the other."""
    with torch.device("meta"):
        given = (torch.zeros(32, 4, 64), torch.zeros(32, 4, 4), torch.zeros(32, 4, 4, dtype=torch.long))
        model = mw.from_torch(Experts(64, 64), given)
    for first in ("dp", "host"):
        plan = model.parallelize(mesh={first: 4, "ep": 8}, data_parallel=[first, "ep"], expert_parallel=[first, "ep"],
                                 device="h100")
        assert get_steps(plan)[0] == (["dp", "ep"] if first == "dp" else ["host"])


def test_bytes_are_those_of_balanced_load(module):
    """A token has rows on 2 (1 - (4/8)^2) = 1.5 of 2 hosts, and on 4 (1 - (6/8)^2) = 1.75 of 4 ranks, as the caller may
    repeat choices. Half of them leave each time."""
    sent = [e for e in parallelize(module).report(format="json")["collectives"] if e["kind"] == "all_to_all_v"]
    by_axis = {axis: sum(e["bytes_per_rank"] for e in sent if e["axes"] == [axis]) for axis in ("host", "ep")}
    row, tokens = 4 * (64 + 64 + CHOICES), 6
    assert by_axis["host"] == pytest.approx(tokens * 1.5 / 2 * (row + 4 * CHOICES), rel=0.02)
    assert by_axis["ep"] == pytest.approx(tokens * (1.75 / 2 * row + CHOICES / 2 * 4), rel=0.02)


@pytest.mark.parametrize("kind", ["even", "one", "random"])
def test_choices_change(module, kind):
    plan, given = parallelize(module), inputs(kind, 64)
    got = torch.as_tensor(plan.run(*given)[0])
    with torch.no_grad():
        torch.testing.assert_close(got, module(*given), rtol=1e-5, atol=1e-5)
    layer, = plan.report(format="json")["experts"]
    per_expert = torch.bincount(given[2].flatten(), minlength=EXPERTS)
    assert layer["rows_per_rank"] == per_expert.view(4, 2).sum(1).tolist()


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=NEEDS_MPI) for kind in ("one", "random")])
def test_processes_have_the_bits_of_threads(tmp_path, module, kind):
    given = dict(zip(["x", "weights", "chosen"], inputs(kind, 64), strict=True))
    files = Files(tmp_path, parallelize(module).ir(phase="spmd"), given, dict(module.named_parameters()))
    assert_same_bits(files.mpi(4), files.local())


@pytest.mark.parametrize("mesh,batch_on,shape", [
    ({"host": 2, "ep": 2}, ["host", "ep"], (16, 64)), ({"host": 2, "ep": 2}, ["host", "ep"], (1024, 1)),
    ({"host": 2, "tp": 2}, ["host"], (16, 64)), ({"dp": 2, "tp": 2}, ["dp"], (16, 64))], ids=str)
def test_chunks(mesh, batch_on, shape):
    """Under a ceiling the layer runs for one chunk of tokens after the other, also along several dimensions of them."""
    torch.manual_seed(0)
    rng = torch.Generator().manual_seed(0)
    layer = Layer(64, EXPERTS).eval()
    given = (torch.randn(*shape, 64, generator=rng), chosen_experts("random", shape, EXPERTS, 3, rng))
    model = mw.from_torch(layer, given)
    options = dict(mesh=mesh, data_parallel=batch_on, expert_parallel=[*mesh], device=SLOW)
    if "tp" in mesh:
        options["sequence_parallel"] = "on"
    whole = model.parallelize(**options).report(format="json")["memory_per_rank"]
    plan = model.parallelize(memory_ceiling=whole["weights"] + whole["activations_peak"] * 7 // 10, **options)
    assert plan.report(format="json")["memory_per_rank"]["activations_peak"] <= 0.7 * whole["activations_peak"]
    with torch.no_grad():
        torch.testing.assert_close(torch.as_tensor(plan.run(*given)[0]), layer(*given), rtol=1e-5, atol=1e-5)


def test_capacity(module):
    """Choices that an expert does not take have no row in either step."""
    given = inputs("random", 64)
    plan = parallelize(module, expert_capacity=0.75)
    alone = mw.from_torch(module, given).parallelize(mesh={"dp": 1}, expert_parallel="dp", expert_capacity=0.75)
    assert ["host"] in get_steps(plan)
    torch.testing.assert_close(*(torch.as_tensor(p.run(*given)[0]) for p in (plan, alone)), rtol=1e-5, atol=1e-5)
    (load,), (one,) = (p.report(format="json")["experts"] for p in (plan, alone))
    assert load["dropped_tokens"] == one["dropped_tokens"] > 0
