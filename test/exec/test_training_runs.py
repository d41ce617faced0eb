# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Training steps from bundles, in processes, and from saved states: the same bits everywhere."""

import json
import os
import pathlib
import subprocess
import sys

import meshwright as mw
import pytest
import torch
from harness import TIMEOUT, saved_state
from mpi_programs import NEEDS_MPI, mpirun
from test_leaks import PLANS, assert_nothing_left, held
from test_training import Net, batches

DATA = batches(4)
RATES = [{}, {"lr": 0.02}, {}, {"lr": 0.001}]
PLANS_OF = {"dp": {"mesh": {"dp": 2}}, "gtp": {"mesh": {"gtp": 2}},
            "gtp in bits": {"mesh": {"gtp": 2}, "gtp_gather": "mxfp8", "gtp_reduce": "bf16"}}


def plan_of(net, name):
    model = mw.from_torch(net, (), DATA[0], training=True)
    return model.train(mw.AdamW(lr=0.01), microbatches=2, clip_norm=1.0).parallelize(**PLANS_OF[name])


def steps(session, count, first=0):
    for batch, rate in list(zip(DATA, RATES, strict=True))[first : first + count]:
        session.run(**batch, **rate)


@pytest.fixture(scope="module", params=PLANS_OF)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def plan(name):
    return plan_of(Net(), name)


@pytest.fixture(scope="module")
def states(plan):
    """The state after each step."""
    with plan.start() as session:
        found = [session.state()]
        for i in range(4):
            steps(session, 1, i)
            found.append(session.state())
    return found


def same(state, want):
    assert state.keys() == want.keys()
    for name, value in want.items():
        assert torch.equal(torch.as_tensor(state[name]), value), name


def test_bundles_and_saved_states(plan, states, tmp_path):
    plan.compile(tmp_path / "b")
    bundle = mw.load_bundle(tmp_path / "b")
    assert bundle.entries == ["step", "evaluate"]
    with bundle.start() as session:
        same(session.state(), states[0])
        steps(session, 2)
        same(session.state(), states[2])
        session.run(entry="evaluate", **DATA[3])
        session.save(tmp_path / "state")
        same({n: a for n, a in session.parameters().items()}, {n: states[2][n] for n in session.parameters()})
    same(saved_state(tmp_path / "state"), states[2])
    for start in (plan.start, bundle.start):
        with start(state=tmp_path / "state") as session:
            steps(session, 2, 2)
            same(session.state(), states[4])


def test_sessions_leave_nothing_behind(plan, states):
    """Many sessions of training have the same bits, and leave no memory, thread or file.
    MESHWRIGHT_TEST_PLANS=1000 for more."""
    for i in range(PLANS):
        with plan.start(threads_per_rank=1 + i % 3) as session:
            steps(session, 4)
            same(session.state(), states[4])
        if i == PLANS // 5:
            before = held()
    assert_nothing_left(before, PLANS - PLANS // 5)


def test_runs_leave_nothing_behind(plan):
    """200 steps of one session leave no memory, thread or file."""
    with plan.start() as session:
        for i in range(250):
            session.run(**DATA[i % 4])
            if i == 50:
                before = held()
        assert_nothing_left(before, 200)


PROCESS = """
import os, sys
sys.path.insert(0, sys.argv[1])
from test_training_runs import *

rank, folder = int(os.environ["OMPI_COMM_WORLD_RANK"]), sys.argv[2]
torch.set_num_threads(1)
with plan_of(Net(), sys.argv[3]).start(backend="mpi", timeout=20) as session:
    steps(session, 2)
    session.save(folder)
    steps(session, 1, 2)
    state = session.state()
    if rank == 0:
        torch.save(state, folder + ".pt")
    if rank == 1:
        os.kill(os.getpid(), 9)
    try:
        steps(session, 1, 3)
    except mw.Error as error:
        print("failed:", error, flush=True)
"""


@NEEDS_MPI[0]
@NEEDS_MPI[1]
def test_processes(name, plan, states, tmp_path):
    """A process that is killed during a step leaves the last saved state whole."""
    (tmp_path / "p.py").write_text(PROCESS)
    command = [sys.executable, tmp_path / "p.py", pathlib.Path(__file__).parent, tmp_path / "state", name]
    done = subprocess.run(mpirun(2, *command), capture_output=True, text=True, timeout=TIMEOUT)
    assert "failed: " in done.stdout, done.stdout + done.stderr
    same(torch.load(tmp_path / "state.pt"), states[3])
    same(saved_state(tmp_path / "state"), states[2])
    with plan.start(state=tmp_path / "state") as session:
        steps(session, 2, 2)
        same(session.state(), states[4])


@pytest.mark.parametrize("entry", ["step", "evaluate"])
def test_traces_and_reports_have_each_microbatch(plan, entry, tmp_path):
    plan.run(**DATA[0], entry=entry, trace=tmp_path / "trace.json", measure=True)
    spans = [e for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if e["ph"] == "X"]
    for rank in range(2):
        mine = [e for e in spans if e["pid"] == rank and e["tid"] == 0]
        names = [e["name"] for e in sorted(mine, key=lambda e: e["ts"])]
        assert not any("unknown op" in name for name in names)
        # The first and the last microbatch look up the rows of the table.
        looked_up = [i for i, name in enumerate(names) if name.startswith("nn.embedding")]
        assert len(looked_up) == 2
        attended = [i for i, e in enumerate(names) if e.startswith("nn.attention") and "grad" not in e]
        assert len(attended) == 2 and looked_up[0] < attended[0] < looked_up[1] < attended[1]
    kernels = plan.report(format="json")["run"]["kernels"]
    for kernel in kernels:
        assert kernel["launches"] == sum(e["cat"] == kernel["class"] for e in spans) // 2
