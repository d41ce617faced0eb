# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Where exported operations stand in the model's source."""
import os
import re
import sys

import torch

from ..graph.nodes import Location

_TORCH = os.path.dirname(torch.__file__) + os.sep
#: Python's own library.
_PYTHON = os.path.dirname(os.__file__) + os.sep
#: This package.
_OWN = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


def is_in_torch(path: str) -> bool:
    return path.startswith(_TORCH)


def is_model_file(path: str) -> bool:
    if path.startswith((_TORCH, _OWN, "<")):
        return False
    if path.startswith(_PYTHON) and "site-packages" not in path:
        return False
    return not ("/transformers/" in path and "/transformers/models/" not in path)


def calling_line() -> tuple[str, int] | None:
    """The innermost line of the model's own code that runs now."""
    frame = sys._getframe(1)
    while frame is not None and not is_model_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame and (frame.f_code.co_filename, frame.f_lineno)


#: The key of an operation's own line in its `custom` metadata, where the import has noted it.
LINE = "meshwright.line"

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


class Locations:
    """Where each exported operation stands in the model."""

    def __init__(self):
        self._frames: dict[str, tuple[str, int] | None] = {}

    def frame(self, trace: str) -> tuple[str, int] | None:
        """The innermost frame of the model's own code, else the innermost outside PyTorch."""
        if trace not in self._frames:
            frames = [(f, int(n)) for f, n in _FRAME.findall(trace)]
            own = [f for f in frames if is_model_file(f[0])] or \
                [f for f in frames if not f[0].startswith((_TORCH, "<"))]
            self._frames[trace] = own[-1] if own else None
        return self._frames[trace]

    def of(self, node) -> Location:
        return self._at(node, self.frame(node.meta.get("stack_trace") or ""))

    def innermost(self, node) -> Location:
        """In a function that `forward` calls, perhaps, if the line is noted."""
        line = node.meta.get("custom", {}).get(LINE)
        return self._at(node, line) if line else self.of(node)

    @staticmethod
    def _at(node, frame) -> Location:
        stack = node.meta.get("nn_module_stack") or {}
        path = ""
        for entry in stack.values():
            path = entry[0] if isinstance(entry, tuple) else str(entry)
        path = re.sub(r"@\d+", "", path)
        return Location(path, *(frame or ("", 0)))
