"""A prediction says how far it may be off because its inputs scatter."""

import math

import pytest

from comm_plan.planner.documents import make_problem
from comm_plan.planner.uncertainty import P95_DEVIATIONS, expected_error_s
from comm_plan.plans import Sample, Spread
from comm_plan.tests.support.planning import planned


def scattered(build, *, compute=1.0, network=1.0):
    """Return documents whose 95th percentiles are so many times the medians."""
    profile = build.profile([0.1, 0.1], [1000, 1000], forward_s=0.2)
    spreads = {
        "forward_spread": Spread(p05_s=0.2, p95_s=0.2 * compute),
        "backward_spread": Spread(p05_s=0.2, p95_s=0.2 * compute),
    }
    samples = tuple(
        Sample(nbytes=n, median_s=0.1, min_s=0.1, p95_s=0.1 * network, iterations=20)
        for n in (4, 10**6)
    )
    cost = build.samples((4, 0.1)).model_copy(update={"samples": samples})
    return profile.model_copy(update=spreads), build.network(4, allreduce=cost)


@pytest.mark.parametrize(
    ("compute", "network", "added_s"),
    [
        (1.0, 1.0, 0.0),
        (1.5, 1.0, 0.2),
        (1.0, 3.0, 0.2),
        (1.5, 3.0, math.hypot(0.2, 0.2)),
    ],
)
def test_what_scatters_independently_adds_up_in_squares(
    build, compute, network, added_s
):
    documents = scattered(build, compute=compute, network=network)
    predicted = planned(*documents, solver="single").predicted
    assert predicted.iteration_s == pytest.approx(0.5)
    assert predicted.error_s == pytest.approx(added_s / P95_DEVIATIONS)


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_slower_computation_scatters_by_as_much_more(build, factor):
    profile, network = scattered(build, compute=1.5)
    slower = profile.slower(forward=factor, backward=factor)
    error_s = planned(slower, network, solver="single").predicted.error_s
    assert error_s == pytest.approx(factor * 0.2 / P95_DEVIATIONS)


def test_iterations_may_scatter_as_widely_as_a_profile_can_say(build):
    profile, network = scattered(build, compute=1e5)
    predicted = planned(profile, network, solver="single").predicted
    slower_s = 0.4 * (1e5 - 1)
    assert predicted.error_s == pytest.approx(slower_s / P95_DEVIATIONS)


def test_of_documents_that_tell_no_scatter_none_is_known(build):
    profile = build.profile([0.1], [10])
    problem = make_problem(profile, build.network(4))
    assert expected_error_s(problem, problem.solution([1])) is None
