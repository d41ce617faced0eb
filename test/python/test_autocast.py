# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Modules that compute under torch.autocast: the types of their operations are PyTorch's."""
import copy
import re

import meshwright as mw
import pytest
import torch
from torch import nn


class Block(nn.Module):
    """Products in bf16, a norm of mixed types, sums in f32, a region within the region, a write."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down, self.norm = nn.Linear(24, 40), nn.Linear(40, 24), nn.LayerNorm(24)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.seen += 1
        with torch.autocast("cpu", torch.bfloat16):
            y = self.norm(x.bfloat16() + self.down(nn.functional.silu(self.up(x))))
            with torch.autocast("cpu", enabled=False):
                z = y.float() @ self.down.weight
            p = torch.cat([y, y.float()], 1) * torch.softmax(y, -1).mean()
            return torch.baddbmm(p[None], p[None], torch.eye(48)[None]).float().square().sum() + z.square().mean()


X = torch.linspace(-2, 2, 16 * 24).reshape(16, 24)


@pytest.mark.parametrize("mode", ["inference", "training", "evaluation"])
def test_types_are_those_of_the_module(mode):
    net = Block().train(mode == "training")
    model = mw.from_torch(net, (X,), training=mode != "inference")
    linears = re.findall(r"nn\.linear .*-> tensor<\d+x\d+x(\w+)>", model.ir())
    assert sorted(linears) == ["bf16", "bf16", "f32"], model.ir()
    plan = model.parallelize(mesh={"dp": 2})
    got = torch.as_tensor(plan.run(X)[0]).double()
    want = copy.deepcopy(net)(X).detach()
    assert abs(got - want.double()) <= 2e-2 * abs(want.double())


def test_gradients():
    net = Block()
    model = mw.from_torch(net, (X,), training=True)
    plan = model.train(mw.SGD(lr=0.125)).parallelize(mesh={"dp": 2})
    net(X).backward()
    with plan.start() as session:
        session.run(X)
        trained = session.parameters()
    for name, parameter in net.named_parameters():
        step = (parameter.detach() - torch.as_tensor(trained[name])) / 0.125
        torch.testing.assert_close(step, parameter.grad, rtol=0.05, atol=0.05 * parameter.grad.abs().max().item())
