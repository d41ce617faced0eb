# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Pages from their templates."""

import functools

import jinja2
from markupsafe import Markup, escape

from . import charts, comparison, numbers
from .answers import answers
from .decisions import grouped
from .decisions import numbers as numbers_of
from .facts import Facts, Layout
from .holdings import drawing as drawn

#: More rows than these of a table are left out, with a line that says how many.
_ROWS = 400


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["bytes"] = numbers.bytes_text
    environment.filters["count"] = numbers.count_text
    environment.filters["seconds"] = numbers.seconds_text
    # The library of pictures writes the text of an element whole, with its own escapes.
    environment.globals["bar"] = lambda *a: Markup(charts.bar(*a))
    environment.globals["numbers_of"] = numbers_of
    return environment


def plan_page(facts: Facts) -> str:
    """The page of a plan: one file without scripts, fonts or links to other files."""
    report = facts.report
    found = facts.layers
    names = ("mesh", "timeline", "close_up", "measured", "arena", "matrix")
    pictures = {name: Markup(getattr(charts, name)(facts)) for name in names}
    pictures["prefetch"] = Markup(charts.prefetch(report["gtp"])) if report.get("gtp") else ""
    shown = _without_followers(facts.layouts)
    layouts = [
        {"layout": layout, "picture": Markup(charts.layout(facts, layout)), "like": like}
        for layout, like in shown[:_ROWS]
    ]
    return _environment().get_template("page.html").render(
        facts=facts, report=report, title=comparison.title(facts), answers=answers(facts), pictures=pictures,
        layouts=layouts, layers=found[:_ROWS], left_out=max(0, len(found) - _ROWS),
        layouts_left_out=max(0, len(shown) - _ROWS), peak=facts.peak, layer=charts.shown_layer(facts),
        most={k: max((getattr(layer, k) or 0 for layer in found), default=0) or 1
              for k in ("sent", "made", "whole", "measured")},
        decisions=grouped(report["decisions"]), warnings=grouped(report["warnings"]),
        query=drawn(facts.layout(facts.query), facts.mesh) if facts.query else "",
    )


def _without_followers(layouts: list[Layout]) -> list[tuple[Layout, int]]:
    """Layouts, each with the number of the optimizer's states that have the same one: the states of
    `w` are named `exp_avg.w`, and are left out where they are sharded as `w` is."""
    owners = {name: layout for layout in layouts if layout.role == "parameter" for name in layout.names}
    followers: dict[int, int] = {}
    shown = []
    for layout in layouts:
        owner = None
        if layout.role == "optimizer":
            # "optimizer.exp_avg.model.w" -> "model.w"
            owner = owners.get(layout.names[0].split(".", 2)[-1])
        if owner and (owner.text, owner.local.shape) == (layout.text, layout.local.shape):
            followers[id(owner)] = followers.get(id(owner), 0) + len(layout.names)
        else:
            shown.append(layout)
    return [(layout, followers.get(id(layout), 0)) for layout in shown]


def comparison_page(found: comparison.Comparison) -> str:
    return _environment().get_template("compare.html").render(found=found)


def card(title: str, rows: list[tuple[str, str]], head=(), table=(), left_out=0) -> str:
    """Small tables for a notebook: named values, and rows under a head, some of which are left out."""
    return _environment().get_template("card.html").render(title=title, rows=rows, head=head, table=table, left_out=left_out)


def framed(page: str) -> str:
    """A page within another one, whose styles stay apart."""
    return Markup('<iframe srcdoc="{}" style="width:100%;height:720px;border:0" title="plan"></iframe>').format(
        escape(page))
