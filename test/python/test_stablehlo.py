# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""StableHLO as text, bytes, files and exports."""
import re

import jax_spellings as spell
import meshwright as mw
import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="scripts/setup.sh --jax")
import jax.export  # noqa: E402


@pytest.fixture(scope="module")
def llama():
    params, ids = spell.llama(), spell.ids()
    return params, ids, jax.jit(spell.run_llama)


def given(how, llama, tmp_path):
    params, ids, function = llama
    lowered = function.lower(params, ids)
    if how == "text":
        return lowered.as_text()
    if how == "lowered":
        return lowered
    if how == "module":
        return lowered.compiler_ir("stablehlo")
    if how == "file":
        (tmp_path / "m.mlir").write_text(lowered.as_text(debug_info=True))
        return tmp_path / "m.mlir"
    exported = jax.export.export(function)(params, ids)
    if how == "file of bytes":
        (tmp_path / "m.bin").write_bytes(exported.mlir_module_serialized)
        return str(tmp_path / "m.bin")
    return exported if how == "export" else exported.mlir_module_serialized


@pytest.mark.parametrize("how", ["text", "lowered", "module", "file", "file of bytes", "export", "bytes"])
def test_from_stablehlo(how, llama, tmp_path):
    params, ids, function = llama
    leaves = jax.tree.leaves(params)
    model = mw.from_stablehlo(given(how, llama, tmp_path), parameters=dict(enumerate(leaves)))
    assert sum("constant" not in name for name in model.parameters) == len(leaves)
    assert len(re.findall(r"\bnn\.attention\b", model.ir())) == 2
    assert model.outputs == ["output"]
    got = model.parallelize(mesh={"tp": 2}).run(ids)[0]
    np.testing.assert_allclose(got, function(params, ids), rtol=1e-4, atol=1e-4)


def test_names_are_those_of_the_locations(llama):
    params, ids, function = llama
    text = function.lower(params, ids).as_text(debug_info=True)
    model = mw.from_stablehlo(text, parameters={0: params["embed"], "params.norm": params["norm"]})
    assert set(model.parameters) == {"params.embed", "params.norm"} | {n for n in model.parameters if "constant" in n}
    assert {"params.layers.0.q", "params.layers.1.down", "tokens"} <= set(model.inputs)
    # A tree has the paths of the function's own.
    whole = mw.from_stablehlo(text, parameters=params)
    assert whole.inputs == ["tokens"] and "params.layers.1.down" in whole.parameters
    assert mw.from_stablehlo(text, parameters=jax.tree.leaves(params)).inputs == ["tokens"]
    # Without locations arguments have numbers.
    plain = mw.from_stablehlo(function.lower(params, ids).as_text())
    assert plain.inputs == [f"arg{i}" for i in range(22)]


TEXT = "module { func.func @main(%x: tensor<4x8xf32>, %w: tensor<8x8xf32>) -> tensor<4x8xf32> { %0 = BODY\n return %0 : tensor<4x8xf32> } }"
DOT = "stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>"


def test_text_by_hand():
    x, weight = spell.w(4, 8), spell.w(8, 8)
    model = mw.from_stablehlo(TEXT.replace("BODY", DOT), parameters={1: weight})
    plan = model.parallelize(mesh={"tp": 2})
    for got in (plan.run(x), plan.run(arg0=x)):
        np.testing.assert_allclose(got[0], x @ weight, rtol=1e-5, atol=1e-5)
    with pytest.raises(mw.InputError, match="no input is named 'y': expected arg0"):
        plan.run(y=x)


def artifact():
    return jax.export.export(jax.jit(lambda x: x + 1))(np.ones(3, np.float32)).mlir_module_serialized


def newer():
    data = artifact()
    return re.sub(rb"StableHLO_v\d\.\d+", lambda m: b"StableHLO_v9." + b"9" * (len(m[0]) - len(b"StableHLO_v9.")), data)


@pytest.mark.parametrize("make, said", [
    (lambda: artifact()[:60], "the artifact cannot be read: it is damaged or cut"),
    (newer, r"the artifact has StableHLO 9\.99\.\d+, newer than 1\.\d+\.\d+, which this jaxlib reads"),
    (lambda: b"\xff\xfe\x00", "the bytes are no StableHLO: expected text, a portable artifact or an export"),
    (lambda: b"", "the module has no function @main"),
    (lambda: "module {", "the text is no StableHLO"),
    (lambda: "no-such-file.mlir", "cannot read 'no-such-file.mlir': No such file"),
    (lambda: 5, "expected StableHLO as text, bytes, the path of a file or a jax.export.Exported, got a int"),
    (lambda: TEXT.replace("BODY", 'stablehlo.custom_call @mystery(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32>'),
     "custom call @mystery is not covered"),
    (lambda: TEXT.replace("BODY", "stablehlo.rng %x, %x, %w, distribution = UNIFORM : (tensor<4x8xf32>)"), "no StableHLO"),
    (lambda: TEXT.replace("tensor<4x8xf32>", "tensor<?x8xf32>").replace("BODY", DOT.replace("4x8", "?x8")),
     r"input 'arg0': the shape of tensor<\?x8xf32> is dynamic: expected static shapes"),
    (lambda: TEXT.replace("f32", "complex<f32>").replace("BODY", DOT.replace("f32", "complex<f32>")),
     r"input 'arg0': complex numbers \(complex<f32>\) are not covered"),
])
def test_bad_input(make, said):
    with pytest.raises(mw.Error, match=said):
        mw.from_stablehlo(make())


@pytest.mark.parametrize("parameters, said", [
    ({7: spell.w(8, 8)}, r"parameters: expected positions below 2 or names of arguments \(arg0, arg1\), got 7"),
    ({"w": spell.w(8, 8)}, "got 'w'"),
    ({1: spell.w(8, 9)}, r"parameter 'arg1': expected float32\[8, 8\], got float32\[8, 9\]"),
    ({1: spell.w(8, 8).astype(np.float64)}, r"parameter 'arg1': expected float32\[8, 8\], got float64\[8, 8\]"),
    (3, "parameters: expected"),
    ([spell.w(4, 8), spell.w(8, 8), spell.w(8)], "parameters: expected positions below 2"),
    ({1: "text"}, "parameter 'arg1': expected an array, got a str"),
])
def test_parameters_that_do_not_fit(parameters, said):
    with pytest.raises(mw.Error, match=said):
        mw.from_stablehlo(TEXT.replace("BODY", DOT), parameters=parameters)


def test_lines_of_text_without_locations_of_python():
    text = TEXT.replace("BODY", "stablehlo.custom_call @mystery(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32>")
    with pytest.raises(mw.Error) as caught:
        mw.from_stablehlo(text)
    assert caught.value.diagnostics[0].line in (None, 1)
