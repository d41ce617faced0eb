# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""ATen operations on dimensions whose size a call decides.

A value of a bucket has the elements of the call first and padding of any content behind them. Each
operation belongs to one of these kinds; any other one is refused with its line:

- it treats the dimension alike everywhere (elementwise operations, products, views that only merge it);
- it combines the elements along it, which the compiler masks (sums, extremes, softmax, attention);
- it reads at places that count from the end, or in several pieces, which become indices that the
  program computes from the sizes: x[:, -1], x.flip(1), torch.cat([x, y], 1).
"""
import torch

from ..errors import Uncovered
from ..graph.forms import Dense
from ..graph.nodes import Node
from ..graph.sizes import Size, dynamic_dims, expression, is_dynamic, merged
from .names import operation_name

#: They treat all elements along a dimension alike, or combine them in any order.
_FREE = {
    "_to_copy", "to", "type_as", "__and__", "__or__", "__xor__", "where", "masked_fill", "rsub", "square",
    "clip", "clamp", "clone", "contiguous", "alias", "detach", "lift_fresh_copy", "lift_fresh", "dropout",
    "detach_", "native_dropout", "permute", "transpose", "t", "numpy_T", "mT", "movedim", "triu", "tril",
    "embedding", "linear", "matmul", "mm", "bmm", "mv", "dot", "outer", "ger", "addmm", "baddbmm", "addbmm",
    "einsum", "scaled_dot_product_attention", "stack", "copy", "fill", "expand", "broadcast_to", "expand_as",
    "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "empty_like", "new_empty",
    "zeros", "ones", "full", "empty", "scalar_tensor", "eye", "rand_like", "randn_like", "bernoulli",
    "batch_norm", "_native_batch_norm_legit_no_training", "_native_batch_norm_legit_functional",
    "cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d", "mse_loss", "l1_loss", "smooth_l1_loss",
    "huber_loss", "binary_cross_entropy_with_logits", "binary_cross_entropy", "gelu", "silu", "softplus",
    "addcmul", "addcdiv", "lerp", "isin"}
#: They combine the elements along a dimension: the program computes it, even of known values.
_REDUCING = {
    "sum", "mean", "amax", "amin", "max.default", "min.default", "any", "all", "var", "std", "var_mean",
    "std_mean", "linalg_vector_norm", "norm.ScalarOpt_dim", "norm.Scalar", "softmax", "_softmax",
    "_safe_softmax", "log_softmax", "_log_softmax", "logsumexp", "_is_all_true", "_is_any_true"}
_VIEWS = {"view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "flatten", "unflatten", "view_copy",
          "_reshape_alias"}
#: Their arguments may be numbers that a call decides.
_NUMBERS = {"add", "sub", "rsub", "mul", "div", "true_divide", "pow", "eq", "ne", "lt", "le", "gt", "ge",
            "maximum", "minimum", "remainder", "floor_divide", "masked_fill", "where", "fmod"}
#: Handlers take numbers of theirs that a call decides.
_TAKES = {"full", "full_like", "new_full", "fill", "scalar_tensor", "clamp", "clip"}
#: Of them only dimension 0, the batch, may have a size that changes.
_BATCHED = ("conv", "max_pool", "avg_pool", "adaptive_", "upsample", "_upsample", "pixel_", "group_norm",
            "im2col", "unfold")
#: Their arguments are sizes.
_SIZES_ALONE = {"arange", "zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "new_empty",
                "expand", "broadcast_to", "view", "_unsafe_view", "reshape", "view_copy", "_reshape_alias",
                "unflatten", "repeat", "tile", "eye", "rand", "randn", "slice", "narrow", "select",
                "split_with_sizes", "split_with_sizes_copy"}
#: So many of their arguments are sizes or tensors; a number follows.
_SIZES_FIRST = {"full": 1, "new_full": 2}


class Rule:
    """How an operation is read: the arguments of its handler, whether it may be computed of values that
    are known, and what makes its result in place of the handler."""

    def __init__(self, args, folds=True, make=None):
        self.args, self.folds, self.make = args, folds, make


def rule(c, node, args, kwargs) -> Rule:
    """Raises Uncovered for an operation that padding would spoil."""
    name = operation_name(node.target)
    base = name.split(".")[0]
    folds = True
    numbers = args[_SIZES_FIRST.get(base, 0):] if base in _SIZES_FIRST else args
    if any(is_dynamic(a) for a in _flat(numbers, kwargs)) and (base not in _SIZES_ALONE or base in _SIZES_FIRST):
        if base not in _NUMBERS | _TAKES and not _is_pointwise(node.target):
            raise Uncovered(f"operation {node.target} cannot take a number that depends on sizes that "
                            "change from call to call")
        folds = False
        if base in _NUMBERS:
            args = tuple(c.build.scalar(a, "i64" if isinstance(a, Size) else "f64") if is_dynamic(a) else a
                         for a in args)
    special = _SPECIAL.get(name) or _SPECIAL.get(base)
    if special is not None:
        return special(c, args, kwargs)
    operands = [a for a in _flat(args, kwargs) if isinstance(a, Node)]
    if base in _REDUCING or name in _REDUCING:
        return Rule(args, folds=not any(dynamic_dims(a.shape) for a in operands))
    if base in _FREE or name in _FREE or _is_pointwise(node.target):
        return Rule(args, folds)
    if base.startswith(_BATCHED) and all(dynamic_dims(a.shape) in ([], [0]) for a in operands):
        return Rule(args)
    if not any(dynamic_dims(a.shape) for a in operands) and not dynamic_dims(c.shapes()):
        return Rule(args, folds)
    raise Uncovered(_refusal(node, operands, c))


def _refusal(node, operands, c):
    names = {n.name: None for a in operands for n in a.shape if isinstance(n, Size)} | \
        {n.name: None for n in c.shapes() if isinstance(n, Size)}
    sizes = " and ".join(f"'{n}'" for n in names)
    return f"operation {node.target} cannot take the size {sizes}, which changes from call to call"


def _is_pointwise(target) -> bool:
    return torch.Tag.pointwise in getattr(target, "tags", ())


def _flat(*trees):
    for tree in trees:
        if isinstance(tree, dict):
            yield from _flat(*tree.values())
        elif isinstance(tree, (list, tuple)):
            yield from _flat(*tree)
        else:
            yield tree


# Views.

def _view(c, args, kwargs):
    x = args[0]
    c.known_shape = view_shape(x.shape, c.shape)
    return Rule((x,))


def view_shape(source, target) -> tuple[int, ...]:
    """The shape of a view, with the parts of its sizes. Only whole sizes are merged and taken apart."""
    atoms = [p for n in source if n != 1 for p in (n.parts if isinstance(n, Size) else (n,))]
    if any(isinstance(n, Size) and not n.parts for n in source):
        raise _apart(source, target)
    result, rest = [], list(reversed(atoms))
    for n in target:
        wanted, made = expression(n), 1
        while expression(made) != wanted:
            if not rest:
                raise _apart(source, target)
            atom = rest.pop()
            if not isinstance(atom, Size):
                missing = (wanted / expression(made)).as_coeff_Mul()[0]
                if not missing.is_Integer or missing == 0:
                    raise _apart(source, target)
                if not missing % atom == 0:
                    part = int(missing)
                    if atom % part or part == 1:
                        raise _apart(source, target)
                    rest.append(atom // part)
                    atom = part
            elif not (wanted / expression(made) / atom.expr).cancel().is_polynomial():
                raise _apart(source, target)
            made = merged(made, atom)
        result.append(made)
    if any(a != 1 for a in rest):
        raise _apart(source, target)
    return tuple(result)


def _apart(source, target):
    shown = lambda shape: "[" + ", ".join(str(expression(n)) for n in shape) + "]"
    return Uncovered(f"a view of {shown(source)} as {shown(target)} takes a size that changes from call "
                     "to call apart: expected views that keep such dimensions or merge them")


# Elements at places that the program computes.

def _steps(c, n: int) -> Node:
    return c.build.make("iota", [], (n,), "i64", dim=0)


def _taken(c, x: Node, dim: int, places: Node, below=False, above=False) -> Node:
    """Elements along a dimension by places. Those of padding may be `below` the first element, or
    `above` the last one of the call: there they name these."""
    if above:
        places = c.build.binary("minimum", places, _whole(c, x.shape[dim] - 1))
    if below:
        places = c.build.binary("maximum", places, c.build.scalar(0, "i64"))
    return c.build.gather(x, places, dim)


def _whole(c, n) -> Node:
    return c.build.scalar(n, "i64")


def _is_whole(n: int) -> bool:
    return not (isinstance(n, Size) and n.is_merged)


def _along(c, x: Node, dim: int):
    if not _is_whole(x.shape[dim]):
        raise Uncovered(f"operation {c.fx.target} along the merged sizes '{x.shape[dim].name}', which change "
                        "from call to call, is not covered: expected one that is not merged")


def _bound(x: Node, dim: int, at, default):
    """A bound of a slice, counted from the beginning."""
    n = x.shape[dim]
    if at is None:
        return default
    if is_dynamic(at):
        return at
    if at < 0:
        return n + at
    return n if at >= 2 ** 62 else at


def _slice(c, args, kwargs):
    x, dim, start, end, step = (*args, *(0, None, None, 1)[len(args) - 1:])
    dim %= x.rank
    return Rule(args) if _is_static(x, dim, start, end) else \
        Rule(args, _from_the_beginning(start), lambda: _sliced(c, x, dim, start, end, step))


def _from_the_beginning(start) -> bool:
    """Whether a slice of known values begins at the same place for all sizes."""
    return start is None or not is_dynamic(start) and start >= 0


def _is_static(x, dim, start, end):
    return not isinstance(x.shape[dim], Size) and not is_dynamic(start) and not is_dynamic(end)


def _sliced(c, x, dim, start, end, step=1, size=None):
    n = x.shape[dim]
    start, end = _bound(x, dim, start, 0), _bound(x, dim, end, n)
    count = c.shape[dim] if size is None else size
    if expression(start) == 0 and expression(count) == expression(n) and step == 1:
        return x
    _along(c, x, dim)
    if step != 1:
        raise Uncovered(f"a slice with a step along the size '{expression(n)}', which changes from call to "
                        "call, is not covered: expected a step of 1")
    if not is_dynamic(start) and start + int(count) > int(n):
        raise _beyond(c, x, dim, count)
    if not is_dynamic(start) and (not isinstance(n, Size) or start == 0 and count == 1):
        limit = count if start == 0 else start + int(count)
        result = c.build.slice_dim(x, dim, start, limit)
        shape = tuple(count if d == dim else m for d, m in enumerate(x.shape))
        return c.with_shape(result, shape, [x])
    places = _steps(c, count)
    if expression(start) != 0:
        places = c.build.binary("add", places, _whole(c, start))
    return _taken(c, x, dim, places, above=isinstance(count, Size))


def _beyond(c, x, dim, count):
    return Uncovered(f"the bucket {count.name if isinstance(count, Size) else ''}={int(count)} is larger than "
                     f"the {int(x.shape[dim])} elements that this line takes it from")


def _narrow(c, args, kwargs):
    x, dim, start, length = args
    dim %= x.rank
    if _is_static(x, dim, start, length):
        return Rule(args)
    return Rule(args, _from_the_beginning(start), lambda: _sliced(c, x, dim, start, None, size=length))


def _select(c, args, kwargs):
    x, dim, index = args
    dim %= x.rank
    if not isinstance(x.shape[dim], Size) and not is_dynamic(index):
        return Rule(args)
    _along(c, x, dim)
    rest = x.shape[:dim] + x.shape[dim + 1:]
    if index == 0 and not is_dynamic(index):
        return Rule(args, True, lambda: c.build.reshape(c.build.slice_dim(x, dim, index, index + 1), rest))
    from_the_end = not is_dynamic(index) and index < 0
    place = c.build.reshape(_whole(c, x.shape[dim] + index if from_the_end else index), (1,))
    return Rule(args, not (from_the_end or is_dynamic(index)), lambda: c.build.reshape(_taken(c, x, dim, place), rest))


def _split(c, args, kwargs):
    x, sizes, dim = (*args, 0)[:3]
    dim %= x.rank
    if _is_static(x, dim, None, None):
        return Rule(args)
    if isinstance(sizes, int):
        raise Uncovered(f"{c.fx.target} along the size '{x.shape[dim].name}', which changes from call to call, "
                        "is not covered: expected the sizes of the parts")
    results, start = [], 0
    for n in sizes:
        results.append(_sliced(c, x, dim, start, None, size=n))
        start = start + n
    return Rule(args, False, lambda: results)


def _flip(c, args, kwargs):
    x, dims = args
    for dim in [d % x.rank for d in dims]:
        n = x.shape[dim]
        if isinstance(n, Size):
            _along(c, x, dim)
            x = _taken(c, x, dim, c.build.binary("sub", _whole(c, n - 1), _steps(c, n)), below=True)
        else:
            x = c.build.gather(x, c.build.static(_descending(n), (n,), "i64"), dim)
    return Rule(args, False, lambda: x)


def _descending(n):
    import numpy as np

    return Dense(np.arange(n - 1, -1, -1))


def _cat(c, args, kwargs):
    inputs, dim = (*args, kwargs.get("dim", 0))[:2]
    inputs = [c.operand(i, c.dtype) for i in inputs if 0 not in i.shape]
    dim %= inputs[0].rank
    if not any(isinstance(i.shape[dim], Size) for i in inputs):
        return Rule(args)
    for x in inputs:
        _along(c, x, dim)
    is_last = not any(isinstance(x.shape[dim], Size) for x in inputs[:-1])
    return Rule(args, is_last, lambda: joined(c, inputs, dim))


def joined(c, inputs, dim: int) -> Node:
    """Pieces one behind the other, without the padding in between."""
    total = sum(x.shape[dim] for x in inputs)
    steps, begin, result = _steps(c, total), 0, None
    for x in inputs:
        places = steps if begin == 0 else c.build.binary("sub", steps, _whole(c, begin))
        piece = _taken(c, x, dim, places, below=result is not None, above=True)
        if result is None:
            result = piece
        else:
            own = [total if d == dim else 1 for d in range(x.rank)]
            behind = c.build.compare("ge", c.build.reshape(steps, own), _whole(c, begin))
            result = c.build.select(behind, piece, result)
        begin = begin + x.shape[dim]
    return result


def _pad(c, args, kwargs):
    if operation_name(c.fx.target).startswith("pad"):
        x, widths, mode, value = (*args, *("constant", None)[len(args) - 2:])
        if mode != "constant":
            return _elsewhere(c, (x, [x.rank - 1 - d for d in range(len(widths) // 2)]), {}) and Rule(args)
        args, value = (x, widths, value or 0), value or 0
    else:
        x, widths, value = (*args, 0)[:3]
    dims = {x.rank - 1 - i // 2 for i, n in enumerate(widths) if expression(n) != 0}
    if not any(isinstance(x.shape[d], Size) for d in dims):
        return Rule(args)
    for dim in sorted(dims):
        at = 2 * (x.rank - 1 - dim)
        if any(is_dynamic(n) or n < 0 for n in widths[at:at + 2]):
            raise Uncovered(f"{c.fx.target} by other numbers than constants from 0 on is not covered along the size "
                            f"'{expression(x.shape[dim])}'")
        piece = lambda n: c.build.broadcast(c.operand(value, x.dtype),
                                            tuple(n if d == dim else m for d, m in enumerate(x.shape)))
        _along(c, x, dim)
        left, right = widths[at], widths[at + 1]
        x = joined(c, [p for p in (piece(left) if left else None, x, piece(right) if right else None)
                       if p is not None], dim)
    return Rule(args, False, lambda: c.build.cast(x, c.dtype))


def _diff(c, args, kwargs):
    given = dict(zip(("x", "n", "dim", "prepend", "append"), args)) | kwargs
    x, times = given["x"], given.get("n", 1)
    dim = given.get("dim", -1) % x.rank
    if not isinstance(x.shape[dim], Size):
        return Rule(args)
    pieces = [p for p in (given.get("prepend"), x, given.get("append")) if p is not None]

    def differences():
        y = joined(c, pieces, dim)
        for _ in range(times):
            n = y.shape[dim]
            later, earlier = (_sliced(c, y, dim, start, None, size=n - 1) for start in (1, 0))
            y = c.build.binary("xor" if y.dtype == "i1" else "sub", later, earlier)
        return y

    return Rule(args, True, differences)


def _repeat(c, args, kwargs):
    x, repeats = args
    sizes = (1,) * (len(repeats) - x.rank) + x.shape
    c.known_shape = tuple(merged(r, n) for r, n in zip(repeats, sizes))
    return Rule((x, repeats))


def _repeat_interleave(c, args, kwargs):
    x, repeats, dim = (*args, None)[:3]
    if dim is None or is_dynamic(repeats):
        if dynamic_dims(x.shape):
            raise Uncovered(f"{c.fx.target} of all elements is not covered where a size changes from call to call")
        return Rule(args)
    dim %= x.rank
    c.known_shape = tuple(merged(n, repeats) if d == dim else n for d, n in enumerate(x.shape))
    return Rule(args)


# Counts, positions and indices.

def _arange(c, args, kwargs):
    start, step = (args[0] if len(args) > 1 else 0), (args[2] if len(args) > 2 else 1)
    if not all(_is_whole(n) for n in c.shape):
        raise Uncovered(f"positions of the merged sizes '{c.shape[0].name}', which change from call to call, are "
                        "not covered")
    return Rule(args, folds=not is_dynamic(start) and not is_dynamic(step))


def _along_one(c, args, kwargs):
    """The position of an extreme: along one dimension, or none that changes."""
    x = args[0]
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    if dim is not None:
        _along(c, x, dim % max(x.rank, 1))
    elif dynamic_dims(x.shape) not in ([], [0]) or not all(map(_is_whole, x.shape)):
        raise Uncovered(f"{c.fx.target} of all elements is not covered where sizes of inner dimensions change from "
                        "call to call: expected one dimension")
    return Rule(args, folds=not dynamic_dims(x.shape))


def _running(c, args, kwargs):
    """Each result depends on the elements before it alone."""
    x, dim = args[0], args[1] if len(args) > 1 else kwargs["dim"]
    if not x.rank or not isinstance(x.shape[dim % x.rank], Size):
        return Rule(args)
    _along(c, x, dim % x.rank)
    if operation_name(c.fx.target).split(".")[0] == "cumsum":
        return Rule(args)

    def refuse():
        raise Uncovered(_refusal(c.fx, [x], c))

    return Rule(args, True, refuse)


def _elsewhere(c, args, kwargs):
    """Operations that may not run along a size that changes."""
    x = args[0]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", -1)
    dims = dim if isinstance(dim, (list, tuple)) else range(x.rank) if dim is None else [dim]
    for d in dims:
        if x.rank and isinstance(x.shape[d % x.rank], Size):
            raise Uncovered(_refusal(c.fx, [x], c))
    return Rule(args)


def _scattered(c, args, kwargs):
    """Writes to a part of a dimension."""
    _elsewhere(c, (args[0], args[2] if len(args) > 2 else kwargs.get("dim", 0)), {})
    return Rule(args)


def _sorted(c, args, kwargs):
    return _elsewhere(c, (args[0], *[a for a in args[1:] if not isinstance(a, bool)][:1]), kwargs) and Rule(args)


def _top_k(c, args, kwargs):
    _elsewhere(c, (args[0], args[2] if len(args) > 2 else kwargs.get("dim", -1)), {})
    return Rule(args)


def _product(c, args, kwargs):
    return _elsewhere(c, (args[0], args[1] if len(args) > 1 else kwargs.get("dim")), {}) and Rule(args)


def _normalised(c, args, kwargs):
    """Norms of the last dimensions."""
    x, count = args[0], len(args[1])
    if any(isinstance(n, Size) for n in x.shape[x.rank - count:]):
        raise Uncovered(_refusal(c.fx, [x], c))
    return Rule(args)


def _indexed(c, args, kwargs):
    x, indices = args[:2]
    for d, index in enumerate(indices):
        if index is not None:
            _index(c, x, d, index)
    return Rule(args)


def _index_select(c, args, kwargs):
    x, dim, index = args[:3]
    _index(c, x, dim % x.rank, index)
    return Rule(args)


def _index(c, x, dim, index):
    if not isinstance(x.shape[dim], Size):
        return
    _along(c, x, dim)
    form = index.form
    if form is not None and ((form.table if hasattr(form, "table") else form.values) < 0).any():
        raise Uncovered(f"known indices below 0 along the size '{x.shape[dim].name}', which changes from call to "
                        "call, are not covered: expected x[..., -1] or computed indices")


_SPECIAL = {
    **dict.fromkeys(_VIEWS, _view), "slice": _slice, "narrow": _narrow, "select": _select, "flip": _flip,
    **dict.fromkeys(("split_with_sizes", "split", "split_with_sizes_copy", "split_copy", "unsafe_split",
                     "unsafe_split_with_sizes"), _split),
    **dict.fromkeys(("cat", "concat", "concatenate"), _cat), "constant_pad_nd": _pad, "pad": _pad, "repeat": _repeat, "diff": _diff,
    "tile": _repeat, "repeat_interleave": _repeat_interleave, "arange": _arange,
    **dict.fromkeys(("argmax", "argmin", "max.dim", "min.dim"), _along_one),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"), _running),
    **dict.fromkeys(("sort", "argsort"), _sorted), "topk": _top_k,
    **dict.fromkeys(("prod", "unbind", "roll", "glu"),
                    _product),
    **dict.fromkeys(("chunk", "unsafe_chunk", "tensor_split"),
                    lambda c, args, kwargs: _elsewhere(
                        c, (args[0], args[2] if len(args) > 2 else kwargs.get("dim", 0)), {}) and Rule(args)),
    **dict.fromkeys(("layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm"), _normalised),
    "slice_scatter": _scattered, "select_scatter": _scattered, "index": _indexed, **dict.fromkeys(("index_select", "gather"), _index_select)}
