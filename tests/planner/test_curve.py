"""Cost curves are monotone and keep what was measured."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comm_plan.planner.curve import affine, from_points, from_segments, measured
from comm_plan.plans import Segment

SIZES = st.lists(st.integers(0, 10**8), min_size=1, max_size=12, unique=True).map(
    sorted
)


@st.composite
def _curves(draw):
    if draw(st.booleans()):
        sizes = draw(SIZES)
        seconds = st.floats(1e-6, 10)
        times = draw(st.lists(seconds, min_size=len(sizes), max_size=len(sizes)))
        return from_points(sizes, times)
    starts = sorted({0, *draw(SIZES)})
    return from_segments(
        Segment(
            from_nbytes=start,
            alpha_s=draw(st.floats(0, 1)),
            beta_s_per_byte=draw(st.floats(0, 1e-6)),
        )
        for start in starts
    )


@given(_curves(), SIZES)
def test_no_message_is_cheaper_than_a_smaller_one(curve, sizes):
    seconds = curve(np.concatenate([sizes, curve.starts, curve.starts * 0.999]))
    order = np.argsort(np.concatenate([sizes, curve.starts, curve.starts * 0.999]))
    assert np.all(np.diff(seconds[order]) >= -1e-9 * seconds.max())
    assert np.all(seconds >= 0)


@given(_curves(), SIZES)
def test_no_message_is_faster_than_the_best_rate(curve, sizes):
    sizes = np.array(sizes, dtype=float)
    assert np.all(sizes / curve.best_rate <= curve(sizes) * (1 + 1e-6) + 1e-9)


def test_monotone_samples_are_kept_and_joined_by_lines(build):
    curve = measured(build.samples((4, 0.56e-3), (256, 5.3e-3), (262144, 6.1e-3)))
    assert curve([4, 256, 262144]) == pytest.approx([0.56e-3, 5.3e-3, 6.1e-3])
    assert float(curve(130)) == pytest.approx((0.56e-3 + 5.3e-3) / 2)


def test_samples_rule_where_there_is_a_fit_too(build):
    both = build.samples((1000, 1.0), (2000, 3.0)).model_copy(
        update={"fit": build.fit((0, 0.5, 0.01)).fit}
    )
    curve = measured(both)
    assert curve([1000, 1500, 2000]) == pytest.approx([1.0, 2.0, 3.0])
    assert float(curve(0)) == pytest.approx(0.5)  # the fit's start-up
    assert float(curve(2100)) == pytest.approx(4.0)  # the fit's slope


def test_a_slow_outlier_does_not_stand():
    curve = from_points([10, 20, 30, 40], [1.0, 100.0, 1.0, 2.0])
    pooled = (100.0 * 1.0 * 2.0) ** (1 / 3)
    assert curve([10, 20, 30, 40]) == pytest.approx([1.0, pooled, pooled, pooled])


def test_beyond_the_last_sample_its_slope_goes_on():
    curve = from_points([100, 200], [1.0, 3.0])
    assert float(curve(300)) == pytest.approx(5.0)


def test_a_flat_end_is_not_free_beyond_the_last_sample():
    curve = from_points([100, 200], [1.0, 1.0])
    assert float(curve(400)) == pytest.approx(2.0)


def test_nor_is_what_a_fit_takes_for_flat(build):
    flat = build.fit((0, 2e-4, 0.0))
    cost = build.samples((4, 2e-4), (4096, 2.01e-4)).model_copy(
        update={"fit": flat.fit}
    )
    assert float(measured(cost)(10**8)) > 0.01


def test_one_segment_without_samples_is_affine(build):
    assert measured(build.fit((0, 1e-3, 2e-9))).affine == (1e-3, 2e-9)
    assert measured(build.fit((0, 1e-3, 2e-9), (10, 2e-3, 2e-9))).affine is None


def test_a_segment_that_starts_lower_is_raised(build):
    curve = measured(build.fit((0, 1.0, 0.1), (10, 0.0, 0.1)))
    assert curve([9, 10, 15, 20, 30]) == pytest.approx([1.9, 2.0, 2.0, 2.0, 3.0])


def test_the_line_through_an_affine_curve_is_itself():
    assert affine(1e-3, 2e-9).line(4, 1e8) == (1e-3, 2e-9)
    through = from_points([1, 10**8], [1e-3 + 2e-9, 1e-3 + 0.2]).line(4, 1e8)
    assert through == pytest.approx((1e-3, 2e-9), rel=1e-6)


@given(_curves())
def test_the_line_through_any_curve_is_never_negative(curve):
    alpha_s, beta = curve.line(4, 1e8)
    assert alpha_s >= 0
    assert beta >= 0
