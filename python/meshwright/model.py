# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Models: a program and its weights."""

import os

import numpy as np

from . import _core, arguments, weights
from .errors import Diagnostic, Error, InputError, unwrap
from .inputs import Prepared, by_name, check_inputs, find_entry, names_inputs
from .options import spell
from .plan import Plan
from .progress import Phase, part
from .tensors import (
    Dense,
    as_codes,
    as_numpy,
    dense,
    is_meta,
    is_trained,
    kind_of,
    state_of,
    unjoined,
)


class Model:
    """A program for one device, with its weights: what `from_torch` and `load` return."""

    def __init__(self, program, parameters, imported=None):
        arguments.instance("program", program, _core.Program, "a model of from_torch or load")
        arguments.mapping("parameters", parameters, "{name: array}")
        self._program = program
        #: Name in the program -> the array the user gave; not copied.
        self._parameters = parameters
        #: How calls of a PyTorch module map to the inputs of an entry, by the entry's name.
        #: Without a module there are no names here.
        if imported is not None and not isinstance(imported, dict):
            imported = {self.entries[0]: imported}
        self._imported = imported or {}
        #: The imports whose constants are among the parameters, and the prefix of their names.
        self._imports = [("", i) for i in self._imported.values()]
        #: Of a model whose last outputs are gradients: the loss and the patterns of parameters.
        self._loss = None
        self._meta = any(is_meta(p) for p in parameters.values())
        self._dense: dict[str, tuple[Dense, object, object]] = {}
        #: The element types of the program's parameters.
        self._types = {port.name: port.dtype for port in program.parameters}

    @property
    def entries(self) -> list[str]:
        """Names of the program's entries; the first is the default."""
        return [entry.name for entry in self._program.entries]

    @property
    def inputs(self) -> list[str]:
        """Names of the default entry's inputs, in order."""
        return [port.name for port in self._program.inputs]

    @property
    def outputs(self) -> list[str]:
        """Names of the default entry's outputs, in order."""
        return [port.name for port in self._program.outputs]

    @property
    def parameters(self) -> dict:
        """The weights, by their names in the program; copies of those that join several of a module."""
        return {name: unjoined(value) for name, value in self._parameters.items()}

    def ir(self, locations: bool = False) -> str:
        """The program as MLIR text; with `locations` in the model's Python source."""
        return self._program.str(arguments.flag("locations", locations))

    def to_stablehlo(self) -> str:
        """The program as text of StableHLO, for other compilers. Needs JAX, whose bindings check it.

        Attention, norms and other layers are written out. An SPMD program has its collectives, in an
        `sdy.manual_computation` over all axes, as JAX writes a shard_map; `Plan.to_stablehlo` gives
        that of a plan. Arguments are the inputs and the parameters in the order of the program, and
        have their names as locations. Constants that the import computed are in the text.
        `from_stablehlo` takes the text back.
        An op that StableHLO has no form for, such as those of experts and of random numbers, is an
        Error that names it and its line.
        """
        from .exporter import export

        return export(self._program.str(True, True), self._constants)

    def parallelize(
        self,
        *,
        mesh=None,
        ranks=None,
        objective=None,
        data_parallel=None,
        tensor_parallel=None,
        sequence_parallel=None,
        context_parallel=None,
        fold=None,
        shardings=None,
        device=None,
        overlap=None,
        shard_optimizer=None,
        gtp=None,
        gtp_align=None,
        gtp_prefetch=None,
        gtp_keep=None,
        gtp_gather=None,
        gtp_reduce=None,
        shard_saved=None,
        expert_parallel=None,
        expert_capacity=None,
        expert_load=None,
        data_parallel_attention=None,
        dense_tp=None,
        dp_lm_head=None,
        token_gather=None,
        cache_sharding=None,
        recompute=None,
        memory_ceiling=None,
        stored_weights=None,
        reduce_type=None,
        target=None,
        **others,
    ) -> Plan:
        """Rewrites the program for a mesh of ranks. docs/options.md has a table of all options.

        mesh: {"dp": 2, "tp": 4}, axes major to minor; default: the program's own. Of a composed
            model also a mesh for each stage, over the same ranks:
            {"target": {"dp": 2, "tp": 3}, "draft": {"dp": 3, "tp": 2}}.
        ranks: a number, in place of `mesh`: the planner chooses the mesh and options (docs/planning.md).
        objective: "time" (default), "memory" or "time-then-memory": the aim of the planner.
        data_parallel, tensor_parallel: an axis, "none" or "auto" (default: "dp" and "tp").
        sequence_parallel: "on", "off" or "auto" (default).
        context_parallel: {"ulysses": axis, "ring": axis, "order": "contiguous", "zigzag", "striped"
            or "auto"} or "auto"; shards sequences. Around attention heads move along the one axis
            and keys along the other; an axis is a name, "none" or "auto".
        fold: {"encoder": "sp", "ulysses", "ring", "replica", "batch", "auto" or None}; shards a stage
        of a composed model over the axes of context_parallel; "auto" compares time and memory.
        shardings: {"*.q_proj.weight": '[{"tp"}, {}]'}, the first match wins.
        device: a preset ("h100", "h200", "a100", "a800", "cpu"), a device file (`mw.calibrate`) or "auto".
        overlap: "on", "off" or "auto" (default, where the cost model says it pays): collectives
            run beside kernels, in chunks of their rows.
        shard_optimizer: "on", "off" or "auto" (default, where the cost model says it pays): of a
            model that trains, what the optimizer keeps is sharded over ranks that hold equal
            parameters.
        gtp: an axis, a list of axes or "none" (default: "gtp" where the mesh has it), over which
            weights, gradients and averages are stored in shards; weights are gathered before they
            are used. Or a table of lists of axes by shell patterns on names, of which the first that
            matches wins. An axis that nothing else uses splits the batch, too.
        gtp_align: a number of rows, of which a shard has a multiple, or "auto" (default).
        gtp_prefetch: the most weights that are gathered before the one in use, or "auto" (default:
            as many as their links need).
        gtp_keep: "on", "off" or "auto" (default: by cost under a ceiling): weights stay for the backward pass.
        gtp_gather: "plain" (default), "mxfp8" or "nvfp4": the form in which weights travel that only
            products read, or a table of them by shell patterns on names, of which the first that
            matches wins.
        gtp_reduce: "plain" (default): gradients travel in the type in which they leave products, f32.
            "bf16": they are rounded for the way, and summed in f32 in the order of the ranks.
        shard_saved: "on", "off" or "auto" (where a memory ceiling asks for it): of a model that trains, saved values are kept in shards.
        expert_parallel: axes or "none" (default: "ep" where the mesh has it), over which experts are split.
        expert_capacity, expert_load: numbers (docs/experts.md).
        data_parallel_attention: a number of groups of tensor-parallel ranks (default: 1) or "auto";
            attention computes other rows, or other requests, in each. With it dense_tp, dp_lm_head and
            token_gather.
        cache_sharding: "heads", "sequence" or "auto" (default: heads): of a model that serves.
        recompute: "none", "full" or "auto" (default): of a model that trains, which values of the
            forward pass the backward pass computes again instead of keeping them; "full": all
            within layers; "auto": as few as the memory ceiling allows.
        memory_ceiling: bytes a rank may use for weights, inputs and the arena, as a number or "80G".
        stored_weights: "keep" (default) or "widen": weights of 8 or 4 bits are held as they are stored,
            or in the model's type.
        reduce_type: "own" (default), "f32" or {"*.down_proj": "f32"}, the first match wins: the type
            in which partial sums of bf16 and f16 values leave products and travel. "f32" rounds
            once, behind the sum over ranks. Patterns are of modules' names.
        target: "cpu" (default: this machine's) or "cpu:NAME", by LLVM's name ("cpu:x86-64-v3").
        """
        # Of all arguments; a name that is no option is an error of the compiler, which lists them all.
        options = {name: value for name, value in locals().items() if name not in ("self", "others")}
        options.update(others)
        given = {name: value for name, value in options.items() if value is not None}
        if any(imported.graph.mesh for imported in self._imported.values()) and device is None:
            # The mesh of a JAX function says nothing of its devices.
            options["device"] = "auto"
        spelled = spell(options)
        with Phase("planning"):
            planned = _core.Plan.parallelize(self._program, spelled)
        return Plan(self, unwrap(planned, call="parallelize"), given)

    def differentiate(self, loss=0, parameters=("*",)) -> "Model":
        """Returns a model with the same outputs, then "grad.NAME" for each trained parameter.

        loss: the output to differentiate, a float with one element; its position or name.
        parameters: shell patterns of names. They select among the parameters of float type; of
            those that come from a PyTorch module, among those that require gradients.

        A parameter that the loss does not depend on has a gradient of zeros.
        """
        from .joining import apart

        whole = apart(self)
        frozen = [name for name, value in whole._parameters.items() if not is_trained(value)]
        with Phase("differentiating"):
            made = whole._program.differentiate(output("loss", loss), patterns(parameters), frozen)
        program = unwrap(made, call="differentiate")
        model = Model(program, whole._parameters, whole._imported)
        model._loss = loss, parameters
        return model

    def check(self, *args, tolerance=None, entry=None, **kwargs) -> dict[str, float]:
        """Compares an entry with the PyTorch module that it comes from: the program on one rank with
        the module in f64. Run it once for each new model; `Plan.check` compares plans with the program.

        outputs, and buffers that the call writes: up to rounding (f32 1e-5, bf16 2e-2 of the largest
            entry), or 1.25 times the difference of the module in its own types, if that is more.
        gradients, of a model that is imported with `training`: all of them, of the loss of
            `differentiate` and `train`, else of output 0 if it has one element, else of all outputs.
            Up to 1e-6 of the largest entry of all gradients, or 1.25 times PyTorch's own difference.
        a step, of a model of `train`: the parameters after it beside those of torch.optim, and the
            outputs of `evaluate`.

        It imports the module again, too, to find what changes from call to call, and warns of what
        the module reads besides its arguments: clocks, the environment, files. Dropout is left out on
        both sides. The module is copied, and stays as it is.

        `tolerance` takes the place of the bounds. Returns the largest difference by name: of outputs,
        states, "grad.NAME", "step.NAME", "evaluate.OUTPUT". Raises CheckFailed, which names the first
        value that differs with its line.
        """
        if all(getattr(imported, "module", None) is None for imported in self._imported.values()):
            raise Error(
                "the model comes from no PyTorch module, with which a check compares it: expected a model "
                "of from_torch; Plan.check compares a plan with its program"
            )
        from .checking import check

        with Phase("checking"):
            return check(self, args, kwargs, tolerance, entry)

    def train(
        self,
        optimizer,
        loss=0,
        parameters=("*",),
        microbatches=1,
        clip_norm=None,
        seed=0,
        loss_scale=None,
    ) -> "Model":
        """Returns a model that trains: its entry "step", the default, computes the outputs and
        updates the parameters; "evaluate" computes the outputs alone.

        optimizer: SGD, Adam or AdamW, with the learning rate that `lr` of a call overrides.
        loss: the output to minimise, a float with one element; its position or name.
        parameters: shell patterns of names, as in `differentiate`. A parameter that the loss does
            not depend on stays as it is.
        microbatches: how many contiguous chunks of the batch a step runs one after another.
            Gradients and the loss are means over them. Inputs whose dimension 0 is not the batch are
            whole in each (`batch_inputs` of from_torch).
        clip_norm: the largest norm of all gradients together.
        seed: of the random numbers, which decide with the number of the step what dropout drops.
        loss_scale: a factor of the loss before differentiation, which keeps small gradients of f16
            from vanishing; gradients are divided by it in f32. A step whose gradients are not
            finite is skipped and counted. "auto" adapts the factor as torch.amp.GradScaler does.

            with model.train(mw.AdamW(lr=3e-4)).parallelize(mesh={"dp": 2}).start() as session:
                loss = session.run(**batch)[0]
        """
        from .training import train

        with Phase("adding training steps"):
            return train(self, optimizer, loss, parameters, microbatches, clip_norm, seed, loss_scale)

    def serve(
        self,
        max_length=4096,
        page_size=16,
        pages=None,
        max_requests=64,
        buckets=None,
        prefix_cache=False,
    ) -> "Model":
        """Returns a model that serves requests: its entries are steps, which compute the next tokens of
        several requests at once, with keys and values in pages. Sessions of its plans have `submit`,
        `step` and `generate`.

        The model is a causal language model of ids of tokens [1, t], whose first output is the logits
        [1, t, vocabulary]. It is imported again at `max_length`. An op that mixes tokens in another way
        than by causal attention is an Error that names its line.

        All numbers are those of one group of requests; plans with data parallelism have several groups.

        max_length: the most tokens of a request, its prompt and its new ones.
        page_size: rows of a page of the caches.
        pages: pages of a group; default: enough for all requests at full length.
        max_requests: the most requests that run at once; others wait.
        buckets: tokens of a step, ascending, an entry for each; default: 1, 4, 16, ... up to max_requests,
            and 512. A longer prompt is read in chunks.
        prefix_cache: whole pages of equal beginnings are computed once, and shared.

            plan = model.serve(max_length=4096).parallelize(mesh={"tp": 8})
            with plan.start() as session:
                answers = session.generate(prompts, max_new_tokens=64)
        """
        from .served_model import serve

        with Phase("adding serving steps"):
            return serve(self, max_length, page_size, pages, max_requests, buckets, prefix_cache)

    def save(self, program, parameters) -> None:
        """Writes the program (.mlir) and the weights (.safetensors).

        Where one of the two cannot be written neither file changes, unless what fails is
        to put the program in its place at the very end.
        """
        program = arguments.path("program", program)
        parameters = arguments.path("parameters", parameters)
        if self._meta:
            raise Error("the model's weights are on the meta device: there is nothing to save")
        if os.path.realpath(program) == os.path.realpath(parameters):
            raise Error(f"the program and its weights are to be one file, '{parameters}'")
        with Phase("saving model", len(self._parameters)) as phase:
            self._compute_constants()
            with weights.whole_file(program) as text, weights.whole_file(parameters) as data:
                text.write(self._program.str(True).encode("utf-8"))
                # The weights take their place first: nothing may fail behind that.
                text.flush()
                weights.write(data, {name: self._parameter(name) for name in self._parameters}, phase.step)

    @property
    def _kind(self) -> str:
        """The library of the weights: "torch", "jax" or "numpy"."""
        return kind_of(self._parameters.values())

    def _parameter(self, name) -> Dense:
        """A parameter as it is now: the same object as long as nothing was written to it."""
        value = self._parameters[name]
        weights.check_whole(value)
        state = state_of(value)
        known = self._dense.get(name)
        if known is None or known[1] != state or known[2] is not value:
            codes = as_codes(dense(value), self._types.get(name, ""))
            known = self._dense[name] = (codes, state, value)
        return known[0]

    @property
    def _constants(self) -> dict:
        """The parameters that the imports computed."""
        return {name: as_numpy(self._parameter(name)) for name in self._constant_names}

    @property
    def _constant_names(self) -> set[str]:
        names = {prefix + key for prefix, imported in self._imports for key in imported.graph.constants.values()}
        return {name for name in names if name in self._parameters}

    @property
    def _remarks(self) -> list[Diagnostic]:
        """Notes on what the imports of modules did not recognise."""
        imports = {id(imported): imported for _, imported in self._imports}
        return _convert([r for imported in imports.values() for r in imported.remarks])

    def _compute_constants(self):
        """Takes the tensors that were assigned to the module since the import, and computes anew what the
        import computed from buffers that have changed since."""
        from .importer import ImportFailed

        try:
            for prefix, imported in self._imports:
                for name, tensor in imported.follow_module().items():
                    if prefix + name in self._parameters:
                        self._parameters[prefix + name] = tensor
                for name, tensor in imported.read.constants().items():
                    if prefix + name in self._parameters:
                        self._parameters[prefix + name] = tensor
        except ImportFailed as error:
            raise Error(_convert(error.diagnostics)) from None

    def _training(self, ports):
        """How states map to PyTorch's state dicts; None for a model that does not train."""
        return None

    def _to_check(self, name, args, kwargs):
        """The model and the entry of a check, and what gives the values of the entry's inputs."""
        entry = find_entry(self._program.entries, name)

        def values():
            found = zip(entry.inputs, self._flatten(entry, args, kwargs), strict=True)
            return {port.name: value for port, value in found if not port.has_default}

        return self, entry.name, values

    def _prepare(self, entries, name, args, kwargs) -> Prepared:
        """The entry of a call, of those of that name (None: the default), and its inputs."""
        entry = find_entry(entries, name)
        return Prepared(entry, self._flatten(entry, args, kwargs))

    def _flatten(self, entry, args, kwargs) -> list[Dense]:
        """The inputs of an entry among a call's arguments, checked."""
        return check_inputs(entry.inputs, self._values(entry.name, entry.inputs, args, kwargs))

    def _values(self, entry, ports, args, kwargs) -> list:
        """The values of inputs among a call's arguments, in the order of the ports."""
        imported = self._imported.get(entry)
        if imported is None or names_inputs(ports, args, kwargs):
            return by_name(ports, args, kwargs)
        from .importer import ImportFailed

        # The module does not know the inputs that have a default value.
        added = {port.name: kwargs.get(port.name) for port in ports if port.has_default}
        kwargs = {name: value for name, value in kwargs.items() if name not in added}
        try:
            values = iter(imported.flatten(args, kwargs))
        except ImportFailed as error:
            raise InputError(_convert(error.diagnostics)) from None
        return [added[p.name] if p.name in added else next(values) for p in ports]

    def __repr__(self):
        return (
            f"<meshwright.Model inputs=[{', '.join(self.inputs)}] "
            f"outputs=[{', '.join(self.outputs)}] parameters={len(self._parameters)}>"
        )

    def _repr_html_(self):
        """Inputs, outputs and parameters, for notebooks."""
        from .pages.cards import model_card

        return model_card(self)


