# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gather and scatter on values that are known at import time, as StableHLO specifies them."""
import numpy as np


def _starts(index, dims, rank: int, batching) -> list[int]:
    """Where the window of one element of the batch begins. `batching` has (dimension of the operand, position)."""
    starts = [0] * rank
    for component, dim in zip(np.atleast_1d(index), dims):
        starts[dim] = int(component)
    for dim, position in batching:
        starts[dim] = position
    return starts


def _batch(indices: np.ndarray, vector: int):
    """(position in the batch, position among the dimensions of the indices, index vector)."""
    if vector == indices.ndim:
        indices = indices[..., None]
    moved = np.moveaxis(indices, vector, -1)
    for position in np.ndindex(moved.shape[:-1]):
        yield position, moved[position]


def gather(x: np.ndarray, indices: np.ndarray, n, sizes, shape) -> np.ndarray:
    """Windows are moved to where they fit."""
    result = np.empty(shape, x.dtype)
    batch_dims = [d for d in range(len(shape)) if d not in n.offset_dims]
    dropped = tuple(sorted([*n.collapsed_slice_dims, *n.operand_batching_dims]))
    for position, index in _batch(indices, n.index_vector_dim):
        batching = [(d, position[s - (s > n.index_vector_dim)])
                    for d, s in zip(n.operand_batching_dims, n.start_indices_batching_dims)]
        starts = _starts(index, n.start_index_map, x.ndim, batching)
        starts = [min(max(s, 0), size - w) for s, size, w in zip(starts, x.shape, sizes)]
        window = x[tuple(slice(s, s + w) for s, w in zip(starts, sizes))]
        at = [slice(None)] * len(shape)
        for d, p in zip(batch_dims, position):
            at[d] = p
        result[tuple(at)] = window.reshape([w for d, w in enumerate(sizes) if d not in dropped])
    return result


def scatter(x: np.ndarray, indices: np.ndarray, updates: np.ndarray, n, combine) -> np.ndarray:
    """Updates that do not fit are left out."""
    result = x.copy()
    batch_dims = [d for d in range(updates.ndim) if d not in n.update_window_dims]
    dropped = {*n.inserted_window_dims, *n.input_batching_dims}
    window = [d for d in range(x.ndim) if d not in dropped]
    for position, index in _batch(indices, n.index_vector_dim):
        batching = [(d, position[s - (s > n.index_vector_dim)])
                    for d, s in zip(n.input_batching_dims, n.scatter_indices_batching_dims)]
        starts = _starts(index, n.scattered_dims_to_operand_dims, x.ndim, batching)
        at = [slice(None)] * updates.ndim
        for d, p in zip(batch_dims, position):
            at[d] = p
        update = updates[tuple(at)]
        sizes = [1] * x.ndim
        for d, size in zip(window, update.shape):
            sizes[d] = size
        if all(0 <= s and s + w <= size for s, w, size in zip(starts, sizes, x.shape)):
            place = tuple(slice(s, s + w) for s, w in zip(starts, sizes))
            result[place] = combine(result[place], update.reshape(sizes))
    return result
