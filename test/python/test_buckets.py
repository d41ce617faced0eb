# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Calls of several sizes: which entry they take, how they are padded and cut, and the state between them."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import meshwright as mw

NAMES, BUCKETS = {0: "batch", 1: "tokens"}, {"batch": [1, 4], "tokens": [8, 24]}
MESHES = [{"tp": 1}, {"tp": 2}, {"dp": 2, "tp": 2}]


def x_of(*shape, seed=0):
    return torch.randn(*shape, 16, generator=torch.Generator().manual_seed(seed))


class Pool(nn.Module):
    """Sums, means, extremes and a softmax over tokens and over the batch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.a, self.b = nn.Linear(16, 24), nn.Linear(24, 16)

    def forward(self, x):
        x = x + self.b(F.gelu(self.a(x) + 1))
        return x.mean(1), x.amax(1), x - x.mean((0, 1)), (x * x.softmax(1)).sum(1), x[:, -1], x.argmax(1)


class Seen(nn.Module):
    """Counts tokens, and keeps a running mean over all of them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.o = nn.Linear(16, 16)
        self.register_buffer("n", torch.tensor(0))
        self.register_buffer("m", torch.zeros(16))

    def forward(self, x):
        y = self.o(x)
        self.n += x.shape[0] * x.shape[1]
        self.m += (y - self.m).sum((0, 1)) / self.n
        return y - self.m


def pool(**options):
    options = {"dynamic_shapes": {"x": NAMES}, "buckets": BUCKETS, **options}
    return mw.from_torch(Pool().eval(), (x_of(3, 1),), **options)


@pytest.fixture(scope="module")
def model():
    return pool()


def check_close(got, want):
    for g, w in zip(got, want, strict=True):
        assert tuple(g.shape) == tuple(w.shape)
        torch.testing.assert_close(torch.as_tensor(g), w, rtol=1e-5, atol=2e-5)


def test_entries_and_the_entry_of_a_call(model):
    assert model.entries == ["batch=1,tokens=8", "batch=1,tokens=24", "batch=4,tokens=8", "batch=4,tokens=24"]
    assert model.inputs == ["x"] and len(model.outputs) == 6
    for shape, entry in [((3, 20), 3), ((1, 5), 0), ((4, 8), 2), ((1, 24), 1), ((2, 9), 3), ((1, 1), 0)]:
        assert model.bucket(x_of(*shape)) == model.entries[entry]
        assert model.bucket(x=x_of(*shape)) == model.entries[entry]
    # 2 x 8 is less than 4 x 6, though 6 is closer to 5 than 8 is.
    uneven = pool(buckets={"tokens": [24, 8, 8], "batch": [4]})
    assert uneven.entries == ["tokens=8,batch=4", "tokens=24,batch=4"]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_results_are_those_of_the_sizes_of_the_call(model, mesh):
    net, plan = Pool().eval(), model.parallelize(mesh=mesh)
    with torch.no_grad(), plan.start() as session:
        for shape in [(3, 20), (1, 5), (4, 8), (1, 24), (1, 1), (3, 20)]:
            x = x_of(*shape)
            check_close(session.run(x), net(x))
        x = x_of(2, 7)
        check_close(plan.run(x), net(x))
        check_close(session.run(x, entry="batch=4,tokens=24"), net(x))
        arrays = session.run(x.numpy())
        assert isinstance(arrays[0], np.ndarray)
        check_close(arrays, net(x))


def test_padding_reaches_nothing(model):
    """A larger call, and one of NaN, leave nothing behind: the same bits."""
    small, large = x_of(2, 5), x_of(4, 24) * 1e30
    with pool(buckets={"batch": [4], "tokens": [24]}).parallelize(mesh={"tp": 2}).start() as session:
        before = session.run(small)
        session.run(large)
        session.run(large * torch.nan)
        after = session.run(small)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_state_goes_on_from_bucket_to_bucket(mesh, tmp_path):
    net = Seen().eval()
    model = mw.from_torch(net, (x_of(3, 20),), dynamic_shapes={"x": NAMES}, buckets=BUCKETS)
    plan, truth = model.parallelize(mesh=mesh), copy.deepcopy(net)
    calls = [x_of(*shape, seed=i) for i, shape in enumerate([(3, 20), (1, 5), (4, 8), (2, 24), (1, 1)])]
    with torch.no_grad():
        want = [truth(x) for x in calls]
        with plan.start() as session:
            for x, w in zip(calls[:3], want, strict=False):
                check_close(session.run(x), [w])
            session.save(tmp_path / "state")
        with plan.start(state=tmp_path / "state") as session:
            session.warm_up()
            for x, w in zip(calls[3:], want[3:], strict=True):
                check_close(session.run(x), [w])
            state = session.state()
    assert int(state["n"]) == int(truth.n)
    check_close([state["m"]], [truth.m])


