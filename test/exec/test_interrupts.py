# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Ctrl-C ends a call within a second, and the end of the interpreter ends calls of other threads."""
import subprocess
import sys

import pytest
from harness import TIMEOUT
from mpi_programs import NEEDS_MPI, mpirun

# A counter, and products in f64, which take long: many of them, or a single one.
PROGRAM = """
import os, signal, sys, threading, time
import meshwright as mw
import numpy as np

# A shell lets its background processes ignore the signal.
signal.signal(signal.SIGINT, signal.default_int_handler)
count, rows, columns = {"many": (150, 512, 512), "one": (1, 4096, 1024)}[sys.argv[1]]
kind = f"tensor<{rows}x{columns}xf64>"
text = f'''
nn.state @steps {{fill = 0 : i64}} : tensor<i64>
func.func @main(%x: {kind} {{nn.input = "x"}}, %w: tensor<{columns}x{columns}xf64> {{nn.input = "w"}}) -> (tensor<f64> {{nn.output = "y"}}) {{
  %n = nn.read @steps : tensor<i64>
  %one = nn.constant dense<1> : tensor<i64>
  %next = nn.add %n, %one : (tensor<i64>, tensor<i64>) -> tensor<i64>
  nn.write @steps, %next : tensor<i64>
'''
last = "%x"
for i in range(count):
    text += f"  %v{i} = nn.linear {last}, %w : ({kind}, tensor<{columns}x{columns}xf64>) -> {kind}\\n"
    last = f"%v{i}"
text += f'''  %y = nn.reduce sum {last} dims [0, 1] : ({kind}) -> tensor<f64>
  return %y : tensor<f64>
}}
func.func @peek() -> (tensor<i64> {{nn.output = "n"}}) {{
  %n = nn.read @steps : tensor<i64>
  return %n : tensor<i64>
}}
'''
place = f"{sys.argv[2]}/m{os.getpid()}.mlir"
with open(place, "w") as file:
    file.write(text)
plan = mw.load(place).parallelize(mesh={"dp": int(sys.argv[3])})
x, w = np.ones((rows, columns)) / columns, np.ones((columns, columns))
"""

INTERRUPTED = PROGRAM + """
backend = sys.argv[4]
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0))
sent = None

def interrupt():
    global sent
    time.sleep(0.75)
    sent = time.monotonic()
    os.kill(os.getpid(), signal.SIGINT)

with plan.start(backend=backend) as session:
    session.run(entry="peek")
    if rank == 0:
        threading.Thread(target=interrupt).start()
    try:
        session.run(x, w)
    except KeyboardInterrupt:
        print(f"interrupted after {time.monotonic() - sent:.2f} s", flush=True)
    except mw.Error as error:
        print(f"error on {rank}: {error}", flush=True)
    if backend == "local":
        (n,) = session.run(entry="peek")
        print("steps", int(n), int(session.state()["steps"]), flush=True)
        session.set_state({"steps": np.array(7)})
        assert session.run(entry="peek")[0] == 7
"""

WAITS = PROGRAM + """
session = plan.start()
threading.Thread(target=lambda: session.run(x, w), daemon=True).start()
time.sleep(0.5)
sent = None

def interrupt():
    global sent
    time.sleep(1)
    sent = time.monotonic()
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt).start()
try:
    session.run(entry="peek")
except KeyboardInterrupt:
    print(f"interrupted after {time.monotonic() - sent:.2f} s", flush=True)
"""

ENDS = PROGRAM + """
session = plan.start()
session.run(entry="peek")

def work():
    while True:
        session.run(x, w)

for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
time.sleep(1)
sys.exit(3)
"""


def seconds(text):
    return float(text.split("interrupted after ")[1].split()[0])


@pytest.mark.parametrize("what", ["many", "one"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_ctrl_c(tmp_path, what, ranks):
    """Between two launches, and in one, which the next call waits for. The state stays."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, what, tmp_path, str(ranks), "local"], capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stdout + done.stderr
    # A second, and what a busy machine takes.
    assert seconds(done.stdout) < 2, done.stdout
    assert "steps 0 0" in done.stdout


def test_ctrl_c_while_another_thread_is_in_a_call(tmp_path):
    done = subprocess.run([sys.executable, "-c", WAITS, "many", tmp_path, "1"], capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0 and seconds(done.stdout) < 2, done.stdout + done.stderr


@pytest.mark.parametrize("what", ["many"])
def test_ctrl_c_in_a_process_of_several(tmp_path, what):
    """The others end with an error that says so."""
    for mark in NEEDS_MPI:
        if mark.args[0]:
            pytest.skip(mark.kwargs["reason"])
    (tmp_path / "s.py").write_text(INTERRUPTED)
    done = subprocess.run(mpirun(2, sys.executable, tmp_path / "s.py", what, tmp_path, "2", "mpi"), capture_output=True, text=True, timeout=TIMEOUT)
    assert seconds(done.stdout) < 2, done.stdout + done.stderr
    assert "error on 1: " in done.stdout and "the call was interrupted" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("what", ["many", "one"])
def test_an_interpreter_that_ends(tmp_path, what):
    """While daemon threads run a session, in one or waiting for it."""
    done = subprocess.run([sys.executable, "-c", ENDS, what, tmp_path, "2"], capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 3, done.stderr
    assert "terminate" not in done.stderr and "Fatal" not in done.stderr, done.stderr
