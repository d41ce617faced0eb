#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Parallelises a Llama in Flax, checks it against JAX, and trains it beside optax.

The model is unchanged: the import takes the nnx module as it is. Both sides of the training start from the same
weights and see the same batches.

    python examples/jax_llama.py [--mesh dp=2,tp=4] [--steps 10] [--layers 2] [--width 64]
"""

import argparse

import jax
import jax.numpy as jnp
import meshwright as mw
import numpy as np
import optax
from flax import nnx


def rotated(x):
    """Rotary position embedding of x [batch, tokens, heads, features], by halves of a head."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * 10000.0 ** -(jnp.arange(half) / half)
    sin, cos = jnp.sin(angles)[:, None], jnp.cos(angles)[:, None]
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


class Block(nnx.Module):
    def __init__(self, width, heads, kv_heads, hidden, rngs):
        head = width // heads

        def heads_of(n):
            return nnx.LinearGeneral(width, (n, head), use_bias=False, rngs=rngs)

        self.q, self.k, self.v = heads_of(heads), heads_of(kv_heads), heads_of(kv_heads)
        self.o = nnx.LinearGeneral((heads, head), width, axis=(-2, -1), use_bias=False, rngs=rngs)
        self.gate, self.up = (nnx.Linear(width, hidden, use_bias=False, rngs=rngs) for _ in range(2))
        self.down = nnx.Linear(hidden, width, use_bias=False, rngs=rngs)
        self.before, self.after = nnx.RMSNorm(width, rngs=rngs), nnx.RMSNorm(width, rngs=rngs)

    def __call__(self, x):
        y = self.before(x)
        y = jax.nn.dot_product_attention(rotated(self.q(y)), rotated(self.k(y)), self.v(y), is_causal=True)
        x = x + self.o(y)
        y = self.after(x)
        return x + self.down(nnx.silu(self.gate(y)) * self.up(y))


class Llama(nnx.Module):
    def __init__(self, vocabulary, width, layers, heads, kv_heads, rngs):
        self.embed = nnx.Embed(vocabulary, width, rngs=rngs)
        self.blocks = nnx.List([Block(width, heads, kv_heads, 3 * width, rngs) for _ in range(layers)])
        self.norm = nnx.RMSNorm(width, rngs=rngs)
        self.head = nnx.Linear(width, vocabulary, use_bias=False, rngs=rngs)

    def __call__(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def parse():
    def mesh(text):
        return {name: int(size) for name, size in (axis.split("=") for axis in text.split(","))}

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mesh", type=mesh, default={"dp": 2, "tp": 4}, help="axes, as in dp=2,tp=4")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32)
    return parser.parse_args()


def main():
    options = parse()
    vocabulary = 128
    llama = Llama(vocabulary, options.width, options.layers, 8, 4, nnx.Rngs(0))
    ids = np.random.default_rng(0).integers(0, vocabulary, (options.batch, options.tokens), np.int32)

    # Inference: the module as it is. JAX arrays go in and come out.
    model = mw.from_jax(llama, (ids,))
    plan = model.parallelize(mesh=options.mesh, sequence_parallel="on")
    report = plan.report(format="json")
    print(f"plan for {plan.ranks} ranks: {report['launches_per_rank']} launches, {report['bytes_per_rank']} bytes a rank")
    logits, want = plan.run(jnp.asarray(ids))[0], llama(ids)
    difference = float(jnp.abs(logits - want).max() / jnp.abs(want).max())
    print(f"largest difference from JAX: {difference:.1e}")

    # Training: a function of parameters, whose gradients are those of jax.grad.
    graph, params = nnx.split(llama)

    def loss(params, ids, labels):
        logits = nnx.merge(graph, params)(ids)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    labels = np.roll(ids, -1, 1)
    train = mw.from_jax(loss, (params, ids, labels), training=True).train(mw.AdamW(lr=1e-2, weight_decay=0.1))
    optimizer = optax.adamw(1e-2, weight_decay=0.1)
    state = optimizer.init(params)

    @jax.jit
    def step(params, state):
        value, gradients = jax.value_and_grad(loss)(params, ids, labels)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    worst = 0.0
    with train.parallelize(mesh=options.mesh, sequence_parallel="on").start() as session:
        print("step  meshwright  optax")
        for number in range(options.steps):
            ours = float(session.run(ids, labels)[0])
            params, state, theirs = step(params, state)
            worst = max(worst, abs(ours - float(theirs)))
            print(f"{number:4}  {ours:10.6f}  {float(theirs):8.6f}")
    print(f"largest difference of a loss: {worst:.1e}")


if __name__ == "__main__":
    main()
