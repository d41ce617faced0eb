# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Models of JAX functions and of StableHLO modules. Nothing here imports JAX before it is called."""

from collections.abc import Mapping, Sequence

from . import arguments
from .errors import Error, InputError
from .model import Model, _convert, _model_of
from .progress import Phase

#: The parts of an import: that of `Call`, those of `import_module`, and "parsing".
_PARTS = 5


def from_jax(function, args=(), kwargs=None, parameters=0, state=None, training=False) -> Model:
    """Imports a function of JAX as it computes function(*args, **kwargs), or a module of Flax or Equinox.

    function: a function of arrays and trees of arrays, also one that jax.jit has made; a module of flax.nnx, flax.linen
        or Equinox, or another callable tree, whose arrays are the weights.
    args, kwargs: arrays of JAX or NumPy; their shapes and types count. Those of jax.ShapeDtypeStruct make a model that
        is planned, not run. Numbers, flags and text are part of the program.
    parameters: positions or names of the arguments that are weights; None for none. A module that holds its weights is
        argument 0 itself. Weights have the names of their paths, as "layers.0.q".
    state: {argument: result}: arguments that a call replaces by results, such as caches. A name may be that of several
        leaves, or the position of a result.
    training: keeps the ends of gradients (jax.lax.stop_gradient), for `Model.differentiate` and `Model.train`.
        Derivatives that the user states are refused.

    Inputs have the names of the function's arguments, outputs those of their paths. Arrays are referenced, not copied.
    Raises Error with the user's lines: for all operations that the results need and that are not covered, for dynamic
    shapes, loops whose end depends on values, random numbers, complex numbers and callbacks.
    """
    _require_jax("from_jax")
    args = () if args is None else args
    arguments.instance("args", args, (tuple, list), "a tuple of arguments", InputError)
    if kwargs is not None:
        arguments.mapping("kwargs", kwargs, "a dict of arguments by name", InputError)
    arguments.flag("training", training)
    expected = "positions or names of arguments, or None"
    if not isinstance(parameters, (int, str)) and parameters is not None:
        parameters = tuple(arguments.instance("parameters", parameters, (Sequence, set, frozenset), expected))
    for one in parameters if isinstance(parameters, tuple) else ():
        arguments.instance("an element of parameters", one, (int, str), expected)
    if state is not None:
        arguments.mapping("state", state, "{name of an argument: name or position of a result}, or None")
    with Phase(f"importing {getattr(function, '__name__', type(function).__name__)}", _PARTS):
        return _import_call(function, args, kwargs, parameters, state, training)


def _import_call(function, args, kwargs, parameters, state, training) -> Model:
    from .importer import ImportFailed
    from .importer.stablehlo.functions import Call

    try:
        call = Call(function, tuple(args), dict(kwargs or {}), parameters, state, training)
        return _model_of(call.import_(), call.title)
    except ImportFailed as error:
        raise Error(_convert(error.diagnostics)) from error


def from_stablehlo(given, parameters=None) -> Model:
    """Imports a StableHLO module.

    given: text, the bytes of a portable artifact, the path of a file of either, what jax.jit(f).lower(...) returns, or a
        jax.export.Exported.
    parameters: the values of arguments of @main that are weights, by position or name: {0: array, ...}; a list has those
        of the first arguments. Names are those of the arguments' locations, with or without the name in front, else
        "arg0", "arg1", ...

    Raises Error for what is no StableHLO, an artifact of a newer version, parameters that do not fit, and as `from_jax` does.
    """
    _require_jax("from_stablehlo")
    if parameters is not None:
        expected = "{position or name of an argument: array}, a list of arrays or None"
        arguments.instance("parameters", parameters, (Mapping, list, tuple), expected)
    from .importer import ImportFailed
    from .importer.stablehlo.modules import import_stablehlo

    try:
        with Phase("importing StableHLO", _PARTS - 1):
            return _model_of(import_stablehlo(given, parameters), "stablehlo")
    except ImportFailed as error:
        raise Error(_convert(error.diagnostics)) from error


def _require_jax(function):
    try:
        import jax.extend.mlir  # noqa: F401
    except ImportError as error:
        raise Error(f"{function} needs JAX 0.9 or 0.10: pip install meshwright[jax] ({error})") from None
