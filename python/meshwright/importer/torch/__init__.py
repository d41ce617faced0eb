# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The front end of PyTorch: torch.export, then the graph.

No function is defined here: PyTorch's traces take each file torch/__init__.py for its own.
"""
from .program import Diagnostic, ImportedProgram, ImportFailed, import_module

__all__ = ["Diagnostic", "ImportFailed", "ImportedProgram", "import_module"]
