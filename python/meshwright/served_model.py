# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Causal language models that serve requests: what `Model.serve` returns."""

from . import _core, arguments, serving_plans
from .buckets import memory_of_machine
from .errors import Diagnostic, Error, unwrap
from .model import Model, _convert, _model_of
from .options import spell
from .plan import Plan
from .serving_choices import Copies, choose

_EXPECTED = "a causal language model of ids of tokens [1, t]"
#: Bytes of the tables of a token, at least: its position, sines and cosines, slots.
_ROW = 2048
_STATE = "state '{}': expected a model without state, since requests share steps, got one that its forward pass writes"


def serve(model, max_length, page_size, pages, max_requests, buckets, prefix_cache) -> "ServedModel":
    options = _core.ServeOptions()
    max_length = _fits("max_length", arguments.integer("max_length", max_length, 1))
    options.page_size = arguments.integer("page_size", page_size, 1)
    options.max_requests = _fits("max_requests", arguments.integer("max_requests", max_requests, 1))
    if pages is not None:
        options.pages = arguments.integer("pages", pages, 1)
    options.buckets = _buckets(buckets, options.max_requests)
    options.prefix_cache = arguments.flag("prefix_cache", prefix_cache)
    return ServedModel(_at_length(model, max_length), max_length, options)


def _fits(name, rows) -> int:
    """Rejects more tokens or requests than this machine has memory for, since there are tables with a row of each."""
    most = memory_of_machine() // _ROW
    if rows > most:
        arguments.fail(name, rows, f"at most {most}, for which this machine has memory")
    return rows


def _buckets(buckets, max_requests) -> list[int]:
    if buckets is None:
        return _core.default_buckets(max_requests)
    arguments.instance("buckets", buckets, (list, tuple), "numbers of tokens, ascending, or None")
    found = [_fits(f"buckets[{i}]", arguments.integer(f"buckets[{i}]", n, 1)) for i, n in enumerate(buckets)]
    if not found or sorted(set(found)) != found:
        raise Error(f"buckets: expected at least one number of tokens, ascending, got {list(buckets)}")
    return found


def _at_length(model, max_length) -> Model:
    """The model's forward pass for one sequence of that length."""
    ports = [port for port in model._program.inputs if not port.has_default]
    shape = tuple(ports[0].shape) if len(ports) == 1 else ()
    if len(model.entries) != 1 or len(shape) != 2 or ports[0].dtype != "i64":
        given = ", ".join(f"'{port.name}' {port.dtype}{list(port.shape)}" for port in ports)
        raise Error(f"serve: expected {_EXPECTED}, of type i64, got one of {given or 'no input'}")
    imported = next(iter(model._imported.values()), None)
    if imported is None or getattr(imported, "module", None) is None:
        if model._program.states:
            raise Error(_STATE.format(model._program.states[0].name))
        if shape == (1, max_length):
            return model
        raise Error(
            f"max_length: expected {shape[1]}, the tokens of the program, which comes from no PyTorch "
            f"module and cannot be imported at {max_length}"
        )
    return _imported_at(imported, ports[0].name, max_length)


def _imported_at(imported, name, max_length) -> Model:
    from .importer import ImportFailed
    from .importer.torch.program import import_module

    try:
        program = import_module(
            imported.module,
            *_arguments(imported, name, max_length),
            around=imported.around,
            weights=imported.weights,
            inspect=lambda graph: _check_graph(imported, name, max_length, graph),
        )
    except ImportFailed as error:
        raise Error([
            d._replace(message=f"max_length: expected a length that the model takes, got {max_length}: {d.message}")
            for d in _convert(error.diagnostics)
        ]) from error
    return _model_of(program, type(imported.module).__name__)


def _arguments(imported, name, length):
    import torch

    ids = torch.zeros(1, length, dtype=torch.long, device=imported.around.device or "cpu")
    return imported.unflatten({name: ids})


def _check_graph(imported, name, max_length, graph):
    if graph.writes:
        raise Error([
            Diagnostic(_STATE.format(write.state.attrs["key"]), "error", *_place(write.loc))
            for write in graph.writes
        ])
    _check_length(imported, name, max_length, graph)


def _place(loc):
    return (loc.file or None, loc.line or None) if loc else (None, None)


