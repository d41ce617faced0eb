# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Padding beside values that are not finite, and queries that a finite number hides from every key,
against PyTorch in f64."""
import copy

import meshwright as mw
import pytest
import torch
from harness import assert_close, launch, run_module
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

INF = float("inf")
LEAST = torch.finfo(torch.float32).min


def randn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def check(net, args, **options):
    torch.manual_seed(1)
    net = net().eval()
    wide = [a.double() if a.is_floating_point() else a for a in args]
    want = copy.deepcopy(net).double()(*wide)
    assert want.isfinite().all()
    plan = mw.from_torch(net, args).parallelize(**options)
    got = plan.run(*args)[0].double()
    assert (got - want).abs().max() <= 1e-5 * want.abs().max()
    return plan


class Features(nn.Module):
    """Ten features, a function of them, and the contraction over them."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.a, self.b = (nn.Linear(16, 10, bias=False) for _ in range(2))
        self.o = nn.Linear(10, 16, bias=False)
        self.p = nn.Parameter(torch.rand(10) + 0.5)
        self.register_buffer("hidden", torch.tensor([0.0, -INF]))

    def forward(self, x):
        return self.o(self.how(self, x))


FEATURES = {
    "logarithm of a difference": lambda s, x: (s.a(x).square() + s.p - 0.01).log(),
    "quotient": lambda s, x: s.b(x) / (s.a(x).square() + s.p),
    "overflow": lambda s, x: s.p * (95 - 100 * s.p).exp() * s.b(x),
    "underflow": lambda s, x: s.b(x) / ((s.p + 1e-3).square().square() * 1e-30),
    "true zeros": lambda s, x: (s.b(x) / F.relu(x[..., :1])).tanh() * s.p,
    "minus infinity times zero": lambda s, x: (s.p * (x[..., :1] > 0).float().log()).exp() * s.b(x),
    "infinite buffer": lambda s, x: (s.p * s.hidden[1]).exp() + s.b(x),
    "over its size": lambda s, x: s.b(x) * s.a(x) / s.a(x).abs().clamp_min(1e-3),
    "rectified": lambda s, x: F.relu(s.a(x)) * s.b(x),
    "leaky": lambda s, x: F.leaky_relu(s.a(x)) * s.p,
}


@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize("tp", [3, 4, 8])
def test_features(name, tp):
    check(lambda: Features(FEATURES[name]), (randn(3, 7, 16),), mesh={"tp": tp})


def test_selection_of_infinite_branches():
    """Both branches are infinite where a hidden state is, so padding needs no mask."""
    torch.manual_seed(1)
    net, x = Features(FEATURES["leaky"]).eval(), randn(3, 16)
    x[0, 5] = -INF
    plan, want = mw.from_torch(net, (x,)).parallelize(mesh={"tp": 4}), net(x)
    assert "dist.positions" not in plan.ir()
    got = plan.run(x)[0]
    assert not got[0].isfinite().any() and not want[0].isfinite().any()
    assert_close(got[1:], want[1:], 1e-5)


class Rows(nn.Module):
    """A projection of rows, a function of them, and a loss of weighted rows."""

    def __init__(self, loss):
        super().__init__()
        self.loss, self.a = loss, nn.Linear(10, 12)
        self.p, self.q = nn.Parameter(torch.rand(21) + 0.5), nn.Parameter(torch.rand(6))

    def forward(self, x, labels):
        return self.loss(self, self.a(x), labels)


