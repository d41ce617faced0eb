# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Names and forms of the entries of released checkpoints, as transformers' own tables have them.

A release may have other names than the module, and one entry an expert where the module has a tensor
of all. The tables' conversions run here on views of mapped files: what is stacked or concatenated is
noted as `Joined`, and nothing is read.
"""
import collections
import copy
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from ...errors import Error
from ...tensors import Joined, torch_names, torch_of
from .units import Unit, type_of

_NUMBERS = re.compile(r"(\d+)")


@dataclass
class Target:
    """A tensor of the module, and the entries of which it is made."""
    key: str
    #: A WeightConverter of transformers; None for an entry that is the tensor.
    converter: Any = None
    #: The entries' names by the converter's patterns.
    names: dict[str, list[str]] = field(default_factory=dict)

    @property
    def all_names(self) -> list[str]:
        return [name for names in self.names.values() for name in names]


@dataclass
class Made:
    """Values or codes that become of units, and the scales of codes."""
    values: Joined
    scales: Joined | None
    units: list[Unit]
    #: The units by the ids of the tensors that are joined.
    origins: dict[int, Unit]


class Names:
    """Which tensors of a module the entries of a checkpoint become."""

    def __init__(self, module: torch.nn.Module, wanted: dict[str, torch.Tensor]):
        self._module, self._wanted = module, wanted
        modeling = sys.modules.get("transformers.modeling_utils")
        self._is_known = modeling is not None and isinstance(module, modeling.PreTrainedModel)

    def targets(self, names) -> tuple[list[Target], list[str]]:
        """The tensors of the module that these entries become, and the entries that the module lacks."""
        if not self._is_known:
            return ([Target(name, names={name: [name]}) for name in names if name in self._wanted],
                    [name for name in names if name not in self._wanted])
        from transformers import conversion_mapping
        from transformers import core_model_loading as loading

        table = conversion_mapping.get_model_conversion_mapping(self._module)
        converters = [t for t in table if isinstance(t, loading.WeightConverter)]
        renamings = [t for t in table if isinstance(t, loading.WeightRenaming)]
        by_pattern = {pattern: c for c in converters for pattern in c.source_patterns}
        found, ignored, prefix = {}, [], self._module.base_model_prefix
        for name in sorted(names, key=loading.dot_natural_key):
            key, pattern = loading.rename_source_key(name, renamings, converters, prefix, self._wanted)
            if key not in self._wanted and name in self._wanted:
                key, pattern = name, None
            if key not in self._wanted:
                ignored.append(name)
                continue
            target = found.setdefault((key, pattern is None), Target(key, by_pattern.get(pattern)))
            target.names.setdefault(pattern or name, []).append(name)
        return list(found.values()), ignored

    def convert(self, target: Target, units: list[Unit]) -> dict[str, Made]:
        """The tensors of the module that become of a target's units, by their keys."""
        scaled = [unit for unit in units if unit.scales is not None]
        if scaled and len(scaled) < len(units):
            other = next(unit for unit in units if unit.scales is None)
            raise Error(f"{other}: expected codes with scales, as {scaled[0]}, got "
                        f"{type_of(other.values)}{list(other.values.shape)}")
        values, origins = self._convert(target, units, lambda unit: unit.values)
        scales, _ = self._convert(target, scaled, lambda unit: unit.scales) if scaled else ({}, None)
        return {key: Made(value, scales.get(key), units, origins) for key, value in values.items()}

    def _convert(self, target: Target, units: list[Unit], of: Callable[[Unit], np.ndarray]):
        """The tensors that become of the values or scales of units, and the units by the ids of theirs."""
        tensors = {unit.name: torch_of(of(unit)) for unit in units}
        origins = {id(tensors[unit.name]): unit for unit in units}
        if target.converter is None:
            if len(units) > 1:
                raise Error(f"'{target.key}': expected one entry, got {units[0]} and {units[1]}")
            return {target.key: Joined(tensors.values(), stacked=False)}, origins
        converter = copy.deepcopy(target.converter)
        converter.collected_tensors = collections.defaultdict(list, {
            pattern: [tensors[name] for name in names] for pattern, names in target.names.items()})
        try:
            with _Noting(origins):
                made = converter.convert(target.key, model=self._module, config=self._module.config)
        except Error:
            raise
        except Exception as error:  # a converter's own code
            raise Error(f"{units[0]}: its conversion to '{target.key}' fails: "
                        f"{type(error).__name__}: {error}") from error
        return {key: _joined(value) for key, value in made.items()}, origins


def missing_numbers(target: Target) -> list[str]:
    """The entries that a list of experts lacks: names with a number that another entry of the target
    has, or a lower one."""
    split = {pattern: [_NUMBERS.split(name) for name in names]
             for pattern, names in target.names.items() if "*" in pattern}
    numbers, places = set(), {}
    for pattern, names in split.items():
        varying = [i for i, words in enumerate(zip(*names)) if len(set(words)) > 1]
        if len(varying) == 1:
            places[pattern] = varying[0]
            numbers |= {int(words[varying[0]]) for words in names}
    result = []
    for pattern, place in places.items():
        words = list(split[pattern][0])
        has = {int(name[place]) for name in split[pattern]}
        for number in range(max(numbers) + 1):
            if number not in has:
                words[place] = str(number)
                result.append("".join(words))
    return result


def _joined(value) -> Joined:
    if isinstance(value, list):
        (value,) = value
    return value if isinstance(value, Joined) else Joined([value], stacked=False)


class _Lazy(Joined):
    """Tensors that a conversion stacked or concatenated. Another operation gets their whole."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        own = lambda x: x.whole() if isinstance(x, Joined) else x
        args = [list(map(own, x)) if isinstance(x, (list, tuple)) else own(x) for x in args]
        return function(*args, **{k: own(v) for k, v in (kwargs or {}).items()})

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.whole(), name)

    def contiguous(self):
        return self


class _Noting(TorchFunctionMode):
    """Notes how tensors are joined instead of joining them."""

    def __init__(self, origins: dict[int, Unit]):
        super().__init__()
        self._origins = origins

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.Tensor.contiguous:
            return args[0]
        if function not in (torch.stack, torch.cat):
            return function(*args, **kwargs)
        is_stack = function is torch.stack
        parts, dim = list(args[0]), (*args[1:], kwargs.get("dim", 0))[0]
        dim %= len(parts[0].shape) + is_stack
        self._check(parts, None if is_stack else dim)
        return _Lazy(parts, dim, is_stack)

    def _check(self, parts, free):
        """Parts have one type, and one shape but for the dimension `free`."""
        def form(part):
            shape = [n for d, n in enumerate(part.shape) if d != free]
            return part.dtype, len(part.shape), *shape

        usual = collections.Counter(map(form, parts)).most_common(1)[0][0]
        like = next(part for part in parts if form(part) == usual)
        for part in parts:
            if form(part) != usual:
                raise Error(f"{self._where(part)}: expected {_type(like)}, as {self._where(like)}, "
                            f"got {_type(part)}")

    def _where(self, part) -> str:
        while isinstance(part, Joined):
            part = part.parts[0]
        return str(self._origins.get(id(part), "a part of a conversion"))


def _type(part) -> str:
    return f"{torch_names().get(part.dtype, part.dtype)}{list(part.shape)}"
