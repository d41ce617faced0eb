# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""PyTorch's side of a check: the module itself, in f64 or in its own types. It runs as a copy, so
that the module, its gradients and the states of the generators stay as they are."""

import contextlib
import copy
import random
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

from ..errors import Diagnostic, Error
from ..importer.torch import surroundings
from ..importer.torch.export import settings
from ..importer.torch.locations import is_model_file
from . import losses

_NARROW = (torch.float32, torch.bfloat16, torch.float16)
_CASTS = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)
#: Functions that drop elements, and the place of the probability and of the flag among arguments.
_DROPOUTS = {F.dropout: (1, 2), F.dropout1d: (1, 2), F.dropout2d: (1, 2), F.dropout3d: (1, 2),
             F.alpha_dropout: (1, 2), F.feature_alpha_dropout: (1, 2), torch.dropout: (1, 2)}


class _KeepWide(torch.overrides.TorchFunctionMode):
    """f64 to the end: code that asks for another float type gets f64."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in _CASTS:
            function = torch.Tensor.double
        first, rest = args[:1], args[1:]
        if function in (torch.Tensor.to, torch.Tensor.type, torch.Tensor.type_as):
            rest = tuple(as_wide(a) for a in rest)
        rest = tuple(_wide_type(a) for a in rest)
        kwargs = {k: _wide_type(v) for k, v in (kwargs or {}).items()}
        return function(*map(_wide_type, first), *rest, **kwargs)


class DropNothing(torch.overrides.TorchFunctionMode):
    """Leaves dropout out: PyTorch and a program of ours draw other random numbers."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function in _DROPOUTS:
            return args[0] if args else kwargs["input"]
        if function is F.multi_head_attention_forward:
            # A call within a function of PyTorch does not come here.
            args = tuple(0.0 if i == 10 else a for i, a in enumerate(args))
            kwargs = {k: 0.0 if k == "dropout_p" else v for k, v in kwargs.items()}
        if function is F.scaled_dot_product_attention:
            args = tuple(0.0 if i == 4 else a for i, a in enumerate(args))
            kwargs = {k: 0.0 if k == "dropout_p" else v for k, v in kwargs.items()}
        return function(*args, **kwargs)


def _wide_type(value):
    return torch.float64 if isinstance(value, torch.dtype) and value in _NARROW else value


def as_wide(value):
    """A tensor of float type in f64; another value as it is."""
    is_float = isinstance(value, torch.Tensor) and value.dtype in _NARROW
    return value.detach().double() if is_float else value


@contextlib.contextmanager
def kept_generators():
    """Puts the states of the generators back."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def copied(module):
    """A copy of a module, whose gradients are none."""
    # A tensor that an operation made has no copy of PyTorch's own.
    made = {id(v): v.detach().clone() for m in module.modules() for v in vars(m).values()
            if isinstance(v, torch.Tensor) and not v.is_leaf}
    # Gradients can be as large as the module, and are not asked for.
    skipped = {id(p.grad): None for p in module.parameters() if p.grad is not None}
    try:
        result = copy.deepcopy(module, {**made, **skipped})
    except Exception as error:  # a module's own code may copy
        raise Error(f"the check runs a copy of the module, and copy.deepcopy fails: "
                    f"{type(error).__name__}: {error}") from error
    # Copies of parameters lack their hooks.
    for parameter, own in zip(module.parameters(), result.parameters(), strict=True):
        for hook in (parameter._backward_hooks or {}).values():
            own.register_hook(hook)
        for hook in (parameter._post_accumulate_grad_hooks or {}).values():
            own.register_post_accumulate_grad_hook(hook)
    return result


def _widen(module):
    module.double()
    for part in module.modules():
        for name, value in vars(part).items():
            vars(part)[name] = as_wide(value)
    return module


@dataclass
class Reference:
    """The module as PyTorch runs it, in f64 with `wide`. The copy changes from call to call, as the
    module itself would."""

    imported: object
    wide: bool
    #: In evaluation mode, even if the import is not.
    evaluation: bool = False
    module: torch.nn.Module = field(init=False)

    def __post_init__(self):
        self.module = copied(self.imported.filled())
        if self.wide:
            self.module = _widen(self.module)

    def outputs(self, values, grad=False) -> list[torch.Tensor]:
        """The tensors that the module returns for inputs by name, in its order."""
        values = {name: as_wide(v) if self.wide else v.detach().clone() for name, v in values.items()}
        args, kwargs = self.imported.unflatten(values)
        training = self.imported.training and not self.evaluation
        evaluation = self.evaluation or self.imported.in_evaluation
        dtype = torch.float64 if self.wide else self.imported.around.dtype
        with contextlib.ExitStack() as stack:
            stack.enter_context(kept_generators())
            stack.enter_context(surroundings.plain(dtype))
            stack.enter_context(settings(self.module, training, evaluation))
            stack.enter_context(torch.set_grad_enabled(grad))
            stack.enter_context(DropNothing())
            if self.wide:
                stack.enter_context(_KeepWide())
            try:
                result = self.module(*args, **kwargs)
            except Exception as error:  # the module's code raises exceptions of any type
                raise _failure(error, self.wide) from error
        return [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]

    def buffers(self) -> dict[str, torch.Tensor]:
        return dict(self.module.named_buffers())

    def parameters(self) -> dict[str, torch.Tensor]:
        return dict(self.module.named_parameters())

    def gradients(self, values, loss) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
        """The outputs, and the gradients of the output at position `loss` by parameter. The position
        behind the last one is that of `losses`. Gradients that the loss does not reach are zeros."""
        for parameter in self.module.parameters():
            parameter.grad = None
        outputs = self.outputs(values, grad=True)
        if loss == len(outputs):
            outputs.append(losses.of_outputs(outputs))
        if outputs[loss].requires_grad:
            outputs[loss].sum().backward()
        found = {}
        for name, p in self.module.named_parameters():
            if p.requires_grad:
                grad = torch.zeros_like(p) if p.grad is None else p.grad.detach()
                found[name] = (grad.to_dense() if grad.is_sparse else grad).clone()
        return [o.detach() for o in outputs], found


def _failure(error, wide):
    frame, traceback = (None, None), error.__traceback__
    while traceback:
        code = traceback.tb_frame.f_code
        own = not code.co_filename.startswith(__file__.rsplit("/", 1)[0])
        if own and is_model_file(code.co_filename):
            frame = (code.co_filename, traceback.tb_lineno)
        traceback = traceback.tb_next
    text = next((line for line in str(error).splitlines() if line.strip()), "")
    how = " in f64" if wide else ""
    return NotComputed([Diagnostic(
        f"the module does not run in PyTorch{how}: {type(error).__name__}: {text}", "error", *frame)])


class NotComputed(Error):
    """The module raises an exception."""
