# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Several models as one: results beside PyTorch's, names, and refusals."""

import copy

import meshwright as mw
import pytest
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(19, 16)
        self.up = nn.Linear(16, 24)
        self.down = nn.Linear(24, 16)

    def forward(self, ids):
        x = self.embed(ids)
        return x + self.down(torch.relu(self.up(x))), x


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(16, 16)
        self.out = nn.Linear(16, 16)

    def forward(self, x, text):
        return self.out(torch.tanh(self.mix(x) + text.mean(dim=1, keepdim=True)))


class Update(nn.Module):
    def forward(self, x, noise):
        return x - 0.1 * noise


@pytest.fixture(scope="module")
def stages():
    torch.manual_seed(0)
    encoder, denoiser, update = Encoder().eval(), Denoiser().eval(), Update()
    ids, x = torch.randint(0, 19, (2, 5)), torch.randn(2, 7, 16)
    text = torch.zeros(2, 5, 16)
    models = {
        "encoder": mw.from_torch(encoder, (ids,)),
        "denoiser": mw.from_torch(denoiser, (x, text)),
        "update": mw.from_torch(update, (x, x)),
    }
    return models, (encoder, denoiser, update), (ids, x)


CONNECT = {
    "denoiser.text": "encoder.0",
    "update.noise": "denoiser.0",
    "denoiser.x": "update.0",
    "update.x": "update.0",
}
LOOP = ["denoiser", "update"]


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("mesh", [{"tp": 1}, {"tp": 2}, {"dp": 2, "tp": 2}])
def test_loop(stages, steps, mesh):
    models, (encoder, denoiser, update), (ids, x) = stages
    with torch.no_grad():
        text, want = encoder(ids)[0], x
        for _ in range(steps):
            want = update(want, denoiser(want, text))
    model = mw.compose(models, CONNECT, loop=LOOP, steps=steps)
    assert model.inputs == ["encoder.ids", "denoiser.x", "update.x"]
    assert "encoder.embed.weight" in model.parameters
    plan = model.parallelize(mesh=mesh)
    inputs = {"encoder.ids": ids, "denoiser.x": x, "update.x": x}
    (got,) = plan.run(**inputs)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    plan.check(**inputs)


def test_chain_without_loop(stages):
    models, (encoder, denoiser, _), (ids, x) = stages
    chain = {"encoder": models["encoder"], "denoiser": models["denoiser"]}
    model = mw.compose(chain, {"denoiser.text": "encoder.1"})
    with torch.no_grad():
        want = denoiser(x, encoder(ids)[1])
    (got,) = model.parallelize(mesh={"tp": 2}).run(**{"encoder.ids": ids, "denoiser.x": x})
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def test_same_model_twice(stages):
    models, (_, denoiser, _), (_, x) = stages
    text = torch.randn(2, 5, 16)
    both = {"first": models["denoiser"], "second": models["denoiser"]}
    model = mw.compose(both, {"second.x": "first.0"})
    with torch.no_grad():
        want = denoiser(denoiser(x, text), 2 * text)
    inputs = {"first.x": x, "first.text": text, "second.text": 2 * text}
    (got,) = model.parallelize(mesh={"tp": 2}).run(**inputs)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def test_saved_and_loaded(stages, tmp_path):
    models, _, (ids, x) = stages
    model = mw.compose(models, CONNECT, loop=LOOP, steps=2)
    model.save(tmp_path / "m.mlir", tmp_path / "m.safetensors")
    inputs = {"encoder.ids": ids, "denoiser.x": x, "update.x": x}
    loaded = mw.load(tmp_path / "m.mlir", tmp_path / "m.safetensors")
    results = [m.parallelize(mesh={"tp": 2}).run(**inputs)[0] for m in (model, loaded)]
    assert torch.equal(*results)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"connect": {"decoder.x": "encoder.0"}}, "there is no stage 'decoder': expected one of encoder, denoiser, update"),
        ({"connect": {"denoiser.y": "encoder.0"}}, "stage 'denoiser' has no input 'y': expected one of x, text"),
        ({"connect": {"denoiser.text": "encoder"}}, 'expected "stage.position of an output"'),
        ({"connect": {"denoiser.text": "encoder.2"}}, "output 2 of stage 'encoder', which has 2"),
        ({"connect": {"denoiser.x": "encoder.0"}}, "is 'tensor<2x7x16xf32>', but 'encoder.0' is 'tensor<2x5x16xf32>'"),
        ({"connect": {"denoiser.x": "update.0"}, "loop": ()}, "which does not run before it"),
        ({"loop": ["encoder", "update"], "connect": {}}, "expected the loop's stages to follow one another"),
        ({"loop": ["other"], "connect": {}}, "loop names stage 'other'"),
        ({"steps": 0}, "steps: expected 1 or more, got 0"),
        ({"steps": 2, "loop": (), "connect": {}}, "steps is 2 without a loop"),
    ],
)  # fmt: skip
def test_refusals(stages, change, message):
    arguments = {"connect": CONNECT, "loop": LOOP, "steps": 1, **change}
    with pytest.raises(mw.Error) as error:
        mw.compose(stages[0], **arguments)
    assert message in str(error.value)


def test_refuses_nothing():
    with pytest.raises(mw.Error, match="there are no models"):
        mw.compose({}, {})


def test_refuses_what_is_no_model(stages):
    with pytest.raises(mw.InputError, match="models\\['a'\\]: expected a Model, got a Encoder"):
        mw.compose({"a": stages[1][0]}, {})


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(16, 16)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.steps += 1
        return torch.tanh(self.mix(x)) + self.steps


@pytest.mark.parametrize("mesh", [{"tp": 1}, {"dp": 2, "tp": 3}])
def test_state_of_a_loop(mesh):
    """Each step of the loop reads what the step before it wrote. Calls go on from each other."""
    torch.manual_seed(0)
    first, second = Counting().eval(), Counting().eval()
    x = torch.randn(2, 7, 16)
    models = {"first": mw.from_torch(first, (x,)), "second": mw.from_torch(second, (x,))}
    model = mw.compose(models, {"second.x": "first.0", "first.x": "second.0"},
                       loop=["first", "second"], steps=3)
    # PyTorch's own run writes to its buffers, which the model refers to.
    first, second = copy.deepcopy(first), copy.deepcopy(second)
    with model.parallelize(mesh=mesh).start() as session, torch.no_grad():
        for call in (1, 2):
            want = x
            for _ in range(3):
                want = second(first(want))
            (got,) = session.run(**{"first.x": x})
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
            state = session.state()
            assert {name: int(value) for name, value in state.items()} == {
                "first.steps": 3 * call, "second.steps": 3 * call}
