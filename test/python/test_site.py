# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The site of the documents is built in strict mode, and its pages of headers have each declaration."""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import meshwright as mw
import pytest

ROOT = pathlib.Path(__file__).parents[2]

spec = importlib.util.spec_from_file_location("header_pages", ROOT / "scripts/header_pages.py")
header_pages = importlib.util.module_from_spec(spec)
spec.loader.exec_module(header_pages)

HEADER = """/*===- Some.h - a header -*- C -*-===*\\
|* Part of Meshwright, under the licence. *|
|*===---------------------------------===*|
|* Functions for all.                     *|
\\*===---------------------------------===*/

#ifndef MESHWRIGHT_SOME_H
#define MESHWRIGHT_SOME_H

/* These return 0. */

/* Adds `a[0]` and b[0]. */
int32_t add(const int32_t *a,
            const int32_t *b);
struct pair {
  /* Of both. */
  int first, second;
};
#endif
"""


def test_header():
    page = header_pages.page_of("C", [("Some.h", HEADER)], "c")
    lines = [line for line in page.splitlines() if line]
    assert lines[:7] == [
        "# C", "## `Some.h`", "Functions for all.", "These return 0.", "### `add`",
        "Adds `a[0]` and b\\[0\\].", "```c",
    ]  # fmt: skip
    assert lines[7:10] == ["int32_t add(const int32_t *a,", "            const int32_t *b);", "```"]
    assert "  /* Of both. */" in lines and lines[-1] == "```"


def test_class_without_private_part():
    text = "/// One.\nclass One {\npublic:\n  int get();\n\nprivate:\n  int hidden;\n};\n"
    page = header_pages.page_of("C++", [("One.h", text)], "cpp")
    assert "### `One`\n\nOne.\n" in page and "int get();" in page and "hidden" not in page


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for package in ("mkdocs", "material", "mkdocstrings_handlers"):
        pytest.importorskip(package, reason="scripts/setup.sh")
    folder = tmp_path_factory.mktemp("site") / "site"
    done = subprocess.run([ROOT / "scripts/site.sh", folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_pages(site):
    search = json.loads((site / "html/search/search_index.json").read_text())["docs"]
    assert len(search) > 500
    for page in ("index.html", "docs/tutorials/first-model/index.html", "docs/options/index.html"):
        assert (site / "html" / page).exists(), page
    python = (site / "html/interfaces/python/index.html").read_text()
    assert all(f'id="meshwright.{name}"' in python for name in mw.__all__)
    assert 'id="meshwright.Plan.save_report"' in python and 'id="meshwright.Plan._' not in python
    interface = (site / "pages/interfaces/c.md").read_text()
    functions = {name for header in ("Run.h", "Session.h") for name in
                 re.findall(r"\b(mw_\w+)\(", (ROOT / "include/meshwright-c" / header).read_text())}  # fmt: skip
    assert len(functions) > 30 and all(f"### `{name}`" in interface for name in functions)


@pytest.mark.slow
@pytest.mark.parametrize("link", ["[a](none.md)", "[a](running.md#no-such-part)"])
def test_dead_links_are_errors(site, link):
    page = site / "pages/docs/trust.md"
    text = page.read_text()
    page.write_text(f"{text}\n{link}\n")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", site / "mkdocs.yml"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/scripts:{ROOT}/python"}
    done = subprocess.run([*command, "--site-dir", site / "other"], capture_output=True, text=True, env=environment)
    page.write_text(text)
    assert done.returncode != 0 and "docs/trust.md" in done.stderr
