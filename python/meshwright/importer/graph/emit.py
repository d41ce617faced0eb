# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Prints the importer's graph as a module of the `nn` dialect."""
import math

from . import distribution
from .dialect import float_text, operation, quoted, tensor_type
from .nodes import Graph, Location, Node
from .sizes import dynamic_dims, names

# The bound on parameters that state none (NnDialect::kParameterMagnitude).
_MAGNITUDE = 1024


def magnitude(largest: float) -> str | None:
    """A bound on a parameter's entries, where it is above the usual one: a power of two, or
    infinity if one of them is not finite."""
    if largest <= _MAGNITUDE:
        return None
    if not math.isfinite(largest):
        return "0x7FF0000000000000"
    exponent = math.ceil(math.log2(largest))
    return float_text(2.0 ** exponent if exponent < 1024 else largest)


class Emitter:
    def __init__(self, graph: Graph):
        self.graph = graph
        self.names: dict[int, str] = {}
        self.locations: dict[Location, str] = {}

    def location(self, loc: Location) -> str:
        if loc is None:
            return " loc(unknown)"
        if loc not in self.locations:
            self.locations[loc] = f"#loc{len(self.locations)}"
        return f" loc({self.locations[loc]})"

    def run(self) -> str:
        body, arguments = [], []
        order = self.graph.nodes()
        live = {id(n) for n in order}
        for node in self.graph.inputs + [p for p in self.graph.parameters if id(p) in live]:
            self.names[id(node)] = f"%arg{len(arguments)}"
            attributes = ", ".join(f"{name} = {value}" for name, value in self._attributes(node))
            arguments.append(f"{self.names[id(node)]}: {_type(node)} {{{attributes}}}")
        for name, (_, nodes) in used_sizes(self.graph, order).items():
            self.names.update((id(node), f"%arg{len(arguments)}") for node in nodes)
            arguments.append(f"%arg{len(arguments)}: tensor<i64> {{nn.input = {quoted('size.' + name)}, "
                             f"nn.size = {quoted(name)}}}")
        identity = 0
        # Reads stand first: they yield the values before the call.
        for node in order:
            if node.op == "state":
                self.names[id(node)] = f"%{identity}"
                text = operation("read", [], [(node.shape, node.dtype)], {"state": node.attrs["key"]})
                body.append(f"    %{identity} = {text}{self.location(node.loc)}\n")
                identity += 1
        for node in order:
            if node.op == "result":
                whole = self.names[id(node.operands[0])].partition("#")[0]
                self.names[id(node)] = f"{whole}#{node.attrs['index']}"
            elif node.op not in ("input", "parameter", "state", "size"):
                results = f"%{identity}"
                self.names[id(node)] = results
                if node.further:
                    self.names[id(node)] = f"{results}#0"
                    results += f":{1 + len(node.further)}"
                body.append(f"    {results} = {self._operation(node, identity)}"
                            f"{self.location(node.loc)}\n")
                identity += 1
        for write in self.graph.writes:
            text = operation("write", [(self.names[id(write.value)], write.state.shape, write.state.dtype)],
                             [], {"state": write.state.attrs["key"]})
            body.append(f"    {text}{self.location(write.loc)}\n")
        states = "".join(self._state(s) for s in self.graph.states)
        outputs = self.graph.outputs
        shardings = self.graph.output_shardings or [None] * len(outputs)
        results = ", ".join(f"{_type(o)} {{{self._result(o, n, sharding)}}}"
                            for o, n, sharding in zip(outputs, self.graph.output_names, shardings))
        values = ", ".join(self.names[id(o)] for o in outputs)
        types = ", ".join(_type(o) for o in outputs)
        # The proof compares results with the layouts that an SPMD program promises.
        place = self.location(outputs[0].loc) if self.graph.is_spmd and outputs else ""
        returned = f"    return {values} : {types}{place}\n" if outputs else "    return\n"
        locations = "".join(self._alias(loc, name) for loc, name in self.locations.items())
        separator = ",\n                     "
        mesh, spmd = distribution.mesh_text(self.graph), " attributes {dist.spmd = @mesh}" if self.graph.is_spmd else ""
        return (f"{locations}module {{\n{mesh}{states}  func.func @main({separator.join(arguments)})\n"
                f"      -> ({results}){spmd} {{\n{''.join(body)}{returned}  }}\n}}\n")

    def _result(self, node: Node, name: str, sharding) -> str:
        """The attributes of a result of @main."""
        layout = distribution.boundary(sharding, node, self.graph.is_spmd)
        return ", ".join([*(f"{key} = {value}" for key, value in layout), f"nn.output = {quoted(name)}"])

    def _attributes(self, node: Node):
        """The attributes of an argument of @main."""
        a = node.attrs
        yield from distribution.boundary(a.get("sharding"), node, self.graph.is_spmd)
        if node.op == "input":
            if "batch" in a:
                yield "nn.batch", str(a["batch"]).lower()
            yield "nn.input", quoted(a["name"])
            if dynamic_dims(node.shape):
                yield "nn.sizes", f"[{', '.join(map(quoted, names(node.shape)))}]"
            return
        most = magnitude(a.get("largest", 0.0))
        if most is not None:
            yield "nn.magnitude", f"{most} : f64"
        if a["aliases"]:
            yield "nn.aliases", f"[{', '.join(map(quoted, a['aliases']))}]"
        yield "nn.parameter", quoted(a["key"])
        if "offsets" in a:
            yield "nn.parameter_offsets", f"array<i64: {', '.join(map(str, a['offsets']))}>"

    @staticmethod
    def _state(node: Node) -> str:
        type = (node.shape, node.dtype)
        text = operation("state", [], [type], {"sym_name": node.attrs["key"], "type": type,
                                               "fill": node.attrs.get("fill")})
        return f"  {text}\n"

    @staticmethod
    def _alias(loc: Location, name: str) -> str:
        if not loc.file:
            return f"{name} = loc({quoted(loc.name)})\n"
        place = f"{quoted(loc.file)}:{loc.line}:0"
        return f"{name} = loc({quoted(loc.name)}({place}))\n" if loc.name else \
            f"{name} = loc({place})\n"

    def _operation(self, node: Node, identity: int) -> str:
        if node.op.startswith("dist."):
            operands = node.operands
            return distribution.operation(node, [self.names[id(o)] for o in operands], [_type(o) for o in operands],
                                          _type(node))
        operands = [(self.names[id(o)], o.shape, o.dtype, o.routed) for o in node.operands]
        attributes = {name: value for name, value in node.attrs.items() if name not in ("given", "table_rows")}
        if node.op == "cut":
            attributes["sizes"] = names(node.shape)
        rows = f", nn.table_rows = {node.attrs['table_rows']} : i64" if "table_rows" in node.attrs else ""
        results = [(node.shape, node.dtype, node.routed), *node.further]
        return operation(node.op, operands, results, attributes, node.attrs.get("given"),
                         f"nn.id = {identity} : i64{rows}")


def used_sizes(graph: Graph, order: list[Node]) -> dict[str, tuple]:
    """The sizes of a call that the program depends on, each with its expression and the nodes that
    stand for it. Sizes that the caller names come first."""
    nodes: dict[str, tuple] = {}
    for node in order:
        if node.op == "size":
            nodes.setdefault(node.attrs["name"], (node.attrs["expr"], []))[1].append(node)
        elif node.op in ("input", "cut"):
            for d in dynamic_dims(node.shape):
                nodes.setdefault(node.shape[d].name, (node.shape[d].expr, []))
    return {name: nodes[name] for name in [*graph.sizes, *nodes] if name in nodes}


def _type(node: Node) -> str:
    return tensor_type(node.shape, node.dtype)


def emit(graph: Graph) -> str:
    return Emitter(graph).run()
