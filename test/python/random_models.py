# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Random models and what is done with them: outputs, gradients, steps, checkpoints, on random meshes.

Everything follows from the seed. A seed draws at random, but it has the features whose turn it is,
so some seeds in succession have them all (`FEATURES`). A case has only what the documents allow.
"""
import copy
import dataclasses
import math
import random

import torch
from random_blocks import BLOCKS, CLASSES, LOSSES, NOT_BF16, RANDOM, STATEFUL, Sizes
from torch import nn

MESHES = [
    {"tp": 2}, {"dp": 2}, {"tp": 3}, {"dp": 2, "tp": 2}, {"ring": 2}, {"dp": 3}, {"tp": 4},
    {"ulysses": 2}, {"dp": 2, "tp": 3}, {"ring": 3}, {"dp": 4, "tp": 2}, {"ring": 2, "ulysses": 2},
    {"tp": 1}, {"dp": 3, "tp": 2}, {"dp": 2, "ring": 2}, {"ring": 2, "tp": 2}, {"tp": 8}, {"dp": 5},
    {"host": 2, "tp": 2}, {"dp": 2, "ulysses": 2, "tp": 2},
    {"gtp": 2}, {"gtp": 2, "tp": 2}, {"dp": 2, "gtp": 2}, {"gtp": 3},
    {"ep": 2}, {"ep": 4}, {"dp": 2, "ep": 2}, {"tp": 2, "ep": 2},
]
#: What is done with a model: each is a function of test_random_models.py.
KINDS = ["gradients", "steps", "outputs", "checkpoint", "dropout", "state_dict", "entries", "bundle"]
OPTIMIZERS = ["AdamW", "Adam", "SGD"]
#: Options of parallelize: the values that are drawn. None leaves the option out.
OPTIONS = {
    "sequence_parallel": ["on", "off", "auto", None],
    "overlap": ["on", "off", "auto", None],
    "shard_optimizer": ["on", "off", "auto", None],
    "recompute": ["full", "none", "auto", None],
    "device": ["a100", "cpu", "h200", "a800", None],
    "memory_ceiling": ["4G", None],
    "data_parallel": ["none", "auto", None],
    "tensor_parallel": ["none", "auto", None],
    "context_parallel": ["contiguous", "zigzag", "striped", "auto"],
    "shardings": ["linear", None],
    "target": ["cpu", None],
    "reduce_type": ["f32", "own", None],
    "fold": ["auto", "replica", None],
    "gtp": ["dp", "ring", "gtp", ("dp", "gtp"), None],
    "gtp_align": [1, 2, 16, "auto", None],
    "gtp_prefetch": [0, 1, 3, "auto", None],
    "gtp_keep": ["on", "off", "auto", None],
    "gtp_reduce": ["plain", None],
    "gtp_gather": ["plain", None],
    "shard_saved": ["on", "off", "auto", None],
    "expert_parallel": ["tp", "dp", ("dp", "tp"), "none", None, None],
    "expert_capacity": [64.0, None, None],  # which no expert reaches
    "expert_load": [1.5, None, None],
    "stored_weights": ["widen", "keep", None],
}
TRAIN_OPTIONS = {
    "microbatches": [1, 2, 3], "clip_norm": [None, 0.05], "seed": [0, 7],
    "loss_scale": [None, "auto", 8.0], "parameters": [["*"], ["*weight"]], "loss": [0],
}
#: Options that other generators draw, with their names.
ELSEWHERE = {"mesh": "every case has one",
             **dict.fromkeys(("ranks", "objective"), "test_planner.py: drawn models"),
             "fold": "test_fold_auto.py: composed models",
             **dict.fromkeys(("data_parallel_attention", "dense_tp", "dp_lm_head", "token_gather"),
                             "test_dp_attention.py: drawn models"),
             "cache_sharding": "test_cache_sharding.py: models that serve"}
TYPES = ["f32", "f32", "bf16", "f64"]


class Model(nn.Module):
    """An embedding or vectors, blocks, and a loss; in evaluation the last values besides."""

    def __init__(self, case, rng):
        super().__init__()
        s = Sizes(case.width, case.heads, case.kv_heads, case.tokens, case.batch, rng)
        self.table = nn.Embedding(CLASSES, s.width)
        self.places = nn.Parameter(torch.randn(s.tokens, s.width) * 0.3)
        self.blocks = nn.ModuleList(BLOCKS[name](s) for name in case.blocks)
        self.loss = LOSSES[case.loss](s)

    def forward(self, ids, labels):
        x = self.table(ids) + self.places
        for block in self.blocks:
            x = block(x)
        return self.loss(x, labels), x


@dataclasses.dataclass
class Case:
    seed: int
    kind: str
    mesh: dict
    blocks: list
    loss: str
    width: int
    heads: int
    kv_heads: int
    tokens: int
    batch: int
    dtype: str
    options: dict
    #: The mesh and options of a session that goes on.
    then: tuple
    optimizer: str
    numbers: dict
    train: dict
    steps: int = 2

    def build(self):
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            net = Model(self, random.Random(f"model {self.seed}"))
        net = net.to({"f32": torch.float32, "bf16": torch.bfloat16, "f64": torch.float64}[self.dtype])
        return net.eval() if self.kind in ("outputs", "entries") else net.train()

    def inputs(self, step=0):
        g = torch.Generator().manual_seed(1000 * self.seed + step)
        shape = (self.batch, self.tokens)
        ids = torch.randint(0, CLASSES, shape, generator=g)
        labels = torch.randint(0, CLASSES, shape, generator=g)
        ignored = torch.rand(shape, generator=g) < 0.3
        ignored[:, 0] = False  # each microbatch has a label that counts
        return {"ids": ids, "labels": labels.masked_fill(ignored, -100)}

    def features(self):
        """What the case has, as in FEATURES."""
        found = {("kind", self.kind), ("loss", self.loss), ("optimizer", self.optimizer),
                 ("type", self.dtype)}
        found |= {("block", name) for name in self.blocks} | {("axis", axis) for axis in self.mesh}
        found |= {("option", name, _plain(value)) for name, value in self.options.items()}
        if self.trains:
            found |= {("train", name, str(value)) for name, value in self.train.items()}
        return found

    @property
    def trains(self):
        return self.kind in ("steps", "checkpoint", "dropout", "state_dict")

    def __str__(self):
        return " ".join(f"{k}={v}" for k, v in dataclasses.asdict(self).items())


def _plain(value):
    """The value in OPTIONS that stands for one of a case."""
    if isinstance(value, dict):
        return value.get("order", "linear")
    return value


def _features():
    found = [("kind", k) for k in KINDS] + [("loss", k) for k in LOSSES]
    found += [("optimizer", k) for k in OPTIMIZERS] + [("type", k) for k in dict.fromkeys(TYPES)]
    found += [("block", k) for k in BLOCKS]
    found += [("axis", a) for a in dict.fromkeys(a for mesh in MESHES for a in mesh)]
    found += [("option", name, v) for name, values in OPTIONS.items() for v in values
              if v is not None and name not in ELSEWHERE]
    found += [("train", name, str(v)) for name, values in TRAIN_OPTIONS.items() for v in values]
    return found


#: Everything that the cases have between them.
FEATURES = _features()


def _turn(values, seed, shift=0):
    """The value whose turn it is."""
    values = list(values)
    return values[(seed + shift) % len(values)]


def generate(seed):
    """The case of a seed."""
    rng = random.Random(seed)
    mesh = dict(_turn(MESHES, seed))
    kind = _turn(KINDS, seed) if rng.random() < 0.5 else rng.choice(KINDS[:4])
    blocks = [_turn(BLOCKS, 2 * seed), _turn(BLOCKS, 2 * seed + 1)]
    blocks += rng.choices(list(BLOCKS), k=rng.choice([0, 0, 1, 2]))
    rng.shuffle(blocks)
    if kind == "dropout" and not RANDOM & set(blocks):
        blocks.append(_turn(sorted(RANDOM), seed // len(KINDS)))
    if {"ring", "ulysses"} & set(mesh) and rng.random() < 0.8:
        blocks[0] = "attention"
    if kind not in ("dropout", "outputs", "entries"):
        # PyTorch drops other elements.
        blocks = [name for name in blocks if name not in RANDOM] or ["twice"]
    heads = rng.choice([1, 2, 3, 4, 6])
    case = Case(
        seed=seed, kind=kind, mesh=mesh, blocks=blocks, loss=_turn(LOSSES, seed),
        width=heads * rng.choice([2, 4, 6]), heads=heads,
        kv_heads=rng.choice([n for n in range(1, heads + 1) if heads % n == 0]),
        tokens=rng.choice([1, 2, 3, 4, 5, 7, 8, 12, 13]), batch=rng.choice([1, 2, 3, 4, 5, 6]),
        dtype=_turn(TYPES, seed) if rng.random() < 0.3 else "f32", options={}, then=None,
        optimizer=_turn(OPTIMIZERS, seed), numbers={}, train={})
    if NOT_BF16 & set(blocks) and case.dtype == "bf16":
        case.dtype = "f32"
    if STATEFUL & set(blocks) and case.batch * case.tokens < 3:
        case.batch = 3  # statistics need more than one value
    case.options = _options(case, mesh, rng, seed)
    other = dict(rng.choice(MESHES))
    case.then = (other, _options(case, other, rng, rng.randrange(100)))
    case.numbers = _numbers(case.optimizer, rng)
    case.train = _train(case, rng, seed)
    case.steps = rng.choice([2, 3])
    return case


def _options(case, mesh, rng, seed):
    chosen = {}
    for name, values in OPTIONS.items():
        value = rng.choice(values)
        if rng.random() < 0.3:
            value = _turn(values, seed // len(values))
        if value is None or name in ELSEWHERE:
            continue
        if name == "context_parallel":
            around = {axis: axis for axis in ("ulysses", "ring") if axis in mesh}
            if around:
                chosen[name] = "auto" if value == "auto" else \
                    around | ({"order": value} if "ring" in around else {})
        elif name == "shardings":
            if "tp" in mesh and "twice" in case.blocks:
                i = case.blocks.index("twice")
                chosen[name] = {f"blocks.{i}.weight": '[{"tp"}, {}]'}
        elif name in ("shard_optimizer", "recompute", "shard_saved"):
            if case.kind in ("steps", "checkpoint", "dropout", "state_dict", "gradients") and \
                    (name != "shard_optimizer" or case.kind != "gradients"):
                chosen[name] = value
        elif name in ("data_parallel", "tensor_parallel"):
            if rng.random() < 0.15:
                chosen[name] = value
        elif name in ("device", "memory_ceiling", "target"):
            if rng.random() < 0.25:
                chosen[name] = value
        elif name in ("gtp", "expert_parallel"):
            axes = [] if value == "none" else [value] if isinstance(value, str) else value
            # Mixtures have 4 experts or more.
            fits = name == "gtp" or math.prod(mesh.get(axis, 1) for axis in axes) <= 4
            if set(axes) <= set(mesh) and fits:
                chosen[name] = value
        elif name.startswith("gtp_"):
            if "gtp" in chosen or "gtp" in mesh:
                chosen[name] = value
        else:
            chosen[name] = value
    return chosen


def _numbers(optimizer, rng):
    if optimizer == "SGD":
        return {"lr": 0.05, "momentum": rng.choice([0.0, 0.9]),
                "weight_decay": rng.choice([0.0, 0.01])}
    # Adam divides by the size of a gradient: a small eps would make rounding of tiny ones large.
    return {"lr": 1e-2, "betas": rng.choice([(0.9, 0.999), (0.8, 0.95)]), "eps": 1e-3,
            "weight_decay": rng.choice([0.0, 0.1])}


def _train(case, rng, seed):
    counts = [n for n in TRAIN_OPTIONS["microbatches"] if case.batch % n == 0]
    if STATEFUL & set(case.blocks):
        counts = [1]
    return {
        "microbatches": rng.choice(counts), "clip_norm": rng.choice(TRAIN_OPTIONS["clip_norm"]),
        "seed": rng.choice(TRAIN_OPTIONS["seed"]),
        "loss_scale": _turn(TRAIN_OPTIONS["loss_scale"], seed) if rng.random() < 0.4 else None,
        "parameters": rng.choice([["*"], ["*"], ["*weight"]]), "loss": 0,
    }


def in_f64(net):
    return copy.deepcopy(net).double()
