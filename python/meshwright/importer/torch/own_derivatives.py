# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Functions with a derivative of their own (torch.autograd.Function).

A graph has only the forward of such a function, and the derivative of the graph is that of the
forward. A function is accepted if both derivatives agree at numbers drawn at random and at special
points (zeros, ties, integers; large, infinite and missing gradients), or else refused.
"""
import concurrent.futures
import contextlib
import copy
import itertools
import math
import sys
import textwrap
from collections.abc import Hashable
from typing import NamedTuple

import torch
from torch.utils import _pytree as pytree

from ..errors import Diagnostic, ImportFailed, Uncovered
from .patches import patched

#: Difference that rounding may cause, also that of a constant in the source, relative to the largest
#: entry of the gradients.
_TOLERANCE = 1e-5
#: Bounds of the numbers drawn: a function may clip large or small ones in its derivative alone.
_BOUNDS = (1.0, 30.0, 1e-8)
#: Bounds of the cotangents: a derivative may clip them.
_SCALES = (1.0, 1e3, 1e-3)
#: Further ones, for numbers up to 1. Those of f32 end at 1e38.
_FAR_SCALES = (1e6, 1e12, 1e30, 1e-12, 1e-30)
#: Cotangents that a derivative may replace.
_NO_NUMBERS = (math.nan, math.inf, -math.inf)
#: Numbers at which a derivative may have a kink, a bound or a tie.
_POINTS = {
    "0": lambda random, whole: random * 0,
    "-0": lambda random, whole: random * -0.0,
    "numbers of which some are 0": lambda random, whole: random * (whole % 2),
    "integers": lambda random, whole: whole - 8,
    "halves": lambda random, whole: whole / 2 - 4,
    "positive integers": lambda random, whole: whole + 1,
    "numbers of both signs of which some are equal": lambda random, whole: whole % 4 - 1.5,
    # Equal numbers: bounds are halves as a rule.
    **{f"{half / 2:g}": lambda random, whole, value=half / 2: random * 0 + value
       for half in (*range(1, 13), *range(-12, 0))},
    "equal numbers": lambda random, whole: random * 0 + 0.625,
    "equal negative numbers": lambda random, whole: random * 0 - 0.625,
}
#: A function of more elements than this is compared at smaller shapes.
_MOST_ELEMENTS = 1 << 18
_SMALL_SIZE = 16


class _Drawn(NamedTuple):
    """A tensor of the export: random numbers stand for it."""
    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    def draw(self, low, high, wide, generator):
        numbers = torch.rand(self.shape, generator=generator, dtype=torch.promote_types(self.dtype, wide))
        if self.dtype == torch.bool:
            return numbers < 0.5
        return (low + (high - low) * numbers).requires_grad_(self.requires_grad)

    def at(self, point, wide, generator):
        """Numbers of `_POINTS`. Without a point they are in [0, 1)."""
        random = self.draw(0, 1, wide, generator)
        if self.dtype == torch.bool or point is None:
            return random
        whole = torch.randint(0, 17, self.shape, generator=generator).to(random.dtype)
        return _POINTS[point](random.detach(), whole).requires_grad_(self.requires_grad)


@contextlib.contextmanager
def refusing_other_derivatives():
    """Refuses functions, called where gradients flow, whose derivative is not that of their forward."""
    problems, verdicts, running = {}, {}, set()

    def watched(function, name, kept):
        def call(ctx, *args):
            given = args[0] if name == "setup_context" else args
            # Another function, or a comparison, may call this method with a context of its own.
            is_own = getattr(ctx, "_forward_cls", None) is function
            if is_own and function not in running and _flows(ctx, given):
                leaves, spec = _described(given)
                key = (function, spec, *((type(x), _identity(x)) for x in leaves))
                if key not in verdicts:
                    running.add(function)
                    # The leaves stay alive, so that no other gets the identity of one.
                    verdicts[key] = leaves, _verdict(function, leaves, spec)
                    running.discard(function)
                _, verdict = verdicts[key]
                if verdict:
                    problems.setdefault(function, Diagnostic(
                        f"{function.__qualname__} is a torch.autograd.Function whose derivative "
                        f"{verdict}; expected operations of PyTorch, or the derivative of the "
                        "forward, where gradients are asked for", "error", *_caller()))
                if name == "forward":
                    with _gradients_on():
                        return kept(ctx, *args)
            return kept(ctx, *args)

        return staticmethod(call)

    def flowing(kept):
        """A forward without a context: its derivative is compared behind it."""
        def call(*args):
            flows = any(isinstance(x, torch.Tensor) and x.requires_grad for x in args)
            with _gradients_on() if flows else contextlib.nullcontext():
                return kept(*args)

        return staticmethod(call)

    def watch(functions):
        # PyTorch's own functions have the derivative of their graph.
        for function in functions:
            if function.__module__.split(".")[0] != "torch":
                name = _method_with_context(function)
                replace(function, name, watched(function, name, getattr(function, name)))
                if name != "forward":
                    replace(function, "forward", flowing(function.forward))

    def defined(function, **kwargs):
        super(torch.autograd.Function, function).__init_subclass__(**kwargs)
        watch([function])

    with patched() as replace:
        watch(_descendants(torch.autograd.Function))
        # The module may define others as it runs.
        replace(torch.autograd.Function, "__init_subclass__", classmethod(defined))
        yield
    if problems:
        raise ImportFailed(problems.values())


@contextlib.contextmanager
def _gradients_on():
    """Lets a trace see which operations of a forward have gradients. PyTorch turns them off there.

    The trace does not record this, so that the forward's own regions are all that it has."""
    def turn(on):
        with torch._C.DisableTorchFunction():
            torch._C._set_grad_enabled(on)

    before = torch.is_grad_enabled()
    turn(True)
    try:
        yield
    finally:
        turn(before)


