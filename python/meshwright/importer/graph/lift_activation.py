# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Activations written out, recognised by their values.

An expression of one variable and constants is a function of one variable. It is evaluated at
sample points: where it equals a known activation, it is that activation, however it is spelt.
"""

import math

import numpy as np

from .dialect import BINARY, FLOATS
from .match import constant_of
from .nodes import Builder, Graph, Node

# Some points are far from 0: an expression of few constants has reached its limit there, but
# exp(2x) is still finite.
_FAR = np.logspace(1, 2.5, 13)
_POINTS = np.concatenate([np.linspace(-6, 6, 97), [-1e-3, 1e-3], _FAR, -_FAR])


def _erf(x):
    return np.array([math.erf(v) for v in np.ravel(x)]).reshape(np.shape(x))


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


with np.errstate(over="ignore"):
    #: Activations, with their values at the points.
    _KNOWN = [
        ("gelu", {"approximate_tanh": False}, 0.5 * _POINTS * (1 + _erf(_POINTS / math.sqrt(2)))),
        ("gelu", {"approximate_tanh": True}, 0.5 * _POINTS * (1 + np.tanh(
            math.sqrt(2 / math.pi) * (_POINTS + 0.044715 * _POINTS ** 3)))),
        ("silu", {}, _POINTS * _sigmoid(_POINTS)),
    ]
_TRANSCENDENTAL = {"erf", "tanh", "exp", "sigmoid"}
# Functions of several pieces (maximum, abs and such) are left out: a piece may begin beyond all
# points.
_FUNCTIONS = {
    "neg": np.negative, "exp": np.exp, "sqrt": np.sqrt, "erf": _erf,
    "rsqrt": lambda x: 1 / np.sqrt(x), "reciprocal": np.reciprocal,
    "silu": lambda x: x * _sigmoid(x), "tanh": np.tanh, "sigmoid": _sigmoid, "add": np.add,
    "sub": np.subtract, "mul": np.multiply, "div": np.divide, "pow": np.power,
}
_MOST_STEPS = 24


def lift_activations(graph: Graph):
    build = Builder()
    # Node -> (variable, values at the sample points, steps, whether transcendental).
    functions: dict[int, tuple] = {}
    keep = []

    def function_of(node: Node):
        return functions.get(id(node))

    def pattern(node: Node) -> Node | None:
        keep.append(node)
        if node.op == "cast" and node.dtype in FLOATS and node.operands[0].dtype in FLOATS:
            if function_of(node.operands[0]):
                functions[id(node)] = function_of(node.operands[0])
            return None
        if node.op not in _FUNCTIONS or node.dtype not in FLOATS:
            return None
        variable, values, steps, transcendental = None, [], 1, node.op in _TRANSCENDENTAL
        candidates = []
        for operand in node.operands:
            constant = constant_of(operand)
            if constant is None and operand.shape != node.shape:
                return None
            candidates.append((operand, constant, function_of(operand)))
        # Operands that are functions themselves count by their variable, others are variables.
        inner = {id(f[0]): f[0] for _, _, f in candidates if f}
        plain = {id(o): o for o, c, f in candidates if c is None and not f}
        variables = {**inner, **plain}
        if len(variables) != 1:
            # x * f(x): the variable of f is the other operand, or all operands are one variable.
            if len(plain) >= 1 and node.op in BINARY:
                variables = plain if len(plain) == 1 else {}
                if not all(c is not None or id(o) in variables for o, c, f in candidates):
                    return None
            else:
                return None
        if len(variables) != 1:
            return None
        variable = next(iter(variables.values()))
        for operand, constant, function in candidates:
            if constant is not None:
                values.append(np.float64(constant))
            elif operand is variable:
                values.append(_POINTS)
            elif function and function[0] is variable:
                values.append(function[1])
                steps += function[2]
                transcendental |= function[3]
            else:
                return None
        if steps > _MOST_STEPS:
            return None
        with np.errstate(all="ignore"):
            result = _FUNCTIONS[node.op](*values)
        functions[id(node)] = (variable, result, steps, transcendental)
        if transcendental and node.op in ("mul", "div"):
            for name, attrs, want in _KNOWN:
                if np.allclose(result, want, rtol=0, atol=1e-7):
                    build.at(node)
                    lifted = build.make(name, [build.cast(variable, node.dtype)], node.shape,
                                        node.dtype, **attrs)
                    return lifted
        return None

    graph.rewrite(pattern)
