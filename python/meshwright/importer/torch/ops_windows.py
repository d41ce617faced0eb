# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""ATen operations on windows: convolutions, as patches and a linear layer, and pooling."""
import functools
import itertools
import math

import torch

from ..errors import Uncovered
from ..graph.dialect import FLOATS
from ..graph.nodes import Node, numel
from .derivatives import derivative, with_derivative
from .formulas import where
from .handlers import aten
from .ops_elementwise import wide
from .ops_layers import per_channel
from .values import TORCH_DTYPES, compress


def _every(value, spatial: int) -> list[int]:
    """One number per dimension, where one may stand for all."""
    return [value] * spatial if isinstance(value, int) else \
        list(value) * spatial if len(value) == 1 else list(value)


def _filled(build, x: Node, dim: int, count: int, value) -> Node:
    return build.broadcast(build.scalar(value, x.dtype),
                           x.shape[:dim] + (count,) + x.shape[dim + 1:])


def padded(build, x: Node, dim: int, before: int, after: int, value=0) -> Node:
    """x with so many elements more along a dimension, or fewer where a number is negative."""
    x = build.slice_dim(x, dim, max(0, -before), x.shape[dim] - max(0, -after))
    parts = [_filled(build, x, dim, before, value) if before > 0 else None, x,
             _filled(build, x, dim, after, value) if after > 0 else None]
    return build.concat([p for p in parts if p is not None and p.shape[dim]] or [x], dim)


# Convolutions.