def _identity(leaf) -> Hashable:
    try:
        hash(leaf)
    except TypeError:
        return id(leaf)
    return leaf


def _descendants(kind: type) -> list[type]:
    return [below for child in kind.__subclasses__() for below in (child, *_descendants(child))]


def _method_with_context(function) -> str:
    """Each call looks this method up; but callers may have bound `apply` long before."""
    has_setup = function.setup_context is not torch.autograd.Function.setup_context
    return "setup_context" if has_setup else "forward"


def _flows(ctx, args) -> bool:
    """Whether a call has edges to earlier ones, or tensors in lists, which never have edges."""
    return bool(ctx.next_functions) or any(
        isinstance(x, torch.Tensor) and x.requires_grad
        for arg in args if not isinstance(arg, torch.Tensor) for x in pytree.tree_leaves(arg))


def _caller() -> tuple[str, int]:
    frame = sys._getframe(2)
    while frame.f_globals.get("__name__", "").startswith("torch."):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _described(args) -> tuple[list, pytree.TreeSpec]:
    """The leaves of the arguments. Only tensors outside of the export have values, and stay."""
    leaves, spec = pytree.tree_flatten(args)
    return [_Drawn(tuple(x.shape), x.dtype, x.requires_grad) if isinstance(x, torch.Tensor) and
            (type(x) is not torch.Tensor or x.requires_grad) else x for x in leaves], spec


def _verdict(function, leaves, spec) -> str | None:
    """None if the derivative is that of the forward, or else how it differs."""
    drawn = [x for x in leaves if isinstance(x, _Drawn)]
    if any(not (x.dtype.is_floating_point or x.dtype.is_complex or x.dtype == torch.bool)
           for x in drawn):
        return "cannot be compared with that of its forward: the values of its integers are unknown"
    where = ""
    if sum(math.prod(x.shape) for x in drawn) > _MOST_ELEMENTS:
        leaves = _smaller(leaves)
        where = f" at shapes {[list(x.shape) for x in leaves if isinstance(x, _Drawn)]}"
    # The modes of an export (fake tensors, a graph that records, ...) belong to its thread.
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        try:
            error = executor.submit(_difference, function, leaves, spec).result()
        except Exception as failure:  # functions raise exceptions of any type
            kind = "" if isinstance(failure, Uncovered) else f"{type(failure).__name__}: "
            said = textwrap.shorten(str(failure), 120, placeholder=" ...")
            return f"cannot be compared with that of its forward{where}: {kind}{said}"
    if error is None:
        return f"cannot be compared with that of its forward{where}: it is not finite"
    error, point = error
    if error <= _TOLERANCE:
        return None
    at = f" at {point}" if point else ""
    if not math.isfinite(error):
        if point:
            return f"differs from that of its forward{at}, where one of both is not finite"
        return "differs from that of its forward, which is not finite in places"
    return f"differs from that of its forward{at}, by {error:.2g} times the largest entry"


def _smaller(leaves: list) -> list:
    """Smaller shapes. Equal sizes stay equal, and different ones different."""
    sizes = sorted({n for x in leaves if isinstance(x, _Drawn) for n in x.shape if n > _SMALL_SIZE})
    size = {n: _SMALL_SIZE + 8 * i for i, n in enumerate(sizes)}
    return [x._replace(shape=tuple(size.get(n, n) for n in x.shape)) if isinstance(x, _Drawn) else x
            for x in leaves]


def _difference(function, leaves, spec) -> tuple[float, str] | None:
    """The first difference beyond rounding, or else the last one, relative to the largest entry; and
    at which point it is, if that is a special one.

    None if no draw gives numbers."""
    def forward(*args):
        if _method_with_context(function) == "setup_context":
            return function.forward(*args)
        ctx = torch.autograd.function.FunctionCtx()
        ctx.needs_input_grad = tuple(isinstance(x, torch.Tensor) and x.requires_grad for x in args)
        return function.forward(ctx, *args)

    # A forward may write to values that its derivative needs, which autograd refuses.
    for call in (forward, torch.func.functionalize(forward)):
        with contextlib.suppress(Exception):  # functions raise exceptions of any type
            return _difference_between((function.apply, call), leaves, spec, torch.float64)
    return _difference_between((function.apply, forward), leaves, spec, torch.float32)


