"""What the benchmark of predictions says of a machine whose speed changes."""

from __future__ import annotations

import pytest

from comm_plan.benchmarks import tables
from comm_plan.benchmarks.predictions_on_hosts import at_rounds_speed, drift_sentence
from comm_plan.planner import make_problem, solve
from comm_plan.tests.support import documents


def profile(slower=1.0):
    return documents.profile(
        [0.01 * slower, 0.02 * slower], [10, 10], forward_s=0.03 * slower
    )


def test_predictions_at_another_speed_are_those_of_such_a_profile():
    network = documents.network(4, allreduce=documents.fit((0, 1e-6, 0.0)))
    plans = {
        slower: solve(make_problem(profile(slower), network), "wfbp")
        for slower in (1.0, 1.2)
    }
    predicted_s = {s: plan.predicted.iteration_s for s, plan in plans.items()}
    row = tables.Line("wfbp", 2, predicted_s[1.0], 0.1, 0.1, 8)
    ddp = tables.Line("ddp", None, None, 0.1, 0.1, 8)
    costs = profile(), network
    slower_s = 1.2 * (costs[0].forward_s + costs[0].backward_s)
    found = at_rounds_speed([row, ddp], {"wfbp": plans[1.0]}, costs, slower_s)
    assert found[0].predicted_s == pytest.approx(predicted_s[1.2])
    assert found[1] == ddp
    assert drift_sentence(profile(), slower_s).endswith("+20.0%.")
