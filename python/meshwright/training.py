# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Models that train."""

from . import _core, state_dicts
from .errors import Diagnostic, Error, InputError, unwrap
from .model import Model, _convert, _model_of, join
from .optimizers import Optimizer, learning_rate, number
from .tensors import is_trained


class TrainedModel(Model):
    """A model with the entries "step" and "evaluate": what `Model.train` returns."""

    def __init__(self, model, program, optimizer, patterns):
        first = next(iter(model._imported.values()), None)
        imported = {e.name: model._imported.get(e.name, first) for e in program.entries}
        super().__init__(program, model._parameters, first and imported)
        self._optimizer, self._patterns = optimizer, patterns

    def _training(self, ports):
        return state_dicts.training_of_model(self, self._optimizer, self._patterns, ports)

    def _flatten(self, entry, args, kwargs):
        rate = kwargs.get("lr")
        if rate is not None and any(port.name == "lr" for port in entry.inputs):
            kwargs = {**kwargs, "lr": learning_rate("lr", rate, InputError)}
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
    options.optimizer = optimizer.options()
    options.loss = str(loss)
    options.parameters = [parameters] if isinstance(parameters, str) else list(parameters)
    options.frozen = [name for name, value in model._parameters.items() if not is_trained(value)]
    if clip_norm is not None:
        options.clip_norm = number("clip_norm", clip_norm)
        if not options.clip_norm > 0:
            raise Error(f"clip_norm is {clip_norm}: expected a number above 0, or None")
    if loss_scale == "auto":
        options.loss_scale, options.growth_interval = SCALE, GROWTH_INTERVAL
    elif loss_scale is not None:
        options.loss_scale = number("loss_scale", loss_scale)
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
