# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""StableHLO modules by JAX's bindings of MLIR (jax.extend.mlir): from text, bytes, files and exports."""
import os
import re

import jax
from jax.extend import mlir
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ..errors import Diagnostic, ImportFailed


def context() -> ir.Context:
    """A context with the dialects of StableHLO modules: that of a function that JAX lowers."""
    return jax.jit(lambda: 0).lower().compiler_ir("stablehlo").context


def parse(given) -> ir.Module:
    """The module of a text, of bytes of a portable artifact, of a file of either, or of an export."""
    if hasattr(given, "mlir_module_serialized"):
        given = given.mlir_module_serialized
    if isinstance(given, ir.Module):
        return given
    if hasattr(given, "compiler_ir"):  # what jax.jit(f).lower(...) gives
        return given.compiler_ir("stablehlo")
    name = None
    if isinstance(given, os.PathLike) or isinstance(given, str) and "\n" not in given and _is_path(given):
        name = os.fspath(given)
        try:
            with open(name, "rb") as file:
                given = file.read()
        except OSError as error:
            raise ImportFailed([Diagnostic(f"cannot read '{name}': {error.strerror or error}")]) from None
    if isinstance(given, (bytes, bytearray, memoryview)):
        data = bytes(given)
        if data[:4] == b"ML\xefR":
            return _of_bytes(data, name)
        try:
            given = data.decode("utf-8")
        except UnicodeDecodeError:
            raise ImportFailed([Diagnostic(
                f"{_named(name)} are no StableHLO: expected text, a portable artifact or an export", file=name)]) from None
    if not isinstance(given, str):
        raise ImportFailed([Diagnostic("expected StableHLO as text, bytes, the path of a file or a jax.export.Exported, got "
                                       f"a {type(given).__name__}")])
    return _of_text(given, name)


def _is_path(text: str) -> bool:
    return len(text) < 4096 and not text.lstrip().startswith(("module", "func", "#", "\"", "builtin"))


def _named(name) -> str:
    return "the bytes" if name is None else f"the bytes of '{name}'"


def _of_bytes(data: bytes, name) -> ir.Module:
    where = "" if name is None else f" in '{name}'"
    written = re.search(rb"StableHLO_v(\d+)\.(\d+)\.(\d+)", data[:64])
    version = tuple(map(int, written.groups())) if written else None
    own = tuple(map(int, stablehlo.get_current_version().split(".")))
    if version is not None and version > own:
        said = [".".join(map(str, v)) for v in (version, own)]
        raise ImportFailed([Diagnostic(f"the artifact{where} has StableHLO {said[0]}, newer than {said[1]}, which this jaxlib "
                                       "reads: export it for that version, or install a newer JAX")])
    ctx = context()
    # The reasons are in the error: nothing is to be printed.
    with ctx.attach_diagnostic_handler(lambda diagnostic: True):
        try:
            return _deserialized(data, ctx)
        except Exception as error:  # errors of the bindings have types of their own
            try:
                return ir.Module.parse(data, ctx)
            except Exception:
                reason = "cannot be read: it is damaged or cut" if version else "is no StableHLO"
                raise ImportFailed([Diagnostic(f"the artifact{where} {reason} ({_first_line(error)})")]) from None


def _deserialized(data: bytes, ctx) -> ir.Module:
    """Older bindings take no context, and give text."""
    try:
        module = mlir.deserialize_portable_artifact(data, ctx)
    except TypeError:
        module = mlir.deserialize_portable_artifact(data)
    return module if isinstance(module, ir.Module) else ir.Module.parse(module, ctx)


def _of_text(text: str, name) -> ir.Module:
    try:
        return ir.Module.parse(text, context())
    except Exception as error:
        raise ImportFailed([Diagnostic(f"the text is no StableHLO: {_first_line(error)}", file=name)]) from None


def _first_line(error) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else type(error).__name__)
