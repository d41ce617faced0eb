# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Training goes on in PyTorch where a session stopped, and in a session where PyTorch stopped."""

import meshwright as mw
import pytest
import torch
import transformers
from harness import launch
from safetensors.torch import save_file
from test_bundles import change_json, change_manifest
from test_training import NO_RATES, OPTIMIZERS, Net, batches
from torch import nn


class Normed(Net):
    """With a batch norm, whose statistics are state of the program, and a mask that no program reads."""

    def __init__(self):
        super().__init__()
        self.statistics = nn.BatchNorm1d(5)
        self.register_buffer("unused", torch.arange(3))
        self.register_parameter("never", nn.Parameter(torch.zeros(2)))

    def forward(self, ids, labels):
        loss, logits = super().forward(ids, labels)
        return loss + self.statistics(logits).square().mean(), logits


def optimizer_of(net, name):
    _, theirs, options = OPTIMIZERS[name]
    return theirs([p for p in net.parameters() if p.requires_grad], **options)


def torch_steps(net, optimizer, data):
    for batch in data:
        optimizer.zero_grad()
        net(**batch)[0].backward()
        optimizer.step()


def plan_of(net, name, mesh):
    ours, _, options = OPTIMIZERS[name]
    data = batches(1)[0]
    return mw.from_torch(net, (), data, training=True).train(ours(**options)).parallelize(mesh=mesh)


def start(net, name, mesh):
    return plan_of(net, name, mesh).start()


def bundle_of(plan, folder, **options):
    plan.compile(folder, **options)
    return mw.load_bundle(folder)


def same(got, want):
    """Two state dicts have the same bits."""
    assert got.keys() == want.keys()
    assert list(got["model"]) == list(want["model"])
    for name, value in want["model"].items():
        assert got["model"][name].dtype == value.dtype and torch.equal(got["model"][name], value), name
    assert got["optimizer"]["param_groups"] == want["optimizer"]["param_groups"]
    assert got["optimizer"]["state"].keys() == want["optimizer"]["state"].keys()
    for i, slot in want["optimizer"]["state"].items():
        assert slot.keys() == got["optimizer"]["state"][i].keys()
        assert all(torch.equal(got["optimizer"]["state"][i][key], value) for key, value in slot.items())


