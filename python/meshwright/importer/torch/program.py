# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Imports PyTorch modules: torch.export, then the `nn` dialect's text.

    imported = import_module(module, args, kwargs)
    imported.mlir         # the program
    imported.parameters   # its weights, by the keys in the program
    imported.flatten(args, kwargs)   # the program's inputs, in order
"""
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ...buckets import BucketSizes
from ...progress import part
from ...tensors import Joined
from ..errors import Diagnostic, ImportFailed
from ..graph.emit import emit, used_sizes
from ..graph.forms import Dense
from ..graph.mark_sizes import mark_sizes
from ..graph.nodes import Graph
from ..graph.rewrites import rewrite
from . import (  # noqa: F401 (they register handlers and derivatives)
    derivatives_elementwise,
    derivatives_losses,
    ops_elementwise,
    ops_layers,
    ops_loss,
    ops_numbers,
    ops_reduce,
    ops_resize,
    ops_scatter,
    ops_shape,
    ops_sort,
    ops_trigonometric,
    ops_windows,
    random_numbers,
    surroundings,
)
from .buffers import ReadBuffers, assigned
from .checkpoint import Checkpoint
from .convert import Convert, covers, has_handler
from .dynamic import Bucket
from .export import differs_in_evaluation, export, shared_names
from .values import TORCH_DTYPES, largest, tensor_of

__all__ = ["import_module", "ImportedProgram", "ImportFailed", "Diagnostic"]


@dataclass
class ImportedProgram:
    """The result of `import_module`."""
    #: The program, as text in the `nn` dialect: its states, and one function, @main.
    mlir: str
    #: The tensors of the program's parameters, by key, in the order of its arguments. They are the
    #: module's own (not copies); constants that the import computed have keys "constant.0", ...
    #: The states' initial values are among them. Parameters that the module only stacks are one.
    parameters: dict[str, torch.Tensor | Joined]
    #: The names of the program's inputs, in the order of its arguments.
    inputs: list[str]
    #: Their shapes and element types.
    input_shapes: dict[str, tuple[int, ...]]
    input_dtypes: dict[str, torch.dtype]
    #: The names of its outputs: the module's tensors, flattened in its order, None left out.
    outputs: list[str]
    #: Buffers that the import may have taken for constants.
    values: set[str]
    #: The buffers whose values the program depends on.
    read: ReadBuffers
    #: Imports the module again; the values of the buffers that are named may change.
    again: Callable[[set[str]], "ImportedProgram"]
    #: Imports the module again, with parameters that are only stacked as those of the module.
    apart: Callable[[], "ImportedProgram"]
    #: Imports the module again; constants that another import computed, by their content, have its names.
    beside: Callable[[dict], "ImportedProgram"]
    #: Imports the module with the first of several chunks of rows of the inputs that are named. The
    #: other inputs are whole.
    chunk: Callable[[int, list[str]], "ImportedProgram"]
    #: The names of the inputs whose dimension 0 is the batch, as the caller says; None if the rule
    #: of data parallelism decides.
    batch_inputs: list[str] | None
    #: Imports the module in evaluation mode, with the buffers that are named as state. None if it
    #: is in that mode, or if its train mode differs by dropout alone.
    evaluation: Callable[[set[str]], "ImportedProgram"] | None
    #: The keys of the module's state_dict, and the names in the program, the first of each tensor.
    state_names: dict[str, str]
    #: The tensors of the state_dict, by their names in the program.
    state_values: dict[str, torch.Tensor]
    #: All keys of each tensor of the module, by the name in the program.
    tied: dict[str, list[str]]
    #: Notes on what the import did not recognise, with their lines.
    remarks: list[Diagnostic]
    #: The graph that was printed.
    graph: Graph
    #: The module, which is not copied, and how it was imported: with the ends of gradients, or wholly
    #: in evaluation mode.
    module: torch.nn.Module
    #: The checkpoint that has the values of the module's parameters, if they are not its own.
    weights: Checkpoint | None
    training: bool
    in_evaluation: bool
    #: The settings of PyTorch that the import took from its caller.
    around: surroundings.Surroundings
    #: How calls of other sizes run the program; None if all sizes are those of the import.
    sizes: BucketSizes | None
    _in_spec: Any
    _leaves: list[str | None]
    _fixed: list[Any]

    def flatten(self, args=(), kwargs=None) -> list[Any]:
        """The program's inputs among the arguments of the module, in the order of `inputs`.

        Arguments must have the structure of those of the import, and every number, flag and None
        its value: those are part of the program. Raises ImportFailed. Leaves may be any array
        type; shapes and element types are not looked at.
        """
        leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs or {})))
        if spec != self._in_spec:
            leaves = self._match_keywords(args, kwargs or {}, spec)
        values, problems = {}, []
        for name, fixed, leaf in zip(self._leaves, self._fixed, leaves):
            if name is not None:
                values[name] = leaf
            elif type(leaf) is not type(fixed) or not (leaf == fixed or (leaf != leaf and fixed != fixed)):
                problems.append(Diagnostic(f"an argument is {leaf!r}, but was {fixed!r} when the "
                                           "module was imported; import it again with this value"))
        if problems:
            raise ImportFailed(problems)
        return [values[name] for name in self.inputs]

    @property
    def joined(self) -> dict[str, Joined]:
        """The parameters that join several of the module."""
        return {key: t for key, t in self.parameters.items() if isinstance(t, Joined) and t.keys}

    def follow_module(self) -> dict[str, torch.Tensor]:
        """The tensors of parameters, buffers and states that were assigned anew since the import, by
        their keys. Raises ImportFailed where one does not fit the program."""
        if self.weights is not None:
            return {}
        known = {**self.read.tensors, **self.state_values, **self.parameters}
        new = assigned(self.module, known, self.tied, self.training)
        self.read.follow(new)
        for joined in self.joined.values():
            joined.follow(new)
        return new

    def filled(self) -> torch.nn.Module:
        """The module with its values."""
        return self.module if self.weights is None else self.weights.filled()

    def unflatten(self, values) -> tuple[tuple, dict]:
        """The arguments of the module, of the program's inputs by name."""
        leaves = [fixed if name is None else values[name]
                  for name, fixed in zip(self._leaves, self._fixed)]
        return pytree.tree_unflatten(leaves, self._in_spec)

    def _match_keywords(self, args, kwargs, spec):
        """Keywords in another order are the same call; keywords that are None may be left out."""
        if self._in_spec.num_children == 2:
            expected = self._in_spec.unflatten([None] * self._in_spec.num_leaves)[1]
            given = dict(kwargs)
            for key in expected:
                given.setdefault(key, None)
            given = {k: v for k, v in given.items() if k in expected or v is not None}
            if set(given) == set(expected):
                ordered = {key: given[key] for key in expected}
                leaves, spec = pytree.tree_flatten((tuple(args), ordered))
                if spec == self._in_spec:
                    return leaves
        raise ImportFailed([Diagnostic(
            f"the arguments are {_describe(spec)}, but were {_describe(self._in_spec)} when the "
            "module was imported")])


