# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Plans: a model rewritten for the ranks of a mesh."""

import json
import os
import threading
from numbers import Integral, Real

from . import _core, arguments, pages
from .backends import backend_name
from .devices import Call, on_host
from .errors import CheckFailed, Diagnostic, Error, placed, unwrap
from .inputs import find_entry
from .options import spell
from .pages.numbers import bytes_text
from .progress import Phase
from .session import Session, keeping, session_options
from .tensors import is_parameter, kind_of_inputs
from .weights import whole_file

_PHASES = ("global", "annotated", "propagated", "spmd", "rt")


class Text(str):
    """Text that an interactive session shows as it is."""

    def __repr__(self):
        return str(self)


class Plan:
    """A model rewritten for the ranks of a mesh: what `Model.parallelize` returns."""

    def __init__(self, model, plan, options=None):
        self._model = model
        #: The options of `parallelize`, as the user gave them.
        self._options = dict(arguments.mapping("options", {} if options is None else options, "options by name"))
        self._plan = arguments.instance("plan", plan, _core.Plan, "a plan of Model.parallelize")
        #: Decisions before the program was planned, as the report in JSON has them.
        self._choices = []
        # Makes the plan for GPUs, with or without graphs, where that is another one.
        self._on_gpus = None
        self._parameters = {}
        #: The plans that were compared, of a model that serves: other plans have them in their report.
        self._alternatives = []
        self._lock = threading.Lock()

    @property
    def ranks(self) -> int:
        return self._plan.num_ranks

    def ir(self, phase: str = "spmd", locations: bool = False) -> str:
        """The program at a phase: "global", "annotated", "propagated", "spmd" or "rt"."""
        if not isinstance(phase, str) or phase not in _PHASES:
            arguments.fail("phase", phase, "one of " + ", ".join(_PHASES))
        arguments.flag("locations", locations)
        return Text(unwrap(self._plan.str(getattr(_core.Phase, phase), locations)))

    def to_stablehlo(self) -> str:
        """The program of a rank, as text of StableHLO with its collectives: see `Model.to_stablehlo`."""
        from .exporter import export

        return export(unwrap(self._plan.str(_core.Phase.spmd, True, True)), self._model._constants)

    def report(self, format: str = "text", entry: str | None = None, verbose: bool = False):
        """Time, memory, bytes, layouts and warnings of an entry.

        "text" for people, with `verbose` also the decisions; "json" gives a dict, schema 1, with `verbose`
        also each launch, buffer and layout; "html" gives a page with pictures, as text (docs/reports.md).
        """
        arguments.flag("verbose", verbose)
        if not isinstance(format, str) or format not in ("text", "json", "html"):
            arguments.fail("format", format, "text, json or html")
        if format == "html":
            return self._page(entry, None)
        report = self._plan.report(format == "json", find_entry(self._plan.entries, entry).name, verbose)
        remarks = self._model._remarks
        if format == "text":
            if self._alternatives:
                report += "\n" + _said(self._alternatives)
            return Text(_with_remarks(report, remarks, self._choices) if verbose else report)
        report = json.loads(report)
        if self._alternatives:
            report["alternatives"] = self._alternatives
        report["decisions"] = [*map(_decision, remarks), *self._choices, *report["decisions"]]
        return report

    def save_report(self, path, entry: str | None = None, trace=None, verbose: bool = False) -> None:
        """Writes the report on an entry to a file, in the form that its name states: a page (.html),
        .json or .txt. The file appears whole or not at all. A page with the `trace` of a run has
        measured times below expected ones; shares of measured ceilings need a run with `measure`, too.
        `verbose` is as in `report`."""
        path = arguments.path("path", path)
        kind = os.path.splitext(path)[1].lower()
        format = {".html": "html", ".htm": "html", ".json": "json", ".txt": "text"}.get(kind)
        if format is None:
            arguments.fail("path", path, "a name that ends in .html, .json or .txt")
        if trace is not None and format != "html":
            raise Error(f"trace: expected no trace for a report in {format}: a page shows one")
        report = self._page(entry, trace) if format == "html" else self.report(format, entry, verbose)
        text = json.dumps(report, indent=1) + "\n" if format == "json" else report
        with whole_file(path) as file:
            file.write(text.encode("utf-8", "replace"))

    def layout(self, pattern: str = "*", entry: str | None = None) -> str:
        """Draws the layouts of parameters, states and inputs in characters: the chunks of each tensor,
        and the ranks that hold them. `pattern` is a shell pattern of names: "*.q_proj.weight"."""
        from .pages.holdings import drawings

        arguments.text("pattern", pattern, "a shell pattern of names")
        facts = self._facts(entry)
        found = drawings(facts, pattern)
        if found is None:
            known = ", ".join(f"'{layout.pattern}'" for layout in facts.layouts[:4])
            arguments.fail("pattern", pattern, f"a pattern of names such as {known or 'of no tensor'}")
        return Text(found)

    def trace(self, path, entry: str | None = None, ranks: int = 8) -> None:
        """Writes the expected schedule of an entry as a trace, which Perfetto opens, without a run: a
        process for each of the first `ranks` ranks, a thread for each stream. Arrows join the ranks of a
        collective, and counters show the bytes in the arena and in flight."""
        from .pages.trace import expected_trace

        path, ranks = arguments.path("path", path), arguments.positive("ranks", ranks, Integral)
        text = json.dumps(expected_trace(self._facts(entry), ranks), separators=(",", ":"))
        with whole_file(path) as file:
            file.write(text.encode())

    def compare(self, other: "Plan", format: str = "text", entry: str | None = None) -> str:
        """The differences of two plans: times, bytes, memory, layouts and decisions. "text" for people;
        "html" gives a page, as text."""
        from .pages import comparison

        arguments.instance("other", other, Plan, "a plan of Model.parallelize")
        if not isinstance(format, str) or format not in ("text", "html"):
            arguments.fail("format", format, "text or html")
        found = comparison.compare(self._facts(entry), other._facts(entry))
        if format == "html":
            return Text(pages.renderer().comparison_page(found))
        return Text(comparison.text(found))

    def _page(self, entry, trace):
        renderer, facts = pages.renderer(), self._facts(entry)
        if trace is not None:
            from .pages.measured import add_trace

            add_trace(facts, arguments.path("trace", trace))
        return Text(renderer.plan_page(facts))

    def _facts(self, entry):
        from .pages.facts import read_facts

        return read_facts(self.report("json", entry, verbose=True), self._options)

    def _repr_html_(self):
        """The page, for notebooks."""
        try:
            return pages.renderer().framed(self.report("html"))
        except Error:
            return None  # a notebook shows the text instead

    def start(
        self,
        backend: str = "local",
        threads_per_rank: int | None = None,
        timeout: float | None = None,
        state=None,
        recover: bool = True,
        graphs: str = "auto",
        target: str | None = None,
    ) -> Session:
        """Starts a session: ranks, weights and state that stay from call to call.

        `state` is a folder that `Session.save` of any plan of the model wrote; without it the
        state is the model's. With `recover` a call that fails leaves the state as it was; without
        it the state may be anything after a failure. `graphs` is "on", "off" or "auto": whether
        later calls repeat the captured graphs of a GPU. "on" is an error where nothing can be
        captured. The other options are as in `run`. The session keeps the weights as they are now.

            with plan.start() as session:
                outputs = session.run(*args)
        """
        options = session_options(backend, threads_per_rank, timeout, state, recover, graphs)
        options.target = target_name(target)
        plan = self._on_gpus(options.graphs) if self._on_gpus and options.backend.startswith("nccl") else self
        return plan._started(options)

    def _started(self, options) -> Session:
        self._set_parameters()
        model, kept = self._model, dict(self._parameters)
        with Phase("starting"):
            started = self._plan.start(options)
        session = unwrap(started, call="start")
        training = model._training(session.states)
        fixed = {**model._parameters, **(training.fixed if training else {})}
        fixed = {name: value for name, value in fixed.items() if is_parameter(value)}
        return Session(session, options.backend, model._prepare, model._kind, kept, fixed, training, plan=self)

    def run(
        self,
        *args,
        entry: str | None = None,
        backend: str = "local",
        threads_per_rank: int | None = None,
        timeout: float | None = None,
        check_finite: bool = False,
        trace=None,
        measure: bool = False,
        target: str | None = None,
        **kwargs,
    ) -> list:
        """Runs on all ranks of the mesh, with the arguments of the model: a session of one call,
        which starts from the model's state and forgets the new one.

        `entry` is the entry to run; the default is the model's first.
        Each rank computes with `threads_per_rank` threads (default: MESHWRIGHT_THREADS, or 1),
        which changes no result, and waits in a collective for at most `timeout` seconds (default:
        MESHWRIGHT_TIMEOUT, or 30). With `check_finite` the run fails where an op gives NaN or
        infinity, and names the first one. `trace` is a file for what each rank and stream does
        when, which Perfetto opens; with `measure` the report says where time and memory went.
        `target` is the target to compile for: "cpu", this machine's processor, or "cpu:NAME",
        another one by LLVM's name ("cpu:x86-64-v3"), whose code this one has to be able to run.
        The default is the plan's own target. Another one schedules anew, and the report then
        describes that schedule.

        Returns the outputs, flattened in the model's order, None left out: PyTorch tensors if any
        input is one, else JAX arrays if any input is one, else NumPy arrays. If an input is in the memory of a GPU, and the backend
        computes on GPUs, outputs are on that GPU: PyTorch tensors, JAX arrays or DeviceArrays.
        """
        _refuse_target_cpu(kwargs.get("target_cpu"))
        if target is not None and not isinstance(target, str):
            kwargs["target"], target = target, None  # an input of that name
        entry, inputs, finish = self._inputs(entry, args, kwargs)
        kind = kind_of_inputs(inputs) if inputs else self._model._kind
        options = _core.RunOptions()
        options.entry = entry.name
        options.backend = backend_name(backend)
        options.threads_per_rank = arguments.positive("threads_per_rank", threads_per_rank, Integral)
        options.timeout = arguments.positive("timeout", timeout, Real)
        options.check_finite = arguments.flag("check_finite", check_finite)
        options.trace = "" if trace is None else arguments.path("trace", trace)
        options.measure = arguments.flag("measure", measure)
        options.target = target_name(target)
        call = Call(backend, inputs, entry.outputs, kind)
        options.output_gpu = call.gpu
        with keeping(self._plan, (inputs, call), dict(self._parameters)), Phase("running"):
            unwrap(self._plan.run(call.inputs, call.addresses, options), call="run")
        return finish(call.finish()) if finish else call.finish()

    def check(
        self, *args, tolerance: float | None = None, entry: str | None = None, **kwargs
    ) -> dict[str, float]:
        """Compares every output of an entry, and the state after it, with the unsharded program's
        on one rank. Both start from the model's state.

        Returns the largest difference of each output, relative to its largest entry. Raises
        CheckFailed, naming the first value in program order that differs, if one is above
        `tolerance` (default: by type, f32 1e-5, bf16 2e-2).
        """
        entry, inputs, _ = self._inputs(entry, args, kwargs)
        inputs = on_host(inputs)
        if tolerance is None:
            tolerance = -1.0  # the types' own
        else:
            tolerance = arguments.tolerance(tolerance)
        with keeping(self._plan, inputs, dict(self._parameters)), Phase("checking"):
            result = unwrap(self._plan.check([i.raw for i in inputs], tolerance, entry.name), call="check")
        differences = {output.name: output.difference for output in result.outputs}
        if not result.passed:
            diagnostic = Diagnostic(
                result.first_difference, "error", result.file or None, result.line or None
            )
            raise CheckFailed([placed(diagnostic)], differences)
        return differences

    def compile(
        self, path, target: str | None = None, *, weights: bool = True, target_cpu=None
    ) -> dict:
        """Writes a bundle: a folder that runs without the compiler, by `sharding-run path`.

        It holds machine code, the ranks' parts of the weights and the report (docs/bundles.md). It
        appears whole or not at all, and replaces no folder but another bundle. `target` is as in
        `run`. With `weights=False` it holds no weights: a session of it is given some. Sessions of
        the bundle of a model that trains have `state_dict` and `load_state_dict`, too.

        Returns how many distinct kernels the program has, how many came from the cache on disk,
        and the milliseconds of the others and of the list of calls.
        """
        _refuse_target_cpu(target_cpu)
        path = arguments.path("path", path)
        target, weights = target_name(target), arguments.flag("weights", weights)
        if weights:
            self._set_parameters()
        training = self._model._training(self._plan.states)
        layout, _owners = training.layout() if training else (None, None)
        with Phase("compiling"):
            written = self._plan.compile(path, target, weights, layout)
        summary = unwrap(written, call="compile")
        return {
            "kernels": summary.kernels,
            "cached_kernels": summary.cached_kernels,
            "compiled_kernels": summary.compiled_kernels,
            "entry_milliseconds": summary.entry_milliseconds,
        }

    def _set_parameters(self):
        self._check_weights()
        names = self._model._parameters
        with Phase("setting parameters", len(names)) as phase, self._lock:
            self._model._compute_constants()
            for name in names:
                phase.step()
                tensor = self._model._parameter(name)
                if self._parameters.get(name) is not tensor:
                    pieces = [tensor.pieces] if tensor.pieces else []
                    unwrap(self._plan.set_parameter(name, tensor.raw, *pieces))
                    self._parameters[name] = tensor

    def _inputs(self, entry, args, kwargs):
        """The call of an entry."""
        self._check_weights()
        if entry is not None and not isinstance(entry, str):
            kwargs["entry"], entry = entry, None  # an input of that name
        call = self._model._prepare(self._plan.entries, entry, args, kwargs)
        self._set_parameters()
        return call

    def _check_weights(self):
        model = self._model
        if model._meta:
            raise Error(
                "the model's weights are on the meta device: it can be planned, not run; import "
                "it with real weights, or save the plan's program and run it where they are"
            )
        if not model._parameters and self._plan.parameters:
            raise Error("the model has no weights: load it with its safetensors file to run it")

    def __repr__(self):
        return f"<meshwright.Plan for {self.ranks} ranks of {self._model!r}>"


