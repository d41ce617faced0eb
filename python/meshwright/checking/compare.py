# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Differences of values from the truth, and the bars that they are measured by."""

import math

import torch

from ..tensors import ELEMENT_TYPES, torch_types

#: The difference of an output that needs no comparison with PyTorch's own: rounding at its type.
OUTPUT = {dtype: ELEMENT_TYPES[name].tolerance for name, dtype in torch_types().items()}
#: The same of gradients, relative to the largest entry of all.
GRADIENT = {**OUTPUT, torch.float32: 1e-6}
#: As many times PyTorch's own difference is fine, too.
MARGIN = 1.25


def bar(floors, dtype, own, tolerance=None) -> float:
    """The largest difference that is fine, where PyTorch's own at this type is `own`."""
    if tolerance is not None:
        return tolerance
    return max(floors.get(dtype, 0.0), MARGIN * own)


def largest(values) -> float:
    """The largest finite entry of some tensors; 1 where all are zeros."""
    most = 0.0
    for value in values:
        if value.numel():
            finite = value.detach().double().abs().nan_to_num(0.0, 0.0, 0.0)
            most = max(most, float(finite.max()))
    return most or 1.0


def difference(got, want, scale=None) -> float:
    """The largest difference from `want`, relative to its largest entry or to `scale`. NaN equals
    NaN, and an infinity the same one; another value in their place is infinitely far away."""
    if tuple(got.shape) != tuple(want.shape):
        return math.inf
    if not want.numel():
        return 0.0
    got, want = (t.detach().to("cpu") for t in (got, want))
    if not want.is_floating_point():
        return float((got.double() - want.double()).abs().max()) / (scale or largest([want]))
    got, want = got.double(), want.double()
    same = (got == want) | (got.isnan() & want.isnan())
    apart = torch.where(same, 0.0, (got - want).abs())
    if not bool(apart.isfinite().all()):
        return math.inf
    return float(apart.max()) / (scale or largest([want]))


def exact(got, want, own) -> float:
    """Of integers and flags: the largest difference of entries that are neither the truth's nor
    PyTorch's own at the module's types, which may decide a tie in another way."""
    if tuple(got.shape) != tuple(want.shape):
        return math.inf
    return difference(torch.where(got == own, want, got), want)
