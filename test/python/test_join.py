# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""mw.join: models as entries of one, over one set of weights and state."""

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import meshwright as mw

PREFILL = """nn.state @sum : tensor<5xf32>
func.func @main(%x: tensor<2x8xf32> {nn.input = "x"},
                %w: tensor<5x8xf32> {nn.parameter = "w", nn.aliases = ["tied"]}) -> (tensor<2x5xf32> {nn.output = "y"}) {
  %0 = nn.linear %x, %w : (tensor<2x8xf32>, tensor<5x8xf32>) -> tensor<2x5xf32>
  %m = nn.reduce sum %0 dims [0] : (tensor<2x5xf32>) -> tensor<5xf32>
  %s = nn.read @sum : tensor<5xf32>
  %t = nn.add %s, %m : (tensor<5xf32>, tensor<5xf32>) -> tensor<5xf32>
  nn.write @sum, %t : tensor<5xf32>
  return %0 : tensor<2x5xf32>
}
"""
# The weight by its other name; the state as a parameter, which this model only reads.
DECODE = """func.func @main(%x: tensor<1x8xf32> {nn.input = "x"}, %w: tensor<5x8xf32> {nn.parameter = "tied"},
    %s: tensor<5xf32> {nn.parameter = "sum"}) -> (tensor<1x5xf32> {nn.output = "y"}) {
  %0 = nn.linear %x, %w : (tensor<1x8xf32>, tensor<5x8xf32>) -> tensor<1x5xf32>
  %1 = nn.add %0, %s : (tensor<1x5xf32>, tensor<5xf32>) -> tensor<1x5xf32>
  return %1 : tensor<1x5xf32>
}
"""
W, START = np.arange(40, dtype=np.float32).reshape(5, 8), np.ones(5, np.float32)


@pytest.fixture
def load(tmp_path):
    def load(name, text, **weights):
        (tmp_path / f"{name}.mlir").write_text(text)
        save_file(weights, tmp_path / f"{name}.safetensors")
        return mw.load(tmp_path / f"{name}.mlir", tmp_path / f"{name}.safetensors")

    return load


@pytest.fixture
def models(load):
    return load("prefill", PREFILL, w=W, sum=START), load("decode", DECODE, tied=W.copy(), sum=START)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_entries_share_weights_and_state(models, tmp_path, ranks):
    joined = mw.join(dict(zip(("prefill", "decode"), models, strict=True)))
    assert joined.entries == ["prefill", "decode"] and sorted(joined.parameters) == ["sum", "w"]
    x = np.ones((2, 8), np.float32)
    plan = joined.parallelize(mesh={"tp": ranks})
    with plan.start() as session:
        session.run(x)
        (y,) = session.run(x[:1], entry="decode")
        assert np.allclose(y, 3 * W.sum(1) + START)
        assert np.allclose(session.state()["sum"], 2 * W.sum(1) + START)
    # Without a session, each run starts anew.
    assert np.allclose(plan.run(x[:1], entry="decode")[0], W.sum(1) + START)
    joined.save(tmp_path / "m.mlir", tmp_path / "m.safetensors")
    assert mw.load(tmp_path / "m.mlir", tmp_path / "m.safetensors").entries == joined.entries


def test_models_that_do_not_fit(models, load):
    prefill, decode = models
    other = load("other", DECODE, tied=W + 1, sum=START)
    small = load("small", DECODE.replace("5x", "6x").replace("5xf", "6xf"), tied=np.ones((6, 8), np.float32),
                 sum=np.ones(6, np.float32))  # fmt: skip
    count = load("count", PREFILL.replace("@sum :", "@sum {fill = 0.0 : f32} :"), w=W)
    plain = load("plain", DECODE.replace('"sum"', '"bias"'), tied=W, bias=START)
    wide = load("wide", DECODE.replace('"sum"', '"bias"').replace('"tied"', '"w"').replace("5x", "6x").replace("5xf", "6xf"),
                w=np.ones((6, 8), np.float32), bias=np.ones(6, np.float32))  # fmt: skip
    assert mw.join({"a": prefill, "b": plain}).entries == ["a", "b"]
    for given, said in [
        ({"a": prefill, "b": other}, "parameter 'tied' of 'b' has other values than that of 'a'"),
        ({"a": prefill, "b": small}, "parameter 'sum' of 'b', a state of another program: expected 'tensor<5xf32>', got 'tensor<6xf32>'"),
        ({"a": prefill, "b": wide}, "parameter 'w': expected one type, got f32[6, 8] here and f32[5, 8] in another entry"),
        ({"a": prefill, "b": count}, "'sum' of 'b' differs from that of another program"),
        ({"a": mw.join({"x": prefill, "y": decode})}, "'a': expected one entry, got 2"),
        ({"a": prefill, "sum": decode}, "'sum' is empty or names something else"),
        ({}, "there are no models"),
        ({"a": None}, "models['a']: expected a Model, got None"),
    ]:
        with pytest.raises(mw.Error) as raised:
            mw.join(given)
        assert said in str(raised.value)


class Counts(torch.nn.Module):
    """Counts calls, or only looks at the count and at a mask that another entry writes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.tensor(0))
        self.register_buffer("seen", torch.zeros(4), persistent=False)
        self.counts = True

    def forward(self, x):
        if self.counts:
            self.n += 1
            self.seen[1:3] += x.sum(0)[1:3]
        return x * self.n + self.seen.clamp(max=2)


def test_buffers_that_one_model_writes():
    module, x = Counts(), torch.ones(1, 4)
    write = mw.from_torch(module, (x,))
    module.counts = False
    read = mw.from_torch(module, (x,))
    assert not read._program.states  # constants, as far as this model knows
    with mw.join({"read": read, "write": write}).parallelize(mesh={"tp": 2}).start() as session:
        for n in range(3):
            (y,) = session.run(x)
            assert torch.equal(y, torch.tensor([[n, n + min(n, 2), n + min(n, 2), n]]).float())
            session.run(x, entry="write")
        assert int(session.state()["n"]) == 3


class Positions(torch.nn.Module):
    """Adds a table that the import computes, of as many rows as there are tokens."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(8))

    def forward(self, x):
        steps = torch.arange(x.shape[1] * 8).float().view(x.shape[1], 8)
        return x * self.w + steps.sin()


def test_constants_are_one_where_they_are_equal():
    net, shapes = Positions(), {"short": (1, 3, 8), "long": (2, 70, 8), "many": (4, 3, 8)}
    models = {name: mw.from_torch(net, (torch.ones(shape),)) for name, shape in shapes.items()}
    joined = mw.join(models)
    constants = {n: tuple(v.shape) for n, v in joined.parameters.items() if n.startswith("constant.")}
    assert sorted(constants.values()) == [(3, 8), (70, 8)]
    plan = joined.parallelize(mesh={"dp": 1})
    for name, shape in shapes.items():
        x = torch.randn(shape)
        assert torch.allclose(plan.run(x, entry=name)[0], net(x), atol=1e-6)
