# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How an import fails."""
from typing import NamedTuple


class Diagnostic(NamedTuple):
    message: str
    severity: str = "error"
    file: str | None = None
    line: int | None = None


class ImportFailed(Exception):
    """The module cannot be imported; `diagnostics` lists every reason."""

    def __init__(self, diagnostics):
        self.diagnostics = list(diagnostics)
        super().__init__("\n".join(
            (f"{d.file}:{d.line}: " if d.file else "") + d.message for d in self.diagnostics))


class Uncovered(Exception):
    """An operation, or this use of it, that the importer does not cover."""
