"""What windows of steps say together."""

import pytest

from comm_plan.runtime.drift import PATIENCE, THRESHOLD, Drift, of_all_ranks
from comm_plan.tests.support.documents import timing


def test_waiting_for_the_rank_that_comes_last_is_no_communication():
    early = timing((1.0, 1.0, 6.0), (3.0, 6.0, 8.0), forward_s=0.5, compute_end_s=3.0)
    late = timing((4.0, 4.0, 6.0), (5.0, 6.0, 7.5), forward_s=0.8, compute_end_s=5.0)
    both = of_all_ranks([early, late])
    assert (both.backward_start_s, both.compute_end_s) == (0.8, 5.0)
    first, second = both.buckets
    assert (first.ready_s, first.start_s, first.finish_s) == (4.0, 4.0, 6.0)
    assert (second.ready_s, second.start_s, second.finish_s) == (5.0, 6.0, 7.5)


@pytest.mark.parametrize("factor", [THRESHOLD * 1.01, 1 / (THRESHOLD * 1.01)])
def test_only_a_drift_that_lasts_counts(factor):
    drift = Drift()
    for _ in range(3):
        for _ in range(PATIENCE - 1):
            assert not drift.outlasts([1.0, factor])
        assert not drift.outlasts([1.0, 1.0])
    seen = [drift.outlasts([factor]) for _ in range(PATIENCE)]
    assert seen == [False] * (PATIENCE - 1) + [True]


def test_what_was_forgotten_has_to_last_again():
    drift = Drift()
    for _ in range(PATIENCE):
        drift.outlasts([2.0])
    drift.forget()
    assert not drift.outlasts([2.0])
