# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Functions that shard_map writes per rank (`sdy.manual_computation` over all axes of a mesh) as SPMD programs.

The walk makes a graph of global values, in which a manual computation is a node. `localise` then replaces
each value by a rank's part of it:

- An argument gets the layout that its user wants: a manual computation, or @main's own sharding. Reshapes,
  paddings and elementwise operations between the two are done on the parts.
- The results of a manual computation have the layouts that it states; its body is walked with the parts.
- Elementwise operations outside keep the layout of their operands. Any other operation needs whole values,
  which ranks gather first; a remark names its line.
"""
import re
from typing import NamedTuple

from ..errors import Uncovered
from ..graph.dialect import POINTWISE
from ..graph.layouts import Factor, Mesh, Sharding, replicated
from ..graph.match import constant_of
from ..graph.nodes import Node, Remark, reshape_groups, values_of_ranks
from .collectives import settle_ranks
from .handlers import handles
from .shardings import stated


class Part(NamedTuple):
    """A rank's part of a value."""
    node: Node
    sharding: Sharding


@handles("manual_computation", dialect="sdy")
def manual_computation(c, op, operands, values):
    """A node for the computation; `localise` walks its body."""
    if c.manual is not None:
        raise Uncovered("a shard_map within a shard_map is not covered")
    sides = [_per_value(op.attributes[name]) for name in ("in_shardings", "out_shardings")]
    block = op.regions[0].blocks[0]
    returned = list(block.operations)[-1].operation.operands
    shardings = [[c.meshes.read(text, c.types.of(value)[0], c.types.of(local)[0])
                  for text, value, local in zip(texts, globals_, locals_)]
                 for texts, globals_, locals_ in zip(sides, (op.operands, op.results), (block.arguments, returned))]
    mesh = c.meshes.used
    if mesh is None:
        raise Uncovered("a shard_map over a mesh without axes is not covered")
    _expect_all_axes(op, mesh)
    results = [c.types.of(r) for r in op.results]
    node = c.build.make("manual", operands, *(results[0] if results else ((), "i1")), further=results[1:],
                        operation=op, caller=c.caller,
                        # Known values of the function may be read within; all others are operands.
                        values={v: x for v, x in values.items() if x.form is not None},
                        inputs=[s or replicated(x.shape) for s, x in zip(shardings[0], operands)],
                        outputs=[s or replicated(shape) for s, (shape, _) in zip(shardings[1], results)])
    node.attrs["results"] = [c.build.result(node, i) for i in range(len(results))]
    return node.attrs["results"]


manual_computation.sees = True


def _per_value(attribute) -> list[str]:
    """The shardings of several values, each as its text."""
    text = str(attribute)
    entries, depth, start = [], 0, None
    for at in range(text.index("[") + 1, len(text)):
        if text[at] == "<":
            start = at if depth == 0 else start
            depth += 1
        elif text[at] == ">":
            depth -= 1
            if depth == 0 and start is not None:
                entries.append(text[start:at + 1])
                start = None
                if text[at + 1:].lstrip()[:1] == "]":
                    break
    return entries


def _expect_all_axes(op, mesh: Mesh):
    manual = re.findall(r'"([^"]+)"', str(op.attributes["manual_axes"]))
    free = [name for name, size in mesh.axes.items() if size > 1 and name not in manual]
    if free:
        raise Uncovered(f"a shard_map over the axes {', '.join(manual) or 'none'} of the mesh {mesh} is not covered: the other "
                        f"axes ({', '.join(free)}) are left to the compiler (partial manual axes); expected axis_names with "
                        "all axes of the mesh")


