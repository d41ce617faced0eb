# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Random models whose weights are stored in shards, on odd meshes and under tight memory ceilings, compute as PyTorch does.

As a program it runs longer, or one seed again:
  test_random_gtp.py FIRST END
"""
import random
import re
import sys
import traceback
import warnings

import meshwright as mw
import numpy as np
import pytest
import torch
from apart import Outcome, run_apart
from random_blocks import RANDOM, STATEFUL
from random_models import generate
from test_random_models import KINDS, Checker, Differs

#: Meshes, with the axes over which weights are stored; None for the default.
MESHES = [
    ({"gtp": 2}, None), ({"gtp": 3}, None), ({"gtp": 5}, None), ({"gtp": 6}, None), ({"tp": 2, "gtp": 2}, None),
    ({"dp": 2, "gtp": 2}, None), ({"tp": 3, "gtp": 2}, None), ({"dp": 2, "tp": 2, "gtp": 2}, None),
    ({"ring": 2, "gtp": 2}, None), ({"host": 2, "gtp": 2}, ["host", "gtp"]), ({"ep": 2, "gtp": 2}, None),
    ({"dp": 3}, "dp"), ({"dp": 2, "gtp": 3}, ["dp", "gtp"]), ({"ulysses": 2, "gtp": 2}, None), ({"tp": 2}, None),
    ({"gtp": 4}, None), ({"host": 2, "gtp": 3}, ["host", "gtp"]), ({"tp": 2, "gtp": 3}, None),
]
#: A memory ceiling between the least and that of a plan without one. None for no ceiling.
TIGHT = [None, 0.0, 0.02, 0.3, 1.0]
OPTIONS = {
    "gtp_align": [1, 2, 5, 16, "auto", None, None], "gtp_prefetch": [0, 1, 3, "auto", None, None],
    "gtp_keep": ["on", "off", "auto", None, None], "recompute": ["full", "none", "auto", None],
    "shard_saved": ["on", "off", "auto", None, None], "shard_optimizer": ["on", "off", None],
    "sequence_parallel": ["on", "off", None], "overlap": ["on", "off", "auto", None, None],
    "gtp_gather": ["mxfp8", "nvfp4", *[None] * 6],
    "device": ["h100 network_bandwidth=1e9 link_bandwidth=1e9", "cpu", None, None, None],
}


def draw(seed):
    """The case of a seed, and how tight its ceiling is."""
    case, rng = generate(seed), random.Random(f"gtp {seed}")
    mesh, axes = MESHES[seed % len(MESHES)]
    if case.kind not in ("steps", "gradients", "checkpoint", "state_dict"):
        case.kind = rng.choice(["steps", "steps", "gradients", "outputs"])
        case.blocks = [name for name in case.blocks if name not in RANDOM] or ["twice"]
    options = {name: value for name, values in OPTIONS.items() if (value := rng.choice(values)) is not None}
    stored = axes is not None or "gtp" in mesh
    trains = case.kind != "outputs"
    for name in list(options):
        if (name.startswith("gtp") and not stored) or \
                (name in ("recompute", "shard_saved") and not trains) or \
                (name == "shard_optimizer" and case.kind in ("outputs", "gradients")):
            del options[name]
    if "gtp_gather" in options:
        options.pop("gtp_align", None)
        # The unsharded program that rounds is compared with, and not PyTorch.
        case.kind, case.then = ("forms", None) if case.kind != "outputs" else ("forms outputs", None)
        if case.dtype == "bf16" or STATEFUL & set(case.blocks):
            case.dtype, case.blocks = "f32", ["twice", "attention"]
    if axes is not None:
        options["gtp"] = axes
    around = {axis: axis for axis in ("ulysses", "ring") if axis in mesh}
    if around:
        options["context_parallel"] = around | ({"order": "zigzag"} if "ring" in around else {})
    tight = rng.choice(TIGHT)
    if tight is not None and options.get("gtp_keep") == "on":
        del options["gtp_keep"]  # which asks for more memory than the least
    case.mesh, case.options = dict(mesh), options | ({} if tight is None else {"tight": tight})
    return case


def find_ceiling(model, how, tight):
    """Bytes between the fewest that a plan needs and what it takes without a ceiling."""
    memory = model.parallelize(**how).report("json")["memory_per_rank"]
    free = sum(memory.get(key, 0) for key in ("weights", "packing", "state", "optimizer", "masters", "gradients", "activations_peak"))
    with pytest.raises(mw.Error) as refused:
        model.parallelize(memory_ceiling=16, **how)
    least = int(re.search(r"needs (\d+) bytes", str(refused.value))[1])
    return least + max(0, int((free - least) * tight))


class GtpChecker(Checker):
    def plan(self, model, mesh, options):
        options = dict(options)
        tight = options.pop("tight", None)
        if tight is not None:
            options["memory_ceiling"] = find_ceiling(model, {"mesh": mesh, **options}, tight)
        return super().plan(model, mesh, options)

    def rounded(self):
        """Weights that travel otherwise: the unsharded program that rounds the same weights."""
        case, inputs = self.case, self.inputs()
        model = self.model(False) if case.kind == "forms outputs" else \
            self.model(True).train(mw.SGD(lr=0.01), microbatches=case.train["microbatches"])
        self.plan(model, case.mesh, case.options).check(
            **{k: np.asarray(v) for k, v in inputs.items()}, tolerance=1e-4)


def run(case):
    """The outcome of one case; in this process."""
    torch.set_num_threads(1)  # a forked process has no threads of OpenMP's
    warnings.simplefilter("ignore", mw.MeshwrightWarning)
    try:
        checker = GtpChecker(case)
        (GtpChecker.rounded if case.kind.startswith("forms") else KINDS[case.kind])(checker)
    except Differs as difference:
        return Outcome("differs", str(difference), frozenset())
    except mw.Error as error:
        return Outcome("refused", str(error), frozenset())
    except Exception:
        return Outcome("error", traceback.format_exc(), frozenset())
    return Outcome("equal", "", frozenset())


def check(seed):
    case = draw(seed)
    outcome = run_apart(run, case)
    return "" if outcome.kind == "equal" else f"seed {seed}: {outcome.kind}: {outcome.detail}\n  {case}"


def test_a_random_model():
    assert not check(9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_more_random_models(seed):
    """Further seeds by this file as a program."""
    assert not check(seed)


def main():
    wrong, seeds = 0, range(*map(int, sys.argv[1:3]))
    for seed in seeds:
        if said := check(seed):
            wrong += 1
            print(said, flush=True)
        if (seed + 1 - seeds.start) % 10 == 0:
            print(f"{seed + 1 - seeds.start} models, {wrong} differ", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
