# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""An import from JAX keeps names, places, weights, state and arrays of a function, and refuses bad input with its line."""
import inspect
import os
import re

import meshwright as mw
import numpy as np
import pytest
from meshwright.tensors import is_trained
from safetensors.numpy import load_file

jax = pytest.importorskip("jax", reason="scripts/setup.sh --jax")
import jax.numpy as jnp  # noqa: E402

HERE = os.path.basename(__file__)


def line_of(function, text):
    """The line of a function's source that has a text."""
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


def w(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def mlp(params, x, scale=None):
    for layer in params["layers"]:
        x = jax.nn.silu(x @ layer["up"]) @ layer["down"]
    return {"y": x, "parts": (x.sum(-1), x if scale is None else x * scale)}


PARAMS = {"layers": [{"up": w(8, 16, seed=i), "down": w(16, 8, seed=9 + i)} for i in range(2)]}


def test_names():
    model = mw.from_jax(mlp, (PARAMS, w(4, 8)))
    assert model.inputs == ["x"]
    assert model.outputs == ["parts.0", "parts.1", "y"]
    assert set(model.parameters) == {f"layers.{i}.{n}" for i in range(2) for n in ("up", "down")}
    # Several arguments of weights have their names in front.
    two = mw.from_jax(lambda a, b, x: x @ a["w"] @ b["w"], ({"w": w(8, 8)}, {"w": w(8, 8)}, w(4, 8)), parameters=("a", 1))
    assert set(two.parameters) == {"a.w", "b.w"} and two.inputs == ["x"]
    nested = mw.from_jax(lambda batch, *more: batch["x"] + more[1], ({"x": w(3)}, w(3), w(3)), parameters=None)
    assert nested.inputs == ["batch.x", "more.0", "more.1"] and nested.outputs == ["output"]


def test_arguments_by_keyword_and_numbers():
    def f(params, x, *, mask=None, times=2, flip=False):
        y = x @ params["w"] * times
        y = y if mask is None else jnp.where(mask, y, 0.0)
        return -y if flip else y

    x, mask, params = w(4, 8), np.arange(8) % 3 == 0, {"w": w(8, 8)}
    model = mw.from_jax(f, (params, x), {"mask": mask, "times": 3, "flip": True})
    assert model.inputs == ["x", "mask"]
    plan = model.parallelize(mesh={"tp": 2})
    want = f(params, x, mask=mask, times=3, flip=True)
    for got in (plan.run(x, mask=mask, times=3, flip=True), plan.run(params, x, mask=mask, times=3, flip=True),
                plan.run(x=x, mask=mask)):
        np.testing.assert_allclose(got[0], want, rtol=1e-5, atol=1e-5)
    with pytest.raises(mw.InputError, match="an argument is 4, but was 3 when the function was imported"):
        plan.run(x, mask=mask, times=4, flip=True)
    with pytest.raises(mw.InputError, match="the arguments are"):
        plan.run(x)
    with pytest.raises(mw.InputError, match=r"input 'x': expected f32\[4, 8\], got f32\[3, 8\]"):
        plan.run(w(3, 8), mask=mask, times=3, flip=True)


def test_unused_arguments_of_a_jitted_function():
    jitted = jax.jit(lambda params, unused, x: x @ params["b"])
    model = mw.from_jax(jitted, ({"a": w(3), "b": w(8, 8)}, w(5), w(4, 8)))
    assert set(model.parameters) == {"b"} and model.inputs == ["x"]
    x = w(4, 8)
    np.testing.assert_allclose(model.parallelize(mesh={"tp": 2}).run(w(5), x)[0], x @ w(8, 8), rtol=1e-5, atol=1e-5)


def test_arrays_come_and_go_without_a_copy():
    kernel = jnp.asarray(w(8, 8))
    model = mw.from_jax(lambda p, x: (x @ p["w"]).astype(jnp.bfloat16), ({"w": kernel}, w(4, 8)))
    assert model.parameters["w"] is kernel
    assert model._parameter("w").address == kernel.unsafe_buffer_pointer()
    plan = model.parallelize(mesh={"tp": 2})
    got = plan.run(jnp.asarray(w(4, 8)))[0]
    assert isinstance(got, jax.Array) and got.dtype == jnp.bfloat16
    assert isinstance(plan.run(w(4, 8))[0], np.ndarray)
    from meshwright import tensors
    for dtype in ("f32", "bf16", "i32", "i1"):
        memory = tensors.empty(dtype, (3, 5), "jax")
        memory[:] = 1
        array = tensors.finished(memory, "jax")
        assert array.unsafe_buffer_pointer() == memory.ctypes.data and (np.asarray(array) == 1).all()


def test_integers_have_the_width_of_jax():
    model = mw.from_jax(lambda p, i: p["e"][i], ({"e": w(7, 4)}, np.zeros((2, 3), np.int64)))
    ids = np.arange(6).reshape(2, 3)
    np.testing.assert_array_equal(model.parallelize(mesh={"tp": 1}).run(ids)[0], w(7, 4)[ids])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "uint32"])
