# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""ATen operations of layers: products, norms, convolutions and attention."""
import itertools
import math

import torch

from ..errors import Uncovered
from ..graph.dialect import FLOATS
from ..graph.forms import written_out
from ..graph.nodes import Node, numel
from .derivatives import derivative, with_derivative
from .formulas import absolute, sign
from .handlers import Context, aten
from .ops_elementwise import binary, binary_scalar, wide
from .ops_reduce import norm_of, variance
from .ops_shape import diagonal_of
from .random_numbers import next_stream

_VIEWS = {"reshape", "transpose", "cast", "slice", "broadcast"}


def is_weight(node: Node) -> bool:
    """Whether a value is a parameter, or a view of one."""
    while node.op in _VIEWS:
        node = node.operands[0]
    return node.op == "parameter"


def linear_by(c: Context, x: Node, weight: Node, bias=None, in_out=False) -> Node:
    """linear. A transposed weight is read in place, without a transpose."""
    if weight.op == "transpose" and weight.rank == 2:
        weight, in_out = weight.operands[0], not in_out
    if x.rank == 0:
        raise Uncovered("a linear layer on a scalar is not covered")
    return c.build.linear(x, weight, bias, in_out=in_out)


@aten("linear")
def linear(c, x, weight, bias=None):
    if weight.rank == 1:
        product = c.build.reduce("sum", c.build.binary("mul", x, weight), [x.rank - 1], False)
        return product if bias is None else c.build.binary("add", product, bias)
    return linear_by(c, x, weight, bias)


def product(c: Context, a: Node, b: Node) -> Node:
    """torch.matmul."""
    if a.rank == 1 and b.rank == 1:
        return c.build.reduce("sum", c.build.binary("mul", a, b), [0], False)
    if a.dtype not in FLOATS and a.rank > 1 and b.rank > 1:
        return _integer_product(c, a, b)
    if b.rank == 1:
        column = product(c, a, c.build.reshape(b, (b.shape[0], 1)))
        return c.build.reshape(column, column.shape[:-1])
    if a.rank == 1:
        row = product(c, c.build.reshape(a, (1, a.shape[0])), b)
        return c.build.reshape(row, row.shape[:-2] + row.shape[-1:])
    if b.rank == 2 and is_weight(b):
        return linear_by(c, a, b, in_out=True)
    if a.rank == 2 and b.rank == 2 and is_weight(a):  # W x = (x^T W^T)^T
        swapped = linear_by(c, c.build.transpose(b, [1, 0]), a)
        return c.build.transpose(swapped, [1, 0])
    if a.shape[-1] == 1:  # an outer product
        return c.build.binary("mul", a, b)
    return c.build.matmul(a, b)


def _integer_product(c, a, b):
    rows = c.build.reshape(a, (*a.shape, 1))
    columns = c.build.reshape(b, (*b.shape[:-2], 1, *b.shape[-2:]))
    products = c.build.binary("mul", rows, columns)
    return c.build.reduce("sum", products, [products.rank - 2], False)


@aten("matmul", "mm", "bmm", "mv", "dot")
def matmul(c, a, b):
    return product(c, c.operand(a, c.dtype), c.operand(b, c.dtype))


@aten("outer", "ger")
def outer(c, a, b):
    a, b = c.operand(a, c.dtype), c.operand(b, c.dtype)
    return c.build.binary("mul", c.build.reshape(a, (a.shape[0], 1)), b)


@aten("addmm")
def addmm(c, bias, a, b, *, beta=1, alpha=1):
    if beta == 1 and alpha == 1 and is_weight(b) and bias.rank == 1:
        return linear_by(c, a, b, bias, in_out=True)
    return baddbmm(c, bias, a, b, beta=beta, alpha=alpha)


@aten("baddbmm", "addbmm")
def baddbmm(c, bias, a, b, *, beta=1, alpha=1):
    result = product(c, a, b)
    if c.fx.target.__name__.startswith("addbmm"):
        result = c.build.reduce("sum", result, [0], False)
    if alpha != 1:
        result = binary(c, "mul", result, alpha)
    if beta == 0:
        return result
    return c.build.binary("add", result, bias if beta == 1 else binary(c, "mul", bias, beta))


