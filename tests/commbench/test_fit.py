"""Fits recover known costs, and are safe to plan with whatever was measured."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comm_plan.commbench.fit import MIN_POINTS, fit
from comm_plan.errors import InputError
from comm_plan.plans import Sample

SIZES = 4.0 * 2.0 ** np.arange(25)
LARGE = SIZES[SIZES >= 4 * 2**20]


def samples(nbytes, seconds):
    return [
        Sample(nbytes=int(n), median_s=s, min_s=s, p95_s=s, iterations=10)
        for n, s in zip(nbytes, seconds, strict=True)
    ]


def costs(result, sizes):
    return np.array([result.seconds(n) for n in sizes])


def worst_error(result, sizes, truth):
    return np.max(np.abs(costs(result, sizes) / truth - 1))


positive_seconds = st.floats(1e-7, 1e3)
measured = st.lists(
    st.tuples(st.integers(0, 2**30), positive_seconds),
    min_size=1,
    max_size=24,
    unique_by=lambda pair: pair[0],
)


@given(alpha=st.floats(1e-6, 1e-2), beta=st.floats(1e-11, 1e-7))
@settings(max_examples=10)
def test_recovers_an_affine_cost_exactly(alpha, beta):
    truth = alpha + beta * SIZES
    result = fit(samples(SIZES, truth))
    assert len(result.segments) == 1
    assert worst_error(result, SIZES, truth) < 2e-3
    assert result.median_error < 1e-3


@given(
    alpha=st.floats(1e-5, 1e-3), beta=st.floats(1e-10, 1e-8), seed=st.integers(0, 999)
)
@settings(max_examples=15)
def test_large_sizes_stay_within_ten_percent_under_noise_and_outliers(
    alpha, beta, seed
):
    """Outliers apart from each other: three in a row are a segment by definition."""
    random = np.random.default_rng(seed)
    truth = alpha + beta * SIZES
    noisy = truth * np.exp(random.normal(0, 0.03, len(SIZES)))
    noisy[random.choice(np.arange(0, len(SIZES) - 5, 3), 3, replace=False)] *= 10
    result = fit(samples(SIZES, noisy))
    assert worst_error(result, LARGE, truth[-len(LARGE) :]) < 0.10


@given(
    switch=st.integers(8, 16),
    jump=st.floats(3.0, 10.0),
    seed=st.integers(0, 999),
)
@settings(max_examples=15)
def test_finds_the_switch_between_two_protocols(switch, jump, seed):
    noise = np.exp(np.random.default_rng(seed).normal(0, 0.02, len(SIZES)))
    eager, rendezvous = 2e-5 + 4e-9 * SIZES, 2e-5 * jump + 4e-9 * jump * SIZES
    truth = np.where(np.arange(len(SIZES)) < switch, eager, rendezvous)
    result = fit(samples(SIZES, truth * noise))
    starts = [segment.from_nbytes for segment in result.segments]
    assert any(SIZES[switch - 1] < start <= SIZES[switch] for start in starts)
    assert worst_error(result, SIZES, truth) < 0.15


def test_noise_alone_makes_no_switches():
    random = np.random.default_rng(7)
    truth = 5e-4 + 8e-9 * SIZES
    found = [
        len(fit(samples(SIZES, truth * np.exp(random.normal(0, s, 25)))).segments)
        for s in np.repeat([0.02, 0.05, 0.1], 7)
    ]
    assert found.count(1) >= 0.9 * len(found)


@given(measured)
@settings(max_examples=100)
def test_nothing_is_ever_negative_and_the_cost_never_falls(pairs):
    result = fit(samples(*zip(*pairs, strict=True)))
    for segment in result.segments:
        assert segment.alpha_s >= 0
        assert segment.beta_s_per_byte >= 0
    starts = [segment.from_nbytes for segment in result.segments]
    around = [start + step for start in starts for step in (-1, 0, 1)]
    sizes = sorted({n for n in around if n >= 0} | {n for n, _ in pairs} | {2**31})
    seconds = costs(result, sizes)
    assert np.all(seconds[1:] >= seconds[:-1] * (1 - 1e-9))
    assert np.all(seconds[np.array(sizes) > 0] > 0)


@given(measured)
@settings(max_examples=50)
def test_every_segment_holds_enough_samples(pairs):
    result = fit(samples(*zip(*pairs, strict=True)))
    starts = [segment.from_nbytes for segment in result.segments]
    ends = [*starts[1:], 2**31]
    sizes = [n for n, _ in pairs]
    for start, end in zip(starts, ends, strict=True):
        # A switch may be put exactly on the last sample of the segment before.
        inside = sum(start <= n <= end for n in sizes)
        assert inside >= min(MIN_POINTS, len(sizes))


@given(measured, st.floats(1e-3, 1e3))
@settings(max_examples=30)
def test_the_unit_of_time_does_not_matter(pairs, scale):
    nbytes, seconds = zip(*pairs, strict=True)
    plain = fit(samples(nbytes, seconds))
    scaled = fit(samples(nbytes, [s * scale for s in seconds]))
    assert scaled.median_error == pytest.approx(plain.median_error, rel=0.05, abs=1e-6)


@given(measured.flatmap(st.permutations))
@settings(max_examples=20)
def test_the_order_of_samples_does_not_matter(pairs):
    assert fit(samples(*zip(*pairs, strict=True))) == fit(
        samples(*zip(*sorted(pairs), strict=True))
    )


def test_one_sample_is_proportional():
    (segment,) = fit(samples([1000], [2e-3])).segments
    assert segment.alpha_s == 0
    assert segment.beta_s_per_byte == pytest.approx(2e-6)


def test_one_sample_of_no_bytes_is_a_start_up():
    (segment,) = fit(samples([0], [2e-3])).segments
    assert (segment.alpha_s, segment.beta_s_per_byte) == (pytest.approx(2e-3), 0)


def test_two_samples_give_their_line():
    (segment,) = fit(samples([1000, 3000], [2e-3, 4e-3])).segments
    assert segment.alpha_s == pytest.approx(1e-3, rel=1e-3)
    assert segment.beta_s_per_byte == pytest.approx(1e-6, rel=1e-3)


def test_two_samples_that_fall_are_levelled():
    (segment,) = fit(samples([1000, 3000], [4e-3, 1e-3])).segments
    assert segment.beta_s_per_byte == 0
    assert segment.alpha_s == pytest.approx(2e-3)


def test_a_start_up_below_zero_becomes_proportional():
    (segment,) = fit(samples([1000, 3000], [1e-3, 9e-3])).segments
    assert segment.alpha_s == 0


def test_plain_least_squares_would_be_negative_where_this_is_not():
    seconds = 1e-6 + 8e-9 * SIZES
    seconds[-1] *= 1.2
    _, alpha = np.polyfit(SIZES, seconds, 1)
    assert alpha < 0
    result = fit(samples(SIZES, seconds))
    assert result.seconds(4) == pytest.approx(1e-6 + 32e-9, rel=0.05)


def test_many_samples_are_fitted_too():
    nbytes = np.arange(1, 401) * 2**20
    truth = 1e-4 + 1e-10 * nbytes
    assert worst_error(fit(samples(nbytes, truth)), nbytes, truth) < 2e-3


def test_nothing_cannot_be_fitted():
    with pytest.raises(InputError, match="no samples"):
        fit([])
