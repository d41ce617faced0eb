#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Writes docs/options.md, the table of the options of `--parallelize`, from the compiler's own tables.

    scripts/options_page.py            writes the page
    scripts/options_page.py --check    compares it, and fails if it is another one

Names, values, effects and defaults are those of lib/Support/ParallelizeOptionList.cpp and AxisRole.h,
which error messages and help print as well. Examples are those of scripts/option_examples.json. PAGES
are here; a test plans with each default.
"""

import argparse
import ast
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
EXAMPLES = "scripts/option_examples.json"
ROLES, LIST = "lib/Support/AxisRole.h", "lib/Support/ParallelizeOptionList.cpp"

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

<!-- Written by scripts/options_page.py from lib/Support/ParallelizeOptionList.cpp, AxisRole.h and option_examples.json. -->

The tools and Python have the same options. A command line spells them with dashes, Python as keywords with underscores:

```sh
sharding-opt model.mlir --parallelize="mesh=dp=2,tp=4 sequence-parallel=on memory-ceiling=80G"
```
```python
model.parallelize(mesh={"dp": 2, "tp": 4}, sequence_parallel="on", memory_ceiling="80G")
```

Tables of Python are tables in braces on a command line. Python's lists of axes are names with commas. `None` in Python, and an
option that is not given, stand for the default. `auto` is chosen by rules and estimates where it is left out; where it is
spelled out, some options are chosen by finished plans ([planning](planning.md)).

"""


TAIL = """
Examples are plans on H100s, by `scripts/option_examples.py`. Times are those of the cost model; bytes are counted.
*llama* has two layers of the size of Llama 3 8B and two rows of 4,096 tokens, *mixtral* two layers of Mixtral 8x7B and the
same tokens. *trained* has four layers of Llama, 4,096 words and 32 rows of 2,048 tokens. *server* serves two layers of
Llama with two key/value heads."""


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
    """(name, values, effect, default) of each option, in the compiler's order; a default of None: there is none."""
    source = (root / LIST).read_text()
    roles = entries_of((root / ROLES).read_text(), "kAxisRoles[] = {", "\n};")
    mesh = list(strings_of(source.partition("meshDescription =")[2].partition("};")[0]))
    planner = entries_of(source, "plannerDescriptions[] = {", "\n};")
    found = [mesh[:4], *planner, *(role[-3:] for role in roles if role[-3]), *entries_of(source, "otherDescriptions[] = {", "\n};")]
    return [(name, values, effect, (default or ["auto"])[0] or None) for name, values, effect, *default in found]


def cell(text):
    return text.replace("|", "\\|")


def spell(value):
    """A value as --parallelize takes it."""
    if not isinstance(value, dict):
        return str(value)
    if any(isinstance(part, str) for part in value.values()):
        return "{" + ", ".join(f'"{name}": {part}' for name, part in value.items()) + "}"
    return ",".join(f"{name}={part}" for name, part in value.items())


def example_of(option, example):
    plan = " ".join(f"{name.replace('_', '-')}={spell(value)}" for name, value in example["plan"].items())
    joint = "in place of" if option in ("mesh", "ranks") else "on"
    return f"`{option}={spell(example['value'])}` {joint} `{plan}`: {example['text']} ({example['model']})"


def page_of(root):
    examples = json.loads((root / EXAMPLES).read_text())
    lines = [HEAD + "| option | in Python | values | default | effect | example |", "|---|---|---|---|---|---|"]
    for name, values, effect, default in options_of(root):
        default = f"`{default}`" if default else "none"
        more = f" ([more]({PAGES[name]}))" if name in PAGES else ""
        python = name.replace("-", "_")
        example = cell(example_of(name, examples[name])) if name in examples else ""
        lines.append(f"| `{name}` | `{python}` | `{cell(values)}` | {default} | {cell(effect)}{more} | {example} |")
    lines.append(TAIL)
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare the page, and write nothing")
    parser.add_argument("root", nargs="?", default=ROOT, type=pathlib.Path)
    options = parser.parse_args()
    page, text = options.root / "docs/options.md", page_of(options.root)
    if not options.check:
        page.write_text(text)
    elif not page.exists() or page.read_text() != text:
        print("error: docs/options.md is not what the compiler's tables say: run scripts/options_page.py", file=sys.stderr)
        return 1
    print(f"{len(options_of(options.root))} options in docs/options.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
