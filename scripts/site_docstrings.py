# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Docstrings as Markdown, for the site: an extension of griffe, which reads them for MkDocs.

A paragraph of lines `name: text`, whose further lines are indented, becomes a list. An indented
paragraph is code.
"""

import re

from griffe import Extension

ITEM = re.compile(r"([a-z`][^:.]{0,80}): (.*)")


def markdown_of(docstring):
    """The Markdown of a docstring."""
    return "\n\n".join(_paragraph(paragraph) for paragraph in re.split(r"\n\s*\n", docstring.strip()))


def _paragraph(text):
    lines = text.splitlines()
    if all(line.startswith("    ") for line in lines):
        return "```python\n" + "\n".join(line[4:] for line in lines) + "\n```"
    items = [ITEM.match(line) for line in lines if not line.startswith("    ")]
    is_list = all(items) and (len(items) > 1 or re.fullmatch(r"\w+(, \w+)*", items[0][1]))
    if not is_list or lines[0].startswith(" "):
        return text
    return "\n".join(
        line if line.startswith("    ") else "- **{}**: {}".format(*ITEM.match(line).groups()) for line in lines
    )


class Markdown(Extension):
    def on_object(self, *, obj, **_):
        if obj.docstring is not None and not obj.is_alias:
            obj.docstring.value = markdown_of(obj.docstring.value)
