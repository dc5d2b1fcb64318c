"""Blocks of variants that take turns: their scatter, and the best without its luck."""

from __future__ import annotations

import numpy as np
import pytest

from comm_plan.benchmarks.blocks import behind_best, ratio_between, scatter

ITERATIONS = 4


def runs(variants=20, blocks=10, by=0.0, drift=0.0, seconds=None):
    """Return times: blocks of a variant differ by ``by``, rounds by ``drift``."""
    draws = np.random.default_rng(0)
    of_blocks = np.exp(by * draws.standard_normal((variants, blocks)))
    of_blocks *= np.exp(drift * draws.standard_normal(blocks))
    of_blocks *= np.ones(variants)[:, None] if seconds is None else seconds[:, None]
    return {
        str(number): np.repeat(each, ITERATIONS).tolist()
        for number, each in enumerate(of_blocks)
    }


def test_scatter_is_that_of_blocks_without_what_a_round_has_in_common():
    assert scatter(runs(by=0.07, drift=0.2), ITERATIONS) == pytest.approx(0.07, rel=0.2)
    assert scatter(runs(drift=0.2), ITERATIONS) == pytest.approx(0.0, abs=1e-12)


def test_the_best_of_many_equals_is_ahead_by_luck_alone():
    times = runs(by=0.07)
    medians = {name: np.median(each) for name, each in times.items()}
    luckiest = min(medians, key=medians.get)
    apparent = [medians[name] / medians[luckiest] for name in times]
    true = [behind_best(times, name, ITERATIONS) for name in times]
    assert np.mean(apparent) > 1.03
    assert np.mean(true) == pytest.approx(1.0, abs=0.02)


def test_what_is_really_slower_is_behind():
    seconds = np.array([1.0, 1.1, 1.5])
    times = runs(variants=3, by=0.01, seconds=seconds)
    for name, expected in zip(times, seconds, strict=True):
        assert behind_best(times, name, ITERATIONS) == pytest.approx(expected, rel=0.02)


def test_resampled_rounds_know_no_more_than_there_are_blocks():
    """Many iterations of few blocks: the ratio is as uncertain as the blocks are."""
    times = runs(variants=2, blocks=6, by=0.07)
    low, high = ratio_between(times["0"], times["1"], ITERATIONS)
    assert high - low > 0.05
    assert ratio_between(times["0"], times["0"], ITERATIONS) == (1.0, 1.0)
