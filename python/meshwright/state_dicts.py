# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The state of a session that trains as PyTorch's `state_dict`s, and back."""

import fnmatch

import numpy as np

from . import _core, weights
from .errors import Diagnostic, Error
from .optimizers import Optimizer, learning_rate, optimizer_of
from .tensors import (
    ELEMENT_TYPES,
    NUMPY_TYPES,
    Dense,
    as_numpy,
    dense,
    is_meta,
    is_parameter,
    is_torch,
    is_trained,
    torch_of,
    torch_types,
    unjoined,
)

#: The states of a scale that adapts.
_SCALE, _GROWTH = "loss_scale", "loss_scale.growth_tracker"
#: Keys of an optimizer's state in PyTorch, which are also our names of states.
_MOMENTS = ("exp_avg", "exp_avg_sq", "momentum_buffer")
#: Keys of a group of parameters that do not change the update, and the one that each call gives.
_FREE = ("params", "lr", "foreach", "capturable", "differentiable", "fused")
#: How a session of a bundle without weights comes to know its tensors.
_GIVE_WEIGHTS = "expected a session that was given a file of weights with it"


class Loaded:
    """The rest of a state dict, which is no state of the session."""

    def __init__(self):
        #: The learning rate of calls that give none.
        self.rate = None
        #: Tensors of the module that the program does not read.
        self.unread = {}

    @classmethod
    def of(cls, extras):
        """As a session keeps it, and saves it with its state."""
        loaded = cls()
        loaded.rate = extras.learning_rate
        loaded.unread = {tensor.name: _of_bytes(tensor) for tensor in extras.unread}
        return loaded

    def extras(self):
        """As a session keeps it: a copy."""
        extras = _core.SavedExtras()
        extras.learning_rate = self.rate
        self._arrays = [(name, dense(value)) for name, value in self.unread.items()]
        extras.unread = [
            _core.FixedTensor(
                name=name,
                dtype=array.dtype,
                shape=list(array.shape),
                is_read=False,
                address=array.address,
                bytes=array.owner.nbytes,
            )
            for name, array in self._arrays
        ]
        return extras


class Training:
    """How the states of a session map to the `state_dict`s of a module and of its optimizer.

    A plan knows it from its model. A bundle has it in its manifest.
    """

    def __init__(self, optimizer, keys, trained, fixed, unread):
        self.optimizer: Optimizer = optimizer
        #: The keys of the module's `state_dict`, in its order, and the names in the program.
        self.keys: dict[str, str] = keys
        #: The names of the parameters that the optimizer has, in its order.
        self.trained: list[str] = trained
        #: Tensors that are no states, by name: those whose values are known.
        self.fixed: dict = fixed
        #: Names in `fixed` of tensors that the program does not read.
        self.unread: set[str] = unread

    def layout(self):
        """As bundles keep it, and the owners of the memory of its tensors."""
        layout, owners = _core.StateDictLayout(), []
        layout.optimizer = self.optimizer.options()
        layout.keys, layout.trained = list(self.keys.items()), self.trained
        tensors = []
        for name, value in self.fixed.items():
            array = dense(value)
            owners.append(array.owner)
            tensors.append(
                _core.FixedTensor(
                    name=name,
                    dtype=array.dtype,
                    shape=list(array.shape),
                    is_read=name not in self.unread,
                    address=array.address,
                    bytes=array.owner.nbytes,
                )
            )
        layout.fixed = tensors
        return layout, owners


def training_of_model(model, optimizer, patterns, ports) -> Training:
    """Of a model that trains. `ports` describe the states of its plans."""
    imported = next(iter(model._imported.values()), None)
    if imported is None:
        # A model without a module has its own names.
        names = model._parameters or [port.name for port in model._program.parameters]
        keys = {name: name for name in names}
    else:
        keys = imported.state_names
    values = {
        **(imported.state_values if imported else {}),
        **(imported.follow_module() if imported else {}),
        **model._parameters,
    }
    states = {port.name for port in ports}
    fixed = {
        name: unjoined(values[name])
        for name in keys.values()
        if name not in states and name in values
    }
    trained = _trained_names(keys, values, ports, patterns)
    return Training(optimizer, keys, trained, fixed, fixed.keys() - model._parameters.keys())


