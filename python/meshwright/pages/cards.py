# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Models and sessions in notebooks: small tables, and the page of a session's plan."""

import math
from collections import defaultdict

from ..errors import Error
from ..tensors import NUMPY_TYPES
from . import renderer
from .facts import generalize, joined_names
from .numbers import bytes_text

#: More patterns of parameters than these are left out, with a line that says how many.
_ROWS = 40


def model_card(model) -> str | None:
    """Inputs, outputs and parameters of a model; None, for which a notebook shows the text, without the
    libraries."""
    rows = [("entries", ", ".join(model.entries))]
    rows += [(f"input {port.name}", _type(port)) for port in model._program.inputs]
    rows += [(f"output {port.name}", _type(port)) for port in model._program.outputs]
    if model._meta:
        rows.append(("weights", "on the meta device: the model can be planned, not run"))
    ports = model._program.parameters
    rows.append(("parameters", f"{sum(math.prod(p.shape) for p in ports):,} in {len(ports):,} tensors, "
                               f"{bytes_text(sum(map(_bytes, ports)))}"))
    alike = defaultdict(list)
    for port in ports:
        alike[generalize(port.name), _type(port)].append(port)
    table = [(joined_names([p.name for p in found]), text, len(found), bytes_text(sum(map(_bytes, found))))
             for (_, text), found in alike.items()]
    return _card("Model", rows, ("parameter", "type", "tensors", "bytes"), table)


def session_card(session, rows, plan) -> str | None:
    """The session's own facts, and the page of the plan that it runs."""
    card = _card("Session", rows)
    page = plan._repr_html_() if plan is not None else None
    return card + page if card and page else card


def _card(title, rows, head=(), table=()):
    try:
        return renderer().card(title, rows, head, table[:_ROWS], max(0, len(table) - _ROWS))
    except Error:
        return None


def _type(port) -> str:
    return f"{port.dtype} {list(port.shape)}"


def _bytes(port) -> int:
    return math.prod(port.shape) * NUMPY_TYPES[port.dtype].itemsize
