# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Faults injected at random places of partitioned models are caught.

As a program it prints the counts: test_placement_mutations.py [COUNT] [MODEL...]
"""
import collections
import functools
import os
import re
import shutil
import subprocess
import sys

import meshwright as mw
import pytest
import torch
from meshwright.importer import torch as importer
from placement_mutants import Experts, compact
from test_import_transformers import MODELS, ids

TOOL = shutil.which("sharding-opt")
PLUGIN = TOOL and os.path.join(os.path.dirname(os.path.dirname(TOOL)), "test", "lib",
                               "libMeshwrightTestPasses.so")
MESHES = ["tp=4 sequence-parallel=on", "tp=3 sequence-parallel=on",
          "dp=2,tp=4 sequence-parallel=off"]
pytestmark = pytest.mark.skipif(not PLUGIN or not os.path.exists(PLUGIN),
                                reason="needs sharding-opt and the test passes")
LINE = re.compile(r"^\S+ (\S+): (\d+) of (\d+) caught, (\d+) make another program")


@functools.cache
def source(name):
    torch.manual_seed(1)
    return importer.import_module(MODELS[name]().eval(), (ids(2, 17),)).mlir


def opt(text, *arguments):
    result = subprocess.run([TOOL, "-", *arguments], input=text, text=True, capture_output=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def mutate(spmd, count, seed=1):
    """Counts of (caught, injected, making another program) by kind, and the escapes."""
    text = opt(spmd, f"--load-pass-plugin={PLUGIN}", "-o", os.devnull,
               "--pass-pipeline=builtin.module(test-mutate-placement"
               f"{{count={count} seed={seed}}})")
    counts = {m[1]: tuple(map(int, m.groups()[1:])) for m in map(LINE.match, text.splitlines())
              if m}
    return counts, [line.strip() for line in text.splitlines() if "escaped:" in line]


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_all_caught(name, mesh):
    counts, escapes = mutate(opt(source(name), f"--parallelize=mesh={mesh}"), count=10)
    assert not escapes
    assert len(counts) >= 9
    for kind, (caught, injected, other) in counts.items():
        assert caught + other == injected, kind
        assert caught >= injected // 2, kind


#: Faults of a step that no sum hides: a shift of all terms of a sum gives the same sum.
STEP_FAULTS = {"drop-reduction", "double-reduction", "wrong-kind", "wrong-axis", "wrong-result", "wrong-state",
               "rank-dependent", "nonlinear", "whole-of-shard"}


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("options", [
    dict(mesh={"dp": 2, "tp": 2}, sequence_parallel="on"),
    dict(mesh={"dp": 3}, shard_optimizer="on"),
    dict(mesh={"ring": 2, "ulysses": 2}, context_parallel={"ring": "ring", "ulysses": "ulysses"}),
], ids=str)
def test_steps(options, microbatches):
    """Gradients that are reduced twice, not at all or over other axes, and states of other layouts."""
    torch.manual_seed(1)
    tokens = dict(input_ids=ids(4, 17), labels=ids(4, 17))
    module = MODELS["llama"]().train()
    train = mw.from_torch(module, (), tokens, training=True).train(
        mw.AdamW(), microbatches=microbatches, clip_norm=1.0)
    plan = train.parallelize(**options)
    text = opt(plan.ir(phase="spmd"), f"--load-pass-plugin={PLUGIN}", "-o", os.devnull,
               "--pass-pipeline=builtin.module(test-mutate-placement{count=10 seed=1})")
    kinds = collections.Counter()
    for line in filter(None, map(LINE.match, text.splitlines())):
        kind, caught, injected, other = line[1], *map(int, line.groups()[1:])
        kinds[kind] += injected
        if kind in STEP_FAULTS:
            assert caught + other == injected, line[0]
    assert all(kinds[kind] for kind in STEP_FAULTS - {"wrong-axis"})


#: Faults of routed rows: of another expert, weight or routing, read beyond their number, sums over ranks that
#: have other experts, and sums that lack ranks which have other tokens.
ROW_FAULTS = {"wrong-routing", "misread-rows", "reduce-sharded", "shuffle-chunks", "drop-reduction"}


@pytest.mark.parametrize("rows", ["all", "existing"])
@pytest.mark.parametrize("trains", [False, True], ids=["loss", "step"])
@pytest.mark.parametrize("options,width,batch", [
    (dict(mesh={"ep": 2}), 6, 4),
    (dict(mesh={"tp": 2}), 6, 4),
    (dict(mesh={"dp": 2}, expert_parallel="dp"), 6, 3),
    (dict(mesh={"dp": 2, "tp": 2}), 6, 3),
    (dict(mesh={"dp": 4}, expert_parallel="dp"), 6, 4),
    (dict(mesh={"dp": 2}, expert_parallel="dp"), 24, 4),
    (dict(mesh={"dp": 2, "tp": 2}, expert_parallel="dp"), 24, 4),
], ids=["gathered", "inside", "padded", "padding inside", "each", "once", "once and inside"])
def test_rows_of_experts(options, width, batch, trains, rows):
    """Rows that are gathered, that go to each expert, and that go to a rank once."""
    torch.manual_seed(1)
    given = (torch.randn(batch, 5, width), torch.randn(batch, 5, width))
    model = mw.from_torch(Experts(width).train(), given, training=True)
    text = (model.train(mw.SGD()) if trains else model).parallelize(**options).ir(phase="spmd")
    assert ("shared = " in text) == (width == 24)
    counts, escapes = mutate(compact(text) if rows == "existing" else text, count=8)
    assert not escapes
    needed = ROW_FAULTS | ({"read-infinity"} if batch == 3 else set())
    if rows == "all" and "dist.axis_index" not in text:
        needed -= {"misread-rows"}  # no op names the first expert
    assert needed <= set(counts)


class Loss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return self.model(tokens)[0].square().mean()


@pytest.mark.parametrize("mesh", [{"ring": 2}, {"ring": 4}, {"dp": 2, "ring": 2}], ids=str)
def test_gradients_in_steps_of_a_ring(mesh):
    """T5 learns a bias for each distance, whose gradient has a block in each step."""
    torch.manual_seed(1)
    model = mw.from_torch(Loss(MODELS["t5"]().train()), (ids(2, 17),), training=True).differentiate()
    plan = model.parallelize(mesh=mesh, context_parallel={"ring": "ring"})
    text = plan.ir(phase="spmd")
    assert "dist.place" in text
    for kind in ("break-steps", "break-ring"):
        found = opt(text, f"--load-pass-plugin={PLUGIN}", "-o", os.devnull,
                    f"--pass-pipeline=builtin.module(test-mutate-placement{{count=0 kind={kind}}})")
        _, caught, injected, _ = next(filter(None, map(LINE.match, found.splitlines()))).groups()
        assert int(caught) == int(injected) > 0, found


def main(count=50, *names):
    total = collections.Counter()
    for name in names or MODELS:
        for mesh in MESHES:
            spmd = opt(source(name), f"--parallelize=mesh={mesh}")
            counts, escapes = mutate(spmd, int(count))
            for kind, numbers in counts.items():
                total.update(dict(zip([(kind, i) for i in range(3)], numbers, strict=True)))
            for escape in escapes:
                print(f"{name} {mesh}: {escape}")
    for kind in sorted({kind for kind, _ in total}):
        caught, injected, other = (total[kind, i] for i in range(3))
        print(f"{kind:18} {caught:6} of {injected:6} caught, {other:4} make another program")


if __name__ == "__main__":
    main(*sys.argv[1:])
