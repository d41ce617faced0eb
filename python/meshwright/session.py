# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Sessions: a running program, whose state stays from call to call."""

import contextlib
from numbers import Integral, Real

import numpy as np

from . import _core, arguments, state_dict_form, state_dicts
from .backends import backend_name
from .devices import Call
from .errors import Diagnostic, Error, unwrap
from .inputs import prepare_by_name
from .progress import Phase
from .requests import Serving
from .tensors import (
    Dense,
    dense,
    empty,
    finished,
    is_jax,
    is_meta,
    is_torch,
    kind_of_inputs,
    unjoined,
)


class Session(Serving):
    """A program on its ranks, with its weights and its state: what `Plan.start` returns.

    The state stays from call to call. A call that fails leaves it as it was. Use it as a context
    manager, or call `close`: both end its ranks and free its memory.
    """

    def __init__(self, session, backend, prepare, kind, kept=None, fixed=None, training=None, plan=None):
        self._open = arguments.instance("session", session, _core.Session, "a session of Plan.start")
        self._backend = backend
        #: (entries, the name of one or None, args, kwargs) -> a Prepared call.
        self._prepare = prepare
        #: The library of states, and of outputs of calls without inputs: "torch", "jax" or "numpy".
        self._kind = kind
        #: The weights, which ranks may read in place.
        self._kept = kept
        #: The model's own parameters; trained ones are state instead. A model that trains also has
        #: the parameters here that its program does not read.
        self._fixed = {} if fixed is None else fixed
        #: How the states map to PyTorch's state dicts; None if the session does not train.
        self._training = training
        #: The plan that runs; None for a bundle.
        self._plan = plan
        #: The entries that have run: a first call compiles, and shows that it is at work.
        self._ran: set[str] = set()

    @property
    def entries(self) -> list[str]:
        """Names of the entries; the first is the default."""
        return [entry.name for entry in self._session.entries]

    def run(self, *args, entry: str | None = None, check_finite: bool = False, **kwargs) -> list:
        """Runs an entry once, with the arguments of the model. Default: the model's first entry.

        With `check_finite` the call fails where an op gives NaN or infinity. Returns the outputs as
        `Plan.run` does. Ctrl-C ends the call within a second by a KeyboardInterrupt, which leaves the
        state as it was.
        """
        if entry is not None and not isinstance(entry, str):
            kwargs["entry"], entry = entry, None  # an input of that name
        is_checked = arguments.flag("check_finite", check_finite)
        entry, inputs, finish = self._prepared(entry, args, kwargs)
        session = self._session
        kind = kind_of_inputs(inputs) if inputs else self._kind
        call = Call(self._backend, inputs, entry.outputs, kind)
        first = entry.name not in self._ran
        with keeping(session, (inputs, call), self._kept), Phase("running", shown=first):
            unwrap(session.run(entry.name, call.inputs, call.addresses, is_checked, call.gpu), call="run")
        self._ran.add(entry.name)
        return finish(call.finish()) if finish else call.finish()

    def _prepared(self, name, args, kwargs):
        return self._prepare(self._session.entries, name, args, kwargs)

    def state(self) -> dict:
        """The state by name: copies of the global tensors, without padding."""
        session = self._session
        arrays = [empty(port.dtype, port.shape, self._kind) for port in session.states]
        unwrap(session.get_state(_addresses(arrays)))
        done = [finished(array, self._kind) for array in arrays]
        return {port.name: array for port, array in zip(session.states, done, strict=True)}

    def parameters(self) -> dict:
        """The model's parameters by name: copies of the global tensors. A trained one that has a
        value in f32 beside its own is in f32. Those of a bundle are the trained ones."""
        state, unread = self.state(), self._loaded.unread
        values = {name: _copy(unread.get(name, value)) for name, value in self._fixed.items()}
        for port in self._session.states:
            if port.role == "parameter":
                values[port.name] = state.get(f"master.{port.name}", state[port.name])
        return values

    def set_state(self, values: dict) -> None:
        """Sets states by name: all that are given. An unknown name, another shape or another type
        is an Error, and then nothing is set."""
        session = self._session
        arguments.mapping("values", values, "states by name")
        arrays, problems = [], []
        known = {port.name: port for port in session.states}
        for name, value in values.items():
            if name not in known:
                problems.append(f"there is no state '{name}'")
                continue
            try:
                array = None if is_meta(value) else dense(value)
            except (TypeError, ValueError):
                array = None
            expected = Dense(known[name].dtype, tuple(known[name].shape), 0, None)
            if array is None:
                problems.append(f"state '{name}' is given a {type(value).__name__}: no array")
            elif (array.dtype, array.shape) != (expected.dtype, expected.shape):
                problems.append(f"state '{name}': expected {expected}, got {array}")
            else:
                arrays.append((name, array))
        if problems:
            raise Error([Diagnostic(problem) for problem in problems])
        unwrap(session.set_state([(name, array.raw) for name, array in arrays]))

    def state_dict(self) -> dict:
        """The state as PyTorch writes it: {"model": the module's state_dict, "optimizer": that of
        torch.optim's optimizer of the parameters that are trained}. Both hold copies.

        With loss_scale="auto" the key "scaler" has the state of a torch.amp.GradScaler. A parameter
        that has a value in f32 beside its own is in f32. Random numbers are not part of it; `save`
        keeps them.
        """
        return state_dicts.to_state_dict(self._known_training(), self.state(), self._loaded)

    def load_state_dict(self, saved: dict) -> None:
        """Sets the state from what `state_dict` gives, or from PyTorch's state_dicts of the module
        and the optimizer. Sets all of it, or nothing after an Error. Calls without `lr` take the
        optimizer's learning rate from it. Its other numbers are compiled: other values than those of
        the model are an Error that says with which optimizer to train."""
        saved = state_dict_form.checked(saved)
        ports = self._session.states
        values, loaded = state_dicts.from_state_dict(self._known_training(), ports, saved)
        self.set_state(values)
        unwrap(self._session.set_extras(loaded.extras()))

    @property
    def _loaded(self):
        return state_dicts.Loaded.of(self._session.extras)

    def _known_training(self):
        if self._training is None:
            raise Error(
                "the session has no optimizer: expected one of a plan of Model.train, or of a "
                "bundle that such a plan compiled"
            )
        return self._training

    def save(self, path) -> None:
        """Writes the state to a folder, from which a session of any plan of the model can start:
        whole, or not at all. Another process that saves to the folder at that time is an Error. The
        learning rate that `load_state_dict` was given is part of it, and so are the requests of a session
        that serves: another session goes on with them, with their pages where groups and pages are
        equal, and computes them again elsewhere."""
        saving = self._server if self._session.serves else self._session
        with Phase("saving state"):
            unwrap(saving.save(arguments.path("path", path)))

    def close(self) -> None:
        """Ends the session."""
        self._open = self._opened = None

    @property
    def _session(self):
        session = self._open
        if session is None:
            raise Error("the session is closed")
        return session

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        if self._open is None:
            return "<meshwright.Session, closed>"
        return f"<meshwright.Session entries=[{', '.join(self.entries)}]>"

    def _repr_html_(self):
        """The program that runs, or that ran before the session was closed, and the page of its plan, for
        notebooks."""
        from .pages.cards import session_card

        if self._open is None:
            rows = [("session", "closed"), ("backend", self._backend)]
        else:
            states = self._session.states
            rows = [("entries", ", ".join(self.entries)), ("backend", self._backend), ("states", f"{len(states):,}")]
        return session_card(self, rows, self._plan)


