# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The parts that random models are made of.

A block maps [batch, tokens, width] to the same shape. A loss maps that and targets to a number.
Both are modules of f32 parameters without a type of their own, so that a copy in f64 is the truth.
`BLOCKS` and `LOSSES` list them by name; each is built from a `Sizes`.
"""
import dataclasses

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

CLASSES = 11
INFINITY = float("inf")


@dataclasses.dataclass
class Sizes:
    width: int
    heads: int
    kv_heads: int
    tokens: int
    batch: int
    #: For choices within a block: a `random.Random`.
    rng: object


class Function(nn.Module):
    """A block of a linear layer and a function of its result."""

    def __init__(self, s, function, out=None):
        super().__init__()
        self.layer, self.function = nn.Linear(s.width, out or s.width), function

    def forward(self, x):
        return x + self.function(self.layer(x))


class Mlp(nn.Module):
    def __init__(self, s, activation, gated, norm):
        super().__init__()
        hidden = s.rng.choice([s.width + 1, 2 * s.width, 3 * s.width - 1])
        self.norm, self.activation = norm, activation
        self.up, self.down = nn.Linear(s.width, hidden), nn.Linear(hidden, s.width)
        self.gate = nn.Linear(s.width, hidden, bias=False) if gated else None

    def forward(self, x):
        y = self.norm(x)
        h = self.activation(self.up(y))
        return x + self.down(h if self.gate is None else h * self.gate(y))


class RmsNorm(nn.Module):
    """Spelt out, with an offset of one."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width) * 0.1)

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * (1 + self.weight)


class UnitNorm(nn.Module):
    def forward(self, x):
        return F.normalize(x, dim=-1) * 3


def norm_of(s):
    return s.rng.choice([nn.LayerNorm, nn.RMSNorm, RmsNorm, lambda width: UnitNorm()])(s.width)


