# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Random programs with random shardings compute what they compute on one rank.

As a program it runs longer, or one seed again; what fails is made smaller:
  test_random_programs.py --long COUNT [--first SEED] [--length OPS]
  test_random_programs.py --seed SEED
"""
import argparse
import copy
import re
import sys
import time

import numpy as np
import pytest
from apart import Outcome, run_apart
from meshwright import Error, Model, _core
from meshwright.errors import unwrap
from random_programs import Argument, generate

TOLERANCE = 1e-4
#: Shardings that no layout of the value can have: said, not run.
REFUSED = re.compile(r"cuts dimension \d+ of size \d+ across its factors")


def model_of(program, arrays, sharded):
    parsed = unwrap(_core.Program.parse(program.text(sharded), "random.mlir"))
    names = {port.name for port in parsed.parameters}
    model = Model(parsed, {name: a for name, a in arrays.items() if name in names})
    return model, [arrays[name] for name in model.inputs]


def call(plan, program, inputs):
    """The results; of a program with states those of two calls, then the states by name."""
    if not program.states:
        return plan.run(*inputs)
    with plan.start() as session:
        results = [*session.run(*inputs), *session.run(*inputs)]
        state = session.state()
        return [*results, *(state[name] for name in sorted(state))]


def run(program):
    """The outcome of one program; in this process."""
    arrays = program.data()
    model, inputs = model_of(program, arrays, sharded=False)
    want = call(model.parallelize(mesh={"x": 1}), program, inputs)
    try:
        model, inputs = model_of(program, arrays, sharded=True)
        # Chunks and asynchronous collectives, wherever there can be any.
        if program.options:
            plan = model.parallelize(mesh=program.mesh, overlap="on", **program.options)
        else:
            plan = model.parallelize(data_parallel="none", tensor_parallel="none", overlap="on")
    except Error as error:
        return Outcome("refused" if REFUSED.search(str(error)) else "error", str(error))
    got = call(plan, program, inputs)
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        g, w = g.astype(np.float64), w.astype(np.float64)
        # Zero times infinity in padding joins sums that are infinite without it
        # (docs/rationale/padding.md, "Conditional states").
        same = (g == w) | (np.isnan(g) & ~np.isfinite(w))
        finite = np.isfinite(w)
        bound = TOLERANCE * max(1e-3, np.abs(w[finite]).max(initial=0))
        with np.errstate(invalid="ignore"):
            wrong = ~same & ~(finite & np.isfinite(g) & (np.abs(g - w) <= bound))
        if wrong.any():
            place = tuple(int(k) for k in np.argwhere(wrong)[0])
            return Outcome("differs", f"result {i} at {place}: {g[place]}, on one rank {w[place]} "
                                      f"({wrong.sum()} of {wrong.size})")
    for i, (g, again) in enumerate(zip(got, call(plan, program, inputs), strict=True)):
        if g.tobytes() != again.tobytes():
            return Outcome("not reproducible", f"result {i}")
    return Outcome("equal")


def variants(program):
    """Smaller programs, those that take most away first."""
    def changed(change):
        smaller = copy.deepcopy(program)
        change(smaller)
        return smaller

    def drop_unused(p):
        while True:
            used = p.used()
            ops = [op for op in p.ops if id(op.result) in used]
            if len(ops) == len(p.ops):
                break
            p.ops = ops
        p.arguments = [a for a in p.arguments if id(a) in used]
        there = {a.name for a in p.arguments} | {op.result.name for op in p.ops}
        p.shardings = {name: dims for name, dims in p.shardings.items() if name in there}

    def only_result(i):
        def change(p):
            p.results = [p.results[i]]
            p.result_shardings = {0: p.result_shardings[i]} if i in p.result_shardings else {}
            drop_unused(p)
        return change

    def cut(i):
        """The value is an argument; what made it goes."""
        def change(p):
            old = p.ops[i].result
            new = Argument(old.name, old.shape, old.dtype, positive=old.positive)
            p.arguments.append(new)
            del p.ops[i]
            for op in p.ops:
                op.operands = [new if o is old else o for o in op.operands]
            p.results = [new if r is old else r for r in p.results]
            p.states = [(a, new if v is old else v) for a, v in p.states]
            drop_unused(p)
        return change

    def end_at(i):
        def change(p):
            p.results = [p.ops[i].result]
            p.result_shardings = {}
            drop_unused(p)
        return change

    for i in range(len(program.states)):
        yield changed(lambda p, i=i: (p.states.pop(i), drop_unused(p)))
    if len(program.results) > 1:
        for i in range(len(program.results)):
            yield changed(only_result(i))
    for i in range(len(program.ops)):
        if program.results != [program.ops[i].result]:
            yield changed(end_at(i))
    for i in reversed(range(len(program.ops))):
        if program.ops[i].result.dtype != "i64":
            yield changed(cut(i))
    for name in program.shardings:
        if not any(op.result.name == name and "SHARDING" in op.head for op in program.ops):
            yield changed(lambda p, name=name: p.shardings.pop(name))
    for i in program.result_shardings:
        yield changed(lambda p, i=i: p.result_shardings.pop(i))


def minimise(program, signature):
    best, deadline = program, time.monotonic() + 120
    while time.monotonic() < deadline:
        for smaller in variants(best):
            if run_apart(run, smaller).signature == signature:
                best = smaller
                break
        else:
            break
    return best


def describe(program, outcome, smallest=None):
    lines = [f"seed {program.seed}: {outcome.kind}: {outcome.detail}"]
    if smallest:
        lines.append(f"smallest: {run_apart(run, smallest).detail}")
    smallest = smallest or program
    if smallest.options:
        mesh = ",".join(f"{axis}={size}" for axis, size in smallest.mesh.items())
        lines.append(f"// mesh={mesh} {smallest.options}")
    return "\n".join([*lines, smallest.text(sharded=True)])


def campaign(first, count, length, budget=float("inf"), smaller=True, least=0):
    """Runs programs, at least `least` of them for any budget; how many of each outcome, and what to
    say of those that fail."""
    counts, bugs, deadline = {}, [], time.monotonic() + budget
    for seed in range(first, first + count):
        if seed >= first + least and time.monotonic() > deadline:
            break
        program = generate(seed, length)
        outcome = run_apart(run, program)
        counts[outcome.kind] = counts.get(outcome.kind, 0) + 1
        if outcome.is_bug:
            bugs.append(describe(program, outcome,
                                 minimise(program, outcome.signature) if smaller else None))
            print(bugs[-1], flush=True)
    return counts, bugs


@pytest.mark.slow
def test_random_programs():
    counts, bugs = campaign(first=1, count=150, length=9, budget=75, least=30)
    assert not bugs, f"{len(bugs)} programs fail: {counts}"
    assert counts.get("equal", 0) >= 20 and counts.get("refused", 0) < counts["equal"] / 4


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--long", type=int, default=1000, metavar="COUNT")
    parser.add_argument("--first", type=int, default=1000, metavar="SEED")
    parser.add_argument("--length", type=int, default=12, metavar="OPS")
    parser.add_argument("--budget", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("--seed", type=int, help="one program only, as it is")
    parser.add_argument("--as-is", action="store_true", help="do not make what fails smaller")
    given = parser.parse_args()
    if given.seed is not None:
        program = generate(given.seed, given.length)
        outcome = run_apart(run, program)
        smallest = None
        if outcome.is_bug and not given.as_is:
            smallest = minimise(program, outcome.signature)
        print(describe(program, outcome, smallest))
        return outcome.is_bug
    counts, bugs = campaign(given.first, given.long, given.length, given.budget,
                            not given.as_is)
    print(", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())))
    return bool(bugs)


if __name__ == "__main__":
    sys.exit(main())
