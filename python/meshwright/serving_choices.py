# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How a model that serves stores its caches, and in how many groups, where the options leave it open.

Each candidate is planned, and the cost model prices its largest step. The least time for a token wins. Of candidates
within 1 % of it, the one that needs the least memory wins, and of these the simplest. A candidate that the device's
memory does not hold loses to each one that it holds.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product

from . import _core
from .errors import Error, unwrap
from .options import spell

#: No device reads memory faster, or starts a collective in less time: bounds of what a cache by sequence may gain.
_FASTEST_READ, _LEAST_LAUNCH = 8e12, 1e-6
#: Times that differ by less are equal.
_TIE = 0.01
_BYTES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2}


@dataclass
class Candidate:
    groups: int
    cache: str
    #: Seconds of the largest step, of a token of it, and bytes that a rank holds and sends.
    seconds: float = 0.0
    per_token: float = 0.0
    memory: int = 0
    sent: int = 0
    #: Whether the device's memory holds it.
    fits: bool = True
    #: Why there is no such plan.
    refusal: str = ""
    options: dict = field(default_factory=dict)

    @property
    def name(self):
        return f"{self.groups} groups, cache by {self.cache}" if self.groups > 1 else f"one group, cache by {self.cache}"

    @property
    def numbers(self):
        return {"seconds": self.seconds, "memory_bytes": self.memory, "bytes": self.sent}


def choose(served, options):
    """(options without what was open, decisions of the report)."""
    mesh, groups = options.get("mesh"), options.get("data_parallel_attention")
    opens_cache = options.get("cache_sharding") in (None, "auto")
    if not isinstance(mesh, Mapping) or not (opens_cache or groups == "auto"):
        return options, []
    ranks = _ranks(options, 1)
    counts = [d for d in range(1, ranks + 1) if ranks % d == 0] if groups == "auto" else [groups or 1]
    candidates = []
    for count, cache in product(counts, ("heads", "sequence") if opens_cache else (options["cache_sharding"],)):
        if isinstance(count, int) and (cache == "heads" or Copies.of(served, options, count).cost_time):
            candidates.append(Candidate(count, cache))
    if len(candidates) < 2:
        if groups != "auto":
            return options, []
        return {**options, "data_parallel_attention": 1}, []
    for candidate in candidates:
        _price(served, options, candidate)
    possible = [candidate for candidate in candidates if not candidate.refusal]
    if not possible:
        return options, []
    fitting = [candidate for candidate in possible if candidate.fits]
    best = min((candidate.per_token for candidate in fitting), default=math.inf)
    near = [candidate for candidate in fitting or possible if candidate.per_token <= best * (1 + _TIE)]
    chosen = min(near, key=lambda candidate: candidate.memory)
    return chosen.options, [_decision(candidates, chosen, "data-parallel-attention" if groups == "auto" else "")]


def _ranks(options, groups) -> int:
    """The tensor-parallel ranks of one of so many groups."""
    text = spell({**options, "data_parallel_attention": groups, "cache_sharding": "sequence"})
    return unwrap(_core.Plan.count_dealt(text))


@dataclass
class Copies:
    """The part of a cache by heads that a cache by sequence lacks, where a group has more ranks than heads."""

    bytes: float = 0.0
    #: The number of layers that have copies.
    layers: int = 0

    @classmethod
    def of(cls, served, options, groups) -> "Copies":
        ranks = _ranks(options, groups)
        copied, layers = 0.0, set()
        for state in served._program.states:
            if state.name.startswith("cache.") and state.shape[-2] < ranks:
                size = math.prod(state.shape[1:]) * _BYTES.get(state.dtype, 4)
                copied += size / state.shape[-2] - size / ranks
                layers.add(state.name.rsplit(".", 1)[0])
        return cls(copied, len(layers))

    @property
    def cost_time(self) -> bool:
        """Whether their reads may take longer than the exchanges of a cache by sequence."""
        return self.bytes / _FASTEST_READ > 2 * _LEAST_LAUNCH * self.layers


def _price(served, options, candidate):
    candidate.options = {**options, "data_parallel_attention": candidate.groups, "cache_sharding": candidate.cache}
    try:
        report = served._parallelize(**candidate.options).report(format="json")
    except Error as error:
        candidate.refusal = str(error).splitlines()[0]
        return
    entry = max(report["serving"]["entries"], key=lambda entry: (entry["tokens"], entry["rows"]))
    candidate.seconds, candidate.sent = entry["seconds"], entry["bytes_per_rank"]
    candidate.per_token = entry["seconds"] / entry["rows"]
    candidate.memory = sum(report["memory_per_rank"].values())
    # Plans under a ceiling of the user's fit in it.
    candidate.fits = (options.get("memory_ceiling") is not None or
                      candidate.memory <= (report.get("device_memory") or math.inf))


def _decision(candidates, chosen, option):
    others = [
        f"{other.name} {other.refusal or f'takes {other.seconds * 1e6:.1f} us, {other.memory / 2**20:.1f} MiB'}"
        f"{'' if other.fits else ', which does not fit'}"
        for other in candidates
        if other is not chosen
    ]
    message = (f"{chosen.name}: a step takes {chosen.seconds * 1e6:.1f} us, and a rank holds "
               f"{chosen.memory / 2**20:.1f} MiB; " + "; ".join(others))
    return {
        "pass": "serve",
        "outcome": "applied",
        "message": f"{option or 'cache-sharding'}: {message}",
        "location": {"file": "", "line": 0, "name": ""},
        "numbers": chosen.numbers,
        "alternatives": [
            {"name": other.name, "chosen": other is chosen, "note": other.refusal, "numbers": other.numbers}
            for other in candidates
        ],
    }
