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


@pytest.fixture(autouse=True)
def taken_apart(monkeypatch):
    """Fails a test that imports an operation by its parts, if the operation has a derivative of its
    own in PyTorch and no points in test/exec/points_decomposed.py."""
    import torch
    from meshwright.importer.torch import decompose

    spec = importlib.util.spec_from_file_location(
        "points_decomposed", os.path.join(_HERE, "..", "exec", "points_decomposed.py"))
    points = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(points)
    apart, unknown = decompose._decomposed, set()

    def decomposed(node, *rest):
        result = apart(node, *rest)
        name = node.target.name()
        is_composed = torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
        base = name.split("::")[1].split(".")[0]
        takes_floats = any(n.meta["val"].is_floating_point() for n in node.all_input_nodes
                           if isinstance(n.meta.get("val"), torch.Tensor))
        is_float = isinstance(node.meta.get("val"), torch.Tensor) and node.meta["val"].is_floating_point()
        if result[0] is not None and not is_composed and takes_floats and is_float and \
                base not in points.DECOMPOSED:
            unknown.add(base)
        return result

    monkeypatch.setattr(decompose, "_decomposed", decomposed)
    yield
    assert not unknown, f"{sorted(unknown)} are taken apart: expected points in test/exec/points_*.py, " \
        "and their names in test/exec/points_decomposed.py"
