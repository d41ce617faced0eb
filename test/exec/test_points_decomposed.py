# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Operations that the importer takes apart have points."""
import points_elementwise
import points_losses
import points_numbers
from derivative_points import operations
from points_decomposed import DECOMPOSED


def test_each_operation_that_is_taken_apart_has_points():
    tables = (points_elementwise.ARITHMETIC, points_elementwise.EXPONENTIALS, points_elementwise.BOUNDS,
              points_elementwise.ACTIVATIONS, points_numbers.ANGLES, points_losses.LOSSES)
    visited = {name.split(".")[0] for table in tables for name in operations(table)}
    assert sorted(DECOMPOSED - visited) == []
