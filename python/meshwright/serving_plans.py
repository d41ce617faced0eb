# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The mesh of a model that serves, by finished plans.

The program of such a model depends on its groups of requests, so each candidate has a program of its own. The
plan with the most new tokens a second wins: each group decodes its most requests at once. Where ranks would hold
copies of a cache, the cache by sequence is a candidate, too, if it may be faster or its memory counts.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping
from numbers import Integral, Real

from . import arguments
from .errors import Error
from .options import spell
from .pages.numbers import bytes_text, seconds_text
from .plan import Plan
from .serving_choices import Copies

_OBJECTIVES = ("time", "memory", "time-then-memory")
#: Plans within this part of the best are equal, and the simplest wins; as in C++.
_TIE, _NEAR_TIME = 1.001, 1.05
_MOST_ALTERNATIVES = 8


@dataclasses.dataclass
class _Candidate:
    options: dict
    plan: Plan
    #: New tokens a second of all groups, seconds of a step that decodes, and bytes of a rank.
    rate: float
    seconds: float
    memory: int
    exposed: float
    sent: int
    fits: bool


def choose(parallelize: Callable[..., Plan], copies: Callable[[Mapping], Copies], requests: int, given: Mapping,
           latency=None) -> Plan:
    """The best plan for `given["ranks"]` ranks. `parallelize` makes the plan of options with a mesh, in which
    each group has at most `requests` requests at once. `copies` tells how much of a cache by heads ranks hold
    several times. `latency` bounds the seconds of a step that decodes."""
    options = dict(given)
    ranks = arguments.positive("ranks", options.pop("ranks"), Integral)
    if latency is not None:
        latency = arguments.positive("latency", latency, Real)
    objective = options.pop("objective", None) or "time"
    if objective not in _OBJECTIVES:
        arguments.fail("objective", objective, "time, memory or time-then-memory")
    if options.get("mesh") not in (None, "auto"):
        arguments.fail("mesh", options["mesh"], "no mesh beside ranks of a model that serves")
    options.pop("mesh", None)
    for name in ("data_parallel", "tensor_parallel", "data_parallel_attention"):
        if options.get(name) == "auto":
            options.pop(name)
    found, short, refusal = [], [], None
    opens_cache = options.get("cache_sharding") in (None, "auto")

    def attempt(own) -> bool:
        """Plans a candidate. Returns true if there is such a plan, and it fits."""
        nonlocal refusal
        try:
            found.append(_price(own, parallelize(**own), requests))
        except Error as error:
            refusal = refusal or error
            if needed := re.search(r"needs (\d+) bytes .* at most (\d+), the memory ceiling", str(error)):
                short.append((int(needed[1]), int(needed[2]), own))
            return False
        return found[-1].fits

    for own in _candidates(ranks, options):
        held = copies(own) if opens_cache else Copies()
        if not held.bytes:
            attempt(own)
        elif not attempt({**own, "cache_sharding": "heads"}) or held.cost_time or objective != "time":
            attempt({**own, "cache_sharding": "sequence"})
    if not found and short:
        needed, ceiling, own = min(short, key=lambda entry: entry[0])
        own = {name: value for name, value in own.items() if name != "memory_ceiling"}
        raise Error(f"memory-ceiling: no plan for {ranks} ranks fits in {ceiling} bytes ({bytes_text(ceiling)}): "
                    f"the least that is needed is {needed} bytes ({bytes_text(needed)}), with {spell(own)}")
    if not found:
        raise refusal or Error(f"ranks: expected a mesh of {ranks} ranks, and no axis is left to choose")
    fitting = [c for c in found if c.fits]
    if not fitting:
        least = min(found, key=lambda c: c.memory)
        raise Error(f"memory of the device: no plan for {ranks} ranks fits: the least that is needed is {least.memory} "
                    f"bytes ({bytes_text(least.memory)}), with {spell(least.options)}")
    quick = [c for c in fitting if latency is None or c.seconds <= latency]
    if not quick:
        fastest = min(fitting, key=lambda c: c.seconds)
        raise Error(f"latency: expected at least {fastest.seconds:.3g} seconds, which a step of "
                    f"{spell(fastest.options)} takes, the fastest of {len(fitting)} plans, got {latency:g}")
    best = _best(quick, objective)
    found.sort(key=lambda c: (c is not best, not c.fits, -c.rate))
    best.plan._alternatives = [_alternative(c, best, latency) for c in found[:_MOST_ALTERNATIVES]]
    return best.plan


