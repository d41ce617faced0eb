#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Writes docs/options.md, the table of the options of `--parallelize`, from the compiler's own tables.

    scripts/options_page.py            writes the page
    scripts/options_page.py --check    compares it, and fails if it is another one

Names, values and effects are those of lib/Support/ParallelizeOptionList.cpp and AxisRole.h, which
error messages and help print as well. DEFAULTS and PAGES are here; a test plans with each default.
"""

import argparse
import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
ROLES, LIST = "lib/Support/AxisRole.h", "lib/Support/ParallelizeOptionList.cpp"

#: The value that stands for an option that is not given. None: there is none.
DEFAULTS = {
    "mesh": None,
    "ranks": None,
    "objective": None,
    "data-parallel": "auto",
    "tensor-parallel": "auto",
    "gtp": "auto",
    "expert-parallel": "auto",
    "sequence-parallel": "auto",
    "cache-sharding": "auto",
    "data-parallel-attention": "1",
    "dense-tp": "auto",
    "dp-lm-head": "auto",
    "token-gather": "auto",
    "context-parallel": None,
    "fold": None,
    "shardings": None,
    "device": "auto",
    "overlap": "auto",
    "shard-optimizer": "auto",
    "gtp-align": "auto",
    "gtp-prefetch": "auto",
    "gtp-keep": "auto",
    "gtp-reduce": "plain",
    "gtp-gather": "plain",
    "shard-saved": "auto",
    "recompute": "auto",
    "memory-ceiling": None,
    "expert-capacity": "none",
    "expert-load": "1",
    "stored-weights": "keep",
    "reduce-type": "own",
    "target": "cpu",
}

#: The page that says more about an option.
PAGES = {
    "mesh": "composing.md",
    "ranks": "planning.md",
    "objective": "planning.md",
    "gtp": "gtp.md",
    "gtp-align": "gtp.md",
    "gtp-prefetch": "gtp.md",
    "gtp-keep": "gtp.md",
    "gtp-reduce": "gtp.md",
    "gtp-gather": "gtp.md",
    "shard-saved": "gtp.md",
    "expert-parallel": "experts.md",
    "expert-capacity": "experts.md",
    "expert-load": "experts.md",
    "context-parallel": "context-parallel.md",
    "fold": "context-parallel.md",
    "device": "devices.md",
    "recompute": "training.md",
    "shard-optimizer": "training.md",
    "stored-weights": "importing.md",
    "reduce-type": "running.md",
    "target": "running.md",
    "cache-sharding": "serving.md",
}

HEAD = """\
# The options of a plan

<!-- Written by scripts/options_page.py from lib/Support/ParallelizeOptionList.cpp and AxisRole.h. -->

The tools and Python have the same options. A command line spells them with dashes, Python as keywords with underscores:

```sh
sharding-opt model.mlir --parallelize="mesh=dp=2,tp=4 sequence-parallel=on memory-ceiling=80G"
```
```python
model.parallelize(mesh={"dp": 2, "tp": 4}, sequence_parallel="on", memory_ceiling="80G")
```

Tables of Python are tables in braces on a command line. Python's lists of axes are names with commas. `None` in Python, and an
option that is not given, stand for the default.

"""


def strings_of(text):
    """The string that literals beside each other make, of each group of them that commas separate."""
    literal = r'"(?:[^"\\]|\\.)*"'
    for group in re.findall(rf"{literal}(?:\s*{literal})*", text):
        yield "".join(ast.literal_eval(part) for part in re.findall(literal, group))


def entries_of(text, begin, end):
    """The strings of each braced entry between two places."""
    body = text.partition(begin)[2].partition(end)[0]
    body = re.sub(r"/\*.*?\*/", "", body)
    literal = r'"(?:[^"\\]|\\.)*"'
    for entry in re.findall(rf"\{{((?:[^{{}}\"]|{literal})*)\}}", body):
        yield list(strings_of(entry))


def options_of(root):
    """(name, values, effect) of each option, in the compiler's order."""
    source = (root / LIST).read_text()
    roles = entries_of((root / ROLES).read_text(), "kAxisRoles[] = {", "\n};")
    mesh = list(strings_of(source.partition("meshDescription =")[2].partition("};")[0]))
    planner = entries_of(source, "plannerDescriptions[] = {", "\n};")
    found = [mesh[:3], *planner, *(role[-3:] for role in roles if role[-3]), *entries_of(source, "otherDescriptions[] = {", "\n};")]
    return [(name, values, effect) for name, values, effect, *_ in found]


def cell(text):
    return text.replace("|", "\\|")


def page_of(root):
    lines = [HEAD + "| option | in Python | values | default | effect |", "|---|---|---|---|---|"]
    for name, values, effect in options_of(root):
        default = f"`{DEFAULTS[name]}`" if DEFAULTS[name] else "none"
        more = f" ([more]({PAGES[name]}))" if name in PAGES else ""
        python = name.replace("-", "_")
        lines.append(f"| `{name}` | `{python}` | `{cell(values)}` | {default} | {cell(effect)}{more} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare the page, and write nothing")
    parser.add_argument("root", nargs="?", default=ROOT, type=pathlib.Path)
    options = parser.parse_args()
    names = [name for name, _, _ in options_of(options.root)]
    for name in {*names} ^ {*DEFAULTS}:
        print(f"error: scripts/options_page.py: DEFAULTS: expected the compiler's options, but '{name}' is one "
              f"{'there' if name in names else 'here'} only", file=sys.stderr)
    if {*names} != {*DEFAULTS}:
        return 1
    page, text = options.root / "docs/options.md", page_of(options.root)
    if not options.check:
        page.write_text(text)
    elif not page.exists() or page.read_text() != text:
        print("error: docs/options.md is not what the compiler's tables say: run scripts/options_page.py", file=sys.stderr)
        return 1
    print(f"{len(names)} options in docs/options.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
