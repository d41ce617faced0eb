# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Loss scaling, as PyTorch's GradScaler does it."""

import copy

import meshwright as mw
import numpy as np
import pytest
import torch
from test_training import Net, batches

MESHES = {
    "one rank": dict(mesh={"tp": 1}),
    "dp=2": dict(mesh={"dp": 2}, shard_optimizer="on"),
    "tp=2 sp": dict(mesh={"tp": 2}, sequence_parallel="on"),
    "dp=2,tp=3": dict(mesh={"dp": 2, "tp": 3}),
}
RULES = {"sgd": mw.SGD(lr=0.1, momentum=0.8), "adamw": mw.AdamW(lr=0.01, eps=1e-3)}


def train(net, batch, rule="adamw", **options):
    return mw.from_torch(net, (), batch, training=True).train(RULES[rule], **options)


def steps(session, data):
    return [session.run(**batch)[0].item() for batch in data]


def same(one, other, but=()):
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one if n not in but)


@pytest.mark.parametrize("scale", ["auto", 4096])
@pytest.mark.parametrize("mesh", MESHES)
def test_a_power_of_two_changes_no_bit(mesh, scale):
    net, data = Net(), batches(3)
    results = []
    for loss_scale in (None, scale):
        model = train(net, data[0], clip_norm=0.5, loss_scale=loss_scale)
        with model.parallelize(**MESHES[mesh]).start() as session:
            results.append((steps(session, data), session.parameters()))
            state = session.state()
    assert results[0][0] == results[1][0] and same(results[0][1], results[1][1])
    assert state["loss_scale"].item() == (65536 if scale == "auto" else 4096)
    assert state["skipped_steps"].item() == 0


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("mesh", MESHES)
def test_a_step_that_is_not_finite_is_skipped(mesh, rule, count):
    """The parameters and the optimizer's state stay, the scale halves, and the next step is as if the
    skipped one had not been."""
    net, data = Net(), batches(3)
    plan = train(net, data[0], rule, loss_scale="auto", microbatches=count).parallelize(**MESHES[mesh])
    with plan.start() as session:
        steps(session, data[:1])
        before = session.state()
        # The gradients become more than f32 has. The loss does not.
        large = {"loss_scale": np.float32(2.0**127), "table.weight": before["table.weight"] * 1e4}
        session.set_state(large)
        assert np.isfinite(steps(session, data[1:2]))
        assert torch.equal(session.parameters()["table.weight"], large["table.weight"])
        session.set_state({"table.weight": before["table.weight"]})
        after = session.state()
        assert after["skipped_steps"].item() == 1
        assert after["loss_scale"].item() == 2.0**126 and after["loss_scale.growth_tracker"].item() == 0
        assert same(before, after, but=("skipped_steps", "loss_scale", "loss_scale.growth_tracker"))
        session.set_state({"loss_scale": np.float32(65536)})
        got = steps(session, data[2:]), session.parameters()
    with plan.start() as session:
        want = steps(session, data[:1] + data[2:])[1:], session.parameters()
    assert got[0] == want[0] and same(got[1], want[1])


def test_the_scale_follows_grad_scaler(tmp_path):
    """The scale, the count of finite steps and resuming in between."""
    net, data = Net(), batches(1)
    plan = train(net, data[0], "sgd", loss_scale="auto").parallelize(mesh={"dp": 2})
    scaler = torch.amp.GradScaler("cpu")
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    session = plan.start()
    try:
        for finite in (True, False, True, True, False, False, True):
            session.set_state({"scale": torch.tensor([1.0 if finite else float("nan")])})
            session.run(**data[0], lr=0.0)
            parameter.grad = scaler.scale(torch.ones(1)) * (1.0 if finite else float("nan"))
            scaler.step(optimizer)
            scaler.update()
            # The growth comes after 2,000 finite steps.
            if scaler.state_dict()["_growth_tracker"] == 2:
                scaler.load_state_dict({**scaler.state_dict(), "_growth_tracker": 1998})
                session.set_state({"loss_scale.growth_tracker": np.int64(1998)})
            session.save(tmp_path / "saved")
            session.close()
            session = plan.start(state=tmp_path / "saved")
            state = session.state()
            assert state["loss_scale"].item() == scaler.get_scale()
            assert state["loss_scale.growth_tracker"].item() == scaler.state_dict()["_growth_tracker"]
        for _ in range(3):
            session.set_state({"scale": torch.ones(1), "loss_scale.growth_tracker": np.int64(1999)})
            scale = session.state()["loss_scale"].item()
            session.run(**data[0], lr=0.0)
            assert session.state()["loss_scale"].item() == 2 * scale
            assert session.state()["loss_scale.growth_tracker"].item() == 0
        assert session.state()["skipped_steps"].item() == 3
    finally:
        session.close()


