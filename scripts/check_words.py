#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks the words of comments, documents and messages in the lines that a change adds.

    scripts/check_words.py           lines added since the merge base with origin/main, else HEAD~1
    scripts/check_words.py BASE      lines added since the merge base with BASE
    scripts/check_words.py --all     all lines of the tree
    scripts/check_words.py --all lib/Reshard docs/README.md    all lines of these folders and files

Lines that are not committed count as well. RULES lists the words, each with the wording that takes
its place. The script reads prose only:

- Markdown outside blocks of code;
- comments of C++, TableGen, Python, shell, CMake and MLIR, and docstrings;
- string literals of C++, TableGen and Python that hold several words (diagnostics, descriptions).

Text between backquotes is code and is not read.
"""

import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]

# A sentence opens at the start of a comment or a paragraph, or behind another sentence.
OPENS = r"(?:^[\s>*+-]*|[.!?:]\)?\s+|\|\s*)\**"
LIES = "is sharded over, is stored at offset, is at, is within"

# Each rule is a pattern and the wording that takes its place.
RULES = [
    (OPENS + r"What\b(?![^.]*\?)", 'put the subject first instead of opening with "What"'),
    (OPENS + r"(?:Those|That) (?:that|which|who)\b", "name the things that are meant"),
    (OPENS + r"(?:Whoever|Who)\b(?![^.]*\?)", "name the person or the code: a user, a caller, a pass"),
    (r"\b(?i:some(?:body|one))\b", "name the person or the code: a user, a caller, a pass"),
    (r"\b(?i:no(?:body| one)|any(?:body|one))\b", "name what does not: no op, no user, no pass"),
    (r"\b(?i:everybody|everyone)\b", "all users, all passes, all ranks"),
    (r"\b(?i:whoever|whatever|whichever)\b", "name the person or the thing: a user, any value"),
    (r"\b(?i:lies|lie|lain|lying)\b", LIES),
    (r"\b(?i:lay)\b(?! (?:\w+ )?out\b)", LIES),
    (r"\b(?i:journeys?)\b", "path, backtracking"),
    (r"\b(?i:patience|patient)\b", "budget"),
    (
        r"\b(?i:(?:a|each|every|one|other|another|best|cheapest|candidate|which|these|two|both)"
        r" readings?|readings)\b(?! of (?:the )?(?:file|code|IR))",
        "candidate layout",
    ),
    (r"\b(?i:can bear|could bear|bears)\b", "allows, accepts"),
    (r"\b(?i:conscience)\b", "verifier, proof"),
    (r"\b(?i:for its own sake|for the sake of)\b", "for, because"),
    (r"\b(?:TODO|FIXME|XXX|HACK|TBD|WIP)\b", "finish it, or file an issue and leave no note"),
    (r"\b(?i:for now|for the time being)\b", "state what holds, or file an issue"),
]
RULES = [(re.compile(pattern), wording) for pattern, wording in RULES]

# Files that must quote the words.
EXEMPT = ("scripts/check_words.py", "test/scripts/check-words.test", "test/scripts/Inputs/words")

SLASHES = {".h", ".hpp", ".cpp", ".cc", ".c", ".td", ".mlir", ".inc"}
HASHES = {".py", ".sh", ".cmake", ".test", ".toml", ".in", ".yml", ".yaml"}
# Strings of test programs are inputs, not messages.
STRINGS = {".h", ".cpp", ".c", ".td", ".py"}

STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
DIRECTIVE = re.compile(r"\s*(?:RUN|CHECK[\w-]*|[A-Z0-9_-]+(?:-NEXT|-SAME|-NOT|-DAG|-LABEL)?|expected-\w+)\b.*?:")


def strings_of(line):
    """The string literals of a line that read as prose: three words or more."""
    return [s for s in STRING.findall(line) if len(re.findall(r"[A-Za-z]{2,}", s)) >= 3]


def comments_of(text, mark, strings):
    """Each line's comment, and the strings that read as prose. TableGen's [{ }] is a comment."""
    inside = None  # what ends a comment of several lines
    for line in text.splitlines():
        if inside:
            head, end, rest = line.partition(inside)
            yield [head]
            if end:
                inside = None
            continue
        parts = strings_of(line) if strings else []
        code = STRING.sub(lambda match: " " * len(match.group()), line)
        at = code.find(mark)
        # A shell's $# and a URL's :// open no comment.
        while at > 0 and not code[at - 1].isspace() and mark == "#":
            at = code.find(mark, at + 1)
        if at >= 0:
            comment = line[at:].lstrip("/#!<").strip()
            if not DIRECTIVE.match(comment):
                parts.append(comment)
        elif mark == "//":
            for begin, end in (("/*", "*/"), ("[{", "}]")):
                head, opened, rest = code.partition(begin)
                if opened and end not in rest:
                    parts.append(line[len(head) + len(begin) :])
                    inside = end
                elif opened:
                    parts.append(line[len(head) + len(begin) : line.rfind(end)])
        yield parts


def markdown_of(text):
    """Each line outside blocks of code."""
    code = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            code = not code
            yield []
        else:
            yield [] if code else [line]


def python_of(text):
    """Each line's comment, docstring and strings."""
    docstring = None
    for line, parts in zip(text.splitlines(), comments_of(text, "#", True)):
        if docstring:
            yield [line.partition(docstring)[0]]
            if docstring in line:
                docstring = None
            continue
        for quotes in ('"""', "'''"):
            if line.count(quotes) == 1:
                docstring = quotes
                parts = [line.partition(quotes)[2]]
            elif line.count(quotes) == 2:
                parts = [line.split(quotes)[1]]
        yield parts


