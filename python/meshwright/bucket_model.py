# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Models, plans and sessions with an entry for each bucket of sizes.

All entries share weights and state. A plan and a session hold the entries that were called; another one is
planned and compiled at its first call, and the session goes on with the state that it has.
"""

import functools
import threading
import warnings

import numpy as np

from . import _core, arguments
from .buckets import Buckets, checked
from .errors import CheckFailed, Diagnostic, Error, MeshwrightWarning, unwrap
from .inputs import Prepared, check_inputs, find_entry
from .joining import joined
from .model import Model, _model_of
from .options import spell
from .plan import Plan, target_name
from .progress import Phase
from .session import Session, session_options
from .tensors import ELEMENT_TYPES, as_numpy, dense


def import_buckets(module, args, kwargs, shapes, buckets, options) -> "BucketModel":
    """A module as a program for each bucket. Raises ImportFailed."""
    if shapes is None or buckets is None:
        given, missing = ("dynamic_shapes", "buckets")[:: 1 if buckets is None else -1]
        raise Error(f"{given} without {missing}: expected both, or none of them")
    from .importer.torch.dynamic import Dynamic, entry_name
    from .importer.torch.program import import_module

    dynamic = Dynamic(module, args, kwargs or {}, shapes, checked(buckets))
    imported, constants = {}, {}
    for capacities in dynamic.capacities():
        program = import_module(
            module,
            args,
            kwargs,
            dynamic=dynamic,
            capacities=capacities,
            constants=constants,
            **options,
        )
        constants = program.graph.constants
        imported[entry_name(capacities)] = program
    return BucketModel({name: _model_of(program, name) for name, program in imported.items()})


class BucketModel(Model):
    """A model whose sizes change from call to call: what `from_torch` with `buckets` returns."""

    def __init__(self, parts: dict[str, Model]):
        super().__init__(*joined(parts))
        #: The model of each bucket, by its name. Its entry has this name; several have it behind their
        #: own.
        self._parts = parts
        self._loss = next(iter(parts.values()))._loss
        first = next(iter(parts.values()))
        self._kinds = first.entries if len(first.entries) > 1 else [""]
        self._buckets = Buckets(
            {name: next(iter(part._imported.values())).sizes for name, part in parts.items()}
        )

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs, in order. The sizes of a call are none of them."""
        return [port.name for port in self._given(self._program.entries[0])]

    def bucket(self, *args, **kwargs) -> str:
        """The entry that a call takes: it holds the call, with the least product of sizes."""
        return self._call(None, args, kwargs)[0]

    @functools.wraps(Model.parallelize)  # its signature
    def parallelize(self, **options) -> "BucketPlan":
        return BucketPlan(self, options)

    def differentiate(self, loss=0, parameters=("*",)) -> "BucketModel":
        return self._each(lambda part: part.differentiate(loss, parameters))

    def train(self, optimizer, loss=0, parameters=("*",), microbatches=1, *args, **options):
        if microbatches != 1:
            raise Error(
                f"microbatches of a model with buckets: expected 1, got {arguments.said(microbatches)}; gradients "
                "of chunks of several sizes are not added up"
            )
        return self._each(lambda part: part.train(optimizer, loss, parameters, 1, *args, **options))

    for _method in (differentiate, train):
        _method.__doc__ = getattr(Model, _method.__name__).__doc__
    del _method

    def _each(self, change) -> "BucketModel":
        return BucketModel({name: change(part) for name, part in self._parts.items()})

    def part(self, buckets) -> "BucketModel":
        """The model with some of its buckets."""
        part = BucketModel({name: part for name, part in self._parts.items() if name in buckets})
        part._parameters = {name: self._parameters[name] for name in part._parameters}
        return part

    def bucket_of(self, entry: str) -> str:
        """The bucket of an entry."""
        return next(b for b in self._parts for kind in self._kinds if self._entry(kind, b) == entry)

    @staticmethod
    def _entry(kind: str, bucket: str) -> str:
        return f"{kind},{bucket}" if kind else bucket

    def _training(self, ports):
        return next(iter(self._parts.values()))._training(ports)

    def _given(self, entry):
        """The ports of an entry that callers give."""
        sizes = self._buckets.entries[self.bucket_of(entry.name)].arguments
        names = {f"size.{name}" for name in sizes}
        return [port for port in entry.inputs if port.name not in names]

    def _call(self, name, args, kwargs):
        """The entry of a call, its sizes, and the values of its inputs. The name of an entry may be that
        of a kind, of which the call takes the bucket, or None for the first kind."""
        kind = self._kinds[0] if name is None else name
        chosen = kind not in self._kinds
        if chosen:
            named = find_entry(self._program.entries, name).name
            kind = named.removesuffix(self.bucket_of(named)).removesuffix(",")
        bucket, part = next(iter(self._parts.items()))
        ports = self._given(find_entry(self._program.entries, self._entry(kind, bucket)))
        values = part._values(kind or part.entries[0], ports, args, kwargs)
        names = [port.name for port in ports]
        sizes = self._buckets.sizes(names, values)
        if not chosen:
            self._buckets.check_fits(sizes, names)
            return self._entry(kind, self._buckets.choose(sizes)), sizes, values
        self._buckets.check_holds(named, self.bucket_of(named), sizes, names)
        return named, sizes, values

    def _to_check(self, name, args, kwargs):
        if self._kinds != [""]:
            raise Error(
                "a check of a step of a model with buckets is not covered: expected `check` of the model "
                "before `train`"
            )
        name, _, found = self._call(name, args, kwargs)
        ports = self._given(find_entry(self._program.entries, name))
        values = {port.name: dense(value) for port, value in zip(ports, found, strict=True)}
        return self.part([self.bucket_of(name)]), name, lambda: values

    def _prepare(self, entries, name, args, kwargs) -> Prepared:
        name, sizes, values = self._call(name, args, kwargs)
        entry, bucket = find_entry(entries, name), self.bucket_of(name)
        ports = self._given(entry)
        call = self._buckets.entries[bucket].at(sizes)
        inputs = iter(check_inputs(ports, self._buckets.padded(bucket, ports, values)))
        given = {port.name for port in ports}
        every = [
            next(inputs) if port.name in given else _number(port, call.arguments)
            for port in entry.inputs
        ]
        return Prepared(entry, every, call.cut)


