# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Programs written as StableHLO: JAX computes the same values, and the import takes them back."""
import collections
import re

import meshwright as mw
import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed (scripts/setup.sh --jax)")

from stablehlo_runs import argument_names, needs_devices, run  # noqa: E402

_UNARY = ["neg", "abs", "exp", "sin", "cos", "erf", "floor", "relu", "silu", "tanh", "sigmoid", "gelu", "stop_gradient"]
_BINARY = ["add", "sub", "mul", "div", "rem", "maximum", "minimum"]

#: A program's operations, its arguments and its results. %a, %b, ... are the arguments.
PROGRAMS = {
    **{op: ([f"%0 = nn.{op} %a : tensor<2x7xf32>"], ["2x7xf32"], ["2x7xf32"]) for op in _UNARY},
    **{op: ([f"%0 = nn.{op} %a, %b : (tensor<2x7xf32>, tensor<7xf32>) -> tensor<2x7xf32>"], ["2x7xf32", "7xf32"],
            ["2x7xf32"]) for op in _BINARY},
    **{f"{op} of integers": ([f"%0 = nn.{op} %a, %b : (tensor<2x7xi32>, tensor<7xi32>) -> tensor<2x7xi32>"],
                             ["2x7xi32", "7xi32"], ["2x7xi32"]) for op in _BINARY},
    "positive": (["%0 = nn.exp %a : tensor<7xf32>", "%1 = nn.log %0 : tensor<7xf32>", "%2 = nn.sqrt %0 : tensor<7xf32>",
                  "%3 = nn.rsqrt %0 : tensor<7xf32>", "%4 = nn.reciprocal %0 : tensor<7xf32>",
                  "%5 = nn.pow %0, %a : (tensor<7xf32>, tensor<7xf32>) -> tensor<7xf32>"], ["7xf32"], ["7xf32"] * 6),
    "gelu by tanh": (["%0 = nn.gelu %a {approximate_tanh} : tensor<2x7xf32>"], ["2x7xf32"], ["2x7xf32"]),
    "bf16": (["%0 = nn.silu %a : tensor<2x7xbf16>", "%1 = nn.cast %0 : (tensor<2x7xbf16>) -> tensor<2x7xf32>",
              "%2 = nn.cast %1 : (tensor<2x7xf32>) -> tensor<2x7xbf16>"], ["2x7xbf16"], ["2x7xbf16", "2x7xf32", "2x7xbf16"]),
    "truth": (["%0 = nn.compare ge %a, %b : (tensor<2x7xf32>, tensor<7xf32>) -> tensor<2x7xi1>",
               "%1 = nn.not %0 : tensor<2x7xi1>", "%2 = nn.compare lt %a, %b : (tensor<2x7xf32>, tensor<7xf32>) -> tensor<2x7xi1>",
               "%3 = nn.or %1, %2 : (tensor<2x7xi1>, tensor<2x7xi1>) -> tensor<2x7xi1>",
               "%4 = nn.select %3, %a, %b : (tensor<2x7xi1>, tensor<2x7xf32>, tensor<7xf32>) -> tensor<2x7xf32>",
               "%5 = nn.cast %3 : (tensor<2x7xi1>) -> tensor<2x7xf32>"], ["2x7xf32", "7xf32"],
              ["2x7xi1", "2x7xi1", "2x7xi1", "2x7xi1", "2x7xf32", "2x7xf32"]),
    "shapes": (["%0 = nn.reshape %a : (tensor<2x6xf32>) -> tensor<2x3x2xf32>",
                "%1 = nn.transpose %0 [2, 0, 1] : (tensor<2x3x2xf32>) -> tensor<2x2x3xf32>",
                "%2 = nn.slice %a starts [0, 1] limits [2, 6] strides [1, 2] : (tensor<2x6xf32>) -> tensor<2x3xf32>",
                "%3 = nn.concat %a, %2 dim 1 : (tensor<2x6xf32>, tensor<2x3xf32>) -> tensor<2x9xf32>",
                "%4 = nn.broadcast %a : (tensor<2x6xf32>) -> tensor<3x2x6xf32>",
                "%5 = nn.iota dim 1 : tensor<2x6xi64>"], ["2x6xf32"],
               ["2x3x2xf32", "2x2x3xf32", "2x3xf32", "2x9xf32", "3x2x6xf32", "2x6xi64"]),
    "pad": (["%0 = nn.pad %a low [0, 1] high [0, 2] interior [0, 1] : (tensor<2x3xf32>) -> tensor<2x8xf32>"], ["2x3xf32"],
            ["2x8xf32"]),
    "reductions": (["%0 = nn.reduce sum %a dims [1] : (tensor<2x7x3xf32>) -> tensor<2x3xf32>",
                    "%1 = nn.reduce mean %a dims [0, 2] {keep_dims} : (tensor<2x7x3xf32>) -> tensor<1x7x1xf32>",
                    "%2 = nn.reduce max %a dims [2] : (tensor<2x7x3xf32>) -> tensor<2x7xf32>",
                    "%3 = nn.reduce min %a dims [0] : (tensor<2x7x3xf32>) -> tensor<7x3xf32>",
                    "%4 = nn.cumsum %a dim 1 : tensor<2x7x3xf32>"], ["2x7x3xf32"],
                   ["2x3xf32", "1x7x1xf32", "2x7xf32", "7x3xf32", "2x7x3xf32"]),
    "softmax": (["%0 = nn.softmax %a dim 1 : tensor<2x7x3xf32>"], ["2x7x3xf32"], ["2x7x3xf32"]),
    "products": (["%0 = nn.matmul %a, %b : (tensor<2x3x4x5xf32>, tensor<2x1x5x6xf32>) -> tensor<2x3x4x6xf32>",
                  "%1 = nn.matmul %0, %0 {transpose_lhs} : (tensor<2x3x4x6xf32>, tensor<2x3x4x6xf32>) -> tensor<2x3x6x6xf32>",
                  "%2 = nn.matmul %0, %0 {transpose_rhs} : (tensor<2x3x4x6xf32>, tensor<2x3x4x6xf32>) -> tensor<2x3x4x4xf32>"],
                 ["2x3x4x5xf32", "2x1x5x6xf32"], ["2x3x4x6xf32", "2x3x6x6xf32", "2x3x4x4xf32"]),
    "linear": (["%0 = nn.linear %a, %b bias %c : (tensor<2x7x8xf32>, tensor<16x8xf32>, tensor<16xf32>) -> tensor<2x7x16xf32>",
                "%1 = nn.linear %0, %b {in_out} : (tensor<2x7x16xf32>, tensor<16x8xf32>) -> tensor<2x7x8xf32>",
                "%2 = nn.weight_grad %0, %a : (tensor<2x7x16xf32>, tensor<2x7x8xf32>) -> tensor<16x8xf32>"],
               ["2x7x8xf32", "16x8xf32", "16xf32"], ["2x7x16xf32", "2x7x8xf32", "16x8xf32"]),
    "norms": (["%0 = nn.rms_norm %a weight %b eps 1.0e-5 {unit_offset} : (tensor<2x8xf32>, tensor<8xf32>) -> tensor<2x8xf32>",
               "%1 = nn.layer_norm %0 weight %b bias %b eps 1.0e-5 : (tensor<2x8xf32>, tensor<8xf32>, tensor<8xf32>) -> tensor<2x8xf32>",
               "%2 = nn.layer_norm %1 eps 1.0e-5 : (tensor<2x8xf32>) -> tensor<2x8xf32>"], ["2x8xf32", "8xf32"], ["2x8xf32"] * 3),
    "rotary": (["%0 = nn.rotary %a, %b, %c : (tensor<1x4x7x16xf32>, tensor<7x8xf32>, tensor<7x8xf32>) -> tensor<1x4x7x16xf32>",
                "%1 = nn.rotary %0, %b, %c {interleaved} : (tensor<1x4x7x16xf32>, tensor<7x8xf32>, tensor<7x8xf32>) -> tensor<1x4x7x16xf32>"],
               ["1x4x7x16xf32", "7x8xf32", "7x8xf32"], ["1x4x7x16xf32"] * 2),
    "attention": (["%0 = nn.attention %a, %b, %c scale 0.25 {causal, window_left = 4 : i64} : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>) -> tensor<2x4x7x8xf32>",
                   "%1, %2 = nn.attention %a, %b, %c bias %d scale 0.25 {soft_cap = 5.0 : f64} : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>, tensor<4x7x9xf32>) -> (tensor<2x4x7x8xf32>, tensor<2x4x7xf32>)",
                   "%3, %4 = nn.merge_attention %0, %2, %1, %2 : (tensor<2x4x7x8xf32>, tensor<2x4x7xf32>, tensor<2x4x7x8xf32>, tensor<2x4x7xf32>) -> (tensor<2x4x7x8xf32>, tensor<2x4x7xf32>)",
                   "%5 = nn.attention %a, %b, %c scale 0.25 {kv_length = 5 : i64} : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>) -> tensor<2x4x7x8xf32>"],
                  ["2x4x7x16xf32", "2x2x9x16xf32", "2x2x9x8xf32", "4x7x9xf32"],
                  ["2x4x7x8xf32", "2x4x7x8xf32", "2x4x7xf32", "2x4x7x8xf32", "2x4x7xf32", "2x4x7x8xf32"]),
    "attention gradients": (["%0, %1 = nn.attention %a, %b, %c scale 0.25 {causal} : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>) -> (tensor<2x4x7x8xf32>, tensor<2x4x7xf32>)",
                             "%2 = nn.mul %0, %0 : (tensor<2x4x7x8xf32>, tensor<2x4x7x8xf32>) -> tensor<2x4x7x8xf32>",
                             "%3 = nn.reduce sum %2 dims [3] : (tensor<2x4x7x8xf32>) -> tensor<2x4x7xf32>",
                             "%4, %5, %6 = nn.attention_grad %a, %b, %c lse %1 delta %3 cotangent %0 scale 0.25 {causal} : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>, tensor<2x4x7xf32>, tensor<2x4x7xf32>, tensor<2x4x7x8xf32>) -> (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>)"],
                            ["2x4x7x16xf32", "2x2x9x16xf32", "2x2x9x8xf32"],
                            ["2x4x7x8xf32", "2x4x7xf32", "2x4x7x8xf32", "2x4x7xf32", "2x4x7x16xf32", "2x2x9x16xf32", "2x2x9x8xf32"]),
    "indices": (["%i = nn.iota dim 0 : tensor<3xi64>",
                 "%0 = nn.gather %a, %i dim 1 : (tensor<2x7x8xf32>, tensor<3xi64>) -> tensor<2x3x8xf32>",
                 "%1 = nn.embedding %i, %b : (tensor<3xi64>, tensor<7x8xf32>) -> tensor<3x8xf32>",
                 "%2 = nn.index_copy %a, %i, %0 dim 1 : (tensor<2x7x8xf32>, tensor<3xi64>, tensor<2x3x8xf32>) -> tensor<2x7x8xf32>",
                 "%3 = nn.scatter_add %1, %i dim 0 : (tensor<3x8xf32>, tensor<3xi64>) -> tensor<7x8xf32>",
                 "%j = nn.iota dim 1 : tensor<2x3x8xi64>",
                 "%4 = nn.take_along %a, %j dim 1 : (tensor<2x7x8xf32>, tensor<2x3x8xi64>) -> tensor<2x3x8xf32>",
                 "%5 = nn.scatter_add %4, %j dim 1 {along} : (tensor<2x3x8xf32>, tensor<2x3x8xi64>) -> tensor<2x7x8xf32>"],
                ["2x7x8xf32", "7x8xf32"],
                ["3xi64", "2x3x8xf32", "3x8xf32", "2x7x8xf32", "7x8xf32", "2x3x8xi64", "2x3x8xf32", "2x7x8xf32"]),
    "loss": (["%i = nn.iota dim 1 : tensor<2x7xi64>",
              "%0 = nn.cross_entropy %a, %i dim 2 {ignore_index = 3 : i64, label_smoothing = 1.000000e-01 : f64} : (tensor<2x7x8xf32>, tensor<2x7xi64>) -> tensor<2x7xf32>"],
             ["2x7x8xf32"], ["2x7xi64", "2x7xf32"]),
}


