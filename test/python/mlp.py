# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A small module that tests of the interface share."""
import torch
from torch import nn


class Mlp(nn.Module):
    def __init__(self, d=16, f=40, tied=False):
        super().__init__()
        torch.manual_seed(3)
        self.norm, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, f), nn.Linear(f, d)
        if tied:
            self.down.weight = nn.Parameter(self.up.weight.detach())
            self.down.in_features, self.down.out_features = d, f

    def forward(self, x, scale=None):
        y = x + self.down(torch.relu(self.up(self.norm(x))))
        return {"y": y if scale is None else y * scale, "last": y[:, -1], "none": None}


def close(got, want, bound=1e-5):
    assert (got.double() - want.double()).abs().max() <= bound * want.double().abs().max()