def _check_length(imported, name, max_length, graph):
    """Rejects a model whose results depend on the number of tokens, other than by causal attention."""
    from .importer import ImportFailed
    from .importer.graph.lengths import find_difference, sizes_in
    from .importer.torch.program import convert_module

    if max_length == 1:
        return
    convert = lambda length: convert_module(imported.module, *_arguments(imported, name, length), imported.around)
    compare = lambda a, b: find_difference(*((a[1], b[1]) if a[0] > b[0] else (b[1], a[1])))
    length = _other_length(sizes_in(graph), max_length)
    try:
        other = convert(length)
    except ImportFailed as error:
        if length < max_length:
            raise Error(_convert(error.diagnostics)) from error
        return  # no table has positions above max_length
    found = compare((max_length, graph), (length, other))
    if found is not None and max_length in sizes_in(other):
        # A dimension of another kind has the size of that of tokens, so importing may take one for the other.
        taken = {*sizes_in(other), length}
        near = next(n for n in (*range(max_length, 2, -1), *range(max_length, 2 * max_length + 9)) if n not in taken)
        try:
            found = compare((near, convert(near)), (length, other))
        except ImportFailed:
            pass  # the first comparison stands
    if found is not None:
        raise Error([Diagnostic(
            "the result of a token depends on the number of tokens: expected a causal model, whose first tokens do "
            f"not depend on how many follow, got other values for {length} tokens than for {max_length}",
            "error", *_place(found.loc))])


def _other_length(taken, max_length) -> int:
    """A length to compare with: as short as can be, so that a condition on the length is not met by both, and
    the size of no other dimension."""
    return next(n for n in range(2, max_length + len(taken) + 2) if n not in taken)


class ServedModel(Model):
    """A causal language model whose entries are steps of serving: what `Model.serve` returns."""

    def __init__(self, forward, max_length, options):
        #: The forward pass of one sequence of `max_length` tokens.
        self._forward, self._max_length, self._options = forward, max_length, options
        self._by_sizes: dict[tuple, Model] = {}
        first = self._of(1, 1, _core.TokenGather.max)
        super().__init__(first._program, forward._parameters)
        self._imports = forward._imports

    def _of(self, groups, deal, gather) -> Model:
        """The program for so many groups of requests, whose tokens meet so, and pages that are dealt over
        so many ranks."""
        sizes = groups, deal, gather
        if sizes not in self._by_sizes:
            self._options.groups, self._options.deal, self._options.gather = sizes
            program = unwrap(self._forward._program.serve(self._options), stacklevel=5)
            model = Model(program, self._forward._parameters)
            model._imports = self._forward._imports
            self._by_sizes[sizes] = model
        return self._by_sizes[sizes]

    def parallelize(self, *, latency=None, **options) -> Plan:
        """As `Model.parallelize`. With `ranks` the mesh with the most new tokens a second is chosen, of which a
        step takes at most `latency` seconds, if that is given (docs/planning.md)."""
        if options.get("ranks") is not None:
            def copies(own):
                try:
                    return Copies.of(self, own, own.get("data_parallel_attention") or 1)
                except Error:
                    return Copies()  # the plan has the error, too

            return serving_plans.choose(self._parallelize, copies, self._options.max_requests, options, latency)
        if latency is not None:
            raise Error(f"latency: expected it beside ranks, for which the planner chooses a mesh, got {latency!r}")
        options, decisions = choose(self, options)
        plan = self._parallelize(**options)
        plan._choices = decisions
        return plan

    def _parallelize(self, **options) -> Plan:
        text = spell(options)
        sizes = (_core.Plan.count_groups, _core.Plan.count_dealt, _core.Plan.token_gather)
        groups, deal, gather = (unwrap(of(text)) for of in sizes)
        plan = self._of(groups, deal, gather).parallelize(**options)
        if gather != _core.TokenGather.max:
            plan._on_gpus = lambda graphs: self._for_gpus(plan, gather, graphs, options)
        return plan

    def _for_gpus(self, plan, gather, graphs, options) -> Plan:
        """The same plan for GPUs, whose graphs repeat messages of fixed sizes: true rows are in none."""
        if gather != _core.TokenGather.sum:
            return self._parallelize(**{**options, "token_gather": "max"})
        if graphs == "on":
            raise Error("graphs: expected 'auto' or 'off' beside token_gather='sum', whose messages have other "
                        "sizes in each step, got 'on'")
        return plan

    def __repr__(self):
        return f"<meshwright.ServedModel entries=[{', '.join(self.entries)}]>"
