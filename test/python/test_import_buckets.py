# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Sizes that change from call to call: the program of a bucket, read at the sizes of calls."""

import re

import nn_reference
import pytest
import torch
import torch.nn.functional as F
from import_checks import tensors
from meshwright.importer.torch import ImportFailed, import_module
from meshwright.importer.torch.dynamic import Dynamic, entry_name
from torch import nn
from torch.export import Dim

NAMES, BUCKETS = {0: "batch", 1: "tokens"}, {"batch": [1, 4], "tokens": [8, 24]}
SIZES = [(3, 20), (4, 24), (2, 9), (4, 1), (1, 5), (1, 24)]


class Calls(nn.Module):
    """A function of the inputs and of parameters."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.w, self.table = nn.Parameter(torch.randn(16, 16)), nn.Parameter(torch.randn(64, 16))
        self.register_buffer("places", torch.arange(64)[None], persistent=False)

    def forward(self, *args):
        return self.function(self, *args)


def programs(module, args, shapes, buckets=BUCKETS, **options):
    """The program of each bucket, by its name."""
    dynamic, found, constants = Dynamic(module, args, {}, shapes, buckets), {}, {}
    for capacities in dynamic.capacities():
        found[entry_name(capacities)] = program = import_module(
            module, args, dynamic=dynamic, capacities=capacities, constants=constants, **options
        )
        constants = program.graph.constants
    return found


def compare(module, calls, shapes, buckets=BUCKETS):
    """Reads the program of each bucket that holds a call at the call's sizes, and compares with the module."""
    module = module.eval()
    found = programs(module, calls[0], shapes, buckets)
    for args in calls:
        with torch.no_grad():
            want = tensors(module(*args))
        sizes = {}
        for program in found.values():
            for name, value in zip(program.inputs, args, strict=True):
                sizes |= {size: value.shape[d] for d, size in program.sizes.inputs.get(name, {}).items()}
            if any(sizes[name] > capacity for name, capacity in program.sizes.capacities.items()):
                continue
            call = program.sizes.at(sizes)
            got = nn_reference.run(program, args, sizes=sizes)
            assert len(got) == len(want)
            for g, w, layout in zip(got, want, program.sizes.outputs, strict=True):
                assert tuple(g.shape) == tuple(w.shape) == tuple(nn_reference.true_size(n, sizes) for n in layout)
                torch.testing.assert_close(g, w, rtol=1e-5, atol=1e-5)
            assert all(call.arguments[name] == sizes.get(name, call.arguments[name]) for name in call.arguments)
    return found


def x_of(*shape):
    return torch.randn(*shape, 16, generator=torch.Generator().manual_seed(sum(shape)))


FUNCTIONS = {
    "means": lambda m, x: (x.mean(1), x.mean((0, 1)), x.mean(), x.mean(2), (x @ m.w).mean(-2, keepdim=True)),
    "variances": lambda m, x: (x.var(1, unbiased=False), x.std((0, 1)), torch.var_mean(x, 2)[0]),
    "norms": lambda m, x: (x / x.norm(dim=1, keepdim=True), F.layer_norm(x, (16,)), F.normalize(x, dim=1)),
    "extremes": lambda m, x: (x.amax(1), x.argmax(1), x.argmin(2), x.max(1).values, (x > 0).any(1), (x < 3).all(1)),
    "sums": lambda m, x: (x.cumsum(1), x.softmax(1).sum(1), x.logsumexp(1), x.log_softmax(1)),
    "numbers": lambda m, x: (
        x.sum(1) / x.shape[1] ** 0.5,
        x * x.shape[0] + x.shape[1] // 2,
        x.sum() / (x.shape[0] * x.shape[1]),
        torch.full((3,), x.shape[1] * 1.5),
        (x > x.shape[1] / 10).float(),
        x.clamp(max=x.shape[1] / 20),
        x - x.shape[1] ** -0.5,
    ),
    "tables": lambda m, x: (
        x + m.table[: x.shape[1]],
        x * torch.linspace(0, 1, 64)[: x.shape[1], None],
        m.table[: x.shape[1]].sum(0),
        m.table[x.shape[1] - 1],
        F.embedding(m.places[:, : x.shape[1]], m.table),
        x + m.table[:32].mean(0),
    ),
    "positions": lambda m, x: (
        torch.arange(x.shape[1]).float().mean(),
        torch.arange(x.shape[1])[None] + x.argmax(2),
        torch.arange(x.shape[1]).flip(0),
        torch.ones(x.shape[0], x.shape[1]).sum(),
        torch.zeros(x.shape[:2]).cumsum(1),
    ),
    "ends": lambda m, x: (x[:, 0], x[:, -1], x.flip(1), x[-1], x.flip(0, 1)),
    "shifts": lambda m, x: (
        F.pad(x, (0, 0, 1, 0)),
        F.pad(x, (0, 0, 0, 1), value=2.0)[:, 1:],
        F.pad(x, (0, 0, 1, 0))[:, :-1],
        torch.cat([m.table[None, :1].expand(x.shape[0], -1, -1), x], 1),
        torch.cat([x, m.table[None, :2].expand(x.shape[0], -1, -1)], 1).mean(1),
    ),
    "pieces": lambda m, x: torch.cat([x, 2 * x.flip(1)], 1).split([x.shape[1], x.shape[1]], 1),
    "views": lambda m, x: (
        x.flatten(0, 1).mean(0),
        (x.flatten(0, 1) @ m.w).view(x.shape),
        x.view(*x.shape[:2], 4, 4).transpose(1, 2),
        x.view(x.shape[0], -1).sum(1),
        x.repeat_interleave(2, 0).sum(0),
        x.expand(2, -1, -1, -1).flatten(0, 1).amax(0),
    ),
    "products": lambda m, x: (
        x @ x.mT,
        torch.einsum("btd,bsd->bts", x, x).softmax(-1) @ x,
        F.scaled_dot_product_attention(x, x @ m.w, x, is_causal=True),
        F.scaled_dot_product_attention(x, x, x, attn_mask=torch.tril(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool))),
    ),
    "indices": lambda m, x: (
        x[torch.arange(x.shape[0]), x.argmax(1)[:, 0]],
        x.gather(1, x.argmax(1, keepdim=True)),
        x.index_select(1, torch.zeros(2, dtype=torch.long)),
        x[:, -1 - x.argmax(2)[0, :1] % 1],
    ),
    "masks": lambda m, x: (
        x.masked_fill(torch.arange(x.shape[1])[:, None] > 2, 0.0).sum(1),
        torch.where(x > 0, x, x.shape[1]).mean(1),
        x.tril().sum(1),
    ),
    "broadcasts": lambda m, x: (
        m.table[0].expand(x.shape[0], x.shape[1], 16).sum((0, 1)),
        x.new_ones(x.shape[1]).sum(),
        x.new_full(x.shape[:2], 2.0).sum(1),
    ),
    "complex": lambda m, x: torch.view_as_real(
        torch.view_as_complex(x.view(*x.shape[:2], 8, 2))
        * torch.polar(torch.ones(64, 8), torch.outer(torch.arange(64.0), torch.arange(8.0)))[: x.shape[1]]
    ).flatten(2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_at_the_sizes_of_calls(name):
    compare(Calls(FUNCTIONS[name]), [(x_of(*s),) for s in SIZES], {"args": (NAMES,)})
