# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attributes of others, set for a while."""
import contextlib


@contextlib.contextmanager
def patched():
    """Gives `patch(owner, name, value)`, which sets an attribute until the end of the region."""
    with contextlib.ExitStack() as patches:
        def patch(owner, name, value):
            undo = (setattr, owner, name, vars(owner)[name]) if name in vars(owner) else \
                (delattr, owner, name)
            patches.callback(*undo)
            setattr(owner, name, value)

        yield patch
