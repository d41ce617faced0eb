# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Buffers whose values an import has read: masks, positions, tables of frequencies."""
import re
from collections.abc import Callable

import torch

from ...tensors import state_of
from ..errors import Diagnostic, ImportFailed

#: A buffer of no more elements is compared by its values, too: other views of its memory, NumPy's
#: say, do not count their writes.
_COMPARED = 1024
#: A bound on the elements of a weight, which may grow.
_MAGNITUDE = re.compile(r"nn\.magnitude = [^ ]+ : f64, ")


class ReadBuffers:
    """The program holds what was computed from these buffers. A later import computes it anew."""

    def __init__(self, tensors: dict[str, torch.Tensor], mlir: str, again: Callable):
        """`again()` imports the module as it is then."""
        self._tensors = {k: t for k, t in tensors.items() if t.device.type != "meta"}
        self._states = self._look()
        self._mlir, self._again = mlir, again
        self._constants: dict[str, torch.Tensor] = {}

    def _look(self):
        return {key: (state_of(t), t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
                      .tobytes() if 0 < t.numel() <= _COMPARED else None)
                for key, t in self._tensors.items()}

    def constants(self) -> dict[str, torch.Tensor]:
        """The constants as they are now, by their names in the program, if a buffer has changed since
        the import. Raises ImportFailed if the program itself depends on its values."""
        states = self._look()
        changed = [key for key, state in states.items() if state != self._states[key]]
        if not changed:
            return self._constants
        try:
            now = self._again()
        except ImportFailed:
            now = None
        if now is None or _MAGNITUDE.sub("", now.mlir) != _MAGNITUDE.sub("", self._mlir):
            raise ImportFailed([Diagnostic(
                f"buffer {key} was changed after the import, and the program holds what was computed "
                "from its earlier values; expected the module to be imported again")
                for key in changed[:1]])
        self._states = states
        self._constants = {name: tensor for name, tensor in now.parameters.items()
                           if name.startswith("constant.")}
        return self._constants
