# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Random programs that shard_map writes per rank, with their layouts.

A program is a list of steps on values of a rank. The generator knows the layout of each value, so that each
program has a placement: sums are reduced once, over the axes that leave them open.
"""
import itertools
import math
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, PartitionSpec

MESHES = [{"a": 2}, {"a": 4}, {"a": 3}, {"a": 2, "b": 2}, {"a": 2, "b": 4}, {"b": 2, "a": 3}, {"a": 2, "b": 2, "c": 2}]


@dataclass
class Value:
    """A value of a rank: its shape there, the axes of each dimension, and those that leave a sum open."""
    index: int
    shape: tuple
    dims: tuple
    open: tuple = ()

    @property
    def used(self):
        return {axis for dim in self.dims for axis in dim} | set(self.open)


@dataclass
class Program:
    mesh: dict
    inputs: list = field(default_factory=list)
    steps: list = field(default_factory=list)
    outputs: list = field(default_factory=list)
    #: The names of the steps, for messages, and the values that each one reads.
    names: list = field(default_factory=list)
    operands: list = field(default_factory=list)

    def body(self, *arrays):
        values = list(arrays)
        for step in self.steps:
            values.append(step(values))
        return tuple(values[v.index] for v in self.outputs)

    def spec(self, value):
        return PartitionSpec(*(dim if len(dim) != 1 else dim[0] for dim in (d or (None,) for d in value.dims)))

    def function(self):
        devices = jax.devices()[:math.prod(self.mesh.values())]
        mesh = jax.make_mesh(tuple(self.mesh.values()), tuple(self.mesh), devices=devices,
                             axis_types=(AxisType.Auto,) * len(self.mesh))
        return jax.shard_map(self.body, mesh=mesh, in_specs=tuple(map(self.spec, self.inputs)),
                             out_specs=tuple(map(self.spec, self.outputs)), check_vma=False)


class Generator:
    def __init__(self, seed: int, steps: int = 10):
        self.random = np.random.default_rng(seed)
        self.program = Program(MESHES[self.random.integers(len(MESHES))])
        self.values, self.arrays = [], []
        self.count = steps
        self.pending = []

    def pick(self, items):
        return items[self.random.integers(len(items))]

    def size(self, axes):
        return math.prod(self.program.mesh[a] for a in axes)

    def subset(self, axes, least=1):
        """Some axes, in any order."""
        axes = [str(a) for a in self.random.permutation(list(axes))]
        return tuple(axes[:self.random.integers(least, len(axes) + 1)]) if len(axes) >= least else ()

    def input(self, shape, dims):
        whole = tuple(n * self.size(d) for n, d in zip(shape, dims))
        self.pending.append((shape, dims, whole))
        return len(self.pending) - 1

    def run(self) -> Program:
        # Inputs first: their number is known only behind the steps, which count values from there.
        plan = []
        mesh = list(self.program.mesh)
        rank = int(self.random.integers(2, 4))
        dims, free = [], list(mesh)
        for _ in range(rank):
            own = self.subset(free, 0) if self.random.random() < 0.5 else ()
            free = [a for a in free if a not in own]
            dims.append(own)
        shape = tuple(int(self.pick([2, 4, 6, 12])) if d else 12 for d in dims)
        first = self.input(shape, tuple(dims))
        live = [Value(("input", first), shape, tuple(dims))]
        for _ in range(self.count):
            made = None
            while made is None:
                value = self.pick(live[-3:])
                made = self.pick(STEPS)(self, value, live)
            name, new, step, operands = made
            new.index = ("step", len(plan))
            plan.append((name, step, operands))
            live.append(new)
        return self.finish(plan, live)

    def finish(self, plan, live) -> Program:
        program, count = self.program, len(self.pending)
        place = lambda index: index[1] if index[0] == "input" else count + index[1]
        for shape, dims, whole in self.pending:
            program.inputs.append(Value(0, shape, dims))
            self.arrays.append(self.random.standard_normal(whole).astype(np.float32))
        for name, step, operands in plan:
            at = [place(o) for o in operands]
            program.steps.append(lambda values, step=step, at=at: step(*(values[i] for i in at)))
            program.names.append(name)
            program.operands.append(at)
        for value in live:
            value.index = place(value.index)
        program.outputs = [v for v in live[-3:] if not v.open][-2:]
        last = live[-1]
        if last.open:
            axes = last.open
            program.steps.append(lambda values, i=last.index: jax.lax.psum(values[i], axes))
            program.names.append(f"psum {axes}")
            program.operands.append([last.index])
            program.outputs.append(Value(count + len(program.steps) - 1, last.shape, last.dims))
        return program


# Steps: each returns a name, the value, a function of the operands and the operands, or None if it does not fit.

def unary(g, x, live):
    if x.open:
        return None
    f = g.pick([jnp.tanh, jax.nn.silu, lambda v: v * 0.5 + 1.0, lambda v: jnp.maximum(v, 0.1)])
    return "unary", Value(None, x.shape, x.dims), f, [x.index]


def scale(g, x, live):
    return "scale", Value(None, x.shape, x.dims, x.open), lambda v: v * 0.5, [x.index]


def binary(g, x, live):
    same = [y for y in live if y.shape == x.shape and y.dims == x.dims and set(y.open) == set(x.open)]
    y = g.pick(same)
    return "add", Value(None, x.shape, x.dims, x.open), lambda v, w: v + w, [x.index, y.index]


def product(g, x, live):
    """With a weight that is sharded along what is summed, along its results, or not at all."""
    if x.open:
        return None
    rows, own = x.shape[-1], x.dims[-1]
    free = [a for a in g.program.mesh if a not in x.used]
    out = g.subset(free, 0) if g.random.random() < 0.6 else ()
    columns = int(g.pick([2, 4, 12]))
    weight = g.input((rows, columns), (own, out))
    value = Value(None, (*x.shape[:-1], columns), (*x.dims[:-1], out), own)
    return "matmul", value, lambda v, w: v @ w / math.sqrt(rows), [x.index, ("input", weight)]


def total(g, x, live):
    """A sum over a dimension, which leaves the axes of the dimension open."""
    if len(x.shape) < 3:
        return None
    d = int(g.random.integers(len(x.shape)))
    dims = tuple(a for i, a in enumerate(x.dims) if i != d)
    return "sum", Value(None, tuple(n for i, n in enumerate(x.shape) if i != d), dims, (*x.open, *x.dims[d])), \
        lambda v: v.sum(d) * 0.3, [x.index]


def largest(g, x, live):
    """A maximum over a dimension and over the ranks that share it."""
    if x.open:
        return None
    d = int(g.random.integers(len(x.shape)))
    axes = x.dims[d]
    dims = tuple(() if i == d else a for i, a in enumerate(x.dims))
    f = (lambda v: jax.lax.pmax(v.max(d, keepdims=True), axes)) if axes else (lambda v: v.max(d, keepdims=True))
    if g.random.random() < 0.5:
        f = (lambda v: jax.lax.pmin(v.min(d, keepdims=True), axes)) if axes else (lambda v: v.min(d, keepdims=True))
    return "max", Value(None, tuple(1 if i == d else n for i, n in enumerate(x.shape)), dims), f, [x.index]


def psum(g, x, live):
    axes = g.subset(x.open)
    if not axes:
        return None
    left = tuple(a for a in x.open if a not in axes)
    f = (lambda v: jax.lax.pmean(v, axes)) if g.random.random() < 0.2 else (lambda v: jax.lax.psum(v, axes))
    return f"psum {axes}", Value(None, x.shape, x.dims, left), f, [x.index]


def psum_scatter(g, x, live):
    axes = g.subset(x.open)
    d = int(g.random.integers(len(x.shape)))
    if not axes or x.shape[d] % g.size(axes):
        return None
    left = tuple(a for a in x.open if a not in axes)
    names = axes if len(axes) > 1 else axes[0]
    shape = tuple(n // g.size(axes) if i == d else n for i, n in enumerate(x.shape))
    dims = tuple((*a, *axes) if i == d else a for i, a in enumerate(x.dims))
    return f"psum_scatter {axes}", Value(None, shape, dims, left), \
        lambda v: jax.lax.psum_scatter(v, names, scatter_dimension=d, tiled=True), [x.index]


def all_gather(g, x, live):
    choices = [d for d, a in enumerate(x.dims) if a]
    if not choices or x.open and g.random.random() < 0.5:
        return None
    d = g.pick(choices)
    count = int(g.random.integers(1, len(x.dims[d]) + 1))
    kept, axes = x.dims[d][:-count], x.dims[d][-count:]
    names = axes if len(axes) > 1 else axes[0]
    ranks = g.size(axes)
    if not kept and g.random.random() < 0.3 and x.shape[d] * ranks <= 64 and len(x.shape) < 4:
        at = int(g.random.integers(len(x.shape) + 1))
        dims = [() if i == d else a for i, a in enumerate(x.dims)]
        dims.insert(at, ())
        return f"all_gather {axes} apart at {at}", Value(None, (*x.shape[:at], ranks, *x.shape[at:]), tuple(dims), x.open), \
            lambda v: jax.lax.all_gather(v, names, axis=at), [x.index]
    shape = tuple(n * ranks if i == d else n for i, n in enumerate(x.shape))
    dims = tuple(kept if i == d else a for i, a in enumerate(x.dims))
    return f"all_gather {axes}", Value(None, shape, dims, x.open), \
        lambda v: jax.lax.all_gather(v, names, axis=d, tiled=True), [x.index]


def all_to_all(g, x, live):
    choices = [(d, e) for d, e in itertools.permutations(range(len(x.shape)), 2)
               if x.dims[d] and x.shape[e] % g.program.mesh[x.dims[d][-1]] == 0]
    if not choices or x.open:
        return None
    d, e = g.pick(choices)
    axis = x.dims[d][-1]
    ranks = g.program.mesh[axis]
    shape = tuple(n * ranks if i == d else n // ranks if i == e else n for i, n in enumerate(x.shape))
    dims = tuple(a[:-1] if i == d else (*a, axis) if i == e else a for i, a in enumerate(x.dims))
    return f"all_to_all {axis}", Value(None, shape, dims), \
        lambda v: jax.lax.all_to_all(v, axis, split_axis=e, concat_axis=d, tiled=True), [x.index]


def ppermute(g, x, live):
    axes = [a for d in x.dims for a in d]
    if not axes or x.open:
        return None
    axis = g.pick(axes)
    ranks = g.program.mesh[axis]
    shift = int(g.random.integers(1, ranks)) if ranks > 1 else 0
    pairs = [(i, (i + shift) % ranks) for i in range(ranks)]
    if g.random.random() < 0.3:
        pairs = [(i, i + 1) for i in range(ranks - 1)]
    elif g.random.random() < 0.3:
        pairs = [(i, int(j)) for i, j in enumerate(g.random.permutation(ranks))]
    return f"ppermute {axis} {pairs}", Value(None, x.shape, x.dims), lambda v: jax.lax.ppermute(v, axis, pairs), [x.index]


def own_chunk(g, x, live):
    """A rank's rows of a value that all ranks have."""
    free = [a for a in g.program.mesh if a not in x.used]
    axes = g.subset(free) if free else ()
    d = int(g.random.integers(len(x.shape)))
    if not axes or x.shape[d] % g.size(axes) or x.open:
        return None
    rows = x.shape[d] // g.size(axes)
    shape = tuple(rows if i == d else n for i, n in enumerate(x.shape))
    dims = tuple((*a, *axes) if i == d else a for i, a in enumerate(x.dims))
    names = axes if len(axes) > 1 else axes[0]
    return f"own chunk {axes}", Value(None, shape, dims), \
        lambda v: jax.lax.dynamic_slice_in_dim(v, jax.lax.axis_index(names) * rows, rows, d), [x.index]


def softmax(g, x, live):
    if x.open or x.dims[-1]:
        return None
    return "softmax", Value(None, x.shape, x.dims), lambda v: jax.nn.softmax(v, -1), [x.index]


def norm(g, x, live):
    if x.open or x.dims[-1]:
        return None
    return "norm", Value(None, x.shape, x.dims), \
        lambda v: v * jax.lax.rsqrt(jnp.mean(jnp.square(v), -1, keepdims=True) + 1e-3), [x.index]


def transpose(g, x, live):
    order = [int(i) for i in g.random.permutation(len(x.shape))]
    return "transpose", Value(None, tuple(x.shape[i] for i in order), tuple(x.dims[i] for i in order), x.open), \
        lambda v: v.transpose(order), [x.index]


STEPS = [unary, scale, binary, product, product, product, total, largest, psum, psum, psum_scatter, psum_scatter, all_gather,
         all_to_all, ppermute, own_chunk, softmax, norm, transpose]


def generate(seed: int, steps: int = 10):
    """A program and the arrays of its inputs."""
    generator = Generator(seed, steps)
    return generator.run(), generator.arrays
