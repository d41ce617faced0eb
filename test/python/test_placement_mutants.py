# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The proof accepts no faulty program that computes something else, and refuses no right one."""
import os

import placement_mutants
import pytest

pytestmark = [pytest.mark.slow,
              pytest.mark.skipif(not placement_mutants.PLUGIN or
                                 not os.path.exists(placement_mutants.PLUGIN),
                                 reason="needs sharding-opt and the test passes")]


def test_no_mutant_changes_a_result():
    tally = placement_mutants.campaign(mutants=1000, seed=1, budget=80)
    assert not tally.survivors, tally.survivors[0]
    assert not tally.refused
    assert tally.mutants >= 100 and len(tally.kinds) >= 15
