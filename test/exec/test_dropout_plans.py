# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Dropout of PyTorch modules: the same elements in each plan, in both passes, and other ones in each step."""
import copy

import meshwright as mw
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers as tf
from test_dropout import kept
from torch import nn

MESHES = {
    "one rank": dict(mesh={"tp": 1}),
    "dp=2": dict(mesh={"dp": 2}),
    "dp=3": dict(mesh={"dp": 3}),
    "tp=2": dict(mesh={"tp": 2}, sequence_parallel="off"),
    "dp=2,tp=3 sp": dict(mesh={"dp": 2, "tp": 3}, sequence_parallel="on"),
    "ring=2 zigzag": dict(mesh={"ring": 2}, context_parallel={"ring": "ring", "order": "zigzag"}),
    "ring=3": dict(mesh={"ring": 3}, context_parallel={"ring": "ring"}),
    "ulysses=2": dict(mesh={"ulysses": 2}, context_parallel={"ulysses": "ulysses"}),
    "ring=2,ulysses=2 striped": dict(mesh={"ring": 2, "ulysses": 2}, context_parallel={
        "ring": "ring", "ulysses": "ulysses", "order": "striped"}),
}
SIZE = dict(batch=4, tokens=13, width=24, heads=4)


class Block(nn.Module):
    """Dropout of the stream, of attention's weights and of activations. The indices of elements are those of
    [batch, tokens, width], [batch, heads, queries, keys] and [batch, tokens, 4 * width]."""

    def __init__(self, p=0.3, eager=False):
        super().__init__()
        torch.manual_seed(3)
        width = SIZE["width"]
        self.p, self.eager = p, eager
        self.norm, self.fused, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, q, k, v, drop):
        if not self.eager:
            return F.scaled_dot_product_attention(q, k, v, dropout_p=self.p if self.training else 0.0, is_causal=True)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
        return drop(scores.softmax(-1), 1) @ v

    def forward(self, x, drop=None):
        drop = drop or (lambda t, stream: F.dropout(t, self.p, self.training))
        x = drop(x, 0)
        q, k, v = (t.unflatten(-1, (SIZE["heads"], -1)).transpose(1, 2) for t in self.fused(self.norm(x)).chunk(3, -1))
        x = x + self.out(self.attend(q, k, v, drop).transpose(1, 2).flatten(2))
        x = x + self.down(drop(F.gelu(self.up(x)), 2))
        return x.square().mean(), x


def draw():
    return torch.randn(SIZE["batch"], SIZE["tokens"], SIZE["width"], generator=torch.Generator().manual_seed(2))


def expect(net, x, seed=0, step=0):
    """The outputs and the gradients, in f64, with the elements dropped that `kept` tells."""
    net = copy.deepcopy(net).double()
    net.eager = True

    def drop(t, stream):
        return t * kept(np.arange(t.numel()).reshape(t.shape), net.p, seed, step, stream) / (1 - net.p)

    loss, y = net(x.double(), drop)
    loss.backward()
    return loss.item(), y.detach(), {n: p.grad for n, p in net.named_parameters()}


def near(got, want, tolerance):
    want = np.asarray(want.detach() if isinstance(want, torch.Tensor) else want, np.float64)
    return np.abs(np.asarray(got, np.float64) - want).max() <= tolerance * np.abs(want).max()


@pytest.mark.parametrize("eager", [False, True], ids=["attention", "eager"])
@pytest.mark.parametrize("name", MESHES)
def test_both_passes_drop_the_same_elements_in_each_plan(name, eager):
    net, x = Block(eager=eager).train(), draw()
    model = mw.from_torch(net, (x,), training=True)
    assert ("nn.softmax" in model.ir()) is False and model.ir().count("dropout") >= 3
    model = model.differentiate()
    got = dict(zip(model.outputs, model.parallelize(**MESHES[name]).run(x), strict=True))
    loss, y, gradients = expect(net, x)
    assert near(got["output.0"], loss, 1e-6) and near(got["output.1"], y, 2e-6)
    largest = max(g.abs().max() for g in gradients.values())
    for n, g in gradients.items():
        assert np.abs(np.asarray(got[f"grad.{n}"], np.float64) - g.numpy()).max() <= 2e-6 * largest, n


