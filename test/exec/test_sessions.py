# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Sessions: state that stays from call to call, on meshes, from bundles and in processes."""
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
from harness import TIMEOUT, launch, saved_state, tool
from safetensors.numpy import load_file, save_file

import meshwright as mw

# A running sum of features that tp=4 pads, a count, and a table of tokens that were seen. `peek` reads them.
MODEL = """
nn.state @"sum of features" {parameter = "start"} : tensor<10xf32>
nn.state @steps {fill = 3 : i64} : tensor<i64>
nn.state @last : tensor<2x16xf32>
func.func @main(%ids: tensor<2xi64> {nn.input = "ids"}, %scale: tensor<1xf32> {nn.input = "scale"},
                %e: tensor<7x16xf32> {nn.parameter = "e"}, %w: tensor<10x16xf32> {nn.parameter = "w"})
    -> (tensor<2x10xf32> {nn.output = "y"}, tensor<2x16xf32> {nn.output = "old"}) {
  %x = nn.embedding %ids, %e : (tensor<2xi64>, tensor<7x16xf32>) -> tensor<2x16xf32>
  %s = nn.mul %x, %scale : (tensor<2x16xf32>, tensor<1xf32>) -> tensor<2x16xf32>
  %0 = nn.linear %s, %w : (tensor<2x16xf32>, tensor<10x16xf32>) -> tensor<2x10xf32>
  %m = nn.reduce sum %0 dims [0] : (tensor<2x10xf32>) -> tensor<10xf32>
  %before = nn.read @"sum of features" : tensor<10xf32>
  %after = nn.add %before, %m : (tensor<10xf32>, tensor<10xf32>) -> tensor<10xf32>
  nn.write @"sum of features", %after : tensor<10xf32>
  %n = nn.read @steps : tensor<i64>
  %one = nn.constant dense<1> : tensor<i64>
  %next = nn.add %n, %one : (tensor<i64>, tensor<i64>) -> tensor<i64>
  nn.write @steps, %next : tensor<i64>
  nn.write @last, %s : tensor<2x16xf32>
  %old = nn.read @last : tensor<2x16xf32>
  %y = nn.add %0, %before : (tensor<2x10xf32>, tensor<10xf32>) -> tensor<2x10xf32>
  return %y, %old : tensor<2x10xf32>, tensor<2x16xf32>
}
func.func @peek(%id: tensor<1xi64> {nn.input = "id"}, %e: tensor<7x16xf32> {nn.parameter = "e"},
                %w: tensor<10x16xf32> {nn.parameter = "w"}) -> (tensor<1x10xf32> {nn.output = "v"}) {
  %x = nn.embedding %id, %e : (tensor<1xi64>, tensor<7x16xf32>) -> tensor<1x16xf32>
  %0 = nn.linear %x, %w : (tensor<1x16xf32>, tensor<10x16xf32>) -> tensor<1x10xf32>
  %sum = nn.read @"sum of features" : tensor<10xf32>
  %v = nn.add %0, %sum : (tensor<1x10xf32>, tensor<10xf32>) -> tensor<1x10xf32>
  return %v : tensor<1x10xf32>
}
"""
SUM = "sum of features"
MESHES = [{"tp": 1}, {"tp": 2}, {"tp": 4}, {"dp": 2, "tp": 2}]
IDS, SCALE = np.array([1, 5]), np.ones(1, np.float32)
ID = np.array([2])


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


WEIGHTS = {"e": random(7, 16), "w": random(10, 16, seed=1), "start": random(10, seed=2), "last": random(2, 16, seed=3)}


def expected(calls):
    """The state after that many calls."""
    x = WEIGHTS["e"][IDS]
    total = WEIGHTS["start"].astype(np.float64)
    for _ in range(calls):
        total = total + (x.astype(np.float64) @ WEIGHTS["w"].T).sum(0)
    return {SUM: total, "steps": np.array(3 + calls), "last": x if calls else WEIGHTS["last"]}


def assert_state(state, calls):
    want = expected(calls)
    assert state.keys() == want.keys()
    for name, array in state.items():
        assert np.allclose(array, want[name], atol=1e-4), name
    assert [state[n].dtype for n in want] == [np.float32, np.int64, np.float32]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    (folder / "m.mlir").write_text(MODEL)
    save_file(WEIGHTS, folder / "w.safetensors")
    save_file({"ids": IDS, "scale": SCALE}, folder / "in.safetensors")
    save_file({"id": ID}, folder / "id.safetensors")
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return mw.load(folder / "m.mlir", folder / "w.safetensors")


