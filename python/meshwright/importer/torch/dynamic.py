# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Sizes that change from call to call: their names, their buckets, and PyTorch's symbols for them.

    dynamic = Dynamic(module, (x,), {}, {"x": {0: "batch"}}, {"batch": [1, 8]})
    dynamic.export(module)     # the module, once, with a symbol for each size
    dynamic.bucket({"batch": 8})      # reads the symbols at the sizes of a bucket

torch.export takes a size of 1 for a static one, so the trace has sizes of its own, of 2 or more.
"""
import inspect
import itertools
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import sympy
import torch
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import ShapeEnv, symbol_is_type
from torch.utils import _pytree as pytree
from torch.utils._sympy.symbol import SymT

from ...buckets import memory_of_machine
from ..errors import Diagnostic, ImportFailed
from ..graph.sizes import quantity, size
from .locations import calling_line, is_in_torch, is_model_file
from .names import operation_name
from .patches import patched

#: Functions of PyTorch's expressions that are arithmetic.
_SAME = {"ToFloat": lambda a: a, "Identity": lambda a: a, "IntTrueDiv": lambda a, b: a / b,
         "FloatTrueDiv": lambda a, b: a / b, "FloatPow": lambda a, b: a ** b,
         "PowByNatural": lambda a, b: a ** b}
#: A range of a size in the message of an export that takes a part of the sizes.
_RANGE = re.compile(r"(\w+) = Dim\('\w+'(?:, min=(\d+))?(?:, max=(\d+))?\)")
#: A size of which the message says that the module takes one alone.
_ONE_SIZE = re.compile(r"^  (\w+) = (\d+)$|guards generated for (\w+) = .* specialized value of (\d+)", re.M)
#: Symbols of numbers that depend on values.
_UNBACKED = (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT)


#: The largest size of a trace, whose inputs are in memory.
_LARGEST_TRACE = 1 << 20


def symbol(name: str) -> sympy.Symbol:
    return sympy.Symbol(name, integer=True, positive=True)


class _Dims(dict):
    """Of a leaf of the arguments: dimension -> the name of its size. No tree of PyTorch's."""


class Guard(NamedTuple):
    """A condition on sizes that a trace has met."""
    condition: sympy.Basic
    line: tuple[str, int] | None
    #: Whether the module itself compares, and not a function of PyTorch.
    is_of_module: bool


def _line_of_module() -> tuple[str, int] | None:
    """The line of the model that runs now; None where torch.export itself compares."""
    line = calling_line()
    return line if line and not os.path.realpath(line[0]).startswith(_PACKAGE) else None


_PACKAGE = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", "..")) + os.sep


def _is_of_module() -> bool:
    frame = sys._getframe(2)
    while frame is not None and is_in_torch(frame.f_code.co_filename):
        if os.path.basename(frame.f_code.co_filename) not in _OF_SYMBOLS:
            return False
        frame = frame.f_back
    return frame is not None and is_model_file(frame.f_code.co_filename)


#: Files of PyTorch by way of which a number of a trace compares.
_OF_SYMBOLS = {"symbolic_shapes.py", "sym_node.py", "__init__.py", "recording.py", "_stats.py"}


@dataclass
class Check:
    """A condition on sizes under which the program is that of the module."""
    condition: sympy.Basic
    file: str | None
    line: int | None
    #: Whether only one value of a size is excluded, which PyTorch does for layouts in memory, too.
    is_layout: bool = False


