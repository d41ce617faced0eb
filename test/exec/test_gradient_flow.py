# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Gradients where a trace of the forward pass does not show them: checkpoints, and regions without gradients."""
import copy

import meshwright as mw
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


class Net(nn.Module):
    def __init__(self, function):
        super().__init__()
        torch.manual_seed(1)
        self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.function = function
        self.register_buffer("mean", torch.ones(6))

    def forward(self, x):
        return self.c(self.function(self, x)).square().mean()


X = torch.randn(5, 4, generator=torch.Generator().manual_seed(2))


def gradients(module, x):
    module = copy.deepcopy(module).double()
    module(x.double()).backward()
    return {f"grad.{name}": p.grad for name, p in module.named_parameters() if p.requires_grad}


def compare(function, frozen=()):
    net = Net(function).train()
    for name in frozen:
        net.get_submodule(name).requires_grad_(False)
    model = mw.from_torch(net, (X,), training=True).differentiate()
    got = dict(zip(model.outputs, model.parallelize(mesh={"dp": 1}).run(X), strict=True))
    for name, want in gradients(net, X).items():
        if want is None:
            assert name not in got or not got[name].any(), name
        else:
            assert (got[name].double() - want).abs().max() <= 1e-6 * want.abs().max(), name


def again(function, *args, **options):
    return checkpoint(function, *args, use_reentrant=True, **options)


def within(region):
    def run(function):
        with region():
            return function()
    return run


without, inference, on = within(torch.no_grad), within(torch.inference_mode), within(torch.enable_grad)


class Shift(torch.autograd.Function):
    """Its forward has a region of its own."""

    @staticmethod
    def forward(ctx, x):
        with torch.no_grad():
            most = x.amax(-1, keepdim=True)
        return x * 2 - most

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


class ShiftWithSetup(Shift):
    @staticmethod
    def forward(x):
        with torch.no_grad():
            most = x.amax(-1, keepdim=True)
        return x * 2 - most

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass


def behind(n, y):
    """A region behind `y` that reads it."""
    return n.b(y) * without(lambda: y.abs().mean())


def average(n, x):
    y = n.a(x)
    with torch.no_grad():
        n.mean.mul_(0.9).add_(y.mean(0) * 0.1)
    return n.b(y) * n.mean


def assembled(n, x):
    z = x.new_zeros(5, 6)
    with torch.no_grad():
        z[:, :3] = n.a(x)[:, :3]
    z[:, 3:] = n.b(n.a(x))[:, 3:]
    return z


def switched(n, x):
    torch.set_grad_enabled(False)
    z = n.b(n.a(x))
    torch.set_grad_enabled(True)
    return n.a(x) * z


CASES = {
    "a reentrant checkpoint": lambda n, x: again(n.b, n.a(x)),
    "its input has no gradient": lambda n, x: n.b(again(n.a, x)),
    "a region behind it": lambda n, x: behind(n, again(n.b, n.a(x))),
    "a region inside it": lambda n, x: again(lambda y: behind(n, y), n.a(x)),
    "in another one": lambda n, x: again(lambda y: again(n.b, y) + y, n.a(x)),
    "a question in it that decides nothing": lambda n, x: again(
        lambda y: (torch.is_grad_enabled(), y.tanh().requires_grad, n.b(y))[2], n.a(x)),
    "a question about its argument": lambda n, x: again(lambda y: n.b(y) if y.requires_grad else y, n.a(x)),
    "a question in one that is not reentrant": lambda n, x: checkpoint(
        lambda y: n.b(y) * (2 if torch.is_grad_enabled() else 3), n.a(x), use_reentrant=False),
    "in one that is not reentrant": lambda n, x: checkpoint(lambda y: again(n.b, y), n.a(x), use_reentrant=False),
    "in a region": lambda n, x: n.a(x) * without(lambda: again(n.b, n.a(x))),
    "a tensor around it": lambda n, x: (lambda z: again(lambda y: n.b(y) * z, n.a(x)))(n.b.weight.sum()),
    "a sequence": lambda n, x: checkpoint_sequential(nn.Sequential(n.b, nn.Tanh(), n.b), 2, n.a(x), use_reentrant=True),
    "a branch behind it": lambda n, x: (lambda z: z if z.requires_grad else 2 * z)(again(n.b, n.a(x))),
    "no_grad": lambda n, x: n.a(x) * without(lambda: n.b(n.a(x))),
    "a decorator": lambda n, x: n.a(x) * torch.no_grad()(lambda: n.b(n.a(x)))(),
    "inference_mode": lambda n, x: n.a(x) * inference(lambda: n.b(n.a(x))).clone(),
    "on in off": lambda n, x: without(lambda: n.b(n.a(x)) * on(lambda: n.b(n.a(x)))) + without(
        lambda: on(lambda: n.b(n.a(x)))),
    "off in on": lambda n, x: n.a(x) + on(lambda: without(lambda: n.b(n.a(x)))),
    "set_grad_enabled": switched,
    "data": lambda n, x: n.a(x) * n.b(n.a(x)).data,
    "the data of a weight": lambda n, x: nn.functional.linear(n.a(x), n.b.weight.data) + n.b.weight.mean(),
    "a branch by the mode": lambda n, x: n.a(x) * (2 if torch.is_grad_enabled() else 3),
    "a branch by a value": lambda n, x: (lambda z: n.a(x) * (z if z.requires_grad else 2 * z))(
        without(lambda: n.b(n.a(x)))),
    "a running average": average,
    "a value in parts": assembled,
    "a region in a function": lambda n, x: behind(n, Shift.apply(n.a(x))),
    "a function in a region": lambda n, x: n.a(x) * without(lambda: Shift.apply(n.a(x))),
    "a region in a function with a set-up": lambda n, x: behind(n, ShiftWithSetup.apply(n.a(x))),
}