def test_an_entry_is_planned_at_its_first_call(model, monkeypatch):
    planned, parallelize = [], mw._core.Plan.parallelize

    class Watched:
        def __getattr__(self, name):
            return getattr(mw._core, name)

        class Plan(mw._core.Plan):
            @staticmethod
            def parallelize(program, options):
                planned.append([entry.name for entry in program.entries])
                return parallelize(program, options)

    monkeypatch.setattr("meshwright.bucket_model._core", Watched())
    plan = model.parallelize(mesh={"tp": 2})
    assert planned == [model.entries[:1]]
    plan.run(x_of(4, 20))
    plan.run(x_of(3, 24))
    assert planned == [model.entries[:1], model.entries[3:]]
    with plan.start() as session:
        session.run(x_of(4, 20))
        assert len(planned) == 2 and session.entries == model.entries
        session.warm_up()
        assert planned[2:] == [model.entries]
        session.run(x_of(1, 2))
    assert len(planned) == 3
    assert "plan for 2 ranks" in plan.report(entry="batch=4,tokens=24") and len(planned) == 3


def test_weights_are_those_of_the_start_of_the_session():
    net = Pool().eval()
    plan = mw.from_torch(net, (x_of(3, 1),), dynamic_shapes={"x": NAMES}, buckets=BUCKETS).parallelize(mesh={"tp": 2})
    with torch.no_grad(), plan.start() as session:
        session.run(x_of(1, 2))
        net.a.bias += 1
        with pytest.raises(mw.Error, match="'a.bias' has changed since the session began.*warm_up"):
            session.run(x_of(4, 20))
        session.run(x_of(1, 2))  # what runs goes on
        check_close(plan.run(x_of(4, 20)), net(x_of(4, 20)))


def test_plans_and_models_are_checked_at_the_sizes_of_a_call(model):
    assert max(model.check(x_of(3, 20)).values()) < 1e-5
    plan = model.parallelize(mesh={"dp": 2, "tp": 2})
    assert list(plan.check(x_of(3, 20))) == model.outputs
    with pytest.raises(mw.CheckFailed, match="output 'output.0': expected a difference of at most 0 of its") as error:
        plan.check(x_of(3, 20), tolerance=0)
    assert error.value.diagnostics[0].line and error.value.differences["output.0"] < 1e-5
    seen = mw.from_torch(Seen().eval(), (x_of(3, 20),), dynamic_shapes={"x": NAMES}, buckets=BUCKETS)
    assert set(seen.parallelize(mesh={"tp": 2}).check(x_of(2, 7))) == {"output", "n", "m"}
    assert set(seen.check(x_of(2, 7))) == {"output", "n", "m"}


class Nested(nn.Module):
    """Lists, dicts and flags among arguments and results."""

    def forward(self, xs, more, scale=2.0):
        y = xs[0] + xs[1].sum(1, keepdim=True) + more["k"][:, None, None]
        return {"y": y * scale, "none": None, "list": [y.sum(1), xs[0].shape[1]]}


def test_arguments_of_any_structure():
    net = Nested()
    args = [x_of(3, 20), x_of(3, 9)], {"k": torch.ones(3)}
    shapes = {"xs": [NAMES, {0: "batch", 1: "other"}], "more": {"k": {0: "batch"}}}
    model = mw.from_torch(net, (args[0],), {"more": args[1]}, dynamic_shapes=shapes, buckets={**BUCKETS, "other": [16]})
    plan = model.parallelize(mesh={"dp": 1})
    args = [x_of(2, 7), x_of(2, 3)], {"k": torch.arange(2.0)}
    want = net(args[0], more=args[1])
    check_close(plan.run(args[0], more=args[1]), [want["y"], want["list"][0]])
    assert model.bucket(args[0], more=args[1]) == "batch=4,tokens=8,other=16"


class Two(nn.Module):
    def forward(self, x, y):
        return (x.mean(1) - y).sum(-1)


def test_calls_that_do_not_fit(model):
    plan = model.parallelize(mesh={"tp": 2})
    for x, said in [
        (x_of(2, 25), "input 'x': size 'tokens' is 25, above its largest bucket, 24"),
        (x_of(5, 3), "input 'x': size 'batch' is 5, above its largest bucket, 4"),
        (x_of(2, 0), "input 'x': size 'tokens' is 0, expected 1 or more"),
        (x_of(2, 5)[..., :15], "input 'x': expected f32[batch, tokens, 16], got f32[2, 5, 15]"),
        (x_of(2, 3)[0], "input 'x': expected f32[batch, tokens, 16], got f32[3, 16]"),
        (x_of(2, 5).double(), "input 'x': expected f32[batch, tokens, 16], got f64[2, 5, 16]"),
    ]:
        with pytest.raises(mw.InputError) as error:
            plan.run(x)
        assert said in str(error.value)
    with pytest.raises(mw.InputError, match="size 'tokens' is 9, above that of the entry 'batch=4,tokens=8', 8"):
        plan.run(x_of(2, 9), entry="batch=4,tokens=8")
    with pytest.raises(mw.Error, match="there is no entry 'other'"):
        plan.run(x_of(2, 9), entry="other")
    two = mw.from_torch(Two(), (x_of(2, 3), x_of(2)), dynamic_shapes={"x": NAMES, "y": {0: "batch"}}, buckets=BUCKETS)
    with pytest.raises(mw.InputError, match="input 'y': size 'batch' is 3, but 2 in input 'x'"):
        two.parallelize(mesh={"dp": 1}).run(x_of(2, 3), x_of(3))