def close(session, net):
    state = {**session.parameters(), **{n: a for n, a in session.state().items() if n.startswith("statistics.running")}}
    for name, value in net.state_dict().items():
        if name in state:
            torch.testing.assert_close(state[name], value, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("mesh", [{"tp": 1}, {"dp": 2, "tp": 2}], ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_between_pytorch_and_sessions(name, mesh):
    net, data = Normed().train(), batches(4)
    with start(net, name, mesh) as session:
        empty = session.state_dict()
        for batch in data[:2]:
            session.run(**batch)
        saved = session.state_dict()
        optimizer = optimizer_of(net, name)
        want = optimizer.state_dict()
        # The same keys as PyTorch's, and its numbers.
        assert saved["model"].keys() == net.state_dict().keys()
        assert saved["optimizer"]["param_groups"] == want["param_groups"]
        assert not any(slot for slot in empty["optimizer"]["state"].values() if "step" in slot)
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        session.run(**data[2])
        torch_steps(net, optimizer, data[2:3])
        close(session, net)
        theirs = optimizer.state_dict()
        mine = session.state_dict()["optimizer"]
        assert mine["state"].keys() == theirs["state"].keys() - {i for i, s in theirs["state"].items() if s.get("momentum_buffer", 0) is None}
        for i, slot in mine["state"].items():
            assert slot.keys() == theirs["state"][i].keys()
            for key, value in slot.items():
                torch.testing.assert_close(value, theirs["state"][i][key], rtol=1e-4, atol=1e-5)
    # And back, into a session that started with other weights.
    other = change_weights(Normed().train())
    with torch.no_grad():
        net.never.add_(3)
    with start(other, name, mesh) as session:
        session.load_state_dict({"model": net.state_dict(), "optimizer": optimizer.state_dict()})
        close(session, net)
        assert torch.equal(session.state_dict()["model"]["never"], net.never)
        session.run(**data[3])
        torch_steps(net, optimizer, data[3:])
        close(session, net)


def test_parameters_that_no_program_reads():
    """A session lists them with the values that it was given."""
    net = Normed()
    plan = mw.from_torch(net, (), batches(1)[0], training=True).train(mw.SGD(lr=0.1)).parallelize(mesh={"dp": 2})
    with plan.start() as session:
        session.run(**batches(1)[0])
        names = {name for name, _ in net.named_parameters()}
        assert names <= set(session.parameters()) and not session.parameters()["never"].any()
        state = session.state_dict()
        session.load_state_dict({**state, "model": {**state["model"], "never": torch.ones(2)}})
        assert session.parameters()["never"].tolist() == [1, 1]
    assert not net.never.any()


def test_the_same_bits():
    """Also of bf16 parameters with masters."""
    net, data = Net().bfloat16(), batches(3)
    with start(net, "adamw", {"tp": 2}) as session, start(net, "adamw", {"tp": 2}) as other:
        for batch in data[:2]:
            session.run(**batch)
        saved = session.state_dict()
        assert saved["model"]["out.weight"].dtype == torch.float32
        other.load_state_dict(saved)
        session.run(**data[2])
        other.run(**data[2])
        state = other.state()
        assert all(torch.equal(a, state[n]) for n, a in session.state().items())


def change_weights(net):
    """Changes the parameters that a session can change."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1.0 if not parameter.requires_grad or parameter is net.unread else 0.5)
    return net


@pytest.mark.parametrize("mesh", [{"tp": 1}, {"dp": 2, "tp": 2}], ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_between_plans_and_bundles(name, mesh, tmp_path):
    """A bundle knows what a plan has from its module."""
    data, net, other = batches(4), Normed().train(), change_weights(Normed().train())
    plan = plan_of(net, name, mesh)
    with plan.start() as session, bundle_of(plan_of(other, name, mesh), tmp_path / "b").start() as second:
        with torch.no_grad():
            net.never.add_(3)
        for batch in data[:2]:
            session.run(**batch)
        saved = session.state_dict()
        saved["optimizer"]["param_groups"][0]["lr"] = 0.003
        for each in (second, session):
            each.load_state_dict(saved)
            each.run(**data[2])
        same(second.state_dict(), session.state_dict())
        assert second.state_dict()["optimizer"]["param_groups"][0]["lr"] == 0.003
        # And back.
        second.run(**data[3])
        with bundle_of(plan, tmp_path / "c").start() as third, plan.start() as fourth:
            for each in (third, fourth):
                each.load_state_dict(session.state_dict())
                each.run(**data[3])
                same(each.state_dict(), second.state_dict())


def test_bundles_of_bf16(tmp_path):
    """With masters, and with a frozen parameter in bf16."""
    plan, data = plan_of(Net().bfloat16(), "adamw", {"tp": 2}), batches(3)
    with plan.start() as session, bundle_of(plan, tmp_path / "b").start() as other:
        same(other.state_dict(), session.state_dict())
        for batch in data[:2]:
            session.run(**batch)
        other.load_state_dict(session.state_dict())
        session.run(**data[2])
        other.run(**data[2])
        same(other.state_dict(), session.state_dict())


def test_bundles_without_weights(tmp_path):
    """The tensors that calls do not change are those of the file that a session is given."""
    net, data = Normed().train(), batches(2)
    plan = plan_of(net, "adam", {"tp": 2})
    bundle = bundle_of(plan, tmp_path / "b", weights=False)
    save_file(net.state_dict(), tmp_path / "w.safetensors")
    with plan.start() as session, bundle.start(weights=tmp_path / "w.safetensors") as other:
        for each in (session, other):
            each.run(**data[0])
        same(other.state_dict(), session.state_dict())
        other.load_state_dict(session.state_dict())
        session.run(**data[1])
        other.run(**data[1])
        saved = session.state_dict()
        same(other.state_dict(), saved)
    with bundle.start(random_weights=1) as session:
        with pytest.raises(mw.Error, match="the session does not know the value of 'frozen': expected a session that was given a file of weights with it"):
            session.state_dict()
        with pytest.raises(mw.Error, match="'frozen' is not trained, and the session does not know its value: expected"):
            session.load_state_dict(saved)
    save_file({**net.state_dict(), "unused": torch.ones(4)}, tmp_path / "w.safetensors")
    with pytest.raises(mw.Error, match=r"'unused' in weights '.*': expected i64\[3\], got f32\[4\]"):
        bundle.start(weights=tmp_path / "w.safetensors")
    save_file({n: a for n, a in net.state_dict().items() if n != "never"}, tmp_path / "w.safetensors")
    with bundle.start(weights=tmp_path / "w.safetensors") as session:
        with pytest.raises(mw.Error, match="the session does not know the value of 'never'"):
            session.state_dict()
        session.load_state_dict(saved)
        same(session.state_dict(), saved)


@pytest.mark.parametrize("change, expected", [
    (lambda s: s["optimizer"].update(kind="lion"), "the optimizer: expected sgd, adam or adamw, got 'lion'"),
    (lambda s: s["optimizer"].pop("lr"), "manifest.json: damaged: .*'lr'"),
    (lambda s: s["fixed"][0].update(shape=[7]), "manifest.json: damaged: a part: expected 28 bytes, got 72"),
    (lambda s: s["fixed"][0].update(dtype="decimal"), "manifest.json: damaged: unknown dtype 'decimal'"),
    (lambda s: s["fixed"][0]["data"].update(bytes=10**9), "manifest.json: damaged: a part: expected 72 bytes, got 1000000000"),
    (lambda s: s["fixed"][0]["data"].update(group=9), "manifest.json: damaged: group: expected less than .*, got 9"),
])
def test_damaged_bundles(change, expected, tmp_path):
    bundle_of(plan_of(Net(), "sgd", {"tp": 2}), tmp_path / "b")
    change_manifest(tmp_path / "b", lambda manifest: change(manifest["state_dict"]))
    with pytest.raises(mw.Error, match=expected):
        mw.load_bundle(tmp_path / "b").start()


def test_a_model_of_transformers_in_part(tmp_path):
    """Tied tables, and parameters that a pattern leaves out."""
    config = transformers.GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=31, n_positions=8, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    net = transformers.GPT2LMHeadModel(config).train()
    ids = torch.arange(16).reshape(2, 8)
    batch = dict(input_ids=ids, labels=ids + 1)
    chosen = ["transformer.h.*.bias", "lm_head.weight"]
    model = mw.from_torch(net, (), batch, training=True).train(mw.Adam(lr=0.01, eps=1e-3), parameters=chosen)
    plan = model.parallelize(mesh={"tp": 2})
    with plan.start() as session, bundle_of(plan, tmp_path / "b").start() as other:
        session.run(**batch)
        saved = session.state_dict()
        other.load_state_dict(saved)
        net.load_state_dict(saved["model"])
        trained = [p for n, p in net.named_parameters() if n.endswith("bias") and ".h." in n or n == "transformer.wte.weight"]
        optimizer = torch.optim.Adam(trained, lr=0.01, eps=1e-3)
        optimizer.load_state_dict(saved["optimizer"])
        torch_steps(net, optimizer, [batch])
        session.run(**batch)
        for name, value in session.state_dict()["model"].items():
            torch.testing.assert_close(value, net.state_dict()[name], rtol=1e-4, atol=1e-5, msg=name)
        other.run(**batch)
        same(other.state_dict(), session.state_dict())


@pytest.mark.parametrize("is_bundle", [False, True], ids=["plan", "bundle"])
def test_saved_states_have_all_of_a_state_dict(is_bundle, tmp_path):
    """Its learning rate and the tensors that no program reads, of any type, are saved with the state."""
    net, data = Normed().train(), batches(3)
    net.register_buffer("mask", torch.arange(5) > 2)
    plan = plan_of(net, "adam", {"dp": 2, "tp": 2})
    other = bundle_of(plan, tmp_path / "b") if is_bundle else plan_of(change_weights(net), "adam", {"tp": 2})
    with plan.start() as session:
        session.run(**data[0])
        state = session.state_dict()
        state["optimizer"]["param_groups"][0]["lr"] = 0.003
        state["model"].update(never=torch.ones(2), mask=torch.arange(5) > 3)
        session.load_state_dict(state)
        session.save(tmp_path / "state")
        same(session.state_dict(), state)
        # The tool keeps them, too.
        save_file({name: value for name, value in data[1].items()}, tmp_path / "in.safetensors")
        plan.compile(tmp_path / "c")
        done = launch(tmp_path / "c", f"--inputs={tmp_path}/in.safetensors", f"--state={tmp_path}/state", f"--save-state={tmp_path}/next")
        assert done.returncode == 0, done.stderr
        with other.start(state=tmp_path / "state") as resumed:
            same(resumed.state_dict(), state)
            assert resumed.parameters().get("never", torch.ones(2)).tolist() == [1, 1]
            for each in (session, resumed):
                each.run(**data[1])
            assert resumed.state_dict()["optimizer"]["param_groups"][0]["lr"] == 0.003
            for name, value in session.parameters().items():
                torch.testing.assert_close(torch.as_tensor(resumed.parameters()[name]), value, rtol=1e-5, atol=1e-6) if name in resumed.parameters() else None
        with plan.start(state=tmp_path / "next") as resumed:
            same(resumed.state_dict(), session.state_dict())
    # A state that was saved before them has neither.
    with plan.start() as session:
        session.save(tmp_path / "plain")
        assert "learning_rate" not in (tmp_path / "plain" / "checkpoint.json").read_text()
    with other.start(state=tmp_path / "plain") as session:
        assert session.state_dict()["optimizer"]["param_groups"][0]["lr"] == 0.02


def test_rates_of_calls(tmp_path):
    """A rate that is none is an error on each path to a step."""
    plan, data = plan_of(Net(), "sgd", {"tp": 2}), batches(1)[0]
    bundle = bundle_of(plan, tmp_path / "b")
    for number, rate in enumerate((float("nan"), float("inf"), -1.0)):
        words = f"the learning rate: expected a finite number from 0 on, got {['nan', 'inf', '-1'][number]}"
        with bundle.start() as session:
            before = session.state()
            with pytest.raises(mw.Error, match=words):
                session.run(**data, lr=rate)
            assert all((a == before[n]).all() for n, a in session.state().items())
        save_file({**data, "lr": torch.tensor(rate)}, tmp_path / "in.safetensors")
        done = launch(tmp_path / "b", f"--inputs={tmp_path}/in.safetensors")
        assert done.returncode == 1 and words in done.stderr
    change_manifest(tmp_path / "b", lambda manifest: manifest["state_dict"]["optimizer"].update(lr=-2.0))
    with pytest.raises(mw.Error, match="lr: expected a finite number from 0 on, got -2.0"):
        bundle.start()
    with plan.start() as session:
        state = session.state_dict()
        state["optimizer"]["param_groups"][0]["lr"] = 0.5
        session.load_state_dict(state)
        session.save(tmp_path / "state")
    change_json(tmp_path / "state" / "checkpoint.json", lambda index: index.update(learning_rate=-3.0))
    with pytest.raises(mw.Error, match="state/checkpoint.json: the learning rate: expected a finite number from 0 on, got -3"):
        plan.start(state=tmp_path / "state")


def test_no_folder(tmp_path):
    plan = plan_of(Net(), "sgd", {"tp": 1})
    for start in (plan.start, bundle_of(plan, tmp_path / "b").start):
        with pytest.raises(mw.Error, match="state: expected a folder that a session saved to, got ''"):
            start(state="")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_reports_have_all_keys(name):
    keys = {"weights", "packing", "state", "activations_peak"}
    plan = plan_of(Net(), name, {"tp": 2})
    memory = plan.report(format="json")["memory_per_rank"]
    assert memory.keys() == keys | {"optimizer", "masters", "gradients"}
    assert (memory["optimizer"] == 0) == (name == "sgd")
    model = mw.from_torch(Net(), (), batches(1)[0])
    assert model.parallelize(mesh={"tp": 2}).report(format="json")["memory_per_rank"].keys() == keys


def test_unread_tensors_of_other_shapes():
    with start(Normed(), "sgd", {"tp": 1}) as session:
        saved = session.state_dict()
        with pytest.raises(mw.Error, match=r"'never': expected f32\[2\], got f32\[3\]"):
            session.load_state_dict({**saved, "model": {**saved["model"], "never": torch.ones(3)}})
        session.load_state_dict({**saved, "model": {**saved["model"], "never": torch.ones(2, dtype=torch.float64)}})
        assert session.parameters()["never"].dtype == torch.float32


def test_learning_rates():
    net, data = Net(), batches(2)
    with start(net, "sgd", {"tp": 1}) as session:
        saved = session.state_dict()
        # Numbers of how PyTorch computes the same, and of a scheduler.
        saved["optimizer"]["param_groups"][0].update(lr=0.0, initial_lr=0.3, foreach=True, fused=False)
        session.load_state_dict(saved)
        session.run(**data[0])
        assert all(torch.equal(a, saved["model"][n]) for n, a in session.parameters().items())
        assert session.state_dict()["optimizer"]["param_groups"][0]["lr"] == 0.0
        session.run(**data[0], lr=0.1)
        assert not torch.equal(session.parameters()["out.weight"], saved["model"]["out.weight"])


@pytest.mark.parametrize("is_bundle", [False, True], ids=["plan", "bundle"])
def test_refused(is_bundle, tmp_path):
    plan = plan_of(Net(), "adam", {"tp": 1})
    with (bundle_of(plan, tmp_path / "b") if is_bundle else plan).start() as session:
        before = session.state()

        def said(change):
            saved = session.state_dict()
            change(saved)
            with pytest.raises(mw.Error) as raised:
                session.load_state_dict(saved)
            assert all((a == before[n]).all() for n, a in session.state().items())
            return str(raised.value)

        group = lambda saved: saved["optimizer"]["param_groups"][0]
        slots = lambda saved: saved["optimizer"]["state"]
        assert "has no 'optimizer'" in said(lambda s: s.pop("optimizer"))
        assert "the state dict has no 'out.bias'" in said(lambda s: s["model"].pop("out.bias"))
        assert "the model has no 'more', which" in said(lambda s: s["model"].update(more=torch.ones(1)))
        assert "state 'out.bias': expected f32[18], got f32[17]" in said(lambda s: s["model"].update({"out.bias": torch.ones(17)}))
        assert "'frozen' is not trained and has another value" in said(lambda s: s["model"]["frozen"].add_(1))
        assert "the optimizer: expected 9 parameters, those that are trained, got 2" in said(lambda s: group(s).update(params=[0, 1]))
        solution = "train with mw.Adam"
        assert f"the optimizer's betas: expected (0.7, 0.9), which the plan compiled, got (0.5, 0.9); {solution}(betas=(0.5, 0.9)) to go on with it" in said(lambda s: group(s).update(betas=(0.5, 0.9)))
        assert f"the optimizer's weight_decay: expected 0.1, which the plan compiled, got 0; {solution}(weight_decay=0) to go on" in said(lambda s: group(s).update(weight_decay=0))
        assert "the optimizer's amsgrad: expected False, since mw.Adam has no other, got True" in said(lambda s: group(s).update(amsgrad=True))
        theirs = torch.optim.AdamW([torch.ones(1)], lr=0.02, betas=(0.7, 0.9), eps=1e-3, weight_decay=0.1).state_dict()["param_groups"][0]
        assert "the optimizer's decoupled_weight_decay: expected False, since mw.Adam has no other, got True" in said(lambda s: group(s).update({**theirs, "params": group(s)["params"]}))
        ours = lambda saved: saved["optimizer"]["state"].update({i: {"step": torch.tensor(1.0), "exp_avg": torch.zeros(shape), "exp_avg_sq": torch.zeros(shape)}
                                                                 for i, shape in enumerate(shapes)})
        shapes = [tuple(p.shape) for p in optimizer_of(Net(), "adam").param_groups[0]["params"]]
        assert "the optimizer has no 'exp_avg_sq' of 'scale', parameter 0" in said(lambda s: (ours(s), slots(s)[0].pop("exp_avg_sq")))
        assert "the optimizer has no 'exp_avg' of 'scale', parameter 0" in said(lambda s: (ours(s), slots(s).pop(0)))
        assert "the optimizer has a state of parameter 99, which is in none of its groups" in said(lambda s: (ours(s), slots(s).update({99: slots(s)[0]})))
        assert "the optimizer's groups have parameter 1 twice" in said(lambda s: group(s).update(params=[1, *range(1, 9)]))
        assert "the optimizer has 'momentum_buffer' of 'scale': mw.Adam has none" in said(lambda s: (ours(s), slots(s)[0].update(momentum_buffer=torch.zeros(shapes[0]))))
        for step in (-1.0, 1.5, 0.25, 2.0**60):
            assert f"the optimizer's step of parameter 1: expected a whole number of steps, 0 or more, got {step:g}" in said(
                lambda s, step=step: (ours(s), slots(s)[1].update(step=torch.tensor(step))))
        for rate, words in NO_RATES:
            assert f"the optimizer's {words}" in said(lambda s, rate=rate: group(s).update(lr=rate))
        assert "parameters: expected one number of steps for all, got 3 and 4" in said(lambda s: slots(s).update({0: {"step": torch.tensor(3.0)}, 1: {"step": torch.tensor(4.0)}}))


def test_sessions_without_optimizer(tmp_path):
    """Of a model that does not train, and of one that was not made by Model.train in this process."""
    plain = mw.from_torch(nn.Linear(3, 3), (torch.ones(2, 3),))
    trained = mw.from_torch(Net(), (), batches(1)[0], training=True).train(mw.SGD())
    trained.save(tmp_path / "m.mlir", tmp_path / "m.safetensors")
    for model in (plain, mw.load(tmp_path / "m.mlir", tmp_path / "m.safetensors")):
        plan = model.parallelize(mesh={"tp": 1})
        for session in (plan.start(), bundle_of(plan, tmp_path / "b").start()):
            for call in (session.state_dict, lambda: session.load_state_dict({})):
                with pytest.raises(mw.Error, match="the session has no optimizer: expected one of a plan of Model.train, or of a bundle"):
                    call()
            session.close()