def _describe(spec) -> str:
    args, kwargs = spec.unflatten(["*"] * spec.num_leaves)
    return f"args {args} and kwargs {kwargs}"


def import_module(module: torch.nn.Module, args, kwargs=None, variable=(), training=False,
                  evaluation=False, constants=None, batch_inputs=None, around=None,
                  joins=None, weights=None, dynamic=None, capacities=None, inspect=None) -> ImportedProgram:
    """Imports `module` as it computes module(*args, **kwargs) in evaluation mode, or with
    `training` as it is, with the ends of gradients.

    In evaluation mode only batch norms keep their mode, without `evaluation`. `constants` are the
    keys of constants of an earlier import, which stay. Buffers that the module writes to are state
    of the program.
    Shapes and element types are those of the arguments. The module is left as it was; its weights
    may be on the meta device. Buffers that are not trained, such as masks and positions, count as
    constants, except those named in `variable`. `batch_inputs` are the names of the inputs whose
    dimension 0 is the batch; without them the rule of data parallelism decides. `around` are the
    settings of PyTorch of an earlier import. `joins`: whether parameters that are only stacked become
    one; without it they do unless gradients will be asked for. `weights` is the checkpoint of which `module`
    is the copy. With `dynamic` the sizes that it names change from call to call, and the program is
    that of the bucket `capacities`. `inspect` gets the graph before it is rewritten. Raises ImportFailed,
    which lists everything that is not covered.
    """
    around = around or surroundings.read(module, args, kwargs)
    with surroundings.plain(around.dtype):
        return _import(module, args, kwargs, variable, training, evaluation, constants, batch_inputs,
                       around, not training if joins is None else joins, weights, dynamic, capacities, inspect)