def test_narrow_integers_are_inputs(dtype):
    model = mw.from_jax(lambda p, i: p["e"][i], ({"e": w(7, 4)}, np.zeros(3, dtype)))
    ids, plan = np.array([0, 6, 2], dtype), model.parallelize(mesh={"tp": 1})
    for given in (ids, jnp.asarray(ids)):
        np.testing.assert_array_equal(plan.run(given)[0], w(7, 4)[ids.astype(int)])


def test_an_id_out_of_range_is_an_error():
    plan = mw.from_jax(lambda p, i: jnp.take(p["e"], i, 0), ({"e": w(7, 4)}, np.zeros(3, np.int32))).parallelize(mesh={"tp": 1})
    with pytest.raises(mw.Error, match="7"):
        plan.run(np.array([0, 7, 1], np.int32))


def test_stacked_layers_are_parts_of_stored_tensors(tmp_path):
    def f(params, x):
        return jax.lax.scan(lambda x, p: (jnp.tanh(x @ p["w"]) + p["b"], x.sum()), x, params)[0]

    params, x = {"w": w(3, 8, 8), "b": w(3, 8)}, w(4, 8)
    model = mw.from_jax(f, (params, x))
    offsets = re.findall(r'nn.parameter = "w", nn.parameter_offsets = array<i64: (\d), 0, 0>', model.ir())
    assert offsets == ["0", "1", "2"]
    model.save(tmp_path / "m.mlir", tmp_path / "w.safetensors")
    stored = load_file(tmp_path / "w.safetensors")
    assert stored["w"].shape == (3, 8, 8) and stored["b"].shape == (3, 8)
    loaded = mw.load(tmp_path / "m.mlir", tmp_path / "w.safetensors").parallelize(mesh={"tp": 2})
    np.testing.assert_allclose(loaded.run(x)[0], f(params, x), rtol=1e-5, atol=1e-5)


def test_a_stack_that_is_also_read_whole_stays_whole():
    def f(params, x):
        return jax.lax.scan(lambda x, p: (jnp.tanh(x @ p), None), x, params)[0] + params.mean()

    params, x = w(2, 8, 8), w(4, 8)
    model = mw.from_jax(f, (params, x))
    assert "parameter_offsets" not in model.ir()
    np.testing.assert_allclose(model.parallelize(mesh={"tp": 2}).run(x)[0], f(params, x), rtol=1e-5, atol=1e-5)


def test_scan_gives_what_it_stacks():
    def f(params, x):
        return jax.lax.scan(lambda c, p: (c + p, (c * p, c)), x, params)

    params, x = w(5, 3), w(3)
    got = mw.from_jax(f, (params, x)).parallelize(mesh={"tp": 1}).run(x)
    for g, want in zip(got, jax.tree.leaves(f(params, x)), strict=True):
        np.testing.assert_allclose(g, want, rtol=1e-6, atol=1e-6)


def test_weights_by_shape_alone_make_a_plan():
    shape = jax.ShapeDtypeStruct
    model = mw.from_jax(lambda p, x: x @ p["w"], ({"w": shape((32, 64), jnp.bfloat16)}, shape((8, 32), jnp.bfloat16)))
    plan = model.parallelize(mesh={"tp": 4})
    assert plan.report(format="json")["memory_per_rank"]["weights"] == 32 * 64 * 2 // 4
    with pytest.raises(mw.Error, match="planned, not run"):
        plan.run(jnp.zeros((8, 32), jnp.bfloat16))
    with pytest.raises(mw.Error, match="nothing to save"):
        model.save("m.mlir", "w.safetensors")


def test_constants_of_the_function_are_parameters():
    table = w(40, 8, seed=3)
    model = mw.from_jax(lambda p, x: x @ p["w"] + table, ({"w": w(8, 8)}, w(40, 8)))
    assert set(model.parameters) == {"w", "constant.0"}
    x = w(40, 8, seed=4)
    np.testing.assert_allclose(model.parallelize(mesh={"tp": 2}).run(x)[0], x @ w(8, 8) + table, rtol=1e-5, atol=1e-5)


# State.

