# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Pages of headers, for scripts/stage_site.py: each declaration with the comment above it.

The headers of include/ have one form, which this reads. A comment stands above the declaration that it
describes; one above an empty line describes all that follow. A frame of `===` around a title begins a
section.
"""

import re
import textwrap

#: Lines that declare nothing for a reader.
HIDDEN = re.compile(
    r"#ifn?def|#if |#endif|#include|#undef|#define MESHWRIGHT\w*_H$|extern \"C\" \{|namespace \w+ \{|\}"
)
TEMPLATE = re.compile(r"template\s*<[^>]*>+")
NAME = re.compile(r"(?:struct|class|enum class|#define)\s+(\w+)|\b(\w+)\s*\(|constexpr [\w: ]+ (\w+)")
FRAME = re.compile(r"\s*(/\*=|\\\*=|//===)")


def text_of(comment):
    """The text of a comment, without its marks, as Markdown."""
    text = "\n".join(comment)
    text = re.sub(r"^\s*/\*+|\*/\s*$", "", text)
    text = re.sub(r"^ ?(\*|\|\*|//[/=]?) ?", "", text, flags=re.MULTILINE)
    text = re.sub(r" *\*\|\s*$", "", text, flags=re.MULTILINE)
    parts = re.split(r"(`[^`]*`)", textwrap.dedent(text).strip())
    return "".join(part if part.startswith("`") else re.sub(r"([\[\]<>*_])", r"\\\1", part) for part in parts)


def name_of(code):
    """The name that a piece of code declares; None for declarations without one."""
    code = TEMPLATE.sub("", code)
    if pointer := re.match(r"typedef [\w ]+\(\*(\w+)\)", code):
        return pointer[1]
    match = NAME.search(code.split("{")[0])
    return match[1] or match[2] or match[3] if match else None


def without_private(code):
    """A class without what its users do not call."""
    return re.sub(r"\n *private:\n.*?(?=\n *public:|\n\};)", "", code, flags=re.DOTALL)


def split_header(text):
    """(kind, lines) pairs in order: a "frame", a "comment", "code", or a "gap" of an empty line."""
    lines, at = text.splitlines(), 0
    while at < len(lines):
        begin, line = at, lines[at]
        at += 1
        if not line.strip():
            yield "gap", []
        elif line.startswith("/*"):
            while not lines[at - 1].rstrip().endswith("*/"):
                at += 1
            yield "frame" if FRAME.match(line) else "comment", lines[begin:at]
        elif line.startswith("//"):
            while at < len(lines) and lines[at].startswith("//"):
                at += 1
            yield "frame" if FRAME.match(line) else "comment", lines[begin:at]
        elif not HIDDEN.match(line):
            while not ends("\n".join(lines[begin:at])) and at < len(lines):
                at += 1
            yield "code", lines[begin:at]


def ends(code):
    """Whether a declaration is complete."""
    if code.startswith("#"):
        return not code.endswith("\\")
    depth = len(re.findall(r"[{(]", code)) - len(re.findall(r"[})]", code))
    return depth == 0 and code.rstrip().endswith((";", "}", ")"))


def header_page(name, text, language):
    """A header as Markdown, below a heading of its own."""
    lines, comment = [f"## `{name}`", ""], None
    is_first = True
    for kind, part in split_header(text):
        if kind == "frame":
            inner = [line for line in part if not FRAME.match(line) and "Part of Meshwright" not in line]
            inner = [re.sub(r"^\|\*===-.*", "", line) for line in inner if "SPDX-" not in line]
            said = text_of(inner)
            lines += [said if is_first else f"### {said}", ""]
            is_first = False
        elif kind == "comment":
            comment = text_of(part)
        elif kind == "gap" and comment:
            lines += [comment, ""]
            comment = None
        elif kind == "code":
            code = without_private("\n".join(part))
            declared = name_of(code)
            is_forward = declared and re.match(rf"(class|struct|typedef struct) {declared}( {declared})?;", code)
            lines += [f"### `{declared}`", ""] if declared and not is_forward else []
            lines += [comment or "", "", f"```{language}", code, "```", ""]
            comment = None
    return "\n".join(lines)


def page_of(title, headers, language):
    """A page about headers: (name, text) pairs."""
    return "\n".join([f"# {title}", "", *(header_page(name, text, language) for name, text in headers)])
