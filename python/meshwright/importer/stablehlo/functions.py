# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Imports JAX functions: lowered by JAX to StableHLO, then imported."""
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from ...tensors import NUMPY_TYPES, Shape
from ..errors import Diagnostic, ImportFailed
from . import names
from .program import Argument, ImportedProgram, import_module

_TYPES = {dtype: name for name, dtype in NUMPY_TYPES.items()}


@dataclass
class Leaf:
    """A leaf of the arguments of a call."""
    name: str
    value: Any
    #: The position of the argument among all of them, those by keyword behind the others.
    argument: int
    is_parameter: bool
    is_trained: bool = True

    @property
    def is_array(self) -> bool:
        """Whether the leaf is traced. Numbers, flags and text are part of the program."""
        return hasattr(self.value, "shape") and hasattr(self.value, "dtype") and not _is_key(self.value)


@dataclass
class Call:
    """A function and the arguments of one call of it."""
    function: Any
    args: tuple
    kwargs: dict
    parameters: Any = 0
    state: dict | None = None
    training: bool = False
    #: The name of the function for messages.
    title: str = "the function"
    leaves: list[Leaf] = field(default_factory=list)
    tree: Any = None

    def __post_init__(self):
        self.title = getattr(self.function, "__name__", type(self.function).__name__)
        self._read_leaves()

    def _read_leaves(self):
        stated = names.arguments_of(self.function, self.args, self.kwargs)
        weights = _positions(self.parameters, stated, len(self.args))
        arguments = [*self.args, *self.kwargs.values()]
        found = []
        for i, value in enumerate(arguments):
            is_parameter = i in weights
            prefix = "" if is_parameter and len(weights) == 1 else stated[i]
            for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
                name = names.path_of(path, prefix) or stated[i]
                found.append(Leaf(name, leaf, i, is_parameter))
        for leaf, name in zip(found, names.unique([leaf.name for leaf in found])):
            leaf.name = name
        self.leaves = found
        self.tree = jax.tree_util.tree_structure((self.args, self.kwargs))

    @property
    def traced(self) -> list[Leaf]:
        return [leaf for leaf in self.leaves if leaf.is_array]

    def import_(self) -> ImportedProgram:
        lowered, kept = _lowered(self)
        module = lowered.compiler_ir("stablehlo")
        arguments = []
        for leaf in kept:
            value = _stored(leaf) if leaf.is_parameter else None
            arguments.append(Argument(leaf.name, value, leaf.is_parameter,
                                      self.training and leaf.is_trained or leaf.is_parameter and leaf.is_trained))
        imported = import_module(module, arguments, names.results_of(lowered.out_info), self.state)
        imported.flattens = Flatten(self, imported.inputs)
        imported.training = self.training
        imported.chunk = self._chunk
        return imported

    def _chunk(self, count: int, batch: list[str]) -> ImportedProgram:
        problems, values = [], []
        for leaf in self.leaves:
            value = leaf.value
            if leaf.name in batch and not leaf.is_parameter and leaf.is_array:
                if value.shape[0] % count:
                    problems.append(Diagnostic(f"microbatches: expected a number that divides the {value.shape[0]} rows of "
                                               f"input '{leaf.name}', got {count}"))
                value = jax.ShapeDtypeStruct((value.shape[0] // count, *value.shape[1:]), value.dtype)
            values.append(value)
        if problems:
            raise ImportFailed(problems[:1])
        args, kwargs = jax.tree_util.tree_unflatten(self.tree, values)
        return Call(self.function, args, kwargs, self.parameters, self.state, self.training).import_()


def _is_key(value) -> bool:
    return jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended)


def _positions(parameters, stated: list[str], count: int) -> set[int]:
    """The positions of the arguments that are weights."""
    if parameters is None:
        return set()
    wanted = [parameters] if isinstance(parameters, (int, str)) else list(parameters)
    result, problems = set(), []
    for one in wanted:
        if isinstance(one, str) and one in stated:
            result.add(stated.index(one))
        elif isinstance(one, (int, np.integer)) and not isinstance(one, bool) and -count <= one < count:
            result.add(int(one) % count)
        else:
            problems.append(Diagnostic(f"parameters: expected positions or names of arguments ({', '.join(stated) or 'none'}), "
                                       f"got {one!r}"))
    if problems:
        raise ImportFailed(problems)
    return result


def _stored(leaf: Leaf):
    """A parameter's value: an array, or its shape alone."""
    value = leaf.value
    if isinstance(value, jax.ShapeDtypeStruct):
        return Shape(tuple(value.shape), _TYPES.get(np.dtype(value.dtype), str(value.dtype)))
    if not isinstance(value, (jax.Array, np.ndarray)):
        value = np.asarray(value)
    kind = jax.dtypes.canonicalize_dtype(value.dtype)
    return value if value.dtype == kind else np.asarray(value).astype(kind)


def _lowered(call: Call):
    """What JAX makes of the function, and the leaves that are arguments of it, in order."""
    update = jax.config.update
    frames = jax.config.jax_traceback_in_locations_limit
    update("jax_traceback_in_locations_limit", 64)
    try:
        if hasattr(call.function, "trace") and hasattr(call.function, "lower"):
            return _of_jitted(call)
        return _of_function(call)
    finally:
        update("jax_traceback_in_locations_limit", frames)


def _of_function(call: Call):
    traced = [leaf.is_array for leaf in call.leaves]

    def run(arrays):
        arrays = iter(arrays)
        leaves = [next(arrays) if is_array else leaf.value for leaf, is_array in zip(call.leaves, traced)]
        args, kwargs = jax.tree_util.tree_unflatten(call.tree, leaves)
        return call.function(*args, **kwargs)

    shapes = [_shape(leaf.value) for leaf in call.traced]
    return jax.jit(run, keep_unused=True).trace(shapes).lower(lowering_platforms=("cpu",)), call.traced


def _shape(value):
    return value if isinstance(value, jax.ShapeDtypeStruct) else \
        jax.ShapeDtypeStruct(value.shape, value.dtype, weak_type=getattr(value, "weak_type", False))


def _of_jitted(call: Call):
    lowered = call.function.trace(*call.args, **call.kwargs).lower(lowering_platforms=("cpu",))
    traced = jax.tree_util.tree_leaves(lowered.args_info)
    leaves = call.leaves if len(traced) == len(call.leaves) else call.traced
    kept = _kept(lowered)
    return lowered, leaves if kept is None else [leaf for i, leaf in enumerate(leaves) if i in kept]


def _kept(lowered) -> set[int] | None:
    """The positions of the leaves that are arguments of the module: jax.jit leaves out what is not used."""
    details = getattr(getattr(lowered, "_lowering", None), "compile_args", None) or {}
    return details.get("kept_var_idx")


class Flatten:
    """The arguments of a call as the program's inputs."""

    def __init__(self, call: Call, inputs: list[str]):
        self.call, self.inputs = call, inputs

    def __call__(self, args: tuple, kwargs: dict) -> list:
        """Weights may be left out: the model has them."""
        call = self.call
        weights = {leaf.argument for leaf in call.leaves if leaf.is_parameter}
        count = len(call.args)
        if len(args) != count:
            args = list(args)
            for i in sorted(weights):
                if i < count and len(args) < count:
                    args.insert(i, call.args[i])
        stated = {**kwargs}
        for i, name in enumerate(call.kwargs):
            if count + i in weights:
                stated.setdefault(name, call.kwargs[name])
        leaves, tree = jax.tree_util.tree_flatten((tuple(args), stated))
        if tree != call.tree:
            raise ImportFailed([Diagnostic(f"the arguments are {_described(tree)}, but were {_described(call.tree)} when the "
                                           "function was imported")])
        found, problems = {}, []
        for leaf, value in zip(call.leaves, leaves):
            if leaf.is_parameter:
                continue
            if leaf.is_array:
                found[leaf.name] = _canonical(value)
            elif type(value) is not type(leaf.value) or not (value == leaf.value or value != value):
                problems.append(Diagnostic(f"an argument is {value!r}, but was {leaf.value!r} when the function was imported; "
                                           "import it again with this value"))
        if problems:
            raise ImportFailed(problems)
        return [found[name] for name in self.inputs]


def _canonical(value):
    """An array in the type that JAX gives it: without x64 the integers of NumPy have 32 bits."""
    if isinstance(value, (np.ndarray, np.generic, int, float, bool)):
        value = np.asarray(value)
        kind = jax.dtypes.canonicalize_dtype(value.dtype)
        return value if kind == value.dtype else value.astype(kind)
    return value


def _described(tree) -> str:
    args, kwargs = jax.tree_util.tree_unflatten(tree, ["*"] * tree.num_leaves)
    return f"args {args} and kwargs {kwargs}"
