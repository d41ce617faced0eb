#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How exact are products and the backward pass of attention in f32, beside PyTorch?

Errors are root mean squares against f64, relative to the root mean square of the values: medians
over random inputs on one rank.

- products: rows of `steps` numbers times 200 columns.
- attention: gradients of queries, keys and values, for scores of several scales.
- one projection: gradients of attention's weights where queries are keys, the largest error
  relative to the largest entry. Scores of a token with itself are about 8 times the scale.

    PYTHONPATH=build/python python bench/accuracy.py [--repeats 9] [--json FILE]
"""

import argparse
import copy
import json
import statistics

import meshwright as mw
import torch
import torch.nn.functional as F
from torch import nn


def error(got, want):
    return float(((got.double() - want).square().mean() / want.square().mean()).sqrt())


def products(repeats):
    for steps in (72, 512, 4096):
        for rows in (1, 3, 33):
            net = nn.Linear(steps, 200, bias=False).requires_grad_(False)
            net.weight.normal_()
            plan = mw.from_torch(net, (torch.zeros(rows, steps),)).parallelize(mesh={"tp": 1})
            pairs = []
            with plan.start() as session:
                for _ in range(repeats):
                    x = torch.randn(rows, steps)
                    want = x.double() @ net.weight.double().T
                    pairs.append((error(session.run(x)[0], want), error(net(x), want)))
            yield f"product, {rows} x {steps}", pairs


class Attention(nn.Module):
    def __init__(self, tokens, size, scale):
        super().__init__()
        self.q, self.k, self.v = (nn.Parameter(torch.randn(1, 2, tokens, size)) for _ in range(3))
        self.scale = scale

    def forward(self, by):
        result = F.scaled_dot_product_attention(self.q * 1.0, self.k * 1.0, self.v * 1.0, scale=self.scale)
        return (result * by).sum()


class OneProjection(nn.Module):
    def __init__(self, size, scale):
        super().__init__()
        self.qk, self.v = (nn.Linear(size, size, bias=False) for _ in range(2))
        self.qk.weight.data.normal_(std=(scale / size) ** 0.5)

    def forward(self, x, by):
        k, v = self.qk(x)[:, None], self.v(x)[:, None]
        scores = k @ k.mT / k.shape[-1] ** 0.5
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:]).tril().bool(), -torch.inf)
        return ((scores.softmax(-1) @ v)[:, 0] * by).sum()


def gradients(net, inputs, dtype):
    net = copy.deepcopy(net).to(dtype)
    net(*(x.to(dtype) for x in inputs)).backward()
    return {name: p.grad for name, p in net.named_parameters()}


def attention(repeats):
    for tokens, size, scale in ((64, 64, 0.125), (256, 64, 0.125), (256, 64, 1.0)):
        found = {name: [] for name in "qkv"}
        for _ in range(repeats):
            net, by = Attention(tokens, size, scale), torch.randn(1, 2, tokens, size)
            model = mw.from_torch(net, (by,), training=True).differentiate()
            got = dict(zip(model.outputs, model.parallelize(mesh={"tp": 1}).run(by), strict=True))
            want, own = gradients(net, (by,), torch.float64), gradients(net, (by,), torch.float32)
            for name, pairs in found.items():
                pairs.append((error(got[f"grad.{name}"], want[name]), error(own[name], want[name])))
        for name, pairs in found.items():
            yield f"attention, gradient of {name}, {tokens} x {size}, scale {scale}", pairs


def one_projection(repeats):
    for tokens, size, scale in ((33, 64, 1), (33, 64, 10), (33, 64, 100), (256, 64, 10)):
        pairs = []
        for _ in range(repeats):
            net = OneProjection(size, scale)
            inputs = torch.randn(2, tokens, size), torch.randn(2, tokens, size)
            model = mw.from_torch(net, inputs, training=True).differentiate()
            results = model.parallelize(mesh={"tp": 1}).run(*inputs)
            got = {n.removeprefix("grad."): g for n, g in zip(model.outputs, results, strict=True)}
            want, own = (gradients(net, inputs, t) for t in (torch.float64, torch.float32))
            largest = max(w.abs().max() for w in want.values())
            pairs.append(tuple(
                max(float((side[n].double() - w).abs().max() / largest) for n, w in want.items())
                for side in (got, own)))
        yield f"one projection, {tokens} x {size}, scale {scale}", pairs


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json")
    options = parser.parse_args()
    torch.manual_seed(0)
    rows = []
    print(f"{'':<52} {'ours':>8} {'PyTorch':>8} {'ratio':>6}")
    for cases in (products, attention, one_projection):
        for name, pairs in cases(options.repeats):
            ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
            ratio = statistics.median(a / b for a, b in pairs)
            rows.append({"case": name, "ours": ours, "pytorch": theirs, "ratio": ratio})
            print(f"{name:<52} {ours:>8.1e} {theirs:>8.1e} {ratio:>6.2f}", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
