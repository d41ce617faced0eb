# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Experts that share the rows of tokens give what experts with rows of their own give."""
import pytest
import torch
from harness import run_module, type_of

WIDTH = 5


def routed(first, shape, element, k, shared, repeats=False):
    sizes = "x".join(map(str, (first, *shape)))
    parts = [str(k), *["repeats"] * repeats, *[f"shared = {shared}"] * (shared != 1)]
    return f"tensor<{sizes}x{element}, #nn.routed<{', '.join(parts)}>>"


def layer(indices, experts, levels, repeats=False):
    """Rows go through groups of so many experts, then to the experts. Numbers of choices go directly."""
    *tokens, k = indices.shape
    element = "i64" if indices.dtype == torch.int64 else "i32"
    x, v, i = (f"tensor<{'x'.join(map(str, (*tokens, n)))}x{e}>" for n, e in ((WIDTH, "f32"), (k, "f32"), (k, element)))
    rows = lambda n, features, kind="f32": routed(experts // n, (*tokens, *features), kind, k, n, repeats)
    lines, levels = [], [*levels, 1]
    taken, chosen, of, by = "%x", "%i", x, i
    steps = []
    for n in levels:
        lines.append(f"%r{n} = nn.dispatch {taken}, {chosen} : ({of}, {by}) -> {rows(n, (WIDTH,))}")
        steps.append((n, chosen, by, of))
        if n != 1:
            lines.append(f"%i{n} = nn.dispatch {chosen}, {chosen} : ({by}, {by}) -> {rows(n, (k,), element)}")
        taken, chosen, of, by = f"%r{n}", f"%i{n}", rows(n, (WIDTH,)), rows(n, (k,), element)
    w = f"tensor<{experts}x{WIDTH}x{WIDTH}xf32>"
    lines += [f"%h = nn.grouped_linear %r1, %w : ({of}, {w}) -> {of}",
              f"%d = nn.dispatch %v, %i {{each}} : ({v}, {i}) -> {rows(1, ())}",
              f"%e = nn.reshape %d : ({rows(1, ())}) -> {rows(1, (1,))}",
              f"%m = nn.mul %h, %e : ({of}, {rows(1, (1,))}) -> {of}"]
    sums = "%m"
    for n, chosen, by, result in reversed(steps):
        lines.append(f"%y{n} = nn.combine {sums}, {chosen} : ({rows(n, (WIDTH,))}, {by}) -> {result}")
        sums = f"%y{n}"
    body = "\n  ".join(lines)
    return (f'func.func @main(%x: {x} {{nn.input = "x"}}, %v: {v} {{nn.input = "v"}}, %i: {i} {{nn.input = "i"}}, '
            f'%w: {w} {{nn.parameter = "w"}}) -> ({x} {{nn.output = "y"}}) {{\n  {body}\n  return {sums} : {x}\n}}\n')


def expected(x, v, indices, w):
    y = torch.zeros_like(x)
    for choice in range(indices.shape[-1]):
        index = indices[..., choice].long()
        row = torch.einsum("...d,...fd->...f", x, w[index.clamp(min=0)]) * v[..., choice, None]
        y += torch.where(index[..., None] < 0, 0, row)
    return y


def check(folder, indices, experts, levels, options=None, repeats=False, seed=0):
    g = torch.Generator().manual_seed(seed)
    x, v = torch.randn(*indices.shape[:-1], WIDTH, generator=g), torch.rand(indices.shape, generator=g)
    w = torch.randn(experts, WIDTH, WIDTH, generator=g)
    text = layer(indices, experts, levels, repeats)
    arguments = [f"--parallelize={options}"] if options else []
    got = run_module(folder, text, {"x": x, "v": v, "i": indices}, {"w": w}, arguments)["y"]
    torch.testing.assert_close(got, expected(x, v, indices, w), rtol=1e-5, atol=1e-5, msg=lambda m: f"{m}\n{text}")


def draw(shape, experts, k, seed=0):
    return torch.rand(*shape, experts, generator=torch.Generator().manual_seed(seed)).argsort(-1)[..., :k]


def with_none(shape, experts, k):
    indices = draw(shape, experts, k)
    indices[0], indices[..., -1] = -1, -1
    return indices


CHOICES = {
    "random": draw,
    "one group": lambda shape, experts, k: torch.arange(k).expand(*shape, k).contiguous(),
    "choices of none": with_none,
    "no rows": lambda shape, experts, k: torch.full((*shape, k), -1),
    "i32": lambda shape, experts, k: draw(shape, experts, k).int(),
}


@pytest.mark.parametrize("choices", CHOICES.values(), ids=CHOICES.keys())
@pytest.mark.parametrize("levels", [[2], [4], [8], [4, 2]], ids=str)
def test_levels(tmp_path, choices, levels):
    check(tmp_path, choices((3, 4), 8, 3), 8, levels)


def test_tokens_of_one_dimension(tmp_path):
    check(tmp_path, draw((7,), 6, 4), 6, [3])


def test_repeated_choices(tmp_path):
    """A token has a row for each repetition, and one for a group."""
    indices = torch.randint(0, 3, (2, 6, 4), generator=torch.Generator().manual_seed(0))
    check(tmp_path, indices, 6, [2], repeats=True)


@pytest.mark.parametrize("options", ["mesh=ep=2", "mesh=dp=2 expert-parallel=dp", "mesh=dp=2,ep=2"])
@pytest.mark.parametrize("levels", [[2], [4, 2]], ids=str)
def test_ranks(tmp_path, options, levels):
    check(tmp_path, draw((4, 3), 8, 3), 8, levels, options)


def test_a_rank_for_each_group(tmp_path):
    check(tmp_path, draw((4, 3), 8, 3), 8, [2], "mesh=ep=4")


@pytest.mark.parametrize("width", [8, 64])
def test_numbers_of_rows_come_back(tmp_path, width):
    """A number of each row, where no rows of choices have gone to the experts: tokens went to a rank once, or rows did."""
    text = f"""func.func @main(%x: tensor<4x6x{width}xf32> {{nn.input = "x"}}, %i: tensor<4x6x2xi64> {{nn.input = "i"}},
                %w: tensor<8x16x{width}xf32> {{nn.parameter = "w"}}) -> (tensor<4x6x2xf32> {{nn.output = "v"}}) {{
  %r = nn.dispatch %x, %i : (tensor<4x6x{width}xf32>, tensor<4x6x2xi64>) -> tensor<8x4x6x{width}xf32, #nn.routed<2>>
  %h = nn.grouped_linear %r, %w : (tensor<8x4x6x{width}xf32, #nn.routed<2>>, tensor<8x16x{width}xf32>) -> tensor<8x4x6x16xf32, #nn.routed<2>>
  %s = nn.reduce sum %h dims [3] : (tensor<8x4x6x16xf32, #nn.routed<2>>) -> tensor<8x4x6xf32, #nn.routed<2>>
  %v = nn.combine %s, %i {{each}} : (tensor<8x4x6xf32, #nn.routed<2>>, tensor<4x6x2xi64>) -> tensor<4x6x2xf32>
  return %v : tensor<4x6x2xf32>
}}
"""
    g = torch.Generator().manual_seed(0)
    x, w, i = torch.randn(4, 6, width, generator=g), torch.randn(8, 16, width, generator=g), draw((4, 6), 8, 2)
    for mesh in ("dp=2", "dp=4"):
        got = run_module(tmp_path, text, {"x": x, "i": i}, {"w": w}, [f"--parallelize=mesh={mesh} expert-parallel=dp"])["v"]
        torch.testing.assert_close(got, torch.einsum("btd,btkfd->btk", x, w[i]), rtol=1e-4, atol=1e-4)


def places(indices, experts, shared, offsets=None):
    """The results of `nn.route`: an expert here is a group of `shared`. Rows with offsets are of groups themselves."""
    tokens, members = (len(indices), experts) if offsets is None else (int(offsets[-1]), experts // (len(offsets) - 1))
    found = [(int(e) // shared, t, c) for t in range(tokens) for c, e in enumerate(indices[t].flatten()) if e >= 0]
    if offsets is not None:
        found = [(g, t, c) for g, t, c in found if offsets[g // members] <= t < offsets[g // members + 1]]
    first = {}
    for group, token, choice in found:
        first.setdefault((group, token), choice)
    rows = sorted((g, t, c) for g, t, c in found if shared == 1 or first[g, t] == c)
    at = torch.full(indices.shape, -1).view(len(indices), -1)
    for place, (_, token, choice) in enumerate(rows):
        at[token, choice] = place
    counts = torch.bincount(torch.tensor([g for g, _, _ in rows], dtype=torch.int64), minlength=experts)
    taken = torch.tensor([t * at.shape[1] + c for _, t, c in rows], dtype=torch.int64)
    return torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]), taken, at.view(indices.shape)


@pytest.mark.parametrize("shared,rows", [(1, [0, 2, 5]), (2, [0, 0, 7]), (3, [0, 0, 0]), (3, None), (4, None)])
def test_route(tmp_path, shared, rows):
    """Indices behind the last row that exists have no places."""
    experts, k, capacity = 12 // shared, 4, 9 * 4
    indices = draw((9, 1), 12, k)
    if rows:
        indices[rows[-1]:] = 999
    offsets = torch.tensor(rows) if rows else None
    want = dict(zip(["offsets", "choices", "places"], places(indices, experts, shared, offsets), strict=True))
    given, operand, types = {"i": indices}, "", [type_of(indices)]
    if rows:
        given["o"], operand = offsets, " rows %o"
        types.append(type_of(offsets))
    results = [f"tensor<{experts + 1}xi64>", f"tensor<{capacity}xi64>", type_of(indices)]
    arguments = ", ".join(f'%{n}: {type_of(x)} {{nn.input = "{n}"}}' for n, x in given.items())
    outputs = ", ".join(f'{t} {{nn.output = "{n}"}}' for n, t in zip(want, results, strict=True))
    text = (f"func.func @main({arguments}) -> ({outputs}) {{\n"
            f"  %0:3 = nn.route %i{operand} {{experts = {experts} : i64, shared = {shared} : i64}}"
            f" : ({', '.join(types)}) -> ({', '.join(results)})\n"
            f"  return %0#0, %0#1, %0#2 : {', '.join(results)}\n}}\n")
    got = run_module(tmp_path, text, given)
    got["choices"] = got["choices"][:len(want["choices"])]
    for name, value in want.items():
        assert torch.equal(got[name], value), name
