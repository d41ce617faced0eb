# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Phases of long work: a line that says how far a phase is, and a record of its time.

    with Phase("importing Mlp", 3):
        with part("tracing"):
            ...

In a terminal the line is that of the compiler and the runtime, so that their phases and these take turns.
In a notebook, which is no terminal, tqdm draws it. Elsewhere there is none.
"""

import logging
import sys
import threading
from time import monotonic, time

from . import _core
from .logs import logger

#: A line appears after so many seconds, and changes so often.
_DELAY, _INTERVAL = 0.5, 0.2
_is_quiet = False
#: The phases of each thread, from the outermost on.
_open = threading.local()


def quiet() -> None:
    """Shows no progress for the rest of the process. Warnings and logs stay."""
    global _is_quiet
    _is_quiet = True
    _core.ProgressLine.hide()


class Phase:
    """A phase of so many parts; 0: only its time is known. Without `shown` it is logged alone."""

    def __init__(self, what: str, parts: int = 0, shown: bool = True):
        self._what, self._parts = what, parts
        self._shown = shown and not _is_quiet
        self._line = None

    def __enter__(self):
        self._begin = monotonic()
        _phases().append(self)
        if self._shown:
            line = _NotebookLine if _in_notebook() else _core.ProgressLine
            self._line = line(self._what, self._parts)
        return self

    def __exit__(self, kind, *_):
        if self._line is not None:
            self._line.__exit__()
            self._line = None
        _phases().remove(self)
        log_time(self._what, self._begin, kind is not None)

    def step(self) -> None:
        """Another part is done."""
        if self._line is not None:
            self._line.step()


class part:
    """A part of the innermost phase of this thread."""

    def __init__(self, what: str):
        self._what = what

    def __enter__(self):
        self._begin = monotonic()
        self._phase = phases[-1] if (phases := _phases()) else None

    def __exit__(self, kind, *_):
        within = f"{self._phase._what}: " if self._phase else ""
        log_time(within + self._what, self._begin, kind is not None)
        if self._phase is not None:
            self._phase.step()


def log_time(what: str, begin: float, failed: bool = False) -> None:
    if logger.isEnabledFor(logging.DEBUG):
        end = ", failed" if failed else ""
        logger.debug("%s, %.3f s%s", what, monotonic() - begin, end)


def _phases() -> list[Phase]:
    if not hasattr(_open, "phases"):
        _open.phases = []
    return _open.phases


def _in_notebook() -> bool:
    if "ipykernel" not in sys.modules or "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return shell is not None and hasattr(shell, "kernel")


class _NotebookLine:
    """A line in the output of a notebook's cell, drawn by tqdm. It goes with the phase."""

    def __init__(self, what, total):
        self._what, self._total, self._done = what, total, 0
        self._begin, self._ended = time(), threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)
        self._thread.start()

    def _show(self):
        if self._ended.wait(_DELAY):
            return
        from tqdm import tqdm

        counts = ": {n_fmt} of {total_fmt}" if self._total else ""
        form = "{desc}" + counts + ", {elapsed}"
        with tqdm(desc=self._what, total=self._total or None, bar_format=form, leave=False, file=sys.stderr) as line:
            line.start_t = self._begin
            while True:
                line.n = self._done
                line.refresh()
                if self._ended.wait(_INTERVAL):
                    return

    def step(self):
        self._done += 1

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()
