# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The rewrites between what a front end builds and what is printed, in their order."""
from collections.abc import Callable
from typing import NamedTuple

from .join_parameters import join_parameters
from .lift_activation import lift_activations
from .lift_attention import lift_attention
from .lift_experts import lift_experts
from .lift_norm import lift_norms
from .lift_rotary import lift_rotary
from .lift_stored import lift_stored
from .materialise import Materialise, inline_splats, unfold, widen_scalars
from .nodes import Graph
from .share import separate_chunks, share
from .simplify import simplify
from .supply import supply


class Rewrite(NamedTuple):
    """A function that changes a graph, which keeps its values, and why it stands where it does."""
    apply: Callable[[Graph], None]
    reason: str


REWRITES = (
    Rewrite(share, "patterns ask whether two operands are one node"),
    Rewrite(lift_stored, "the scales of blocks and their codes have not moved apart"),
    Rewrite(lift_rotary, "simplify moves slices and transposes away from the values that it looks at"),
    Rewrite(lift_norms, "simplify moves reshapes and transposes in between the parts of a norm"),
    Rewrite(simplify, "reshapes and transposes that undo each other no longer hide other parts"),
    Rewrite(share, "operands that simplify made anew are one node again"),
    Rewrite(lift_norms, "finds the norms that reshapes and broadcasts had hidden"),
    Rewrite(lift_activations, "an activation is a function of one node, where equal operands are one"),
    Rewrite(simplify, "reshapes and transposes move past the norms and activations that were lifted"),
    Rewrite(share, "attention asks how many users its weights have"),
    Rewrite(lift_attention, "nothing stands between its products and its softmax any more"),
    Rewrite(lift_experts, "equal indices are one node, and batch and sequence of the tokens are apart"),
    Rewrite(join_parameters, "experts in a list have their parameters stacked now"),
    Rewrite(supply, "what is recognised is the module's, however its parameters are stored"),
    Rewrite(simplify, "reshapes and transposes around attention and experts meet those of projections"),
    Rewrite(separate_chunks, "slices have moved up to the projection that they cut"),
    Rewrite(unfold, "recognition, which is done, reads known values; large ones become operations"),
    Rewrite(simplify, "cleans up between the operations that came back"),
    Rewrite(share, "layers have the same tables, which came back once for each"),
    Rewrite(widen_scalars, "recognition reads numbers without casts"),
    Rewrite(lambda graph: Materialise(graph).run(), "nothing reads known values any more"),
    Rewrite(simplify, "broadcasts of constants that an operation does by itself go"),
    Rewrite(inline_splats, "the broadcasts of constants that are left are needed in full"),
)


def rewrite(graph: Graph):
    """Recognises what exporters take apart, and brings the graph into the form that is printed."""
    for step in REWRITES:
        step.apply(graph)