def _convert(diagnostics):
    return [Diagnostic(d.message, d.severity, d.file, d.line) for d in diagnostics]


def output(name, value) -> str:
    """A position or a name of an output, as the compiler takes it."""
    expected = "the position or the name of an output"
    arguments.instance(name, value, (int, np.integer, str), expected)
    return str(arguments.integer(name, value) if not isinstance(value, str) else value)


def patterns(value) -> list[str]:
    """Shell patterns of parameters."""
    return arguments.names("parameters", value, "shell patterns of names, as in ['*.weight']")


#: The parts of an import of a PyTorch module: those of `import_module`, and "parsing".
_PARTS = 5


def from_torch(
    module,
    args=(),
    kwargs=None,
    training=False,
    *,
    weights=None,
    batch_inputs=None,
    dynamic_shapes=None,
    buckets=None,
) -> Model:
    """Imports a PyTorch module as it computes module(*args, **kwargs) in evaluation mode.

    training: imports it as it is, in train mode or not, for `Model.differentiate`. Gradients end
        where PyTorch's do: at detach(), in torch.no_grad(), at an embedding's padding_idx. Dropout
        drops elements by their indices, the same ones in each plan.
    weights: a checkpoint that has the values of the module's parameters and buffers, which may then
        be on the meta device: a safetensors file, or a folder of several with an index. Entries
        have the module's names, or those of the model's release as transformers knows them. They
        are mapped: each rank reads its part, in the form in which it is stored. FP8 and MXFP4 stay
        what they are, and other float types than the module's are cast where they are used. Entries
        that the module lacks are ignored, with one remark among the decisions of the report.
    batch_inputs: names of all inputs whose dimension 0 is the batch, which data parallelism splits
        and microbatches cut. Without it these are the first input and those with an equal dimension 0.
    dynamic_shapes: names of sizes that change from call to call, by argument and dimension, as in
        torch.export: {"ids": {0: "batch", 1: "tokens"}}; a name may be a torch.export.Dim.
    buckets: the sizes of each name for which there is an entry, {"batch": [1, 8], "tokens": [64, 256]}.
        A call takes the smallest entry that holds it: it pads inputs, cuts outputs, and gives what the
        module gives at the call's sizes (docs/buckets.md).

    Buffers that the module writes to in place are state: each call of a session sees what the call
    before wrote. Batch norms keep their mode: in train mode they update their running statistics.

    Other sizes, and element types, are those of the arguments. The module is
    left as it was and its weights are referenced, not copied: runs see what is written to them in
    place, and what is assigned to the module in their place. Weights and arguments on the meta device make a model that can be planned, not run.
    PyTorch's default type is that of the caller. An import within torch.autocast is refused.
    `Model.check` compares the import with the module.
    """
    with Phase(f"importing {type(module).__name__}", _PARTS if buckets is None else 0):
        return _from_torch(module, args, kwargs, training, weights, batch_inputs, dynamic_shapes, buckets)


