#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks the Markdown documents.

- A link to a file of the tree names one that exists.
- docs/README.md links to every page of docs, docs/rationale/README.md and docs/tutorials/README.md
  to every page beside them, and CONTRIBUTING.md to every recipe.
- A page of docs/rationale has the parts Context, Decision, Alternatives and Cost, in this order.
"""

import argparse
import pathlib
import re
import sys

#: An index, and the pages that it links to.
INDEXES = {
    "docs/README.md": ["docs/*.md", "docs/dialects/*.md"],
    "docs/rationale/README.md": ["docs/rationale/*.md"],
    "docs/tutorials/README.md": ["docs/tutorials/*.md"],
    "CONTRIBUTING.md": ["docs/recipes/*.md"],
}
PARTS = ["Context", "Decision", "Alternatives", "Cost"]
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)]*)?\)")


def links_of(page):
    """(line, target) of each link that is no URL, outside blocks of code."""
    code = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            code = not code
        for target in [] if code else LINK.findall(re.sub(r"`[^`]*`", "", line)):
            if not re.match(r"[a-z]+:", target):
                yield number, (page.parent / target).resolve()


def errors_of(root):
    pages = [*root.glob("*.md"), *(root / "docs").rglob("*.md")]
    for page in sorted(pages):
        name = page.relative_to(root)
        for number, target in links_of(page):
            if not target.exists():
                yield f"{name}:{number}: no such file: {target.relative_to(root)}"
        if page.parent == root / "docs/rationale" and page.name != "README.md":
            parts = re.findall(r"^## (.*)$", page.read_text(), re.MULTILINE)
            if parts != PARTS:
                yield f"{name}:1: expected the parts {', '.join(PARTS)}, got {', '.join(parts) or 'none'}"
    for index, patterns in INDEXES.items():
        linked = {target for _, target in links_of(root / index)} if (root / index).exists() else set()
        for page in sorted(page for pattern in patterns for page in root.glob(pattern)):
            if page not in linked and page != root / index:
                yield f"{index}:1: expected a link to {page.relative_to(root)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", nargs="?", default=pathlib.Path(__file__).parents[1])
    errors = list(errors_of(pathlib.Path(parser.parse_args().root).resolve()))
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    print(f"{len(errors)} errors in documents")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
