# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Graphs of the backend `nccl`, on the stand-ins (test/fakegpu)."""
import json

import pytest
from test_gpu_processes import finish, same, start, torchrun
from test_gpu_processes import bundle  # noqa: F401
from test_gpu_running import check, pytestmark, refusal  # noqa: F401


def log(tmp_path, body, **variables):
    check(body, FAKEGPU_LOG=str(tmp_path / "log"), **variables)
    return json.loads((tmp_path / "log").read_text())


@pytest.mark.parametrize("backend", ["nccl", "nccl:peer"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_replays(tmp_path, backend, ranks):
    """Calls 1 and 2 run plainly, call 3 captures, and all give the bits of a session without graphs, for new inputs."""
    seen = log(tmp_path, f"""
net, _ = make()
xs = [torch.randn(6, 32) for _ in range(6)]
plan = mw.from_torch(net, (xs[0],)).parallelize(mesh={{'tp': {ranks}}}, sequence_parallel='on')
with plan.start(backend='{backend}', graphs='on') as on, plan.start(backend='{backend}', graphs='off') as off:
    for x in xs: assert torch.equal(on.run(x)[0], off.run(x)[0])
""")
    assert seen["graph_captures"] >= ranks and seen["waits"] == 0
    if backend == "nccl" or ranks == 1:
        # The whole entry.
        assert (seen["graph_captures"], seen["graph_launches"]) == (ranks, 4 * ranks)
    else:
        # Between collectives.
        assert seen["graph_launches"] >= 2 * 4 * ranks


@pytest.mark.parametrize("recover", [True, False])
def test_state(tmp_path, recover):
    """A state with two buffers has two graphs. Capturing does not change it."""
    seen = log(tmp_path, f"""
class Count(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(32, 32)
        self.register_buffer("seen", torch.zeros(32))
    def forward(self, x):
        self.seen.mul_(0.5).add_(x.mean(0))
        return self.w(x) + self.seen
net, want = Count().eval(), torch.zeros(32)
with mw.from_torch(net, (torch.randn(8, 32),)).parallelize(mesh={{'dp': 2}}).start(backend='nccl', recover={recover}) as session:
    for call in range(8):
        x = torch.randn(8, 32)
        want = want * 0.5 + x.mean(0)
        assert (session.run(x)[0] - net.w(x) - want).abs().max() < 1e-5, call
        assert (session.state()['seen'] - want).abs().max() < 1e-5, call
""")
    buffers = 2 if recover else 1
    assert seen["graph_captures"] == 2 * buffers
    assert seen["graph_launches"] == 2 * 6


def test_rows(tmp_path):
    """Rows of a state are restored when a call fails whose graph replaced them."""
    seen = log(tmp_path, """
class Cache(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.register_buffer("rows", torch.zeros(2, 8, 4))
    def forward(self, ids):
        x = self.table(ids)
        self.rows[:, :ids.shape[1]].add_(x)
        return self.rows * 2
net, ids = Cache().eval(), torch.randint(0, 5, (2, 3))
with mw.from_torch(net, (ids,)).parallelize(mesh={'tp': 1}).start(backend='nccl') as session:
    for call in range(5):
        before = session.state()['rows']
        assert (session.run(ids)[0] - net(ids)).abs().max() < 1e-6, call
    before = session.state()['rows']
    try:
        session.run(torch.full((2, 3), 9))
        print('accepted')
    except mw.Error as error:
        assert 'out of range' in str(error), error
    assert torch.equal(session.state()['rows'], before)
    for call in range(4): assert (session.run(ids)[0] - net(ids)).abs().max() < 1e-6, call
""")
    assert seen["graph_launches"] >= 4


def test_entries(tmp_path):
    """Entries that exchange the buffers of one state each have graphs for both."""
    log(tmp_path, """
class Add(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
        self.register_buffer("sum", torch.zeros(4))
    def forward(self, x):
        self.sum.mul_(self.factor).add_(x.sum(0))
        return self.sum + 0
x = torch.randn(3, 4)
model = mw.join({'one': mw.from_torch(Add(1.0), (x,)), 'half': mw.from_torch(Add(0.5), (x,))})
want = torch.zeros(4)
with model.parallelize(mesh={'dp': 1}).start(backend='nccl') as session:
    for call in range(20):
        entry = ('one', 'half', 'half')[call % 3]
        x = torch.randn(3, 4)
        want = want * (1.0 if entry == 'one' else 0.5) + x.sum(0)
        assert (session.run(x, entry=entry)[0] - want).abs().max() < 1e-4, call
""")


def test_checks_and_traces(tmp_path):
    """A check of values is part of a graph. Calls with a trace are not captured."""
    seen = log(tmp_path, f"""
net, x = make()
plan = mw.from_torch(net, (x,)).parallelize(mesh={{'tp': 2}})
with plan.start(backend='nccl') as session:
    for _ in range(5): session.run(x, check_finite=True)
    try:
        session.run(x * float('nan'), check_finite=True)
        print('accepted')
    except mw.Error as error:
        assert 'is NaN' in str(error), error
for _ in range(5): plan.run(x, backend='nccl', trace='{tmp_path}/trace')
""")
    assert (seen["graph_captures"], seen["graph_launches"]) == (2, 2 * 4)


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_step_of_which_parts_are_captured(tmp_path, ahead):
    """Weights in shards are gathered between graphs, beside kernels or not: the bits of a step without graphs."""
    seen = log(tmp_path, f"""
class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(32, 32) for _ in range(4)])
    def forward(self, x):
        return (self.layers(x) - x).square().mean()
net, x = Loss().train(), torch.randn(8, 32)
plan = mw.from_torch(net, (x,), training=True).train(mw.AdamW(lr=1e-2)).parallelize(
    mesh={{'gtp': 2}}, gtp_prefetch={ahead})
assert len(plan.report(format='json')['gtp']['weights']) == 4
with plan.start(backend='nccl:peer', graphs='on') as on, plan.start(backend='nccl:peer', graphs='off') as off:
    for step in range(6):
        x = torch.randn(8, 32)
        assert torch.equal(on.run(x)[0], off.run(x)[0]), step
    states = on.state(), off.state()
    for name in states[0]: assert torch.equal(*(torch.as_tensor(state[name]) for state in states)), name
""")
    # A step has more than one graph.
    assert seen["graph_launches"] >= 2 * 2 * 2


def test_after_a_failure():
    """A call that fails ends the graphs. Later calls capture others."""
    check("""
net, x = make()
class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 8)
        self.w = nn.Linear(8, 8)
    def forward(self, ids):
        return self.w(self.table(ids))
net, ids = Table().eval(), torch.randint(0, 5, (2, 3))
with mw.from_torch(net, (ids,)).parallelize(mesh={'tp': 2}).start(backend='nccl') as session:
    for call in range(12):
        if call % 5 == 4:
            try:
                session.run(ids + 9)
                print('accepted')
            except mw.Error as error:
                assert 'out of range' in str(error), error
        else:
            assert (session.run(ids)[0] - net(ids)).abs().max() < 1e-5, call
""")


def test_a_collective_that_hangs():
    """The error names the op at which the graph begins."""
    # Two ranks and a collective a call: it hangs when the third call launches its graph.
    said = refusal("""net, x = make()
with mw.from_torch(net, (x,)).parallelize(mesh={'tp': 2}).start(backend='nccl', timeout=3) as session:
    for _ in range(6): session.run(x)""", FAKEGPU_FAIL="ncclAsyncError:5")
    assert "nn." in said and ("NCCL" in said or "timed out: the GPU has not finished the graph" in said), said


def test_processes(bundle):  # noqa: F811
    """Each process captures its own rank, when a bundle runs several times."""
    codes, said = finish(start(bundle, torchrun(range(2)), "graphs", MESHWRIGHT_RUNS="5"))
    assert codes == [0, 0], said
    same(bundle, "graphs")


def test_refusals():
    assert "graphs is 'on', and the target cpu has no graphs: expected off or auto" in refusal(
        "net, x = make(); mw.from_torch(net, (x,)).parallelize(mesh={'tp': 1}).start(graphs='on')")
    assert "graphs: expected on, off or auto, got 'maybe'" in refusal(
        "net, x = make(); mw.from_torch(net, (x,)).parallelize(mesh={'tp': 1}).start(graphs='maybe')")
    assert "the entry launches nothing that a graph could repeat: expected off or auto" in refusal(
        "x = torch.randn(2, 3); mw.from_torch(nn.Identity(), (x,)).parallelize(mesh={'tp': 1})"
        ".start(backend='nccl', graphs='on').__enter__().run(x)")