def write(lines, arguments, results) -> str:
    names = [name for line in lines for name in re.findall(r"%\w+", line.split(" = nn.")[0])]
    given = ", ".join(f'%{chr(97 + i)}: tensor<{t}> {{nn.input = "{chr(97 + i)}"}}' for i, t in enumerate(arguments))
    returned = ", ".join(f'tensor<{t}> {{nn.output = "{i}"}}' for i, t in enumerate(results))
    types = ", ".join(f"tensor<{t}>" for t in results)
    body = "\n  ".join(lines)
    return f"func.func @main({given}) -> ({returned}) {{\n  {body}\n  return {', '.join(names)} : {types}\n}}\n"


def array(kind: str, seed: int):
    *shape, dtype = kind.split("x")
    values = np.random.default_rng(seed).standard_normal([int(n) for n in shape]) * 2
    if dtype.startswith("i"):
        return np.where(np.abs(values) < 0.5, 3, values * 3).astype({"i32": np.int32, "i64": np.int64}[dtype])
    import ml_dtypes

    return values.astype({"f32": np.float32, "bf16": ml_dtypes.bfloat16}[dtype])


def difference(got, want) -> float:
    got, want = (np.asarray(a).astype(np.float64) for a in (got, want))
    assert got.shape == want.shape
    return float(np.abs(got - want).max() / max(np.abs(want).max(), 1e-6)) if got.size else 0.0


