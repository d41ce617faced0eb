# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Gradients of learned biases of attention around a ring, against autograd in f64, and their bytes."""

import copy
import pathlib

import meshwright as mw
import pytest
import torch
import torch.nn.functional as F
from mpi_programs import NEEDS_MPI, run_python
from torch import nn

HEADS, GROUPS, WIDTH, BATCH = 4, 2, 32, 2
#: The most that gradients differ from those in f64, relative to the largest of all.
TOLERANCE = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 3e-2}


class Biased(nn.Module):
    """Attention with a learned bias: of a shape, or a number for each distance and head. With a window
    a query sees so many keys before it, and none behind."""

    def __init__(self, shape, tokens, window=None):
        super().__init__()
        self.size = WIDTH // HEADS
        self.q, self.o = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.k, self.v = (nn.Linear(WIDTH, GROUPS * self.size) for _ in range(2))
        sizes = {"B": BATCH, "H": HEADS, "Q": tokens, "K": tokens, "1": 1}
        self.by_distance, self.window = shape == "distance", window
        shape = (2 * tokens - 1, HEADS) if self.by_distance else [sizes[s] for s in shape.split()]
        self.bias = nn.Parameter(torch.randn(shape))

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (n, self.size)).transpose(1, 2)
                   for p, n in ((self.q, HEADS), (self.k, GROUPS), (self.v, GROUPS)))
        i = torch.arange(x.shape[1])
        away = i[:, None] - i
        bias = self.bias
        if self.by_distance:
            bias = F.embedding(away + len(i) - 1, bias).permute(2, 0, 1)[None]
        if self.window is not None:
            bias = bias.masked_fill((away < 0) | (away > self.window), -torch.inf)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=True)
        return (x + self.o(y.transpose(1, 2).flatten(2))).square().mean()


class Frames(Biased):
    """Tokens of frames: the patches of each frame are sharded, or the frames."""

    def forward(self, x):
        return super().forward(x.sin().flatten(1, 2))


def draw(shape, tokens, window=None, dtype=torch.float32):
    torch.manual_seed(0)
    return Biased(shape, tokens, window).train().to(dtype), torch.randn(BATCH, tokens, WIDTH).to(dtype)


def wanted(module, x):
    module = copy.deepcopy(module).double()
    module(x.double()).backward()
    return {f"grad.{n}": p.grad for n, p in module.named_parameters()}


def check(module, x, mesh, **context):
    """The plan, whose gradients are those of PyTorch."""
    model = mw.from_torch(module, (x,), training=True).differentiate()
    axes = {axis: axis for axis in ("ring", "ulysses") if axis in mesh}
    plan = model.parallelize(mesh=mesh, context_parallel={**axes, **context})
    want, got = wanted(module, x), dict(zip(model.outputs, plan.run(x), strict=True))
    largest = max(g.abs().max() for g in want.values())
    for name, gradient in want.items():
        error = (got[name].double() - gradient).abs().max() / largest
        assert error <= TOLERANCE[x.dtype], (name, error)
    # Keys and values go around the ring.
    text = plan.ir(phase="spmd")
    assert text.count("nn.attention_grad") > 1 and "dist.permute" in text
    return plan


MESHES = {
    "ring=2": {"ring": 2}, "ring=4": {"ring": 4}, "dp=2,ring=2": {"dp": 2, "ring": 2},
    "tp=2,ring=3": {"tp": 2, "ring": 3}, "ring=2,ulysses=2": {"ring": 2, "ulysses": 2},
}
SHAPES = ["1 H Q K", "B 1 Q K", "Q K", "1 H 1 K", "B 1 1 K", "B H Q 1", "1 H 1 1", "distance"]


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape, mesh):
    """13 tokens, which no ring divides."""
    check(*draw(shape, 13), MESHES[mesh])


@pytest.mark.parametrize("order", ["contiguous", "zigzag", "striped"])
@pytest.mark.parametrize("window", [3, 100])
@pytest.mark.parametrize("shape", ["1 H Q K", "1 H 1 K", "B H Q 1", "1 H 1 1", "distance"])
def test_causal(shape, window, order):
    """A window leaves out steps, whose chunks have zeros."""
    check(*draw(shape, 30, window), {"ring": 4}, order=order)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", ["1 H Q K", "1 H 1 K", "B H Q 1"])
