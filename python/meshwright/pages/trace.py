# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The expected schedule of a plan in the Chrome trace format, with the names of measured traces."""

from collections import defaultdict

from .facts import Facts, Launch


def expected_trace(facts: Facts, ranks: int) -> dict:
    """The events of the first ranks, which all run alike. Microseconds."""
    shown = range(min(ranks, facts.ranks))
    events = []
    streams = sorted({launch.stream for launch in facts.launches} | {0})
    spans, counters = [_span(launch) for launch in facts.launches], _counters(facts)
    for rank in shown:
        events += _names(rank, streams)
        events += [{**span, "pid": rank} for span in spans]
        events += [{**counter, "pid": rank} for counter in counters]
    events += _arrows(facts, shown)
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _names(rank: int, streams):
    yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}
    yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
    for stream in streams:
        name = f"stream {stream}" if stream else "compute"
        yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": stream, "args": {"name": name}}


def _span(launch: Launch) -> dict:
    arguments = {"op": launch.number, "flops": round(launch.flops), "bytes": launch.bytes}
    if launch.is_collective:
        arguments["exposed_us"] = _us(launch.exposed)
    if launch.file:
        arguments["source"] = f"{launch.file}:{launch.line}"
    return {"name": launch.title, "cat": launch.kind, "ph": "X", "tid": launch.stream, "ts": _us(launch.start),
            "dur": _us(launch.seconds), "args": arguments}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _counters(facts: Facts):
    """The bytes of the arena that values take, and those of the collectives that run, at each change."""
    counters = {"arena": _arena(facts), "bytes in flight": _in_flight(facts)}
    return [{"name": name, "ph": "C", "ts": time, "args": {"bytes": count}}
            for name, counts in counters.items() for time, count in sorted(counts.items())]


def _end(launch: Launch) -> float:
    return launch.start + launch.seconds


def _arena(facts: Facts):
    """The bytes of the arena that values take, from the begin of each launch on. Traces of runs count alike."""
    counts, alive = defaultdict(int), []
    for launch in facts.launches:
        alive = [buffer for buffer in alive if buffer.last >= launch.number] + launch.buffers
        time = _us(launch.start)
        counts[time] = max(counts[time], _covered(alive))
    counts[_us(max(map(_end, facts.launches), default=0.0))] = 0
    return counts


def _covered(buffers) -> int:
    """The bytes that places cover together: values may share one."""
    covered = end = 0
    for begin, stop in sorted((buffer.offset, buffer.offset + buffer.place) for buffer in buffers):
        covered += max(0, stop - max(begin, end))
        end = max(end, stop)
    return covered


def _in_flight(facts: Facts):
    """The bytes of the collectives that run."""
    changes = defaultdict(int)
    for launch in facts.launches:
        if launch.is_collective:
            changes[_us(launch.start)] += launch.bytes
            changes[_us(_end(launch))] -= launch.bytes
    total = 0
    return {time: (total := total + change) for time, change in sorted(changes.items())}


def _arrows(facts: Facts, shown):
    """An arrow through the ranks of each group of a collective."""
    groups: dict[tuple, list[list[int]]] = {}
    number = 0
    for launch in facts.launches:
        if not launch.is_collective:
            continue
        key = tuple(launch.axes)
        if key not in groups:
            axes = [facts.mesh.axis(name) for name in key]
            found = [[rank for rank in group if rank in shown] for group in facts.mesh.groups(axes)]
            groups[key] = [group for group in found if len(group) > 1]
        for group in groups[key]:
            number += 1
            for k, rank in enumerate(group):
                event = {"name": "collective", "cat": "collective", "id": number, "pid": rank, "tid": launch.stream,
                         "ts": _us(launch.start), "ph": "s" if k == 0 else "f" if k + 1 == len(group) else "t"}
                if event["ph"] == "f":
                    event["bp"] = "e"
                yield event
