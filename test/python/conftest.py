# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Finds the package: where PYTHONPATH has none, the sources beside the tests. Fixtures of several
files."""
import importlib.util
import os
import sys

import pytest

_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, _HERE)
if importlib.util.find_spec("meshwright") is None:
    sys.path.insert(0, os.path.join(_HERE, "..", "..", "python"))


@pytest.fixture
def x():
    import torch

    return torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(4))


@pytest.fixture
def module():
    from mlp import Mlp

    return Mlp().eval()
