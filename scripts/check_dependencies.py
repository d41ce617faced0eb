#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks that #include lines follow the arrows between folders.

Arrows point one way:

    lib/Support <- dialects <- lib/{Analysis,CostModel,Report,Reshard} <- passes
                <- lib/{Register,Execute,CAPI} <- tools, python

The runtime and include/ know nothing of MLIR or LLVM, and the runtime nothing of
our other folders but include/. What is compiled shares the C ABI with it; who starts
runs (lib/Execute, lib/CAPI, tools) may also use runtime/include, nobody runtime/src. Includes
between our folders are spelt meshwright/<folder>/..., so that this script sees them.
"""

import argparse
import pathlib
import re
import sys

# A folder may include itself, its equals and folders of a lower level.
LEVELS = [
    ["include"],
    ["lib/Support"],
    ["dialects"],
    ["lib/Analysis", "lib/CostModel", "lib/Report", "lib/Reshard"],
    ["passes"],
    ["lib/Register", "lib/Execute", "lib/CAPI"],
    ["tools", "python", "test", "bench", "examples"],
]
LEVEL = {folder: level for level, folders in enumerate(LEVELS) for folder in folders}
# Free of MLIR and LLVM, and of all other folders of ours but include/.
STANDALONE = {"runtime", "include"}
# Who starts runs, or tests them.
RUNS = {"lib/CAPI", "lib/Execute", "tools", "test", "bench"}
SUFFIXES = {".h", ".hpp", ".cpp", ".cc", ".c", ".inc", ".td"}

INCLUDE = re.compile(r'^\s*#?\s*include\s*["<]([^">]+)[">]')


def folder_of(path: str) -> str:
    """The folder that the levels name: lib/<x>, else the first component."""
    parts = path.split("/")
    return "/".join(parts[:2]) if parts[0] == "lib" and len(parts) > 1 else parts[0]


def target_of(root: pathlib.Path, source: pathlib.Path, spelling: str) -> str | None:
    """The folder of ours that an include names, None for headers of others."""
    for prefix in ("meshwright/", "meshwright-c/"):
        if spelling.startswith(prefix):
            if (root / "include" / spelling).exists():
                return "include"
            folder = folder_of(spelling[len(prefix) :])
            # The runtime's own headers are spelt meshwright/runtime/...
            return folder if folder in LEVEL or folder in STANDALONE else f"{folder} (unknown)"
    if (source.parent / spelling).resolve().is_relative_to(root):
        if (source.parent / spelling).exists():
            return folder_of((source.parent / spelling).resolve().relative_to(root).as_posix())
    return None


def errors_of(root: pathlib.Path, source: pathlib.Path):
    folder = folder_of(source.relative_to(root).as_posix())
    for number, line in enumerate(source.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        spelling = match.group(1)
        where = f"{source.relative_to(root)}:{number}"
        target = target_of(root, source, spelling)
        if folder in STANDALONE:
            if re.match(r"(mlir|llvm|mlir-c|llvm-c)/", spelling):
                yield f"{where}: {folder} knows no LLVM, but includes {spelling}"
            elif target not in (None, folder, "include"):
                yield f"{where}: {folder} may include only include/, not {target}"
            continue
        if target is None or target == folder:
            continue
        if target not in LEVEL:
            public = spelling.startswith("meshwright/runtime/include/")
            if target == "runtime" and folder in RUNS and (public or folder == "test"):
                continue
            yield f"{where}: {spelling} names {target}, which {folder} may not include"
        elif folder not in LEVEL:
            yield f"{where}: folder {folder} has no place among the arrows"
        elif LEVEL[target] > LEVEL[folder]:
            yield f"{where}: {folder} includes {spelling} of {target}, against the arrows"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", nargs="?", default=pathlib.Path(__file__).parents[1])
    root = pathlib.Path(parser.parse_args().root).resolve()
    tops = {folder.split("/")[0] for folder in LEVEL} | STANDALONE
    sources = sorted(
        path
        for top in tops
        for path in (root / top).rglob("*")
        if path.suffix in SUFFIXES and path.is_file()
    )
    errors = [error for source in sources for error in errors_of(root, source)]
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    print(f"{len(sources)} sources, {len(errors)} includes against the arrows")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
