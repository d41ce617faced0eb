# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Biases of causal attention as expressions over positions.

A bias that grows evenly with the position of the key, as ALiBi's do, is often a known table. Here it
becomes `slope * (key + start)` or `slope * (key - query + start)`, where key and query are indices. A
query of causal attention sees no later key, so the table may have any values there.
"""
import ml_dtypes
import numpy as np

from .forms import Dense, Diagonal
from .nodes import Builder, Node
from .sizes import dynamic_dims

#: Operations through which the positions stay the last two dimensions.
_POINTWISE = ("add", "sub", "mul", "div", "neg", "cast", "broadcast")


def over_positions(build: Builder, node: Node, shape) -> Node:
    """A bias that stretches to `shape` = [batch, heads, queries, keys], for causal attention. Tables
    that grow evenly with a key's position are expressions."""
    if dynamic_dims(shape):
        return node
    if node.op == "static":
        return _expression(build, node, shape) or node
    leads = node.op == "reshape" and _strip(node.shape) == _strip(node.operands[0].shape)
    if node.op not in _POINTWISE and not leads:
        return node
    operands = [over_positions(build, operand, shape) for operand in node.operands]
    if all(a is b for a, b in zip(operands, node.operands)):
        return node
    return build.make(node.op, operands, node.shape, node.dtype, **node.attrs)


def _strip(shape) -> tuple:
    """A shape without leading dimensions of size 1."""
    shape = tuple(shape)
    while shape and shape[0] == 1:
        shape = shape[1:]
    return shape


def _expression(build: Builder, node: Node, shape) -> Node | None:
    queries, keys = shape[-2:]
    if keys < 2 or node.shape[-1:] != (keys,):
        return None
    if isinstance(node.form, Diagonal):
        found = _of_differences(node.form, queries)
    elif node.form.known and not node.form.uniform:
        found = _of_table(node.form.values, queries, keys)
    else:
        found = None
    if found is None:
        return None
    slopes, start, by_query = found
    index = lambda dim, size: build.make(
        "iota", [], [size if d == dim else 1 for d in range(node.rank)], "i64", dim=dim)
    at = index(node.rank - 1, keys)
    if by_query:
        at = build.binary("sub", at, index(node.rank - 2, queries))
    if start:
        at = build.binary("add", at, build.scalar(start, "i64"))
    lead = (1,) * (node.rank - slopes.ndim) + slopes.shape
    slopes = build.static(Dense(slopes.reshape(lead)), lead, node.dtype)
    return build.broadcast(build.binary("mul", slopes, build.cast(at, node.dtype)), node.shape)


def _of_differences(form: Diagonal, queries: int):
    """(slope, start, True) of a function of key - query."""
    *rest, query, key = form.coefficients
    if len(form.coefficients) < 2 or any(rest) or query != -key or abs(key) != 1:
        return None
    low, table = form.low, form.table
    if key == -1:
        low, table = -(low + table.size - 1), table[::-1]
    seen = table[:max(0, 1 - low)]
    found = _even(seen[None], low)
    return None if found is None else (found[0].reshape((1, 1)), found[1], True)


def _of_table(values: np.ndarray, queries: int, keys: int):
    """(slopes [..., 1, 1], start, whether the query's position counts) of a table."""
    if values.ndim < 2 or values.shape[-1] != keys or values.shape[-2] not in (1, queries):
        return None
    last = values[..., -1, :].reshape(-1, keys)
    found = _even(last, 0)
    if found is None:
        return None
    slopes, start = found
    slopes = slopes.reshape((*values.shape[:-2], 1, 1))
    if values.shape[-2] == 1:
        return slopes, start, False
    seen = np.tri(queries, keys, dtype=bool)
    at = np.arange(keys) - np.arange(queries)[:, None]
    for by_query, positions, offset in ((True, at, start + queries - 1), (False, at[-1:] + queries - 1, start)):
        wanted = slopes.astype(np.float64) * (positions + offset)
        if _close(np.where(seen, values, 0), np.where(seen, wanted, 0), values.dtype):
            return slopes, offset, by_query
    return None


def _even(rows: np.ndarray, low: int):
    """(slopes [rows], start) where element i of a row is slope * (low + i + start)."""
    count = rows.shape[-1]
    wide = rows.astype(np.float64)
    if count < 2 or not np.isfinite(wide).all():
        return None
    steps = (wide[:, -1] - wide[:, 0]) / (count - 1)
    steepest = int(np.abs(steps).argmax())
    if steps[steepest] == 0:
        return None
    start = round(wide[steepest, 0] / steps[steepest]) - low
    at = np.arange(low, low + count) + start
    # A slope is known best next to zero.
    nearest = int(np.where(at == 0, count + abs(at).max(), abs(at)).argmin())
    slopes = (wide[:, nearest] / at[nearest]).astype(rows.dtype)
    return (slopes, start) if _close(wide, slopes.astype(np.float64)[:, None] * at, rows.dtype) else None


def _close(values: np.ndarray, wanted: np.ndarray, dtype) -> bool:
    """Whether the numbers differ by rounding only."""
    epsilon = 0.0 if np.issubdtype(dtype, np.integer) else 2 * float(ml_dtypes.finfo(dtype).eps)
    values = np.asarray(values).astype(np.float64)
    return bool((np.abs(values - wanted) <= epsilon * np.abs(wanted)).all())
