#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Writes the pages of the site and its navigation to a folder, for MkDocs (scripts/site.sh).

The pages keep the places that they have in the tree, so that links between them stay. A file of the
tree that is no page gets one with its text if a page links to it. Pages of interfaces come from the
docstrings of Python, the headers of include/, the descriptions of passes and the help of tools.

usage: stage_site.py FOLDER [--build BUILD]
"""

import argparse
import ast
import json
import pathlib
import re
import shutil
import subprocess
import sys

from header_pages import page_of

ROOT = pathlib.Path(__file__).resolve().parents[1]
TOP = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)]*)?\))")
LANGUAGES = {".h": "cpp", ".cpp": "cpp", ".td": "tablegen", ".patch": "diff"}
TOOLS = ["sharding-opt", "sharding-run", "sharding-compile"]
#: The headers for users, in the order of their pages.
HEADERS = {
    "meshwright-c": ["Run.h", "Session.h", "Runtime.h", "DeviceKernel.h"],
    "meshwright": ["Compiler.h", "Serving.h", "Training.h", "TokenOrder.h"],
}
#: Names of the package, in the order of the page.
PYTHON = [
    ("Models", ["from_torch", "from_jax", "from_stablehlo", "load", "compose", "join", "Model"]),
    ("Plans", ["Plan"]),
    ("Sessions", ["Session", "Bundle", "load_bundle", "Request", "DeviceArray"]),
    ("Optimizers", ["SGD", "Adam", "AdamW"]),
    ("Errors and messages", ["Error", "InputError", "CheckFailed", "MeshwrightWarning", "Diagnostic", "quiet"]),
]


class Stage:
    def __init__(self, folder):
        self._pages = folder / "pages"
        #: Pages, pages elsewhere in the tree and other files that pages link to.
        self._done, self._others, self._sources = set(), set(), set()

    def write(self, name, text):
        path = self._pages / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def add_page(self, page):
        """Writes a page of the tree, with links to files of the tree that are no pages."""
        self._done.add(page)
        lines, code = [], False
        for line in page.read_text().splitlines():
            if line.lstrip().startswith("```"):
                code = not code
            elif not code:
                # MkDocs wants four spaces before an inner list, GitHub two.
                line = re.sub(r"^ {2,3}(?=[-*] |\d+\. )", "    ", line)
                parts = re.split(r"(`[^`]*`)", line)
                # A link may have a text in backquotes, so the line is one text, and code alone is left out.
                line = LINK.sub(lambda link: self._link(page, link), line) if "](" in "".join(parts[::2]) else line
            lines.append(line)
        self.write(page.relative_to(ROOT), "\n".join(lines) + "\n")

    def _link(self, page, link):
        opened, target, rest = link.groups()
        if re.match(r"[a-z]+:", target):
            return link[0]
        path = (page.parent / target).resolve()
        if path.suffix == ".md" and path not in self._done:
            self._others.add(path)
        if not path.exists() or path.suffix in (".md", ".svg"):
            return link[0]
        if path.is_dir():
            path = path / "Passes.td"
            target = f"{target.rstrip('/')}/Passes.td"
        self._sources.add(path)
        return f"{opened}{target}.md{rest}"

    def add_sources(self):
        """Pages of files that pages link to; the search leaves out files that are no pages."""
        others = sorted(self._others - self._done)
        for path in others:
            self.add_page(path)
        for path in sorted(self._sources):
            name = path.relative_to(ROOT)
            text = f"---\nsearch:\n  exclude: true\n---\n# {path.name}\n\n`{name}`\n\n"
            fence = "`````"
            self.write(f"{name}.md", f"{text}{fence}{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text()}{fence}\n")
        return [str(path.relative_to(ROOT)).removesuffix(".md") + ".md" for path in [*others, *sorted(self._sources)]]


def groups_of_python():
    """The groups of PYTHON, and all other names that the package exports."""
    tree = ast.parse((ROOT / "python/meshwright/__init__.py").read_text())
    (exported,) = [ast.literal_eval(node.value) for node in tree.body
                   if isinstance(node, ast.Assign) and node.targets[0].id == "__all__"]  # fmt: skip
    others = [name for name in exported if not any(name in names for _, names in PYTHON)]
    return [*PYTHON, *([("Others", others)] if others else [])]


def python_page():
    lines = ["# Python", "", "`import meshwright as mw`. Types of arguments and results are those of the signatures.", ""]
    for title, names in groups_of_python():
        lines += [f"## {title}", ""]
        for name in names:
            lines += [f"::: meshwright.{name}", "    options:", "      heading_level: 3", ""]
    return "\n".join(lines)


def headers_page(title, folder, language):
    paths = [ROOT / "include" / folder / name for name in HEADERS[folder]]
    return page_of(title, [(f"{folder}/{path.name}", path.read_text()) for path in paths], language)


def passes_page(build):
    """The descriptions of passes, which mlir-tblgen prints; None without it."""
    major = (ROOT / "llvm-version.txt").read_text().split(".")[0]
    llvm = pathlib.Path(f"/usr/lib/llvm-{major}")
    tool = shutil.which("mlir-tblgen") or llvm / "bin/mlir-tblgen"
    if not pathlib.Path(tool).exists() or not (build / "include/meshwright").exists():
        return None
    lines = ["# Passes", "", "The passes of `sharding-opt`, in the order of the phases. Each example runs in the tests.", ""]
    for file in sorted((ROOT / "passes").glob("*/Passes.td")):
        command = [tool, "-gen-pass-doc", file, "-I", build / "include", "-I", llvm / "include"]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        text = re.sub(r"^<!--.*?-->\n", "", text, flags=re.MULTILINE)
        lines += [f"## {file.parent.name}", "", text, ""]
    return "\n".join(lines)


def tools_page(build):
    lines = ["# Tools", ""]
    for tool in TOOLS:
        path = build / "bin" / tool
        if not path.exists():
            return None
        text = subprocess.run([path, "--help"], check=True, capture_output=True, text=True).stdout
        lines += [f"## `{tool}`", "", "```text", text.rstrip(), "```", ""]
    return "\n".join(lines)


def title_of(name):
    text = (ROOT / name).read_text()
    return re.sub(r"`", "", re.search(r"^# (.*)$", text, re.MULTILINE)[1])


def listed(index):
    """The pages beside an index, in its order."""
    links = re.findall(r"\]\(([\w./-]+\.md)\)", (ROOT / index).read_text())
    folder = pathlib.Path(index).parent
    return list(dict.fromkeys(str(folder / link) for link in links if not link.startswith("..")))


def rationale():
    """The pages of decisions, by the headings of their index."""
    sections = re.split(r"^## (.*)$", (ROOT / "docs/rationale/README.md").read_text(), flags=re.MULTILINE)[1:]
    groups = [{title: [f"docs/rationale/{page}" for page in re.findall(r"\]\(([\w-]+\.md)\)", text)]}
              for title, text in zip(sections[::2], sections[1::2])]  # fmt: skip
    return ["docs/rationale/README.md", *groups]


def named(pages):
    return [{title_of(page): page} for page in pages]


def navigation(interfaces, sources):
    index = listed("docs/README.md")
    guides = [page for page in index if re.fullmatch(r"docs/[\w-]+\.md", page) and page != "docs/dependencies.md"]
    return [
        {"Meshwright": ["README.md", {"All pages": "docs/README.md"}]},
        {"Tutorials": ["docs/tutorials/README.md", *named(listed("docs/tutorials/README.md"))]},
        {"Guides": named(guides)},
        {"Dialects": named(page for page in index if page.startswith("docs/dialects/"))},
        {"Interfaces": [{title: name} for name, title in interfaces]},
        {"Rationale": rationale()},
        {"Project": [
            {"Changes": "CHANGELOG.md"}, {"Dependencies": "docs/dependencies.md"}, {"Contributing": "CONTRIBUTING.md"},
            {"Recipes": named(sorted(f"docs/recipes/{page.name}" for page in (ROOT / "docs/recipes").glob("*.md")))},
            {"Sources": [{name.removesuffix(".md"): name} for name in sources]},
        ]},
    ]  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    options = parser.parse_args()
    folder, stage = options.folder.resolve(), Stage(options.folder.resolve())
    for page in [*(ROOT / name for name in TOP), *sorted((ROOT / "docs").rglob("*.md"))]:
        stage.add_page(page)
    for picture in (ROOT / "docs").glob("*.svg"):
        shutil.copy(picture, folder / "pages/docs" / picture.name)
    texts = {
        ("interfaces/python.md", "Python"): python_page(),
        ("interfaces/c.md", "C"): headers_page("C", "meshwright-c", "c"),
        ("interfaces/cpp.md", "C++"): headers_page("C++", "meshwright", "cpp"),
        ("interfaces/passes.md", "Passes"): passes_page(options.build),
        ("interfaces/tools.md", "Tools"): tools_page(options.build),
    }
    for (name, title), text in texts.items():
        if text is None:
            print(f"left out: the page '{title}', which needs a build", file=sys.stderr)
        else:
            stage.write(name, text)
    interfaces = [place for place, text in texts.items() if text is not None]
    nav = navigation(interfaces, stage.add_sources())
    # JSON is YAML.
    settings = {"INHERIT": str(ROOT / "mkdocs.yml"), "docs_dir": "pages", "site_dir": "html", "nav": nav}
    (folder / "mkdocs.yml").write_text(json.dumps(settings, indent=1) + "\n")


if __name__ == "__main__":
    main()
