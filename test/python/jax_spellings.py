# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A Llama in pure JAX, with layers in a list or stacked for a scan, and its loss. Without JAX nothing runs."""
import numpy as np

VOCABULARY, WIDTH, HEADS, GROUPS, HIDDEN = 61, 32, 4, 2, 48
_COUNT = [0]


def w(*shape, by=0.2, at=0.0):
    _COUNT[0] += 1
    return (at + by * np.random.default_rng(_COUNT[0]).standard_normal(shape)).astype(np.float32)


def wide(tree):
    import jax
    import jax.numpy as jnp

    return jax.tree.map(lambda a: jnp.asarray(np.asarray(a, np.float64) if jnp.issubdtype(a.dtype, jnp.floating) else a), tree)


def ids(batch=4, tokens=8):
    return np.random.default_rng(5).integers(0, VOCABULARY, (batch, tokens)).astype(np.int32)


def llama(stack=False, layers=2):
    import jax

    size = WIDTH // HEADS
    layer = lambda: dict(n=w(WIDTH, at=1.0), m=w(WIDTH, at=1.0), q=w(WIDTH, HEADS, size), k=w(WIDTH, GROUPS, size),
                         v=w(WIDTH, GROUPS, size), o=w(HEADS, size, WIDTH), gate=w(WIDTH, HIDDEN), up=w(WIDTH, HIDDEN),
                         down=w(HIDDEN, WIDTH))
    each = [layer() for _ in range(layers)]
    return dict(embed=w(VOCABULARY, WIDTH), layers=jax.tree.map(lambda *a: np.stack(a), *each) if stack else each,
                norm=w(WIDTH, at=1.0), head=w(WIDTH, VOCABULARY))


def run_llama(params, tokens):
    import jax
    import jax.numpy as jnp

    def rms(x, g):
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * g

    def rope(x):
        half = x.shape[-1] // 2
        a = jnp.arange(x.shape[1])[:, None] * 10000.0 ** -(jnp.arange(half) / half)
        s, c = jnp.sin(a)[:, None].astype(x.dtype), jnp.cos(a)[:, None].astype(x.dtype)
        p, q = jnp.split(x, 2, -1)
        return jnp.concatenate([p * c - q * s, q * c + p * s], -1)

    def block(x, p):
        y = rms(x, p["n"])
        q, k, v = (jnp.einsum("btd,dhk->bthk", y, p[n]) for n in "qkv")
        a = jax.nn.dot_product_attention(rope(q), rope(k), v, is_causal=True)
        x = x + jnp.einsum("bthk,hkd->btd", a, p["o"])
        y = rms(x, p["m"])
        return x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]

    x = params["embed"][tokens]
    if isinstance(params["layers"], list):
        for p in params["layers"]:
            x = block(x, p)
    else:
        x, _ = jax.lax.scan(lambda x, p: (block(x, p), None), x, params["layers"])
    return rms(x, params["norm"]) @ params["head"]


def loss(model):
    import jax
    import jax.numpy as jnp

    def of(params, tokens, labels):
        logs = jax.nn.log_softmax(model(params, tokens), -1)
        return -jnp.take_along_axis(logs, labels[..., None], -1).mean()
    return of
