# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The names of ATen operations."""
import types

#: PyTorch's parts of operations that are operations themselves; with other names, or the same.
_PRIMS = {"convert_element_type": "_to_copy"} | {n: n for n in (
    "abs", "acos", "add", "amax", "amin", "asin", "atan", "atan2", "bitwise_and", "bitwise_not",
    "bitwise_or", "bitwise_xor", "ceil", "cos", "cosh", "eq", "erf", "erfc", "exp", "exp2",
    "expm1", "floor", "fmax", "fmin", "fmod", "ge", "gt", "le", "log", "log10", "log1p", "log2",
    "lt", "maximum", "minimum", "mul", "ne", "neg", "pow", "prod", "reciprocal", "remainder",
    "round", "rsqrt", "sign", "signbit", "sin", "sinh", "sqrt", "sub", "sum", "tan", "tanh",
    "trunc", "where")}


def operation_name(target) -> str:
    """add.Tensor for torch.ops.aten.add.Tensor; that of a function of the import's own."""
    if isinstance(target, types.FunctionType):
        return target.__name__
    name = str(target)
    if name.startswith("prims."):
        base = name.split(".")[1]
        return f"{_PRIMS.get(base, base)}.default" if base in _PRIMS else name
    return name.removeprefix("aten.")