def _from_torch(module, args, kwargs, training, weights, batch_inputs, dynamic_shapes, buckets) -> Model:
    import torch

    from .importer.torch.checkpoint import Checkpoint
    from .importer.torch.program import ImportFailed, import_module

    arguments.instance("module", module, torch.nn.Module, "a torch.nn.Module")
    args = () if args is None else args
    arguments.instance("args", args, (tuple, list), "a tuple of arguments", InputError)
    if kwargs is not None:
        arguments.mapping("kwargs", kwargs, "a dict of arguments by name", InputError)
    arguments.flag("training", training)
    if batch_inputs is not None:
        batch_inputs = arguments.names("batch_inputs", batch_inputs, "names of inputs, or None")
    checkpoint = None
    if weights is not None:
        checkpoint = Checkpoint(module, arguments.path("weights", weights))
        module = checkpoint.module
    options = {"training": training, "batch_inputs": batch_inputs, "weights": checkpoint}
    try:
        if buckets is not None or dynamic_shapes is not None:
            from .bucket_model import import_buckets

            return import_buckets(module, tuple(args), kwargs, dynamic_shapes, buckets, options)
        imported = import_module(module, tuple(args), kwargs, **options)
    except ImportFailed as error:
        raise Error(_convert(error.diagnostics)) from error
    return _model_of(imported, type(module).__name__)


