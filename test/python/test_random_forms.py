# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Random models whose weights travel as codes with scales compute as the unsharded program that rounds.

As a program it runs longer:
  test_random_forms.py FIRST END
"""
import sys

import meshwright as mw
import numpy as np
import pytest
from random_blocks import RANDOM, STATEFUL
from random_models import generate


def check_random(seed):
    """A random model whose weights travel otherwise computes, and trains, as the unsharded program that
    rounds the same weights. Returns a name, and the error if there is one."""
    case = generate(seed)
    rng = np.random.default_rng(seed)
    options = {k: v for k, v in case.options.items() if not k.startswith("gtp") and k != "memory_ceiling"}
    mesh = case.mesh if "gtp" in case.mesh else [{"gtp": 2}, {"gtp": 3}, {"dp": 2, "gtp": 2}][rng.integers(3)]
    options = {k: v for k, v in options.items() if "gtp" in case.mesh or k in ("overlap", "recompute", "reduce_type")}
    options["gtp_gather"] = str(rng.choice(["mxfp8", "nvfp4"]))
    if case.dtype == "bf16" or STATEFUL & set(case.blocks) or RANDOM & set(case.blocks):
        case.dtype, case.blocks = "f32", ["twice", "attention"]
    name = f"{seed}: {case.kind} {case.blocks} {mesh} {options}"
    try:
        net, inputs = case.build(), case.inputs()
        if case.trains or case.kind == "gradients":
            model = mw.from_torch(net.train(), (), inputs, training=True).train(mw.SGD(lr=0.01))
        else:
            model = mw.from_torch(net.eval(), (), inputs)
            options.pop("recompute", None)
        # A code that is rounded the other way would be a far larger difference.
        model.parallelize(mesh=mesh, **options).check(**inputs, tolerance=1e-4)
    except mw.Error as error:
        return name, str(error).splitlines()[0]
    return name, None


@pytest.mark.parametrize("seed", range(12))
def test_random_models(seed):
    name, error = check_random(seed)
    assert error is None, f"{name}: {error}"


def main():
    wrong = 0
    for seed in range(*map(int, sys.argv[1:3])):
        name, error = check_random(seed)
        wrong += error is not None
        if error:
            print(f"{name}\n  {error}", flush=True)
    print(f"{wrong} of the programs differ")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
