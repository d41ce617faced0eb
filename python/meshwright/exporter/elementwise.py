# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Elementwise ops of `nn`."""
import math

from .ops import EXPANSIONS, FLOATS, Op, computed, expands
from .text import Value, Writer

_UNARY = {"neg": "negate", "abs": "abs", "exp": "exponential", "log": "log", "sqrt": "sqrt", "rsqrt": "rsqrt",
          "sin": "sine", "cos": "cosine", "floor": "floor", "tanh": "tanh", "sigmoid": "logistic"}
_BINARY = {"add": "add", "sub": "subtract", "mul": "multiply", "pow": "power", "maximum": "maximum",
           "minimum": "minimum", "and": "and", "or": "or", "xor": "xor"}
_KINDS = ("eq", "ne", "lt", "le", "gt", "ge")


def _register():
    def unary(name):
        return lambda op, w: computed(op, w, lambda x: w.unary(name, x))

    def binary(name):
        return lambda op, w: computed(op, w, lambda x, y: w.binary(name, x, y))

    EXPANSIONS.update((f"nn.{name}", unary(target)) for name, target in _UNARY.items())
    EXPANSIONS.update((f"nn.{name}", binary(target)) for name, target in _BINARY.items())


_register()


@expands("nn.not")
def _not(op: Op, w: Writer):
    return w.unary("not", op.x)


@expands("nn.reciprocal")
def _reciprocal(op: Op, w: Writer):
    return computed(op, w, lambda x: w.binary("divide", 1, x))


@expands("nn.erf")
def _erf(op: Op, w: Writer):
    return computed(op, w, lambda x: w.unary("erf", x, "chlo"))


@expands("nn.relu")
def _relu(op: Op, w: Writer):
    return w.binary("maximum", op.x, 0)


@expands("nn.silu")
def _silu(op: Op, w: Writer):
    return computed(op, w, lambda x: w.binary("multiply", x, w.unary("logistic", x)))


@expands("nn.gelu")
def _gelu(op: Op, w: Writer):
    def by_tanh(x):
        cubed = w.binary("multiply", w.binary("multiply", x, x), x)
        inner = w.binary("add", x, w.binary("multiply", cubed, 0.044715))
        inner = w.unary("tanh", w.binary("multiply", inner, math.sqrt(2 / math.pi)))
        return w.binary("multiply", x, w.binary("multiply", w.binary("add", inner, 1), 0.5))

    def by_erf(x):
        inner = w.unary("erf", w.binary("multiply", x, math.sqrt(0.5)), "chlo")
        return w.binary("multiply", w.binary("multiply", x, 0.5), w.binary("add", inner, 1))

    return computed(op, w, by_tanh if op.has("approximate_tanh") else by_erf)


@expands("nn.stop_gradient", "nn.with_derivative")
def _same(op: Op, w: Writer):
    return op.x


@expands("nn.div")
def _div(op: Op, w: Writer):
    if op.dtype in FLOATS:
        return computed(op, w, lambda x, y: w.binary("divide", x, y))
    x, y = w.pair(*op.operands)
    quotient, rest = w.binary("divide", x, y), w.binary("remainder", x, y)
    return w.select(_apart(w, rest, y), w.binary("subtract", quotient, 1), quotient)


@expands("nn.rem")
def _rem(op: Op, w: Writer):
    def of(x, y):
        x, y = w.pair(x, y)
        rest = w.binary("remainder", x, y)
        return w.select(_apart(w, rest, y), w.binary("add", rest, y), rest)
    return computed(op, w, of)


def _apart(w: Writer, rest: Value, y: Value) -> Value:
    """Whether a remainder is not zero, and has another sign than the divisor."""
    signs = w.binary("xor", w.compare("lt", rest, 0), w.compare("lt", y, 0))
    return w.binary("and", w.compare("ne", rest, 0), signs)


@expands("nn.compare")
def _compare(op: Op, w: Writer):
    kind = op.attribute("kind")
    return w.compare(_KINDS[kind] if isinstance(kind, int) else _kind(kind, _KINDS), *op.operands)


def _kind(text: str, kinds) -> str:
    """The word of an enumeration in an attribute's text: `#nn.compare_kind<ge>` or `ge`."""
    word = text.rstrip(">").replace("<", " ").split()[-1]
    if word not in kinds:
        raise ValueError(f"expected one of {', '.join(kinds)}, got {text}")
    return word


@expands("nn.select")
def _select(op: Op, w: Writer):
    return w.select(*op.operands)


@expands("nn.cast")
def _cast(op: Op, w: Writer):
    x = op.x
    if x.dtype == "i1" and op.dtype in FLOATS:
        return w.make(f"stablehlo.convert {x.name}", x.shape, op.dtype,
                      f"({x.type}) -> {Value('', x.shape, op.dtype).type}")
    return w.convert(x, op.dtype)