def test_sizes_that_the_module_does_not_take():
    class Module(nn.Module):
        def forward(self, x):
            return x[:, -3:] * 2 if x.shape[1] != 7 else x

    model = mw.from_torch(Module(), (x_of(2, 8),), dynamic_shapes={"x": NAMES}, buckets=BUCKETS)
    plan = model.parallelize(mesh={"dp": 1})
    check_close(plan.run(x_of(3, 6)), [x_of(3, 6)[:, -3:] * 2])
    for tokens, said in ((2, "the module needs tokens >= 3"), (7, "the module needs Ne(tokens, 7)")):
        with pytest.raises(mw.InputError) as error:
            plan.run(x_of(2, tokens))
        assert f"tokens={tokens}: {said}" in str(error.value) and error.value.diagnostics[0].line


@pytest.mark.parametrize(
    "options, said",
    [
        (dict(dynamic_shapes={"x": {0: "batch"}}), "buckets name 'tokens', which no input has: expected one of 'batch'"),
        (dict(buckets={"batch": [1]}), "size 'tokens' of input 'x' has no buckets"),
        (dict(buckets=None), "dynamic_shapes without buckets: expected both, or none of them"),
        (dict(dynamic_shapes=None), "buckets without dynamic_shapes: expected both, or none of them"),
        (dict(dynamic_shapes={"y": NAMES}), "dynamic_shapes names 'y': expected one of x"),
        (dict(dynamic_shapes={"x": {0: "batch", 3: "tokens"}}), "expected a dimension from 0 to 2, got 3"),
        (dict(dynamic_shapes={"x": {0: "batch", 1: 2.5}}), "expected a name or a torch.export.Dim for dimension 1, got 2.5"),
        (dict(dynamic_shapes=3), "dynamic_shapes: expected a dict by the names of arguments, as in torch.export"),
        (dict(buckets={}), "buckets: expected {"),
        (dict(buckets={"batch": [], "tokens": [8]}), "buckets['batch']: expected one size at least, got none"),
        (dict(buckets={"batch": [0], "tokens": [8]}), "a size of buckets['batch']: expected an integer from 1 on, got 0"),
        (dict(buckets={"batch": 4, "tokens": [8]}), "buckets['batch']: expected a list of sizes, got 4"),
    ],
)
def test_names_and_buckets_that_do_not_fit(options, said):
    with pytest.raises(mw.Error) as error:
        pool(**options)
    assert said in str(error.value)


class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.e, self.o = nn.Embedding(31, 16), nn.Linear(16, 31)

    def forward(self, ids, labels):
        x = self.e(ids)
        x = x + F.scaled_dot_product_attention(x, x, x, is_causal=True)
        return F.cross_entropy(self.o(x).flatten(0, 1), labels.flatten())


def loss_model(net):
    ids = torch.zeros(2, 3, dtype=torch.long)
    shapes = {"ids": NAMES, "labels": NAMES}
    return mw.from_torch(net, (ids, ids), training=True, dynamic_shapes=shapes, buckets=BUCKETS)


def batches():
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, 31, (2, *s), generator=generator).unbind() for s in ((3, 20), (1, 5), (4, 8), (2, 24))]


def test_gradients_count_the_elements_of_the_call():
    net = Loss()
    gradients = loss_model(net).differentiate()
    for mesh in MESHES:
        plan = gradients.parallelize(mesh=mesh)
        for ids, labels in batches():
            net.zero_grad()
            loss = net(ids, labels)
            loss.backward()
            want = {f"grad.{name}": p.grad for name, p in net.named_parameters()}
            got = plan.run(ids, labels)
            check_close(got, [loss.detach(), *(want[name] for name in gradients.outputs[1:])])
    assert gradients.check(*batches()[0])["output"] < 1e-5


def test_steps_of_several_sizes():
    net = Loss()
    model = loss_model(net).train(mw.SGD(lr=0.1))
    assert model.entries[:2] == ["step,batch=1,tokens=8", "evaluate,batch=1,tokens=8"]
    assert model.bucket(*batches()[0]) == "step,batch=4,tokens=24"
    ours, optimizer = copy.deepcopy(net), None
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    with model.parallelize(mesh={"dp": 2, "tp": 2}).start() as session:
        for ids, labels in batches():
            optimizer.zero_grad()
            loss = ours(ids, labels)
            loss.backward()
            optimizer.step()
            check_close(session.run(ids, labels), [loss.detach()])
        check_close(session.run(*batches()[1], entry="evaluate"), [ours(*batches()[1]).detach()])
        trained = session.parameters()
    check_close([trained[n] for n in dict(ours.named_parameters())], [p.detach() for p in ours.parameters()])
    with pytest.raises(mw.Error, match="microbatches of a model with buckets: expected 1, got 2"):
        loss_model(net).train(mw.SGD(lr=0.1), microbatches=2)
    with pytest.raises(mw.Error, match="a check of a step of a model with buckets is not covered"):
        model.check(*batches()[0])
