"""Lossy plans trained beside the best dense one, and what to run after that.

Which plans are worth it, how many of them and how many seeds the budget suffices for,
and the trainings themselves; :mod:`~comm_plan.tuner.loss` compares two trainings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np

from comm_plan import units
from comm_plan.plans import Trial
from comm_plan.tuner import advice, loss
from comm_plan.tuner.ledger import Ledger
from comm_plan.tuner.options import Options
from comm_plan.tuner.trials import Block

JUDGED = 4
"""Lossy plans that are judged by loss at most: the fastest, and gentler ones."""

WORTH_JUDGING = 0.9
"""A lossy plan must take less of the dense plan's time to be judged by loss."""

FEWEST_STEPS = 20
"""A training of fewer iterations says nothing of the loss."""

Train = Callable[[str, int, float, int], Block]
"""Trains by a plan, for so many steps, at most so many seconds, with a seed."""


class Judging:
    """The trainings of one tuning; every rank does the same.

    Args:
        ledger: the trials so far, among them the baseline's.
        train: trains by one plan, and adds the block to ``ledger``.
        left_s: returns the seconds that are left, the same on all ranks.
        options: how to tune.

    Attributes:
        complete: whether all trainings were done as wished.
        verdict: the name of the plan to run, and the advice; None: the loss has not
            decided.
        unjudged: why it has not.
    """

    def __init__(
        self,
        ledger: Ledger,
        train: Train,
        left_s: Callable[[], float],
        options: Options,
    ) -> None:
        self._ledger = ledger
        self._train_by = train
        self._left_s = left_s
        self._options = options
        self.complete = True
        self.verdict: tuple[str, str] | None = None
        self.unjudged = "lossy plans are not judged by loss yet"

    def seeds(self) -> Iterator[None]:
        """Yield after each seed: all plans trained, in one order and then in the other.

        As machines drift.
        """
        trials = self._ledger.trials()
        control = advice.best_dense(trials)
        lossy = self._worth_judging(trials, control)
        if not lossy:
            self._judge(control, lossy)
            return
        asked = len(lossy), self._options.seeds
        lossy, seeds = self._affordable(control, lossy)
        self.complete = (len(lossy), seeds) == asked
        judged = [control, *lossy]
        for number in range(seeds):
            each_s = self._each_s(judged, seeds - number, self._left_s())
            if _fewest_steps(judged, each_s) < FEWEST_STEPS:
                self.complete = False
                return
            seed = self._options.seed + number
            window = loss.window_of(_steps(control, each_s))
            for trial in reversed(judged) if number % 2 else judged:
                self._train(trial, each_s, seed, window)
            self._judge(control, lossy)
            yield

    def _worth_judging(self, trials: Sequence[Trial], control: Trial) -> list[Trial]:
        """Return the fastest lossy plan and gentler ones, each faster than the next.

        Args:
            trials: all.
            control: the dense one that they would be held against.
        """
        measured = [trial for trial in trials if trial.measured_s is not None]
        measured.sort(key=lambda trial: trial.measured_s or 0.0)
        ratio = self._ledger.ratios
        limit_s = WORTH_JUDGING * (control.measured_s or 0.0)
        front: list[Trial] = []
        for trial in measured:
            gentler = not front or ratio[trial.name] < ratio[front[-1].name]
            if not trial.lossless and gentler and (trial.measured_s or 0.0) < limit_s:
                front.append(trial)
        return _spread(front, min(JUDGED, len(front)))

    def _affordable(
        self, control: Trial, lossy: Sequence[Trial]
    ) -> tuple[list[Trial], int]:
        """Return which plans what is left suffices to judge, and for how many seeds.

        As many trainings as can be; of equally many those of more seeds.
        """
        left_s = self._left_s()
        choices = product(range(1, len(lossy) + 1), range(1, self._options.seeds + 1))
        most_first = sorted(choices, key=lambda c: (c[0] * c[1], c[1]), reverse=True)
        for plans, seeds in most_first:
            some = _spread(lossy, plans)
            each_s = self._each_s([control, *some], seeds, left_s)
            if _fewest_steps([control, *some], each_s) >= FEWEST_STEPS:
                return some, seeds
        short_s = self._judging_s([control, lossy[0]], FEWEST_STEPS) - left_s
        enough_s = self._options.with_more(short_s)
        self.unjudged = (
            "--budget is too short to judge lossy plans by loss: with "
            f"{units.seconds(enough_s)} one could be, for one seed"
        )
        return [], 0

    def _train(self, trial: Trial, seconds: float, seed: int, window: int) -> None:
        block = self._train_by(trial.name, _steps(trial, seconds), seconds, seed)
        curve = loss.curve(seed, block.seconds, block.losses, window)
        self._ledger.add_curve(trial.name, curve)

    def _judge(self, control: Trial, lossy: Sequence[Trial]) -> None:
        """Decide by the trainings so far, of which all plans have the same seeds."""
        trials = self._ledger.trials()
        curves = {trial.name: trial.curves for trial in trials}
        dense = curves[control.name]
        seeds = sum(map(loss.stayed_finite, dense))
        if lossy and not seeds:
            self.unjudged = (
                f"the loss of {control.name} does not stay finite: no lossy plan can "
                "be held against it"
            )
            return
        speed_ups = loss.judge(dense, {t.name: curves[t.name] for t in lossy})
        winner, text = advice.by_loss(trials, control, speed_ups, seeds)
        self.verdict = (winner.name, text)

    def _each_s(self, judged: Sequence[Trial], seeds: int, left_s: float) -> float:
        """Return for how many seconds each plan may train.

        Args:
            judged: the plans.
            seeds: for how many seeds.
            left_s: how long it may take in all.
        """
        return (left_s / seeds - self._overheads_s(judged)) / len(judged)

    def _judging_s(self, judged: Sequence[Trial], steps: int) -> float:
        """Return what one seed takes in which the slowest plan makes so many steps."""
        slowest_s = max(trial.measured_s or 0.0 for trial in judged)
        return self._overheads_s(judged) + len(judged) * steps * slowest_s

    def _overheads_s(self, judged: Sequence[Trial]) -> float:
        return self._ledger.overheads_s(trial.name for trial in judged)


def _steps(trial: Trial, seconds: float) -> int:
    """Return how many steps a plan makes in so many seconds."""
    return int(seconds / (trial.measured_s or math.inf))


def _fewest_steps(trials: Sequence[Trial], seconds: float) -> int:
    return min(_steps(trial, seconds) for trial in trials)


def _spread(trials: Sequence[Trial], count: int) -> list[Trial]:
    """Return so many of ``trials``, in order: the first, the last, some in between."""
    places = np.linspace(0, len(trials) - 1, count)
    return [trials[round(place)] for place in places.tolist()]
