"""The plan that changes least among the fastest, and why."""

from __future__ import annotations

import numpy as np
import pytest

from comm_plan.plans import Curve, Round, Trial
from comm_plan.tuner.advice import (
    best_dense,
    by_loss,
    by_time,
    fastest,
    without_loss,
)
from comm_plan.tuner.loss import (
    DIVERGED,
    curve,
    judge,
    seconds_to,
    stayed_finite,
    window_of,
)


def trial(name, measured_s, *, lossless=True, rounds=3):
    each = Round(iterations=4, median_s=measured_s or 0.0, p95_s=measured_s or 0.0)
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


def test_where_only_the_baseline_was_measured_nothing_else_is_said():
    lossy = trial("auto", None, lossless=False, rounds=0)
    _, advice = decided(trial("threshold", 1.0, rounds=1), lossy)
    assert advice == "keep DDP's buckets: nothing else was measured"


def test_plans_that_were_not_measured_are_not_compared():
    lossy = trial("auto", None, lossless=False, rounds=0)
    measured = trial("threshold", 1.0, rounds=1), trial("optimal", 0.8, rounds=1)
    _, advice = decided(*measured, lossy)
    assert advice.endswith("exactly dense; no lossy plan was measured")
    unmeasured = trial("optimal", None, rounds=0)
    lags = trial("lags", 0.3, lossless=False, rounds=1)
    _, advice = decided(trial("threshold", 1.0, rounds=1), unmeasured, lags)
    assert "no other dense plan was measured" in advice


def test_without_a_verdict_by_loss_the_dense_plan_is_run():
    lossy = trial("auto", 0.3, lossless=False)
    winner, advice = without_loss(
        [trial("threshold", 1.0), trial("optimal", 0.8), lossy], "not judged yet"
    )
    assert winner.name == "optimal"
    assert advice.endswith(
        "less time than DDP's buckets, exactly dense; not judged yet"
    )


@pytest.mark.parametrize(("optimal_s", "name"), [(0.99, "threshold"), (0.9, "optimal")])
def test_lossy_plans_are_held_against_the_dense_plan_to_run(optimal_s, name):
    trials = [
        trial("threshold", 1.0),
        trial("optimal", optimal_s, rounds=2),
        trial("wfbp", 0.5, rounds=1),
        trial("lags", 0.3, lossless=False),
    ]
    assert best_dense(trials).name == name


def test_a_plan_that_left_early_does_not_win():
    name, _ = decided(
        trial("threshold", 1.0), trial("lucky", 0.5, rounds=1), trial("optimal", 0.9)
    )
    assert name == "optimal"


def run(seconds, losses, seed=0):
    return Curve(seed=seed, seconds=tuple(seconds), losses=tuple(losses))


def test_a_plan_is_as_fast_as_it_gets_to_the_controls_losses():
    control = [run([1, 2, 3, 4], [4.0, 3.0, 2.0, 1.0])]
    others = {
        "twice": [run([0.5, 1, 1.5, 2], [4.0, 3.0, 2.0, 1.0])],
        "never": [run([1, 2, 3, 4], [4.0, 3.5, 3.0, 2.5])],
    }
    assert judge(control, others) == {"twice": 2.0, "never": 0.0}


def test_a_plan_that_is_behind_first_is_no_faster_for_being_ahead_at_the_end():
    """As where the training is over in the seconds there are, and losses are small."""
    control = [run([1, 2, 3, 4], [2.0, 0.1, 0.02, 0.01])]
    late = [run([1, 2, 3, 3.5], [3.0, 2.0, 1.0, 0.005])]
    assert judge(control, {"late": late}) == {"late": 0.5}


def test_the_median_of_the_seeds_decides():
    control = [run([1, 2], [2.0, 1.0], seed) for seed in range(3)]
    runs = [run([t / 2, t], [2.0, 1.0], seed) for seed, t in enumerate([1.0, 0.5, 4.0])]
    assert judge(control, {"a": runs}) == {"a": 2.0}


def test_a_curve_ends_where_the_loss_is_not_finite():
    losses = np.array([4.0, 3.0, 2.0, np.nan, 1.0])
    made = curve(0, np.ones(5), losses, 1)
    assert made.losses == (4.0, 3.0, 2.0, DIVERGED)
    assert not stayed_finite(made)


