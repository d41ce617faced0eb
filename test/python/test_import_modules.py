# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Plain PyTorch modules: attention and norms in the ways that people write them."""
import math

import pytest
import torch
import torch.nn.functional as F
from import_checks import count, same
from torch import nn


def random(*shape, seed=5):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def built(cls, *args, **kwargs):
    torch.manual_seed(2)
    return cls(*args, **kwargs).eval()


MASKS = {
    "tril buffer": lambda s, t: t.masked_fill(s.bias[:, :, :s.n, :s.n] == 0, -math.inf),
    "tril": lambda s, t: t.masked_fill(torch.tril(torch.ones(s.n, s.n)) == 0, -math.inf),
    "triu bool": lambda s, t: t.masked_fill(
        torch.triu(torch.ones(s.n, s.n, dtype=torch.bool), 1), -1e9),
    "triu inf": lambda s, t: t + torch.triu(torch.full((s.n, s.n), -math.inf), diagonal=1),
    "arange": lambda s, t: torch.where(
        torch.arange(s.n)[:, None] >= torch.arange(s.n)[None], t, torch.finfo(t.dtype).min),
    "additive": lambda s, t: t + (1.0 - torch.tril(torch.ones(s.n, s.n))) * -10000.0,
    "subtracted": lambda s, t: t - 1e10 * (1 - torch.tril(torch.ones(s.n, s.n))),
    "product": lambda s, t: t * s.bias[:, :, :s.n, :s.n] - 1e10 * (1 - s.bias[:, :, :s.n, :s.n]),
}


class Written(nn.Module):
    def __init__(self, mask, d=48, h=4, longest=64):
        super().__init__()
        self.h, self.mask, self.c, self.p = h, mask, nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.register_buffer("bias", torch.tril(torch.ones(longest, longest))[None, None])

    def forward(self, x):
        b, self_n, d = x.shape
        self.n = self_n
        q, k, v = (z.view(b, self_n, self.h, d // self.h).transpose(1, 2)
                   for z in self.c(x).split(d, 2))
        scores = self.mask(self, (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1))))
        y = F.softmax(scores, dim=-1) @ v
        return self.p(y.transpose(1, 2).contiguous().view(b, self_n, d))


@pytest.mark.parametrize("name", MASKS)
def test_causal_masks(name):
    imported = same(built(Written, MASKS[name]), (random(2, 13, 48),))
    assert count(imported)["attention"] == 1 and "causal" in imported.mlir
    assert "13x13" not in imported.mlir and list(imported.parameters) == [
        "c.weight", "c.bias", "p.weight", "p.bias"]


def test_window():
    def window(s, t):
        difference = torch.arange(s.n)[:, None] - torch.arange(s.n)[None]
        return t.masked_fill((difference < 0) | (difference >= 5), -math.inf)
    text = same(built(Written, window), (random(2, 13, 48),)).mlir
    assert "window_left = 4 : i64" in text and "causal" in text


def test_alibi():
    def alibi(s, t):
        i = torch.arange(s.n)
        slopes = torch.tensor([.5, .25, .125, .0625]).view(4, 1, 1)
        return (t + (i[None] - i[:, None]) * slopes).masked_fill(i[None] > i[:, None], -math.inf)
    imported = same(built(Written, alibi), (random(2, 13, 48),))
    assert count(imported)["attention"] == 1 and " bias " in imported.mlir


PADDINGS = {
    "sdpa": lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m[:, None, None, :]),
    "causal": lambda q, k, v, m: F.scaled_dot_product_attention(
        q, k, v, m[:, None, None, :] & torch.ones(9, 9, dtype=torch.bool).tril()),
    "additive": lambda q, k, v, m: (q @ k.mT / math.sqrt(q.shape[-1]) + (
        1.0 - m[:, None, None, :].to(q.dtype)) * torch.finfo(q.dtype).min).softmax(-1) @ v,
    "fill": lambda q, k, v, m: (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(
        (m == 0).view(2, 1, 1, 9).expand(2, 4, 9, 9), -1e9).softmax(-1) @ v,
}


class Padded(nn.Module):
    def __init__(self, attention, d=48, h=4):
        super().__init__()
        self.h, self.attention = h, attention
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x, m):
        b, t, d = x.shape
        f = lambda z: z.view(b, t, self.h, -1).transpose(1, 2)
        y = self.attention(f(self.q(x)), f(self.k(x)), f(self.v(x)), m)
        return self.o(y.transpose(1, 2).reshape(b, t, d))


