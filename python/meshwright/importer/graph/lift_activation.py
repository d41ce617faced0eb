# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Activations written out, recognised by their values.

An expression of one variable and constants is a function of one variable. It is evaluated at
sample points: where it equals a known activation, it is that activation, however it is spelt.
"""

import torch
import torch.nn.functional as F

from .match import constant_of
from .nodes import BINARY, FLOATS, Builder, Graph, Node

# Some points are far from 0: an expression of few constants has reached its limit there, but
# exp(2x) is still finite.
_FAR = torch.logspace(1, 2.5, 13, dtype=torch.float64, device="cpu")
_POINTS = torch.cat([torch.linspace(-6, 6, 97, dtype=torch.float64, device="cpu"),
                     torch.tensor([-1e-3, 1e-3], dtype=torch.float64, device="cpu"), _FAR, -_FAR])
_KNOWN = [
    ("gelu", {"approximate_tanh": False}, lambda x: F.gelu(x)),
    ("gelu", {"approximate_tanh": True}, lambda x: F.gelu(x, approximate="tanh")),
    ("silu", {}, F.silu),
]
_TRANSCENDENTAL = {"erf", "tanh", "exp", "sigmoid"}
# Functions of several pieces (maximum, abs and such) are left out: a piece may begin beyond all
# points.
_FUNCTIONS = {
    "neg": torch.neg, "exp": torch.exp, "sqrt": torch.sqrt, "erf": torch.erf,
    "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal, "silu": F.silu, "tanh": torch.tanh,
    "sigmoid": torch.sigmoid, "add": torch.add, "sub": torch.sub, "mul": torch.mul,
    "div": torch.div, "pow": torch.pow,
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
                values.append(torch.tensor(constant, dtype=torch.float64))
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
        result = _FUNCTIONS[node.op](*values)
        functions[id(node)] = (variable, result, steps, transcendental)
        if transcendental and node.op in ("mul", "div"):
            for name, attrs, reference in _KNOWN:
                want = reference(_POINTS)
                if torch.allclose(result, want, rtol=0, atol=1e-7):
                    build.at(node)
                    lifted = build.make(name, [build.cast(variable, node.dtype)], node.shape,
                                        node.dtype, **attrs)
                    return lifted
        return None

    graph.rewrite(pattern)
