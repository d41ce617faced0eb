# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Each collective on ranks of several meshes, and the layouts of arguments and results.

Inputs that differ between ranks are sharded along a first dimension with one row a
rank; so are outputs that ranks hold differently.
"""
import itertools

import pytest
import torch
from harness import ELEMENT, run_module, type_of

MESHES = {
    "1": [("x", 1)], "2": [("x", 2)], "3": [("x", 3)], "8": [("x", 8)],
    "2x2": [("x", 2), ("y", 2)], "2x3": [("x", 2), ("y", 3)], "2x2x2": [("x", 2), ("y", 2), ("z", 2)],
}


def values(*shape, dtype=torch.float32, seed=0):
    data = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return (data * 8).round().to(dtype) if not dtype.is_floating_point else data.to(dtype)


class Mesh:
    def __init__(self, axes):
        self.axes = axes
        self.ranks = 1
        for _, size in axes:
            self.ranks *= size
        self.all = "{" + ", ".join(f'"{name}"' for name, _ in axes) + "}"

    def definition(self):
        return "dist.mesh @m = <[" + ", ".join(f'"{n}"={s}' for n, s in self.axes) + "]>\n"

    def parts(self, axis):
        """Stride and size, in ranks, of an axis: its name, or (name, before, size)."""
        name, before, size = axis if isinstance(axis, tuple) else (axis, 1, None)
        stride = 1
        for n, s in reversed(self.axes):
            if n == name:
                size = size or s
                return stride * (s // (before * size)), size
            stride *= s
        raise KeyError(name)

    def coordinate(self, rank, axes):
        linear = 0
        for axis in axes:
            stride, size = self.parts(axis)
            linear = linear * size + rank // stride % size
        return linear

    def group(self, rank, axes):
        """Ranks by linear coordinate."""
        members = {}
        fixed = rank - sum(rank // st % sz * st for st, sz in map(self.parts, axes))
        for coordinates in itertools.product(*[range(self.parts(a)[1]) for a in axes]):
            member = fixed + sum(c * self.parts(a)[0] for c, a in zip(coordinates, axes))
            members[self.coordinate(member, axes)] = member
        return [members[i] for i in range(len(members))]


def spell(axes):
    return "[" + ", ".join(f'"{a}"' if isinstance(a, str) else f'"{a[0]}":({a[1]}){a[2]}' for a in axes) + "]"


def per_rank(mesh, folder, inputs, op, results, status=0, **more):
    """Runs `op` (a line with {0}, {1}... for the local inputs; it defines %r) on
    every rank; inputs are lists of one tensor a rank, results the local shapes and types."""
    arguments, lines, given = [], [], {}
    names = []
    for i, tensors in enumerate(inputs):
        local = tensors[0]
        row = f"tensor<{'x'.join(map(str, (1, *local.shape)))}x{ELEMENT[local.dtype]}>"
        stacked = torch.stack(tensors)
        empty = ", {}" * local.dim()
        arguments.append(f'%a{i}: {row} {{nn.input = "a{i}", dist.global = {type_of(stacked)}, '
                         f'dist.sharding = #dist.sharding<@m, [{mesh.all}{empty}]>}}')
        lines.append(f"%l{i} = nn.reshape %a{i} : ({row}) -> {type_of(local)}")
        given[f"a{i}"] = stacked
        names.append(f"%l{i}")
    promised, returned, types = [], [], []
    for i, name in enumerate(names):
        op = op.replace(f"{{{i}}}", name)
    lines.append(op)
    for i, (shape, dtype) in enumerate(results):
        local = torch.empty(shape, dtype=dtype)
        row = f"tensor<{'x'.join(map(str, (1, *shape)))}x{ELEMENT[dtype]}>"
        whole = f"tensor<{'x'.join(map(str, (mesh.ranks, *shape)))}x{ELEMENT[dtype]}>"
        value = "%r" if len(results) == 1 else f"%r#{i}"
        lines.append(f"%o{i} = nn.reshape {value} : ({type_of(local)}) -> {row}")
        empty = ", {}" * len(shape)
        promised.append(f'{row} {{nn.output = "o{i}", dist.global = {whole}, '
                        f'dist.sharding = #dist.sharding<@m, [{mesh.all}{empty}]>}}')
        returned.append(f"%o{i}")
        types.append(row)
    body = "\n  ".join(lines)
    text = (f"{mesh.definition()}func.func @main({', '.join(arguments)}) -> ({', '.join(promised)}) "
            f"attributes {{dist.spmd = @m}} {{\n  {body}\n  return {', '.join(returned)} : {', '.join(types)}\n}}\n")
    got = run_module(folder, text, given, status=status, **more)
    return got if status else [got[f"o{i}"] for i in range(len(results))]


def rounded_sum(tensors):
    """In rank order, in f32, rounded once."""
    dtype = tensors[0].dtype
    total = tensors[0].float() if dtype in (torch.bfloat16, torch.float16) else tensors[0].clone()
    for tensor in tensors[1:]:
        total = total + tensor
    return total.to(dtype)


def groupings(mesh):
    names = [name for name, _ in mesh.axes]
    yield from ([n] for n in names)
    if len(names) > 1:
        yield names
        yield names[::-1]
    if len(names) > 2:
        yield [names[2], names[0]]
    for name, size in mesh.axes:
        if size == 8:
            yield [(name, 1, 2)]
            yield [(name, 2, 2)]
            yield [(name, 4, 2), (name, 1, 2)]


CASES = [(key, axes) for key, axes in MESHES.items()]


@pytest.mark.parametrize("name", MESHES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=ELEMENT.get)
def test_collectives(tmp_path, name, dtype):
    """All collectives of a mesh, each over several groups, in one program a group."""
    mesh = Mesh(MESHES[name])
    for axes in groupings(mesh):
        size = len(mesh.group(0, axes))
        a, b = 2 * size, 3 * size
        local = [values(a, b, dtype=dtype, seed=r) for r in range(mesh.ranks)]
        kind, at = ELEMENT[dtype], spell(axes)

        def run(op, shape, inputs=(local,)):
            return per_rank(mesh, tmp_path, list(inputs), op, [(shape, dtype)])[0]

        def expect(got, function):
            for rank in range(mesh.ranks):
                group = mesh.group(rank, axes)
                want = function([local[r] for r in group], group, group.index(rank))
                assert torch.equal(got[rank], want), f"{name} {axes} rank {rank}"
        whole = f"tensor<{a}x{b}x{kind}>"
        in_order = lambda tensors, group: [t for _, t in sorted(zip(group, tensors), key=lambda x: x[0])]
        expect(run(f"%r = dist.all_reduce sum {{0}} axes {at} : ({whole}) -> {whole}", (a, b)),
               lambda t, g, me: rounded_sum(in_order(t, g)))
        expect(run(f"%r = dist.all_reduce max {{0}} axes {at} : ({whole}) -> {whole}", (a, b)),
               lambda t, g, me: torch.stack(t).amax(0))
        for d in (0, 1):
            part = [a, b]
            part[d] //= size
            small = f"tensor<{part[0]}x{part[1]}x{kind}>"
            big = [a, b]
            big[d] *= size
            large = f"tensor<{big[0]}x{big[1]}x{kind}>"
            expect(run(f"%r = dist.reduce_scatter sum {{0}} axes {at} dims [{d}] : ({whole}) -> {small}", part),
                   lambda t, g, me: rounded_sum(in_order(t, g)).chunk(size, d)[me])
            expect(run(f"%r = dist.all_gather {{0}} axes {at} dims [{d}] : ({whole}) -> {large}", big),
                   lambda t, g, me: torch.cat(t, d))
            expect(run(f"%r = dist.slice {{0}} axes {at} dims [{d}] : ({whole}) -> {small}", part),
                   lambda t, g, me: t[me].chunk(size, d)[me])
            moved = [a, b]
            moved[d] *= size
            moved[1 - d] //= size
            shape = f"tensor<{moved[0]}x{moved[1]}x{kind}>"
            expect(run(f"%r = dist.all_to_all {{0}} axes {at} from [{d}] to [{1 - d}] : ({whole}) -> {shape}", moved),
                   lambda t, g, me: torch.cat([x.chunk(size, 1 - d)[me] for x in t], d))
        expect(run(f"%r = dist.permute {{0}} axes {at} shift 1 : ({whole}) -> {whole}", (a, b)),
               lambda t, g, me: t[(me - 1) % size])
        swapped = [size - 1 - i for i in range(size)]
        pairs = "[" + ", ".join(f"[{i}, {j}]" for i, j in enumerate(swapped)) + "]"
        expect(run(f"%r = dist.permute {{0}} axes {at} pairs {pairs} : ({whole}) -> {whole}", (a, b)),
               lambda t, g, me: t[size - 1 - me])
        # Ranks to which no rank sends have zeros.
        pairs = "[" + ", ".join(f"[{i}, {i + 1}]" for i in range(size - 1)) + "]"
        if size > 1:
            expect(run(f"%r = dist.permute {{0}} axes {at} pairs {pairs} : ({whole}) -> {whole}", (a, b)),
                   lambda t, g, me: t[me - 1] if me else torch.zeros_like(t[0]))
        expect(run(f"%r = dist.partial {{0}} axes {at} : ({whole}) -> {whole}", (a, b)),
               lambda t, g, me: t[me] if me == 0 else torch.zeros_like(t[me]))


def test_several_tensors_in_one_launch(tmp_path):
    mesh = Mesh(MESHES["2x2"])
    x = [values(4, 3, seed=r) for r in range(4)]
    y = [values(5, dtype=torch.int64, seed=9 + r) for r in range(4)]
    got = per_rank(mesh, tmp_path, [x, y],
                   '%r:2 = dist.all_reduce sum {0}, {1} axes ["x", "y"] : (tensor<4x3xf32>, tensor<5xi64>) -> (tensor<4x3xf32>, tensor<5xi64>)',
                   [((4, 3), torch.float32), ((5,), torch.int64)])
    assert torch.equal(got[0][3], rounded_sum(x)) and torch.equal(got[1][0], rounded_sum(y))


def test_coordinates_and_masks(tmp_path):
    mesh = Mesh(MESHES["2x3"])
    for axes in (["x"], ["y"], ["y", "x"]):
        size = len(mesh.group(0, axes))
        got = per_rank(mesh, tmp_path, [], f"%r = dist.axis_index {spell(axes)} chunk 7 : tensor<i64>", [((), torch.int64)])[0]
        assert got.tolist() == [7 * mesh.coordinate(r, axes) for r in range(6)]
        local = [values(2, 4, 3, seed=r) for r in range(6)]
        true = 4 * size - 5
        got = per_rank(mesh, tmp_path, [local], f"%r = dist.mask_padding {{0}} axes {spell(axes)} dim 1 size {true} value -1.5 : tensor<2x4x3xf32>", [((2, 4, 3), torch.float32)])[0]
        for r in range(6):
            want = local[r].clone()
            want[:, max(0, true - 4 * mesh.coordinate(r, axes)):] = -1.5
            assert torch.equal(got[r], want)


def test_slice_pads_and_pad(tmp_path):
    mesh = Mesh(MESHES["3"])
    local = [values(2, 7)] * 3
    got = per_rank(mesh, tmp_path, [local], '%r = dist.slice {0} axes ["x"] dims [1] : (tensor<2x7xf32>) -> tensor<2x4xf32>', [((2, 4), torch.float32)])[0]
    padded = torch.nn.functional.pad(local[0], (0, 5))
    assert all(torch.equal(got[r], padded[:, 4 * r:4 * r + 4]) for r in range(3))
    got = per_rank(mesh, tmp_path, [local], '%r = dist.pad {0} dims [0, 1] : (tensor<2x7xf32>) -> tensor<3x9xf32>', [((3, 9), torch.float32)])[0]
    assert torch.equal(got[1], torch.nn.functional.pad(local[0], (0, 2, 0, 1)))


def chunk_of(mesh, rank, whole, layout):
    for d, axes in enumerate(layout):
        whole = whole.chunk(len(mesh.group(0, axes)) if axes else 1, d)[mesh.coordinate(rank, axes)]
    return whole


def test_redistribute(tmp_path):
    """Every pair of layouts of a matrix on a 2 x 2 x 2 mesh would be many programs: a sample."""
    mesh = Mesh(MESHES["2x2x2"])
    layouts = [([], []), (["x"], []), ([], ["y", "z"]), (["x"], ["z"]), (["z", "y", "x"], []),
               (["y"], ["x", "z"]), (["x", "y"], ["z"])]
    whole = values(8, 16)
    spelled = lambda layout: "#dist.sharding<@m, [" + ", ".join("{" + ", ".join(f'"{a}"' for a in axes) + "}" for axes in layout) + "]>"
    for before, after in itertools.product(layouts, layouts):
        local = [chunk_of(mesh, r, whole, before).contiguous() for r in range(8)]
        want = [chunk_of(mesh, r, whole, after) for r in range(8)]
        shape = tuple(want[0].shape)
        got = per_rank(mesh, tmp_path, [local],
                       f"%r = dist.redistribute {{0}} from [{spelled(before)}] to [{spelled(after)}] : ({type_of(local[0])}) -> {type_of(want[0])}",
                       [(shape, torch.float32)])[0]
        assert all(torch.equal(got[r], want[r]) for r in range(8)), f"{before} {after}"


def test_redistribute_factors_and_parts_of_axes(tmp_path):
    mesh = Mesh([("x", 4)])
    whole = values(2, 3, 4)
    padded = torch.nn.functional.pad(whole, (0, 0, 0, 1))
    local = [padded[r // 2, (r % 2) * 2:(r % 2) * 2 + 2].reshape(8) for r in range(4)]
    got = per_rank(mesh, tmp_path, [local],
                   '%r = dist.redistribute {0} from [#dist.sharding<@m, [(2{"x":(1)2}, 3 pad 4{"x":(2)2}, 4)]>] '
                   'to [#dist.sharding<@m, [(2, 3 pad 4, 4{"x"})]>] : (tensor<8xf32>) -> tensor<8xf32>',
                   [((8,), torch.float32)])[0]
    assert all(torch.equal(got[r], padded[:, :, r].reshape(8)) for r in range(4))


@pytest.mark.parametrize("sizes", [(12, 6), (7, 5), (1, 4), (2, 1)])
def test_redistribute_between_cuts_that_do_not_fit(tmp_path, sizes):
    """Six ranks as 2 x 3 and as 3 x 2, each side padded for itself."""
    mesh = Mesh([("x", 6)])
    whole = values(*sizes)

    def local(rank, rows, columns):
        padded = torch.zeros(-(-sizes[0] // rows) * rows, -(-sizes[1] // columns) * columns)
        padded[:sizes[0], :sizes[1]] = whole
        part = padded.chunk(rows, 0)[rank // columns]
        return part.chunk(columns, 1)[rank % columns].contiguous()

    cut = lambda rows, columns: f'#dist.sharding<@m, [{{"x":(1){rows}}}, {{"x":({rows}){columns}}}]>'
    for before, after in [((2, 3), (3, 2)), ((3, 2), (2, 3))]:
        have = [local(r, *before) for r in range(6)]
        want = [local(r, *after) for r in range(6)]
        got = per_rank(mesh, tmp_path, [have],
                       f"%r = dist.redistribute {{0}} from [{cut(*before)}] to [{cut(*after)}] : ({type_of(have[0])}) -> {type_of(want[0])}",
                       [(tuple(want[0].shape), torch.float32)])[0]
        assert all(torch.equal(got[r], want[r]) for r in range(6)), f"{before} {after}"


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_arguments_and_results(tmp_path, ranks):
    """Sharded and padded on the way in, put together again on the way out."""
    x = values(13, 3, 7)
    weight = values(4, 5, dtype=torch.bfloat16)
    rows, columns = -(-13 // ranks), -(-7 // ranks)
    text = f"""dist.mesh @m = <["x"={ranks}]>
    func.func @main(%x: tensor<{rows}x3x7xf32> {{nn.input = "x", dist.global = tensor<13x3x7xf32>, dist.sharding = #dist.sharding<@m, [{{"x"}}, {{}}, {{}}]>}},
      %w: tensor<4x5xbf16> {{nn.parameter = "w", dist.global = tensor<4x5xbf16>, dist.sharding = #dist.sharding<@m, [{{}}, {{}}]>}})
      -> (tensor<{rows}x3x7xf32> {{nn.output = "same", dist.global = tensor<13x3x7xf32>, dist.sharding = #dist.sharding<@m, [{{"x"}}, {{}}, {{}}]>}},
          tensor<13x3x{columns}xf32> {{nn.output = "moved", dist.global = tensor<13x3x7xf32>, dist.sharding = #dist.sharding<@m, [{{}}, {{}}, {{"x"}}]>}},
          tensor<{rows * ranks}x3x7xf32> {{nn.output = "padded", dist.global = tensor<{rows * ranks}x3x7xf32>, dist.sharding = #dist.sharding<@m, [{{}}, {{}}, {{}}]>}},
          tensor<4x5xbf16> {{nn.output = "w", dist.global = tensor<4x5xbf16>, dist.sharding = #dist.sharding<@m, [{{}}, {{}}]>}})
      attributes {{dist.spmd = @m}} {{
      %0 = dist.all_gather %x axes ["x"] dims [0] : (tensor<{rows}x3x7xf32>) -> tensor<{rows * ranks}x3x7xf32>
      %1 = nn.slice %0 starts [0, 0, 0] limits [13, 3, 7] strides [1, 1, 1] : (tensor<{rows * ranks}x3x7xf32>) -> tensor<13x3x7xf32>
      %2 = dist.slice %1 axes ["x"] dims [2] : (tensor<13x3x7xf32>) -> tensor<13x3x{columns}xf32>
      return %x, %2, %0, %w : tensor<{rows}x3x7xf32>, tensor<13x3x{columns}xf32>, tensor<{rows * ranks}x3x7xf32>, tensor<4x5xbf16>
    }}"""
    got = run_module(tmp_path, text, {"x": x}, {"w": weight})
    assert torch.equal(got["same"], x) and torch.equal(got["moved"], x) and torch.equal(got["w"], weight)
    assert torch.equal(got["padded"][:13], x) and not got["padded"][13:].any()


def test_factored_weight(tmp_path):
    """6 heads as 2 groups of 3, padded to 4, on both halves of an axis of 4."""
    weight = values(6 * 5, 7)
    text = """dist.mesh @m = <["tp"=4]>
    func.func @main(%w: tensor<10x7xf32> {nn.parameter = "w", dist.global = tensor<30x7xf32>, dist.sharding = #dist.sharding<@m, [(2{"tp":(1)2}, 3 pad 4{"tp":(2)2}, 5), {}]>})
      -> (tensor<10x7xf32> {nn.output = "w", dist.global = tensor<30x7xf32>, dist.sharding = #dist.sharding<@m, [(2{"tp":(1)2}, 3 pad 4{"tp":(2)2}, 5), {}]>},
          tensor<40x7xf32> {nn.output = "all", dist.global = tensor<40x7xf32>, dist.sharding = #dist.sharding<@m, [{}, {}]>})
      attributes {dist.spmd = @m} {
      %0 = dist.all_gather %w axes ["tp"] dims [0] : (tensor<10x7xf32>) -> tensor<40x7xf32>
      return %w, %0 : tensor<10x7xf32>, tensor<40x7xf32>
    }"""
    got = run_module(tmp_path, text, {}, {"w": weight})
    assert torch.equal(got["w"], weight)
    want = torch.nn.functional.pad(weight.reshape(2, 3, 5, 7), (0, 0, 0, 0, 0, 1)).reshape(40, 7)
    assert torch.equal(got["all"], want)


def test_an_error_on_one_rank_ends_all(tmp_path):
    mesh = Mesh(MESHES["8"])
    ids = [torch.tensor([1]) for _ in range(8)]
    ids[5] = torch.tensor([99])
    text = ('%t = nn.constant dense<1.0> : tensor<4x2xf32>\n'
            '  %e = nn.embedding {0}, %t : (tensor<1xi64>, tensor<4x2xf32>) -> tensor<1x2xf32>\n'
            '  %r = dist.all_reduce sum %e axes ["x"] : (tensor<1x2xf32>) -> tensor<1x2xf32>')
    said = per_rank(mesh, tmp_path, [ids], text, [((1, 2), torch.float32)], status=1)
    assert "rank 5: nn.embedding" in said and "index 99 at position 0 is out of range: expected 0 to 3" in said
