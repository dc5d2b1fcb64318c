"""Is the run as fast as its plan predicts? Windows of steps, and when to believe them.

A rank's exchange begins when that rank is ready, and ends when all are done; the rank
that came last did not wait, so the shortest of the ranks' durations is what the channel
took. Computation counts on the slowest rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from comm_plan.plans import BucketTiming, Timing

WINDOW = 10
"""Steps whose median is one observation."""

THRESHOLD = 1.25
"""A window drifts if something takes longer, or less long, by this factor."""

PATIENCE = 2
"""Windows in a row that must drift before anything is done about it."""


def of_all_ranks(timings: Sequence[Timing]) -> Timing:
    """Return one timing from those of all ranks: no waiting for others counts."""
    first = timings[0]
    backward_start_s = max(timing.backward_start_s for timing in timings)
    buckets: list[BucketTiming] = []
    free_s = 0.0
    for number in range(len(first.buckets)):
        ranks = [timing.buckets[number] for timing in timings]
        ready_s = max(bucket.ready_s for bucket in ranks)
        busy_s = min(bucket.busy_s for bucket in ranks)
        start_s = max(free_s, ready_s)
        free_s = start_s + busy_s
        buckets.append(BucketTiming(ready_s=ready_s, start_s=start_s, finish_s=free_s))
    return Timing(
        backward_start_s=backward_start_s,
        compute_end_s=max(timing.compute_end_s for timing in timings),
        buckets=tuple(buckets),
    )


class Drift:
    """Counts windows in which a run is not as it was expected to be."""

    def __init__(self) -> None:
        self._windows = 0

    def outlasts(self, factors: Sequence[float]) -> bool:
        """Return whether a drift has now lasted for :data:`PATIENCE` windows.

        Args:
            factors: measured over expected times in the window that has just ended.
        """
        largest = max((abs(math.log(factor)) for factor in factors), default=0.0)
        self._windows = self._windows + 1 if largest > math.log(THRESHOLD) else 0
        return self._windows >= PATIENCE

    def forget(self) -> None:
        """Begin anew: other times are expected from now on."""
        self._windows = 0
