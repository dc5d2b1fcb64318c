import pytest
from hypothesis import given
from hypothesis import strategies as st

from comm_plan.report.timeline import ROWS, Span, Timeline, horizon_s, total_s

TIMES = st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted)
LANES = st.sampled_from([lane for lanes in ROWS.values() for lane in lanes])
SPANS = st.builds(lambda lane, times: Span("x", lane, *map(float, times)), LANES, TIMES)


def test_exposed_is_communication_that_nothing_hides(timelines):
    assert timelines[0].exposed == ((0.030, 0.036),)
    assert timelines[1].exposed == ((0.031, 0.0325),)


@given(st.lists(SPANS, max_size=8))
def test_exposed_agrees_with_counting_instants(spans):
    timeline = Timeline("t", tuple(spans), iteration_s=40.0, exposed_s=0.0)

    def busy(row, second):
        return any(
            s.start_s <= second and second + 1 <= s.end_s for s in timeline.row(row)
        )

    alone = [s for s in range(40) if busy("communication", s)]
    alone = [s for s in alone if not busy("computation", s)]
    assert total_s(timeline.exposed) == len(alone)


@given(st.lists(SPANS, max_size=8))
def test_every_span_is_on_exactly_one_row_in_time_order(spans):
    timeline = Timeline("t", tuple(spans), iteration_s=40.0, exposed_s=0.0)
    rows = [timeline.row(row) for row in ROWS]
    assert sum(len(row) for row in rows) == len(spans)
    for row in rows:
        assert [s.start_s for s in row] == sorted(s.start_s for s in row)


def test_all_timelines_fit_the_common_axis(timelines):
    assert horizon_s(timelines) == pytest.approx(0.040)
