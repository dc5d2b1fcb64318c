"""A whole model's costs are what the planner takes them to be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comm_plan.collectives.collective import Codings
from comm_plan.planner.prices import DeviceCost
from comm_plan.plans import CompressionCost
from comm_plan.profiler.whole_model import in_all

SIZES = [10, 1_000, 100_000]


@given(
    st.lists(st.floats(0, 1e-2), min_size=3, max_size=3),
    st.lists(st.integers(1, SIZES[-1]), min_size=1),
)
def test_all_tensors_cost_what_the_planner_prices_them_at(seconds, numels):
    """Also where chance lets larger ones take less."""
    costs = tuple(
        CompressionCost(numel=size, compress_s=compress_s, decompress_s=0.0)
        for size, compress_s in zip(SIZES, seconds, strict=True)
    )
    priced = DeviceCost.measured(costs, Codings(encoded=1, decoded=1))
    each_s, _, _ = priced.seconds(np.array(numels), np.ones(len(numels)))
    told_s = in_all(numels, costs, lambda cost: cost.compress_s)
    assert told_s == pytest.approx(each_s.sum(), abs=1e-11)
