"""What plans took is said by one clock, that of the baseline in the same rounds."""

from __future__ import annotations

import numpy as np
import pytest

from comm_plan.plans.plan import TODAY
from comm_plan.tests.tuner.test_candidates import listed
from comm_plan.tuner.ledger import Ledger

MACHINE = (1.0, 2.0, 1.0, 3.0)
"""What the baseline takes in four rounds: others slow the machine down."""


@pytest.mark.parametrize("rounds", [[0], [1], [0, 2], [1, 3], [0, 1, 2, 3]])
def test_what_others_did_to_the_machine_is_not_said_of_a_plan(rounds):
    """Also of one that comes back after rounds without it, to be confirmed."""
    tried = listed().tried
    name = tried[1].name
    ledger = Ledger(tried)
    for number, slower in enumerate(MACHINE):
        seconds = {TODAY: np.full(10, slower)}
        if number in rounds:
            seconds[name] = np.full(10, 0.9 * slower)
        ledger.add_round(seconds)
    first, second, *others = ledger.trials()
    assert first.measured_s == np.median(MACHINE)
    assert second.measured_s == pytest.approx(0.9 * first.measured_s)
    assert len(second.rounds) == len(rounds)
    assert {trial.measured_s for trial in others} <= {None}


def test_a_round_is_said_by_its_middle_and_its_slowest_twentieth():
    tried = listed().tried
    ledger = Ledger(tried)
    ledger.add_round({TODAY: np.arange(101.0)[::-1]})
    (summary,) = ledger.trials()[0].rounds
    assert (summary.iterations, summary.median_s, summary.p95_s) == (101, 50.0, 95.0)
