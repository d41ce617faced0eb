# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Gradients of equal extremes whose dimension several ranks share, against PyTorch's on one device."""
import meshwright as mw
import pytest
import torch
import torch.nn.functional as F


class Scores(torch.nn.Module):
    """Scores of seven classes, of which the weights shard the last dimension and the batch the
    first one. Classes on each side of a boundary of shards have equal weights."""

    def __init__(self, function):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.function = function
        self.weight = torch.nn.Parameter(torch.randint(-1, 2, (7, 6), generator=generator).float())
        with torch.no_grad():
            self.weight[4], self.weight[-1] = self.weight[0], self.weight[1]

    def forward(self, x):
        y = self.function(F.linear(x, self.weight))
        return (y * torch.cos(torch.arange(y.numel())).view(y.shape)).sum()


FUNCTIONS = {
    "max": lambda h: h.max(-1)[0],
    "min": lambda h: h.min(-1)[0],
    "max of the batch": lambda h: h.max(0)[0],
    "max of all": torch.max,
    "amax": lambda h: h.amax(-1),
    "cummax": lambda h: h.cummax(-1)[0],
    "largest size": lambda h: torch.linalg.vector_norm(h, torch.inf, -1),
    "norm": lambda h: torch.linalg.vector_norm(h, 3, -1),
    "std": lambda h: h.std(-1),
    "prod": lambda h: h.prod(-1),
    "pool": lambda h: F.max_pool1d(h, 3, 2, 1),
    "margin": lambda h: F.multi_margin_loss(h[:, 0], torch.tensor([0, 3, 6, 1])),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_ties(name):
    x = torch.randint(-1, 2, (4, 5, 6), generator=torch.Generator().manual_seed(3)).float()
    module = Scores(FUNCTIONS[name])
    module(x).backward()
    want = module.weight.grad
    model = mw.from_torch(module, (x,), training=True).differentiate(loss=0)
    # Three ranks have padding behind the seven classes.
    for mesh in ({"tp": 2}, {"tp": 3}, {"dp": 2}, {"dp": 2, "tp": 2}):
        shardings = {"weight": '[{"tp"}, {}]'} if "tp" in mesh else {}
        got = dict(zip(model.outputs, model.parallelize(mesh=mesh, shardings=shardings).run(x)))["grad.weight"]
        assert (got - want).abs().max() <= 2e-6 * want.abs().max(), f"{name} on {mesh}"