@pytest.mark.filterwarnings("ignore:None of the inputs")
@pytest.mark.parametrize("name", CASES)
def test_gradients(name):
    compare(CASES[name])


@pytest.mark.parametrize("function", [
    lambda n, x: again(lambda y: n.b(y) * (2 if torch.is_grad_enabled() else 3), n.a(x)),
    lambda n, x: again(lambda y: again(lambda z: n.b(z) * (2 if torch.is_grad_enabled() else 3), y), n.a(x)),
    lambda n, x: again(lambda y: n.b(y) * (2 if n.b(y).requires_grad else 3), n.a(x)),
    lambda n, x: again(lambda y: n.b(y) if torch.is_grad_enabled() else n.b(y).tanh(), n.a(x))])
def test_questions_in_reentrant_checkpoints(function):
    """PyTorch's forward pass and backward pass differ there."""
    with pytest.raises(mw.Error, match=r"test_gradient_flow.py:[0-9]+: the function of a reentrant checkpoint "
                                       "computes something else where gradients are off"):
        mw.from_torch(Net(function).train(), (X,), training=True)
    mw.from_torch(Net(function).eval(), (X,))


def test_frozen_layers():
    compare(lambda n, x: again(n.b, n.a(x)), frozen=["a"])
    compare(lambda n, x: n.b(n.a(x)) * without(lambda: n.b(n.a(x))), frozen=["a"])


@pytest.mark.parametrize("place, options", [
    (dict(dim=None), dict(mesh={"dp": 2})), (dict(dim=-1), dict(mesh={"dp": 3})),
    (dict(dim=0), dict(mesh={"dp": 2})), (dict(dim=1), dict(mesh={"dp": 2}))], ids=str)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.parametrizations.weight_norm])
def test_weight_norm(norm, place, options):
    """-1 is the norm of the whole tensor, as None is."""
    x = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(2))

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.net = nn.Sequential(norm(nn.Linear(8, 10), **place), nn.Tanh(), norm(nn.Linear(10, 8), **place))
            for p in self.parameters():
                p.data.mul_(1.3)

        def forward(self, x):
            return self.net(x).square().mean()

    net = Loss().train()
    got, = mw.from_torch(net.net, (x,)).parallelize(**options).run(x)
    assert (got - net.net(x)).abs().max() <= 1e-5
    model = mw.from_torch(net, (x,), training=True).differentiate()
    got = dict(zip(model.outputs, model.parallelize(**options).run(x), strict=True))
    wide = Loss().double()
    wide(x.double()).backward()
    for name, p in wide.named_parameters():
        assert (got[f"grad.{name}"].double() - p.grad).abs().max() <= 1e-6 * p.grad.abs().max(), name
