# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Modules of Flax and Equinox, as functions of their weights.

No library is imported here: who gives a module of one has imported it.
"""
import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax

from ..errors import Diagnostic, ImportFailed
from . import names


@dataclass
class Module:
    """A module as a function: its weights, in order, and a function that calls it with others."""
    #: (name, value, whether it is trained) of each weight.
    weights: list[tuple[str, Any, bool]]
    #: The result of a call: (values of the weights, args, kwargs).
    apply: Callable[[list, tuple, dict], Any]
    #: Has the signature of a call.
    signature: Any
    #: Names of variables that a call wrote to, once it was traced.
    written: list[str] = field(default_factory=list)


def of(function) -> Module | None:
    """The module that a callable is; None for a function."""
    flax = sys.modules.get("flax")
    nnx, linen = getattr(flax, "nnx", None), getattr(flax, "linen", None)
    if nnx is not None and isinstance(function, nnx.Module):
        return _of_nnx(nnx, function)
    if linen is not None and isinstance(function, linen.Module) and function.scope is not None:
        return _of_bound_linen(function)
    if callable(function) and not isinstance(function, type) and not jax.tree_util.all_leaves([function]):
        return _of_tree(function)
    return None


def linen_of(function):
    """The module of Flax's linen whose apply a function is; None for others. Its first argument are variables."""
    linen = getattr(sys.modules.get("flax"), "linen", None)
    if linen is None:
        return None
    owner = getattr(function, "__self__", function)
    is_apply = owner is function or getattr(function, "__name__", "") == "apply"
    return owner if isinstance(owner, linen.Module) and is_apply and owner.scope is None else None


def linen_signature(module) -> inspect.Signature:
    """That of apply, with the arguments of the module's call."""
    own = list(inspect.signature(type(module).__call__).parameters.values())[1:]
    first = inspect.Parameter("variables", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = {p.name for p in own}
    return inspect.Signature([first, *own]) if "variables" not in taken else inspect.signature(module.apply)


def _of_nnx(nnx, module) -> Module:
    """Parameters are trained, other variables are not. The state of random numbers stays as it is."""
    graph, params, rng, others = nnx.split(module, nnx.Param, nnx.RngState, ...)
    trees = (params, others)
    leaves, tree = jax.tree_util.tree_flatten_with_path(trees)
    weights = [(names.path_of(path[1:]), value, path[0].idx == 0) for path, value in leaves]
    result = Module(weights, lambda *call: None, module.__call__)

    def apply(values, args, kwargs):
        params, others = jax.tree_util.tree_unflatten(tree, values)
        merged = nnx.merge(graph, params, rng, others)
        output = merged(*args, **kwargs)
        # Scans of layers pass parameters on as new arrays: only other variables count.
        after = jax.tree_util.tree_leaves(nnx.split(merged, nnx.Param, nnx.RngState, ...)[3])
        count = len(weights) - len(after)
        result.written[:] = [name for (name, _, _), old, new in zip(weights[count:], values[count:], after) if old is not new]
        return output

    result.apply = apply
    return result


def _of_bound_linen(module) -> Module:
    unbound, variables = module.unbind()
    leaves, tree = jax.tree_util.tree_flatten_with_path(variables)
    weights = [(names.path_of(path), value, names.key_of(path[0]) == "params") for path, value in leaves]
    return Module(weights, lambda values, args, kwargs: unbound.apply(
        jax.tree_util.tree_unflatten(tree, values), *args, **kwargs), module.__call__)


def _of_tree(module) -> Module | None:
    """A callable that is a tree with arrays, such as a module of Equinox. Other leaves are part of it."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(module)
    is_array = [names.is_array(value) for _, value in leaves]
    if not any(is_array):
        return None
    weights = [(re.sub(r"^(_fun\.)+", "", names.path_of(path)), value, True)
               for (path, value), array in zip(leaves, is_array) if array]

    def apply(values, args, kwargs):
        given = iter(values)
        own = [next(given) if array else value for (_, value), array in zip(leaves, is_array)]
        return jax.tree_util.tree_unflatten(tree, own)(*args, **kwargs)

    return Module(weights, apply, module)


def refuse_writes(module: Module):
    if module.written:
        raise ImportFailed([Diagnostic(
            f"a call of the module writes to its variable {', '.join(repr(n) for n in module.written)}: expected evaluation "
            "mode (module.eval()), or a function that returns the new value, with state={input: output}")])
