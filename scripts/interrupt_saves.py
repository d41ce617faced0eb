# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Interrupts saves at random, and lets savers meet. No saved state may be lost.

    scripts/interrupt_saves.py                         1,000 saves and 200 pairs of savers
    scripts/interrupt_saves.py --saves=32 --pairs=8 --seed=0

Each save goes to the folder of the saves before it. Behind each one the folder has to have the state
before or the state after, whole. A save is interrupted by SIGTERM, SIGINT or SIGKILL, by a limit on the
size of files, and, where there is mpirun, by the death of a rank of two or of mpirun. A pair of savers
starts at one time, with a process that reads: the saver that loses has to name the other one.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np
from safetensors.numpy import load_file, save_file

# Both ranks have a part of the sum. All numbers are integers, so the state after n calls is known.
SIZE = 1 << 16
MODEL = f"""
nn.state @sum {{fill = 0.0 : f32}} : tensor<{SIZE}xf32>
nn.state @steps {{fill = 0 : i64}} : tensor<i64>
func.func @main(%x: tensor<1x4xf32> {{nn.input = "x"}}, %w: tensor<{SIZE}x4xf32> {{nn.parameter = "w"}})
    -> (tensor<i64> {{nn.output = "steps"}}, tensor<{SIZE}xf32> {{nn.output = "sum"}}) {{
  %y = nn.linear %x, %w : (tensor<1x4xf32>, tensor<{SIZE}x4xf32>) -> tensor<1x{SIZE}xf32>
  %m = nn.reduce sum %y dims [0] : (tensor<1x{SIZE}xf32>) -> tensor<{SIZE}xf32>
  %before = nn.read @sum : tensor<{SIZE}xf32>
  %after = nn.add %before, %m : (tensor<{SIZE}xf32>, tensor<{SIZE}xf32>) -> tensor<{SIZE}xf32>
  nn.write @sum, %after : tensor<{SIZE}xf32>
  %n = nn.read @steps : tensor<i64>
  %one = nn.constant dense<1> : tensor<i64>
  %next = nn.add %n, %one : (tensor<i64>, tensor<i64>) -> tensor<i64>
  nn.write @steps, %next : tensor<i64>
  return %n, %before : tensor<i64>, tensor<{SIZE}xf32>
}}
"""
WEIGHTS = np.random.default_rng(0).integers(0, 8, (SIZE, 4)).astype(np.float32)
STEP = WEIGHTS.sum(1)
TIMEOUT = 300
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)


class Lost(Exception):
    """A state that is not whole."""


def count_calls(steps, total, where):
    """After how many calls a state has these values."""
    if not np.array_equal(total, STEP * int(steps)):
        raise Lost(f"{where}: the sum is not that after {int(steps)} calls")
    return int(steps)