@aten("conv1d", "conv2d", "conv3d", "convolution")
def convolution(c, x, weight, bias=None, stride=1, padding=0, dilation=1, *rest):
    spatial = weight.rank - 2
    if c.fx.target.__name__.startswith("convolution"):
        transposed, output_padding, groups = rest
        if transposed:
            return transposed_convolution(c, x, weight, bias, stride, padding, output_padding,
                                          groups, dilation)
    else:
        groups = rest[0] if rest else 1
    stride, dilation = _every(stride, spatial), _every(dilation, spatial)
    if isinstance(padding, str):
        total = [d * (k - 1) if padding == "same" else 0
                 for k, d in zip(weight.shape[2:], dilation)]
        pads = [(t // 2, t - t // 2) for t in total]
    else:
        pads = [(p, p) for p in _every(padding, spatial)]
    return _batched(c, x, spatial, lambda x: _correlate(
        c, _zero_padded(c.build, x, pads), weight, bias, stride, dilation, groups))


@aten("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed_convolution(c, x, weight, bias=None, stride=1, padding=0, output_padding=0,
                           groups=1, dilation=1):
    """A convolution of the input with zeros between its elements, by the weight backwards."""
    spatial = weight.rank - 2
    kernel, (stride, padding, extra, dilation) = weight.shape[2:], (
        _every(v, spatial) for v in (stride, padding, output_padding, dilation))
    inputs, each = weight.shape[0] // groups, weight.shape[1]
    order = [0, 2, 1, *range(3, 3 + spatial)]
    swapped = c.build.reshape(weight, (groups, inputs, each, *kernel))
    swapped = c.build.reshape(c.build.transpose(swapped, order), (groups * each, inputs, *kernel))
    reach = [d * (k - 1) for k, d in zip(kernel, dilation)]
    pads = [(r - p, r - p + e) for r, p, e in zip(reach, padding, extra)]

    def run(x):
        for dim, step in enumerate(stride, 2):
            x = _spread(c, x, dim, step)
        return _correlate(c, _zero_padded(c.build, x, pads), swapped, bias, [1] * spatial, dilation,
                          groups, backwards=True)

    return _batched(c, x, spatial, run)


def _batched(c, x, spatial, run):
    """Runs on a batch; of one, where the input has none."""
    if x.rank != spatial + 1:
        return run(x)
    result = run(c.build.reshape(x, (1, *x.shape)))
    return c.build.reshape(result, result.shape[1:])


def _spread(c, x, dim, step):
    """x with `step` - 1 zeros between its elements along a dimension."""
    if step == 1:
        return x
    size = x.shape[dim]
    apart = c.build.reshape(x, x.shape[:dim + 1] + (1,) + x.shape[dim + 1:])
    apart = padded(c.build, apart, dim + 1, 0, step - 1)
    whole = c.build.reshape(apart, x.shape[:dim] + (size * step,) + x.shape[dim + 1:])
    return c.build.slice_dim(whole, dim, 0, (size - 1) * step + 1)


def _correlate(c, x, weight, bias, stride, dilation, groups, backwards=False):
    """`backwards` reads the kernel from its end."""
    kernel, spatial = list(weight.shape[2:]), weight.rank - 2
    sizes = [(n - d * (k - 1) - 1) // s + 1
             for n, k, s, d in zip(x.shape[2:], kernel, stride, dilation)]
    channels, out = x.shape[1], weight.shape[0]
    offsets = list(itertools.product(*map(range, kernel)))
    taps = offsets[::-1] if backwards else offsets
    if groups == channels and weight.shape[1] == 1 and groups == out and groups > 1:
        result = _depthwise(c, x, weight, sizes, stride, dilation, zip(offsets, taps))
        return per_channel(c, result, None, bias)
    patches = _patches(c, x, kernel, stride, dilation, sizes, taps)
    if groups == 1:
        flat = c.build.reshape(weight, (out, channels * numel(kernel)))
        result = c.build.linear(patches, flat, bias)
    else:
        result = _grouped(c, patches, weight, bias, groups)
    return c.build.transpose(result, [0, spatial + 1, *range(1, spatial + 1)])


def _grouped(c, patches, weight, bias, groups):
    """A product of its own for each group of channels."""
    *lead, features = patches.shape
    out, tokens = weight.shape[0], numel(lead)
    rows = c.build.reshape(patches, (tokens, groups, features // groups))
    weight = c.build.reshape(weight, (groups, out // groups, features // groups))
    result = c.build.matmul(c.build.transpose(rows, [1, 0, 2]), weight, transpose_rhs=True)
    result = c.build.reshape(c.build.transpose(result, [1, 0, 2]), (*lead, out))
    return result if bias is None else c.build.binary("add", result, bias)


def _zero_padded(build, x, pads):
    for dim, (before, after) in enumerate(pads, 2):
        x = padded(build, x, dim, before, after)
    return x


def _window(c, x, offsets, sizes, stride, dilation):
    """The elements that one position of the kernel meets."""
    starts = [0, 0] + [o * d for o, d in zip(offsets, dilation)]
    limits = [*x.shape[:2]] + [s + (n - 1) * t + 1 for s, n, t in zip(starts[2:], sizes, stride)]
    return c.build.slice(x, starts, limits, [1, 1, *stride])


def _patches(c, x, kernel, stride, dilation, sizes, taps):
    """[batch, positions..., channels * kernel elements]"""
    batch, channels, spatial = x.shape[0], x.shape[1], len(kernel)
    if kernel == stride and all(d == 1 for d in dilation):
        limits = [batch, channels] + [n * k for n, k in zip(sizes, kernel)]
        x = c.build.slice(x, [0] * x.rank, limits)
        x = c.build.reshape(x, [batch, channels] + [v for p in zip(sizes, kernel) for v in p])
        x = c.build.transpose(x, [0, *range(2, 2 + 2 * spatial, 2), 1,
                                  *range(3, 3 + 2 * spatial, 2)])
    else:
        if len(taps) > 256:
            raise Uncovered(f"a convolution whose kernel {kernel} has more than 256 elements and "
                            f"differs from its stride {stride} is not covered")
        windows = [_window(c, x, o, sizes, stride, dilation) for o in taps]
        windows = [c.build.reshape(w, (*w.shape, 1)) for w in windows]
        x = c.build.concat(windows, 2 + spatial)
        x = c.build.transpose(x, [0, *range(2, 2 + spatial), 1, 2 + spatial])
    return c.build.reshape(x, (batch, *sizes, channels * numel(kernel)))


def _depthwise(c, x, weight, sizes, stride, dilation, taps):
    result, spatial = None, weight.rank - 2
    for offsets, tap in taps:
        own = c.build.slice(weight, [0, 0, *offsets],
                            [*weight.shape[:2], *(o + 1 for o in offsets)])
        own = c.build.reshape(own, (weight.shape[0],) + (1,) * spatial)
        term = c.build.binary("mul", _window(c, x, tap, sizes, stride, dilation), own)
        result = term if result is None else c.build.binary("add", result, term)
    return result


# Pooling.

@aten("avg_pool1d", "avg_pool2d", "avg_pool3d")
def average_pool(c, x, kernel, stride=(), padding=0, ceil_mode=False, count_include_pad=True,
                 divisor_override=None):
    kernel, stride, padding = _pool_options(c, kernel, stride, padding)
    lead, spatial = x.rank - len(kernel), len(kernel)
    if _is_partition(c, x, kernel, stride, padding) and divisor_override is None:
        return _pooled(c, x, "mean", kernel)
    counts = torch.ones((), dtype=torch.float64)
    for i, (k, s, p) in enumerate(zip(kernel, stride, padding)):
        size, count = x.shape[lead + i], c.shape[lead + i]
        start = torch.arange(count) * s - p
        end = (start + k).clamp(max=size + p)
        own = end - start if count_include_pad else end.clamp(max=size) - start.clamp(min=0)
        counts = counts.unsqueeze(-1) * own
    if divisor_override is not None:
        counts = torch.full_like(counts, divisor_override)
    y = wide(c, x)
    total = _combined(c, y, "add", 0, kernel, stride, padding, [1] * spatial)
    counts = c.build.static(compress(counts.to(TORCH_DTYPES[y.dtype])), counts.shape, y.dtype)
    return c.build.binary("div", total, counts)


@aten("max_pool1d", "max_pool2d", "max_pool3d")
def max_pool(c, x, kernel, stride=(), padding=0, dilation=1, ceil_mode=False):
    kernel, stride, padding = _pool_options(c, kernel, stride, padding)
    dilation = _every(dilation, len(kernel))
    if _is_partition(c, x, kernel, stride, padding) and all(d == 1 for d in dilation):
        result = _pooled(c, x, "max", kernel)
    else:
        least = -math.inf if x.dtype in FLOATS else torch.iinfo(TORCH_DTYPES[x.dtype]).min
        result = _combined(c, x, "maximum", least, kernel, stride, padding, dilation)
    windows = (x, kernel, stride, padding, dilation)
    return with_derivative(c, result, "max_pool.windows", windows, {})


@derivative("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices")
def of_max_pool_with_indices(d, x, kernel, stride=(), padding=0, dilation=1, ceil_mode=False):
    every = lambda value: _every(value, len(kernel))
    stride = every(stride) if isinstance(stride, int) or len(stride) else kernel
    return _of_max_pool(d, x, kernel, stride, every(padding), every(dilation))


@derivative("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def of_adaptive_max_pool(d, x, size):
    """PyTorch composes it of others only where all windows have one size."""
    lead, none = x.rank - len(size), [0] * len(size)
    kernel = [n // m for n, m in zip(x.shape[lead:], d.result.shape[lead:])]
    return _of_max_pool(d, x, kernel, kernel, none, [1] * len(size))


@derivative("max_pool.windows")
def _of_max_pool(d, x, kernel, stride, padding, dilation):
    """The first largest element of a window has all of the gradient, or the last NaN.

    In row-major order: columns are combined before rows. Beside a value that is the largest so far
    there is the differential of its element."""
    build, dx = x.build, d(x)
    lead = x.rank - len(kernel)
    for i in reversed(range(len(kernel))):
        k, s, p, step = kernel[i], stride[i], padding[i], dilation[i]
        dim, count = lead + i, d.result.shape[lead + i]
        parts = [_taps(build, y.node, dim, fill, count, k, s, p, step)
                 for y, fill in ((x, -math.inf), (dx, 0))]
        numbers = None
        for o, (value, differential) in enumerate(map(lambda *ys: map(x.of, ys), *parts)):
            if not o:
                x, dx = value, differential
                numbers = value.numbers(dim)
                continue
            replaces = (value > x) | value.is_nan()
            # All elements before are padding, which may equal the element.
            empty = min(count, max(0, -(((o - 1) * step - p) // s)))
            if empty:
                replaces = replaces | (numbers < empty)
            x, dx = where(replaces, value, x), where(replaces, differential, dx)
    return dx


def _pool_options(c, kernel, stride, padding):
    spatial = int(c.fx.target.__name__[len("avg_pool")])
    kernel = _every(kernel, spatial)
    stride = _every(stride, spatial) if isinstance(stride, int) or len(stride) else kernel
    return kernel, stride, _every(padding, spatial)


def _is_partition(c, x, kernel, stride, padding) -> bool:
    """Whether no two windows overlap, and each is whole."""
    lead = x.rank - len(kernel)
    return stride == kernel and not any(padding) and \
        [n // k for n, k in zip(x.shape[lead:], kernel)] == list(c.shape[lead:])


def _pooled(c, x, kind, kernel):
    lead = x.rank - len(kernel)
    whole = [n // k * k for n, k in zip(x.shape[lead:], kernel)]
    x = c.build.slice(x, [0] * x.rank, [*x.shape[:lead], *whole])
    shape = [*x.shape[:lead]]
    for size, k in zip(whole, kernel):
        shape += [size // k, k]
    windows = c.build.reshape(x, shape)
    return c.build.reduce(kind, windows, range(lead + 1, len(shape), 2), False)


def _combined(c, x, op, fill, kernel, stride, padding, dilation):
    """The combination of each window, by one dimension after the other."""
    lead = x.rank - len(kernel)
    for i, (k, s, p, d) in enumerate(zip(kernel, stride, padding, dilation)):
        dim, count = lead + i, c.shape[lead + i]
        x = functools.reduce(lambda a, b: c.build.binary(op, a, b),
                             _taps(c.build, x, dim, fill, count, k, s, p, d))
    return x


def _taps(build, x, dim, fill, count, kernel, stride, padding, dilation) -> list[Node]:
    """The first elements of `count` windows along a dimension, the second ones, ..."""
    needed = (count - 1) * stride + dilation * (kernel - 1) + 1
    x = padded(build, x, dim, padding, max(0, needed - x.shape[dim] - padding), fill)
    return [build.slice_dim(x, dim, o * dilation, o * dilation + (count - 1) * stride + 1, stride)
            for o in range(kernel)]
