# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The sessions whose results a check compares."""

import contextlib
import warnings

from ..errors import MeshwrightWarning


@contextlib.contextmanager
def session_of(model):
    """A session of the model on one rank."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MeshwrightWarning)
        plan = model.parallelize(mesh={"dp": 1})
    with plan.start() as session:
        yield session
