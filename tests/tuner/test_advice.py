"""The plan that changes least among the fastest, and why."""

from __future__ import annotations

import pytest

from comm_plan.plans import Curve, Round, Trial
from comm_plan.tuner.advice import by_loss, by_time, fastest
from comm_plan.tuner.loss import curve, judge, seconds_to


def trial(name, measured_s, *, lossless=True, rounds=3):
    each = Round(iterations=4, median_s=measured_s, p95_s=measured_s)
    return Trial(
        name=name,
        plan=f"plan-{name}.json",
        lossless=lossless,
        predicted_s=1.0,
        rounds=(each,) * rounds,
        measured_s=measured_s,
    )


def decided(*trials):
    winner = fastest(trials)
    return winner.name, by_time(trials, winner)


def test_ddps_buckets_stay_where_nothing_is_faster():
    name, advice = decided(trial("threshold", 1.0), trial("optimal", 0.99))
    assert name == "threshold"
    assert advice.startswith("keep DDP's buckets")


def test_a_dense_plan_is_preferred_to_a_lossy_one_that_is_hardly_faster():
    name, advice = decided(
        trial("threshold", 1.0),
        trial("optimal", 0.8),
        trial("lags", 0.79, lossless=False),
    )
    assert name == "optimal"
    assert "20.0 % less time than DDP's buckets, exactly dense" in advice
    assert "do not compress: lags would save no more than 1.25 %" in advice


def test_a_lossy_plan_that_is_slower_is_advised_against():
    _, advice = decided(
        trial("threshold", 1.0),
        trial("optimal", 0.8),
        trial("lags", 1.2, lossless=False),
    )
    assert "do not compress: lags takes 50.0 % longer" in advice


def test_a_lossy_plan_that_is_much_faster_wins():
    name, advice = decided(
        trial("threshold", 1.0),
        trial("optimal", 0.9),
        trial("lags", 0.4, lossless=False),
    )
    assert name == "lags"
    assert "compress with lags: 60.0 % less time" in advice
    assert "the best dense plan, optimal: 10.0 % less" in advice


def test_a_plan_that_left_early_does_not_win():
    name, _ = decided(
        trial("threshold", 1.0), trial("lucky", 0.5, rounds=1), trial("optimal", 0.9)
    )
    assert name == "optimal"


def run(seconds, losses, seed=0):
    return Curve(seed=seed, seconds=tuple(seconds), losses=tuple(losses))


def test_a_plan_is_as_fast_as_it_gets_to_the_controls_last_loss():
    control = [run([1, 2, 3, 4], [4.0, 3.0, 2.0, 1.0])]
    others = {
        "twice": [run([1, 2], [2.0, 1.0])],
        "never": [run([1, 2, 3, 4], [4.0, 3.5, 3.0, 2.5])],
    }
    assert judge(control, others) == {"twice": 2.0, "never": 0.0}


def test_the_median_of_the_seeds_decides():
    control = [run([1, 2], [2.0, 1.0], seed) for seed in range(3)]
    runs = [run([t], [1.0], seed) for seed, t in enumerate([1.0, 0.5, 4.0])]
    assert judge(control, {"a": runs}) == {"a": 2.0}


def test_a_curve_is_the_running_mean():
    import numpy as np

    made = curve(3, np.ones(20), np.arange(20.0)[::-1])
    assert made.seed == 3
    assert made.seconds == tuple(range(2, 21))
    assert made.losses[0] == pytest.approx(18.5)
    assert seconds_to(0.5, made) == 20.0


@pytest.mark.parametrize(
    ("speed_ups", "winner", "words"),
    [
        ({"lags": 1.5}, "lags", "compress with lags"),
        ({"lags": 1.01}, "optimal", "do not compress"),
        ({"lags": 0.0}, "optimal", "no lossy plan got to the dense plan's loss"),
        ({}, "optimal", "no lossy plan was worth judging"),
    ],
)
def test_lossy_plans_are_judged_by_loss(speed_ups, winner, words):
    trials = [
        trial("threshold", 1.0),
        trial("optimal", 0.9),
        trial("lags", 0.3, lossless=False),
    ]
    chosen, advice = by_loss(trials, trials[1], speed_ups, seeds=3)
    assert chosen.name == winner
    assert words in advice


def test_of_lossy_plans_that_are_nearly_as_fast_the_gentlest_wins():
    trials = [
        trial("threshold", 1.0),
        trial("harsh", 0.2, lossless=False),
        trial("gentle", 0.4, lossless=False),
        trial("gentlest", 0.6, lossless=False),
    ]
    speed_ups = {"harsh": 2.0, "gentle": 1.9, "gentlest": 1.6}
    assert by_loss(trials, trials[0], speed_ups, seeds=3)[0].name == "gentle"
