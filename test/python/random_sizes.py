# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Random programs with run-time sizes.

Everything follows from the seed. A program has dimensions of two names, "batch" and "tokens". Its
text is written for a bucket, where the numbers are arguments, or for the true sizes, where they are
constants and no element is padding. Both compute the same true elements.
"""
import dataclasses
import random

import numpy as np

BATCH, TOKENS = "batch", "tokens"
WIDTHS = [4, 6, 8, 12]
MESHES = [
    ({"tp": 1}, {}), ({"tp": 2}, {}), ({"tp": 3}, {}), ({"tp": 4}, {"sequence_parallel": "on"}),
    ({"dp": 2, "tp": 2}, {}), ({"dp": 3}, {}), ({"dp": 2, "tp": 3}, {"sequence_parallel": "on"}),
    ({"ring": 2}, {"context_parallel": {"ring": "ring"}}),
    ({"ring": 3}, {"context_parallel": {"ring": "ring"}}),
    ({"ring": 2}, {"context_parallel": {"ring": "ring", "order": "zigzag"}}),
    ({"ulysses": 2}, {"context_parallel": {"ulysses": "ulysses"}}),
]


@dataclasses.dataclass(eq=False)
class Value:
    name: str
    #: Names of run-time sizes, and numbers.
    dims: tuple
    dtype: str = "f32"

    def type(self, sizes):
        return "tensor<" + "".join(f"{sizes.get(d, d)}x" for d in self.dims) + self.dtype + ">"


@dataclasses.dataclass(eq=False)
class Op:
    result: Value
    #: The op with its operands as {0}, {1}, ... and other values as {name}.
    head: str
    operands: list
    #: Which types follow: "function", or "result".
    types: str = "function"
    attributes: str = ""

    def text(self, sizes):
        head = self.head.format(*("%" + o.name for o in self.operands), **sizes)
        own = self.result.type(sizes)
        types = ", ".join(o.type(sizes) for o in self.operands)
        types = own if self.types == "result" else f"({types}) -> {own}"
        return f"  %{self.result.name} = {head}{self.attributes} : {types}"


class Program:
    """A program of `length` ops on tokens [batch, tokens, width] and ids [batch, tokens]."""

    def __init__(self, seed, length=8):
        self.seed, self.random = seed, random.Random(seed)
        self.bucket = {BATCH: self.random.choice([2, 3, 4]), TOKENS: self.random.choice([6, 8, 13, 24])}
        self.mesh, self.options = self.random.choice(MESHES)
        width = self.random.choice(WIDTHS)
        self.inputs = [Value("x", (BATCH, TOKENS, width)), Value("ids", (BATCH, TOKENS), "i64")]
        self.parameters, self.ops, self.results = [], [], []
        self.values = [self.inputs[0]]
        for _ in range(length):
            self._add()
        rows = [op.result for op in self.ops if op.result.name.startswith("r")]
        self.results = rows[-4:]
        #: A loss that depends on all results, and the parameters whose gradients are results.
        self.loss = self._loss() if self.parameters and self.random.random() < 0.5 else None

    # ---- the parts of a program

    def _value(self, dims, dtype="f32", kind="v"):
        return Value(f"{kind}{len(self.ops)}", dims, dtype)

    def _op(self, dims, head, *operands, kind="v", dtype="f32", types="function", attributes=""):
        result = self._value(dims, dtype, kind)
        self.ops.append(Op(result, head, list(operands), types, attributes))
        return result

    def _parameter(self, *shape):
        value = Value(f"w{len(self.parameters)}", shape)
        self.parameters.append(value)
        return value

    def _linear(self, x, width):
        return self._op((*x.dims[:-1], width), "nn.linear {0}, {1}", x, self._parameter(width, x.dims[-1]))

    def _add(self):
        x = self.random.choice(self.values[-3:])
        kinds = [self._mlp, self._attention, self._sum, self._mean, self._largest, self._softmax, self._spread,
                 self._gram, self._norm, self._running, self._embedding, self._losses, self._first, self._last,
                 self._turned, self._positions]
        made = self.random.choice(kinds)(x)
        if made is not None:
            self.values.append(made)

    def _unary(self, x):
        return self._op(x.dims, "nn." + self.random.choice(["exp", "silu", "gelu", "tanh", "sigmoid"]) + " {0}", x,
                        types="result")

    def _tame(self, x):
        """Numbers of size one, whatever they were."""
        return self._op(x.dims, "nn.tanh {0}", x, types="result", kind="r")

    def _mlp(self, x):
        h = self._unary(self._linear(x, self.random.choice(WIDTHS)))
        return self._tame(self._op(x.dims, "nn.add {0}, {1}", x, self._linear(h, x.dims[-1])))

    def _attention(self, x):
        heads, size = self.random.choice([1, 2, 4]), self.random.choice([4, 8])
        b, t, _ = x.dims

        def split(y):
            y = self._op((b, t, heads, size), "nn.reshape {0}", y)
            return self._op((b, heads, t, size), "nn.transpose {0} [0, 2, 1, 3]", y)

        q, k, v = (split(self._linear(x, heads * size)) for _ in range(3))
        mask = self.random.choice(["", " {{causal}}", " {{causal, window_left = 3 : i64}}"])
        y = self._op((b, heads, t, size), f"nn.attention {{0}}, {{1}}, {{2}} scale 0.5{mask}", q, k, v)
        y = self._op((b, t, heads, size), "nn.transpose {0} [0, 2, 1, 3]", y)
        return self._tame(self._linear(self._op((b, t, heads * size), "nn.reshape {0}", y), x.dims[-1]))

    def _reduce(self, x, how, dims, **more):
        kept = tuple(d for i, d in enumerate(x.dims) if i not in dims)
        return self._op(kept, f"nn.reduce {how} {{0}} dims {list(dims)}", x, **more)

    def _dims(self):
        return self.random.choice([(0,), (1,), (0, 1), (0, 1, 2), (1, 2)])

    def _sum(self, x):
        self._reduce(self._tame(x), "sum", self._dims(), kind="r")

    def _mean(self, x):
        self._reduce(self._unary(x), "mean", self._dims(), kind="r")

    def _largest(self, x):
        self._reduce(self._linear(x, x.dims[-1]), self.random.choice(["max", "min"]), self._dims(), kind="r")

    def _softmax(self, x):
        return self._op(x.dims, f"nn.softmax {{0}} dim {self.random.randrange(3)}", x, types="result", kind="r")

    def _spread(self, x):
        """Rows less their mean, which broadcasts."""
        dim = self.random.choice([0, 1])
        mean = self._op(tuple(1 if i == dim else d for i, d in enumerate(x.dims)),
                        f"nn.reduce mean {{0}} dims [{dim}]", x, attributes=" {keep_dims}")
        return self._op(x.dims, "nn.sub {0}, {1}", x, mean, kind="r")

    def _gram(self, x):
        """A product that sums over the tokens."""
        y = self._op((x.dims[0], x.dims[2], x.dims[2]), "nn.matmul {0}, {1}", x, self._unary(x),
                     attributes=" {transpose_lhs}")
        self._op(y.dims, "nn.tanh {0}", y, types="result", kind="r")

    def _norm(self, x):
        return self._op(x.dims, "nn.rms_norm {0} weight {1} eps 1.0e-5", x, self._parameter(x.dims[-1]), kind="r")

    def _running(self, x):
        return self._tame(self._op(x.dims, "nn.cumsum {0} dim 1", x, types="result"))

    def _embedding(self, x):
        table = self._parameter(11, x.dims[-1])
        rows = self._op(x.dims, "nn.embedding {0}, {1}", self.inputs[1], table)
        return self._tame(self._op(x.dims, "nn.add {0}, {1}", x, rows))

    def _losses(self, x):
        logits = self._linear(x, 11)
        losses = self._op(x.dims[:2], "nn.cross_entropy {0}, {1} dim 2", logits, self.inputs[1])
        self._reduce(losses, self.random.choice(["sum", "mean"]), (0, 1), kind="r")

    def _first(self, x):
        y = self._op((x.dims[0], 1, x.dims[2]), f"nn.slice {{0}} starts [0, 0, 0] limits [{{batch}}, 1, {x.dims[2]}] "
                     "strides [1, 1, 1]", x)
        self._op((x.dims[0], x.dims[2]), "nn.reshape {0}", y, kind="r")

    def _last(self, x):
        one = self._op((), "nn.constant dense<1> : tensor<i64> //", dtype="i64", types="result")
        at = self._op((), "nn.sub {0}, {1}", Value("tokens", (), "i64"), one, dtype="i64")
        at = self._op((1,), "nn.reshape {0}", at, dtype="i64")
        y = self._op((x.dims[0], 1, x.dims[2]), "nn.gather {0}, {1} dim 1", x, at)
        self._op((x.dims[0], x.dims[2]), "nn.reshape {0}", y, kind="r")

    def _turned(self, x):
        """The other order of the dimensions, and back."""
        y = self._op((x.dims[1], x.dims[0], x.dims[2]), "nn.transpose {0} [1, 0, 2]", x)
        y = self._linear(y, x.dims[2])
        return self._op(x.dims, "nn.transpose {0} [1, 0, 2]", y, kind="r")

    def _positions(self, x):
        """A sum over numbers of tokens, which the program makes itself."""
        i = self._op((TOKENS, 1), "nn.iota dim 0", types="result")
        i = self._op((TOKENS, 1), 'nn.cut {0} sizes ["tokens", ""]', i, types="result")
        share = self._op((TOKENS, 1), "nn.softmax {0} dim 0", i, types="result")
        self._reduce(share, "mean", (0,), kind="r")
        return self._op(x.dims, "nn.mul {0}, {1}", x, share, kind="r")

    def _loss(self):
        total = None
        for result in self.results:
            squares = self._op(result.dims, "nn.mul {0}, {1}", result, result)
            dims = list(range(len(result.dims)))
            number = self._op((), f"nn.reduce mean {{0}} dims {dims}", squares) if dims else squares
            total = number if total is None else self._op((), "nn.add {0}, {1}", total, number)
        return total

    # ---- texts and numbers

    def text(self, sizes, is_bucket):
        """The program for tensors of `sizes`; of a bucket, the true sizes are arguments."""
        def role(value):
            names = ", ".join(f'"{d if isinstance(d, str) else ""}"' for d in value.dims)
            return f'nn.input = "{value.name}"' + (f", nn.sizes = [{names}]" if is_bucket else "")

        arguments = [f"%{v.name}: {v.type(sizes)} {{{role(v)}}}" for v in self.inputs]
        arguments += [f'%{v.name}: {v.type(sizes)} {{nn.parameter = "{v.name}"}}' for v in self.parameters]
        results = [(f"%{v.name}", v.type(sizes)) for v in self.results]
        body = []
        for name in (BATCH, TOKENS):
            if is_bucket:
                arguments.append(f'%{name}: tensor<i64> {{nn.input = "size.{name}", nn.size = "{name}"}}')
            else:
                body.append(f"  %{name} = nn.constant dense<{sizes[name]}> : tensor<i64>")
        for op in self.ops:
            line = op.text(sizes)
            body.append(line.split(" //")[0] if " //" in line else line)
        if self.loss:
            results.append((f"%{self.loss.name}", "tensor<f32>"))
            for v in self.parameters:
                own = v.type(sizes)
                body.append(f'  %d{v.name} = nn.gradient %{self.loss.name} of "{v.name}" : (tensor<f32>) -> {own}')
                results.append((f"%d{v.name}", own))
        types = ", ".join(f'{t} {{nn.output = "o{i}"}}' for i, (_, t) in enumerate(results))
        names, own = ", ".join(n for n, _ in results), ", ".join(t for _, t in results)
        if not is_bucket:
            body = [line if "nn.cut" not in line else line.replace(' sizes ["tokens", ""]', ' sizes ["", ""]')
                    for line in body]
        return "\n".join([f"func.func @main({', '.join(arguments)}) -> ({types}) {{", *body,
                          f"  return {names} : {own}", "}"])

    def calls(self, count=3):
        """Pairs of true sizes, the first the bucket's."""
        yield dict(self.bucket)
        for _ in range(count - 1):
            yield {name: self.random.randint(1, size) for name, size in self.bucket.items()}

    def data(self, sizes):
        r = np.random.default_rng(self.seed + 1000 * sizes[BATCH] + sizes[TOKENS])
        shape = (sizes[BATCH], sizes[TOKENS])
        return [r.standard_normal((*shape, self.inputs[0].dims[2])).astype(np.float32),
                r.integers(0, 11, shape)]

    def weights(self):
        r = np.random.default_rng(self.seed)
        return {v.name: (0.5 * r.standard_normal(v.dims)).astype(np.float32) for v in self.parameters}