class Dynamic:
    """The sizes of a module that change from call to call."""

    def __init__(self, module, args, kwargs, shapes, buckets):
        self.buckets = {name: sorted(set(sizes)) for name, sizes in buckets.items()}
        self._dims: dict[str, Dim] = {}
        self._trace = _trace_sizes(self.buckets)
        self._problems: list[str] = []
        self.found: dict[str, None] = {}
        named, positional = _arguments(module, args, kwargs)
        specs = self._by_name(shapes, named)
        trees = {name: self._walk(specs.get(name), value, name) for name, value in named.items()}
        for name in self.buckets:
            if name not in self.found and not self._problems:
                self._problems.append(f"buckets name '{name}', which no input has: expected "
                                      f"{_listed(self.found)}")
        if self._problems:
            raise ImportFailed([Diagnostic(p) for p in self._problems])
        spread = lambda part: positional({name: tree[part] for name, tree in trees.items()})
        #: The arguments with the sizes of the trace.
        self.args, self.kwargs = spread(0)
        #: Of each leaf of the arguments: dimension -> the name of its size.
        self.leaves: list[dict[int, str]] = pytree.tree_leaves(spread(1))
        self._shapes = {name: tree[2] for name, tree in trees.items()}
        #: The exports so far, by how they were made, and the conditions of the last trace.
        self.exports: dict[tuple, object] = {}
        self.guards: list[Guard] = []

    def _by_name(self, shapes, named):
        if isinstance(shapes, Mapping):
            for name in shapes:
                if name not in named:
                    self._problems.append(f"dynamic_shapes names '{name}': expected one of "
                                          f"{', '.join(named)}")
            return shapes
        if isinstance(shapes, (tuple, list)):
            if len(shapes) != len(named):
                self._problems.append(f"dynamic_shapes: expected {len(named)} entries, one for each "
                                      f"argument, got {len(shapes)}")
            return dict(zip(named, shapes))
        self._problems.append("dynamic_shapes: expected a dict by the names of arguments, as in "
                              f"torch.export, got a {type(shapes).__name__}")
        return {}

    def _walk(self, spec, value, where: str):
        """An argument at the sizes of the trace, the names of its sizes, and its part of torch.export's
        `dynamic_shapes`."""
        if isinstance(value, torch.Tensor):
            return self._tensor(spec, value, where)
        if isinstance(value, dict):
            pick = spec if isinstance(spec, Mapping) else {}
            parts = {key: self._walk(pick.get(key), part, f"{where}.{key}") for key, part in value.items()}
            return tuple({key: part[i] for key, part in parts.items()} for i in range(3))
        if isinstance(value, (tuple, list)):
            pick = spec if isinstance(spec, Sequence) and len(spec) == len(value) else [None] * len(value)
            parts = [self._walk(s, part, f"{where}.{i}") for i, (s, part) in enumerate(zip(pick, value))]
            make = type(value) if type(value) in (tuple, list) else tuple
            return tuple(make([part[i] for part in parts]) for i in range(3))
        if spec:
            self._problems.append(f"dynamic_shapes names sizes of '{where}', which is no tensor")
        return value, _Dims(), None

    def _tensor(self, spec, value, where):
        entries = dict(enumerate(spec)) if isinstance(spec, (tuple, list)) else spec
        if entries is not None and not isinstance(entries, Mapping):
            self._problems.append(f"dynamic_shapes of '{where}': expected names by dimension, got a "
                                  f"{type(spec).__name__}")
            entries = None
        names, dims, shape = _Dims(), {}, list(value.shape)
        for at, entry in (entries or {}).items():
            name = self._name(entry, where, at)
            if name is None:
                continue
            if not isinstance(at, int) or not -value.dim() <= at < value.dim():
                self._problems.append(f"dynamic_shapes of '{where}': expected a dimension from 0 to "
                                      f"{value.dim() - 1}, got {at!r}")
                continue
            at %= value.dim()
            self.found[name] = None
            if name not in self.buckets:
                self._problems.append(f"size '{name}' of input '{where}' has no buckets: expected "
                                      f"buckets={{'{name}': [...]}}")
                continue
            names[at], shape[at] = name, self._trace[name]
            if self._trace[name] > 1:
                dims[at] = self._dim(name)
        needed = value.element_size() * math.prod(
            self.buckets[names[at]][-1] if at in names else size for at, size in enumerate(value.shape))
        if needed > memory_of_machine() and value.device.type != "meta":
            self._problems.append(f"buckets: expected input '{where}' to fit the memory of this machine, "
                                  f"{memory_of_machine():,} bytes, got {needed:,} bytes in the largest bucket")
        elif shape != list(value.shape):
            value = value.new_zeros(shape)
        return value, names, dims or None

    def _name(self, entry, where, at):
        if isinstance(entry, str):
            if entry.isidentifier():
                return entry
            self._problems.append(f"dynamic_shapes of '{where}': expected a name of letters, digits and underscores "
                                  f"for dimension {at}, got '{entry}'")
            return None
        if entry is None or isinstance(entry, int) or entry is Dim.STATIC:
            return None
        if type(entry) is Dim or isinstance(entry, type) or hasattr(entry, "__name__"):
            name = getattr(entry, "__name__", "")
            if name.isidentifier():
                return name
        self._problems.append(f"dynamic_shapes of '{where}': expected a name or a torch.export.Dim for "
                              f"dimension {at}, got {entry!r}")
        return None

    def _dim(self, name):
        if name not in self._dims:
            self._dims[name] = Dim(name, max=self.buckets[name][-1])
        return self._dims[name]

    # The export, and its symbols.

    def export(self, module):
        """torch.export of the module, with a symbol for each size. Conditions on sizes are assertions of
        the program."""
        try:
            return self._trace_once(module)
        except torch._dynamo.exc.UserError as error:
            # The module takes a part of the sizes: calls of others are refused.
            ranges = {name: bounds for name, *bounds in _RANGE.findall(str(error)) if name in self._dims}
            if not ranges:
                raise self._specialised(str(error)) from error
        for name, bounds in ranges.items():
            least, most = (int(b) if b else None for b in bounds)
            largest = self.buckets[name][-1]
            if most is not None and most < largest:
                raise ImportFailed([Diagnostic(
                    f"the bucket {name}={largest} is above the largest size that the module takes, {most}",
                    "error", *self._line_of(most))])
            self._dims[name] = Dim(name, min=least, max=largest)
        self._shapes = pytree.tree_map(lambda d: self._dims[d.__name__], self._shapes,
                                       is_leaf=lambda d: isinstance(d, Dim))
        return self._trace_once(module)

    def _trace_once(self, module):
        self.guards = []
        log = ShapeEnv._log_guard

        def note(env, prefix, guard, *args, **kwargs):
            self.guards.append(Guard(guard, _line_of_module(), _is_of_module()))
            return log(env, prefix, guard, *args, **kwargs)

        with patched() as patch:
            patch(ShapeEnv, "_log_guard", note)
            return torch.export.export(
                module, self.args, self.kwargs, dynamic_shapes=self._shapes, strict=False,
                prefer_deferred_runtime_asserts_over_guards=True)

    def _specialised(self, text: str) -> Exception:
        """The error of a module that takes one size alone."""
        found = {a or c: b or d for a, b, c, d in _ONE_SIZE.findall(text)}
        if not found:
            return ImportFailed([Diagnostic(f"torch.export fails: {text.splitlines()[0]}")])
        return ImportFailed([Diagnostic(
            f"size '{name}' cannot change: the module computes with one size of it alone", "error",
            *self._line_of(value)) for name, value in found.items()])

    def _line_of(self, number):
        """The line of a condition that names a number."""
        lines = [g.line for g in self.guards if g.line is not None]
        named = [g.line for g in self.guards if g.line is not None and
                 sympy.Integer(number) in sympy.preorder_traversal(g.condition)]
        return (named or lines or [(None, None)])[0]

    def forget(self, exported):
        """Leaves an export to its programs: the next import exports the module again."""
        self.exports = {key: other for key, other in self.exports.items() if other is not exported}

    def symbols(self, exported, values) -> dict[sympy.Symbol, str]:
        """PyTorch's symbols -> the names of sizes. `values` are those of the leaves in the trace."""
        result, problems = {}, {}
        for leaf, value, dims in zip(exported.leaves, values, self.leaves, strict=True):
            for at, name in dims.items():
                if self._trace[name] == 1:
                    continue
                expr = value.shape[at].node.expr if isinstance(value.shape[at], torch.SymInt) else \
                    sympy.Integer(value.shape[at])
                if expr.is_Symbol:
                    result[expr] = name
                else:
                    problems[name] = f"size '{name}' of input '{leaf}' cannot change: the module " \
                        f"computes with {expr} alone"
        if problems:
            raise ImportFailed([Diagnostic(p) for p in problems.values()])
        return result

    def checks(self, program) -> list[Check]:
        """The conditions on sizes that the trace took for granted."""
        result, lines = [], {g.condition: g for g in reversed(self.guards)}

        def add(condition, line=None):
            guard = lines.get(condition)
            line = guard.line if guard and guard.line else line or (None, None)
            result.append(Check(condition, *line, isinstance(condition, sympy.Ne) and
                                not (guard and guard.is_of_module)))

        for node in program.graph.nodes:
            if node.op == "call_function" and operation_name(node.target) == "_assert_scalar.default" and \
                    isinstance(node.args[0], torch.fx.Node):
                value = node.args[0].meta.get("val")
                if isinstance(value, torch.SymBool) and is_known(value):
                    add(value.node.expr)
        for own, bounds in program.range_constraints.items():
            if bounds.lower.is_finite:
                add(sympy.Ge(own, bounds.lower), self._line_of(bounds.lower) if bounds.lower > 1 else None)
        return result

    def capacities(self) -> list[dict[str, int]]:
        """The sizes of each bucket, the last one fastest."""
        return [dict(zip(self.buckets, sizes)) for sizes in itertools.product(*self.buckets.values())]