def rotate(x, is_complex):
    """Rotary positions of [batch, heads, tokens, features]."""
    half = x.shape[-1] // 2
    steps = torch.arange(half, device=x.device, dtype=x.dtype)
    angle = torch.arange(x.shape[2], dtype=x.dtype)[:, None] * 10.0 ** (-steps / half)
    cos, sin = angle.cos(), angle.sin()
    if is_complex and x.dtype != torch.bfloat16:  # which has no complex numbers
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], half, 2))
        return torch.view_as_real(pairs * torch.complex(cos, sin)).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Attention(nn.Module):
    """Attention with options: see `attention`."""

    def __init__(self, s, **options):
        super().__init__()
        self.heads, self.kv, self.size = s.heads, s.kv_heads, s.width // s.heads
        self.options, self.norm = options, norm_of(s)
        self.q = nn.Linear(s.width, s.width, bias=s.rng.random() < 0.5)
        self.k = nn.Linear(s.width, self.kv * self.size, bias=False)
        self.v = nn.Linear(s.width, self.kv * self.size)
        self.o = nn.Linear(s.width, s.width)
        if options.get("bias"):
            self.bias = nn.Parameter(torch.randn(options["bias"]) * 0.5)
        if options.get("sinks"):
            self.sinks = nn.Parameter(torch.randn(s.heads))
        if options.get("norms"):
            self.norms = nn.ModuleList(nn.RMSNorm(self.size) for _ in range(2))

    def forward(self, x):
        o, y = self.options, self.norm(x)
        q, k, v = (f(y).unflatten(-1, (-1, self.size)).transpose(1, 2)
                   for f in (self.q, self.k, self.v))
        if "norms" in o:
            q, k = self.norms[0](q), self.norms[1](k)
        if "rotary" in o:
            q, k = (rotate(z, o["rotary"] == "complex") for z in (q, k))
        y = self.attend(q, k, v, x.shape[1], o)
        return x + self.o(y.transpose(1, 2).flatten(2))

    def attend(self, q, k, v, tokens, o):
        i, j = torch.arange(tokens)[:, None], torch.arange(tokens)[None]
        seen = None
        if o.get("causal"):
            seen = j <= i
        if o.get("window"):
            seen = (j > i - o["window"]) & (j < i + o["window"]) & (True if seen is None else seen)
        if not o.get("by_hand"):
            if self.kv != self.heads:
                k, v = (z.repeat_interleave(self.heads // self.kv, 1) for z in (k, v))
            mask = seen
            if o.get("bias"):
                mask = self.bias.expand(-1, -1, tokens, tokens) if seen is None else \
                    self.bias.masked_fill(~seen, -INFINITY)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.4)
        k, v = (z.repeat_interleave(self.heads // self.kv, 1) for z in (k, v))
        scores = q @ k.mT * 0.4
        if o.get("cap"):
            scores = (scores / o["cap"]).tanh() * o["cap"]
        if o.get("bias"):
            scores = scores + self.bias
        if seen is not None:
            scores = scores.masked_fill(~seen, -INFINITY)
        if o.get("sinks"):
            sinks = self.sinks.view(1, -1, 1, 1).expand(len(q), -1, tokens, 1)
            return torch.cat([scores, sinks], -1).softmax(-1)[..., :-1] @ v
        return scores.softmax(-1) @ v


def attention(s):
    o = {"causal": s.rng.random() < 0.6, "by_hand": s.rng.random() < 0.4}
    if s.rng.random() < 0.4:
        o["rotary"] = s.rng.choice(["halves", "complex"]) if s.width // s.heads % 2 == 0 else None
        o = {k: v for k, v in o.items() if v is not None}
    if s.rng.random() < 0.3:
        o["window"] = s.rng.randint(1, s.tokens)
    if s.rng.random() < 0.3:
        o["bias"] = [s.rng.choice([1, n]) for n in (1, s.heads, s.tokens, s.tokens)]
    if s.rng.random() < 0.2:
        o["norms"] = True
    if o["by_hand"] and s.rng.random() < 0.3:
        o[s.rng.choice(["cap", "sinks"])] = 5.0
    return Attention(s, **o)


class MultiHead(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.inner = nn.MultiheadAttention(s.width, s.heads, batch_first=True)

    def forward(self, x):
        return x + self.inner(x, x, x, need_weights=False)[0]


class Cross(nn.Module):
    """Attention to learned keys, as many as the block likes."""

    def __init__(self, s):
        super().__init__()
        self.keys = nn.Parameter(torch.randn(s.rng.choice([1, 3, 8]), s.width))
        self.inner = nn.MultiheadAttention(s.width, s.heads, batch_first=True)

    def forward(self, x):
        keys = self.keys.expand(len(x), -1, -1)
        return x + self.inner(x, keys, keys, need_weights=False)[0]


class Convolution(nn.Module):
    """Along the tokens: depthwise and causal, or dense."""

    def __init__(self, s):
        super().__init__()
        self.causal, kernel = s.rng.random() < 0.5, s.rng.choice([1, 2, 3, 4])
        groups = s.rng.choice([1, s.width]) if self.causal else s.rng.choice([1, s.heads])
        self.cut = kernel - 1 if self.causal else 0
        self.inner = nn.Conv1d(s.width, s.width, kernel, groups=groups,
                               padding=kernel - 1 if self.causal else "same")

    def forward(self, x):
        return x + F.silu(self.inner(x.mT)[..., :x.shape[1]].mT)


class Patches(nn.Module):
    """A convolution whose kernel is its stride, over tokens that the block pads itself."""

    def __init__(self, s):
        super().__init__()
        self.n = s.rng.choice([1, 2, 3])
        self.inner = nn.Conv1d(s.width, s.width, self.n, stride=self.n)

    def forward(self, x):
        tokens = x.shape[1]
        y = F.pad(x.mT, (0, -tokens % self.n))
        return x + self.inner(y).repeat_interleave(self.n, -1)[..., :tokens].mT


class Pool(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.kind, self.n = s.rng.choice(["max", "average"]), s.rng.choice([1, 2, 3])
        self.layer = nn.Linear(s.width, s.width)

    def forward(self, x):
        y = F.pad(self.layer(x).mT, (self.n - 1, 0))
        pool = F.max_pool1d if self.kind == "max" else F.avg_pool1d
        return x + pool(y, self.n, 1).mT


class Groups(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.inner, self.layer = nn.GroupNorm(s.heads, s.width), nn.Linear(s.width, s.width)

    def forward(self, x):
        return x + self.layer(self.inner(x.mT).mT)


class BatchNorm(nn.Module):
    """Updates running statistics in train mode."""

    def __init__(self, s):
        super().__init__()
        self.inner, self.layer = nn.BatchNorm1d(s.width), nn.Linear(s.width, s.width)

    def forward(self, x):
        return x + self.layer(self.inner(x.flatten(0, 1)).view_as(x))


class Mixer(nn.Module):
    """A linear layer over the tokens."""

    def __init__(self, s):
        super().__init__()
        self.inner = nn.Linear(s.tokens, s.tokens)

    def forward(self, x):
        return x + torch.tanh(self.inner(x.mT).mT)


class Recurrence(nn.Module):
    """The delta rule: a state of keys x values, token by token."""

    def __init__(self, s):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(s.width, 4) for _ in range(3))
        self.b, self.o = nn.Linear(s.width, 1), nn.Linear(4, s.width)

    def forward(self, x):
        q, k, v, b = self.q(x), F.normalize(self.k(x), dim=-1), self.v(x), self.b(x).sigmoid()
        state, outputs = x.new_zeros(len(x), 4, 4), []
        for i in range(x.shape[1]):
            key = k[:, i, :, None]
            state = state + key * (b[:, i] * (v[:, i] - (state * key).sum(1)))[:, None]
            outputs.append((state * q[:, i, :, None]).sum(1))
        return x + self.o(torch.stack(outputs, 1))


class Running(nn.Module):
    """Sums over all tokens before."""

    def __init__(self, s):
        super().__init__()
        self.layer = nn.Linear(s.width, s.width)

    def forward(self, x):
        count = torch.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None]
        return x + self.layer(x).cumsum(1) / count


class Shift(nn.Module):
    """Moves tokens: rolls, flips, shifts, joins, cuts into windows."""

    def __init__(self, s):
        super().__init__()
        self.layer = nn.Linear(s.width, s.width)
        self.kind = s.rng.choice(["roll", "flip", "shift", "join", "windows", "halves"])
        if self.kind == "shift" and s.tokens == 1:
            self.kind = "roll"  # nothing of the layer would be left

    def forward(self, x):
        y = self.layer(x)
        if self.kind == "roll":
            return x + y.roll(1, 1) + y.roll(-2, 1)
        if self.kind == "flip":
            return x + y.flip(1) * 0.5
        if self.kind == "shift":
            return x + F.pad(y, (0, 0, 1, -1))
        if self.kind == "join":
            cut = (x.shape[1] + 1) // 2
            return x + torch.cat([y[:, cut:], y[:, :cut].tanh()], 1)
        if self.kind == "windows":
            return x + F.pad(y, (0, 0, 2, 0)).unfold(1, 3, 1).mean(-1)
        return x + torch.stack([y[..., ::2], -y[..., 1::2]], -1).flatten(-2)


class Rows(nn.Module):
    """Reads and writes rows by index."""

    def __init__(self, s, kind=None):
        super().__init__()
        self.layer = nn.Linear(s.width, s.width)
        self.kind = kind or s.rng.choice(["gather", "select", "lookup", "add", "along", "put"])
        if self.kind == "lookup":
            self.table = nn.Embedding(7, s.width)
        self.index = [s.rng.randrange(s.tokens) for _ in range(s.tokens)]

    def forward(self, x):
        y, index = self.layer(x), torch.tensor(self.index)
        if self.kind == "gather":
            return x + y[:, index]
        if self.kind == "select":
            return x + y.index_select(1, index).sigmoid()
        if self.kind == "lookup":
            return x + self.table((index * 3) % 7) * y
        if self.kind == "add":
            return x + torch.zeros_like(y).index_add(1, index, y)
        if self.kind == "copy":
            once = torch.tensor(sorted(set(self.index)))
            return x.index_copy(1, once, y[:, :len(once)])
        if self.kind == "along":
            return x + y.gather(1, index[None, :, None].expand_as(y))
        return x + y.scatter_add(1, index[None, :, None].expand_as(y), y * 0.5)


class Summary(nn.Module):
    """A number or a vector of all tokens, back to each of them."""

    def __init__(self, s):
        super().__init__()
        self.layer = nn.Linear(s.width, s.width)
        self.kind = s.rng.choice(["mean", "max", "amax", "min", "std", "logsumexp", "softmax",
                                  "norm", "prod", "spread"])

    def forward(self, x):
        y = self.layer(x)
        if self.kind == "mean":
            return x + y.mean(1, keepdim=True)
        if self.kind == "max":
            return x + y.max(1, keepdim=True).values
        if self.kind == "amax":
            return x + y.amax((1, 2), keepdim=True)
        if self.kind == "min":
            return x - y.min(-1, keepdim=True).values
        if self.kind == "std":
            return x / (y.std(-1, keepdim=True) + 1)
        if self.kind == "logsumexp":
            return x + y.logsumexp(1, keepdim=True)
        if self.kind == "softmax":
            return x + (y.softmax(1) * x).sum(1, keepdim=True)
        if self.kind == "norm":
            return x / (1 + torch.linalg.vector_norm(y, dim=1, keepdim=True))
        if self.kind == "prod":
            return x + y[..., :3].sigmoid().prod(-1, keepdim=True)
        return x + (y.amax(1, keepdim=True) - y.amin(1, keepdim=True)).log1p()


class Products(nn.Module):
    """Products of activations, by several spellings."""

    def __init__(self, s):
        super().__init__()
        self.a, self.b = nn.Linear(s.width, s.width), nn.Linear(s.width, s.width)
        self.kind = s.rng.choice(["tokens", "features", "einsum", "outer"])

    def forward(self, x):
        a, b = self.a(x), self.b(x)
        if self.kind == "tokens":
            return x + (a @ b.mT / a.shape[-1]).relu() @ x / x.shape[1]
        if self.kind == "features":
            return x + x @ torch.bmm(a.mT, b).tanh() / x.shape[-1]
        if self.kind == "einsum":
            return x + torch.einsum("btd,bsd,bse->bte", a, b, x) / (a.shape[-1] * x.shape[1])
        return x + (a[..., :2, None] * b[..., None, :]).sum(2)


class Fourier(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.layer = nn.Linear(s.width, s.width)

    def forward(self, x):
        return x + torch.fft.fft(self.layer(x), dim=1).real / x.shape[1]


class Adapter(nn.Module):
    """A frozen layer with a narrow one beside it."""

    def __init__(self, s):
        super().__init__()
        self.base = nn.Linear(s.width, s.width).requires_grad_(False)
        self.down, self.up = (nn.Linear(*shape, bias=False)
                              for shape in ((s.width, 2), (2, s.width)))

    def forward(self, x):
        return x + self.base(x) + self.up(self.down(x)) * 1.5


class Twice(nn.Module):
    """A weight that is used twice, once transposed, and a number that scales it."""

    def __init__(self, s):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2 * s.width + 1, s.width) * s.width ** -0.5)
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        return x + self.scale * (F.gelu(x @ self.weight.mT) @ self.weight)


class Ends(nn.Module):
    """Gradients end at a part of the values."""

    def __init__(self, s):
        super().__init__()
        self.a, self.b = nn.Linear(s.width, s.width), nn.Linear(s.width, s.width)

    def forward(self, x):
        with torch.no_grad():
            gate = self.a(x).sigmoid()
        return x + gate * self.b(x) + self.a(x).detach() * 0.3


class Repeated(nn.Module):
    """A part under a checkpoint of PyTorch's."""

    def __init__(self, s):
        super().__init__()
        self.inner = Mlp(s, F.silu, True, norm_of(s))

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False) if self.training else self.inner(x)


class Conditions(nn.Module):
    """Selections by comparisons of the values themselves."""

    def __init__(self, s):
        super().__init__()
        self.layer = nn.Linear(s.width, s.width)

    def forward(self, x):
        y = self.layer(x)
        z = torch.where(y > 0.1, y.square(), y * 0.3).clamp(-2, 3)
        z = z + torch.where((x > 0) ^ (x > 1), x, x.clamp(0, 1))
        return x + torch.maximum(z, torch.minimum(x, y * 2)).masked_fill(y.abs() < 1e-3, 0.5)


class Drop(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.layer, self.p = nn.Linear(s.width, s.width), s.rng.choice([0.1, 0.5])

    def forward(self, x):
        return x + F.dropout(self.layer(x), self.p, self.training)


class Noise(nn.Module):
    """Random numbers of the module's own: whole rows that are left out, and noise."""

    def __init__(self, s):
        super().__init__()
        self.layer, self.kind = nn.Linear(s.width, s.width), s.rng.choice(["rows", "noise"])

    def forward(self, x):
        y = self.layer(x)
        if not self.training:
            return x + y
        if self.kind == "rows":
            return x + y * (torch.rand(len(x), 1, 1) < 0.6) / 0.6
        return x + y + torch.randn_like(y) * 0.1


class Experts(nn.Module):
    """A mixture of experts, spelt in one of several ways."""

    def __init__(self, s):
        super().__init__()
        rng, width = s.rng, s.width
        self.how = rng.choice(["gathered", "one-hot", "masked", "sorted"])
        self.count, self.k = rng.choice([4, 5, 6]), rng.choice([1, 2, 3])
        hidden = rng.choice([width + 1, 2 * width])
        self.norm, self.router = norm_of(s), nn.Linear(width, self.count)
        self.up = nn.Parameter(torch.randn(self.count, hidden, width) * width ** -0.5)
        self.down = nn.Parameter(torch.randn(self.count, width, hidden) * hidden ** -0.5)
        self.bias = nn.Parameter(torch.randn(self.count, hidden) * 0.3) if rng.random() < 0.4 else None
        self.renormalised, self.activation = rng.random() < 0.5, rng.choice([F.silu, torch.tanh])
        self.shared = nn.Linear(width, width) if rng.random() < 0.3 else None
        self.scale, self.balance = 3 * rng.random(), rng.random() < 0.3
        with torch.no_grad():
            self.router.weight.mul_(4)

    def forward(self, x):
        y = self.norm(x).flatten(0, -2)
        p = self.router(y).softmax(-1)
        w, i = p.topk(self.k)
        if self.renormalised:
            w = w / w.sum(-1, keepdim=True)
        if self.balance:
            w = w + (F.one_hot(i, self.count).sum(1).to(p.dtype).mean(0) * p.mean(0)).sum()
        out = {"gathered": self.gathered, "one-hot": self.one_hot, "masked": self.masked,
               "sorted": self.sorted}[self.how](y, w, i)
        if self.shared is not None:
            out = out + self.shared(y)
        return x + self.scale * out.view(x.shape)

    def biased(self, h, bias):
        return self.activation(h if bias is None else h + bias)

    def gathered(self, y, w, i):
        h = torch.einsum("td,tkfd->tkf", y, self.up[i])
        h = self.biased(h, None if self.bias is None else self.bias[i])
        return (torch.einsum("tkf,tkdf->tkd", h, self.down[i]) * w[..., None]).sum(1)

    def one_hot(self, y, w, i):
        h = self.biased(y @ self.up.mT, None if self.bias is None else self.bias[:, None])
        return torch.einsum("etd,tke,tk->td", h @ self.down.mT, F.one_hot(i, self.count).to(y.dtype), w)

    def masked(self, y, w, i):
        def expert(e):
            h = self.biased(y @ self.up[e].T, None if self.bias is None else self.bias[e])
            return h @ self.down[e].T * (w * (i == e)).sum(-1, keepdim=True)
        return sum(expert(e) for e in range(self.count))

    def sorted(self, y, w, i):
        """Rows in the order of the experts, and back."""
        order = i.flatten().argsort(stable=True)
        own, rows = i.flatten()[order], y[order // self.k]
        h = torch.einsum("rd,rfd->rf", rows, self.up[own])
        h = self.biased(h, None if self.bias is None else self.bias[own])
        rows = torch.einsum("rf,rdf->rd", h, self.down[own]) * w.flatten()[order, None]
        return rows[order.argsort()].view(len(y), self.k, -1).sum(1)


_ACTIVATIONS = {
    "relu": F.relu, "gelu": F.gelu, "tanh gelu": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "softplus": F.softplus,
    "elu": F.elu, "mish": F.mish, "leaky": F.leaky_relu, "square": lambda x: x.relu().square(),
    "hardswish": F.hardswish, "sine": torch.sin, "cosine": torch.cos, "erf": torch.erf,
    "logsigmoid": F.logsigmoid, "selu": F.selu, "atan": torch.atan,
}
_FUNCTIONS = {
    "exp": lambda y: (y * 0.3).exp(), "log": lambda y: (y.abs() + 0.5).log(),
    "sqrt": lambda y: (y.square() + 0.1).sqrt(), "rsqrt": lambda y: (y.square() + 1).rsqrt(),
    "reciprocal": lambda y: (y.square() + 1).reciprocal(), "pow": lambda y: (y.abs() + 1) ** 1.7,
    "softmax": lambda y: y.softmax(-1), "log_softmax": lambda y: y.log_softmax(-1) * 0.1,
    "remainder": lambda y: torch.remainder(y, 1.3), "floor": lambda y: y.floor() * y,
    "transpose": lambda y: y.transpose(0, 1).contiguous().transpose(0, 1) * 0.5,
}

BLOCKS = {f"mlp {name}": lambda s, f=f: Mlp(s, f, s.rng.random() < 0.4, norm_of(s))
          for name, f in _ACTIVATIONS.items()}
BLOCKS |= {name: lambda s, f=f: Function(s, f) for name, f in _FUNCTIONS.items()}
BLOCKS |= {
    "attention": attention, "multi-head": MultiHead, "cross attention": Cross,
    "convolution": Convolution, "patches": Patches, "pool": Pool, "group norm": Groups,
    "batch norm": BatchNorm, "mixer": Mixer, "recurrence": Recurrence, "running": Running,
    "shift": Shift, "rows": Rows, "rows in place": lambda s: Rows(s, "copy"),
    "summary": Summary, "products": Products, "fourier": Fourier,
    "adapter": Adapter, "twice": Twice, "ends": Ends, "repeated": Repeated,
    "conditions": Conditions, "dropout": Drop, "noise": Noise, "experts": Experts,
}
#: Other blocks than these are functions of their input alone, whatever the mode.
RANDOM, STATEFUL = {"dropout", "noise"}, {"batch norm"}
#: PyTorch has no transform of Fourier's in bf16. Rounding to bf16 changes the choices of experts.
NOT_BF16 = {"fourier", "experts"}


# Losses: of the last block's values and labels [batch, tokens], some of which are -100.

class Classes(nn.Module):
    """Cross entropy with options, or spelt out."""

    def __init__(self, s):
        super().__init__()
        self.head = nn.Linear(s.width, CLASSES, bias=s.rng.random() < 0.5)
        self.kind = s.rng.choice(["plain", "smooth", "weighted", "sum", "chunks", "by hand", "flat"])

    def forward(self, x, labels):
        z = self.head(x)
        flat, own = z.flatten(0, 1), labels.flatten()
        if self.kind == "smooth":
            return F.cross_entropy(flat, own, label_smoothing=0.1)
        if self.kind == "weighted":
            weight = torch.linspace(0.5, 2, CLASSES, dtype=z.dtype)
            return F.cross_entropy(z.mT, labels, weight=weight)
        if self.kind == "sum":
            return F.cross_entropy(flat, own, reduction="sum") / 100
        if self.kind == "chunks":
            parts = zip(z.chunk(3, 1), labels.chunk(3, 1), strict=True)
            losses = [F.cross_entropy(a.flatten(0, 1), b.flatten(), reduction="sum")
                      for a, b in parts]
            return sum(losses) / (labels != -100).sum()
        if self.kind == "by hand":
            chosen = z.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None]).squeeze(-1)
            return -(chosen * (labels != -100)).sum() / (labels != -100).sum()
        return F.cross_entropy(flat, own)


class Numbers(nn.Module):
    """Distances from targets that follow from the labels."""

    def __init__(self, s):
        super().__init__()
        self.head = nn.Linear(s.width, 3)
        self.kind = s.rng.choice(["square", "huber", "smooth", "absolute", "binary", "divergence",
                                  "logistic", "cosine"])

    def forward(self, x, labels):
        z = self.head(x)
        y = torch.stack([(labels + k).to(z.dtype).cos() for k in range(3)], -1)
        if self.kind == "square":
            return F.mse_loss(z, y)
        if self.kind == "huber":
            return F.huber_loss(z, y, delta=0.7)
        if self.kind == "smooth":
            return F.smooth_l1_loss(z, y, beta=0.3)
        if self.kind == "absolute":
            return (z - y).abs().mean()
        if self.kind == "binary":
            return F.binary_cross_entropy_with_logits(z, (y > 0).to(z.dtype))
        if self.kind == "divergence":
            return F.kl_div(z.log_softmax(-1), y.softmax(-1), reduction="batchmean")
        if self.kind == "logistic":
            return -F.logsigmoid(z * y).mean()
        return (1 - F.cosine_similarity(z, y, dim=-1)).mean()


class Contrast(nn.Module):
    """Over the whole batch."""

    def __init__(self, s):
        super().__init__()
        self.a, self.b = nn.Linear(s.width, 6), nn.Linear(s.width, 6)

    def forward(self, x, labels):
        a, b = (F.normalize(f(x.mean(1)), dim=-1) for f in (self.a, self.b))
        return F.cross_entropy(3 * a @ b.mT, torch.arange(len(x)))


LOSSES = {"classes": Classes, "numbers": Numbers, "contrast": Contrast}
