# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Walks a StableHLO module and makes the importer's graph of it.

Each operation has a handler (handlers.py). Calls are inlined, loops whose count is known are unrolled,
and operations on known values are folded.
"""
from jax.extend.mlir import ir

from ..errors import Diagnostic, ImportFailed, Uncovered
from ..graph.nodes import Node
from .attributes import STORED, symbol
from .handlers import HANDLERS, Context
from .shardings import Meshes

#: The most steps of a loop that is unrolled.
MOST_STEPS = 4096
#: Operations whose results need not depend on all of their operands.
PASSING = {"func.call", "call", "stablehlo.while", "stablehlo.case", "stablehlo.if", "stablehlo.composite",
           "stablehlo.optimization_barrier"}
_RETURNS = {"func.return", "stablehlo.return", "sdy.return"}


class Walk(Context):
    """The state of one walk over a module."""

    def __init__(self, module, locations, parts=True):
        super().__init__(parts)
        self.module, self.locations, self.meshes = module, locations, Meshes(module)
        self.functions = {ir.StringAttr(f.attributes["sym_name"]).value: f for f in module.body.operations
                          if f.operation.name == "func.func"}
        #: The location of the innermost call around the operation.
        self.caller = None
        self._position = 0
        #: Results of operations on known values, by all that they depend on.
        self._folded: dict[tuple, list[Node]] = {}

    def run(self, arguments: list[Node]) -> list[Node]:
        """The results of @main for its arguments. Raises ImportFailed with all operations that they need and that are
        not covered."""
        block = self.functions["main"].regions[0].blocks[0]
        return self.needed(self.block(block, dict(zip(block.arguments, arguments, strict=True))))

    def needed(self, results: list[Node]) -> list[Node]:
        """The results of the program, if nothing that they need has failed."""
        problems = {}
        self.graph.outputs = results
        for node in self.graph.nodes():
            if node.op == "failed" and not node.operands:
                loc = node.loc
                place = (loc.file, loc.line) if loc is not None and loc.file else (None, None)
                problems[(node.attrs["message"], *place)] = Diagnostic(node.attrs["message"], "error", *place)
        if problems:
            raise ImportFailed(problems.values())
        return results

    # Regions.

    def block(self, block, values: dict) -> list[Node]:
        """Converts the operations of a block; `values` are its arguments and what is visible in it."""
        for operation in block.operations:
            op = operation.operation
            if op.name in _RETURNS:
                return [values[v] for v in op.operands]
            self._position += 1
            self.build.position = self._position
            self.build.loc = self.locations.of(op, self.caller)
            results = self._covered(op, [values[v] for v in op.operands], values)
            for result, node in zip(op.results, results, strict=True):
                values[result] = node
        return []

    def call(self, name: str, operands: list[Node]) -> list[Node]:
        """A call of a function of the module, inlined."""
        function = self.functions.get(name)
        if function is None or not function.regions[0].blocks:
            raise Uncovered(f"function @{name} is called, which the module does not define")
        caller, self.caller = self.caller, self.build.loc
        block = function.regions[0].blocks[0]
        try:
            return self.block(block, dict(zip(block.arguments, operands, strict=True)))
        finally:
            self.caller = caller

    def region(self, region, operands: list[Node], values: dict) -> list[Node]:
        """The results of a region, which sees the values around it."""
        block = region.blocks[0]
        return self.block(block, {**values, **dict(zip(block.arguments, operands, strict=True))})

    # One operation.

    def _covered(self, op, operands, values) -> list[Node]:
        """The results; nodes that say why where the operation is not covered. They are no error if nothing needs
        them."""
        failed = [o for o in operands if o.op == "failed"]
        if failed and op.name not in PASSING:
            return [self.build.make("failed", failed, (), "f32") for _ in op.results]
        loc, position = self.build.loc, self.build.position
        try:
            return self._operation(op, operands, values)
        except Uncovered as error:
            self.build.loc, self.build.position = loc, position
            reason = self.build.make("failed", [], (), "f32", message=str(error))
            return [reason for _ in op.results]

    def _operation(self, op, operands, values) -> list[Node]:
        if op.name in ("func.call", "call"):
            return self.call(symbol(op.attributes["callee"]), operands)
        handler = HANDLERS.get(op.name)
        if handler is None:
            raise Uncovered(f"operation {op.name} is not covered")
        if getattr(handler, "sees", False):
            outer, self.op = self.op, op
            try:
                return handler(self, op, operands, values)
            finally:
                self.op = outer
        key = self._key(op, operands)
        if key in self._folded:
            return self._folded[key]
        results = self._handled(handler, op, operands)
        if key is not None and all(r.form is not None for r in results):
            self._folded[key] = results
        return results

    def _handled(self, handler, op, operands) -> list[Node]:
        outer, self.op = self.op, op
        try:
            results = handler(self, op, *operands)
        finally:
            self.op = outer
        results = results if isinstance(results, list) else [results]
        for i, result in enumerate(results):
            shape, dtype = self.types.of(op.results[i])
            if result.dtype != dtype:
                result = results[i] = self.build.cast(result, dtype)
            if result.shape != shape:
                result = results[i] = self.build.broadcast(result, shape)
            if result.form is not None and result.op == "static" and result.recipe is None and operands:
                result.recipe = self._recipe(handler, op, operands, i)
        return results

    def _recipe(self, handler, op, operands, index):
        """How the program computes a value that is known."""
        loc, position = self.build.loc, self.build.position

        def recipe():
            self.build.loc, self.build.position, self.unfolds = loc, position, True
            try:
                return self._handled(handler, op, operands)[index]
            except Uncovered:
                return None
            finally:
                self.unfolds = False
        return recipe

    def _key(self, op, operands) -> tuple | None:
        """All that an operation on known values depends on; None for other operations."""
        if any(o.form is None for o in operands) or len(op.regions):
            return None
        return (op.name, tuple(operands), tuple(op.attributes.items()), tuple(r.type for r in op.results))


def arguments_of(walk: Walk) -> list:
    """The arguments of @main: values of the module."""
    main = walk.functions.get("main")
    if main is None:
        raise ImportFailed([Diagnostic("the module has no function @main: expected one, with the arguments of a call")])
    return list(main.regions[0].blocks[0].arguments)


def argument(walk: Walk, op: str, value, **attrs) -> Node:
    """The node of an argument, and for codes their numbers."""
    shape, element = walk.types.written(value)
    if op == "parameter" and element in STORED:
        return walk.build.make(op, [], shape, STORED[element], **attrs)
    return walk.build.make(op, [], *walk.types.of(value), **attrs)
