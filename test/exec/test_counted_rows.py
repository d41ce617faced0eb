# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""True rows of groups: random programs whose ranks gather them, compute with a shared weight, and sum."""
import random

import mpi_programs
import pytest
import torch
from harness import run_module, type_of
from safetensors.torch import load_file, save_file

# Groups of `tokens` rows lie on the ranks in order. Each rank has columns of `a` and of `b`, so the product is a sum
# over ranks.
MODEL = """
dist.mesh @mesh = <[AXES"tp"=RANKS]>
func.func @main(%x: !x {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [XDIMS]>},
                %n: !n {nn.input = "n", dist.sharding = #dist.sharding<@mesh, [{DATA}]>},
                %a: !a {nn.parameter = "a", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>},
                %b: !b {nn.parameter = "b", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>})
    -> (!x {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [XDIMS]>}) {
  %0 = dist.compact %x counts %n tokens TOKENS rows ROWS dim DIM : (!x, !n) -> !s
  %1 = nn.linear %0, %a : (!s, !a) -> !h
  %2 = nn.relu %1 : !h
  %3 = nn.linear %2, %b : (!h, !b) -> !s
  %4 = dist.expand %3 counts %n tokens TOKENS rows ROWS dim DIM : (!s, !n) -> !x
  %5 = nn.add %x, %4 : (!x, !x) -> !x
  return %5 : !x
}
"""


class Case:
    def __init__(self, seed):
        r = random.Random(seed)
        self.dp, self.groups, share, part = r.choice((1, 1, 2)), r.choice((1, 2, 4)), r.choice((1, 2)), r.choice((1, 3))
        self.ranks, self.tokens = self.groups * share, share * part
        self.counts = [r.randint(0, self.tokens) for _ in range(self.dp * self.groups)]
        sums = [sum(self.counts[i * self.groups:][:self.groups]) for i in range(self.dp)]
        self.rows, self.dim = max(1, max(sums)) + r.choice((0, 2)), r.choice((0, 1))
        self.dtype = r.choice((torch.float32, torch.bfloat16))
        g = torch.Generator().manual_seed(seed)
        outer, self.width = [r.choice((2, 3))] if self.dim else [], 5
        draw = lambda *shape: torch.randn(*shape, generator=g).to(self.dtype)  # noqa: E731
        self.x = draw(*outer, self.dp * self.groups * self.tokens, self.width)
        self.a, self.b = draw(self.ranks * 2, self.width), draw(self.width, self.ranks * 2)
        self.n = torch.tensor(self.counts)

    def text(self):
        rows = '{"dp", "tp"}' if self.dp > 1 else '{"tp"}'
        small, hidden = list(self.x.shape), list(self.x.shape)
        small[self.dim] = hidden[self.dim] = self.dp * self.rows
        hidden[-1] = self.ranks * 2
        dims = ", ".join(rows if d == self.dim else "{}" for d in range(self.x.dim()))
        named = {"XDIMS": dims, "AXES": f'"dp"={self.dp}, ' if self.dp > 1 else "", "RANKS": str(self.ranks),
                 "DATA": '"dp"' if self.dp > 1 else "", "TOKENS": str(self.tokens), "ROWS": str(self.rows),
                 "DIM": str(self.dim)}
        text = MODEL
        for name, value in named.items():
            text = text.replace(name, value)
        types = {"X": self.x, "N": self.n, "A": self.a, "B": self.b, "S": torch.empty(small, dtype=self.dtype),
                 "H": torch.empty(hidden, dtype=self.dtype)}
        lines = [f"!{name.lower()} = {type_of(tensor)}" for name, tensor in types.items()]
        return "\n".join(lines) + text

    def expected(self):
        x, a, b = (t.double() for t in (self.x, self.a, self.b))
        rows = x.transpose(0, self.dim).unflatten(0, (len(self.counts), self.tokens))
        true = (torch.arange(self.tokens) < self.n[:, None]).reshape(rows.shape[:2] + (1,) * (rows.dim() - 2))
        added = torch.where(true, (rows @ a.T).relu() @ b.T, 0.0)
        return (rows + added).flatten(0, 1).transpose(0, self.dim)

    def check(self, got):
        tolerance = 1e-5 if self.dtype == torch.float32 else 3e-2
        want = self.expected()
        assert torch.allclose(got.double(), want, atol=tolerance * want.abs().max().item(), rtol=0)


@pytest.mark.parametrize("seed", range(12))
def test_random(seed, tmp_path):
    case = Case(seed)
    case.check(run_module(tmp_path, case.text(), {"x": case.x, "n": case.n}, {"a": case.a, "b": case.b},
                          ["--parallelize="])["y"])


@pytest.mark.parametrize("seed", range(4))
def test_products_beside_true_rows(seed, tmp_path):
    """Products of a rank's own rows run while true rows travel, and change no bit of them."""
    case = Case(seed)
    twice = torch.eye(case.width).to(case.dtype) * 2
    more = f'%c: {type_of(twice)} {{nn.parameter = "c", dist.sharding = #dist.sharding<@mesh, [{{}}, {{}}]>}}'
    product = f"nn.linear %x, %c : (!x, {type_of(twice)}) -> !x\n  %7 = nn.relu %6 : !x\n  %8 = nn.linear %7, %c : (!x, {type_of(twice)}) -> !x"
    text = case.text().replace(")\n    -> (!x", f", {more})\n    -> (!x").replace("%5 = nn.add %x,", f"%6 = {product}\n  %5 = nn.add %8,")
    got = []
    for overlap in ("on", "off"):
        (tmp_path / overlap).mkdir()
        got.append(run_module(tmp_path / overlap, text, {"x": case.x, "n": case.n}, {"a": case.a, "b": case.b, "c": twice},
                              [f"--parallelize=overlap={overlap}"])["y"])
    assert torch.equal(*got)
    case.check(got[0].double() - 4 * case.x.double().relu() + case.x.double())


@mpi_programs.NEEDS_MPI[0]
@mpi_programs.NEEDS_MPI[1]
def test_processes(tmp_path):
    case = next(c for c in map(Case, range(100, 200)) if c.ranks == 4 and c.dp == 1 and c.dim == 1)
    (tmp_path / "m.mlir").write_text(case.text())
    save_file({"x": case.x, "n": case.n}, tmp_path / "in.safetensors")
    save_file({"a": case.a, "b": case.b}, tmp_path / "w.safetensors")
    done = mpi_programs.launch(4, tmp_path / "m.mlir", "--parallelize=", "--backend=mpi",
                               f"--inputs={tmp_path}/in.safetensors", f"--weights={tmp_path}/w.safetensors",
                               f"--outputs={tmp_path}/out.safetensors")
    assert done.returncode == 0, done.stderr
    case.check(load_file(tmp_path / "out.safetensors")["y"])


@pytest.mark.parametrize(("more", "message"), [(1, "rows of group 0, got"), (-100, "rows of group 0, got -")])
def test_numbers_that_do_not_fit(more, message, tmp_path):
    case = Case(0)
    case.n[0] = case.tokens + more
    said = run_module(tmp_path, case.text(), {"x": case.x, "n": case.n}, {"a": case.a, "b": case.b},
                      ["--parallelize="], status=1)
    assert f"expected 0 to {case.tokens} {message}" in said
