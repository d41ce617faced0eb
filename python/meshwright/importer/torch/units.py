# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The entries of a checkpoint that are one tensor: numbers, or codes and their scales.

- FP8: NAME of type F8_E4M3, and NAME_scale_inv with a scale for each block of its last two
  dimensions. The last blocks may be cut.
- MXFP4: NAME_blocks with the bytes of 32 numbers each, the even ones in the low halves, and
  NAME_scales with the exponents. The module's tensor has the last two dimensions in the other order.
"""
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from ...checkpoints import Entry, Files
from ...errors import Error
from ...tensors import NUMPY_TYPES

_NAMES = {dtype: name for name, dtype in NUMPY_TYPES.items()}
CODES, _EXPONENTS = "f8E4M3FN", "f8E8M0FNU"
#: Types of scales of blocks.
_SCALES = ("f32", "bf16", _EXPONENTS)
#: Numbers of MXFP4 for each scale.
_GROUP = 32


@dataclass
class Unit:
    """A tensor of a checkpoint."""
    name: str
    entry: Entry
    #: The numbers or codes. Of elements that share bytes the last dimension counts bytes.
    values: np.ndarray
    scale_entry: Entry | None = None
    scales: np.ndarray | None = None
    block: tuple[int, int] | None = None
    transposed: bool = False
    #: The ends of the names of codes and scales, behind the name of the tensor.
    suffixes: tuple[str, str] = ("", "")

    def __post_init__(self):
        """Raises Error if a scale is no number."""
        if self.scales is None:
            return
        if self.scales.dtype == NUMPY_TYPES[_EXPONENTS]:
            bad = np.argwhere(self.scales.view(np.uint8) == 0xFF)
        else:
            bad = np.argwhere(~np.isfinite(self.scales.astype(np.float32)))
        if len(bad):
            at = tuple(bad[0])
            raise Error(f"{self.scale_entry}: expected finite scales, got {self.scales[at]} at "
                        f"{[int(i) for i in at]}")

    def __str__(self):
        return str(self.entry)


def type_of(array: np.ndarray) -> str:
    return _NAMES.get(array.dtype, array.dtype.name)


def units_of(files: Files, own, config) -> dict[str, Callable[[], Unit]]:
    """The tensors of a checkpoint by their names; each is made, and checked, where it is used. `own`
    are the names of the module's tensors: it may have codes and scales as such. `config` is that of
    the module, which counts where the checkpoint says nothing."""
    result, entries = {}, files.entries
    parts = set()
    for name, entry in entries.items():
        base = name.removesuffix("_blocks")
        if base != name and name not in own and entry.array.dtype == np.uint8:
            parts |= {name, f"{base}_scales"}
            result[base] = partial(_mxfp4, files, base, entry)
        elif f"{name}_scale_inv" in entries and f"{name}_scale_inv" not in own:
            parts |= {name, f"{name}_scale_inv"}
            result[name] = partial(_fp8, files, entry, config)
    plain = {name: partial(Unit, name, entry, entry.array)
             for name, entry in entries.items() if name not in parts}
    return result | plain


def _mxfp4(files: Files, name: str, entry: Entry) -> Unit:
    scales = files.entries.get(f"{name}_scales")
    if scales is None:
        files.fail(f"it lacks '{name}_scales', the scales of {entry}")
    shape, half = entry.array.shape, _GROUP // 2
    if len(shape) < 3 or shape[-1] != half:
        raise Error(f"{entry}: expected bytes [..., groups, {half}], got {list(shape)}")
    _check(scales, scales.array.dtype == np.uint8 and scales.array.shape == shape[:-1],
           f"exponents u8{list(shape[:-1])} as scales of {entry}")
    codes = entry.array.reshape(*shape[:-2], shape[-2] * half).view(NUMPY_TYPES["f4E2M1FN"])
    return Unit(name, entry, codes, scales, scales.array.view(NUMPY_TYPES[_EXPONENTS]), (1, _GROUP),
                transposed=True, suffixes=("_blocks", "_scales"))


def _fp8(files: Files, entry: Entry, config) -> Unit:
    scales, shape = files.entries[f"{entry.name}_scale_inv"], entry.array.shape
    _check(entry, entry.array.dtype == NUMPY_TYPES[CODES] and len(shape) >= 2,
           f"codes {CODES}[..., n, k] with {scales}")
    array = scales.array.view(NUMPY_TYPES[_EXPONENTS]) if scales.array.dtype == np.uint8 else scales.array
    if array.size == 1 and math.prod(shape[:-2]) == 1:
        # One scale for the whole tensor.
        block, array = shape[-2:], array.reshape(*shape[:-2], 1, 1)
    else:
        block = _block(files, scales, config)
    grid = (*shape[:-2], *(-(-n // size) for n, size in zip(shape[-2:], block)))
    fits = array.shape == grid and type_of(array) in _SCALES
    _check(scales, fits, f"{' or '.join(_SCALES)} scales {list(grid)} for blocks {list(block)} of {entry}")
    return Unit(entry.name, entry, entry.array, scales, array, tuple(block),
                suffixes=("", "_scale_inv"))


def _block(files: Files, scales: Entry, config) -> tuple[int, int]:
    """The size of the blocks that have a scale each."""
    own = getattr(config, "quantization_config", None)
    table = files.config.get("quantization_config") or own
    block = table.get("weight_block_size") if isinstance(table, dict) else \
        getattr(table, "weight_block_size", None)
    if not isinstance(block, (list, tuple)) or len(block) != 2 or \
            not all(isinstance(n, int) and n > 0 for n in block):
        files.fail("expected two numbers 'weight_block_size' in 'quantization_config' of 'config.json', "
                   f"the blocks of {scales}, got {block}")
    return tuple(block)


def _check(entry: Entry, fits: bool, expected: str):
    if not fits:
        raise Error(f"{entry}: expected {expected}, got {type_of(entry.array)}{list(entry.array.shape)}")
