# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Values and derivatives at special points, against PyTorch at the same type and in f64.

A table of cases (points_*.py) states functions and their points. All cases of a table are one
program for each type: the points are parameters, and the loss is a weighted sum of all results.
"""
import contextlib
import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import meshwright as mw
import torch
from meshwright.importer.torch import convert, decompose, ops_complex
from torch import nn

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f64": torch.float64}
#: Bounds of relative errors: of results, and of gradients.
BOUNDS = {"f32": (1e-5, 1e-6), "bf16": (2e-2, 2e-2), "f64": (1e-10, 1e-10)}


@dataclass
class Case:
    """A function of tensors and its points.

    `points` are tensors, or functions that make one for an element type. Floats are parameters of
    the program and take its type; others are constants. `function` returns one tensor or several.
    `types` are those in which PyTorch has the operation on a CPU.
    """
    name: str
    function: Callable
    points: tuple
    types: tuple[str, ...] = tuple(TYPES)

    def tensors(self, dtype: torch.dtype) -> list[torch.Tensor]:
        made = [p(dtype) if callable(p) else p for p in self.points]
        return [t.to(dtype) if t.is_floating_point() else t for t in made]


def numbers(dtype: torch.dtype, *more: float) -> torch.Tensor:
    """Zeros, integers, halves, the smallest and the largest numbers, infinities, NaN, and `more`."""
    info = torch.finfo(dtype)
    small = torch.finfo(torch.float32 if dtype == torch.bfloat16 else dtype)
    values = [0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.25, 11.0, 37.0, 130.0, 1e-3, info.max,
              math.sqrt(info.max) * 2, small.tiny, 4 * small.smallest_normal, math.inf]
    values += [-v for v in values]
    # A number of which half is subnormal; operands of this size are subnormal themselves.
    return torch.tensor([*values, math.nan, *more], dtype=torch.float64)


def generic(*more: float) -> Callable:
    return lambda dtype: numbers(dtype, *more)


_FEW = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -3.0, 7.25]


def _extremes(dtype: torch.dtype) -> list[float]:
    info = torch.finfo(dtype)
    return [info.max, -info.max, 4 * info.tiny, math.inf, -math.inf, math.nan]


def grid(*more: float, count=2, extreme=True) -> tuple[Callable, ...]:
    """Points for each of several operands: all combinations of a few numbers."""
    def operand(i):
        def make(dtype):
            numbers = [*_FEW, *(_extremes(dtype) if extreme else ()), *more]
            return torch.tensor(list(itertools.product(numbers, repeat=count)),
                                dtype=torch.float64)[:, i].contiguous()
        return make
    return tuple(operand(i) for i in range(count))


class Program(nn.Module):
    """All cases of a table, and a loss of which each result has a gradient."""

    def __init__(self, cases: list[Case], dtype: torch.dtype):
        super().__init__()
        self.cases, self.dtype = cases, dtype
        self.points = nn.ParameterList()
        #: So that the loss depends on a parameter in any case.
        self.anchor = nn.Parameter(torch.ones((), dtype=dtype))
        self.places = []
        for case in cases:
            places = []
            for tensor in case.tensors(dtype):
                if tensor.is_floating_point():
                    places.append(len(self.points))
                    self.points.append(nn.Parameter(tensor.clone()))
                else:
                    places.append(tensor)
            self.places.append(places)

    def results(self, case, places, x) -> list[torch.Tensor]:
        operands = [self.points[p] + x if isinstance(p, int) and x is not None else
                    self.points[p] if isinstance(p, int) else p for p in places]
        y = case.function(*operands)
        return [y] if isinstance(y, torch.Tensor) else list(y)

    def forward(self, x):
        batch = x if x.dim() > 1 else None
        total, results = x.double().sum() + self.anchor.double(), []
        for case, places in zip(self.cases, self.places, strict=True):
            own = self.results(case, places, batch)
            results += own
            for y in own:
                if y.is_floating_point():
                    total = total + (y * weights(y)).double().sum()
        return (total, *results)


def weights(y: torch.Tensor) -> torch.Tensor:
    """Numbers from 0.5 to 1.375, exact in each type."""
    count = y.numel()
    return (torch.arange(count) * 5 % 8).to(y.dtype).reshape(y.shape) * 0.125 + 0.5


def in_torch(program: Program, x, dtype) -> tuple[list, list]:
    """The results and the gradients of the points, in f64."""
    other = Program([], dtype)
    other.cases, other.places = program.cases, program.places
    other.points = nn.ParameterList([nn.Parameter(p.detach().to(dtype)) for p in program.points])
    total, *results = other(x.to(dtype))
    total.backward()
    zeros = lambda p: torch.zeros_like(p) if p.grad is None else p.grad
    return ([r.detach().to(torch.float64) for r in results],
            [zeros(p).to(torch.float64) for p in other.points])


def faults(got, same, truth, bound: float, dtype, rows=1) -> list[tuple[int, float, float, float]]:
    """Places (index, ours, PyTorch's, true) that are wrong.

    The error of a number above 1 is relative to it, so that a large one hides nothing. That of a
    smaller one is relative to 1 (a sum over rows: to their number), or to the largest number where
    all are below.
    """
    got, same, truth = (t.to(torch.float64).flatten() for t in (got, same, truth))
    floor = torch.finfo(torch.float32 if dtype == torch.bfloat16 else dtype).tiny * 4
    finite = truth.abs()[truth.isfinite()]
    least = min(rows, float(finite.max())) if len(finite) else rows
    # PyTorch's own error, the largest among numbers of similar size.
    own = (same - truth).abs() / truth.abs().clamp(min=floor)
    group = (truth.abs().clamp(min=floor).log2() / 8).floor()
    for size in group[own.isfinite()].unique():
        members = (group == size) & own.isfinite()
        own[members] = own[members].max()
    allowed = torch.maximum(bound * truth.abs().clamp(min=least), torch.nan_to_num(1.25 * own * truth.abs(), 0.0))

    def near(want, allowed):
        return got.isfinite() & want.isfinite() & ((got - want).abs() <= allowed + floor)

    def alike(want):
        return (got == want) | got.isnan() & want.isnan()

    right = alike(same) | alike(truth) | near(truth, allowed) | near(same, bound * same.abs().clamp(min=least))
    return [(i, float(got[i]), float(same[i]), float(truth[i])) for i in (~right).nonzero().flatten().tolist()]


@contextlib.contextmanager
def recorded(visited: set[str]):
    """Adds the names of the operations that imports convert, and of those that they take apart."""
    call, apart, of_complex = convert.Convert._handler, decompose._decomposed, ops_complex.convert

    def handler(self, target, name):
        visited.add(name)
        return call(self, target, name)

    def decomposed(node, *rest):
        visited.add(convert.operation_name(node.target))
        return apart(node, *rest)

    def of_complex_numbers(c, name, *rest):
        visited.add(f"complex {name.split('.')[0]}")
        return of_complex(c, name, *rest)

    convert.Convert._handler, decompose._decomposed = handler, decomposed
    ops_complex.convert = of_complex_numbers
    try:
        yield
    finally:
        convert.Convert._handler, decompose._decomposed = call, apart
        ops_complex.convert = of_complex


def operations(cases: list[Case]) -> set[str]:
    """The names of the operations that an import of the cases in f32 converts or takes apart, and of
    the ops of the program (`nn.exp`)."""
    visited = set()
    program = Program([case for case in cases if "f32" in case.types], torch.float32)
    with recorded(visited):
        model = mw.from_torch(program, (torch.zeros(1),), training=True)
    return visited | set(re.findall(r"\bnn\.[a-z_]+", model.ir()))


def check(cases: list[Case], kind: str, x=None, **options) -> list[str]:
    """Runs all cases in one program. Returns a line for each place that is wrong."""
    dtype = TYPES[kind]
    cases = [case for case in cases if kind in case.types]
    if not cases:
        return []
    program = Program(cases, dtype)
    x = torch.zeros(1, dtype=dtype) if x is None else x.to(dtype)
    model = mw.from_torch(program, (x,), training=True).differentiate(loss=0)
    got = dict(zip(model.outputs, model.parallelize(**(options or dict(mesh={"dp": 1}))).run(x)))
    values, gradients = list(got.values())[1:], {}
    same, truth = in_torch(program, x, dtype), in_torch(program, x, torch.float64)
    for i in range(len(program.points)):
        gradients[i] = got.get(f"grad.points.{i}", torch.zeros_like(program.points[i]))
    lines, at = [], 0
    for case, places in zip(program.cases, program.places, strict=True):
        count = len(program.results(case, places, None))
        for i in range(at, at + count):
            lines += _described(case, "value", values[i], same[0][i], truth[0][i], BOUNDS[kind][0],
                                dtype, program, places)
        at += count
        for n, p in enumerate(places):
            if isinstance(p, int):
                lines += _described(case, f"gradient {n}", gradients[p], same[1][p], truth[1][p],
                                    BOUNDS[kind][1], dtype, program, places, len(x))
    return lines


def _described(case, what, got, same, truth, bound, dtype, program, places, rows=1) -> list[str]:
    operands = [program.points[p].detach() if isinstance(p, int) else p for p in places]
    lines = []
    for i, g, s, t in faults(got, same, truth, bound, dtype, rows):
        at = [f"{float(o.flatten()[i]):.6g}" for o in operands if o.numel() == truth.numel()]
        lines.append(f"{case.name} [{str(dtype).removeprefix('torch.')}] {what} at {', '.join(at) or i}: "
                     f"{g:.9g}, PyTorch {s:.9g}, true {t:.9g}")
    return lines


__all__ = ["BOUNDS", "Case", "TYPES", "check", "faults", "generic", "grid", "numbers", "operations"]