def convert_module(module, args, kwargs, around) -> Graph:
    """The graph of `import_module` in evaluation mode, before it is rewritten."""
    with surroundings.plain(around.dtype):
        return Convert(_exported(module, args, kwargs, frozenset(), False, False, around, None)).run()


def _import(module, args, kwargs, variable, training, evaluation, constants, batch_inputs, around,
            joins, weights, dynamic, capacities, inspect):
    def repeat(*arguments, **options):
        if dynamic is not None:
            dynamic.forget(exported)  # the module may be another one now
        return import_module(module, *arguments, around=around, weights=weights, dynamic=dynamic,
                             capacities=capacities, **options)

    with part("tracing"):
        exported = _exported(module, args, kwargs, frozenset(variable), training, evaluation, around, dynamic)
    bucket = Bucket(exported.symbols, capacities) if dynamic else None
    with part("converting"):
        graph = Convert(exported, bucket).run()
        if inspect is not None:
            inspect(graph)
    graph.sizes = list(capacities or ())
    layouts = [output.shape for output in graph.outputs]
    _state_batch(graph.inputs, batch_inputs)
    graph.constants, graph.joins = dict(constants or {}), joins
    if weights is not None:
        weights.note(graph, training)
    with part("rewriting"):
        rewrite(graph)
    live = {id(n) for n in graph.nodes()}
    tied = {names[0]: names for names in shared_names(module).values()}
    first = {key: name for name, keys in tied.items() for key in keys}
    kept = module.state_dict(keep_vars=True)
    graph.parameters = [p for p in graph.parameters if id(p) in live]
    written = {write.state for write in graph.writes}
    graph.states = [s for s in graph.states if s in written or id(s) in live]
    for parameter in graph.parameters:
        if "parts" in parameter.attrs and "tensor" not in parameter.attrs:
            parts = [part.attrs for part in parameter.attrs["parts"]]
            parameter.attrs["tensor"] = Joined([p["tensor"] for p in parts], keys=[p["key"] for p in parts])
        if "largest" not in parameter.attrs:
            parameter.attrs["largest"] = largest(parameter.attrs["tensor"])
    if dynamic is not None:
        mark_sizes(graph, training)
    with part("printing"):
        mlir = emit(graph)
    return ImportedProgram(
        mlir=mlir,
        parameters={p.attrs["key"]: _tensor(p.attrs["tensor"])
                    for p in graph.parameters + graph.states if "tensor" in p.attrs},
        inputs=[i.attrs["name"] for i in graph.inputs],
        input_shapes={i.attrs["name"]: i.shape for i in graph.inputs},
        input_dtypes={i.attrs["name"]: TORCH_DTYPES[i.dtype] for i in graph.inputs},
        outputs=list(graph.output_names),
        values={exported.parameters[name][0] for name in exported.buffers} - set(exported.writes),
        evaluation=(lambda names: repeat(
            args, kwargs, {*variable, *names}, evaluation=True, constants=graph.constants,
            batch_inputs=batch_inputs, joins=False))
        if training and differs_in_evaluation(module) else None,
        read=ReadBuffers(graph.read, mlir, lambda: repeat(
            args, kwargs, variable, training, evaluation, constants, batch_inputs, joins=joins)),
        chunk=lambda count, names: repeat(
            *_chunk(args, kwargs, exported.leaves, count, names), variable, training,
            batch_inputs=names, joins=joins),
        batch_inputs=None if batch_inputs is None else list(batch_inputs),
        state_names={key: first.get(key, key) for key in kept},
        state_values={first.get(key, key): tensor for key, tensor in kept.items()} |
        ({key: source.values for key, source in weights.sources.items()} if training and weights else {}),
        tied=tied,
        again=lambda names: repeat(
            args, kwargs, {*variable, *names}, training, evaluation, constants, batch_inputs,
            joins=joins),
        beside=lambda others: repeat(
            args, kwargs, variable, training, evaluation, others, batch_inputs, joins=joins),
        apart=lambda: repeat(
            args, kwargs, variable, training, evaluation, constants, batch_inputs, joins=False),
        remarks=[Diagnostic(r.message, "remark", *_place(r.loc)) for r in graph.remarks],
        graph=graph, module=module, weights=weights, training=training, in_evaluation=evaluation,
        around=around,
        sizes=_sizes(dynamic, capacities, exported, bucket, graph, layouts) if dynamic else None,
        _in_spec=exported.in_spec,
        _leaves=exported.leaves, _fixed=exported.fixed)


