# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""One schedule: a report states, a ceiling bounds, fold=auto prices and a run uses the same arena."""

import json

import meshwright as mw
import pytest
import torch
from harness import launch
from safetensors.torch import save_file
from torch import nn


class Mlp(nn.Module):
    """Two blocks, so that an all-reduce has products before and behind it."""

    def __init__(self, width=64, inner=256):
        super().__init__()
        self.ups = nn.ModuleList(nn.Linear(width, inner) for _ in range(2))
        self.downs = nn.ModuleList(nn.Linear(inner, width) for _ in range(2))

    def forward(self, x):
        for up, down in zip(self.ups, self.downs):
            x = x + down(torch.relu(up(x)))
        return x


X = torch.zeros(1, 96, 64)
INPUT_BYTES = X.numel() * 4


def imported():
    torch.manual_seed(0)
    return mw.from_torch(Mlp().eval(), (X,))


def arena_of(report):
    """The arena that a report states for a program whose tokens are whole."""
    return report["memory_per_rank"]["activations_peak"] - INPUT_BYTES


def total_of(report):
    return sum(report["memory_per_rank"][key] for key in ("weights", "packing", "activations_peak"))


def measured(plan, **options):
    plan.run(X, measure=True, **options)
    return plan.report(format="json")["run"]["arena"]


@pytest.mark.parametrize("overlap", ["on", "off", "auto"])
@pytest.mark.parametrize("sequence_parallel", ["on", "off"])
def test_report_is_run(overlap, sequence_parallel):
    # Links so slow that chunks pay under overlap=auto, too.
    plan = imported().parallelize(mesh={"tp": 2}, overlap=overlap, sequence_parallel=sequence_parallel,
                                  device="cpu link_bandwidth=1e9 overlap=1")
    report = plan.report(format="json")
    split = [d for d in report["decisions"] if d["pass"] == "split-collectives" and d["outcome"] == "applied"]
    assert bool(split) == (overlap != "off") or overlap == "auto"
    assert measured(plan)["planned"] == arena_of(report)


@pytest.mark.parametrize("overlap", ["on", "off", "auto"])
def test_ceiling_is_run(overlap):
    options = dict(mesh={"tp": 2}, overlap=overlap, sequence_parallel="off")
    free = imported().parallelize(**options).report(format="json")
    exact = imported().parallelize(**options, memory_ceiling=str(total_of(free)))
    assert total_of(exact.report(format="json")) <= total_of(free)
    least = total_of(free) - arena_of(free)
    with pytest.raises(mw.Error, match="the memory ceiling") as refused:
        imported().parallelize(**options, memory_ceiling=str(least))
    needed = int(str(refused.value).split("needs ")[1].split()[0])
    # The bytes that the refusal asks for are enough, and a byte less is not.
    plan = imported().parallelize(**options, memory_ceiling=str(needed))
    report = plan.report(format="json")
    assert total_of(report) <= needed
    assert measured(plan)["planned"] == arena_of(report)
    with pytest.raises(mw.Error, match="the memory ceiling"):
        imported().parallelize(**options, memory_ceiling=str(needed - 1))


@pytest.mark.parametrize("overlap", ["on", "off", "auto"])
@pytest.mark.parametrize("with_ceiling", [False, True])
def test_other_target_is_run(overlap, with_ceiling):
    """A run for another target uses the schedule that a plan for this target reports."""
    other = "cpu:x86-64-v3"
    options = dict(mesh={"tp": 2}, overlap=overlap, sequence_parallel="off",
                   device="cpu link_bandwidth=1e9 overlap=1")
    if with_ceiling:
        # Of `auto`, the arena without chunks: a plan for either target has to give chunks up.
        least = [imported().parallelize(**{**options, "overlap": "off" if overlap == "auto" else overlap},
                                        target=target).report(format="json") for target in ("cpu", other)]
        options["memory_ceiling"] = str(max(map(total_of, least)))
    plan, planned = imported().parallelize(**options), imported().parallelize(**options, target=other)
    own, wanted = plan.report(format="json"), planned.report(format="json")
    assert measured(plan, target=other)["planned"] == arena_of(wanted)
    report = plan.report(format="json")
    assert report["target"] == wanted["target"] == other
    for key in ("memory_per_rank", "decisions", "communication"):
        assert report[key] == wanted[key]
    assert measured(plan, target="cpu")["planned"] == arena_of(own)
    back = plan.report(format="json")
    del back["run"]
    assert back == own


@pytest.mark.parametrize("mode", ["sp", "batch", "none", "auto"])
@pytest.mark.parametrize("overlap", ["on", "off", "auto"])
@pytest.mark.parametrize("batch", [1, 4])
def test_fold_is_priced_as_planned(mode, overlap, batch):
    """A stage alone is the program that fold=auto prices."""
    torch.manual_seed(0)
    x = torch.zeros(batch, 96, 64)
    model = mw.compose({"encoder": mw.from_torch(Mlp().eval(), (x,))}, {})
    options = dict(mesh={"ulysses": 2}, context_parallel={"ulysses": "ulysses"}, overlap=overlap,
                   device="cpu link_bandwidth=1e9 overlap=1")
    auto = model.parallelize(**options, fold={"encoder": "auto"}).report(format="json")
    (decision,) = [d for d in auto["decisions"] if d["pass"] == "fold-encoder" and "alternatives" in d]
    prefix = {"sp": "fold sp", "batch": "batch", "none": "replicate"}
    (priced,) = [a for a in decision["alternatives"]
                 if (a["chosen"] if mode == "auto" else a["name"].startswith(prefix[mode]))]
    if priced["note"]:
        assert mode == "batch" and batch == 1 and "has a batch of one" in priced["note"]
        return
    planned = model.parallelize(**options, fold={"encoder": mode}).report(format="json")
    assert priced["numbers"]["memory_bytes"] == total_of(planned)
    assert priced["numbers"]["weights_bytes"] == planned["memory_per_rank"]["weights"]
    assert priced["numbers"]["bytes"] == planned["bytes_per_rank"]


@pytest.mark.parametrize("overlap", ["on", "off", None])
def test_program_as_it_stands(tmp_path, overlap):
    """An SPMD program that runs as it stands is scheduled like one that comes from a plan."""
    plan = imported().parallelize(mesh={"tp": 2}, overlap=overlap or "auto", sequence_parallel="off")
    text = plan.ir(phase="spmd")
    assert ("rt.overlap" in text) == (overlap is not None)
    (tmp_path / "m.mlir").write_text(text)
    torch.manual_seed(0)
    save_file({k: v.detach().contiguous() for k, v in Mlp().named_parameters()}, tmp_path / "w.safetensors")
    done = launch(tmp_path / "m.mlir", f"--weights={tmp_path}/w.safetensors", "--random-inputs=1",
                  f"--report={tmp_path}/r.json")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    planned = plan.report(format="json")
    assert report["memory_per_rank"] == planned["memory_per_rank"]
    assert report["run"]["arena"]["planned"] == arena_of(report) == arena_of(planned)
