# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Handlers of dropout and of operations that draw random numbers."""
import math

from ..errors import Uncovered
from ..graph.nodes import Node, numel
from ..graph.streams import apply, index_of, states
from .handlers import aten


@aten("dropout")
def dropout(c, x, p=0.5, train=False):
    return dropped(c, x, p, x.shape) if train else x


@aten("native_dropout")
def dropout_with_mask(c, x, p, train):
    return [dropped(c, x, p, x.shape) if train else x, None]


@aten("feature_dropout")
def channel_dropout(c, x, p=0.5, train=False):
    """Drops channels, which are all elements of dimensions 0 and 1."""
    return dropped(c, x, p, x.shape[:2] + (1,) * (x.rank - 2)) if train else x


@aten("alpha_dropout", "feature_alpha_dropout")
def alpha_dropout(c, x, p=0.5, train=False):
    if train and p > 0:
        raise Uncovered("alpha dropout in training mode is not covered")
    return x


def dropped(c, x: Node, p: float, shape) -> Node:
    """`x`, of which elements or, where `shape` has a size of 1, whole slices are dropped."""
    if p == 0:
        return x
    if p == 1:
        return c.build.binary("mul", x, c.build.scalar(0.0, x.dtype))
    return apply(c.build, c.graph, x, shape, float(p), next_stream(c))


def next_stream(c, what="dropout in training mode is") -> int:
    """The number of another random operation."""
    if not c.exported.draws:
        raise Uncovered(f"{what} not covered; expected an import with training=True")
    c.graph.streams += 1
    return c.graph.streams - 1


# Numbers themselves.

#: The digits of PyTorch's numbers in [0, 1), of types in which f32's would round up to 1.
_DIGITS = {"bf16": 8, "f16": 11}


@aten("rand", "rand_like")
def uniform_numbers(c, *args, generator=None, **options):
    return _between(c, c.shape, c.dtype, 0.0, 1.0, generator)


@aten("uniform")
def uniform_between(c, x, low=0.0, high=1.0, generator=None):
    return _between(c, x.shape, x.dtype, low, high, generator)


@aten("randn", "randn_like")
def normal_numbers(c, *args, generator=None, **options):
    return c.build.cast(_normal(c, c.shape, c.dtype, generator), c.dtype)


@aten("normal", "normal_functional")
def normal_around(c, *args, generator=None, **options):
    """normal(mean, deviation), of which either may be a tensor, or of a template to fill."""
    if c.fx.target._schema.name.endswith("functional"):  # behind the template
        args = (*args[1:], *(0.0, 1.0)[len(args) - 1:])
    mean, deviation = (*args, 1.0)[:2]
    wide = "f64" if c.dtype == "f64" else "f32"
    number = _normal(c, c.shape, c.dtype, generator)
    number = c.build.binary("mul", number, c.operand(deviation, wide))
    return c.build.cast(c.build.binary("add", number, c.operand(mean, wide)), c.dtype)


@aten("bernoulli")
def coins(c, x, probability=None, generator=None):
    """1 with a probability: that of the element itself where none is given."""
    probability = x if probability is None else probability
    wide = "f64" if isinstance(probability, Node) and probability.dtype == "f64" else "f32"
    number = _uniform(c, x.shape, wide, generator)
    return c.build.cast(c.build.compare("lt", number, c.operand(probability, wide)), c.dtype)


@aten("randint", "randint_like")
def integers(c, *args, generator=None, **options):
    """randint(high, size), randint(low, high, size), randint_like(x, high), randint_like(x, low, high)."""
    low, high = [a for a in args if isinstance(a, int)][-2:] if \
        sum(isinstance(a, int) for a in args) > 1 else (0, next(a for a in args if isinstance(a, int)))
    # A product in f64 has room for the digits of both factors: it stays below the number of values.
    number = c.build.cast(_uniform(c, c.shape, "f32" if high - low <= 1 << 24 else "f64", generator),
                          "f64")
    number = c.build.binary("mul", number, c.build.scalar(float(high - low), "f64"))
    number = c.build.cast(c.build.unary("floor", number), "i64")
    return c.build.cast(c.build.binary("add", number, c.build.scalar(low, "i64")), c.dtype)


@aten("exponential")
def exponential_numbers(c, x, rate=1.0, generator=None):
    """-log(1 - u) / rate, which is never 0: its logarithm is finite, in Gumbel's softmax say."""
    build, wide = c.build, "f64" if x.dtype == "f64" else "f32"
    rest = build.binary("sub", build.scalar(1.0, wide), _uniform(c, x.shape, wide, generator))
    number = build.binary("maximum", build.unary("neg", build.unary("log", rest)),
                          build.scalar(2.0 ** -26, wide))
    return build.cast(build.binary("mul", number, build.scalar(1 / rate, wide)), x.dtype)


def _between(c, shape, dtype, low, high, generator):
    build, wide = c.build, "f64" if dtype == "f64" else "f32"
    number = _uniform(c, shape, wide, generator)
    if dtype in _DIGITS:
        steps = 2.0 ** _DIGITS[dtype]
        number = build.unary("floor", build.binary("mul", number, build.scalar(steps, wide)))
        number = build.binary("mul", number, build.scalar(1 / steps, wide))
    if (low, high) != (0.0, 1.0):
        number = build.binary("mul", number, build.scalar(float(high) - float(low), wide))
        number = build.binary("add", number, build.scalar(float(low), wide))
    return build.cast(number, dtype)


def _uniform(c, shape, wide, generator) -> Node:
    """Numbers in [0, 1): multiples of 2^-24, in f64 of 2^-48."""
    if generator is not None:
        raise Uncovered("random numbers of a generator of the model's own are not covered; expected "
                        "those of PyTorch's default generator")
    build = c.build
    number = build.cast(_drawn(c, shape), wide)
    if wide == "f64":
        more = build.binary("mul", build.cast(_drawn(c, shape), wide),
                            build.scalar(2.0 ** -24, wide))
        number = build.binary("add", number, more)
    return number


def _drawn(c, shape) -> Node:
    index = index_of(c.build, shape)
    stream = next_stream(c, f"operation {c.fx.target} in evaluation mode draws other numbers in each "
                         "call: it is")
    number = c.build.make("random", [index, *states(c.graph)], index.shape, "f32", stream=stream)
    return c.build.broadcast(c.build.reshape(number, shape), shape) if numel(index.shape) == 1 else \
        c.build.broadcast(number, shape)


def _normal(c, shape, dtype, generator) -> Node:
    """Box and Muller's: a radius and an angle."""
    build, wide = c.build, "f64" if dtype == "f64" else "f32"
    first, second = (_uniform(c, shape, wide, generator) for _ in range(2))
    rest = build.binary("sub", build.scalar(1.0, wide), first)
    square = build.binary("mul", build.unary("log", rest), build.scalar(-2.0, wide))
    angle = build.binary("mul", second, build.scalar(2 * math.pi, wide))
    return build.binary("mul", build.unary("sqrt", square), build.unary("cos", angle))
