# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A loss for modules that return none, so that their gradients can be compared: the sum over all
outputs of float type of the mean of (entry times cosine of its row-major index)."""

import math

import torch

from .. import _core
from ..errors import unwrap
from ..importer.graph.dialect import FLOATS
from ..importer.graph.emit import emit
from ..importer.graph.materialise import Materialise
from ..importer.graph.nodes import Builder, Graph
from ..importer.graph.streams import index_of
from ..model import Model

#: The name of the loss among the outputs.
NAME = "check.loss"


def of_outputs(outputs) -> torch.Tensor:
    """The loss in PyTorch."""
    terms = []
    for y in outputs:
        if y.is_floating_point() and y.numel():
            wide = y if y.dtype == torch.float64 else y.float()
            index = torch.arange(y.numel(), device="cpu").to(wide.dtype)
            terms.append((wide * index.cos().view(y.shape)).sum() / y.numel())
    return sum(term.to(terms[0].dtype) for term in terms)


def can_have(source) -> bool:
    return any(node.dtype in FLOATS and math.prod(node.shape) for node in source.graph.outputs)


def with_loss(source) -> Model:
    """The program of an import with the loss as one more output, the last."""
    build, total = Builder(), None
    for node in source.graph.outputs:
        count = math.prod(node.shape)
        if node.dtype not in FLOATS or not count:
            continue
        term = build.at(node).cast(node, "f64" if node.dtype == "f64" else "f32")
        if count > 1:
            index = build.cast(index_of(build, node.shape), term.dtype)
            term = build.binary("mul", term, build.unary("cos", index))
            term = build.reduce("sum", term, range(len(node.shape)), False)
            number = build.make("constant", [], (), term.dtype, value=float(count))
            term = build.binary("div", term, number)
        term = build.reshape(term, ())
        total = term if total is None else build.binary("add", total, build.cast(term, total.dtype))
    graph = source.graph
    graph = Graph(
        inputs=graph.inputs, parameters=graph.parameters, states=graph.states, writes=graph.writes,
        outputs=[*graph.outputs, total], output_names=[*graph.output_names, NAME])
    Materialise(graph).run()
    text = emit(graph)
    return Model(unwrap(_core.Program.parse(text, "<check>")), source.parameters)
