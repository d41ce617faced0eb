# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Settings of PyTorch around a call, which change what a module's code means or what ours does."""
import contextlib
from typing import NamedTuple

import torch
from torch.utils import _pytree as pytree

from ..errors import Diagnostic, ImportFailed


class Surroundings(NamedTuple):
    """The settings that an import takes from its caller. Later imports of the module take the same
    ones: the caller may have changed them since."""
    #: torch.get_default_dtype(): the type of what the module's code makes without one.
    dtype: torch.dtype
    #: Where the module's code makes tensors without a device: "cpu", or "meta" for a model there.
    device: str


def _default_device() -> str:
    try:
        return torch.get_default_device().type
    except (AssertionError, RuntimeError):  # this build or machine has no such device
        return "missing"


def read(module, args, kwargs) -> Surroundings:
    """The settings of the caller. Raises ImportFailed where they make another module of this one."""
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            raise ImportFailed([Diagnostic(
                f'torch.autocast("{device}") is on around the import, and would change the types of '
                "the module's operations: expected an import outside of it; put the region into "
                "the module's forward to keep it")])
    tensors = [*module.parameters(), *module.buffers(), *pytree.tree_leaves((args, kwargs))]
    is_meta = _default_device() == "meta" and any(
        isinstance(t, torch.Tensor) and t.device.type == "meta" for t in tensors)
    return Surroundings(torch.get_default_dtype(), "meta" if is_meta else "cpu")


@contextlib.contextmanager
def plain(dtype: torch.dtype | None = None, device: str = "cpu"):
    """PyTorch without autocast and inference mode, and with this default type and device. Enters
    only what differs, since a default device slows every call down."""
    with contextlib.ExitStack() as stack:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if _default_device() != device:
            stack.enter_context(torch.device(device))
        before = torch.get_default_dtype()
        if dtype is not None and dtype != before:
            torch.set_default_dtype(dtype)
            stack.callback(torch.set_default_dtype, before)
        yield
