# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A function whose own derivative is not that of its forward is refused where gradients flow."""
import pytest
import torch
from meshwright.importer.torch import ImportFailed, import_module
from torch import nn

EXPECTED = "; expected operations of PyTorch, or the derivative of the forward, where gradients"


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class RoundAgain(Round):
    pass


bound = Round.apply


class Rounds(nn.Module):
    """A function with its own derivative, where gradients flow or where they do not."""

    def __init__(self, trains):
        super().__init__()
        self.layer, self.trains = nn.Linear(4, 4), trains

    def forward(self, x):
        y = self.layer(x)
        if self.trains:
            return RoundAgain.apply(y) + y
        with torch.no_grad():
            z = Round.apply(y)
        return Round.apply(x) + y + z


def test_where_gradients_flow():
    with pytest.raises(ImportFailed, match="RoundAgain is a torch.autograd.Function whose derivative "
                                           "differs from that of its forward, by 1 times the largest "
                                           "entry" + EXPECTED) as failed:
        import_module(Rounds(True), (torch.ones(2, 4),), training=True)
    assert [d.file for d in failed.value.diagnostics] == [__file__]
    assert "forward" not in vars(RoundAgain) and RoundAgain.apply(torch.ones(1)) == 1
    assert "__init_subclass__" not in vars(torch.autograd.Function)
    import_module(Rounds(False), (torch.ones(2, 4),), training=True)
    import_module(Rounds(True), (torch.ones(2, 4),))


class Function(torch.autograd.Function):
    """Has the derivative of x * x."""

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 2 * x


class WrongBackward(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * 1.001


class WrongWithSetup(Function):
    @staticmethod
    def forward(x):
        return x * x * 1.001

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)


class ClipsLarge(torch.autograd.Function):
    """Clips the gradients of large numbers alone."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (ctx.saved_tensors[0].abs() < 20)


class ClipsSmall(ClipsLarge):
    @staticmethod
    def backward(ctx, gradient):
        return gradient * (ctx.saved_tensors[0].abs() > 1e-7)


class ClipsGradients(ClipsLarge):
    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-1, 1)


class FiniteAtZero(torch.autograd.Function):
    """Is finite where the derivative of the forward is not."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x > 0, x.sqrt(), 0.0)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return torch.where(x > 0, gradient / (2 * x.sqrt()), 0.0)


class Root(torch.autograd.Function):
    """Has no gradient at 0, where that of the root is infinite."""

    @staticmethod
    def forward(ctx, x):
        y = x.sqrt()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return torch.where(y > 0, gradient / (2 * y), 0.0)


class OfSaved(torch.autograd.Function):
    """A function with the derivative that a subclass states."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.view_as(x)


class Relu(OfSaved):
    """Has the slope 1 at 0, or 0."""
    slope = 1.0

    @classmethod
    def of(cls, number):
        return type(f"Relu{number:g}", (cls,), {"slope": number, "backward": staticmethod(
            lambda ctx, g: torch.where(ctx.saved_tensors[0] == 0, number * g, g * (ctx.saved_tensors[0] > 0)))})

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.relu()


class Largest(OfSaved):
    """Gives all largest numbers the gradient."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.max(-1, keepdim=True)[0]

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x == x.max(-1, keepdim=True)[0])


class Steps(OfSaved):
    """Has another slope at halves."""

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (1.0 + (x == 1.5))


class ClipsVeryLarge(OfSaved):
    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-1e4, 1e4)


class ClipsHuge(OfSaved):
    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-1e29, 1e29)


class DropsTiny(OfSaved):
    @staticmethod
    def backward(ctx, gradient):
        return gradient * (gradient.abs() > 1e-15)


class Cleans(OfSaved):
    @staticmethod
    def backward(ctx, gradient):
        return torch.nan_to_num(gradient, 0.0, torch.inf, -torch.inf)


class CleansInfinity(OfSaved):
    @staticmethod
    def backward(ctx, gradient):
        return torch.where(gradient.isinf(), 0.0, gradient)


