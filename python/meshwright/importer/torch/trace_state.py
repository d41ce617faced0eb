# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""State outside of tensors that a forward pass changes: random generators and plain attributes.

A trace has the values that this state gives in one call. `traced` compares the state before and behind
a trace. Only where it has changed, `traced` traces again: it finds the line, and whether the graph
depends on the state.
"""
import collections
import contextlib
import contextvars
import copy
import functools
import inspect
import io
import itertools
import sys
import types
import warnings
import zlib
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from ..errors import Diagnostic, ImportFailed
from .generators import (
    GENERATORS,
    GLOBAL_GENERATORS,
    counting_draws,
    extreme,
    put_back,
    reseed,
    state_of_generator,
)
from .locations import calling_line, is_in_torch, is_model_file
from .patches import patched

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
#: Values that their text tells whole.
_BY_TEXT = (np.generic, torch.device, torch.dtype, range, slice, itertools.count)
_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
#: A container of more numbers and texts counts by its length, an array of more bytes by its first ones.
_MOST_ELEMENTS, _MOST_BYTES = 1 << 20, 1 << 24
#: A snapshot looks into so many objects and containers; further ones count by their types.
_MOST_OBJECTS = 20_000
#: Containers and objects of the model's classes are looked into up to this depth, objects of a
#: library's classes up to the second one.
_DEPTH, _DEPTH_OF_LIBRARIES = 40, 3
#: Libraries into whose functions and variables a snapshot does not look: they are no part of the model.
_LIBRARIES = sys.stdlib_module_names - {"__main__"} | {"torch", "numpy", "transformers", "triton",
                                                       __package__.split(".")[0]}
#: Standard classes of objects that hold the model's own values.
_STANDARD = (types.SimpleNamespace, collections.UserDict, collections.UserList, collections.ChainMap)
#: What each module has, but `training`.
_OF_MODULES = frozenset(vars(torch.nn.Module())) - {"training"}


class Place(NamedTuple):
    """Where a piece of state lives."""
    owner: Any
    key: str


class Snapshot:
    """The state that a module's forward pass can reach: names, as messages have them, and
    fingerprints that compare equal where the state is the same."""

    def __init__(self, module: torch.nn.Module):
        self.states: dict[str, Any] = {}
        self.places: dict[str, Place] = {}
        self.generators: dict[str, Any] = {}
        self._put_back: list = []
        #: What attributes of modules hold.
        self._values: dict[str, Any] = {}
        self._known: dict[int, Any] = {}
        self._functions: set = set()
        self._files: set = set()
        self._left = _MOST_OBJECTS
        self._keep: list = []
        for name, generator in GLOBAL_GENERATORS.items():
            self._generator(name, generator)
        kinds = set()
        for path, part in module.named_modules():
            where = f"module {path}" if path else "the module"
            for key, value in vars(part).items():
                if key not in _OF_MODULES:
                    self._add(f"attribute {key} of {where}", part, key, value)
            for hooks in (part._forward_hooks, part._forward_pre_hooks):
                for hook in hooks.values():
                    self._function(hook)
            kinds.add(type(part))
        for kind in kinds:
            self._class(kind)

    def differences(self, other: "Snapshot") -> list[str]:
        """Names of what `other` has in another state."""
        return [name for name in {**self.states, **other.states}
                if self.states.get(name, self) != other.states.get(name, self)]

    def put_generators_back(self):
        for restore in self._put_back:
            restore()

    @contextlib.contextmanager
    def put_in_place(self, names):
        """Lets attributes of modules have the values of this snapshot."""
        places = [self.places[n] for n in names if n in self.places and n in self._values]
        kept = [vars(owner).get(key) for owner, key in places]
        try:
            for name in names:
                if name in self._values:
                    place = self.places[name]
                    place.owner.__dict__[place.key] = self._values[name]
            yield
        finally:
            for (owner, key), value in zip(places, kept):
                owner.__dict__[key] = value

    # What there is.

    def _add(self, name, owner, key, value):
        if type(value) not in _PLAIN and isinstance(value, GENERATORS):
            self._generator(f"the generator in {name}", value)
        else:
            self.places[name] = Place(owner, key)
            self.states[name] = self._fingerprint(value, _DEPTH)
            if isinstance(owner, torch.nn.Module):
                self._values[name] = copy.copy(value) if isinstance(value, _CONTAINERS) else value

    def _generator(self, name, generator):
        if generator not in self.generators.values():
            self.generators[name] = generator
            self.states[name] = state_of_generator(generator)
            self._put_back.append(put_back(generator))

    def _class(self, kind):
        """Attributes of a class, and what its functions reach."""
        for base in kind.__mro__:
            root = base.__module__.split(".")[0]
            if root in _LIBRARIES - {"transformers"} or id(base) in self._known:
                continue
            self._known[id(base)] = None
            for key, value in vars(base).items():
                function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                if not isinstance(value, type) and isinstance(inspect.unwrap(function), types.FunctionType):
                    self._function(function)
                elif not key.startswith("__") and (
                        isinstance(value, _PLAIN + (list, dict, set)) or
                        root not in _LIBRARIES and not inspect.isroutine(value) and
                        not inspect.isdatadescriptor(value)):
                    self._add(f"attribute {key} of class {base.__name__}", base, key, value)

    def _function(self, function):
        """The state that a function reads around it: variables of its file and of functions around it, its
        default arguments and its attributes."""
        if isinstance(function, types.MethodType):
            self._owner(function.__self__)
            function = function.__func__
        if isinstance(function, functools.partial):
            self._fingerprint((function.args, function.keywords), _DEPTH)
            function = function.func
        wrapped = getattr(function, "__wrapped__", None)
        if not isinstance(function, types.FunctionType):
            if wrapped is not None:
                self._function(wrapped)
            elif callable(function) and not inspect.isbuiltin(function):
                self._owner(function)
            return
        if function in self._functions:
            return
        self._functions.add(function)
        if wrapped is not None:
            self._function(wrapped)
        if _root_of_code(function) in _LIBRARIES - {"transformers"}:
            return
        self._variables(function.__globals__, _names(function.__code__), _root_of_code(function))
        name = function.__qualname__
        for key, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            with contextlib.suppress(ValueError):  # it is empty
                self._variable(f"{key} of {name}", cell.cell_contents, _DEPTH)
        kept = [x for x in (function.__defaults__ or ()) + tuple((function.__kwdefaults__ or {}).values())
                if type(x) not in _PLAIN]
        if kept:
            self.states[f"the default arguments of {name}"] = self._fingerprint(kept, _DEPTH)
        for key, value in vars(function).items():
            if key != "__wrapped__":
                self._variable(f"attribute {key} of {name}", value, _DEPTH, "")

    def _owner(self, value):
        """An object whose method is called."""
        if not isinstance(value, (torch.nn.Module, type)):
            name = f"an object of class {type(value).__name__}"
            self.states[f"{name} {id(value)}"] = self._fingerprint(value, _DEPTH)

    def _variables(self, around, names, root):
        """Variables of a file that a function may read."""
        known = (id(around), names)
        if known in self._files:
            return
        self._files.add(known)
        for key in names:
            if key not in around:
                continue
            value, kind = around[key], type(around[key])
            if kind in (types.BuiltinFunctionType, type(None)):
                continue
            if root in _LIBRARIES:  # of transformers
                if kind is types.FunctionType:
                    if value.__globals__ is around:
                        self._function(value)
                elif kind in _PLAIN or kind in _CONTAINERS:
                    self._variable(f"{key} of {around.get('__name__')}", value, 1)
            elif isinstance(value, types.ModuleType):
                if value.__name__.split(".")[0] not in _LIBRARIES:
                    self._variables(vars(value), names, "")
            elif isinstance(value, type):
                if value.__module__.split(".")[0] not in _LIBRARIES:
                    self._class(value)
            elif callable(value) and not isinstance(value, torch.nn.Module) and \
                    isinstance(inspect.unwrap(value), types.FunctionType):
                if _root_of_code(value) not in _LIBRARIES or _root_of_code(inspect.unwrap(value)) not in _LIBRARIES:
                    self._function(value)
            else:
                self._variable(f"{key} of {around.get('__name__')}", value, _DEPTH)

    def _variable(self, name, value, depth, what="variable "):
        if type(value) not in _PLAIN and isinstance(value, GENERATORS):
            self._generator(f"the generator {name}", value)
        elif not isinstance(value, torch.nn.Module):
            self.states[f"{what}{name}"] = self._fingerprint(value, depth)

    # Fingerprints.

    def _fingerprint(self, value, depth):
        kind = type(value)
        if kind in _PLAIN:
            return value if value == value else "nan"
        if isinstance(value, _BY_TEXT):
            return repr(value)
        if isinstance(value, FakeTensor):  # what the trace computes: its values are not known
            return tuple(value.shape), value.dtype
        if isinstance(value, torch.Tensor):
            self._keep.append(value)
            return "parameter" if isinstance(value, torch.nn.Parameter) else \
                (id(value), _version(value))
        if isinstance(value, torch.nn.Module) or depth <= 0 or self._left <= 0:
            return id(value) if not isinstance(value, _CONTAINERS) else (kind, len(value))
        if isinstance(value, GENERATORS):
            self._generator(f"a generator of type {kind.__name__}", value)
            return id(value)
        if id(value) in self._known:
            return self._known[id(value)]
        self._known[id(value)] = id(value)  # it may hold itself
        self._keep.append(value)
        self._left -= 1
        found = self._known[id(value)] = self._inside(value, kind, depth - 1)
        return found

    def _inside(self, value, kind, depth):
        if isinstance(value, _CONTAINERS):
            inside = self._elements(value, kind, depth)
            return inside if kind in _CONTAINERS else (inside, self._attributes(value, kind, depth))
        if isinstance(value, np.ndarray):
            count = _MOST_BYTES // max(value.itemsize, 1)
            return value.shape, str(value.dtype), zlib.crc32(value.reshape(-1)[:count].tobytes())
        if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
            self._function(value)
            return kind  # a call may define it anew
        if isinstance(value, (type, types.ModuleType)):
            return id(value)
        if isinstance(value, types.GeneratorType):
            frame = value.gi_frame
            return kind, frame and (frame.f_lasti, self._fingerprint(dict(frame.f_locals), depth))
        if isinstance(value, io.IOBase):
            with contextlib.suppress(OSError, ValueError):  # a pipe, a closed file
                return kind, value.tell()
            return kind
        if isinstance(value, contextvars.ContextVar):
            return kind, self._fingerprint(value.get(None), depth)
        return kind, self._attributes(value, kind, depth)

    def _elements(self, value, kind, depth):
        parts = itertools.chain(value.keys(), value.values()) if isinstance(value, dict) else value
        if len(value) > _MOST_ELEMENTS:
            return kind, len(value)
        if isinstance(value, (set, frozenset)):
            parts = sorted(value, key=hash)
        elif len(value) > 16:
            parts = tuple(parts)
            if _PLAIN_KINDS.issuperset(map(type, parts)):
                return kind, len(value), hash(parts)
        return kind, tuple(self._part(p, depth) for p in parts)

    def _attributes(self, value, kind, depth):
        """The attributes of an object, slots too. An object of Python's own types, an iterator
        say, tells its state as for pickle."""
        root = kind.__module__.split(".")[0]
        if root not in _LIBRARIES:
            self._class(kind)
        elif not isinstance(value, _STANDARD):
            depth = min(depth, _DEPTH_OF_LIBRARIES - 1)
        inside, slots = getattr(value, "__dict__", None), _slots(kind)
        if inside is None and not slots and root in sys.stdlib_module_names:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # iterators are not to be pickled in later versions
                    state = value.__reduce_ex__(4)
            except Exception:  # objects raise exceptions of any type
                return None
            return state if isinstance(state, str) else tuple(
                self._fingerprint(part, depth) for part in state if not callable(part))
        found = [(k, self._fingerprint(v, depth)) for k, v in list((inside or {}).items())]
        for name in slots:
            with contextlib.suppress(AttributeError):
                found.append((name, self._fingerprint(getattr(value, name), depth)))
        return tuple(found)

    def _part(self, part, depth):
        if type(part) is tuple:
            return tuple(self._fingerprint(p, max(depth, 0)) for p in part)
        return self._fingerprint(part, max(depth, 0))


_PLAIN_KINDS = frozenset(_PLAIN)


def _root_of_code(function) -> str:
    """The library in which a function is written: wrappers state the file of what they wrap."""
    around = getattr(function, "__globals__", None)
    name = around.get("__name__") if around is not None else getattr(function, "__module__", None)
    return (name or "").split(".")[0]


@functools.lru_cache(maxsize=4096)
def _slots(kind) -> tuple[str, ...]:
    """The names of the slots of a class's objects."""
    names = []
    for base in kind.__mro__:
        own = vars(base).get("__slots__", ())
        for name in [own] if isinstance(own, str) else own:
            if name.startswith("__") and not name.endswith("__"):
                name = f"_{base.__name__.lstrip('_')}{name}"
            if name not in ("__dict__", "__weakref__"):
                names.append(name)
    return tuple(names)


