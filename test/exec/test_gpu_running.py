# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Programs on the backend `nccl`, on the stand-ins for NVIDIA's libraries (test/fakegpu)."""
import json
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("MESHWRIGHT_BUILD_DIR", ROOT / "build"))
FAKEGPU = BUILD / "fakegpu"

pytestmark = pytest.mark.skipif(
    not (FAKEGPU / "libcublasLt.so.13").exists(),
    reason="the stand-ins are not built: cuda.h, nccl.h or cublasLt.h was not found")

PROGRAM = """
import sys, torch, meshwright as mw
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))

def make(width=32, dtype=torch.float32):
    torch.manual_seed(0)
    return Block(width).eval().to(dtype), torch.randn(6, width).to(dtype)

def compare(backend, dtype=torch.float32, width=32, **mesh):
    net, x = make(width, dtype)
    plan = mw.from_torch(net, (x,)).parallelize(**mesh)
    got, again = plan.run(x, backend=backend)[0], plan.run(x, backend=backend)[0]
    assert torch.equal(got, again), "two runs differ"
    with torch.no_grad():
        want = net.double()(x.double())
    error = ((got.double() - want).abs().max() / want.abs().max()).item()
    assert error < (2e-2 if dtype != torch.float32 else 1e-5), error
    return got
"""


def run(body, **variables):
    """A script in a process of its own, whose library path begins with the stand-ins."""
    path = os.pathsep.join(p for p in [str(FAKEGPU), os.environ.get("LD_LIBRARY_PATH", "")] if p)
    return subprocess.run([sys.executable, "-c", PROGRAM + body], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "LD_LIBRARY_PATH": path, **variables})


def check(body, **variables):
    done = run(body, **variables)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def refusal(body, **variables):
    tried = textwrap.indent(body, "    ")
    done = run(f"try:\n{tried}\n    print('accepted')\nexcept mw.Error as error:\n    print(error)", **variables)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


