# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Faulty programs that the placement proof accepts compute what the right ones do.

A program is partitioned, faults of all kinds are made in it, one for each mutant, and the proof is
asked. Each mutant that it accepts runs on the real ranks, on five inputs without zeros, beside the
program without the fault.

As a program it runs longer:
  placement_mutants.py [--mutants COUNT] [--right COUNT] [--seed SEED]
"""
import argparse
import collections
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings

import meshwright as mw
import numpy as np
import torch
from apart import Ended, call_apart
from meshwright import Model, _core
from meshwright.errors import unwrap
from random_programs import NUMPY, generate

TOOL = shutil.which("sharding-opt")
PLUGIN = TOOL and os.path.join(os.path.dirname(os.path.dirname(TOOL)), "test", "lib",
                               "libMeshwrightTestPasses.so")
INPUTS = 5
TIMEOUT = 120
#: Of the largest entry, as everywhere.
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 2.5e-3, "float64": 1e-12}
#: The entry that runs is the first.
ENTRY = re.compile(r"func\.func @(\w+)")
COUNTS = re.compile(r"^\S+ (\S+): (\d+) of (\d+) caught, (\d+) make another program")


@dataclasses.dataclass
class Subject:
    """A partitioned program, and how to make its inputs."""
    name: str
    text: str
    #: Arrays by name for a number from 0 on.
    data: object


def opt(text, *arguments, check=True):
    done = subprocess.run([TOOL, "-", *arguments], input=text, text=True, capture_output=True)
    if check and done.returncode:
        raise RuntimeError(done.stderr)
    return done


def numbers(shape, dtype, seed, name):
    """Numbers without a zero; indices are small, and a learning rate is positive."""
    rng = np.random.default_rng([seed, *name.encode()])
    dtype = NUMPY[dtype]
    if np.dtype(dtype).kind in "iub":
        return np.asarray(rng.integers(1, 3, shape), dtype)
    signs = [1] if name == "lr" else [-1, 1]
    return np.asarray((0.25 + rng.random(shape)) * rng.choice(signs, shape), dtype)


# Programs

def forward(seed):
    """A random program with random shardings."""
    program = generate(seed, 9)
    # States are those of training steps.
    program.states = []
    if program.options:
        spelt = ",".join(f"{axis}={size}" for axis, size in program.mesh.items())
        options = " ".join([f"mesh={spelt}", *(f"{k.replace('_', '-')}={v}"
                                               for k, v in program.options.items())])
        passes = [f"--parallelize={options}"]
    else:
        passes = ["--propagate-shardings", "--partition", "--canonicalize", "--cse"]
    text = opt(program.text(sharded=True), *passes).stdout

    def data(number):
        return dataclasses.replace(program, seed=program.seed + 1000003 * number).data()
    return Subject(f"forward {seed}", text, data)


class Mlp(torch.nn.Module):
    def __init__(self, bias=True, inner=8):
        super().__init__()
        self.up, self.down = torch.nn.Linear(6, inner, bias), torch.nn.Linear(inner, 6, bias)
        self.scale = torch.nn.Parameter(torch.ones(6))

    def forward(self, x, y):
        h = self.down(torch.nn.functional.gelu(self.up(x))) * self.scale + x
        return (h - y).square().mean() + 0.1 * h.sum(1).tanh().mean()


class Attention(torch.nn.Module):
    """One head or several, without a batch or with one. The loss begins with a constant."""

    def __init__(self, heads=2, causal=True):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = torch.nn.Linear(8, 24), torch.nn.Linear(8, 8)

    def forward(self, x, y):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        h = self.out(a.transpose(1, 2).reshape(b, t, d))
        return 1 + (torch.ones_like(y) * (h - y).abs()).sum() / y.numel()


class Experts(torch.nn.Module):
    """Two layers, in which each token goes to two of four experts. Wide tokens go to a rank once."""

    def __init__(self, width):
        super().__init__()
        self.routers = torch.nn.ModuleList(torch.nn.Linear(width, 4) for _ in range(2))
        self.up = torch.nn.ParameterList(torch.randn(4, 8, width) for _ in range(2))
        self.down = torch.nn.ParameterList(torch.randn(4, width, 8) for _ in range(2))

    def layer(self, x, number):
        weights, chosen = self.routers[number](x).softmax(-1).topk(2)
        h = torch.einsum("td,tkfd->tkf", x, self.up[number][chosen])
        h = torch.einsum("tkf,tkdf->tkd", torch.nn.functional.silu(h), self.down[number][chosen])
        return x + (h * weights[..., None]).sum(1)

    def forward(self, x, y):
        h = x.flatten(0, 1)
        for number in range(2):
            h = self.layer(h, number)
        return (h.view(x.shape) - y).square().mean()


MESHES = [
    (dict(mesh={"dp": 2}), {}), (dict(mesh={"tp": 2}), {}), (dict(mesh={"dp": 2, "tp": 2}), {}),
    (dict(mesh={"dp": 3}, shard_optimizer="on"), {}),
    (dict(mesh={"tp": 4}, sequence_parallel="on"), {}),
    (dict(mesh={"gtp": 2}), {}), (dict(mesh={"gtp": 3}, recompute="full"), {}),
    (dict(mesh={"dp": 2, "gtp": 2}, gtp_align=2), {}), (dict(mesh={"gtp": 2, "tp": 2}), {}),
    (dict(mesh={"dp": 2, "gtp": 2}, gtp_reduce="bf16"), {}),
    (dict(mesh={"gtp": 2}, gtp_gather="mxfp8"), dict(inner=80)),
    (dict(mesh={"dp": 2, "gtp": 2}, gtp_gather="nvfp4", recompute="full"), dict(inner=40)),
    (dict(mesh={"tp": 2, "gtp": 2}, gtp_gather="nvfp4", gtp_reduce="bf16"), dict(inner=80)),
    (dict(mesh={"tp": 2}, sequence_parallel="off", recompute="full", shard_saved="on"), {}),
    (dict(mesh={"ring": 2}, context_parallel={"ring": "ring"}), dict(attends=True)),
    (dict(mesh={"ring": 4}, context_parallel={"ring": "ring"}), dict(attends=True)),
    (dict(mesh={"dp": 2, "ring": 2}, context_parallel={"ring": "ring"}), dict(attends=True)),
]

EXPERT_MESHES = [
    dict(mesh={"ep": 2}), dict(mesh={"tp": 2}), dict(mesh={"dp": 2, "ep": 2}),
    dict(mesh={"dp": 4}, expert_parallel="dp"), dict(mesh={"ep": 2}, recompute="full"),
    dict(mesh={"dp": 2}, expert_parallel="dp", expert_capacity=1.0), dict(mesh={"dp": 2}, expert_parallel="dp"),
    dict(mesh={"dp": 2, "tp": 2}, expert_parallel="dp"), dict(mesh={"dp": 3}, expert_parallel="dp"),
]


def arrays(parsed, number):
    """An array for each name. Several parameters may be slices of one array."""
    shapes, dtypes = {}, {}
    for port in [*parsed.parameters, *parsed.entries[0].inputs]:
        ends = [o + n for o, n in zip(port.offsets or [0] * len(port.shape), port.shape, strict=True)]
        shapes[port.name] = np.maximum(ends, shapes.get(port.name, ends)).tolist()
        dtypes[port.name] = port.dtype
    return {name: numbers(shape, dtypes[name], number, name) for name, shape in shapes.items()}


def step(seed):
    """A forward pass with a loss, its gradients, or a training step, of a small module."""
    rng = np.random.default_rng([seed, 7])
    options, needs = MESHES[rng.integers(len(MESHES))]
    attends = "inner" not in needs and (needs.get("attends") or rng.random() < 0.5)
    batch, tokens = int(rng.choice([1, 1, 2, 3, 4])), int(rng.choice([4, 5, 8]))
    torch.manual_seed(seed)
    module = Attention(int(rng.choice([1, 2, 4])), bool(rng.random() < 0.5)) if attends else Mlp(
        bool(rng.random() < 0.7), needs.get("inner", 8))
    shape = (batch, tokens, 8) if attends else (batch, tokens, 6)
    model = mw.from_torch(module.train(), (torch.randn(shape), torch.randn(shape)), training=True)
    kind = rng.choice(["gradients", "sgd", "adamw", "microbatches"])
    if kind == "gradients":
        model = model.differentiate()
    elif kind == "sgd":
        model = model.train(mw.SGD(momentum=0.9))
    else:
        parts = 2 if kind == "microbatches" and batch % 2 == 0 else 1
        model = model.train(mw.AdamW(), microbatches=parts, clip_norm=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text = model.parallelize(**options).ir(phase="spmd")
    name = f"step {seed}: {type(module).__name__} {shape} {kind} {options}"
    return Subject(name, text, None)


def compact(text):
    """The program on the rows that exist."""
    return opt(text, "--pass-pipeline=builtin.module(func.func(compact-rows))").stdout


def experts(seed):
    """A forward pass, or a training step, of two layers of experts, on all rows, or on the existing rows alone."""
    rng = np.random.default_rng([seed, 8])
    options = EXPERT_MESHES[rng.integers(len(EXPERT_MESHES))]
    torch.manual_seed(seed)
    shape = (int(rng.choice([3, 4])), 5, int(rng.choice([6, 24])))
    model = mw.from_torch(Experts(shape[-1]).train(), (torch.randn(shape), torch.randn(shape)), training=True)
    trains = bool(rng.random() < 0.7)
    if trains:
        model = model.train(mw.SGD())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text = model.parallelize(**options).ir(phase="spmd")
    exist = bool(rng.random() < 0.5)
    return Subject(f"experts {seed}: {shape} {'step' if trains else 'loss'}{' rows' if exist else ''} {options}",
                   compact(text) if exist else text, None)


def subjects(seed):
    """Programs without an end: two of three are forward passes."""
    while True:
        make = experts if seed % 9 == 3 else step if seed % 3 == 0 else forward
        try:
            yield make(seed)
        except (mw.Error, RuntimeError) as error:
            yield Subject(f"{make.__name__} {seed}", "", str(error))
        seed += 1


# Runs

def compute(text, data):
    """The results for each input; in this process."""
    warnings.simplefilter("ignore")
    parsed = unwrap(_core.Program.parse(text, "mutant.mlir"))
    results = []
    for number in range(INPUTS):
        given = data(number) if data else arrays(parsed, number)
        names = {port.name for port in parsed.parameters}
        model = Model(parsed, {name: a for name, a in given.items() if name in names})
        plan = model.parallelize()
        inputs = [given[name] for name in model.inputs]
        if "nn.state @" not in text:
            results.append([np.asarray(a) for a in plan.run(*inputs)])
            continue
        with plan.start() as session:
            out = [np.asarray(a) for a in [*session.run(*inputs), *session.run(*inputs)]]
            state = session.state()
            results.append([*out, *(np.asarray(state[name]) for name in sorted(state))])
    return results


def run(text, data):
    """The results in a process of its own, or why there are none: it may crash or hang."""
    try:
        return call_apart(lambda: compute(text, data), TIMEOUT)
    except (mw.Error, Ended) as error:
        return f"error: {error}"


def differ(got, want):
    """Whether results differ by more than the bar on any input; NaN counts."""
    if not isinstance(got, list):
        return True
    for one, other in zip(got, want, strict=True):
        for a, b in zip(one, other, strict=True):
            if a.shape != b.shape or a.dtype != b.dtype:
                return True
            if a.dtype.kind not in "fV":
                if a.tobytes() != b.tobytes():
                    return True
                continue
            tolerance = TOLERANCE[str(a.dtype)]
            a, b = a.astype(np.float64), b.astype(np.float64)
            finite = np.isfinite(b)
            if (np.isfinite(a) != finite).any() or (np.isnan(a) != np.isnan(b)).any():
                return True
            bound = tolerance * np.abs(b[finite]).max(initial=1e-30)
            if (np.abs(a - b)[finite] > bound).any():
                return True
    return False


@dataclasses.dataclass
class Tally:
    programs: int = 0
    mutants: int = 0
    rejected: int = 0
    #: Accepted mutants that compute the same, that make another program, and that compute something else.
    same: int = 0
    other: int = 0
    survivors: list = dataclasses.field(default_factory=list)
    kinds: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    refused: list = dataclasses.field(default_factory=list)


def try_subject(subject, count, seed, tally):
    """Makes `count` mutants of each kind."""
    entry = ENTRY.search(subject.text)[1]
    with tempfile.TemporaryDirectory() as folder:
        done = opt(subject.text, f"--load-pass-plugin={PLUGIN}", "-o", os.devnull,
                   "--pass-pipeline=builtin.module(test-mutate-placement"
                   f"{{count={count} seed={seed} entry={entry} write={folder}}})", check=False)
        if done.returncode:
            tally.refused.append(f"{subject.name}: {done.stderr.splitlines()[0]}")
            return
        for line in filter(None, map(COUNTS.match, done.stdout.splitlines())):
            kind, rejected, made = line[1], int(line[2]), int(line[3])
            tally.kinds[kind] += made
            tally.mutants += made
            tally.rejected += rejected
        accepted = [file.read_text() for file in sorted(pathlib.Path(folder).iterdir())]
    if not accepted:
        return
    want = run(subject.text, subject.data)
    if not isinstance(want, list):
        raise RuntimeError(f"{subject.name} does not run: {want}")
    for text in accepted:
        got = run(text, subject.data)
        if not differ(got, want):
            tally.same += 1
            continue
        what = text.splitlines()[0]
        if what.startswith("// other "):
            tally.other += 1
        else:
            tally.survivors.append((subject.name, what, text))


def campaign(mutants, seed, count=3, budget=float("inf"), log=None,
             verbose=False, right=0):
    """Tries programs until there are so many of them and of their mutants."""
    tally, deadline = Tally(), time.monotonic() + budget
    for subject in subjects(seed):
        if (tally.mutants >= mutants and tally.programs >= right) or time.monotonic() > deadline:
            return tally
        tally.programs += 1
        before, refused = len(tally.survivors), len(tally.refused)
        if subject.text:
            try_subject(subject, count, seed, tally)
        else:
            tally.refused.append(f"{subject.name}: {subject.data.splitlines()[0]}")
        if log:
            for line in tally.refused[refused:]:
                print(f"refused: {line}", file=log, flush=True)
            for name, what, text in tally.survivors[before:]:
                print(f"survivor in {name}: {what}\n{text if verbose else ''}", file=log, flush=True)
            if tally.programs % 20 == 0:
                print(summary(tally), file=log, flush=True)


def summary(tally):
    return (f"{tally.programs} programs, {tally.mutants} mutants: {tally.rejected} rejected, "
            f"{tally.same} compute the same, {tally.other} make another program, "
            f"{len(tally.survivors)} change a result; {len(tally.refused)} programs refused")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutants", type=int, default=20000)
    parser.add_argument("--right", type=int, default=500, help="at least as many right programs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=3, help="mutants of each kind in a program")
    parser.add_argument("--budget", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("--verbose", action="store_true", help="print the programs of survivors")
    given = parser.parse_args()
    tally = campaign(given.mutants, given.seed, given.count, given.budget, sys.stdout,
                     given.verbose, given.right)
    for kind, made in sorted(tally.kinds.items()):
        print(f"{kind:18} {made:6}")
    print(summary(tally))
    return bool(tally.survivors)


if __name__ == "__main__":
    sys.exit(main())
