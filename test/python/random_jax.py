# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Random functions of JAX, of the operations that the import covers.

    function, params, inputs = draw(seed)

A function is a list of steps. Each reads values that are there and adds one. Values stay of a size near 1, so that
an error is one of the import and not of rounding.
"""
import jax
import jax.numpy as jnp
import numpy as np

_DIMS = (1, 2, 3, 4, 6)


class Draw:
    """The state of one function while it is drawn: shapes of values, and steps that compute them."""

    def __init__(self, seed: int):
        self.r = np.random.default_rng(seed)
        #: (shape, is float) of each value.
        self.values: list[tuple[tuple[int, ...], bool]] = []
        self.steps, self.params, self.inputs = [], {}, []

    def pick(self, want=lambda shape: True, floats=True) -> int | None:
        fits = [i for i, (shape, is_float) in enumerate(self.values) if is_float == floats and want(shape)]
        return int(self.r.choice(fits[-6:])) if fits else None

    def shape(self, rank=None) -> tuple[int, ...]:
        rank = self.r.integers(1, 5) if rank is None else rank
        return tuple(int(n) for n in self.r.choice(_DIMS, rank))

    def weight(self, shape) -> str:
        name = f"w{len(self.params)}"
        self.params[name] = self.r.standard_normal(shape) * 0.5
        return name

    def add(self, function, *sources):
        """A step: `function` of the parameters and the values at `sources`."""
        shapes = [jax.ShapeDtypeStruct(self.values[s][0], np.float64 if self.values[s][1] else np.int64) for s in sources]
        params = {name: jax.ShapeDtypeStruct(v.shape, np.float64) for name, v in self.params.items()}
        result = jax.eval_shape(function, params, *shapes)
        if 0 < np.prod(result.shape, dtype=int) < 5000 and len(result.shape) < 6:
            self.steps.append((function, sources))
            self.values.append((result.shape, result.dtype == np.float64))


_UNARY = [jnp.sin, jnp.cos, jnp.tanh, jax.nn.sigmoid, jax.nn.relu, jax.nn.silu, jax.nn.gelu, jnp.abs, jnp.negative,
          lambda x: jax.nn.gelu(x, approximate=False), lambda x: jnp.exp(-jnp.abs(x)), lambda x: jnp.log1p(jnp.abs(x)),
          lambda x: jnp.sqrt(jnp.square(x) + 0.1), lambda x: jax.lax.rsqrt(jnp.square(x) + 0.5), lambda x: jnp.expm1(x / 4),
          lambda x: jnp.clip(x, -0.7, 0.6), lambda x: jnp.floor(x * 3) / 3, lambda x: jnp.sign(x) * x, jax.nn.softplus,
          lambda x: jax.scipy.special.erf(x), lambda x: x ** 3 / 4, lambda x: jnp.round(x * 2) / 2, jnp.ceil,
          lambda x: jnp.where(x > 0.1, x, 0.2 * x), lambda x: (x > 0).astype(x.dtype), lambda x: jnp.cbrt(x)]
_BINARY = [jnp.add, jnp.subtract, lambda x, y: x * y / 2, jnp.maximum, jnp.minimum, lambda x, y: x / (1 + y * y),
           lambda x, y: jnp.where(x < y, x, y / 2), lambda x, y: jnp.hypot(x, y) / 2, lambda x, y: jnp.mod(x, jnp.abs(y) + 1)]


def _unary(d):
    i, f = d.pick(), _UNARY[d.r.integers(len(_UNARY))]
    d.add(lambda p, x: f(x), i)


def _binary(d):
    i = d.pick()
    shape = d.values[i][0]
    f = _BINARY[d.r.integers(len(_BINARY))]
    other = d.pick(lambda s: s == shape)
    if d.r.random() < 0.4:
        cut = d.r.integers(0, len(shape) + 1)
        w = d.weight([1 if d.r.random() < 0.3 else n for n in shape[cut:]])
        d.add((lambda p, x: f(x, p[w])) if d.r.random() < 0.5 else (lambda p, x: f(p[w], x)), i)
    else:
        d.add(lambda p, x, y: f(x, y), i, other)


def _reduce(d):
    i = d.pick(lambda s: len(s) > 0)
    rank = len(d.values[i][0])
    dims = tuple(int(a) for a in d.r.permutation(rank)[:d.r.integers(1, rank + 1)])
    keep, f = bool(d.r.integers(2)), [jnp.sum, jnp.mean, jnp.max, jnp.min, jnp.var, jnp.std, jax.nn.logsumexp][d.r.integers(7)]
    scale = 1 / 4 if f is jnp.sum else 1
    if f is jnp.std:
        d.add(lambda p, x: jnp.sqrt(jnp.var(x, dims, keepdims=keep) + 0.1), i)
    else:
        d.add(lambda p, x: scale * f(x, axis=dims, keepdims=keep), i)


def _move(d):
    i = d.pick(lambda s: len(s) > 1)
    if i is None:
        return
    shape = d.values[i][0]
    kind = d.r.integers(7)
    axis = int(d.r.integers(len(shape)))
    if kind == 0:
        order = tuple(int(a) for a in d.r.permutation(len(shape)))
        d.add(lambda p, x: x.transpose(order), i)
    elif kind == 1:
        d.add(lambda p, x: x.reshape(*shape[:axis], -1) if axis else x.reshape(-1, shape[-1]), i)
    elif kind == 2:
        start = int(d.r.integers(shape[axis]))
        stop, step = int(d.r.integers(start, shape[axis])) + 1, int(d.r.integers(1, 3))
        at = (slice(None),) * axis + (slice(start, stop, step),)
        d.add(lambda p, x: x[at], i)
    elif kind == 3:
        d.add(lambda p, x: jnp.concatenate([x, -x[(slice(None),) * axis + (slice(0, 1),)]], axis), i)
    elif kind == 4:
        d.add(lambda p, x: jnp.flip(x, axis), i)
    elif kind == 5:
        pads = [(int(d.r.integers(2)), int(d.r.integers(2))) for _ in shape]
        d.add(lambda p, x: jnp.pad(x, pads, constant_values=0.3), i)
    else:
        d.add(lambda p, x: jnp.roll(x, 1, axis), i)


def _product(d):
    """An einsum with dimensions anywhere, with weights or values."""
    i = d.pick(lambda s: 0 < len(s) < 5)
    shape = d.values[i][0]
    letters = list("abcd"[:len(shape)])
    r = d.r
    batch = [a for a in letters if r.random() < 0.3]
    rest = [a for a in letters if a not in batch]
    summed = [a for a in rest if r.random() < 0.6] or rest[-1:]
    own = [a for a in "xy"[:r.integers(1, 3)]]
    other = [str(a) for a in r.permutation(batch + summed + own)]
    size = dict(zip(letters, shape)) | {a: int(r.choice(_DIMS)) for a in own}
    out = [str(a) for a in r.permutation([a for a in letters if a not in summed] + own)]
    w = d.weight([size[a] for a in other])
    scale = 1 / np.sqrt(max(1, np.prod([size[a] for a in summed])))
    text = f"{''.join(letters)},{''.join(other)}->{''.join(out)}" if r.random() < 0.5 else None
    swapped = f"{''.join(other)},{''.join(letters)}->{''.join(out)}"
    if text:
        d.add(lambda p, x: jnp.einsum(text, x, p[w]) * scale, i)
    else:
        d.add(lambda p, x: jnp.einsum(swapped, p[w], x) * scale, i)


def _normal(d):
    i = d.pick(lambda s: len(s) > 1 and s[-1] > 1)
    if i is None:
        return
    n = d.values[i][0][-1]
    kind, g, b = d.r.integers(5), d.weight((n,)), d.weight((n,))
    mean = lambda x: x.mean(-1, keepdims=True)
    norms = [lambda p, x: x * jax.lax.rsqrt(mean(x * x) + 1e-5) * p[g],
             lambda p, x: (x - mean(x)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-3) * p[g] + p[b],
             lambda p, x: (x - mean(x)) * (jax.lax.rsqrt(jnp.maximum(0, mean(x * x) - mean(x) ** 2) + 1e-3) * p[g]) + p[b],
             lambda p, x: jax.nn.softmax(x, -1),
             lambda p, x: jax.nn.log_softmax(x, -1) / 4]
    d.add(norms[kind], i)


def _attention(d):
    i = d.pick(lambda s: len(s) == 3 and s[1] > 1 and s[2] > 1)
    if i is None:
        return
    b, t, n = d.values[i][0]
    heads, size = int(d.r.choice([2, 4])), int(d.r.choice([2, 4]))
    groups = int(d.r.choice([1, 2]))
    q, k, v, o = (d.weight(s) for s in ((n, heads, size), (n, groups, size), (n, groups, size), (heads, size, n)))
    causal = bool(d.r.integers(2))

    def attend(p, x):
        a, c, e = (jnp.einsum("btd,dhk->bthk", x, p[w]) for w in (q, k, v))
        return jnp.einsum("bthk,hkd->btd", jax.nn.dot_product_attention(a, c, e, is_causal=causal), p[o]) / 4
    d.add(attend, i)


def _index(d):
    kind = d.r.integers(6)
    i = d.pick(lambda s: len(s) > 0)
    shape = d.values[i][0]
    axis = int(d.r.integers(len(shape)))
    if kind == 0:
        rows = d.weight((7, 4))
        ids = jnp.asarray(d.r.integers(0, 7, d.shape(2)))
        d.add(lambda p, x: p[rows][ids] + 0 * x.sum(), i)
    elif kind == 1:
        at = jnp.asarray(d.r.integers(-shape[axis], shape[axis], 3))
        d.add(lambda p, x: jnp.take(x, at, axis), i)
    elif kind == 2:
        d.add(lambda p, x: jnp.take_along_axis(x, jnp.argsort(x, axis), axis), i)
    elif kind == 3:
        d.add(lambda p, x: jax.nn.one_hot(jnp.argmax(x, axis), shape[axis], dtype=x.dtype) / 2, i)
    elif kind == 4:
        d.add(lambda p, x: jnp.cumsum(x, axis) / shape[axis], i)
    else:
        d.add(lambda p, x: jax.lax.dynamic_slice_in_dim(x, (jnp.abs(x).sum() * 3).astype(int) % 2, max(1, shape[axis] - 1), axis), i)


def _loop(d):
    i = d.pick(lambda s: 0 < len(s) < 4)
    shape = d.values[i][0]
    layers = d.weight((3, *shape))
    if d.r.random() < 0.5:
        d.add(lambda p, x: jax.lax.scan(lambda c, w: (jnp.tanh(c + w), c * w), x, p[layers])[0], i)
    else:
        d.add(lambda p, x: jax.lax.scan(lambda c, w: (jnp.tanh(c + w), c * w), x, p[layers])[1], i)


_KINDS = [_unary] * 4 + [_binary] * 4 + [_reduce] * 2 + [_move] * 3 + [_product] * 3 + [_normal] * 2 + \
    [_attention, _attention, _index, _index, _loop]


def draw(seed: int, steps: int = 12):
    """A function of (params, *inputs), its parameters and its inputs, in f64. Call it with jax.enable_x64."""
    d = Draw(seed)
    for rank in (3, int(d.r.integers(1, 4))):
        shape = d.shape(rank)
        d.inputs.append(d.r.standard_normal(shape))
        d.values.append((shape, True))
    for _ in range(steps):
        _KINDS[d.r.integers(len(_KINDS))](d)
    count, plan = len(d.inputs), list(d.steps)

    def function(params, *inputs):
        values = list(inputs)
        for step, sources in plan:
            values.append(step(params, *(values[s] for s in sources)))
        return values[count:][-3:]

    return function, d.params, d.inputs