@pytest.fixture(params=MESHES, ids=str)
def plan(model, request):
    return model.parallelize(mesh=request.param)


def test_state_stays(plan, model):
    assert model.entries == ["main", "peek"]
    before = plan.run(IDS, SCALE)
    with plan.start() as session:
        assert session.entries == model.entries
        assert_state(session.state(), 0)
        kept = []
        for n in range(3):
            y, old = session.run(IDS, SCALE)
            assert np.allclose(y - WEIGHTS["e"][IDS] @ WEIGHTS["w"].T, expected(n)[SUM], atol=1e-4)
            assert np.array_equal(old, expected(n)["last"])
            (v,) = session.run(ID, entry="peek")
            assert np.allclose(v, WEIGHTS["e"][ID] @ WEIGHTS["w"].T + expected(n + 1)[SUM], atol=1e-4)
            kept.append((n + 1, session.state()))
        # States that were handed out stay as they were.
        for n, state in kept:
            assert_state(state, n)
    # `plan.run` starts anew.
    for again in (plan.run(IDS, SCALE), plan.run(ids=IDS, scale=SCALE)):
        assert all(np.array_equal(a, b) for a, b in zip(before, again, strict=True))
    assert plan.check(IDS, SCALE).keys() == {"y", "old"}
    assert plan.check(ID, entry="peek").keys() == {"v"}


def test_reports_of_entries(model):
    plan = model.parallelize(mesh={"tp": 2})
    first, other = plan.report(format="json"), plan.report(format="json", entry="peek")
    assert first == plan.report(format="json", entry="main")
    # Weights and state are those of all entries; what is sent is the entry's.
    memory = [report["memory_per_rank"] for report in (first, other)]
    assert all(memory[0][kind] == memory[1][kind] for kind in ("weights", "packing"))
    assert 0 < other["bytes_per_rank"] < first["bytes_per_rank"]
    assert plan.report(entry="peek") != plan.report() and plan.report() == plan.report()
    with pytest.raises(mw.Error, match="there is no entry 'train'"):
        plan.report(entry="train")


def test_calls_that_fail(plan):
    with plan.start() as session:
        session.run(IDS, SCALE)
        for error, arguments, options in [
            (mw.InputError, (IDS[:1], SCALE), {}),
            (mw.Error, (IDS + 5, SCALE), {}),
            (mw.Error, (IDS, SCALE * np.inf), {"check_finite": True}),
            (mw.Error, (IDS, SCALE), {"entry": "train"}),
        ]:
            with pytest.raises(error):
                session.run(*arguments, **options)
            assert_state(session.state(), 1)
        session.run(IDS, SCALE)
        assert_state(session.state(), 2)


def test_set_state(plan):
    with plan.start() as session:
        session.run(IDS, SCALE)
        now = session.state()
        session.run(IDS, SCALE)
        for bad, said in [
            ({"total": SCALE}, "there is no state 'total'"),
            ({SUM: ID}, "state 'sum of features': expected f32[10], got i64[1]"),
            ({SUM: WEIGHTS["start"].astype(np.float64)}, "expected f32[10], got f64[10]"),
            ({SUM: object()}, "state 'sum of features'"),
        ]:
            with pytest.raises(mw.Error) as raised:
                session.set_state({"steps": np.array(99), **bad})
            assert said in str(raised.value)
            assert_state(session.state(), 2)
        session.set_state(now)
        session.run(IDS, SCALE)
        assert_state(session.state(), 2)
        session.set_state({"steps": np.array(7)})
        assert session.state()["steps"] == 7


def test_save_here_and_start_there(model, plan, tmp_path):
    with plan.start() as session:
        session.run(IDS, SCALE)
        session.save(tmp_path / "state")
        session.run(IDS, SCALE)
        rest = session.state()
    with plan.start(state=tmp_path / "state") as session:
        assert_state(session.state(), 1)
        session.run(IDS, SCALE)
        assert all(np.array_equal(session.state()[n], rest[n]) for n in rest)
    with model.parallelize(mesh={"tp": 3}).start(state=tmp_path / "state") as session:
        session.run(IDS, SCALE)
        assert_state(session.state(), 2)


