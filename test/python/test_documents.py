# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Documents name what the set-up installs."""

import pathlib
import re
import tomllib

ROOT = pathlib.Path(__file__).parents[2]


def listed():
    """Names of the tables: the texts in backquotes."""
    text = (ROOT / "docs/dependencies.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return {name for row in rows for name in re.findall(r"`([^`\s]+)`", row)}


def wanted_by_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"].values()
    everything = [*project["build-system"]["requires"], *project["project"]["dependencies"], *sum(extras, [])]
    return {re.match(r"[\w.-]+", name)[0] for name in everything}


def wanted_by_setup():
    texts = [(ROOT / "scripts" / name).read_text() for name in ("common.sh", "setup.sh")]
    lists = [words for text in texts for words in re.findall(r"\w+ackages\+?=\(([^)]*)\)|_PACKAGES=\(([^)]*)\)", text)]
    words = " ".join(sum(lists, ())).replace("$LLVM_MAJOR", "22").replace('"', "").split()
    return {re.match(r"[\w.-]+", word)[0] for word in words if word[0].isalpha()}


def test_each_dependency_has_a_row():
    # Parts of packages that are listed.
    parts = {"python3", "python3-venv", "python3-dev", "libclang-rt-22-dev"}
    wanted = wanted_by_package() | wanted_by_setup()
    assert len(wanted) > 25 and not wanted - parts - listed()


def test_version_of_llvm():
    version = (ROOT / "llvm-version.txt").read_text().split()[0]
    assert f"| {version}." in (ROOT / "docs/dependencies.md").read_text()


def test_changes_of_this_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"\n## {project['version']}" in (ROOT / "CHANGELOG.md").read_text()
