# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Training steps on several meshes, against PyTorch's optimizers in f64."""

import copy

import meshwright as mw
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

MESHES = {
    "one rank": dict(mesh={"tp": 1}),
    "dp=2": dict(mesh={"dp": 2}),
    "tp=2 sp": dict(mesh={"tp": 2}, sequence_parallel="on"),
    "dp=2,tp=3": dict(mesh={"dp": 2, "tp": 3}),
}
OPTIMIZERS = {
    "sgd": (mw.SGD, torch.optim.SGD, dict(lr=0.2)),
    "momentum": (mw.SGD, torch.optim.SGD, dict(lr=0.1, momentum=0.8, weight_decay=0.03)),
    "adam": (mw.Adam, torch.optim.Adam, dict(lr=0.02, betas=(0.7, 0.9), eps=1e-3, weight_decay=0.1)),
    "adamw": (mw.AdamW, torch.optim.AdamW, dict(lr=0.02, betas=(0.0, 0.99), eps=1e-3, weight_decay=0.1)),
}


class Net(nn.Module):
    """A fused projection, attention, a tied table, and parameters that are not trained."""

    def __init__(self, vocabulary=29, width=18, heads=3):
        super().__init__()
        torch.manual_seed(3)
        self.heads = heads
        self.table = nn.Embedding(vocabulary, width)
        self.norm, self.fused = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.ones(1))
        self.frozen = nn.Parameter(torch.randn(width), requires_grad=False)
        self.unread = nn.Parameter(torch.randn(width))

    def forward(self, ids, labels):
        x = self.table(ids) + self.frozen
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in self.fused(self.norm(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).flatten(2)) * self.scale + self.unread.detach()
        logits = x @ self.table.weight.T
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits


def batches(steps, batch=6, tokens=5):
    g = torch.Generator().manual_seed(1)
    draw = lambda: torch.randint(0, 29, (batch, tokens), generator=g)
    return [dict(ids=draw(), labels=draw()) for _ in range(steps)]


def expect(net, data, optimizer, options, clip=None, rates=None):
    """PyTorch's losses and parameters, in f64."""
    net, losses = copy.deepcopy(net).double(), []
    trained = [p for p in net.parameters() if p.requires_grad]
    torch_optimizer = optimizer(trained, **options)
    for step, batch in enumerate(data):
        if rates:
            torch_optimizer.param_groups[0]["lr"] = rates[step]
        torch_optimizer.zero_grad()
        loss = net(**batch)[0]
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(trained, clip)
        torch_optimizer.step()
        losses.append(loss.item())
    return losses, dict(net.named_parameters())


def compare(got, want, tolerance=1e-5):
    for name, value in want.items():
        value = value.detach().numpy()
        error = np.abs(got[name].double().numpy() - value).max() / max(np.abs(value).max(), 1e-30)
        assert error <= tolerance, (name, error)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps(name, mesh):
    net, data = Net(), batches(4)
    ours, theirs, options = OPTIMIZERS[name]
    clip = 0.5 if name in ("momentum", "adamw") else None
    rates = [0.05, options["lr"], 0.0, 0.01] if name == "adamw" else None
    losses, parameters = expect(net, data, theirs, options, clip, rates)
    start = {n: p.clone() for n, p in net.named_parameters()}
    train = mw.from_torch(net, (), data[0], training=True).train(ours(**options), clip_norm=clip)
    with train.parallelize(**MESHES[mesh]).start() as session:
        got = [
            session.run(**batch, **({"lr": rates[i]} if rates and i != 1 else {}))[0].item()
            for i, batch in enumerate(data)
        ]
        compare(session.parameters(), parameters)
    np.testing.assert_allclose(got, losses, rtol=1e-5)
    for parameter, value in net.named_parameters():
        assert torch.equal(value, start[parameter]), parameter


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("count", [2, 3])
def test_microbatches(mesh, count):
    """Gradients and losses are means over chunks; other outputs have all rows."""
    net, data = Net(), batches(3)
    options = dict(lr=0.02, eps=1e-3, weight_decay=0.1)
    losses, parameters = expect(net, data, torch.optim.AdamW, options, clip=0.5)
    train = mw.from_torch(net, (), data[0], training=True).train(mw.AdamW(**options), microbatches=count, clip_norm=0.5)
    with train.parallelize(**MESHES[mesh]).start() as session:
        for batch, want in zip(data, losses, strict=True):
            before = session.state()
            (loss, logits), (same, others) = session.run(entry="evaluate", **batch), session.run(**batch)
            assert loss.item() == pytest.approx(want, rel=1e-5) and same.item() == loss.item()
            assert logits.shape == (6, 5, 29) and torch.equal(logits, others)
            # A step that fails in its last chunk, which names no row of the table, changes nothing.
            state = session.state()
            with pytest.raises(mw.Error, match="out of range"):
                session.run(ids=torch.cat([batch["ids"][:-1], torch.full((1, 5), 99)]), labels=batch["labels"])
            assert all(torch.equal(a, state[n]) for n, a in session.state().items())
            assert not torch.equal(state["out.weight"], before["out.weight"])
        compare(session.parameters(), parameters)
        assert not any(name.startswith(("grad.", "sum.")) for name in session.state())


