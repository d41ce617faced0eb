# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""torch.export: runs it on a module that is left exactly as it was, and reads its signature."""
import contextlib
import inspect
import itertools
import logging
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import PythonKeyTracer
from torch.utils import _pytree as pytree

from ..errors import Diagnostic, ImportFailed
from .decompose import kept_whole, take_apart
from .dynamic import Check, Dynamic
from .functionalize import functionalize, writes_to_arguments, written_placeholders
from .gradient_flow import (
    AskedInCheckpoints,
    end_gradients,
    refusing_transforms,
    tracing_gradients,
)
from .locations import LINE, Locations, calling_line, is_model_file
from .own_derivatives import refusing_other_derivatives
from .patches import patched
from .regions import inline_regions
from .specialise import has_symbols, has_varying_shape, specialise
from .surroundings import plain
from .trace_state import difference, refusing_seeds, traced
from .writes import remove_writes

#: Where a config of transformers says how its experts are computed.
_EXPERTS = "_experts_implementation_internal"


@contextlib.contextmanager
def settings(module: torch.nn.Module, training: bool, evaluation: bool):
    """No caches, no fused encoder fast path, no loops over experts whose length depends on values,
    and evaluation mode unless `training` is set. Everything is put back.

    Without `evaluation` batch norms keep their mode: one in train mode updates its running
    statistics.
    """
    trained = [m for m in module.modules() if m.training and not training and
               (evaluation or not isinstance(m, torch.nn.modules.batchnorm._BatchNorm))]
    configs, loops, seen = [], [], set()

    def collect(config):
        if config is None or id(config) in seen or not hasattr(config, "__dict__"):
            return
        seen.add(id(config))
        if isinstance(config.__dict__.get("use_cache"), bool):
            configs.append((config, config.__dict__["use_cache"]))
        if config.__dict__.get(_EXPERTS) == "eager":
            loops.append(config)
        for value in list(config.__dict__.values()):
            if type(value).__name__.endswith("Config"):
                collect(value)

    for m in module.modules():
        for name in ("config", "generation_config"):
            collect(m.__dict__.get(name))
    fastpath = torch.backends.mha.get_fastpath_enabled()
    # Compares a mask with the causal one, by value, to choose a kernel.
    encoder = torch.nn.modules.transformer
    detect = encoder._detect_is_causal_mask
    logging_disabled = logging.root.manager.disable
    try:
        for m in trained:
            m.training = False
        for config, _ in configs:
            config.__dict__["use_cache"] = False
        for config in loops:
            config.__dict__[_EXPERTS] = "grouped_mm"
        torch.backends.mha.set_fastpath_enabled(False)
        encoder._detect_is_causal_mask = lambda mask, is_causal=None, size=None: bool(is_causal)
        logging.disable(logging.ERROR)  # what fails in the trace is an exception, too
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging_disabled)
        encoder._detect_is_causal_mask = detect
        torch.backends.mha.set_fastpath_enabled(fastpath)
        for config, value in configs:
            config.__dict__["use_cache"] = value
        for config in loops:
            config.__dict__[_EXPERTS] = "eager"
        for m in trained:
            m.training = True


def _distinct(tree):
    """Gives each input its own memory: export merges inputs that are one object, and gives views of
    each other dynamic shapes."""
    seen = set()

    def own(x):
        if not isinstance(x, torch.Tensor):
            return x
        memory = x.untyped_storage()._cdata if x.layout == torch.strided else id(x)
        if memory in seen:
            return x.detach().clone()
        seen.add(memory)
        return x

    return pytree.tree_map(own, tree)


@dataclass
class Exported:
    program: Any
    #: One entry per leaf of (args, kwargs): the input's name, or None where it is not a tensor.
    leaves: list[str | None]
    #: Values of the leaves that are not tensors (None, numbers, flags): part of the program.
    fixed: list[Any]
    in_spec: Any
    #: Placeholder name -> input name.
    inputs: dict[str, str]
    #: Placeholder name -> key and tensor, for parameters, buffers and constants.
    parameters: dict[str, tuple[str, torch.Tensor]]
    #: Placeholders of buffers whose values the import may look at.
    buffers: set[str]
    #: Placeholders of buffers that are values: they cannot be trained or loaded.
    values: set[str]
    #: Placeholder name -> other keys of the same tensor.
    aliases: dict[str, list[str]]
    #: Values that the module returns, with their names.
    outputs: list[tuple[torch.fx.Node, str]] = field(default_factory=list)
    #: Key of a buffer that the module writes to -> (its value after the call, the last write).
    writes: dict[str, tuple[torch.fx.Node, torch.fx.Node]] = field(default_factory=dict)
    #: Whether gradients will be asked for: the program states where they end.
    training: bool = False
    #: Whether the program may draw random numbers: its calls count steps.
    draws: bool = False
    #: PyTorch's symbols of sizes that change from call to call, with their names, and the conditions on
    #: them under which the program is that of the module.
    symbols: dict[Any, str] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)


