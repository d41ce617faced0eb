# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Writes the numbers of a build, meshwright/_version.py, if they have changed.

    python write_version.py --project 0.1.0 --llvm 22.1.8 --header include/meshwright-c/Runtime.h _version.py
"""

import argparse
import pathlib
import re
import subprocess

TEXT = '''# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The numbers of this build. Written by python/write_version.py."""

PROJECT = {project!r}
COMMIT = {commit!r}
LLVM = {llvm!r}
ABI = {abi!r}
'''


def commit_of(folder) -> str | None:
    """The commit of a checkout; None for sources without one."""
    command = ["git", "describe", "--always", "--dirty=.dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() or None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--project", required=True)
    parser.add_argument("--llvm", required=True)
    parser.add_argument("--header", type=pathlib.Path, required=True)
    parser.add_argument("output", type=pathlib.Path)
    options = parser.parse_args()
    abi = int(re.search(r"#define MW_RT_ABI_VERSION (\d+)", options.header.read_text())[1])
    commit = commit_of(pathlib.Path(__file__).parent)
    text = TEXT.format(project=options.project, commit=commit, llvm=options.llvm, abi=abi)
    if not options.output.exists() or options.output.read_text() != text:
        options.output.write_text(text)


if __name__ == "__main__":
    main()