class Localiser:
    """Replaces the global values of a graph by the parts of a rank."""

    def __init__(self, walk):
        self.walk, self.mesh = walk, walk.meshes.used
        self.build = walk.build
        self.parts: dict[Node, Part] = {}
        #: The global shapes of arguments, whose nodes get the shape of a part.
        self.shapes: dict[Node, tuple] = {}
        #: Values that depend on the results of computations, which have layouts.
        self.later: set[Node] = set()
        #: Values that were wanted in another layout, too.
        self.moved: dict[tuple, Part] = {}

    def run(self, outputs: list[Node], wanted: list[Sharding | None]) -> list[Part]:
        graph = self.walk.graph
        graph.outputs = list(outputs)
        order = graph.nodes()
        self.walk.pads = any(self._is_padding(node) or self._is_cut(node) for node in order)
        for node in graph.inputs + graph.parameters:
            if node.attrs.get("sharding") is not None and not any(node.attrs["sharding"].open):
                self.parts[node] = self._bind(node, node.attrs["sharding"])
        for node in order:
            if node.op == "manual":
                self._compute(node)
            if node.op == "manual" or not self.later.isdisjoint(node.operands):
                self.later.add(node)
        results = [self.whole(node) if sharding is None else self.want(node, sharding)
                   for node, sharding in zip(outputs, wanted)]
        for node in graph.inputs + graph.parameters:
            if node not in self.parts:
                self._bind(node, replicated(node.shape))
        return results

    # Layouts.

    def whole(self, node: Node) -> Part:
        """A value in the layout that it has; values that have none yet are replicated."""
        return self.parts.get(node) or self.want(node, None)

    def want(self, node: Node, sharding: Sharding | None) -> Part:
        """A value in a layout; None: in any one."""
        if node in self.parts:
            part = self.parts[node]
            return part if sharding is None else self._moved(node, part, sharding)
        self.build.at(node)
        target = sharding or replicated(node.shape)
        if node.op in ("input", "parameter"):
            part = self._bind(node, target)
        else:
            part = self._of(node, target)
        if part.sharding == target:
            self.parts.setdefault(node, part)
            return part
        self.parts[node] = part
        return part if sharding is None else self._moved(node, part, sharding)

    def _shape(self, node: Node) -> tuple:
        """The global shape of a value."""
        return self.shapes.get(node, node.shape)

    def _known(self, node: Node) -> Part | None:
        """A value that has a layout already."""
        return self.whole(node) if node in self.later else self.parts.get(node)

    def _bind(self, node: Node, sharding: Sharding) -> Part:
        """Gives an argument its layout."""
        node.attrs["sharding"] = sharding._replace(open=())
        self.shapes[node] = node.shape
        node.shape = sharding.local
        self.parts[node] = part = Part(node, sharding._replace(open=()))
        return part

    def _of(self, node: Node, target: Sharding) -> Part:
        """An operation outside of all manual computations, in the wanted layout if it can be done there."""
        for rule in (self._static, self._constrained, self._padding, self._cut, self._reshape, self._transpose,
                     self._pointwise, self._reduce):
            part = rule(node, target)
            if part is not None:
                return part
        return self._replicated(node)

    def _static(self, node: Node, target: Sharding) -> Part | None:
        return Part(node, replicated(node.shape)) if node.form is not None and not node.operands else None

    def _constrained(self, node: Node, target: Sharding) -> Part | None:
        return self.want(node.operands[0], node.attrs["sharding"]) if node.op == "dist.constrain" else None

    def _padding(self, node: Node, target: Sharding) -> Part | None:
        """Zeros at the tail of a dimension are padding of an argument."""
        if node.op != "concat" or len(node.operands) != 2:
            return None
        x, zeros = node.operands
        dim = node.attrs["dim"]
        factor, *more = target.dims[dim]
        if constant_of(zeros) != 0 or more or x in self.parts or not _fills(factor, self._shape(x)[dim], node.shape[dim]):
            return None
        dims = list(target.dims)
        dims[dim] = (factor._replace(size=self._shape(x)[dim]),)
        return Part(self.want(x, target._replace(dims=tuple(dims))).node, target)

    def _cut(self, node: Node, target: Sharding) -> Part | None:
        """A slice that leaves out the tail of a dimension leaves out its padding."""
        if node.op != "slice" or any(node.attrs["starts"]) or any(s != 1 for s in node.attrs["strides"]):
            return None
        part = self._known(node.operands[0])
        if part is None:
            return None
        dims = []
        for (factor, *more), size in zip(part.sharding.dims, node.shape):
            if factor.size != size:
                if more or not _fills(factor, size, factor.size):
                    return None
                factor = factor._replace(size=size)
            dims.append((factor, *more))
        return Part(part.node, part.sharding._replace(dims=tuple(dims)))

    def _reshape(self, node: Node, target: Sharding) -> Part | None:
        if node.op != "reshape":
            return None
        x = node.operands[0]
        if (part := self._known(x)) is not None:
            dims = _regrouped(part.sharding, node.shape)
            if dims is None:
                return None
            sharding = part.sharding._replace(dims=dims)
            return Part(self.build.at(node).reshape(part.node, sharding.local), sharding)
        dims = _regrouped(target, self._shape(x))
        if dims is None:
            return None
        source = self.want(x, target._replace(dims=dims))
        return Part(self.build.at(node).reshape(source.node, target.local), target)

    def _transpose(self, node: Node, target: Sharding) -> Part | None:
        if node.op != "transpose":
            return None
        order, x = node.attrs["permutation"], node.operands[0]
        part = self._known(x)
        if part is None:
            dims = [target.dims[order.index(d)] for d in range(len(order))]
            part = self.want(x, target._replace(dims=tuple(dims)))
        sharding = part.sharding._replace(dims=tuple(part.sharding.dims[d] for d in order))
        return Part(self.build.at(node).transpose(part.node, order), sharding)

    def _pointwise(self, node: Node, target: Sharding) -> Part | None:
        """In the layout of the operands that have one and the shape of the result, else in the wanted one."""
        if node.op not in POINTWISE and node.op != "broadcast" or node.further:
            return None
        parts = [self._known(x) for x in node.operands if self._shape(x) == node.shape]
        known = [part.sharding for part in parts if part is not None and not part.sharding.unreduced]
        sharded = [s for s in known if not s.is_replicated]
        layout = (sharded or known or [target])[0]
        if layout.unreduced or _has_padding(layout) and node.op != "cast":
            return None
        operands = [self.want(x, _of_operand(layout, self._shape(x))).node for x in node.operands]
        result = self.build.at(node).make(node.op, operands, layout.local, node.dtype, **node.attrs)
        return Part(result, layout)

    def _reduce(self, node: Node, target: Sharding) -> Part | None:
        """A sum or a maximum over dimensions that no axis shards."""
        if node.op != "reduce":
            return None
        x, reduced = node.operands[0], node.attrs["dims"]
        part = self._known(x)
        if part is None:
            rest = list(target.dims)
            dims = tuple((Factor(n, n, ()),) if d in reduced else rest[d] if node.attrs["keep_dims"] else rest.pop(0)
                         for d, n in enumerate(self._shape(x)))
            part = self.want(x, Sharding(dims))
        dims = part.sharding.dims
        if part.sharding.unreduced or any(f.axes or f.size != f.padded for d in reduced for f in dims[d]):
            return None
        one = (Factor(1, 1, ()),)
        left = [one if d in reduced else dim for d, dim in enumerate(dims) if d not in reduced or node.attrs["keep_dims"]]
        sharding = Sharding(tuple(left))
        return Part(self.build.at(node).make("reduce", [part.node], sharding.local, node.dtype, **node.attrs), sharding)

    def _replicated(self, node: Node) -> Part:
        """Every rank does the operation on whole values."""
        parts = [self._known(x) for x in node.operands]
        moves = [part for part in parts if part is not None and not part.sharding.is_replicated]
        if moves:
            self.walk.graph.remarks.append(Remark(
                f"operation {node.op} outside of shard_map needs a whole value, which each rank gathers: expected it within "
                "the function of shard_map", node.loc))
        operands = [self.want(x, replicated(self._shape(x))).node for x in node.operands]
        node.operands = operands
        return Part(node, replicated(node.shape))

    def _moved(self, node: Node, part: Part, target: Sharding) -> Part:
        """A part in another layout."""
        source, target = part.sharding, target._replace(open=())
        if source == target:
            return part
        key = (node, target)
        if key not in self.moved:
            self.build.at(node)
            self.moved[key] = Part(self._move(part.node, source, target), target)
        return self.moved[key]

    def _move(self, x: Node, source: Sharding, target: Sharding) -> Node:
        if source.unreduced or target.unreduced:
            raise Uncovered("a value of parts of a sum in another layout is not covered outside of shard_map")
        whole = all(len(dim) == 1 for dim in target.dims)
        if source.is_replicated and whole:
            if x.form is not None and getattr(x.form, "uniform", False) and x.form.values.size == 1:
                return self.build.static(x.form, target.local, x.dtype)
            for dim, (factor,) in enumerate(target.dims):
                if factor.axes:
                    shape = [factor.local if d == dim else n for d, n in enumerate(x.shape)]
                    x = self.build.make("dist.slice", [x], shape, x.dtype, axes=factor.axes, dim=dim)
            return x
        return self.build.make("dist.redistribute", [x], target.local, x.dtype, source=source, target=target)

    def _is_padding(self, node: Node) -> bool:
        """Whether a computation pads an operand."""
        if node.op != "manual":
            return False
        return any(x.op == "concat" and len(x.operands) == 2 and constant_of(x.operands[1]) == 0 and
                   _fills(s.dims[x.attrs["dim"]][0], x.operands[0].shape[x.attrs["dim"]], x.shape[x.attrs["dim"]])
                   for x, s in zip(node.operands, node.attrs["inputs"]))

    def _is_cut(self, node: Node) -> bool:
        """Whether a slice leaves out the padding of what a computation returns."""
        x = node.operands[0] if node.op == "slice" else None
        if x is None or any(node.attrs["starts"]):
            return False
        computation, index = (x.operands[0], x.attrs["index"]) if x.op == "result" else (x, 0)
        return computation.op == "manual" and any(
            _fills(dim[0], n, m) for dim, n, m in zip(computation.attrs["outputs"][index].dims, node.shape, x.shape) if n != m)

    # Computations.

    def _compute(self, node: Node):
        walk = self.walk
        op, values = node.attrs["operation"], dict(node.attrs["values"])
        operands = [self.want(x, s._replace(open=())).node for x, s in zip(node.operands, node.attrs["inputs"])]
        block = op.regions[0].blocks[0]
        for argument, part in zip(block.arguments, operands, strict=True):
            shape, _ = walk.types.of(argument)
            values[argument] = self.build.at(node).reshape(part, shape)
        walk.manual, walk.caller = self.mesh, node.attrs["caller"]
        try:
            with values_of_ranks():
                results = walk.block(block, values)
        finally:
            walk.manual = walk.caller = None
        for value, result, sharding in zip(node.attrs["results"], results, node.attrs["outputs"], strict=True):
            # Results may be given a shape that has the same elements by the factors of their dimensions.
            self.parts[value] = Part(self.build.reshape(result, sharding.local), sharding._replace(open=()))


