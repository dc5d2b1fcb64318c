"""Judging lossy plans by loss against seconds, beside a dense control.

For every seed each plan trains from the same parameters, on the same batches in the
same order, for about as many seconds. The dense control sets the mark: the mean loss of
its last iterations. A plan's time is how long its own running mean takes to get there;
one that does not within its seconds has not passed, nor has one whose loss does not
stay finite. The median over the seeds counts; one in which the control's loss does not
stay finite is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from comm_plan.plans import Curve
from comm_plan.plans.tuning import LARGEST_LOSS
from comm_plan.profiler.timings import SecondsArray

SMOOTHED = 10
"""The running mean of the loss has a window of one of so many parts of the run."""

POINTS = 200
"""Points of a curve that are kept at most."""

DIVERGED = float(np.finfo(float).max)
"""Ends the curve of a run whose loss did not stay finite."""


def curve(seed: int, seconds: SecondsArray, losses: SecondsArray) -> Curve:
    """Return the running mean of the loss against the seconds of a run so far.

    Where it is not finite the curve ends, with :data:`DIVERGED`.

    Args:
        seed: of the run.
        seconds: [iterations] each one's.
        losses: [iterations].
    """
    window = max(1, len(losses) // SMOOTHED)
    means = np.convolve(losses, np.full(window, 1 / window), mode="valid")
    elapsed_s = np.cumsum(seconds)[window - 1 :]
    broken = np.flatnonzero(~np.isfinite(means))
    if len(broken):
        means = np.append(means[: broken[0]], DIVERGED)
    kept = np.unique(np.linspace(0, len(means) - 1, POINTS).astype(int))
    return Curve(
        seed=seed,
        seconds=tuple(elapsed_s[kept].tolist()),
        losses=tuple(means[kept].tolist()),
    )


def stayed_finite(run: Curve) -> bool:
    """Return whether the loss of ``run`` was finite to its end."""
    return run.losses[-1] <= LARGEST_LOSS


def seconds_to(loss: float, run: Curve) -> float:
    """Return when ``run`` first gets down to ``loss``; infinite if it never does."""
    for seconds, value in zip(run.seconds, run.losses, strict=True):
        if value <= loss:
            return seconds
    return math.inf


def judge(
    control: Sequence[Curve], others: Mapping[str, Sequence[Curve]]
) -> dict[str, float]:
    """Return each plan's speed-up over the control to the control's last loss.

    Args:
        control: of the dense plan, by seed.
        others: of the plans, by name, with the same seeds in the same order.

    Returns:
        The median over the seeds of the control's seconds over the plan's; 0 where the
        median run never gets there. Nothing if no control stayed finite.
    """
    if not any(map(stayed_finite, control)):
        return {}

    def speed_ups(runs: Sequence[Curve]) -> list[float]:
        pairs = zip(control, runs, strict=True)
        return [
            seconds_to(dense.losses[-1], dense) / seconds_to(dense.losses[-1], run)
            if stayed_finite(run)
            else 0.0
            for dense, run in pairs
            if stayed_finite(dense)
        ]

    return {name: float(np.median(speed_ups(runs))) for name, runs in others.items()}
