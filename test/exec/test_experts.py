# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The ops of mixtures of experts on the rows that exist, against PyTorch."""
import pytest
import torch
from harness import ELEMENT, assert_close, run_module, type_of
from test_nn import FLOATS, TOLERANCE, randint, randn


def shape(*sizes):
    return "x".join(map(str, sizes))


# Choices.

SCORES = {
    "ties": lambda n, dtype: randint(-2, 3, 5, n).to(dtype),
    "numbers": lambda n, dtype: (randn(5, n) * 100).to(dtype),
}


def top_k_program(x, k):
    return f"""func.func @main(%x: {type_of(x)} {{nn.input = "x"}}) -> (tensor<{len(x)}x{k}xi64> {{nn.output = "i"}}) {{
  %i = nn.top_k %x {{k = {k} : i64}} : ({type_of(x)}) -> tensor<{len(x)}x{k}xi64>
  return %i : tensor<{len(x)}x{k}xi64>
}}
"""


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.int32], ids=ELEMENT.get)
@pytest.mark.parametrize("size,k", [(1, 1), (7, 7), (8, 2), (33, 5), (300, 40), (5001, 3)])
def test_top_k(tmp_path, dtype, size, k):
    """Also of NaN, infinities, both zeros, and the least and the largest integers."""
    x = torch.cat([draw(size, dtype) for draw in SCORES.values()])
    special = [float("nan"), -float("inf"), float("inf"), -0.0, 0.0]
    if not dtype.is_floating_point:
        special = [torch.iinfo(dtype).min, torch.iinfo(dtype).max, -1, 0, torch.iinfo(dtype).min]
    for at, number in enumerate(special[:size]):
        x[0, (at * 7) % size] = number
        x[3, size - 1 - at] = number
    x[4] = special[0]
    x[5] = -x[5].abs() if dtype.is_floating_point else torch.iinfo(dtype).min
    text = top_k_program(x, k)
    # A stable sort takes the lowest index of equal elements, and has NaN as the largest one.
    assert torch.equal(run_module(tmp_path, text, {"x": x})["i"], x.sort(descending=True, stable=True).indices[:, :k])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=ELEMENT.get)
@pytest.mark.parametrize("tokens,capacity", [(1, 1), (5, 0), (40, 7), (700, 100), (700, 10000)])
def test_limit(tmp_path, dtype, tokens, capacity):
    """Each expert keeps its first choices."""
    i = randint(-1, 6, tokens, 3, dtype=dtype)
    text = f"""func.func @main(%i: {type_of(i)} {{nn.input = "i"}}) -> ({type_of(i)} {{nn.output = "j"}}) {{
  %j = nn.limit %i {{capacity = {capacity} : i64}} : {type_of(i)}
  return %j : {type_of(i)}
}}
"""
    chosen = i.flatten()[:, None] == torch.arange(6)
    place = (chosen.cumsum(0) * chosen).sum(1)
    want = torch.where(place <= capacity, i.flatten(), -1).to(dtype).view(i.shape)
    assert torch.equal(run_module(tmp_path, text, {"i": i})["j"], want)


@pytest.mark.parametrize("tokens,capacity", [(500, 500), (500, 3), (37, 1)])
def test_limit_of_many_experts(tmp_path, tokens, capacity):
    """More experts than a share of the choices tells."""
    i = torch.where(randint(0, 9, tokens, 3) == 0, -1, randint(0, 300, tokens, 3))
    text = f"""func.func @main(%i: {type_of(i)} {{nn.input = "i"}}) -> ({type_of(i)} {{nn.output = "j"}}) {{
  %j = nn.limit %i {{capacity = {capacity} : i64}} : {type_of(i)}
  return %j : {type_of(i)}
}}
"""
    chosen = i.flatten()[:, None] == torch.arange(300)
    place = (chosen.cumsum(0) * chosen).sum(1)
    want = torch.where(place <= capacity, i.flatten(), -1).view(i.shape)
    assert torch.equal(run_module(tmp_path, text, {"i": i})["j"], want)


# Rows. The names of routings say what they are limits of.

TOKENS = (3, 11)


