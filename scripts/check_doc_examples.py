#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs the examples of docs/dialects.

Each ```mlir block is a module that must parse, verify and round-trip. Each op of a dialect must
occur in a block of the dialect's page.

usage: check_doc_examples.py [--sharding-opt PATH] [DOC.md ...]
"""

import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def blank_out_prose(text: str) -> str:
    """The document's examples, split by `// -----`, each line at its own number."""
    lines, inside = [], False
    for line in text.splitlines():
        if line.strip() == "```mlir" and not inside:
            inside = True
            lines.append("// -----")
        elif line.strip() == "```" and inside:
            inside = False
            lines.append("")
        else:
            lines.append(line if inside else "")
    return "\n".join(lines) + "\n"


def ops_of(dialect: str) -> list[str]:
    """The ops that the dialect's TableGen files define."""
    files = sorted((ROOT / "dialects" / dialect.capitalize()).glob("*Ops.td"))
    source = "".join(file.read_text() for file in files)
    names = re.findall(r'^def \w+_\w+Op\b[^<"]*<"(\w+)"', source, re.MULTILINE)
    return [f"{dialect}.{name}" for name in names]


def check(doc: pathlib.Path, sharding_opt: str) -> list[str]:
    run = subprocess.run(
        [sharding_opt, "-", "-split-input-file", "--verify-roundtrip", "-o", "-"],
        input=blank_out_prose(doc.read_text()),
        capture_output=True,
        text=True,
    )
    return [f"{doc}: an example does not run\n{run.stderr}"] if run.returncode != 0 else []


def check_ops(docs: list[pathlib.Path]) -> list[str]:
    """Each op has an example on its dialect's page, or on one that continues it: `nn-state.md`."""
    errors = []
    for dialect in sorted({doc.stem.split("-")[0] for doc in docs}):
        pages = [doc for doc in docs if doc.stem.split("-")[0] == dialect]
        examples = "".join(blank_out_prose(page.read_text()) for page in pages)
        for op in ops_of(dialect):
            if not re.search(rf"\b{re.escape(op)}\b", examples):
                errors.append(f"{pages[0]}: expected an example of {op}, got none")
    return errors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sharding-opt", default="sharding-opt")
    parser.add_argument("docs", nargs="*", type=pathlib.Path)
    options = parser.parse_args()
    docs = options.docs or sorted((ROOT / "docs" / "dialects").glob("*.md"))
    errors = [error for doc in docs for error in check(doc, options.sharding_opt)]
    errors += check_ops(docs)
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors or not docs else 0


if __name__ == "__main__":
    sys.exit(main())