def entry_name(bucket: dict[str, int]) -> str:
    return ",".join(f"{name}={size}" for name, size in bucket.items())


def _trace_sizes(buckets) -> dict[str, int]:
    """A size of 2 or more for each name: below the largest bucket, where it may be, and all different,
    so that no comparison of the module comes out by chance."""
    result = {}
    for name, sizes in buckets.items():
        largest, taken = sizes[-1], set(result.values())
        wanted = next((n for n in range(min(largest - 1, _LARGEST_TRACE), 1, -1) if n not in taken), largest)
        result[name] = min(largest, wanted)
    return result


def _arguments(module, args, kwargs):
    """The arguments by the names of forward's parameters, and the way back."""
    try:
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
    except (TypeError, ValueError) as error:
        raise ImportFailed([Diagnostic(f"the arguments do not fit the module: {error}")]) from None
    kinds = {p.name: p.kind for p in bound.signature.parameters.values()}
    named = {}
    for name, value in bound.arguments.items():
        named.update(value if kinds[name] is inspect.Parameter.VAR_KEYWORD else {name: value})

    def back(values):
        positional, rest = [], dict(values)
        for name, value in bound.arguments.items():
            if len(positional) >= len(args):
                break
            if kinds[name] is inspect.Parameter.VAR_POSITIONAL:
                positional += rest.pop(name)
            else:
                positional.append(rest.pop(name))
        return tuple(positional), {name: rest[name] for name in kwargs}

    return named, back