@pytest.mark.parametrize("name", PROGRAMS)
def test_ops(name, tmp_path):
    path = tmp_path / "program.mlir"
    path.write_text(write(*PROGRAMS[name]))
    model = mw.load(path)
    arrays = [array(kind, i) for i, kind in enumerate(PROGRAMS[name][1])]
    want = model.parallelize(mesh={"x": 1}).run(*arrays)
    bound = 2e-2 if name == "bf16" else 2e-6
    text = model.to_stablehlo()
    assert "sdy.manual_computation" not in text
    assert max(map(difference, run(text, arrays), want)) <= bound
    if name not in ("attention gradients", "indices"):  # scatters are not imported
        back = mw.from_stablehlo(text).parallelize(mesh={"x": 1}).run(*arrays)
        assert max(map(difference, back, want)) <= bound


def kinds(plan):
    counts = collections.Counter()
    for collective in plan.report(format="json")["collectives"]:
        counts[collective["kind"]] += collective["count"]
    return counts


BLOCK = """
func.func @main(%x: tensor<2x9x24xf32> {nn.input = "x"}, %q: tensor<24x24xf32> {nn.parameter = "q"}, %k: tensor<12x24xf32> {nn.parameter = "k"},
                %o: tensor<24x24xf32> {nn.parameter = "o"}, %u: tensor<40x24xf32> {nn.parameter = "u"}, %d: tensor<24x40xf32> {nn.parameter = "d"})
    -> (tensor<2x9x24xf32> {nn.output = "y"}) {
  %n = nn.rms_norm %x eps 1.0e-6 : (tensor<2x9x24xf32>) -> tensor<2x9x24xf32>
  %0 = nn.linear %n, %q : (tensor<2x9x24xf32>, tensor<24x24xf32>) -> tensor<2x9x24xf32>
  %1 = nn.linear %n, %k : (tensor<2x9x24xf32>, tensor<12x24xf32>) -> tensor<2x9x12xf32>
  %2 = nn.reshape %0 : (tensor<2x9x24xf32>) -> tensor<2x9x4x6xf32>
  %3 = nn.transpose %2 [0, 2, 1, 3] : (tensor<2x9x4x6xf32>) -> tensor<2x4x9x6xf32>
  %4 = nn.reshape %1 : (tensor<2x9x12xf32>) -> tensor<2x9x2x6xf32>
  %5 = nn.transpose %4 [0, 2, 1, 3] : (tensor<2x9x2x6xf32>) -> tensor<2x2x9x6xf32>
  %6 = nn.attention %3, %5, %5 scale 0.4 {causal} : (tensor<2x4x9x6xf32>, tensor<2x2x9x6xf32>, tensor<2x2x9x6xf32>) -> tensor<2x4x9x6xf32>
  %7 = nn.transpose %6 [0, 2, 1, 3] : (tensor<2x4x9x6xf32>) -> tensor<2x9x4x6xf32>
  %8 = nn.reshape %7 : (tensor<2x9x4x6xf32>) -> tensor<2x9x24xf32>
  %9 = nn.linear %8, %o : (tensor<2x9x24xf32>, tensor<24x24xf32>) -> tensor<2x9x24xf32>
  %10 = nn.add %x, %9 : (tensor<2x9x24xf32>, tensor<2x9x24xf32>) -> tensor<2x9x24xf32>
  %11 = nn.rms_norm %10 eps 1.0e-6 : (tensor<2x9x24xf32>) -> tensor<2x9x24xf32>
  %12 = nn.linear %11, %u : (tensor<2x9x24xf32>, tensor<40x24xf32>) -> tensor<2x9x40xf32>
  %13 = nn.silu %12 : tensor<2x9x40xf32>
  %14 = nn.linear %13, %d : (tensor<2x9x40xf32>, tensor<24x40xf32>) -> tensor<2x9x24xf32>
  %15 = nn.add %10, %14 : (tensor<2x9x24xf32>, tensor<2x9x24xf32>) -> tensor<2x9x24xf32>
  return %15 : tensor<2x9x24xf32>
}
"""