def test_state():
    def step(params, x, cache):
        k = jax.lax.dynamic_update_slice(cache["k"], (x @ params["w"])[:, None], (0, cache["n"], 0))
        return k.sum(1), {"k": k, "n": cache["n"] + 1}

    params, cache = {"w": w(8, 8)}, {"k": jnp.zeros((4, 5, 8)), "n": jnp.zeros((), jnp.int32)}
    model = mw.from_jax(step, (params, w(4, 8), cache), state={"cache": "1"})
    assert model.inputs == ["x"] and model.outputs == ["output.0"]
    with model.parallelize(mesh={"tp": 2}).start() as session:
        for i in range(3):
            x = w(4, 8, seed=i)
            want, cache = step(params, x, cache)
            np.testing.assert_allclose(session.run(x)[0], want, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(session.state()["cache.k"], cache["k"], rtol=1e-5, atol=1e-5)
        assert session.state()["cache.n"] == 3


@pytest.mark.parametrize("state, said", [
    ({"q": "1"}, "there is no input 'q': expected one of x, cache"),
    ({"cache": "7"}, "there is no result '7' for input 'cache': expected one of output.0, output.1"),
    ({"cache": "0"}, r"result 'output.0' is f32\[4, 8\], expected f32\[8\], as argument 'cache'"),
])
def test_state_that_does_not_fit(state, said):
    with pytest.raises(mw.Error, match=said):
        mw.from_jax(lambda p, x, cache: (x @ p, cache + 1), (w(8, 8), w(4, 8), w(8)), state=state)


def test_entries_share_weights_and_state():
    def prefill(p, x, cache):
        k = jax.lax.dynamic_update_slice(cache, x @ p["w"], (0, 0))
        return k.sum(0) @ p["o"], k

    def decode(p, y, n, cache):
        k = jax.lax.dynamic_update_slice(cache, y @ p["w"], (n, 0))
        return k.sum(0) @ p["o"], k

    params, cache, x, y = {"w": w(8, 8), "o": w(8, 8)}, np.zeros((6, 8), np.float32), w(4, 8), w(1, 8)
    model = mw.join({"prefill": mw.from_jax(prefill, (params, x, cache), state={"cache": "1"}),
                     "decode": mw.from_jax(decode, (params, y, np.int32(0), cache), state={"cache": 1})})
    with model.parallelize(mesh={"tp": 2}).start() as session:
        want, cache = prefill(params, x, cache)
        np.testing.assert_allclose(session.run(x)[0], want, rtol=1e-4, atol=1e-4)
        want, cache = decode(params, y, 4, cache)
        np.testing.assert_allclose(session.run(y, np.int32(4), entry="decode")[0], want, rtol=1e-4, atol=1e-4)


def test_stages_of_a_pipeline():
    params, x = {"w": w(8, 8), "o": w(8, 8)}, w(4, 8)
    first = mw.from_jax(lambda p, x: {"h": jnp.tanh(x @ p["w"])}, (params, x))
    second = mw.from_jax(lambda p, h: h @ p["o"], (params, x))
    plan = mw.compose({"a": first, "b": second}, {"b.h": "a.0"}).parallelize(mesh={"tp": 2})
    np.testing.assert_allclose(plan.run(**{"a.x": x})[0], np.tanh(x @ params["w"]) @ params["o"], rtol=1e-4, atol=1e-4)


# Places.

def test_collectives_have_the_line_of_the_user():
    plan = mw.from_jax(mlp, (PARAMS, w(4, 8))).parallelize(mesh={"tp": 2})
    places = {(os.path.basename(c["location"]["file"]), c["location"]["line"])
              for c in plan.report(format="json")["collectives"]}
    assert (HERE, line_of(mlp, "x @ layer")) in places


def test_lines_are_not_those_of_flax():
    nnx = pytest.importorskip("flax.nnx", reason="scripts/setup.sh --jax", exc_type=ImportError)

    class Net(nnx.Module):
        def __init__(self):
            self.up, self.down = nnx.Linear(8, 16, rngs=nnx.Rngs(0)), nnx.Linear(16, 8, rngs=nnx.Rngs(0))

        def __call__(self, x):
            x = self.up(x)
            return self.down(x)

    report = mw.from_jax(Net(), (w(4, 8),)).parallelize(mesh={"tp": 2}).report(format="json")
    files = {os.path.basename(c["location"]["file"]) for c in report["collectives"]}
    assert files == {HERE}


# Bad input.

def f_random(p, x):
    return x @ p + jax.random.normal(jax.random.key(0), x.shape)


def f_complex(p, x):
    return jnp.fft.fft(x @ p).real


def f_while(p, x):
    return jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: c + jnp.abs(c), x @ p)


