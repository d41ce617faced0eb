# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Models that train."""

from . import _core, arguments, state_dicts
from .arguments import number
from .errors import Diagnostic, Error, InputError, unwrap
from .joining import apart, join
from .model import Model, _convert, _model_of, output, patterns
from .optimizers import Optimizer, learning_rate
from .progress import part
from .tensors import is_trained


class TrainedModel(Model):
    """A model with the entries "step" and "evaluate": what `Model.train` returns."""

    def __init__(self, model, program, optimizer, options):
        first = next(iter(model._imported.values()), None)
        imported = {e.name: model._imported.get(e.name, first) for e in program.entries}
        super().__init__(program, model._parameters, first and imported)
        self._optimizer, self._options, self._patterns = optimizer, options, options.parameters
        self._loss = options.loss, options.parameters

    def _training(self, ports):
        return state_dicts.training_of_model(self, self._optimizer, self._patterns, ports)

    def _values(self, entry, ports, args, kwargs):
        rate = kwargs.get("lr")
        if rate is not None and any(port.name == "lr" for port in ports):
            kwargs = {**kwargs, "lr": learning_rate("lr", rate, InputError)}
        return super()._values(entry, ports, args, kwargs)


#: The first scale of PyTorch's GradScaler, and the number of finite steps after which it grows.
SCALE, GROWTH_INTERVAL = 65536.0, 2000


def train(
    model, optimizer, loss, parameters, microbatches, clip_norm, seed, loss_scale
) -> TrainedModel:
    """The steps of a model: see `Model.train`."""
    arguments.instance("optimizer", optimizer, Optimizer, "meshwright.SGD, Adam or AdamW")
    microbatches = arguments.integer("microbatches", microbatches, 1)
    model = _with_evaluation(_one_microbatch(apart(model), microbatches))
    options = _core.TrainOptions()
    options.optimizer = optimizer.options()
    options.loss = output("loss", loss)
    options.parameters = patterns(parameters)
    options.frozen = [name for name, value in model._parameters.items() if not is_trained(value)]
    if clip_norm is not None:
        options.clip_norm = number("clip_norm", clip_norm)
        if not options.clip_norm > 0:
            raise Error(f"clip_norm: expected a number above 0, or None, got {clip_norm}")
    if isinstance(loss_scale, str) and loss_scale == "auto":
        options.loss_scale, options.growth_interval = SCALE, GROWTH_INTERVAL
    elif loss_scale is not None:
        options.loss_scale = number("loss_scale", loss_scale)
        if not 0 < options.loss_scale < float("inf"):
            raise Error(f'loss_scale: expected a number above 0, "auto" or None, got {loss_scale}')
    options.seed = arguments.integer("seed", seed)
    options.microbatches = microbatches
    with part("differentiating"):
        made = model._program.train(options)
    return TrainedModel(model, unwrap(made, call="train"), optimizer, options)


def retrained(trained, model) -> TrainedModel:
    """Another model of one microbatch, which trains as `trained` does."""
    program = unwrap(_with_evaluation(model)._program.train(trained._options), call="train")
    return TrainedModel(model, program, trained._optimizer, trained._options)


def _one_microbatch(model, microbatches):
    """The model for a chunk of the batch."""
    from .importer import ImportFailed

    if microbatches == 1:
        return model
    imported = next(iter(model._imported.values()), None)
    if imported is None:
        raise Error(
            "microbatches: expected 1, since the model comes from no PyTorch module, got "
            f"{microbatches}"
        )
    inputs = [port for port in model._program.inputs if not port.has_default]
    names = _batch_names(inputs, imported.batch_inputs, microbatches)
    try:
        return _model_of(imported.chunk(microbatches, names), "microbatch")
    except ImportFailed as error:
        whole = [repr(port.name) for port in inputs if port.name not in names]
        cut = f"a microbatch has 1 / {microbatches} of the rows of {', '.join(map(repr, names))}"
        where = f"{cut} and all of {', '.join(whole) or 'no input'}; {_SAY}"
        raise Error([*_convert(error.diagnostics), Diagnostic(where, "note")]) from None


_SAY = "from_torch(..., batch_inputs=[...]) names the inputs whose dimension 0 is the batch"


def _batch_names(inputs, stated, microbatches):
    """The names of the inputs that microbatches cut. An Error if the rule of data parallelism, by
    which they follow the first input, contradicts all other inputs."""
    names = [port.name for port in inputs if port.is_batch]
    if stated is not None:
        return names
    shapes = {port.name: port.shape for port in inputs}
    sizes = [shape[0] for shape in shapes.values() if shape]
    first = next(iter(shapes), None)
    unclear = ""
    if not names:
        unclear = f"the first input, '{first}', has no dimensions"
    elif names == [first]:
        rivals = {size for size in sizes if size > 1 and sizes.count(size) > 1}
        others = [f"'{name}'" for name, shape in shapes.items() if shape and shape[0] in rivals]
        if others:
            unclear = (
                f"it is not clear which inputs have the batch: the first one, '{first}', has "
                f"{shapes[first][0]} rows alone, and {' and '.join(others)} share another number"
            )
    if unclear:
        raise Error(f"microbatches is {microbatches}, and {unclear}; {_SAY}")
    return names


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
