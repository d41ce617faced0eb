# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""One parameter for several of one shape that a model only stacks: those of experts in a list.

Each rank would hold all the operands of a concatenation, where it holds its part of one parameter.
"""
import re

from .nodes import Builder, Graph, Node, numel

#: Numbers within a name, and what is between them.
_NUMBERS = re.compile(r"(\d+)")


def join_parameters(graph: Graph):
    """Joins parameters; a new one has `parts`, those that it stands for.

    The names of the program's parameters are no longer the module's. So graphs of models that train
    stay as they are."""
    if not graph.joins:
        return
    build, uses = Builder(), graph.uses()
    taken = {node.attrs["key"] for node in graph.parameters + graph.states}

    def pattern(node: Node) -> Node | None:
        parts = _stacked(node, uses)
        name = parts and joined_name([p.attrs["key"] for p in parts])
        if not name or name in taken:
            return None
        taken.add(name)
        first = parts[0]
        joined = build.at(node).make(
            "parameter", [], (len(parts), *first.shape), first.dtype, key=name, aliases=[],
            trained=first.attrs["trained"], parts=parts)
        graph.parameters.insert(graph.parameters.index(first), joined)
        return build.reshape(joined, node.shape)

    graph.rewrite(pattern)


def joined_name(keys: list[str]) -> str | None:
    """The name of parameters that differ in one number, with * for it: "experts.*.up.weight"."""
    split = [_NUMBERS.split(key) for key in keys]
    if len({len(words) for words in split}) != 1:
        return None
    varying = [i for i, words in enumerate(zip(*split)) if len(set(words)) > 1]
    if len(varying) != 1 or varying[0] % 2 == 0:
        return None
    words = split[0]
    words[varying[0]] = "*"
    return "".join(words)


def _stacked(node: Node, uses) -> list[Node] | None:
    """The parameters of which a value is the rows, and which nothing else uses."""
    if node.op != "concat":
        return None
    dim, parts = node.attrs["dim"], []
    for x in node.operands:
        if x.op != "reshape" or numel(x.shape[:dim + 1]) != 1 or len(uses[id(x)]) != 1:
            return None
        parts.append(x.operands[0])
    first = parts[0]
    fits = all(_is_alone(p, uses) and (p.shape, p.dtype) == (first.shape, first.dtype) and
               _kind(p) == _kind(first) and
               p.attrs["trained"] == first.attrs["trained"] for p in parts)
    return parts if fits else None


def _kind(node: Node):
    """How a checkpoint stores a parameter."""
    source = node.attrs.get("source")
    return source and source.kind


def _is_alone(node: Node, uses) -> bool:
    """Whether a value is a parameter of one name, no buffer, with one use."""
    return node.op == "parameter" and "trained" in node.attrs and not node.attrs["aliases"] and \
        len(uses[id(node)]) == 1
