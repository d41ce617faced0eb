# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Imports StableHLO modules that were lowered elsewhere."""
import re

from jax.extend.mlir import ir

from ..errors import Diagnostic, ImportFailed
from . import bindings
from .program import Argument, ImportedProgram, import_module


def import_stablehlo(given, parameters=None, parts=True) -> ImportedProgram:
    """Imports a module; `parameters` are the values of arguments that are weights, by position or name."""
    module = bindings.parse(given)
    main = next((f for f in module.body.operations if f.operation.name == "func.func" and
                 ir.StringAttr(f.attributes["sym_name"]).value == "main"), None)
    if main is None:
        raise ImportFailed([Diagnostic("the module has no function @main: expected one")])
    names = _argument_names(main)
    values = dict(parameters or {})
    arguments, unknown = [], [key for key in values if key not in names and not _is_position(key, names)]
    if unknown:
        raise ImportFailed([Diagnostic(f"parameters: expected positions below {len(names)} or names of arguments "
                                       f"({', '.join(names)}), got {key!r}") for key in unknown])
    for i, name in enumerate(names):
        key = i if i in values else name if name in values else None
        arguments.append(Argument(name) if key is None else Argument(name, values[key], "parameter", True))
    imported = import_module(module, arguments, _result_names(main), parts=parts)
    imported.whole = lambda: import_stablehlo(module, parameters, parts=False)
    return imported


def _is_position(key, names) -> bool:
    return isinstance(key, int) and not isinstance(key, bool) and 0 <= key < len(names)


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
