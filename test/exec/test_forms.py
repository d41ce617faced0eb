# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Weights that travel as codes with scales, against an independent reference of each operation."""

import copy

import meshwright as mw
import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

F32 = np.float32
LARGEST = np.finfo(F32).max


def block_tops(x, rows, columns):
    """The largest magnitude of each block, for each element."""
    out = np.zeros_like(x)
    for i in range(0, x.shape[0], rows):
        for j in range(0, x.shape[1], columns):
            block = slice(i, i + rows), slice(j, j + columns)
            out[block] = np.abs(x[block]).max()
    return out


def mxfp8(x, along):
    """f8E4M3FN with the least power of two that holds the block."""
    x = np.asarray(x, F32)
    top = (block_tops(x, *((32, 1) if along == 0 else (1, 32))) * F32(1 / 448)).astype(np.float64)
    with np.errstate(divide="ignore"):
        exponent = np.where(top > 0, np.maximum(np.ceil(np.log2(np.where(top > 0, top, 1))), -127), -127)
    codes = np.ldexp(x.astype(np.float64), -exponent.astype(int)).astype(F32).astype(ml_dtypes.float8_e4m3fn)
    return np.ldexp(codes.astype(np.float64), exponent.astype(int)).astype(F32)


def nvfp4(x, along=None, largest=None):
    """f4E2M1FN with an f8E4M3FN for 16 x 16 elements, and the largest magnitude of all."""
    x = np.asarray(x, F32)
    largest = F32(np.abs(x).max() if largest is None else largest)
    with np.errstate(divide="ignore", over="ignore"):
        whole = F32(min(F32(2688) / largest, LARGEST)) if largest > 0 else F32(1)
        scale = np.minimum(block_tops(x, 16, 16) * (whole * F32(1 / 6)), F32(448)).astype(ml_dtypes.float8_e4m3fn).astype(F32)
        factor = np.minimum(F32(1) / (scale * (F32(1) / whole)), LARGEST).astype(F32)
    codes = np.clip(x * factor, -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(F32)
    return codes * ((scale * largest) * F32(1 / 2688))


KINDS = {"mxfp8": mxfp8, "nvfp4": nvfp4}
MESHES = [{"gtp": 2}, {"gtp": 3}, {"dp": 2, "gtp": 2}]
say = lambda mesh: ",".join(f"{k}={v}" for k, v in mesh.items())


def draw(rows, columns, seed, dtype=torch.float32):
    """Magnitudes far apart, zeros, and rows of one sign."""
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(rows, columns, generator=g) * 10.0 ** torch.randint(-3, 4, (rows, 1), generator=g)
    w[torch.rand(rows, columns, generator=g) < 0.1] = 0
    return w.to(dtype)


class Product(nn.Module):
    """x W^T, or x W."""

    def __init__(self, weight, turned=False):
        super().__init__()
        self.weight, self.turned = nn.Parameter(weight), turned

    def forward(self, x):
        return x @ self.weight if self.turned else nn.functional.linear(x, self.weight)


def seen(weight, turned=False, **options):
    """The elements with which a product computes."""
    count = weight.shape[0 if turned else 1]
    x = torch.eye(count, dtype=weight.dtype)
    got = mw.from_torch(Product(weight, turned).eval(), (x,)).parallelize(**options).run(x)[0]
    return (got if turned else got.T).double().numpy()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mesh", MESHES, ids=say)
@pytest.mark.parametrize("shape", [(96, 64), (130, 40), (64, 33), (33, 5), (200, 1), (16, 96)], ids=str)
def test_each_bit(kind, mesh, shape):
    weight = draw(*shape, seed=sum(shape))
    np.testing.assert_array_equal(seen(weight, mesh=mesh, gtp_gather=kind), KINDS[kind](weight.numpy(), 1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_types(kind, dtype):
    """A weight of another type is widened to f32 before, and what a product reads has its type."""
    weight = draw(70, 48, seed=4, dtype=dtype) / 64
    want = torch.from_numpy(KINDS[kind](weight.float().numpy(), 1)).to(dtype).double().numpy()
    np.testing.assert_array_equal(seen(weight, mesh={"gtp": 2}, gtp_gather=kind), want)


@pytest.mark.parametrize("kind", KINDS)
def test_turned(kind):
    """The product contracts the rows of the weight, so blocks of MXFP8 are along them."""
    weight = draw(96, 40, seed=8)
    np.testing.assert_array_equal(seen(weight, True, mesh={"gtp": 2}, gtp_gather=kind), KINDS[kind](weight.numpy(), 0))


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_tensor_parallelism(kind):
    """Blocks begin where the part of a rank begins; the largest magnitude is that of the whole weight."""
    weight = draw(80, 64, seed=5)
    parts = [weight[:40].numpy(), weight[40:].numpy()]
    top = float(weight.abs().max())
    want = np.concatenate([nvfp4(p, largest=top) if kind == "nvfp4" else mxfp8(p, 1) for p in parts])
    np.testing.assert_array_equal(seen(weight, mesh={"tp": 2, "gtp": 2}, gtp_gather=kind), want)


@pytest.mark.parametrize("seed", range(12))
def test_random(seed):
    """Random shapes, meshes, alignments and kinds."""
    rng = np.random.default_rng(seed)
    kind = rng.choice(list(KINDS))
    shape = [int(n) for n in rng.integers(1, 150, 2)]
    options = dict(mesh=[{"gtp": int(rng.integers(2, 6))}, {"dp": 2, "gtp": 2}][rng.integers(2)])
    if rng.integers(2):
        options["gtp_align"] = 32 * int(rng.integers(1, 3))
    weight, turned = draw(*shape, seed=seed), bool(rng.integers(2))
    want = KINDS[kind](weight.numpy(), 0 if turned else 1)
    np.testing.assert_array_equal(seen(weight, turned, gtp_gather=str(kind), **options), want)


class Gated(nn.Module):
    """Products whose kernels take in other ops, by odd sizes, and a residual."""

    def __init__(self, width, inner):
        super().__init__()
        torch.manual_seed(width)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)

    def forward(self, x):
        return x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [3, 90])
@pytest.mark.parametrize("width,inner", [(72, 200), (50, 97)])
def test_fused_products(kind, dtype, rows, width, inner):
    """A weight that a kernel reads packed is decoded as it is packed."""
    net = Gated(width, inner).to(dtype).eval()
    x = torch.randn(2, rows, width, generator=torch.Generator().manual_seed(rows)).to(dtype)
    want = copy.deepcopy(net).double()
    for layer in (want.gate, want.up, want.down):
        rounded = torch.from_numpy(KINDS[kind](layer.weight.detach().float().numpy(), 1)).to(dtype)
        layer.weight.data.copy_(rounded)
    with torch.no_grad():
        want = want(x.double())
    plan = mw.from_torch(net, (x,)).parallelize(mesh={"gtp": 2}, gtp_gather=kind)
    error = float((plan.run(x)[0].double() - want).abs().max() / want.abs().max())
    assert error <= (1e-5 if dtype == torch.float32 else 2e-2)


class Rounded(torch.autograd.Function):
    """The gradient of the input is by the weight rounded along its rows; that of the weight passes."""

    @staticmethod
    def forward(ctx, x, w, kind):
        ctx.save_for_backward(x, w)
        ctx.kind = kind
        return x @ torch.from_numpy(KINDS[kind](w.detach().float().numpy(), 1)).to(x.dtype).T

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        return dy @ torch.from_numpy(KINDS[ctx.kind](w.detach().float().numpy(), 0)).to(dy.dtype), dy.T @ x, None


class Net(nn.Module):
    """Two trained products around a frozen one."""

    def __init__(self, kind=None):
        super().__init__()
        torch.manual_seed(2)
        self.first, self.frozen, self.last = nn.Linear(40, 96), nn.Linear(96, 70), nn.Linear(70, 33)
        self.frozen.weight.requires_grad_(False)
        self.kind = kind

    def product(self, layer, x):
        if self.kind is None:
            return layer(x)
        return Rounded.apply(x, layer.weight, self.kind) + layer.bias

    def forward(self, x, y):
        h = torch.tanh(self.product(self.first, x))
        h = torch.tanh(self.product(self.frozen, h))
        return ((self.product(self.last, h) - y) ** 2).mean()


DATA = [dict(x=torch.randn(8, 40, generator=torch.Generator().manual_seed(i)),
             y=torch.randn(8, 33, generator=torch.Generator().manual_seed(9 + i))) for i in range(3)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [dict(mesh={"gtp": 2}), dict(mesh={"gtp": 3}, recompute="full"),
                                     dict(mesh={"dp": 2, "gtp": 2}, gtp_keep="on"), dict(mesh={"dp": 2}, gtp="dp")], ids=str)
@pytest.mark.parametrize("count", [1, 2])
def test_steps(kind, options, count):
    """The first step is exact; later ones may round an element otherwise."""
    want = Net(kind).double()
    optimizer, losses = torch.optim.SGD([p for p in want.parameters() if p.requires_grad], lr=0.1), []
    first = None
    for batch in DATA:
        optimizer.zero_grad()
        loss = want(**{k: v.double() for k, v in batch.items()})
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        first = first or {k: p.detach().clone() for k, p in want.named_parameters()}
    start = dict(Net().named_parameters())
    train = mw.from_torch(Net(), (), DATA[0], training=True).train(mw.SGD(lr=0.1), microbatches=count)
    with train.parallelize(gtp_gather=kind, **options).start() as session:
        got = [session.run(**DATA[0])[0].item()]
        for name, value in session.parameters().items():
            step = float((first[name] - start[name].detach()).abs().max())
            assert float((value.double() - first[name]).abs().max()) <= 2e-5 * step + 1e-9, name
        got += [session.run(**batch)[0].item() for batch in DATA[1:]]
    np.testing.assert_allclose(got, losses, rtol=2e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_check_rounds_both(kind):
    """The unsharded program of a check computes with the same rounded weights."""
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(3))
    plan = mw.from_torch(Product(draw(96, 64, seed=3)).eval(), (x,)).parallelize(mesh={"gtp": 2}, gtp_gather=kind)
    plan.check(x)
    train = mw.from_torch(Net(), (), DATA[0], training=True).train(mw.SGD(lr=0.1))
    train.parallelize(mesh={"gtp": 2}, gtp_gather=kind).check(**DATA[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mesh", [{"tp": 2, "gtp": 2}, {"tp": 3, "gtp": 2}], ids=str)
def test_check_rounds_the_parts_of_ranks(kind, mesh):
    """Parts that begin within a block of the whole weight, of rows and of columns."""
    net = Gated(36, 100).eval()
    for layer in (net.gate, net.up, net.down):
        # Blocks of the whole weight, and of the parts, have other scales.
        layer.weight.data.copy_(draw(*layer.weight.shape, seed=layer.weight.shape[0]))
    x = torch.randn(2, 6, 36, generator=torch.Generator().manual_seed(5))
    plan = mw.from_torch(net, (x,)).parallelize(mesh=mesh, gtp_gather=kind)
    plan.check(x, tolerance=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("has_weights", [True, False])
def test_bundles(kind, has_weights, tmp_path):
    """A bundle has the form alone, and makes it of weights that it is given."""
    weight, x = draw(130, 64, seed=7), torch.eye(64)
    plan = mw.from_torch(Product(weight).eval(), (x,)).parallelize(mesh={"gtp": 2}, gtp_gather=kind)
    plan.compile(tmp_path / "bundle", weights=has_weights)
    bundle = mw.load_bundle(tmp_path / "bundle")
    if has_weights:
        stored = sum(f.stat().st_size for f in (tmp_path / "bundle" / "weights").iterdir())
        assert stored < (1.6 if kind == "mxfp8" else 0.9) * weight.numel() + 3 * 65536
        session = bundle.start()
    else:
        save_file({"weight": weight}, tmp_path / "weights.safetensors")
        session = bundle.start(weights=tmp_path / "weights.safetensors")
    with session:
        np.testing.assert_array_equal(session.run(x)[0].T.numpy(), KINDS[kind](weight.numpy(), 1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_not_finite(kind, value, tmp_path):
    weight, x = draw(96, 64, seed=1), torch.eye(64)
    weight[50, 3] = value
    plan = mw.from_torch(Product(weight).eval(), (x,)).parallelize(mesh={"gtp": 2}, gtp_gather=kind)
    said = f"parameter 'weight': expected finite numbers in a weight that travels in {kind}, got"
    with pytest.raises(mw.Error, match=said):
        plan.run(x)
    with pytest.raises(mw.Error, match=said):
        plan.compile(tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()
    net = Net()
    net.last.weight.data[5, 6] = value
    train = mw.from_torch(net, (), DATA[0], training=True).train(mw.SGD(lr=0.1))
    with train.parallelize(mesh={"gtp": 2}, gtp_gather=kind).start() as session:
        before = copy.deepcopy(session.parameters())
        with pytest.raises(mw.Error, match=f"dist.encode at last.weight .*: expected finite numbers in a weight that travels in {kind}"):
            session.run(**DATA[0])
        after = session.parameters()
        assert all(torch.equal(before[k].nan_to_num(), after[k].nan_to_num()) for k in before)


@pytest.mark.parametrize("tied", [False, True])
def test_a_rule_that_rounds_nothing(tied):
    """A lookup reads the table: a rule that matches nothing else is refused, and one of all weights is not."""
    net = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64)).eval()
    if tied:
        net[1].weight = net[0].weight
    model = mw.from_torch(net, (torch.arange(6).reshape(2, 3),))
    with pytest.raises(mw.Error, match='a matrix which only products read, got "0.*", which matches \'0.weight\': it cannot travel in mxfp8'):
        model.parallelize(mesh={"gtp": 2}, gtp_gather={"0.*": "mxfp8"})
    for rules in ({"*.weight": "plain"}, "mxfp8"):
        model.parallelize(mesh={"gtp": 2}, gtp_gather=rules)


def test_report():
    x = torch.randn(4, 64)
    net = nn.Sequential(nn.Linear(64, 96), nn.Linear(96, 64)).eval()
    plan = mw.from_torch(net, (x,)).parallelize(mesh={"gtp": 2}, gtp_gather={"0.*": "nvfp4", "1.*": "plain"})
    weights = {w["name"]: w for w in plan.report("json")["gtp"]["weights"]}
    assert {k: w["kind"] for k, w in weights.items()} == {"0.weight": "nvfp4", "1.weight": "plain"}
    assert weights["0.weight"]["gathers"][0]["bytes_per_rank"] == 96 // 16 // 2 * (8 * 64 + 4 + 4)
    assert "of them travel in nvfp4" in plan.report()