@pytest.mark.parametrize("mesh", [{"dp": 2}, {"dp": 2, "tp": 2}])
@pytest.mark.parametrize("shard", ["on", "off"])
def test_gradients_are_sent_once_a_step(mesh, shard):
    """Over dp, a step of four microbatches sends no more than a step of one."""
    net = Net()
    sent = []
    for count in (1, 4):
        batch = {name: value.repeat(8, 1) for name, value in batches(1)[0].items()}
        model = mw.from_torch(net, (), batch, training=True).train(mw.AdamW(), microbatches=count)
        report = model.parallelize(mesh=mesh, shard_optimizer=shard).report(format="json")
        over = [c for c in report["collectives"] if c["axes"] == ["dp"]]
        sent.append(sum(c["bytes_per_rank"] for c in over))
    # The losses and the counts of labels are numbers.
    assert 1000 < sent[1] < sent[0] + 200


def test_microbatches_that_are_refused():
    model = mw.from_torch(Net(), (), batches(1)[0], training=True)
    for count, words in ((0, "microbatches: expected an integer from 1 on, got 0"), (1.5, "an integer from 1 on, got 1.5"),
                         (4, "microbatches: expected a number that divides the 6 rows of input 'ids', got 4")):
        with pytest.raises(mw.Error, match=words):
            model.train(mw.SGD(), microbatches=count)
    with pytest.raises(mw.Error, match="comes from no PyTorch module"):
        mw.Model(model._program, model._parameters).train(mw.SGD(), microbatches=2)


def test_chunks_of_other_shapes_are_refused(tmp_path):
    function = """func.func {} @{}(%x: tensor<{}x2xf32> {{nn.input = "x"}}) -> (tensor<{}x2xf32> {{nn.output = "y"}}) {} {{
  return %x : tensor<{}x2xf32>
}}
"""
    call = "attributes {nn.call = #nn.call<[<@part chunks 2>, <@main>]>}"
    text = function.format("", "main", 3, 3, call, 3) + function.format("private", "part", 4, 4, "", 4)
    (tmp_path / "m.mlir").write_text(text)
    with pytest.raises(mw.Error, match=r"'x': expected one type, got .*3.* of 'main' and .*4.* of 'part'"):
        mw.load(tmp_path / "m.mlir")


