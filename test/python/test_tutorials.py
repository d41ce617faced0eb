# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Each tutorial runs as it is written, and its outputs are those of the page."""

import importlib.util
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "scripts/run_tutorials.py"
PAGES = sorted(page.name for page in (ROOT / "docs/tutorials").glob("[!R]*.md"))

spec = importlib.util.spec_from_file_location("run_tutorials", SCRIPT)
tutorials = importlib.util.module_from_spec(spec)
sys.modules["run_tutorials"] = tutorials
spec.loader.exec_module(tutorials)


def run(*arguments):
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True)


def test_index_has_each_page():
    text = (ROOT / "docs/tutorials/README.md").read_text()
    assert len(PAGES) >= 5 and all(f"]({page})" in text for page in PAGES)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_page(page):
    done = run(ROOT / "docs/tutorials" / page)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("written, seen, same", [
    ("loss 0.64 of 2", "loss  0.645 of 2", True),
    ("loss 0.64", "loss 0.70", False),
    ("12 steps", "12 stairs", False),
    ("took ... ms", "took 3 or 4 ms", True),
    ("memory 8 MiB", "memory 8MiB", False),
    ("a (b) [c]", "a (b) [c]", True),
])  # fmt: skip
def test_lines(written, seen, same):
    assert tutorials.equal(written, seen, any_number=False) == same


def test_lines_of_measured_numbers():
    assert tutorials.equal("took 3 ms, 40%", "took 12.5 ms, 7%", any_number=True)
    assert not tutorials.equal("took 3 ms", "took a while", any_number=True)


def test_any_lines():
    assert tutorials.agree(["a", "...", "d"], ["a", "b", "c", "d"], any_number=False)
    assert tutorials.agree(["...", "d"], ["d"], any_number=False)
    assert not tutorials.agree(["a", "...", "d"], ["a", "b", "c"], any_number=False)
    assert not tutorials.agree(["a"], ["a", "b"], any_number=False)


PAGE = """
```python
def double(x):
    return 2 * x
```
```mlir title="file.mlir"
module {}
```
```sh
cat file.mlir; echo "error: none" >&2; false
```
```text
module {}
error: none
```
```python
print(double(%s))
```
```text
4
```
"""


def test_page_of_blocks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE % 2)
    assert run(page).returncode == 0
    page.write_text(PAGE % 3)
    done = run(page)
    assert done.returncode == 1 and f"{page}:20: expected the output\n  4\ngot\n  6\n" in done.stderr
    assert run("--write", page).returncode == 1
    assert page.read_text() == (PAGE % 3).replace("\n4\n", "\n6\n") and run(page).returncode == 0


def test_commands_that_fail(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```sh\nfalse\n```\n")
    done = run(page)
    assert done.returncode == 1 and f"{page}:2: exit status 1" in done.stderr
    page.write_text("```python\n\nraise ValueError(3)\n```\n")
    done = run(page)
    assert done.returncode == 1 and f'"{page}", line 3' in done.stderr