def _difference_between(calls, leaves, spec, wide) -> tuple[float, str] | None:
    generator = torch.Generator().manual_seed(0)
    error = None
    with torch.random.fork_rng(devices=()):
        # The numbers of the first products decide whether the derivatives can be compared at all.
        for low, bound, scale in (*itertools.product((-1, 0), _BOUNDS, _SCALES),
                                  *((low, 1.0, scale) for low in (-1, 0) for scale in _FAR_SCALES)):
            low, high = low * bound, bound
            given = [x.draw(low, high, wide, generator) if isinstance(x, _Drawn) else x for x in leaves]
            own, want = (_gradients(call, given, spec, scale) for call in calls)
            if own is None or want is None or not own.isfinite().any():
                continue
            is_finite = own.isfinite()
            top = max(float(own[is_finite].abs().max()), float(want[is_finite].abs().max()))
            error = float((own - want)[is_finite].abs().max()) / (top or 1)
            if not error <= _TOLERANCE:  # also if it is not a number
                return error, ""
        if error is None:
            return None
        for given, point in _special(leaves, wide, generator):
            with contextlib.suppress(Exception):  # a function may refuse such numbers
                own, want = (_gradients(call, given, spec, 1.0) for call in calls)
                if own is None or want is None:
                    continue
                found = _apart(own, want)
                if not found <= _TOLERANCE:
                    return found, point
        given = [x.at(None, wide, generator) if isinstance(x, _Drawn) else x for x in leaves]
        for number in _NO_NUMBERS:
            if _replaces(calls, given, spec, number):
                return math.inf, f"gradients that are {number}"
    return error, ""


def _special(leaves, wide, generator):
    """All arguments at a special point, and each one at 0 beside others that are not."""
    drawn = [i for i, x in enumerate(leaves) if isinstance(x, _Drawn)]
    for point in _POINTS:
        yield [x.at(point, wide, generator) if i in drawn else x for i, x in enumerate(leaves)], point
    for zero in drawn if len(drawn) > 1 else ():
        yield [x.at("0" if i == zero else None, wide, generator) if i in drawn else x
               for i, x in enumerate(leaves)], "0"


def _apart(own, want) -> float:
    """The difference relative to the largest entry. NaN and infinities have to agree."""
    is_finite = own.isfinite() & want.isfinite()
    agree = is_finite | (own == want) | (own.isnan() & want.isnan())
    if not agree.all():
        return math.inf
    own, want = own[is_finite], want[is_finite]
    if not own.numel():
        return 0.0
    top = max(float(own.abs().max()), float(want.abs().max()))
    return float((own - want).abs().max()) / (top or 1)


def _replaces(calls, given, spec, number) -> bool:
    """Whether the derivative is finite where it depends on a gradient that is no number, unlike that
    of the forward."""
    with contextlib.suppress(Exception):
        usual = _gradients(calls[0], given, spec, 1.0)
        own, want = (_gradients(call, given, spec, 1.0, number) for call in calls)
        if not any(x is None for x in (usual, own, want)):
            return bool(((usual != 0) & own.isfinite() & ~want.isfinite()).any())
    return False


def _gradients(call, leaves, spec, scale, number=None) -> torch.Tensor | None:
    """The gradients by all arguments, with random cotangents up to `scale`, the same in each call; or
    with cotangents that all are `number`.

    None where a result is not a number. The call gets copies: it may write to its arguments."""
    torch.default_generator.manual_seed(0)
    args = [x.clone() if isinstance(x, torch.Tensor) else copy.deepcopy(x) for x in leaves]
    outputs = [x for x in pytree.tree_leaves(call(*pytree.tree_unflatten(args, spec)))
               if isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())]
    if any(type(x) is not torch.Tensor for x in outputs):
        raise Uncovered("it reads tensors of the module that are not its arguments")
    if any(x.isnan().any() for x in outputs):
        return None
    generator = torch.Generator().manual_seed(1)
    cotangents = [scale * _Drawn(tuple(x.shape), x.dtype, False).draw(-1, 1, x.dtype, generator)
                  for x in outputs]
    if number is not None:
        cotangents = [torch.full_like(x, number) for x in cotangents]
    wanted = [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]
    flowing = [i for i, x in enumerate(outputs) if x.requires_grad]
    found = torch.autograd.grad([outputs[i] for i in flowing], wanted, [cotangents[i] for i in flowing],
                                allow_unused=True) if flowing else [None] * len(wanted)
    return torch.cat([(torch.zeros_like(x) if g is None else g).flatten() for x, g in zip(wanted, found)])
