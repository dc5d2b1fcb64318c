import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from comm_plan import units


@pytest.mark.parametrize(
    ("value_s", "text"),
    [
        (0.0, "0 s"),
        (3.7e-12, "3.70 ps"),
        (2.5e-9, "2.50 ns"),
        (1e-6, "1.00 us"),
        (62e-6, "62.0 us"),
        (0.0123, "12.3 ms"),
        (0.99999, "1.00 s"),
        (123.4, "123 s"),
    ],
)
def test_seconds_take_the_unit_that_fits(value_s, text):
    assert units.seconds(value_s) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (512, "512 B"), (102e6, "102 MB"), (1e9, "1.00 GB")],
)
def test_bytes_are_decimal(value, text):
    assert units.nbytes(value) == text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.025, 1, "+2.5%"),
        (-0.1234, 1, "-12.3%"),
        (-0.0004, 1, "+0.0%"),
        (-0.006, 0, "-1%"),
        (-0.004, 0, "+0%"),
        (1.5, 0, "+150%"),
    ],
)
def test_a_deviation_has_a_sign_and_nothing_is_not_negative(value, digits, text):
    assert units.deviation(value, digits) == text


@given(st.floats(1e-6, 1e3), st.integers(2, 20))
@example(1.2, 5)
def test_ticks_are_round_and_fit(end_s, at_most):
    found = [time_s for time_s, _ in units.ticks(end_s, at_most)]
    assert found[0] == 0
    assert 1 <= len(found) - 1 <= at_most
    assert found[-1] <= end_s * (1 + 1e-6)


def test_ticks_are_labelled_without_needless_digits():
    assert [label for _, label in units.ticks(0.11, 4)] == [
        "0 s", "50 ms", "100 ms",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e9, "1 Gbit/s"),
        (2.5e9, "2.5 Gbit/s"),
        (1e8, "100 Mbit/s"),
        (64e3, "64 kbit/s"),
    ],
)
def test_links_have_speeds_in_bits(value, text):
    assert units.bits_per_s(value) == text
