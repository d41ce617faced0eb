# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Options as keywords, in the spelling of `sharding-opt --parallelize`."""

import json
from collections.abc import Mapping

from .arguments import fail
from .errors import Error


def spell(options: Mapping) -> str:
    """One string of key=value pairs; which keys and values there are, the compiler knows."""
    return " ".join(
        f"{key.replace('_', '-')}={_value(key, value)}"
        for key, value in options.items()
        if value is not None
    )


def _axes(mesh: Mapping) -> str:
    return ",".join(f"{axis}={size}" for axis, size in mesh.items())


def _stage_axes(stage, axes) -> str:
    if not isinstance(axes, Mapping):
        raise Error(
            f"mesh: stage {stage!r}: expected axes, as in "
            '{"target": {"dp": 2, "tp": 3}, "draft": {"dp": 3, "tp": 2}}'
            f", got {axes!r}"
        )
    return _axes(axes)


def _value(key, value):
    if key == "mesh" and not isinstance(value, Mapping | str):
        fail(key, value, 'axes and their sizes, as in {"dp": 2, "tp": 4}')
    if key == "mesh" and isinstance(value, Mapping):
        if any(isinstance(axes, Mapping) for axes in value.values()):
            return ";".join(f"{stage}:{_stage_axes(stage, axes)}" for stage, axes in value.items())
        return _axes(value)
    if key == "shardings" and isinstance(value, Mapping):
        rules = []
        for pattern, sharding in value.items():
            if not isinstance(pattern, str) or not isinstance(sharding, str):
                raise Error(
                    f"shardings: rule {pattern!r}: {sharding!r}: expected a pattern and the "
                    "sharding's text, as in {\"*.q_proj.weight\": '[{\"tp\"}, {}]'}"
                )
            rules.append(f"{json.dumps(pattern, ensure_ascii=False)}: {json.dumps(sharding)}")
        return "{" + ", ".join(rules) + "}"
    if key in ("device", "context_parallel") and isinstance(value, Mapping):
        given = (f"{name}={item}" for name, item in value.items() if item is not None)
        return "{" + " ".join(given) + "}"
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Mapping):
        try:
            return json.dumps(value)
        except (TypeError, ValueError):
            fail(key, value, "text, numbers, and lists and tables of these")
    text = str(value)
    return json.dumps(text) if any(c.isspace() for c in text) and text[:1] not in "{[" else text
