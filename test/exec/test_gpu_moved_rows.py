# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Rows travel between GPUs as they do between processors, on the stand-ins for CUDA and NCCL."""
import gpu_programs
import pytest
import test_shared_rows
from test_gpu_running import check
from test_gpu_running import pytestmark as needs_stand_ins
from test_shared_rows import test_route  # noqa: F401

pytestmark = pytest.mark.skipif(gpu_programs.missing() is not None, reason=str(gpu_programs.missing()))


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch):
    monkeypatch.setattr(test_shared_rows, "run_module", gpu_programs.run_program)


MODULE = """
import sys
sys.path.insert(0, {folder!r})
from test_moved_rows import Experts, LayerLoss, Layer, chosen_experts, inputs, kinds_of, shares_rows
def make(width):
    torch.manual_seed(0)
    return Experts(width).eval()
"""
BACKENDS = pytest.mark.parametrize("backend", ["nccl", "nccl:peer"])


def module():
    return MODULE.format(folder=str(gpu_programs.ROOT / "test" / "exec"))


@needs_stand_ins
@BACKENDS
@pytest.mark.parametrize("width", [8, 64])
def test_one_plan_runs_all_choices(backend, width):
    """Ranks without rows, rows of each choice, and rows that go to a rank once. The reports are those of processors."""
    check(module() + f"""
net = make({width})
model = mw.from_torch(net, inputs("even", {width}))
plan, known = (model.parallelize(mesh={{"dp": 4}}, expert_parallel="dp", target=t) for t in ("gpu:sm_90a", "cpu"))
assert shares_rows(plan) == ({width} == 64)
sent = [[(c["kind"], c["bytes_per_rank"], c.get("bytes_at_capacity")) for c in p.report("json")["collectives"]] for p in (plan, known)]
assert sent[0] == sent[1] and "all_to_all_v" in kinds_of(plan), sent
for kind in ("even", "one", "random"):
    given = inputs(kind, {width})
    got, again = (plan.run(*given, backend="{backend}")[0] for _ in range(2))
    assert torch.equal(got, again), kind
    with torch.no_grad(): want = net(*given)
    assert (got - want).abs().max() < 1e-5 * want.abs().max(), kind
    known.run(*given)
    assert plan.report("json")["experts"] == known.report("json")["experts"], kind
""")


@needs_stand_ins
@BACKENDS
def test_graphs(backend):
    """Graphs stop where rows move. A call that repeats them has other numbers of rows than that which recorded them."""
    check(module() + f"""
net = make(64)
plan = mw.from_torch(net, inputs("even", 64)).parallelize(mesh={{"dp": 4}}, expert_parallel="dp", target="gpu:sm_90a")
with plan.start(backend="{backend}", graphs="on") as session:
    for kind in ("even", "random", "one", "even", "random"):
        given = inputs(kind, 64)
        with torch.no_grad(): want = net(*given)
        assert (session.run(*given)[0] - want).abs().max() < 1e-5 * want.abs().max(), kind
""")


@needs_stand_ins
@BACKENDS
@pytest.mark.parametrize("mesh,axes", [({"dp": 4}, "dp"), ({"dp": 2, "tp": 2}, "dp")],
                         ids=["dp", "dp beside tp"])
def test_gradients(backend, mesh, axes):
    """The backward pass knows the numbers of the forward pass."""
    check(module() + f"""
torch.manual_seed(1)
net = LayerLoss(Layer(64, 8)).train()
given = (torch.randn(4, 6, 64), chosen_experts("skewed", (4, 6), 8, 3, torch.Generator().manual_seed(1)))
model = mw.from_torch(net, given, training=True).differentiate()
plan = model.parallelize(mesh={mesh}, expert_parallel={axes!r}, target="gpu:sm_90a")
assert "all_to_all_v" in kinds_of(plan) and shares_rows(plan)
got = dict(zip(model.outputs, plan.run(*given, backend="{backend}"), strict=True))
net(*given).backward()
largest = max(p.grad.abs().max() for p in net.parameters())
for name, p in net.named_parameters():
    assert (got["grad." + name] - p.grad).abs().max() < 1e-5 * largest, name
""")


@needs_stand_ins
@BACKENDS
def test_a_shared_expert_computes_while_rows_travel(backend):
    """The launches between a start and its wait are in no graph. The others are, and repeat with other numbers of rows."""
    check(module() + f"""
from test_expert_overlap import beside, make as make_layer, tokens
net = make_layer()
plan = mw.from_torch(net, (tokens(),)).parallelize(mesh={{"dp": 2}}, expert_parallel="dp", overlap="on", target="gpu:sm_90a")
assert any("gemm" in kinds for op in ("nn.send_rows", "nn.return_rows") for kinds in beside(plan, op))
with plan.start(backend="{backend}", graphs="on") as session:
    for run in range(5):
        x = torch.randn(4, 24, 64, generator=torch.Generator().manual_seed(run))
        with torch.no_grad(): want = net(x)
        assert (session.run(x)[0] - want).abs().max() < 1e-5 * want.abs().max(), run
""")


@needs_stand_ins
@BACKENDS
def test_steps(backend):
    """Rows cross the network once for a host, and their gradients do."""
    check(module() + f"""
from test_row_steps import SLOW, get_steps
torch.manual_seed(1)
net = LayerLoss(Layer(64, 8)).train()
given = (torch.randn(4, 6, 64), chosen_experts("random", (4, 6), 8, 3, torch.Generator().manual_seed(2)))
model = mw.from_torch(net, given, training=True).differentiate()
plan = model.parallelize(mesh={{"host": 2, "ep": 2}}, data_parallel=["host", "ep"], expert_parallel=["host", "ep"],
                         device=SLOW, target="gpu:sm_90a")
assert ["host"] in get_steps(plan), get_steps(plan)
got = dict(zip(model.outputs, plan.run(*given, backend="{backend}"), strict=True))
net(*given).backward()
largest = max(p.grad.abs().max() for p in net.parameters())
for name, p in net.named_parameters():
    assert (got[f"grad.{{name}}"] - p.grad).abs().max() < 1e-5 * largest, name
""")
