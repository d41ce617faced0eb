# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Recognises, by meaning, what exporters take apart."""
from .lift_activation import lift_activations
from .lift_attention import lift_attention
from .lift_norm import lift_norms
from .lift_rotary import lift_rotary
from .nodes import Graph
from .share import share
from .simplify import simplify


def lift(graph: Graph):
    share(graph)
    # First: simplify moves slices and transposes away from the values that these look at.
    lift_rotary(graph)
    lift_norms(graph)
    simplify(graph)
    share(graph)
    lift_norms(graph)
    lift_activations(graph)
    simplify(graph)
    share(graph)
    lift_attention(graph)
