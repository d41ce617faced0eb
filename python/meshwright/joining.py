# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Several models as the entries of one, which share weights and states."""

import itertools

import numpy as np

from . import _core
from .errors import Diagnostic, Error, unwrap
from .model import Model, _convert, _model_of, check_models
from .tensors import Joined, as_numpy


def join(models) -> Model:
    """Makes one model of several: its entries.

    models: {"prefill": model, "decode": other}, by the names of the entries; the first is the
    default. Each model has one entry. Parameters and states of one name are one: they must have one
    type and equal values. A buffer that one model writes to is state in the others too. Constants that
    imports computed, such as tables of positions, are one where they are equal.
    """
    check_models(models)
    for name, model in models.items():
        if len(model.entries) != 1:
            raise Error(f"join: '{name}': expected one entry, got {len(model.entries)}")
    models = _with_constants_apart(_joined_alike(_with_states_of_others(models)))
    return Model(*joined(models))


def joined(models):
    """The program, the parameters and the imports of models as entries of one. Of a model with several
    entries these are "ENTRY,NAME"."""
    program = unwrap(_core.Program.join([(name, m._program) for name, m in models.items()]), call="join")
    parameters, owners, problems = {}, {}, []
    for port in program.parameters:
        for entry, model in models.items():
            name = next((n for n in [port.name, *port.aliases] if n in model._parameters), None)
            if name is None:
                continue
            if port.name not in parameters:
                parameters[port.name] = model._parameters[name]
                owners[port.name] = entry, model, name
            elif not _same_values(owners[port.name][1:], (model, name)):
                problems.append(
                    f"parameter '{name}' of '{entry}' has other values than that of "
                    f"'{owners[port.name][0]}': expected the same weights"
                )
    if problems:
        raise Error([Diagnostic(problem) for problem in problems])
    imported = {
        name if len(model.entries) == 1 else f"{entry},{name}": model._imported[entry]
        for name, model in models.items()
        for entry in model.entries
        if entry in model._imported
    }
    return program, parameters, imported


def _with_states_of_others(models):
    """Imports those again that took for a constant what is state of another model."""
    from .importer import ImportFailed

    states = {port.name for model in models.values() for port in model._program.states}
    result = dict(models)
    for entry, model in models.items():
        imported = model._imported.get(model.entries[0])
        if imported is None or states.isdisjoint(imported.values):
            continue
        try:
            result[entry] = _model_of(imported.again(states), entry)
        except ImportFailed as error:
            raise Error(_convert(error.diagnostics)) from error
    return result


def _with_constants_apart(models):
    """Imports those again that have a constant of another one's name and of other content."""
    from .importer import ImportFailed

    result, contents = dict(models), {}
    for entry, model in models.items():
        imported = model._imported.get(model.entries[0])
        if imported is None:
            continue
        own = imported.graph.constants
        taken = {key: content for content, key in contents.items()}
        if any(taken.get(key, content) != content for content, key in own.items()):
            try:
                imported = imported.beside(contents)
            except ImportFailed as error:
                raise Error(_convert(error.diagnostics)) from error
            result[entry], own = _model_of(imported, entry), imported.graph.constants
        contents = {**contents, **own}
    return result


def _joined_alike(models):
    """Imports all again, with the parameters of their modules apart, if some are joined in one model
    and not so in another."""
    keys = [
        {key: part for name, value in model._parameters.items() for key, part in _parts(name, value)}
        for model in models.values()
    ]
    for own, others in itertools.permutations(keys, 2):
        if any(others.get(key, name) != name for key, name in own.items()):
            return {entry: apart(model) for entry, model in models.items()}
    return models


def _parts(name, value):
    """The parameters of a module that a parameter of the program holds, each with the name and all
    that it holds."""
    keys = isinstance(value, Joined) and value.keys or [name]
    return [(key, (name, *keys)) for key in keys]


def _same_values(one, other):
    """Whether two parameters, each a model and a name, hold the same values."""
    (model, name), (with_model, with_name) = one, other
    if model._parameters[name] is with_model._parameters[with_name] or model._meta:
        return True
    parts = [m._parameters[n] for m, n in (one, other)]
    if all(isinstance(part, Joined) for part in parts):
        a, b = (part.parts for part in parts)
        if len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True)):
            return True
    a, b = model._parameter(name), with_model._parameter(with_name)
    if (a.dtype, a.shape) != (b.dtype, b.shape) or a.place == b.place:
        # Parts of a stored tensor may need tensors of several sizes.
        return True
    return np.array_equal(*(as_numpy(x).reshape(-1).view(np.uint8) for x in (a, b)))


def apart(model) -> Model:
    """The model with the parameters of its module as they are, each with its name. A
    parameter that is trained has a gradient of its own."""
    imports = model._imported
    if list(imports) != model.entries or not any(i.joined for i in imports.values()):
        return model
    from .importer import ImportFailed

    try:
        models = {entry: _model_of(imported.apart(), entry) for entry, imported in imports.items()}
    except ImportFailed as error:
        raise Error(_convert(error.diagnostics)) from error
    return join(models) if len(models) > 1 else models[model.entries[0]]