def block(tmp_path):
    path, random = tmp_path / "block.mlir", np.random.default_rng(0)
    path.write_text(BLOCK)
    model = mw.load(path)
    weights = {p.name: (0.2 * random.standard_normal(p.shape)).astype(np.float32) for p in model._program.parameters}
    return mw.Model(model._program, weights), random.standard_normal((2, 9, 24)).astype(np.float32)


@pytest.mark.parametrize("mesh, options", [
    ({"tp": 2}, {"sequence_parallel": "on"}), ({"tp": 4}, {"sequence_parallel": "on"}), ({"tp": 3}, {}),
    ({"dp": 2, "tp": 2}, {}), ({"ulysses": 2}, {"context_parallel": {"ulysses": "ulysses"}}),
    ({"ring": 4}, {"context_parallel": {"ring": "ring", "order": "zigzag"}})])
def test_plans(mesh, options, tmp_path):
    """JAX runs what a plan does on each rank, with paddings, heads in parts of axes and orders of tokens."""
    model, x = block(tmp_path)
    plan = model.parallelize(mesh=mesh, **options)
    want = plan.run(x)
    text = plan.to_stablehlo()
    arrays = {**model.parameters, "x": x}
    got = run(text, [arrays[name] for name in argument_names(text)], plan.ranks)
    assert max(map(difference, got, want)) <= 2e-6
    if "ring" in mesh:
        return  # no proof takes the steps of a ring that are written out
    for parameters in (None, model.parameters):
        again = mw.from_stablehlo(text, parameters=parameters)
        back = again.parallelize()
        assert difference(back.run(*(arrays[name] for name in again.inputs))[0], want[0]) <= 2e-6
        made, sent = kinds(plan), kinds(back)
        made["all_to_all"] += made.pop("redistribute", 0)
        assert set(sent) == {kind for kind in made if made[kind]}
    assert len(re.findall(r"nn\.attention\b", again.ir())) == 1


