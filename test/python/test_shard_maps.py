# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Functions that shard_map writes per rank: their collectives, what is outside of them, and faults that the
proof finds."""
import ast
import collections
import copy
import functools
import inspect
import re

import meshwright as mw
import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed (scripts/setup.sh --jax)")

import jax.numpy as jnp  # noqa: E402
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P  # noqa: E402
from stablehlo_runs import argument_names, needs_devices, run  # noqa: E402
from random_shard_maps import generate  # noqa: E402


@functools.cache
def mesh_of(**axes):
    needs_devices(int(np.prod(list(axes.values()))))
    devices = jax.devices()[:int(np.prod(list(axes.values())))]
    return jax.make_mesh(tuple(axes.values()), tuple(axes), devices=devices, axis_types=(AxisType.Auto,) * len(axes))


def shard_map(body, inputs, outputs, mesh=None, **options):
    return jax.shard_map(body, mesh=mesh or mesh_of(dp=2, tp=4), in_specs=inputs, out_specs=outputs, check_vma=False, **options)


def array(*shape, seed=0):
    return (0.3 * np.random.default_rng(seed + sum(shape)).standard_normal(shape)).astype(np.float32)


def kinds(plan):
    counts = collections.Counter()
    for collective in plan.report(format="json")["collectives"]:
        counts[collective["kind"]] += collective["count"]
    return counts


def worst(got, want) -> float:
    got, want = list(got), jax.tree.leaves(want)
    assert len(got) == len(want)
    return max(float(np.abs(np.asarray(g) - np.asarray(w)).max() / max(np.abs(np.asarray(w)).max(), 1e-6))
               for g, w in zip(got, want))


def planned(f, *arrays, **options):
    """The plan of a function, whose values are those of JAX."""
    plan = mw.from_jax(f, arrays, parameters=None).parallelize(**options)
    assert worst(plan.run(*arrays), jax.jit(f)(*arrays)) <= 1e-5
    return plan


# Random programs.

def check_random(seed: int):
    program, arrays = generate(seed)
    needs_devices(int(np.prod(list(program.mesh.values()))))
    f = program.function()
    want = jax.jit(f)(*arrays)
    model = mw.from_jax(f, tuple(arrays), parameters=None)
    plan = model.parallelize(sequence_parallel=["on", "off", "auto"][seed % 3])
    said = f"seed {seed}: {program.mesh}, {program.names}"
    assert worst(plan.run(*arrays), want) <= 1e-4, said
    if seed % 4 == 0:
        text = (model if seed % 8 else plan).to_stablehlo()
        assert worst(run(text, arrays, plan.ranks), want) <= 1e-4, said
        assert worst(mw.from_stablehlo(text).parallelize().run(*arrays), want) <= 1e-4, said


@pytest.mark.parametrize("seed", range(24))
def test_random_programs(seed):
    check_random(seed)


def faulty(program, step: int, twice: bool):
    """The program with a sum done twice, or left out."""
    faulty = copy.copy(program)
    faulty.steps, right = list(program.steps), program.steps[step]
    axes = ast.literal_eval(program.names[step].removeprefix("psum "))
    faulty.steps[step] = (lambda values: jax.lax.psum(right(values), axes)) if twice else \
        (lambda values: values[program.operands[step][0]])
    return faulty.function()


def test_faults_of_random_programs():
    """Each sum that is left out or done twice is found, if results depend on it."""
    found = 0
    for seed in range(16):
        program, arrays = generate(seed)
        needs_devices(int(np.prod(list(program.mesh.values()))))
        for step in [i for i, name in enumerate(program.names) if name.startswith("psum (")]:
            for twice in (False, True):
                f = faulty(program, step, twice)
                try:
                    mw.from_jax(f, tuple(arrays), parameters=None).parallelize()
                except mw.Error as error:
                    assert str(error.diagnostics[0].file).endswith(".py") and "unreduced" in str(error)
                    found += 1
                else:
                    assert worst(jax.jit(f)(*arrays), jax.jit(program.function())(*arrays)) <= 1e-5, f"seed {seed}"
    assert found >= 8


@pytest.mark.slow
def test_more_random_programs():
    for seed in range(24, 150):
        check_random(seed)


# A transformer that is sharded by hand.

D, HEADS, HIDDEN, VOCABULARY = 48, 8, 64, 96


def norm(x, g):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * g


def attention(q, k, v):
    k, v = (jnp.repeat(y, q.shape[2] // k.shape[2], 2) for y in (k, v))
    scores = jnp.einsum("bthd,bshd->bhts", q, k) * q.shape[-1] ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[2:], bool)), scores, -1e30)
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores, -1), v)


def block(x, p):
    y = norm(x, p["n1"])
    q, k, v = (jnp.einsum("btd,dhk->bthk", y, p[name]) for name in "qkv")
    x = x + jax.lax.psum(jnp.einsum("bthk,hkd->btd", attention(q, k, v), p["o"]), "tp")
    y = norm(x, p["n2"])
    return x + jax.lax.psum((jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"], "tp")


def embedded(table, ids):
    """Each rank looks up its own rows."""
    i = ids - jax.lax.axis_index("tp") * table.shape[0]
    own = (i >= 0) & (i < table.shape[0])
    return jax.lax.psum(jnp.where(own[..., None], table[jnp.where(own, i, 0)], 0), "tp")


def transformer(p, ids):
    x = embedded(p["embed"], ids)
    for layer in p["layers"]:
        x = block(x, layer)
    return jax.lax.all_gather(norm(x, p["norm"]) @ p["head"], "tp", axis=2, tiled=True)


def scanned(p, ids):
    x, _ = jax.lax.scan(lambda x, layer: (block(x, layer), None), embedded(p["embed"], ids), p["layers"])
    return norm(x, p["norm"]) @ p["head"]


def weights():
    layer = dict(n1=1 + array(D), n2=1 + array(D, seed=1), q=array(D, HEADS, 6), k=array(D, HEADS // 2, 6),
                 v=array(D, HEADS // 2, 6, seed=1), o=array(HEADS, 6, D), gate=array(D, HIDDEN), up=array(D, HIDDEN, seed=1),
                 down=array(HIDDEN, D))
    return dict(embed=array(VOCABULARY, D), layers=[layer, layer], norm=1 + array(D), head=array(D, VOCABULARY))


LAYER = dict(n1=P(), n2=P(), q=P(None, "tp"), k=P(None, "tp"), v=P(None, "tp"), o=P("tp"), gate=P(None, "tp"),
             up=P(None, "tp"), down=P("tp"))
SPECS = dict(embed=P("tp"), layers=[LAYER, LAYER], norm=P(), head=P(None, "tp"))


@pytest.mark.parametrize("stacked", [False, True])
def test_transformer(stacked):
    """Attention, norms and the embedding are recognised; its sums become reduce-scatters."""
    p, specs, body, out = weights(), SPECS, transformer, P("dp")
    if stacked:
        p["layers"] = jax.tree.map(lambda *a: np.stack(a), *p["layers"])
        specs, body, out = {**SPECS, "layers": {k: P(None, *s) for k, s in LAYER.items()}}, scanned, P("dp", None, "tp")
    ids = np.random.default_rng(0).integers(0, VOCABULARY, (4, 8)).astype(np.int32)
    f = shard_map(body, (specs, P("dp")), out)
    want = jax.jit(f)(p, ids)
    model = mw.from_jax(f, (p, ids))
    for op, count in {"attention": 2, "rms_norm": 5, "embedding": 1}.items():
        assert len(re.findall(rf"nn\.{op}\b", model.ir())) == count
    plain, scattered = (model.parallelize(sequence_parallel=mode) for mode in ("off", "on"))
    assert kinds(plain)["all_reduce"] == 5 and not kinds(plain)["reduce_scatter"]
    assert kinds(scattered)["reduce_scatter"] == 5 and not kinds(scattered)["all_reduce"]
    for plan in (plain, scattered):
        assert worst(plan.run(ids), want) <= 1e-5
    text = scattered.to_stablehlo()
    given = {**model.parameters, "ids": ids}
    if stacked:
        given = {**{f"layers.{k}": v for k, v in p["layers"].items()}, **given}
    assert worst(run(text, [given[name] for name in argument_names(text)], 8), want) <= 1e-5
    again = mw.from_stablehlo(text, parameters={n: v for n, v in given.items() if n in argument_names(text) and n != "ids"})
    assert worst(again.parallelize().run(ids), want) <= 1e-5
    assert again.ir().count("nn.attention") == 2


# Spellings of a look-up.

def clipped(table, i, n):
    own = (i >= 0) & (i < n)
    return jnp.where(own[..., None], table[jnp.clip(i, 0, n - 1)], 0)


def multiplied(table, i, n):
    own = (i >= 0) & (i < n)
    return jnp.take(table, jnp.where(own, i, 0), axis=0) * own[..., None].astype(table.dtype)


def turned(table, i, n):
    other = (i < 0) | (i >= n)
    return jnp.where(other[:, :, None], 0.0, table.at[jnp.where(other, 0, i)].get(mode="clip"))


@pytest.mark.parametrize("spelling", [clipped, multiplied, turned])
@pytest.mark.parametrize("axes", ["tp", ("dp", "tp")])
def test_lookups(spelling, axes):
    def body(table, ids):
        n = table.shape[0]
        return jax.lax.psum(spelling(table, ids - jax.lax.axis_index(axes) * n, n), axes)

    plan = planned(shard_map(body, (P(axes), P()), P()), array(96, 16),
                   np.random.default_rng(0).integers(0, 96, (4, 8)).astype(np.int32))
    assert plan.ir().count("nn.embedding") == 1


def test_lookup_that_leaves_out_a_row_is_refused():
    def body(table, ids):
        i = ids - jax.lax.axis_index("tp") * table.shape[0]
        own = (i > 0) & (i < table.shape[0])
        return jax.lax.psum(jnp.where(own[..., None], table[jnp.where(own, i, 0)], 0), "tp")

    model = mw.from_jax(shard_map(body, (P("tp"), P()), P()), (array(96, 16), np.zeros((4, 8), np.int32)))
    with pytest.raises(mw.Error, match="depends on the rank's coordinate"):
        model.parallelize()


# Collectives.

def ring(n, by=1):
    return [(i, (i + by) % n) for i in range(n)]


COLLECTIVES = {
    "psum over both axes": (lambda x: jax.lax.psum(x.sum(0, keepdims=True), ("dp", "tp")), P(("dp", "tp")), P(), "all_reduce"),
    "pmax": (lambda x: jax.lax.pmax(x.max(0, keepdims=True), "tp"), P("tp"), P(), "all_reduce"),
    "pmin": (lambda x: jax.lax.pmin(x.min(0, keepdims=True), "tp"), P("tp"), P(), "all_reduce"),
    "pmean of means": (lambda x: jax.lax.pmean(jnp.mean(x), ("dp", "tp")), P(("dp", "tp")), P(), "all_reduce"),
    "psum in groups": (lambda x: jax.lax.psum(jax.lax.psum(x.sum(0), "tp", axis_index_groups=[[0, 1], [2, 3]]), "tp",
                                              axis_index_groups=[[0, 2], [1, 3]]), P("tp"), P(), "all_reduce"),
    "psum_scatter apart": (lambda x: jax.lax.psum_scatter(x.sum(0).reshape(4, -1), "tp"), P("tp"), P("tp"), "reduce_scatter"),
    "all_gather apart": (lambda x: jax.lax.all_gather(x, "tp").sum(0), P("tp"), P(), "all_gather"),
    "all_gather in the middle": (lambda x: jax.lax.all_gather(x, "tp", axis=1).reshape(x.shape[0], -1), P("dp", "tp"), P("dp"),
                                 "all_gather"),
    "all_to_all": (lambda x: jax.lax.all_to_all(x, "tp", 1, 0, tiled=True), P("tp"), P(None, "tp"), "all_to_all"),
    "all_gather of another dimension": (lambda x: jax.lax.all_gather(x, "tp"), P("dp", "tp"), P(None, "dp"), "all_gather"),
    "all_gather tiled along another dimension": (lambda x: jax.lax.all_gather(x, "tp", tiled=True), P(None, "tp"), P(),
                                                 "all_gather"),
    "all_to_all apart": (lambda x: jax.lax.all_to_all(x.reshape(4, -1, x.shape[1]), "tp", 0, 1), P("tp"), P("tp"), "all_to_all"),
    "blocks of another dimension": (lambda x: jax.lax.all_to_all(x.reshape(4, -1, x.shape[1]), "tp", 0, 0), P(None, "tp"),
                                    P(None, "tp"), "all_to_all"),
    "blocks of the same dimension": (lambda x: jax.lax.all_to_all(x, "tp", 0, 0), P("tp"), P("tp"), "all_to_all"),
    "blocks there and back": (lambda x: jax.lax.all_to_all(jax.lax.all_to_all(x.reshape(-1, 4, 4).swapaxes(0, 1), "tp", 0, 0) * 2,
                                                           "tp", 0, 0).swapaxes(0, 1).reshape(x.shape), P("tp"), P("tp"),
                              "all_to_all"),
    "rows for experts": (lambda x: jax.lax.all_to_all(jax.lax.all_to_all(x.reshape(-1, 4, 4).swapaxes(0, 1), "tp", 0, 1, tiled=True)
                                                      * 2, "tp", 1, 0, tiled=True).swapaxes(0, 1).reshape(x.shape), P("tp"),
                         P("tp"), "all_to_all"),
    "ring": (lambda x: jax.lax.ppermute(x, "tp", ring(4)) + x, P("tp"), P("tp"), "permute"),
    "ring of a loop": (lambda x: jax.lax.fori_loop(0, 3, lambda i, c: jax.lax.ppermute(c, "tp", ring(4)) * 1.5, x), P("dp", "tp"),
                       P("dp", "tp"), "permute"),
    "neighbours that end": (lambda x: x - jax.lax.ppermute(x, "tp", [(0, 1), (1, 2), (2, 3)]), P("tp"), P("tp"), "permute"),
    "two axes at once": (lambda x: jax.lax.ppermute(x, ("dp", "tp"), ring(8, 3)), P(("dp", "tp")), P(("dp", "tp")), "permute"),
    "own rows": (lambda x: jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index("tp") * 4, 4, 0), P(), P("tp"), None),
}


def test_terms_of_one_rank():
    """A bias that one rank adds before the sum, and the same on ranks that the sum does not cover."""
    def body(a, b, bias, x, axis="tp", form=None):
        y = jax.nn.silu(x @ a) @ b
        first = jax.lax.axis_index(axis) == 0
        return jax.lax.psum(y + (jnp.where(first, bias, 0) if form is None else first.astype(bias.dtype) * bias), "tp")

    inputs, arrays = (*MLP[:2], P(), P("dp")), (A, B, array(48), X)
    for form in (None, "factor"):
        plan = planned(shard_map(functools.partial(body, form=form), inputs, P("dp")), *arrays)
        assert plan.ir().count("dist.partial") == 1
        assert worst(run(plan.to_stablehlo(), arrays, 8), plan.run(*arrays)) <= 1e-6
    refused(shard_map(functools.partial(body, axis="dp"), inputs, P("dp")), *arrays, match="different axes")


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives(name):
    body, inputs, outputs, kind = COLLECTIVES[name]
    plan = planned(shard_map(body, (inputs,), outputs), array(16, 16))
    assert set(kinds(plan)) == ({kind} if kind else set())
    assert worst(run(plan.to_stablehlo(), [array(16, 16)], 8), plan.run(array(16, 16))) <= 1e-6


# Operations outside of shard_map.

X, A, B = array(16, 48), array(48, 64), array(64, 48)
MLP = (P(None, "tp"), P("tp"), P("dp"))


def mlp(a, b, x):
    return jax.lax.psum(jax.nn.silu(x @ a) @ b, "tp")


def by_hand(a, b, x):
    return shard_map(mlp, MLP, P("dp"))(a, b, x)


OUTSIDE = {
    "nothing": (by_hand, {"all_reduce": 1}),
    "two in a row": (lambda a, b, x: by_hand(a, b, by_hand(a, b, x)), {"all_reduce": 2}),
    "residual and norm": (lambda a, b, x: x + by_hand(a, b, norm(x, 1.0)), {"all_reduce": 1}),
    "scale behind": (lambda a, b, x: jnp.tanh(by_hand(a, b, x) * 0.5), {"all_reduce": 1}),
    "casts in front": (lambda a, b, x: by_hand((a * 2).astype(jnp.float32), b, x), {"all_reduce": 1}),
    "reshapes": (lambda a, b, x: by_hand(a, b, x.reshape(4, 4, 48).reshape(16, 48)).reshape(2, 8, 48), {"all_reduce": 1}),
    "another layout": (lambda a, b, x: shard_map(lambda y: jax.nn.softmax(y, -1), P("tp"), P("tp"))(by_hand(a, b, x)),
                       {"all_reduce": 1, "redistribute": 1}),
    "a constant": (lambda a, b, x: shard_map(lambda a, b, x, c: mlp(a, b, x) + c, (*MLP, P("dp")), P("dp"))(
        a, b, x, jnp.arange(16.0)[:, None]), {"all_reduce": 1}),
    "whole value": (lambda a, b, x: jnp.sort(by_hand(a, b, x)[:, :1], 0) if False else by_hand(a, b, x)[::2].sum(),
                    {"all_reduce": 1, "redistribute": 1}),
    "an argument in two layouts": (lambda a, b, x: by_hand(a, b, x) + shard_map(lambda a, b, x: jax.nn.silu(x @ a) @ b,
                                                                             (P(), P(), P("dp")), P("dp"))(a, b, x),
                                   {"all_reduce": 1, "redistribute": 2}),
    "jitted": (jax.jit(lambda a, b, x: jax.jit(by_hand)(a, b, x)), {"all_reduce": 1}),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_outside(name):
    f, want = OUTSIDE[name]
    plan = planned(f, A, B, X)
    assert kinds(plan) == want
    assert worst(run(plan.to_stablehlo(), [A, B, X], 8), plan.run(A, B, X)) <= 1e-5


def test_gathered_value_is_named():
    plan = planned(OUTSIDE["whole value"][0], A, B, X)
    assert any("outside of shard_map needs a whole value" in d["message"] for d in plan.report(format="json")["decisions"])


def test_shardings_of_arguments():
    """Arguments that in_shardings places move to where shard_map wants them."""
    places = tuple(NamedSharding(mesh_of(dp=2, tp=4), s) for s in (P(None, "tp"), P("tp"), P()))
    plan = planned(jax.jit(by_hand, in_shardings=places), A, B, X)
    assert kinds(plan) == {"all_reduce": 1}


# Faults.

def line_of(f, text: str) -> int:
    source, first = inspect.getsourcelines(f)
    return first + next(i for i, line in enumerate(source) if text in line)


def refused(f, *arrays, match):
    with pytest.raises(mw.Error, match=match) as caught:
        mw.from_jax(f, arrays, parameters=None).parallelize()
    return caught.value.diagnostics[0]


def test_sum_left_out():
    def body(a, b, x):
        y = jax.nn.silu(x @ a) @ b
        return x + y  # the sum

    found = refused(shard_map(body, MLP, P("dp")), A, B, X, match="unreduced")
    assert found.line == line_of(body, "# the sum") and found.file.endswith("test_shard_maps.py")


def test_sum_done_twice():
    def body(a, b, x):
        y = mlp(a, b, x)
        return jax.lax.psum(y, "tp")  # again

    found = refused(shard_map(body, MLP, P("dp")), A, B, X, match="4 times too large; expected an unreduced value")
    assert found.line == line_of(body, "# again")


def test_sum_over_the_wrong_axis():
    def body(a, b, x):
        y = jax.nn.silu(x @ a) @ b
        return jax.lax.psum(y, "dp")  # not tp

    found = refused(shard_map(body, MLP, P("dp")), A, B, X, match="wrong axis|replicated|unreduced")
    assert found.line == line_of(body, "# not tp")


def test_layout_that_is_not_promised():
    def body(x):
        return x * 2  # sharded

    found = refused(shard_map(body, P("tp"), P()), X, match=r"expected layout \[{}, {}\]")
    assert found.line == line_of(body, "# sharded")


def test_sum_left_out_of_a_result():
    def body(a, b, x):
        y = jax.nn.silu(x @ a)
        return y @ b  # parts

    found = refused(shard_map(body, MLP, P("dp")), A, B, X, match='unreduced {"tp"}')
    assert found.line == line_of(body, "# parts")


def test_activation_of_parts_of_a_sum():
    def body(a, b, x):
        y = jax.nn.silu(x @ a) @ b
        return jax.lax.psum(jax.nn.relu(y), "tp")  # relu

    found = refused(shard_map(body, MLP, P("dp")), A, B, X, match="unreduced")
    assert found.line == line_of(body, "# relu")


def test_partial_manual_axes():
    refused(jax.shard_map(mlp, mesh=mesh_of(dp=2, tp=4), in_specs=(P(None, "tp"), P("tp"), P()), out_specs=P(),
                          axis_names={"tp"}, check_vma=False), A, B, X, match=r"partial manual axes.*axis_names")


def test_two_meshes():
    other = mesh_of(z=8)
    refused(lambda a, b, x: shard_map(lambda y: y * 2, P("z"), P("z"), other)(by_hand(a, b, x)), A, B, X,
            match='mesh <\\["z"=8\\]>: expected that of the shardings before, <\\["dp"=2, "tp"=4\\]>')


def test_another_mesh_than_the_plans():
    model = mw.from_jax(by_hand, (A, B, X), parameters=None)
    with pytest.raises(mw.Error, match=r'"dp"=4, "tp"=2.*"dp"=2, "tp"=4'):
        model.parallelize(mesh={"dp": 4, "tp": 2})


def test_place_that_depends_on_the_rank():
    refused(shard_map(lambda x: jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index("tp") * 3, 4, 0), P(), P("tp")), X,
            match="a rank's own chunk")


def test_data_that_depends_on_the_rank():
    refused(shard_map(lambda x: x * jax.lax.axis_index("tp"), P("tp"), P("tp")), X, match="depends on the rank's coordinate")


def test_planned_without_devices():
    """A mesh of no devices, and weights without values."""
    from jax.sharding import AbstractMesh

    mesh = AbstractMesh((2, 16), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
    f = shard_map(mlp, MLP, P("dp"), mesh)
    shapes = [jax.ShapeDtypeStruct(s, np.float32) for s in ((4096, 16384), (16384, 4096), (8192, 4096))]
    plan = mw.from_jax(f, tuple(shapes), parameters=[0, 1]).parallelize(sequence_parallel="on")
    assert plan.ranks == 32 and kinds(plan)["all_reduce"] == 1