@pytest.mark.parametrize("name", PADDINGS)
def test_key_padding(name):
    mask = torch.arange(9)[None] < torch.tensor([[9], [4]])
    imported = same(built(Padded, PADDINGS[name]), (random(2, 9, 48), mask))
    operands = imported.mlir.split("nn.attention")[1].split("scale")[0]
    # A number that hides keys gives a query that sees none of them the mean of all values.
    is_finite = name in ("additive", "fill")
    assert ("key_padding" in operands, " bias %" in operands) == (not is_finite, is_finite)


FILLS = {
    "then a bias of keys": lambda s, m: s.masked_fill(~m, torch.finfo(s.dtype).min) + torch.arange(9.0),
    "then a small bias": lambda s, m: s.masked_fill(~m, -1e4) + torch.arange(9.0),
    "over minus infinity": lambda s, m: s.masked_fill(torch.ones(9, 9).triu(1).bool(), -math.inf).masked_fill(~m, -1e4),
    "of two numbers": lambda s, m: s.masked_fill(torch.ones(9, 9).triu(1).bool(), -1e5).masked_fill(~m, -1e4),
}


@pytest.mark.parametrize("name", FILLS)
def test_rows_hidden_among_other_terms(name):
    """Which number hides the keys of a query that sees none, and what was added, decides its weights."""
    mask = torch.arange(9)[None] >= torch.tensor([[9], [4]])
    fill = FILLS[name]
    same(built(Padded, lambda q, k, v, m: fill(q @ k.mT / 4, m[:, None, None, :]).softmax(-1) @ v),
         (random(2, 9, 48), mask))


@pytest.mark.parametrize("name", ["additive", "fill"])
def test_rows_hidden_by_a_number(name):
    mask = torch.arange(9)[None] < torch.tensor([[0], [4]])
    same(built(Padded, PADDINGS[name]), (random(2, 9, 48), mask))