def prose_of(path, text):
    """The prose of each line, [] for files that hold none."""
    if path.suffix == ".md":
        return markdown_of(text)
    if path.suffix == ".py":
        return python_of(text)
    if path.suffix in SLASHES:
        return comments_of(text, "//", path.suffix in STRINGS)
    if path.suffix in HASHES or path.name == "CMakeLists.txt":
        return comments_of(text, "#", False)
    return []


def errors_of(path, lines=None):
    """Errors of a file, in the lines given or in all."""
    name = path.as_posix()
    if name.startswith(EXEMPT):
        return
    try:
        text = (ROOT / path).read_text()
    except (UnicodeDecodeError, FileNotFoundError):
        return
    for number, parts in enumerate(prose_of(path, text), 1):
        for part in parts:
            part = re.sub(r"`[^`]*`", "`code`", part)
            for pattern, wording in RULES:
                found = pattern.search(part)
                if found and (lines is None or number in lines):
                    word = found.group().strip(" .:!?>|*()-")
                    yield f'{name}:{number}: "{word}": {wording}'


def git(*arguments):
    run = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return run.stdout if run.returncode == 0 else None


def base_of(wanted):
    """The commit that lines are compared with: None where the history does not reach it."""
    if wanted:
        return (git("merge-base", wanted, "HEAD") or "").strip() or None
    head = (git("rev-parse", "HEAD") or "").strip()
    base = (git("merge-base", "origin/main", "HEAD") or "").strip()
    if base and base != head:
        return base
    return (git("rev-parse", "--verify", "-q", "HEAD~1") or "").strip() or None


def added_since(base):
    """The numbers of the lines added since the commit, by file. Moved files count as unchanged."""
    added, path = {}, None
    for line in git("diff", "-U0", "-M", base).splitlines():
        if line.startswith("+++ "):
            path = pathlib.Path(line[6:]) if line != "+++ /dev/null" else None
        elif path and (hunk := re.match(r"@@ .* \+(\d+)(?:,(\d+))? @@", line)):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            added.setdefault(path, set()).update(range(first, first + count))
    return added


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="all lines, of the paths given if any")
    parser.add_argument("names", nargs="*", help="a commit; with --all, folders and files")
    options = parser.parse_args()
    if options.all:
        files = git("ls-files", "--", *options.names)
        if files is None:
            print("left out: not a git checkout")
            return 0
        errors = [e for name in files.splitlines() for e in errors_of(pathlib.Path(name))]
        what = "all lines"
    else:
        base = base_of(options.names[0] if options.names else None)
        if base is None:
            if options.names:
                parser.error(f"expected a commit that shares history with HEAD, got {options.names[0]}")
            print("left out: no commit to compare with")
            return 0
        added = added_since(base)
        errors = [e for path in sorted(added) for e in errors_of(path, added[path])]
        what = f"lines added since {base[:7]}"
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    print(f"{len(errors)} words to replace in {what}")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
