# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels of rows of experts on a GPU compute the rows that exist, on the stand-ins (test/fakegpu). Fresh memory of the
stand-in has ones in all bits, so rows that no kernel writes have them, too."""
import json

import gpu_programs
import harness
import pytest
import torch
from harness import ELEMENT, assert_close, type_of
from test_experts import Routing, draw, shape, with_none
from test_gpu_running import check, refusal
from test_gpu_running import pytestmark as needs_stand_ins
from test_nn import FLOATS, TOLERANCE, randn

pytestmark = pytest.mark.skipif(gpu_programs.missing() is not None, reason=str(gpu_programs.missing()))
EXPERTS = 8

# How tokens choose two experts each.
ROUTINGS = {
    "none": lambda: torch.full((3, 11, 2), -1),
    "one": lambda: torch.tensor([5, -1]).expand(3, 11, 2).clone(),
    "some": lambda: with_none(2, EXPERTS),
    "all": lambda: draw(2, EXPERTS),
}


def rows_program(routing, dtype, features):
    """Lists of elements, rows of a few threads and of whole blocks, numbers of rows, columns and rows of two operands,
    and copies by routes and by indices."""
    e, n, wide = ELEMENT[dtype], routing.capacity, 40 * features
    f, x, w, s = (f"tensor<{shape(*sizes)}x{e}>" for sizes in [(n, 1, features), (3, 11, features), (EXPERTS, features, features), (n, 1)])
    t, a, i, o = f"tensor<{EXPERTS}x1x{features}x{e}>", f"tensor<{n}x1x{wide}x{e}>", f"tensor<{n}x1xi64>", type_of(routing.offsets)
    f, s, a, i = (text.replace(f"<{n}x1", f"<{n}x1x1") for text in (f, s, a, i))
    c, g, tw, tf = type_of(routing.choices), f"tensor<{n}x1x1x{2 * features}x{e}>", f"tensor<99x{wide}x{e}>", t.replace("x1x", "x1x1x")
    pair = f.replace("x1x1x", "x2x1x")
    body = f"""  %r = nn.take_rows %x, %choices {{group = 2 : i64, tokens = 2 : i64}} : ({x}, {c}) -> {f}
  %p = nn.grouped_product %r, %w, %offsets : ({f}, {w}, {o}) -> {f}
  %b = nn.repeat_rows %t, %offsets : ({tf}, {o}) -> {f}
  %k = nn.take_rows %ids, %choices {{group = 2 : i64, tokens = 2 : i64}} : (tensor<3x11xi64>, {c}) -> {i}
  %l = nn.embedding %k, %table : ({i}, {tw}) -> {a}
  %0 = nn.add %p, %b : ({f}, {f}) -> {f}
  %h = nn.silu %0 : {f}
  %m = nn.softmax %p dim 3 : {f}
  %d = nn.softmax %l dim 3 : {a}
  %s = nn.reduce sum %b dims [3] : ({f}) -> {s}
  %g = nn.concat %r, %b dim 3 : ({f}, {f}) -> {g}
  %e = nn.concat %r, %b dim 1 : ({f}, {f}) -> {pair}
