# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Writes through views: how the value of a view goes back into the tensor that it is a view of."""
import torch

from ..errors import Uncovered

_aten = torch.ops.aten

_SHAPES = {"view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "flatten", "unflatten",
           "expand", "expand_as", "broadcast_to", "view_as", "_reshape_alias"}
#: Their own inverses.
_EXCHANGES = {"transpose", "swapaxes", "swapdims", "t", "numpy_T", "mT", "adjoint", "mH"}
_PIECES = {"split", "split_with_sizes", "chunk", "tensor_split", "unsafe_split", "unsafe_chunk"}


def put_back(call, view, whole, value, piece=None):
    """Returns the new value of `whole` after a write has given its view the value `value`.

    `view` is the operation that makes the view, and `piece` the number of its result where it has
    several. `call(target, *args)` makes an operation. Raises Uncovered.
    """
    name = view.target._schema.name.removeprefix("aten::")
    # The positional arguments behind the tensor.
    names = [a.name for a in view.target._schema.arguments]
    options = dict(zip(names, view.args)) | dict(view.kwargs)
    rest = [options[n] for n in names[1:] if n in options]
    before, after = whole.meta["val"], value.meta["val"]
    if name in _PIECES or name == "unbind":
        return _put_piece(call, name, options.get("dim", 0), view.meta["val"], whole, value, piece)
    if _is_same(view.args[0].meta["val"], view.meta["val"]):
        return value
    if name in _SHAPES and before.numel() == after.numel():
        return call(_aten.reshape.default, value, list(before.shape))
    if name in _EXCHANGES:
        return call(view.target, value, *rest)
    if name == "permute":
        order = [d % before.dim() for d in rest[0]]
        return call(_aten.permute.default, value, [order.index(d) for d in range(len(order))])
    if name == "movedim":
        return call(view.target, value, rest[1], rest[0])
    if name == "slice":
        return call(_aten.slice_scatter.default, whole, value, *rest)
    if name == "select":
        return call(_aten.select_scatter.default, whole, value, *rest)
    if name == "diagonal":
        return call(_aten.diagonal_scatter.default, whole, value, *rest)
    if name == "narrow":
        dim, start, length = rest
        start %= before.shape[dim]
        return call(_aten.slice_scatter.default, whole, value, dim, start, start + length)
    if name == "view_as_complex":
        return call(_aten.view_as_real.default, value)
    if name == "view_as_real":
        return call(_aten.view_as_complex.default, value)
    raise Uncovered(f"a write through the view aten.{name} is not covered")


def _is_same(a, b) -> bool:
    return (a.shape, a.stride(), a.storage_offset(), a.dtype) == \
        (b.shape, b.stride(), b.storage_offset(), b.dtype)


def _put_piece(call, name, dim, pieces, whole, value, piece):
    if name == "unbind":
        return call(_aten.select_scatter.default, whole, value, dim, piece)
    start = sum(p.shape[dim] for p in pieces[:piece])
    return call(_aten.slice_scatter.default, whole, value, dim, start,
                start + pieces[piece].shape[dim])
