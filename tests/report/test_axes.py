import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from comm_plan import units
from comm_plan.report.page.axes import linear, logarithmic, ordinal

NUMBERS = st.floats(-1e9, 1e9).filter(lambda x: x == 0 or abs(x) > 1e-12)
POSITIVE = st.floats(1e-9, 1e12)


@given(st.lists(NUMBERS, min_size=1), st.booleans())
def test_a_linear_axis_holds_its_values(values, from_zero):
    axis = linear("x", values, str, from_zero=from_zero)
    assert all(-1e-6 <= axis.at(value) <= 1 + 1e-6 for value in values)
    assert 2 <= len(axis.ticks) <= 9


@given(st.lists(POSITIVE, min_size=1), st.sampled_from([2, 10]))
def test_a_logarithmic_axis_holds_its_values(values, base):
    axis = logarithmic("x", values, str, base=base)
    assert all(-1e-6 <= axis.at(value) <= 1 + 1e-6 for value in values)
    assert 2 <= len(axis.ticks) <= 9


def test_a_logarithmic_axis_shows_no_zero():
    axis = logarithmic("x", [0.0, 1.0, 100.0], str)
    assert (axis.low, axis.high) == (1.0, 100.0)
    assert axis.at(10.0) == pytest.approx(0.5)
    assert not axis.shows(0.0)


@given(st.integers(1, 500))
def test_an_ordinal_axis_has_room_for_all(count):
    axis = ordinal("bucket", count)
    assert 0 < axis.at(0) <= axis.at(count - 1) < 1
    assert len(axis.ticks) <= 12


@given(st.floats(1e-6, 1e4), st.floats(1e-6, 1))
@example(0.25, 0.01)
def test_neighbouring_ticks_never_read_alike(low, width):
    axis = linear(
        "time", [low, low * (1 + width)], units.round_seconds, from_zero=False
    )
    labels = [label for _, label in axis.ticks]
    assert len(set(labels)) == len(labels)
