"""Rates say how much what shares something loses, and never more than all of it."""

import time
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comm_plan.plans import Rates
from comm_plan.profiler import contention as module
from comm_plan.profiler.contention import (
    Beside,
    Messages,
    Worked,
    contention,
    pace,
    rates,
    share_of,
    slowest,
)
from comm_plan.profiler.timings import Trial
from comm_plan.tests.profiler.test_measure import Toy, chain
from comm_plan.tests.support.harness import run_ranks
from comm_plan.transports.local import LocalTransport

POSITIVE = st.floats(1e-3, 10)


def test_rates_are_of_the_means_over_the_ranks():
    """Alone one had a core for itself, and the other waited for it."""
    mean = rates([[Beside(1.0, 5.0, 0.6, 1.0)], [Beside(3.0, 3.0, 0.8, 1.0)]])
    assert (mean.compute, mean.channel) == (pytest.approx(0.5), pytest.approx(0.7))


def test_of_several_turns_the_median_counts():
    turns = [(1.0, 2.0, 0.5), (9.0, 10.0, 0.9), (1.0, 1.5, 0.7)]
    both = rates([[Beside(*turn, share=1.0) for turn in turns]])
    assert (both.compute, both.channel) == (pytest.approx(2 / 3), pytest.approx(0.7))


def test_nothing_goes_faster_beside_something_else():
    both = rates([[Beside(1.2, 1.0, 3.0, 1.0)]])
    assert (both.compute, both.channel) == (1, 1)


@pytest.mark.parametrize("share", [0.2, 0.5, 1.0])
@pytest.mark.parametrize("meeting", [0.8, 1.0])
def test_what_meetings_take_is_not_what_messages_take(share, meeting):
    """Beside a message the work goes at 0.4, between two of them faster."""
    beside_s = 1.0 / (share * 0.4 + (1 - share) * meeting)
    found = rates([[Beside(1.0, beside_s, 0.7, share)]], meeting)
    assert (found.compute, found.channel) == (pytest.approx(0.4), pytest.approx(0.7))


def test_what_stands_still_is_left_a_rate():
    found = rates([[Beside(1.0, 4.0, 1.0, 0.2)]], 1.0)
    assert 0 < found.compute < 0.02 and found.channel > 0.98


def test_beside_no_message_nothing_is_known_of_it():
    assert rates([[Beside(1.0, 1.0, 1.0, 0.0)]]) == Rates()


@given(
    st.lists(
        st.lists(
            st.builds(Beside, POSITIVE, POSITIVE, POSITIVE, st.floats(0, 1)),
            min_size=3,
            max_size=3,
        ),
        min_size=1,
        max_size=4,
    )
)
def test_two_that_share_something_lose_no_more_than_all_of_it(measured):
    both = rates(measured)
    assert both.compute + both.channel >= 1 - 1e-12
    assert both.compute <= 1
    assert both.channel <= 1


def test_one_rank_has_nothing_to_send():
    transport = LocalTransport()
    measured = contention(Trial(Toy(chain()), transport), transport, numel=1000)
    assert measured.world_size == 1
    assert measured.startup == measured.transfer == Rates()
    assert 0 < measured.codec.compute <= 1
    assert measured.compressing.startup == measured.compressing.transfer == Rates()
    assert 0 < measured.compressing.codec.compute <= 1


def test_a_rate_is_alone_over_beside(monkeypatch):
    """Half as fast; the calls beside it a quarter."""
    jobs = iter([[(1.0, 1.2), (1.2, 1.2)], [(5.0, 5.4)]])  # alone, and beside
    monkeypatch.setattr(module, "repeated", lambda *_: nullcontext(next(jobs)))
    works = iter([Worked(1.0, []), Worked(2.0, [(5.0, 7.0)])])
    ranks = LocalTransport()
    messages = Messages(lambda _: True, ranks)
    turn = module._turn({"work": lambda _: next(works)}, {"job": messages}, ranks)
    expected = Beside(1.0, 2.0, pace=0.25, share=0.2)
    assert turn["work", "job"] == pytest.approx(expected)


def test_calls_alone_go_on_as_long_as_beside():
    """For many times as long as a thread keeps a core, however short they are."""
    called_s, took_s = [], []

    def job(finished):
        called_s.append(time.perf_counter())
        time.sleep(0.002)
        took_s.append(time.perf_counter() - called_s[-1])
        return finished

    begun_s = time.perf_counter()
    alone_s = Messages(job, LocalTransport()).alone_s()
    whole_s = time.perf_counter() - begun_s
    assert called_s[-1] - called_s[0] >= module.AT_LEAST_S
    first_s, *counted_s = took_s  # the first call tells how many to make
    assert sum(counted_s) <= alone_s * len(counted_s) <= whole_s - first_s


def test_a_call_takes_as_long_as_on_the_slowest_rank():
    own = [[(1.0, 2.0), (3.0, 3.1)], [(7.0, 7.5), (8.0, 8.4)]]

    def body(transport):
        return slowest(transport, own[transport.rank])

    first, second = run_ranks(2, body)
    assert first == [(1.0, 2.0), (3.0, pytest.approx(3.4))]
    assert second == [(7.0, 8.0), (8.0, pytest.approx(8.4))]


def test_calls_count_by_how_much_of_them_was_beside():
    """The second wholly and at half the pace, of the first the last tenth, at full."""
    calls = [(0.0, 1.0), (1.0, 3.0), (3.0, 4.0)]
    assert pace(1.0, calls, [(0.9, 3.0)]) == pytest.approx((0.1 + 1.0) / 2.1)
    assert pace(1.0, calls, [(0.9, 2.0), (2.0, 3.0)]) == pytest.approx(1.1 / 2.1)


@pytest.mark.parametrize("calls", [[], [(0.0, 1.0)], [(3.0, 4.0)]])
def test_what_was_not_beside_is_not_known_to_be_slower(calls):
    assert pace(9.0, calls, [(1.0, 2.0)]) == 1


def test_the_share_of_work_that_calls_went_on_beside():
    calls = [(0.0, 1.0), (2.0, 4.0)]
    assert share_of(calls, [(0.5, 3.0)]) == pytest.approx(1.5 / 2.5)
    assert share_of(calls, [(0.0, 0.5), (3.0, 3.5)]) == pytest.approx(1.0)
    assert share_of([], [(0.0, 1.0)]) == 0


def test_passes_follow_one_another_for_longer_than_a_meeting_takes(monkeypatch):
    monkeypatch.setattr(module, "_warm_s", lambda job: 0.003)
    called = []
    codec = module._codec(LocalTransport(), 10)
    monkeypatch.setattr("torch.add", lambda *_, out: called.append(out))
    codec(False)
    assert len(called) * 0.003 >= module.CODEC_S > (len(called) - 1) * 0.003


def test_all_ranks_get_the_same_rates():
    models = [chain(), chain()]

    def body(transport):
        trial = Trial(Toy(models[transport.rank]), transport)
        return contention(trial, transport, numel=1000)

    first, second = run_ranks(2, body)
    assert first == second
    assert first.world_size == 2
