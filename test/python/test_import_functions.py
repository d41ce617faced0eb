# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Functions that the importer composes of others, and functions that PyTorch takes apart."""
import meshwright as mw
import pytest
import torch
import torch.nn.functional as F
from meshwright.importer.torch import ImportFailed, import_module
from torch import nn


class Call(nn.Module):
    def __init__(self, *functions):
        super().__init__()
        self.functions = functions

    def forward(self, *args):
        return tuple(f(*args) for f in self.functions)


def check(functions, *args, rtol=1e-5, mesh=None):
    """Runs the functions and compares with PyTorch in f64."""
    module = Call(*functions)
    plan = mw.from_torch(module, args).parallelize(mesh=mesh or {"tp": 1})
    wide = [a.double() if a.is_floating_point() else a for a in args]
    for got, own, want in zip(plan.run(*args), module(*args), module(*wide), strict=True):
        assert (got.dtype, got.shape) == (own.dtype, own.shape)
        want = want.double()
        size = want.abs()[want.isfinite()].max().item() if want.isfinite().any() else 1
        torch.testing.assert_close(got.double(), want, rtol=rtol, atol=rtol * size,
                                   equal_nan=True)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


SMALL = torch.tensor([-1.0, -0.9999, -0.5, -1e-3, -1e-20, -0.0, 0.0, 1e-20, 0.25, 0.7, 0.99999, 1])
LARGE = torch.tensor([-3e38, -1e20, -100.0, -3.0, -1.5, 1.25, 2, 60, 1e4, 1e30, 3e38, torch.inf])


@pytest.mark.parametrize("name", ["acos", "asin", "atanh", "arccos", "atan", "sinh", "asinh"])
def test_trigonometric(name):
    function = getattr(torch, name)
    x = SMALL[1:-1] if name == "atanh" else SMALL
    for got, want in zip(mw.from_torch(Call(function), (x,)).parallelize(mesh={"tp": 1}).run(x),
                         (function(x.double()).float(),)):
        torch.testing.assert_close(got, want, rtol=3e-7, atol=0)


def test_trigonometric_of_large_numbers():
    check([torch.atan, torch.asinh], LARGE, rtol=3e-7)
    check([torch.acosh], LARGE.abs(), rtol=3e-7)
    check([torch.cosh, torch.sinh, torch.tan, torch.erfc], randn(40) * 3)
    check([torch.log10], randn(40).abs())


def test_logarithm_of_gamma():
    x = torch.tensor([1e-30, 1e-4, 0.1, 0.4999, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 9.99, 10.0, 25.0])
    check([torch.lgamma], x)
    check([torch.lgamma, torch.special.gammaln, lambda x: torch.mvlgamma(x.abs() + 1, 2)],
          torch.tensor([-1e-30, -0.25, -0.5, -1.001, -2.5, -7.75]))
    check([torch.lgamma], torch.tensor([1e3, 1e5, 3e7, 1e20, 1e36]))
    ends = torch.tensor([0.0, -1.0, -3.0, -1e10, torch.inf, -torch.inf, torch.nan])
    check([torch.lgamma, lambda x: torch.lgamma(x.bfloat16())], ends)
    check([torch.lgamma], torch.linspace(-9, 40, 501, dtype=torch.float64), rtol=1e-13)


def test_angles():
    y, x = torch.cartesian_prod(*[torch.tensor([-2.0, -1e-3, 0.0, 1e-20, 3.0, 1e30])] * 2).unbind(1)
    check([torch.atan2], y, x, rtol=3e-7)


def test_bits():
    i, j = torch.arange(-7, 9), torch.arange(16).flip(0)
    check([torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor, lambda i, j: ~i,
           lambda i, j: i << 3, lambda i, j: (i >> 1) & 5, lambda i, j: i.int() | 8,
           torch.logical_and, lambda i, j: torch.logical_not(i), lambda i, j: i & 1,
           lambda i, j: (i & -1) | 0, lambda i, j: i @ j, lambda i, j: i[:6].prod(),
           lambda i, j: i << j, lambda i, j: i >> j, lambda i, j: 3 << j, lambda i, j: i ** 9,
           lambda i, j: i ** j, lambda i, j: 2 ** j, lambda i, j: i ** 0], i, j, rtol=0)


def test_shifts_beyond_the_type():
    i, j = torch.tensor([1, 3, -1, 5, 7, -9]), torch.tensor([63, 62, 64, -1, 70, 61])
    check([lambda i, j: i << j, lambda i, j: i >> j, lambda i, j: i.int() << (j % 32).int()], i, j,
          rtol=0)
    check([lambda i, j: i ** j], torch.tensor([2, -1, 3, 0, 1, -7]),
          torch.tensor([40, -7, 39, 0, -3, -1]), rtol=0)


