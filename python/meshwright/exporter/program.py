# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A module of `nn` and `dist` as a module of StableHLO.

An SPMD function becomes a function on global tensors with one `sdy.manual_computation` over all axes, the
form in which JAX writes a `shard_map`. Each factor of a dimension that is sharded is a dimension at the
boundary, padded at its tail, as `sdy` knows no factors and no padding:

    global tensor -> reshape to factors -> pad -> [each rank: reshape to local dimensions -> body -> reshape
    to factors] -> cut the padding off -> reshape to the global shape
"""

import re

import numpy as np

from ..errors import Diagnostic, Error
from ..importer.graph.layouts import Mesh, Sharding, read_mesh, read_sharding
from . import (  # noqa: F401 (their functions register)
    attention,
    collectives,
    elementwise,
    layers,
    shapes,
)
from .collectives import all_reduce, global_sharding, own_chunk, sdy_sharding
from .ops import EXPANSIONS, Op, Refused, shape_of
from .text import Value, Writer, tensor


def export(text: str, constants: dict) -> str:
    """StableHLO of the only function of a module, given in the generic form with locations. `constants` are
    arrays by the names of arguments.

    An op without a form in StableHLO is an Error that names it and its line.
    """
    from jax.extend.mlir import ir

    from ..importer.stablehlo.bindings import context

    own = context()
    own.allow_unregistered_dialects = True
    with own, ir.Location.unknown():
        module = ir.Module.parse(text)
        written = _Export(module.operation, constants).run()
        try:
            checked = ir.Module.parse(written)
            checked.operation.verify()
        except ir.MLIRError as error:
            raise Error(f"the program has no form in StableHLO: {error}") from None
        return checked.operation.get_asm(enable_debug_info=True, print_generic_op_form=False)


class _Port:
    """An argument or a result of the function: its global and its local type, and its layout."""

    def __init__(self, attributes, type, mesh: Mesh | None):
        from jax.extend.mlir import ir

        self.shape, self.dtype = self.local, _ = shape_of(type)
        self.name = next((ir.StringAttr(attributes[f"nn.{kind}"]).value
                          for kind in ("input", "parameter", "output", "state") if f"nn.{kind}" in attributes), "")
        self.sharding: Sharding | None = None
        #: Of a part of a stored tensor: where it begins.
        self.offsets = list(attributes["nn.parameter_offsets"]) if "nn.parameter_offsets" in attributes else None
        if "dist.global" in attributes:
            self.shape, _ = shape_of(ir.TypeAttr(attributes["dist.global"]).value)
        if "dist.sharding" in attributes and mesh is not None:
            local = self.local if "dist.global" in attributes else None
            self.sharding = read_sharding(str(attributes["dist.sharding"]), mesh, self.shape, local)

    @property
    def type(self) -> str:
        return tensor(self.shape, self.dtype)

    @property
    def factors(self):
        return [factor for dim in self.sharding.dims for factor in dim]

    @property
    def sizes(self) -> list[int]:
        return [f.size for f in self.factors]

    @property
    def padded(self) -> list[int]:
        return [f.padded for f in self.factors]

    @property
    def locals(self) -> list[int]:
        return [f.local for f in self.factors]

    def text(self) -> str:
        return sdy_sharding([f.axes for f in self.factors])

    def of_stored(self, w: Writer, x: Value) -> Value:
        """The argument's value, of that of the stored tensor."""
        if self.offsets is None:
            return x
        return w.slice(x, self.offsets, [o + n for o, n in zip(self.offsets, self.shape)])

    def enter(self, w: Writer, x: Value) -> Value:
        """The argument of the manual computation."""
        x = w.grow(w.reshape(x, self.sizes), self.padded)
        for dim, factor in enumerate(self.factors):
            if factor.order:
                # Slots of padding take zeros, which stand at the tail.
                order = [slot if token < 0 else token for slot, token in enumerate(factor.tokens())]
                x = w.take(x, w.table(np.array(order)), dim)
        return x

    def own(self, w: Writer, x: Value, mesh: Mesh | None) -> Value:
        """A rank's part of a value that all ranks have."""
        if mesh is None:
            return x
        x = self.enter(w, x)
        for dim, factor in enumerate(self.factors):
            if factor.axes:
                x = own_chunk(w, x, mesh, factor.axes, dim, factor.local)
        return w.reshape(x, self.local)

    def leave(self, w: Writer, x: Value) -> Value:
        """The global tensor of what the manual computation returns."""
        x = w.slice(x, [0] * x.rank, self.sizes)
        for dim, factor in enumerate(self.factors):
            if factor.order:
                slots = np.argsort(np.array(factor.tokens())[:factor.size])
                x = w.take(x, w.table(slots), dim)
        return w.reshape(x, self.shape)


