# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Saves that are interrupted, and that meet: the old or the new state is whole."""
import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import threading

import meshwright as mw
import numpy as np
import pytest
from harness import TIMEOUT, launch, saved_state, tool
from safetensors.numpy import save_file
from test_sessions import IDS, MODEL, SCALE, WEIGHTS

# The states of two ranks: one that both shard, a number, and one that both hold.
FAULTS = pathlib.Path(__file__).with_name("save_faults.c")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A bundle, its inputs, a state after one call and one after two, and the library of faults."""
    place = tmp_path_factory.mktemp("saves")
    (place / "m.mlir").write_text(MODEL)
    save_file(WEIGHTS, place / "w.safetensors")
    save_file({"ids": IDS, "scale": SCALE}, place / "in.safetensors")
    plan = mw.load(place / "m.mlir", place / "w.safetensors").parallelize(mesh={"tp": 2})
    plan.compile(place / "b")
    with plan.start() as session:
        for name in ("old", "new"):
            session.run(IDS, SCALE)
            session.save(place / name)
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", place / "faults.so", FAULTS, "-ldl"], check=True)
    return place


def save(place, folder, fault=None):
    """Makes the state after one call that after two, and saves it to the folder."""
    env = {"LD_PRELOAD": str(place / "faults.so"), "SAVE_FAULT": f"{folder} {fault}"} if fault else {}
    return launch(place / "b", f"--inputs={place}/in.safetensors", f"--state={place}/old", f"--save-state={folder}", env=env)


def equal(state, folder):
    return all(np.array_equal(array, state[name]) for name, array in saved_state(folder).items())


@pytest.mark.parametrize("kind", ["eio", "enospc", "before", "after", "half"])
@pytest.mark.parametrize("is_first", [False, True], ids=["again", "first"])
def test_each_system_call(place, tmp_path, kind, is_first):
    """Of a save to a folder with a state, and to one that is not there."""
    if is_first and kind in ("enospc", "half"):
        return
    folder, struck = tmp_path / "state", []
    for number in range(1, 200):
        shutil.rmtree(folder, ignore_errors=True)
        if not is_first:
            shutil.copytree(place / "old", folder)
        done = save(place, folder, f"{number} {kind}")
        line = next((line for line in done.stderr.splitlines() if line.startswith("struck")), None)
        if line is None:
            assert done.returncode == 0 and equal(saved_state(folder), place / "new")
            break
        struck.append(line.split()[2])
        ends = kind in ("before", "after", "half")
        assert done.returncode == 99 if ends else done.returncode in (0, 1), (line, done.stderr)
        if done.returncode == 1:
            assert f"error: {folder}" in done.stderr, (line, done.stderr)
        if is_first and not (folder / "checkpoint.json").exists():
            assert done.returncode != 0, line
        else:
            state = saved_state(folder, is_clean=False)
            assert equal(state, place / "new") or (not is_first and done.returncode != 0 and equal(state, place / "old")), line
            # A session starts from it.
            if number % 5 == 0:
                assert launch(place / "b", f"--inputs={place}/in.safetensors", f"--state={folder}").returncode == 0, line
        # The next save is not in its way, and deletes its files.
        if number % 3 == 0:
            done = save(place, folder)
            assert done.returncode == 0 and equal(saved_state(folder), place / "new"), (line, done.stderr)
    assert {"open", "write", "fsync", "close", "rename", "unlink", "mkdir", "fcntl"} <= set(struck)


def test_a_file_system_without_locks(place, tmp_path):
    """A save deletes only the files that its own index replaces."""
    folder = tmp_path / "state"
    for number in range(1, 20):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(place / "old", folder)
        stray = folder / "rank-7.0123456789abcdef.safetensors"
        stray.write_text("of another process")
        done = save(place, folder, f"{number} enolck")
        if " fcntl" in done.stderr:
            assert done.returncode == 0, done.stderr
            assert stray.exists()
            stray.unlink()
            assert equal(saved_state(folder), place / "new")
            return
    pytest.fail("no lock was taken")


@pytest.fixture
def sessions(place):
    plan = mw.load(place / "m.mlir", place / "w.safetensors").parallelize(mesh={"tp": 2})
    with plan.start(state=place / "new") as first, plan.start(state=place / "new") as second:
        yield first, second


def save_until(session, folder, words):
    """Saves until one fails with these words, or says so."""
    for _ in range(1000):
        try:
            session.save(folder)
        except mw.Error as error:
            assert words in str(error)
            return
    pytest.fail(f"no save failed: {words}")


def beside(work):
    """Repeats `work` on another thread, up to the end of a block."""
    @contextlib.contextmanager
    def block():
        ends = threading.Event()

        def repeat():
            while not ends.is_set():
                with contextlib.suppress(mw.Error, FileNotFoundError):
                    work()

        thread = threading.Thread(target=repeat)
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join()

    return block()


def test_two_sessions_of_a_process(place, sessions, tmp_path):
    first, second = sessions
    with beside(lambda: second.save(tmp_path / "state")):
        save_until(first, tmp_path / "state", f"{tmp_path}/state: another session of this process saves there")
    assert equal(saved_state(tmp_path / "state"), place / "new")


def test_a_lock_that_is_deleted(place, sessions, tmp_path):
    session, lock = sessions[0], tmp_path / "state" / "checkpoint.lock"
    with beside(lock.unlink):
        save_until(session, tmp_path / "state", "checkpoint.lock: deleted by another program during the save")
    session.save(tmp_path / "state")
    assert equal(saved_state(tmp_path / "state"), place / "new")


def test_locks_that_are_no_files(sessions, tmp_path):
    session, lock = sessions[0], tmp_path / "checkpoint.lock"
    lock.mkdir()
    with pytest.raises(mw.Error, match="checkpoint.lock: cannot be locked: Is a directory"):
        session.save(tmp_path)
    lock.rmdir()
    lock.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(mw.Error, match="checkpoint.lock: cannot be locked: Too many levels of symbolic links"):
        session.save(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_at_random():
    """Signals, killed ranks, limits on files, and savers that meet."""
    script = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "interrupt_saves.py"
    path = f"{pathlib.Path(tool()).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run([sys.executable, script, "--saves=40", "--pairs=8", "--seed=0"], capture_output=True, text=True,
                          timeout=TIMEOUT, env={**os.environ, "PATH": path})
    assert done.returncode == 0 and "no state lost" in done.stdout, done.stdout + done.stderr