class Grouped(nn.Module):
    def __init__(self, d=48, h=4, kv=2):
        super().__init__()
        self.h, self.kv = h, kv
        self.q, (self.k, self.v) = nn.Linear(d, d), (nn.Linear(d, d * kv // h) for _ in range(2))

    def forward(self, x):
        b, t, c = x.shape
        d = c // self.h
        q = self.q(x).view(b, t, self.kv, self.h // self.kv, d)
        k, v = (f(x).view(b, t, self.kv, d) for f in (self.k, self.v))
        w = torch.einsum("btkgd,bskd->bkgts", q, k) * d ** -.5
        w = w.masked_fill(torch.ones(t, t).triu(1).bool(), -math.inf).softmax(-1)
        return torch.einsum("bkgts,bskd->btkgd", w, v).reshape(b, t, c)


class Repeated(Grouped):
    def forward(self, x):
        b, t, c = x.shape
        d = c // self.h
        k, v = (f(x).view(b, t, self.kv, d).repeat_interleave(self.h // self.kv, 2).transpose(1, 2)
                for f in (self.k, self.v))
        q = self.q(x).view(b, t, self.h, d).transpose(1, 2)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("cls", [Grouped, Repeated])
def test_grouped_queries(cls):
    imported = same(built(cls), (random(2, 9, 48),))
    attention = next(n for n in imported.graph.nodes() if n.op == "attention")
    assert [o.shape for o in attention.operands] == [(2, 4, 9, 12)] + [(2, 2, 9, 12)] * 2
    assert attention.attrs["causal"] and "broadcast" not in count(imported)


class EinsumWeights(nn.Module):
    def __init__(self, d=48, h=4):
        super().__init__()
        self.q, self.k, self.v = (nn.Parameter(torch.randn(d, h, d // h) * .1) for _ in range(3))
        self.o = nn.Parameter(torch.randn(h, d // h, d) * .1)

    def forward(self, x):
        q, k, v = (torch.einsum("bsd,dhk->bhsk", x, w) for w in (self.q, self.k, self.v))
        weights = torch.einsum("bhqk,bhsk->bhqs", q, k) / 3
        return torch.einsum("bhqk,hkd->bqd", weights.softmax(-1) @ v, self.o)


def test_einsum_weights():
    ops = count(same(built(EinsumWeights), (random(2, 9, 48),)))
    assert (ops["attention"], ops["linear"], ops["matmul"]) == (1, 4, 0)


@pytest.mark.parametrize("equation, shapes", [
    ("btd,bsd->bts", [(1, 3, 1), (1, 2, 8)]), ("btd,bsd->tbs", [(3, 4, 8), (3, 5, 1)]),
    ("ij,jk->ik", [(3, 1), (4, 5)]), ("i,i->", [(1,), (6,)]), ("bij,bjk->bik", [(1, 2, 3), (4, 3, 5)]),
    ("bi,bi,bj->j", [(1, 3), (4, 1), (4, 5)]), ("ij,jk,k->i", [(2, 1), (4, 1), (5,)]),
])
def test_einsum_of_single_elements(equation, shapes):
    same(Call(lambda *x: torch.einsum(equation, *x)),
         tuple(random(*shape, seed=i) for i, shape in enumerate(shapes)))


EDGES = {
    "triangles of one": lambda x, i: (x[:1, :1].tril(), x[:1, :1].triu(1), x[:1, :1].tril(-1)),
    "tile": lambda x, i: (x.tile(2), x.tile(2, 3), x.tile(2, 1, 3)),
    "split at": lambda x, i: (x.tensor_split((-2,), 1), x.tensor_split((1, -1)), x.tensor_split((3, 9))[1]),
    "truth values": lambda x, i: [y.float() for b in (x > 0,) for y in (
        b.amax(1), b.amin((0, 1)), b.max(), b.min(), *b.max(0), b.min(1).values, b.any(0), b.all(),
        b.maximum(x > 1), torch.minimum(b, i[0] > 0), b.diff(), b.diff(n=2, dim=0))],
    "relu of integers": lambda x, i: (F.relu(i), F.relu6(i * 9)),
    "classes of integers": lambda x, i: (torch.isinf(i).int(), torch.isnan(i).int(), torch.nan_to_num(i)),
}


@pytest.mark.parametrize("name", EDGES)
def test_edges(name):
    same(Call(EDGES[name]), (random(4, 5), torch.tensor([1, -2])))


def test_zeros_added():
    """A zero goes only where no zero changes its sign."""
    x, i = torch.tensor([-0.0, 0.0, -1.0]), torch.tensor([0, 1])
    for kept in (lambda x, i: x + 0.0, lambda x, i: 0.0 + x, lambda x, i: x - -0.0):
        ops = count(same(Call(kept), (x, i)))
        assert ops["add"] + ops["sub"] == 1
    for gone in (lambda x, i: x - 0.0, lambda x, i: x + -0.0, lambda x, i: i + 0, lambda x, i: i - 0):
        ops = count(same(Call(gone), (x, i)))
        assert ops["add"] + ops["sub"] == 0


class Rotary(nn.Module):
    def __init__(self, how, d=48, h=4, longest=64):
        super().__init__()
        self.how, self.h, self.q = how, h, nn.Linear(d, d)
        frequencies = 1.0 / (10000 ** (torch.arange(0, d // h, 2).float() / (d // h)))
        angles = torch.outer(torch.arange(longest).float(), frequencies)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self.register_buffer("turn", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def forward(self, x):
        b, t, d = x.shape
        q = self.q(x).view(b, t, self.h, -1)
        cos, sin = self.cos[:t, None], self.sin[:t, None]
        if self.how == "complex":
            z = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
            return torch.view_as_real(z * self.turn[:t].view(1, t, 1, -1)).flatten(3).type_as(q)
        if self.how == "pairs":
            a, c = q[..., ::2], q[..., 1::2]
            return torch.stack([a * cos - c * sin, c * cos + a * sin], -1).flatten(-2)
        a, c = q.chunk(2, -1)
        return torch.cat([a * cos - c * sin, c * cos + a * sin], -1)


@pytest.mark.parametrize("how", ["complex", "pairs", "halves"])
def test_rotary(how):
    module = built(Rotary, how)
    if how == "complex":  # PyTorch has no complex f64 of it to compare with
        module.double = lambda: module
    imported = same(module, (random(2, 9, 48),)) if how != "complex" else None
    if imported is None:
        import nn_reference
        from meshwright.importer.torch import import_module
        imported = import_module(module, (random(2, 9, 48),))
        got, = nn_reference.run(imported, [random(2, 9, 48)])
        assert torch.allclose(got, module(random(2, 9, 48)), atol=1e-5)
    ops = count(imported)
    assert ops["rotary"] == 1 and "sub" not in ops
    assert ("interleaved" in imported.mlir) == (how != "halves")


INDICES = {
    "constants": lambda x, i, j: x[torch.tensor([1, 2]), torch.tensor([-1, -2])],
    "one of them": lambda x, i, j: x[:, torch.tensor([-1, 0, -4])],
    "apart": lambda x, i, j: x[torch.tensor([[0], [-1]]), :, torch.tensor([1, -1])],
    "evenly": lambda x, i, j: x[torch.arange(-3, 0)],
    "computed": lambda x, i, j: x[i - 3],
    "two computed": lambda x, i, j: x[i, j - 3],
    "each": lambda x, i, j: x[torch.arange(5), torch.arange(5) - i[0] - 1],
    "both": lambda x, i, j: x[i - 5, :, torch.tensor([-1, 0])],
    "positions": lambda x, i, j: x[x.argmax(0)[:2, 0], (j - 2).clamp(0)],
}


@pytest.mark.parametrize("name", INDICES)
def test_negative_indices(name):
    imported = same(Call(INDICES[name]), (random(5, 4, 3), torch.tensor([1, 2]), torch.tensor([0, 1])))
    if name in ("constants", "one of them", "apart", "evenly"):  # known: nothing to wrap
        assert "select" not in count(imported)


class Spellings(nn.Module):
    """Several outputs, nested, with None between them."""

    def __init__(self, d=48):
        super().__init__()
        self.w, self.b = nn.Parameter(torch.rand(d)), nn.Parameter(torch.rand(d))

    def forward(self, x):
        rms = x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.w
        gemma = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * (1 + self.w)
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        layer = (x - mean) / torch.sqrt(variance + 1e-5) * self.w + self.b
        gelu = 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
        tanh = 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))
        return rms, None, {"gemma": gemma, "rest": [layer, gelu, None, tanh, x * torch.sigmoid(x)]}


def test_spellings():
    imported = same(built(Spellings), (random(2, 9, 48),))
    assert count(imported) - count(imported).__class__(parameter=2, input=1) == {
        "rms_norm": 2, "layer_norm": 1, "gelu": 2, "silu": 1}
    assert imported.outputs == ["output.0", "output.2.gemma", "output.2.rest.0", "output.2.rest.1",
                                "output.2.rest.3", "output.2.rest.4"]


CLAMPED = {
    "argument": lambda x: x.clamp(max=20) * torch.sigmoid(x),
    "gate": lambda x: x * torch.sigmoid(x.clamp(-15, 15)),
    "both": lambda x: (lambda y: y * torch.sigmoid(y))(x.clamp(max=20)),
    "relu": lambda x: (x - F.relu(x - 30)) * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "abs": lambda x: 0.5 * (x + 40 - (x - 40).abs()) / (1 + torch.exp(-x)),
}


@pytest.mark.parametrize("name", CLAMPED)
def test_clamped_activations(name):
    """They are their activations only up to the bound, however far out that is."""
    ops = count(same(Call(CLAMPED[name]), (torch.linspace(-80, 80, 33),)))
    assert ops["gelu"] == 0 and ops["silu"] == (name == "both")


def test_torch_layers():
    mask = torch.zeros(2, 9, dtype=torch.bool)
    mask[1, 4:] = True

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.TransformerEncoderLayer(60, 6, 90, batch_first=True)

        def forward(self, x, pad):
            for _ in range(3):
                x = self.l(x, src_key_padding_mask=pad)
            return x

    imported = same(built(Encoder), (random(2, 9, 60), mask))
    ops = count(imported)
    assert (ops["attention"], ops["linear"], ops["parameter"]) == (3, 12, 12)
    assert imported.mlir.count("key_padding") == 3

    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(48, 4, 96, activation="gelu")
            self.e = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

        def forward(self, x):
            hidden = torch.triu(torch.ones(9, 9, dtype=torch.bool), 1)
            return self.e(x.transpose(0, 1), mask=hidden).transpose(0, 1)

    imported = same(built(Stack), (random(2, 9, 48),))
    assert count(imported)["attention"] == 2 and imported.mlir.count("causal") == 2
    assert "tensor<9x2x" not in imported.mlir  # tokens stay batch first
    same(built(nn.Transformer, 48, 4, 1, 1, 96, batch_first=True),
         (random(2, 7, 48), random(2, 5, 48)))


def test_multihead_attention():
    x = random(1, 11, 60)
    imported = same(built(nn.MultiheadAttention, 60, 5, batch_first=True), (x, x, x))
    assert imported.inputs == ["query", "key", "value"] and len(imported.outputs) == 2
    same(built(nn.MultiheadAttention, 60, 5, kdim=20, vdim=24, batch_first=True, bias=False),
         (random(2, 7, 60), random(2, 9, 20), random(2, 9, 24)))


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv1d(8, 16, 3, padding=1), nn.Conv1d(16, 16, 3, stride=2, padding=1)
        self.g, self.w = nn.GroupNorm(4, 16), nn.Conv1d(16, 16, 5, padding=2, groups=16)
        self.n, self.c = nn.BatchNorm1d(16), nn.Conv3d(2, 6, (1, 2, 2), (1, 2, 2))

    def forward(self, x, v):
        x = self.n(self.w(self.g(F.gelu(self.b(F.gelu(self.a(x)))))))
        return x, self.c(v).flatten(2).transpose(1, 2)


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.forward = function


def writes_through_a_view(x, y):
    z = x * 2
    top = z[:, :3]
    top.add_(1)
    z[:, -1] = 0
    return z, top, z.to(x.dtype).reshape(-1)


def writes_once_more(x, y):
    z = x * 2
    before = z + 1
    z.add_(y).mul_(3)
    return z, before


def writes_after_a_view(x, y):
    z = x * 2
    view = z.view(-1)
    z.add_(y)
    return view


def writes_before_a_view(x, y):
    z = x @ y.mT
    written = z.relu_()
    return z.transpose(0, 1), written


@pytest.mark.parametrize("function", [
    writes_through_a_view, writes_once_more, writes_after_a_view, writes_before_a_view])
def test_writes(function):
    """They are seen in all that share the memory."""
    same(Call(function), (random(3, 5), random(3, 5)))


def test_is_traced_once(monkeypatch):
    """A write to a tensor without other users is imported as torch.export leaves it."""
    def fail(*args):
        raise AssertionError("is traced again")
    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", fail)
    same(built(Convolutions), (random(2, 8, 20), random(2, 2, 3, 8, 8)))
    same(Call(writes_before_a_view), (random(3, 5), random(3, 5)))


class Pools(nn.Module):
    def forward(self, x):
        y = F.interpolate(x, size=x.shape[2:], mode="bilinear", align_corners=False)
        return F.adaptive_avg_pool2d(x, 1), F.max_pool2d(y, 2), F.avg_pool2d(x, (3, 2)), x.argmax(1)


def test_pooling():
    same(Pools(), (random(2, 3, 7, 8),))


def test_convolutions():
    same(built(Convolutions), (random(2, 8, 20), random(2, 2, 3, 8, 8)))


class Various(nn.Module):
    def __init__(self):
        super().__init__()
        self.t = nn.Embedding(30, 16)
        self.l = nn.Linear(16, 30, bias=False)
        self.l.weight = self.t.weight

    def forward(self, ids, flag=True, extra=None):
        x = self.t(ids)
        y = torch.cat([x, x.flip(1)], 1).roll(1, 1)
        return {
            "logits": self.l(x) if flag else None, "none": extra, "padded": F.pad(y, (0, 0, 1, 2)),
            "integers": (ids.clamp(2, 10) // 3 + ids % 4).float(),
            "rows": x.index_select(1, torch.tensor([0, 2, 4])), "at": x[torch.arange(2), 1],
            "max": x.max(), "std": x.std(-1), "lse": x.logsumexp(-1), "log": x.log_softmax(-1),
            "repeat": x.repeat(1, 2, 1), "cumsum": ids.cumsum(-1).float(),
            "any": (ids > 3).any(-1).float(), "stack": torch.stack([x, x], 0),
            "each": x[torch.arange(2), ids.argmax(-1)], "below": x[:, torch.arange(7), ids[0] % 16],
            "take": x.gather(1, ids[:, :1, None].expand(2, 1, 16) % 7),
        }


def test_various():
    ids = torch.randint(0, 30, (2, 7), generator=torch.Generator().manual_seed(1))
    imported = same(built(Various), (ids,), {"flag": True})
    assert imported.inputs == ["ids"] and "none" not in imported.outputs
    assert 'nn.aliases = ["l.weight"]' in imported.mlir


class First(nn.Module):
    """The outputs of a recurrent layer, without its state."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


@pytest.mark.parametrize("both", [False, True])
def test_recurrent(both):
    torch.manual_seed(2)
    layer = nn.LSTM(6, 5, 2, batch_first=True, bidirectional=both).eval()
    same(First(layer).eval(), (random(2, 4, 6),))
