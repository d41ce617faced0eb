# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Meshes and shardings of `sdy`, as JAX writes them, as those of `dist`.

Closed and open dimensions and parts of axes mean the same in both. A dimension that its axes do not divide
is padded. A priority orders propagation and places no value: it is left out. `replicated` are axes that open
dimensions must not take: the dimensions of such a value are closed.
"""
import re

from jax.extend.mlir import ir

from ..errors import Uncovered
from ..graph.layouts import Axis, Factor, Mesh, Sharding, shards
from .attributes import text as text_of
from .handlers import Context, handles

_AXIS = re.compile(r'"((?:[^"\\]|\\.)*)"(?::\((\d+)\)(\d+))?')


class Meshes:
    """The meshes of a module, and the one that its shardings are on."""

    def __init__(self, module):
        self.known = {}
        for operation in module.body.operations:
            if operation.operation.name == "sdy.mesh":
                self.known[text_of(operation.operation.attributes["sym_name"])] = \
                    _mesh(str(operation.operation.attributes["mesh"]))
        #: The mesh of the program: that of the first sharding with one.
        self.used: Mesh | None = None

    def use(self, name: str, inline: str | None = None) -> Mesh:
        """The mesh of a sharding. A module has one: others are refused."""
        mesh = _mesh(inline) if inline else self.known.get(name)
        if mesh is None:
            raise Uncovered(f"a sharding is on mesh @{name}, which the module does not define")
        if mesh.axes:
            if self.used is None:
                self.used = mesh
            elif mesh != self.used:
                raise Uncovered(f"a sharding is on mesh {mesh}: expected that of the shardings before, {self.used}")
        return mesh

    def read(self, attribute, shape, local=None) -> Sharding | None:
        """The sharding of a value of this shape; None if it says nothing. `local` is the shape of a rank's
        part where it is known."""
        text = str(attribute)
        body = text[text.index("<") + 1:text.rindex(">")]
        inline = re.match(r"mesh(<.*?>)\s*,", body)
        name = "" if inline else re.match(r'@("?)([^",\s]+)\1', body)[2]
        mesh = self.use(name, inline and inline[1])
        if not mesh.axes:
            return None
        start = body.index("[", inline.end() if inline else 0)
        end = _closing(body, start)
        entries = re.findall(r"\{([^}]*)\}(?:p\d+)?", body[start:end])
        if len(entries) != len(shape):
            raise Uncovered(f"sharding {text} has {len(entries)} dimensions: expected those of a value of shape "
                            f"{list(shape)}")
        dims = tuple((_factor(_axes(entry, mesh), n, local and local[d]),)
                     for d, (entry, n) in enumerate(zip(entries, shape)))
        rest = {key: _axes(axes, mesh) for key, axes in
                re.findall(r"(replicated|unreduced)\s*=\s*\{([^}]*)\}", body[end:])}
        is_open = tuple("?" in entry and "replicated" not in rest for entry in entries)
        return Sharding(dims, rest.get("unreduced", ()), "sum", is_open)


def _closing(text: str, start: int) -> int:
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == "[") - (text[at] == "]")
        if not depth:
            return at
    raise ValueError(text)


def _mesh(text: str) -> Mesh:
    return Mesh({name: int(size) for name, size in re.findall(r'"((?:[^"\\]|\\.)*)"\s*=\s*(\d+)', text)})


def _axes(text: str, mesh: Mesh) -> tuple[Axis, ...]:
    axes = []
    for name, pre, size in _AXIS.findall(text):
        if name not in mesh.axes:
            raise Uncovered(f"axis '{name}' of a sharding is not one of the mesh {mesh}")
        axes.append(mesh.axis(name, int(pre), int(size)) if size else mesh.axis(name))
    return tuple(axis for axis in axes if axis.size > 1)


def _factor(axes, size: int, local: int | None) -> Factor:
    rows = -(-size // shards(axes)) if local is None else local
    return Factor(size, rows * shards(axes), axes)


@handles("sharding_constraint", "reshard", dialect="sdy")
def constrain(c: Context, op, x):
    """Where a user wants a value."""
    sharding = c.meshes.read(op.attributes["sharding"], c.shape)
    if sharding is None or c.manual or x.form is not None:
        return x
    if all(sharding.open) and not any(f.axes for dim in sharding.dims for f in dim) and not sharding.unreduced:
        return x
    return c.build.make("dist.constrain", [x], x.shape, x.dtype, sharding=sharding)


@handles("all_gather", "all_reduce", "all_slice", "all_to_all", "collective_permute", "reduce_scatter", dialect="sdy")
def moved(c: Context, op, x):
    """A collective between global tensors: the same value, with another layout."""
    sharding = c.meshes.read(op.attributes["out_sharding"], c.shape)
    return x if sharding is None else c.build.make("dist.constrain", [x], x.shape, x.dtype, sharding=sharding)


@handles("propagation_barrier", dialect="sdy")
def barrier(c: Context, op, x):
    return x


@handles("sharding_group", "data_flow_edge", dialect="sdy")
def group(c: Context, op, x):
    return [x] if len(op.results) else []


def stated(walk, main, name: str, shapes) -> list[Sharding | None]:
    """The shardings of the arguments ("arg_attrs") or results ("res_attrs") of @main."""
    if name not in main.attributes:
        return [None] * len(shapes)
    tables = [ir.DictAttr(table) for table in ir.ArrayAttr(main.attributes[name])]
    return [walk.meshes.read(table["sdy.sharding"], shape) if "sdy.sharding" in table else None
            for table, shape in zip(tables, shapes)]


def annotate(walk, arguments):
    """Gives arguments the shardings that @main states."""
    for node, sharding in zip(arguments, stated(walk, walk.functions["main"], "arg_attrs", [a.shape for a in arguments])):
        if sharding is not None:
            node.attrs["sharding"] = sharding
