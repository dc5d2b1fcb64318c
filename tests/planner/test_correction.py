"""Corrected costs predict what was measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comm_plan.errors import InputError
from comm_plan.planner import Settings, make_problem, solve
from comm_plan.planner.correction import Correction
from comm_plan.plans import (
    BucketTiming,
    CollectiveCost,
    Fit,
    Network,
    Sample,
    Segment,
    Timing,
)
from comm_plan.tests.support.documents import profile

FACTORS = st.floats(0.1, 10.0)


def network():
    fit = Fit(segments=(Segment(from_nbytes=0, alpha_s=1e-3, beta_s_per_byte=1e-8),))
    samples = tuple(
        Sample(nbytes=n, median_s=t, min_s=t, p95_s=2 * t, iterations=5)
        for n, t in ((4, 1e-3), (4_000, 2e-3), (4_000_000, 4e-2))
    )
    cost = CollectiveCost(samples=samples, fit=fit)
    return Network(backend="gloo", world_size=4, collectives={"allreduce": cost})


def model():
    return profile([0.01, 0.02, 0.005], [1000, 100_000, 50_000], forward_s=0.03)


def planned(profile, network, solver="wfbp"):
    return solve(make_problem(profile, network, Settings(tolerance=0.0)), solver)


def stretched(timing, forward, backward, channel):
    """Return the times of the same plan on slower computation and network."""
    start_s = timing.backward_start_s
    free_s, buckets = 0.0, []
    for bucket in timing.buckets:
        ready_s = forward * start_s + backward * (bucket.ready_s - start_s)
        busy_s = channel * (bucket.finish_s - bucket.start_s)
        begin_s = max(free_s, ready_s)
        free_s = begin_s + busy_s
        buckets.append(BucketTiming(ready_s=ready_s, start_s=begin_s, finish_s=free_s))
    return Timing(
        backward_start_s=forward * start_s,
        compute_end_s=forward * start_s + backward * (timing.compute_end_s - start_s),
        buckets=tuple(buckets),
    )


@given(FACTORS, FACTORS, FACTORS)
def test_the_same_plan_is_predicted_as_it_was_measured(forward, backward, channel):
    plan = planned(model(), network())
    measured = stretched(plan.predicted.timing, forward, backward, channel)
    correction = Correction.of(plan, measured)
    again = planned(correction.profile(model()), correction.network(network()))
    for was, now in zip(measured.buckets, again.predicted.timing.buckets, strict=True):
        assert now.ready_s == pytest.approx(was.ready_s)
        assert now.finish_s == pytest.approx(was.finish_s)


def test_a_run_as_predicted_changes_nothing():
    plan = planned(model(), network())
    correction = Correction.of(plan, plan.predicted.timing)
    again = planned(correction.profile(model()), correction.network(network()))
    assert again.predicted.iteration_s == pytest.approx(plan.predicted.iteration_s)


def test_collectives_that_are_not_used_get_slower_with_the_others():
    plan = planned(model(), network())
    cost = network().collectives["allreduce"]
    both = network().model_copy(
        update={"collectives": {"allreduce": cost, "allgather": cost}}
    )
    measured = stretched(plan.predicted.timing, 1.0, 1.0, 3.0)
    corrected = Correction.of(plan, measured).network(both)
    for now in corrected.collectives.values():
        assert now.samples[0].median_s == pytest.approx(3 * cost.samples[0].median_s)


def test_a_plan_without_a_prediction_is_refused():
    plan = planned(model(), network())
    with pytest.raises(InputError, match="solve it again"):
        Correction.of(
            plan.model_copy(update={"predicted": None}), plan.predicted.timing
        )
