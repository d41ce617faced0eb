# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The rewrites between what a front end builds and what is printed, in their order."""
from collections.abc import Callable
from typing import NamedTuple

from .lift_activation import lift_activations
from .lift_attention import lift_attention
from .lift_norm import lift_norms
from .lift_rotary import lift_rotary
from .materialise import Materialise, inline_splats, unfold, widen_scalars
from .nodes import Graph
from .share import separate_chunks, share
from .simplify import simplify


class Rewrite(NamedTuple):
    """A function that changes a graph, which keeps its values, and why it stands where it does."""
    apply: Callable[[Graph], None]
    reason: str


REWRITES = (
    Rewrite(share, "patterns ask whether two operands are one node"),
    Rewrite(lift_rotary, "simplify moves slices and transposes away from the sum of a rotary"),
    Rewrite(lift_norms, "simplify moves the reshape of tokens between a norm and its weight"),
    Rewrite(simplify, "what is left between the parts of norms, activations and attention goes"),
    Rewrite(share, "operands that simplify rebuilt are one node again"),
    Rewrite(lift_norms, "finds norms whose parts had something between them"),
    Rewrite(lift_activations, "an activation has one variable once its operands are shared"),
    Rewrite(simplify, "token-wise ops that were lifted let reshapes pass"),
    Rewrite(share, "attention asks how many users its weights have"),
    Rewrite(lift_attention, "comes last of the lifts: queries and keys have had their norms and rotary"),
    Rewrite(simplify, "heads that attention does not repeat, and reshapes around it, go"),
    Rewrite(separate_chunks, "slices have moved up to the projection that they cut"),
    Rewrite(unfold, "all patterns that read known values have run; large ones are computed"),
    Rewrite(simplify, "cleans up between the operations that unfold puts back"),
    Rewrite(share, "layers unfold the same tables"),
    Rewrite(widen_scalars, "patterns match numbers without casts, so this follows all of them"),
    Rewrite(lambda graph: Materialise(graph).run(), "no pattern asks for a known value any more"),
    Rewrite(simplify, "broadcasts of constants that an operation does by itself go"),
    Rewrite(inline_splats, "only broadcasts that are needed in full are left"),
)


def rewrite(graph: Graph):
    """Recognises what exporters take apart, and brings the graph into the form that is printed."""
    for step in REWRITES:
        step.apply(graph)
