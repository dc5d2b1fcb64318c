"""Plans with local steps: an exchange after some iterations, and what is refused."""

from __future__ import annotations

import pytest

from comm_plan.errors import InputError
from comm_plan.planner import (
    BASELINES,
    SOLVERS,
    Settings,
    make_problem,
    replan,
    solve,
    summarise,
)
from comm_plan.planner.predict import predict
from comm_plan.plans import LocalSteps, Spread
from comm_plan.plans.profile import Contention, PhaseRates, Rates
from comm_plan.tests.planner.test_predict import model, network
from comm_plan.tests.planner.test_rows import problem as with_rows

EVERY = 4


def settings(every=EVERY, **others):
    return Settings(local_steps=LocalSteps(every=every), **others)


def alone_s(profile):
    return profile.forward_s + profile.backward_s + profile.update_s


@pytest.mark.parametrize("beta", [1e-9, 1e-7])
def test_an_iteration_is_the_computation_and_its_share_of_an_exchange(beta):
    """All of which is exposed: one message, as nothing is gained by two."""
    profile, ranks = model(3), network(beta)
    plan = solve(make_problem(profile, ranks, settings()), "optimal")
    (bucket,) = plan.buckets
    whole = make_problem(profile, ranks).prices.option(bucket.compressor, "allreduce")
    exchange_s = float(whole.communicate_s(0, len(profile.tensors)))
    predicted = plan.predicted
    expected = alone_s(profile) + exchange_s / EVERY
    assert predicted.iteration_s == pytest.approx(expected)
    assert predicted.exposed_s == pytest.approx(exchange_s / EVERY)
    assert predicted.timing.compute_end_s == pytest.approx(EVERY * alone_s(profile))
    assert plan.local_steps == LocalSteps(every=EVERY)
    assert "another algorithm" in plan.evidence[0]


def test_the_ranks_wait_for_each_other_once_a_round():
    profile, ranks = model(3), network(1e-8)
    waiting = profile.model_copy(update={"waiting_s": 0.25})
    one, other = (
        solve(make_problem(each, ranks, settings()), "optimal").predicted.iteration_s
        for each in (profile, waiting)
    )
    assert other - one == pytest.approx(0.25 / EVERY)


def test_messages_of_a_round_go_on_beside_compression_only():
    compressing = PhaseRates(transfer=Rates(compute=0.5, channel=0.5))
    contention = Contention(world_size=2, compressing=compressing)
    profile = model(3).model_copy(update={"contention": contention})
    compute = make_problem(profile, network(1e-7), settings()).compute
    assert compute.rates_beside(1.0).transfer == compressing.transfer
    assert compute.backward_start_s == compute.backward_end_s


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_solver_can_and_is_predicted_so_again(solver):
    profile, ranks = model(3), network(1e-7)
    plan = solve(make_problem(profile, ranks, settings()), solver)
    assert plan.local_steps is not None
    again = predict(plan, profile, ranks)
    assert again.predicted.iteration_s == pytest.approx(plan.predicted.iteration_s)
    assert again.local_steps == plan.local_steps
    solved_again = replan(plan, profile, ranks, plan.world_size)
    assert solved_again.buckets == plan.buckets
    assert solved_again.local_steps == plan.local_steps


def test_baselines_average_every_gradient():
    profile, ranks = model(3), network(1e-7)
    summary = summarise(make_problem(profile, ranks, settings()), ["optimal"])
    without = summarise(make_problem(profile, ranks), ["optimal"])
    plain = {row.solver: row.iteration_s for row in summary.rows if row.is_plain}
    assert plain == {row.solver: row.iteration_s for row in without.rows}
    assert set(plain) == set(BASELINES)
    assert summary.lower_bound_s == without.lower_bound_s
    assert summary.alone_s == without.alone_s
    row = summary.row("optimal")
    assert row.label == "optimal, 4 local steps"
    assert row is summary.rows[0]
    assert summary.plan("optimal").predicted.baselines == plain
    assert summary.verdict.startswith("meet less often: optimal, 4 local steps takes")
    assert "less time" in summary.judgement("optimal")


def test_a_forced_compressor_is_named_with_them():
    posed = make_problem(model(3), network(1e-7), settings(compressor="fp16"))
    assert summarise(posed, ["optimal"]).rows[0].label == "optimal, fp16, 4 local steps"


def test_longer_rounds_are_faster():
    profile, ranks = model(3), network(1e-7)
    times = [
        solve(make_problem(profile, ranks, settings(every)), "optimal")
        for every in (2, 4, 8, 1000)
    ]
    seconds = [plan.predicted.iteration_s for plan in times]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[-1] == pytest.approx(alone_s(profile), rel=0.05)


def test_expected_errors_are_of_an_iteration():
    """Computation that scatters does so as without local steps."""
    profile = model(3)
    changes = {
        "forward_spread": Spread(p05_s=0, p95_s=2 * profile.forward_s),
        "backward_spread": Spread(p05_s=0, p95_s=2 * profile.backward_s),
    }
    scattering = profile.model_copy(update=changes)
    errors = [
        solve(make_problem(scattering, network(1e-12), asked)).predicted.error_s
        for asked in (Settings(), settings(8))
    ]
    assert errors[0] > 0
    assert errors[1] == pytest.approx(errors[0], rel=0.05)


def test_what_cannot_be_planned_is_refused(build):
    with pytest.raises(InputError, match="momentum"):
        settings(momentum_correction=True)
    with pytest.raises(InputError, match="sparse=False"):
        with_rows(build, local_steps=LocalSteps(every=2))