def test_evaluation_shares_the_parameters_and_changes_nothing():
    net, data = Net(), batches(3)
    train = mw.from_torch(net, (), data[0], training=True).train(mw.SGD(lr=0.3))
    assert train.entries == ["step", "evaluate"]
    with train.parallelize(mesh={"dp": 2}).start() as session:
        session.run(**data[0])
        before = session.state()
        outputs = session.run(entry="evaluate", **data[1])
        after = session.state()
        parameters = session.parameters()
    assert all(torch.equal(before[n], after[n]) for n in before)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter.copy_(parameters[name])
        for got, want in zip(outputs, net(**data[1]), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


class Modal(nn.Module):
    """A batch norm, dropout, and a branch of the train mode."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.inner, self.norm, self.drop = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3)
        self.outer = nn.Linear(8, 3)

    def forward(self, x, y):
        z = self.outer(self.drop(self.norm(self.inner(x)).relu()))
        loss = F.cross_entropy(z, y, label_smoothing=0.2 if self.training else 0.0)
        return loss, z


@pytest.mark.parametrize("mesh", [{"tp": 1}, {"dp": 2}, {"dp": 2, "tp": 2}])
def test_evaluation_is_that_of_the_module(mesh):
    """With running statistics, without dropout and without what the train mode adds; they stay as they are."""
    net, g = Modal(), torch.Generator().manual_seed(1)
    data = [dict(x=torch.randn(12, 6, generator=g), y=torch.randint(0, 3, (12,), generator=g)) for _ in range(3)]
    train = mw.from_torch(net, (), data[0], training=True).train(mw.SGD(lr=0.1))
    assert train.entries == ["step", "evaluate"] and net.training and net.norm.training
    with train.parallelize(mesh=mesh).start() as session:
        for batch in data[:2]:
            session.run(**batch)
        before = session.state()
        assert before["norm.num_batches_tracked"] == 2
        outputs = session.run(entry="evaluate", **data[2])
        assert all(torch.equal(before[n], value) for n, value in session.state().items())
        net.load_state_dict(session.state_dict()["model"])
    with torch.no_grad():
        for got, want in zip(outputs, net.eval()(**data[2]), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_evaluation_that_cannot_be_imported_is_refused():
    class Random(nn.Linear):
        def forward(self, x):
            y = super().forward(x).square().mean()
            return y if self.training else y.item()

    model = mw.from_torch(Random(3, 3), (torch.randn(2, 3),), training=True)
    with pytest.raises(mw.Error, match="the entry 'evaluate' is the module in evaluation mode"):
        model.train(mw.SGD())


def test_masters():
    net, data = Net().bfloat16(), batches(3)
    train = mw.from_torch(net, (), data[0], training=True).train(mw.AdamW(lr=1e-4))
    with train.parallelize(mesh={"tp": 2}).start() as session:
        for batch in data:
            session.run(**batch)
        state, parameters = session.state(), session.parameters()
    for name in ("fused.weight", "table.weight"):
        assert parameters[name].dtype == torch.float32
        # Steps of 1e-4 are below what bf16 sees of most weights: the masters move all the same.
        moved = (parameters[name] - dict(net.named_parameters())[name].float()).abs()
        assert (moved > 0).float().mean() > 0.9 and moved.max() < 1e-3
        assert torch.equal(state[name], state[f"master.{name}"].bfloat16())


def test_saved_steps_go_on_with_the_same_bits(tmp_path):
    net, data = Net(), batches(4)
    plan = lambda mesh: (
        mw.from_torch(net, (), data[0], training=True).train(mw.AdamW(lr=0.01, eps=1e-2)).parallelize(mesh=mesh)
    )
    with plan({"dp": 2}).start() as session:
        for batch in data[:2]:
            session.run(**batch)
        session.save(tmp_path / "ckpt")
        for batch in data[2:]:
            session.run(**batch)
        whole = session.state()
    for mesh in ({"dp": 2}, {"tp": 3}):
        with plan(mesh).start(state=tmp_path / "ckpt") as session:
            for batch in data[2:]:
                session.run(**batch)
            again = session.state()
        for name, value in whole.items():
            if mesh == {"dp": 2}:
                assert torch.equal(again[name], value), name
            else:
                torch.testing.assert_close(again[name], value, rtol=1e-3, atol=1e-6)


def test_report_counts_the_state_of_training():
    net, data = Net(), batches(1)
    model = mw.from_torch(net.bfloat16(), (), data[0], training=True)
    trained = sum(p.numel() for n, p in net.named_parameters() if n not in ("frozen", "unread"))
    report = model.train(mw.Adam()).parallelize(mesh={"dp": 2}).report(format="json")
    memory = report["memory_per_rank"]
    assert memory["optimizer"] == 8 * trained + 8
    assert memory["masters"] == 4 * trained
    assert memory["weights"] >= 2 * trained
    assert "optimizer" not in model.parallelize(mesh={"dp": 2}).report(format="json")["memory_per_rank"]


@pytest.mark.parametrize(
    "options, words",
    [
        (dict(optimizer="adam"), "optimizer: expected meshwright.SGD, Adam or AdamW, got 'adam'"),
        (dict(optimizer=mw.AdamW(betas=(0.9, 1.0))), "beta2: expected a number from 0 on, below 1, got 1.0"),
        (dict(optimizer=mw.SGD(), clip_norm=0), "clip_norm: expected a number above 0, or None, got 0"),
        (dict(optimizer=mw.SGD(), parameters=["nothing.*"]), "pattern 'nothing.*' matches no parameter"),
        (dict(optimizer=mw.SGD(), loss=1), "expected a scalar"),
        (dict(optimizer=mw.SGD(), microbatches=4), "microbatches: expected a number that divides the 6 rows of input 'ids', got 4"),
    ],
)
def test_refusals(options, words):
    model = mw.from_torch(Net(), (), batches(1)[0], training=True)
    with pytest.raises(mw.Error) as error:
        model.train(**options)
    assert words in str(error.value)


NO_RATES = [
    ("fast", "lr: expected a number, got 'fast'"),
    (-0.1, "lr: expected a finite number from 0 on, got -0.1"),
    (float("nan"), "lr: expected a finite number from 0 on, got nan"),
    (float("inf"), "lr: expected a finite number from 0 on, got inf"),
    (1e39, "lr: expected a finite number from 0 on, got 1e+39"),
]


@pytest.mark.parametrize("rate, words", NO_RATES)
def test_rates_are_checked(rate, words):
    data = batches(1)
    for optimizer in (mw.SGD, mw.Adam, mw.AdamW):
        with pytest.raises(mw.Error) as error:
            optimizer(lr=rate)
        assert words in str(error.value)
    train = mw.from_torch(Net(), (), data[0], training=True).train(mw.SGD(lr=0.1))
    with train.parallelize(mesh={"tp": 1}).start() as session:
        with pytest.raises(mw.InputError) as error:
            session.run(**data[0], lr=rate)
    assert words in str(error.value)
