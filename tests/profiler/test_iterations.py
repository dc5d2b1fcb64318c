"""Iterations in windows: how many, and that one bad window spoils nothing."""

import numpy as np
import pytest

from comm_plan.profiler import iterations as module
from comm_plan.profiler.iterations import WINDOWS, Iterations, Window
from comm_plan.profiler.timings import Timings, joined
from comm_plan.tests.profiler.test_measure import Toy, chain
from comm_plan.tests.support.harness import run_ranks
from comm_plan.transports.local import LocalTransport

PART_S = 1.0
"""Of forward, of backward and of the update."""


def window(waits_s, rows=4, part_s=PART_S):
    parts = np.full(rows, part_s)
    timings = Timings(
        forward_s=parts,
        backward_s=parts,
        update_s=parts,
        total_s=3 * parts + 0.5 + waits_s,
        host_backward_s=parts,
        ready_s=np.full((rows, 1), PART_S),
        orders=((0,),) * rows,
    )
    return Window([timings], meeting_s=0.5)


@pytest.fixture
def timed():
    """What makes iterations of a toy."""

    def make(iterations=None, warmup=2, progress=None):
        ranks = LocalTransport()
        return Iterations(Toy(chain()), ranks, iterations, warmup, progress)

    return make


def numbers(counted):
    """Return how many iterations each window of ``counted`` has."""
    for _ in range(WINDOWS):
        counted.window()
    return [len(each.of_ranks[0].total_s) for each in counted.windows]


def test_as_many_are_timed_as_were_asked_for(timed):
    assert numbers(timed(22)) == [5, 5, 6, 6]


def test_short_ones_are_many(timed):
    assert sum(numbers(timed())) == module.ITERATIONS[1]


def test_long_ones_are_few(timed, monkeypatch):
    monkeypatch.setattr(module, "LONG_ENOUGH_S", 0.0)
    assert numbers(timed()) == [module.ITERATIONS[0] // WINDOWS] * WINDOWS


def test_the_warm_up_comes_once(timed):
    seen = []
    counted = timed(20, warmup=3, progress=lambda *step: seen.append(step))
    numbers(counted)
    assert seen == [(done, 23) for done in range(1, 24)]


def test_one_window_of_long_waits_does_not_count(timed):
    counted = timed()
    counted.windows += [window(0.01), window(9.0), window(0.03)]
    assert counted.waiting_s == pytest.approx(0.03)


def test_parts_and_waiting_and_meeting_are_all_of_an_iteration(timed):
    """Whatever the windows have in common."""
    counted = timed()
    counted.windows += [window(0.2, 3), window(0.0, 4, 2.0), window(0.7, 4, 1.5)]
    timings = joined([each.of_ranks[0] for each in counted.windows])
    names = ("forward_s", "backward_s", "update_s")
    parts_s = sum(np.median(getattr(timings, name)) for name in names)
    whole_s = parts_s + counted.waiting_s + 0.5
    assert whole_s == pytest.approx(np.median(timings.total_s))


def test_the_iterations_of_all_windows_count(timed):
    counted = timed()
    counted.windows += [window(0.0, rows) for rows in (2, 3, 4)]
    (of_rank,) = counted.of_ranks
    assert len(of_rank.total_s) == len(of_rank.orders) == 9
    assert of_rank.ready_s.shape == (9, 1)


def test_joined_iterations_follow_one_another():
    first, second = (window(waits_s).of_ranks[0] for waits_s in (0.0, 1.0))
    assert joined([first, second]).total_s.tolist() == [3.5] * 4 + [4.5] * 4


def test_all_ranks_time_as_many():
    def body(ranks):
        return numbers(Iterations(Toy(chain()), ranks, None, 2, None))

    first, second = run_ranks(2, body)
    assert first == second
