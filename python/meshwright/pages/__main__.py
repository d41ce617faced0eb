# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Writes a page from the facts of a report: `python -m meshwright.pages PAGE.html [TRACE.json] < FACTS.json`.

`sharding-run --report=FILE.html` runs it.
"""

import json
import sys

from ..errors import Error
from ..weights import whole_file
from . import renderer
from .facts import read_facts
from .measured import add_trace


def main(arguments: list[str]) -> int:
    if not 1 <= len(arguments) <= 2:
        print(__doc__.split("\n")[0], file=sys.stderr)
        return 2
    try:
        render = renderer()
        if arguments == ["--check"]:
            return 0
        facts = read_facts(json.load(sys.stdin))
        if len(arguments) == 2:
            _add_trace(facts, arguments[1])
        page = render.plan_page(facts)
        with whole_file(arguments[0]) as file:
            file.write(page.encode("utf-8", "replace"))
    except ValueError:
        print("error: expected the facts of a report in JSON on standard input", file=sys.stderr)
        return 1
    except Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _add_trace(facts, path):
    """A page without measured times is better than none."""
    try:
        add_trace(facts, path)
    except Error as error:
        print(f"note: the page has no measured times: {error}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
