# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Small transformers in the spellings of JAX's users: pure JAX, Flax nnx and linen, Equinox.

Each function gives (what to import, its arguments, the same as a function of weights, the weights, the ops that the
import is to recognise). Weights are None where the module itself is imported; `function(weights, *inputs)` is the
truth in any case.
"""
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

VOCABULARY, WIDTH, HEADS, HIDDEN, TOKENS = 61, 32, 4, 48, 11


class Case(NamedTuple):
    imported: Any
    #: The arguments behind the weights.
    inputs: tuple
    function: Any
    weights: Any
    expected: dict[str, int]
    #: Whether the import takes the weights as its first argument.
    takes_weights: bool = True


def draw(*shape, seed=[0], by=0.2, at=0.0):
    seed[0] += 1
    return (at + by * np.random.default_rng(seed[0]).standard_normal(shape)).astype(np.float32)


def ids(batch=2, tokens=TOKENS):
    return np.random.default_rng(0).integers(1, VOCABULARY, (batch, tokens)).astype(np.int32)


def gpt2():
    """One projection for queries, keys and values, learned positions, tied embeddings, post-scaled scores."""
    def norm(x, g, b):
        m, v = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return g * (x - m) / jnp.sqrt(v + 1e-5) + b

    def attention(x, p):
        q, k, v = jnp.split(x @ p["qkv"]["w"] + p["qkv"]["b"], 3, -1)
        q, k, v = (y.reshape(*y.shape[:2], HEADS, -1).transpose(0, 2, 1, 3) for y in (q, k, v))
        scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(q.shape[-1])
        mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1])))
        scores = scores * mask - 1e10 * (1 - mask)
        y = jax.nn.softmax(scores) @ v
        return y.transpose(0, 2, 1, 3).reshape(x.shape) @ p["o"]["w"] + p["o"]["b"]

    def model(params, tokens):
        x = params["wte"][tokens] + params["wpe"][:tokens.shape[1]]
        for p in params["blocks"]:
            x = x + attention(norm(x, *p["n1"]), p)
            y = norm(x, *p["n2"])
            x = x + jax.nn.gelu(y @ p["up"]["w"] + p["up"]["b"]) @ p["down"]["w"] + p["down"]["b"]
        return norm(x, *params["n"]) @ params["wte"].T

    layer = lambda n, m: dict(w=draw(n, m), b=draw(m))
    block = lambda: dict(n1=(draw(WIDTH, at=1.0), draw(WIDTH)), n2=(draw(WIDTH, at=1.0), draw(WIDTH)),
                         qkv=layer(WIDTH, 3 * WIDTH), o=layer(WIDTH, WIDTH), up=layer(WIDTH, HIDDEN),
                         down=layer(HIDDEN, WIDTH))
    params = dict(wte=draw(VOCABULARY, WIDTH), wpe=draw(64, WIDTH), blocks=[block(), block()],
                  n=(draw(WIDTH, at=1.0), draw(WIDTH)))
    return Case(model, (ids(),), model, params, {"attention": 2, "layer_norm": 5, "gelu": 2, "embedding": 1})


def nnx_scanned():
    """Layers that nnx.vmap makes and nnx.scan runs, each recomputed for the backward pass."""
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, rngs):
            self.norm, self.other = nnx.RMSNorm(WIDTH, rngs=rngs), nnx.RMSNorm(WIDTH, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, use_bias=False, rngs=rngs)
            self.up, self.down = nnx.Linear(WIDTH, HIDDEN, rngs=rngs), nnx.Linear(HIDDEN, WIDTH, rngs=rngs)

        def __call__(self, x):
            x = x + self.attention(self.norm(x), mask=nnx.make_causal_mask(jnp.ones(x.shape[:2])))
            return x + self.down(nnx.silu(self.up(self.other(x))))

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.embed = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)

            @nnx.split_rngs(splits=2)
            @nnx.vmap(in_axes=(0,), out_axes=0)
            def layers(rngs):
                return Block(rngs)
            self.layers = layers(rngs)

        def __call__(self, tokens):
            @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
            @nnx.remat
            def forward(x, layer):
                return layer(x)
            return self.embed.attend(forward(self.embed(tokens), self.layers))

    net = Net(nnx.Rngs(0))
    graph, state = nnx.split(net)
    return Case(net, (ids(),), lambda s, i: nnx.merge(graph, s)(i), state,
                {"attention": 2, "rms_norm": 4, "silu": 2, "embedding": 1}, False)


def linen_scanned():
    """Layers that linen's scan stacks, with dropout that is off."""
    import flax.linen as nn

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            y = nn.LayerNorm(epsilon=1e-5)(x)
            y = nn.SelfAttention(HEADS, dropout_rate=0.1, deterministic=True)(y, nn.make_causal_mask(jnp.ones(x.shape[:2])))
            x = x + nn.Dropout(0.1, deterministic=True)(y)
            y = nn.Dense(HIDDEN)(nn.LayerNorm(epsilon=1e-5)(x))
            return x + nn.Dense(WIDTH)(nn.relu(y)), None

    class Net(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            x = nn.Embed(VOCABULARY, WIDTH)(tokens)
            x = x + self.param("positions", nn.initializers.normal(0.1), (64, WIDTH))[:tokens.shape[1]]
            layers = nn.scan(nn.remat(Block), variable_axes={"params": 0}, split_rngs={"params": True}, length=2)
            return nn.Dense(VOCABULARY)(layers()(x, None)[0])

    net = Net()
    variables = net.init(jax.random.key(0), ids())
    return Case(net, (ids(),), net.apply, variables, {"attention": 2, "layer_norm": 4, "relu": 2, "embedding": 1})


def linen_vision():
    """A vision transformer by linen's convolution, with the mean of the tokens as the result."""
    import flax.linen as nn

    class Net(nn.Module):
        @nn.compact
        def __call__(self, image):
            x = nn.Conv(WIDTH, (4, 4), strides=(4, 4), padding="VALID")(image)
            x = x.reshape(len(x), -1, WIDTH)
            x = x + self.param("positions", nn.initializers.normal(0.1), (1, x.shape[1], WIDTH))
            for _ in range(2):
                y = nn.LayerNorm()(x)
                x = x + nn.MultiHeadDotProductAttention(HEADS)(y, y)
                x = x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(HIDDEN)(nn.LayerNorm()(x)), approximate=False))
            return nn.Dense(10)(nn.LayerNorm()(x).mean(1))

    net, image = Net(), np.random.default_rng(1).standard_normal((2, 16, 16, 3)).astype(np.float32)
    return Case(net.apply, (image,), net.apply, net.init(jax.random.key(1), image),
                {"attention": 2, "layer_norm": 5, "gelu": 2})