def f_callback(p, x):
    return jax.pure_callback(np.asarray, jax.ShapeDtypeStruct((4, 8), np.float32), x @ p)


def f_cholesky(p, x):
    return jnp.linalg.cholesky(p @ p.T)


@pytest.mark.parametrize("function, text, said", [
    (f_random, "normal", "random numbers in a forward pass are not covered"),
    (f_complex, "fft", "complex numbers .* are not covered"),
    (f_while, "while_loop", "a loop whose end depends on values"),
    (f_callback, "pure_callback", "a callback to the host .*@xla_ffi_python_cpu_callback"),
    (f_cholesky, "linalg.cholesky", "custom call @lapack_spotrf_ffi is not covered"),
])
def test_refused_with_its_line(function, text, said):
    with pytest.raises(mw.Error, match=said) as caught:
        mw.from_jax(function, (w(8, 8), w(4, 8)))
    diagnostic = caught.value.diagnostics[0]
    assert os.path.basename(diagnostic.file) == HERE and diagnostic.line == line_of(function, text)


def test_what_nothing_needs_is_not_refused():
    def f(p, x):
        jax.random.normal(jax.random.key(0), x.shape)
        return x @ p
    assert mw.from_jax(f, (w(8, 8), w(4, 8))).outputs == ["output"]


def test_all_that_is_not_covered_is_listed():
    with pytest.raises(mw.Error) as caught:
        mw.from_jax(lambda p, x: (jnp.linalg.cholesky(p), jax.lax.erf_inv(x), jnp.fft.fft(x).real), (w(8, 8), w(4, 8)))
    said = [d.message for d in caught.value.diagnostics]
    assert len(said) == 3 and any("erf_inv" in s for s in said)


@pytest.mark.parametrize("arguments, said", [
    (dict(parameters="q"), r"parameters: expected positions or names of arguments \(p, x\), got 'q'"),
    (dict(parameters=5), "parameters: expected positions or names of arguments"),
    (dict(function=3), "function: expected a function of JAX or a module, got a int"),
    (dict(args=3), "args: expected a tuple of arguments, got 3"),
    (dict(training="yes"), "training: expected True or False"),
])
def test_arguments_that_do_not_fit(arguments, said):
    given = {"function": lambda p, x: x @ p, "args": (w(8, 8), w(4, 8)), **arguments}
    with pytest.raises(mw.Error, match=said):
        mw.from_jax(**given)


def test_a_symbolic_dimension():
    x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("n, 8"), np.float32)
    with pytest.raises(mw.Error, match=r"input 'x': the shape \(n, 8\) has a symbolic dimension: expected static sizes"):
        mw.from_jax(jax.jit(lambda p, x: x @ p), (w(8, 8), x))


def test_a_module_that_writes_to_its_variables():
    nnx = pytest.importorskip("flax.nnx", reason="scripts/setup.sh --jax", exc_type=ImportError)
    net = nnx.BatchNorm(8, rngs=nnx.Rngs(0))
    with pytest.raises(mw.Error, match="a call of the module writes to its variable 'mean', 'var'"):
        mw.from_jax(net, (w(4, 8),))
    net.eval()
    model = mw.from_jax(net, (w(4, 8),))
    assert set(model.parameters) == {"scale", "bias", "mean", "var"}
    assert not is_trained(model._parameters["mean"]) and is_trained(model._parameters["scale"])


def test_a_check_needs_a_module_of_pytorch():
    with pytest.raises(mw.Error, match="the model comes from no PyTorch module"):
        mw.from_jax(lambda p, x: x @ p, (w(8, 8), w(4, 8))).check(w(4, 8))


def test_joined_functions_have_constants_of_their_own():
    """Tables of two lengths have one name in each import, and two in the join."""
    def positions(w, x):
        return x * w + jnp.sin(np.arange(x.size, dtype=np.float32).reshape(x.shape))

    w, calls = np.ones(8, np.float32), {name: np.ones((n, 8), np.float32) for name, n in (("short", 300), ("long", 700))}
    joined = mw.join({name: mw.from_jax(positions, (w, x)) for name, x in calls.items()})
    assert sorted(np.shape(v) for n, v in joined.parameters.items() if n != "w") == [(300, 8), (700, 8)]
    plan = joined.parallelize(mesh={"dp": 1})
    for name, x in calls.items():
        np.testing.assert_allclose(plan.run(w, x, entry=name)[0], positions(w, x), atol=1e-6)
