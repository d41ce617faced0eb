# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Models of JAX differentiate and train as jax.grad and optax do."""
import jax_spellings as spell
import meshwright as mw
import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="scripts/setup.sh --jax")
import jax.numpy as jnp  # noqa: E402


def named(tree):
    path = lambda keys: ".".join(str(getattr(k, "key", getattr(k, "idx", None))) for k in keys)
    return {path(keys): value for keys, value in jax.tree_util.tree_flatten_with_path(tree)[0]}


def check_gradients(loss, params, *inputs, mesh={"dp": 2, "tp": 2}, **options):
    with jax.enable_x64(True):
        want = named(jax.grad(loss)(spell.wide(params), *inputs))
    own = named(jax.grad(loss)(params, *inputs))
    top = max(np.abs(v).max() for v in want.values())
    model = mw.from_jax(loss, (params, *inputs), training=True).differentiate()
    got = dict(zip(model.outputs, model.parallelize(mesh=mesh, **options).run(*inputs), strict=True))
    for name, value in want.items():
        error = np.abs(np.asarray(got[f"grad.{name}"], np.float64) - value).max() / top
        allowed = np.abs(np.asarray(own[name], np.float64) - value).max() / top
        # The sums of both round in another order: 1.35 times JAX's own error was seen.
        assert error <= max(1e-6, 1.5 * allowed), name


@pytest.mark.parametrize("stack", [False, True])
@pytest.mark.parametrize("mesh", [{"tp": 3}, {"dp": 2, "tp": 2}], ids=str)
def test_gradients(stack, mesh):
    params, ids = spell.llama(stack), spell.ids()
    check_gradients(spell.loss(spell.run_llama), params, ids, np.roll(ids, -1, 1), mesh=mesh)


def test_gradients_end_where_those_of_jax_end():
    def loss(p, x):
        y = jnp.tanh(x @ p["a"])
        target = jax.lax.stop_gradient(jnp.tanh(x @ p["b"]) + p["a"].sum())
        return jax.lax.scan(lambda c, w: (c + jax.lax.stop_gradient(c) * w, None), ((y - target) ** 2).mean(), p["c"])[0] + p["b"].sum()

    params = {"a": spell.w(8, 8), "b": spell.w(8, 8), "c": spell.w(3)}
    check_gradients(loss, params, spell.w(4, 8))


@jax.custom_vjp
def straight(x):
    return jnp.round(x)


straight.defvjp(lambda x: (straight(x), None), lambda _, g: (g,))


def test_a_derivative_of_its_own_is_refused_in_training():
    def loss(p, x):
        return (straight(x @ p) ** 2).sum()

    with pytest.raises(mw.Error, match=r"function straight has a derivative of its own \(jax.custom_vjp\)") as caught:
        mw.from_jax(loss, (spell.w(8, 8), spell.w(4, 8)), training=True)
    assert caught.value.diagnostics[0].line == straight.__wrapped__.__code__.co_firstlineno
    # Without training nothing depends on it.
    assert mw.from_jax(loss, (spell.w(8, 8), spell.w(4, 8))).outputs == ["output"]


@pytest.mark.parametrize("kind", ["log_softmax", "optax", "one_hot", "logsumexp"])
def test_losses_are_cross_entropies(kind):
    optax = pytest.importorskip("optax", reason="scripts/setup.sh --jax")

    def loss(p, x, labels):
        z = x @ p
        if kind == "log_softmax":
            return -jnp.take_along_axis(jax.nn.log_softmax(z), labels[..., None], -1).mean()
        if kind == "optax":
            return optax.softmax_cross_entropy_with_integer_labels(z, labels).mean()
        if kind == "one_hot":
            return optax.softmax_cross_entropy(z, jax.nn.one_hot(labels, 12)).mean()
        return (jax.nn.logsumexp(z, -1) - jnp.take_along_axis(z, labels[..., None], -1)[..., 0]).mean()

    labels = np.random.default_rng(0).integers(0, 12, (4, 5)).astype(np.int32)
    args = spell.w(8, 12), spell.w(4, 5, 8)
    text = mw.from_jax(loss, (*args, labels)).ir()
    assert text.count("nn.cross_entropy") == 1 and "nn.exp" not in text and "take_along" not in text
    check_gradients(lambda p, x, labels: loss(p["w"], x, labels), {"w": args[0]}, args[1], labels, mesh={"tp": 2})


@pytest.mark.parametrize("options", [{}, {"microbatches": 2}], ids=str)
def test_adamw_is_that_of_optax(options):
    optax = pytest.importorskip("optax", reason="scripts/setup.sh --jax")
    params, ids = spell.llama(stack=True), spell.ids()
    labels, loss = np.roll(ids, -1, 1), spell.loss(spell.run_llama)
    optimizer = optax.adamw(1e-2, eps=1e-3, weight_decay=0.1)
    with jax.enable_x64(True):
        wide = spell.wide(params)
        state, want = optimizer.init(wide), []
        for _ in range(3):
            value, gradients = jax.value_and_grad(loss)(wide, ids, labels)
            updates, state = optimizer.update(gradients, state, wide)
            wide = optax.apply_updates(wide, updates)
            want.append(float(value))
    model = mw.from_jax(loss, (params, ids, labels), training=True)
    train = model.train(mw.AdamW(lr=1e-2, eps=1e-3, weight_decay=0.1), **options)
    with train.parallelize(mesh={"dp": 2, "tp": 2}).start() as session:
        got = [float(session.run(ids, labels)[0]) for _ in range(3)]
        trained = session.parameters()
    np.testing.assert_allclose(got, want, rtol=1e-5)
    wide = named(wide)
    assert set(trained) == set(wide)
    for name, value in wide.items():
        np.testing.assert_allclose(trained[name], value, rtol=1e-3, atol=1e-4, err_msg=name)


def test_a_state_is_resumed(tmp_path):
    params, ids = spell.llama(), spell.ids()
    labels = np.roll(ids, -1, 1)
    train = mw.from_jax(spell.loss(spell.run_llama), (params, ids, labels), training=True).train(mw.AdamW(lr=1e-2))
    with train.parallelize(mesh={"tp": 2}).start() as session:
        session.run(ids, labels)
        session.save(tmp_path / "state")
        want = float(session.run(ids, labels)[0])
    with train.parallelize(mesh={"tp": 2}).start(state=tmp_path / "state") as session:
        assert float(session.run(ids, labels)[0]) == want
