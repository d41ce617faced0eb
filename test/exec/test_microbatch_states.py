# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""States that a model writes in each microbatch of a step, as PyTorch's loop over microbatches writes them."""

import copy

import meshwright as mw
import pytest
import torch
import torch.nn.functional as F
from torch import nn

COUNT = 3
#: Chunks of 5 rows and 8 features, which neither axis divides.
MESHES = {"one rank": {"tp": 1}, "dp=2": {"dp": 2}, "tp=3": {"tp": 3}, "dp=2,tp=2": {"dp": 2, "tp": 2}}


class Normed(nn.Module):
    """Batch norms, of which the last one does not train."""

    def __init__(self, factor=1.0):
        super().__init__()
        torch.manual_seed(5)
        self.factor = factor
        self.table, self.inner, self.first = nn.Embedding(19, 6), nn.Linear(6, 8), nn.BatchNorm1d(8)
        self.second, self.third = nn.BatchNorm1d(8, momentum=0.3), nn.BatchNorm1d(8).eval()
        self.outer = nn.Linear(8, 3)

    def forward(self, ids, y):
        x = self.first(self.inner(self.table(ids))).relu()
        z = self.outer(self.third(self.second(x + 1.0)))
        return F.cross_entropy(z, y) * self.factor, z


def batches(steps):
    g = torch.Generator().manual_seed(1)
    rows = 5 * COUNT
    return [dict(ids=torch.randint(0, 19, (rows,), generator=g), y=torch.randint(0, 3, (rows,), generator=g)) for _ in range(steps)]


def train(net, data, **options):
    return mw.from_torch(net, (), data[0], training=True).train(mw.SGD(lr=0.1), microbatches=COUNT, **options)


def expect(net, data):
    """PyTorch in f64: the losses, and then the state_dict after each step."""
    net, losses, states = copy.deepcopy(net).double(), [], []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for batch in data:
        optimizer.zero_grad()
        total = 0.0
        for part in zip(*(value.chunk(COUNT) for value in batch.values()), strict=True):
            loss = net(*part)[0] / COUNT
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
        states.append({name: value.clone() for name, value in net.state_dict().items()})
    return losses, states


def compare(state, want):
    for name, value in want.items():
        if name in state:
            torch.testing.assert_close(torch.as_tensor(state[name]).double(), value.double(), rtol=1e-5, atol=1e-5, msg=name)


def same(got, want):
    assert got.keys() == want.keys()
    assert all((torch.as_tensor(got[name]) == torch.as_tensor(value)).all() for name, value in want.items())


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_running_statistics(mesh, recompute):
    net, data = Normed(), batches(3)
    losses, states = expect(net, data)
    plan = train(net, data).parallelize(mesh=MESHES[mesh], recompute=recompute)
    with plan.start() as session:
        assert sum("num_batches" in name for name in session.state()) == 2
        for batch, loss, want in zip(data, losses, states, strict=True):
            assert session.run(**batch)[0].item() == pytest.approx(loss, rel=1e-5)
            compare(session.state(), want)
            # A step that fails in its last chunk, which names no row of the table, changes nothing.
            state = session.state()
            with pytest.raises(mw.Error, match="out of range"):
                session.run(ids=torch.cat([batch["ids"][:-1], torch.tensor([99])]), y=batch["y"])
            same(session.state(), state)
            session.run(entry="evaluate", **batch)
            same(session.state(), state)
        assert not any(name.startswith("microbatch") for name in session.state())


def test_a_state_that_is_set():
    """The first microbatch begins with it."""
    net, data = Normed(), batches(2)
    with train(net, data).parallelize(mesh={"dp": 2}).start(recover=False) as session:
        session.run(**data[0])
        net.load_state_dict({n: torch.as_tensor(a) for n, a in session.state_dict()["model"].items()})
        net.first.running_mean.fill_(3.0)
        net.second.num_batches_tracked.fill_(7)
        session.set_state({n: getattr(net.get_submodule(n.partition(".")[0]), n.partition(".")[2])
                           for n in ("first.running_mean", "second.num_batches_tracked")})
        session.run(**data[1])
        compare(session.state(), expect(net, data[1:])[1][0])


def test_bundles_and_saved_states(tmp_path):
    net, data = Normed(), batches(4)
    plan = train(net, data).parallelize(mesh={"dp": 2, "tp": 2})
    plan.compile(tmp_path / "b")
    with plan.start() as session, mw.load_bundle(tmp_path / "b").start() as other:
        for batch in data[:2]:
            session.run(**batch)
            other.run(**batch)
            same(other.state(), session.state())
        with pytest.raises(mw.Error, match="out of range"):
            other.run(ids=torch.full((15,), 99), y=data[0]["y"])
        same(other.state(), session.state())
        other.save(tmp_path / "state")
        session.run(**data[2])
        want = session.state()
    with plan.start(state=tmp_path / "state") as again, mw.load_bundle(tmp_path / "b").start() as other:
        again.run(**data[2])
        same(again.state(), want)
        other.load_state_dict(again.state_dict())
        again.run(**data[3])
        other.run(**data[3])
        same(other.state(), again.state())


def test_a_step_that_is_skipped():
    """A gradient that is not finite leaves parameters as they are. PyTorch has run the model before it knows."""
    net, data = Normed(factor=1e4), batches(1)
    want = expect(net, data)[1][0]
    with train(net, data, loss_scale=3e38).parallelize(mesh={"dp": 2}).start() as session:
        session.run(**data[0])
        state = session.state()
        assert state["skipped_steps"] == 1 and torch.equal(state["outer.weight"], net.outer.weight)
        compare(state, {name: value for name, value in want.items() if name.startswith(("first.r", "second.n", "second.r"))})


class Journal(nn.Module):
    """Counts its calls, keeps a mean of each in a row of a table, and drops elements."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.inner, self.drop = nn.Linear(4, 4), nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(1, dtype=torch.long))
        self.register_buffer("rows", torch.zeros(8, 4))

    def forward(self, x):
        y = self.inner(x)
        self.rows.index_copy_(0, self.calls, x.mean(0, keepdim=True))
        self.calls += 1
        return self.drop(y).square().mean() + (y * self.rows.sum(0)).mean()


@pytest.mark.parametrize("mesh", [{"tp": 1}, {"dp": 2}], ids=str)
def test_states_of_other_kinds(mesh):
    net, x = Journal(), torch.randn(6, 4, generator=torch.Generator().manual_seed(3))
    model = mw.from_torch(net, (x,), training=True)
    plan = model.train(mw.SGD(lr=0.0), microbatches=3, seed=4).parallelize(mesh=mesh)
    with plan.start() as session:
        for step in range(2):
            session.run(x)
            state = session.state()
            assert state["calls"] == 3 * step + 3 and state["random.step"] == step + 1
            want = torch.cat([x.view(3, 2, 4).mean(1)] * (step + 1))
            torch.testing.assert_close(state["rows"][: len(want)], want)
            assert not state["rows"][len(want) :].any()
        # The last call of the third step has no row.
        before = session.state()
        with pytest.raises(mw.Error, match="index 8 at position 0 is out of range"):
            session.run(x)
        same(session.state(), before)
