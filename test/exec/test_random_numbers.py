# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""nn.random, and PyTorch's random numbers: the same ones in each plan, others in each step."""
import meshwright as mw
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from harness import run_module, type_of
from test_dropout import philox
from torch import nn


def numbers(index, seed=0, step=0, stream=0):
    return torch.from_numpy((philox(index, seed, step, stream) >> np.uint64(8)).astype(np.float32) / 2**24)


@pytest.mark.parametrize("shape", [(1,), (3, 7), (5, 130)], ids=str)
def test_elements(tmp_path, shape):
    for number, (seed, step, stream, first) in enumerate([(0, 0, 0, 0), (5, 3, 2, (1 << 33) - 17),
                                                          (-7, (1 << 40) + 9, 1 << 20, -40)]):
        index = torch.arange(np.prod(shape)).reshape(shape) * 3 + first
        t, f = type_of(index), type_of(index.float())
        text = f"""func.func @main(%i: {t} {{nn.input = "i"}}, %s: tensor<i64> {{nn.input = "s"}}, %n: tensor<i64> {{nn.input = "n"}})
    -> ({f} {{nn.output = "u"}}) {{
  %u = nn.random at %i seed %s step %n stream {stream} : ({t}, tensor<i64>, tensor<i64>) -> {f}
  return %u : {f}
}}
"""
        folder = tmp_path / str(number)
        folder.mkdir()
        got = run_module(folder, text, {"i": index, "s": torch.tensor(seed), "n": torch.tensor(step)})["u"]
        assert torch.equal(got, numbers(index.numpy(), seed, step, stream))


