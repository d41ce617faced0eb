# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Ten questions about a plan, each with its answer as a text. A page has each under its id."""

from typing import NamedTuple

from .facts import Facts, Launch, layers, peak
from .holdings import chunks, held, holders, ranks_text
from .numbers import bytes_text, label, number_text, plural, seconds_text
from .traffic import traffic


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
                f"A rank holds {found.local}, {bytes_text(found.local.bytes)}.")


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
                f"{bytes_text(found.local.bytes)}.{same}{absent}")


def longest_collective(facts: Facts) -> Launch | None:
    """The collective of which most shows, in a traced run or else as expected. Without times: the one
    with the fewest kernels beside it, and among these the one with the most bytes."""
    collectives = [launch for launch in facts.launches if launch.kind == "collective"]
    if not collectives:
        return None
    if facts.spans:
        return max(collectives, key=lambda launch: launch.measured.exposed)
    if all(launch.exposed is not None for launch in collectives):
        return max(collectives, key=lambda launch: launch.exposed)
    return min(collectives, key=lambda launch: (kernels_beside(facts, launch), -launch.bytes, launch.number))


def kernels_beside(facts: Facts, launch: Launch) -> int:
    """The kernels that the program has between a collective's start and its wait."""
    return sum(other.kind == "kernel" for other in facts.launches[launch.number + 1 : launch.wait])


def _longest_collective(facts: Facts) -> Answer:
    make = lambda text, known=True: Answer("answer-longest-collective", "Which collective shows longest?", text, known)
    found = longest_collective(facts)
    if found is None:
        return make("None: the program has no collectives.")
    name = (f"{found.title} (launch {found.number}) over {', '.join(found.axes) or 'the mesh'}, "
            f"whose result is {bytes_text(found.bytes)}")
    if facts.spans:
        return make(f"{name}: {seconds_text(found.measured.exposed)} of it show, measured, by the mean of the ranks.")
    if found.exposed is not None:
        if not found.exposed:
            return make("None: kernels run beside all collectives for as long as they take.")
        return make(f"{name}: {seconds_text(found.exposed)} of it show.")
    time = facts.report.get("communication")
    together = (f" Of all collectives together {seconds_text(time['exposed_seconds'])} show and "
                f"{seconds_text(time['hidden_seconds'])} do not." if time else "")
    if time and not time["exposed_seconds"]:
        return make(f"None: kernels run beside all collectives.{together}")
    return make(f"{name}: it has {plural(kernels_beside(facts, found), 'kernel')} beside it, the fewest, and the "
                f"largest result of these. The time of a single collective is not known.{together}", False)


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
    found = peak(facts)
    memory = facts.report["memory_per_rank"]
    whole = f"Inputs and activations take at most {bytes_text(memory['activations_peak'])} of a rank."
    if found is None or not found.bytes:
        return make(f"{whole} The arena is empty.")
    shown = ", ".join(f"{b.tensor} of {facts.launches[b.launch].title} ({bytes_text(b.bytes)})"
                      for b in found.buffers[:8])
    more = f", and {plural(len(found.buffers) - 8, 'smaller value')}" if len(found.buffers) > 8 else ""
    return make(f"{whole} The arena needs {bytes_text(found.bytes)} at launch {found.launch.number}, "
                f"{found.launch.title}, with {plural(len(found.buffers), 'value')} alive: {shown}{more}.")


def _longest_layer(facts: Facts) -> Answer:
    make = lambda text, known=True: Answer("answer-longest-layer", "Which layer takes longest?", text, known)
    found = layers(facts)
    if facts.spans:
        longest = max(found, key=lambda layer: layer.measured)
        return make(f"{longest.name}: {seconds_text(longest.measured)} of kernels, measured, by the mean of the ranks.")
    if facts.has_times and found:
        longest = max(found, key=lambda layer: layer.seconds or 0)
        return make(f"{longest.name}: {seconds_text(longest.seconds)}, by the cost model.")
    if not found:
        return make("The program has no launches.")
    sends = max(found, key=lambda layer: layer.sent)
    makes = max(found, key=lambda layer: layer.made)
    return make(f"The times of single layers are not known. {makes.name} writes most, {bytes_text(makes.made)}"
                + (f"; {sends.name} sends most, {bytes_text(sends.sent)}." if sends.sent else "."), False)


def _share(facts: Facts) -> Answer:
    make = lambda text, known=True: Answer("answer-ceiling-share", "What is its share of the ceiling?", text, known)
    found = layers(facts)
    longest = max(found, key=lambda layer: layer.measured) if facts.spans else None
    if longest and longest.measured_share is not None:
        return make(f"{longest.name} runs at {longest.measured_share:.0%} of the ceiling of its kernels, measured. Data "
                    "in caches may exceed it.")
    if facts.has_times and found:
        longest = max(found, key=lambda layer: layer.seconds or 0)
        if longest.share is not None:
            return make(f"{longest.name} runs at {longest.share:.0%} of the ceiling of its kernels.")
    run = facts.report.get("run")
    measured = " The report of a run compares classes of kernels with their ceilings." if run else ""
    return make("Not known before a run: the report has neither operations nor times of single kernels. "
                f"A page with the trace of a run with measure=True has both.{measured}", False)


def _traffic(facts: Facts) -> Answer:
    make = lambda text: Answer("answer-most-traffic", "Who sends most to whom?", text)
    if not facts.report["collectives"]:
        return make("No rank sends: the program has no collectives.")
    sent = traffic(facts)
    top = max(map(max, sent))
    if not top:
        return make(f"The ranks send {bytes_text(facts.report['bytes_of_all_ranks'])} together; the report does not "
                    "say to whom.")
    pairs = [(i, j) for i, row in enumerate(sent) for j, count in enumerate(row) if count > top * 0.9999]
    shown = ", ".join(f"rank {i} to rank {j}" for i, j in pairs[:4])
    more = f", and {plural(len(pairs) - 4, 'other pair')}" if len(pairs) > 4 else ""
    return make(f"{shown}{more}: {bytes_text(top)} a run. Sums, gathers and permutes count as rings, to the next "
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
