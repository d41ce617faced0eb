#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Prints digests of compiled programs, to show that a refactoring changes none of them.

Each line names a model, a plan and a target, with digests of the SPMD IR, the planned rt program,
the machine code or PTX of all kernels and the entry, the report, and the bits of the outputs, and of
the parameters or the state after some steps. Nothing runs for a GPU. Two builds that print the same
lines compile the same programs:

    PYTHONPATH=before/python python scripts/program_digests.py > before.txt
    PYTHONPATH=after/python python scripts/program_digests.py > after.txt
    diff before.txt after.txt

Words of a line's name leave out all other lines: `program_digests.py llama tp=2`.
"""

import argparse
import copy
import dataclasses
import hashlib
import json
import os
import pathlib
import sys
import tempfile
import typing

import meshwright as mw
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))
from arena import MESHES, MODELS  # noqa: E402

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
GPU = "gpu:sm_90a"
MESHES = MESHES | {"dp=2": {"mesh": {"dp": 2}}}
STEPS = 2


@dataclasses.dataclass
class Case:
    """A model, once for all of its plans, and how to run one."""

    name: str
    make: typing.Callable  # the model
    plans: list  # meshes, targets ("" is this machine's) and further options
    run: typing.Callable  # arrays that a session computes


def bits(arrays):
    return b"".join(torch.as_tensor(a).contiguous().flatten().view(torch.uint8).numpy().tobytes() for a in arrays)


def run_once(*args):
    return lambda session: [*session.run(*args)]


def run_steps(*args):
    """Outputs of some steps, and the state after them."""

    def run(session):
        outputs = [out for _ in range(STEPS) for out in session.run(*args)]
        state = session.state()
        return [*outputs, *(state[name] for name in sorted(state))]

    return run


# Inference.

VARIANTS = [
    ("f32", [(mesh, "", {}) for mesh in MESHES] + [(mesh, "", {"overlap": "on"}) for mesh in ("tp=2 sp", "cp=2,tp=2 ring")] +
     [("dp=2,tp=2 sp", "cpu:x86-64-v3", {}), ("tp=2 sp", GPU, {})]),
    ("bf16", [("tp=2", "", {}), ("tp=3 sp", "", {}), ("tp=2 sp", "cpu:x86-64-v3", {}), ("tp=2 sp", GPU, {}),
              ("cp=2,tp=2 ring", GPU, {})]),
]  # fmt: skip


def inference():
    for model, build in MODELS["small"].items():
        torch.manual_seed(0)
        net, example = build()
        for dtype, plans in VARIANTS:
            typed = copy.deepcopy(net).eval().to(DTYPES[dtype])
            args = (example.to(DTYPES[dtype]) if example.is_floating_point() else example,)
            yield Case(f"{model} {dtype}", lambda typed=typed, args=args: mw.from_torch(typed, args), plans, run_once(*args))


# Training.


class Loss(torch.nn.Module):
    """Cross entropy of a language model of the small ones."""

    def __init__(self, model):
        super().__init__()
        torch.manual_seed(0)
        self.net, _ = MODELS["small"][model]()

    def forward(self, ids, labels):
        logits = self.net(ids, use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


TRAINED = [(mesh, "", {}) for mesh in ("dp=2", "tp=2", "tp=2 sp", "tp=3 sp", "dp=2,tp=2 sp", "cp=2,tp=2 ring")]
TRAINED += [("dp=2", "", {"shard_optimizer": "on"}), ("tp=2 sp", "", {"recompute": "full"}),
            ("dp=2,tp=2 sp", "", {"recompute": "full", "shard_optimizer": "on"}), ("tp=2 sp", "", {"reduce_type": "f32"}),
            ("dp=2", GPU, {}), ("tp=2 sp", GPU, {})]  # fmt: skip


def training():
    generator = torch.Generator().manual_seed(1)
    ids, labels = (torch.randint(0, 97, (4, 12), generator=generator) for _ in range(2))
    for model in ("llama", "gpt2"):
        for dtype, options in (("f32", {}), ("f32", {"microbatches": 2, "clip_norm": 1.0}), ("bf16", {})):
            net = Loss(model).train().to(DTYPES[dtype])
            spelt = " ".join([model, "step", dtype, *(f"{k}={v}" for k, v in options.items())])

            def make(net=net, options=options):
                imported = mw.from_torch(net, (ids, labels), training=True)
                return imported.train(mw.AdamW(lr=1e-2), seed=3, **options)

            def evaluate(session):
                return [*session.run(ids, labels, entry="evaluate")]

            yield Case(spelt, make, TRAINED, run_steps(ids, labels))
            yield Case(spelt.replace("step", "evaluate"), make, TRAINED[:4], evaluate)


# Models with state, and composed ones.


class Counting(torch.nn.Module):
    """A running mean of its inputs, which is state."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = torch.nn.Linear(24, 40), torch.nn.Linear(40, 24)
        self.register_buffer("mean", torch.zeros(24))

    def forward(self, x):
        self.mean.mul_(0.9).add_(x.mean((0, 1)) * 0.1)
        return self.down(torch.nn.functional.gelu(self.up(x))) + self.mean