class Draws(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.layer, self.draw = nn.Linear(8, 8), draw

    def forward(self, x):
        drawn = self.draw(x)
        return self.layer(x).square().mean() * 0 + drawn.double().mean().float(), drawn


def of_type(draw, dtype):
    return lambda x: draw(x.to(dtype))


#: The mean, the standard deviation, the bounds.
DRAWS = {
    "rand": (lambda x: torch.rand(512, 8), 0.5, 12**-0.5, 0, 1),
    "rand_like, bf16": (of_type(torch.rand_like, torch.bfloat16), 0.5, 12**-0.5, 0, 1),
    "rand_like, f16": (of_type(torch.rand_like, torch.float16), 0.5, 12**-0.5, 0, 1),
    "rand_like, f64": (of_type(torch.rand_like, torch.float64), 0.5, 12**-0.5, 0, 1),
    "rows": (lambda x: torch.rand(len(x), 1).expand(-1, 8), 0.5, 12**-0.5, 0, 1),
    "randn": (lambda x: torch.randn(512, 8), 0, 1, -6, 6),
    "randn_like, f64": (of_type(torch.randn_like, torch.float64), 0, 1, -9, 9),
    "uniform_": (lambda x: torch.empty_like(x).uniform_(-2, 4), 1, 3**0.5, -2, 4),
    "normal_": (lambda x: x.clone().normal_(1, 0.5), 1, 0.5, -3, 5),
    "normal of numbers": (lambda x: torch.normal(1.0, 2.0, (512, 8)), 1, 2, -12, 14),
    "normal of means": (lambda x: torch.normal(x * 0 + 3, 2.0), 3, 2, -10, 16),
    "normal of deviations": (lambda x: torch.normal(3.0, x * 0 + 2), 3, 2, -10, 16),
    "exponential_": (lambda x: torch.empty_like(x).exponential_(2.0), 0.5, 0.5, 0, 12),
    "bernoulli": (lambda x: torch.bernoulli(x * 0 + 0.3), 0.3, 0.21**0.5, 0, 1),
    "bernoulli with a number": (lambda x: torch.bernoulli(x, 0.3), 0.3, 0.21**0.5, 0, 1),
    "bernoulli_": (lambda x: x.new_empty(512, 8).bernoulli_(0.3), 0.3, 0.21**0.5, 0, 1),
    "randint": (lambda x: torch.randint(10, (512, 8)), 4.5, 8.25**0.5, 0, 9),
    "randint from": (lambda x: torch.randint(-3, 4, (512, 8)), 0, 2, -3, 3),
    "randint of many": (lambda x: torch.randint(0, 1 << 40, (512, 8)), 2.0**39, 2**40 * 12**-0.5, 0, 2**40 - 1),
    "randint_like": (lambda x: torch.randint_like(x, 5), 2, 2**0.5, 0, 4),
    "gumbel_softmax": (lambda x: F.gumbel_softmax(x * 0, hard=True), 0.125, 0.109375**0.5, 0, 1),
}


@pytest.mark.parametrize("name", DRAWS)
def test_distributions(name):
    draw, mean, deviation, low, high = DRAWS[name]
    x = torch.zeros(512, 8)
    model = mw.from_torch(Draws(draw).train(), (x,), training=True).train(mw.SGD(lr=0.0))
    drawn = []
    for mesh in ({"dp": 1}, {"dp": 3}):
        with model.parallelize(mesh=mesh).start() as session:
            drawn.append([session.run(x)[1] for _ in range(2)])
    first, second = drawn[0]
    assert all(torch.equal(a, b) for a, b in zip(*drawn, strict=True)) and not torch.equal(first, second)
    wide = torch.stack([first, second]).double()
    count = 1024 if name == "rows" else 8192
    assert abs(wide.mean() - mean) < 5 * deviation / count**0.5 and abs(wide.std() / deviation - 1) < 0.1
    assert low <= wide.min() and wide.max() <= high and (high != 1 or first.is_floating_point())


def test_one_number():
    x = torch.zeros(2, 8)
    model = mw.from_torch(Draws(lambda x: torch.rand(())).train(), (x,), training=True)
    assert model.differentiate().parallelize(mesh={"dp": 1}).run(x)[1] == numbers(np.zeros(1))[0]


class Depth(nn.Module):
    """Stochastic depth: drops a branch for whole rows."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x, kept=None):
        y = self.a(x)
        kept = torch.rand(len(x), 1, 1) < 0.6 if kept is None else kept
        return (y + self.b(y).tanh() * kept / 0.6).square().mean()


@pytest.mark.parametrize("options", [dict(mesh={"dp": 2}), dict(mesh={"tp": 3}, sequence_parallel="on")], ids=str)
def test_gradients_of_steps(options):
    """The loss and the gradients of PyTorch with the numbers that the steps draw."""
    net, x = Depth().train(), torch.randn(4, 6, 6, generator=torch.Generator().manual_seed(2))
    model = mw.from_torch(net, (x,), training=True)
    with model.train(mw.SGD(lr=0.0), seed=7).parallelize(**options).start() as session:
        losses = [float(session.run(x)[0]) for _ in range(3)]
        held = [float(session.run(x, entry="evaluate")[0]) for _ in range(2)]
    kept = [numbers(np.arange(4).reshape(4, 1, 1), 7, step) < 0.6 for step in range(4)]
    want = [float(net(x, k)) for k in kept]
    assert losses == pytest.approx(want[:3], rel=1e-5) and len(set(want)) > 1
    # Evaluation of what draws itself draws, too: the numbers of the next step.
    assert held == pytest.approx([want[3]] * 2, rel=1e-5)
    outputs = model.differentiate().parallelize(**options).run(x)
    net(x, numbers(np.arange(4).reshape(4, 1, 1)) < 0.6).backward()
    for name, gradient in zip(model.differentiate().outputs[1:], outputs[1:], strict=True):
        own = net.get_parameter(name.removeprefix("grad.")).grad
        assert (gradient - own).abs().max() <= 1e-5 * own.abs().max()


def test_a_resumed_training_and_microbatches_draw_on(tmp_path):
    net, x = Depth().train(), torch.randn(4, 6, 6, generator=torch.Generator().manual_seed(2))
    plan = mw.from_torch(net, (x,), training=True).train(mw.SGD(lr=0.0), microbatches=2).parallelize(mesh={"dp": 2})
    with plan.start() as session:
        first = float(session.run(x)[0])
        session.save(tmp_path / "state")
        second = float(session.run(x)[0])
    with plan.start(state=tmp_path / "state") as session:
        assert float(session.run(x)[0]) == second != first
    kept = [numbers(np.arange(2).reshape(2, 1, 1), step=step) < 0.6 for step in range(2)]
    assert first == pytest.approx(sum(float(net(x[2 * i:2 * i + 2], kept[i])) for i in range(2)) / 2, rel=1e-5)


class Modes(Depth):
    def forward(self, x):
        return super().forward(x, None if self.training else 1)


def test_evaluation_mode_draws_nothing():
    net, x = Modes().train(), torch.randn(4, 6, 6)
    with mw.from_torch(net, (x,), training=True).train(mw.SGD(lr=0.0)).parallelize(mesh={"dp": 2}).start() as session:
        got = float(session.run(x, entry="evaluate")[0])
    assert got == pytest.approx(float(net.eval()(x)), rel=1e-5)
