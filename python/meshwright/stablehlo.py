# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Models of JAX functions and of StableHLO modules. Nothing here imports JAX before it is called."""

from collections.abc import Mapping

from . import arguments
from .errors import Error, InputError
from .model import Model, _convert, _model_of


def from_jax(function, args=(), kwargs=None, parameters=0, state=None, training=False) -> Model:
    """Imports a JAX function as it computes function(*args, **kwargs).

    parameters: positions or names of the arguments that are the model's weights.
    """
    _require_jax("from_jax")
    from .importer import ImportFailed
    from .importer.stablehlo.functions import Call

    args = () if args is None else args
    arguments.instance("args", args, (tuple, list), "a tuple of arguments", InputError)
    if kwargs is not None:
        arguments.mapping("kwargs", kwargs, "a dict of arguments by name", InputError)
    arguments.flag("training", training)
    try:
        call = Call(function, tuple(args), dict(kwargs or {}), parameters, state, training)
        return _model_of(call.import_(), call.title)
    except ImportFailed as error:
        raise Error(_convert(error.diagnostics)) from error


def from_stablehlo(given, parameters=None) -> Model:
    """Imports a StableHLO module: text, bytes of a portable artifact, the path of a file of either, or a
    jax.export.Exported.

    parameters: the arguments of @main that are weights, by position or name: {0: array, ...}.
    """
    _require_jax("from_stablehlo")
    if parameters is not None:
        arguments.instance("parameters", parameters, Mapping, "{position or name of an argument: array}, or None")
    from .importer import ImportFailed
    from .importer.stablehlo.modules import import_stablehlo

    try:
        return _model_of(import_stablehlo(given, parameters), "stablehlo")
    except ImportFailed as error:
        raise Error(_convert(error.diagnostics)) from error


def _require_jax(function):
    try:
        import jax.extend.mlir  # noqa: F401
    except ImportError as error:
        raise Error(f"{function} needs JAX 0.9 or 0.10: pip install meshwright[jax] ({error})") from None
