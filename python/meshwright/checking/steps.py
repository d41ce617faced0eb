# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Compares one step of a model that trains with torch.optim's, and its evaluation."""

import torch

from ..model import _model_of
from ..training import retrained
from . import compare, search
from .sessions import session_of


def chunk(check, index) -> dict[str, torch.Tensor]:
    """The inputs of a microbatch: a chunk of rows of those that have the batch."""
    count = check.model._options.microbatches
    if count == 1:
        return check.values
    cut = check.source.batch_inputs
    return {
        name: value.chunk(count)[index] if name in cut else value
        for name, value in check.values.items()
    }


def _chunks(check):
    return [chunk(check, i) for i in range(check.model._options.microbatches)]


def _join(parts):
    """An output of a step from those of its microbatches: a mean, or the rows of all."""
    if len(parts) == 1:
        return parts[0]
    return torch.stack(parts).mean(0) if parts[0].dim() == 0 else torch.cat(parts)


def _program(check):
    """The model that trains, without dropout."""
    if check.source is check.imported:
        return check.model
    return retrained(check.model, _model_of(check.source, "check"))


def position_of(source, loss) -> int:
    """The position of a loss that is given by its position or name."""
    return source.outputs.index(loss) if loss in source.outputs else int(loss)


class _Step:
    """PyTorch's step, up to the gradients."""

    def __init__(self, check, wide):
        self.reference = check.reference(wide)
        parameters = self.reference.parameters()
        for value in parameters.values():
            value.grad = None
        loss, parts = position_of(check.source, check.model._options.loss), []
        chunks = _chunks(check)
        for values in chunks:
            outputs = self.reference.outputs(values, grad=True)
            (outputs[loss].sum() / len(chunks)).backward()
            parts.append([o.detach() for o in outputs])
        self.outputs = [_join(list(same)) for same in zip(*parts, strict=True)]
        self.gradients = {
            name: value.grad.to_dense().detach() if value.grad.is_sparse else value.grad.detach()
            for name, value in parameters.items()
            if value.grad is not None
        }
        self.parameters = {name: parameters[name].detach() for name in self.gradients}

    def after(self, check, names, shift):
        """The parameters after the step, each entry of whose gradients is off by `shift`."""
        options = check.model._options
        values = {name: torch.nn.Parameter(self.parameters[name].clone()) for name in names}
        for name, value in values.items():
            value.grad = self.gradients[name] + shift
        optimizer = check.model._optimizer
        made = getattr(torch.optim, type(optimizer).__name__)(
            list(values.values()), **optimizer.hyperparameters()
        )
        if options.clip_norm > 0:
            torch.nn.utils.clip_grad_norm_(list(values.values()), options.clip_norm)
        made.step()
        return {name: value.detach() for name, value in values.items()}


def compare_step(check):
    """Outputs and states of one step, and parameters after it.

    An update may enlarge the rounding of a gradient without bound: Adam divides by its size. So a
    parameter is right if it is between those of gradients that are off by what is accepted of
    gradients.
    """
    with session_of(_program(check)) as session:
        outputs, state = session.run(**check.values), session.state()
        parameters = session.parameters()
        names = [port.name for port in session._session.states if port.role == "parameter"]
    want, own = _Step(check, check.wide), _Step(check, False)
    for i, name in enumerate(check.source.outputs):
        check.output(name, outputs[i], want.outputs[i], own.outputs[i], f"output '{name}' of a step")
    for name, value in want.reference.buffers().items():
        if name in state:
            check.output(name, state[name], value, own.reference.buffers()[name],
                         f"state '{name}' after a step")
    names = [name for name in names if name in want.gradients]
    scale = compare.largest(want.gradients[name] for name in names)
    mine = max((compare.difference(own.gradients[n], want.gradients[n], scale) for n in names), default=0)
    floor = max((compare.GRADIENT[own.parameters[n].dtype] for n in names), default=0)
    shift = max(floor, compare.MARGIN * mine) * scale
    places = search.last_uses(check.source)
    ways = [want.after(check, names, s) for s in (0.0, shift, -shift)]
    for name in names:
        between = torch.stack([way[name].double() for way in ways])
        got = parameters[name].double()
        nearest = torch.minimum(torch.maximum(got, between.amin(0)), between.amax(0))
        found = compare.difference(got, nearest, compare.largest([between[0]]))
        allowed = compare.bar(compare.OUTPUT, parameters[name].dtype, 0.0, check.tolerance)
        check.note(f"step.{name}", found, allowed, f"parameter '{name}' after a step",
                   places.get(name, (None, None)))


def compare_evaluation(check):
    """The entry `evaluate` beside the module in evaluation mode."""
    evaluation = check.imported.evaluation is not None
    with session_of(_program(check)) as session:
        outputs = session.run(entry="evaluate", **check.values)

    def results(wide):
        # Buffers that a call writes to stay as they are in an evaluation.
        parts = [check.reference(wide, evaluation).outputs(values) for values in _chunks(check)]
        return [_join(list(same)) for same in zip(*parts, strict=True)]

    want, own = results(check.wide), results(False)
    for i, name in enumerate(check.source.outputs):
        check.output(f"evaluate.{name}", outputs[i], want[i], own[i], f"output '{name}' of 'evaluate'")
