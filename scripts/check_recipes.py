#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks the recipes of docs/recipes: each is a page NAME.md and a patch NAME.patch.

    scripts/check_recipes.py               counts, applies all patches, builds, tests
    scripts/check_recipes.py --count       only counts the files that each patch touches
    scripts/check_recipes.py --prepare     only counts, and applies the patches to the scratch tree
    scripts/check_recipes.py --folder=DIR  another scratch tree than build/recipes

A recipe may touch as many files as BUDGETS says. Tests and the Python importer do not count; CMake
and documents do. The patches are applied together to one copy of the tree, which is built once,
without optimisation, and files in groups. Then the tests that the patches bring or change run in it, and ALSO.

The scratch tree keeps its build folder, and files that did not change keep their times.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
RECIPES = ROOT / "docs" / "recipes"
#: The most files that a recipe's patch touches.
BUDGETS = {
    "op": 5, "op-with-lowering": 9, "pass": 3, "collective": 10, "policy": 5, "backend": 4, "target": 3, "kernel-kind": 4,
}  # fmt: skip
#: Tests that hold for all ops and passes, by lit's names.
ALSO = [
    r"dialects/docs\.test",
    r"passes/docs\.test",
    r"scripts/check-dependencies\.test",
    r"OpFactsTests/",
]


def touched(patch: pathlib.Path) -> list[str]:
    """The files that a patch touches, in its order."""
    return re.findall(r"^diff --git a/\S+ b/(\S+)$", patch.read_text(), re.MULTILINE)


def counts(name: str) -> bool:
    return not name.startswith(("test/", "python/meshwright/importer/"))


def budget_errors(patches):
    for patch in patches:
        files = [name for name in touched(patch) if counts(name)]
        budget = BUDGETS.get(patch.stem)
        print(f"{patch.stem}: {len(files)} files, at most {budget}: {' '.join(files)}")
        if not patch.with_suffix(".md").exists():
            yield f"{patch.name}: expected a page {patch.stem}.md beside it"
        if budget is None:
            yield f"{patch.name}: expected a budget in BUDGETS, got none"
        elif len(files) > budget:
            yield f"{patch.name}: expected at most {budget} files, got {len(files)}"
        if not any(name.startswith("test/") for name in touched(patch)):
            yield f"{patch.name}: expected a test, got none"
    for page in sorted(RECIPES.glob("*.md")):
        if page.stem != "README" and not page.with_suffix(".patch").exists():
            yield f"{page.name}: expected a patch {page.stem}.patch beside it"


def sources() -> list[str]:
    """The tree's files: those of git, else all but build folders."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    if listed.returncode == 0:
        return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    skip = re.compile(r"(build|install|\.|dist-)")
    tops = [top for top in ROOT.iterdir() if not skip.match(top.name)]
    files = [p for top in tops for p in ([top] if top.is_file() else top.rglob("*")) if p.is_file()]
    return [p.relative_to(ROOT).as_posix() for p in files if "__pycache__" not in p.parts]


def prepare(patches, tree: pathlib.Path):
    """Brings the scratch tree up to date: only files with other contents are written."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = pathlib.Path(folder)
        for name in sources():
            (fresh / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, fresh / name)
        for patch in patches:
            # A repository around the folder would make git look for the files there.
            run = subprocess.run(
                ["git", "apply", "-C1", "--whitespace=nowarn", patch],
                cwd=fresh,
                env=dict(os.environ, GIT_CEILING_DIRECTORIES=str(fresh.parent)),
                capture_output=True,
                text=True,
            )
            if run.returncode != 0:
                yield f"{patch.name}: does not apply\n{run.stderr}"
        new = {p.relative_to(fresh) for p in fresh.rglob("*") if p.is_file()}
        old = {p.relative_to(tree) for p in tree.rglob("*") if p.is_file()} if tree.exists() else ()
        for path in old:
            if path not in new and path.parts[0] not in ("build", ".venv"):
                (tree / path).unlink()
        for path in sorted(new):
            target = tree / path
            if not target.exists() or target.read_bytes() != (fresh / path).read_bytes():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(fresh / path, target)


def tests_of(patches):
    """Patterns of lit tests, and files for pytest."""
    lit, python = list(ALSO), []
    for name in (name for patch in patches for name in touched(patch)):
        path = pathlib.PurePath(name)
        if path.parts[0] != "test" or "Inputs" in path.parts:
            continue
        if path.suffix in (".mlir", ".test"):
            lit.append(re.escape("/".join(path.parts[1:])))
        elif path.parts[1] == "unit" and path.suffix == ".cpp":
            lit.append(re.escape(f"{path.stem}/"))
        elif path.name.startswith("test_") and path.suffix == ".py":
            python.append(name)
    return sorted(set(lit)), sorted(set(python))


def build_and_test(patches, tree: pathlib.Path) -> int:
    lit, python = tests_of(patches)
    unit = " ".join(test[:-1] for test in lit if test.endswith("Tests/"))
    script = """
      source scripts/common.sh
      find_python
      export PATH=$BUILD/bin:$PATH PYTHONPATH=$BUILD/python
      export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TOKENIZERS_PARALLELISM=false
      CONFIGURE_OPTIONS=("${QUICK_OPTIONS[@]}")
      build_with release all $2
      "$PYTHON" -c 'from lit.main import main; main()' -sv --filter="$1" "$BUILD/test"
      shift 2
      (($# == 0)) || "$PYTHON" -m pytest -q -p no:cacheprovider "$@"
    """
    environment = {k: v for k, v in os.environ.items() if k != "MESHWRIGHT_BUILD_DIR"}
    # The same spelling of paths as in the tree around it lets ccache find its objects.
    environment["CCACHE_BASEDIR"] = str(tree)
    if sys.prefix != sys.base_prefix:
        environment["VIRTUAL_ENV"] = sys.prefix
    command = ["bash", "-c", script, "-", "|".join(lit), unit, *python]
    # common.sh finds the tree from its own path.
    return subprocess.run(command, cwd=tree, env=environment).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", action="store_true")
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--folder", type=pathlib.Path)
    options = parser.parse_args()
    build = pathlib.Path(os.environ.get("MESHWRIGHT_BUILD_DIR", ROOT / "build"))
    tree = (options.folder or build / "recipes").resolve()
    patches = sorted(RECIPES.glob("*.patch"))
    errors = list(budget_errors(patches))
    have = {patch.stem for patch in patches}
    errors += [f"docs/recipes: expected {name}.patch" for name in BUDGETS if name not in have]
    if not options.count:
        errors += prepare(patches, tree)
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    if errors or options.count or options.prepare:
        return 1 if errors else 0
    return build_and_test(patches, tree)


if __name__ == "__main__":
    sys.exit(main())
