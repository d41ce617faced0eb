# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Weights that travel as codes with scales, on the backend `nccl`, on the stand-ins (test/fakegpu)."""
import pathlib

import pytest
from test_gpu_running import check, pytestmark  # noqa: F401

SETUP = f"""
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
import numpy as np
from test_forms import *
"""


@pytest.mark.parametrize("kind", ["mxfp8", "nvfp4"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_each_bit(kind, dtype):
    """Decoded elements: whole blocks, cut ones, and padding behind the rows."""
    check(SETUP + f"""
for rows, columns in ((96, 64), (130, 40), (33, 6)):
    weight = draw(rows, columns, seed=rows, dtype=torch.{dtype}) / 64
    x = torch.eye(columns, dtype=weight.dtype)
    plan = mw.from_torch(Product(weight).eval(), (x,)).parallelize(mesh={{"gtp": 2}}, gtp_gather={kind!r})
    want = torch.from_numpy(KINDS[{kind!r}](weight.float().numpy(), 1)).to(weight.dtype)
    assert torch.equal(plan.run(x, backend='nccl')[0].T, want), (rows, columns)
""")


@pytest.mark.parametrize("kind", ["mxfp8", "nvfp4"])
def test_steps(kind):
    """Weights are encoded in the step. The first loss is that of `local`, later ones may round an element
    otherwise. Graphs have the bits of launches."""
    check(SETUP + f"""
train = mw.from_torch(Net(), (), DATA[0], training=True).train(mw.SGD(lr=0.1), microbatches=2)
plan = train.parallelize(mesh={{"gtp": 2}}, gtp_gather={kind!r}, gtp_reduce="bf16")
with plan.start() as local, plan.start(backend='nccl') as gpu, plan.start(backend='nccl', graphs='on') as graphs:
    for i, batch in enumerate(DATA + DATA):
        want, got, replayed = (s.run(**batch)[0].item() for s in (local, gpu, graphs))
        assert got == replayed and abs(got / want - 1) <= (2e-3 if i else 1e-5), (i, want, got, replayed)
    for name, value in gpu.parameters().items():
        assert torch.equal(value, graphs.parameters()[name]), name
""")


@pytest.mark.parametrize("kind", ["mxfp8", "nvfp4"])
def test_not_finite(kind):
    check(SETUP + f"""
net = Net()
net.last.weight.data[5, 6] = float('nan')
train = mw.from_torch(net, (), DATA[0], training=True).train(mw.SGD(lr=0.1))
with train.parallelize(mesh={{"gtp": 2}}, gtp_gather={kind!r}).start(backend='nccl') as session:
    before = session.parameters()
    try: session.run(**DATA[0])
    except mw.Error as error: assert "expected finite numbers in a weight that travels in {kind}" in str(error), error
    else: raise AssertionError("no error")
    assert all(torch.equal(v.nan_to_num(), session.parameters()[k].nan_to_num()) for k, v in before.items())
""")
