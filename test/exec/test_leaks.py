# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Plans that are made, run and dropped leave nothing behind. MESHWRIGHT_TEST_PLANS=1000 for more."""
import os
import subprocess
import sys
import time

import meshwright as mw
import numpy
from harness import TIMEOUT
from safetensors.numpy import save_file

PLANS = int(os.environ.get("MESHWRIGHT_TEST_PLANS", "25"))
MODEL = """func.func @main(%x: tensor<32x64xf32> {nn.input = "x"}, %w: tensor<128x64xf32> {nn.parameter = "w"},
                %v: tensor<64x128xf32> {nn.parameter = "v"}) -> (tensor<32x64xf32> {nn.output = "y"}) {
  %0 = nn.linear %x, %w : (tensor<32x64xf32>, tensor<128x64xf32>) -> tensor<32x128xf32>
  %1 = nn.tanh %0 : tensor<32x128xf32>
  %2 = nn.linear %1, %v : (tensor<32x128xf32>, tensor<64x128xf32>) -> tensor<32x64xf32>
  return %2 : tensor<32x64xf32>
}
"""


def held():
    """Threads, open files, resident bytes."""
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), resident


def assert_nothing_left(before, rounds):
    """Compares with what was held some rounds ago."""
    now, end = held(), time.monotonic() + 60
    # A thread is listed for a moment after it was joined.
    while now[0] > before[0] and time.monotonic() < end:
        now = held()
    assert now[0] <= before[0] and now[1] <= before[1]
    # The memory of allocators and of the compiler's tables settles; it does not grow with each round. A
    # sanitizer keeps what was freed.
    assert "MESHWRIGHT_SANITIZER" in os.environ or now[2] - before[2] < (8 << 20) + rounds * 4096


def test_plans_leave_nothing_behind(tmp_path):
    (tmp_path / "m.mlir").write_text(MODEL)
    draw = numpy.random.default_rng(1).standard_normal
    weights = {"w": draw((128, 64), "float32") / 8, "v": draw((64, 128), "float32") / 8}
    save_file(weights, tmp_path / "m.safetensors")
    x = draw((32, 64), "float32")
    expected = numpy.tanh(x @ weights["w"].T) @ weights["v"].T
    model = mw.load(tmp_path / "m.mlir", tmp_path / "m.safetensors")
    for i in range(PLANS):
        plan = model.parallelize(mesh={"tp": 2})
        y, = plan.run(x, threads_per_rank=1 + i % 2)
        assert numpy.abs(y - expected).max() < 1e-4
        del plan
        if i == PLANS // 5:
            before = held()
    assert_nothing_left(before, PLANS - PLANS // 5)


def test_a_forked_process_is_told(tmp_path):
    """It has none of the threads that the ranks are: an error, and an end, in place of a hang."""
    (tmp_path / "m.mlir").write_text(MODEL)
    save_file({"w": numpy.ones((128, 64), "float32"), "v": numpy.ones((64, 128), "float32")},
              tmp_path / "m.safetensors")
    (tmp_path / "script.py").write_text("""
import os
import meshwright as mw, numpy
x = numpy.ones((32, 64), "float32")
model = mw.load("m.mlir", "m.safetensors")
plan = model.parallelize(mesh={"tp": 2})
plan.run(x)
child = os.fork()
if child == 0:
    try:
        plan.run(x)
    except mw.Error as error:
        print(error, flush=True)
    # A plan of its own runs.
    print(model.parallelize(mesh={"tp": 2}).run(x)[0].shape, flush=True)
    del plan
    os._exit(7)
print("status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
plan.run(x)
""")
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True,
                          timeout=TIMEOUT, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "this one was forked from it: plan or load the program again here" in done.stdout
    assert "(32, 64)" in done.stdout and "status 7" in done.stdout
