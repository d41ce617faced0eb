#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks the imports between the modules of the Python package.

- No circle, imports in functions included. DOORS lists the functions that may import what stands
  above them: methods of a model whose work is a module of its own.
- importer/graph needs no PyTorch: neither it nor a module that it imports has an import of torch at
  its top. importer/graph itself has none in functions either.
- The package itself needs neither PyTorch nor JAX: no module that `import meshwright` reaches imports one at its top.
- A front end (importer/torch, ...) is imported by no other part of the importer.
"""

import argparse
import ast
import pathlib
import sys
from typing import NamedTuple

PACKAGE = "meshwright"
IMPORTER = f"{PACKAGE}.importer"
GRAPH = f"{IMPORTER}.graph"
#: Modules that the build makes.
BUILT = {f"{PACKAGE}._core", f"{PACKAGE}._nn", f"{PACKAGE}._version"}
#: Model.check, Model.differentiate, Model.train, Model.serve, and from_torch with buckets.
DOORS = {
    (f"{PACKAGE}.model", f"{PACKAGE}.{name}")
    for name in ("checking", "joining", "training", "served_model", "bucket_model")
}


class Import(NamedTuple):
    target: str
    line: int
    is_top: bool


def name_of(path: pathlib.Path, root: pathlib.Path) -> str:
    parts = [PACKAGE, *path.relative_to(root).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: pathlib.Path, root: pathlib.Path, modules) -> list[Import]:
    """Imports of a file: modules of the package, and names of other packages."""
    own = name_of(path, root)
    package = own if path.name == "__init__.py" else own.rpartition(".")[0]
    tree = ast.parse(path.read_text())
    inner = {id(n) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef) for n in ast.walk(f)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *filter(None, [node.module])])
            # `from . import x` imports a module if there is one, else a name of the package.
            targets = [f"{base}.{a.name}" if f"{base}.{a.name}" in modules | BUILT else base for a in node.names]
        else:
            continue
        found += [Import(target, node.lineno, id(node) not in inner) for target in dict.fromkeys(targets)]
    return found


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected sets of several modules, and modules that import themselves."""
    index, low, stack, result = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(edges.get(node, ())):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            at = stack.index(node)
            if len(stack) - at > 1 or node in edges.get(node, ()):
                result.append(sorted(stack[at:]))
            del stack[at:]

    for node in sorted(edges):
        if node not in index:
            visit(node)
    return result


def is_torch(target: str) -> bool:
    return within(target, "torch")


def within(module: str, folder: str) -> bool:
    return module == folder or module.startswith(f"{folder}.")


def reached(start, imports) -> set[str]:
    """The modules that imports at the top reach, packages around them included."""
    seen, waiting = set(), list(start)
    while waiting:
        module = waiting.pop()
        if module in seen or module not in imports:
            continue
        seen.add(module)
        waiting += [i.target for i in imports[module] if i.is_top]
        waiting.append(module.rpartition(".")[0])
    return seen


def errors_of(root: pathlib.Path):
    files = {name_of(path, root): path for path in sorted(root.rglob("*.py"))}
    imports = {name: imports_of(path, root, set(files)) for name, path in files.items()}
    edges = {
        name: {i.target for i in found if i.target in files and (i.is_top or (name, i.target) not in DOORS)}
        for name, found in imports.items()
    }
    for circle in circles(edges):
        yield f"{' <-> '.join(circle)}: these modules import each other"
    graph = [name for name in files if within(name, GRAPH)]
    for name in sorted(reached(graph, imports)):
        for at in imports[name]:
            if is_torch(at.target) and (at.is_top or within(name, GRAPH)):
                yield f"{files[name]}:{at.line}: imports torch, and {GRAPH} needs none"
    for name in sorted(reached([PACKAGE], imports)):
        for at in imports[name]:
            if at.is_top and (is_torch(at.target) or within(at.target, "jax")):
                yield f"{files[name]}:{at.line}: imports {at.target} at the top, and 'import {PACKAGE}' needs none"
    for name, found in imports.items():
        for at in found:
            front = ".".join(at.target.split(".")[:3])
            if within(name, IMPORTER) and within(at.target, IMPORTER) and not within(name, front):
                if front not in (GRAPH, f"{IMPORTER}.errors", IMPORTER):
                    yield f"{files[name]}:{at.line}: imports {at.target}, which is of a front end"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", nargs="?", default=pathlib.Path(__file__).parents[1] / "python" / PACKAGE)
    root = pathlib.Path(parser.parse_args().root).resolve()
    errors = list(errors_of(root))
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    print(f"{len(list(root.rglob('*.py')))} modules, {len(errors)} wrong imports")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