def _exported(module, args, kwargs, variable, training, evaluation, around, dynamic):
    """The exported program; one for all buckets."""
    run = partial(export, module, args, kwargs, covers, has_handler, variable, training, evaluation,
                  around.device, dynamic)
    if dynamic is None:
        return run()
    key = (variable, training, evaluation)
    if key not in dynamic.exports:
        dynamic.exports[key] = run()
    return dynamic.exports[key]


def _sizes(dynamic, capacities, exported, bucket, graph, layouts) -> BucketSizes:
    used = used_sizes(graph, graph.nodes())
    return BucketSizes(
        capacities=dict(capacities),
        inputs={name: dict(dims) for name, dims in zip(exported.leaves, dynamic.leaves) if dims},
        arguments={name: expr for name, (expr, _) in used.items()}, outputs=layouts, checks=bucket.checks(exported))


def _tensor(value) -> torch.Tensor | Joined:
    """A parameter of the module, or a constant that the import computed."""
    return tensor_of(value) if isinstance(value, Dense) else value


def _place(loc) -> tuple[str | None, int | None]:
    return (loc.file, loc.line) if loc is not None and loc.file else (None, None)


def _state_batch(inputs, names):
    """Writes down which inputs have the batch, if the caller says so."""
    if names is None:
        return
    by_name = {node.attrs["name"]: node for node in inputs}
    problems = []
    for name in names:
        if name not in by_name:
            problems.append(f"batch_inputs names '{name}': expected one of {', '.join(by_name)}")
        elif not by_name[name].shape:
            problems.append(f"batch_inputs names '{name}', which has no dimensions: expected an "
                            "input whose dimension 0 is the batch")
    if problems:
        raise ImportFailed([Diagnostic(problem) for problem in problems])
    for name, node in by_name.items():
        node.attrs["batch"] = name in names


def _chunk(args, kwargs, leaves, count, names):
    """The arguments with the first of `count` chunks of the rows of the inputs that are named."""
    values, spec = pytree.tree_flatten((tuple(args), dict(kwargs or {})))
    problems = []
    for i, (name, value) in enumerate(zip(leaves, values, strict=True)):
        if name not in names:
            continue
        if value.shape[0] % count:
            problems.append(Diagnostic(
                f"microbatches: expected a number that divides the {value.shape[0]} rows of input "
                f"'{name}', got {count}"))
        values[i] = value[: value.shape[0] // count]
    if problems:
        raise ImportFailed(problems[:1])
    return pytree.tree_unflatten(values, spec)
