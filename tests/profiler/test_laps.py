"""Repetitions on all ranks as one: what ranks in turn take, and which is slower."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comm_plan.profiler.laps import Laps
from comm_plan.tests.support.harness import run_ranks
from comm_plan.transports.local import LocalTransport


def together(*of_ranks):
    """Return what every rank is told, and how much longer the slowest takes."""

    def told(transport):
        laps = Laps(transport)
        return laps.together(of_ranks[transport.rank]), laps.of_slowest

    first, *others = run_ranks(len(of_ranks), told)
    assert all(other == first for other in others)
    return first


def test_of_one_rank_it_is_the_median():
    laps = Laps(LocalTransport())
    assert laps.together([(1.0, 5.0), (2.0, 4.0), (9.0, 3.0)]) == [2.0, 4.0]
    assert laps.of_slowest == 1.0


def test_ranks_that_take_turns_take_their_mean():
    """The median of rank 0 is 1, that of rank 1 is 9, and each took 5 in the mean."""
    first, second = [1.0, 9.0, 1.0, 9.0, 1.0], [9.0, 1.0, 9.0, 1.0, 9.0]
    (seconds,), _ = together([(lap,) for lap in first], [(lap,) for lap in second])
    assert seconds == 5.0


def test_a_moment_of_other_work_does_not_count():
    laps = [(1.0,)] * 4 + [(100.0,)]
    (seconds,), _ = together(laps, laps)
    assert seconds == 1.0


@given(st.integers(5, 9), st.integers(5, 9), st.floats(1.0, 100.0))
def test_a_slower_host_is_told_apart_however_often_it_repeats(first, second, slower):
    (seconds,), longer = together([(1.0,)] * first, [(slower,)] * second)
    assert seconds * longer == pytest.approx(slower)


def test_nothing_is_as_long_on_all():
    assert Laps(LocalTransport()).of_slowest == 1.0
