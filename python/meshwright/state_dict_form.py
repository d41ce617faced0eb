# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The form of a `state_dict` that a user gives: tables, numbers and arrays in their places.

    {"model": {key: array},
     "optimizer": {"state": {parameter: {key: array, number or None}},
                   "param_groups": [{"params": [parameter, ...], key: number, flag, ...}]},
     "scaler": {key: number}}          # where the loss scale adapts
"""

import math
from collections.abc import Mapping
from numbers import Real

import numpy as np

from .arguments import fail, instance
from .errors import Error
from .tensors import is_meta, is_torch

#: Keys of a group that cannot be None.
_NUMBERS = ("lr", "betas", "eps", "weight_decay", "momentum")


def checked(saved) -> dict:
    """A copy of the tables, with numbers of Python for arrays of one element where numbers belong.
    Raises an Error that names the first place with another form. It leaves missing keys of the first two tables to its caller."""
    saved = _table("the state dict", saved, "{'model': ..., 'optimizer': ...}")
    if "model" in saved:
        own = _table("'model' of the state dict", saved["model"], "arrays by name")
        for key, value in own.items():
            _array(f"{key!r} of the state dict", value)
    if "optimizer" in saved:
        saved["optimizer"] = _optimizer(saved["optimizer"])
    if saved.get("scaler") is not None:
        scaler = _table("'scaler' of the state dict", saved["scaler"], "numbers by name")
        for key in ("scale", "_growth_tracker"):
            if key not in scaler:
                raise Error(f"the state dict's 'scaler' has no '{key}': expected a GradScaler's state")
        saved["scaler"] = {key: _number(f"the scaler's {key}", v) for key, v in scaler.items()}
    return saved


def _optimizer(given):
    optimizer = _table("'optimizer' of the state dict", given, "{'state': ..., 'param_groups': ...}")
    if "state" in optimizer:
        slots = _table("the optimizer's 'state'", optimizer["state"], "a table by parameter")
        optimizer["state"] = {i: _slot(i, slot) for i, slot in slots.items()}
    if "param_groups" in optimizer:
        groups = optimizer["param_groups"]
        instance("the optimizer's 'param_groups'", groups, (list, tuple), "a list of groups")
        optimizer["param_groups"] = [_group(group) for group in groups]
    return optimizer


def _slot(parameter, given):
    slot = _table(f"the optimizer's state of parameter {parameter!r}", given, "arrays by name")
    for key, value in slot.items():
        name = f"'{key}' of parameter {parameter!r}"
        if key == "step":
            slot[key] = _number(name, value)
        elif isinstance(value, Real):
            _number(name, value)
        elif value is not None:
            _array(name, value)
    return slot


def _group(given):
    group = _table("a group of the optimizer", given, "{'params': [...], 'lr': ..., ...}")
    if "params" in group:
        instance("'params' of a group", group["params"], (list, tuple), "a list of parameters")
        for parameter in group["params"]:
            instance("an element of 'params'", parameter, (int, str), "a number of a parameter")
    for key, value in group.items():
        name, is_needed = f"the optimizer's {key}", key in _NUMBERS
        if key == "params" or (not is_needed and (value is None or isinstance(value, str))):
            continue
        if key == "betas" or (not is_needed and isinstance(value, (tuple, list))):
            instance(name, value, (tuple, list), "two numbers")
            group[key] = tuple(v if isinstance(v, str) else _number(name, v) for v in value)
        else:
            expected = "a finite number from 0 on" if key == "lr" else "a number"
            group[key] = _number(name, value, expected)
    return group


def _table(name, value, expected) -> dict:
    return dict(instance(name, value, Mapping, expected))


def _array(name, value):
    """Refuses a value that is no dense array of numbers."""
    if is_torch(value):
        if is_meta(value):
            fail(name, value, "one with values, not on the meta device")
        if value.is_nested or str(value.layout) != "torch.strided" or value.is_complex():
            fail(name, value, "a dense array of real numbers")
    elif not (isinstance(value, np.generic) or hasattr(value, "__dlpack__")) or np.asarray(value).dtype.kind in "cOSUMm":
        fail(name, value, "an array")


def _number(name, value, expected="a number"):
    """A number or a flag of Python. `expected` states the range."""
    if is_torch(value) or isinstance(value, (np.ndarray, np.generic)):
        _array(name, value)
        if math.prod(value.shape) != 1:
            fail(name, value, "a number")
        value = value.item()
    if not isinstance(value, Real):
        fail(name, value, "a number")
    if not -(2.0**63) <= value < 2.0**63:
        fail(name, value, expected)
    return value
