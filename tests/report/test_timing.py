import pytest

from comm_plan.report.timing import timed
from comm_plan.tests.support.documents import timing

TIMING = timing(
    (0.020, 0.020, 0.026), (0.030, 0.031, 0.036), forward_s=0.010, compute_end_s=0.032
)


def test_computation_has_no_gap_and_the_rest_is_the_update():
    line = timed("t", TIMING, 0.040)
    spans = line.row("computation")
    edges = [edge for span in spans for edge in span.interval]
    assert edges == [0, 0.01, 0.01, 0.02, 0.02, 0.03, 0.03, 0.032, 0.036, 0.040]
    assert spans[-1].lane == "update"


def test_communication_is_when_the_channel_had_the_bucket():
    line = timed("t", TIMING, 0.040, ["first", "second"])
    spans = line.row("communication")
    assert [span.interval for span in spans] == [(0.020, 0.026), (0.031, 0.036)]
    assert spans[1].detail == "ready at 30.0 ms, waits 1.00 ms\nsecond"


def test_exposed_is_what_comes_after_all_computation():
    line = timed("t", TIMING, 0.040)
    assert line.exposed_s == pytest.approx(0.004)
    assert line.exposed == ((0.032, 0.036),)


def test_buckets_may_get_ready_in_another_order_than_they_are_launched():
    late_first = timing((0.030, 0.030, 0.034), (0.020, 0.034, 0.036), forward_s=0.010)
    spans = timed("t", late_first, 0.036).row("computation")
    assert [span.bucket for span in spans] == [None, 1, 0]


def test_a_round_of_local_steps_is_drawn_whole():
    """Times of an iteration are each one's, those of the timing the round's."""
    rounds = timing((0.040, 0.040, 0.046), forward_s=0.040, compute_end_s=0.040)
    line = timed("t", rounds, 0.012, exposed_s=0.0015, steps=4)
    first, update = line.row("computation")
    assert (first.name, first.lane) == ("4 local steps", "local steps")
    assert first.interval == (0, 0.040)
    assert update.interval == (0.046, pytest.approx(0.048))
    assert line.iteration_s == pytest.approx(0.048)
    assert line.exposed_s == pytest.approx(0.006)
    assert line.of == "a round of 4 steps"
    assert timed("t", TIMING, 0.040).of == "an iteration"
