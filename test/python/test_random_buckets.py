# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Random modules compute calls of any size in buckets as PyTorch does, with their gradients unless they
shift rows.

As a program it runs longer, or one seed again:
  test_random_buckets.py --long SECONDS [--first SEED]
  test_random_buckets.py --seed SEED
"""

import argparse
import sys
import time
import warnings

import pytest
import torch
from random_sized_modules import Draw

import meshwright as mw

NAMES, BUCKETS = {0: "batch", 1: "tokens"}, {"batch": [1, 4], "tokens": [8, 24]}


def differs(draw) -> str | None:
    """How the results of the buckets differ from the module's; None if they do not."""
    example = (draw.calls[0],)
    options = dict(dynamic_shapes={"x": NAMES}, buckets=BUCKETS)
    model = mw.from_torch(draw.module, example, training=not draw.has_shifts, **options)
    model = model if draw.has_shifts else model.differentiate(loss=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mw.MeshwrightWarning)
        plan = model.parallelize(mesh=draw.mesh, **draw.options)
        with plan.start() as session:
            for x in draw.calls:
                got = session.run(x)
                draw.module.zero_grad()
                outputs = draw.module(x)
                outputs[1].backward()
                own = dict(draw.module.named_parameters())
                grads = [own[name.removeprefix("grad.")].grad for name in model.outputs[2:]]
                want = [*outputs, *(g if g is not None else torch.zeros(()) for g in grads)]
                for name, g, w in zip(model.outputs, got, want, strict=True):
                    w = w.detach().expand(g.shape)
                    scale = max(1e-2, float(w.abs().max()))
                    if not float((g - w).abs().max()) <= 3e-4 * scale:
                        return f"{name} of {list(x.shape)}: {float((g - w).abs().max()):.1e} of {scale:.1e}"
    return None


@pytest.mark.parametrize("seed", range(10))
def test_random_modules(seed):
    draw = Draw(seed)
    found = differs(draw)
    assert not found, f"{draw}: {found}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--long", type=float, default=0.0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()
    seeds, end, failed = options.first, time.monotonic() + options.long, 0
    while options.seed is not None or time.monotonic() < end:
        seed = options.seed if options.seed is not None else seeds
        draw = Draw(seed)
        try:
            found = differs(draw)
        except mw.Error as error:
            found = f"{type(error).__name__}: {error}"
        failed += bool(found)
        if found or options.seed is not None:
            print(f"{seed}: {draw}: {found}", flush=True)
        seeds += 1
        if options.seed is not None:
            break
    print(f"{seeds - options.first} modules, {failed} wrong")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
