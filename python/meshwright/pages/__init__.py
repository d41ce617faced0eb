# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Pages on plans: pictures and answers from the report and the scheduled program."""

from ..errors import Error


def renderer():
    """The module that writes pages. It needs libraries that nothing else needs."""
    try:
        from . import render
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("jinja2", "markupsafe", "svg"):
            raise
        raise Error(
            f"a page needs the packages 'jinja2' and 'svg.py': '{error.name}' is not installed; "
            "'pip install meshwright[report]' brings both"
        ) from None
    return render
