# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Compares a model with the PyTorch module that it comes from (`Model.check`).

    trace      the module is imported again: the first operation that differs
    outputs    the program on one rank beside the module in f64, and the buffers after the call
    gradients  of a model that is imported for training: those of all parameters
    a step     of a model that trains: the parameters after it beside torch.optim's, and `evaluate`

Dropout is left out on both sides, since PyTorch draws other random numbers.
"""

import math
import warnings

from .. import arguments
from ..bucket_model import BucketModel
from ..errors import CheckFailed, Diagnostic, Error, warn
from ..importer import ImportFailed
from ..importer.graph.dialect import FLOATS
from ..model import _convert, _model_of
from ..state_dicts import _tensor as to_tensor
from ..tensors import is_torch
from ..training import TrainedModel
from . import compare, losses, search, steps, watch
from .sessions import session_of
from .truth import DropNothing, NotComputed, Reference

#: How many values a failed check names.
_SHOWN = 10


def check(model, args, kwargs, tolerance=None, entry=None) -> dict[str, float]:
    """See `Model.check`."""
    if tolerance is not None:
        tolerance = arguments.tolerance(tolerance)
    if entry is not None and not isinstance(entry, str):
        kwargs["entry"], entry = entry, None  # an input of that name
    if isinstance(model, TrainedModel):
        entry = None  # the check of a step has that of `evaluate` in it
    model, entry, values = model._to_check(entry, args, kwargs)
    imported = model._imported.get(entry)
    if imported is None:
        raise Error(
            "the model comes from no PyTorch module, with which a check compares it: expected a model "
            "of from_torch; Plan.check compares a plan with its program"
        )
    if model._meta:
        raise Error("the model's weights are on the meta device: expected real ones for a check")
    values = {
        name: value.owner if is_torch(value.owner) else to_tensor(value.owner).reshape(value.shape)
        for name, value in values().items()
    }
    return Check(model, entry, imported, values, tolerance).run()


class Check:
    """One comparison of an entry with the module of its import."""

    def __init__(self, model, entry, imported, values, tolerance):
        self.model, self.entry, self.values, self.tolerance = model, entry, values, tolerance
        #: The import, and the same one without dropout.
        self.imported = imported
        self.source = _without_dropout(imported)
        #: Whether the truth is in f64.
        self.wide = True
        #: How far each value is off, by name, and the diagnostics of those that are too far off.
        self.differences: dict[str, float] = {}
        self.problems: list[Diagnostic] = []

    def run(self) -> dict[str, float]:
        self._trace()
        trained = isinstance(self.model, TrainedModel)
        values = steps.chunk(self, 0) if trained else self.values
        try:
            self._look(values)
        except NotComputed as error:
            # An operation of PyTorch's may have no f64.
            self.wide = False
            self._look(values)
            warn(
                f"{error}; the check takes its results in the module's own types for right",
                stacklevel=4,
            )
        self._compare(values)
        if trained and not self.problems:
            steps.compare_step(self)
            steps.compare_evaluation(self)
        if self.problems:
            shown, hidden = self.problems[:_SHOWN], self.problems[_SHOWN:]
            more = [Diagnostic(f"{len(hidden)} more values differ", "note")] if hidden else []
            raise CheckFailed(shown + more, self.differences)
        return self.differences

    def _look(self, values):
        """Runs the module, to see whether it runs and which outputs have gradients."""
        outputs = self.reference().outputs(values, grad=self.source.training)
        self.has_gradient = [o.requires_grad for o in outputs]

    def reference(self, wide=None, evaluation=False) -> Reference:
        return Reference(self.source, self.wide if wide is None else wide, evaluation)

    def note(self, name, found, allowed, what, place=(None, None)):
        """Takes down the difference of a value."""
        self.differences[name] = found
        entry = "the largest entry of all" if name.startswith("grad.") else "the largest entry"
        if not found <= allowed:
            self.problems.append(
                Diagnostic(
                    f"{what}: expected a difference from PyTorch's of at most {allowed:.2g} of "
                    f"{entry}, got {found:.2g}",
                    "error",
                    *place,
                )
            )

    def _trace(self):
        """Imports the module again, and looks for what changes from one import to the next."""
        try:
            with watch.Reads() as reads:
                again = self.imported.again(set())
        except ImportFailed as error:
            raise Error(_convert(error.diagnostics)) from error
        changed = watch.first_change(self.imported, again)
        if changed:
            self.problems.append(changed)
        self.changes = changed is not None
        for read in reads.found():
            warn(str(read), stacklevel=5)

    def _compare(self, values):
        """Outputs, buffers, and gradients if the model has any."""
        source = self.source
        program, loss = self._program()
        with session_of(program) as session:
            entry = self.entry if program is self.model else None
            got, state = session.run(entry=entry, **values), session.state()
        reference, plain = self.reference(), self.reference(wide=False)
        gradients = own_gradients = {}
        if loss is None:
            want, own = reference.outputs(values), plain.outputs(values)
        else:
            want, gradients = reference.gradients(values, loss)
            own, own_gradients = plain.gradients(values, loss)
        count = len(want)
        failing = [
            i
            for i, name in enumerate(source.outputs)
            if not self.output(name, got[i], want[i], own[i])
        ]
        for name, value in reference.buffers().items():
            if name in state:
                self.output(name, state[name], value, plain.buffers()[name], f"state '{name}' after the call")
        if failing and not self.changes and source.sizes is None:
            i = failing[0]
            # Well below what is too much, and above what rounding explains.
            rounding = max(4 * compare.difference(own[i], want[i]), self.allowed(want[i], own[i]) / 20)
            first = search.first_difference(self, values, i, rounding)
            if first:
                self.problems.insert(0, first)
        names = [name.removeprefix("grad.") for name in program.outputs[count:]]
        self._gradients(dict(zip(names, got[count:], strict=True)), gradients, own_gradients)

    def allowed(self, want, own) -> float:
        """The largest difference of an output that is fine."""
        if not want.is_floating_point():
            return self.tolerance or 0.0
        mine = compare.difference(own, want)
        return compare.bar(compare.OUTPUT, own.dtype, mine, self.tolerance)

    def output(self, name, got, want, own, what=None) -> bool:
        """Compares an output; True if it is right."""
        is_float = want.is_floating_point()
        found = compare.difference(got, want) if is_float else compare.exact(got, want, own)
        allowed = self.allowed(want, own)
        self.note(name, found, allowed, what or f"output '{name}'", search.place_of_output(self.source, name))
        return found <= allowed

    def _gradients(self, got, want, own):
        """Compares gradients by the largest entry of all. Those of the last layers come first, as the
        backward pass computes them."""
        places = search.last_uses(self.source)
        order = {name: i for i, name in enumerate(places)}
        names = sorted((n for n in got if n in want), key=lambda n: order.get(n, len(order)))
        scale = compare.largest(want[name] for name in names)
        mine = max((compare.difference(own[n], want[n], scale) for n in names), default=0.0)
        for name in names:
            allowed = compare.bar(compare.GRADIENT, own[name].dtype, mine, self.tolerance)
            found = compare.difference(got[name], want[name], scale)
            self.note(f"grad.{name}", found, allowed, f"the gradient of '{name}'",
                      places.get(name, (None, None)))

    def _program(self):
        """The program to compare with the module, and the position of its loss, if it has one."""
        model, source = self.model, self.source
        own = source is self.imported and not isinstance(model, TrainedModel)
        if model._loss is not None:
            loss, patterns = model._loss
            plain = model if own else self._made().differentiate(loss, patterns)
            return plain, steps.position_of(source, loss)
        if not any(self.has_gradient) or not losses.can_have(source):
            return (model if own else self._made()), None
        first = source.graph.outputs[0]
        if math.prod(first.shape) == 1 and first.dtype in FLOATS and self.has_gradient[0]:
            return self._made().differentiate(0), 0
        if source.sizes is not None:  # a loss over all outputs would count their padding
            return (model if own else self._made()), None
        return losses.with_loss(source).differentiate(losses.NAME), len(source.outputs)


    def _made(self):
        """The model of the import that is compared."""
        made = _model_of(self.source, "check")
        return made if self.source.sizes is None else BucketModel({self.entry: made})


def _without_dropout(imported):
    if not imported.graph.streams:
        return imported
    try:
        with DropNothing():
            source = imported.again(set())
    except ImportFailed as error:
        raise Error(_convert(error.diagnostics)) from error
    if source.graph.streams:
        raise Error("the module draws random numbers besides dropout, and PyTorch draws other ones: "
                    "expected a module whose results do not depend on them")
    return source
