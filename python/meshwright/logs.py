# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The logger `meshwright`: warnings, and phases with their times.

Without a handler of the caller nothing is printed. MESHWRIGHT_LOG=debug prints all of it to standard
error; "info", "warning" and "error" print less.
"""

import logging
import os
import sys
import warnings

logger = logging.getLogger("meshwright")
logger.addHandler(logging.NullHandler())

VARIABLE = "MESHWRIGHT_LOG"
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
#: Back to the start of a line of progress, and erases it.
_ERASE = "\r\x1b[K"


def erase_line() -> None:
    """Erases a line of progress on the terminal, so that other text can be written there."""
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write(_ERASE)


class _Handler(logging.StreamHandler):
    """Writes to the present standard error."""

    def emit(self, record):
        self.stream = sys.stderr
        if self.stream is not None:
            erase_line()
            super().emit(record)


class _Formatter(logging.Formatter):
    def format(self, record):
        return f"{record.name}: {record.levelname.lower()}: {record.getMessage()}"


def read_environment() -> None:
    """Prints records as MESHWRIGHT_LOG says."""
    wanted = os.environ.get(VARIABLE, "").strip().lower()
    if not wanted:
        return
    if wanted not in _LEVELS:
        warnings.warn(f"{VARIABLE}: expected {', '.join(_LEVELS)}, got {wanted!r}", stacklevel=3)
        return
    handler = _Handler()
    handler.setFormatter(_Formatter())
    handler.setLevel(_LEVELS[wanted])
    logger.addHandler(handler)
    logger.setLevel(_LEVELS[wanted])