def training_of_bundle(layout, file=None) -> Training:
    """Of a bundle whose manifest has this layout. A bundle without weights stores no tensors: they
    are in the file of weights that a session is given."""
    keys, fixed = dict(layout.keys), {}
    given = weights.load(file) if file is not None else {}
    for tensor in layout.fixed:
        names = [tensor.name, *(key for key, name in layout.keys if name == tensor.name)]
        name = next((name for name in names if name in given), None)
        if tensor.data is not None or 0 in tensor.shape:
            fixed[tensor.name] = _stored(tensor)
        elif name is not None:
            value, expected = dense(given[name]), Dense(tensor.dtype, tuple(tensor.shape), 0, None)
            if (value.dtype, value.shape) != (expected.dtype, expected.shape):
                raise Error(f"'{name}' in weights '{file}': expected {expected}, got {value}")
            fixed[tensor.name] = given[name]
    unread = {tensor.name for tensor in layout.fixed if not tensor.is_read}
    return Training(optimizer_of(layout.optimizer), keys, list(layout.trained), fixed, unread)


def _stored(tensor):
    """A tensor in the memory of a bundle, not copied."""
    data = np.zeros(0, np.uint8) if tensor.data is None else tensor.data
    return data.view(NUMPY_TYPES[tensor.dtype]).reshape(tensor.shape)


def _of_bytes(tensor):
    """A tensor of PyTorch with the elements of one that a session keeps."""
    import torch

    dtype = torch_types()[tensor.dtype]
    if tensor.data is None or 0 in tensor.shape:
        return torch.empty(tensor.shape, dtype=dtype)
    return torch.frombuffer(bytearray(tensor.data), dtype=dtype).reshape(tensor.shape)


def _trained_names(keys, values, ports, patterns) -> list[str]:
    """The names in the program of the parameters that an optimizer of the module would have: those
    of float type that require gradients and match a pattern, in the module's order."""
    groups = {}
    for key, name in keys.items():
        groups.setdefault(name, []).append(key)
    roles = {port.name: port.role for port in ports}

    def is_chosen(name, own):
        if roles.get(name) == "parameter":
            return True
        value = values.get(name)
        return (
            value is not None
            and is_parameter(value)
            and is_trained(value)
            and _is_float(value)
            and any(fnmatch.fnmatchcase(key, pattern) for key in own for pattern in patterns)
        )

    return [name for name, own in groups.items() if is_chosen(name, own)]


def to_state_dict(training, state, loaded) -> dict:
    """`state` has copies of the states of a session, and `loaded` is what it was given last."""
    values = {**training.fixed, **loaded.unread}
    own, unknown = {}, []
    for key, name in training.keys.items():
        value = state.get(f"master.{name}", state.get(name, values.get(name)))
        if value is None:
            unknown.append(f"the session does not know the value of '{key}': {_GIVE_WEIGHTS}")
        else:
            own[key] = _tensor(value)
    if unknown:
        raise Error([Diagnostic(problem) for problem in unknown])
    taken = int(state["optimizer.step"]) if "optimizer.step" in state else None
    slots = {}
    for i, name in enumerate(training.trained):
        slot = {m: f"optimizer.{m}.{name}" for m in _MOMENTS if f"optimizer.{m}.{name}" in state}
        # PyTorch makes the state of a parameter at its first step.
        if slot and taken != 0:
            slots[i] = {} if taken is None else {"step": _step(taken)}
            slots[i].update({m: _tensor(state[name]) for m, name in slot.items()})
    rate = training.optimizer.lr if loaded.rate is None else loaded.rate
    group = {**_group(training.optimizer, rate), "params": list(range(len(training.trained)))}
    saved = {"model": own, "optimizer": {"state": slots, "param_groups": [group]}}
    if _GROWTH in state:
        saved["scaler"] = {
            "scale": float(state[_SCALE]),
            **_scaler_numbers(),
            "_growth_tracker": int(state[_GROWTH]),
        }
    return saved