def _decision(remark):
    """A remark of the import as a decision of the report."""
    location = {"file": remark.file or "", "line": remark.line or 0, "name": ""}
    return {
        "pass": "import",
        "outcome": "declined",
        "message": remark.message,
        "location": location,
        "numbers": {},
    }


def _said(alternatives) -> str:
    """The plan of a model that serves, the next three, and why each lost: lines of a report."""
    lines = ["planner: the chosen plan, and the next best"]
    for plan in alternatives[:4]:
        lines.append(f"  {spell(plan['options'])}: {plan['tokens_per_second']:,.0f} tokens a second, "
                     f"{bytes_text(plan['memory_per_rank'])} a rank; {plan['loses'] or 'chosen'}")
    return "\n".join(lines) + "\n"


def _with_remarks(report, remarks, choices):
    """The text of a report with remarks of the import among its decisions, equal ones once, and with choices."""
    places, head = {}, "decisions\n"
    for remark in remarks:
        places.setdefault(remark.message, []).append(remark.place.removesuffix(": "))
    lines = ""
    for message, where in places.items():
        count = f" {len(where)}x" if len(where) > 1 else ""
        lines += f"  declined{count}  import: {message}\n"
        lines += f"      at {where[0]}\n" if where[0] else ""
    lines += "".join(f"  {choice['outcome']}  {choice['pass']}: {choice['message']}\n" for choice in choices)
    if not lines:
        return report
    before, found, behind = report.partition("\n" + head)
    return f"{before}\n{head}{lines}{behind}" if found else f"{report}{head}{lines}"


def target_name(value):
    return "" if value is None else arguments.text("target", value, "the name of a target, or None")


def _refuse_target_cpu(value):
    """The old name of `target`; arrays are inputs of that name."""
    if isinstance(value, str):
        raise Error(f"'target_cpu' is now 'target': expected target='cpu:{value}'")
