"""Medians drawn together: nearer to the truth, and never the other way round."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from comm_plan.profiler.shrinkage import medians_drawn_together

TURNS = st.tuples(st.integers(1, 6), st.integers(1, 9)).flatmap(
    lambda shape: arrays(float, shape, elements=st.floats(-1e3, 1e3))
)


@given(TURNS)
def test_the_mean_and_the_order_stay_and_nothing_gets_further_from_the_mean(measured):
    medians = np.median(measured, axis=0)
    drawn = medians_drawn_together(measured)
    mean = medians.mean()
    assert drawn.mean() == pytest.approx(mean, abs=1e-9)
    assert (np.abs(drawn - mean) <= np.abs(medians - mean) + 1e-9).all()
    assert ((drawn - mean) * (medians - mean) >= -1e-9).all()


def errors(true, scatter, turns=4, repetitions=400):
    """Return the mean squared errors of medians, and of those drawn together."""
    rng = np.random.default_rng(3)
    shape = repetitions, turns, len(true)
    measured = true + scatter * rng.standard_normal(shape)
    plain = np.square(np.median(measured, axis=1) - true).mean()
    drawn = [np.square(medians_drawn_together(one) - true).mean() for one in measured]
    return plain, np.mean(drawn)


@pytest.mark.parametrize("spread", [0.0, 5.0, 10.0, 30.0])
def test_squared_errors_are_smaller_whatever_the_truth(spread):
    plain, drawn = errors(13.0 + spread * np.linspace(-1, 1, 11), scatter=8.0)
    assert drawn < plain
    if spread <= 5.0:
        assert drawn < 0.6 * plain


def test_what_lies_apart_stays_apart():
    true = np.array([0.0, 100.0, 200.0, 300.0, 400.0])
    measured = true + np.random.default_rng(0).standard_normal((4, 5))
    medians = np.median(measured, axis=0)
    assert medians_drawn_together(measured) == pytest.approx(medians, abs=0.01)


def test_what_all_have_in_common_in_a_turn_changes_nothing():
    true = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    measured = true + np.array([[-9.0], [0.0], [9.0], [0.0]])
    assert medians_drawn_together(measured) == pytest.approx(true)


def test_few_are_left_as_they_are():
    measured = np.array([[1.0, 2.0, 9.0], [3.0, 1.0, 5.0]])
    assert medians_drawn_together(measured).tolist() == [2.0, 1.5, 7.0]
