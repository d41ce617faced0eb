# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Random functions of JAX, and each operation by itself, compute as JAX does in f64.

One seed again: test_jax_programs.py SEED
"""
import sys

import meshwright as mw
import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="scripts/setup.sh --jax")
import jax.numpy as jnp  # noqa: E402
import random_jax  # noqa: E402

MESHES = [{"tp": 1}, {"dp": 2, "tp": 2}, {"tp": 3}]


def compare(function, params, inputs, mesh, bound=1e-6):
    """In f64, on both sides: the largest difference is relative to the largest entry, or to 1."""
    with jax.enable_x64(True):
        want = [np.asarray(x) for x in jax.tree.leaves(jax.jit(function)(params, *inputs))]
        got = mw.from_jax(function, (params, *inputs)).parallelize(mesh=mesh).run(*inputs)
    assert len(got) == len(want)
    for g, x in zip(got, want):
        assert g.shape == x.shape and (g.dtype == x.dtype or x.dtype.kind == "u" or x.dtype.itemsize < 4)
        error = np.abs(g.astype(np.float64) - x.astype(np.float64)).max() / max(1.0, np.abs(x.astype(np.float64)).max())
        assert error <= bound


@pytest.mark.parametrize("seed", range(4))
def test_random_function(seed):
    function, params, inputs = random_jax.draw(seed)
    compare(function, params, inputs, MESHES[seed % 3])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4, 40))
def test_random_function_more(seed):
    function, params, inputs = random_jax.draw(seed)
    compare(function, params, inputs, MESHES[seed % 3])


def r(*shape):
    return np.random.default_rng(sum(shape) + len(shape)).standard_normal(shape)


I = np.random.default_rng(1).integers(0, 5, (3, 4))
_CONV = dict(dimension_numbers=("NHWC", "HWIO", "NHWC"))

#: A function of weights and inputs for each kind of operation, and what it is called with.
POINTS = {
    "integers": (lambda p, i: (i // 2, i % 3, -i // 2, -i % 3, jnp.sign(i - 2), i ** 2, jnp.abs(-i), i & 1, i | 2, i ^ 3, ~i,
                               jax.lax.rem(i - 2, 2), jax.lax.div(2 - i, 2)), {}, (I,)),
    "unsigned integers": (lambda p, i: (
        (i.astype(jnp.uint32) - 3) // 2, (i.astype(jnp.uint8) * 100 + 7).astype(int), -i.astype(jnp.uint16) + i[0, 0].astype(jnp.uint16),
        jnp.searchsorted(jnp.arange(5), i), ~i.astype(jnp.uint32) % 10), {}, (I,)),
    "narrow integers": (lambda p, i: ((i.astype(jnp.int8) * 60).astype(int), (i.astype(jnp.int16) * 20000 - 5).astype(int),
                                      (i * 200).astype(jnp.uint8).astype(int), (i * 90).astype(jnp.int8).astype(int),
                                      jnp.full((2,), 100, jnp.int8) + jnp.full((2,), 100, jnp.int8)), {}, (I,)),
    "to integers": (lambda p, x: ((x * 3).astype(int), (x > 0).astype(int), jnp.round(x * 2).astype(int), (x > 0) ^ (x < 1)),
                    {}, (r(3, 5),)),
    "fmod": (lambda p, x: (jnp.fmod(x * 3, 0.7), jnp.mod(x * 3, 0.7), jnp.remainder(x, -0.3)), {}, (r(3, 5),)),
    "hyperbolic": (lambda p, x: (jnp.sinh(x), jnp.cosh(x), jnp.tan(x / 3), jnp.isinf(x / (x > 9)), jnp.isfinite(x), jnp.cbrt(x)),
                   {}, (r(3, 5),)),
    "round": (lambda p, x: (jnp.round(x * 2) / 2, jax.lax.round(x * 2), jnp.trunc(x * 2), jnp.ceil(x)), {}, (r(4, 5),)),
    "gather rows": (lambda p, i: (p[i], p[:, i], p[i, i], p[i][:, 0], p[i, 1], p[i, :2]), r(5, 6), (I,)),
    "gather along": (lambda p, i: (jnp.take_along_axis(p, i, 1), jnp.take_along_axis(p.T, i.T, 0),
                                   p[jnp.arange(3)[:, None], i], jnp.take_along_axis(p[:, None], i[..., None], 2)),
                     r(3, 6), (I,)),
    "gather windows": (lambda p, i: jax.vmap(lambda k: jax.lax.dynamic_slice(p, (k, 1), (2, 3)))(i[0]), r(5, 6), (I,)),
    "take with modes": (lambda p, i: (jnp.take(p, i, 0, mode="clip"), p.at[i].get(mode="fill", fill_value=0.0)), r(5, 6), (I,)),
    "known indices": (lambda p, x: (x[np.array([2, 0])], x[jnp.arange(3)], x[-1], x[..., 1], x[::2], x[:, None]), {}, (r(3, 4),)),
    "update": (lambda p, x: (x.at[1].set(p[0]), x.at[:, 2].add(1.0), x.at[np.array([0, 2])].set(0.5), x.at[1:, :2].set(p[1:3, :2])),
               r(3, 4), (r(3, 4),)),
    "update by index": (lambda p, i: (p.at[i[0]].add(1.0), p.at[i[0], 1].add(2.0), jnp.zeros((5, 4)).at[i[:, 0]].set(p[:3, :4])),
                        r(5, 6), (np.array([[0, 3, 4], [2, 1, 1], [4, 0, 2]]),)),
    "known gather and scatter": (lambda p, x: (
        (x.T @ x)[jnp.tril_indices(5)], x + jnp.zeros((4, 5)).at[jnp.array([1, 9, 1])].add(1.0)[:, :5],
        x * jnp.arange(20.0).reshape(4, 5)[jnp.array([[0, 3], [1, 2]])].reshape(4, 5),
        x.sum() + jnp.bincount(jnp.array([0, 2, 2]), length=4), x.sum() + jnp.zeros((4, 5)).at[1:3, 2:].set(2.0)), {}, (r(4, 5),)),
    "integer sums": (lambda p, i: jnp.bincount(i.reshape(-1), length=5), {}, (I,)),
    "dynamic update": (lambda p, x, i: (jax.lax.dynamic_update_slice(x, p, (i, 1)), jax.lax.dynamic_slice(x, (i, i), (2, 2))),
                       r(2, 3), (r(4, 5), np.int64(3))),
    "order": (lambda p, x: (jnp.sort(x, 0), jnp.argsort(x, 1), jax.lax.top_k(x, 2), jnp.argmin(x, 0), jnp.argmax(x),
                            jnp.sort(x, descending=True), jnp.median(x, 1)), {}, (r(4, 5),)),
    "running": (lambda p, x: (jnp.cumsum(x, 0), jnp.cumsum(x[::-1], 1)[:, ::-1], jax.lax.cumsum(x, 1, reverse=True)), {}, (r(4, 5),)),
    "truths": (lambda p, x: (jnp.any(x > 1, 0), jnp.all(x > -1, 1), (x > 0).sum(1), jnp.logical_not(x > 0), (x > 0) == (x < 1)),
               {}, (r(4, 5),)),
    "products": (lambda p, x: (jnp.prod(x, 1), jnp.outer(x[0], x[1]), jnp.einsum("ij,kj->ki", x, x), jnp.tensordot(x, x, 2), x @ p),
                 r(5,), (r(4, 5),)),
    "batched products": (lambda p, x: (jnp.einsum("bij,bjk->bik", x, p), jnp.einsum("bij,bkj->kbi", x, x),
                                       jnp.einsum("bij,bjk->b", x, p)), r(2, 4, 3), (r(2, 5, 4),)),
    "pad": (lambda p, x: (jnp.pad(x, ((1, 0), (0, 2))), jnp.pad(x, 1, mode="edge"), jax.lax.pad(x, 0.5, ((1, -1, 1), (0, 1, 2)))),
            {}, (r(3, 4),)),
    "convolutions": (lambda p, x: (jax.lax.conv_general_dilated(x, p, (1, 1), "SAME", **_CONV),
                                   jax.lax.conv_general_dilated(x, p, (2, 2), "VALID", **_CONV),
                                   jax.lax.conv_general_dilated(x, p, (1, 1), "SAME", rhs_dilation=(2, 2), **_CONV),
                                   jax.lax.conv_general_dilated(x, p, (1, 1), ((1, 1), (1, 0)), lhs_dilation=(2, 2), **_CONV)),
                     r(2, 2, 4, 6), (r(2, 6, 6, 4),)),
    "convolutions by groups": (lambda p, x: (jax.lax.conv_general_dilated(x, p["d"], (1, 1), "SAME", feature_group_count=4, **_CONV),
                                             jax.lax.conv_general_dilated(x, p["g"], (2, 2), "VALID", feature_group_count=2, **_CONV)),
                               {"d": r(3, 3, 1, 4), "g": r(2, 2, 2, 6)}, (r(2, 6, 6, 4),)),
    "convolution, channels first": (lambda p, x: jax.lax.conv(x, p, (1, 1), "SAME"), r(6, 4, 2, 2), (r(2, 4, 5, 5),)),
    "pooling": (lambda p, x: (jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
                              jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 3, 3, 1), (1, 1, 1, 1), "SAME")), {}, (r(1, 6, 6, 2),)),
    "choices": (lambda p, x: (jax.lax.cond(x.sum() > 0, lambda y: y + 1, lambda y: y * 2, x),
                              jax.lax.switch((x > 0).sum() % 3, [jnp.sin, jnp.cos, jnp.tanh], x),
                              jax.lax.cond(True, jnp.sin, jnp.cos, x)), {}, (r(3, 4),)),
    "loops": (lambda p, x: (jax.lax.fori_loop(0, 3, lambda i, y: y * p[i] + i, x), jax.lax.map(lambda y: y * 2, x),
                            jax.lax.scan(lambda c, y: (c * 0.5 + y, c), x[0], x, reverse=True),
                            jax.lax.associative_scan(jnp.add, x)), r(3), (r(4, 5),)),
    "moves": (lambda p, x: (jnp.roll(x, 2, 1), jnp.tile(x, (2, 1)), jnp.repeat(x, 2, 0), jnp.rot90(x), jnp.stack([x, x], 1),
                            jnp.swapaxes(x[None], 0, 2), jnp.triu(x), jnp.diag(x[:3, :3]), jnp.eye(3), jnp.broadcast_to(x, (2, 4, 5))),
              {}, (r(4, 5),)),
    "types": (lambda p, x: (x.astype(jnp.float32), x.astype(jnp.bfloat16).astype(x.dtype), (x * 4).astype(jnp.int32),
                            jax.lax.reduce_precision(x, 8, 7)), {}, (r(4, 5),)),
}


@pytest.mark.parametrize("name", POINTS)
def test_operation(name):
    function, params, inputs = POINTS[name]
    compare(function, params, inputs, {"tp": 2})


if __name__ == "__main__":
    compare(*random_jax.draw(int(sys.argv[1])), MESHES[int(sys.argv[1]) % 3])