def differs_in_evaluation(module: torch.nn.Module) -> bool:
    """Whether evaluation may be more than the module as it is without dropout: a part in train mode
    keeps running statistics, or is of a class outside PyTorch whose code reads `training`."""
    norm = torch.nn.modules.batchnorm._NormBase
    trained = [m for m in module.modules() if m.training]
    return any(m.track_running_stats for m in trained if isinstance(m, norm)) or \
        any(_reads_mode(kind) for kind in {type(m) for m in trained if not isinstance(m, norm)})


def _reads_mode(kind: type) -> bool:
    def reads(code):
        return "training" in code.co_names or any(
            reads(c) for c in code.co_consts if inspect.iscode(c))

    functions = (inspect.unwrap(f) for base in kind.__mro__ if base.__module__.split(".")[0] != "torch"
                 for f in vars(base).values() if inspect.isfunction(f))
    return any(reads(f.__code__) for f in functions)


def export(module: torch.nn.Module, args, kwargs, covers, has_handler, variable,
           training=False, evaluation=False, device="cpu", dynamic: Dynamic | None = None) -> Exported:
    """Exports the module, with `training` as it is, with `evaluation` wholly in evaluation mode.

    With `dynamic` the sizes that it names are symbols. `covers` says of a node whether it can stay as it is, `has_handler` of an operation whether
    it can be imported. `variable` names buffers whose values may change. `device` is where the
    module's code makes tensors without one.
    """
    args, kwargs = _distinct((tuple(args), dict(kwargs or {})))
    _check_inputs(args, kwargs)
    if dynamic is not None:
        args, kwargs = dynamic.args, dynamic.kwargs = _distinct((dynamic.args, dynamic.kwargs))
    with settings(module, training, evaluation):
        try:
            # Regions of torch.no_grad() are only seen where gradients are on.
            with torch.set_grad_enabled(training), plain(device=device):
                program, writes, is_special = _functional(module, args, kwargs, variable, training, dynamic)
                if not (writes or is_special) and not all(covers(node) for node in program.graph.nodes):
                    # Traces it all again.
                    program.graph_module.recompile()
                    with kept_whole():
                        program = program.run_decompositions({})
                take_apart(program.graph, has_handler, training)
                program.graph.eliminate_dead_code()
        except ImportFailed:
            raise
        except Exception as error:  # the model and torch.export raise exceptions of any type
            raise ImportFailed([_export_diagnostic(error)]) from error
    result = _signature(module, program, args, kwargs, variable, dynamic)
    result.training, result.draws = training, training or evaluation
    values = program.graph.output_node().args[0]
    result.writes = dict(zip(writes, zip(values[len(values) - len(writes):], writes.values())))
    _check_writes(result)
    return result


@contextlib.contextmanager
def _training(module, asked):
    with tracing_gradients(module, asked), refusing_other_derivatives(), refusing_seeds():
        yield


@contextlib.contextmanager
def _noting_lines():
    """Notes the line of what may have a shape that depends on values. PyTorch notes that of `forward`
    alone, not that of a function which it calls."""
    create = PythonKeyTracer.create_node

    def noting(self, kind, target, *args, **kwargs):
        node = create(self, kind, target, *args, **kwargs)
        if has_varying_shape(target):
            node.meta["custom"] = {LINE: calling_line(), **node.meta.get("custom", {})}
        return node

    with patched() as patch:
        patch(PythonKeyTracer, "create_node", noting)
        yield


@contextlib.contextmanager
def _data_detached():
    """torch.export traces x.detach(), but not x.data."""
    data = torch.Tensor.data
    traced = lambda x: x.detach() if isinstance(x, FakeTensor) else data.__get__(x)
    with patched() as patch:
        patch(torch.Tensor, "data", property(traced, data.__set__, data.__delete__))
        yield


def _functional(module, args, kwargs, variable, training, dynamic):
    """The exported program without writes, as far as they are covered; see `functionalize`.

    Also the writes to buffers, and whether shapes depended on constants."""
    def trace():
        asked = AskedInCheckpoints()
        program = trace_with(asked)
        if asked.lines:
            asked.is_forward = True
            if difference(program, trace_with(asked)) is not None:
                asked.refuse()
        return program

    def trace_with(asked):
        with _data_detached(), _noting_lines(), refusing_transforms(training), \
                _training(module, asked) if training else contextlib.nullcontext():
            return dynamic.export(module) if dynamic else \
                torch.export.export(module, args, kwargs, strict=False)

    def run(repeated=False):
        program = trace() if repeated else traced(module, trace)
        remove_writes(program.graph)
        if training:
            inline_regions(program.graph_module)
            end_gradients(program.graph)
        return program

    program = run()
    is_state = writes_to_arguments(program)
    if any(has_symbols(m.graph) for m in program.graph_module.modules()
           if isinstance(m, torch.fx.GraphModule)):
        inline_regions(program.graph_module)
    is_special = specialise(program.graph, _constants(module, program, variable))
    try:
        return program, functionalize(program, _kinds(module, program)), is_special
    except ImportFailed:
        if is_state or is_special:
            raise
        return run(repeated=True), {}, False


