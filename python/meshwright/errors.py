# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Exceptions that carry diagnostics."""

import warnings
from typing import NamedTuple

from .logs import erase_line, logger


class Diagnostic(NamedTuple):
    """Something said about a program, with its place in the user's source where known."""

    message: str
    #: "error", "warning", "remark" or "note".
    severity: str = "error"
    file: str | None = None
    line: int | None = None

    def __str__(self):
        return f"{self.place}{self.severity}: {self.message}"

    @property
    def place(self):
        """The place as text before a message: "file:line: ", "file: ", or nothing."""
        if not self.file:
            return ""
        return f"{self.file}:{self.line}: " if self.line else f"{self.file}: "


class Error(Exception):
    """Any failure of Meshwright's; `diagnostics` has all there is to say about it.

    It is made of a text, or of several diagnostics.
    """

    def __init__(self, diagnostics):
        if not isinstance(diagnostics, (list, tuple)) or isinstance(diagnostics, Diagnostic):
            diagnostics = [diagnostics]
        self.diagnostics = [
            d if isinstance(d, Diagnostic) else Diagnostic(str(d)) for d in diagnostics
        ]
        super().__init__(_summary(self.diagnostics))


class InputError(Error):
    """Inputs that are not what the program takes."""


class CheckFailed(Error):
    """A plan computes something else than the program it was made from, or a model something else
    than its module.

    `differences` has the largest difference of each value by name, relative to the largest entry.
    """

    def __init__(self, diagnostics, differences):
        super().__init__(diagnostics)
        self.differences = differences


class MeshwrightWarning(UserWarning):
    """Something that a plan can do without, but its user may not have meant."""


def _summary(diagnostics):
    errors = [d for d in diagnostics if d.severity in ("error", "note")]
    return "\n".join(
        d.place
        + ("note: " if d.severity == "note" else "")
        + d.message
        for d in errors or diagnostics
    )


def unwrap(result, stacklevel=3, call=None):
    """The value of a `_core` result; its warnings as Python's and as records, its errors as an Error.

    `call` stands for places in programs that the user never saw, such as those of imports.
    """
    value, raw = result
    diagnostics = [placed(Diagnostic(m, s, file or None, line or None), call) for m, s, file, line in raw]
    if value is None:
        raise Error(diagnostics or "failed without a diagnostic")
    for diagnostic in diagnostics:
        if diagnostic.severity == "warning":
            warn(str(diagnostic), stacklevel=stacklevel)
    return value


def warn(text, stacklevel=2) -> None:
    """Warns by Python's warnings, and by a record of the logger `meshwright`."""
    erase_line()
    logger.warning("%s", text.removeprefix("warning: "), stacklevel=stacklevel + 1)
    warnings.warn(text, MeshwrightWarning, stacklevel=stacklevel + 1)


def placed(diagnostic, call=None):
    """A diagnostic with a place that the user knows: a file, or the call."""
    if not (diagnostic.file or "").startswith("<"):
        return diagnostic
    message = f"{call}: {diagnostic.message}" if call else diagnostic.message
    return diagnostic._replace(message=message, file=None, line=None)