@pytest.mark.parametrize("name", ["one rank", "dp=2,tp=3 sp", "ring=2 zigzag"])
@pytest.mark.parametrize("microbatches", [1, 2])
def test_steps_and_microbatches_have_their_own_numbers(name, microbatches):
    """Microbatch i of step s draws the numbers of step s * microbatches + i. Evaluation drops nothing."""
    net, x, seed = Block().train(), draw(), 5
    train = mw.from_torch(net, (x,), training=True).train(mw.SGD(lr=0.0), microbatches=microbatches, seed=seed)
    with train.parallelize(**MESHES[name]).start() as session:
        for step in range(2):
            y = np.asarray(session.run(x)[1])
            want = [expect(net, part, seed, step * microbatches + i)[1]
                    for i, part in enumerate(x.chunk(microbatches))]
            assert near(y, torch.cat(want), 2e-6), step
        assert near(session.run(x, entry="evaluate")[1], copy.deepcopy(net).eval()(x)[1], 1e-5)
        state = session.state()
        assert int(state["random.step"]) == 2 and int(state["random.seed"]) == seed


def test_a_checkpoint_goes_on_with_the_numbers(tmp_path):
    net, x = Block().train(), draw()
    train = mw.from_torch(net, (x,), training=True).train(mw.SGD(lr=0.1), seed=2)
    plan = train.parallelize(mesh={"dp": 2})
    with plan.start() as session:
        session.run(x)
        session.save(tmp_path / "at")
        want = [np.asarray(session.run(x)[1]) for _ in range(2)]
    with plan.start(state=tmp_path / "at") as session:
        got = [np.asarray(session.run(x)[1]) for _ in range(2)]
    assert all(np.array_equal(g, w) for g, w in zip(got, want, strict=True))


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function, self.w = function, nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.function(x * self.w)


def test_modules_that_drop_all_none_or_channels():
    x = torch.rand(3, 8, 5, 4) + 1
    run = lambda function: np.asarray(mw.from_torch(Call(function).train(), (x,), training=True).parallelize(
        mesh={"dp": 3}).run(x)[0])
    assert not run(lambda t: F.dropout(t, 1.0)).any()
    assert np.array_equal(run(lambda t: F.dropout(t, 0.0)), x.numpy())
    keep = kept(np.arange(24).reshape(3, 8, 1, 1), 0.5).numpy()
    assert np.array_equal(run(lambda t: F.dropout2d(t, 0.5)), np.where(keep, 2 * x.numpy(), 0))
    two = run(lambda t: torch.stack([F.dropout(t, 0.5), F.dropout(t, 0.5)]))
    assert not np.array_equal(two[0], two[1])


def test_what_is_refused():
    x = torch.rand(3, 4)
    with pytest.raises(mw.Error, match="alpha dropout in training mode is not covered"):
        mw.from_torch(Call(lambda t: F.alpha_dropout(t, 0.5, training=True)), (x,), training=True)
    for function in (lambda t: F.dropout(t, 0.5), lambda t: F.scaled_dot_product_attention(t, t, t, dropout_p=0.1)):
        with pytest.raises(mw.Error, match="dropout in training mode is not covered; expected .* training=True"):
            mw.from_torch(Call(function), (x,))
    # In evaluation mode nothing is dropped, and the program draws no numbers.
    ir = mw.from_torch(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).train(), (x,)).ir()
    assert "dropout" not in ir and "random" not in ir


def test_ranks_without_rows():
    """T5 on more ranks than rows: a rank of padding adds nothing to the gradient of the table of positions."""
    torch.manual_seed(1)
    net = tf.T5ForConditionalGeneration(tf.T5Config(
        d_model=24, d_kv=6, d_ff=32, num_layers=1, num_heads=4, vocab_size=31, decoder_start_token_id=0,
        dropout_rate=0.1)).train()
    net.config.use_cache = False
    ids = torch.randint(3, 31, (2, 9), generator=torch.Generator().manual_seed(2))
    train = mw.from_torch(net, (), dict(input_ids=ids, labels=ids), training=True).train(mw.SGD(lr=1.0), loss="loss")
    found = []
    for mesh in ({"dp": 1}, {"dp": 3}):
        with train.parallelize(mesh=mesh).start() as session:
            session.run(input_ids=ids, labels=ids)
            found.append({n: np.asarray(p, np.float64) for n, p in session.parameters().items()})
    for n, p in found[0].items():
        assert near(found[1][n], p, 1e-6), n
