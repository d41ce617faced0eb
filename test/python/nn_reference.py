# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The importer's graph, run by PyTorch: what each nn operation means, said once more."""
import numpy as np
import torch
import torch.nn.functional as F
from meshwright.importer.graph.sizes import Size
from meshwright.importer.torch.values import TORCH_DTYPES, to_tensor

_BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "rem": torch.remainder,
    "pow": torch.pow, "maximum": torch.maximum, "minimum": torch.minimum,
    "and": torch.logical_and, "or": torch.logical_or, "xor": torch.logical_xor,
}


def _wide(x):
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def _attention(a, q, k, v, *rest):
    rest = dict(zip(a["given"], rest, strict=True))
    padding, bias, lengths = (rest.get(name) for name in ("key_padding", "bias", "kv_lengths"))
    places = [rest["q_positions"], rest["kv_positions"]] if "q_positions" in rest else None
    group = q.shape[1] // k.shape[1]
    assert q.shape[1] == group * k.shape[1] and q.dim() == k.dim() == v.dim() == 4
    dtype, (q, k, v) = q.dtype, map(_wide, (q, k, v))
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = q @ k.mT * a["scale"]
    if a["soft_cap"] is not None:
        s = a["soft_cap"] * torch.tanh(s / a["soft_cap"])
    if bias is not None:
        s = s + _wide(bias)
    at, of = places or (torch.arange(q.shape[2]), torch.arange(k.shape[2]))
    i, j = at[..., None, :, None], of[..., None, None, :]
    seen = (j >= 0) & (i == i)
    if lengths is not None:
        seen = seen & (j < lengths[:, None, None, None])
    if a["causal"]:
        seen = seen & (j <= i)
    if a["window_left"] is not None:
        seen = seen & (j >= i - a["window_left"])
    if a["window_right"] is not None:
        seen = seen & (j <= i + a["window_right"])
    if padding is not None:
        seen = seen & padding[:, None, None, :]
    return (_softmax(s.masked_fill(~seen, -torch.inf), -1) @ v).to(dtype)


def _softmax(x, dim):
    return torch.nan_to_num(torch.softmax(_wide(x), dim), 0.0).to(x.dtype)