def _number(port, sizes):
    """The array of a port that is a size."""
    value = np.asarray(sizes[port.name.removeprefix("size.")], np.int64)
    return check_inputs([port], [value])[0]


def _difference(got, want):
    """The largest difference of two arrays, relative to the largest entry, and their type. NaN equals
    NaN."""
    a, b = (dense(value) for value in (got, want))
    got, want = (as_numpy(value).astype(np.float64) for value in (a, b))
    if not want.size:
        return 0.0, b.dtype
    with np.errstate(all="ignore"):
        apart = np.where((got == want) | np.isnan(got) & np.isnan(want), 0.0, np.abs(got - want))
    largest = np.max(np.abs(want), initial=0.0, where=np.isfinite(want)) or 1.0
    found = float(np.max(apart)) / float(largest)
    return (found if np.isfinite(found) else np.inf), b.dtype


class BucketPlan(Plan):
    """The plan of a model with buckets: of each entry one, from its first call on."""

    def __init__(self, model, options):
        self._model, self._spelled, self._options = model, spell(options), options
        self._lock = threading.Lock()
        self._parts: dict[tuple, Plan] = {}
        # Options that do not fit are an error at once.
        self._first = self._part(list(model._parts)[:1])

    def _part(self, buckets) -> Plan:
        """The plan of some buckets."""
        key = tuple(name for name in self._model._parts if name in buckets)
        with self._lock:
            if key not in self._parts:
                part = self._model.part(key)
                with Phase("planning"):
                    plan = _core.Plan.parallelize(part._program, self._spelled)
                planned = unwrap(plan, stacklevel=5, call="parallelize")
                self._parts[key] = Plan(part, planned, self._options)
            return self._parts[key]

    def _of_call(self, entry, args, kwargs):
        """The plan of the entry of a call, and its name."""
        if entry is not None and not isinstance(entry, str):
            kwargs["entry"], entry = entry, None  # an input of that name
        self._check_weights()
        entry = self._model._call(entry, args, kwargs)[0]
        return self._part([self._model.bucket_of(entry)]), entry

    @property
    def ranks(self) -> int:
        return self._first.ranks

    @property
    def _plan(self):
        """The plan of all entries."""
        return self._part(self._model._parts)._plan

    def report(self, format: str = "text", entry: str | None = None, verbose: bool = False):
        name = find_entry(self._model._program.entries, entry).name
        return self._part([self._model.bucket_of(name)]).report(format, name, verbose)

    def _facts(self, entry):
        name = find_entry(self._model._program.entries, entry).name
        return self._part([self._model.bucket_of(name)])._facts(name)

    def run(self, *args, entry: str | None = None, **options) -> list:
        plan, entry = self._of_call(entry, args, options)
        return plan.run(*args, entry=entry, **options)

    def check(self, *args, tolerance: float | None = None, entry: str | None = None, **kwargs):
        """Compares the outputs of a call, cut to its sizes, and the state after it, with those of the
        plan of one rank. Both start from the model's state.

        Returns the largest difference of each, relative to its largest entry. Raises CheckFailed if one
        is above `tolerance` (default: by type, f32 1e-5, bf16 2e-2).
        """
        if tolerance is not None:
            tolerance = arguments.tolerance(tolerance)
        plan, entry = self._of_call(entry, args, kwargs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MeshwrightWarning)
            alone = plan._model.parallelize(mesh={"dp": 1})
        values = []
        for each in (plan, alone):
            with each.start() as session:
                outputs = session.run(*args, entry=entry, **kwargs)
                values.append([*outputs, *session.state().values()])
                ports = find_entry(plan._plan.entries, entry).outputs, session._session.states
        names = [port.name for group in ports for port in group]
        imported = plan._model._imported[entry]
        places = [node.loc for node in imported.graph.outputs]
        differences, problems = {}, []
        for i, (name, got, want) in enumerate(zip(names, *values, strict=True)):
            found, dtype = _difference(got, want)
            allowed = ELEMENT_TYPES[dtype].tolerance if tolerance is None else tolerance
            differences[name] = found
            if not found <= allowed:
                loc = places[i] if i < len(places) else None
                what = "output" if i < len(ports[0]) else "state"
                problems.append(
                    Diagnostic(
                        f"{what} '{name}': expected a difference of at most {allowed:.2g} of its largest "
                        f"entry, got {found:.2g}",
                        "error",
                        *((loc.file or None, loc.line or None) if loc else (None, None)),
                    )
                )
        if problems:
            raise CheckFailed(problems, differences)
        return differences

    def compile(self, path, target: str | None = None, **options) -> dict:
        return self._part(self._model._parts).compile(path, target, **options)

    def start(
        self,
        backend: str = "local",
        threads_per_rank: int | None = None,
        timeout: float | None = None,
        state=None,
        recover: bool = True,
        graphs: str = "auto",
        target: str | None = None,
    ) -> "BucketSession":
        options = session_options(backend, threads_per_rank, timeout, state, recover, graphs)
        options.target = target_name(target)
        return BucketSession(self, options)

    for _method in (report, run, compile, start):
        _method.__doc__ = getattr(Plan, _method.__name__).__doc__
    del _method


