# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The memory of GPUs, on the stand-ins (test/fakegpu)."""
from test_gpu_running import ROOT, check, pytestmark  # noqa: F401

FREE = f"""
import ctypes as C, gc, sys
sys.path.insert(0, '{ROOT}/test/fakegpu')
from fakegpu_cuda import Driver
drivers = [Driver(0), Driver(1)]
def free():
    gc.collect()
    left = []
    for driver in drivers:
        a, b = C.c_size_t(), C.c_size_t()
        driver.call("cuCtxSetCurrent", driver.context)
        driver.call("cuMemGetInfo", C.byref(a), C.byref(b))
        left.append(a.value)
    return left
"""

SMALL = """
program = '''
func.func @main(%x: tensor<4x8xf32> {nn.input = "x"}, %w: tensor<8x8xf32> {nn.parameter = "w"}) -> (tensor<4x8xf32> {nn.output = "y"}) {
  %0 = nn.linear %x, %w : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %1 = nn.relu %0 : tensor<4x8xf32>
  return %1 : tensor<4x8xf32>
}'''
import tempfile
from safetensors.torch import save_file
folder = tempfile.mkdtemp()
open(folder + '/m.mlir', 'w').write(program)
save_file({'w': torch.randn(8, 8)}, folder + '/w.safetensors')
model, x = mw.load(folder + '/m.mlir', folder + '/w.safetensors'), torch.randn(4, 8)
"""


def test_a_thousand_plans():
    """They leave no device memory, nor do sessions with graphs."""
    check(FREE + SMALL + """
before, want = free(), None
for i in range(1000):
    ranks = 2 if i % 50 == 0 else 1
    plan = model.parallelize(mesh={'tp': ranks})
    y, = plan.run(x, backend='nccl')
    want = y if want is None else want
    assert (y - want).abs().max() < 1e-6
    if i % 25 == 0:
        with plan.start(backend='nccl', graphs='on') as session:
            for _ in range(4): assert torch.equal(session.run(x)[0], y)
del plan, session
assert free() == before, (free(), before)
""")


def test_sessions_allocate_once():
    """Calls, and sessions of a plan that is still there, take their memory from the pool: the 64th allocation would fail."""
    check(SMALL + """
plan = model.parallelize(mesh={'tp': 1})
want, = plan.run(x, backend='nccl')
for i in range(30):
    with plan.start(backend='nccl') as session:
        for call in range(4): assert torch.equal(session.run(x)[0], want)
""", FAKEGPU_FAIL="cuMemAlloc:64")


def test_the_pool_gives_way():
    """Memory that the pool keeps is there for other sizes."""
    check(FREE + """
def plan(rows):
    table, ids = nn.Embedding(rows, 256).eval(), torch.tensor([[1, 2]])
    made = mw.from_torch(table, (ids,)).parallelize(mesh={'tp': 1})
    assert torch.equal(made.run(ids, backend='nccl')[0], table(ids))
    return made
kept = plan(8)
before = free()
# Tables of 3 MiB and more.
for rows in range(3072, 3078): plan(rows)
# A quarter of the memory at most.
assert 0 < before[0] - free()[0] <= 4 << 20, (before, free())
# Tables of 12 MiB: they need the memory of the pool.
for rows in range(12000, 12004): plan(rows)
del kept
assert free()[0] >= before[0]
""", FAKEGPU_MEMORY="16M")


def test_weights_cast_at_load():
    """The memory of a GPU holds them in the type that kernels read."""
    check("""
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(64, 160), torch.nn.Linear(160, 64)
    def forward(self, x):
        with torch.autocast('cpu', torch.bfloat16):
            return self.down(torch.nn.functional.silu(self.up(x))).float()
torch.manual_seed(0)
net, x = Net().eval(), torch.randn(20, 64)
model = mw.from_torch(net, (x,))
for mesh in {'dp': 2}, {'tp': 2}:
    plan = model.parallelize(mesh=mesh, target='gpu:sm_90a')
    assert plan.ir('rt').count('at load') >= 2, plan.ir('rt')
    got, = plan.run(x, backend='nccl')
    with torch.no_grad(): want = net(x)
    assert (got - want).abs().max() < 2e-2 * want.abs().max()
""")