def test_every_op_has_a_form_or_is_refused():
    from meshwright._nn import OPS
    from meshwright.exporter import program  # noqa: F401 (registers all)
    from meshwright.exporter.ops import EXPANSIONS

    refused = {name for name in OPS if f"nn.{name}" not in EXPANSIONS}
    assert refused == {
        "state", "read", "write", "gradient",  # of programs that are not bound or differentiated yet
        "combine", "dispatch", "grouped_linear", "grouped_outer", "grouped_product", "grouped_weight_grad", "limit",
        "repeat_rows", "return_rows", "route", "send_rows", "sum_groups", "sum_rows", "take_rows",  # of experts
        "dequantize", "widen",  # of stored weights
        "cut", "uncut", "merge_parts", "page_write", "paged_attention"}  # of sizes that change, and of caches in pages


def test_refused_op_is_named_with_its_line(tmp_path):
    path = tmp_path / "program.mlir"
    path.write_text("""func.func @main(%w: tensor<4x8xf8E4M3FN> {nn.parameter = "w"}, %s: tensor<1x1xf32> {nn.parameter = "s"})
    -> (tensor<4x8xf32> {nn.output = "y"}) {
  %0 = nn.dequantize %w, %s {block = [4, 8]} : (tensor<4x8xf8E4M3FN>, tensor<1x1xf32>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}
""")
    with pytest.raises(mw.Error, match="'nn.dequantize': it has no form in StableHLO") as caught:
        mw.load(path).to_stablehlo()
    assert caught.value.diagnostics[0].line == 3


