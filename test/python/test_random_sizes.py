# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Programs with run-time sizes compute on any mesh, beside any padding, what they compute at these sizes.

As a program it runs longer, or one seed again:
  test_random_sizes.py --long COUNT [--first SEED] [--length OPS]
  test_random_sizes.py --seed SEED
"""
import argparse
import sys

import numpy as np
import pytest
from meshwright import Error, Model, _core
from meshwright.errors import unwrap
from random_sizes import BATCH, TOKENS, Program

TOLERANCE = 1e-4


def model_of(text, weights):
    return Model(unwrap(_core.Program.parse(text, "sizes.mlir")), weights)


def padded(array, shape, filling):
    whole = np.full(shape, filling, array.dtype)
    whole[tuple(slice(0, n) for n in array.shape)] = array
    return whole


def run(program):
    """None, or how the results differ."""
    weights = program.weights()
    plan = model_of(program.text(program.bucket, True), weights).parallelize(mesh=program.mesh, **program.options)
    for call in program.calls():
        arrays = program.data(call)
        want = model_of(program.text(call, False), weights).parallelize(mesh={"tp": 1}).run(*arrays)
        for numbers, index in ((0, 0), (np.nan, -7), (np.inf, 1 << 40)):
            given = [padded(a, (program.bucket[BATCH], program.bucket[TOKENS], *a.shape[2:]),
                            index if a.dtype == np.int64 else numbers) for a in arrays]
            got = plan.run(*given, np.int64(call[BATCH]), np.int64(call[TOKENS]))
            largest = max(np.abs(w).max() for w in want[len(program.results):]) if program.loss else 0
            for i, (g, w) in enumerate(zip(got, want, strict=True)):
                g = g[tuple(slice(0, n) for n in w.shape)]
                # Gradients compare with the largest of all.
                bound = TOLERANCE * max(np.abs(w).max(), 1e-3, largest if i >= len(program.results) else 0)
                if not (np.isfinite(g).all() and np.abs(g - w).max() <= bound):
                    return (f"result {i} at {call} beside {numbers}: differs by {np.abs(g - w).max():.2e} of "
                            f"{np.abs(w).max():.2e}")
    return None


def check(seed, length):
    program = Program(seed, length)
    if not program.results:
        return None
    try:
        problem = run(program)
    except Error as error:
        problem = str(error)
    return problem and f"seed {seed}, {program.mesh} {program.options}: {problem}"


@pytest.mark.parametrize("seed", range(12))
def test_random_sizes(seed):
    problem = check(seed, 7)
    assert not problem, problem


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--long", type=int, default=100, metavar="COUNT")
    parser.add_argument("--first", type=int, default=1000, metavar="SEED")
    parser.add_argument("--length", type=int, default=9, metavar="OPS")
    parser.add_argument("--seed", type=int, help="one program only, with its text")
    given = parser.parse_args()
    if given.seed is not None:
        program = Program(given.seed, given.length)
        print(program.text(program.bucket, True))
        print(check(given.seed, given.length))
        return 0
    problems = [p for seed in range(given.first, given.first + given.long) if (p := check(seed, given.length))]
    print(*problems, sep="\n")
    print(f"{given.long - len(problems)} of {given.long} hold")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