def test_signs_and_rounding():
    x = torch.tensor([-2.5, -1.5, -0.5, -0.0, 0.0, 0.5, 1.5, 2.5, 0.49999997, 1e10, torch.inf,
                      torch.nan, -3.7])
    check([torch.round, torch.signbit, lambda x: torch.copysign(torch.ones(13), x),
           lambda x: torch.fmax(x, x.flip(0)), lambda x: torch.fmin(x, x.flip(0)),
           lambda x: x.round(decimals=1)], x)


def test_aliases():
    x, y = randn(3, 4), randn(3, 4, seed=1)
    check([torch.multiply, torch.subtract, torch.true_divide, lambda x, y: torch.absolute(x),
           torch.greater, torch.not_equal, lambda x, y: x.swapaxes(0, 1), torch.hypot,
           lambda x, y: torch.vstack([x, y]), lambda x, y: torch.stack(torch.meshgrid(
               x[0], y[:, 0], indexing="ij")), torch.inner, lambda x, y: F.glu(x),
           lambda x, y: torch.tensordot(x, y, ([1], [1])), lambda x, y: torch.aminmax(x)[0],
           lambda x, y: F.softshrink(x), lambda x, y: torch.std_mean(x, 1)[1],
           lambda x, y: F.prelu(x, y[0, :1]), lambda x, y: torch.dist(x, y),
           lambda x, y: torch.isclose(x, y), lambda x, y: F.margin_ranking_loss(x, y, x.sign()),
           lambda x, y: torch.vander(x[0]), lambda x, y: torch.cdist(x, y, p=1.0),
           lambda x, y: x.norm(p=3), lambda x, y: torch.linalg.vector_norm(x, 0, dim=1),
           lambda x, y: torch.einsum("ii,ij->ij", x[:, :3], y), lambda x, y: x.prod(1),
           lambda x, y: x.cumprod(1), lambda x, y: torch.cummax(x, 1)[1],
           lambda x, y: torch.cummin(x, 0)[0], lambda x, y: F.bilinear(
               x, y, x[:2].new_ones(2, 4, 4)),
           lambda x, y: x.unfold(1, 2, 2), lambda x, y: x.t().as_strided((3, 2), (2, 3), 1),
           lambda x, y: x.masked_scatter(x > 0, y), lambda x, y: x.masked_scatter(
               (x[:, :1] > 0).expand_as(x), y), lambda x, y: x.slice_scatter(y[:, :2], 1, 0, 3, 2),
           lambda x, y: torch.addbmm(x[0], x[None].mT, y[None])], x, y)


def test_types_are_promoted():
    x = randn(3)
    check([lambda x: torch.outer(x, torch.arange(4, dtype=torch.float64) / 3).float()], x)


@pytest.mark.parametrize("mesh", [{"tp": 1}, {"dp": 2, "tp": 2}], ids=str)
def test_fourier(mesh):
    x, fft = randn(3, 6, 5), torch.fft
    check([lambda x: fft.fft(x).real, lambda x: fft.fftn(x, dim=(1, 2)).imag,
           lambda x: fft.fft(fft.fft(x, dim=-1), dim=1).real, lambda x: fft.rfft(x, norm="ortho").abs(),
           lambda x: fft.irfft(fft.rfft(x), n=5), lambda x: fft.irfft2(fft.rfft2(x) * 2, s=(6, 5)),
           lambda x: fft.ifft(x + 0j, dim=1).imag], x, mesh=mesh)


def test_complex_numbers():
    real, fft, x, y = torch.view_as_real, torch.fft, randn(2, 4, 6), randn(2, 4, 6, seed=1)
    z = lambda f: lambda x, y: real(f(torch.complex(x, y), torch.complex(y, x)))

    def filtered(x, y):
        kept = fft.rfft(x, dim=1)
        result = torch.zeros_like(kept)
        result[:, :2] = kept[:, :2] * 2
        return fft.irfft(result, n=4, dim=1)

    check([z(lambda a, b: a / b), z(lambda a, b: a @ b.mT), z(lambda a, b: torch.sub(a, b, alpha=2)),
           z(lambda a, b: torch.cat([a, b.sum(1, keepdim=True)], 1)), z(lambda a, b: a ** -2),
           z(lambda a, b: torch.stack(a.unbind(1)) * 1j + 2), z(lambda a, b: 3 / b - a.log()),
           z(lambda a, b: torch.where(a.real > 0, a, 0)), z(lambda a, b: torch.roll(-a, 1, 2)),
           z(lambda a, b: torch.einsum("bij,bkj->bik", a, b)), z(lambda a, b: a * torch.exp(
               1j * torch.arange(6.0))), lambda x, y: fft.fftshift(fft.fft2(x)).imag, filtered,
           lambda x, y: fft.fft(x).angle().cos(), lambda x, y: x * fft.fftfreq(6)], x, y)


