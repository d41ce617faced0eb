# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Starts a script as ranks on this machine, for the backend `mpi`.

    python -m meshwright.launch -n 4 script.py arguments
    python -m meshwright.launch -n 4 -m package.module arguments

Each rank is a process of this Python, started by Open MPI's mpirun. mpirun takes the place of this process:
it gets the signals, and its exit status is that of the first rank that fails.
"""

import argparse
import os
import shutil
import subprocess
import sys

from .backends import OF_MPI
from .version import VERSION

#: Settings of Open MPI for ranks on one machine. A setting of the user stays. tools/meshwright-mpirun has the
#: same, and says why.
SETTINGS = {
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
}
SETTINGS_OF_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def main(arguments=None) -> int:
    options = _parse(arguments)
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        return _fail("mpirun is not installed, or not on the PATH: install Open MPI (Debian: openmpi-bin)")
    if not _is_open_mpi(mpirun):
        return _fail(f"expected mpirun of Open MPI, got '{mpirun}' of another MPI")
    settings = {**SETTINGS, **(SETTINGS_OF_ROOT if os.geteuid() == 0 else {})}
    command = [mpirun, "-np", str(options.ranks), sys.executable, *options.program]
    sys.stdout.flush()
    try:
        os.execve(mpirun, command, {**settings, **os.environ})
    except OSError as error:
        return _fail(f"cannot start '{mpirun}': {error.strerror}")


def _parse(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m meshwright.launch",
        usage="%(prog)s -n RANKS (script.py | -m module) [arguments]",
        description="Starts a script as ranks on this machine, for the backend 'mpi'.",
    )
    parser.add_argument("--version", action="version", version=f"meshwright {VERSION}")
    parser.add_argument("-n", "--ranks", type=int, required=True, help="processes, a rank each")
    rest = {"nargs": argparse.REMAINDER}
    parser.add_argument("-m", dest="module", metavar=("module", "arguments"), help="a module in place of a script", **rest)
    parser.add_argument("program", metavar="script.py", help="a script, and its arguments", **rest)
    options = parser.parse_args(arguments)
    if options.ranks < 1:
        parser.error(f"-n: expected a number of ranks from 1 on, got {options.ranks}")
    if any(variable in os.environ for variable in OF_MPI):
        parser.error("this process is a rank of mpirun already: expected to be started by itself")
    if options.module:
        options.program = ["-m", *options.module]
    elif not options.program:
        parser.error("expected a script, or -m and a module")
    elif not os.path.isfile(options.program[0]):
        parser.error(f"no such script: '{options.program[0]}'")
    return options


def _is_open_mpi(mpirun) -> bool:
    try:
        done = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return True  # starting it says more
    return any(name in done.stdout + done.stderr for name in ("Open MPI", "OpenRTE", "open-mpi.org"))


def _fail(problem) -> int:
    print(f"error: {problem}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
