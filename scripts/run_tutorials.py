#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs tutorials exactly as they are written, and compares their outputs.

    scripts/run_tutorials.py                  all pages of docs/tutorials
    scripts/run_tutorials.py PAGE.md ...      some of them
    scripts/run_tutorials.py --write ...      also writes outputs that differ into the pages

The blocks of a page run in its order, in an empty folder:

- ```python   all of a page share their names, as in a notebook;
- ```sh       bash, which ends at the first command that fails;
- ```mlir title="FILE"    is written to the file;
- ```text     is the output of the block before it: standard output, and of bash also standard error.

Words of an output are equal, and numbers are within 2 % of the page's. A line `...` stands for any
lines, and `...` within a line for any text. With a title, as in ```text title="measured", numbers may
be any. Bash must fail where its output has the word `error:`, and succeed elsewhere. Blocks of other
languages are prose.
"""

import argparse
import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
FENCE = re.compile(r"```(\w+)(?: title=\"([^\"]*)\")?$")
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w])")
TOLERANCE = 0.02


@dataclasses.dataclass
class Block:
    language: str
    title: str | None
    #: The number of the first line behind the fence, from 1 on.
    line: int
    text: str


def blocks_of(page):
    blocks, block = [], None
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if block is not None and line == "```":
            blocks.append(block)
            block = None
        elif block is not None:
            block.text += line + "\n"
        elif match := FENCE.match(line):
            block = Block(match[1], match[2], number + 1, "")
    return blocks


def equal(written, seen, any_number):
    """Whether two lines agree."""
    pattern, at, numbers = "", 0, []
    for match in re.finditer(rf"\.\.\.|\s+|{NUMBER.pattern}", written):
        pattern += re.escape(written[at : match.start()])
        at = match.end()
        if match.group() == "...":
            pattern += ".*"
        elif match.group().isspace():
            pattern += r"\s+"
        else:
            pattern += f"({NUMBER.pattern})"
            numbers.append(float(match.group()))
    found = re.fullmatch(pattern + re.escape(written[at:]), seen)
    if not found:
        return False
    pairs = zip(numbers, map(float, found.groups()))
    return any_number or all(abs(a - b) <= TOLERANCE * abs(a) for a, b in pairs)


def agree(written, seen, any_number):
    """Whether the lines of two outputs agree; a line `...` stands for any lines."""
    if not written:
        return not seen
    if written[0].strip() == "...":
        return any(agree(written[1:], seen[i:], any_number) for i in range(len(seen) + 1))
    return bool(seen) and equal(written[0], seen[0], any_number) and agree(written[1:], seen[1:], any_number)


def lines_of(text):
    return [line.rstrip() for line in text.rstrip().splitlines()]


class Runner:
    """Runs the blocks of one page in the present folder."""

    def __init__(self, page):
        self._page = page
        self._names = {"__name__": "__main__"}

    def run(self, block, fails):
        """The output of a block."""
        with tempfile.TemporaryFile("w+") as file:
            if block.language == "python":
                self._run_python(block, file)
            else:
                self._run_bash(block, file, fails)
            file.seek(0)
            return file.read()

    def _run_python(self, block, file):
        # Ranks write to the descriptor, Python to its own buffer.
        sys.stdout.flush()
        kept = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            # Empty lines give tracebacks the lines of the page.
            source = "\n" * (block.line - 1) + block.text
            exec(compile(source, str(self._page), "exec"), self._names)
        finally:
            sys.stdout.flush()
            os.dup2(kept, 1)
            os.close(kept)

    def _run_bash(self, block, file, fails):
        command = ["bash", "-e", "-o", "pipefail", "-c", block.text]
        status = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode
        if (status != 0) != fails:
            file.seek(0)
            raise RuntimeError(f"{self._page}:{block.line}: exit status {status}\n{file.read()}")


def run_page(page):
    """(line of the page, its lines, the lines seen) of each output that differs."""
    runner, output = Runner(page), None
    blocks = blocks_of(page)
    for at, block in enumerate(blocks):
        following = blocks[at + 1] if at + 1 < len(blocks) else None
        if block.language == "mlir" and block.title:
            pathlib.Path(block.title).write_text(block.text)
        elif block.language in ("python", "sh"):
            shown = following.text if following and following.language == "text" else ""
            output = lines_of(runner.run(block, re.search(r"\berror:", shown) is not None))
        elif block.language == "text":
            written = lines_of(block.text)
            if output is None:
                raise RuntimeError(f"{page}:{block.line}: an output without a block before it")
            if not agree(written, output, block.title is not None):
                yield block, written, output
            output = None


def rewrite(page, changes):
    lines = page.read_text().splitlines()
    for block, written, seen in sorted(changes, key=lambda change: -change[0].line):
        length = len(block.text.splitlines())
        lines[block.line - 1 : block.line - 1 + length] = seen
    page.write_text("\n".join(lines) + "\n")


def run_here(page, write):
    changes = []
    try:
        for change in run_page(page):
            block, written, seen = change
            changes.append(change)
            expected, got = ("\n".join(f"  {line}" for line in lines) for lines in (written, seen))
            print(f"{page}:{block.line}: expected the output\n{expected}\ngot\n{got}", file=sys.stderr)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    if write and changes:
        rewrite(page, changes)
    return 1 if changes else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write outputs that differ into the pages")
    parser.add_argument("--here", action="store_true", help="run one page in this process and folder")
    parser.add_argument("pages", nargs="*", type=pathlib.Path)
    options = parser.parse_args()
    pages = options.pages or sorted((ROOT / "docs/tutorials").glob("[!R]*.md"))
    if options.here:
        return run_here(pages[0], options.write)
    failed = 0
    for page in pages:
        command = [sys.executable, __file__, "--here", page.resolve()] + ["--write"] * options.write
        with tempfile.TemporaryDirectory() as folder:
            status = subprocess.run(command, cwd=folder).returncode
        print(f"{page.name}: {'passed' if status == 0 else 'failed'}")
        failed |= status
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
