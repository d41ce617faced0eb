# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Measures this machine for the cost model."""

from . import _core, arguments
from .errors import unwrap
from .progress import Phase


def calibrate(path=None, backend: str = "local", threads_per_rank: int = 0) -> str:
    """Measures, in about a minute, the rates that the cost model uses, and writes a device file.

    path: the file, which `parallelize(device=path)` takes. Default: the place where plans look for
        the calibration of this machine, `meshwright/device.json` in XDG_CONFIG_HOME or ~/.config.
    backend: the backend that will run; its ranks compute on processors.
    threads_per_rank: threads that a rank computes with; 0 stands for MESHWRIGHT_THREADS, or 1.

    Returns the path of the file.
    """
    arguments.text("backend", backend, "the name of a backend")
    arguments.integer("threads_per_rank", threads_per_rank, least=0)
    spelled = "" if path is None else arguments.path("path", path)
    with Phase("calibrating"):
        return unwrap(_core.calibrate(spelled, backend, threads_per_rank), call="calibrate")
