# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Helpers of the import tests: they check an import's text, operations and values."""
import collections
import copy
import os
import shutil
import subprocess

import nn_reference
import torch
from meshwright.importer.torch import import_module

_ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def tensors(output):
    """The tensors of a module's output, in its own order."""
    if isinstance(output, torch.Tensor):
        return [output]
    if hasattr(output, "to_tuple"):
        output = output.to_tuple()
    if isinstance(output, dict):
        output = list(output.values())
    return [t for x in output for t in tensors(x)] if isinstance(output, (tuple, list)) else []


def verify(text):
    """Parses and verifies the program with sharding-opt, where it is built."""
    tool = os.environ.get("SHARDING_OPT") or shutil.which("sharding-opt") or \
        os.path.join(_ROOT, "build", "bin", "sharding-opt")
    if not os.path.exists(tool):
        return
    done = subprocess.run([tool, "-o", os.devnull], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def count(imported):
    return collections.Counter(n.op for n in imported.graph.nodes())


def same(module, args, kwargs=None, tolerance=1e-5):
    """Imports the module and compares with it; returns the import."""
    kwargs = kwargs or {}
    before = copy.deepcopy(module.__dict__.get("config"))
    imported = import_module(module, args, kwargs)
    if before is not None:
        assert module.config.to_dict() == before.to_dict()
    verify(imported.mlir)
    got = nn_reference.run(imported, imported.flatten(args, kwargs))
    with torch.no_grad():
        own = tensors(module(*args, **kwargs))
        double = lambda x: x.double() if isinstance(x, torch.Tensor) and \
            x.is_floating_point() else x
        want = tensors(copy.deepcopy(module).double()(
            *map(double, args), **{k: double(v) for k, v in kwargs.items()}))
    assert len(got) == len(want) == len(imported.outputs)
    for g, o, w in zip(got, own, want):
        assert g.shape == w.shape and g.dtype == o.dtype
        size = max(w.abs().max().item(), 1e-30)
        error, allowed = ((x.double() - w).abs().max().item() / size for x in (g, o))
        assert error <= max(tolerance, 1.25 * allowed), f"error {error}, PyTorch's {allowed}"
    return imported