ROWS = {
    "differences": lambda s, h, y: (h.diff(dim=1) - 1).square().mean(),
    "shifted": lambda s, h, y: (h + F.pad(h, (0, 0, 1, 0))[:, :-1] - 1).square().mean(),
    "shared by a row of each rank": lambda s, h, y: (
        F.cross_entropy(h.softmax(0).transpose(0, 1).flatten(0, 1), y.T.flatten(), reduction="none")
        .view(7, 3) * s.p[:7, None]).sum(1).mean(),
    "every other": lambda s, h, y: (
        (h[:, ::2][:, :3] - h[:, 1::2]).flatten(0, 1).logsumexp(-1) * s.p[:9]).sum(),
    "repeated": lambda s, h, y: (h.repeat_interleave(2, 1).flatten(0, 1).logsumexp(-1)
                                 * s.p.repeat(2)).sum(),
    "attention of repeated sequences": lambda s, h, y: (
        F.scaled_dot_product_attention(*[h.repeat(2, 1, 1)] * 3).flatten(0, 1).square().mean(-1)
        * s.p.repeat(2)).sum(),
    "weighted repetitions": lambda s, h, y: torch.einsum(
        "btf,b->tf", torch.einsum("btf,ctf->bct", h, h).exp().repeat(2, 1, 1), s.q).clamp(max=9).mean(),
    "weighted losses": lambda s, h, y: (
        F.cross_entropy(h.flatten(0, 1), y.flatten(), reduction="none") * s.p).sum(),
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("options", [dict(mesh={"dp": 2, "tp": 2}, sequence_parallel="off"),
                                     dict(mesh={"dp": 2}, sequence_parallel="on"),
                                     dict(mesh={"dp": 8}), dict(mesh={"dp": 3}),
                                     dict(mesh={"tp": 3}),
                                     dict(mesh={"tp": 4}, sequence_parallel="on")], ids=str)
def test_gradients_of_rows(name, options):
    """Ops that no target has a kernel for are computed by others, whose padding is proved again."""
    torch.manual_seed(1)
    net, inputs = Rows(ROWS[name]), dict(x=randn(3, 7, 10), labels=torch.arange(21).view(3, 7) % 12)
    model = mw.from_torch(net, (), inputs, training=True).differentiate()
    got = dict(zip(model.outputs, model.parallelize(**options).run(**inputs), strict=True))
    wide = copy.deepcopy(net).double()
    wide(inputs["x"].double(), inputs["labels"]).backward()
    want = {n: p.grad for n, p in wide.named_parameters() if p.grad is not None}
    top = max(g.abs().max() for g in want.values())
    for n, g in want.items():
        assert (got[f"grad.{n}"].double() - g).abs().max() <= 1e-6 * top, n


def count_launches(plan):
    text = plan.ir(phase="rt")
    return text.count("rt.kernel") + text.count("rt.start")


@pytest.mark.parametrize("name", ["logarithm of a difference", "quotient", "minus infinity times zero"])
def test_mask_takes_no_launch(name):
    """The kernel that computes the value masks it: without padding there are as many launches."""
    model = mw.from_torch(Features(FEATURES[name]).eval(), (randn(3, 7, 16),))
    padded, whole = (model.parallelize(mesh={"tp": tp}) for tp in (4, 2))
    assert "dist.positions" in padded.ir() and "dist.positions" not in whole.ir()
    assert count_launches(padded) == count_launches(whole)


class Feed(nn.Module):
    """`features` features, an activation of zero that is not zero, and the contraction over them."""

    def __init__(self, features, activation):
        super().__init__()
        self.up, self.down = nn.Linear(24, features), nn.Linear(features, 24)
        self.activation = activation

    def forward(self, x):
        return self.down(self.activation(self.up(x)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("activation", [torch.sigmoid, torch.exp, lambda u: u.softmax(-1)],
                         ids=["sigmoid", "exp", "softmax"])
def test_masked_products(activation, tp, dtype, tmp_path):
    """Several tiles of rows, vectors of columns and a tail; a bundle has the numbers of all ranks."""
    torch.manual_seed(1)
    net, x = Feed(151, activation).eval(), randn(61, 24)
    want = copy.deepcopy(net).double()(x.double())
    plan = mw.from_torch(net.to(dtype), (x.to(dtype),)).parallelize(mesh={"tp": tp})
    whole = mw.from_torch(Feed(150, activation).to(dtype), (x.to(dtype),)).parallelize(mesh={"tp": tp})
    assert count_launches(plan) == count_launches(whole)
    got = plan.run(x.to(dtype))[0]
    assert (got.double() - want).abs().max() <= (1e-5 if dtype == torch.float32 else 2e-2) * want.abs().max()
    plan.compile(tmp_path / "bundle")
    save_file({"x": x.to(dtype)}, tmp_path / "in.safetensors")
    done = launch(tmp_path / "bundle", f"--inputs={tmp_path}/in.safetensors", f"--outputs={tmp_path}/out.safetensors")
    assert done.returncode == 0, done.stderr
    [read] = load_file(tmp_path / "out.safetensors").values()
    assert torch.equal(read, got)


class Tokens(nn.Module):
    """Attention, and sums over tokens of values that are not zero in padding."""

    def forward(self, x):
        h = x[:, None]
        y = F.scaled_dot_product_attention(h, h, h, is_causal=True)[:, 0]
        return (y.exp() / (y.square().sum(-1, keepdim=True) + 1)).sum(1)


@pytest.mark.parametrize("order", ["contiguous", "zigzag", "striped"])
def test_masked_tokens(order):
    """Rows of padding, in each order."""
    plan = check(Tokens, (randn(2, 13, 33),), mesh={"ring": 4},
                 context_parallel={"ring": "ring", "order": order})
    assert "nn.select" in plan.ir()


class Heads(nn.Module):
    """Six heads whose scores have slopes, as in ALiBi, and values of the tokens."""

    def __init__(self, least):
        super().__init__()
        self.least = least
        self.q, self.k, self.v, self.o = (nn.Linear(24, 24, bias=False) for _ in range(4))
        self.register_buffer("slopes", 2.0 ** -torch.arange(1, 7).float())

    def forward(self, x, lengths):
        q, k, v = (f(x).unflatten(-1, (6, 4)).transpose(1, 2) for f in (self.q, self.k, self.v))
        i = torch.arange(x.shape[1])
        hidden = (i > i[:, None]) | (i < (x.shape[1] - lengths)[:, None, None, None])
        bias = (i - i[:, None]).to(x.dtype) * self.slopes[:, None, None]
        scores = q @ k.mT / 2 + torch.where(hidden, self.least, bias)
        weights = scores.softmax(-1)
        if self.least == -INF:
            weights = torch.where(hidden.all(-1, keepdim=True), 0.0, weights)
        return self.o((weights @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("options", [
    {"mesh": {"tp": 1}}, {"mesh": {"tp": 4}}, {"mesh": {"dp": 2, "tp": 4}},
    {"mesh": {"tp": 8}, "sequence_parallel": "on"},
], ids=str)
@pytest.mark.parametrize("least", [-INF, LEAST])
def test_heads(least, options):
    check(lambda: Heads(least), (randn(3, 9, 24), torch.tensor([9, 4, 2])), **options)


class Given(nn.Module):
    """Attention with a mask of the caller."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(24, 24, bias=False) for _ in range(3))

    def forward(self, x, mask):
        q, k, v = (f(x).unflatten(-1, (6, 4)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("ring", [2, 4])
def test_hidden_rows_of_a_ring(ring):
    """The mean of all values, though ranks have different numbers of keys."""
    i = torch.arange(9)
    hidden = (i > i[:, None]) | (i < torch.tensor([0, 4, 2])[:, None, None])
    mask = torch.zeros(3, 1, 9, 9).masked_fill(hidden[:, None], LEAST)
    check(Given, (randn(3, 9, 24), mask), mesh={"ring": ring},
          context_parallel={"ring": "ring", "order": "contiguous"})


def test_weights_beyond_the_bound_of_the_proof(tmp_path):
    """The proof of padding relies on a bound, which is read from the weights that are imported."""
    torch.manual_seed(1)
    net, x = Features(FEATURES["rectified"]).eval(), randn(3, 16)
    model = mw.from_torch(net, (x,))
    padded, whole = model.parallelize(mesh={"tp": 4}), model.parallelize(mesh={"tp": 2})
    padded.run(x)
    with torch.no_grad():
        net.a.weight[9, 15] = -3000
    text = "parameter 'a.weight': expected elements of magnitude at most 1024.*, got 3000.000000"
    for act in (lambda: padded.run(x), lambda: padded.compile(tmp_path / "a")):
        with pytest.raises(mw.Error, match=text):
            act()
    want = net(x)
    assert (whole.run(x)[0] - want).abs().max() <= 1e-5 * want.abs().max()
    # Weights that are imported state their bound, which the bundle keeps.
    again = mw.from_torch(net, (x,)).parallelize(mesh={"tp": 4})
    assert "nn.magnitude = 4.096" in again.ir("global")
    assert (again.run(x)[0] - want).abs().max() <= 1e-5 * want.abs().max()
    again.compile(tmp_path / "b")
    assert '"magnitude":4096.0' in (tmp_path / "b" / "manifest.json").read_text().replace(" ", "")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bad", [-2000.0, INF, -INF, float("nan")], ids=str)
def test_weights_of_each_type_are_checked(dtype, bad):
    torch.manual_seed(1)
    net, x = Features(FEATURES["rectified"]).eval().to(dtype), randn(3, 16).to(dtype)
    plan = mw.from_torch(net, (x,)).parallelize(mesh={"tp": 3})
    with torch.no_grad():
        net.a.weight[9, 15] = bad
    with pytest.raises(mw.Error, match="parameter 'a.weight': expected elements of magnitude at most"):
        plan.run(x)


def test_sums_of_equal_elements(tmp_path):
    """A constant of equal elements does not tell which of them are padding."""
    text = """
dist.mesh @m = <["x"=6]>
func.func @main(%x: tensor<4xf32> {nn.input = "x", dist.sharding = #dist.sharding<@m, [{"x"}]>})
    -> (tensor<4xf32> {nn.output = "y"}, tensor<f32> {nn.output = "z"}, tensor<f32> {nn.output = "w"}) {
  %c = nn.constant dense<0.5> : tensor<4xf32>
  %p = nn.softmax %c dim 0 : tensor<4xf32>
  %y = nn.add %x, %p : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %e = nn.exp %c : tensor<4xf32>
  %t = nn.add %e, %y : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %z = nn.reduce sum %e dims [0] : (tensor<4xf32>) -> tensor<f32>
  %w = nn.reduce mean %t dims [0] : (tensor<4xf32>) -> tensor<f32>
  return %y, %z, %w : tensor<4xf32>, tensor<f32>, tensor<f32>
}
"""
    x = randn(4)
    got = run_module(tmp_path, text, {"x": x}, arguments=["--parallelize"])
    assert_close(got["y"], x + 0.25, 1e-6)
    assert_close(got["z"], 4 * torch.tensor(0.5).exp(), 1e-6)
    assert_close(got["w"], (x + 0.25).mean() + torch.tensor(0.5).exp(), 1e-6)