"""
    # Numbers of the route are results so that nothing else was in the memory of the rows.
    route = {name: type_of(getattr(routing, name)) for name in ("offsets", "choices", "places")}
    results = {"r": f, "p": f, "b": f, "k": i, "l": a, "h": f, "m": f, "d": a, "s": s, "g": g, "e": pair}
    given = {"x": randn(3, 11, features, seed=0, dtype=dtype), "w": randn(EXPERTS, features, features, seed=1, dtype=dtype) / 4,
             "t": randn(EXPERTS, 1, 1, features, seed=2, dtype=dtype), "table": randn(99, wide, seed=3, dtype=dtype),
             "ids": torch.randint(0, 99, (3, 11), generator=torch.Generator().manual_seed(4))}
    return *routing.program(body, given, {**results, **route}), results


@pytest.mark.parametrize("features", [3, 16])
@pytest.mark.parametrize("kind", ROUTINGS)
@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
def test_rows_that_exist(tmp_path, dtype, kind, features):
    """They are those of a processor. No float is written behind them. Integers behind them are those of some token, so
    that lookups may read them."""
    routing = Routing(ROUTINGS[kind](), EXPERTS)
    text, given, results = rows_program(routing, dtype, features)
    got, want = gpu_programs.run_program(tmp_path, text, given), harness.run_module(tmp_path, text, given)
    assert routing.rows == {"none": 0, "one": 33, "all": 66}.get(kind, routing.rows)
    for name in results:
        assert_close(got[name][:routing.rows], want[name][:routing.rows], 3 * TOLERANCE[dtype], name)
        behind = got[name][routing.rows:]
        if name == "k":
            assert (behind == given["ids"][0, 0]).all()
        else:
            # A thread may write whole vectors of 16 bytes, a part of which is of a row that exists.
            raw = behind.contiguous().view(torch.uint8).flatten()[16 if features == 3 else 0:]
            assert (raw == 255).all(), name


def test_bits_of_rows(tmp_path):
    """Rows have the bits that kernels give whose rows are all computed."""
    routing = Routing(ROUTINGS["some"](), EXPERTS)
    text, given, _ = rows_program(routing, torch.bfloat16, 16)
    got = gpu_programs.run_program(tmp_path, text, given)
    inputs = {name: torch.nan_to_num(got[name]) for name in ("p", "b", "l", "r")}
    p, b, l, r = map(type_of, inputs.values())
    s, g = f"tensor<{routing.capacity}x1x1xbf16>", f"tensor<{routing.capacity}x1x1x32xbf16>"
    want = gpu_programs.run_program(tmp_path, f"""func.func @main(%p: {p} {{nn.input = "p"}}, %b: {b} {{nn.input = "b"}}, %l: {l} {{nn.input = "l"}}, %r: {r} {{nn.input = "r"}})
    -> ({p} {{nn.output = "h"}}, {p} {{nn.output = "m"}}, {l} {{nn.output = "d"}}, {s} {{nn.output = "s"}}, {g} {{nn.output = "g"}}) {{
  %0 = nn.add %p, %b : ({p}, {b}) -> {p}
  %h = nn.silu %0 : {p}
  %m = nn.softmax %p dim 3 : {p}
  %d = nn.softmax %l dim 3 : {l}
  %s = nn.reduce sum %b dims [3] : ({b}) -> {s}
  %g = nn.concat %r, %b dim 3 : ({r}, {b}) -> {g}
  return %h, %m, %d, %s, %g : {p}, {p}, {l}, {s}, {g}
}}
""", inputs)
    for name, all_rows in want.items():
        assert torch.equal(got[name][:routing.rows], all_rows[:routing.rows]), name


def test_accesses(tmp_path):
    """Without rows, blocks read the number of rows and end. The route and the copy of integers do work, tiles of a
    product look for their experts, and a kernel in several pieces computes all rows."""
    counts = {}
    for kind in ("none", "all"):
        text, given, _ = rows_program(Routing(ROUTINGS[kind](), EXPERTS), torch.float32, 16)
        counts[kind] = gpu_programs.count_accesses(tmp_path, text, given)
    assert counts["none"].keys() == counts["all"].keys()
    sectors = [(count["global_sectors"], counts["all"][name]["global_sectors"]) for name, count in counts["none"].items()]
    assert len(sectors) >= 10 and sum(none > every / 4 for none, every in sectors) <= 4, sectors


EXPERTS_OF_TWO_RANKS = """
class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = (nn.Parameter(torch.randn(4, *sizes)) for sizes in ((24, 16), (16, 24)))
    def forward(self, x, i, w):
        h = nn.functional.silu(torch.einsum("td,tkfd->tkf", x, self.up[i]))
        return (torch.einsum("tkf,tkdf->tkd", h, self.down[i]) * w[..., None]).sum(1)
torch.manual_seed(0)
net = Experts().eval()
# All rows are of the first rank, of the second one, of one expert, or of both ranks.
CHOICES = [torch.tensor(c).expand(9, 2).clone() for c in ([0, 1], [3, 2], [2, 2])] + [torch.randint(0, 4, (9, 2))]
def draw(call): return torch.randn(9, 16), CHOICES[call % 4], torch.rand(9, 2)
model = mw.from_torch(net, draw(3))
"""


@needs_stand_ins
def test_graphs():
    """A graph that repeats has another number of rows in each call. Checks of values look at rows that exist."""
    check(EXPERTS_OF_TWO_RANKS + """
plan = model.parallelize(mesh={"ep": 2})
with plan.start(backend="nccl", graphs="on") as session, plan.start(backend="nccl", graphs="off") as plain:
    for finite in (True, False):
        for call in range(8):
            given = draw(call)
            with torch.no_grad(): want = net(*given)
            got = session.run(*given, check_finite=finite)[0]
            assert (got - want).abs().max() < 1e-5 * want.abs().max(), call
            assert torch.equal(got, plain.run(*given, check_finite=finite)[0]), call
""")


@needs_stand_ins
def test_values_that_are_not_finite():
    """In the last row of a rank."""
    said = refusal(EXPERTS_OF_TWO_RANKS + """
x, i, w = draw(0)
x[8, 3] = float("nan")
model.parallelize(mesh={"ep": 2}).run(x, i, w, backend="nccl", check_finite=True)
""")
    assert "is NaN" in said, said


@needs_stand_ins
def test_traces(tmp_path):
    """They count the operations of rows that exist, as those of processors do."""
    check(EXPERTS_OF_TWO_RANKS + f"""
for target, backend in (("gpu:sm_90", "nccl"), ("cpu", "local")):
    model.parallelize(mesh={{"ep": 2}}, target=target).run(*draw(0), backend=backend, trace="{tmp_path}/" + backend)
""")
    flops = {}
    for backend in ("nccl", "local"):
        events = json.loads((tmp_path / backend).read_text())["traceEvents"]
        flops[backend] = [sum(e["args"].get("flops", 0) for e in events if e["ph"] == "X" and e["pid"] == rank and e["cat"] == "gemm")
                          for rank in (0, 1)]
    assert flops["nccl"] == flops["local"] == [2 * 18 * 2 * 16 * 24, 0], flops
