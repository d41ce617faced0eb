# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Optimizers."""

import numpy as np

from . import _core
from .arguments import fail, number
from .errors import Error


class Optimizer:
    """An update rule: SGD, Adam or AdamW."""

    def __init__(self, kind, lr, **numbers):
        self._kind = kind
        self._numbers = {"lr": learning_rate("lr", lr)}
        self._numbers.update({name: number(name, value) for name, value in numbers.items()})

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

    def options(self):
        """As the compiler takes it."""
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
        if not isinstance(betas, (tuple, list)) or len(betas) != 2:
            fail("betas", betas, "two numbers")
        beta1, beta2 = betas
        super().__init__(
            self._rule, lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay
        )


class AdamW(Adam):
    """As torch.optim.AdamW: weight_decay times lr is taken off the parameter."""

    _rule = "adamw"

    def __init__(self, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        super().__init__(lr, betas, eps, weight_decay)


def optimizer_of(options) -> Optimizer:
    """The optimizer that these options describe."""
    numbers = {"lr": options.lr, "weight_decay": options.weight_decay}
    if options.kind == "sgd":
        return SGD(momentum=options.momentum, **numbers)
    for kind in (Adam, AdamW):
        if options.kind == kind._rule:
            return kind(betas=(options.beta1, options.beta2), eps=options.eps, **numbers)
    raise Error(f"the optimizer: expected sgd, adam or adamw, got '{options.kind}'")


def learning_rate(name, value, error=Error) -> float:
    """A user's learning rate: finite in f32, in which steps have it, and not negative."""
    rate = number(name, value, error)
    if not 0 <= rate <= float(np.finfo(np.float32).max):
        raise error(f"{name}: expected a finite number from 0 on, got {rate}")
    return rate
