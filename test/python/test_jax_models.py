# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Transformers of JAX are imported with their meaning, and plans compute what JAX does in f64."""
import re

import meshwright as mw
import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="scripts/setup.sh --jax")
for package in ("flax.nnx", "equinox"):
    pytest.importorskip(package, reason="scripts/setup.sh --jax", exc_type=ImportError)
import jax.numpy as jnp  # noqa: E402
import jax_models  # noqa: E402
import jax_spellings as spell  # noqa: E402

MESHES = [({"tp": 4}, {"sequence_parallel": "on"}), ({"dp": 2, "tp": 2}, {}), ({"tp": 3}, {})]


def wide(tree):
    return jax.tree.map(lambda a: jnp.asarray(np.asarray(a, np.float64) if jnp.issubdtype(a.dtype, jnp.floating) else a), tree)


def error(got, want):
    got, want = (np.asarray(x, np.float64) for x in (got, want))
    assert got.shape == want.shape
    return np.abs(got - want).max() / np.abs(want).max()


def imported(case, **options):
    inputs = jax.tree.map(np.zeros_like, case.inputs)
    return mw.from_jax(case.imported, (case.weights, *inputs) if case.takes_weights else inputs, **options)


@pytest.mark.parametrize("build", jax_models.MODELS, ids=lambda f: f.__name__)
def test_model(build):
    case = build()
    own = want = jax.jit(case.function)(case.weights, *case.inputs)
    if build is not jax_models.nnx_scanned:  # nnx.scan mixes types where weights are wider than a layer's own
        with jax.enable_x64(True):
            want = np.asarray(case.function(wide(case.weights), *wide(case.inputs)))
    own = error(own, want)
    model = imported(case)
    text = model.ir()
    found = {op: len(re.findall(rf"\bnn\.{op}\b", text)) for op in case.expected}
    assert found == case.expected
    for mesh, options in MESHES:
        plan = model.parallelize(mesh=mesh, **options)
        got = plan.run(*map(jnp.asarray, case.inputs))
        assert isinstance(got[0], jax.Array)
        assert error(got[0], want) <= max(1e-5, 1.25 * own), mesh


def test_softmax_and_norms_leave_no_scores():
    """No value of queries x keys is left where attention is recognised."""
    for build in (jax_models.gpt2, jax_models.nnx_scanned, jax_models.equinox_llama):
        text = imported(build()).ir()
        assert not re.search(rf"{jax_models.TOKENS}x{jax_models.TOKENS}xf32", text), build.__name__


def test_products_of_bf16_in_f32_widen_no_operand():
    def f(p, x):
        q, k, v = (jnp.einsum("btd,dhk->bthk", x, p[n]) for n in "qkv")
        y = jnp.einsum("bthk,hkd->btd", jax.nn.dot_product_attention(q, k, v, is_causal=True), p["o"])
        return jnp.einsum("btd,de->bte", y, p["w"], preferred_element_type=jnp.float32)

    w = lambda *s: jnp.asarray(spell.w(*s), jnp.bfloat16)
    params = {"q": w(24, 4, 6), "k": w(24, 2, 6), "v": w(24, 2, 6), "o": w(4, 6, 24), "w": w(24, 24)}
    model, x = mw.from_jax(f, (params, w(2, 9, 24))), w(2, 9, 24)
    assert model.ir().count("nn.attention") == 1 and "nn.cast" not in model.ir()
    assert error(model.parallelize(mesh={"tp": 2}).run(x)[0], f(params, x)) < 2e-2


def test_plans_are_those_of_the_model_in_pytorch():
    """Bytes and launches of a rank, with layers in a list and in a scan."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=spell.WIDTH, num_attention_heads=spell.HEADS, num_key_value_heads=spell.GROUPS,
        intermediate_size=spell.HIDDEN, vocab_size=spell.VOCABULARY, num_hidden_layers=2, use_cache=False,
        tie_word_embeddings=False)
    ids = spell.ids()
    theirs = mw.from_torch(transformers.LlamaForCausalLM(config).eval(), (torch.from_numpy(ids).long(),))
    ours = [mw.from_jax(spell.run_llama, (spell.llama(stack), ids)) for stack in (False, True)]
    meshes = [*MESHES, ({"ring": 4}, {"context_parallel": {"ring": "ring"}}),
              ({"ulysses": 2}, {"context_parallel": {"ulysses": "ulysses"}})]
    for mesh, options in meshes:
        reports = [m.parallelize(mesh=mesh, **options).report(format="json") for m in (theirs, *ours)]
        assert len({(r["bytes_per_rank"], r["launches_per_rank"]) for r in reports}) == 1, mesh


@pytest.mark.parametrize("stack", [False, True])
def test_a_large_llama_is_imported_in_seconds(stack):
    """32 layers of width 4096, by shapes alone. The bound has room for a machine that is busy."""
    import time

    shape = lambda *s: jax.ShapeDtypeStruct(s, jnp.float32)
    layers, width, heads, groups, size, hidden, words = 32, 4096, 32, 8, 128, 14336, 128256
    layer = dict(n=(width,), m=(width,), q=(width, heads, size), k=(width, groups, size), v=(width, groups, size),
                 o=(heads, size, width), gate=(width, hidden), up=(width, hidden), down=(hidden, width))
    each = {name: shape(layers, *s) if stack else shape(*s) for name, s in layer.items()}
    params = dict(embed=shape(words, width), layers=each if stack else [each] * layers, norm=shape(width),
                  head=shape(width, words))
    start = time.monotonic()
    model = mw.from_jax(spell.run_llama, (params, jax.ShapeDtypeStruct((1, 8192), jnp.int32)))
    assert time.monotonic() - start < 20
    assert len(re.findall(r"\bnn\.attention\b", model.ir())) == layers
