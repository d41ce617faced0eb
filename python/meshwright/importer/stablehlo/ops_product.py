# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Products: dot_general, as it stands until dots.py arranges it, and convolutions as patches and a product."""
import itertools

import numpy as np
from jax.extend.mlir.dialects import stablehlo

from ..errors import Uncovered
from ..graph.nodes import Node, numel
from .attributes import booleans, integer, optional_integers
from .handlers import Context, handles
from .ops_shape import padded, spread


@handles("dot_general")
def dot_general(c: Context, op, lhs, rhs):
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    dims = [list(numbers.lhs_batching_dimensions), list(numbers.rhs_batching_dimensions),
            list(numbers.lhs_contracting_dimensions), list(numbers.rhs_contracting_dimensions)]
    return dot(c, lhs, rhs, *dims)


@handles("dot")
def plain_dot(c: Context, op, lhs, rhs):
    return dot(c, lhs, rhs, [], [], [lhs.rank - 1], [0])


def dot(c: Context, lhs: Node, rhs: Node, lhs_batch, rhs_batch, lhs_sum, rhs_sum) -> Node:
    """A product that sums over dimensions of both operands. The result has the batch dimensions, those of
    lhs that are left, and those of rhs."""
    known = c.known(lhs, rhs)
    if known:
        return c.constant(_value(known, lhs_batch, rhs_batch, lhs_sum, rhs_sum), c.shape, c.dtype)
    if lhs.dtype != rhs.dtype or lhs.dtype != c.dtype and (lhs.dtype not in ("bf16", "f16") or c.dtype != "f32"):
        lhs, rhs = c.build.cast(lhs, c.dtype), c.build.cast(rhs, c.dtype)
    return c.build.make("dot", [lhs, rhs], c.shape, c.dtype, lhs_batch=lhs_batch, rhs_batch=rhs_batch,
                        lhs_sum=lhs_sum, rhs_sum=rhs_sum)


def _value(known, lhs_batch, rhs_batch, lhs_sum, rhs_sum) -> np.ndarray:
    lhs, rhs = (v.astype(np.float64) if v.dtype.kind not in "iub" else v for v in known)
    names = iter(range(52))
    left = [None] * lhs.ndim
    right = [None] * rhs.ndim
    for a, b in zip(lhs_batch + lhs_sum, rhs_batch + rhs_sum):
        left[a] = right[b] = next(names)
    left, right = ([next(names) if n is None else n for n in side] for side in (left, right))
    batch, summed = [left[d] for d in lhs_batch], {left[d] for d in lhs_sum}
    free = [[n for n in side if n not in summed and n not in batch] for side in (left, right)]
    return np.einsum(lhs, left, rhs, right, batch + free[0] + free[1])


# Convolutions.

@handles("convolution")
def convolution(c: Context, op, x, weight):
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    spatial = len(numbers.input_spatial_dimensions)
    ones = [1] * spatial
    strides, dilations, weight_dilations = (optional_integers(op, name, ones)
                                            for name in ("window_strides", "lhs_dilation", "rhs_dilation"))
    pads = np.array(optional_integers(op, "padding", [0] * 2 * spatial)).reshape(spatial, 2).tolist()
    groups = integer(op, "feature_group_count", 1)
    if integer(op, "batch_group_count", 1) != 1:
        raise Uncovered("a convolution with groups of the batch is not covered")
    if "window_reversal" in op.attributes and any(booleans(op.attributes["window_reversal"])):
        raise Uncovered("a convolution whose window is reversed is not covered")
    b = c.build
    # [batch, positions..., channels]
    x = b.transpose(x, [numbers.input_batch_dimension, *numbers.input_spatial_dimensions,
                        numbers.input_feature_dimension])
    zero = b.scalar(0, x.dtype)
    for d, (step, (before, after)) in enumerate(zip(dilations, pads), 1):
        x = padded(c, spread(c, x, d, step, zero), d, before, after, zero)
    features = [*numbers.kernel_spatial_dimensions, numbers.kernel_input_feature_dimension]
    kernel = [weight.shape[d] for d in numbers.kernel_spatial_dimensions]
    windows = _Windows(c, x, kernel, strides, weight_dilations)
    out = numbers.kernel_output_feature_dimension
    channels = weight.shape[numbers.kernel_input_feature_dimension]
    if groups == 1:
        # The features of a patch in the order of the stored weight, whose reshape then moves nothing.
        order = sorted(range(len(features)), key=features.__getitem__)
        patches = windows.patches(order)
        if out == 0:
            result = b.linear(patches, b.reshape(weight, (weight.shape[0], numel(weight.shape[1:]))))
        else:
            stored = b.transpose(weight, [*sorted(features), out])
            result = b.linear(patches, b.reshape(stored, (numel(stored.shape[:-1]), stored.shape[-1])), in_out=True)
    else:
        result = _grouped(c, windows, b.transpose(weight, [*features, out]), channels, groups)
    order = [0] * (spatial + 2)
    order[numbers.output_batch_dimension], order[numbers.output_feature_dimension] = 0, spatial + 1
    for i, d in enumerate(numbers.output_spatial_dimensions, 1):
        order[d] = i
    return b.transpose(result, order)