def _fills(factor: Factor, size: int, padded: int) -> bool:
    """Whether ranks have as few rows as they can if only `size` of `padded` rows are no padding."""
    ranks = factor.padded // factor.local
    return factor.size == padded and bool(factor.axes) and not factor.order and -(-size // ranks) == factor.local


def _has_padding(sharding: Sharding) -> bool:
    return any(f.size != f.padded for dim in sharding.dims for f in dim)


def _of_operand(layout: Sharding, shape) -> Sharding:
    """The layout of an operand that broadcasts to a value of a layout."""
    lead = len(layout.dims) - len(shape)
    whole = layout.shape[lead:]
    return Sharding(tuple(dim if n == size else (Factor(n, n, ()),)
                          for dim, n, size in zip(layout.dims[lead:], shape, whole)))


def _regrouped(sharding: Sharding, shape) -> tuple | None:
    """The dimensions of a layout after a reshape; None if it cannot be carried along."""
    groups = reshape_groups(sharding.shape, shape)
    if groups is None:
        return None
    dims: list[tuple] = []
    for source, target in groups:
        factors = [f for d in source for f in sharding.dims[d] if f.padded > 1 or len(source) == 1]
        for d in target:
            own, left = [], shape[d]
            while left > 1 or not own:
                if not factors:
                    own = own or [Factor(1, 1, ())]
                    break
                factor = factors.pop(0)
                if factor.size > left:
                    first, second = _split(factor, left) or (None, None)
                    if first is None:
                        return None
                    factors.insert(0, second)
                    factor = first
                if left % factor.size:
                    return None
                own.append(factor)
                left //= factor.size
                if d == target[-1] and left == 1:
                    break
            if left != 1:
                return None
            dims.append(tuple(own))
        if any(f.size != 1 for f in factors):
            return None
    return tuple(_merged(dim) for dim in dims)


def _split(factor: Factor, major: int) -> tuple[Factor, Factor] | None:
    """A factor as two, of which the major one has the axes."""
    if factor.order or factor.padded != factor.size or factor.size % major or major % (factor.size // factor.local):
        return None
    return Factor(major, major, factor.axes), Factor(factor.size // major, factor.size // major, ())


def _merged(factors: tuple[Factor, ...]) -> tuple[Factor, ...]:
    """Without factors of one element, and with whole minor factors joined to the one before."""
    result: list[Factor] = []
    for f in factors:
        plain = f.size == f.padded and not f.order
        if result and plain and not f.axes and result[-1].size == result[-1].padded and not result[-1].order:
            last = result[-1]
            result[-1] = Factor(last.size * f.size, last.size * f.size, last.axes)
        elif f.padded > 1 or len(factors) == 1:
            result.append(f)
    return tuple(result) or (Factor(1, 1, ()),)


def distribute(walk, outputs: list[Node]) -> list[Node]:
    """The outputs of a program with its mesh and its layouts: those that @main states, or of a function that
    shard_map writes, those of each rank's parts."""
    graph, main = walk.graph, walk.functions["main"]
    wanted = stated(walk, main, "res_attrs", [x.shape for x in outputs])
    graph.outputs = list(outputs)
    if any(node.op == "manual" for node in graph.nodes()):
        if graph.states:
            raise Uncovered("state of a function that shard_map writes is not covered: expected inputs and outputs in its place")
        graph.is_spmd = True
        parts = Localiser(walk).run(outputs, [None if s and any(s.open) else s for s in wanted])
        graph.outputs, graph.output_shardings = walk.needed([p.node for p in parts]), [p.sharding for p in parts]
        walk.manual = walk.meshes.used
        settle_ranks(walk)
        walk.manual = None
    elif any(wanted):
        graph.output_shardings = wanted
    graph.mesh = walk.meshes.used
    return graph.outputs
