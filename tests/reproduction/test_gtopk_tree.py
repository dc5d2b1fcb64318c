"""Claims about what gTop-k's tree finds and what its rules of putting back lose."""

import pytest

pytest.importorskip("torch")

from comm_plan.reproduction.gtopk_tree import TAILS, lost, overlap

DRAW = (0.5, 100, 0)
"""Shared variance, k and seed."""


@pytest.mark.parametrize("freedom", TAILS.values(), ids=TAILS)
def test_two_ranks_find_all_and_more_lose_only_by_the_printed_rule(freedom):
    assert overlap(2, freedom, *DRAW) == (1.0, pytest.approx(1.0))
    assert max(lost(2, freedom, *DRAW)) < 1e-6
    printed, ours = lost(8, freedom, *DRAW)
    assert printed > 0.01
    assert ours < 1e-6