class Saves:
    def __init__(self, folder, seed):
        self.folder, self.random = pathlib.Path(folder), random.Random(seed)
        self.state = self.folder / "state"
        (self.folder / "m.mlir").write_text(MODEL)
        save_file({"w": WEIGHTS}, self.folder / "w.safetensors")
        save_file({"x": np.ones((1, 4), np.float32)}, self.folder / "in.safetensors")
        self.bundle = self.folder / "bundle"
        run(["sharding-compile", self.folder / "m.mlir", f"--weights={self.folder}/w.safetensors", "--parallelize=mesh=tp=2", "-o", self.bundle])
        run(self.command())
        self.calls = self.read()
        #: How long a save takes, from its lock to the end of the process, by its kind.
        self.seconds = collections.defaultdict(lambda: 0.02)
        self.counts = collections.Counter()
        self.ranks = []

    def command(self, *more):
        start = [f"--state={self.state}"] if self.state.exists() else []
        return ["sharding-run", self.bundle, f"--inputs={self.folder}/in.safetensors", f"--save-state={self.state}", *start, *more]

    def read(self):
        """The number of calls before the state in the folder, read as docs/checkpoints.md says."""
        index = json.loads((self.state / "checkpoint.json").read_text())
        states, files = {}, {}
        for name, state in index["states"].items():
            states[name] = np.full(state["shape"], -1.0)
            for part in state["parts"]:
                file = part["file"]
                try:
                    files[file] = files.get(file) or load_file(self.state / file)
                except OSError as error:
                    raise Lost(f"{self.state}: {error}") from error
                place = tuple(slice(o, o + n) for o, n in zip(part["offset"], part["shape"], strict=True))
                states[name][place] = files[file][name]
        return count_calls(states["steps"], states["sum"], self.state)

    def check(self, calls, what):
        """The state is that before or that after."""
        now = self.read()
        if now not in calls:
            raise Lost(f"{what}: {now} calls, expected one of {calls}")
        self.calls = now
        return now

    def read_lock(self):
        """The process that saves, or was killed as it did."""
        with contextlib.suppress(OSError):
            return (self.state / "checkpoint.lock").read_text().strip()
        return ""

    def await_lock(self, process, old):
        """Waits until the process begins to save. Returns false if it ends before."""
        while process.poll() is None:
            if self.read_lock() not in ("", old):
                return True
        return False

    def interrupt(self, kind):
        """One save."""
        limit = self.random.randrange(3 * SIZE) if kind == "no space" else None
        more = ["--backend=mpi", "--timeout=10"] if kind == "rank" else []
        command = self.command(*more)
        if kind == "rank":
            command = ["meshwright-mpirun", "-np", "2", *command]
        def prepare():
            for number in SIGNALS[:2]:
                signal.signal(number, signal.SIG_DFL)
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        before, old = self.calls, self.read_lock()
        process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=prepare, text=True)
        what, struck = f"save {sum(self.counts.values())}, {kind}", False
        if limit is None and self.await_lock(process, old):
            begin = time.monotonic()
            delay = self.random.random() * 1.5 * self.seconds[kind]
            while time.monotonic() < begin + delay and process.poll() is None:
                pass
            if process.poll() is None:
                what += f", {1000 * delay:.2f} ms behind the lock"
                struck = self.strike(process, kind)
            else:
                self.seconds[kind] = 0.9 * self.seconds[kind] + 0.1 * (time.monotonic() - begin)
        said = process.communicate(timeout=TIMEOUT)[1]
        status = process.returncode
        # Ranks may outlive mpirun.
        end = time.monotonic() + 30
        while any(map(is_rank, self.ranks)) and time.monotonic() < end:
            time.sleep(0.01)
        self.ranks = []
        if status == 0 and not struck and self.read() != before + 1:
            raise Lost(f"{what}: the save succeeded, and the state is the one before")
        if status != 0 and not struck and limit is None:
            raise Lost(f"{what}: {said}")
        now = self.check((before, before + 1), what)
        self.counts[f"{kind}: {'not hit' if not struck and status == 0 else 'the old state' if now == before else 'the new state'}"] += 1

    def strike(self, process, kind):
        victim = process.pid
        if kind == "rank":
            ranks = self.ranks = [pid for pid in children(process.pid) if is_rank(pid)]
            number = self.random.choice(SIGNALS)
            if ranks and self.random.random() < 0.8:
                victim, number = self.random.choice(ranks), signal.SIGKILL
        else:
            number = getattr(signal, kind)
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, number)
            return True
        return False

    def meet(self):
        """Two savers and a reader."""
        before, outputs = self.calls, self.folder / "out.safetensors"
        reader = ["sharding-run", self.bundle, f"--inputs={self.folder}/in.safetensors", f"--state={self.state}", f"--outputs={outputs}"]
        started = []
        for command in (self.command(), self.command(), reader):
            started.append(subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True))
            time.sleep(self.random.random() * 0.004)
        said = [process.communicate(timeout=TIMEOUT)[1] for process in started]
        first, second, third = started
        statuses = [first.returncode, second.returncode]
        if third.returncode != 0:
            raise Lost(f"a reader beside two savers: {said[2]}")
        seen = load_file(outputs)
        count_calls(seen["steps"], seen["sum"], "a reader beside two savers")
        if 0 not in statuses:
            raise Lost(f"both savers failed: {said[:2]}")
        for status, text, other in zip(statuses, said, (second, first), strict=False):
            if status != 0 and not re.search(rf"process {other.pid} on \S+ saves there", text):
                raise Lost(f"the saver that lost does not name process {other.pid}: {text}")
        self.check((before + 1, before + 2), "a pair of savers")
        self.counts["pair: " + ("one lost" if statuses != [0, 0] else "one after the other")] += 1


def run(command):
    subprocess.run(list(map(str, command)), check=True, timeout=TIMEOUT)


def children(process):
    with contextlib.suppress(OSError):
        return [int(p) for task in pathlib.Path(f"/proc/{process}/task").iterdir() for p in (task / "children").read_text().split()]
    return []


def is_rank(process):
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{process}/comm").read_text().startswith("sharding-run")
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--saves", type=int, default=1000)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    kinds = ["SIGTERM", "SIGINT", "SIGKILL", "no space"]
    tool = shutil.which("sharding-run")
    if shutil.which("mpirun") and tool and any(pathlib.Path(tool).parents[1].glob("lib*/libMeshwrightBackend_mpi.so")):
        kinds.append("rank")
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        saves = Saves(folder, options.seed)
        try:
            for number in range(options.saves):
                saves.interrupt(kinds[number % len(kinds)])
            for _ in range(options.pairs):
                saves.meet()
        except Lost as error:
            print(f"LOST: {error}\nin the folder: {sorted(p.name for p in saves.state.iterdir())}")
            return 1
    for name, count in sorted(saves.counts.items()):
        print(f"{count:6} {name}")
    print(f"{options.saves} saves and {options.pairs} pairs, seed {options.seed}: no state lost ({time.monotonic() - begin:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
