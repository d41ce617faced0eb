# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The names of leaves of pytrees: their paths, as `layers.0.q`."""
import inspect

import jax


def is_array(value) -> bool:
    """Whether a leaf is traced. Numbers, flags, text and keys of random numbers are part of a program."""
    return hasattr(value, "shape") and hasattr(value, "dtype") and \
        not jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended)


def key_of(entry) -> str:
    """One step of a path."""
    for attribute in ("key", "idx", "name"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)


def path_of(path, prefix: str = "") -> str:
    """The name of a leaf. The boxes of Flax (variables, partitioned arrays) do not count."""
    path = list(path)
    while path and getattr(path[-1], "name", None) in ("value", "raw_value"):
        path.pop()
    parts = [prefix] if prefix else []
    return ".".join([*parts, *map(key_of, path)])


def unique(names: list[str]) -> list[str]:
    """Names that no two leaves share."""
    taken, result = set(), []
    for name in names:
        candidate, count = name, 1
        while candidate in taken:
            candidate, count = f"{name}.{count}", count + 1
        taken.add(candidate)
        result.append(candidate)
    return result


def results_of(tree) -> list[str]:
    """The names of a function's results: those of torch modules are made the same way."""
    names = []
    for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = path_of(path) or "output"
        names.append(f"output.{name}" if name[0].isdigit() else name)
    return unique(names)


def arguments_of(function, args, kwargs) -> list[str]:
    """The names of the arguments of a call, by position and then by keyword."""
    names = []
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    for i in range(len(args)):
        own = parameters[i] if i < len(parameters) else parameters[-1] if parameters else None
        if own is None or own.kind in (own.KEYWORD_ONLY, own.VAR_KEYWORD):
            names.append(f"arg{i}")
        elif own.kind == own.VAR_POSITIONAL:
            first = next(k for k, p in enumerate(parameters) if p is own)
            names.append(f"{own.name}.{i - first}")
        else:
            names.append(own.name)
    return [*names, *kwargs]
