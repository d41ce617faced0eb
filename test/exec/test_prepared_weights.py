# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Weights that are cast, gathered and packed on the way from their stored to their used form."""
import meshwright as mw
import pytest
import torch
from harness import assert_close, run_module

AT = '{dist.sharding = #dist.sharding<@mesh, [{%s}, {}]>, dist.global = tensor<%s>, %s}'


def gathered(rows, size, product):
    """A chain from a stored weight to one product: shards, a gather, a cast."""
    x = AT % ("", f"{rows}x{size}xbf16", 'nn.input = "x"')
    w = AT % ('"dp"', f"96x{size}xf32", 'nn.parameter = "w"')
    y = AT % ("", f"{rows}x96xbf16", 'nn.output = "y"')
    return f"""
dist.mesh @mesh = <["dp"=2]>
func.func @main(%x: tensor<{rows}x{size}xbf16> {x}, %w: tensor<48x{size}xf32> {w}) -> (tensor<{rows}x96xbf16> {y})
    attributes {{dist.spmd = @mesh}} {{
  %g = dist.all_gather %w axes ["dp"] dims [0] : (tensor<48x{size}xf32>) -> tensor<96x{size}xf32>
  %c = nn.cast %g : (tensor<96x{size}xf32>) -> tensor<96x{size}xbf16>
  %0 = nn.linear %x, %c : (tensor<{rows}x{size}xbf16>, tensor<96x{size}xbf16>) -> tensor<{rows}x96xbf16>
  {product}
  return %1 : tensor<{rows}x96xbf16>
}}
"""


@pytest.mark.parametrize("rows, size", [(128, 64), (200, 33), (65, 1), (8, 40)])
@pytest.mark.parametrize("product", [
    "%1 = nn.relu %0 : tensor<{0}x96xbf16>",
    "%1 = nn.mul %0, %0 : (tensor<{0}x96xbf16>, tensor<{0}x96xbf16>) -> tensor<{0}x96xbf16>"])
def test_gathered_and_cast(tmp_path, rows, size, product):
    text = gathered(rows, size, product.format(rows))
    x, w = torch.randn(rows, size).bfloat16(), torch.randn(96, size)
    got = run_module(tmp_path, text, {"x": x}, {"w": w})["y"]
    y = x.double() @ w.bfloat16().double().T
    assert_close(got.double(), y.relu() if "relu" in product else y * y, 2e-2)


class Autocast(torch.nn.Module):
    """A model whose weights are f32 and whose products are bf16."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(50, 64)
        self.up, self.down = torch.nn.Linear(64, 160), torch.nn.Linear(160, 64)

    def forward(self, ids):
        x = torch.nn.functional.embedding(ids, self.table.weight.bfloat16())
        with torch.autocast("cpu", torch.bfloat16):
            return self.down(torch.nn.functional.silu(self.up(x))).float()


IDS = torch.arange(40).reshape(2, 20)


@pytest.mark.parametrize("mesh", [{"dp": 1}, {"dp": 2}])
def test_casts_are_done_at_load(mesh):
    torch.manual_seed(0)
    net = Autocast().eval()
    plan = mw.from_torch(net, (IDS,)).parallelize(mesh=mesh)
    text = plan.ir("rt")
    # The table, two matrices and two biases; no kernel casts one.
    assert text.count("at load") == 5, text
    assert text.count("nn.cast") == 1, text
    with torch.no_grad():
        want = net(IDS)
    assert_close(plan.run(IDS)[0], want, 2e-2)


class Loss(Autocast):
    def forward(self, ids):
        return super().forward(ids).square().mean()


def test_casts_follow_updates():
    """Each step and each evaluation reads the weights of the step before."""
    torch.manual_seed(0)
    net, reference = Loss(), Loss()
    reference.load_state_dict(net.state_dict())
    model = mw.from_torch(net, (IDS,), training=True)
    plan = model.train(mw.SGD(lr=0.5)).parallelize(mesh={"dp": 2})
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.5)
    with plan.start() as session:
        for _ in range(3):
            optimizer.zero_grad()
            loss = reference(IDS)
            assert_close(session.run(IDS, entry="evaluate")[0], loss.detach(), 2e-2)
            assert_close(session.run(IDS)[0], loss.detach(), 2e-2)
            loss.backward()
            optimizer.step()
