# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Parameters as checkpoints store them: in another type, as codes with scales, in several tensors.

A parameter with a `source` becomes the parameters that the source is stored as, and the operations
that make its value of them. So a rank holds its part in the form in which it is stored.
"""
from dataclasses import dataclass

from ...tensors import Joined
from .nodes import Builder, Graph, Node


@dataclass
class Stored:
    """Numbers, or codes with a scale for each block of their last two dimensions."""
    #: The name of the parameter of the program, and that of its scales.
    name: str
    values: Joined
    #: The element type in IR, None if it is the module's, and the shape in elements: several may
    #: share a byte.
    dtype: str | None
    shape: tuple[int, ...]
    scales: "Stored | None" = None
    block: tuple[int, int] | None = None
    #: Whether the module has the last two dimensions in the other order.
    transposed: bool = False
    #: The largest absolute value, of numbers that were measured.
    largest: float = 0.0

    @property
    def kind(self) -> tuple:
        """Sources of one kind can be stacked."""
        scales = self.scales and self.scales.kind
        return self.dtype, self.shape, scales, self.block, self.transposed


@dataclass
class Concatenated:
    """Several of these along a dimension, where codes of one could not have the scales of all: a
    block would have rows of two."""
    parts: list[Stored]
    dim: int

    @property
    def dtype(self) -> str | None:
        return self.parts[0].dtype

    @property
    def kind(self) -> tuple:
        return self.dim, *(part.kind for part in self.parts)


def supply(graph: Graph):
    """Puts sources in the place of parameters."""
    build, made, weights = Builder(), {}, {}

    def parameter(node: Node, source: Stored) -> Node:
        aliases = node.attrs["aliases"] if source.name == node.attrs["key"] else []
        result = build.make("parameter", [], source.shape, source.dtype, key=source.name,
                            aliases=aliases, tensor=source.values, largest=source.largest)
        if "trained" in node.attrs:
            result.attrs["trained"] = node.attrs["trained"]
        made[id(node)].append(result)
        return result

    def value(node: Node, source) -> Node:
        if isinstance(source, Concatenated):
            return build.concat([value(node, part) for part in source.parts], source.dim)
        result = parameter(node, source)
        if source.scales is not None:
            scales = parameter(node, source.scales)
            if scales.dtype != "f8E8M0FNU":
                scales = build.cast(scales, "f32")
            block = [1] * (result.rank - 2) + list(source.block)
            result = build.dequantize(result, scales, block, node.dtype)
        if source.transposed:
            leading = range(result.rank - 2)
            result = build.transpose(result, [*leading, result.rank - 1, result.rank - 2])
        return build.cast(result, node.dtype)

    def pattern(node: Node) -> Node | None:
        if node.op in ("linear", "grouped_linear"):
            return _product(build.at(node), node) if id(node.operands[1]) in weights else None
        source = source_of(node) if node.op == "parameter" else None
        if source is None:
            return None
        if source.dtype is None:
            node.attrs.update(tensor=source.values, largest=source.largest)
            return None
        build.at(node)
        made[id(node)] = []
        result = value(node, source)
        weights[id(result)] = result
        return result

    graph.rewrite(pattern)
    graph.parameters = [new for old in graph.parameters for new in made.get(id(old), [old])]


def _product(build: Builder, node: Node) -> Node | None:
    """A product with a weight that is transposed or concatenated: products with its operands."""
    x, weight, *bias = node.operands
    in_out = node.attrs["in_out"]

    def product(part: Node, columns: int, **attrs):
        return build.make(node.op, [x, part, *bias], (*node.shape[:-1], columns), node.dtype,
                          **{**node.attrs, **attrs})

    if weight.op == "transpose":
        return product(weight.operands[0], node.shape[-1], in_out=not in_out)
    out = weight.rank - (1 if in_out else 2)
    if weight.op == "concat" and weight.attrs["dim"] == out and not bias:
        return build.concat([product(p, p.shape[out]) for p in weight.operands], node.rank - 1)
    return None


def source_of(node: Node):
    """How a parameter is stored; None for one that its module holds. Of one that stands for several it
    is their stack."""
    if "parts" not in node.attrs:
        return node.attrs.get("source")
    sources = [part.attrs.get("source") for part in node.attrs["parts"]]
    return None if sources[0] is None else _stacked(node.attrs["key"], sources, node)


def _stacked(name: str, sources, node: Node):
    first = sources[0]
    if isinstance(first, Concatenated):
        parts = [_stacked(f"{name}.{i}", group, node)
                 for i, group in enumerate(zip(*(s.parts for s in sources), strict=True))]
        return Concatenated(parts, first.dim + 1)
    mapped = {id(array): array for source in sources for array in source.values.mapped}
    values = Joined([s.values for s in sources], like=first.values.like, mapped=mapped.values(),
                    keys=[part.attrs["key"] for part in node.attrs["parts"]])
    scales = first.scales and _stacked(
        name + first.scales.name.removeprefix(first.name), [s.scales for s in sources], node)
    return Stored(name, values, first.dtype, (len(sources), *first.shape), scales, first.block,
                  first.transposed, max(source.largest for source in sources))
