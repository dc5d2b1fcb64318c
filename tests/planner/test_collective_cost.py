"""Measured collectives are carried to other world sizes as their closed forms say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comm_plan.collectives.registry import COLLECTIVES
from comm_plan.errors import InputError
from comm_plan.planner import Settings, make_problem, summarise
from comm_plan.planner.collective_cost import best_bus_bandwidth, collective_curve
from comm_plan.plans import CollectiveCost
from comm_plan.tests.support import documents
from comm_plan.tests.support.planning import planned

ALPHA_S, BETA = 45.26e-6, 8e-10
SIZES = np.array([4, 1000, 10**6, 10**8])


def _closed_form(collective, world_size):
    terms = COLLECTIVES[collective].terms(world_size)
    return [terms.seconds(n, ALPHA_S, BETA) for n in SIZES]


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(("there", "here"), [(4, 64), (16, 2), (8, 5)])
def test_affine_costs_are_carried_exactly_as_the_closed_forms(
    build, collective, there, here
):
    terms = COLLECTIVES[collective].terms(there)
    cost = build.fit((0, terms.messages * ALPHA_S, terms.volume * BETA))
    network = build.network(there, **{collective: cost})
    curve = collective_curve(network, collective, here)
    assert curve(SIZES) == pytest.approx(_closed_form(collective, here))


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_what_was_not_measured_is_built_from_point_to_point(build, collective):
    link = build.fit((0, ALPHA_S, BETA))
    network = build.network(4, point_to_point=link)
    network = network.model_copy(update={"collectives": {"point_to_point": link}})
    curve = collective_curve(network, collective, 16)
    assert curve(SIZES) == pytest.approx(_closed_form(collective, 16))


def test_a_protocol_switch_moves_with_the_messages(build):
    network = build.network(2, allreduce=build.fit((0, 1.0, 0.0), (100, 5.0, 0.0)))
    curve = collective_curve(network, "allreduce", 4)
    # A ring of 2 sends messages of n/2, one of 4 sends n/4: 50 bytes are n = 200.
    assert curve([199, 200]) == pytest.approx([3.0, 15.0])


def test_at_the_measured_world_size_nothing_is_carried(build):
    network = build.network(1, allreduce=build.fit((0, 1e-3, 1e-9)))
    assert collective_curve(network, "allreduce", 1).affine == (1e-3, 1e-9)


def test_one_rank_communicates_for_nothing(build):
    curve = collective_curve(build.network(4), "allreduce", 1)
    assert np.all(curve(SIZES) == 0)


def test_point_to_point_of_one_rank_tells_nothing_of_more(build):
    """One rank has no other to send to, whatever a document says."""
    link = build.fit((0, ALPHA_S, BETA))
    network = build.network(1).model_copy(
        update={"collectives": {"point_to_point": link}}
    )
    with pytest.raises(InputError, match="measured with 1 rank"):
        planned(build.profile([1e-3], [100]), network, "optimal", world_size=4)


def test_a_network_of_one_rank_is_not_carried(build):
    with pytest.raises(InputError, match="measured with 1 rank"):
        collective_curve(build.network(1), "allreduce", 8)


def test_a_missing_collective_names_the_remedy(build):
    with pytest.raises(InputError, match="no cost for allgather: benchmark it"):
        collective_curve(build.network(4), "allgather", 4)


def test_bus_bandwidth_is_the_best_of_all_collectives_and_sizes(build):
    network = build.network(
        4,
        allreduce=build.samples((10**6, 0.02), (10**7, 0.1), (10**8, 1.6)),
        broadcast=build.fit((0, 0.0, 1 / 90e6)),
    )
    assert best_bus_bandwidth(network) == pytest.approx(1.5 * 10**7 / 0.1)


LINE = 125e6
BURST_NBYTES = 2**17
SLOW = CollectiveCost.affine(0.0, 1e-6)
POWERS = [2**power for power in range(12, 27)]


def _through_a_token_bucket(nbytes):
    return 1e-4 + max(0, nbytes - BURST_NBYTES) / LINE


def test_a_burst_does_not_make_the_link_look_faster(build):
    bursts = build.samples(*((n, _through_a_token_bucket(n)) for n in POWERS))
    network = build.network(4, allreduce=SLOW, point_to_point=bursts)
    assert best_bus_bandwidth(network) == pytest.approx(LINE, rel=0.02)


def test_the_largest_sample_counts_where_none_is_long(build):
    bursts = build.samples((2**18, 1e-3), (2**20, 8e-3))
    network = build.network(4, allreduce=SLOW, point_to_point=bursts)
    assert best_bus_bandwidth(network) == pytest.approx(2**20 / 8e-3)


def with_samples(largest_nbytes, rate):
    """Return a cost of samples at ``rate`` bytes/s, and a fit ten times as fast."""
    points = (largest_nbytes // 2, largest_nbytes)
    samples = documents.samples(*((n, n / rate) for n in points)).samples
    return documents.fit((0, 0.0, 0.1 / rate)).model_copy(update={"samples": samples})


@pytest.mark.parametrize(("largest_nbytes", "times"), [(2**13, 1), (2**24, 10)])
def test_a_fit_tells_a_links_speed_only_beyond_long_samples(
    build, largest_nbytes, times
):
    cost = with_samples(largest_nbytes, LINE)
    network = build.network(4, allreduce=SLOW, point_to_point=cost)
    assert best_bus_bandwidth(network) == pytest.approx(times * LINE)


def solved_for_a_link(network, bytes_per_s):
    profile = documents.profile([1e-3], [50_000])
    return planned(profile, network, link_bytes_per_s=bytes_per_s)


def test_a_link_may_be_slower_than_what_a_fit_expects_of_longer_messages(build):
    network = build.network(2, allreduce=with_samples(2**13, LINE))
    predicted = solved_for_a_link(network, LINE).predicted
    assert (
        predicted.lower_bound_s
        > solved_for_a_link(network, None).predicted.lower_bound_s
    )


def test_a_link_slower_than_its_longest_messages_is_refused(build):
    network = build.network(2, allreduce=with_samples(2**13, LINE))
    with pytest.raises(InputError, match=r"8 Mbit/s is slower than .* were, 1 Gbit/s"):
        solved_for_a_link(network, 1e6)


def test_no_dense_plan_is_predicted_below_the_bound_even_with_bursts(build):
    bursts = build.samples(*((n, _through_a_token_bucket(n)) for n in POWERS))
    network = build.network(2, allreduce=bursts)
    profile = build.profile([1e-3] * 20, [50_000] * 20)
    for solver in ("wfbp", "single", "threshold", "optimal"):
        predicted = planned(profile, network, solver).predicted
        assert predicted.iteration_s >= predicted.lower_bound_s


@pytest.mark.parametrize("algorithm", COLLECTIVES["allreduce"].algorithms)
@pytest.mark.parametrize("measured", ["allreduce", "point_to_point"])
@given(
    there=st.integers(2, 64),
    here=st.integers(1, 64),
    alpha_s=st.floats(0, 1e-3),
    switch_nbytes=st.integers(1, 10**6),
)
def test_no_dense_plan_beats_the_bound_however_costs_are_carried(
    algorithm, measured, there, here, alpha_s, switch_nbytes
):
    cost = documents.fit((0, alpha_s, 1e-8), (switch_nbytes, 2 * alpha_s, 1e-9))
    network = documents.network(there)
    network = network.model_copy(update={"collectives": {measured: cost}})
    profile = documents.profile([1e-4] * 5, [50_000, 10, 900_000, 3, 70_000])
    settings = Settings(world_size=here, algorithm=algorithm)
    summary = summarise(make_problem(profile, network, settings))
    assert summary.rows[0].iteration_s >= summary.lower_bound_s * (1 - 1e-9)


def test_a_plan_for_another_world_size_says_that_it_extrapolates(build):
    profile, network = build.profile([1e-3] * 3, [1000] * 3), build.network(4)
    assert planned(profile, network).predicted.extrapolated_from is None
    plan = planned(profile, network, world_size=64)
    assert plan.world_size == 64
    assert plan.predicted.extrapolated_from == 4


def test_an_algorithm_carries_the_collectives_that_have_it(build):
    """Tree: 2 lg P messages and volumes; from 4 to 16 ranks twice as much of both."""
    network = build.network(4, allgather=build.fit((0, 1e-3, 1e-8)))
    tree = collective_curve(network, "allreduce", 16, "binary_tree")
    assert tree.affine == pytest.approx((2e-3, 2e-8))
    ring = collective_curve(network, "allgather", 16)
    assert (
        collective_curve(network, "allgather", 16, "binary_tree").affine == ring.affine
    )
    assert ring.affine == pytest.approx((5e-3, 1.25e-8))