def _is_value(tensor: torch.Tensor, persistent: bool) -> bool:
    """Whether a buffer is a value at import time: it cannot be trained or loaded."""
    return not persistent or not tensor.is_floating_point()


def _constants(module, program, variable) -> dict[str, torch.Tensor]:
    """Placeholder name -> value, of buffers and constants that are values and not written to."""
    from torch.export.graph_signature import InputKind
    written, result, shared = written_placeholders(program.graph), {}, shared_names(module)
    for spec in program.graph_signature.input_specs:
        if spec.kind not in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            continue
        is_persistent = spec.target in program.state_dict
        tensor = (program.state_dict if is_persistent else program.constants)[spec.target]
        if spec.arg.name not in written and tensor.device.type == "cpu" and \
                variable.isdisjoint(shared.get(spec.target, [spec.target])) and \
                _is_value(tensor, is_persistent):
            result[spec.arg.name] = tensor
    return result


def _kinds(module, program) -> dict[str, tuple[str, str]]:
    """Placeholder name -> (kind, key), as `functionalize` wants them."""
    from torch.export.graph_signature import InputKind
    kinds = {InputKind.USER_INPUT: "input", InputKind.PARAMETER: "parameter",
             InputKind.BUFFER: "buffer", InputKind.CONSTANT_TENSOR: "constant"}
    shared, result = shared_names(module), {}
    for spec in program.graph_signature.input_specs:
        key = spec.target or getattr(spec.arg, "name", "")
        result[getattr(spec.arg, "name", "")] = (kinds.get(spec.kind, "argument"),
                                                 shared.get(key, [key])[0])
    return result


def _check_writes(exported: Exported):
    """Refuses writes to buffers that overlap other tensors of the module."""
    tensors = dict(exported.parameters.values())
    problems = []
    for key, (_, write) in exported.writes.items():
        others = [other for other, tensor in tensors.items()
                  if other != key and _overlap(tensor, tensors[key])]
        if others:
            frame = Locations().frame(write.meta.get("stack_trace") or "") or (None, None)
            problems.append(Diagnostic(
                f"buffer {key} is written to in place, and shares memory with {others[0]}; "
                "expected a buffer with memory of its own", "error", *frame))
    if problems:
        raise ImportFailed(problems)


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.untyped_storage()._cdata != b.untyped_storage()._cdata or not (a.numel() and b.numel()):
        return False

    def extent(x):
        first = x.storage_offset()
        last = first + sum((n - 1) * s for n, s in zip(x.shape, x.stride()))
        return first * x.element_size(), (last + 1) * x.element_size()

    (a0, a1), (b0, b1) = extent(a), extent(b)
    return a0 < b1 and b0 < a1


def _check_inputs(args, kwargs):
    bad = []
    for path, leaf in pytree.tree_flatten_with_path((args, kwargs))[0]:
        if isinstance(leaf, torch.Tensor) or leaf is None or \
                isinstance(leaf, (bool, int, float, str, torch.dtype, torch.device)):
            continue
        bad.append(Diagnostic(f"input {pytree.keystr(path)}: expected tensors, numbers, flags and "
                              f"None, got a {type(leaf).__name__}"))
    if bad:
        raise ImportFailed(bad)


def _export_diagnostic(error: Exception) -> Diagnostic:
    text = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    frame, traceback = None, error.__traceback__
    while traceback:
        name = traceback.tb_frame.f_code.co_filename
        if is_model_file(name):
            frame = (name, traceback.tb_lineno)
        traceback = traceback.tb_next
    hint = ""
    if any(word in type(error).__name__ + str(error) for word in ("DataDependent", "GuardOn",
                                                                  "unbacked", "SymInt")):
        hint = "; shapes and control flow must not depend on the inputs' values: rewrite this " \
               "line with tensor operations of static shape"
    return Diagnostic(f"torch.export fails: {type(error).__name__}: {text}{hint}", "error",
                      *(frame or (None, None)))


