# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Each operation that the importer reads, at its special points, against PyTorch.

An operation of a family, or one that states its derivative, fails these tests until a table has
its points.
"""
import pathlib
import re

import points_elementwise
import points_indexing
import points_layers
import points_losses
import points_numbers
import points_reductions
import points_windows
import pytest
import torch
from derivative_points import TYPES, Case, check, operations
from meshwright.importer.torch import ops_complex
from meshwright.importer.torch.handlers import HANDLERS
from meshwright.importer.torch.derivatives import DERIVATIVES

TABLES: dict[str, list[Case]] = {
    "arithmetic": points_elementwise.ARITHMETIC,
    "exponentials": points_elementwise.EXPONENTIALS,
    "bounds": points_elementwise.BOUNDS,
    "activations": points_elementwise.ACTIVATIONS,
    "powers": points_numbers.POWERS,
    "digits": points_numbers.DIGITS,
    "angles": points_numbers.ANGLES,
    "complex": points_numbers.COMPLEX,
    "losses": points_losses.LOSSES,
    "extremes": points_reductions.EXTREMES,
    "sums": points_reductions.SUMS,
    "spreads": points_reductions.SPREADS,
    "maxima of windows": points_windows.MAXIMA,
    "means of windows": points_windows.MEANS,
    "pads": points_windows.PADS,
    "convolutions": points_windows.CONVOLUTIONS,
    "moves": points_indexing.MOVES,
    "indexing": points_indexing.INDEXING,
    "products": points_layers.PRODUCTS,
    "norms": points_layers.NORMS,
    "bags": points_layers.BAGS,
    "classes": points_layers.CLASSES,
}
#: The modules of the importer of which every operation has points.
FAMILIES = ("ops_elementwise", "ops_numbers", "ops_trigonometric", "ops_reduce", "ops_windows", "ops_scatter",
            "ops_shape", "ops_layers", "ops_loss", "ops_resize")
#: Operations whose results are integers or truth values, or that take integers alone.
WITHOUT_FLOATS = {
    *"eq ne lt le gt ge isnan isinf isfinite signbit logical_not bitwise_not".split(),
    *(f"{kind}_{op}" for kind in ("bitwise", "logical") for op in ("and", "or", "xor")),
    *(f"__{op}__" for op in ("and", "or", "xor", "lshift", "rshift")),
    "bitwise_left_shift", "bitwise_right_shift", "_is_all_true", "_is_any_true", "one_hot", "arange", "full",
    *(f"{kind}_like" for kind in ("zeros", "ones", "full", "empty")), *(f"new_{kind}" for kind in ("zeros", "ones", "full", "empty"))}
#: Other names of operations, which an export replaces by the first.
ALIASES = {"clip", "fix", "arctan", "arcsin", "arccos", "arctan2", "arcsinh", "arccosh", "arctanh",
           "special_gammaln", "relu6", "type_as", "clip.Tensor"}
#: Operations that an export replaces by others that have points.
REPLACED = {"chunk", "unsafe_chunk", "tensor_split", "movedim", "narrow",
            *(f"{kind}_pad{n}d" for kind in ("reflection", "replication") for n in (1, 2, 3))}
#: Operations whose gradients other tests compare.
ELSEWHERE = {"embedding", "_embedding_bag", "scaled_dot_product_attention", "_native_batch_norm_legit_functional"}
#: Parts of operations, and operations that an export composes of others where points have them.
PARTS = ("complex", "glu", "cdist", "cummax", "max_pool", "norm", "scatter", "max_pool1d_with_indices",
         "max_pool3d_with_indices")


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("table", TABLES)
def test_points(table, kind):
    wrong = check(TABLES[table], kind)
    assert not wrong, f"{len(wrong)} places are wrong:\n" + "\n".join(wrong[:40])


@pytest.mark.parametrize("table", ["bounds", "activations"])
def test_points_on_a_mesh(table):
    cases = [case for case in TABLES[table] if len(case.points) == 1]
    wrong = check(cases, "f32", torch.zeros(4, 1), mesh={"dp": 2, "tp": 2})
    assert not wrong, f"{len(wrong)} places are wrong:\n" + "\n".join(wrong[:40])


@pytest.fixture(scope="module")
def visited() -> set[str]:
    names = set().union(*map(operations, TABLES.values()))
    return names | {name.split(".")[0] for name in names}


def test_every_operation_has_points(visited):
    # An operation has the points of others of the same handler.
    seen = {HANDLERS[name] for name in visited if name in HANDLERS}
    own = {name for name, handler in HANDLERS.items()
           if handler.__module__.split(".")[-1] in FAMILIES and handler not in seen}
    assert sorted(own - WITHOUT_FLOATS - ALIASES - REPLACED - ELSEWHERE) == []


def test_every_derivative_of_an_op_has_points(visited):
    """The elementwise ops of the nn dialect of which passes/differentiate states a derivative."""
    root = pathlib.Path(__file__).parents[2]
    text = (root / "passes/differentiate/Elementwise.cpp").read_text()
    ops = re.findall(r"attach(?:Vjp|Slope)<(\w+)Op,", text)
    assert len(ops) > 20
    names = {"nn." + re.sub(r"(?<!^)(?=[A-Z])", "_", op).lower() for op in ops}
    # A dropout drops at random; it has tests of its own.
    assert sorted(names - visited - {"nn.dropout"}) == []


def test_every_complex_operation_has_points(visited):
    makers = {"full", "zeros", "ones", "scalar_tensor", "view_as_complex"}
    products = {"matmul", "mm", "bmm", "mv", "dot"}
    views = {"resolve_conj", "resolve_neg", "_conj", "conj", "conj_physical", "_conj_physical", "real", "imag", "to"}
    transforms = {name for name in ops_complex._OPERATIONS if name.startswith("_fft")}
    own = {f"complex {name}" for name in
           ops_complex._OPERATIONS.keys() - makers - products - views - transforms}
    assert sorted(own - visited) == []


def test_every_stated_derivative_has_points(visited):
    stated = {name for name in DERIVATIVES if name.split(".")[0] not in PARTS}
    assert sorted(stated - visited - ALIASES) == []
