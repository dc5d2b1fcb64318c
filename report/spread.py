"""How far the iterations of a run scatter."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from comm_plan.plans import RunRecord

Span = tuple[float, float]
"""From and to, in seconds."""


def warm(record: RunRecord) -> Sequence[float]:
    """Return the times that count; with local steps the mean of each whole round."""
    times, every = record.iterations_s, record.round_steps
    starts = range(0, len(times) - every + 1, every)
    means = [statistics.fmean(times[start : start + every]) for start in starts]
    return means[max(0, len(means) - record.iteration.count) :]


def overlap(one: RunRecord, other: RunRecord) -> tuple[Span, Span] | None:
    """Return the middle halves of their iterations, where they overlap.

    Then a difference between the two may be noise. None: they do not, or one of them is
    not known.
    """
    own, others = _middle_half(one), _middle_half(other)
    if own is None or others is None:
        return None
    return (own, others) if own[0] < others[1] and others[0] < own[1] else None


def _middle_half(record: RunRecord) -> Span | None:
    """Return the first and the third quartile of a run's times, of two or more."""
    times = warm(record)
    if len(times) < 2:
        return None
    first, _, third = statistics.quantiles(times, method="inclusive")
    return first, third
