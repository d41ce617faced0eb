# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Turns writes to memory that other values share into functions.

    b.add_(1)                   b1 = b.add(1)
    y = b * x              ->   y = b1 * x
    b[:, 0].copy_(z)            b2 = b1.select_scatter(b1[:, 0].copy(z), 1, 0)

A value with memory of its own is a *root*. Views of it, and views of those, form a tree. A write
computes the new value of a view by the functional operation. `_assign` scatters it back into the
view's source, and so on up to the root, which gets a new version. `read` gives the value of a view
at the present version: it applies the views again to the root's present value.
"""
import operator

import torch
from torch._guards import detect_fake_mode
from torch.fx.node import map_arg

from ..errors import Diagnostic, ImportFailed, Uncovered
from .locations import Locations
from .regions import inline_regions
from .views import put_back

_aten = torch.ops.aten
# They change what is known of a tensor, not its elements.
_NO_WRITES = {"detach_", "requires_grad_"}
# Functions of other names than their operations in place.
_FUNCTIONS = {"normal": "normal_functional"}


def functionalize(program, kinds) -> dict[str, torch.fx.Node]:
    """Rewrites a program that writes to its values; leaves any other one alone.

    `kinds` maps names of placeholders to (kind, key): a kind is "input", "parameter", "buffer" or
    "constant", and placeholders of one key are one tensor. Returns key -> the last write, for each
    buffer that is written; the graph returns their values, in this order, behind its results.
    Raises ImportFailed for a write to any other argument, and for writes that are not covered.
    """
    module = program.graph_module
    if not any(_has_writes(m) for m in module.modules() if isinstance(m, torch.fx.GraphModule)):
        return {}
    inline_regions(module)
    rewrite = _Functionalize(module.graph, kinds)
    rewrite.run()
    if rewrite.errors:
        raise ImportFailed(rewrite.errors)
    output, writes = module.graph.output_node(), rewrite.written_buffers()
    output.args = ((*output.args[0], *(value for value, _ in writes.values())),)
    module.graph.eliminate_dead_code()
    module.recompile()
    return {key: write for key, (_, write) in writes.items()}


def functional_graph(graph: torch.fx.Graph) -> bool:
    """Rewrites the writes to values of a graph without names; whether all writes are covered."""
    if not any(written_arguments(node) for node in graph.nodes):
        return True
    rewrite = _Functionalize(graph, {})
    rewrite.run()
    graph.eliminate_dead_code()
    return not rewrite.errors


def written_arguments(node) -> list[torch.fx.Node]:
    """The operands that an operation writes to."""
    schema = getattr(node.target, "_schema", None) if node.op == "call_function" else None
    if schema is None:
        return []
    if _updates_statistics(node):
        return [node.args[3], node.args[4]]
    if not schema.is_mutable or schema.name.removeprefix("aten::") in _NO_WRITES:
        return []
    written = []
    for i, argument in enumerate(schema.arguments):
        if argument.alias_info and argument.alias_info.is_write:
            value = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)
            written += [v for v in (value if isinstance(value, (list, tuple)) else [value])
                        if isinstance(v, torch.fx.Node)]
    return written


def _updates_statistics(node) -> bool:
    """Batch norm writes to its running statistics, though its schema does not say so."""
    return node.target is _aten.batch_norm.default and bool(node.args[5]) and \
        isinstance(node.args[3], torch.fx.Node)


def _may_alias(node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return node.target is operator.getitem or schema is not None and (
        any(value.alias_info for value in schema.returns) or
        torch._C._dispatch_has_kernel_for_dispatch_key(node.target.name(),
                                                       "CompositeImplicitAutograd"))


def possible_roots(graph, origin=None) -> dict:
    """For each value a root of the tree that it may be in; views may prove to be copies."""
    roots = {}
    for node in graph.nodes:
        roots[node] = (origin or {}).get(node, node)
        if node.op == "call_function" and not _updates_statistics(node):
            sources = written_arguments(node) or (node.all_input_nodes if _may_alias(node) else [])
            if sources:
                roots[node] = roots[sources[0]]
    return roots


def _has_writes(module) -> bool:
    return any(written_arguments(node) for node in module.graph.nodes)


def writes_to_arguments(program) -> bool:
    """Whether a write may reach an argument of the program."""
    module = program.graph_module
    if any(_has_writes(m) for m in module.modules()
           if m is not module and isinstance(m, torch.fx.GraphModule)):
        return True
    return bool(written_placeholders(module.graph))


def written_placeholders(graph) -> set[str]:
    """Names of the placeholders that a write may reach."""
    roots = possible_roots(graph)
    written = {roots[w] for node in graph.nodes for w in written_arguments(node)}
    return {root.name for root in written if root.op == "placeholder"}


def _without_out(target):
    """add.Tensor for add.out: the operation that returns what the other one writes."""
    describe = lambda schema: [(a.name, str(a.type)) for a in schema.arguments if a.name != "out"]
    packet = target.overloadpacket
    for name in packet.overloads():
        other = getattr(packet, name)
        if not other._schema.is_mutable and describe(other._schema) == describe(target._schema):
            return other
    return None


class _Functionalize:
    def __init__(self, graph: torch.fx.Graph, kinds):
        self.graph, self.kinds = graph, kinds
        self.errors: list[Diagnostic] = []
        self.locations = Locations()
        #: The root of each value that is tracked.
        self.root: dict = {}
        #: The value that a view was made of, or a write wrote to.
        self.source: dict = {}
        #: Arguments of views as they were in the exported graph.
        self.arguments: dict = {}
        #: The version of the root that a view was computed from.
        self.made: dict = {}
        #: Of each root: its present value, its version, the last write.
        self.current: dict = {}
        self.version: dict = {}
        self.last_write: dict = {}
        self.cache: dict = {}
        #: The operation that new ones stand before, and for.
        self.at = None
        values = [n.meta.get("val") for n in graph.nodes if n.op == "placeholder"]
        self.mode = detect_fake_mode(values)

    def run(self):
        first, same = {}, {}
        for node in self.graph.nodes:
            kind, key = self.kinds.get(node.name, (None, None))
            if node.op == "placeholder" and kind in ("buffer", "parameter"):
                same[node] = first.setdefault(key, node)
        possible = possible_roots(self.graph, same)
        written = {possible[w] for n in self.graph.nodes for w in written_arguments(n)}
        stale = []
        for node in list(self.graph.nodes):
            if possible[node] not in written and node.op != "output" and \
                    not any(n in self.root for n in node.all_input_nodes):
                continue
            self.at = node
            if same.get(node, node) is not node:
                self._view(node, same[node])
                self.made[node] = -1
            elif written_arguments(node):
                self._write(node)
                stale.append(node)
            else:
                self._compute(node, tracked=possible[node] in written)
        for node in reversed(stale):
            self.graph.erase_node(node)

    def written_buffers(self):
        return {self.kinds[root.name][1]: (self.current[root], write)
                for root, write in self.last_write.items() if root.op == "placeholder"}

    # Values.

    def read(self, node):
        """The value of a node at the present version of its root."""
        if node not in self.root:
            return node
        root = self.root[node]
        if node is root:
            return self.current[root]
        version = self.version[root]
        if self.made[node] == version:
            return node
        if (node, version) not in self.cache:
            source = self.read(self.source[node])
            value = source
            if node in self.arguments:
                args, kwargs = map_arg(self.arguments[node], lambda n: source
                                       if n is self.source[node] else self.read(n))
                value = self.call(node.target, *args, **kwargs)
            self.cache[node, version] = value
        return self.cache[node, version]

    def call(self, target, *args, **kwargs):
        """A new operation before the present one."""
        with self.graph.inserting_before(self.at):
            node = self.graph.call_function(target, args, kwargs)
        args, kwargs = map_arg((args, kwargs), lambda n: n.meta["val"])
        with self.mode:
            value = target(*args, **kwargs)
        node.meta.update({k: self.at.meta[k] for k in ("stack_trace", "nn_module_stack")
                          if k in self.at.meta}, val=value)
        return node

    def _view(self, node, source):
        self.root[node], self.source[node] = self.root[source], source
        self.made[node] = self.version[self.root[source]]

    def _compute(self, node, tracked: bool):
        """An operation that writes nothing: reads present values."""
        arguments = node.args, node.kwargs
        source = self._shared_operand(node) if tracked else None
        node.args, node.kwargs = map_arg(arguments, self.read)
        if source is not None:
            self._view(node, source)
            self.arguments[node] = arguments
        elif tracked and node.op != "output":
            self._start(node)

    def _start(self, root):
        self.root[root], self.current[root], self.version[root] = root, root, 0

    def _shared_operand(self, node):
        """The operand whose memory the result shares, if there is one."""
        operands = [n for n in node.all_input_nodes if n in self.root]
        if node.op != "call_function" or not operands or not _may_alias(node):
            return None
        if node.target is operator.getitem:  # of pieces, or of an operation's results
            return operands[0] if operands[0] in self.source else None
        args, kwargs = map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        with self.mode:
            value = node.target(*args, **kwargs)
        value = value[0] if isinstance(value, (list, tuple)) else value
        if not isinstance(value, torch.Tensor):
            return None
        memory = lambda x: x.untyped_storage()._cdata
        return next((n for n in operands if isinstance(n.meta["val"], torch.Tensor) and
                     memory(n.meta["val"]) == memory(value)), None)

    # Writes.

    def _write(self, node):
        written = written_arguments(node)
        for root in dict.fromkeys(self.root[w] for w in written):
            kind, key = self.kinds.get(root.name, (None, None))
            if root.op == "placeholder" and kind != "buffer":
                self._refuse(node, f"{kind} {key} is written to in place; only registered buffers "
                                   "can be changed")
        if _updates_statistics(node):
            self._batch_norm(node)
            return
        try:
            self._assign(written[0], self._function(node, written))
        except Uncovered as error:
            self._refuse(node, str(error))
        self._view(node, written[0])
        self.made[node] = -1  # its value is its operand's

    def _function(self, node, written: list):
        """The new value of the operand that an operation writes to."""
        name, own = node.target._schema.name.removeprefix("aten::"), written[0].meta["val"]
        functional = "__" + name[3:] if name.startswith("__i") else name.removesuffix("_")
        functional = _FUNCTIONS.get(functional, functional)
        target = getattr(getattr(_aten, functional, None), node.target._overloadname, None)
        options = dict(node.kwargs)
        if written == [options.pop("out", None)]:
            target = _without_out(node.target)
        elif functional == name or written != [node.args[0]]:
            target = None
        if target is None:
            raise Uncovered(f"a write by operation aten.{name} is not covered")
        if functional == "set" or any(value.alias_info for value in target._schema.returns):
            raise Uncovered(f"operation aten.{name} changes a shape in place: it is not covered")
        args, kwargs = map_arg((node.args, options), self.read)
        value = self.call(target, *args, **kwargs)
        if value.meta["val"].dtype != own.dtype:
            value = self.call(_aten._to_copy.default, value, dtype=own.dtype)
        if value.meta["val"].shape != own.shape:
            raise Uncovered(f"operation aten.{name} changes a shape in place: it is not covered")
        return value

    def _assign(self, node, value):
        root = self.root[node]
        if node is root:
            self.current[root] = value
            self.version[root] += 1
            self.last_write[root] = self.at
            return
        source = self.source[node]
        if node not in self.arguments:  # the result of a write, or another name of a buffer
            self._assign(source, value)
        elif node.target is operator.getitem:
            pieces, whole = source, self.source[source]
            self._assign(whole, put_back(self.call, pieces, self.read(whole), value,
                                         node.args[1]))
        else:
            self._assign(source, put_back(self.call, node, self.read(source), value))
        self.cache[node, self.version[root]] = value

    def _batch_norm(self, node):
        x, weight, bias, mean, variance, training, momentum, eps, *_ = node.args
        read = [None if n is None else self.read(n) for n in (x, weight, bias, mean, variance)]
        results = self.call(_aten._native_batch_norm_legit_functional.default, *read, training,
                            momentum, eps)
        output, _, _, new_mean, new_variance = (self.call(operator.getitem, results, i)
                                                for i in range(5))
        self._assign(mean, new_mean)
        self._assign(variance, new_variance)
        self._start(output)
        node.replace_all_uses_with(output)

    def _refuse(self, node, message):
        frame = self.locations.frame(node.meta.get("stack_trace") or "") or (None, None)
        diagnostic = Diagnostic(message, "error", *frame)
        if diagnostic not in self.errors:
            self.errors.append(diagnostic)