def draw(k, experts, seed=0):
    return torch.rand(*TOKENS, experts, generator=torch.Generator().manual_seed(seed)).argsort(-1)[..., :k]


def skewed(k, experts):
    return torch.arange(k).expand(*TOKENS, k).clone()


def with_none(k, experts):
    i = draw(k, experts)
    i[0, 3], i[1, :, 0], i[2, 10, -1] = -1, -1, -1
    return i


def idle(k, experts):
    """The first, the last and a middle expert have no rows."""
    others = torch.tensor([e for e in range(experts) if e not in (0, experts // 2, experts - 1)])
    return others[draw(k, len(others))]


class Routing:
    """Indices, and the places that `nn.route` is to give them."""

    def __init__(self, indices, experts, total=None, offset=None, capacity=None):
        self.indices, self.experts, self.total, self.offset = indices, experts, total or experts, offset
        k = indices.shape[-1]
        self.capacity = capacity or indices[..., 0].numel() * min(k, experts)
        here = indices.flatten().long() - (offset or 0)
        here[(indices.flatten() < 0) | (here < 0) | (here >= experts)] = experts
        order = here.argsort(stable=True)
        self.offsets = torch.bincount(here, minlength=experts + 1)[:experts].cumsum(0)
        self.offsets = torch.cat([torch.zeros(1, dtype=torch.int64), self.offsets])
        self.rows = int(self.offsets[-1])
        self.choices = torch.full([self.capacity], -1)
        self.choices[:self.rows] = order[:self.rows]
        self.places = torch.full_like(here, -1)
        self.places[order[:self.rows]] = torch.arange(self.rows)
        self.places = self.places.view(indices.shape)
        self.expert_of = here[order[:self.rows]]

    def inputs(self):
        offset = {} if self.offset is None else {"first": torch.tensor(self.offset, dtype=self.indices.dtype)}
        return {"i": self.indices, **offset}

    def program(self, body, inputs, results):
        """A function of these inputs with `body` behind the route; results are (name, type)."""
        given = {**self.inputs(), **inputs}
        arguments = ", ".join(f'%{n}: {type_of(x)} {{nn.input = "{n}"}}' for n, x in given.items())
        outputs = ", ".join(f'{t} {{nn.output = "{n}"}}' for n, t in results.items())
        offset = "" if self.offset is None else " offset %first"
        operands = ", ".join(type_of(x) for x in self.inputs().values())
        places = ", ".join(type_of(x) for x in (self.offsets, self.choices, self.places))
        return (f"func.func @main({arguments}) -> ({outputs}) {{\n"
                f"  %offsets, %choices, %places = nn.route %i{offset} {{experts = {self.experts} : i64, total = {self.total} : i64}}"
                f" : ({operands}) -> ({places})\n{body}"
                f"  return {', '.join('%' + n for n in results)} : {', '.join(results.values())}\n}}\n"), given


ROUTINGS = {
    "random": lambda: Routing(draw(2, 8), 8),
    "i32": lambda: Routing(draw(2, 8).int(), 8),
    "one choice": lambda: Routing(draw(1, 8), 8),
    "all experts": lambda: Routing(draw(5, 5), 5),
    "one expert": lambda: Routing(skewed(1, 7), 7),
    "single expert": lambda: Routing(skewed(1, 1), 1),
    "experts without rows": lambda: Routing(idle(3, 10), 10),
    "choices of none": lambda: Routing(with_none(2, 8), 8),
    "no rows": lambda: Routing(torch.full((*TOKENS, 2), -1), 8),
    "repeats": lambda: Routing(randint(0, 3, *TOKENS, 4), 3, capacity=3 * 11 * 4),
    "second rank": lambda: Routing(draw(3, 8), 4, total=8, offset=4),
    "padded experts": lambda: Routing(draw(3, 7), 4, total=7, offset=4),
    "many experts": lambda: Routing(draw(4, 130), 130),
    "all to the other rank": lambda: Routing(skewed(2, 8), 4, total=8, offset=4),
}


@pytest.fixture(params=ROUTINGS.values(), ids=list(ROUTINGS))
def routing(request):
    return request.param()


def test_route(tmp_path, routing):
    names = ("offsets", "choices", "places")
    text, inputs = routing.program("", {}, {n: type_of(getattr(routing, n)) for n in names})
    got = run_module(tmp_path, text, inputs)
    for name in names:
        assert torch.equal(got[name], getattr(routing, name)), name


def test_route_of_many_choices(tmp_path):
    """Each warp of a block has many choices."""
    indices = torch.rand(1500, 20, generator=torch.Generator().manual_seed(0)).argsort(-1)[:, :6]
    test_route(tmp_path, Routing(indices, 20))


ROWS = """
  %r = nn.take_rows %x, %choices {{group = {k} : i64, tokens = 2 : i64}} : ({x}, {choices}) -> {r}
  %rv = nn.take_rows %v, %choices {{each, group = {k} : i64, tokens = 2 : i64}} : ({v}, {choices}) -> {rv}
  %y = nn.sum_rows %r, %places : ({r}, {places}) -> {x}
  %yv = nn.sum_rows %rv, %places {{each}} : ({rv}, {places}) -> {v}
  %t = nn.repeat_rows %b, %offsets : ({b}, {offsets}) -> {r}
  %s = nn.sum_groups %r, %offsets : ({r}, {offsets}) -> {b}
  %sw = nn.sum_groups %rv, %offsets : ({rv}, {offsets}) -> {sw}
"""


def check_rows(folder, routing, dtype, features):
    k, element, n = routing.indices.shape[-1], ELEMENT[dtype], routing.capacity
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    x, v = randn(*TOKENS, features, dtype=dtype), randn(*TOKENS, k, seed=1, dtype=dtype)
    b = randn(routing.experts, 1, 1, features, seed=2, dtype=dtype)
    types = {"x": type_of(x), "v": type_of(v), "b": type_of(b), "k": k,
             "r": f"tensor<{shape(n, 1, 1, features)}x{element}>", "rv": f"tensor<{shape(n, 1, 1)}x{element}>",
             "sw": f"tensor<{shape(routing.experts, 1, 1)}x{ELEMENT[wide]}>",
             **{name: type_of(getattr(routing, name)) for name in ("offsets", "choices", "places")}}
    results = {"r": "r", "rv": "rv", "y": "x", "yv": "v", "t": "r", "s": "b", "sw": "sw"}
    text, inputs = routing.program(ROWS.format(**types), {"x": x, "v": v, "b": b}, {n: types[t] for n, t in results.items()})
    got = run_module(folder, text, inputs)
    exist = routing.choices[:routing.rows]
    rows, numbers = x.flatten(0, 1)[exist // k], v.flatten()[exist]
    assert torch.equal(got["r"][:routing.rows, 0, 0], rows)
    assert torch.equal(got["rv"][:routing.rows, 0, 0], numbers)
    # Sums are computed in their order, and round once.
    y, s, sw = (torch.zeros(count, columns, dtype=wide)
                for count, columns in ((33, features), (routing.experts, features), (routing.experts, 1)))
    for choice, place in enumerate(routing.places.flatten()):
        if place >= 0:
            y[choice // k] += rows[place].to(wide)
    for row, expert in enumerate(routing.expert_of):
        s[expert] += rows[row].to(wide)
        sw[expert] += numbers[row].to(wide)
    assert torch.equal(got["y"], y.to(dtype).view(x.shape))
    assert torch.equal(got["yv"], torch.where(routing.places < 0, 0, v))
    assert torch.equal(got["s"].view(-1, features), s.to(dtype))
    assert torch.equal(got["sw"].view(-1, 1), sw)
    assert torch.equal(got["t"][:routing.rows], b[routing.expert_of])


def several_ranks():
    """Of the rank's four experts two have rows, and so has one of another rank."""
    indices = 2 * draw(2, 3)
    indices[0, :5] = -1
    return Routing(indices, 4, total=6, offset=2)


def test_rows(tmp_path, routing):
    check_rows(tmp_path, routing, torch.float32, 7)


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
@pytest.mark.parametrize("features", [1, 7, 24])
def test_rows_of_features(tmp_path, dtype, features):
    check_rows(tmp_path, several_ranks(), dtype, features)


def test_rows_of_integers(tmp_path):
    routing = Routing(with_none(2, 8), 8)
    for dtype in (torch.int64, torch.int32, torch.bool):
        x = randint(0, 2 if dtype == torch.bool else 99, *TOKENS, 6, dtype=dtype)
        r = f"tensor<{shape(routing.capacity, 1, 1, 6)}x{ELEMENT[dtype]}>"
        body = (f"  %r = nn.take_rows %x, %choices {{group = 2 : i64, tokens = 2 : i64}} : "
                f"({type_of(x)}, {type_of(routing.choices)}) -> {r}\n")
        text, inputs = routing.program(body, {"x": x}, {"r": r})
        got = run_module(tmp_path, text, inputs)["r"]
        assert torch.equal(got[:routing.rows, 0, 0], x.flatten(0, 1)[routing.choices[:routing.rows] // 2])


PRODUCTS = """
  %r = nn.take_rows %x, %choices {{group = {k} : i64, tokens = 2 : i64}} : ({x}, {choices}) -> {r}
  %g = nn.take_rows %d, %choices {{group = {k} : i64, tokens = 2 : i64}} : ({d}, {choices}) -> {p}
  %p = nn.grouped_product %r, %w, %offsets : ({r}, {w}, {offsets}) -> {p}
  %q = nn.grouped_product %g, %w, %offsets {{in_out}} : ({p}, {w}, {offsets}) -> {q}
  %o = nn.grouped_outer %g, %r, %offsets : ({p}, {r}, {offsets}) -> {o}
"""


def check_products(folder, routing, dtype, inputs, outputs, weights=(), arguments=()):
    """Features that a product reads and makes; its transpose, whose result has the type of sums."""
    k, element, n, experts = routing.indices.shape[-1], ELEMENT[dtype], routing.capacity, routing.experts
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    x, d = randn(*routing.indices.shape[:2], inputs, dtype=dtype), randn(*routing.indices.shape[:2], outputs, seed=1, dtype=dtype)
    w = randn(experts, outputs, inputs, seed=2, dtype=dtype)
    types = {"x": type_of(x), "d": type_of(d), "w": type_of(w), "k": k,
             "r": f"tensor<{shape(n, 1, 1, inputs)}x{element}>", "p": f"tensor<{shape(n, 1, 1, outputs)}x{element}>",
             "q": f"tensor<{shape(n, 1, 1, inputs)}x{ELEMENT[wide]}>", "o": f"tensor<{shape(experts, outputs, inputs)}x{ELEMENT[wide]}>",
             "offsets": type_of(routing.offsets), "choices": type_of(routing.choices)}
    text, given = routing.program(PRODUCTS.format(**types), {"x": x, "d": d, "w": w}, {n: types[n] for n in "pqo"})
    for name in weights:
        text = text.replace(f'nn.input = "{name}"', f'nn.parameter = "{name}"')
    fixed = {name: given[name] for name in weights}
    got = run_module(folder, text, {n: y for n, y in given.items() if n not in fixed}, fixed, arguments=arguments)
    tokens = routing.choices[:routing.rows] // k
    rows, grads = (y.flatten(0, 1)[tokens].double() for y in (x, d))
    of_row, weights = routing.expert_of, w.double()
    bound = TOLERANCE[dtype]
    p = torch.zeros(routing.rows, outputs, dtype=torch.float64)
    q = torch.zeros(routing.rows, inputs, dtype=torch.float64)
    o = torch.zeros(experts, outputs, inputs, dtype=torch.float64)
    for expert in range(experts):
        own = torch.nonzero(of_row == expert).flatten()
        p[own] = rows[own] @ weights[expert].T
        q[own] = grads[own] @ weights[expert]
        o[expert] = grads[own].T @ rows[own]
    # Rows behind these need not be written.
    got |= {name: got[name].flatten(1)[:routing.rows] for name in "pq"}
    assert_close(got["p"], p.to(dtype), bound)
    assert_close(got["q"], q.to(wide), TOLERANCE[wide])
    assert_close(got["o"], o.to(wide), TOLERANCE[wide])
    assert not got["o"][torch.bincount(of_row, minlength=experts) == 0].any()
    return text, given, got


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=ELEMENT.get)
def test_products(tmp_path, routing, dtype):
    check_products(tmp_path, routing, dtype, 16, 13)


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
@pytest.mark.parametrize("inputs,outputs", [(1, 1), (7, 13), (40, 72)])
def test_products_of_features(tmp_path, dtype, inputs, outputs):
    check_products(tmp_path, several_ranks(), dtype, inputs, outputs)


def test_products_by_parameters(tmp_path, routing):
    """Parameters may be packed at load."""
    check_products(tmp_path, routing, torch.bfloat16, 7, 13, ["w"])


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
@pytest.mark.parametrize("inputs,outputs", [(1, 1), (72, 130)])
def test_threads_share_products(tmp_path, dtype, inputs, outputs):
    """Threads do not show in the results."""
    one, several = (check_products(tmp_path, several_ranks(), dtype, inputs, outputs, ["w"],
                                   [f"--threads-per-rank={threads}"])[2] for threads in (1, 3))
    assert all(torch.equal(one[name], several[name]) for name in one)


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
def test_products_of_many_rows(tmp_path, dtype):
    """Experts with more rows than a tile has, and rows and features of several tiles."""
    indices = torch.rand(2, 150, 3, generator=torch.Generator().manual_seed(0)).argsort(-1)[..., :2]
    check_products(tmp_path, Routing(indices, 3), dtype, 72, 130)


@pytest.mark.parametrize("tokens,experts,inputs,outputs", [(1000, 5, 256, 1600), (1000, 5, 1600, 256), (40, 30, 384, 390)])
def test_products_in_wide_tiles(tmp_path, tokens, experts, inputs, outputs):
    """Many rows and features, by rows of weights, by their columns, and of gradients: a GPU has wide tiles."""
    indices = torch.rand(1, tokens, experts, generator=torch.Generator().manual_seed(0)).argsort(-1)[..., :2]
    check_products(tmp_path, Routing(indices, experts), torch.bfloat16, inputs, outputs)


@pytest.mark.parametrize("wrong", [8, -2, 1 << 40])
def test_an_expert_out_of_range(tmp_path, wrong):
    routing = Routing(draw(2, 8), 8)
    text, inputs = routing.program("", {}, {"places": type_of(routing.places)})
    inputs["i"][1, 4, 1] = wrong
    assert f"expert {wrong} at position 31 is out of range" in run_module(tmp_path, text, inputs, status=1)


def too_many_rows():
    """A program with room for 60 rows, and the indices of 66."""
    routing = Routing(with_none(2, 8), 8, capacity=60)
    text, _ = routing.program("", {}, {"places": type_of(routing.places)})
    return text, {"i": draw(2, 8)}


def test_more_rows_than_the_capacity(tmp_path):
    text, inputs = too_many_rows()
    assert "a routing has 66 rows, and room for 60" in run_module(tmp_path, text, inputs, status=1)


def few_rows():
    """Most of the choices are of no expert, so there is room for many more rows than exist."""
    indices = torch.full((*TOKENS, 2), -1)
    indices[0, 3], indices[2, 4, 1] = torch.tensor([2, 5]), 5
    return Routing(indices, 8)


def test_lookups_by_numbers_of_rows(tmp_path):
    """Numbers of rows that do not exist are in range of any table."""
    routing, n = few_rows(), 66
    ids, table = randint(0, 50, *TOKENS), randn(50, 8)
    body = f"""  %r = nn.take_rows %x, %choices {{group = 2 : i64, tokens = 2 : i64}} : ({type_of(ids)}, tensor<{n}xi64>) -> tensor<{n}x1x1xi64>
  %next = nn.add %r, %r : (tensor<{n}x1x1xi64>, tensor<{n}x1x1xi64>) -> tensor<{n}x1x1xi64>
  %t = nn.embedding %next, %table : (tensor<{n}x1x1xi64>, {type_of(table.repeat(2, 1))}) -> tensor<{n}x1x1x8xf32>
  %y = nn.sum_rows %t, %places : (tensor<{n}x1x1x8xf32>, {type_of(routing.places)}) -> tensor<{shape(*TOKENS, 8)}xf32>
"""
    text, given = routing.program(body, {"x": ids, "table": table.repeat(2, 1)}, {"y": f"tensor<{shape(*TOKENS, 8)}xf32>"})
    got = run_module(tmp_path, text, given, arguments=["--check-finite"])["y"]
    counts = (routing.indices >= 0).sum(-1, keepdim=True)
    assert torch.equal(got, counts * table.repeat(2, 1)[2 * ids])


def test_a_number_for_each_row(tmp_path):
    """Results as large as the offsets do not take their place: threads read the number of rows."""
    tokens, i = 9, torch.full((9, 2), -1)
    i[4] = torch.tensor([3, 0])
    v = randn(tokens, 2, dtype=torch.bfloat16)
    text = f"""func.func @main(%i: {type_of(i)} {{nn.input = "i"}}, %v: {type_of(v)} {{nn.input = "v"}}) -> (tensor<9x2xf32> {{nn.output = "y"}}) {{
  %offsets, %choices, %places = nn.route %i {{experts = 8 : i64}} : ({type_of(i)}) -> (tensor<9xi64>, tensor<18xi64>, {type_of(i)})
  %r = nn.take_rows %v, %choices {{each, group = 2 : i64, tokens = 1 : i64}} : ({type_of(v)}, tensor<18xi64>) -> tensor<18x1xbf16>
  %f = nn.cast %r : (tensor<18x1xbf16>) -> tensor<18x1xf32>
  %y = nn.sum_rows %f, %places {{each}} : (tensor<18x1xf32>, {type_of(i)}) -> tensor<9x2xf32>
  return %y : tensor<9x2xf32>
}}
"""
    got = run_module(tmp_path, text, {"i": i, "v": v}, arguments=["--check-finite"])["y"]
    assert torch.equal(got, torch.where(i < 0, 0, v.float()))


def test_finite_rows_of_several_ranks(tmp_path):
    """--check-finite looks at no row that does not exist, behind a sum over ranks, too."""
    i = torch.full((64, 1), -1)
    i[::16] = torch.tensor([[1], [3], [3], [0]])
    x, w1, w2 = randn(64, 16), randn(4, 24, 16, seed=1), randn(4, 16, 24, seed=2)
    rows = lambda features: f"tensor<4x64x{features}xf32, #nn.routed<1>>"
    text = f"""func.func @main(%x: {type_of(x)} {{nn.input = "x"}}, %i: {type_of(i)} {{nn.input = "i"}}, %w1: {type_of(w1)} {{nn.parameter = "w1"}}, %w2: {type_of(w2)} {{nn.parameter = "w2"}}) -> ({type_of(x)} {{nn.output = "y"}}) {{
  %r = nn.dispatch %x, %i : ({type_of(x)}, {type_of(i)}) -> {rows(16)}
  %h = nn.grouped_linear %r, %w1 : ({rows(16)}, {type_of(w1)}) -> {rows(24)}
  %a = nn.silu %h : {rows(24)}
  %g = nn.grouped_linear %a, %w2 : ({rows(24)}, {type_of(w2)}) -> {rows(16)}
  %e = nn.exp %g : {rows(16)}
  %y = nn.combine %e, %i : ({rows(16)}, {type_of(i)}) -> {type_of(x)}
  return %y : {type_of(x)}
}}
"""
    options = 'mesh=tp=2 shardings={"w1": [{}, {"tp"}, {}], "w2": [{}, {}, {"tp"}]}'
    got = run_module(tmp_path, text, {"x": x, "i": i}, {"w1": w1, "w2": w2},
                     arguments=[f"--parallelize={options}", "--check-finite"])["y"]
    want = torch.zeros_like(x)
    for token in range(0, 64, 16):
        e = i[token, 0]
        want[token] = torch.exp(w2[e] @ torch.nn.functional.silu(w1[e] @ x[token]))
    assert_close(got, want, 1e-5)
