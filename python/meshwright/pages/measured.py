# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The trace of a run (`plan.run(trace=FILE)`) beside the launches of its plan."""

import json
from collections import defaultdict
from typing import NamedTuple

from ..errors import Error
from .facts import Facts, Measured


class Span(NamedTuple):
    """An event of a trace: microseconds from the first one on. Stream 0 computes."""

    rank: int
    stream: int
    launch: int
    begin: float
    length: float
    kind: str
    title: str


def add_trace(facts: Facts, path: str) -> None:
    """Adds a trace's spans to the facts, and the means over ranks to their launches."""
    if facts.steps:
        raise Error(f"trace '{path}': a call of several microbatches runs several functions; a page shows one")
    spans, work = _read(path)
    launches = {launch.number for launch in facts.launches}
    strange = next((s for s in spans if s.launch not in launches or not 0 <= s.rank < facts.ranks), None)
    if strange or not spans:
        found = f"launch {strange.launch} of rank {strange.rank}" if strange else "no event"
        raise Error(
            f"trace '{path}': expected one of a run of this plan, with launches to {len(launches) - 1} of "
            f"{facts.ranks} ranks, got {found}"
        )
    ranks = len({span.rank for span in spans})
    seconds, exposed = defaultdict(float), defaultdict(float)
    for span in spans:
        # A collective on the compute stream shows, and so does the time until one is there.
        if span.stream == 0 and span.kind in ("collective", "wait"):
            exposed[span.launch] += span.length * 1e-6 / ranks
        if span.kind != "wait":
            seconds[span.launch] += span.length * 1e-6 / ranks
    for launch in facts.launches:
        flops, moved = work.get(launch.number, (0, 0))
        launch.measured = Measured(seconds[launch.number], exposed[launch.number], flops,
                                   _bound(facts, launch, flops, moved))
    facts.spans = spans
    found = {layer.name: layer for layer in facts.layers}
    for launch in facts.launches:
        layer, own = found[launch.layer], launch.measured
        layer.measured_exposed += own.exposed
        if launch.is_collective:
            continue
        layer.measured += own.seconds
        layer.measured_flops += own.flops
        if own.bound is not None:
            layer.measured_bound = (layer.measured_bound or 0) + own.bound


def _bound(facts: Facts, launch, flops, moved) -> float | None:
    """The least seconds of a kernel by the ceilings of the run's report; None without them."""
    run = facts.report.get("run") or {}
    ceilings = run.get("ceilings")
    if not ceilings or launch.is_collective:
        return None
    # The ceilings are those of all threads that compute together.
    own = run.get("threads_per_rank", 1) / max(1, ceilings.get("threads", 1))
    narrow = any(b.tensor.dtype in ("bf16", "f16") for b in launch.buffers)
    rate = ceilings["bf16_flops_per_second" if narrow else "f32_flops_per_second"] * min(1.0, own)
    bandwidth = ceilings["bytes_per_second"] * min(1.0, own)
    return max(flops / rate if rate else 0.0, moved / bandwidth if bandwidth else 0.0)


def _read(path: str):
    try:
        with open(path, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        events = [e for e in events if e["ph"] == "X"]
        begin = min((float(e["ts"]) for e in events), default=0.0)
        spans = [Span(int(e["pid"]), int(e["tid"]), int(e["args"]["op"]), float(e["ts"]) - begin,
                      float(e["dur"]), str(e["cat"]), str(e["name"])) for e in events]
        work = {int(e["args"]["op"]): (float(e["args"]["flops"]), float(e["args"]["bytes"]))
                for e in events if e["cat"] != "wait"}
    except OSError as error:
        raise Error(f"cannot read trace '{path}': {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Error(f"trace '{path}': expected a file that a run wrote with trace=, got another one") from None
    return spans, work
