# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Shardings that JAX functions and StableHLO modules state are those of the program."""
import re

import meshwright as mw
import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed (scripts/setup.sh --jax)")

import jax.numpy as jnp  # noqa: E402
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P  # noqa: E402
from stablehlo_runs import needs_devices  # noqa: E402

MESH = AbstractMesh((2, 4), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
FREE = P.UNCONSTRAINED


def at(*spec, mesh=MESH):
    return NamedSharding(mesh, P(*spec))


def array(*shape):
    return (0.3 * np.random.default_rng(sum(shape)).standard_normal(shape)).astype(np.float32)


def arguments_of(text: str) -> dict:
    """The shardings of arguments and results by name."""
    found = re.findall(r'dist\.sharding = #dist\.sharding<@mesh, (\[[^<>]*?\][^<>]*)>, nn\.\w+ = "([^"]*)"', text)
    return {name: sharding for sharding, name in found}


def kinds(plan) -> list:
    found = plan.report(format="json")["collectives"]
    return sorted((c["kind"], *c["axes"]) for c in found for _ in range(c["count"]))


W = dict(up=array(16, 32), down=array(32, 16))
X = array(8, 16)


def mlp(w, x):
    return jax.nn.silu(x @ w["up"]) @ w["down"]


def planned(f, plain=mlp, w=W, x=X, **options):
    model = mw.from_jax(f, (w, x))
    plan = model.parallelize(**options)
    want = np.asarray(jax.jit(plain)(w, x))
    np.testing.assert_allclose(np.asarray(plan.run(x)[0]), want, rtol=1e-5, atol=1e-6)
    return model, plan


@pytest.mark.parametrize("up, down, x, out, want", [
    (at(None, "tp"), at("tp"), at("dp"), at("dp"), [("all_reduce", "tp")]),
    (at(None, "tp"), at("tp"), at("dp"), at("dp", "tp"), [("reduce_scatter", "tp")]),
    (at(None, ("dp", "tp")), at(("dp", "tp")), at(), at(), [("all_reduce", "dp"), ("all_reduce", "tp")]),
    (at(), at(), at(), at(), [])])
def test_closed_shardings_stay(up, down, x, out, want):
    """Also those that replicate a value: no policy shards it."""
    model, plan = planned(jax.jit(mlp, in_shardings=({"up": up, "down": down}, x), out_shardings=out))
    assert kinds(plan) == want and plan.ranks == 8
    stated = arguments_of(model.ir())
    assert arguments_of(plan.ir()) == stated and set(stated) == {"x", "up", "down", "output"}


def test_open_dimensions_are_filled():
    """Propagation and policies shard the dimensions that JAX leaves open."""
    f = jax.jit(lambda w, x: jax.lax.with_sharding_constraint(mlp(w, x), at("dp", FREE)),
                in_shardings=({"up": at(None, "tp"), "down": None}, None))
    model, plan = planned(f)
    assert arguments_of(model.ir()) == {"up": '[{}, {"tp"}]'}
    assert "dist.constrain" in model.ir() and '[{"dp"}, {?}]' in model.ir()
    assert arguments_of(plan.ir())["down"] == '[{"tp"}, {}]'


def test_constraint_within_a_loop():
    def f(w, x, constrain=lambda y: y):
        return jax.lax.scan(lambda x, a: (constrain(jnp.tanh(x @ a)), None), x, w)[0]

    w = array(3, 16, 16)
    _, plan = planned(jax.jit(lambda w, x: f(w, x, lambda y: jax.lax.with_sharding_constraint(y, at("dp", "tp")))), f, w)
    assert '[{"dp"}, {"tp"}]' in arguments_of(plan.ir())["output"]


def test_layers_of_a_sharded_stack():
    def f(w, x):
        return jax.lax.scan(lambda x, a: (jnp.tanh(x @ a), None), x, w)[0]

    w = array(4, 16, 16)
    model, _ = planned(jax.jit(f, in_shardings=(at(None, None, "tp"), at("dp"))), f, w)
    assert model.ir().count('[{}, {}, {"tp"}]') == 4 and model.ir().count("nn.parameter_offsets") == 4
    model, _ = planned(jax.jit(f, in_shardings=(at("tp"), at("dp"))), f, w)
    assert arguments_of(model.ir())["w"] == '[{"tp"}, {}, {}]' and "nn.parameter_offsets" not in model.ir()


def test_uneven_shardings_are_padded():
    mesh = AbstractMesh((5,), ("x",), axis_types=(AxisType.Auto,))
    f = jax.jit(lambda w, x: jax.lax.with_sharding_constraint(
        jax.nn.silu(jax.lax.with_sharding_constraint(x @ w["up"], at(None, "x", mesh=mesh))) @ w["down"], at("x", mesh=mesh)))
    _, plan = planned(f)
    assert plan.ranks == 5 and "tensor<16x7xf32>" in plan.ir()


def test_heads():
    def f(w, x):
        return jnp.einsum("bhk,hkd->bd", jnp.tanh(jnp.einsum("bd,dhk->bhk", x, w["q"])), w["o"])

    w = dict(q=array(16, 4, 4), o=array(4, 4, 16))
    model, plan = planned(jax.jit(f, in_shardings=({"q": at(None, "tp"), "o": at("tp")}, at("dp"))), f, w)
    assert kinds(plan) == [("all_reduce", "tp")]
    assert arguments_of(plan.ir())["q"] == '[{}, {"tp"}, {}]'


def test_arrays_that_are_sharded():
    """Committed arrays state their shardings, in a function of jax.jit or not, and are inputs of a run."""
    needs_devices(8)
    mesh = jax.make_mesh((2, 4), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
    w = {"up": jax.device_put(W["up"], at(None, "tp", mesh=mesh)), "down": jax.device_put(W["down"], at("tp", mesh=mesh))}
    x = jax.device_put(X, at("dp", mesh=mesh))
    for f in (mlp, jax.jit(mlp)):
        model, plan = planned(f, w=w, x=x)
        assert arguments_of(model.ir()) == {"x": '[{"dp"}, {}]', "up": '[{}, {"tp"}]', "down": '[{"tp"}, {}]'}
        assert kinds(plan) == [("all_reduce", "tp")]


def test_mesh_of_the_program():
    f = jax.jit(mlp, in_shardings=({"up": at(None, "tp"), "down": at("tp")}, at("dp")))
    model, plan = planned(f, mesh={"dp": 2, "tp": 4})
    assert 'device = "h100"' in plan.ir() and 'device = "h100"' not in model.ir()
    assert 'device = "a100"' in planned(f, device="a100")[1].ir()
    with pytest.raises(mw.Error, match=r'"dp"=4, "tp"=2.*expected the module\'s own.*"dp"=2, "tp"=4'):
        model.parallelize(mesh={"dp": 4, "tp": 2})


def test_no_mesh_without_shardings():
    with pytest.raises(mw.Error, match="no mesh"):
        mw.from_jax(mlp, (W, X)).parallelize()


# StableHLO text.

def text_of(mesh='sdy.mesh @mesh = <["dp"=2, "tp"=4]>', x="", w="", v="", y="", constraint=None, middle=""):
    def attribute(sharding):
        return f" {{sdy.sharding = #sdy.sharding<{sharding}>}}" if sharding else ""

    if constraint:
        middle = f"%h2 = sdy.sharding_constraint %h <{constraint}> : tensor<8x32xf32>"
    return f"""module @program {{
  {mesh}
  func.func public @main(%x: tensor<8x16xf32>{attribute(x)}, %w: tensor<16x32xf32>{attribute(w)},
                         %v: tensor<32x16xf32>{attribute(v)}) -> (tensor<8x16xf32>{attribute(y)}) {{
    %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
    {middle or "%h2 = stablehlo.tanh %h : tensor<8x32xf32>"}
    %y = stablehlo.dot_general %h2, %v, contracting_dims = [1] x [0] : (tensor<8x32xf32>, tensor<32x16xf32>) -> tensor<8x16xf32>
    return %y : tensor<8x16xf32>
  }}
}}"""


def read(**text):
    model = mw.from_stablehlo(text_of(**text), parameters={1: W["up"], 2: W["down"]})
    plan = model.parallelize()
    h = X @ W["up"]
    want = (h if "constraint" in text or "middle" in text else np.tanh(h)) @ W["down"]
    np.testing.assert_allclose(plan.run(X)[0], want, rtol=1e-5, atol=1e-5)
    return model, plan


@pytest.mark.parametrize("sharding, want", [
    ('@mesh, [{}, {"tp":(1)2}]', '[{}, {"tp":(1)2}]'), ('@mesh, [{}, {"tp":(2)2, "dp"}]', '[{}, {"tp":(2)2, "dp"}]'),
    ('@mesh, [{?}, {"tp", ?}]', '[{?}, {"tp", ?}]'), ('@mesh, [{?}p1, {"tp", ?}p2]', '[{?}, {"tp", ?}]'),
    ('@mesh, [{?}, {?}], replicated={"dp"}', "[{}, {}]"), ('@mesh, [{"dp"}, {"tp"}]', '[{"dp"}, {"tp"}]')])
def test_written_shardings(sharding, want):
    model, _ = read(w=sharding)
    assert arguments_of(model.ir())["arg1"] == want


@pytest.mark.parametrize("sharding", ['[{"dp"}, {"tp"}]', '[{"dp"}, {"tp":(2)2}]', '[{"dp", ?}, {?}]', '[{}, {"tp", "dp"}]'])
def test_written_constraints(sharding):
    model, _ = read(constraint=f"@mesh, {sharding}")
    assert f"dist.constrain %0 <@mesh, {sharding}>" in model.ir()


def test_unreduced_constraint():
    model, plan = read(x='@mesh, [{}, {"tp"}]', w='@mesh, [{"tp"}, {}]', constraint='@mesh, [{}, {}], unreduced={"tp"}')
    assert 'unreduced = {"tp"}' in model.ir()


def test_meshes_that_say_nothing():
    """Meshes without axes, a mesh under two names, and one that is written within a sharding."""
    mesh = 'sdy.mesh @mesh = <["dp"=2, "tp"=4]>\n  sdy.mesh @none = <[]>\n  sdy.mesh @again = <["dp"=2, "tp"=4]>'
    model, plan = read(mesh=mesh, x="@none, [{}, {}]", w='@mesh, [{}, {"tp"}]', v='@again, [{"tp"}, {}]')
    assert plan.ranks == 8 and "arg0" not in arguments_of(model.ir())
    assert read(mesh="", w='mesh<["a"=4]>, [{}, {"a"}]')[1].ranks == 4


def test_shardings_are_written():
    """Those of arguments, results and constraints, open and closed, come back from StableHLO text."""
    f = jax.jit(lambda w, x: jax.lax.with_sharding_constraint(mlp(w, x), at("dp", FREE)),
                in_shardings=({"up": at(None, "tp"), "down": at("tp")}, None), out_shardings=at("dp"))
    model = mw.from_jax(f, (W, X))
    back = mw.from_stablehlo(model.to_stablehlo(), parameters=W)
    assert arguments_of(back.ir()) == arguments_of(model.ir()) and '[{"dp"}, {?}]' in back.ir()
    np.testing.assert_allclose(back.parallelize().run(X)[0], mlp(W, X), rtol=1e-5, atol=1e-6)


def test_axis_of_another_mesh():
    mesh = 'sdy.mesh @mesh = <["dp"=2, "tp"=4]>\n  sdy.mesh @other = <["z"=8]>'
    with pytest.raises(mw.Error, match=r'mesh <\["z"=8\]>: expected that of the shardings before, <\["dp"=2, "tp"=4\]>'):
        mw.from_stablehlo(text_of(mesh=mesh, x='@mesh, [{"dp"}, {}]', w='@other, [{}, {"z"}]'))


def test_operations_without_meaning():
    middle = """%h1 = sdy.propagation_barrier %h allowed_direction=NONE : tensor<8x32xf32>
    sdy.sharding_group %h1 group_id=0 : tensor<8x32xf32>
    %h2 = sdy.reshard %h1 <@mesh, [{"dp"}, {"tp"}]> : tensor<8x32xf32>"""
    model, _ = read(middle=middle)
    assert model.ir().count("dist.constrain") == 1
