# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How a checkpoint stores a parameter: from its tensors, as a conversion joined them."""
import math

import torch

from ...errors import Error
from ...tensors import ELEMENT_TYPES, Joined, elements_per_byte, torch_names
from ..graph.join_parameters import joined_name
from ..graph.supply import Concatenated, Stored
from .released import Made
from .units import CODES
from .values import largest

#: The magnitudes of FP4's codes.
_FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
#: A parameter of no more elements is measured; larger ones are not read before they are used.
_MEASURED = 1 << 16


def source_of(key: str, tensor: torch.Tensor, made: Made) -> Stored | Concatenated:
    """How the value of a tensor of the module is stored. Raises Error if it does not fit."""
    unit, shape = made.units[0], _in_elements(made.values)
    own, dtype = _type(made.values.dtype), _type(tensor.dtype)
    if unit.transposed:
        shape = (*shape[:-2], shape[-1], shape[-2])
    if made.scales is None and own == CODES != dtype:
        raise Error(f"{unit}: expected the scales '{unit.name}_scale_inv' beside it, got none")
    is_number = _is_float(own) or made.scales is not None and isinstance(tensor, torch.nn.Parameter)
    if own != dtype and not (is_number and _is_float(dtype)) or shape != tuple(tensor.shape):
        count = f" of {len(made.units)} tensors" if len(made.units) > 1 else ""
        raise Error(f"{unit}: expected {dtype}{list(tensor.shape)} for '{key}', got "
                    f"{own}{list(shape)}{count}")
    if made.scales is not None:
        for other in made.units:
            if other.block != unit.block:
                raise Error(f"{other}: expected blocks {list(unit.block)}, as {unit}, got "
                            f"{list(other.block)}")
    return _stored(key, made.values, made.scales, made, tensor)


def _stored(name: str, values: Joined, scales: Joined | None, made: Made, tensor) -> Stored | Concatenated:
    unit = made.units[0]
    if scales is not None and not _have_one_grid(values, scales, unit.block):
        if values.stacked or len(values.parts) < 2:
            raise Error(f"{unit}: a conversion cuts the blocks {list(unit.block)} of its scales")
        pairs = zip(values.parts, scales.parts, strict=True)
        return Concatenated([_stored(_name_of(a, made) or f"{name}.{i}", a, b, made, tensor)
                             for i, (a, b) in enumerate(pairs)], values.dim)

    arrays = [array for unit in made.units for array in (unit.values, unit.scales) if array is not None]
    mapped = {array.filename: array for array in arrays}

    def part(joined, suffix, measured):
        joined = Joined([joined], stacked=False, like=tensor, mapped=mapped.values())
        dtype = None if joined.dtype == tensor.dtype and scales is None else _type(joined.dtype)
        return Stored(name + suffix, joined, dtype, _in_elements(joined),
                      largest=largest(joined) if measured else 0.0)

    small = scales is None and math.prod(values.shape) <= _MEASURED
    result = part(values, unit.suffixes[0], small)
    if scales is not None:
        result.scales = part(scales, unit.suffixes[1], True)
        result.block, result.transposed = unit.block, unit.transposed
    return result


def value_of(source: Stored | Concatenated, dtype: torch.dtype) -> torch.Tensor:
    """The value as the module has it."""
    if isinstance(source, Concatenated):
        return torch.cat([value_of(part, dtype) for part in source.parts], source.dim)
    value = source.values.whole()
    if source.scales is not None:
        value, scales = _numbers(value), source.scales.values.whole().float()
        for dim, size in zip((-2, -1), source.block):
            scales = scales.repeat_interleave(size, dim).narrow(dim, 0, value.shape[dim])
        value = value * scales
    return (value.mT if source.transposed else value).to(dtype).contiguous()


def _numbers(codes: torch.Tensor) -> torch.Tensor:
    """The numbers that codes stand for, in f32."""
    if elements_per_byte(torch_names()[codes.dtype]) == 1:
        return codes.float()
    bytes_ = codes.view(torch.uint8)
    table = torch.tensor(_FP4 + [-number for number in _FP4])
    return table[torch.stack([bytes_ & 15, bytes_ >> 4], -1).long()].flatten(-2)


def _have_one_grid(values: Joined, scales: Joined, block) -> bool:
    """Whether the blocks of all parts begin at multiples of the block's size in the whole."""
    grid = [*values.shape[:-2], *(-(-n // size) for n, size in zip(_in_elements(values)[-2:], block))]
    boxes = [list(joined.boxes()) for joined in (values, scales)]
    return grid == list(scales.shape) and all(
        at[:-2] == there[:-2] and all(a == b * size for a, b, size in zip(at[-2:], there[-2:], block))
        for (at, _), (there, _) in zip(*boxes, strict=True))


def _type(dtype: torch.dtype) -> str:
    return torch_names().get(dtype, str(dtype).removeprefix("torch."))


def _name_of(joined: Joined, made: Made) -> str | None:
    """The name of a parameter of the program for some units: theirs, with * for the number."""
    names, parts = [], [joined]
    while parts:
        part = parts.pop(0)
        if isinstance(part, Joined):
            parts = [*part.parts, *parts]
        elif id(part) in made.origins:
            names.append(made.origins[id(part)].name)
    return names[0] if len(names) == 1 else joined_name(names) if names else None


def _in_elements(joined: Joined) -> tuple[int, ...]:
    """The shape in elements, of which several may share a byte."""
    shape = joined.shape
    shared = elements_per_byte(torch_names()[joined.dtype]) if joined.dtype in torch_names() else 1
    return (*shape[:-1], shape[-1] * shared) if shape else ()


def _is_float(dtype: str) -> bool:
    return dtype in ELEMENT_TYPES and ELEMENT_TYPES[dtype].use == "Float"
