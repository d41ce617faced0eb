# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Where the operations of a StableHLO module stand in the user's source."""
import os
import re

from ..graph.nodes import Location

#: Packages whose lines are not the user's: those that models are written with.
_LIBRARIES = ("jax", "jaxlib", "flax", "equinox", "optax", "einops", "jaxtyping", "beartype", "chex", "haiku")
_LIBRARY = re.compile(r"[/\\](?:site|dist)-packages[/\\](?:" + "|".join(_LIBRARIES) + r")[/\\]")
#: Python's own library, and this package.
_PYTHON = os.path.dirname(os.__file__) + os.sep
_OWN = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep

_FRAME = re.compile(r'"([^"]+)":(\d+):\d+')
#: The outermost name of an operation: the scopes that it stands in, then its own name.
_NAME = re.compile(r'^loc\("([^"]*/[^"]*)"\(')
#: Scopes of transformations, which are no modules.
_SCOPES = {"while", "body", "cond", "closed_call", "checkpoint", "remat", "rematted_computation", "scan"}


def is_users(file: str) -> bool:
    """Whether a file is the user's own code."""
    if file.startswith((_OWN, "<")) or _LIBRARY.search(file):
        return False
    return not (file.startswith(_PYTHON) and "-packages" not in file)


class Locations:
    """The locations of a module's operations, each read once."""

    def __init__(self):
        self._known: dict = {}

    def of(self, operation, caller: Location | None) -> Location | None:
        """The innermost line of the user's code; that of the call where a function has none."""
        location = operation.location
        if location not in self._known:
            self._known[location] = _read(str(location))
        found = self._known[location]
        if found is None or not found.file and caller is not None:
            return caller
        return found



def _read(text: str) -> Location | None:
    frame = next((frame for frame in _FRAME.findall(text) if is_users(frame[0])), None)
    named = _NAME.match(text)
    name = _module_path(named[1]) if named else ""
    if frame is None:
        return Location(name, "", 0) if name else None
    return Location(name, frame[0], int(frame[1]))


def _module_path(scopes: str) -> str:
    """"jit(f)/Net/Dense_0/dot_general" is "Net.Dense_0"."""
    return ".".join(part for part in scopes.split("/")[:-1] if part.isidentifier() and part not in _SCOPES)