def _version(tensor):
    try:
        return tensor._version
    except RuntimeError:
        return None  # made in inference mode


@functools.lru_cache(maxsize=4096)
def _names(code) -> tuple[str, ...]:
    """Names that a function looks up around it, those of functions inside it included."""
    names = dict.fromkeys(code.co_names)
    for inner in code.co_consts:
        if inspect.iscode(inner):
            names.update(dict.fromkeys(_names(inner)))
    return tuple(names)


# Traces.

def traced(module: torch.nn.Module, trace):
    """What `trace()` returns: an exported program. Raises ImportFailed where it holds what another
    call would change: numbers drawn outside of PyTorch's operations, attributes of modules."""
    with counting_draws():
        program, before, after = _observed(module, trace)
        changed = before.differences(after)
        if not changed:
            return program
        try:
            problems = _problems(module, trace, program, before, after, changed)
        finally:
            before.put_generators_back()
    if problems:
        raise ImportFailed(problems)
    return program


def _observed(module, trace):
    """The program, and the state before and behind the forward pass: torch.export puts attributes of
    modules back."""
    found = []

    def look(*_):
        with _outside_of_trace():
            found.append(Snapshot(module))

    hooks = [module.register_forward_pre_hook(look, prepend=True), module.register_forward_hook(look)]
    try:
        program = trace()
    except BaseException:
        if found:
            found[0].put_generators_back()
        raise
    finally:
        for hook in hooks:
            hook.remove()
    if not found:  # a module with a call of its own
        look()
    return program, found[0], found[-1]