def test_resampling():
    def by(**options):
        return lambda x: F.interpolate(x, **options)

    check([by(scale_factor=2), by(size=(4, 9)), by(size=(4, 9), mode="nearest-exact"),
           by(size=(12, 10), mode="bilinear"), by(scale_factor=1.7, mode="bilinear"),
           by(size=(5, 14), mode="bicubic", align_corners=True),
           by(size=(5, 14), mode="bilinear", antialias=True),
           lambda x: F.interpolate(x[:, :, 0], size=20, mode="linear"),
           lambda x: F.adaptive_avg_pool2d(x, (4, 3)), lambda x: F.avg_pool2d(x, 3, 2, 1),
           lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
           lambda x: F.avg_pool2d(x, 2, divisor_override=3), lambda x: F.max_pool2d(x, 3, 2, 1),
           lambda x: F.max_pool2d(x, 3, 1, dilation=2), lambda x: F.pad(x[0], (2, 1), mode="circular"),
           lambda x: F.pad(x, (2, 1, 0, 3), mode="reflect"), lambda x: F.pad(x[0], (1, 2),
                                                                             mode="replicate"),
           lambda x: F.local_response_norm(x, 3)], randn(2, 6, 9, 7))


@pytest.mark.parametrize("options", [
    {"stride": 2}, {"stride": 3, "padding": 2, "output_padding": 1, "dilation": 2},
    {"groups": 3, "stride": (1, 2)}, {"groups": 6}], ids=str)
def test_transposed_convolution(options):
    w, b, x = randn(6, 2, 2, 3), randn(2 * options.get("groups", 1), seed=1), randn(2, 6, 5, 4)
    check([lambda x, w, b: F.conv_transpose2d(x, w, b, **options),
           lambda x, w, b: F.conv_transpose2d(x[0], w, **options)], x, w, b)