def _rotary(a, x, cos, sin):
    r = cos.shape[-1]
    y, rest = x[..., :r], x[..., r:]
    if a["interleaved"]:
        turned = torch.stack([-y[..., 1::2], y[..., ::2]], -1).flatten(-2)
    else:
        turned = torch.cat([-y[..., r // 2:], y[..., :r // 2]], -1)
    return torch.cat([y * cos + turned * sin, rest], -1)


def _evaluate(node, x):
    a, op = node.attrs, node.op
    if op == "cut":
        return x[0][tuple(map(slice, node.shape))]
    if op == "constant":
        value = to_tensor(a["value"]) if isinstance(a["value"], np.ndarray) else a["value"]
        if isinstance(value, torch.Tensor):
            value = value[tuple(map(slice, node.shape))]
        return torch.as_tensor(value, dtype=TORCH_DTYPES[node.dtype]).expand(node.shape)
    if op == "iota":
        shape = [-1 if d == a["dim"] else 1 for d in range(node.rank)]
        steps = torch.arange(node.shape[a["dim"]], dtype=TORCH_DTYPES[node.dtype])
        return steps.view(shape).expand(node.shape)
    if op == "gelu":
        return F.gelu(x[0], approximate="tanh" if a["approximate_tanh"] else "none")
    if op == "not":
        return ~x[0]
    if op in ("silu", "relu"):
        return getattr(F, op)(x[0])
    if op == "cumsum":
        return x[0].cumsum(a["dim"])
    if op == "softmax":
        return _softmax(x[0], a["dim"])
    if op in ("neg", "abs", "exp", "log", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "erf",
              "floor", "tanh", "sigmoid"):
        return getattr(torch, op)(x[0])
    if op == "div":
        return x[0] / x[1] if x[0].is_floating_point() else x[0] // x[1]
    if op in _BINARY:
        assert x[0].dtype == x[1].dtype, "operands of two types"
        return _BINARY[op](*x)
    if op == "compare":
        assert x[0].dtype == x[1].dtype, "operands of two types"
        return getattr(torch, a["kind"])(*x)
    if op == "select":
        assert x[1].dtype == x[2].dtype, "operands of two types"
        return torch.where(*x)
    if op == "cast":
        return x[0].to(TORCH_DTYPES[node.dtype])
    if op == "reshape":
        return x[0].reshape(node.shape)
    if op == "transpose":
        return x[0].permute(a["permutation"])
    if op == "slice":
        return x[0][tuple(map(slice, a["starts"], a["limits"], a["strides"]))]
    if op == "concat":
        return torch.cat(x, a["dim"])
    if op == "broadcast":
        return x[0].expand(node.shape)
    if op == "gather":
        data = x[0].index_select(a["dim"], x[1].reshape(-1))
        return data.reshape(node.shape)
    if op == "take_along":
        return x[0].gather(a["dim"], x[1].long())
    if op == "index_copy":
        return x[0].index_copy(a["dim"], x[1].long(), x[2])
    if op == "reduce":
        kind = {"max": torch.amax, "min": torch.amin, "sum": torch.sum, "mean": torch.mean}
        return kind[a["kind"]](x[0], dim=a["dims"], keepdim=a["keep_dims"])
    if op == "matmul":
        return (x[0].mT if a["transpose_lhs"] else x[0]) @ (x[1].mT if a["transpose_rhs"] else x[1])
    if op == "linear":
        return F.linear(x[0], x[1].T if a["in_out"] else x[1], *x[2:])
    if op == "embedding":
        return F.embedding(x[0], x[1])
    if op == "rms_norm":
        y = _wide(x[0])
        y = y * torch.rsqrt((y * y).mean(-1, keepdim=True) + a["eps"])
        if len(x) > 1:
            y = y * (_wide(x[1]) + int(a["unit_offset"]))
        return y.to(TORCH_DTYPES[node.dtype])
    if op == "layer_norm":
        rest = dict(zip(a["given"], x[1:], strict=True))
        return F.layer_norm(x[0], x[0].shape[-1:], rest.get("weight"), rest.get("bias"), a["eps"])
    if op == "rotary":
        return _rotary(a, *x)
    if op == "attention":
        return _attention(a, *x)
    raise AssertionError(f"no meaning given for nn.{op}")


class _Sized:
    """A node at the sizes of a call: without padding along dimensions whose size is among `told`."""

    def __init__(self, node, sizes, told):
        at = lambda n: true_size(n, sizes) if isinstance(n, Size) and _is_told(n, told) else int(n)
        self.op, self.dtype, self.rank = node.op, node.dtype, node.rank
        self.shape = tuple(map(at, node.shape))
        self.attrs = {k: [at(n) for n in v] if k in ("starts", "limits") else v for k, v in node.attrs.items()}


def _is_told(n, told):
    return all(part.name in told for part in n.parts if isinstance(part, Size))


def _told(node):
    """The sizes that a node's result has by itself, or from its operands."""
    return {part.name for n in node.shape if isinstance(n, Size) for part in n.parts if isinstance(part, Size)}


def true_size(n, sizes):
    """The size of a call that stands in the place of a bucket's."""
    if not isinstance(n, Size):
        return n
    return int(n.expr.subs({s: sizes[str(s)] for s in n.expr.free_symbols}))


def run(imported, inputs, double=False, state=None, sizes=None):
    """The outputs of an imported program. With `double`, in f64. With `sizes`, a call's sizes by name,
    inputs have them, and each value whose operands tell its sizes, or a `cut`. Other values have the
    bucket's.

    `state` maps names to values; the call updates it. None: as the module has them.
    """
    state = {} if state is None else state
    def own(t):
        return t.detach().double() if double and t.is_floating_point() else t.detach()

    values, told = {}, {}

    def sized(node):
        return node if sizes is None else _Sized(node, sizes, told.get(id(node), ()))

    for node, value in zip(imported.graph.inputs, inputs):
        told[id(node)] = _told(node)
        assert tuple(value.shape) == sized(node).shape
        values[id(node)] = own(value)
    for node in imported.graph.parameters:
        whole = own(imported.parameters[node.attrs["key"]])
        values[id(node)] = whole[tuple(map(slice, sized(node).shape))]
    for node in imported.graph.states:
        values[id(node)] = state.get(node.attrs["key"], own(imported.parameters[node.attrs["key"]]))
    for node in imported.graph.nodes():
        if id(node) in values:
            continue
        if node.op == "size":
            values[id(node)] = torch.tensor(sizes[node.attrs["name"]])
            continue
        operands = [values[id(o)] for o in node.operands]
        if sizes is not None:
            told[id(node)] = _told(node) if node.op == "cut" else \
                _told(node) & set().union(*(told.get(id(o), ()) for o in node.operands))
            known = set().union(*(told.get(id(o), ()) for o in node.operands))
            operands = [x[tuple(map(slice, _Sized(o, sizes, known).shape))]
                        for x, o in zip(operands, node.operands)]
        value = _evaluate(sized(node), operands)
        if node.op == "concat" and sizes is not None:
            # Behind the last piece there is its padding.
            widths = [n - m for n, m in zip(sized(node).shape, value.shape, strict=True)]
            value = F.pad(value, [n for width in reversed(widths) for n in (0, width)], value=99)
        if double and value.is_floating_point():
            value = value.double()
        assert tuple(value.shape) == sized(node).shape, f"{node} has shape {tuple(value.shape)}"
        if not double:
            assert value.dtype == TORCH_DTYPES[node.dtype], f"{node} has type {value.dtype}"
        values[id(node)] = value
    for write in imported.graph.writes:
        assert write.value.shape == write.state.shape and write.value.dtype == write.state.dtype
        state[write.state.attrs["key"]] = values[id(write.value)]
    outputs = [values[id(o)] for o in imported.graph.outputs]
    if sizes is not None:
        outputs = [x[tuple(map(slice, _Sized(o, sizes, _told(o)).shape))]
                   for x, o in zip(outputs, imported.graph.outputs)]
    return outputs