def _model_of(imported, name) -> Model:
    with part("parsing"):
        parsed = _core.Program.parse(imported.mlir, f"<{name}>")
    return Model(unwrap(parsed), dict(imported.parameters), imported)


def load(program, parameters=None) -> Model:
    """Reads what `Model.save` wrote, or any program with its safetensors file.

    The file is mapped, not read. Without one the model can be planned, not run.
    """
    with Phase("loading model"):
        return _load(program, parameters)


def _load(program, parameters) -> Model:
    parsed = unwrap(_core.Program.parse_file(arguments.path("program", program)))
    if parameters is None:
        return Model(parsed, {})
    parameters = arguments.path("parameters", parameters)
    stored = weights.load(parameters)
    found, problems = {}, []
    for port in parsed.parameters:
        name = next((n for n in [port.name, *port.aliases] if n in stored), None)
        if name is None:
            problems.append(f"weights '{parameters}' have no '{port.name}'")
            continue
        tensor, expected = dense(stored[name]), Dense(port.dtype, tuple(port.shape), 0, None)
        offsets = port.offsets or [0] * len(expected.shape)
        fits = tensor.dtype == expected.dtype and len(tensor.shape) == len(expected.shape)
        if port.offsets:
            fits = fits and all(
                o + n <= s
                for o, n, s in zip(offsets, expected.shape, tensor.shape, strict=True)
            )
        else:
            fits = fits and tensor.shape == expected.shape
        if not fits:
            problems.append(
                f"'{name}' in weights '{parameters}': expected {expected}"
                + (f" from {offsets} on" if port.offsets else "")
                + f", got {tensor}"
            )
        found[port.name] = stored[name]
    if problems:
        raise Error([Diagnostic(problem) for problem in problems])
    return Model(parsed, found)


def check_models(models):
    arguments.mapping("models", models, "models by name", InputError)
    for name, model in models.items():
        arguments.instance(f"models['{name}']", model, Model, "a Model", InputError)
