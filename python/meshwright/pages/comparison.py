# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The differences of two plans."""

from dataclasses import dataclass, field
from typing import NamedTuple

from .decisions import grouped
from .facts import Facts, generalize
from .numbers import bytes_text, seconds_text


class Row(NamedTuple):
    """A number of both plans; None where a report does not have it."""

    name: str
    first: float | None
    second: float | None
    text: object

    @property
    def texts(self) -> tuple[str, str]:
        return tuple("not known" if v is None else self.text(v) for v in (self.first, self.second))

    @property
    def change(self) -> str:
        """How the second one differs: `+12 %`, `same`, or nothing where it cannot be said."""
        if self.first is None or self.second is None:
            return ""
        if self.first == self.second:
            return "same"
        if not self.first:
            return "new"
        return f"{(self.second / self.first - 1) * 100:+.3g} %"

    @property
    def shares(self) -> tuple[float, float]:
        """Both numbers as shares of the larger one."""
        first, second = self.first or 0, self.second or 0
        top = max(first, second) or 1
        return first / top, second / top


@dataclass
class Comparison:
    names: tuple[str, str]
    numbers: list[Row]
    collectives: list[Row]
    #: Patterns of tensors with the layouts of both plans, where they differ.
    layouts: list[tuple[str, str, str]] = field(default_factory=list)
    #: Decisions of one plan alone: (which plan, 0 or 1, its text).
    decisions: list[tuple[int, str]] = field(default_factory=list)

    @property
    def is_same(self) -> bool:
        rows = [*self.numbers, *self.collectives]
        return not self.layouts and not self.decisions and all(row.first == row.second for row in rows)


def compare(first: Facts, second: Facts) -> Comparison:
    a, b = first.report, second.report
    number = lambda name, *path, text=bytes_text: Row(name, _at(a, path), _at(b, path), text)
    numbers = [
        number("the whole run", "communication", "run_seconds", text=seconds_text),
        number("communication that shows", "communication", "exposed_seconds", text=seconds_text),
        number("communication beside kernels", "communication", "hidden_seconds", text=seconds_text),
        number("sent by a rank", "bytes_per_rank"),
        number("sent by all ranks", "bytes_of_all_ranks"),
        number("launches of collectives", "launches_per_rank", text=lambda v: f"{v:,}"),
    ]
    kinds = list(dict.fromkeys([*a["memory_per_rank"], *b["memory_per_rank"]]))
    for kind in kinds:
        if kind != "modules":
            row = number(f"memory: {kind.replace('_', ' ')}", "memory_per_rank", kind)
            if row.first or row.second:
                numbers.append(row)
    return Comparison((title(first), title(second)), numbers, _collectives(a, b), _layouts(first, second),
                      _decisions(a, b))


def title(facts: Facts) -> str:
    mesh = " ".join(f"{axis}={size}" for axis, size in facts.report["mesh"].items())
    options = " ".join(f"{name}={_spelled(value)}" for name, value in facts.options.items() if name != "mesh")
    return " ".join(filter(None, [mesh or "one rank", options]))


def _spelled(value) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _at(report, path):
    for key in path:
        report = report.get(key) if report is not None else None
    return report


def _collectives(a, b) -> list[Row]:
    totals: dict[str, list[int]] = {}
    for k, report in enumerate((a, b)):
        for entry in report["collectives"]:
            role = "" if entry["role"] == "data" else f" of {entry['role']}"
            name = f"{entry['kind']} over {', '.join(entry['axes'])}{role}"
            totals.setdefault(name, [0, 0])[k] += entry["bytes_per_rank"]
    return [Row(name, *pair, bytes_text) for name, pair in totals.items()]


def _layouts(first: Facts, second: Facts) -> list[tuple[str, str, str]]:
    of = [{name: layout.text for layout in facts.layouts for name in layout.names} for facts in (first, second)]
    groups: dict[tuple, None] = {}
    for name in dict.fromkeys([*of[0], *of[1]]):
        texts = of[0].get(name, "absent"), of[1].get(name, "absent")
        if texts[0] != texts[1]:
            groups[(generalize(name), *texts)] = None
    return list(groups)


def _decisions(a, b) -> list[tuple[int, str]]:
    lines = []
    for report in (a, b):
        lines.append({})
        for group in grouped(report["decisions"]):
            entry = group.first
            line = f"{entry['outcome']}  {entry['pass']}: {entry['message']}"
            lines[-1][line] = None
    only = [(0, line) for line in lines[0] if line not in lines[1]]
    return only + [(1, line) for line in lines[1] if line not in lines[0]]


def text(found: Comparison) -> str:
    """The differences as text: the first plan is on the left."""
    if found.is_same:
        return f"the plans are alike: {found.names[0]}\n"
    lines = [f"first:  {found.names[0]}", f"second: {found.names[1]}", ""]
    rows = [("", "first", "second", "")]
    rows += [(row.name, *row.texts, row.change) for row in [*found.numbers, *found.collectives]]
    widths = [max(len(row[k]) for row in rows) for k in range(4)]
    for row in rows:
        lines.append(f"  {row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]}".rstrip())
    if found.layouts:
        lines += ["", "layouts"]
        lines += [f"  {name}: {first} -> {second}" for name, first, second in found.layouts]
    for which, head in enumerate(("decisions of the first alone", "decisions of the second alone")):
        own = [line for k, line in found.decisions if k == which]
        if own:
            lines += ["", head, *(f"  {line}" for line in own)]
    return "\n".join(lines) + "\n"
