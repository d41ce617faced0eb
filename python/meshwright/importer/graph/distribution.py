# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The `dist` dialect in the importer's graph: layouts of arguments and results, constraints and collectives.

Nodes of `dist` have its name in front: `dist.constrain` of a global program; `dist.all_reduce`,
`dist.reduce_scatter`, `dist.all_gather`, `dist.all_to_all`, `dist.permute`, `dist.slice`,
`dist.partial`, `dist.pad`, `dist.redistribute` and `dist.axis_index` of an SPMD program, on tensors of a rank. `axes` are Axis, `sharding`
is a Sharding (layouts.py).

An argument with an attribute `sharding` has that layout. In an SPMD graph each one has, and its shape is that
of a rank's part.
"""
from collections.abc import Iterator

from .layouts import Sharding, replicated
from .nodes import Graph, Node


def boundary(sharding: Sharding | None, node: Node, is_spmd: bool) -> Iterator[tuple[str, str]]:
    """The attributes of an argument or a result of @main. Constants, which have no sharding, are the same on
    all ranks."""
    if sharding is None and is_spmd:
        sharding = replicated(node.shape)
    if sharding is None:
        return
    if is_spmd:
        yield "dist.global", f"tensor<{''.join(f'{n}x' for n in sharding.shape)}{node.dtype}>"
    yield "dist.sharding", f"#dist.sharding{sharding.text()}"


def mesh_text(graph: Graph) -> str:
    return f"  dist.mesh @mesh = {graph.mesh}\n" if graph.mesh else ""


def operation(node: Node, operands: list[str], types: list[str], result: str) -> str:
    """The text of a node of `dist`, behind the name of its result."""
    a, names = node.attrs, ", ".join(operands)
    function = f"({', '.join(types)}) -> {result}"
    if node.op == "dist.constrain":
        return f"dist.constrain {names} {a['sharding'].text()} : {result}"
    if node.op == "dist.redistribute":
        source, target = (f"#dist.sharding{a[side].text(states_sizes=True)}" for side in ("source", "target"))
        return f"dist.redistribute {names} from [{source}] to [{target}] : {function}"
    if node.op == "dist.pad":
        return f"dist.pad {names} dims [{', '.join(map(str, a['dims']))}] : {function}"
    axes = "[" + ", ".join(map(str, a["axes"])) + "]"
    if node.op == "dist.axis_index":
        return f"dist.axis_index {axes} chunk {a['chunk']} : {result}"
    rest = {
        "dist.all_reduce": lambda: "",
        "dist.partial": lambda: "",
        "dist.reduce_scatter": lambda: f" dims [{a['dim']}]",
        "dist.all_gather": lambda: f" dims [{a['dim']}]",
        "dist.slice": lambda: f" dims [{a['dim']}]",
        "dist.all_to_all": lambda: f" from [{a['source']}] to [{a['target']}]",
        "dist.permute": lambda: " pairs [" + ", ".join(f"[{s}, {t}]" for s, t in a["pairs"]) +
        "] {dist.relabels}",
    }[node.op]()
    kind = f" {a['reduction']}" if "reduction" in a else ""
    return f"{node.op}{kind} {names} axes {axes}{rest} : {function}"
