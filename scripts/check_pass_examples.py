#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs the examples in the descriptions of passes, passes/*/Passes.td.

Each ```mlir block is a module that must parse, verify and round-trip. The line above a block says
what it is:

    Before:                     the pass runs on this block
    After:                      the pass makes this block of the last one that is not an `After:`
    After, with `mode=full`:    the same, with options
    Prints:                     the pass prints the lines of this ```text block about that block
    Prints, with `bytes=8`:     the same, with options

Options that begin with `--` are a whole command line. Blocks are compared as sharding-opt prints
them, so names of values, spaces and aliases do not count. A line of a text may be a part of one that
is printed. A pass has at least one block below `After:` or `Prints:`.

    scripts/check_pass_examples.py                              checks all passes
    scripts/check_pass_examples.py passes/bind/Passes.td        checks the passes of a file
    scripts/check_pass_examples.py --show passes/bind/Passes.td
                                   prints what the passes make, and compares nothing
"""

import argparse
import dataclasses
import difflib
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PASS = re.compile(r'def \w+ : \w+<"([\w-]+)"')
LABEL = re.compile(r"(Before|After|Prints)(?:(?<!Before), with `([^`]+)`)?:")
LIKE_LABEL = re.compile(r"(Before|After|Prints)\b.*:")


@dataclasses.dataclass
class Block:
    """A block of a description, and the line above it."""

    file: str
    flag: str  # of the pass
    line: int  # of the block's first line, from 1
    language: str  # mlir or text
    above: str
    text: str = ""

    @property
    def label(self) -> str:
        """Before, After, Prints, or empty."""
        match = LABEL.fullmatch(self.above)
        return match[1] if match else ""

    def command(self) -> list[str]:
        """The pass with its options, or the command line that the label states."""
        options = LABEL.fullmatch(self.above)[2]
        if options and options.startswith("--"):
            return shlex.split(options)
        return [f"--{self.flag}={options}" if options else f"--{self.flag}"]

    def error(self, message: str) -> str:
        return f"{self.file}:{self.line}: {self.flag}: {message}"


def blocks_of(file: str, source: str) -> dict[str, list[Block]]:
    """The blocks of each pass, by its flag."""
    passes, flag, block, above = {}, None, None, ""
    for number, line in enumerate(source.splitlines(), 1):
        text = line.strip()
        if match := PASS.match(line):
            flag = match[1]
            passes[flag] = []
        elif block and text == "```":
            block, above = None, ""
        elif block:
            block.text += line + "\n"
        elif flag and text in ("```mlir", "```text"):
            block = Block(file, flag, number + 1, text[3:], above)
            passes[flag].append(block)
        elif text:
            above = text
    return passes


class Failure(Exception):
    """An example that does not hold. The text is an error message."""


class Runner:
    def __init__(self, sharding_opt: str):
        self.sharding_opt = sharding_opt

    def run(self, block: Block, command: list[str]) -> subprocess.CompletedProcess:
        """Runs sharding-opt on a block. Its diagnostics have the lines of the block's file."""
        result = subprocess.run(
            [self.sharding_opt, "-", "--verify-roundtrip", "--mlir-print-local-scope", *command],
            input="\n" * (block.line - 1) + block.text,
            capture_output=True,
            text=True,
        )
        result.stderr = result.stderr.replace("<stdin>", block.file)
        return result

    def make(self, block: Block, made: Block | None = None) -> list[str]:
        """The lines of the block's IR, or of that which the command of `made` makes of it."""
        command = made.command() if made else []
        result = self.run(block, command)
        if result.returncode != 0:
            how = f"'{shlex.join(command)}' to succeed on line {block.line}" if made else "a module"
            got = f"exit status {result.returncode}\n{result.stderr}"
            raise Failure((made or block).error(f"expected {how}, got {got}"))
        return result.stdout.splitlines()

    def compare(self, before: Block, block: Block) -> None:
        """Fails unless the pass makes, or prints, the second block of the first one."""
        if block.language == "mlir":
            self.compare_modules(before, block)
        else:
            self.find_lines(before, block)

    def compare_modules(self, before: Block, after: Block) -> None:
        got, expected = self.make(before, after), self.make(after)
        if got != expected:
            diff = difflib.unified_diff(expected, got, "expected", "got", lineterm="")
            what = f"expected what '{shlex.join(after.command())}' makes of line {before.line}"
            raise Failure(after.error("\n".join([f"{what}, got", *diff])))

    def find_lines(self, before: Block, text: Block) -> None:
        command = text.command()
        printed = self.run(before, command).stderr
        for line in text.text.splitlines():
            if " ".join(line.split()) not in " ".join(printed.split()):
                what = f"expected '{shlex.join(command)}' to print '{line.strip()}'"
                raise Failure(text.error(f"{what} about line {before.line}, got\n{printed}"))

    def show(self, before: Block, block: Block) -> None:
        result = self.run(before, block.command())
        print(f"// {block.error(shlex.join(block.command()))}\n{result.stderr}{result.stdout}")


def misplaced(block: Block) -> str:
    """How the line above a block and its language disagree; empty if they do not."""
    if LIKE_LABEL.fullmatch(block.above) and not block.label:
        return "expected 'Before:', 'After:', or 'After, with `options`:'"
    if block.language == "text" and block.label != "Prints":
        return "expected 'Prints:' above ```text"
    if block.language == "mlir" and block.label == "Prints":
        return "expected 'After:' above ```mlir"
    return ""


def check(blocks: list[Block], runner: Runner, show: bool):
    """The errors of the blocks of one pass."""
    before = unused = None
    for block in blocks:
        try:
            if error := misplaced(block):
                raise Failure(block.error(f"{error}, got '{block.above}'"))
            if block.label in ("After", "Prints"):
                unused = None
                if not before:
                    raise Failure(block.error(f"expected a block before '{block.above}', got none"))
                if show:
                    runner.show(before, block)
                else:
                    runner.compare(before, block)
            else:
                if unused:
                    yield unused.error("expected a block below 'After:' or 'Prints:', got none")
                before, unused = block, block if block.label == "Before" else None
                runner.make(block)
        except Failure as failure:
            yield str(failure)
    if unused:
        yield unused.error("expected a block below 'After:' or 'Prints:', got none")


def name_of(file: pathlib.Path) -> str:
    path = file.resolve()
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else file)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sharding-opt", default="sharding-opt")
    parser.add_argument("--show", action="store_true", help="print what passes make")
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    options = parser.parse_args()
    files = options.files or sorted((ROOT / "passes").glob("*/*Passes.td"))
    runner, errors, counts = Runner(options.sharding_opt), [], {}
    for file in files:
        for flag, blocks in blocks_of(name_of(file), file.read_text()).items():
            errors += check(blocks, runner, options.show)
            for block in blocks:
                counts[block.label] = counts.get(block.label, 0) + 1
            if not any(block.label in ("After", "Prints") for block in blocks):
                expected = "expected a block below 'After:' or 'Prints:', got none"
                errors.append(f"{name_of(file)}: {flag}: {expected}")
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    print(
        f"{counts.get('After', 0)} blocks that a pass makes, {counts.get('Prints', 0)} texts that "
        f"one prints: {len(errors)} errors"
    )
    return 1 if errors or not files else 0


if __name__ == "__main__":
    sys.exit(main())