def test_nothing_is_held_against_a_control_that_diverged():
    stuck, diverged = run([1, 2], [5.0, 5.0]), run([1, 2], [4.0, DIVERGED])
    assert judge([diverged], {"stuck": [stuck]}) == {}
    control = [diverged, run([1, 2], [4.0, 3.0])]
    assert judge(control, {"stuck": [stuck, stuck]}) == {"stuck": 0.0}


def test_a_plan_that_diverged_never_gets_there():
    control = [run([1, 2], [4.0, 3.0])]
    assert judge(control, {"harsh": [run([1, 2], [3.0, DIVERGED])]}) == {"harsh": 0.0}


@pytest.mark.parametrize("times", [2, 10, 40])
def test_a_plan_that_does_the_same_faster_is_so_much_faster(times):
    """Also at the first mark, however many iterations a window is."""
    window = window_of(80)
    losses = 1 / np.arange(1.0, 80 * times + 1)
    control = curve(0, np.full(80, 1.0), losses[:80], window)
    other = curve(0, np.full(80 * times, 1 / times), losses, window)
    found = judge([control], {"other": [other]})["other"]
    assert found == pytest.approx(times, rel=0.1)


def test_a_curve_is_the_running_mean():
    made = curve(3, np.ones(20), np.arange(20.0)[::-1], window_of(20))
    assert made.seed == 3
    assert made.seconds == tuple(range(2, 21))
    assert made.losses[0] == pytest.approx(18.5)
    assert seconds_to(0.5, made) == 20.0


@pytest.mark.parametrize(
    ("speed_ups", "winner", "words"),
    [
        ({"lags": 1.5}, "lags", "compress with lags"),
        ({"lags": 1.01}, "optimal", "lags, may save no more than 0.99 % of the time"),
        ({"lags": 0.5}, "optimal", "lags, takes up to 2.00x the time of the dense one"),
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


def test_advice_by_loss_says_how_long_trainings_were_and_what_merging_gains():
    dense = trial("threshold", 1.0), trial("optimal", 0.99)
    control = dense[0].model_copy(update={"curves": (run([1, 40], [2.0, 1.0]),)})
    trials = [control, dense[1], trial("lags", 0.3, lossless=False)]
    _, advice = by_loss(trials, control, {"lags": 2.0}, seeds=1)
    assert advice == (
        "compress with lags: it gets to the dense plan's loss in at most 50.0 % of its "
        "time (1 seed, 40.0 s of training each); merging alone gains nothing"
    )


def test_the_best_lossy_plan_is_named_whatever_it_is_called():
    trials = [
        trial("threshold", 1.0),
        trial("auto", 0.2, lossless=False),
        trial("lags", 0.3, lossless=False),
    ]
    _, advice = by_loss(trials, trials[0], {"auto": 0.8, "lags": 0.4}, seeds=3)
    assert "the best lossy plan, auto, takes up to 1.25x" in advice


def test_rounds_of_local_steps_are_no_compression():
    rounds = trial("auto, 4 local steps", 0.3, lossless=False)
    rounds = rounds.model_copy(update={"local": True})
    trials = [trial("threshold", 1.0), rounds]
    chosen, advice = by_loss(trials, trials[0], {rounds.name: 2.0}, seeds=3)
    assert chosen is rounds
    assert advice.startswith("train by auto, 4 local steps: it gets to")


def test_of_lossy_plans_that_are_nearly_as_fast_the_gentlest_wins():
    trials = [
        trial("threshold", 1.0),
        trial("harsh", 0.2, lossless=False),
        trial("gentle", 0.4, lossless=False),
        trial("gentlest", 0.6, lossless=False),
    ]
    speed_ups = {"harsh": 2.0, "gentle": 1.9, "gentlest": 1.6}
    assert by_loss(trials, trials[0], speed_ups, seeds=3)[0].name == "gentle"


def test_a_gentler_plan_that_gains_nothing_does_not_hide_one_that_does():
    trials = [
        trial("threshold", 1.0),
        trial("harsh", 0.2, lossless=False),
        trial("gentle", 0.4, lossless=False),
    ]
    speed_ups = {"harsh": 1.05, "gentle": 0.96}
    assert by_loss(trials, trials[0], speed_ups, seeds=3)[0].name == "harsh"
    speed_ups = {"harsh": 0.99, "gentle": 0.92}
    _, advice = by_loss(trials, trials[0], speed_ups, seeds=3)
    assert "the best lossy plan, harsh, takes up to 1.01x" in advice
