# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Ten questions about a plan, each with its answer as a text. A page has each under its id."""

from typing import NamedTuple

from .facts import Facts, Launch, Layer
from .holdings import chunks, held, holders, ranks_text
from .numbers import bytes_text, label, number_text, plural, seconds_text
from .traffic import top_pairs


class Answer(NamedTuple):
    id: str
    question: str
    text: str
    #: False where the report lacks the number that the question is about.
    is_known: bool = True


def answers(facts: Facts) -> list[Answer]:
    return [
        _query_layout(facts), _rank_3(facts), _longest_collective(facts), _waits_for(facts), _peak(facts),
        _longest_layer(facts), _share(facts), _traffic(facts), _sequence_parallel(facts), _second_plan(facts),
    ]


def _query_layout(facts: Facts) -> Answer:
    make = lambda text: Answer("answer-query-layout", "How is the query weight sharded?", text)
    found = facts.layout(facts.query) if facts.query else None
    if found is None:
        return make("The program has no attention whose queries are a product with a weight.")
    cuts = []
    for d, dim in enumerate(found.sharding.dims):
        axes = list(dict.fromkeys(axis.name for factor in dim for axis in factor.axes))
        if axes:
            cuts.append(f"dimension {d} over {', '.join(axes)} in {plural(chunks(dim), 'chunk')}")
    how = "; ".join(cuts) if cuts else "not sharded: each rank holds all of it"
    return make(f"{found.pattern} is {found.whole} with the layout {found.text}: {how}. "
                f"A rank holds {found.local}, {bytes_text(found.bytes)}.")


def _rank_3(facts: Facts) -> Answer:
    rank = min(3, facts.ranks - 1)
    make = lambda text: Answer("answer-rank-3", f"What does rank {rank} hold of it?", text)
    found = facts.layout(facts.query) if facts.query else None
    if found is None:
        return make("There is no query weight.")
    others = next(ranks for ranks in holders(found, facts.mesh).values() if rank in ranks)
    others = [r for r in others if r != rank]
    same = f" {ranks_text(others).capitalize()} hold{'s' * (len(others) == 1)} the same part." if others else ""
    absent = f" There is no rank 3: the plan has {plural(facts.ranks, 'rank')}." if rank < 3 else ""
    return make(f"Rank {rank} holds {held(found, facts.mesh, rank)}: {found.local}, "
                f"{bytes_text(found.bytes)}.{same}{absent}")


def longest_collective(facts: Facts) -> Launch | None:
    """The collective of which most shows, in a traced run or else by the cost model. If none shows: the
    one with the fewest kernels beside it, and among these the one that sends most."""
    collectives = [launch for launch in facts.launches if launch.is_collective]
    if not collectives:
        return None
    shown = lambda launch: launch.measured.exposed if facts.spans else launch.exposed
    longest = max(collectives, key=shown)
    if shown(longest) > 0:
        return longest
    return min(collectives, key=lambda launch: (kernels_beside(facts, launch), -launch.bytes, launch.number))


def kernels_beside(facts: Facts, launch: Launch) -> int:
    """The kernels that the program has between a collective's start and its wait."""
    return sum(not other.is_collective for other in facts.launches[launch.number + 1 : launch.wait])


def _longest_collective(facts: Facts) -> Answer:
    make = lambda text, known=True: Answer("answer-longest-collective", "Which collective shows longest?", text, known)
    found = longest_collective(facts)
    if found is None:
        return make("None: the program has no collectives.")
    name = (f"{found.title} (launch {found.number}) over {', '.join(found.axes) or 'the mesh'}, "
            f"which sends {bytes_text(found.bytes)}")
    if facts.spans:
        expected = f", by the cost model {seconds_text(found.exposed)}" if facts.has_times else ""
        return make(f"{name}: {seconds_text(found.measured.exposed)} of it show, measured, by the mean of the "
                    f"ranks{expected}.")
    together = _together(facts)
    if not facts.has_times:
        return make(f"{name}: it has {plural(kernels_beside(facts, found), 'kernel')} beside it, the fewest. The "
                    "plan is for a device that takes no time.", False)
    if not found.exposed:
        return make(f"None: kernels run beside all collectives for as long as they take.{together}")
    return make(f"{name}: {seconds_text(found.exposed)} of its {seconds_text(found.seconds)} show, by the cost "
                f"model.{together}")


def _together(facts: Facts) -> str:
    time = facts.report.get("communication")
    if not time:
        return ""
    return (f" Of all collectives together {seconds_text(time['exposed_seconds'])} show and "
            f"{seconds_text(time['hidden_seconds'])} do not.")


def _waits_for(facts: Facts) -> Answer:
    make = lambda text: Answer("answer-collective-waits-for", "What does it wait for?", text)
    found = longest_collective(facts)
    if found is None:
        return make("There is no collective.")
    maker = max((n for n in found.makers), default=None)
    before = [launch for launch in facts.launches[: found.number]
              if launch.stream == found.stream and launch.wait > found.number]
    parts = []
    if maker is None:
        parts.append("It waits for no kernel: its operand is an argument of the program.")
    else:
        parts.append(f"It waits for launch {maker}, {facts.launches[maker].title}, which makes its operand.")
    if before:
        parts.append(f"Launch {before[-1].number}, {before[-1].title}, is before it on the same stream.")
    if found.wait < len(facts.launches):
        parts.append(f"Launch {found.wait}, {facts.launches[found.wait].title}, runs once it has ended.")
    return make(" ".join(parts))


