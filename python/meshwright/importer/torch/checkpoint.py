# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Weights of a module from a checkpoint: which entries are the value of which tensor.

The module is not changed: a copy of it is imported, in which each parameter is a stand-in without
memory. The graph's parameters become what the checkpoint stores (graph/supply.py).
"""
import torch

from ... import checkpoints
from ...errors import Error
from ..graph.nodes import Graph, Remark
from ..graph.supply import Concatenated, Stored
from .export import shared_names
from .released import Names, missing_numbers
from .sources import source_of, value_of
from .stand_ins import copied, initialised, stand_in
from .surroundings import plain
from .units import units_of

#: As many names of entries are told in a message.
_TOLD = 3


class Checkpoint:
    """A checkpoint that fits a module. Raises Error if it does not."""

    def __init__(self, module: torch.nn.Module, path: str):
        self._files = checkpoints.read(path)
        #: All keys of each tensor of the module, the first one first.
        self._tied = shared_names(module)
        self._wanted = {key: tensor for key, tensor in module.state_dict(keep_vars=True).items()
                        if key in self._tied}
        self._ignored: list[str] = []
        #: How each tensor of the module is stored, by its first key.
        with plain():
            with self._files.scattered():
                self.sources: dict[str, Stored | Concatenated] = self._match(module)
            #: The copy of the module.
            self.module = self._copy(module)

    def _match(self, module) -> dict[str, Stored | Concatenated]:
        names = Names(module, self._wanted)
        units = units_of(self._files, self._wanted, getattr(module, "config", None))
        targets, self._ignored = names.targets(units)
        made = {}
        for target in targets:
            self._check_lacks(missing_numbers(target))
            own = [units[name]() for name in target.all_names]
            for key, value in names.convert(target, own).items():
                if key in made:
                    self._files.fail(f"expected one value of '{key}', got {own[0]} and others")
                if key in self._wanted:
                    made[key] = source_of(self._tied[key][0], self._wanted[key], value)
        return self._untied(made)

    def _untied(self, made) -> dict[str, Stored | Concatenated]:
        """One source for each tensor of the module: the checkpoint may have any of its keys."""
        result, missing = {}, []
        for key in self._wanted:
            keys = self._tied[key]
            found = [made[k] for k in keys if k in made]
            if not found:
                missing.append(key)
            elif keys[0] not in result:
                result[keys[0]] = found[0]
                for other in found[1:]:
                    self._check_equal(keys, found[0], other)
        self._check_lacks(missing)
        return result

    def _check_equal(self, keys, one, other):
        a, b = (source.values.whole() for source in (one, other))
        if a.dtype != b.dtype or not torch.equal(a, b):
            self._files.fail(f"expected equal entries for {' and '.join(map(repr, keys))}, which are one "
                             "tensor of the module")

    def _check_lacks(self, names):
        more = f" and {len(names) - _TOLD} more" if len(names) > _TOLD else ""
        if names:
            self._files.fail(f"it lacks {', '.join(map(repr, names[:_TOLD]))}{more}")

    def _copy(self, module):
        """The module with stand-ins for parameters, and with buffers that have their values."""
        own, initial = {}, initialised(module)
        for key, tensor in [*module.named_parameters(remove_duplicate=False),
                            *module.named_buffers(remove_duplicate=False)]:
            source = self.sources.get(self._tied[key][0])
            if isinstance(tensor, torch.nn.Parameter):
                own.setdefault(id(tensor), stand_in(tensor))
            elif source is not None:
                own[id(tensor)] = source.values.whole().to(tensor.dtype)
            elif tensor.device.type == "meta":
                if key not in initial:
                    raise Error(f"buffer '{key}' is on the meta device, and weights "
                                f"'{self._files.path}' do not have it; expected it on the CPU")
                own[id(tensor)] = initial[key]
        return copied(module, own)

    def filled(self) -> torch.nn.Module:
        """A copy of the module that holds its values."""
        own = {}
        for key, parameter in self.module.named_parameters():
            value = value_of(self.sources[self._tied[key][0]], parameter.dtype)
            own[id(parameter)] = torch.nn.Parameter(value, parameter.requires_grad)
        return copied(self.module, own)

    def note(self, graph: Graph, training: bool):
        """Notes how the parameters of a graph are stored, and what the module has no use for."""
        for node in graph.parameters + graph.states:
            source = self.sources.get(node.attrs["key"])
            if source is None or "trained" not in node.attrs:
                continue
            if (training or node in graph.states) and source.dtype is not None:
                raise Error(f"'{node.attrs['key']}': expected {node.dtype} in weights "
                            f"'{self._files.path}', got {source.dtype}; to train, give the module the "
                            "type in which its weights are stored")
            node.attrs["source"] = source
        if self._ignored:
            more = f" and {len(self._ignored) - _TOLD} more" if len(self._ignored) > _TOLD else ""
            graph.remarks.append(Remark(
                f"weights '{self._files.path}' have {len(self._ignored)} tensors that the module lacks, "
                f"which are ignored: {', '.join(self._ignored[:_TOLD])}{more}", None))
