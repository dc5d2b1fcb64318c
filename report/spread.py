"""How far the iterations of a run scatter."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from comm_plan.plans import RunRecord


def warm(record: RunRecord) -> Sequence[float]:
    """Return the times that count; with local steps the mean of each whole round."""
    times, every = record.iterations_s, record.round_steps
    starts = range(0, len(times) - every + 1, every)
    means = [statistics.fmean(times[start : start + every]) for start in starts]
    return means[max(0, len(means) - record.iteration.count) :]


def quartiles(record: RunRecord) -> tuple[float, float] | None:
    """Return the first and the third quartile of a run's times, of two or more."""
    times = warm(record)
    if len(times) < 2:
        return None
    first, _, third = statistics.quantiles(times, method="inclusive")
    return first, third


def overlap(one: RunRecord, other: RunRecord) -> bool:
    """Return whether the middle halves of their iterations do, where they are known.

    Then a difference between the two may be noise.
    """
    own, others = quartiles(one), quartiles(other)
    if own is None or others is None:
        return False
    return own[0] < others[1] and others[0] < own[1]
