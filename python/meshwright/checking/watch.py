# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Finds values that an import fixes, and that change from call to call of the module."""

import datetime
import itertools
import os
import random
import re
import sys

import numpy as np
import torch

from ..errors import Diagnostic
from ..importer.torch.locations import is_model_file
from . import search

_STANDARD = os.path.dirname(os.__file__) + os.sep
#: Modules of Python through which code reads what is watched.
_BETWEEN = {os.__file__, random.__file__, datetime.__file__}
_BETWEEN |= {sys.modules[m].__file__ for m in ("_collections_abc", "tempfile", "uuid", "secrets")
             if m in sys.modules}
_CLOCKS = {"time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns",
           "process_time", "localtime", "gmtime"}
_SYSTEM = {"urandom", "getpid", "getloadavg", "cpu_count", "getcwd"}


class Reads:
    """Within it, what the code of models reads from outside: clocks, the environment, files, and
    generators of random numbers that are not PyTorch's."""

    def __init__(self):
        self._found: dict[tuple, Diagnostic] = {}
        self._before = None

    def found(self) -> list[Diagnostic]:
        return list(self._found.values())

    def __enter__(self):
        self._before = sys.getprofile()
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_):
        sys.setprofile(self._before)

    def _see(self, frame, event, called):
        if event == "c_call":
            what = _said(called)
            if what:
                self._note(what, frame)
        elif event == "call" and frame.f_code is _GET:
            key = frame.f_locals.get("key")
            self._note(f"os.environ[{key!r}]", frame.f_back)

    def _note(self, what, frame):
        while frame and (frame.f_code.co_filename in _BETWEEN or _is_frozen(frame)):
            frame = frame.f_back
        if not frame:
            return
        file, line = frame.f_code.co_filename, frame.f_lineno
        own = not file.startswith(_STANDARD) or "site-packages" in file
        if own and is_model_file(file):
            self._found.setdefault((what, file, line), Diagnostic(
                f"the module reads {what} when it is called, and the program keeps the value of the "
                "import", "warning", file, line))


def _is_frozen(frame):
    """True for a module that Python has in itself, such as os."""
    return frame.f_code.co_filename.startswith("<frozen ")


_GET = type(os.environ).__getitem__.__code__


def _said(called) -> str | None:
    """A function of C as a warning names it; None for one that reads nothing."""
    name, owner = getattr(called, "__name__", ""), getattr(called, "__self__", None)
    module = getattr(called, "__module__", None)
    if module == "time" and name in _CLOCKS:
        return f"time.{name}()"
    if module in ("posix", "nt") and name in _SYSTEM:
        return f"os.{name}()"
    if name == "open" and module in ("io", "_io"):
        return "a file"
    if isinstance(owner, type) and issubclass(owner, datetime.date) and name in ("now", "today", "utcnow"):
        return f"datetime.{owner.__name__}.{name}()"
    if isinstance(owner, random.Random) and name in ("random", "getrandbits"):
        return "Python's random numbers"
    if isinstance(owner, (np.random.RandomState, np.random.Generator)):
        return "NumPy's random numbers"
    return None


_LOCATION = re.compile(r" loc\((#loc\d+|unknown)\)$")
_ALIAS = re.compile(r'^(#loc\d+) = loc\((?:"(?:[^"\\]|\\.)*"\()?"((?:[^"\\]|\\.)*)":(\d+):0\)')
#: The bounds of parameters follow their values, which a caller may change.
_BOUND = re.compile(r"nn\.magnitude = [^,]*, ")


def _operations(text):
    """(operation, place) of each line of a program."""
    places, lines = {}, []
    for line in text.splitlines():
        alias = _ALIAS.match(line)
        if line.startswith("#loc"):
            if alias:
                places[alias[1]] = alias[2], int(alias[3])
            continue
        location = _LOCATION.search(line)
        plain = _BOUND.sub("", _LOCATION.sub("", line)).strip()
        lines.append((plain, places.get(location[1]) if location else None))
    return lines


def first_change(before, after) -> Diagnostic | None:
    """The first operation in which two imports of a module differ."""
    why = "a call of the module depends on something that the program does not: on the time, the " \
          "environment, random numbers of Python, or what earlier calls left behind"
    lines = itertools.zip_longest(_operations(before.mlir), _operations(after.mlir), fillvalue=("nothing", None))
    for (one, place), (other, there) in lines:
        if one != other:
            message = f"a second import of the module gives another program: first '{_short(other)}', " \
                      f"where the model has '{_short(one)}'; {why}"
            return Diagnostic(message, "error", *(there or place or (None, None)))
    for name, value in before.parameters.items():
        again = after.parameters.get(name)
        if name.startswith("constant.") and again is not None and not _equal(value, again):
            message = f"a second import of the module computes another constant, '{name}'; {why}"
            return Diagnostic(message, "error", *search.last_uses(before).get(name, (None, None)))
    return None


def _short(text):
    return text if len(text) <= 120 else text[:117] + "..."


def _equal(a, b):
    return a.dtype == b.dtype and torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) \
        if a.is_floating_point() else torch.equal(a, b)