class BucketSession(Session):
    """A session with the entries that were called so far: what `start` of a plan with buckets returns."""

    def __init__(self, plan, options):
        self._bucket_plan, self._options = plan, options
        self._model = plan._model
        self._begun: tuple = ()
        self._weights: dict = {}
        self._open, self._is_closed = None, False
        if options.state:
            self._enter(list(self._model._parts)[:1])  # a folder that does not fit is an error at once

    @property
    def entries(self) -> list[str]:
        self._check_open()
        return self._model.entries

    def _prepared(self, name, args, kwargs):
        self._check_open()
        call = self._model._prepare(self._model._program.entries, name, args, kwargs)
        self._enter([self._model.bucket_of(call.entry.name)])
        return call

    def warm_up(self) -> None:
        """Plans and compiles all entries, each of which would be at its first call."""
        self._check_open()
        self._enter(self._model._parts)

    def close(self) -> None:
        super().close()
        self._is_closed = True

    @property
    def _session(self):
        self._check_open()
        if self._open is None:
            self._enter(list(self._model._parts)[:1])
        return self._open

    def _check_open(self):
        if self._is_closed:
            raise Error("the session is closed")

    def _enter(self, buckets):
        """Takes buckets into the session. Ranks and their memory are made anew, with the state that
        there is."""
        wanted = tuple(b for b in self._model._parts if b in buckets or b in self._begun)
        if wanted == self._begun:
            return
        plan = self._bucket_plan._part(wanted)
        if self._open is None:
            return self._begin(plan, wanted)
        before, begun = self._bucket_plan._part(self._begun), self._begun
        self._check_weights(plan)
        state, extras = self.state(), self._open.extras
        self._open = None  # frees the weights before the others are there
        try:
            self._begin(plan, wanted, state, extras)
        except BaseException:
            self._begin(before, begun, state, extras)
            raise

    def _begin(self, plan, buckets, state=None, extras=None):
        started = plan._started(self._options)
        if state:
            started.set_state(state)
        if extras is not None:
            unwrap(started._session.set_extras(extras))
        self._options.state = ""
        self._begun, self._weights = buckets, self._versions(plan)
        vars(self).update(vars(started))

    def _check_weights(self, plan):
        """A session keeps the weights that it began with."""
        plan._set_parameters()
        now = self._versions(plan)
        changed = next((n for n, version in self._weights.items() if now.get(n) != version), None)
        if changed is not None:
            raise Error(
                f"'{changed}' has changed since the session began, and a new entry would not have the "
                "session's own value: expected `warm_up` before, or another session"
            )

    @staticmethod
    def _versions(plan):
        known, states = plan._model._dense, {port.name for port in plan._plan.states}
        return {
            name: (known[name][1], id(known[name][2]))
            for name in plan._parameters
            if name not in states
        }

    def __repr__(self):
        if self._is_closed:
            return "<meshwright.BucketSession, closed>"
        return f"<meshwright.BucketSession entries=[{', '.join(self.entries)}]>"