def from_state_dict(training, ports, saved) -> tuple[dict, Loaded]:
    """The values of states that a `state_dict` sets, and the rest of it."""
    problems, loaded = [], Loaded()
    try:
        own, optimizer = saved["model"], saved["optimizer"]
        slots, groups = optimizer["state"], optimizer["param_groups"]
        order = [i for group in groups for i in group["params"]]
    except (KeyError, TypeError, IndexError) as error:
        raise Error(
            f"the state dict has no {error}: expected 'model' and 'optimizer', as "
            "Session.state_dict gives them"
        ) from None
    trained = training.trained
    ports = {port.name: port for port in ports}
    values = _model_values(training, ports, own, loaded, problems)
    if len(order) != len(trained):
        problems.append(
            f"the optimizer: expected {len(trained)} parameters, those that are trained, got "
            f"{len(order)}"
        )
    loaded.rate = _check_groups(training.optimizer, groups, problems)
    steps = _steps(slots, order, problems)
    values.update(_moments(training, ports, slots, order, problems))
    if len(steps) > 1:
        problems.append(
            "parameters: expected one number of steps for all, got "
            f"{' and '.join(map(str, sorted(steps)))}"
        )
    values.update(_scale_values(ports, saved.get("scaler"), problems))
    if problems:
        raise Error([Diagnostic(problem) for problem in problems])
    taken = next(iter(steps), 0)
    # Random numbers go on with the number of the step.
    for name in ("optimizer.step", "random.step"):
        if name in ports and (steps or "optimizer.step" in ports):
            values[name] = np.array(taken, np.int64)
    return values, loaded


def _steps(slots, order, problems) -> set[int]:
    """The numbers of steps that parameters have taken."""
    steps = set()
    for i in order:
        if "step" not in slots.get(i, {}):
            continue
        number = float(slots[i]["step"])
        if 0 <= number < 2**53 and number.is_integer():
            steps.add(int(number))
        else:
            problems.append(
                f"the optimizer's step of parameter {i!r}: expected a whole number of steps, 0 or "
                f"more, got {number:g}"
            )
    return steps


def _moments(training, ports, slots, order, problems):
    """The averages of the optimizer. PyTorch makes them at a parameter's first step."""
    problems += [
        f"the optimizer has a state of parameter {i!r}, which is in none of its groups"
        for i in slots
        if i not in order
    ]
    problems += [
        f"the optimizer's groups have parameter {i!r} twice"
        for i in sorted({i for i in order if order.count(i) > 1}, key=repr)
    ]
    known = {m for m in _MOMENTS for name in training.trained if f"optimizer.{m}.{name}" in ports}
    has_begun = any(value is not None for slot in slots.values() for value in slot.values())
    values = {}
    for i, name in zip(order, training.trained, strict=False):
        slot = slots.get(i, {})
        problems += [
            f"the optimizer has '{key}' of '{name}': mw.{type(training.optimizer).__name__} has none"
            for key, value in slot.items()
            if value is not None and key not in ("step", *known)
        ]
        for moment in known:
            port = ports.get(f"optimizer.{moment}.{name}")
            if port is None:
                continue
            value = slot.get(moment)
            # In PyTorch's SGD a buffer is None before the first step.
            if has_begun and value is None and slot.get(moment, 0) is not None:
                problems.append(f"the optimizer has no '{moment}' of '{name}', parameter {i!r}")
            values[port.name] = (
                np.zeros(port.shape, np.float32) if value is None else _array(value, port)
            )
    return values


def _scaler_numbers():
    """The fixed part of a GradScaler's state."""
    import torch

    numbers = torch.amp.GradScaler("cpu").state_dict()
    return {name: numbers[name] for name in ("growth_factor", "backoff_factor", "growth_interval")}