class Bundle:
    """A compiled program on disk: what `load_bundle` returns."""

    def __init__(self, path):
        self._path = arguments.path("path", path)
        self._bundle = unwrap(_core.Bundle.open(self._path))

    @property
    def entries(self) -> list[str]:
        """Names of the entries; the first is the default."""
        return [entry.name for entry in self._bundle.entries]

    @property
    def ranks(self) -> int:
        return self._bundle.num_ranks

    def start(
        self,
        backend: str = "local",
        threads_per_rank: int | None = None,
        timeout: float | None = None,
        state=None,
        recover: bool = True,
        graphs: str = "auto",
        weights=None,
        random_weights: int | None = None,
    ) -> Session:
        """Starts a session, as `Plan.start` does. Inputs are given by position or by name.

        A bundle without weights is given some: `weights`, a safetensors file, or `random_weights`,
        a seed of random ones (docs/running.md).
        """
        options = session_options(backend, threads_per_rank, timeout, state, recover, graphs)
        if weights is not None:
            weights = options.weights = arguments.path("weights", weights)
        if random_weights is not None:
            options.random_weights = arguments.integer("random_weights", random_weights, 0)
        with Phase("starting"):
            session = unwrap(self._bundle.start(options))
        layout = session.state_dict
        training = layout and state_dicts.training_of_bundle(layout, weights)
        return Session(session, backend, prepare_by_name, "numpy", training=training)

    def __repr__(self):
        return f"<meshwright.Bundle '{self._path}' for {self.ranks} ranks>"


def load_bundle(path) -> Bundle:
    """Opens a bundle that `Plan.compile` or `sharding-compile` wrote."""
    with Phase("opening bundle"):
        return Bundle(path)


def session_options(backend, threads_per_rank, timeout, state, recover, graphs):
    options = _core.SessionOptions()
    options.backend = backend_name(backend)
    options.threads_per_rank = arguments.positive("threads_per_rank", threads_per_rank, Integral)
    options.timeout = arguments.positive("timeout", timeout, Real)
    saved = "a folder that a session saved to"
    options.state = "" if state is None else arguments.path("state", state, expected=saved)
    options.recover = arguments.flag("recover", recover)
    options.graphs = arguments.text("graphs", graphs, '"on", "off" or "auto"')
    return options


@contextlib.contextmanager
def keeping(owner, inputs, weights):
    """A rank that does not come back from a run that fails, or that a signal ends, may read on: then
    the memory is never freed, not even as the interpreter ends."""
    try:
        yield
    except BaseException:
        if owner.is_stuck:
            _core.keep((inputs, weights))
        raise


def _copy(value):
    value = unjoined(value)
    if is_jax(value):  # nothing writes to it
        return value
    return value.detach().clone() if is_torch(value) else np.array(value)


def _addresses(arrays):
    return [a.data_ptr() if is_torch(a) else a.ctypes.data for a in arrays]
