# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The ops of mixtures of experts as kernels for GPUs: the programs of test_experts on the stand-in for the driver;
ptxas assembles them."""
import os

import gpu_programs
import harness
import pytest
import test_experts
import torch
from harness import ELEMENT, assert_close
from test_experts import (Routing, draw, routing, test_limit, test_limit_of_many_experts, test_products,  # noqa: F401
                          test_products_of_features, test_products_of_many_rows, test_products_in_wide_tiles, test_route, test_route_of_many_choices, test_rows,
                          test_rows_of_features, test_rows_of_integers, test_top_k, too_many_rows, top_k_program)
from test_gpu_running import FAKEGPU, check
from test_gpu_running import pytestmark as needs_stand_ins
from test_nn import FLOATS, TOLERANCE, randn

pytestmark = pytest.mark.skipif(gpu_programs.missing() is not None, reason=str(gpu_programs.missing()))


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch):
    monkeypatch.setattr(test_experts, "run_module", gpu_programs.run_program)


@pytest.mark.parametrize("wrong", [8, -2, 1 << 40])
def test_an_expert_out_of_range(tmp_path, wrong):
    """The first one of all is the error."""
    routing = Routing(draw(2, 8), 8)
    text, inputs = routing.program("", {}, {"places": harness.type_of(routing.places)})
    inputs["i"][1, 4, 1] = inputs["i"][2, 10, 0] = wrong
    with pytest.raises(IndexError, match="^31$"):
        gpu_programs.run_program(tmp_path, text, inputs)


def test_more_rows_than_the_capacity(tmp_path):
    with pytest.raises(IndexError) as error:
        gpu_programs.run_program(tmp_path, *too_many_rows())
    # The last one has no room, of the choices of the last expert that has some.
    assert error.value.args[0] & ~(1 << 62) in range(66) and error.value.args[0] >> 62 == 1


BACKEND = {"arguments": ["--backend=nccl:peer"], "status": 1,
           "env": {"LD_LIBRARY_PATH": os.pathsep.join([str(FAKEGPU), os.environ.get("LD_LIBRARY_PATH", "")])}}


@needs_stand_ins
def test_errors_of_a_run(tmp_path):
    """The runtime says in other words what it says on a processor."""
    text, inputs = too_many_rows()
    assert "no room for the row of the choice at position" in harness.run_module(tmp_path, text, inputs, **BACKEND)
    inputs["i"][1, 4, 1] = 9
    assert "index at position 31 is out of range" in harness.run_module(tmp_path, text, inputs, **BACKEND)


def mixtral(layers):
    return f"""
import transformers as tf
from transformers import MixtralConfig
torch.manual_seed(0)
net = tf.MixtralForCausalLM(MixtralConfig(hidden_size=32, intermediate_size=40, num_hidden_layers={layers}, num_attention_heads=2, num_key_value_heads=2,
    vocab_size=61, num_local_experts=4, num_experts_per_tok=2, use_cache=False)).eval()
"""


@needs_stand_ins
def test_models():
    """Experts on two ranks, and a part of each expert on each rank."""
    check(mixtral(1) + """
ids = torch.randint(0, 61, (2, 9))
with torch.no_grad(): want = net(ids).logits
for mesh in ({"ep": 2}, {"tp": 2}):
    plan = mw.from_torch(net, (ids,)).parallelize(mesh=mesh)
    got, again = (plan.run(ids, backend="nccl:peer")[0] for _ in range(2))
    assert torch.equal(got, again), "two runs differ"
    assert (got - want).abs().max() < 1e-5 * want.abs().max(), (mesh, (got - want).abs().max())
""")


@needs_stand_ins
def test_graphs():
    """A call that repeats launches has another routing than the one that recorded them."""
    check("""
class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = (nn.Parameter(torch.randn(5, *sizes)) for sizes in ((24, 16), (16, 24)))
    def forward(self, x, i, w):
        h = nn.functional.silu(torch.einsum("td,tkfd->tkf", x, self.up[i]))
        return (torch.einsum("tkf,tkdf->tkd", h, self.down[i]) * w[..., None]).sum(1)
torch.manual_seed(0)
net = Experts().eval()
def draw(): return torch.randn(9, 16), torch.randint(0, 5, (9, 2)), torch.rand(9, 2)
with mw.from_torch(net, draw()).parallelize(mesh={"ep": 1}).start(backend="nccl", graphs="on") as session:
    for call in range(6):
        given = draw()
        if call == 4: given[1].fill_(3)
        with torch.no_grad(): want = net(*given)
        assert (session.run(*given)[0] - want).abs().max() < 1e-5 * want.abs().max(), call
    given[1][4, 1] = 5
    try: session.run(*given)
    except mw.Error as error: assert "position 9 is out of range" in str(error), error
    else: raise AssertionError("an expert out of range was accepted")
