# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Optimizers, and models that train."""

from . import _core
from .errors import Diagnostic, Error, InputError, unwrap
from .model import Model, _convert, _model_of, join
from .tensors import is_trained


class Optimizer:
    """An update rule: SGD, Adam or AdamW."""

    def __init__(self, kind, lr, **numbers):
        self._kind = kind
        self._numbers = {
            name: _number(name, value) for name, value in {"lr": lr, **numbers}.items()
        }

    @property
    def lr(self) -> float:
        """The learning rate of a step that is given none."""
        return self._numbers["lr"]

    def hyperparameters(self) -> dict:
        """The numbers under the names of PyTorch's arguments."""
        numbers = dict(self._numbers)
        if "beta1" in numbers:
            numbers["betas"] = numbers.pop("beta1"), numbers.pop("beta2")
        return numbers

    def _options(self):
        options = _core.OptimizerOptions()
        options.kind = self._kind
        for name, value in self._numbers.items():
            setattr(options, name, value)
        return options

    def __repr__(self):
        return f"<meshwright.{type(self).__name__} lr={self.lr}>"


class SGD(Optimizer):
    """Stochastic gradient descent, as torch.optim.SGD without dampening and Nesterov's momentum."""

    def __init__(self, lr=1e-3, momentum=0.0, weight_decay=0.0):
        super().__init__("sgd", lr, momentum=momentum, weight_decay=weight_decay)


class Adam(Optimizer):
    """As torch.optim.Adam; weight_decay is added to the gradient."""

    _rule = "adam"

    def __init__(self, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
        beta1, beta2 = betas
        super().__init__(
            self._rule, lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay
        )


class AdamW(Adam):
    """As torch.optim.AdamW: weight_decay times lr is taken off the parameter."""

    _rule = "adamw"

    def __init__(self, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        super().__init__(lr, betas, eps, weight_decay)


class TrainedModel(Model):
    """A model with the entries "step" and "evaluate": what `Model.train` returns."""

    def __init__(self, model, program, optimizer, patterns):
        first = next(iter(model._imported.values()), None)
        imported = {e.name: model._imported.get(e.name, first) for e in program.entries}
        super().__init__(program, model._parameters, first and imported)
        self._optimizer, self._patterns = optimizer, patterns

    def _flatten(self, entry, args, kwargs):
        rate = kwargs.get("lr")
        if rate is not None and any(port.name == "lr" for port in entry.inputs):
            rate = _number("lr", rate, InputError)
            if rate < 0:
                raise InputError(f"lr is {rate}: expected a number from 0 on")
            kwargs = {**kwargs, "lr": rate}
        return super()._flatten(entry, args, kwargs)


#: The first scale of PyTorch's GradScaler, and the number of finite steps after which it grows.
SCALE, GROWTH_INTERVAL = 65536.0, 2000


def train(
    model, optimizer, loss, parameters, microbatches, clip_norm, seed, loss_scale
) -> TrainedModel:
    """The steps of a model: see `Model.train`."""
    if not isinstance(optimizer, Optimizer):
        raise Error(f"optimizer is {optimizer!r}: expected meshwright.SGD, Adam or AdamW")
    model = _with_evaluation(_one_microbatch(model, microbatches))
    options = _core.TrainOptions()
    options.optimizer = optimizer._options()
    options.loss = str(loss)
    options.parameters = [parameters] if isinstance(parameters, str) else list(parameters)
    options.frozen = [name for name, value in model._parameters.items() if not is_trained(value)]
    if clip_norm is not None:
        options.clip_norm = _number("clip_norm", clip_norm)
        if not options.clip_norm > 0:
            raise Error(f"clip_norm is {clip_norm}: expected a number above 0, or None")
    if loss_scale == "auto":
        options.loss_scale, options.growth_interval = SCALE, GROWTH_INTERVAL
    elif loss_scale is not None:
        options.loss_scale = _number("loss_scale", loss_scale)
        if not 0 < options.loss_scale < float("inf"):
            raise Error(f'loss_scale is {loss_scale}: expected a number above 0, "auto" or None')
    options.seed = int(seed)
    options.microbatches = microbatches
    program = unwrap(model._program.train(options))
    return TrainedModel(model, program, optimizer, options.parameters)


def _one_microbatch(model, microbatches):
    """The model for a part of the rows of its inputs."""
    from .importer import ImportFailed

    if not isinstance(microbatches, int) or microbatches < 1:
        raise Error(f"microbatches is {microbatches!r}: expected an integer from 1 on")
    if microbatches == 1:
        return model
    imported = next(iter(model._imported.values()), None)
    if imported is None:
        raise Error(
            f"microbatches is {microbatches}, and the model comes from no PyTorch module: expected 1"
        )
    try:
        return _model_of(imported.chunk(microbatches), "microbatch")
    except ImportFailed as error:
        raise Error(_convert(error.diagnostics)) from None


def _with_evaluation(model):
    """The model, and as a second entry its module in evaluation mode, where that is more than the
    model without dropout."""
    from .importer import ImportFailed

    imported = next(iter(model._imported.values()), None)
    if imported is None or imported.evaluation is None or len(model.entries) != 1:
        return model
    states = {port.name for port in model._program.states}
    try:
        evaluation = _model_of(imported.evaluation(states), "evaluation")
    except ImportFailed as error:
        where = Diagnostic("the entry 'evaluate' is the module in evaluation mode", "note")
        raise Error([*_convert(error.diagnostics), where]) from None
    return join({"step": model, "evaluate": evaluation})


def _number(name, value, error=Error):
    try:
        return float(value)
    except (TypeError, ValueError):
        raise error(f"{name} is {value!r}: expected a number") from None