@contextlib.contextmanager
def _outside_of_trace():
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


def _problems(module, trace, program, before, after, changed) -> list[Diagnostic]:
    """Traces another call, from the state that the first one left."""
    drawn = [name for name in changed if name in before.generators]
    try:
        with after.put_in_place(changed):
            again, start, end = _observed(module, trace)
    except Exception:  # another call may have no graph: the first one has changed what it reads
        return [_drawn_problem(name, None) if name in drawn else
                _moved_problem(name, before, after, None) for name in changed]
    moved = [name for name in start.differences(end) if name not in start.generators]
    is_same = difference(program, again) is None
    if is_same:  # others may count calls, or keep what hooks see
        moved = [name for name in moved
                 if name in end.places and isinstance(end.places[name].owner, torch.nn.Module)]
    if is_same and not (drawn and _decides(program, trace, [before.generators[n] for n in drawn])):
        drawn = []
    if not is_same and not drawn:
        moved = moved or changed
    if not drawn and not moved:
        return []
    lines = {}
    with _watching_lines(module, changed, lines):
        trace()
    return [_drawn_problem(name, lines.get(name)) for name in drawn] + \
        [_moved_problem(name, before, after, lines.get(name), is_same) for name in moved]


def _decides(program, trace, generators) -> bool:
    """Whether the graph depends on what generators draw."""
    def differs(seed):
        for generator in generators:
            reseed(generator, seed)
        return difference(program, trace()) is not None

    ends = []
    for seed in (2, 3, 4):
        if differs(seed):
            return True
        ends.append([state_of_generator(g) for g in generators])
    if all(end == ends[0] for end in ends):  # the forward pass sets their states itself
        return False
    for high in (False, True):
        with extreme(high):
            if differs(1):
                return True
    return False


