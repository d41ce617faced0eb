# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""ATen operations that resample dimensions: interpolation, adaptive pooling, padding by values.

They are linear and treat one dimension after the other. PyTorch itself computes the weights, or
the indices, of a dimension: it runs the operation on an identity matrix, or on the positions.
"""
import torch
import torch.nn.functional as F

from ..errors import Uncovered
from ..graph.nodes import Node
from .handlers import aten
from .ops_elementwise import wide
from .ops_shape import take
from .ops_windows import padded
from .values import TORCH_DTYPES, dense


def _by_matrix(c, x: Node, dim: int, matrix: torch.Tensor) -> Node:
    """Replaces a dimension by linear combinations of its elements; `matrix` is [old, new]."""
    order = [d for d in range(x.rank) if d != dim] + [dim]
    table = c.build.static(dense(matrix.to(TORCH_DTYPES[x.dtype])), matrix.shape, x.dtype)
    result = c.build.matmul(c.build.transpose(x, order), table)
    return c.build.transpose(result, [order.index(d) for d in range(x.rank)])


def _by_index(c, x: Node, dim: int, index: torch.Tensor) -> Node:
    index = index.round().to(torch.int64)
    return take(c, x, dim, c.build.static(dense(index), index.shape, "i64"))


@aten("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d",
      "_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
def adaptive_average(c, x, size):
    y = wide(c, x)
    for dim, count in enumerate(c.shape[x.rank - len(size):], x.rank - len(size)):
        old = y.shape[dim]
        if old % count:
            weights = F.adaptive_avg_pool1d(torch.eye(old, dtype=torch.float64), count)
            y = _by_matrix(c, y, dim, weights)
        elif old != count:
            windows = c.build.reshape(y, y.shape[:dim] + (count, old // count) + y.shape[dim + 1:])
            y = c.build.reduce("mean", windows, [dim + 1], False)
    return y


@aten("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
      "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d",
      "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
      "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
def upsample(c, x, *args):
    names = [a.name for a in c.fx.target._schema.arguments]
    options, result = dict(zip(names[1:], args)), x
    is_nearest = "nearest" in c.fx.target.__name__
    for i in range(x.rank - 2):
        old, new = x.shape[2 + i], c.shape[2 + i]
        own = _options_of(options, i, x.rank - 2, new)
        if old == new and _keeps(own):
            continue
        if is_nearest:
            positions = torch.arange(old, dtype=torch.float64)[None]
            result = _by_index(c, result, 2 + i, _along(c, positions, i, x.rank - 2, own)[0])
        else:
            weights = _along(c, torch.eye(old, dtype=torch.float64), i, x.rank - 2, own)
            result = _by_matrix(c, wide(c, result), 2 + i, weights)
    return result


def _along(c, rows, i: int, spatial: int, options) -> torch.Tensor:
    """The operation on rows, along dimension `i` of several."""
    shape = [rows.shape[1] if d == i else 2 for d in range(spatial)]
    apart = [rows.shape[1] if d == i else 1 for d in range(spatial)]
    whole = rows.view(1, -1, *apart).expand(1, rows.shape[0], *shape).contiguous()
    return c.fx.target(whole, **options)[(0, slice(None)) + tuple(
        slice(None) if d == i else 0 for d in range(spatial))]


def _options_of(options, i: int, spatial: int, size: int):
    """The options of an operation on dimension `i` alone, where the others keep their size of 2.

    Of tensors with sizes of 1, PyTorch may take the wrong one for the channels."""
    own = {}
    for name, value in options.items():
        if name == "output_size":
            own[name] = None if value is None else [size if d == i else 2 for d in range(spatial)]
        elif name == "scale_factors":
            own[name] = None if value is None else [value[i] if d == i else 1.0
                                                    for d in range(spatial)]
        elif name.startswith("scales"):
            place = {"scales": 0, "scales_d": 0, "scales_h": spatial - 2, "scales_w": spatial - 1}
            own[name] = value if place[name] == i else None
        else:
            own[name] = value
    return own


def _keeps(options) -> bool:
    """Whether a dimension that keeps its size keeps its elements."""
    scales = [options.get("scale_factors") or []] + [
        [v] for n, v in options.items() if n.startswith("scales") and v is not None]
    return all(v == 1 for values in scales for v in values)


@aten("constant_pad_nd", "pad")
def pad(c, x, padding, *args, value=0):
    mode = "constant"
    if args and isinstance(args[0], str):
        mode, args = args[0], args[1:]
    value = args[0] if args else value
    for i in range(len(padding) // 2):
        dim, before, after = x.rank - 1 - i, padding[2 * i], padding[2 * i + 1]
        x = padded(c.build, x, dim, before, after, value or 0) if mode == "constant" else \
            _pad_by(c, x, dim, before, after, mode)
    return x


@aten("reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d",
      "replication_pad2d", "replication_pad3d")
def pad_by_values(c, x, padding):
    return pad(c, x, padding, "reflect" if "reflect" in c.fx.target.__name__ else "replicate")


def _pad_by(c, x, dim, before, after, mode):
    positions = torch.arange(x.shape[dim], dtype=torch.float64)
    return _by_index(c, x, dim, F.pad(positions[None, None], (before, after), mode=mode).flatten())


@aten("unfold")
def unfold(c, x, dim, size, step):
    """x.unfold(): windows of a dimension, as a dimension at the end."""
    if not x.rank:
        return c.build.reshape(x, c.shape)
    dim = dim % x.rank
    index = torch.arange(c.shape[dim])[:, None] * step + torch.arange(size)
    windows = take(c, x, dim, c.build.static(dense(index), index.shape, "i64"))
    order = [d for d in range(windows.rank) if d != dim + 1] + [dim + 1]
    return c.build.transpose(windows, order)


@aten("as_strided")
def as_strided(c, x, size, stride, offset=None):
    """Gathers elements by their places in the memory of the operand."""
    own, wanted = c.fx.args[0].meta["val"], c.fx.meta["val"]
    if wanted.numel() > 1 << 20 or own.numel() > 1 << 24:
        raise Uncovered(f"a view by strides {list(stride)} of {own.numel()} elements is not "
                        "covered")

    def extent(t):
        return t.storage_offset() + sum((n - 1) * s for n, s in zip(t.shape, t.stride())) + 1

    memory = torch.full((max(extent(own), extent(wanted)),), -1)
    memory.as_strided(own.shape, own.stride(), own.storage_offset()).copy_(
        torch.arange(own.numel()).view(own.shape))
    index = memory.as_strided(wanted.shape, wanted.stride(), wanted.storage_offset())
    if bool((index < 0).any()):
        raise Uncovered("a view by strides of elements that its operand has not is not covered")
    flat = c.build.reshape(x, (own.numel(),))
    return take(c, flat, 0, c.build.static(dense(index), wanted.shape, "i64"))

