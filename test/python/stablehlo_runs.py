# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs StableHLO text by JAX on several processors of the host."""
import inspect
import re

import jax
import numpy as np
import pytest
from jax.extend import mlir
from jax.extend.mlir import ir
from jax.sharding import Mesh, NamedSharding, PartitionSpec

_TYPES = {"f32": np.float32, "bf16": jax.numpy.bfloat16, "f16": np.float16, "f64": np.float64, "i64": np.int64,
          "i32": np.int32, "i1": np.bool_}


def needs_devices(count: int):
    """Skips a test where JAX has fewer devices."""
    if len(jax.devices()) < count:
        pytest.skip(f"JAX has {len(jax.devices())} devices, the test needs {count} (XLA_FLAGS)")


def argument_names(text: str) -> list[str]:
    """The names of the arguments of @main, in order."""
    return re.findall(r'loc\("([^"]*)"\)', text[text.index("@main("):].split(") -> (")[0])


def run(text: str, arrays, ranks: int = 1) -> list[np.ndarray]:
    """The results of @main, whole."""
    from jax import export
    from meshwright.importer.stablehlo.bindings import context

    needs_devices(ranks)
    module = ir.Module.parse(text, context())
    main = next(f for f in module.body.operations if f.operation.name == "func.func")
    types = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    inputs, outputs = (tuple(map(_array_of, side)) for side in (types.inputs, types.results))
    fields = dict(
        fun_name="main", in_tree=jax.tree_util.tree_structure((inputs, {})), in_avals=inputs,
        out_tree=jax.tree_util.tree_structure(outputs), out_avals=outputs, _has_named_shardings=False,
        _in_named_shardings=(None,) * len(inputs), _out_named_shardings=(None,) * len(outputs),
        in_shardings_hlo=(None,) * len(inputs), out_shardings_hlo=(None,) * len(outputs), nr_devices=ranks,
        platforms=("cpu",), ordered_effects=(), unordered_effects=(), disabled_safety_checks=(),
        mlir_module_serialized=_serialized(module), module_kept_var_idx=tuple(range(len(inputs))),
        calling_convention_version=export.maximum_supported_calling_convention_version,
        uses_global_constants=False, _get_vjp=None)
    # Versions of JAX differ in those of shardings.
    known = inspect.signature(export.Exported).parameters
    exported = export.Exported(**{name: value for name, value in fields.items() if name in known})
    everywhere = NamedSharding(Mesh(np.array(jax.devices()[:ranks]), ("rank",)), PartitionSpec())
    with jax.enable_x64(True):
        given = [jax.device_put(np.asarray(a), everywhere) for a in arrays]
        return [np.asarray(y) for y in jax.jit(exported.call, out_shardings=everywhere)(*given)]


def _array_of(type):
    tensor = ir.RankedTensorType(type)
    with jax.enable_x64(True):
        return jax.core.ShapedArray(tuple(tensor.shape), np.dtype(_TYPES[str(tensor.element_type)]))


def _serialized(module) -> bytes:
    from jaxlib.mlir.dialects import stablehlo

    try:
        return mlir.serialize_portable_artifact(module, stablehlo.get_current_version(), True)
    except TypeError:  # JAX 0.9 takes text
        return mlir.serialize_portable_artifact(str(module), stablehlo.get_current_version(), True)