@aten("einsum")
def einsum(c, equation, operands, *, path=None):
    inputs, output = _labels(equation, operands)
    current, labels = operands[0], inputs[0]
    current, labels = _diagonal_free(c, current, labels)
    for position in range(1, len(operands)):
        later = set(output).union(*inputs[position + 1:])
        right, right_labels = _diagonal_free(c, operands[position], inputs[position])
        current, labels = _contract(c, current, labels, right, right_labels, later)
    return _arrange(c, *_sum_out(c, current, labels, set(output)), output)


def _labels(equation: str, operands):
    equation = equation.replace(" ", "")
    left, arrow, output = equation.partition("->")
    inputs, widest = left.split(","), 0
    for text, x in zip(inputs, operands):
        if "..." in text:
            widest = max(widest, x.rank - len(text) + 3)
    spare = [chr(0x100 + i) for i in range(widest)]
    result = []
    for text, x in zip(inputs, operands):
        count = x.rank - len(text) + 3
        result.append(list(text.replace("...", "".join(spare[widest - count:]))
                           if "..." in text else text))
    if arrow:
        return result, list(output.replace("...", "".join(spare)))
    counts = {}
    for label in itertools.chain(*result):
        counts[label] = counts.get(label, 0) + 1
    return result, spare + sorted(l for l, n in counts.items() if n == 1 and l not in spare)


