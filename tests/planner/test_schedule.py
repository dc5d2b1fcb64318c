"""Claims about the timeline and its lower bound."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comm_plan.planner.schedule import BucketTimes, Compute, lower_bound_s, simulate
from comm_plan.plans import Contention, PhaseRates, Rates
from comm_plan.tests.support import documents


def _times(communicate, compress=0.0, decompress=0.0, startup=0.0):
    communicate = np.asarray(communicate, dtype=float)
    return BucketTimes(
        communicate * 0 + compress,
        communicate * 0 + startup,
        communicate - startup,
        communicate * 0 + decompress,
    )


COMPUTE = Compute(np.array([1.0, 2.0, 4.0]), backward_end_s=4.5, update_s=0.5)


def test_zero_cost_communication_exposes_nothing():
    timeline = simulate(COMPUTE, np.array([1, 2, 3]), _times([0, 0, 0]))
    assert timeline.exposed_s == 0
    assert timeline.iteration_s == 5.0


def test_buckets_pass_the_channel_first_in_first_out():
    timeline = simulate(COMPUTE, np.array([1, 2, 3]), _times([3, 1, 1]))
    assert timeline.start_s.tolist() == [1, 4, 5]
    assert timeline.finish_s.tolist() == [4, 5, 6]
    assert timeline.iteration_s == 6.5
    assert timeline.exposed_s == 1.5


def test_a_merged_bucket_waits_for_its_last_gradient():
    timeline = simulate(COMPUTE, np.array([2, 3]), _times([1, 1]))
    assert timeline.ready_s.tolist() == [2, 4]


def test_compression_delays_the_rest_of_backward():
    timeline = simulate(COMPUTE, np.array([1, 3]), _times([0, 1], compress=0.25))
    assert timeline.ready_s.tolist() == [1.25, 4.5]
    assert timeline.compute_end_s == 5.0
    assert timeline.iteration_s == 6.0
    assert timeline.exposed_s == 0.5


def test_decompression_holds_the_channel_but_is_not_communication():
    timeline = simulate(COMPUTE, np.array([1, 3]), _times([1, 1], decompress=2))
    assert timeline.finish_s.tolist() == [4, 7]
    assert timeline.exposed_s == 7 - 6


def _contention(**rates):
    pairs = {kind: Rates(compute=a, channel=b) for kind, (a, b) in rates.items()}
    return Contention(world_size=2, **pairs)


def test_what_goes_on_beside_each_other_is_slowed_at_the_measured_rates():
    contention = _contention(transfer=(0.75, 0.5))
    compute = Compute(np.array([1.0, 4.0]), 5.0, 0.0, contention=contention)
    timeline = simulate(compute, np.array([1, 2]), _times([1, 0]))
    assert timeline.start_s.tolist() == [1.0, 4.5]
    assert timeline.finish_s.tolist() == [3.0, 4.5]  # twice as long
    assert timeline.slowdown[0] == 2
    assert timeline.compute_end_s == 5.5  # a quarter of two seconds is lost


def test_a_gradient_that_gets_ready_beside_a_message_is_late_by_what_was_lost_so_far():
    contention = _contention(transfer=(0.5, 1.0))
    compute = Compute(np.array([1.0, 3.0, 20.0]), 20.0, 0.0, contention=contention)
    timeline = simulate(compute, np.array([1, 2, 3]), _times([10, 1, 1]))
    assert timeline.start_s.tolist() == [1.0, 11.0, 25.5]
    assert timeline.ready_s.tolist() == [1.0, 5.0, 25.5]  # at half the pace from 1 on


def test_beside_compression_other_rates_count_by_its_share():
    """Of two seconds of backward and two of compression."""
    compressing = PhaseRates(transfer=Rates(compute=0.5, channel=0.5))
    contention = Contention(world_size=2, compressing=compressing)
    compute = Compute(
        np.array([2.0, 3.0]), 3.0, 0.0, contention=contention, backward_start_s=1.0
    )
    rates = compute.rates_beside(2.0).transfer
    assert rates.compute == pytest.approx(2 / 3)  # one second in one, one in two
    assert rates.channel == pytest.approx(2 / 3)  # in two of three seconds the half
    assert compute.rates_beside(0.0) == contention
    timeline = simulate(compute, np.array([1, 2]), _times([1, 1], compress=1))
    assert timeline.start_s.tolist() == [3.0, pytest.approx(5.5)]
    assert timeline.finish_s.tolist() == [pytest.approx(4.5), pytest.approx(6.5)]
    assert timeline.compute_end_s == pytest.approx(5.5)  # half a second is lost


def test_after_the_computation_communication_is_as_fast_as_alone():
    contention = _contention(transfer=(0.5, 0.5))
    compute = Compute(np.array([1.0, 4.0]), 5.0, 0.0, contention=contention)
    timeline = simulate(compute, np.array([2]), _times([3]))
    # One second of computation is left: both take 2 s, and 2 s of the message remain.
    assert timeline.finish_s.tolist() == [4.0 + 2.0 + 2.0]
    assert timeline.compute_end_s == 6.0


def test_a_bucket_sent_at_once_is_ready_no_later_by_rounding():
    contention = Contention(
        world_size=2,
        startup=Rates(compute=0.847, channel=0.924),
        transfer=Rates(compute=0.53, channel=0.684),
        codec=Rates(compute=0.591, channel=0.662),
    )
    ready_s = np.array([0.051000000000000004, 0.1184])
    compute = Compute(
        ready_s, backward_end_s=0.1284, update_s=0.0, contention=contention
    )
    times = BucketTimes(
        compress_s=np.zeros(2),
        startup_s=np.array([0.0116, 0.0246]),
        transfer_s=np.array([0.0164, 0.0252]),
        codec_s=np.array([0.0101, 0.0153]),
    )
    schedule = simulate(compute, np.array([1, 2]), times)
    assert (schedule.ready_s <= schedule.start_s).all()


def test_compression_that_is_still_to_come_is_computation_too():
    contention = _contention(transfer=(0.5, 0.5))
    compute = Compute(np.array([1.0, 2.0]), 2.0, 0.0, contention=contention)
    timeline = simulate(compute, np.array([1, 2]), _times([4, 0], compress=[0, 3]))
    # 4 s of computation are left, as long as the message: both take twice as long.
    assert timeline.finish_s[0] == 1.0 + 8.0
    assert timeline.compute_end_s == 9.0


def test_two_that_share_everything_take_as_long_as_one_after_the_other():
    even = (0.5, 0.5)
    contention = _contention(startup=even, transfer=even, codec=even)
    compute = Compute(np.array([1.0, 4.0]), 9.0, 0.0, contention=contention)
    timeline = simulate(compute, np.array([1, 2]), _times([1, 2], startup=0.5))
    assert timeline.iteration_s == 9.0 + 3.0


@given(st.data())
def test_exposed_communication_is_never_less_than_none(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    contention = _contention(startup=(0.9, 0.6), transfer=(0.8, 0.7), codec=(0.5, 0.5))
    compute = replace(COMPUTE, contention=contention)
    times = BucketTimes(*rng.exponential(1.0, (4, 3)))
    assert simulate(compute, np.array([1, 2, 3]), times).exposed_s >= 0


@given(st.data())
def test_contention_at_rate_one_changes_nothing(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    stops = np.array([1, 2, 3])
    times = BucketTimes(*rng.exponential(1.0, (4, 3)))
    alone = simulate(COMPUTE, stops, times)
    beside = simulate(replace(COMPUTE, contention=_contention()), stops, times)
    assert beside.finish_s == pytest.approx(alone.finish_s)
    assert beside.iteration_s == pytest.approx(alone.iteration_s)


@given(st.data())
def test_lower_bound_is_never_above_an_iteration(build, data):
    from comm_plan.tests.support.planning import planned

    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    tensors = data.draw(st.integers(1, 20))
    profile = build.profile(
        rng.exponential(1e-2, tensors).tolist(),
        rng.integers(1, 10**6, tensors).tolist(),
        forward_s=rng.exponential(1e-2),
        update_s=rng.exponential(1e-3),
    )
    sizes = np.unique(rng.integers(1, 10**7, 6))
    cost = build.samples(*((int(n), rng.exponential(1e-2) + 1e-6) for n in sizes))
    network = build.network(int(rng.integers(2, 20)), allreduce=cost)
    world_size = data.draw(st.sampled_from([None, 2, 33]))
    predicted = planned(profile, network, world_size=world_size).predicted
    assert predicted.lower_bound_s <= predicted.iteration_s * (1 + 1e-9)
    for seconds in predicted.baselines.values():
        assert predicted.lower_bound_s <= seconds * (1 + 1e-9)


def test_lower_bound_is_reached_by_one_tensor_on_a_link_without_start_up():
    compute = Compute(np.array([2.0]), backward_end_s=2.0, update_s=1.0)
    bound = lower_bound_s(compute, np.array([1000]), 4, link_bytes_per_s=1500.0)
    assert bound == pytest.approx(2.0 + 1.5 * 1000 / 1500 + 1.0)


def test_lower_bound_of_one_rank_is_the_computation_whatever_its_link():
    bound = lower_bound_s(COMPUTE, np.array([10, 10, 10]), 1, link_bytes_per_s=0.0)
    assert bound == COMPUTE.backward_end_s + COMPUTE.update_s


def test_lower_bound_on_an_infinite_link_is_the_computation():
    bound = lower_bound_s(COMPUTE, np.array([10, 10, 10]), 8, float("inf"))
    assert bound == COMPUTE.backward_end_s + COMPUTE.update_s


def test_on_cpus_no_bucket_waits_for_a_wake_up_after_backward():
    ready_s = np.array([1.0, 3.5, 4.0])
    alone = Compute(ready_s, backward_end_s=4.25, update_s=0.0, handoff_s=1.0)
    assert alone.handoffs_s.tolist() == [1.0, 1.0, 1.0]
    taken_over = replace(alone, taken_over=True)
    assert taken_over.handoffs_s.tolist() == [1.0, 0.75, 0.25]


@pytest.mark.parametrize(("device", "taken_over"), [("cpu", True), ("cuda", False)])
def test_who_waits_takes_over_on_cpus_only(device, taken_over):
    profile = documents.profile([1.0], [1])
    device = profile.device.model_copy(update={"type": device})
    profile = profile.model_copy(update={"device": device})
    assert Compute.of(profile, 2).taken_over == taken_over
