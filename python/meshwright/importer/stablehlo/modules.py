# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Imports StableHLO modules that were lowered elsewhere."""
import re
from collections.abc import Mapping
from typing import Any

import jax
from jax.extend.mlir import ir

from ..errors import Diagnostic, ImportFailed
from . import bindings
from .names import is_array, path_of
from .program import Argument, ImportedProgram, import_module


def import_stablehlo(given, parameters=None, parts=True) -> ImportedProgram:
    """Imports a module; `parameters` are the values of arguments that are weights, by position or name."""
    module = bindings.parse(given)
    main = next((f for f in module.body.operations if f.operation.name == "func.func" and
                 ir.StringAttr(f.attributes["sym_name"]).value == "main"), None)
    if main is None:
        raise ImportFailed([Diagnostic("the module has no function @main: expected one")])
    names = _argument_names(main)
    values = _values(parameters, names)
    arguments = [Argument(name, values[i], "parameter", True) if i in values else Argument(name)
                 for i, name in enumerate(names)]
    imported = import_module(module, arguments, _result_names(main), parts=parts)
    imported.whole = lambda: import_stablehlo(module, parameters, parts=False)
    return imported


def _values(parameters, names: list[str]) -> dict[int, Any]:
    """The values of parameters by position. A sequence has those of the first arguments. Trees have names that are
    paths, as arguments have behind the name of their own."""
    if not isinstance(parameters, Mapping):
        parameters = dict(enumerate(parameters or ()))
    given = {}
    for key, value in parameters.items():
        if isinstance(value, (Mapping, list, tuple)):
            leaves = jax.tree_util.tree_flatten_with_path(value)[0]
            given |= {path_of(path, str(key)): leaf for path, leaf in leaves}
        else:
            given[key] = value
    behind = {name.partition(".")[2]: i for i, name in enumerate(names)}
    found, problems = {}, []
    for key, value in given.items():
        at = key if isinstance(key, int) and not isinstance(key, bool) and 0 <= key < len(names) else \
            names.index(key) if key in names else behind.get(key) if isinstance(key, str) else None
        if at is None:
            problems.append(Diagnostic(f"parameters: expected positions below {len(names)} or names of arguments "
                                       f"({', '.join(names)}), got {key!r}"))
        elif not is_array(value):
            problems.append(Diagnostic(f"parameter '{names[at]}': expected an array, got a {type(value).__name__}"))
        else:
            found[at] = value
    if problems:
        raise ImportFailed(problems)
    return found


def _argument_names(main) -> list[str]:
    """The names that the arguments' locations state, as paths; arg0, arg1, ... without them."""
    found = []
    for i, value in enumerate(main.regions[0].blocks[0].arguments):
        stated = re.match(r'loc\("([^"]+)"\)$', str(value.location))
        name = _path(stated[1]) if stated and ".py" not in stated[1] else ""
        found.append(name or f"arg{i}")
    return found if len(set(found)) == len(found) else [f"arg{i}" for i in range(len(found))]


def _path(keys: str) -> str:
    """"params['layers'][0].q" is "params.layers.0.q"."""
    parts = re.findall(r"[^\[\].'\"]+", keys)
    return ".".join(parts)


def _result_names(main) -> list[str]:
    """Those of jax.result_info, without their root; output.0, ... without them."""
    count = len(ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value).results)
    stated = []
    if "res_attrs" in main.attributes:
        for attributes in ir.ArrayAttr(main.attributes["res_attrs"]):
            entry = ir.DictAttr(attributes)
            info = ir.StringAttr(entry["jax.result_info"]).value if "jax.result_info" in entry else ""
            path = _path(info.removeprefix("result"))
            stated.append(f"output.{path}" if path[:1].isdigit() else path or "output")
    if len(stated) != count or len(set(stated)) != count:
        return ["output"] if count == 1 else [f"output.{i}" for i in range(count)]
    return stated
