# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Imports StableHLO modules: the walk, then the `nn` dialect's text.

    imported = import_module(module, arguments, results)
    imported.mlir         # the program
    imported.parameters   # its weights, by the keys in the program
"""
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from ...inputs import by_name
from ...progress import part
from ...tensors import NUMPY_TYPES, Fixed, Shape
from ..errors import Diagnostic, ImportFailed, Uncovered
from ..graph.dialect import CODES, FLOATS
from ..graph.emit import emit
from ..graph.forms import Dense
from ..graph.nodes import Builder, Graph, Node, Write, values_of_ranks
from ..graph.rewrites import rewrite
from . import (  # noqa: F401 (they register handlers)
    collectives,
    ops_control,
    ops_elementwise,
    ops_index,
    ops_product,
    ops_reduce,
    ops_shape,
)
from .collectives import settle_parts
from .lifts import lift
from .locations import Locations
from .manual import distribute
from .shardings import annotate
from .walk import Walk, argument, arguments_of


class Argument(NamedTuple):
    """An argument of @main: its name, and for a parameter or a state its value, an array or a Shape."""
    name: str
    value: Any = None
    #: "input", "parameter" or "state".
    kind: str = "input"
    is_trained: bool = False


class _Port(NamedTuple):
    name: str
    has_default: bool = False


@dataclass
class Read:
    """The buffers that a program depends on: a function of StableHLO has none that change."""
    tensors: dict = field(default_factory=dict)

    @staticmethod
    def constants() -> dict:
        return {}


@dataclass
class ImportedProgram:
    """The result of an import, as models ask for it (importer/torch/program.py has the same for PyTorch)."""
    #: The program, as text in the `nn` dialect: its states, and one function, @main.
    mlir: str
    #: The arrays of the program's parameters and the initial values of its states, by key.
    parameters: dict[str, Any]
    #: The names of the program's inputs and outputs, in order.
    inputs: list[str]
    outputs: list[str]
    #: Notes on what the import did not recognise, with their lines.
    remarks: list[Diagnostic]
    #: The graph that was printed.
    graph: Graph
    #: The arguments of a call as the program's inputs.
    flattens: Callable[[tuple, dict], list[Any]] | None = None
    #: Imports the function for the first of several chunks of rows of the inputs that are named.
    chunk: Callable[[int, list[str]], "ImportedProgram"] | None = None
    #: Imports the function again, with all parameters whole.
    whole: Callable[[], "ImportedProgram"] | None = None
    training: bool = False
    read: Read = field(default_factory=Read)
    values: set = field(default_factory=set)
    state_values: dict = field(default_factory=dict)
    evaluation: None = None
    batch_inputs: None = None
    sizes: None = None

    def flatten(self, args=(), kwargs=None) -> list[Any]:
        """The program's inputs among the arguments of a call, in the order of `inputs`."""
        if self.flattens is None:
            return by_name([_Port(name) for name in self.inputs], args, kwargs or {})
        return self.flattens(tuple(args), dict(kwargs or {}))

    @property
    def state_names(self) -> dict[str, str]:
        return {name: name for name in self.parameters}

    def follow_module(self) -> dict:
        """Arrays that were assigned anew: a function has none."""
        return {}

    @property
    def joined(self) -> bool:
        """Whether some parameters are parts of those of the function."""
        return any("offsets" in p.attrs for p in self.graph.parameters)

    def apart(self) -> "ImportedProgram":
        """The program with the parameters of the function as they are, which then may be trained."""
        return self.whole() if self.joined else self

    def again(self, names) -> "ImportedProgram":
        return self

    def beside(self, others: dict) -> "ImportedProgram":
        """The program beside another import, whose constants have these names by their content."""
        names, constants = {}, dict(others)
        for content, key in self.graph.constants.items():
            names[key] = constants.setdefault(content, f"constant.{len(constants)}")
        nodes = [p for p in self.graph.parameters if p.attrs["key"] in names]
        before = [p.attrs["key"] for p in nodes]
        for node in nodes:
            node.attrs["key"] = names[node.attrs["key"]]
        text = emit(self.graph)
        for node, key in zip(nodes, before, strict=True):
            node.attrs["key"] = key
        return replace(self, mlir=text, graph=replace(self.graph, constants=constants),
                       parameters={names.get(key, key): value for key, value in self.parameters.items()})


