# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The arguments of a call as the inputs of an entry."""

from numbers import Real
from typing import NamedTuple

import numpy as np

from . import arguments
from .devices import on_gpu
from .errors import Diagnostic, Error, InputError
from .tensors import NUMPY_TYPES, Dense, dense, is_meta

#: Inputs that a step of serving has, and the host computes.
_SERVING = {"tokens", "positions", "slots", "tables", "starts", "lengths"}


class Prepared(NamedTuple):
    """A call of an entry."""

    #: The entry of the program.
    entry: object
    inputs: list[Dense]
    #: Makes the caller's outputs of those of the entry; None if they are the same.
    finish: object = None


def prepare_by_name(entries, name, args, kwargs) -> Prepared:
    """The entry of that name, and the inputs among a call's arguments, by position and by name."""
    entry = find_entry(entries, name)
    return Prepared(entry, check_inputs(entry.inputs, by_name(entry.inputs, args, kwargs)))


def find_entry(entries, name):
    """The entry of that name; None stands for the default."""
    if name is None:
        return entries[0]
    arguments.text("entry", name, "the name of an entry, or None")
    for entry in entries:
        if entry.name == name:
            return entry
    known = ", ".join(f"'{entry.name}'" for entry in entries)
    raise Error(f"there is no entry '{name}': expected {'one of ' * (len(entries) > 1)}{known}")


def check_inputs(ports, values) -> list[Dense]:
    """The arrays of values in the order of the ports. None stands for a default value, which has no
    address. Raises an InputError that names all that do not fit."""
    tensors, problems = [], []
    for port, value in zip(ports, values, strict=True):
        if value is None and port.has_default:
            tensors.append(Dense(port.dtype, tuple(port.shape), 0, None))
            continue
        if value is None:
            problems.append(f"input '{port.name}' is missing")
            continue
        if port.has_default and isinstance(value, Real):
            value = np.asarray(value, NUMPY_TYPES[port.dtype])
        if is_meta(value):
            problems.append(f"input '{port.name}' is on the meta device")
            continue
        try:
            tensor = on_gpu(value) or dense(value)
        except (TypeError, ValueError):
            problems.append(f"input '{port.name}' is a {type(value).__name__}: no array")
            continue
        except Error as error:
            problems.append(f"input '{port.name}': {error}")
            continue
        expected = Dense(port.dtype, tuple(port.shape), 0, None)
        if (tensor.dtype, tensor.shape) != (expected.dtype, expected.shape):
            problems.append(f"input '{port.name}': expected {expected}, got {tensor}")
        tensors.append(tensor)
    if problems:
        raise InputError([Diagnostic(problem) for problem in problems])
    return tensors


def names_inputs(ports, args, kwargs):
    """Whether a call gives the program's inputs by their names in the program."""
    needed = {port.name for port in ports if not port.has_default}
    return not args and bool(kwargs) and needed <= set(kwargs) <= {port.name for port in ports}


def by_name(ports, args, kwargs) -> list:
    """Inputs by position, then by name."""
    names = [port.name for port in ports]
    problems = []
    if len(args) > len(names):
        problems.append(f"positional inputs: expected at most {len(names)}, got {len(args)}")
    values = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name not in names:
            if value is not None:
                problems.append(f"no input is named '{name}': expected {', '.join(names)}")
        elif name in values:
            problems.append(f"input '{name}' is given twice")
        else:
            values[name] = value
    problems += [
        f"input '{port.name}' is missing"
        for port in ports
        if port.name not in values and not port.has_default
    ]
    if problems:
        if _SERVING <= set(names):
            missing = ", ".join(f"'{name}'" for name in names if name not in values)
            problems = ["an entry of a model that serves: expected requests by `start()` and `generate` or "
                        f"`submit`, got a call without {missing}"]
        raise InputError([Diagnostic(problem) for problem in problems])
    return [values.get(name) for name in names]
