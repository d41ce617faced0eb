# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Random programs on one rank against PyTorch: how ops are grouped into kernels, and where
their values are stored, must not show. MESHWRIGHT_RANDOM_PROGRAMS sets how many (default 12)."""
import os
import random

import pytest
import torch
import torch.nn.functional as F
from harness import assert_close, run_module, type_of


class RandomProgram:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.inputs, self.lines, self.values = {}, [], []

    def shape(self):
        return [self.random.choice([1, 2, 3, 5, 8]) for _ in range(self.random.choice([1, 2, 3, 3, 4]))]

    def input(self, shape):
        name = f"in{len(self.inputs)}"
        self.inputs[name] = torch.randn(shape, generator=self.generator)
        self.values.append(("%" + name, self.inputs[name]))
        return self.values[-1]

    def pick(self, accept=lambda x: True):
        fitting = [v for v in self.values if accept(v[1])]
        # Recent values make chains, old ones long lives.
        return self.random.choice(fitting[-4:] if self.random.random() < 0.6 else fitting) if fitting else None

    def add(self, line, result):
        name = f"%v{len(self.lines)}"
        self.lines.append(f"{name} = {line}")
        self.values.append((name, result))

    def floats(self):
        return self.pick(lambda x: x.dtype == torch.float32) or self.input(self.shape())

    def step(self):
        kind = self.random.choice(["unary"] * 3 + ["binary"] * 5 + ["compare", "select", "transpose", "slice", "reshape",
                                  "broadcast", "reduce", "softmax", "norm", "concat", "linear", "constant", "iota", "cast"])
        n, x = self.floats()
        t = type_of(x)
        if kind == "unary":
            name, function = self.random.choice([("neg", torch.neg), ("tanh", torch.tanh), ("sigmoid", torch.sigmoid),
                                                 ("relu", torch.relu), ("gelu", F.gelu), ("abs", torch.abs), ("sin", torch.sin)])
            self.add(f"nn.{name} {n} : {t}", function(x))
        elif kind == "binary":
            m, y = self.partner(x)
            name, function = self.random.choice([("add", torch.add), ("sub", torch.sub), ("mul", torch.mul),
                                                 ("maximum", torch.maximum), ("minimum", torch.minimum)])
            z = function(x, y)
            if z.abs().max() < 1e3:
                self.add(f"nn.{name} {n}, {m} : ({t}, {type_of(y)}) -> {type_of(z)}", z)
        elif kind == "compare":
            m, y = self.partner(x)
            z = x < y
            # Nearly equal values compare by luck.
            if not torch.isclose(*torch.broadcast_tensors(x, y), rtol=1e-3, atol=1e-3).any() or m == n:
                self.add(f"nn.compare lt {n}, {m} : ({t}, {type_of(y)}) -> {type_of(z)}", z)
        elif kind == "select":
            found = self.pick(lambda c: c.dtype == torch.bool)
            if found:
                c, condition = found
                try:
                    z = torch.where(condition, x, x + 0)
                except RuntimeError:
                    return
                m, y = self.partner(z)
                z = torch.where(condition, x, y)
                self.add(f"nn.select {c}, {n}, {m} : ({type_of(condition)}, {t}, {type_of(y)}) -> {type_of(z)}", z)
        elif kind == "transpose":
            n, x = self.pick()
            order = list(range(x.dim()))
            self.random.shuffle(order)
            z = x.permute(order).contiguous()
            self.add(f"nn.transpose {n} {order} : ({type_of(x)}) -> {type_of(z)}", z)
        elif kind == "slice":
            starts, limits, strides = [], [], []
            for size in x.shape:
                start = self.random.randrange(size)
                starts.append(start)
                limits.append(self.random.randint(start + 1, size))
                strides.append(self.random.choice([1, 1, 2]))
            z = x[tuple(slice(*s) for s in zip(starts, limits, strides))].contiguous()
            self.add(f"nn.slice {n} starts {starts} limits {limits} strides {strides} : ({t}) -> {type_of(z)}", z)
        elif kind == "reshape":
            shape = [x.numel()] if x.dim() > 1 else [1, *x.shape]
            self.add(f"nn.reshape {n} : ({t}) -> {type_of(x.reshape(shape))}", x.reshape(shape))
        elif kind == "broadcast":
            shape = [self.random.choice([2, 3]) if size == 1 else size for size in x.shape]
            z = x.expand([2, *shape] if x.dim() < 4 else shape).contiguous()
            if z.numel() < 5000:
                self.add(f"nn.broadcast {n} : ({t}) -> {type_of(z)}", z)
        elif kind == "reduce":
            dims = sorted(self.random.sample(range(x.dim()), self.random.randint(1, x.dim())))
            name, function = self.random.choice([("sum", torch.sum), ("mean", torch.mean), ("max", torch.amax)])
            z = function(x, dims, keepdim=True)
            self.add(f"nn.reduce {name} {n} dims {dims} {{keep_dims}} : ({t}) -> {type_of(z)}", z)
        elif kind == "softmax":
            dim = self.random.randrange(x.dim())
            self.add(f"nn.softmax {n} dim {dim} : {t}", x.softmax(dim))
        elif kind == "norm":
            z = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 0.1)
            self.add(f"nn.rms_norm {n} eps 0.1 : ({t}) -> {t}", z)
        elif kind == "concat":
            dim = self.random.randrange(x.dim())
            z = torch.cat([x, x], dim)
            if z.numel() < 5000:
                self.add(f"nn.concat {n}, {n} dim {dim} : ({t}, {t}) -> {type_of(z)}", z)
        elif kind == "linear":
            m, w = self.input([self.random.choice([1, 4, 6]), x.shape[-1]])
            z = F.linear(x, w)
            self.add(f"nn.linear {n}, {m} : ({t}, {type_of(w)}) -> {type_of(z)}", z)
        elif kind == "constant":
            self.add(f"nn.constant dense<0.75> : {t}", torch.full_like(x, 0.75))
        elif kind == "iota":
            dim = self.random.randrange(x.dim())
            view = [-1 if d == dim else 1 for d in range(x.dim())]
            self.add(f"nn.iota dim {dim} : {t}", torch.arange(x.shape[dim]).float().view(view).expand(x.shape).contiguous())
        elif kind == "cast":
            found = self.pick(lambda c: c.dtype == torch.bool)
            if found:
                z = found[1].float()
                self.add(f"nn.cast {found[0]} : ({type_of(found[1])}) -> {type_of(z)}", z)

    def partner(self, x):
        def fits(y):
            if y.dtype != torch.float32:
                return False
            try:
                return torch.broadcast_shapes(x.shape, y.shape) is not None and x.numel() * y.numel() < 10**6
            except RuntimeError:
                return False
        return self.pick(fits) or self.input(list(x.shape))

    def constrain(self, axes):
        """States a random sharding of a value."""
        n, x = self.pick()
        free = list(axes)
        self.random.shuffle(free)
        dims = []
        for size in x.shape:
            taken = []
            while free and size > 1 and self.random.random() < 0.4:
                taken.append(free.pop())
            dims.append("{" + ", ".join(f'"{a}"' for a in taken) + "}")
        self.add(f"dist.constrain {n} <@m, [{', '.join(dims)}]> : {type_of(x)}", x)

    def module(self, mesh=""):
        outputs = self.random.sample(self.values, min(3, len(self.values))) + [self.values[-1]]
        arguments = ", ".join(f'%{k}: {type_of(v)} {{nn.input = "{k}"}}' for k, v in self.inputs.items())
        results = ", ".join(f'{type_of(v)} {{nn.output = "o{i}"}}' for i, (_, v) in enumerate(outputs))
        returned = ", ".join(name for name, _ in outputs) + " : " + ", ".join(type_of(v) for _, v in outputs)
        body = "\n  ".join(self.lines)
        text = f"{mesh}func.func @main({arguments}) -> ({results}) {{\n  {body}\n  return {returned}\n}}\n"
        return text, {f"o{i}": v for i, (_, v) in enumerate(outputs)}


@pytest.mark.parametrize("seed", range(int(os.environ.get("MESHWRIGHT_RANDOM_PROGRAMS", "12"))))
def test_random_program(tmp_path, seed):
    program = RandomProgram(seed)
    for _ in range(60):
        program.step()
    text, wanted = program.module()
    got = run_module(tmp_path, text, program.inputs)
    for name, want in wanted.items():
        assert_close(got[name], want, 2e-5, f"{name}\n{text}")


MESHES = [(("x", 2),), (("x", 3),), (("x", 2), ("y", 2)), (("x", 4), ("y", 2))]


@pytest.mark.parametrize("seed", range(int(os.environ.get("MESHWRIGHT_RANDOM_PROGRAMS", "12"))))
def test_random_shardings(tmp_path, seed):
    """The same with random shardings stated for values, on several ranks."""
    program = RandomProgram(1126 + seed)
    mesh = program.random.choice(MESHES)
    for _ in range(25):
        program.step()
        if program.random.random() < 0.3:
            program.constrain([name for name, _ in mesh])
    axes = ", ".join(f'"{name}"={size}' for name, size in mesh)
    text, wanted = program.module(f"dist.mesh @m = <[{axes}]>\n")
    got = run_module(tmp_path, text, program.inputs, arguments=["--parallelize="])
    for name, want in wanted.items():
        assert_close(got[name], want, 2e-5, f"{name}\n{text}")
