# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tensors of a module that change after the import: parameters and buffers assigned anew, and buffers whose
values the import has read: masks, positions, tables of frequencies."""
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
        #: By their keys.
        self.tensors = {k: t for k, t in tensors.items() if t.device.type != "meta"}
        self._states = self._look()
        self._mlir, self._again = mlir, again
        self._constants: dict[str, torch.Tensor] = {}

    def follow(self, tensors: dict[str, torch.Tensor]):
        """Takes the tensors that the module has now."""
        self.tensors.update({key: tensors[key] for key in self.tensors if key in tensors})

    def _look(self):
        return {key: (state_of(t), t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
                      .tobytes() if 0 < t.numel() <= _COMPARED else None)
                for key, t in self.tensors.items()}

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


def assigned(module: torch.nn.Module, known: dict[str, torch.Tensor],
             names: dict[str, list[str]], training: bool) -> dict[str, torch.Tensor]:
    """The tensors that the module has now, by the keys of the `known` ones, as far as there are.

    `names` has all keys of each tensor. Raises ImportFailed where a tensor that was assigned anew does
    not fit the program."""
    result, problems = {}, []
    for key, old in known.items():
        new, is_computed = _tensor_at(module, key)
        others = names.get(key, [key])[1:]
        if new is None and not is_computed or new is old and (
                not others or all(_tensor_at(module, n)[0] is old for n in others)):
            continue
        why = "is computed from others now" if new is None else _misfit(old, new, training)
        for other in others if new is not None else ():
            twin = _tensor_at(module, other)[0]
            if not why and twin is not new and not (
                    isinstance(twin, torch.Tensor) and twin.data_ptr() == new.data_ptr() and
                    (twin.shape, twin.stride()) == (new.shape, new.stride())):
                why = f"is no longer one tensor with {other}"
        if why:
            problems.append(Diagnostic(f"{key} was assigned anew after the import, and {why}; expected the "
                                       "module to be imported again"))
        else:
            result[key] = new
    if problems:
        raise ImportFailed(problems)
    return result


def _tensor_at(module, key: str) -> tuple[torch.Tensor | None, bool]:
    """The tensor that a module keeps by this name; and whether it has none and computes one instead."""
    *path, name = key.split(".")
    for part in path:
        module = module._modules.get(part)
        if module is None:
            return None, False
    kept = module._parameters.get(name)
    if kept is None:
        kept = module._buffers.get(name)
    if kept is None:
        kept = vars(module).get(name)
    if isinstance(kept, torch.Tensor):
        return (kept, False) if kept.is_leaf else (None, True)
    return None, isinstance(getattr(type(module), name, None), property)


def _misfit(old, new, training: bool) -> str:
    """How a new tensor differs from the old one for a program."""
    told = [f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)} on {t.device.type}" for t in (old, new)]
    if (old.shape, old.dtype) != (new.shape, new.dtype) or new.device.type == "meta" != old.device.type:
        return f"is {told[1]}, not {told[0]}"
    if training and old.requires_grad != new.requires_grad:
        return f"{'requires a' if new.requires_grad else 'does not require a'} gradient"
    return ""