def _diagonal_free(c, x, labels):
    for label in set(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            x = diagonal_of(c, x, 0, first, second)
            labels = [l for d, l in enumerate(labels) if d not in (first, second)] + [label]
    return x, labels


def _sum_out(c, x, labels, keep):
    gone = [d for d, l in enumerate(labels) if l not in keep]
    if gone and all(x.shape[d] == 1 for d in gone):
        x = c.build.reshape(x, [n for d, n in enumerate(x.shape) if d not in gone])
    elif gone:
        x = c.build.reduce("sum", x, gone, False)
    return x, [l for l in labels if l in keep]


def _arrange(c, x, labels, order):
    return c.build.transpose(x, [labels.index(l) for l in order])


def _contract(c, a, a_labels, b, b_labels, later):
    # A summed label of size 1 in one operand only is a sum over the other operand.
    a_sizes, b_sizes = dict(zip(a_labels, a.shape)), dict(zip(b_labels, b.shape))
    ones = lambda mine, others: {l for l, n in mine.items()
                                 if n == 1 and others.get(l, 1) != 1 and l not in later}
    a_ones, b_ones = ones(a_sizes, b_sizes), ones(b_sizes, a_sizes)
    a, a_labels = _sum_out(c, a, a_labels, set(a_labels) - a_ones)
    b, b_labels = _sum_out(c, b, b_labels, set(b_labels) - b_ones)
    a, a_labels = _sum_out(c, a, a_labels, later | set(b_labels))
    b, b_labels = _sum_out(c, b, b_labels, later | set(a_labels))
    if is_weight(a) and not is_weight(b):
        a, a_labels, b, b_labels = b, b_labels, a, a_labels
    shared = [l for l in a_labels if l in b_labels]
    batch = [l for l in shared if l in later]
    summed = [l for l in shared if l not in later]
    a_free = [l for l in a_labels if l not in shared]
    b_free = [l for l in b_labels if l not in shared]
    sizes = dict(zip(b_labels, b.shape)) | dict(zip(a_labels, a.shape))
    for l, n in zip(b_labels, b.shape):
        sizes[l] = max(sizes[l], n)
    extent = lambda ls: numel([sizes[l] for l in ls])
    if not summed:  # elementwise, with broadcasting
        order = batch + a_free + b_free
        a = c.build.reshape(_arrange(c, a, a_labels, batch + a_free),
                            [a.shape[a_labels.index(l)] if l in a_labels else 1 for l in order])
        b = c.build.reshape(_arrange(c, b, b_labels, batch + b_free),
                            [b.shape[b_labels.index(l)] if l in b_labels else 1 for l in order])
        return c.build.binary("mul", a, b), order
    if not batch and is_weight(b) and b_free:
        summed = [l for l in b_labels if l in summed]
        a = _arrange(c, a, a_labels, a_free + summed)
        a = c.build.reshape(a, [sizes[l] for l in a_free] + [extent(summed)])
        in_out = b_labels[:len(summed)] == summed
        b = _arrange(c, b, b_labels, summed + b_free if in_out else b_free + summed)
        b = c.build.reshape(b, (extent(summed), extent(b_free)) if in_out else
                            (extent(b_free), extent(summed)))
        result = linear_by(c, a, b, in_out=in_out)
        return c.build.reshape(result, [sizes[l] for l in a_free + b_free]), a_free + b_free
    # One free index of each operand is a row or a column, the others are batches of which the
    # other operand has one: so grouped queries stay apart from their positions.
    row = max(a_free, key=lambda l: (sizes[l], a_free.index(l)), default=None)
    column = max(b_free, key=lambda l: (sizes[l], b_free.index(l)), default=None)
    wide_a, wide_b = [l for l in a_free if l != row], [l for l in b_free if l != column]
    outer = [*batch, *wide_a, *wide_b]
    present = lambda x, ls: [x.shape[ls.index(l)] if l in ls else 1 for l in outer]
    matrix = lambda free: [sizes[free] if free else 1, extent(summed)]
    rows, columns = [l for l in (row,) if l], [l for l in (column,) if l]
    a = c.build.reshape(_arrange(c, a, a_labels, batch + wide_a + rows + summed),
                        present(a, a_labels) + matrix(row))
    b = c.build.reshape(_arrange(c, b, b_labels, batch + wide_b + columns + summed),
                        present(b, b_labels) + matrix(column))
    result = c.build.matmul(a, b, transpose_rhs=True)
    order = outer + rows + columns
    return c.build.reshape(result, [sizes[l] for l in order]), order


# Norms.

def _last_dims(c, x, shape):
    """x with the normalised dimensions merged into one."""
    if len(shape) == 1:
        return x
    return c.build.reshape(x, x.shape[:x.rank - len(shape)] + (numel(shape),))


def _flat(c, weight):
    return None if weight is None else c.build.reshape(weight, (numel(weight.shape),))


def layer_norm_node(c, x, weight, bias, eps) -> Node:
    optional = {name: o for name, o in (("weight", weight), ("bias", bias)) if o is not None}
    # bf16 with weights of f32, as under autocast, is computed in f32.
    dtype = next((o.dtype for o in optional.values()), x.dtype)
    norm = c.build.make("layer_norm", [c.build.cast(x, dtype), *optional.values()], x.shape, dtype,
                        eps=float(eps), given=tuple(optional))
    return c.build.cast(norm, x.dtype)


def rms_norm_node(c, x, weight, eps, unit_offset=False) -> Node:
    return c.build.make("rms_norm", [x] + ([] if weight is None else [weight]), x.shape, x.dtype,
                        eps=float(eps), unit_offset=unit_offset)


@aten("layer_norm")
def layer_norm(c, x, shape, weight=None, bias=None, eps=1e-5, *rest):
    flat = _last_dims(c, x, shape)
    result = layer_norm_node(c, flat, _flat(c, weight), _flat(c, bias), eps)
    return c.build.reshape(result, x.shape)


@aten("native_layer_norm")
def native_layer_norm(c, x, shape, weight, bias, eps):
    flat = _last_dims(c, x, shape)
    dims = [flat.rank - 1]
    result = layer_norm_node(c, flat, _flat(c, weight), _flat(c, bias), eps)
    scale = _inverse_root(c, variance(c, flat, dims, 0, True), eps)
    return [c.build.reshape(result, x.shape), c.build.reduce("mean", flat, dims, True),
            c.build.cast(scale, x.dtype)]


def _inverse_root(c, x, eps):
    return c.build.unary("rsqrt", binary_scalar(c, "add", x, eps))


@aten("rms_norm", "_fused_rms_norm")
def rms_norm(c, x, shape, weight=None, eps=None):
    if eps is None:
        # That of the type in which PyTorch computes: f32 for narrower ones.
        eps = torch.finfo(torch.float64 if x.dtype == "f64" else torch.float32).eps
    flat = _last_dims(c, x, shape)
    result = c.build.reshape(rms_norm_node(c, flat, _flat(c, weight), eps), x.shape)
    if c.fx.target.__name__.startswith("_fused"):
        y = wide(c, flat)
        squares = c.build.reduce("mean", c.build.binary("mul", y, y), [y.rank - 1], True)
        return [result, c.build.cast(_inverse_root(c, squares, eps), x.dtype)]
    return result


@aten("group_norm")
def group_norm(c, x, groups, weight=None, bias=None, eps=1e-5, *rest):
    flat = c.build.reshape(x, (x.shape[0], groups, numel(x.shape[1:]) // groups))
    result = c.build.reshape(layer_norm_node(c, flat, None, None, eps), x.shape)
    return per_channel(c, result, weight, bias)


def per_channel(c, x, weight, bias):
    shape = (x.shape[1],) + (1,) * (x.rank - 2)
    if weight is not None:
        x = c.build.binary("mul", x, c.build.reshape(weight, shape))
    if bias is not None:
        x = c.build.binary("add", x, c.build.reshape(bias, shape))
    return x


@aten("batch_norm", "_native_batch_norm_legit_no_training")
def batch_norm(c, x, weight, bias, mean, variance, *rest):
    native = c.fx.target.__name__.startswith("_native")
    training, eps = (False, rest[1]) if native else (rest[0], rest[2])
    if training or mean is None:
        return _batch_statistics(c, x, weight, bias, eps)[0]
    scale = _inverse_root(c, variance, eps)
    shape = (x.shape[1],) + (1,) * (x.rank - 2)
    centre = c.build.binary("sub", x, c.build.reshape(mean, shape))
    result = c.build.binary("mul", centre, c.build.reshape(scale, shape))
    result = per_channel(c, result, weight, bias)
    return [result, None, None] if native else result


def _batch_statistics(c, x, weight, bias, eps):
    """The normalised batch, its mean and its variance."""
    y, dims = wide(c, x), [d for d in range(x.rank) if d != 1]
    mean, spread = c.build.reduce("mean", y, dims, True), variance(c, y, dims, 0, True)
    result = c.build.binary("mul", c.build.binary("sub", y, mean), _inverse_root(c, spread, eps))
    weight, bias = (None if p is None else wide(c, p) for p in (weight, bias))
    result = c.build.cast(per_channel(c, result, weight, bias), x.dtype)
    return result, *(c.build.reshape(v, (x.shape[1],)) for v in (mean, spread))


@aten("_native_batch_norm_legit_functional")
def batch_norm_in_training(c, x, weight, bias, mean, variance, training, momentum, eps):
    """Also the running statistics afterwards."""
    result, own, spread = _batch_statistics(c, x, weight, bias, eps)
    count = numel(x.shape) // x.shape[1]
    running = []
    for old, new in ((mean, own), (variance, binary_scalar(c, "mul", spread, count / (count - 1)))):
        kept = binary_scalar(c, "mul", wide(c, old), 1 - momentum)
        step = binary_scalar(c, "mul", c.build.cast(new, kept.dtype), momentum)
        running.append(c.build.cast(c.build.binary("add", kept, step), old.dtype))
    return [result, own, _inverse_root(c, spread, eps), *running]


# Attention. Masks are understood later, when the graph around is clean (lift_attention.py).

@aten("scaled_dot_product_attention")
def attention(c, q, k, v, mask=None, dropout=0.0, causal=False, *, scale=None, enable_gqa=False):
    if q.rank < 2 or k.rank < 2:
        raise Uncovered("attention on tensors of fewer than two dimensions is not covered")
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    return c.build.make("sdpa", [q, k, v] + ([] if mask is None else [mask]), c.shape, c.dtype,
                        causal=bool(causal), scale=float(scale), soft_cap=None,
                        dropout=float(dropout),
                        stream=next_stream(c) if dropout else None)


@aten("bilinear")
def bilinear(c, x, y, weight, bias=None):
    result = einsum(c, "...i,oij,...j->...o", [x, weight, y])
    return result if bias is None else c.build.binary("add", result, bias)


@aten("_cdist_forward")
def distances(c, a, b, order, mode=None):
    a = c.build.reshape(a, (*a.shape[:-1], 1, a.shape[-1]))
    b = c.build.reshape(b, (*b.shape[:-2], 1, *b.shape[-2:]))
    apart = wide(c, c.build.binary("sub", a, b))
    result = norm_of(c, apart, order, [-1], False)
    return result if order != math.inf else \
        with_derivative(c, result, "cdist.largest", (apart,), {})


@derivative("cdist.largest")
def _of_largest(d, x):
    """Each element of the largest size has the whole gradient, unlike that of a norm."""
    dims = [x.rank - 1]
    is_largest = absolute(x).equals(d.result.kept(x.shape, dims))
    return (d(x) * (sign(x) * is_largest.cast(x.node.dtype))).sum(dims)


@aten("_weight_norm")
def weight_norm(c, v, g, dim=0):
    # PyTorch takes -1 for the norm of the whole tensor, not for the last dimension.
    kept = None if dim == -1 else dim % v.rank
    # The gradient of the root, unlike that of a norm, is infinite where a norm is zero.
    y = wide(c, v)
    squares = c.build.binary("mul", y, y)
    dims = [d for d in range(v.rank) if d != kept]
    norm = c.build.unary("sqrt", c.build.reduce("sum", squares, dims, True))
    return c.build.binary("mul", wide(c, v), c.build.binary("div", wide(c, g), norm))


# Bags of embeddings.

@aten("embedding_bag")
def embedding_bag(c, table, ids, offsets, scale=False, mode=0, sparse=False, weights=None,
                  include_last=False, padding=None):
    padding = -1 if padding is None else padding % table.shape[0]
    return bags_of_rows(c, table, ids, offsets, scale, mode, sparse, weights, include_last, padding)


@aten("_embedding_bag")
def bags_of_rows(c, table, ids, offsets, scale=False, mode=0, sparse=False, weights=None,
                 include_last=False, padding=-1):
    """Sums, means or maxima of rows of a table, of bags of one length. The id `padding` is in no
    bag, and an empty bag gives zeros."""
    build, kind = c.build, ("sum", "mean", "max")[mode]
    bags, length = _bags(ids, offsets, include_last)
    ids = build.reshape(ids, (bags, length))
    rows = build.embedding(ids, table)
    if scale and c.exported.training:
        # PyTorch divides the gradient of a row by the count of another row.
        raise Uncovered("embedding_bag with scale_grad_by_freq is not covered in training: expected "
                        "an embedding, and a sum or a mean over the rows of a bag")
    if weights is not None:
        rows = build.binary("mul", rows, build.reshape(weights, (bags, length, 1)))
    if padding < 0:
        return [_largest(c, rows) if kind == "max" else build.reduce(kind, rows, [1], False),
                None, None, None]
    zero, none = (build.scalar(x, rows.dtype) for x in (0.0, -math.inf))
    true = build.compare("ne", build.reshape(ids, (bags, length, 1)),
                         build.scalar(padding, ids.dtype))
    rows = build.select(true, rows, none if kind == "max" else zero)
    if kind == "sum":
        return [build.reduce("sum", rows, [1], False), None, None, None]
    count = build.reduce("sum", build.cast(true, "f32"), [1], False)
    one = build.scalar(1.0, "f32")
    if kind == "max":
        best = _largest(c, rows)
        return [build.select(build.compare("lt", count, one), zero, best), None, None, None]
    total = build.reduce("sum", wide(c, rows), [1], False)
    count = build.cast(build.binary("maximum", count, one), total.dtype)
    return [build.cast(build.binary("div", total, count), rows.dtype), None, None, None]


def _largest(c, rows: Node) -> Node:
    return with_derivative(c, c.build.reduce("max", rows, [1], False), "max.dim", (rows, 1), {})


def _bags(ids: Node, offsets: Node, include_last: bool) -> tuple[int, int]:
    """The number of bags, and their length."""
    starts = written_out(offsets.form, offsets.shape) if offsets.form is not None else None
    if starts is None:
        raise Uncovered("embedding bags with offsets that are known at run time only are not "
                        "covered; expected indices of shape [bags, length]")
    ends = starts.tolist() if include_last else [*starts.tolist(), ids.shape[0]]
    length = ends[1] - ends[0] if len(ends) > 1 else 0
    if not length or ends != list(range(0, ids.shape[0] + 1, length)):
        raise Uncovered(f"embedding bags with the offsets {starts.tolist()} are not covered; "
                        "expected bags of one length")
    return len(ends) - 1, length
