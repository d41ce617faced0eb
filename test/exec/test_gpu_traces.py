# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Traces and reports of the backend `nccl`, on the stand-ins (test/fakegpu)."""
import json

import pytest
from test_gpu_running import check, pytestmark  # noqa: F401


@pytest.mark.parametrize("backend", ["nccl", "nccl:peer"])
def test_the_devices_clock(tmp_path, backend):
    """Kernels and collectives of each rank, by the device's clock: in order on each stream. A collective that runs
    beside kernels is on its own stream."""
    check(f"""
net, x = make()
wide = nn.Sequential(net, Block(32), Block(32)).eval()
plan = mw.from_torch(wide, (x,)).parallelize(mesh={{'tp': 2}}, sequence_parallel='on', overlap='on')
plan.run(x, backend='{backend}', trace='{tmp_path}/trace')
""")
    events = json.loads((tmp_path / "trace").read_text())["traceEvents"]
    work = [e for e in events if e["ph"] == "X"]
    for rank in (0, 1):
        mine = [e for e in work if e["pid"] == rank]
        kinds = {e["cat"] for e in mine}
        assert {"rows", "gemm", "collective"} <= kinds, kinds
        for stream in {e["tid"] for e in mine}:
            last = 0.0
            for e in (e for e in mine if e["tid"] == stream):
                # Times are printed in nanoseconds, and measured in floats of milliseconds.
                assert e["ts"] >= last - 0.05 and e["dur"] >= 0, e
                last = e["ts"] + e["dur"]
        # The stand-in's clock counts instructions: a kernel takes time on it, and not the milliseconds of the interpreter.
        assert 0 < sum(e["dur"] for e in mine if e["cat"] == "rows") < 1e4
    assert any(e["tid"] > 0 and e["cat"] == "collective" for e in work)


def test_the_devices_ceilings(tmp_path):
    """A report compares launches with the peaks of the GPUs: those of the stand-in's H100."""
    check(f"""
import json
net, x = make()
plan = mw.from_torch(net, (x,)).parallelize(mesh={{'tp': 2}})
plan.run(x, backend='nccl', measure=True)
open('{tmp_path}/report', 'w').write(json.dumps([plan.report(format='json')['run'], str(plan.report())]))
""")
    run, text = json.loads((tmp_path / "report").read_text())
    ceilings = run["ceilings"]
    assert (ceilings["gpus"], ceilings["threads"]) == (2, 0)
    assert ceilings["bytes_per_second"] == pytest.approx(2 * 3.35e12, rel=0.01)
    assert ceilings["bf16_flops_per_second"] == pytest.approx(16 * ceilings["f32_flops_per_second"], rel=1e-3)
    assert all(0 < kernels["of_ceiling"] <= 1 for kernels in run["kernels"]), run["kernels"]
    assert run["communication"]["collectives"] == 1 and run["communication"]["seconds"] > 0
    assert "ceilings of 2 GPUs: f32 " in text