class Reader(torch.nn.Module):
    """Attention of an encoder's tokens."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.attention = torch.nn.MultiheadAttention(24, 4, batch_first=True)

    def forward(self, x, text):
        return x + self.attention(x, text, text, need_weights=False)[0]


def others():
    generator = torch.Generator().manual_seed(2)
    x, text = (torch.randn(2, n, 24, generator=generator) for n in (8, 12))
    plans = [(mesh, "", {}) for mesh in ("tp=2 sp", "dp=2,tp=2", "cp=2 ulysses")] + [("tp=2 sp", GPU, {})]
    yield Case("state f32", lambda: mw.from_torch(Counting().eval(), (x,)), plans[:2] + plans[3:], run_steps(x))

    def compose():
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(24, 4, 48, batch_first=True, dropout=0.0).eval()
        stages = {"encoder": mw.from_torch(layer, (text,)), "reader": mw.from_torch(Reader().eval(), (x, text))}
        return mw.compose(stages, {"reader.text": "encoder.0"}, loop=("reader",), steps=2)

    def run(session):
        given = {name: text if name.startswith("encoder") else x for name in composed.inputs}
        return [*session.run(**given)]

    composed = compose()
    yield Case("composed f32", lambda: composed, [*plans, ("tp=2 sp", "", {"fold": {"encoder": "replica"}})], run)


def digest(data):
    return hashlib.sha256(data if isinstance(data, bytes) else data.encode()).hexdigest()[:12]


def read_code(folder):
    """The machine code of a bundle, and the PTX of its kernels."""
    files = sorted(p for kind in ("*.so", "*.ptx") for p in pathlib.Path(folder).rglob(kind))
    return b"".join(p.read_bytes() for p in files)


def describe(plan, target, run):
    parts = {"spmd": digest(plan.ir()), "rt": digest(plan.ir(phase="rt"))}
    with tempfile.TemporaryDirectory() as folder:
        plan.compile(folder + "/bundle", target=target or None)
        parts["code"] = digest(read_code(folder + "/bundle"))
    parts["report"] = digest(json.dumps(plan.report("json"), sort_keys=True))
    if not target.startswith("gpu"):
        with plan.start() as session:
            parts["outputs"] = digest(bits(run(session)))
    return " ".join(f"{k}={v}" for k, v in parts.items())


def lines(only):
    for cases in (inference, training, others):
        for case in cases():
            model = None
            for mesh, target, options in case.plans:
                name = f"{case.name} {mesh} {target or 'host'} {options or ''}".strip()
                if not all(word in name for word in only):
                    continue
                try:
                    model = model or case.make()
                    chosen = {"target": target} if target else {}
                    plan = model.parallelize(**MESHES[mesh], **options, **chosen)
                    yield f"{name}: {describe(plan, target, case.run)}"
                except mw.Error as error:
                    yield f"{name}: refused: {digest(str(error))}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("only", nargs="*", help="parts of names: all must be in a line's name")
    only = parser.parse_args().only
    with tempfile.TemporaryDirectory() as cache:
        # Each build compiles anew, and the two do not read each other's kernels.
        os.environ["MESHWRIGHT_CACHE"] = cache
        for line in lines(only):
            print(line, flush=True)


if __name__ == "__main__":
    main()
