"""The registry of aggregations is complete."""

from __future__ import annotations

from comm_plan.collectives.aggregate import AGGREGATIONS
from comm_plan.plans import COLLECTIVES_OF


def test_every_collective_of_a_plan_has_an_aggregation():
    named = {name for names in COLLECTIVES_OF.values() for name in names}
    assert named == set(AGGREGATIONS)
