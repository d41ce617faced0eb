# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""StableHLO modules by JAX's bindings of MLIR (jax.extend.mlir): from text, bytes, files and exports."""
import os

from jax.extend import mlir
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import chlo, func, sdy, stablehlo  # noqa: F401 (func registers itself)

from ..errors import Diagnostic, ImportFailed


def context() -> ir.Context:
    """A context with the dialects of StableHLO modules."""
    result = ir.Context()
    for dialect in (stablehlo, chlo, sdy):
        dialect.register_dialect(result)
    return result


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
    ctx = context()
    try:
        return mlir.deserialize_portable_artifact(ctx, data)
    except Exception as artifact:
        try:
            return ir.Module.parse(data, ctx)
        except Exception as bytecode:
            said = f"{artifact}; {bytecode}"
            newer = "newer" in said or "unsupported version" in said or "greater than" in said
            reason = "is of a newer version than this jaxlib reads: export it for an older one" if newer else                 "cannot be read"
            raise ImportFailed([Diagnostic(f"the artifact {'in ' + repr(name) + ' ' if name else ''}{reason}: "
                                           f"{_first_line(artifact)}", file=name)]) from None


def _of_text(text: str, name) -> ir.Module:
    try:
        return ir.Module.parse(text, context())
    except Exception as error:
        raise ImportFailed([Diagnostic(f"the text is no StableHLO: {_first_line(error)}", file=name)]) from None


def _first_line(error) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else type(error).__name__)