def test_types(shape, dtype):
    check(*draw(shape, 13, 100 if shape == "1 H Q K" else None, dtype), {"ring": 4}, order="zigzag")


@pytest.mark.parametrize("mesh, tokens", [
    ({"ring": 4}, 2), ({"ring": 4}, 3), ({"ring": 4}, 5), ({"dp": 2, "ring": 2}, 2), ({"dp": 2, "ring": 2}, 3),
], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_few_tokens(shape, mesh, tokens):
    """Ranks with one token of one row, and with none."""
    check(*draw(shape, tokens), mesh)


@pytest.mark.parametrize("mesh", [{"ring": 2}, {"ring": 4}, {"dp": 2, "ring": 2}], ids=str)
@pytest.mark.parametrize("frames, patches", [(3, 8), (3, 5), (2, 6)])
@pytest.mark.parametrize("shape", ["1 H Q K", "B H Q 1", "1 1 1 1"])
def test_products(shape, frames, patches, mesh):
    torch.manual_seed(0)
    module = Frames(shape, frames * patches).train()
    check(module, torch.randn(BATCH, frames, patches, WIDTH), mesh)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("ring", [2, 4])
@pytest.mark.parametrize("shape", ["1 H Q K", "1 H 1 1"])
def test_bytes(shape, ring, dtype):
    """Keys and values go around the ring in each pass, and their gradients in f32 one hop more. Nothing is gathered:
    a gradient has the rows of its rank, as its parameter has."""
    plan = check(*draw(shape, 16, dtype=dtype), {"ring": ring})
    chunk = 2 * BATCH * GROUPS * (16 // ring) * (WIDTH // HEADS)
    report = plan.report(format="json")
    sent = {}
    for entry in report["collectives"]:
        sent[entry["kind"]] = sent.get(entry["kind"], 0) + entry["bytes_per_rank"]
    assert sent["permute"] == chunk * (2 * (ring - 1) * dtype.itemsize + ring * 4)
    assert set(sent) == {"permute", "all_reduce"}
    plan.run(draw(shape, 16, dtype=dtype)[1], measure=True)
    seen = plan.report(format="json")["run"]["communication"]
    assert seen["bytes_sent"] == report["bytes_per_rank"]


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("mesh", [{"ring": 2}, {"dp": 2, "ring": 2}], ids=str)
@pytest.mark.parametrize("shape", ["1 H Q K", "1 H 1 K", "distance"])
def test_training(shape, mesh, microbatches):
    """Steps of gradients that microbatches add up are those of PyTorch in f64."""
    module, x = draw(shape, 10, 100 if shape == "1 H Q K" else None)
    x = torch.cat([x, x.flip(0) + 1])
    train = mw.from_torch(module, (x,), training=True).train(mw.SGD(lr=0.5), microbatches=microbatches)
    plan = train.parallelize(mesh=mesh, context_parallel={"ring": "ring", "order": "zigzag"})
    wide = copy.deepcopy(module).double()
    optimizer = torch.optim.SGD(wide.parameters(), lr=0.5)
    with plan.start() as session:
        for _ in range(3):
            session.run(x)
            optimizer.zero_grad()
            wide(x.double()).backward()
            optimizer.step()
        parameters = session.parameters()
    for name, want in wide.named_parameters():
        got, before = torch.as_tensor(parameters[name]).double(), dict(module.named_parameters())[name]
        assert (got - want).abs().max() <= 1e-6 + 1e-3 * (want - before).abs().max(), name


@NEEDS_MPI[0]
@NEEDS_MPI[1]
def test_processes(tmp_path):
    done = run_python(tmp_path, 4, f"""
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
from test_bias_gradients import draw
for shape in ("1 H Q K", "1 H 1 K"):
    net, x = draw(shape, 13, 4 if shape == "1 H Q K" else None)
    plan = mw.from_torch(net, (x,), training=True).differentiate().parallelize(
        mesh={{"ring": 4}}, context_parallel={{"ring": "ring"}})
    got, want = plan.run(x, backend="mpi"), plan.run(x)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
print("equal\\n", end="")
""")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("equal") == 4
