#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks that #include lines follow the arrows between folders.

Arrows point one way:

    lib/Support <- dialects <- lib/Weights
                <- lib/{Factors, Stages, Placement, Launches, CostModel, Reshard, Codegen, Report}
                <- passes <- lib/Driver/{Program, Register, Execute, Facade} <- tools, python

EDGES lists, for each folder of lib and each phase of passes, the neighbours of the same level that
it may include. The check fails if these edges form a cycle. A phase includes no other phase; only
the files directly in passes/ include several.

The runtime and include/ include no header of MLIR or LLVM. The runtime includes no other folder of
ours except include/, which has the C ABI header that it shares with the compiler. Folders that
start runs (lib/Driver/Execute, lib/Driver/Facade, tools) may also use runtime/include. No folder may use
runtime/src. Includes between our folders are spelt meshwright/<folder>/..., so that this script
sees them.
"""

import argparse
import pathlib
import re
import sys

# A folder may include itself, folders of a lower level, and its EDGES.
LEVELS = [
    ["include"],
    ["lib/Support"],
    ["dialects"],
    ["lib/Weights"],
    [
        "lib/Factors",
        "lib/Stages",
        "lib/Placement",
        "lib/Launches",
        "lib/CostModel",
        "lib/Reshard",
        "lib/Codegen",
        "lib/Report",
    ],
    ["passes"],
    ["lib/Driver/Program", "lib/Driver/Register", "lib/Driver/Execute", "lib/Driver/Facade"],
    ["tools", "python", "test", "bench", "examples"],
]
LEVEL = {folder: level for level, folders in enumerate(LEVELS) for folder in folders}
# Allowed edges within a level. Folders of the last level are not restricted.
EDGES = {
    "lib/Factors": {"lib/Stages"},
    "lib/Placement": {"lib/Stages"},
    "lib/Launches": {"lib/Placement"},
    "lib/Codegen": {"lib/Launches"},
    "lib/Reshard": {"lib/CostModel", "lib/Placement"},
    "lib/Report": {"lib/CostModel", "lib/Placement", "lib/Stages"},
    # The planner prices finished plans.
    "passes/plan": {"passes/optimise", "passes/schedule"},
    "lib/Driver/Execute": {"lib/Driver/Program"},
    "lib/Driver/Facade": {"lib/Driver/Execute", "lib/Driver/Program", "lib/Driver/Register"},
}
# A folder that only its parent may include: the rest asks its parent's interface. The last level
# is not restricted.
PRIVATE = {"lib/Codegen/Cpu": "lib/Codegen", "lib/Codegen/Gpu": "lib/Codegen"}
# These include neither MLIR nor LLVM, and no other folder of ours except include/.
STANDALONE = {"runtime", "include"}
# Folders that start runs or test them.
RUNS = {"lib/Driver/Facade", "lib/Driver/Execute", "tools", "test", "bench"}
SUFFIXES = {".h", ".hpp", ".cpp", ".cc", ".c", ".inc", ".td"}

INCLUDE = re.compile(r'^\s*#?\s*include\s*["<]([^">]+)[">]')


def folder_of(path: str) -> str:
    """The folder that the levels name: lib/Driver/<x>, lib/<x>, else the first component."""
    parts = path.split("/")
    depth = 3 if path.startswith("lib/Driver/") else 2
    return "/".join(parts[:depth]) if parts[0] == "lib" and len(parts) > 1 else parts[0]


def node_of(path: str) -> str:
    """The folder that EDGES names: lib/Driver/<x>, lib/<x>, passes/<phase>, else the first component."""
    parts = path.split("/")
    if parts[0] == "passes" and len(parts) > 2:
        return "/".join(parts[:2])
    return folder_of(path) if parts[0] == "lib" else parts[0]


def cycle_of(edges) -> list[str] | None:
    """A cycle of the graph as a path that ends where it begins, None if there is none."""
    done, path = set(), []

    def visit(node):
        if node in path:
            return path[path.index(node) :] + [node]
        if node in done:
            return None
        path.append(node)
        for target in sorted(edges.get(node, ())):
            if found := visit(target):
                return found
        done.add(path.pop())
        return None

    for node in sorted(edges):
        if found := visit(node):
            return found
    return None


def neighbour_error(source: str, spelling: str, where: str):
    """The error of an include between folders of one level that EDGES does not allow."""
    node, target = node_of(source), node_of(spelling.removeprefix("meshwright/"))
    if node == target or node == "passes" or "/" not in node or "/" not in target:
        return None
    if target in EDGES.get(node, ()):
        return None
    return f"{where}: {node} includes {spelling} of {target}, which is not among its edges"


def private_error(source: str, spelling: str, where: str):
    """The error of an include of a header that is private to its folder's parent."""
    named = spelling.removeprefix("meshwright/")
    for private, parent in PRIVATE.items():
        restricted = folder_of(source) not in LEVELS[-1]
        if named.startswith(private + "/") and restricted and not source.startswith(parent + "/"):
            return f"{where}: {spelling} is private to {parent}"
    return None


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


def phases_error(root: pathlib.Path, source: pathlib.Path):
    """The error of a file that includes several phases; passes/Pipeline.cpp alone may."""
    path = source.relative_to(root).as_posix()
    lines = (INCLUDE.match(line) for line in source.read_text().splitlines())
    nodes = {node_of(m.group(1).removeprefix("meshwright/")) for m in lines if m}
    phases = sorted(node for node in nodes if node.startswith("passes/"))
    if len(phases) > 1 and path != "passes/Pipeline.cpp" and not path.startswith("passes/"):
        several = ", ".join(phases)
        return f"{path}: includes {several}: only passes/Pipeline.cpp may include several phases"
    return None


def is_private(header: pathlib.Path) -> bool:
    return header.suffix == ".h" and "\n// Private to " in header.read_text()


def private_header_error(root: pathlib.Path, source: pathlib.Path, spelling: str, where: str):
    """The error of an include of a private header where it may not be included."""
    header = root / spelling.removeprefix("meshwright/")
    if not spelling.startswith("meshwright/") or not header.exists() or not is_private(header):
        return None
    if header.parent != source.parent:
        return f"{where}: {spelling} is private to its folder"
    if source.suffix == ".h" and not is_private(source):
        return f"{where}: {spelling} is private, but this header is installed"
    return None


def errors_of(root: pathlib.Path, source: pathlib.Path):
    folder = folder_of(source.relative_to(root).as_posix())
    if error := phases_error(root, source):
        yield error
    for number, line in enumerate(source.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        spelling = match.group(1)
        where = f"{source.relative_to(root)}:{number}"
        if error := private_error(source.relative_to(root).as_posix(), spelling, where):
            yield error
            continue
        target = target_of(root, source, spelling)
        if error := private_header_error(root, source, spelling, where):
            yield error
        if folder in STANDALONE:
            if re.match(r"(mlir|llvm|mlir-c|llvm-c)/", spelling):
                yield f"{where}: {folder} knows no LLVM, but includes {spelling}"
            elif target not in (None, folder, "include"):
                yield f"{where}: {folder} may include only include/, not {target}"
            continue
        if target is None:
            continue
        if target == folder or LEVEL.get(target, -1) == LEVEL.get(folder, -2):
            path = source.relative_to(root).as_posix()
            if error := neighbour_error(path, spelling, where):
                yield error
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
    if cycle := cycle_of(EDGES):
        errors.append("allowed edges form a cycle: " + " -> ".join(cycle))
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    print(f"{len(sources)} sources, {len(errors)} includes against the arrows")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
