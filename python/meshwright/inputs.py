# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The arguments of a call as the inputs of an entry."""

from .errors import Diagnostic, Error, InputError
from .tensors import Dense, dense, is_meta


def flatten_by_name(ports, args, kwargs) -> list[Dense]:
    """The inputs among a call's arguments, by position and by name, checked."""
    return check_inputs(ports, _by_name(ports, args, kwargs))


def check_inputs(ports, values) -> list[Dense]:
    """The arrays of values in the order of the ports. Raises an InputError that names all that do
    not fit."""
    tensors, problems = [], []
    for port, value in zip(ports, values, strict=True):
        if is_meta(value):
            problems.append(f"input '{port.name}' is on the meta device")
            continue
        try:
            tensor = dense(value)
        except (TypeError, ValueError):
            problems.append(f"input '{port.name}' is a {type(value).__name__}: no array")
            continue
        except Error as error:
            problems.append(f"input '{port.name}': {error}")
            continue
        expected = Dense(port.dtype, tuple(port.shape), 0, None)
        if (tensor.dtype, tensor.shape) != (expected.dtype, expected.shape):
            problems.append(f"input '{port.name}' is {tensor}: expected {expected}")
        tensors.append(tensor)
    if problems:
        raise InputError([Diagnostic(problem) for problem in problems])
    return tensors


def names_inputs(ports, args, kwargs):
    """Whether a call gives the program's inputs by their names in the program."""
    return not args and bool(kwargs) and set(kwargs) == {port.name for port in ports}


def _by_name(ports, args, kwargs):
    """Inputs by position, then by name."""
    names = [port.name for port in ports]
    problems = []
    if len(args) > len(names):
        problems.append(f"{len(args)} positional inputs: expected at most {len(names)}")
    values = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name not in names:
            if value is not None:
                problems.append(f"no input is named '{name}': expected {', '.join(names)}")
        elif name in values:
            problems.append(f"input '{name}' is given twice")
        else:
            values[name] = value
    problems += [f"input '{name}' is missing" for name in names if name not in values]
    if problems:
        raise InputError([Diagnostic(problem) for problem in problems])
    return [values[name] for name in names]