def test_saved_states_that_do_not_fit(model, plan, tmp_path):
    folder, kept = tmp_path / "state", tmp_path / "kept"
    with plan.start() as session:
        session.save(kept)
        with pytest.raises(mw.Error, match="cannot be created"):
            session.save(tmp_path / "no" / "state")
    (index, *files) = sorted(file.name for file in kept.iterdir())
    assert index == "checkpoint.json" and [f[: f.index(".")] for f in files] == [f"rank-{r}" for r in range(len(files))]

    def said(damage):
        shutil.copytree(kept, folder)
        damage()
        with pytest.raises(mw.Error) as raised:
            plan.start(state=folder)
        shutil.rmtree(folder)
        return str(raised.value)

    def swap(name, old, new):
        data = (folder / name).read_bytes()
        assert old in data
        (folder / name).write_bytes(data.replace(old, new, 1))

    for name in (index, *files):
        for keep in (0, 0.5, 1):
            def cut(path=folder / name, keep=keep):
                os.truncate(path, max(0, int(path.stat().st_size * keep) - 2))
            assert f"state/{name}: " in said(cut)
        assert (f"{folder}: no saved state: it has no {index}" if name == index else f"state/{name}: ") in said((folder / name).unlink)
    last = WEIGHTS["last"][0, :4].tobytes()
    assert f"state/{files[0]}: state 'last' changed since" in said(lambda: swap(files[0], last, last[::-1]))
    assert "state/checkpoint.json: changed since" in said(lambda: swap(index, b'"i64"', b'"f64"'))
    with plan.start(state=kept) as session:
        assert_state(session.state(), 0)


SAVING = """
import sys
sys.path.insert(0, sys.argv[1])
from test_sessions import *

with mw.load(f"{sys.argv[2]}/m.mlir", f"{sys.argv[2]}/w.safetensors").parallelize(mesh={"tp": 2}).start() as session:
    while True:
        session.run(IDS, SCALE)
        session.save(sys.argv[3])
        print("saved", flush=True)
"""


def test_a_process_that_is_killed_leaves_a_whole_state(model, folder, tmp_path):
    (tmp_path / "saving.py").write_text(SAVING)
    plan, steps = model.parallelize(mesh={"tp": 1}), 0
    for attempt in range(4):
        shutil.rmtree(tmp_path / "state", ignore_errors=True)
        saving = subprocess.Popen([sys.executable, tmp_path / "saving.py", pathlib.Path(__file__).parent, folder, tmp_path / "state"],
                                  stdout=subprocess.PIPE, text=True)  # fmt: skip
        for _ in range(2 + attempt):
            assert saving.stdout.readline() == "saved\n"
        time.sleep(0.0007 * attempt)
        saving.kill()
        saving.wait()
        with plan.start(state=tmp_path / "state") as session:
            state = session.state()
            steps = int(state["steps"]) - 3
            assert steps >= 2 + attempt
            assert_state(state, steps)
            session.save(tmp_path / "state")
        assert_state(saved_state(tmp_path / "state"), steps)


OTHERS = {
    "state 'steps': expected i32[], got i64[]": ["sum of features : 10xf32", "steps : i32", "last : 2x16xf32"],
    "state 'last': expected f32[2, 17], got f32[2, 16]": ["sum of features : 10xf32", "steps : i64", "last : 2x17xf32"],
    "has no state 'more'": ["sum of features : 10xf32", "steps : i64", "last : 2x16xf32", "more : i64"],
    "has 'last', which is no state of the program": ["sum of features : 10xf32", "steps : i64"],
}


@pytest.mark.parametrize("words", OTHERS)
def test_saved_states_of_other_models(model, tmp_path, words):
    with model.parallelize(mesh={"tp": 2}).start() as session:
        session.save(tmp_path / "state")
    text = ""
    for name, type in (state.split(" : ") for state in OTHERS[words]):
        text += f'nn.state @"{name}" {{fill = {"0" if type[0] == "i" else "0.0"} : {type.split("x")[-1]}}} : tensor<{type}>\n'
    (tmp_path / "m.mlir").write_text(text + """
        func.func @main(%x: tensor<2xf32> {nn.input = "x"}) -> (tensor<2xf32> {nn.output = "y"}) {
          return %x : tensor<2xf32>
        }""")
    with pytest.raises(mw.Error) as raised:
        mw.load(tmp_path / "m.mlir").parallelize(mesh={"tp": 2}).start(state=tmp_path / "state")
    assert f"state/checkpoint.json: {words}" in str(raised.value)


