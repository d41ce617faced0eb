# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Random programs with random shardings on random meshes.

Everything follows from the seed. A program is a list of ops that can be taken apart again, so that
one that fails can be made smaller.
"""
import dataclasses
import math
import random

import numpy as np

SIZES = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 16, 17]
MESHES = [
    {"x": 1}, {"x": 2}, {"x": 3}, {"x": 4}, {"x": 5}, {"x": 6}, {"x": 7}, {"x": 8},
    {"x": 2, "y": 2}, {"x": 4, "y": 2}, {"x": 2, "y": 4}, {"x": 2, "y": 3}, {"x": 3, "y": 2},
    {"x": 2, "y": 2, "z": 2},
]
LARGEST = 3000
NUMPY = {"f32": np.float32, "f64": np.float64, "i64": np.int64, "i32": np.int32, "i1": np.bool_}


@dataclasses.dataclass(eq=False)
class Value:
    name: str
    shape: tuple
    dtype: str = "f32"
    #: The same bits however it is computed: comparisons may look at it.
    exact: bool = False
    #: At least 0.1, so that logarithms and quotients of it are tame.
    positive: bool = False

    @property
    def type(self):
        return "tensor<" + "".join(f"{n}x" for n in self.shape) + self.dtype + ">"

    @property
    def size(self):
        return math.prod(self.shape)


@dataclasses.dataclass(eq=False)
class Argument(Value):
    is_parameter: bool = False
    #: The scale of the values: normal numbers times this; for an integer type, numbers below it.
    scale: float = 1.0


@dataclasses.dataclass(eq=False)
class Op:
    result: Value
    #: The op with its operands as {0}, {1}, ...
    head: str
    operands: list
    attributes: list = dataclasses.field(default_factory=list)
    #: Which types follow: "function", "result", or, of a constant, nothing but the value's own.
    types: str = "function"
    #: The text behind the attributes: the value of a constant.
    value: str = ""

    def text(self, sharding):
        attributes = list(self.attributes)
        head = self.head.format(*("%" + o.name for o in self.operands))
        if "SHARDING" in head:
            head = head.replace("SHARDING", sharding)
        elif sharding:
            attributes.append(f"dist.sharding = #dist.sharding{sharding}")
        line = f"%{self.result.name} = {head}"
        if attributes:
            line += " {" + ", ".join(attributes) + "}"
        if self.value:
            return f"{line} {self.value} : {self.result.type}"
        if self.types == "result":
            return f"{line} : {self.result.type}"
        operands = ", ".join(o.type for o in self.operands)
        return f"{line} : ({operands}) -> {self.result.type}"


@dataclasses.dataclass
class Program:
    seed: int
    mesh: dict
    arguments: list = dataclasses.field(default_factory=list)
    ops: list = dataclasses.field(default_factory=list)
    results: list = dataclasses.field(default_factory=list)
    #: The bracketed part of a sharding: by name, and by number of result.
    shardings: dict = dataclasses.field(default_factory=dict)
    result_shardings: dict = dataclasses.field(default_factory=dict)
    #: Options for the whole pipeline, in place of shardings.
    options: dict = dataclasses.field(default_factory=dict)
    #: Arguments that are states, and their new values.
    states: list = dataclasses.field(default_factory=list)

    def used(self):
        return ({id(o) for op in self.ops for o in op.operands} | {id(r) for r in self.results}
                | {id(v) for state in self.states for v in state})

    def text(self, sharded):
        def spell(dims):
            return f"<@mesh, {dims}>"

        def attribute(dims):
            return f", dist.sharding = #dist.sharding{spell(dims)}" if sharded and dims else ""

        used, states = self.used(), {id(a) for a, _ in self.states}
        arguments = [
            f'%{a.name}: {a.type} {{nn.{"parameter" if a.is_parameter else "input"} = "{a.name}"'
            + attribute(self.shardings.get(a.name)) + "}"
            for a in self.arguments if id(a) in used and id(a) not in states
        ]
        results = [
            f'{r.type} {{nn.output = "r{i}"' + attribute(self.result_shardings.get(i)) + "}"
            for i, r in enumerate(self.results)
        ]
        lines = [f"func.func @main({', '.join(arguments)}) -> ({', '.join(results)}) {{"]
        lines += [f"  %{a.name} = nn.read @{a.name} : {a.type}" for a, _ in self.states]
        for i, op in enumerate(self.ops):
            dims = self.shardings.get(op.result.name)
            if not sharded and "SHARDING" in op.head:
                # The same number of values, so that numbers name the same ones.
                op = Op(op.result, "nn.reshape {0}", op.operands)
            op = dataclasses.replace(op, attributes=[*op.attributes, f"nn.id = {i} : i64"])
            lines.append("  " + op.text(spell(dims) if sharded and dims else ""))
        lines += [f"  nn.write @{a.name}, %{v.name} : {a.type}" for a, v in self.states]
        names = ", ".join("%" + r.name for r in self.results)
        lines += [f"  return {names} : {', '.join(r.type for r in self.results)}", "}", ""]
        lines[:0] = [f'nn.state @{a.name} {{parameter = "{a.name}"'
                     f'{attribute(self.shardings.get(a.name))}}} : {a.type}' for a, _ in self.states]
        if sharded and not self.options:
            mesh = ", ".join(f'"{axis}"={size}' for axis, size in self.mesh.items())
            lines.insert(0, f"dist.mesh @mesh = <[{mesh}]>")
        return "\n".join(lines)

    def data(self):
        """Arrays for the arguments, the same for a name in every version of the program."""
        arrays = {}
        for a in self.arguments:
            rng = np.random.default_rng([self.seed % 2**32, *a.name.encode()])
            if a.dtype == "i1":
                array = rng.random(a.shape) < 0.7
            elif a.dtype.startswith("i"):
                array = rng.integers(0, int(a.scale), a.shape)
            elif a.positive:
                array = 0.5 + rng.random(a.shape)
            else:
                array = rng.standard_normal(a.shape) * a.scale
            arrays[a.name] = np.asarray(array, dtype=NUMPY[a.dtype], order="C")
        return arrays


class Generator:
    """Builds a program op by op, each on values that are there or on new arguments."""

    def __init__(self, seed, length):
        self.rng = random.Random(seed)
        self.program = Program(seed, dict(self.rng.choice(MESHES)))
        self.count = 0
        self.argument(self.shape(), exact=True)
        kinds = [
            (self.unary, 3), (self.binary, 5), (self.positive, 1), (self.linear, 4),
            (self.matmul, 3), (self.embedding, 1.5), (self.norm, 2), (self.softmax, 1.5),
            (self.reduce, 3), (self.reshape, 3), (self.transpose, 2), (self.slice, 2),
            (self.concat, 2), (self.broadcast, 1), (self.gather, 1), (self.take_along, 0.7),
            (self.attention, 1.5), (self.attention_block, 1), (self.rotary, 0.7), (self.cast, 1),
            (self.select, 1.5), (self.cumsum, 0.5), (self.generated, 1), (self.mlp, 1.5),
            (self.branches, 0.7), (self.constrain, 0.7), (self.infinite, 1.5),
        ]
        while len(self.program.ops) < length:
            self.rng.choices([k for k, _ in kinds], [w for _, w in kinds])[0]()
        self.finish()
        self.choose_states(random.Random(f"states of {seed}"))
        self.choose_unreduced(random.Random(f"unreduced {seed}"))

    # Values.

    def name(self, letter):
        self.count += 1
        return f"{letter}{self.count}"

    def argument(self, shape, dtype="f32", **given):
        given.setdefault("is_parameter", self.rng.random() < 0.4)
        value = Argument(self.name("a"), tuple(shape), dtype, **given)
        self.program.arguments.append(value)
        return value

    def op(self, head, operands, shape, dtype=None, attributes=(), exact=False, positive=False,
           **given):
        dtype = dtype or operands[0].dtype
        result = Value(self.name("v"), tuple(shape), dtype, exact, positive)
        self.program.ops.append(Op(result, head, list(operands), list(attributes), **given))
        return result

    def shape(self, rank=None, largest=LARGEST):
        rank = self.rng.choices([1, 2, 3, 4], [1, 3, 4, 2])[0] if rank is None else rank
        shape = [self.rng.choice(SIZES) for _ in range(rank)]
        while math.prod(shape) > largest:
            i = self.rng.randrange(rank)
            shape[i] = self.rng.choice([n for n in SIZES if n <= shape[i]])
        return shape

    def values(self, test=lambda v: True):
        return [v for v in [*self.program.arguments, *(o.result for o in self.program.ops)]
                if test(v)]

    def pick(self, test=lambda v: True, rank=0):
        """A value, late ones more often; a new one if there is none."""
        values = self.values(lambda v: v.dtype == "f32" and len(v.shape) >= rank and test(v))
        if not values or self.rng.random() < 0.1:
            values = [self.argument(self.shape(max(rank, self.rng.randint(1, 4))), exact=True,
                                    positive=True)]
        return values[-1 - int(len(values) * self.rng.random() ** 2)]

    def like(self, shape, exact=False):
        """Something that broadcasts against `shape`."""
        shape = [1 if self.rng.random() < 0.2 else n for n in shape]
        if self.rng.random() < 0.3:
            shape = shape[self.rng.randrange(len(shape) + 1):]
        there = self.values(lambda v: v.dtype == "f32" and v.shape == tuple(shape) and
                            v.exact >= exact)
        if there and self.rng.random() < 0.5:
            return self.rng.choice(there)
        return self.argument(shape, exact=True)

    @staticmethod
    def joined(a, b):
        rank = max(len(a), len(b))
        a, b = (1,) * (rank - len(a)) + tuple(a), (1,) * (rank - len(b)) + tuple(b)
        return tuple(max(pair) for pair in zip(a, b, strict=True))

    # Ops. Each takes its operands from what is there.

    def unary(self):
        x = self.pick()
        kind = self.rng.choice(["relu", "silu", "tanh", "sigmoid", "gelu", "neg", "abs", "sin",
                                "cos", "erf"])
        attributes = ["approximate_tanh"] if kind == "gelu" and self.rng.random() < 0.5 else []
        return self.op(f"nn.{kind} {{0}}", [x], x.shape, attributes=attributes, types="result",
                       exact=x.exact and kind in ("relu", "neg", "abs"))

    def positive(self):
        """Ops that give infinity or NaN for a zero operand, as in padding."""
        x = self.argument(self.pick().shape, positive=True)
        kind = self.rng.choice(["log", "rsqrt", "reciprocal", "sqrt"])
        y = self.op(f"nn.{kind} {{0}}", [x], x.shape, types="result")
        other = self.pick(lambda v: v.shape == x.shape)
        if other.shape == x.shape:
            kind = self.rng.choice(["mul", "add", "sub"])
            y = self.op(f"nn.{kind} {{0}}, {{1}}", [other, y], x.shape)
        return y

    def infinite(self):
        """Ops on infinity whose results are finite, except where a zero is in place of a true
        number, as in padding."""
        x, unary = self.pick(), lambda kind, y: self.op(f"nn.{kind} {{0}}", [y], y.shape,
                                                        types="result")
        part = lambda: self.argument([self.rng.choice([1, n]) for n in x.shape], positive=True)
        two = lambda kind, a, b: self.op(f"nn.{kind} {{0}}, {{1}}", [a, b],
                                         self.joined(a.shape, b.shape))
        kind = self.rng.choice(["mask", "logarithm", "quotient", "overflow", "softmax"])
        if kind in ("mask", "softmax"):
            seen = self.argument([self.rng.choice([1, n]) for n in x.shape], "i1")
            lowest = self.splat([], self.rng.choice(["0xFF800000", "-3.4028235e38"]))
            y = self.op("nn.select {0}, {1}, {2}", [seen, unary("tanh", x), lowest], x.shape, "f32")
            y = two("mul", y, part())
            if kind == "softmax":
                dim = self.rng.randrange(len(x.shape)) if x.shape else None
                return None if dim is None else self.op(f"nn.softmax {{0}} dim {dim}", [y], x.shape,
                                                        types="result")
            return unary(self.rng.choice(["exp", "sigmoid", "tanh", "relu"]), y)
        if kind == "logarithm":
            return unary("exp", two("mul", unary("log", unary("relu", x)), part()))
        if kind == "quotient":
            wide = self.argument(x.shape, positive=True)
            gate = unary("relu", self.argument([self.rng.choice([1, n]) for n in x.shape]))
            return unary("tanh", two("div", wide, gate))
        scale = self.splat([], self.rng.choice(["-300.0", "300.0"]))
        power = unary("exp", two("mul", part(), scale))
        power = two("mul", power, part())
        one = self.splat([], "1.0")
        return two("div", unary("tanh", x), two("add", power, one))

    def binary(self, x=None):
        x = x or self.pick()
        y = self.like(x.shape)
        kind = self.rng.choices(["add", "sub", "mul", "div", "maximum", "minimum"],
                                [5, 2, 4, 1, 1, 1])[0]
        if kind == "div":
            y = self.argument(y.shape, positive=True)
        elif self.rng.random() < 0.5:
            x, y = y, x
        return self.op(f"nn.{kind} {{0}}, {{1}}", [x, y], self.joined(x.shape, y.shape),
                       exact=x.exact and y.exact and kind in ("maximum", "minimum"))

    def linear(self, x=None, out=None, bias=None):
        x = x or self.pick(rank=1)
        out, features = out or self.rng.choice(SIZES), x.shape[-1]
        turned = self.rng.random() < 0.3
        weight = self.argument([features, out] if turned else [out, features], is_parameter=True,
                               scale=features ** -0.5)
        operands, head = [x, weight], "nn.linear {0}, {1}"
        if self.rng.random() < 0.4 if bias is None else bias:
            operands.append(self.argument([out], is_parameter=True))
            head += " bias {2}"
        return self.op(head, operands, [*x.shape[:-1], out], attributes=["in_out"] * turned)

    def matmul(self):
        x = self.pick(rank=2)
        turn_lhs, turn_rhs = self.rng.random() < 0.3, self.rng.random() < 0.3
        *batch, rows, inner = x.shape
        if turn_lhs:
            rows, inner = inner, rows
        columns = self.rng.choice(SIZES)
        other = [1 if self.rng.random() < 0.2 else n for n in batch]
        other = other[self.rng.choice([0, 0, len(other)]):]
        shape = [*other, columns, inner] if turn_rhs else [*other, inner, columns]
        if math.prod(batch) * rows * columns > LARGEST:
            return
        there = self.values(lambda v: v.dtype == "f32" and v.shape == tuple(shape))
        y = self.rng.choice(there) if there else self.argument(shape, scale=inner ** -0.5)
        attributes = ["transpose_lhs"] * turn_lhs + ["transpose_rhs"] * turn_rhs
        self.op("nn.matmul {0}, {1}", [x, y], [*batch, rows, columns], attributes=attributes)

    def indices(self, shape, below, dtype=None):
        return self.argument(shape, dtype or self.rng.choice(["i64", "i32"]), scale=below,
                             exact=True)

    def embedding(self):
        rows, features = self.rng.choice(SIZES), self.rng.choice(SIZES)
        there = self.values(lambda v: isinstance(v, Argument) and v.dtype.startswith("i") and
                            v.dtype != "i1" and v.scale <= rows)
        ids = (self.rng.choice(there) if there and self.rng.random() < 0.5 else
               self.indices(self.shape(self.rng.choice([1, 2]), 60), rows))
        table = self.argument([rows, features], is_parameter=True)
        return self.op("nn.embedding {0}, {1}", [ids, table], [*ids.shape, features], "f32")

    def norm(self, x=None):
        x = x or self.pick(rank=1)
        features = x.shape[-1]
        operands, is_rms = [x], self.rng.random() < 0.5
        head, attributes = f"nn.{'rms' if is_rms else 'layer'}_norm {{0}}", []
        if self.rng.random() < 0.7:
            operands.append(self.argument([features], is_parameter=True))
            head += " weight {1}"
            attributes = ["unit_offset"] * (is_rms and self.rng.random() < 0.3)
        if not is_rms and self.rng.random() < 0.5:
            head += f" bias {{{len(operands)}}}"
            operands.append(self.argument([features], is_parameter=True))
        return self.op(head + " eps 1.0e-1", operands, x.shape, attributes=attributes)

    def softmax(self):
        x = self.pick(rank=1)
        return self.op(f"nn.softmax {{0}} dim {self.rng.randrange(len(x.shape))}", [x], x.shape,
                       types="result")

    def cumsum(self):
        x = self.pick(rank=1)
        return self.op(f"nn.cumsum {{0}} dim {self.rng.randrange(len(x.shape))}", [x], x.shape,
                       types="result")

    def reduce(self):
        x = self.pick(rank=1)
        rank = len(x.shape)
        dims = sorted(self.rng.sample(range(rank), self.rng.randint(1, min(rank, 2))))
        kind = self.rng.choices(["sum", "mean", "max", "min"], [4, 2, 2, 1])[0]
        keep = self.rng.random() < 0.5
        shape = [1 if d in dims else n for d, n in enumerate(x.shape) if keep or d not in dims]
        return self.op(f"nn.reduce {kind} {{0}} dims {dims}", [x], shape,
                       attributes=["keep_dims"] * keep, exact=x.exact and kind in ("max", "min"))

    def reshape(self):
        x = self.pick()
        shape = list(x.shape)
        for _ in range(self.rng.randint(1, 2)):
            kind = self.rng.choice(["merge", "split", "split", "one", "any"])
            if kind == "merge" and len(shape) > 1:
                i = self.rng.randrange(len(shape) - 1)
                shape[i:i + 2] = [shape[i] * shape[i + 1]]
            elif kind == "split" and shape:
                i = self.rng.randrange(len(shape))
                n = self.rng.choice([n for n in range(1, shape[i] + 1) if shape[i] % n == 0])
                shape[i:i + 1] = [n, shape[i] // n]
            elif kind == "one" and 1 in shape:
                shape.remove(1)
            elif kind == "any" and len(shape) > 1 and self.rng.random() < 0.5:
                self.rng.shuffle(shape)
        if len(shape) > 5:
            return None
        return self.op("nn.reshape {0}", [x], shape, exact=x.exact)

    def transpose(self):
        x = self.pick(rank=2)
        order = self.rng.sample(range(len(x.shape)), len(x.shape))
        return self.op(f"nn.transpose {{0}} {order}", [x], [x.shape[i] for i in order],
                       exact=x.exact)

    def slice(self):
        x = self.pick(rank=1)
        starts, limits, strides = [0] * len(x.shape), list(x.shape), [1] * len(x.shape)
        for d in self.rng.sample(range(len(x.shape)), self.rng.randint(1, min(2, len(x.shape)))):
            starts[d] = self.rng.choice([0, self.rng.randrange(x.shape[d])])
            limits[d] = self.rng.randint(starts[d] + 1, x.shape[d])
            strides[d] = self.rng.choice([1, 1, 2, 3])
        shape = [-(-(e - s) // n) for s, e, n in zip(starts, limits, strides, strict=True)]
        return self.op(f"nn.slice {{0}} starts {starts} limits {limits} strides {strides}", [x],
                       shape, exact=x.exact)

    def concat(self):
        x = self.pick(rank=1)
        d = self.rng.randrange(len(x.shape))
        parts = [x]
        for _ in range(self.rng.randint(1, 2)):
            there = self.values(lambda v: v.dtype == "f32" and len(v.shape) == len(x.shape) and
                                v.shape[:d] == x.shape[:d] and v.shape[d + 1:] == x.shape[d + 1:])
            if self.rng.random() < 0.5:
                shape = list(x.shape)
                shape[d] = self.rng.choice(SIZES[:6])
                there = [self.argument(shape, exact=True)]
            parts.insert(self.rng.randint(0, 1), self.rng.choice(there))
        shape = list(x.shape)
        shape[d] = sum(p.shape[d] for p in parts)
        if math.prod(shape) > LARGEST:
            return None
        names = ", ".join(f"{{{i}}}" for i in range(len(parts)))
        return self.op(f"nn.concat {names} dim {d}", parts, shape,
                       exact=all(p.exact for p in parts))

    def broadcast(self):
        x = self.pick()
        shape = [self.rng.choice(SIZES) if n == 1 else n for n in x.shape]
        if self.rng.random() < 0.5:
            shape.insert(0, self.rng.choice(SIZES[:5]))
        if math.prod(shape) > LARGEST or len(shape) > 5:
            return None
        return self.op("nn.broadcast {0}", [x], shape, exact=x.exact)

    def gather(self):
        x = self.pick(rank=1)
        d = self.rng.randrange(len(x.shape))
        ids = self.indices(self.shape(self.rng.choice([1, 2]), 12), x.shape[d])
        shape = [*x.shape[:d], *ids.shape, *x.shape[d + 1:]]
        if math.prod(shape) > LARGEST or len(shape) > 5:
            return None
        return self.op(f"nn.gather {{0}}, {{1}} dim {d}", [x, ids], shape, exact=x.exact)

    def take_along(self):
        x = self.pick(rank=1)
        d = self.rng.randrange(len(x.shape))
        shape = list(x.shape)
        shape[d] = self.rng.choice(SIZES[:5])
        ids = self.indices(shape, x.shape[d])
        return self.op(f"nn.take_along {{0}}, {{1}} dim {d}", [x, ids], shape, exact=x.exact)

    def attend(self, q, k, v):
        batch, heads, queries, features = q.shape
        keys = k.shape[2]
        operands, head, attributes = [q, k, v], "nn.attention {0}, {1}, {2}", []
        if self.rng.random() < 0.25:
            operands.append(self.argument([batch, keys], "i1"))
            head += " key_padding {3}"
        if self.rng.random() < 0.25:
            shape = [self.rng.choice([1, n]) for n in (batch, heads, queries, keys)]
            head += f" bias {{{len(operands)}}}"
            operands.append(self.argument(shape))
        if self.rng.random() < 0.2:
            head += f" positions {{{len(operands)}}}, {{{len(operands) + 1}}}"
            operands += [self.indices(self.rng.choice([[n], [batch, n]]), keys, "i64")
                         for n in (queries, keys)]
        if self.rng.random() < 0.2:
            head += f" kv_lengths {{{len(operands)}}}"
            operands.append(self.indices([batch], keys + 1, "i64"))
        if self.rng.random() < 0.5:
            attributes.append("causal")
        elif self.rng.random() < 0.3:
            attributes.append(f"window_left = {self.rng.randint(1, 4)} : i64")
            if self.rng.random() < 0.5:
                attributes.append(f"window_right = {self.rng.randint(0, 3)} : i64")
        if self.rng.random() < 0.2:
            attributes.append("soft_cap = 5.0 : f64")
        return self.op(f"{head} scale {features ** -0.5:.6e}", operands,
                       [batch, heads, queries, v.shape[3]], attributes=attributes)

    def attention(self):
        batch, keys, group = self.rng.choice([1, 2, 3]), self.rng.choice(SIZES), \
            self.rng.choice([1, 1, 2, 3])
        kv_heads, features = self.rng.choice([1, 2, 3, 4]), self.rng.choice([2, 4, 6])
        queries = self.rng.choice([keys, keys, self.rng.choice(SIZES)])
        q = self.argument([batch, kv_heads * group, queries, features])
        k = self.argument([batch, kv_heads, keys, features])
        v = self.argument([batch, kv_heads, keys, self.rng.choice([features, 3])])
        return self.attend(q, k, v)

    def attention_block(self):
        x = self.pick(lambda v: len(v.shape) == 3, rank=3)
        if len(x.shape) != 3:
            return None
        batch, tokens, features = x.shape
        kv_heads, group, d = self.rng.choice([1, 2, 3, 4]), self.rng.choice([1, 2, 3]), \
            self.rng.choice([2, 4])
        normed = self.norm(x)

        def project(heads):
            y = self.linear(normed, heads * d)
            y = self.op("nn.reshape {0}", [y], [batch, tokens, heads, d])
            return self.op("nn.transpose {0} [0, 2, 1, 3]", [y], [batch, heads, tokens, d])

        y = self.attend(project(kv_heads * group), project(kv_heads), project(kv_heads))
        y = self.op("nn.transpose {0} [0, 2, 1, 3]", [y], [batch, tokens, kv_heads * group, d])
        y = self.op("nn.reshape {0}", [y], [batch, tokens, kv_heads * group * d])
        return self.op("nn.add {0}, {1}", [x, self.linear(y, features)], x.shape)

    def rotary(self):
        shape = self.shape(4)
        shape[-1] = self.rng.choice([2, 4, 6])
        x = self.pick(lambda v: len(v.shape) > 1 and v.shape[-1] in (2, 4, 6, 8), rank=2)
        if x.shape[-1] % 2:
            x = self.argument(shape)
        *outer, features = x.shape
        turned = self.rng.choice(range(2, features + 1, 2))
        table = [self.rng.choice([1, n]) for n in outer[self.rng.randrange(len(outer)):]]
        cos, sin = self.argument([*table, turned]), self.argument([*table, turned])
        return self.op("nn.rotary {0}, {1}, {2}", [x, cos, sin], x.shape,
                       attributes=["interleaved"] * (self.rng.random() < 0.5))

    def cast(self):
        x = self.pick()
        wide = self.op("nn.cast {0}", [x], x.shape, "f64", exact=x.exact)
        if self.rng.random() < 0.5:
            wide = self.op("nn.add {0}, {1}", [wide, wide], x.shape)
        return self.op("nn.cast {0}", [wide], x.shape, "f32")

    def select(self):
        x = self.pick()
        exact = [v for v in self.values(lambda v: v.dtype == "f32" and v.exact)
                 if self.joined(v.shape, x.shape) == x.shape and
                 all(n in (1, m) for n, m in zip(v.shape[::-1], x.shape[::-1], strict=False))]
        lhs = self.rng.choice(exact) if exact else self.argument(x.shape, exact=True)
        rhs = self.like(lhs.shape, exact=True)
        if self.rng.random() < 0.3:
            rhs = self.splat([], "0.5")
        kind = self.rng.choice(["lt", "le", "gt", "ge", "ne", "eq"])
        test = self.op(f"nn.compare {kind} {{0}}, {{1}}", [lhs, rhs],
                       self.joined(lhs.shape, rhs.shape), "i1", exact=True)
        if self.rng.random() < 0.2:
            test = self.op("nn.not {0}", [test], test.shape, types="result", exact=True)
        other = self.like(x.shape)
        return self.op("nn.select {0}, {1}, {2}", [test, x, other],
                       self.joined(test.shape, self.joined(x.shape, other.shape)), "f32")

    def splat(self, shape, number):
        return self.op("nn.constant", [], shape, "f32", value=f"dense<{number}>", exact=True)

    def generated(self):
        """Constants and positions, on their own or added to something."""
        x = self.pick(rank=1)
        kind = self.rng.choice(["splat", "constant", "iota"])
        shape = x.shape[self.rng.randrange(len(x.shape)):]
        if kind == "splat":
            y = self.splat(shape, self.rng.choice(["0.0", "1.0", "-0.5"]))
        elif kind == "constant":
            shape = [n if n <= 4 else 1 for n in shape]

            def spell(dims):
                if not dims:
                    return f"{self.rng.random():.6e}"
                return "[" + ", ".join(spell(dims[1:]) for _ in range(dims[0])) + "]"

            y = self.op("nn.constant", [], shape, "f32", value=f"dense<{spell(shape)}>",
                        exact=True)
        else:
            y = self.op(f"nn.iota dim {self.rng.randrange(len(shape))}", [], shape, "i64",
                        types="result")
            y = self.op("nn.cast {0}", [y], shape, "f32")
            scale = self.splat([], "0.0625")
            y = self.op("nn.mul {0}, {1}", [y, scale], shape, exact=True)
        kind = self.rng.choice(["add", "mul"])
        return self.op(f"nn.{kind} {{0}}, {{1}}", [x, y], x.shape)

    def mlp(self):
        x = self.pick(rank=2)
        y = self.norm(x) if self.rng.random() < 0.7 else x
        hidden = self.rng.choice(SIZES)
        up = self.linear(y, hidden)
        kind = self.rng.choice(["relu", "gelu", "silu"])
        h = self.op(f"nn.{kind} {{0}}", [up], up.shape, types="result")
        if self.rng.random() < 0.4:
            h = self.op("nn.mul {0}, {1}", [h, self.linear(y, hidden)], h.shape)
        return self.op("nn.add {0}, {1}", [x, self.linear(h, x.shape[-1])], x.shape)

    def branches(self):
        """Parallel branches into one sum."""
        x = self.pick(rank=2)
        out = self.rng.choice(SIZES)
        parts = []
        for _ in range(self.rng.randint(2, 3)):
            y = self.op("nn.tanh {0}", [x], x.shape, types="result")
            if self.rng.random() < 0.5:
                y = self.linear(y, self.rng.choice(SIZES))
            parts.append(self.linear(y, out))
        y = parts[0]
        for part in parts[1:]:
            y = self.op("nn.add {0}, {1}", [y, part], y.shape)
            if self.rng.random() < 0.3:
                y = self.op("nn.mul {0}, {1}", [y, self.splat([], "0.5")], y.shape)
        return y

    def constrain(self):
        x = self.pick(rank=1)
        y = self.op("dist.constrain {0} SHARDING", [x], x.shape, types="result", exact=x.exact)
        self.program.shardings[y.name] = self.sharding(y.shape)
        return y

    # Shardings.

    def atoms(self):
        """Axes and parts of axes that a value may use together, as (text, size)."""
        atoms = []
        for axis, size in self.program.mesh.items():
            splits = [n for n in range(2, size) if size % n == 0]
            if splits and self.rng.random() < 0.4:
                n = self.rng.choice(splits)
                parts = [(f'"{axis}":(1){n}', n), (f'"{axis}":({n}){size // n}', size // n)]
                # Both, in this order and on one dimension, would be the axis itself.
                atoms += parts if self.rng.random() < 0.7 else [self.rng.choice(parts)]
            else:
                atoms.append((f'"{axis}"', size))
        self.rng.shuffle(atoms)
        return atoms

    def sharding(self, shape, open_dims=False):
        dims = [[] for _ in shape]
        large = [d for d, n in enumerate(shape) if n > 1]
        for text, _ in self.atoms():
            if large and self.rng.random() < 0.75:
                d = self.rng.choice(large)
                first = text.split(":")[0]
                # Neighbouring parts of an axis would have to be spelt as one.
                if not any(t.split(":")[0] == first for t in dims[d]):
                    dims[d].append(text)
        spelt = []
        for axes in dims:
            if open_dims and self.rng.random() < 0.4:
                axes = [*axes, "?"]
            spelt.append("{" + ", ".join(axes) + "}")
        return "[" + ", ".join(spelt) + "]"

    def finish(self):
        program, rng = self.program, self.rng
        used = {id(o) for op in program.ops for o in op.operands}
        unused = [op.result for op in program.ops if id(op.result) not in used]
        program.results = unused[-5:]
        if rng.random() < 0.2:
            program.results.append(rng.choice(program.arguments))
        if rng.random() < 0.2:
            program.results.append(rng.choice(self.values()))
        live = {id(o) for op in program.ops for o in op.operands} | {id(r) for r in program.results}
        program.arguments = [a for a in program.arguments if id(a) in live]
        if rng.random() < 0.2:
            self.choose_options()
            return
        density = rng.choice([0.2, 0.5, 0.8])
        for value in self.values():
            share = density if isinstance(value, Argument) else density / 3
            if value.name not in program.shardings and rng.random() < share:
                program.shardings[value.name] = self.sharding(value.shape, open_dims=True)
        for i, result in enumerate(program.results):
            if rng.random() < density / 2:
                program.result_shardings[i] = self.sharding(result.shape)

    def choose_states(self, rng):
        """A third of the programs have states. Numbers of their own leave the other programs as
        they are."""
        if rng.random() > 0.35:
            return
        made = [op.result for op in self.program.ops]
        for a in self.program.arguments:
            fitting = [v for v in [*made, *self.program.arguments]
                       if v is not a and (v.shape, v.dtype) == (a.shape, a.dtype)]
            if a.dtype == "f32" and not a.exact and not a.positive and rng.random() < 0.7:
                self.program.states.append((a, rng.choice(fitting or [a])))

    def choose_unreduced(self, rng):
        """A third of the programs have inputs, states, constraints and results that are unreduced
        over an axis that their sharding leaves free."""
        program = self.program
        if program.seed % 3 != 2 or program.options:
            return

        def unreduced(value, dims):
            free = [axis for axis in program.mesh if f'"{axis}"' not in dims]
            if value.dtype == "i1" or not free or rng.random() < 0.4:
                return dims
            return f'{dims}, unreduced = {rng.choice(["", "max "])}{{"{rng.choice(free)}"}}'

        constraints = [op.result for op in program.ops if "SHARDING" in op.head]
        for value in [*program.arguments, *constraints]:
            dims = program.shardings.get(value.name) or spell_whole(value)
            program.shardings[value.name] = unreduced(value, dims)
        for i, result in enumerate(program.results):
            dims = program.result_shardings.get(i) or spell_whole(result)
            program.result_shardings[i] = unreduced(result, dims)

    def choose_options(self):
        """The whole pipeline chooses the shardings."""
        program, rng = self.program, self.rng
        program.shardings = {name: dims for name, dims in program.shardings.items()}
        sizes = list(program.mesh.values())
        program.mesh = ({"tp": sizes[0]} if len(sizes) == 1 else
                        {"dp": sizes[0], "tp": math.prod(sizes[1:])})
        program.options = {"sequence_parallel": rng.choice(["on", "off", "auto"])}
        # A constraint names axes of the mesh that was.
        program.shardings.clear()
        for op in program.ops:
            if "SHARDING" in op.head:
                op.head, op.types = "nn.reshape {0}", "function"


def spell_whole(value):
    """The bracketed part of the sharding of a value whose dimensions are open."""
    return "[" + ", ".join(["{?}"] * len(value.shape)) + "]"


def generate(seed, length=12):
    return Generator(seed, length).program