class _Windows:
    """The elements of x [batch, positions..., channels] that a kernel meets at each of its positions."""

    def __init__(self, c: Context, x: Node, kernel, strides, dilations):
        self.c, self.x, self.kernel, self.strides, self.dilations = c, x, kernel, strides, dilations
        self.sizes = [(n - d * (k - 1) - 1) // s + 1
                      for n, k, s, d in zip(x.shape[1:-1], kernel, strides, dilations)]
        self.spatial = len(kernel)

    def at(self, offsets) -> Node:
        """[batch, positions..., channels] at one position of the kernel."""
        starts = [o * d for o, d in zip(offsets, self.dilations)]
        limits = [s + (n - 1) * t + 1 for s, n, t in zip(starts, self.sizes, self.strides)]
        return self.c.build.slice(self.x, [0, *starts, 0], [self.x.shape[0], *limits, self.x.shape[-1]],
                                  [1, *self.strides, 1])

    def apart(self) -> Node:
        """[batch, positions..., kernel..., channels]"""
        b, x, spatial = self.c.build, self.x, self.spatial
        if list(self.kernel) == list(self.strides) and all(d == 1 for d in self.dilations):
            whole = [n * k for n, k in zip(self.sizes, self.kernel)]
            x = b.slice(x, [0] * x.rank, [x.shape[0], *whole, x.shape[-1]])
            x = b.reshape(x, [x.shape[0], *(v for p in zip(self.sizes, self.kernel) for v in p), x.shape[-1]])
            return b.transpose(x, [0, *range(1, 2 * spatial, 2), *range(2, 2 * spatial + 1, 2), 2 * spatial + 1])
        taps = list(itertools.product(*map(range, self.kernel)))
        if len(taps) > 256:
            raise Uncovered(f"a convolution whose kernel {list(self.kernel)} has more than 256 elements and differs from "
                            f"its stride {list(self.strides)} is not covered")
        parts = [self.at(o) for o in taps]
        joined = b.concat([b.reshape(p, (*p.shape[:-1], 1, p.shape[-1])) for p in parts], spatial + 1)
        return b.reshape(joined, (*joined.shape[:spatial + 1], *self.kernel, joined.shape[-1]))

    def patches(self, order) -> Node:
        """[batch, positions..., features]: kernel and channels in an order of (kernel..., channels)."""
        apart = self.apart()
        lead = 1 + self.spatial
        moved = self.c.build.transpose(apart, [*range(lead), *(lead + o for o in order)])
        return self.c.build.reshape(moved, (*moved.shape[:lead], numel(moved.shape[lead:])))


def _grouped(c: Context, windows: _Windows, weight: Node, channels: int, groups: int) -> Node:
    """A product of its own for each group of channels; weight [kernel..., channels of a group, out]."""
    b, x, out = c.build, windows.x, weight.shape[-1]
    if channels == 1 and out == groups:
        result = None
        for offsets in itertools.product(*map(range, windows.kernel)):
            own = b.slice(weight, [*offsets, 0, 0], [*(o + 1 for o in offsets), 1, out])
            term = b.binary("mul", windows.at(offsets), b.reshape(own, (out,)))
            result = term if result is None else b.binary("add", result, term)
        return result
    apart = windows.apart()
    lead = apart.shape[:1 + windows.spatial]
    rows = b.reshape(apart, (numel(lead), *windows.kernel, groups, x.shape[-1] // groups))
    spatial = windows.spatial
    rows = b.transpose(rows, [spatial + 1, 0, *range(1, spatial + 1), spatial + 2])
    rows = b.reshape(rows, (groups, numel(lead), numel(rows.shape[2:])))
    each = b.reshape(weight, (*weight.shape[:-1], groups, out // groups))
    each = b.transpose(each, [spatial + 1, *range(spatial + 1), spatial + 2])
    result = b.matmul(rows, b.reshape(each, (groups, rows.shape[-1], out // groups)))
    return b.reshape(b.transpose(result, [1, 0, 2]), (*lead, out))
