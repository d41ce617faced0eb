# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Training with dropout on the backend `nccl`, on the stand-ins (test/fakegpu): the steps of `local`."""
import json
import pathlib

import pytest
from test_gpu_running import check, pytestmark  # noqa: F401

SETUP = f"""
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
import numpy as np
import test_dropout_plans as plans
import test_recompute as deep

def wide(x): return torch.as_tensor(np.asarray(x)) if not isinstance(x, torch.Tensor) else x
def near(got, want, tolerance, text=""):
    got, want = wide(got).double(), wide(want).double()
    error = ((got - want).abs().max() / want.abs().max().clamp_min(1e-30)).item()
    assert error <= tolerance, (text, error)
"""
TOLERANCE = {"float32": 2e-6, "bfloat16": 3e-2, "float16": 4e-3}


@pytest.mark.parametrize("name,dtype", [
    ("tp=2", "float32"), ("dp=2,tp=3 sp", "float32"), ("ring=2 zigzag", "float32"), ("ring=3", "float32"),
    ("ring=2,ulysses=2 striped", "float32"), ("dp=2,tp=3 sp", "bfloat16"), ("ring=2 zigzag", "bfloat16"),
    ("tp=2", "float16")])
def test_both_passes_drop_the_elements_of_local(name, dtype):
    """Outputs and gradients. A dropped weight more or less would change them by far more than the tolerance."""
    check(SETUP + f"""
dtype, tolerance = torch.{dtype}, {TOLERANCE[dtype]}
net, x = plans.Block().train().to(dtype), plans.draw().to(dtype)
model = mw.from_torch(net, (x,), training=True).differentiate()
plan = model.parallelize(**plans.MESHES[{name!r}])
want, got = plan.run(x), plan.run(x, backend='nccl')
largest = max(wide(w).double().abs().max().item() for n, w in zip(model.outputs, want) if n.startswith('grad.'))
for n, w, g in zip(model.outputs, want, got, strict=True):
    if n.startswith('grad.'): assert (wide(g).double() - wide(w).double()).abs().max() <= tolerance * largest, n
    else: near(g, w, tolerance, n)
""")


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("name", ["dp=2", "ring=2 zigzag"])
def test_graphs_replay_with_the_numbers_of_their_step(tmp_path, name, microbatches):
    """A captured step reads seed and step from memory: it has the bits of a step without graphs. Each drops others."""
    check(SETUP + f"""
net, x = plans.Block().train(), plans.draw()
train = mw.from_torch(net, (x,), training=True).train(mw.SGD(lr=0.0), microbatches={microbatches}, seed=5)
plan, seen = train.parallelize(**plans.MESHES[{name!r}]), []
with plan.start(backend='nccl', graphs='on') as on, plan.start(backend='nccl', graphs='off') as off, plan.start() as local:
    for step in range(6):
        y = on.run(x)[1]
        assert torch.equal(y, off.run(x)[1]), step
        near(y, local.run(x)[1], 2e-6, step)
        assert not any(torch.equal(y, other) for other in seen), step
        seen.append(y)
    assert int(on.state()['random.step']) == 6 and int(on.state()['random.seed']) == 5
""", FAKEGPU_LOG=str(tmp_path / "log"))
    assert json.loads((tmp_path / "log").read_text())["graph_launches"] > 0


@pytest.mark.parametrize("name", ["dp=2,tp=3 sp", "ring=2 zigzag"])
def test_recomputation(name):
    """Repeated layers drop the same elements, and steps are those of `local`, in the same memory."""
    check(SETUP + f"""
want = None
for mode in ('none', 'full'):
    plan = deep.plan_of(deep.Stack(layers=3, p=0.3), {name!r}, recompute=mode)
    steps = {{}}
    for backend in ('local', 'nccl'):
        with plan.start(backend=backend) as session:
            losses = [session.run(**batch)[0].item() for batch in deep.batches()]
            steps[backend] = losses, session.parameters()
    deep.compare(steps['nccl'], steps['local'], 2e-6)
    want = want or steps['local']
    deep.compare(steps['nccl'], want, 2e-6)
""")


