#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks the length of files and functions.

A file outside test/ has at most 600 lines, 800 if it is listed in FILES with the reason. A function
has at most 100 lines unless it is listed in FUNCTIONS with the reason: it is a table, a list of
bindings, or an emitter of one format.

    scripts/check_sizes.py             fails if a limit is passed, or an entry is not needed
    scripts/check_sizes.py --report    lists the same, and succeeds
"""

import argparse
import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = ["bench", "cmake", "dialects", "docs", "examples", "include", "lib", "passes"]
FOLDERS += ["python", "runtime", "scripts", "test", "tools"]
FILE_LIMIT, FILE_CEILING, FUNCTION_LIMIT = 600, 800, 100

# A file that may have up to 800 lines, and why it is one subject.
FILES = {}
# A function that may be longer, as path:name, and why.
FUNCTIONS = {
    "lib/Report/Json.cpp:meshwright::printJson": "the emitter of one format",
    "python/bindings/Module.cpp:NB_MODULE": "a list of bindings",
}

CPP = {".h", ".hpp", ".cpp", ".cc", ".c"}
TEXT = CPP | {".td", ".py", ".sh", ".cmake", ".md"}

# Raw strings, strings, characters and comments: text in which braces mean nothing.
OPAQUE = re.compile(
    r'R"(?P<tag>[^\s()\\]{0,16})\(.*?\)(?P=tag)"|"(?:[^"\\\n]|\\.)*"'
    r"|(?<![0-9A-Fa-f])'(?:[^'\\\n]|\\.)+'|//[^\n]*|/\*.*?\*/",
    re.DOTALL,
)
CONTROL = {"if", "for", "while", "switch", "catch", "return", "else", "do", "try"}
NAME = re.compile(r"((?:[\w~]+(?:<[^<>()]*>)?::)*(?:operator\s*\S{1,3}|[\w~]+))\s*\(")
SCOPE = re.compile(r"\b(?:namespace|class|struct|enum|union|extern)\b[^()]*$")


def blank(match):
    """Spaces in place of the text, so that lines and columns stay."""
    return re.sub(r"[^\n]", " ", match.group())


def name_of(head):
    """The function that a head declares, None if it opens another scope or a value."""
    head = re.sub(r"^\s*#.*$", "", head, flags=re.MULTILINE).strip()
    if not head or SCOPE.search(head) or head.endswith(("=", ",", "(", "return")):
        return None
    match = NAME.search(head)
    if not match or match[1].split("::")[-1] in CONTROL:
        return None
    return re.sub(r"\s+", "", match[1])


def cpp_functions(text):
    """(name, first line, last line) of each function; those within a function are part of it."""
    text = OPAQUE.sub(blank, text)
    function, head_begin, depth, opened = None, 0, 0, 0
    for match in re.finditer(r"[{};]", text):
        at = match.start()
        if function is not None:
            depth += {"{": 1, "}": -1, ";": 0}[match.group()]
            if depth == 0:
                yield function, opened, text.count("\n", 0, at) + 1
                function, head_begin = None, at + 1
            continue
        if match.group() == "{":
            head = text[head_begin:at]
            # The braces of a member's initialiser `: member{value}` are part of the head.
            name = name_of(head)
            if name:
                begin = head_begin + len(head) - len(head.lstrip())
                function, depth, opened = name, 1, text.count("\n", 0, begin) + 1
        head_begin = at + 1


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.lineno, node.end_lineno


def functions_of(path):
    if path.suffix == ".py":
        return python_functions(path.read_text())
    return cpp_functions(path.read_text()) if path.suffix in CPP else []


def errors_of(root, files, functions):
    unused = set(files) | set(functions)
    paths = (path for folder in FOLDERS for path in (root / folder).rglob("*"))
    for path in sorted(p for p in paths if p.suffix in TEXT and p.is_file()):
        name = path.relative_to(root).as_posix()
        lines = path.read_text().count("\n")
        limit = FILE_CEILING if name in files else FILE_LIMIT
        if lines > FILE_LIMIT:
            unused.discard(name)
        if lines > limit and not name.startswith("test/"):
            yield f"{name}:1: expected at most {limit} lines, got {lines}"
        for function, first, last in functions_of(path):
            key = f"{name}:{function}"
            length = last - first + 1
            if length <= FUNCTION_LIMIT:
                continue
            unused.discard(key)
            if key not in functions:
                yield f"{name}:{first}: {function}: expected at most {FUNCTION_LIMIT} lines, got {length}"
    for entry in sorted(unused):
        yield f"scripts/check_sizes.py: {entry} is within the limits: expected no entry"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", action="store_true", help="lists without failing")
    parser.add_argument("root", nargs="?", type=pathlib.Path)
    options = parser.parse_args()
    own = options.root is None
    root = (options.root or ROOT).resolve()
    lists = (FILES, FUNCTIONS) if own else ({}, {})
    errors = list(errors_of(root, *lists))
    for error in errors:
        print(f"{'note' if options.report else 'error'}: {error}", file=sys.stderr)
    print(f"{len(errors)} files and functions too long")
    return 1 if errors and not options.report else 0


if __name__ == "__main__":
    sys.exit(main())
