# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The checks of users' arguments. Each function returns the value that was meant, or raises an
error that states the argument's name, what is expected and its value."""

import math
import os
from collections.abc import Mapping, Sequence
from numbers import Integral, Real

import numpy as np

from .errors import Error


def said(value) -> str:
    """A value as errors quote it."""
    if value is None or isinstance(value, (bool, Real, str, bytes, os.PathLike)):
        text = repr(value)
        return text if len(text) <= 60 else text[:57] + "..."
    return f"a {value.__name__} (a class)" if isinstance(value, type) else f"a {type(value).__name__}"


def fail(name, value, expected, error=Error):
    """Raises the error of an argument."""
    raise error(f"{name}: expected {expected}, got {said(value)}")


def instance(name, value, kinds, expected, error=Error):
    """A value of one of these types."""
    if not isinstance(value, kinds):
        fail(name, value, expected, error)
    return value


def flag(name, value, error=Error) -> bool:
    return bool(instance(name, value, (bool, np.bool_), "True or False", error))


def text(name, value, expected="text", error=Error) -> str:
    return instance(name, value, str, expected, error)


def path(name, value, error=Error, expected="a path") -> str:
    """A path, as text."""
    instance(name, value, (str, bytes, os.PathLike), expected, error)
    found = os.fsdecode(value)
    if not found or "\0" in found:
        fail(name, value, expected, error)
    return found


def number(name, value, error=Error) -> float:
    """A number. Text and arrays of one element are numbers, too."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        fail(name, value, "a number", error)


def integer(name, value, least=None, error=Error) -> int:
    expected = "an integer" if least is None else f"an integer from {least} on"
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Integral):
        fail(name, value, expected, error)
    if abs(int(value)) >= 2**63:
        fail(name, value, f"an integer from {-2**63 + 1 if least is None else least} to {2**63 - 1}", error)
    if least is not None and value < least:
        fail(name, value, expected, error)
    return int(value)


def positive(name, value, kind):
    """A number above 0, an integer where `kind` is Integral. None gives 0, which stands for the
    default."""
    if value is None:
        return 0
    if not isinstance(value, kind) or isinstance(value, bool) or not value > 0:
        fail(name, value, ("an integer" if kind is Integral else "a number") + " above 0")
    # 2**62 fits the C type and is more threads, bytes or seconds than any machine has.
    return int(min(value, 2**62)) if kind is Integral else float(min(value, math.inf))


def tolerance(value) -> float:
    """The largest difference that a check accepts."""
    if not isinstance(value, Real) or isinstance(value, bool) or not value >= 0:
        fail("tolerance", value, "a number from 0 on")
    return float(value)


def names(name, value, expected, error=Error) -> list[str]:
    """One name, or several in a sequence or a set."""
    if isinstance(value, str):
        return [value]
    instance(name, value, (Sequence, set, frozenset), expected, error)
    found = list(value)
    for one in found:
        if not isinstance(one, str):
            fail(f"an element of {name}", one, expected, error)
    return found


def mapping(name, value, expected, error=Error) -> Mapping:
    """A table whose keys are text."""
    instance(name, value, Mapping, expected, error)
    for key in value:
        if not isinstance(key, str):
            fail(f"a key of {name}", key, expected, error)
    return value