@contextlib.contextmanager
def refusing_seeds():
    """Refuses a forward pass that sets the state of PyTorch's generator: the program draws other
    numbers in each step."""
    problems = {}

    def watched(function):
        def call(*args, **kwargs):
            frame = calling_line()
            if frame is not None and _is_called_by_model():
                problems[frame] = Diagnostic(
                    f"the forward pass calls torch.{function.__name__}, which lets each call draw the "
                    "same random numbers: the program draws others in each step; expected no such "
                    "call, or numbers in a registered buffer", "error", *frame)
            return function(*args, **kwargs)

        return call

    with patched() as patch:
        for owner in (torch, torch.random):
            for name in ("manual_seed", "set_rng_state"):
                patch(owner, name, watched(getattr(owner, name)))
        yield
    if problems:
        raise ImportFailed(problems.values())


def _is_called_by_model() -> bool:
    """Whether the function that runs is called by the model's code, perhaps through fork_rng: PyTorch
    keeps and restores the state around its own work, that of torch.cond say."""
    frame = sys._getframe(2)
    while frame and frame.f_code.co_filename in (torch.random.__file__, contextlib.__file__):
        frame = frame.f_back
    return frame is None or not is_in_torch(frame.f_code.co_filename)


def _drawn_problem(name, frame) -> Diagnostic:
    return Diagnostic(
        f"the forward pass draws random numbers from {name}, in each call others: the program would "
        "keep those of the import; expected torch.rand, which draws anew in each step of an import "
        "with training=True, or an argument of the module", "error", *(frame or (None, None)))


