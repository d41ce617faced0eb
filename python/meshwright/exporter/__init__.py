# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Programs as StableHLO: each op of `nn` and `dist` as the dense ops that compute it."""

from ..errors import Error


def export(text: str, constants=None) -> str:
    """StableHLO of the only function of a module, given in the generic form with locations.

    constants: arrays by the names of arguments that have them always; they are written into the text."""
    try:
        import jax.extend.mlir  # noqa: F401
    except ImportError as error:
        raise Error(f"to_stablehlo needs JAX: pip install meshwright[jax] ({error})") from None
    from .program import export as write

    return write(text, dict(constants or {}))