@pytest.mark.parametrize("mesh", MESHES)
def test_f16_keeps_masters_and_small_gradients(mesh):
    """Gradients far below what f16 has arrive. Without a scale they are lost."""
    net, data = Net(), batches(4)
    for p in net.parameters():
        p.data = p.data.half().float()

    class Small(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = copy.deepcopy(net).half()

        def forward(self, ids, labels):
            return self.net(ids, labels)[0].float() * 2.0**-18

    moved = []
    start = {f"net.{n}": p.detach().double() for n, p in net.named_parameters()}
    for scale in ("auto", None):
        model = mw.from_torch(Small(), (), data[0], training=True).train(mw.SGD(lr=2.0**14), loss_scale=scale)
        with model.parallelize(**MESHES[mesh]).start() as session:
            assert np.isfinite(steps(session, data)).all()
            parameters = session.parameters()
            assert parameters["net.fused.weight"].dtype == torch.float32
            assert not scale or session.state()["skipped_steps"].item() == 0
        moved.append({n: parameters[n].double() - start[n] for n in start if n in parameters})
    twin = copy.deepcopy(net).double()
    optimizer = torch.optim.SGD([p for p in twin.parameters() if p.requires_grad], lr=2.0**-4)
    for batch in data:
        optimizer.zero_grad()
        twin(**batch)[0].backward()
        optimizer.step()
    want = {f"net.{n}": p.detach() - start[f"net.{n}"] for n, p in twin.named_parameters()}
    off = [max((m[n] - want[n]).abs().max() / want[n].abs().max() for n in ("net.fused.weight", "net.table.weight"))
           for m in moved]
    assert off[0] < 2e-2 < off[1]


def test_state_dicts(tmp_path):
    """The scale goes out and in as the state of a GradScaler."""
    net, data = Net(), batches(2)
    plan = train(net, data[0], loss_scale="auto").parallelize(mesh={"dp": 2})
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    scaler.scale(torch.ones(1))
    with plan.start() as session:
        assert session.state_dict()["scaler"] == torch.amp.GradScaler("cpu").state_dict()
        session.load_state_dict({**session.state_dict(), "scaler": scaler.state_dict()})
        assert session.state()["loss_scale"].item() == 512
        steps(session, data)
        saved = session.state_dict()
        assert saved["scaler"] == {**scaler.state_dict(), "_growth_tracker": 2}
        scaler.load_state_dict(saved["scaler"])
        with pytest.raises(mw.Error, match="growth_interval: expected 2000, got 10"):
            session.load_state_dict({**saved, "scaler": {**saved["scaler"], "growth_interval": 10}})
        with pytest.raises(mw.Error, match="the state dict has no 'scaler'"):
            session.load_state_dict({"model": saved["model"], "optimizer": saved["optimizer"]})
    plan.compile(tmp_path / "b")
    with mw.load_bundle(tmp_path / "b").start() as session:
        session.load_state_dict(saved)
        assert session.state_dict()["scaler"] == saved["scaler"]
    with train(net, data[0]).parallelize(mesh={"dp": 2}).start() as session:
        assert "scaler" not in session.state_dict()
        with pytest.raises(mw.Error, match='a \'scaler\': expected a model of loss_scale="auto"'):
            session.load_state_dict(saved)


@pytest.mark.parametrize("scale, words", [
    ("always", "loss_scale: expected a number, got 'always'"),
    (0, 'loss_scale: expected a number above 0, "auto" or None, got 0'),
    (float("inf"), 'loss_scale: expected a number above 0, "auto" or None, got inf'),
])
def test_refusals(scale, words):
    net, data = Net(), batches(1)
    with pytest.raises(mw.Error, match=words):
        train(net, data[0], loss_scale=scale)
