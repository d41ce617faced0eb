# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Random PyTorch modules on [batch, tokens, 16], of functions that read along both sizes.

All of a module, its mesh and its calls follow from the seed.
"""

import random

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, ROWS = 16, 64

#: Each keeps the shape [batch, tokens, 16].
STEPS = {
    "gelu": lambda m, x: F.gelu(x),
    "product": lambda m, x: x @ m.w,
    "layer norm": lambda m, x: F.layer_norm(x, (WIDTH,)),
    "table": lambda m, x: x + m.table[: x.shape[1]],
    "flip": lambda m, x: x.flip(1),
    "centre": lambda m, x: x - x.mean(1, keepdim=True),
    "spread": lambda m, x: x / (x.std((0, 1)) + 1),
    "running mean": lambda m, x: x.cumsum(1) / (torch.arange(x.shape[1]) + 1)[:, None],
    "softmax": lambda m, x: x * x.softmax(1),
    "causal attention": lambda m, x: F.scaled_dot_product_attention(x, x @ m.w, x, is_causal=True),
    "attention": lambda m, x: F.scaled_dot_product_attention(x, x, x),
    "attention by hand": lambda m, x: (x @ x.mT).softmax(-1) @ x,
    "later": lambda m, x: F.pad(x, (0, 0, 1, 0))[:, :-1],
    "earlier": lambda m, x: F.pad(x, (0, 0, 0, 1))[:, 1:],
    "merged": lambda m, x: x.flatten(0, 1).sub(0.1).view(x.shape),
    "merged softmax": lambda m, x: x.flatten(0, 1).softmax(0).view(x.shape) * x,
    "heads": lambda m, x: x.view(*x.shape[:2], 4, 4).transpose(1, 2).tanh().transpose(1, 2).flatten(2),
    "size": lambda m, x: x * x.shape[1] ** -0.5,
    "largest": lambda m, x: x - x.amax((0, 1)),
    "first twice": lambda m, x: torch.cat([x[:, :1], x], 1)[:, 1:],
    "last": lambda m, x: x[:, -1:] + x,
    "two in one": lambda m, x: torch.cat([x, x.flip(1)], 1)[:, x.shape[1] :],
    "masked": lambda m, x: x.masked_fill((torch.arange(x.shape[1]) % 3 == 0)[:, None], 0.0),
    "halves": lambda m, x: torch.where(torch.arange(x.shape[1])[:, None] >= x.shape[1] // 2, x, -x),
    "norms": lambda m, x: F.normalize(x, dim=1),
    "triangle": lambda m, x: (x @ x.mT).tril().sum(1)[..., None] * x,
    "log of sums": lambda m, x: x - x.logsumexp(1, keepdim=True),
    "differences": lambda m, x: x.diff(dim=1, prepend=x[:, :1]),
}
#: They read the rows of a size at other places of one. The gradient of such rows is refused where the
#: compiler cannot tell what is behind them.
SHIFTS = {"later", "earlier", "first twice", "two in one", "differences"}
ENDS = {
    "all": lambda x: x,
    "means": lambda x: x.mean(1),
    "the last": lambda x: x[:, -1],
    "sums": lambda x: x.sum((0, 1)),
    "extremes": lambda x: x.amax(1),
    "rows": lambda x: x.flatten(0, 1),
}
MESHES = [
    ({"tp": 1}, {}),
    ({"tp": 2}, {}),
    ({"tp": 4}, {"sequence_parallel": "on"}),
    ({"dp": 2, "tp": 2}, {}),
    ({"dp": 3}, {}),
]


class Module(nn.Module):
    """A chain of functions, and a function of their result; tanh keeps numbers small in between."""

    def __init__(self, steps, end):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        draw = lambda *shape: nn.Parameter(torch.randn(*shape, generator=generator))
        self.w, self.table, self.steps, self.end = draw(WIDTH, WIDTH), draw(ROWS, WIDTH), steps, end

    def forward(self, x):
        y = x @ self.w
        for name in self.steps:
            y = torch.tanh(STEPS[name](self, y))
        return ENDS[self.end](y + x), y.square().mean()


class Draw:
    """The module, the mesh and the calls of a seed."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        steps = self.random.choices(list(STEPS), k=self.random.randint(1, 6))
        self.module = Module(steps, self.random.choice(list(ENDS))).eval()
        self.mesh, self.options = self.random.choice(MESHES)
        sizes = [(self.random.randint(1, 4), self.random.randint(2, 24)) for _ in range(3)]
        generator = torch.Generator().manual_seed(seed)
        self.calls = [torch.randn(*size, WIDTH, generator=generator) for size in sizes]

    @property
    def has_shifts(self) -> bool:
        return not SHIFTS.isdisjoint(self.module.steps)

    def __str__(self):
        return f"{self.module.steps}, {self.module.end}, {self.mesh} {self.options}"
