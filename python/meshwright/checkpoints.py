# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checkpoints as models are released: a safetensors file, or a folder of several with an index.

The files are mapped. Their headers are read once; nothing of a tensor is read before it is used.
"""

import contextlib
import json
import mmap
import os
import weakref
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from . import weights
from .errors import Error
from .progress import Phase

_INDEX = ".safetensors.index.json"


class _Tensors(dict):
    """The tensors of a mapped file, by name."""


#: Files that are mapped, by where they are and how they were. Two models of one checkpoint, such as
#: the entries of a model that serves, have their weights at one place.
_mapped: weakref.WeakValueDictionary[tuple, _Tensors] = weakref.WeakValueDictionary()


class Entry(NamedTuple):
    """A tensor of a file."""

    name: str
    array: np.ndarray
    file: str

    def __str__(self):
        return f"'{self.name}' in '{self.file}'"


@dataclass
class Files:
    """The entries and the configuration of a checkpoint."""

    path: str
    entries: dict[str, Entry] = field(default_factory=dict)
    #: `config.json` of the folder, if it has one.
    config: dict = field(default_factory=dict)
    #: Keeps the files mapped.
    maps: list[_Tensors] = field(default_factory=list)

    @contextlib.contextmanager
    def scattered(self):
        """For reads of few bytes in many places: pages behind them are not read ahead."""
        maps = {id(m): m for e in self.entries.values() if (m := getattr(e.array, "_mmap", None))}
        for mapped in maps.values():
            mapped.madvise(mmap.MADV_RANDOM)
        try:
            yield
        finally:
            for mapped in maps.values():
                mapped.madvise(mmap.MADV_NORMAL)

    def fail(self, what):
        raise Error(f"cannot read weights '{self.path}': {what}")


def read(path: str) -> Files:
    """Maps the files of a checkpoint. Raises Error for one that is missing, cut or no safetensors
    file, and for a folder that does not say which of several files belong together."""
    result = Files(path)
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    files = {os.path.basename(path): None} if folder != path else _files_of(result)
    with Phase("reading checkpoint", len(files)) as phase:
        for file, names in files.items():
            _add(result, os.path.join(folder, file), names)
            phase.step()
    result.config = _json(result, os.path.join(folder, "config.json"), {})
    return result


def _files_of(checkpoint: Files) -> dict[str, list[str] | None]:
    """The files of a folder, and of each the entries that the index places there."""
    try:
        found = sorted(os.listdir(checkpoint.path))
    except OSError as error:
        checkpoint.fail(error.strerror or error)
    indices = [name for name in found if name.endswith(_INDEX)]
    if f"model{_INDEX}" in indices:  # releases may have another form of the weights besides
        indices = [f"model{_INDEX}"]
    files = [name for name in found if name.endswith(".safetensors")]
    if len(indices) > 1:
        checkpoint.fail(f"expected one index, got {_listed(indices)}")
    if not indices:
        if len(files) != 1:
            checkpoint.fail(
                f"expected an index '*{_INDEX}' for its files {_listed(files)}"
                if files
                else "expected safetensors files, got none"
            )
        return {files[0]: None}
    table = _json(checkpoint, os.path.join(checkpoint.path, indices[0])).get("weight_map")
    if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
        checkpoint.fail(f"expected a table 'weight_map' of names and files in '{indices[0]}'")
    result = {}
    for entry, file in table.items():
        result.setdefault(file, []).append(entry)
    return result


def _add(checkpoint: Files, file: str, names: list[str] | None):
    """Adds the tensors of a file; with `names` those, which it must have."""
    tensors = _load(file)
    checkpoint.maps.append(tensors)
    for name in tensors if names is None else names:
        if name not in tensors:
            checkpoint.fail(f"the index places '{name}' in '{file}', which lacks it")
        checkpoint.entries[name] = Entry(name, tensors[name], file)


def _load(file: str) -> _Tensors:
    try:
        seen = os.stat(file)
        key = os.path.realpath(file), seen.st_ino, seen.st_size, seen.st_mtime_ns
    except OSError:
        return _Tensors(weights.load(file))  # which says why it cannot
    tensors = _mapped.get(key)
    if tensors is None:
        tensors = _mapped[key] = _Tensors(weights.load(file))
    return tensors


def _json(checkpoint: Files, path: str, default=None) -> dict:
    try:
        with open(path, encoding="utf-8") as file:
            table = json.load(file)
    except FileNotFoundError:
        return default
    except (OSError, ValueError) as error:
        checkpoint.fail(f"'{os.path.basename(path)}' is not JSON: {error}")
    if not isinstance(table, dict):
        checkpoint.fail(f"expected a table in '{os.path.basename(path)}'")
    return table


def _listed(names) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(f"'{name}'" for name in names[:3]) + more