@pytest.mark.parametrize("backend", ["nccl", "nccl:peer"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_block(backend, dtype):
    """One rank, two, and three, of which each has 43 of 128 columns."""
    check(f"for ranks in (1, 2, 3): compare('{backend}', torch.{dtype}, mesh={{'tp': ranks}})")


@pytest.mark.parametrize("backend", ["nccl", "nccl:peer"])
def test_partial_sums_in_f32(backend):
    """Generated kernels and the library write f32, which the ranks add and round once."""
    check(f"""
net, x = make(64, torch.bfloat16)
for rows in (6, 96):
    inputs = x.repeat(rows // 6, 1)
    for mode in ("on", "off"):
        plan = mw.from_torch(net, (inputs,)).parallelize(mesh={{"tp": 2}}, sequence_parallel=mode, reduce_type="f32")
        types = [c["dtype"] for c in plan.report("json")["collectives"] if c["kind"] != "all_gather"]
        assert types and set(types) == {{"f32"}}, types
        got, local = plan.run(inputs, backend="{backend}")[0], plan.run(inputs)[0]
        assert (got.double() - local.double()).abs().max() <= 2e-2 * local.double().abs().max()
""")


@pytest.mark.parametrize("mode", ["on", "off"])
def test_token_shards(mode):
    """Reduce-scatters and all-gathers of tokens, padded where the ranks do not divide them."""
    check(f"compare('nccl', mesh={{'tp': 4}}, sequence_parallel='{mode}')\n"
          f"compare('nccl:peer', mesh={{'tp': 4}}, sequence_parallel='{mode}')")


def test_peer_sums_as_local():
    """Collectives give the bits of `local`."""
    check("""
class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(48, 16, bias=False)
    def forward(self, x):
        return self.w(x)
torch.manual_seed(0)
net, x = Sum().eval(), torch.randint(-8, 8, (4, 48)).float()
net.w.weight.data = torch.randint(-8, 8, (16, 48)).float() / 1024
plan = mw.from_torch(net, (x,)).parallelize(mesh={'tp': 3})
assert torch.equal(plan.run(x, backend='nccl:peer')[0], plan.run(x)[0])
""")


def test_no_waits(tmp_path):
    """The host waits only at the end, and copies only inputs, outputs and fault words."""
    check("net, x = make()\nmw.from_torch(net, (x,)).parallelize(mesh={'tp': 2}).run(x, backend='nccl')",
          FAKEGPU_LOG=str(tmp_path / "log"))
    log = json.loads((tmp_path / "log").read_text())
    assert log["waits"] == 0 and sum(log["launches"].values()) > 0
    assert log["copies"]["d2h"] <= 6 * 32 * 4 * 2 + 4096


LLAMA = """
import transformers as tf
net = tf.LlamaForCausalLM(tf.LlamaConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                                         num_key_value_heads=2, vocab_size=53, use_cache=False)).eval()
x = torch.randint(0, 53, (1, 20))
plan = mw.from_torch(net, (x,)).parallelize(MESH)
"""
TRAINING = """
class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = make()[0]
    def forward(self, x):
        return (self.net(x) ** 2).mean()
x = torch.randn(8, 32)
plan = mw.from_torch(Loss(), (x,), training=True).train(mw.AdamW(lr=0.01), microbatches=2, clip_norm=1.0).parallelize(mesh={'dp': 2})
"""
STATE = """
class Count(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(32, 32)
        self.register_buffer("seen", torch.zeros(32))
        self.register_buffer("rows", torch.zeros(2, 8, 32))
    def forward(self, x):
        self.seen.mul_(0.5).add_(x.mean(0))
        self.rows[:, :4].add_(x[:4])
        return self.w(x) + self.seen, self.rows * 2
x = torch.randn(8, 32)
plan = mw.from_torch(Count().eval(), (x,)).parallelize(mesh={'dp': 2})
"""


@pytest.mark.parametrize("model", [
    LLAMA.replace("MESH", "mesh={'tp': 2}, sequence_parallel='on'"), LLAMA.replace("MESH", "mesh={'ring': 2}, context_parallel={'ring': 'ring'}"),
    TRAINING, STATE], ids=["tp", "ring", "training", "state"])
def test_sessions_do_not_wait(tmp_path, model):
    """Calls that enqueue ops, that capture graphs and that launch them; steps of several parts, and calls that can be undone."""
    check(model + """
with plan.start(backend='nccl', recover=True) as session:
    for _ in range(5): session.run(x)
""", FAKEGPU_LOG=str(tmp_path / "log"))
    log = json.loads((tmp_path / "log").read_text())
    assert log["waits"] == 0 and log["graph_launches"] > 0


def test_state_advances():
    check("""
class Count(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(32))
    def forward(self, x):
        self.seen.add_(x.mean(0))
        return x + self.seen
net, x = Count().eval(), torch.randn(8, 32)
with mw.from_torch(net, (x,)).parallelize(mesh={'dp': 2}).start(backend='nccl') as session:
    for call in range(1, 4):
        got = session.run(x)[0]
        assert (got - (x + call * x.mean(0))).abs().max() < 1e-5
""")


@pytest.mark.parametrize("dp", [1, 2])
def test_entries_share_state(dp):
    """One entry replaces the whole state, the other one some of its rows."""
    check(f"""
class Cache(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.zeros(2, 8, 4))
    def forward(self, x):
        self.rows[:, :x.shape[1]].add_(x)
        return self.rows * 2
whole, some = torch.randn(2, 7, 4), torch.randn(2, 1, 4)
model = mw.join({{'whole': mw.from_torch(Cache().eval(), (whole,)), 'some': mw.from_torch(Cache().eval(), (some,))}})
with model.parallelize(mesh={{'dp': {dp}}}).start(backend='nccl') as session:
    net = Cache().eval()
    for entry in ('whole', 'some', 'some', 'whole', 'some'):
        x = whole if entry == 'whole' else some
        assert torch.equal(session.run(x, entry=entry)[0], net(x)), entry
""")


def test_bundle(tmp_path):
    """A bundle has the kernels as files, and runs without a compiler."""
    check(f"""
net, x = make()
plan = mw.from_torch(net, (x,)).parallelize(mesh={{'tp': 2}})
plan.compile('{tmp_path}/b', target='gpu:sm_90a')
want = plan.run(x, backend='nccl')[0]
with mw.load_bundle('{tmp_path}/b').start(backend='nccl') as session:
    assert torch.equal(session.run(x)[0], want)
""")
    manifest = json.loads((tmp_path / "b" / "manifest.json").read_text())
    assert manifest["target"]["chip"] == "sm_90a"
    for kernel in manifest["kernels"]:
        assert (tmp_path / "b" / "kernels" / f"{kernel['name']}.ptx").stat().st_size == kernel["ptx"]["bytes"]


@pytest.mark.parametrize("mesh,options", [
    ({"tp": 2}, {}), ({"ring": 2}, {"context_parallel": {"ring": "ring"}})], ids=["tp", "ring"])
def test_tensor_maps(tmp_path, mesh, options):
    """Attention by tensor maps, plainly, in graphs and from a bundle: each call has the same bits for the same input."""
    check(f"""
class Attend(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.Linear(128, 384, bias=False)
    def forward(self, x):
        q, k, v = (y.unflatten(-1, (2, 64)).transpose(1, 2) for y in self.heads(x).chunk(3, -1))
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
torch.manual_seed(0)
net, xs = Attend().eval().bfloat16(), [torch.randn(1, 300, 128).bfloat16() for _ in range(2)]
plan = mw.from_torch(net, (xs[0],)).parallelize(mesh={mesh}, **{options})
plan.compile('{tmp_path}/b', target='gpu:sm_90a')
with plan.start(backend='nccl', graphs='on') as on, plan.start(backend='nccl', graphs='off') as off, \\
     mw.load_bundle('{tmp_path}/b').start(backend='nccl') as loaded:
    for x in [*xs, *xs]:
        got = on.run(x)[0]
        assert torch.equal(got, off.run(x)[0]) and torch.equal(got, loaded.run(x)[0])
        with torch.no_grad():
            want = net(x).double()
        assert (got.double() - want).abs().max() < 2e-2 * want.abs().max()
""")
    texts = [path.read_text() for path in (tmp_path / "b" / "kernels").glob("*.ptx")]
    assert any("wgmma.mma_async" in text and "cp.async.bulk.tensor" in text for text in texts)


START = "mw.load_bundle('{}').start(backend='nccl').__enter__()"


def test_refusals(tmp_path):
    compile_ = "net, x = make(); mw.from_torch(net, (x,)).parallelize(mesh={'tp': 1}).compile('%s', target='%s')"
    plan = "net, x = make(); mw.from_torch(net, (x,)).parallelize(mesh={'tp': %d}).run(x, backend='%s')"
    check(compile_ % (tmp_path / "cpu", "cpu") + "\n" + compile_ % (tmp_path / "gpu", "gpu:sm_90a"))
    assert "is compiled for: expected 'gpu:sm_90a', as this GPU has compute capability 9.0, got 'cpu'" in refusal(
        START.format(tmp_path / "cpu"))
    assert "is compiled for: expected 'gpu:sm_80', as this GPU has compute capability 8.0, got 'gpu:sm_90a'" in \
        refusal(START.format(tmp_path / "gpu"), FAKEGPU_CHIP="sm_80")
    assert "has 64 ranks, and there are 8 devices" in refusal(plan % (64, "nccl"))
    assert "unknown mode 'slow': expected fast or peer" in refusal(plan % (1, "nccl:slow"))
    assert "no device" in refusal(plan % (1, "nccl"), CUDA_VISIBLE_DEVICES="")
    assert "the NVIDIA driver: expected one for CUDA 12.8 or later, got one for 11.0" in refusal(plan % (1, "nccl"), FAKEGPU_DRIVER="11000")
    assert "NCCL: expected version 2.26.2 or later, got 2.21.5" in refusal(plan % (1, "nccl"), FAKEGPU_NCCL="22105")
    assert "NVIDIA driver not found" in refusal(plan % (1, "nccl"), LD_LIBRARY_PATH="")
    assert "cuLaunchKernel failed: " in refusal(plan % (1, "nccl"), FAKEGPU_FAIL="cuLaunchKernel:1")


def test_memory():
    large = "net, x = make(2048); mw.from_torch(net, (x,)).parallelize(mesh={'tp': 1}).run(x, backend='nccl')"
    assert "of its device's memory" in refusal(large, FAKEGPU_MEMORY="32M")


def test_faults():
    """A wrong index or value is found on the device, and the error names the op."""
    index = "mw.from_torch(nn.Embedding(7, 8), (torch.tensor([[1, 2]]),)).parallelize(mesh={'tp': 2}).run(torch.tensor([[1, 9]]), backend='nccl')"
    said = refusal(index)
    assert "nn.embedding" in said and "out of range" in said
    said = refusal("net, x = make(); mw.from_torch(net, (x,)).parallelize(mesh={'tp': 1}).run(x * float('nan'), backend='nccl', check_finite=True)")
    assert "is NaN at element 0" in said