def _candidates(ranks: int, given: Mapping) -> Iterator[dict]:
    """The options of each way to divide the ranks over data and tensor parallelism, and groups of attention."""
    for tp in (n for n in range(1, ranks + 1) if ranks % n == 0):
        axes = {given.get("data_parallel") or "dp": ranks // tp, given.get("tensor_parallel") or "tp": tp}
        mesh = {name: size for name, size in axes.items() if size > 1} or {"tp": 1}
        if "none" in mesh:
            continue
        yield {"mesh": mesh, **given}
        if given.get("data_parallel_attention") is None:
            for groups in (n for n in range(2, tp + 1) if tp % n == 0):
                yield {"mesh": mesh, **given, "data_parallel_attention": groups}


def _price(options, plan, requests) -> _Candidate:
    report = plan.report("json")
    serving = report["serving"]
    # Entries that hold all requests of each group, or else as many as a step holds.
    whole = [entry for entry in serving["entries"] if "sum=" not in entry["name"]]
    step = min((e for e in whole if e["tokens"] >= requests), key=lambda e: e["tokens"],
               default=max(whole, key=lambda e: e["tokens"]))
    seconds = step["seconds"] * math.ceil(requests / step["tokens"])
    memory = sum(size for size in report["memory_per_rank"].values() if isinstance(size, int))
    times = plan.report("json", entry=step["name"]).get("communication") or {}
    # Plans under a ceiling of the user's fit in it.
    fits = options.get("memory_ceiling") is not None or memory <= (report.get("device_memory") or math.inf)
    return _Candidate(options, plan, serving["groups"] * requests / seconds, seconds, memory,
                      times.get("exposed_seconds", 0.0), step["bytes_per_rank"], fits)


def _best(candidates, objective) -> _Candidate:
    if objective == "memory":
        return min(candidates, key=lambda c: (c.memory, -c.rate))
    near = _NEAR_TIME if objective == "time-then-memory" else _TIE
    most = max(c.rate for c in candidates)
    equal = [c for c in candidates if c.rate * near >= most]
    if objective == "time-then-memory":
        return min(equal, key=lambda c: (c.memory, -c.rate))
    return min(equal, key=lambda c: (len(c.options["mesh"]), len(spell(c.options)), -c.rate))


def _alternative(candidate, best, latency) -> dict:
    reason = ""
    if candidate is not best:
        difference = bytes_text(abs(candidate.memory - best.memory))
        if not candidate.fits:
            reason = f"needs {bytes_text(candidate.memory)}, which does not fit"
        elif latency is not None and candidate.seconds > latency:
            reason = f"a step takes {seconds_text(candidate.seconds)}, more than the latency"
        elif candidate.rate * _TIE < best.rate:
            reason = f"computes {100 * (1 - candidate.rate / best.rate):.1f} % fewer tokens a second"
        elif candidate.memory > best.memory:
            reason = f"needs {difference} more"
        else:
            reason = f"computes {100 * (candidate.rate / best.rate - 1):.1f} % more tokens a second, and is less simple"
        if candidate.memory > best.memory and "fewer" in reason:
            reason += f", and needs {difference} more"
    return {
        "options": candidate.options, "mesh": candidate.options["mesh"], "chosen": candidate is best,
        "seconds": candidate.seconds, "exposed_seconds": candidate.exposed, "tokens_per_second": candidate.rate,
        "memory_per_rank": candidate.memory, "bytes_per_rank": candidate.sent, "loses": reason,
    }
