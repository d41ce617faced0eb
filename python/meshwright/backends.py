# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The names of backends, and the processes that their ranks need."""

import os
import pathlib
import sys

from . import arguments
from .errors import Error

#: Variables of a process that mpirun, or another launcher that MPI knows, has started.
OF_MPI = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK")


def backend_name(value) -> str:
    """The backend of a session or a run. An Error for `mpi` in processes that MPI cannot join."""
    name = arguments.text("backend", value, "the name of a backend")
    if name.partition(":")[0] == "mpi" and not any(variable in os.environ for variable in OF_MPI):
        if "TORCHELASTIC_RUN_ID" in os.environ:
            _refuse(name, "torchrun", os.environ.get("WORLD_SIZE", ""), f"start them by '{_command()}'")
        # A step of several tasks; one task may well start ranks of its own.
        if os.environ.get("SLURM_STEP_NUM_TASKS", "1") != "1":
            tasks = os.environ["SLURM_STEP_NUM_TASKS"]
            _refuse(name, "srun", tasks, "start them by 'srun --mpi=pmix ...', or by mpirun in an allocation of salloc")
    return name


def _command() -> str:
    """The command that starts this program with as many ranks."""
    ranks = os.environ.get("WORLD_SIZE", "N")
    script = pathlib.Path(sys.argv[0]).name or "script.py"
    return f"python -m meshwright.launch -n {ranks} {script}" + (" ..." if sys.argv[1:] else "")


def _refuse(name, launcher, count, remedy):
    raise Error(f"backend '{name}': the {count + ' ' if count else ''}processes of {launcher} are not connected by MPI: {remedy}")
