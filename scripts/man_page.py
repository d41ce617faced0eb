#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Writes the manual page of a tool from its --help and --version.

    scripts/man_page.py build/bin/sharding-run sharding-run.1
"""

import pathlib
import re
import subprocess
import sys

OPTION = re.compile(r" {2,6}(-\S+(?: [A-Z]+(?= {2}))?)(?: +(?:- +)?(.*))?$")
#: A line of an option of --parallelize, in the help of sharding-opt.
INNER = re.compile(r" {6}([a-z][a-z-]*)  +(.*)$")


def escape(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text


def option_lines(name, text):
    return [".TP", f"\\fB{escape(name)}\\fR", escape(text)]


def page_of(name, text, version):
    """The page, as roff."""
    first, *rest = text.rstrip().split("\n\n")
    usage = first.removeprefix("usage: ")
    summary = " ".join(rest[0].split())
    lines = [f'.TH {name.upper()} 1 "" "{version}" "Meshwright"', ".SH NAME"]
    sentence = summary.split(". ")[0].rstrip(".")
    lines += [escape(f"{name} - {sentence[0].lower()}{sentence[1:]}")]
    lines += [".SH SYNOPSIS", escape(usage), ".SH DESCRIPTION", escape(summary), ".SH OPTIONS"]
    for paragraph in rest[1:]:
        if paragraph.startswith("exit status: "):
            lines += [".SH EXIT STATUS", escape(paragraph.removeprefix("exit status: "))]
            continue
        lines.append(".PP")
        for line in paragraph.splitlines():
            if (match := OPTION.match(line)) or (match := INNER.match(line)):
                lines += option_lines(match[1], match[2] or "")
            elif not line.startswith(" "):
                lines += [f".SS {escape(line)}"] if line.istitle() else [".PP", escape(line)]
            elif line.strip():
                lines.append(escape(line.strip()))
    return "\n".join(lines) + "\n"


def main():
    tool, output = map(pathlib.Path, sys.argv[1:])
    help_text, version = (
        subprocess.run([tool, option], check=True, capture_output=True, text=True).stdout for option in ("--help", "--version")
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(page_of(tool.name, help_text, version.splitlines()[0].partition(" of ")[2]))


if __name__ == "__main__":
    main()