def _signature(module, program, args, kwargs, variable, dynamic) -> Exported:
    from torch.export.graph_signature import InputKind, OutputKind
    leaves_with_path, in_spec = pytree.tree_flatten_with_path((args, kwargs))
    values = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
    varying = sorted(n for n, v in values.items() if isinstance(v, torch.Tensor) and
                     any(not isinstance(d, int) for d in v.shape))
    if varying and dynamic is None:
        raise ImportFailed([Diagnostic(
            f"input {name} has a dynamic shape {list(values[name].shape)}; import with example "
            "inputs of the shape to run, once per shape") for name in varying])
    order = _forward_parameters(module)
    result = Exported(program, [], [], in_spec, {}, {}, set(), set(), {})
    specs = program.graph_signature.input_specs
    users = [s for s in specs if s.kind == InputKind.USER_INPUT]
    for (path, leaf), spec in zip(leaves_with_path, users):
        if isinstance(leaf, torch.Tensor):
            name = _input_name(path, order)
            result.inputs[spec.arg.name] = name
            result.leaves.append(name)
            result.fixed.append(None)
        else:
            result.leaves.append(None)
            result.fixed.append(leaf)
    if dynamic is not None:
        result.symbols = dynamic.symbols(result, [values.get(getattr(s.arg, "name", None)) for s in users])
        result.checks = dynamic.checks(program)
    state, constants = program.state_dict, program.constants
    shared = shared_names(module)
    for spec in specs:
        if spec.kind not in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            continue
        key = spec.target
        tensor = state[key] if key in state else constants[key]
        first, *others = shared.get(key, [key])
        if spec.kind != InputKind.PARAMETER and variable.isdisjoint([first, *others]):
            result.buffers.add(spec.arg.name)
            if _is_value(tensor, key in state):
                result.values.add(spec.arg.name)
        result.parameters[spec.arg.name] = (first, tensor)
        result.aliases[spec.arg.name] = others
    flat = [s for s in program.graph_signature.output_specs]
    unsupported = [s for s in flat if s.kind != OutputKind.USER_OUTPUT]
    if unsupported:  # by an operation that does not say that it writes
        raise ImportFailed([Diagnostic(
            f"{s.target or s.arg.name} is written to in place in a way that is not covered")
            for s in unsupported])
    result.outputs = _output_names(program, flat)
    return result


def _forward_parameters(module) -> list[tuple[str, bool]]:
    """Names of forward's positional parameters, and whether each collects the rest."""
    try:
        return [(p.name, p.kind == p.VAR_POSITIONAL)
                for p in inspect.signature(module.forward).parameters.values()
                if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
    except (TypeError, ValueError):
        return []


def _key(entry) -> str:
    for name in ("key", "name", "idx"):
        if hasattr(entry, name):
            return str(getattr(entry, name))
    return str(entry)


def _input_name(path, order) -> str:
    kind, *rest = [_key(p) for p in path]
    if kind == "0" and rest:  # positional
        index = int(rest[0])
        for position, (name, collects) in enumerate(order):
            if collects and index >= position:
                rest = [name, str(index - position)] + rest[1:]
                break
            if position == index:
                rest = [name] + rest[1:]
                break
        else:
            rest[0] = f"arg{index}"
    return ".".join(rest)


def shared_names(module) -> dict[str, list[str]]:
    """For each state dict key all keys of the same tensor, the first one first."""
    groups: dict[Any, list[str]] = {}
    by_key = {}
    named = itertools.chain(module.named_parameters(remove_duplicate=False),
                            module.named_buffers(remove_duplicate=False))
    for key, tensor in named:
        concrete = tensor.device.type != "meta" and tensor.numel()
        group = groups.setdefault(_storage(tensor) if concrete else id(tensor), [])
        group.append(key)
        by_key[key] = group
    return by_key


def _storage(tensor):
    return (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def _output_names(program, specs) -> list[tuple[torch.fx.Node, str]]:
    """(value, output name) of each tensor that the module returns, in order."""
    from torch.export.graph_signature import TensorArgument
    spec = program.call_spec.out_spec
    tree = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    if spec.num_leaves == 1 and tree == 0:
        paths = [()]
    else:
        paths = [path for path, _ in pytree.tree_flatten_with_path(_plain(tree))[0]]
    names, used = [], set()
    values = program.graph.output_node().args[0]
    for value, spec, path in zip(values, specs, paths):
        if not isinstance(spec.arg, TensorArgument):
            continue  # None, or a number
        name = ".".join(_key(p) for p in path) or "output"
        name = f"output.{name}" if name[0].isdigit() else name
        while name in used:
            name += "_"
        used.add(name)
        names.append((value, name))
    return names


def _plain(tree):
    """With plain dictionaries for a library's own, which may be registered without names of keys."""
    if isinstance(tree, dict):
        return {key: _plain(value) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_plain(value) for value in tree)
    return tree