def test_gradients():
    """Backward passes of attention, norms and products, sharded."""
    def loss(w, x):
        q, k, v = (jax.numpy.einsum("btd,dhk->bthk", x, w[name]) for name in "qkv")
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        y = x + jax.numpy.einsum("bthk,hkd->btd", y, w["o"])
        y = y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-6)
        return (jax.nn.silu(y @ w["up"]) @ w["down"]).mean()

    needs_devices(4)
    w = {"q": array("16x4x4xf32", 0), "k": array("16x2x4xf32", 1), "v": array("16x2x4xf32", 2), "o": array("4x4x16xf32", 3),
         "up": array("16x24xf32", 4), "down": array("24x16xf32", 5)}
    x = array("2x6x16xf32", 6)
    model = mw.from_jax(loss, (w, x), training=True).differentiate()
    plan = model.parallelize(mesh={"tp": 4}, sequence_parallel="on")
    assert "nn.attention_grad" in plan.ir()
    text = plan.to_stablehlo()
    got = run(text, [{**w, "x": x}[name] for name in argument_names(text)], 4)
    assert max(map(difference, got, plan.run(x))) <= 1e-5
    want = dict(zip(model.outputs, got))
    for name, gradient in jax.grad(loss)(w, x).items():
        assert difference(want[f"grad.{name}"], gradient) <= 1e-4


def test_constants_are_in_the_text():
    """Tables that the import computed, whole or in parts with padding, are no arguments."""
    table = np.random.default_rng(0).standard_normal((9, 24)).astype(np.float32)

    def f(w, x):
        return jax.numpy.tanh(x * table + jax.numpy.where(table > 0, 1.0, -1.0)) @ w

    needs_devices(4)
    w, x = array("24x8xf32", 0), array("9x24xf32", 1)
    model = mw.from_jax(f, (w, x))
    for mesh in ({"dp": 1}, {"dp": 4}):
        plan = model.parallelize(mesh=mesh)
        text = plan.to_stablehlo()
        assert sorted(argument_names(text)) == ["w", "x"]
        given = [{"w": w, "x": x}[name] for name in argument_names(text)]
        assert difference(run(text, given, plan.ranks)[0], plan.run(x)[0]) <= 2e-6
        back = mw.from_stablehlo(text, parameters={"w": w}).parallelize(mesh=mesh)
        assert difference(back.run(x)[0], plan.run(x)[0]) <= 2e-6


def test_layers_of_a_stored_tensor_are_one_argument():
    import jax.numpy as jnp

    def f(p, x):
        return jax.lax.scan(lambda x, a: (jnp.tanh(x @ a), None), x, p)[0]

    random = np.random.default_rng(0)
    p, x = random.standard_normal((3, 8, 8)).astype(np.float32), random.standard_normal((4, 8)).astype(np.float32)
    needs_devices(2)
    plan = mw.from_jax(f, (p, x)).parallelize(mesh={"tp": 2})
    text = plan.to_stablehlo()
    assert sorted(argument_names(text)) == ["p", "x"]
    got = run(text, [{"p": p, "x": x}[name] for name in argument_names(text)], 2)
    assert difference(got[0], plan.run(x)[0]) <= 2e-6
    assert mw.from_stablehlo(text, parameters={"p": p}).ir().count("nn.parameter_offsets") == 3