def equinox_llama():
    """An Equinox module of one sequence, mapped over the batch by filter_vmap: keys have fewer heads."""
    import equinox as eqx

    class Attention(eqx.Module):
        q: eqx.nn.Linear
        k: eqx.nn.Linear
        v: eqx.nn.Linear
        o: eqx.nn.Linear

        def __init__(self, keys):
            linear = functools.partial(eqx.nn.Linear, use_bias=False)
            self.q, self.o = linear(WIDTH, WIDTH, key=keys[0]), linear(WIDTH, WIDTH, key=keys[3])
            self.k, self.v = (linear(WIDTH, WIDTH // 2, key=key) for key in keys[1:3])

        def __call__(self, x):
            heads = lambda linear, n: jax.vmap(linear)(x).reshape(len(x), n, -1)
            q, k, v = heads(self.q, HEADS), heads(self.k, HEADS // 2), heads(self.v, HEADS // 2)
            k, v = jnp.repeat(k, 2, 1), jnp.repeat(v, 2, 1)
            scores = jnp.einsum("thd,shd->hts", q, k) / math.sqrt(q.shape[-1])
            scores = jnp.where(jnp.tril(jnp.ones((len(x), len(x)), bool)), scores, -jnp.inf)
            y = jnp.einsum("hts,shd->thd", jax.nn.softmax(scores, -1), v)
            return jax.vmap(self.o)(y.reshape(len(x), -1))

    class Block(eqx.Module):
        attention: Attention
        gate: eqx.nn.Linear
        down: eqx.nn.Linear
        norms: list

        def __init__(self, key):
            keys = jax.random.split(key, 6)
            self.attention = Attention(keys[:4])
            self.gate = eqx.nn.Linear(WIDTH, 2 * HIDDEN, use_bias=False, key=keys[4])
            self.down = eqx.nn.Linear(HIDDEN, WIDTH, use_bias=False, key=keys[5])
            self.norms = [eqx.nn.RMSNorm(WIDTH, use_bias=False) for _ in range(2)]

        def __call__(self, x):
            x = x + self.attention(jax.vmap(self.norms[0])(x))
            gate, up = jnp.split(jax.vmap(self.gate)(jax.vmap(self.norms[1])(x)), 2, -1)
            return x + jax.vmap(self.down)(jax.nn.silu(gate) * up)

    class Net(eqx.Module):
        embed: eqx.nn.Embedding
        blocks: list
        head: eqx.nn.Linear

        def __init__(self, key):
            keys = jax.random.split(key, 4)
            self.embed = eqx.nn.Embedding(VOCABULARY, WIDTH, key=keys[0])
            self.blocks = [Block(key) for key in keys[1:3]]
            self.head = eqx.nn.Linear(WIDTH, VOCABULARY, key=keys[3])

        def __call__(self, tokens):
            x = jax.vmap(self.embed)(tokens)
            for block in self.blocks:
                x = block(x)
            return jax.vmap(self.head)(x)

    net = Net(jax.random.key(2))
    params, static = eqx.partition(net, eqx.is_array)
    return Case(eqx.filter_vmap(net), (ids(),), lambda p, i: jax.vmap(eqx.combine(p, static))(i), params,
                {"attention": 2, "rms_norm": 4, "silu": 2, "embedding": 1}, False)


def cross_attention():
    """A decoder that reads an encoder of another length, and keys that are padding; softmax by hand."""
    def attend(p, x, y, seen):
        q, k, v = (jnp.einsum("btd,dhk->bhtk", z, p[n]) for z, n in ((x, "q"), (y, "k"), (y, "v")))
        scores = jnp.where(seen, jnp.einsum("bhtk,bhsk->bhts", q, k) * q.shape[-1] ** -0.5, -1e9)
        e = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
        return jnp.einsum("bhts,bhsk,hkd->btd", e / e.sum(-1, keepdims=True), v, p["o"])

    def rms(x, g):
        return g * (x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6))

    def model(params, source, target):
        padding = (source != 0)[:, None, None]
        memory, x = params["embed"][source], params["embed"][target]
        causal = jnp.arange(x.shape[1])[:, None] >= jnp.arange(x.shape[1])
        for p in params["encoder"]:
            y = rms(memory, p["n"])
            memory = memory + attend(p, y, y, padding)
        for p, c in params["decoder"]:
            y = rms(x, p["n"])
            x = x + attend(p, y, y, causal)
            x = x + attend(c, rms(x, c["n"]), memory, padding)
        return x @ params["embed"].T

    part = lambda: dict(n=draw(WIDTH, at=1.0), o=draw(HEADS, 8, WIDTH), **{n: draw(WIDTH, HEADS, 8) for n in "qkv"})
    params = dict(embed=draw(VOCABULARY, WIDTH), encoder=[part()], decoder=[(part(), part())])
    source = ids(2, 9)
    source[0, 6:] = 0
    return Case(model, (source, ids()), model, params, {"attention": 3, "rms_norm": 3, "embedding": 2})


def experts():
    """Two of four experts for each token, by one-hot weights over products with all experts."""
    def model(params, x):
        scores = jax.nn.softmax(x @ params["router"], -1)
        best, chosen = jax.lax.top_k(scores, 2)
        best = best / best.sum(-1, keepdims=True)
        weights = (jax.nn.one_hot(chosen, 4) * best[..., None]).sum(-2)
        h = jax.nn.silu(jnp.einsum("btd,edf->btef", x, params["gate"])) * jnp.einsum("btd,edf->btef", x, params["up"])
        return jnp.einsum("btef,efd,bte->btd", h, params["down"], weights)

    params = dict(router=draw(WIDTH, 4), gate=draw(4, WIDTH, HIDDEN), up=draw(4, WIDTH, HIDDEN), down=draw(4, HIDDEN, WIDTH))
    return Case(model, (draw(2, TOKENS, WIDTH),), model, params, {"top_k": 1, "silu": 1})


MODELS = [gpt2, nnx_scanned, linen_scanned, linen_vision, equinox_llama, cross_attention, experts]