def test_a_save_that_fails_keeps_the_one_before(model, plan, tmp_path):
    """Also where a process was killed before."""
    stray = tmp_path / "state" / "rank-7.0123456789abcdef.safetensors"
    mine = tmp_path / "state" / "rank-7.safetensors"
    with plan.start() as session:
        session.run(IDS, SCALE)
        session.save(tmp_path / "state")
        before = sorted((tmp_path / "state").iterdir())
        stray.write_text("half")
        session.run(IDS, SCALE)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        for size in (10, 200):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
            try:
                for folder in ("state", "new"):
                    with pytest.raises(mw.Error, match=f"{folder}/.*: cannot be written"):
                        session.save(tmp_path / folder)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert [folder.name for folder in tmp_path.iterdir()] == ["state"]
        assert sorted((tmp_path / "state").iterdir()) == sorted([*before, stray])
        with plan.start(state=tmp_path / "state") as other:
            assert_state(other.state(), 1)
        mine.write_text("a file of mine")
        session.save(tmp_path / "state")
        assert not stray.exists() and mine.read_text() == "a file of mine"
        mine.unlink()
        assert_state(saved_state(tmp_path / "state"), 2)


def test_a_session_that_is_closed(model):
    session = model.parallelize(mesh={"tp": 2}).start(recover=False)
    session.close()
    with pytest.raises(mw.Error, match="the session is closed"):
        session.run(IDS, SCALE)
    assert "closed" in repr(session)
    for option in ({"timeout": 0}, {"threads_per_rank": -1}, {"backend": "telegraph"}, {"graphs": "on"}):
        with pytest.raises(mw.Error):
            model.parallelize(mesh={"tp": 2}).start(**option)


def test_bundles(plan, folder, tmp_path):
    plan.compile(tmp_path / "b")
    bundle = mw.load_bundle(tmp_path / "b")
    assert bundle.entries == ["main", "peek"] and bundle.ranks == plan.ranks
    with bundle.start() as session, plan.start() as other:
        for n in range(2):
            got, want = session.run(ids=IDS, scale=SCALE), other.run(IDS, SCALE)
            assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))
            assert_state(session.state(), n + 1)
        session.save(tmp_path / "state")
    with bundle.start(state=tmp_path / "state") as session:
        (v,) = session.run(ID, entry="peek")
        assert np.allclose(v, WEIGHTS["e"][ID] @ WEIGHTS["w"].T + expected(2)[SUM], atol=1e-4)
    # By the tool, from a bundle and from the program.
    for model in ([tmp_path / "b"], [folder / "m.mlir", f"--weights={folder}/w.safetensors"]):
        state = tmp_path / f"by-{model[0].name}"
        for n in range(2):
            more = [f"--state={state}"] if n else []
            done = launch(*model, f"--inputs={folder}/in.safetensors", f"--save-state={state}", *more)
            assert done.returncode == 0, done.stderr
            assert_state(saved_state(state), n + 1)
        done = launch(*model, "--entry=peek", f"--state={state}", f"--inputs={folder}/id.safetensors",
                      f"--outputs={tmp_path}/v.safetensors")
        assert done.returncode == 0, done.stderr
        assert np.allclose(load_file(tmp_path / "v.safetensors")["v"], v, atol=1e-4)
        done = launch(*model, "--entry=train", f"--inputs={folder}/id.safetensors")
        assert done.returncode == 1 and "no entry 'train'" in done.stderr and "'main', 'peek'" in done.stderr
        done = launch(*model, f"--state={tmp_path}", f"--inputs={folder}/in.safetensors")
        assert done.returncode == 1 and "no saved state" in done.stderr
    with pytest.raises(mw.Error, match="no manifest.json"):
        mw.load_bundle(tmp_path)