def _peak(facts: Facts) -> Answer:
    make = lambda text: Answer("answer-peak", "How high is the peak, and which values are alive at it?", text)
    found = facts.peak
    memory = facts.report["memory_per_rank"]
    whole = f"Inputs and activations take at most {bytes_text(memory['activations_peak'])} of a rank."
    if found is None or not found.bytes:
        return make(f"{whole} The arena is empty.")
    shown = ", ".join(f"{b.tensor} of {facts.launches[b.launch].title} ({bytes_text(b.bytes)})"
                      for b in found.buffers[:8])
    more = f", and {plural(len(found.buffers) - 8, 'smaller value')}" if len(found.buffers) > 8 else ""
    return make(f"{whole} The arena needs {bytes_text(found.bytes)} at launch {found.launch.number}, "
                f"{found.launch.title}, with {plural(len(found.buffers), 'value')} alive: {shown}{more}.")


def longest_layer(facts: Facts) -> Layer | None:
    """The module of which kernels and communication that shows take longest, measured or expected."""
    if facts.spans:
        return max(facts.modules, key=lambda layer: layer.measured + layer.measured_exposed, default=None)
    return max(facts.modules, key=lambda layer: layer.whole, default=None)


def _longest_layer(facts: Facts) -> Answer:
    make = lambda text, known=True: Answer("answer-longest-layer", "Which layer takes longest?", text, known)
    longest = longest_layer(facts)
    if longest is None:
        return make("The program has no launches.")
    if facts.spans:
        return make(f"{longest.name}: {seconds_text(longest.measured)} of kernels and "
                    f"{seconds_text(longest.measured_exposed)} of communication that shows, measured, by the mean of "
                    "the ranks.")
    if not facts.has_times:
        return make("The plan is for a device that takes no time.", False)
    alike = [layer.name for layer in facts.modules
             if layer is not longest and layer.whole > longest.whole * 0.999]
    more = f" {plural(len(alike), 'other layer')} {'takes' if len(alike) == 1 else 'take'} as long." if alike else ""
    return make(f"{longest.name}: {seconds_text(longest.whole)} by the cost model, {seconds_text(longest.seconds)} of "
                f"kernels and {seconds_text(longest.exposed)} of communication that shows.{more}")


def _share(facts: Facts) -> Answer:
    make = lambda text, known=True: Answer("answer-ceiling-share", "What is its share of the ceiling?", text, known)
    longest = longest_layer(facts)
    if longest is None:
        return make("There is no layer.")
    if longest.measured_share is not None:
        return make(f"{longest.name} runs at {longest.measured_share:.0%} of the ceiling of its kernels, measured. Data "
                    "in caches may exceed it.")
    if longest.share is None:
        return make(f"Not known: the device states no rates of arithmetic or memory for {longest.name}.", False)
    return make(f"{longest.name} runs at {longest.share:.0%} of the ceiling of its kernels by the cost model: they take "
                f"at least {seconds_text(longest.least)} at the device's rates of arithmetic and memory, and "
                f"{seconds_text(longest.seconds)} with their launches.")


def _traffic(facts: Facts) -> Answer:
    make = lambda text: Answer("answer-most-traffic", "Who sends most to whom?", text)
    if not facts.report["collectives"]:
        return make("No rank sends: the program has no collectives.")
    top, pairs = top_pairs(facts)
    if not top:
        return make("No rank sends another one anything.")
    shown = ", ".join(f"rank {i} to rank {j}" for i, j in pairs[:4])
    more = f", and {plural(len(pairs) - 4, 'other pair')}" if len(pairs) > 4 else ""
    return make(f"{shown}{more}: {bytes_text(top)} a run. Sums, gathers and scatters count as rings, to the next "
                f"rank of their group. All ranks together send {bytes_text(facts.report['bytes_of_all_ranks'])}.")


def _sequence_parallel(facts: Facts) -> Answer:
    make = lambda text: Answer("answer-sequence-parallel", "Why is sequence parallelism on or off?", text)
    found = [d for d in facts.report["decisions"] if d["pass"] == "annotate-scatter-modes"]
    asked = facts.options.get("sequence_parallel")
    if found:
        applied = [d for d in found if d["outcome"] == "applied"]
        return make(f"{'On' if applied else 'Off'}: {(applied or found)[0]['message']}.")
    if asked == "off":
        return make("Off, as the user asks.")
    return make("Off: the planner had nothing to decide, as no reduction of tokens over an axis of tensor "
                "parallelism is in the program.")


def _second_plan(facts: Facts) -> Answer:
    make = lambda text, known=True: Answer("answer-second-plan", "What was the second best plan, and why did it lose?",
                                           text, known)
    decisions = [d for d in facts.report["decisions"] if d.get("alternatives")]
    # A planner's choice of the mesh comes before choices within a plan.
    decisions.sort(key=lambda decision: decision["pass"] != "choose-plan")
    for decision in decisions:
        chosen = next((a for a in decision["alternatives"] if a["chosen"]), None)
        others = [a for a in decision["alternatives"] if not a["chosen"]]
        if not chosen or not others:
            continue
        second = min(others, key=lambda a: a["numbers"].get("seconds", float("inf")))
        return make(f"{decision['pass']} compared {plural(len(decision['alternatives']), 'plan')}. The chosen one is "
                    f"'{chosen['name']}', the second is '{second['name']}': {_why(chosen, second)}")
    return make("No other plan was priced: all that the planner could choose was given.", False)


def _why(chosen, second) -> str:
    worse = []
    for name, value in second["numbers"].items():
        own = chosen["numbers"].get(name)
        if own is not None and value > own:
            worse.append(f"{label(name)} {number_text(name, value)} against {number_text(name, own)}")
    reason = "it has " + ", ".join(worse) if worse else "none of its numbers is better"
    return f"{reason}." + (f" {second['note'].capitalize()}." if second.get("note") else "")
