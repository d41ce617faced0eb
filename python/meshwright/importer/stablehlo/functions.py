# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Imports JAX functions: lowered by JAX to StableHLO, then imported."""
import traceback
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from ...progress import part
from ...tensors import NUMPY_TYPES, Fixed, Shape
from ..errors import Diagnostic, ImportFailed
from . import gradients, libraries, names
from .attributes import PROGRAM_INTEGERS
from .locations import is_users
from .program import Argument, ImportedProgram, import_module

_TYPES = {dtype: name for name, dtype in NUMPY_TYPES.items()}


@dataclass
class Leaf:
    """A leaf of the arguments of a call, or a weight of the module that is called."""
    name: str
    value: Any
    #: The position of the argument among all of them, those by keyword behind the others; -1 for the module.
    argument: int
    is_parameter: bool
    is_trained: bool = True

    @property
    def is_array(self) -> bool:
        return names.is_array(self.value)


@dataclass
class Call:
    """A function and the arguments of one call of it."""
    function: Any
    args: tuple
    kwargs: dict
    parameters: Any = 0
    state: dict | None = None
    training: bool = False
    leaves: list[Leaf] = field(default_factory=list)
    tree: Any = None

    def __post_init__(self):
        self.kwargs = dict(sorted(self.kwargs.items()))  # the order of trees
        if not callable(self.function) and libraries.linen_of(self.function) is None:
            raise ImportFailed([Diagnostic(f"function: expected a function of JAX or a module, got a "
                                           f"{type(self.function).__name__}")])
        #: The module that is called, if it is one that holds its weights.
        self.module = libraries.of(self.function)
        self.linen = None if self.module else libraries.linen_of(self.function)
        if self.linen is not None:
            self.function = self.linen.apply
        self.title = getattr(self.function, "__name__", type(self.function).__name__)
        self._read_leaves()

    def _read_leaves(self):
        signature = self.module.signature if self.module else self.function
        if self.linen is not None:
            signature = libraries.linen_signature(self.linen)
        stated = names.arguments_of(signature, self.args, self.kwargs)
        found, weights = [], set()
        if self.module is not None:
            found = [Leaf(name, value, -1, True, trained) for name, value, trained in self.module.weights]
        if self.module is None or self.parameters not in (0, None):
            # The module itself is argument 0 of its call.
            wanted = self.parameters
            if self.module is not None:
                listed = [wanted] if isinstance(wanted, (int, str)) else list(wanted)
                wanted = [p - 1 if isinstance(p, int) and p > 0 else p for p in listed if p != 0]
            weights = positions(wanted, stated, len(self.args))
        #: The positions of the arguments that are weights.
        self.weight_arguments = weights
        several = len(weights) > 1 or self.module is not None
        for i, value in enumerate([*self.args, *self.kwargs.values()]):
            prefix = stated[i] if several or i not in weights else ""
            for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
                is_trained = self.linen is None or not path or names.key_of(path[0]) == "params"
                found.append(Leaf(names.path_of(path, prefix) or stated[i], leaf, i, i in weights, is_trained))
        for leaf, name in zip(found, names.unique([leaf.name for leaf in found])):
            leaf.name = name
        self.leaves = found
        self._check_shapes()
        self.tree = jax.tree_util.tree_structure((self.args, self.kwargs))

    def _check_shapes(self):
        problems = [Diagnostic(f"{'parameter' if leaf.is_parameter else 'input'} '{leaf.name}': the shape {leaf.value.shape} has "
                               "a symbolic dimension: expected static sizes")
                    for leaf in self.leaves if leaf.is_array and not all(isinstance(n, (int, np.integer)) for n in leaf.value.shape)]
        if problems:
            raise ImportFailed(problems)

    @property
    def weights(self) -> list[Leaf]:
        """Those of the module that is called."""
        return [leaf for leaf in self.leaves if leaf.argument < 0]

    @property
    def given(self) -> list[Leaf]:
        """The leaves of the arguments."""
        return [leaf for leaf in self.leaves if leaf.argument >= 0]

    def import_(self, parts: bool | None = None) -> ImportedProgram:
        """With `parts` layers of stacked weights are parameters of their own: by default where nothing is trained."""
        with part("lowering"):
            traced, lowered, kept = _lowered(self)
            module = lowered.compiler_ir("stablehlo")
        results = names.results_of(traced.out_info)
        states = _states(self, results)
        arguments = []
        for leaf in kept:
            kind = "parameter" if leaf.is_parameter else "state" if leaf.name in states else "input"
            arguments.append(Argument(leaf.name, None if kind == "input" else stored(leaf), kind, leaf.is_trained))
        try:
            imported = import_module(module, arguments, results, states,
                                     not self.training if parts is None else parts)
        except ImportFailed as error:
            if gradients.draws(traced.jaxpr.jaxpr):
                first = error.diagnostics[0]
                raise ImportFailed([first._replace(message=gradients.RANDOM)]) from None
            raise
        imported.flattens = Flatten(self, imported.inputs, states)
        imported.training = self.training
        imported.chunk = self._chunk
        imported.whole = lambda: self.import_(parts=False)
        return imported

    def _chunk(self, count: int, batch: list[str]) -> ImportedProgram:
        """Imports the function for the first of several chunks of rows of the inputs that are named."""
        values = []
        for leaf in self.given:
            value = leaf.value
            if leaf.name in batch and not leaf.is_parameter and leaf.is_array:
                if value.shape[0] % count:
                    raise ImportFailed([Diagnostic(
                        f"microbatches: expected a number that divides the {value.shape[0]} rows of input '{leaf.name}', "
                        f"got {count}")])
                value = jax.ShapeDtypeStruct((value.shape[0] // count, *value.shape[1:]), value.dtype)
            values.append(value)
        args, kwargs = jax.tree_util.tree_unflatten(self.tree, values)
        return Call(self.function, args, kwargs, self.parameters, self.state, self.training).import_(parts=False)


def positions(parameters, stated: list[str], count: int) -> set[int]:
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


def _states(call: Call, results: list[str]) -> dict[str, str]:
    """The names of inputs that are state, and those of the results that replace them. A name may be that of an
    argument or a result with several leaves."""
    inputs = [leaf.name for leaf in call.given if leaf.is_array and not leaf.is_parameter]
    found, problems = {}, []
    for name, result in ({} if call.state is None else call.state).items():
        leaves = [i for i in inputs if i == name or i.startswith(f"{name}.")]
        if not leaves:
            problems.append(Diagnostic(f"state: there is no input '{name}': expected one of {', '.join(inputs) or 'none'}"))
        for leaf in leaves:
            # An index among several results is the name, too: 1 is "output.1".
            ends = [f"{root}{leaf.removeprefix(name)}" for root in (str(result), f"output.{result}")]
            match = next((end for end in ends if end in results), None)
            if match is None:
                problems.append(Diagnostic(f"state: there is no result '{ends[0]}' for input '{leaf}': expected one of "
                                           f"{', '.join(results)}"))
            elif match in found.values():
                problems.append(Diagnostic(f"state: result '{match}' replaces two inputs: expected one"))
            else:
                found[leaf] = match
    if problems:
        raise ImportFailed(problems)
    return found


def stored(leaf: Leaf):
    """A parameter's value: an array, or its shape alone."""
    value = leaf.value
    if isinstance(value, jax.ShapeDtypeStruct):
        return Shape(tuple(value.shape), _TYPES.get(np.dtype(value.dtype), str(value.dtype)), leaf.is_trained)
    if not isinstance(value, (jax.Array, np.ndarray)):
        value = np.asarray(value)
    kind = jax.dtypes.canonicalize_dtype(value.dtype)
    value = value if value.dtype == kind else np.asarray(value).astype(kind)
    return value if leaf.is_trained else np.asarray(value).view(Fixed)


def _lowered(call: Call):
    """The function as JAX traces and as it lowers it, and the leaves that are its arguments, in order."""
    update = jax.config.update
    frames = jax.config.jax_traceback_in_locations_limit
    update("jax_traceback_in_locations_limit", 64)
    try:
        if call.module is None and hasattr(call.function, "trace") and hasattr(call.function, "lower"):
            return _of_jitted(call)
        return _of_function(call)
    except ImportFailed:
        raise
    except Exception as error:
        own = [f for f in traceback.extract_tb(error.__traceback__) if is_users(f.filename)]
        place = (own[-1].filename, own[-1].lineno) if own else (None, None)
        said = next((line for line in str(error).splitlines() if line.strip()), "")
        raise ImportFailed([Diagnostic(f"{call.title} fails while JAX traces it: {type(error).__name__}: {said}", "error",
                                       *place)]) from error
    finally:
        update("jax_traceback_in_locations_limit", frames)


def _of_function(call: Call):
    leaves = call.leaves
    held = len(call.weights)

    def run(arrays):
        arrays = iter(arrays)
        values = [next(arrays) if leaf.is_array else leaf.value for leaf in leaves]
        args, kwargs = jax.tree_util.tree_unflatten(call.tree, values[held:])
        if call.module is not None:
            return call.module.apply(values[:held], args, kwargs)
        return call.function(*args, **kwargs)

    traced = [leaf for leaf in leaves if leaf.is_array]
    shapes = [_shape(leaf.value) for leaf in traced]
    made = jax.jit(run, keep_unused=True).trace(shapes)
    if call.module is not None:
        libraries.refuse_writes(call.module)
    return made, gradients.lower(made, shapes, call.training), traced


def _shape(value):
    """An argument without its values. Arrays that are sharded state their shardings, as for jax.jit."""
    if isinstance(value, jax.ShapeDtypeStruct):
        return value
    sharding = getattr(value, "sharding", None)
    is_sharded = isinstance(sharding, jax.sharding.NamedSharding) and sharding.num_devices > 1
    return jax.ShapeDtypeStruct(value.shape, value.dtype, weak_type=getattr(value, "weak_type", False),
                                sharding=sharding if is_sharded else None)


def _of_jitted(call: Call):
    made = call.function.trace(*call.args, **call.kwargs)
    traced = jax.tree_util.tree_leaves(made.args_info)
    leaves = call.leaves if len(traced) == len(call.leaves) else [leaf for leaf in call.leaves if leaf.is_array]
    lowered = gradients.lower(made, [_shape(leaf.value) for leaf in leaves], call.training)
    kept = _kept(lowered)
    return made, lowered, leaves if kept is None else [leaf for i, leaf in enumerate(leaves) if i in kept]


def _kept(lowered) -> set[int] | None:
    """The positions of the leaves that are arguments of the module: jax.jit leaves out what is not used."""
    details = getattr(getattr(lowered, "_lowering", None), "compile_args", None) or {}
    return details.get("kept_var_idx")


class Flatten:
    """The arguments of a call as the program's inputs. Weights and state may be left out: the model has them."""

    def __init__(self, call: Call, inputs: list[str], states):
        self.call, self.inputs, self.states = call, inputs, states

    def __call__(self, args: tuple, kwargs: dict) -> list:
        call = self.call
        leaves, tree = jax.tree_util.tree_flatten(self._with_weights(args, kwargs))
        if tree != call.tree:
            raise ImportFailed([Diagnostic(f"the arguments are {_described(tree)}, but were {_described(call.tree)} when the "
                                           "function was imported")])
        found, problems = {}, []
        for leaf, value in zip(call.given, leaves):
            if leaf.is_parameter or leaf.name in self.states:
                continue
            if leaf.is_array:
                found[leaf.name] = _canonical(value)
            elif type(value) is not type(leaf.value) or not (value == leaf.value or value != value):
                problems.append(Diagnostic(f"an argument is {value!r}, but was {leaf.value!r} when the function was imported; "
                                           "import it again with this value"))
        if problems:
            raise ImportFailed(problems)
        return [found[name] for name in self.inputs]

    def _with_weights(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """The arguments with those that are weights or state, where the caller leaves them out."""
        call, args, kwargs = self.call, list(args), dict(kwargs)
        given = {leaf.argument for leaf in call.given if leaf.name not in self.states}
        states = {leaf.argument for leaf in call.given} - given
        weights = call.weight_arguments | states
        count = len(call.args)
        if len(args) + sum(i < count for i in weights) == count:
            for i in sorted(i for i in weights if i < count):
                args.insert(i, call.args[i])
        for i, name in enumerate(call.kwargs):
            if count + i in weights:
                kwargs.setdefault(name, call.kwargs[name])
        return tuple(args), kwargs


def _canonical(value):
    """An array in the type that JAX gives it: without x64 the integers of NumPy have 32 bits. Narrow integers get the
    type in which the program computes them."""
    dtype = getattr(value, "dtype", None)
    if isinstance(value, (np.ndarray, jax.Array)) and dtype.name in PROGRAM_INTEGERS:
        return np.asarray(value).astype(PROGRAM_INTEGERS[dtype.name])
    if isinstance(value, (np.ndarray, np.generic, int, float, bool)):
        value = np.asarray(value)
        kind = jax.dtypes.canonicalize_dtype(value.dtype)
        return value if kind == value.dtype else value.astype(kind)
    return value


def _described(tree) -> str:
    args, kwargs = jax.tree_util.tree_unflatten(tree, ["*"] * tree.num_leaves)
    return f"args {args} and kwargs {kwargs}"
