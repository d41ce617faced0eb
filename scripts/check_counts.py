#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks counts that may fall and not grow.

Each one stands for a question that one place should answer. The check fails if a count has grown. If
it has fallen, it fails, too, until the number here is the new one.
"""

import dataclasses
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


@dataclasses.dataclass
class Count:
    what: str
    pattern: str
    #: Or files.
    folders: tuple
    #: What is counted: "files" and "lines" that match, or "texts": different matches.
    of: str
    number: int
    #: The end of names of files that do not count.
    without: str | tuple = "\n"

    def find(self):
        files, lines, texts = [], [], set()
        for folder in self.folders:
            for path in [ROOT / folder] if (ROOT / folder).is_file() else sorted((ROOT / folder).rglob("*")):
                if path.suffix not in (".cpp", ".h") or path.name.endswith(self.without):
                    continue
                name, text = str(path.relative_to(ROOT)), path.read_text()
                found = [f"{name}:{i}" for i, line in enumerate(text.splitlines(), 1) if re.search(self.pattern, line)]
                files += [name] * bool(found)
                lines += found
                texts |= {match.group() for match in re.finditer(self.pattern, text)}
        return {"files": files, "lines": lines, "texts": sorted(texts)}[self.of]


COUNTS = [
    Count("files that read the attribute of parameters, where others ask getWeight (lib/Weights)",
          r"kParameterAttr", ("lib", "passes"), "files", 8),
    Count("ops of nn that the partitioner and the proof name, apart from models of ops",
          r"\bnn::[A-Za-z]+Op\b(?!::create)", ("passes/partition", "lib/Placement"), "texts", 4, ("Models.cpp", "Models.h")),
    Count("lists of element types beside include/meshwright-c/ElementTypes.def",
          r'"(bf16|BF16|bfloat16)"', ("include", "runtime", "lib/Support", "lib/Driver", "tools", "python"), "lines", 1),
    Count("definitions of the type, the shape and the element type of a value (lib/Support/TensorValues.h)",
          r"\b(shapeOf|typeOf|elementOf|getType|getTypeOf)\((mlir::)?Value \w+\) ?\{|(shapeOf|typeOf|elementOf) = \[",
          ("dialects", "lib", "passes", "test/lib"), "lines", 3),
    Count("definitions of the type in which sums are taken (getComputeType)",
          r"isBF16\(\) \|\| .*isF16\(\)", ("dialects", "lib", "passes"), "lines", 1),
    Count("methods of Device that take the structure of one call",
          r"virtual .*\bconst mw_rt_(?!call\b|launch\b|collective\b)\w+ &", ("runtime/include",), "lines", 0),
    Count("descriptors that are lists of numbers, where others are structures with named fields",
          r"\bdescriptor(\.append\(| = |\()\{", ("lib", "passes"), "lines", 0),
    Count("lines that compare the number of a kind of collectives, where others ask kindOf or exchangeOf",
          r"\bwhat\.kind [!=]=", ("runtime",), "lines", 0),
    Count("switches in which a default stands for kinds of collectives",
          r"case (\w+::)*(CollectiveKind|Exchange)::[^}]*\bdefault:", ("dialects", "lib", "passes", "runtime"), "texts", 0),
    Count("files that name the attribute of calls, where others ask for their steps (dialects/Nn/Call.h)",
          r"CallAttr\b", ("dialects", "lib", "passes"), "files", 4),
    Count("lines of the layout algebra that name attention or rings", r"(?i)\battention|\brings?\b",
          tuple(f"dialects/Dist/{name}" for name in ("Layout.h", "Layout.cpp", "Parts.h", "Parts.cpp")), "lines", 0),
    Count("messages that say what they got before what they expected",
          r', expected ("|[a-z])|"[^"]*, but (it|its|the) [^"]*"',
          ("dialects", "lib", "passes", "runtime", "tools"), "lines", 0),
    Count("lines of passes that name a mesh axis", r'"(dp|tp|ring|ulysses|ep|gtp)"', ("passes",), "lines", 0),
]  # fmt: skip


def main():
    errors = 0
    for count in COUNTS:
        found = count.find()
        if len(found) == count.number:
            continue
        errors += 1
        way = "has grown to" if len(found) > count.number else "has fallen: set it to"
        print(f"check_counts.py: the number of {count.what} {way} {len(found)}, expected {count.number}")
        if len(found) > count.number:
            print("  " + "\n  ".join(found))
    print(f"{len(COUNTS)} counts, {errors} not as expected")
    return bool(errors)


if __name__ == "__main__":
    sys.exit(main())