def _moved_problem(name, before, after, frame, is_same=False) -> Diagnostic:
    """With `is_same` the next call computes the same, as far as the import sees."""
    told = [s.states.get(name) for s in (before, after)]
    values = f" ({told[0]!r} before, {told[1]!r} behind)" \
        if all(type(t) in (bool, int, float, str) for t in told) else ""
    change = f"changes {name}{values}, and so what the next call computes: the program would keep what " \
        "the import saw"
    if is_same:
        change = f"changes {name}{values} in each call, which the program would not do: a later call may " \
            "compute something else"
    return Diagnostic(
        f"the forward pass {change}; expected a registered buffer, or an argument of the module",
        "error", *(frame or (None, None)))


def difference(program, other):
    """The first operation of an exported program that another trace has otherwise, or the name of the
    first constant; None if both are the same."""
    for ours, theirs in zip(_graphs(program), _graphs(other)):
        for node, twin in zip(ours.nodes, theirs.nodes):
            if node.format_node() != twin.format_node():
                return node
        if len(ours.nodes) != len(theirs.nodes):
            return ours.output_node()
    for name, value in program.constants.items():
        if isinstance(value, torch.Tensor) and not _is_equal(value, other.constants.get(name)):
            return name
    return None


def _graphs(program):
    return [m.graph for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]


def _is_equal(value, other) -> bool:
    if value is other:
        return True
    if not isinstance(other, torch.Tensor) or (value.shape, value.dtype) != (other.shape, other.dtype):
        return False
    if "meta" in (value.device.type, other.device.type):
        return value.device == other.device
    return torch.equal(value, other) or bool(((value == other) | (value.isnan() & other.isnan())).all())


@contextlib.contextmanager
def _watching_lines(module, names, lines: dict):
    """Notes at which line of the model's code each piece of state changes first."""
    missing, last = Snapshot(module), None

    def look():
        nonlocal missing
        if last is not None and len(lines) < len(names):
            with _outside_of_trace():
                now = Snapshot(module)
            for name in missing.differences(now):
                lines.setdefault(name, last)
            missing = now

    def local(frame, event, _):
        nonlocal last
        if event in ("line", "return"):
            look()
            at = frame.f_back if event == "return" else frame
            last = (at.f_code.co_filename, at.f_lineno) if at is not None and \
                is_model_file(at.f_code.co_filename) else last
        return local

    def entered(frame, event, _):
        return local if is_model_file(frame.f_code.co_filename) else None

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        yield
    finally:
        sys.settrace(before)
        look()