""")


def layer_program(dtype, tokens, inputs, outputs, experts, total, k):
    """All ops of a layer of experts and of its gradients, on one of several ranks."""
    rows, sums = tokens * min(k, experts), "f64" if dtype == "f64" else "f32"
    x, w, u = f"tensor<{tokens}x{inputs}x{dtype}>", f"tensor<{experts}x{outputs}x{inputs}x{dtype}>", f"tensor<{experts}x1x{outputs}x{dtype}>"
    r, h, dw, du = f"tensor<{rows}x1x{inputs}x{dtype}>", f"tensor<{rows}x1x{outputs}x{dtype}>", w.replace(f"x{dtype}>", f"x{sums}>"), u.replace(f"x{dtype}>", f"x{sums}>")
    scores, i, o, c = f"tensor<{tokens}x{total}x{dtype}>", f"tensor<{tokens}x{k}xi64>", f"tensor<{experts + 1}xi64>", f"tensor<{rows}xi64>"
    return f"""func.func @main(%x: {x} {{nn.input = "x"}}, %l: {scores} {{nn.input = "l"}}, %w: {w} {{nn.input = "w"}}, %u: {u} {{nn.input = "u"}},
    %first: tensor<i32> {{nn.input = "first"}}) -> ({x} {{nn.output = "y"}}, {dw} {{nn.output = "dw"}}, {du} {{nn.output = "du"}}) {{
  %i = nn.top_k %l {{k = {k} : i64}} : ({scores}) -> {i}
  %offsets, %choices, %places = nn.route %i offset %first {{experts = {experts} : i64, total = {total} : i64}} : ({i}, tensor<i32>) -> ({o}, {c}, {i})
  %r = nn.take_rows %x, %choices {{group = {k} : i64, tokens = 1 : i64}} : ({x}, {c}) -> {r}
  %p = nn.grouped_product %r, %w, %offsets : ({r}, {w}, {o}) -> {h}
  %b = nn.repeat_rows %u, %offsets : ({u}, {o}) -> {h}
  %h = nn.add %p, %b : ({h}, {h}) -> {h}
  %q = nn.grouped_product %h, %w, %offsets {{in_out}} : ({h}, {w}, {o}) -> {r}
  %y = nn.sum_rows %q, %places : ({r}, {i}) -> {x}
  %dw = nn.grouped_outer %h, %r, %offsets : ({h}, {r}, {o}) -> {dw}
  %du = nn.sum_groups %h, %offsets : ({h}, {o}) -> {du}
  return %y, %dw, %du : {x}, {dw}, {du}
}}
"""


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
def test_layers(tmp_path, dtype):
    """A processor gives the same numbers, and two runs the same bits."""
    text = layer_program(ELEMENT[dtype], 40, 24, 56, 4, 6, 3)
    x, w, u = (randn(*sizes, seed=seed, dtype=dtype) for seed, sizes in enumerate([(40, 24), (4, 56, 24), (4, 1, 56)]))
    # Equal scores must not appear, and numbers of bf16 are few.
    scores = torch.rand(40, 6, generator=torch.Generator().manual_seed(0)).argsort(-1).to(dtype)
    given = {"x": x, "l": scores, "w": w, "u": u, "first": torch.tensor(2, dtype=torch.int32)}
    got, want = gpu_programs.run_program(tmp_path, text, given), harness.run_module(tmp_path, text, given)
    for name in want:
        assert_close(got[name], want[name], 3 * TOLERANCE[dtype], name)
    again = gpu_programs.run_program(tmp_path, text, given)
    assert all(torch.equal(got[name], again[name]) for name in got)


@pytest.mark.parametrize("chip", ["sm_80", "sm_90a", "sm_100", "sm_120"])
def test_ptxas_accepts_kernels(tmp_path, chip):
    for dtype in ("f32", "bf16", "f64"):
        shapes = [(1, 97, 61, 5, 10, 3), (2, 2048, 768, 64, 128, 8), (100, 2048, 768, 64, 128, 8), (4096, 2048, 768, 64, 128, 8)]
        for number, sizes in enumerate(shapes):
            gpu_programs.assemble(tmp_path / f"{dtype}-{number}", layer_program(dtype, *sizes), chip)
        scores = torch.zeros(4, 50000, dtype=gpu_programs.TYPES[dtype])
        gpu_programs.assemble(tmp_path / f"{dtype}-top-k", top_k_program(scores, 40), chip)


@needs_stand_ins
def test_loads_in_reports():
    """Rows by rank, the fullest expert and what a limit dropped, as on a processor; each call has its own."""
    check(mixtral(2) + """
for options in (dict(mesh={"ep": 2}), dict(mesh={"ep": 2}, expert_capacity=1.0)):
    plan = mw.from_torch(net, (torch.zeros(2, 9, dtype=torch.int64),)).parallelize(**options)
    for turn in range(4):
        ids = torch.randint(0, 61, (2, 9), generator=torch.Generator().manual_seed(turn))
        loads = []
        for backend in ("local", "nccl:peer"):
            plan.run(ids, backend=backend)
            loads.append(plan.report(format="json")["experts"])
        assert loads[0] == loads[1] and len(loads[0]) == 2, (options, turn, loads)
        for load in loads[0]:
            assert sum(load["rows_per_rank"]) + load["dropped_tokens"] == 36, load
    assert ("expert_capacity" in options) == any(load["dropped_tokens"] for load in loads[0]), loads
""")