def _scale_values(ports, scaler, problems):
    """The values of states that the state of a GradScaler sets."""
    if _GROWTH not in ports:
        if scaler:
            problems.append("the state dict has a 'scaler': expected a model of loss_scale=\"auto\"")
        return {}
    if not scaler:
        problems.append("the state dict has no 'scaler'")
        return {}
    for name, value in _scaler_numbers().items():
        if scaler.get(name, value) != value:
            problems.append(f"the scaler's {name}: expected {value}, got {scaler[name]}")
    return {
        _SCALE: np.array(scaler["scale"], np.float32),
        _GROWTH: np.array(scaler["_growth_tracker"], np.int64),
    }


def _model_values(training, ports, own, loaded, problems):
    names, values = training.keys, {}
    problems += [f"the state dict has no '{key}'" for key in names if key not in own]
    problems += [f"the model has no '{key}', which the state dict has" for key in own if key not in names]
    for key, name in names.items():
        if key not in own:
            continue
        given = own[key]
        if name in training.unread:
            given, known = dense(_tensor(given)), training.fixed.get(name)
            expected = given if known is None else dense(known)
            if given.dtype not in NUMPY_TYPES or given.shape != expected.shape:
                problems.append(f"'{key}': expected {expected}, got {given}")
            else:
                loaded.unread[name] = given.owner.to(torch_types()[expected.dtype])
            continue
        if name not in ports:
            if name not in training.fixed:
                problems.append(
                    f"'{key}' is not trained, and the session does not know its value: "
                    + _GIVE_WEIGHTS
                )
            elif not np.array_equal(_bits(_tensor(given)), _bits(_tensor(training.fixed[name]))):
                problems.append(
                    f"'{key}' is not trained and has another value: a session keeps those with which "
                    "it started"
                )
            continue
        if name in values:
            continue
        values[name] = _array(given, ports[name])
        master = ports.get(f"master.{name}")
        if master is not None:
            values[master.name] = _array(given, master)
    return values


def _check_groups(optimizer, groups, problems):
    """Returns the learning rate. The other numbers of the optimizer are compiled."""
    rates = set()
    for group in groups:
        try:
            rates.add(learning_rate("the optimizer's lr", group.get("lr", optimizer.lr)))
        except Error as error:
            problems.append(str(error))
    if len(rates) > 1:
        problems.append(f"groups of parameters: expected one learning rate, got {sorted(rates)}")
    kind, compiled = f"mw.{type(optimizer).__name__}", optimizer.hyperparameters()
    for group in groups:
        for name, value in _group(optimizer, optimizer.lr).items():
            given = group.get(name, value)
            same = tuple(given) == tuple(value) if isinstance(value, tuple) else given == value
            if name in _FREE or same:
                continue
            why, remedy = f"since {kind} has no other", ""
            if name in compiled:
                why = "which the plan compiled"
                remedy = f"; train with {kind}({name}={given}) to go on with it"
            problems.append(f"the optimizer's {name}: expected {value}, {why}, got {given}{remedy}")
    return min(rates, default=optimizer.lr)


def _group(optimizer, rate):
    """The group of all parameters as this version of PyTorch writes it."""
    import torch

    numbers = {**optimizer.hyperparameters(), "lr": rate}
    made = getattr(torch.optim, type(optimizer).__name__)([torch.empty(0, device="cpu")], **numbers)
    (group,) = made.state_dict()["param_groups"]
    return group


def _is_float(value):
    if is_torch(value):
        return value.dtype.is_floating_point
    element = ELEMENT_TYPES.get(dense(value).dtype)
    return element is not None and element.use == "Float"


def _step(taken):
    import torch

    return torch.tensor(float(taken), dtype=torch.float32, device="cpu")


def _tensor(value):
    """A tensor of PyTorch, of its own memory."""
    if is_torch(value):
        return value.detach().clone()
    return torch_of(np.array(value))


def _array(value, port):
    """The value in the type of the state."""
    if is_torch(value) and not is_meta(value):
        return value.detach().to(torch_types()[port.dtype])
    return _tensor(value).to(torch_types()[port.dtype])


def _bits(tensor):
    return as_numpy(dense(tensor))
