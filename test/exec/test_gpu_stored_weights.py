# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Weights of 8 and 4 bits on the backend `nccl`, on the stand-ins (test/fakegpu)."""
import pathlib

import pytest
from test_gpu_running import check, pytestmark  # noqa: F401

SETUP = f"""
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
from stored_modules import drawn
"""


@pytest.mark.parametrize("first", [0, 4, 8])
def test_drawn(first):
    check(SETUP + f"""
for seed in range({first}, {first + 4}):
    net, mesh = drawn(seed)
    x = torch.randn(2, 5, net.down.bias.numel())
    plan = mw.from_torch(net, (x,)).parallelize(mesh=mesh, stored_weights=["keep", "widen"][seed % 4 == 3])
    want, got = plan.run(x)[0], plan.run(x, backend='nccl')[0]
    assert (want - got).abs().max() <= 1e-5 * want.abs().max(), seed
""")