class Quotient(torch.autograd.Function):
    """Has a derivative of 0 where the numerator is 0."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x / y

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        return gradient / y * (x != 0), -gradient * x / y / y


def right(function, derivative):
    """A function with its own derivative."""
    class Right(OfSaved):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return function(x)

        @staticmethod
        def backward(ctx, gradient):
            return derivative(ctx.saved_tensors[0], gradient)

    return Right.apply


def of_softmax(x, g):
    y = x.softmax(-1)
    return y * (g - (g * y).sum(-1, True))


def of_norm(x, g):
    scale = (x.square().mean(-1, True) + 1e-5).rsqrt()
    y = x * scale
    return scale * (g - y * (g * y).mean(-1, True))


RIGHT = {
    "tanh": right(torch.tanh, lambda x, g: g * (1 - x.tanh() ** 2)),
    "root": right(torch.sqrt, lambda x, g: g / (2 * x.sqrt())),
    "logarithm": right(torch.log, lambda x, g: g / x),
    "swish": right(lambda x: x * x.sigmoid(), lambda x, g: g * x.sigmoid() * (1 + x * (1 - x.sigmoid()))),
    "gelu": right(lambda x: 0.5 * x * (1 + torch.erf(x / 2 ** 0.5)), lambda x, g: g * (
        0.5 * (1 + torch.erf(x / 2 ** 0.5)) + x * torch.exp(-x * x / 2) / (2 * torch.pi) ** 0.5)),
    "relu": right(torch.relu, lambda x, g: torch.where(x > 0, g, 0.0)),
    "relu by a factor": right(torch.relu, lambda x, g: g * (x > 0)),
    "clamp": right(lambda x: x.clamp(min=0), lambda x, g: g.masked_fill(x < 0, 0)),
    "softmax": right(lambda x: x.softmax(-1), of_softmax),
    "norm": right(lambda x: x * (x.square().mean(-1, True) + 1e-5).rsqrt(), of_norm),
    "absolute": right(torch.abs, lambda x, g: g * x.sign()),
    "square in f32": right(lambda x: x.float().square().to(x.dtype), lambda x, g: 2 * x * g),
    "scaled": right(lambda x: x * 3, lambda x, g: g * 3),
    "sum": right(lambda x: x.sum(-1), lambda x, g: g[..., None].expand_as(x)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_functions(name):
    import_module(Calls(lambda x, _: RIGHT[name](x), 4), (torch.ones(2, 4), None), training=True)


class NoDerivative(Function):
    @staticmethod
    def forward(ctx, x):
        with torch.no_grad():
            ctx.save_for_backward(x)
            return x * x


class InList(torch.autograd.Function):
    """PyTorch follows no tensors in lists."""

    @staticmethod
    def forward(ctx, tensors):
        return tensors[0] * 2

    @staticmethod
    def backward(ctx, gradient):
        return None


class Raises(Function):
    @staticmethod
    def forward(ctx, x):
        if x.dtype in (torch.float32, torch.float64) and type(x) is torch.Tensor:
            raise ValueError("no numbers here")
        ctx.save_for_backward(x)
        return x * x


class CallsAnother(Function):
    @staticmethod
    def forward(ctx, x):
        return WrongBackward.forward(ctx, x)


class Selects(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, rows):
        ctx.save_for_backward(x, rows)
        return x[rows]

    @staticmethod
    def backward(ctx, gradient):
        x, rows = ctx.saved_tensors
        return torch.zeros_like(x).index_add(0, rows, gradient), None


class Outer(Function):
    """Takes the derivative of another function for its own."""

    @staticmethod
    def forward(ctx, x):
        return Round.apply(x) * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def defined_in_a_call(x):
    class Defined(Round):
        pass

    return Defined.apply(x)


class Calls(nn.Module):
    def __init__(self, function, size):
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.ones(size))

    def forward(self, x, rows):
        return self.function(x * self.weight, rows)


@pytest.mark.parametrize("said, function", [
    ("WrongBackward .* differs from that of its forward, by 0.001 times", WrongBackward.apply),
    ("WrongWithSetup .* differs from that of its forward, by 0.001 times", WrongWithSetup.apply),
    ("ClipsLarge .* differs from that of its forward, by 0.[0-9]+ times", ClipsLarge.apply),
    ("ClipsGradients .* differs from that of its forward, by [0-9.]+ times", ClipsGradients.apply),
    ("ClipsSmall .* differs from that of its forward, by 1 times", ClipsSmall.apply),
    ("FiniteAtZero .* differs .*, which is not finite in places", FiniteAtZero.apply),
    ("Root .* differs from that of its forward at 0, where one of both is not finite", Root.apply),
    ("Relu1 .* differs from that of its forward at 0, by 1 times", Relu.of(1.0).apply),
    ("Relu0.5 .* differs from that of its forward at 0, by 1 times", Relu.of(0.5).apply),
    ("Largest .* differs from that of its forward at 0, by", Largest.apply),
    ("Steps .* differs from that of its forward at .*, by", Steps.apply),
    ("ClipsVeryLarge .* differs from that of its forward, by [0-9.]+ times", ClipsVeryLarge.apply),
    ("ClipsHuge .* differs from that of its forward, by [0-9.]+ times", ClipsHuge.apply),
    ("DropsTiny .* differs from that of its forward, by 1 times", DropsTiny.apply),
    ("Cleans .* differs from that of its forward at gradients that are nan", Cleans.apply),
    ("CleansInfinity .* differs from that of its forward at gradients that are inf", CleansInfinity.apply),
    ("Quotient .* differs from that of its forward at ", lambda x: Quotient.apply(x, x.exp())),
    ("CallsAnother .* differs from that of its forward, by 0.001 times", CallsAnother.apply),
    ("NoDerivative .* differs from that of its forward, by 1 times", NoDerivative.apply),
    ("InList .* differs from that of its forward, by 1 times", lambda x: InList.apply([x])),
    ("Raises .* cannot be compared with that of its forward: ValueError: no numbers here", Raises.apply),
    ("Round .* differs from that of its forward, by 1 times", bound),
    ("Round .* differs from that of its forward, by 1 times .*", Outer.apply),
    ("Defined .* differs from that of its forward, by 1 times", defined_in_a_call),
], ids=lambda part: part.split()[0] if isinstance(part, str) else "")
def test_functions(said, function):
    before = torch.get_rng_state()
    with pytest.raises(ImportFailed, match=said + ".*" + EXPECTED) as failed:
        import_module(Calls(lambda x, _: function(x), 4), (torch.ones(2, 4), None), training=True)
    assert [d.file for d in failed.value.diagnostics] == [__file__]
    assert torch.equal(before, torch.get_rng_state())


class Again(torch.autograd.Function):
    """Computes its results again in the backward pass."""

    @staticmethod
    def forward(ctx, x, function):
        ctx.save_for_backward(x)
        ctx.function = function
        return function(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(ctx.function(x), x, gradient)[0], None


class ReadsParameters(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return Again.apply(self.layer(x), lambda x: self.layer(x) + 1)


def test_tensors_that_are_no_arguments():
    with pytest.raises(ImportFailed, match="Again .* cannot be compared with that of its forward: it reads "
                                           "tensors of the module that are not its arguments" + EXPECTED):
        import_module(ReadsParameters(), (torch.ones(2, 4),), training=True)
    import_module(Calls(lambda x, _: Again.apply(x, torch.tanh), 4), (torch.ones(2, 4), None), training=True)


def test_integers():
    """Random integers mean nothing, but constants outside of the module are known."""
    x, rows, known = torch.ones(3, 4), torch.tensor([2, 0]), torch.tensor([2, 0])
    with pytest.raises(ImportFailed, match="Selects .* the values of its integers are unknown" + EXPECTED):
        import_module(Calls(Selects.apply, 4), (x, rows), training=True)
    import_module(Calls(lambda x, _: Selects.apply(x, known), 4), (x, rows), training=True)


class Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y, part):
        ctx.save_for_backward(x, y)
        if type(x) is torch.Tensor and x.shape[1] == 2000:
            raise ValueError("too many numbers")
        return x.unflatten(1, (-1, part)).flatten(1) @ y

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        return gradient @ y.T, x.T @ gradient, None


def test_large_shapes():
    """A function of many elements is compared at smaller shapes, of which equal sizes stay equal."""
    x, y = torch.ones(30, 2000), torch.ones(2000, 500)
    import_module(Calls(lambda x, y: Products.apply(x, y, 8), 2000), (x, y), training=True)
    with pytest.raises(ImportFailed, match=r"Products .* cannot be compared with that of its forward at "
                                           r"shapes \[\[16, 32\], \[32, 24\]\]: RuntimeError: unflatten"):
        import_module(Calls(lambda x, y: Products.apply(x, y, 10), 2000), (x, y), training=True)
