# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Each operation that the importer reads, at its special points, against PyTorch."""
import points_elementwise
import points_losses
import points_numbers
import pytest
from derivative_points import TYPES, check

TABLES = {
    "arithmetic": points_elementwise.ARITHMETIC,
    "exponentials": points_elementwise.EXPONENTIALS,
    "bounds": points_elementwise.BOUNDS,
    "activations": points_elementwise.ACTIVATIONS,
    "powers": points_numbers.POWERS,
    "digits": points_numbers.DIGITS,
    "angles": points_numbers.ANGLES,
    "complex": points_numbers.COMPLEX,
    "losses": points_losses.LOSSES,
}
#: Operations of the tests that have run.
visited: set[str] = set()


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("table", TABLES)
def test_points(table, kind):
    wrong = check(TABLES[table], kind, visited)
    assert not wrong, f"{len(wrong)} places are wrong:\n" + "\n".join(wrong[:40])
