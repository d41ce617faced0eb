# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Decisions and warnings of a report, equal ones of several layers together."""

import os
import re
from dataclasses import dataclass, field

from .facts import joined_names
from .numbers import label, number_text


@dataclass
class Group:
    """Entries of a report that differ in their layers alone."""

    first: dict
    names: list[str] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    count: int = 0

    @property
    def where(self) -> str:
        """`model.layers.{0..3}.mlp (modeling_llama.py:171)`."""
        names = joined_names(self.names) if self.names else ""
        places = ", ".join(self.places[:3]) + (", ..." if len(self.places) > 3 else "")
        return f"{names} ({places})" if names and places else names or places

    @property
    def numbers(self) -> list[tuple[str, str]]:
        return numbers(self.first)


def numbers(entry: dict) -> list[tuple[str, str]]:
    """The numbers of a decision or an alternative with their names, as texts."""
    return [(label(name), number_text(name, value)) for name, value in entry.get("numbers", {}).items()]


def grouped(entries: list[dict]) -> list[Group]:
    groups: dict[tuple, Group] = {}
    for entry in entries:
        location = entry["location"]
        key = (entry.get("pass"), entry.get("outcome"), _general(entry["message"]), _general(location["name"]),
               tuple(entry.get("numbers", {}).items()), bool(entry.get("alternatives")))
        group = groups.setdefault(key, Group(entry))
        group.count += 1
        if location["name"] and location["name"] not in group.names:
            group.names.append(location["name"])
        if location["file"]:
            place = f"{os.path.basename(location['file'])}:{location['line']}"
            if place not in group.places:
                group.places.append(place)
    return list(groups.values())


def _general(text: str) -> str:
    return re.sub(r"(?<=\.)\d+(?=[.'\" ]|$)", "*", text)