def test_check_and_repetitions(folder, tmp_path):
    common = [folder / "m.mlir", f"--weights={folder}/w.safetensors", "--parallelize=mesh=tp=4"]
    for more in (["--check", f"--inputs={folder}/in.safetensors"], ["--check", "--entry=peek", f"--inputs={folder}/id.safetensors"]):
        done = launch(*common, *more)
        assert done.returncode == 0, done.stderr
    done = launch(*common, f"--inputs={folder}/in.safetensors", f"--save-state={tmp_path}/s", env={"MESHWRIGHT_RUNS": "3"})
    assert done.returncode == 0, done.stderr
    assert_state(saved_state(tmp_path / "s"), 1)


PROCESS = """
import os, sys
sys.path.insert(0, sys.argv[1])
from test_sessions import *

rank, folder = int(os.environ["OMPI_COMM_WORLD_RANK"]), sys.argv[2]
def attempt(name, call):
    try:
        call()
    except mw.Error as error:
        print(f"{name} on {rank}: {error}", flush=True)
    else:
        print(f"{name} on {rank}: fine", flush=True)

model = mw.load(f"{folder}/m.mlir", f"{folder}/w.safetensors")
with model.parallelize(mesh={"tp": 2}).start(backend="mpi", timeout=20) as session:
    session.run(IDS, SCALE)
    # After these failures the session goes on, in both processes.
    for name, call in {
        "nan": lambda: session.run(IDS, SCALE * np.inf, check_finite=True),
        "entry": lambda: session.run(IDS, SCALE) if rank else session.run(ID, entry="peek"),
        "folder": lambda: session.save("/nonexistent/folder/state"),
    }.items():
        attempt(name, call)
        assert_state(session.state(), 1)
    session.save(f"{folder}/state")
    session.run(IDS, SCALE)
    session.set_state({"steps": np.array(7)})
    assert session.state()["steps"] == 7
    # After these it does not.
    if sys.argv[3] == "kill" and rank:
        os.kill(os.getpid(), 9)
    attempt("range", lambda: session.run(IDS + 5 * rank, SCALE))
    attempt("state", session.state)
"""


@pytest.mark.parametrize("how", ["fail", "kill"])
def test_processes(tmp_path, how):
    runner = pathlib.Path(tool()).with_name("meshwright-mpirun")
    backends = list(pathlib.Path(tool()).parent.parent.glob("lib*/libMeshwrightBackend_mpi.so"))
    if shutil.which("mpirun") is None or not backends:
        pytest.skip("no MPI")
    (tmp_path / "m.mlir").write_text(MODEL)
    (tmp_path / "s.py").write_text(PROCESS)
    save_file(WEIGHTS, tmp_path / "w.safetensors")
    done = subprocess.run([runner, "-np", "2", sys.executable, tmp_path / "s.py", pathlib.Path(__file__).parent, tmp_path, how],
                          capture_output=True, text=True, timeout=TIMEOUT)  # fmt: skip
    said = done.stdout
    for line in [
        "nan on 0: rank 0: nn.mul", "nan on 1: rank 0: nn.mul",
        "entry on 0: rank 1: expected to run entry 'peek' as on rank 0, got entry 'main'",
        "entry on 1: rank 1: expected to run entry 'peek' as on rank 0, got entry 'main'",
        "folder on 0: /nonexistent/folder/state: cannot be created",
        "folder on 1: the call failed in another process",
        "range on 0: rank 1: nn.embedding" if how == "fail" else "range on 0: rank 1: ",
        "state on 0: a run failed before, after which processes cannot meet again",
    ]:  # fmt: skip
        assert line in said, said + done.stderr
    assert "its process" in said or how == "fail"
    # The last saved state is whole.
    assert_state(saved_state(tmp_path / "state"), 1)


def test_many_calls(model):
    """Calls do not grow memory."""
    def memory():
        return int(next(line for line in open("/proc/self/status") if line.startswith("RssAnon")).split()[1])

    with model.parallelize(mesh={"tp": 2}).start() as session:
        for _ in range(300):
            session.run(IDS, SCALE)
        before = memory()
        for _ in range(3000):
            session.run(IDS, SCALE)
        # Sanitizers keep freed memory.
        assert memory() - before < 2048 or "MESHWRIGHT_SANITIZER" in os.environ
        assert session.state()["steps"] == 3 + 3300
