# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Values that follow from parameters alone by moves and casts: weights, as ranks store or use them."""
from ..graph.nodes import Node

#: Operations that keep a value a weight: on a rank they are done once.
_OF_WEIGHTS = ("reshape", "transpose", "cast", "slice", "widen", "dequantize")


def is_weight(node: Node) -> bool:
    while node.op in _OF_WEIGHTS:
        node = node.operands[0]
    return node.op == "parameter"
