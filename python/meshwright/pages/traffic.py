# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Bytes from rank to rank."""

import re

from ..importer.graph.layouts import Mesh
from .facts import Facts


def traffic(facts: Facts) -> list[list[float]]:
    """Bytes from rank to rank, by the report's bytes: sums, gathers and permutes travel on a ring, to
    the next rank of the group; other kinds go to all ranks of the group in equal parts."""
    ranks = facts.ranks
    sent = [[0.0] * ranks for _ in range(ranks)]
    groups_of: dict[tuple, list[list[int]]] = {}
    for entry in facts.report["collectives"]:
        key = tuple(entry["axes"])
        if key not in groups_of:
            axes = [read_axis_name(facts.mesh, name) for name in key]
            groups_of[key] = facts.mesh.groups([a for a in axes if a]) if all(axes) else []
        # The report has the rank that sends most; the mean is right for all of them together.
        own = entry["bytes_of_all_ranks"] / ranks
        for group in groups_of[key]:
            _add(sent, group, own, is_ring(entry["kind"]))
    return sent


def is_ring(kind: str) -> bool:
    return kind not in ("all_to_all", "redistribute") and not kind.startswith("all_to_all")


def _add(sent, group, own, ring):
    for k, rank in enumerate(group):
        if len(group) == 1:
            continue
        if ring:
            sent[rank][group[(k + 1) % len(group)]] += own
        else:
            for other in group:
                if other != rank:
                    sent[rank][other] += own / (len(group) - 1)


def read_axis_name(mesh: Mesh, name: str):
    """An axis of the report: `tp`, or a part of it, `tp:(1)2`."""
    whole, _, part = name.partition(":")
    whole = whole.strip('"')
    if whole not in mesh.axes:
        return None
    numbers = re.findall(r"\d+", part)
    return mesh.axis(whole, *map(int, numbers[:2])) if len(numbers) >= 2 else mesh.axis(whole)
