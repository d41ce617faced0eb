# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Imports models: each front end builds the same graph, whose rewrites and text are in `graph`."""
from .errors import Diagnostic, ImportFailed

__all__ = ["Diagnostic", "ImportFailed"]