def _listed(names) -> str:
    return "one of " + ", ".join(f"'{n}'" for n in names) if names else "none"


@dataclass
class Bucket:
    """The sizes of a program: reads PyTorch's symbols at the capacities of a bucket."""
    symbols: dict[sympy.Symbol, str]
    capacities: dict[str, int]
    _replaced: dict = field(default_factory=dict)

    def __post_init__(self):
        for own, name in self.symbols.items():
            # A size of at most 1 is 1.
            one = self.capacities[name] == 1
            self._replaced[own] = sympy.Integer(1) if one else symbol(name)
        self._names = {own: symbol(name) for own, name in self.symbols.items()}
        self._values = {symbol(n): c for n, c in self.capacities.items()}

    def number(self, value):
        """A number of the trace: a Size, a Quantity, or itself where no call changes it."""
        if isinstance(value, torch.SymBool):
            return None
        if not isinstance(value, (torch.SymInt, torch.SymFloat)):
            return value
        expr = plain(value.node.expr.xreplace(self._replaced))
        if isinstance(value, torch.SymFloat):
            return quantity(expr)
        merges = expr.is_Mul and len(expr.free_symbols) + (1 if expr.args[0].is_Integer else 0) > 1
        return size(self.capacity(expr), expr, () if merges else None)

    def capacity(self, expr) -> int:
        return int(sympy.sympify(expr).subs(self._values))

    def shape(self, shape) -> tuple[int, ...]:
        return tuple(self.number(n) for n in shape)

    def checks(self, exported) -> list[Check]:
        """The conditions on the sizes of a call that are left in this bucket."""
        result = {}
        for check in exported.checks:
            condition = plain(check.condition.xreplace(self._replaced))
            if condition.free_symbols and condition.free_symbols <= set(self._values) and \
                    not check.is_layout:
                result.setdefault(condition, Check(condition, check.file, check.line))
            elif condition == sympy.false:
                raise ImportFailed([Diagnostic(
                    f"the module does not take the bucket {entry_name(self.capacities)}: it needs "
                    f"{_said(check.condition.xreplace(self._names))}", "error", check.file, check.line)])
        return list(result.values())


def _said(condition) -> str:
    return str(plain(condition))


def plain(expr):
    """An expression without PyTorch's own names for arithmetic."""
    args = [plain(a) for a in expr.args]
    same = _SAME.get(type(expr).__name__)
    return same(*args) if same else expr.func(*args) if args else expr


def is_known(value) -> bool:
    """Whether a number of PyTorch's trace depends on named sizes, and on no values of tensors."""
    symbols = value.node.expr.free_symbols
    return bool(symbols) and not any(symbol_is_type(s, _UNBACKED) for s in symbols)
