# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The options of a plan are the same in the compiler, in Python's signature and on their page."""

import importlib.util
import inspect
import pathlib
import re
import shutil
import subprocess
import sys

import meshwright as mw
import numpy as np
import pytest
from meshwright import _core
from meshwright.bucket_model import BucketModel
from meshwright.errors import unwrap

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "scripts/options_page.py"
TEXT = """
func.func @main(%x: tensor<2x4xf32> {nn.input = "x"}, %w: tensor<8x4xf32> {nn.parameter = "up"},
                %v: tensor<4x8xf32> {nn.parameter = "down"}) -> (tensor<2x4xf32> {nn.output = "y"}) {
  %0 = nn.linear %x, %w : (tensor<2x4xf32>, tensor<8x4xf32>) -> tensor<2x8xf32>
  %1 = nn.relu %0 : tensor<2x8xf32>
  %2 = nn.linear %1, %v : (tensor<2x8xf32>, tensor<4x8xf32>) -> tensor<2x4xf32>
  return %2 : tensor<2x4xf32>
}
"""


@pytest.fixture(scope="module")
def model():
    weights = {"up": np.ones((8, 4), np.float32), "down": np.ones((4, 8), np.float32)}
    return mw.Model(unwrap(_core.Program.parse(TEXT, "<linears>")), weights)


@pytest.fixture(scope="module")
def page():
    spec = importlib.util.spec_from_file_location("options_page", SCRIPT)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture(scope="module")
def known(model):
    """The options that the compiler lists, in its order."""
    with pytest.raises(mw.Error) as error:
        model.parallelize(no_such_option=1)
    return re.search(r"unknown option 'no-such-option'; supported are (.*)$", str(error.value))[1].split(", ")


def test_signature(known):
    parameters = inspect.signature(mw.Model.parallelize).parameters.values()
    named = [p for p in parameters if p.kind == p.KEYWORD_ONLY]
    assert {p.name.replace("_", "-") for p in named} == {*known}
    assert all(p.default is None for p in named)
    assert {p.kind for p in parameters} == {
        inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD,
    }  # fmt: skip
    assert inspect.signature(BucketModel.parallelize) == inspect.signature(mw.Model.parallelize)
    assert not [p.name for p in named if not re.search(rf"\b{p.name}\b", mw.Model.parallelize.__doc__)]


def test_page(known, page, tmp_path):
    assert [name for name, *_ in page.options_of(ROOT)] == known
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for file in (page.LIST, page.ROLES, page.EXAMPLES, "docs/options.md"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    source = (tmp_path / page.LIST).read_text()
    (tmp_path / page.LIST).write_text(source.replace('"most memory', '"the most memory'))
    check = [sys.executable, SCRIPT, "--check", tmp_path]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 1 and "docs/options.md is not what the compiler's tables say" in done.stderr


@pytest.mark.slow
def test_examples_of_page():
    done = subprocess.run([sys.executable, ROOT / "scripts/option_examples.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_defaults(model, page, known):
    """An option with the value of the page's column gives the plan without it."""
    plain = model.parallelize(mesh={"tp": 2})
    defaults = {name: default for name, _, _, default in page.options_of(ROOT)}
    for name in known:
        if defaults[name] is not None:
            plan = model.parallelize(mesh={"tp": 2}, **{name.replace("-", "_"): defaults[name]})
            assert plan.ir("rt") == plain.ir("rt"), name
            # Some options that are spelled out as auto are chosen by finished plans, which the report names.
            text = re.sub(r"(?m)^  planner .*\n|^planner: .*\n(  .*\n)*", "", plan.report())
            assert text == plain.report(), name


def test_none_is_the_default(model, known):
    plan = model.parallelize(**{"mesh": {"tp": 2}, **{n.replace("-", "_"): None for n in known if n != "mesh"}})
    assert plan.ir() == model.parallelize(mesh={"tp": 2}).ir()


@pytest.mark.parametrize("mesh, got", [(4, "4"), ([2, 2], "a list"), ((("tp", 2),), "a tuple"), (2.5, "2.5"), (True, "True")])
def test_mesh_that_is_none(model, mesh, got):
    with pytest.raises(mw.Error) as error:
        model.parallelize(mesh=mesh)
    assert str(error.value) == f'mesh: expected axes and their sizes, as in {{"dp": 2, "tp": 4}}, got {got}'


def test_errors_name_the_call(model):
    """A program of an import has no lines that its user knows."""
    for options, said in (
        ({}, "parallelize: no mesh: expected a 'mesh' option or a dist.mesh in the module"),
        ({"mesh": {"tp": 2}, "memory_ceiling": 16}, r"parallelize: 'main' needs \d+ bytes on a rank, .*"),
        ({"mesh": {"tp": 2}, "shardings": {"up": '[{"zp"}, {}]'}}, """parallelize: rule "up" on parameter 'up': .*"""),
    ):
        with pytest.raises(mw.Error) as error:
            model.parallelize(**options)
        assert re.fullmatch(said, str(error.value)), error.value
        assert (error.value.diagnostics[0].file, error.value.diagnostics[0].line) == (None, None)


def test_reports_have_no_lines_of_imports(model):
    text = model.parallelize(mesh={"tp": 2}).report(verbose=True)
    assert "decisions" in text and "<linears>" not in text


def test_errors_of_files_name_the_file(tmp_path):
    (tmp_path / "m.mlir").write_text(TEXT)
    with pytest.raises(mw.Error, match=rf"^{re.escape(str(tmp_path))}/m\.mlir(:\d+)?: no mesh"):
        mw.load(tmp_path / "m.mlir").parallelize()
