# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The ends of gradients and derivatives of their own, which JAX's lowering to StableHLO leaves out."""
import re

import jax
from jax.extend import core
from jax.extend.mlir import ir
from jax.interpreters import mlir

from ..errors import Diagnostic, ImportFailed
from .locations import is_users

#: The custom call that stands for jax.lax.stop_gradient in the modules of models that train.
STOP = "meshwright.stop_gradient"

RANDOM = "random numbers in a forward pass are not covered: expected a function without them, such as a layer in " \
    "evaluation mode (deterministic=True)"
_DRAWS = {"random_bits", "random_gamma", "threefry2x32", "rng_bit_generator", "rng_uniform"}

_stop = core.Primitive("meshwright_stop_gradient")
_stop.def_abstract_eval(lambda x: x)
_stop.def_impl(lambda x: x)
mlir.register_lowering(_stop, lambda context, x: ir.Operation.create(
    "stablehlo.custom_call", [x.type], [x], {"call_target_name": ir.StringAttr.get(STOP)}).results)


def with_ends(traced):
    """A traced function as a function of its flat arguments whose lowering has the ends of gradients; None if it has
    none. Raises ImportFailed for a derivative that the user's code states."""
    closed = traced.jaxpr
    problems = {}
    if not _look(closed.jaxpr, problems) and not problems:
        return None
    if problems:
        raise ImportFailed(problems.values())
    return core.jaxpr_as_fun(_marked_closed(closed))


def draws(jaxpr) -> bool:
    """Whether a function draws random numbers."""
    return any(e.primitive.name in _DRAWS or any(map(draws, _inner(tuple(e.params.values())))) for e in jaxpr.eqns)


def _inner(value):
    """The functions among the parameters of an equation."""
    if isinstance(value, core.ClosedJaxpr):
        yield value.jaxpr
    elif isinstance(value, core.Jaxpr):
        yield value
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _inner(one)


def _look(jaxpr, problems) -> bool:
    """Whether a gradient ends in a function; notes derivatives that the user states."""
    found = False
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        found |= name == "stop_gradient"
        if name in ("custom_jvp_call", "custom_vjp_call"):
            function = equation.params["call_jaxpr"]
            stated = getattr(function.jaxpr.debug_info, "func_src_info", "") or ""
            place = re.match(r"(.*) at (.*):(\d+)$", stated)
            if place and is_users(place[2]):
                kind = name.removesuffix("_call")
                problems[stated] = Diagnostic(
                    f"function {place[1]} has a derivative of its own (jax.{kind}), which is not covered in models that train: "
                    "expected a function whose gradient is that of what it computes", "error", place[2], int(place[3]))
        for value in equation.params.values():
            for inner in _inner(value):
                found |= _look(inner, problems)
    return found


def _marked(jaxpr):
    equations = []
    for equation in jaxpr.eqns:
        if equation.primitive.name == "stop_gradient":
            equations.append(equation.replace(primitive=_stop, params={}))
        else:
            params = {name: _marked_value(value) for name, value in equation.params.items()}
            equations.append(equation.replace(params=params))
    return jaxpr.replace(eqns=equations)


def _marked_closed(closed):
    return closed.replace(jaxpr=_marked(closed.jaxpr))


def _marked_value(value):
    if isinstance(value, core.ClosedJaxpr):
        return _marked_closed(value)
    if isinstance(value, core.Jaxpr):
        return _marked(value)
    if isinstance(value, (tuple, list)) and any(True for _ in _inner(value)):
        return type(value)(map(_marked_value, value))
    return value


def lower(traced, arguments, training: bool):
    """The lowering of a traced function for a flat list of arguments."""
    marked = with_ends(traced) if training else None
    if marked is None:
        return traced.lower(lowering_platforms=("cpu",))
    return jax.jit(marked, keep_unused=True).trace(*arguments).lower(lowering_platforms=("cpu",))