def test_a_ceiling_chooses_what_is_repeated():
    check(SETUP + """
net = deep.Stack(layers=4, p=0.3)
none, full = (deep.plan_of(net, 'tp=2', recompute=mode) for mode in ('none', 'full'))
ceiling = (deep.total_of(none) + 3 * deep.total_of(full)) // 4
plan = deep.plan_of(net, 'tp=2', memory_ceiling=ceiling, shard_saved='off')
(decision,) = deep.decision_of(plan)
assert decision['outcome'] == 'applied' and deep.total_of(plan) <= ceiling
want = deep.steps_of(none)
with plan.start(backend='nccl') as session:
    deep.compare(([session.run(**batch)[0].item() for batch in deep.batches()], session.parameters()), want, 2e-6)
batch = deep.batches(1)[0]
plan.run(**batch, backend='nccl', measure=True)
arena = plan.report(format='json')['run']['arena']
assert arena['planned'] == arena['seen'], arena
""")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_library_multiplies_gradients_of_weights(tmp_path, dtype):
    """In f32, of operands of all types, where more than 64 rows are whole 16 bytes."""
    check(SETUP + f"""
torch.manual_seed(0)
class Loss(nn.Module):
    def __init__(s): super().__init__(); s.a, s.b = nn.Linear(72, 136, bias=False), nn.Linear(136, 80, bias=False)
    def forward(s, x): return s.b(s.a(x).tanh()).float().square().mean()
net, x = Loss().to(torch.{dtype}), torch.randn(97, 72).to(torch.{dtype})
plan = mw.from_torch(net, (x,), training=True).differentiate().parallelize(mesh={{"tp": 1}})
for want, got in zip(plan.run(x), plan.run(x, backend='nccl'), strict=True):
    near(got, want, {TOLERANCE[dtype]})
""", FAKEGPU_LOG=str(tmp_path / "log"))
    calls = json.loads((tmp_path / "log").read_text())["calls"]
    # Two products forward, one backward, and both gradients.
    assert calls["cublasLtMatmul"] == 5, calls


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", ["1 H Q K", "B 1 1 K", "B H Q 1"])
def test_biases_around_a_ring(shape, dtype):
    """A window leaves out steps of the first shape."""
    check(SETUP + f"""
import test_bias_gradients as biases
for mesh, order in (({{'ring': 4}}, 'zigzag'), ({{'dp': 2, 'ring': 2}}, 'contiguous')):
    net, x = biases.draw({shape!r}, 13, 3 if {shape!r} == '1 H Q K' else None, torch.{dtype})
    model = mw.from_torch(net, (x,), training=True).differentiate()
    plan = model.parallelize(mesh=mesh, context_parallel={{'ring': 'ring', 'order': order}})
    want, got = plan.run(x), plan.run(x, backend='nccl')
    largest = max(wide(w).double().abs().max().item() for w in want[1:])
    for n, w, g in zip(model.outputs, want, got, strict=True):
        error = (wide(g).double() - wide(w).double()).abs().max()
        assert error <= {TOLERANCE[dtype]} * largest, (mesh, n, error)
""")


@pytest.mark.parametrize("name", ["one rank", "dp=2"])
def test_states_pass_from_microbatch_to_microbatch(tmp_path, name):
    """A captured microbatch reads from memory whether it is the first one."""
    check(SETUP + f"""
import test_microbatch_states as states
net, data = states.Normed(), states.batches(4)
plan, (_, want) = states.train(net, data).parallelize(mesh=states.MESHES[{name!r}]), states.expect(net, data)
with plan.start(backend='nccl', graphs='on') as on, plan.start(backend='nccl', graphs='off') as off:
    for batch, state in zip(data, want, strict=True):
        on.run(**batch), off.run(**batch)
        states.same(on.state(), off.state())
        states.compare(on.state(), state)
""", FAKEGPU_LOG=str(tmp_path / "log"))
    assert json.loads((tmp_path / "log").read_text())["graph_launches"] > 0