def import_module(module, arguments: list[Argument], results: list[str], states=None, parts=True) -> ImportedProgram:
    """Imports @main of a module, whose arguments and results are described in order. `states` maps names of
    arguments to names of results: these arguments are state, which a call replaces. With `parts` layers of stacked
    parameters are parameters of their own, parts of the stored tensors."""
    walk = Walk(module, Locations(), parts)
    nodes = _arguments(walk, arguments)
    graph = walk.graph
    try:
        annotate(walk, nodes)
        with part("converting"):
            outputs = dict(zip(results, distribute(walk, walk.run(nodes)), strict=True))
    except Uncovered as error:
        raise ImportFailed([Diagnostic(str(error), "error", *_place(walk.build.loc))]) from None
    shardings = dict(zip(results, graph.output_shardings))
    for state in graph.states:
        graph.writes.append(_write(state, outputs, states))
    graph.outputs, graph.output_names = list(outputs.values()), list(outputs)
    graph.output_shardings = [shardings[name] for name in outputs] if shardings else []
    settle_layers(walk)
    with values_of_ranks() if graph.is_spmd else contextlib.nullcontext(), part("rewriting"):
        lift(graph)
        rewrite(graph)
    if graph.is_spmd:
        settle_parts(graph)
    live = {id(n) for n in graph.nodes()}
    graph.parameters = [p for p in graph.parameters if id(p) in live]
    for parameter in graph.parameters:
        if "largest" not in parameter.attrs:
            parameter.attrs["largest"] = largest(parameter.attrs["tensor"], parameter.dtype)
    with part("printing"):
        mlir = emit(graph)
    return ImportedProgram(
        mlir=mlir,
        parameters={p.attrs["key"]: _array(p.attrs["tensor"]) for p in graph.parameters + graph.states
                    if p.attrs.get("tensor") is not None},
        inputs=[i.attrs["name"] for i in graph.inputs],
        outputs=list(graph.output_names),
        remarks=[Diagnostic(r.message, "remark", *_place(r.loc)) for r in graph.remarks],
        graph=graph)


def _arguments(walk: Walk, arguments: list[Argument]) -> list[Node]:
    values = arguments_of(walk)
    if len(values) != len(arguments):
        raise ImportFailed([Diagnostic(f"@main has {len(values)} arguments: expected {len(arguments)}")])
    nodes, problems = [], []
    for value, stated in zip(values, arguments):
        try:
            if stated.kind == "input":
                node = argument(walk, "input", value, name=stated.name)
                walk.graph.inputs.append(node)
            else:
                node = argument(walk, stated.kind, value, key=stated.name, aliases=[], tensor=stated.value)
                if stated.kind == "parameter":
                    node.attrs["trained"] = stated.is_trained
                problems += _misfit(stated, node)
                (walk.graph.parameters if stated.kind == "parameter" else walk.graph.states).append(node)
            nodes.append(node)
        except Uncovered as error:
            problems.append(Diagnostic(f"{stated.kind} '{stated.name}': {error}"))
    if problems:
        raise ImportFailed(problems)
    return nodes


def _write(state: Node, outputs: dict[str, Node], states: dict[str, str]) -> Write:
    """The value that a call leaves in a state: a result, which is no output then."""
    name = state.attrs["key"]
    value = outputs.pop(states[name])
    if (value.shape, value.dtype) != (state.shape, state.dtype):
        raise ImportFailed([Diagnostic(
            f"state: result '{states[name]}' is {value.dtype}{list(value.shape)}, expected {state.dtype}{list(state.shape)}, "
            f"as argument '{name}'", "error", *_place(value.loc))])
    return Write(state, value, value.loc)


def _misfit(stated: Argument, node: Node) -> list[Diagnostic]:
    """Whether a parameter's value is not the argument's."""
    value = stated.value
    if value is None:
        return []
    kind = str(value.dtype)
    own = NUMPY_TYPES[node.dtype].name
    if tuple(value.shape) == node.shape and kind in (own, node.dtype):
        return []
    return [Diagnostic(f"{stated.kind} '{stated.name}': expected {own}{list(node.shape)}, got {kind}{list(value.shape)}")]


def settle_layers(walk: Walk):
    """Rows of parameters are parts of the stored tensors, if these are read row by row alone, and all of them."""
    graph, build = walk.graph, Builder()
    live = {id(n) for n in graph.nodes()}
    slices: dict[int, Node] = {}
    for whole, rows in walk.layers.items():
        used = {i: row for i, row in rows.items() if id(row) in live}
        if id(whole) not in live and len(used) == whole.shape[0]:
            at = graph.parameters.index(whole)
            graph.parameters[at:at + 1] = [used[i] for i in range(whole.shape[0])]
            continue
        for i, row in used.items():
            slices[id(row)] = build.at(row).slice_dim(whole, 0, i, i + 1)
    if slices:
        graph.rewrite(lambda node: slices.get(id(node)))


def largest(value, dtype: str) -> float:
    """The largest absolute value of floats; not finite where one of them is not. 0 if none is known."""
    if value is None or isinstance(value, Shape) or dtype not in FLOATS or dtype in CODES:
        return 0.0
    values = value.values if isinstance(value, Dense) else np.asarray(value)
    if not values.size:
        return 0.0
    return max(abs(float(values.min())), abs(float(values.max())))


def _array(value):
    return value.values.view(Fixed) if isinstance(value, Dense) else value


def _place(loc):
    return (loc.file, loc.line) if loc is not None and loc.file else (None, None)