@pytest.mark.parametrize("groups, out", [(2, 6), (3, 3), (6, 12)])
def test_grouped_convolution(groups, out):
    w, b, x = randn(out, 6 // groups, 3, 2), randn(out, seed=1), randn(2, 6, 7, 5, seed=2)
    check([lambda x, w, b: F.conv2d(x, w, b, stride=(2, 1), padding=1, groups=groups),
           lambda x, w, b: F.conv1d(x[:, :, 0], w[..., 0], groups=groups)], x, w, b)


def test_rows_by_index():
    x, y, i = randn(2, 6, 4), randn(2, 2, 4, seed=1), torch.tensor([5, 1])
    put = lambda at, value, **kw: lambda x, y, i: torch.ops.aten.index_put(
        x, at(i), value(y), **kw)
    check([lambda x, y, i: x.index_copy(1, i, y), lambda x, y, i: x.index_fill(1, i, 2.0),
           lambda x, y, i: x.index_add(1, i, y, alpha=3), lambda x, y, i: x.scatter(1, i[
               None, :, None].expand(2, 2, 4), y), lambda x, y, i: x.scatter_add(1, i[
                   None, :, None].expand(2, 2, 4), y),
           put(lambda i: [None, i - 6], lambda y: y), put(lambda i: [i // 3], lambda y: y[0, 0]),
           put(lambda i: [torch.arange(2)[:, None], i], lambda y: y),
           put(lambda i: [i // 3, None, i // 2], lambda y: y[0, :, :1].expand(2, 6)),
           put(lambda i: [None, i], lambda y: y, accumulate=True),
           put(lambda i: [None, torch.tensor([2, 3])], lambda y: y),
           lambda x, y, i: torch.where(x > 0, x, 0).masked_fill(x > 1, 1),
           lambda x, y, i: x.index_fill(1, i - 6, 2.0), lambda x, y, i: F.one_hot(i, 7),
           lambda x, y, i: x.scatter(1, i[None, :, None].expand(1, 2, 3), y),
           lambda x, y, i: x.scatter(0, i[None, :, None] // 5, 3.0),
           lambda x, y, i: x.scatter_add(2, i[None, :, None].expand(2, 2, 3) // 2, y)], x, y, i)


@pytest.mark.parametrize("mesh", [{"tp": 1}, {"tp": 3}], ids=str)
def test_bags_of_embeddings(mesh):
    table, i = randn(10, 8), torch.tensor([[1, 3, 3, 9], [3, 3, 3, 3], [0, 5, 2, 3]])
    bag = lambda **kw: lambda table, i, w: F.embedding_bag(i, table, **kw)
    check([bag(mode="sum"), bag(mode="mean"), bag(mode="max"), bag(mode="sum", padding_idx=3),
           bag(mode="mean", padding_idx=-7), bag(mode="max", padding_idx=3),
           lambda table, i, w: F.embedding_bag(i, table, mode="sum", per_sample_weights=w),
           lambda table, i, w: F.embedding_bag(i.flatten(), table, torch.tensor([0, 6])),
           lambda table, i, w: F.embedding_bag(i.flatten(), table, torch.tensor([0, 6, 12]),
                                               include_last_offset=True)],
          table, i, randn(3, 4), mesh=mesh)


class Bags(nn.Module):
    def __init__(self, offsets=None):
        super().__init__()
        self.bags, self.offsets = nn.EmbeddingBag(10, 8), offsets

    def forward(self, i, offsets):
        return self.bags(i, offsets if self.offsets is None else torch.tensor(self.offsets))


@pytest.mark.parametrize("offsets, said", [
    (None, "offsets that are known at run time only are not covered; expected indices of shape"),
    ([0, 4], r"the offsets \[0, 4\] are not covered; expected bags of one length"),
])
def test_bags_of_several_lengths(offsets, said):
    with pytest.raises(mw.Error, match=said):
        mw.from_torch(Bags(offsets), (torch.arange(9), torch.tensor([0, 4])))


class Constants(nn.Module):
    """A mask and a number are constants; shapes depend on them."""
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.tensor([[True, True, False, True]]))
        self.register_buffer("n", torch.tensor(3))

    def forward(self, x):
        index = torch.nonzero(self.mask[0].flatten()).flatten()
        y = x[:, index]
        joined = torch.cat([x, y], 1)
        padded = F.pad(joined, (0, 0, 0, 2 * x.shape[1] - joined.shape[1]))
        often = x.repeat_interleave(self.mask[0].long() * 2, 1), x.repeat_interleave(self.n, 2)
        picked = x.masked_select(self.mask[:, :, None].expand(1, 4, 6))
        best = x[:, torch.tensor([1.0, 4, 3, 2]).topk(2)[1]]
        return (y.sum(1), padded.split_with_sizes((4, 4), 1)[1], x * self.n.item(), x[self.mask],
                *often, picked, best)


def test_shapes_from_constants():
    module, x = Constants(), randn(1, 4, 6)
    for got, want in zip(mw.from_torch(module, (x,)).parallelize(mesh={"tp": 2}).run(x),
                         module(x), strict=True):
        torch.testing.assert_close(got, want)


def test_shapes_from_values():
    class Asserts(nn.Module):
        def forward(self, i, x):
            torch._check(i.max().item() <= 4)
            return x + 1

    x = randn(3)
    got, = mw.from_torch(Asserts(), (torch.arange(3), x)).parallelize(mesh={"tp": 1}).run(
        torch.arange(3), x)
    assert torch.equal(got, x + 1)
    for function in (lambda i, x: x * i.max().item(), lambda i, x: x[i > 1],
                     lambda i, x: x[torch.nonzero(i).flatten()].sum()):
        with pytest.raises(ImportFailed, match="depends on values: it is not covered") as failed:
            import_module(Call(function), (torch.arange(3), x))
        found, = failed.value.diagnostics
        assert found.file == __file__ and found.line


def test_positions_out_of_range():
    x, y = randn(6, 4), randn(2, 4, seed=1)
    for function in (lambda x, y, i: x.index_copy(0, i, y), lambda x, y, i: x.index_add(0, i, y),
                     lambda x, y, i: F.one_hot(i, 6), lambda x, y, i: x.scatter(0, i[:, None], y)):
        model = mw.from_torch(Call(function), (x, y, torch.tensor([0, 1])))
        plan = model.parallelize(mesh={"tp": 1})
        for wrong in (6, -1):
            with pytest.raises(mw.Error, match=f"index {wrong} at position 1 is out of range"):
                plan.run(x, y, torch.tensor([0, wrong]))
    with pytest.raises(ImportFailed, match="index 6 is out of range"):
        import_module(Call(lambda x, y: x.index_copy(0, torch.tensor([0, 6]), y)), (x, y))
