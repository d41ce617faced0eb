# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Meshwright: parallelises transformers by choosing layouts.

    model = mw.from_torch(module, args, kwargs)
    plan = model.parallelize(mesh={"dp": 2, "tp": 4}, sequence_parallel="auto")
    print(plan.report(), plan.ir())
    outputs = plan.run(*args, **kwargs)
    plan.check(*args, **kwargs)
"""

import atexit

from . import _core, logs
from .calibration import calibrate
from .composing import compose
from .devices import DeviceArray
from .errors import CheckFailed, Diagnostic, Error, InputError, MeshwrightWarning
from .joining import join
from .model import Model, from_torch, load
from .optimizers import SGD, Adam, AdamW
from .plan import Plan
from .progress import quiet
from .requests import Request
from .session import Bundle, Session, load_bundle
from .stablehlo import from_jax, from_stablehlo
from .version import VERSION as __version__

logs.read_environment()
# A thread that is in a call would go on while the process ends.
atexit.register(_core.end_runs)

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Bundle",
    "CheckFailed",
    "DeviceArray",
    "Diagnostic",
    "Error",
    "InputError",
    "MeshwrightWarning",
    "Model",
    "Plan",
    "Request",
    "Session",
    "calibrate",
    "compose",
    "from_jax",
    "from_stablehlo",
    "from_torch",
    "join",
    "load",
    "load_bundle",
    "quiet",
]
