# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Walks an exported ATen graph and makes the importer's graph of it.

Each ATen operation has a handler (handlers.py).
Before a handler is asked, an operation on values known at import time is folded (forms.py).
"""
import operator
from typing import Any

import torch

from ..errors import Diagnostic, ImportFailed, Uncovered
from ..graph import forms
from ..graph.dialect import CODES
from ..graph.forms import Dense, Diagonal
from ..graph.nodes import Graph, Node, Write, numel
from ..graph.sizes import Size
from . import ops_complex
from .derivatives import stated, with_derivative
from .dynamic import Bucket
from .export import Exported
from .functionalize import written_arguments
from .handlers import HANDLERS, Context, permutation_of, slice_of
from .locations import Locations
from .names import operation_name
from .size_rules import Rule, rule
from .specialise import is_symbolic
from .values import (
    TORCH_DTYPES,
    compress,
    dense,
    element_type,
    run,
    tensor_of,
    to_array,
    to_tensor,
    written_out,
)


def covers(node: torch.fx.Node) -> bool:
    """Whether a node as torch.export leaves it can be read: it has a handler and changes nothing in
    place. Complex numbers have handlers for fewer operations."""
    if node.op != "call_function":
        return node.op in ("placeholder", "output")
    if node.target is operator.getitem:
        return True
    schema = getattr(node.target, "_schema", None)
    value = node.meta.get("val")
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) and not is_symbolic(value):
        return True
    if schema is None or schema.is_mutable:
        return False
    if isinstance(value, torch.Tensor) and value.dtype.is_complex:
        return False
    return has_handler(node.target)


def has_handler(target, is_complex: bool = False) -> bool:
    """Whether an operation (on complex numbers) can be read."""
    name = operation_name(target)
    base = name.split(".")[0]
    if is_complex:
        return ops_complex.covers(base)
    return target is operator.getitem or name in HANDLERS or base in HANDLERS or \
        name in _IGNORED | _SIZES | FACTORIES | _LIKE


class Convert(Context):
    """The state of one conversion."""

    def __init__(self, exported: Exported, bucket: Bucket | None = None):
        super().__init__(exported)
        self.bucket = bucket
        self.errors: dict[tuple, Diagnostic] = {}
        self.values: dict[Any, Any] = {}
        self.locations = Locations()
        #: Of numbers and shapes that depend on the inputs' values: the first such value.
        self.undetermined: dict[Any, Any] = {}

    def run(self) -> Graph:
        self._arguments()
        for position, node in enumerate(self.exported.program.graph.nodes):
            if node.op == "output":
                self._check_determined(node)
                for result, output in self.exported.outputs:
                    value = self.values.get(result)
                    if result.meta["val"].dtype == torch.uint8:
                        self._report(result, f"output '{output}' is of uint8, which is not covered: expected "
                                             "another type, as .to(torch.int32) gives")
                    elif value is not None:
                        self.graph.outputs.append(value)
                        self.graph.output_names.append(output)
            elif node.op == "call_function":
                self.build.loc = self.locations.of(node)
                self.build.position = position
                self.fx = node
                try:
                    self.values[node] = self._call(node)
                except Uncovered as error:
                    self.values[node] = None
                    self._report(node, str(error))
            elif node.op == "get_attr":
                self.values[node] = None
        self._writes()
        if self.errors:
            raise ImportFailed(self.errors.values())
        return self.graph

    def _writes(self):
        for state in self.graph.states:
            if state.attrs["key"] not in self.exported.writes:
                continue
            result, write = self.exported.writes[state.attrs["key"]]
            value = self.values[result]
            if value is not None:
                self.build.loc = self.locations.of(write)
                self.graph.writes.append(Write(state, value, self.build.loc))

    def _report(self, node, message: str):
        loc = self.build.loc
        key = (message, loc.file, loc.line)
        if key not in self.errors:
            self.errors[key] = Diagnostic(message, "error", loc.file or None, loc.line or None)

    def _arguments(self):
        exported, by_key = self.exported, {}
        for fx in exported.program.graph.nodes:
            if fx.op != "placeholder":
                continue
            value = fx.meta.get("val")
            if not isinstance(value, torch.Tensor):
                self.values[fx] = value if fx.name not in exported.inputs else None
                continue
            if value.dtype.is_complex and fx.name in exported.values:
                self.values[fx] = ops_complex.constant(self, exported.parameters[fx.name][1])
                continue
            try:
                dtype = _argument_type(value.dtype, fx.name not in exported.inputs and
                                       exported.parameters[fx.name][0] not in exported.writes)
            except Uncovered as error:
                self._report_argument(fx, str(error))
                self.values[fx] = None
                continue
            if fx.name in exported.inputs:
                node = self.build.make("input", [], self.shape_of(value), dtype,
                                       name=exported.inputs[fx.name])
                self.graph.inputs.append(node)
            else:
                key, tensor = exported.parameters[fx.name]
                if key in by_key:
                    self.values[fx] = by_key[key]
                    continue
                is_state = key in exported.writes
                node = self.build.make("state" if is_state else "parameter", [], tensor.shape,
                                       dtype, key=key, aliases=exported.aliases[fx.name],
                                       tensor=tensor)
                if isinstance(tensor, torch.nn.Parameter):
                    node.attrs["trained"] = tensor.requires_grad
                (self.graph.states if is_state else self.graph.parameters).append(node)
                by_key[key] = node
                if value.dtype == torch.uint8:
                    node = by_key[key] = self.build.widen(node, "i32")
                elif fx.name in exported.buffers and not is_state and dtype not in CODES:
                    self._constant(node, key, tensor, fx.name in exported.values)
            self.values[fx] = node

    def _report_argument(self, fx, message):
        key = self.exported.inputs.get(fx.name) or self.exported.parameters[fx.name][0]
        self.errors[fx.name] = Diagnostic(f"{key}: {message}")

    def _constant(self, node: Node, key: str, tensor: torch.Tensor, is_value: bool):
        """Buffers that cannot be trained or loaded are values; others may be looked at."""
        read, whole = self.graph.read, tensor
        if tensor.device.type not in ("cpu", "meta"):
            tensor = tensor.cpu()
        if is_value:
            node.form = dense(tensor, key)
            if tensor.numel() <= 1 << 20:
                node.form = forms.compress(node.form)
            read[key] = whole
        if tensor.device.type != "meta":
            def look():
                read[key] = whole
                return to_array(tensor)

            node.thunk = look

    # One operation.

    def _check_determined(self, node):
        for source in node.all_input_nodes:
            origin = self.undetermined.get(source)
            if origin is not None:
                self.build.loc = self.locations.innermost(origin)
                self._report(origin, f"the result of {_display(origin.target)} has a shape, or is a "
                                     "number, that depends on values: it is not covered" +
                             _remedy(origin))

    def _call(self, node):
        target = node.target
        if "constant" in node.meta:
            value = node.meta["constant"]
            return self.build.static(compress(value), value.shape, element_type(value.dtype))
        name = operation_name(target)
        if name in _IGNORED or _is_random(target) and not node.users:
            return None
        if isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool)) and \
                not is_symbolic(node.meta["val"]):
            return self.bucket.number(node.meta["val"])
        if is_symbolic(node.meta.get("val")):
            # Reported where a value depends on it; many are for assertions alone.
            sources = [n for n in node.all_input_nodes if n in self.undetermined]
            self.undetermined[node] = self.undetermined[sources[0]] if sources else node
            return None
        self._check_determined(node)
        if written_arguments(node):
            raise Uncovered(f"a write by operation {_display(target)} is not covered")
        if target is operator.getitem:
            source = self.values[node.args[0]]
            return None if source is None else source[node.args[1]]
        args = torch.fx.node.map_arg(node.args, lambda n: self.values[n])
        kwargs = torch.fx.node.map_arg(node.kwargs, lambda n: self.values[n])
        if any(a is None for a, raw in zip(_leaves(args, kwargs), _leaves(node.args, node.kwargs))
               if isinstance(raw, torch.fx.Node)):
            # An operand failed already; say at least whether this operation would, too.
            self._handler(target, name)
            return None
        if target is stated:
            result, operation, args, kwargs = args
            return with_derivative(self, result, operation_name(operation), args, kwargs)
        val = node.meta.get("val")
        if isinstance(val, torch.Tensor) and val.dtype.is_complex or any(
                isinstance(a, ops_complex.Complex) for a in _leaves(args, kwargs)):
            self.known_shape = None
            result = ops_complex.convert(self, name, args, kwargs)
            return result if self.bucket is None else self._sized(result, val, [*_leaves(args, kwargs)])
        read = Rule(args)
        if self.bucket is not None:
            self.known_shape = None
            read = rule(self, node, args, kwargs)
            args = read.args
        folded = self._fold(node, target, name, args, kwargs) if read.folds else None
        if folded is not None:
            return folded
        result = read.make() if read.make else self._handler(target, name)(self, *args, **kwargs)
        if self.bucket is not None:
            result = self._sized(result, node.meta["val"], [*_leaves(args, kwargs)])
        if isinstance(result, Node):
            val = node.meta["val"]
            if result.shape != self.shape:
                result = self.build.broadcast(result, self.shape)
            if result.dtype != element_type(val.dtype):
                result = self.build.cast(result, element_type(val.dtype))
            if val.dtype == torch.uint8:
                result = _in_a_byte(self.build, result)
            if result.thunk is None and result.form is None and read.folds and not read.make:
                result.thunk = self._thunk(target, args, kwargs)
        return with_derivative(self, result, name, args, kwargs)

    def _sized(self, result, value, operands):
        """The results with the sizes of the call in their shapes."""
        if isinstance(result, (list, tuple)):
            self.known_shape = None
            return [r if v is None else self._sized(r, v, operands) for r, v in zip(result, value)]
        if isinstance(result, ops_complex.Complex):
            return ops_complex.Complex(*(self._sized(p, value, [*operands]) for p in (result.real, result.imag)))
        if not isinstance(result, Node):
            return result
        wanted = self.known_shape or self.with_parts(self.shape_of(value), operands)
        if len(wanted) != result.rank:
            return result
        shape = [own if isinstance(own, Size) and isinstance(n, Size) and own.expr == n.expr else n
                 for own, n in zip(result.shape, wanted)]
        if any(own != n for own, n in zip(result.shape, shape)):
            return result
        return self.with_shape(result, tuple(shape), [*operands, *self.graph.parameters, *self.graph.inputs])

    def _handler(self, target, name):
        handler = HANDLERS.get(name) or HANDLERS.get(name.split(".")[0])
        if handler is None:
            needs = self.fx.meta.get("needs")
            raise Uncovered(f"operation {_display(target)} is not covered" +
                            (f": it needs {needs}" if needs else ""))
        return handler

    def _thunk(self, target, args, kwargs):
        """A way to compute the value, where it depends on constants and buffers only."""
        nodes = [a for a in _leaves(args, kwargs) if isinstance(a, Node)]
        if not nodes or any(n.thunk is None and not isinstance(n.form, Dense) for n in nodes) or \
                not any(n.thunk for n in nodes):
            return None

        def value(n):
            if not isinstance(n, Node):
                return n
            if not n.thunk:
                return tensor_of(n.form).expand(n.shape)
            values = n.thunk()
            if values is None:
                raise NotImplementedError
            return to_tensor(values)

        def compute():
            try:
                return to_array(target(*_map(args, value), **_map(kwargs, value)))
            except (RuntimeError, NotImplementedError, TypeError):
                return None
        return compute

    # Folding.

    def _fold(self, node, target, name, args, kwargs):
        if _is_random(target):  # another value at each call
            return None
        if isinstance(node.meta.get("val"), (list, tuple)):
            return self._fold_several(node.meta["val"], target, args, kwargs)
        if not isinstance(node.meta.get("val"), torch.Tensor) or node.meta["val"].dtype == torch.uint8:
            return None
        nodes = [a for a in _leaves(args, kwargs) if isinstance(a, Node)]
        if name.startswith("to.") and nodes[0].dtype == element_type(node.meta["val"].dtype):
            return nodes[0]
        if name in FACTORIES or not nodes and _is_function(target):
            form = self._factory(target, name, args, kwargs)
        elif name in _LIKE:
            # The operand gives only its shape and type.
            template = torch.empty(nodes[0].shape, dtype=TORCH_DTYPES[nodes[0].dtype],
                                   device="meta")
            value = target(template, *args[1:], **kwargs)
            # An empty tensor is written before it is read, so zeros do.
            fill = {"zeros_like": 0, "new_zeros": 0, "ones_like": 1, "new_ones": 1,
                    "empty_like": 0, "new_empty": 0}.get(name.split(".")[0])
            if fill is None:
                fill = kwargs.get("fill_value", args[-1])
            if isinstance(fill, Node):
                return None
            form = dense(torch.full((1,) * value.dim(), fill, dtype=value.dtype))
        elif not nodes or any(n.form is None for n in nodes):
            return self._fold_select(name, args)
        else:
            try:
                form = self._fold_forms(target, name, args, kwargs, nodes)
            except (RuntimeError, NotImplementedError):
                return None  # not for these types or devices: the program computes it
        if form is None:
            return None
        val = node.meta["val"]
        result = self.build.static(form, self.with_parts(self.shape, nodes), element_type(val.dtype))
        loc, position = self.build.loc, self.build.position
        result.recipe = lambda: self._unfolded(node, target, name, args, kwargs, loc, position)
        return result

    def _fold_several(self, values, target, args, kwargs):
        """The results of an operation on small values."""
        nodes = [a for a in _leaves(args, kwargs) if isinstance(a, Node)]
        if not nodes or not all(isinstance(n.form, Dense) and n.form.known and
                                numel(n.shape) <= forms.SMALL for n in nodes):
            return None
        own = lambda a: tensor_of(a.form).expand(a.shape) if isinstance(a, Node) else a
        results = target(*_map(args, own), **_map(kwargs, own))
        return [self.build.static(compress(r), self.shape_of(v), element_type(v.dtype))
                for r, v in zip(results, values)]

    def _unfolded(self, node, target, name, args, kwargs, loc, position) -> Node | None:
        """The operation itself, for a value that is better computed by the program."""
        self.fx, self.build.loc, self.build.position = node, loc, position
        self.known_shape = None
        try:
            result = self._handler(target, name)(self, *args, **kwargs)
        except Uncovered:
            return None
        if self.bucket is not None:
            result = self._sized(result, node.meta["val"], [*_leaves(args, kwargs)])
        result = self.build.cast(result, element_type(node.meta["val"].dtype))
        return self.build.broadcast(result, self.shape)

    def _factory(self, target, name, args, kwargs):
        kwargs = {k: v for k, v in kwargs.items() if k not in ("device", "pin_memory", "layout")}
        base = name.split(".")[0]
        if base in ("zeros", "ones", "full", "empty"):
            shape = self.shape
            fill = {"zeros": 0, "ones": 1, "empty": 0}.get(base)
            fill = args[1] if fill is None else fill
            return dense(torch.full((1,) * len(shape), fill, dtype=self.fx.meta["val"].dtype))
        if any(a.name == "device" for a in target._schema.arguments):
            kwargs["device"] = "cpu"
        value = target(*args, **kwargs)
        return compress(value) if value.numel() <= 1 << 22 else dense(value)

    def _fold_select(self, name, args):
        """where() with a condition known to be the same everywhere."""
        if name.split(".")[0] != "where" or not isinstance(args[0].form, Dense) or \
                not args[0].form.uniform or len(args) != 3:
            return None
        chosen = args[1 if args[0].form.values.item() else 2]
        if not isinstance(chosen, Node):
            return None
        return self.build.broadcast(self.build.cast(chosen, self.dtype), self.shape)

    def _fold_forms(self, target, name, args, kwargs, nodes):
        base = name.split(".")[0]
        first = nodes[0]
        shape = self.shape
        if base in _POINTWISE or torch.Tag.pointwise in getattr(target, "tags", ()):
            if base == "_to_copy" or base == "to":
                args, kwargs = args[:1], {"dtype": self.fx.meta["val"].dtype}
                target = torch.ops.aten._to_copy.default
            if base == "type_as":
                return self._cast_form(first, args[1].dtype, shape)
            if any(isinstance(v, Node) for v in kwargs.values()):
                return None
            operands = {i: (a.form, a.shape) for i, a in enumerate(args) if isinstance(a, Node)}
            compute = lambda tensors: target(*[tensors.get(i, a) for i, a in enumerate(args)], **kwargs)
            return forms.fold_pointwise(lambda given: run(compute, given), None if kwargs else base,
                                        shape, operands)
        if base in _IDENTITY:
            return first.form
        if base in ("triu", "tril"):
            offset = args[1] if len(args) > 1 else kwargs.get("diagonal", 0)
            form = forms.triangle(first.form, shape, base == "triu", offset)
            if form is not None:
                return form
        elif base in _RESHAPES:
            return forms.form_reshape(first.form, first.shape, shape)
        elif base in ("expand", "broadcast_to"):
            return forms.form_expand(first.form, first.shape, shape)
        elif base in ("permute", "transpose", "t", "numpy_T", "mT"):
            return forms.form_permute(first.form, permutation_of(base, args, first.rank))
        elif base == "slice":
            dim, start, _, step = slice_of(args, first)
            return forms.form_slice(first.form, first.shape, dim, start, step, shape[dim])
        elif base == "select":
            dim = args[1] % first.rank
            form = forms.form_slice(first.form, first.shape, dim, args[2] % first.shape[dim], 1, 1)
            kept = first.shape[:dim] + (1,) + first.shape[dim + 1:]
            return forms.form_reshape(form, kept, shape)
        # Anything else runs on the values themselves.
        tensors = {}
        for n in nodes:
            tensors[id(n)] = written_out(n.form, n.shape)
            if tensors[id(n)] is None:
                return None
        if not forms.affordable(shape):
            return None
        if any(t.device.type == "meta" for t in tensors.values()):
            tensors = {k: t.to("meta") for k, t in tensors.items()}
        pick = lambda a: tensors[id(a)] if isinstance(a, Node) else a
        kwargs = {k: v for k, v in kwargs.items() if k not in ("device", "pin_memory", "layout")}
        return compress(target(*_map(args, pick), **_map(kwargs, pick)))

    @staticmethod
    def _cast_form(node, dtype, shape):
        cast = lambda form: dense(tensor_of(form).to(TORCH_DTYPES[dtype]))
        if isinstance(node.form, Diagonal):
            table = cast(Dense(node.form.table)).values
            return Diagonal(node.form.coefficients, node.form.low, table)
        return cast(node.form)


#: Operations whose result is a byte where the operands are.
_BYTES = {"widen", "static", "reshape", "transpose", "slice", "broadcast", "concat", "gather", "take_along",
          "embedding"}
_IGNORED = {"_assert_tensor_metadata.default", "_assert_async.msg", "_assert_scalar.default",
            "sym_constrain_range_for_size.default"}
#: Sizes as numbers.
_SIZES = {"sym_size.int", "sym_numel.default"}
_IDENTITY = {"clone", "contiguous", "alias", "detach", "lift_fresh_copy", "lift_fresh", "dropout",
             "detach_"}
_RESHAPES = {"view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "flatten", "unflatten",
             "view_copy", "_reshape_alias"}
_POINTWISE = {"_to_copy", "to", "type_as", "__and__", "__or__", "__xor__", "where", "masked_fill",
              "rsub", "square", "clip", "clamp"}
FACTORIES = {
    "arange.default", "arange.start", "arange.start_step", "zeros.default", "ones.default",
    "full.default", "empty.memory_format", "linspace.default", "scalar_tensor.default",
    "eye.default", "eye.m", "tril_indices.default", "triu_indices.default"}
_LIKE = {f"{n}.default" for n in ("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones",
                                  "new_full", "empty_like", "new_empty")}


def _remedy(origin) -> str:
    """The form that may replace a value whose shape, or a number, depends on values."""
    name = operation_name(origin.target)
    if name in ("where.default", "nonzero.default"):
        return ". Experts that find their tokens so take another form: all tokens with a mask, or " \
            'model.set_experts_implementation("grouped_mm") of transformers'
    if name not in ("item.default", "_local_scalar_dense.default"):
        return ""
    why = origin.meta.get("declined")
    return (f" ({why})" if why else "") + ". Such numbers may split rows by torch.split, if all " \
        "parts go through the same functions, which see each row alone, and torch.cat joins them " \
        "in their order"


def _argument_type(dtype: torch.dtype, is_constant: bool) -> str:
    """The type of an argument of the program. Bytes are stored and read, not given or written."""
    if dtype != torch.uint8:
        return element_type(dtype)
    if not is_constant:
        raise Uncovered("element type uint8 is not covered but in parameters and buffers that stay; "
                        "expected another one, as .to(torch.int32) gives")
    return "i8"


def _in_a_byte(build, node: Node) -> Node:
    """A number of uint8: the low bits of a result of i32."""
    is_one = node.op in _BYTES or node.op in ("and", "or", "xor", "div") and \
        all(o.op in _BYTES for o in node.operands)
    return node if is_one else build.binary("and", node, build.scalar(255, "i32"))


def _is_function(target) -> bool:
    """Whether the result depends on the arguments alone."""
    schema = getattr(target, "_schema", None)
    return schema is not None and not schema.is_mutable and not _is_random(target)


def _is_random(target) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


def _display(target) -> str:
    name = str(target)
    return name if "." in name and not name.startswith("<") else getattr(target, "__name__", name)


def _leaves(*trees):
    for tree in trees:
        if isinstance(tree, dict):
            yield from _leaves(*tree.values())
        elif isinstance(tree, (list, tuple)):
            yield from _leaves(*tree)
        else:
            yield tree


def _map(tree, function):
    if isinstance(tree, dict):
        return {k: _map(v, function) for k, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_map(v, function) for v in tree)
    return function(tree)