def _keys(ports) -> list:
    """A key for each argument: parts of one stored tensor are one argument."""
    return [port.name if port.offsets is not None else i for i, port in enumerate(ports)]


def _stored(ports) -> dict:
    """The shape, the element type and the first port of each argument of the written function. A stored tensor
    is as large as its parts need."""
    arguments: dict = {}
    for key, port in zip(_keys(ports), ports):
        shape = port.shape if port.offsets is None else tuple(o + n for o, n in zip(port.offsets, port.shape))
        if key in arguments:
            known, dtype, first = arguments[key]
            arguments[key] = tuple(map(max, known, shape)), dtype, first
        else:
            arguments[key] = shape, port.dtype, port
    return arguments


class _Export:
    def __init__(self, module, constants: dict):
        from jax.extend.mlir import ir

        self.constants = constants
        operations = list(module.regions[0].blocks[0].operations)
        self.mesh = next((read_mesh(str(o.operation.attributes["mesh"])) for o in operations
                          if o.operation.name == "dist.mesh"), None)
        functions = [o.operation for o in operations if o.operation.name == "func.func"]
        if len(functions) != 1:
            raise Error(f"to_stablehlo: expected a program with one function, got {len(functions)}")
        self.function = functions[0]
        self.block = self.function.regions[0].blocks[0]
        # A program of one rank is a function on whole tensors.
        if "dist.spmd" in self.function.attributes and self.mesh.ranks == 1:
            self.mesh = None
        self.spmd = "dist.spmd" in self.function.attributes and self.mesh is not None
        self.arguments = self._ports("arg_attrs", [a.type for a in self.block.arguments], ir)
        results = list(self.block.operations)[-1].operation.operands
        self.results = self._ports("res_attrs", [r.type for r in results], ir)

    def _ports(self, name, types, ir):
        attributes = self.function.attributes
        tables = [ir.DictAttr(a) for a in attributes[name]] if name in attributes else [{}] * len(types)
        try:
            return [_Port(table, type, self.mesh) for table, type in zip(tables, types)]
        except Refused as refused:
            raise Error(f"to_stablehlo: {refused}") from None

    def run(self) -> str:
        w = Writer()
        given = [port for port in self.arguments if port.name not in self.constants]
        stored, tensors = _stored(given), {}
        for i, (key, (shape, dtype, _)) in enumerate(stored.items()):
            tensors[key] = Value(f"%arg{i}", shape, dtype)
        inputs = {port: port.of_stored(w, tensors[key]) for key, port in zip(_keys(given), given)}
        outputs = self._manual(w, inputs) if self.spmd else self._body(w, inputs)
        mesh = f"  sdy.mesh @mesh = {self.mesh}\n" if self.mesh else ""
        arguments = ", ".join(f"{tensors[key].name}: {tensors[key].type}{self._attributes(port)} loc({_quoted(port.name)})"
                              for key, (_, _, port) in stored.items())
        results = ", ".join(f"{x.type}{self._attributes(p, result=True)}" for x, p in zip(outputs, self.results))
        values = ", ".join(x.name for x in outputs)
        types = ", ".join(x.type for x in outputs)
        ranks = self.mesh.ranks if self.mesh else 1
        return (f"module @meshwright attributes {{mhlo.num_partitions = {ranks} : i32, mhlo.num_replicas = 1 : i32}} "
                f"{{\n{mesh}  func.func public @main({arguments}) -> ({results}) {{\n" + "\n".join(w.lines) +
                f"\n    return {values}{' : ' if outputs else ''}{types}\n  }}\n}}\n")

    def _attributes(self, port: _Port, result=False) -> str:
        attributes = []
        if result and port.name:
            attributes.append(f"jax.result_info = {_quoted(port.name)}")
        if not self.spmd and port.sharding and port.offsets is None:
            attributes.append(f"sdy.sharding = #sdy.sharding{global_sharding(port.sharding)}")
        return f" {{{', '.join(attributes)}}}" if attributes else ""

    def _manual(self, w: Writer, inputs: dict[_Port, Value]) -> list[Value]:
        """The manual computation between the boundaries."""
        entered = [port.enter(w, x) for port, x in inputs.items()]
        inner = Writer(w.indent + "  ")
        inner.count = w.count + 1000 * 1000
        locals_ = [Value(f"%local{i}", tuple(port.locals), port.dtype) for i, port in enumerate(inputs)]
        values = self._body(inner, {port: inner.reshape(x, port.local) for port, x in zip(inputs, locals_)})
        inner.location = " loc(unknown)"
        returned = []
        for x, port in zip(values, self.results):
            if port.sharding.unreduced:
                x = all_reduce(inner, x, self.mesh, port.sharding.unreduced,
                               "maximum" if port.sharding.reduction == "max" else "add")
            returned.append(inner.reshape(x, port.locals))
        left = [Value(f"%manual#{i}" if len(values) > 1 else "%manual", tuple(port.padded), port.dtype)
                for i, port in enumerate(self.results)]
        axes = ", ".join(f'"{name}"' for name in self.mesh.axes)
        head = f"%manual:{len(values)} = " if len(values) > 1 else "%manual = " if values else ""
        w.lines.append(f"{w.indent}{head}sdy.manual_computation({', '.join(x.name for x in entered)}) "
                       f"in_shardings=[{', '.join(p.text() for p in inputs)}] "
                       f"out_shardings=[{', '.join(p.text() for p in self.results)}] manual_axes={{{axes}}} "
                       f"({', '.join(f'{x.name}: {x.type}' for x in locals_)}) {{")
        w.lines += inner.lines
        types = [", ".join(x.type for x in side) for side in (returned, entered, left)]
        w.line(f"  sdy.return {', '.join(x.name for x in returned)}{' : ' if returned else ''}{types[0]}")
        w.line(f"}} : ({types[1]}) -> ({types[2]})")
        return [port.leave(w, x) for x, port in zip(left, self.results)]

    def _body(self, w: Writer, inputs: dict[_Port, Value]) -> list[Value]:
        values = {}
        for argument, port in zip(self.block.arguments, self.arguments):
            known = self.constants.get(port.name)
            values[argument] = inputs[port] if known is None else \
                port.own(w, w.array(known, port.dtype), self.mesh if self.spmd else None)
        *operations, last = [o.operation for o in self.block.operations]
        for operation in operations:
            w.location = f" {_location(operation)}"
            results = _write(operation, [values[v] for v in operation.operands], self.mesh, w)
            values.update(zip(operation.results, results))
        w.location = " loc(unknown)"
        return [values[v] for v in last.operands]


def _write(operation, operands: list[Value], mesh: Mesh | None, w: Writer) -> list[Value]:
    function = EXPANSIONS.get(operation.name)
    try:
        if function is None:
            raise Refused("it has no form in StableHLO")
        result = function(Op(operation, operands, mesh), w)
    except Refused as refused:
        file, line = _place(str(operation.location))
        raise Error([Diagnostic(f"to_stablehlo: '{operation.name}': {refused}", "error", file, line)]) from None
    return result if isinstance(result, list) else [result]


def _location(operation) -> str:
    text = str(operation.location)
    return text if text.startswith("loc(") else f"loc({text})"


def _place(text: str) -> tuple[str | None, int | None]:
    """The first file and line of a location."""
    found = re.search(r'"([^"]+)":(\d+):', text)
    return (found[1], int(found[2])) if found else (None, None)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


