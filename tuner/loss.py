"""Judging lossy plans by loss against seconds, beside a dense control.

For every seed each plan trains from the same parameters, on the same batches in the
same order, for about as many seconds. The dense control sets the marks: its running
mean of the loss early, half-way, and at the end. Running means are over as many
iterations for all, so that a faster plan's is no later for that it makes more. How much
sooner a plan's own running mean gets to one is its speed-up there, and the least of
them counts: where a training is nearly over in the seconds that there are, all losses
are small, and a plan that was behind while they fell may be ahead at the end. A plan
that does not get to a mark within its seconds has not passed, nor has one whose loss
does not stay finite. The median over the seeds counts; one in which the control's loss
does not stay finite is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from comm_plan.arrays import FloatArray
from comm_plan.plans import Curve
from comm_plan.plans.tuning import LARGEST_LOSS

SMOOTHED = 10
"""The running mean of the loss has a window of one of so many parts of the control."""

MARKS = (0.125, 0.25, 0.5, 1.0)
"""Shares of the control's seconds at which its loss is a mark."""

POINTS = 200
"""Points of a curve that are kept at most: denser at its beginning, where a plan that
is much faster passes the marks."""

DIVERGED = float(np.finfo(float).max)
"""Ends the curve of a run whose loss did not stay finite."""


def window_of(iterations: int) -> int:
    """Return over how many iterations means are where the control makes so many."""
    return max(1, iterations // SMOOTHED)


def curve(seed: int, seconds: FloatArray, losses: FloatArray, window: int) -> Curve:
    """Return the running mean of the loss against the seconds of a run so far.

    Where it is not finite the curve ends, with :data:`DIVERGED`.

    Args:
        seed: of the run.
        seconds: [iterations] each one's.
        losses: [iterations].
        window: over how many iterations the mean is, if there are as many.
    """
    window = min(window, len(losses))
    means = np.convolve(losses, np.full(window, 1 / window), mode="valid")
    elapsed_s = np.cumsum(seconds)[window - 1 :]
    broken = np.flatnonzero(~np.isfinite(means))
    if len(broken):
        means = np.append(means[: broken[0]], DIVERGED)
    kept = np.unique(np.geomspace(1, len(means), POINTS).astype(int)) - 1
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


def marks(control: Curve) -> tuple[float, ...]:
    """Return the losses that other plans are timed to."""
    at_s = np.array(MARKS) * control.seconds[-1]
    places = np.searchsorted(control.seconds, at_s)
    return tuple(control.losses[place] for place in places.tolist())


def speed_up(control: Curve, run: Curve) -> float:
    """Return how much sooner than the control ``run`` gets to its marks, the least.

    0 if it does not get to one, or does not stay finite.
    """
    if not stayed_finite(run):
        return 0.0
    return min(
        seconds_to(mark, control) / seconds_to(mark, run) for mark in marks(control)
    )


def judge(
    control: Sequence[Curve], others: Mapping[str, Sequence[Curve]]
) -> dict[str, float]:
    """Return each plan's speed-up over the control.

    Args:
        control: of the dense plan, by seed.
        others: of the plans, by name, with the same seeds in the same order.

    Returns:
        The median of :func:`speed_up` over the seeds. Nothing if no control stayed
        finite.
    """
    finite = [seed for seed, run in enumerate(control) if stayed_finite(run)]
    if not finite:
        return {}
    return {
        name: float(np.median([speed_up(control[seed], runs[seed]) for seed in finite]))
        for name, runs in others.items()
    }
