"""What the benchmark of predictions says of a machine whose speed changes."""

from __future__ import annotations

import pytest

from comm_plan.benchmarks import tables
from comm_plan.benchmarks.predictions_on_hosts import (
    after_sentence,
    at_rounds_speed,
    drift_sentence,
)
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


def test_what_is_measured_behind_the_rounds_predicts_the_same_plans():
    """Of a machine that has got 20 % slower, in the middle of which they took place."""
    network = documents.network(4, allreduce=documents.fit((0, 1e-6, 0.0)))
    plan = solve(make_problem(profile(), network), "wfbp")
    before_s = plan.predicted.iteration_s
    row = tables.Line("wfbp", 2, before_s, 1.1 * before_s, 1.1 * before_s, 8)
    costs, after = (profile(), network), (profile(1.2), network)
    said = after_sentence(after, [row], {"wfbp": plan}, costs)
    later, between = said.split("Between both")
    assert "worst +9.1%" in later
    assert "worst -0.0%" in between or "worst +0.0%" in between
    assert after_sentence(None, [row], {"wfbp": plan}, costs) == ""
