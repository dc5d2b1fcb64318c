"""Iterations of all ranks together, timed in windows that lie apart.

A machine is not equally fast all the time: ten seconds may be slow, or the ranks may
wait for each other longer than usual. So iterations are timed in several windows, from
the beginning of all that is measured to its end, and other things between them. Medians
are taken of the iterations of all windows, of their whole lengths as of their parts: of
the few of one window, the slowest rank's parts add up to more than they do in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from comm_plan.profiler.ranks import slowest_of
from comm_plan.profiler.timings import (
    Measurable,
    PassProgress,
    Timings,
    Trial,
    joined,
)
from comm_plan.profiler.waiting import Rendezvous, waiting_s
from comm_plan.transports.base import Transport

WINDOWS = 4
"""Of which one may be a bad one."""

ITERATIONS = (40, 200)
"""In all windows unless told otherwise: fewest, and most where they are short."""

LONG_ENOUGH_S = 5.0
"""Short iterations vary most, and many of them take no longer than this."""


@dataclass(frozen=True)
class Window:
    """Iterations that followed one another.

    Attributes:
        of_ranks: the iterations of each rank.
        meeting_s: what the meeting that ended each backward took alone.
    """

    of_ranks: Sequence[Timings]
    meeting_s: float


class Iterations:
    """Runs iterations in which the ranks meet, at the end of each backward.

    Args:
        workload: whose; they train its model.
        ranks: the ranks; every method is a collective call.
        iterations: how many in all windows; None: :data:`ITERATIONS`.
        warmup: how many to run and forget before the first.
        progress: called with the number of iterations done and of all.

    Attributes:
        trial: what runs them.
        windows: those that were timed.
    """

    def __init__(
        self,
        workload: Measurable,
        ranks: Transport,
        iterations: int | None,
        warmup: int,
        progress: PassProgress | None,
    ) -> None:
        self._ranks = ranks
        self._progress = progress
        self._warmup = warmup
        self._is_asked = iterations is not None
        self._total = iterations or ITERATIONS[0]
        self._done = 0
        self.windows: list[Window] = []
        self._rendezvous = Rendezvous(ranks, workload.model)
        self.trial = Trial(workload, ranks, self._rendezvous.meet)

    @property
    def of_ranks(self) -> list[Timings]:
        """The iterations of all windows, by rank."""
        windows = [window.of_ranks for window in self.windows]
        return [joined(of_rank) for of_rank in zip(*windows, strict=True)]

    @property
    def waiting_s(self) -> float:
        """What an iteration takes beyond its parts."""
        meetings_s = [window.meeting_s for window in self.windows]
        return waiting_s(slowest_of(self.of_ranks), float(np.median(meetings_s)))

    @property
    def some_were_unused(self) -> bool:
        """Whether any parameter got no gradient in any iteration, on any rank."""
        return any(np.isnan(timings.ready_s).any() for timings in self.of_ranks)

    def window(self) -> None:
        """Time the next of the windows."""
        of_ranks = self._run(self._share)
        if not self.windows and not self._is_asked:
            self._total = _how_many(of_ranks)
            more = self._share - len(of_ranks[0].total_s)
            if more > 0:
                both = zip(of_ranks, self._run(more), strict=True)
                of_ranks = [joined(of_rank) for of_rank in both]
        self.windows.append(Window(of_ranks, self._rendezvous.alone_s()))

    @property
    def _share(self) -> int:
        """How many of the iterations belong to the next window."""
        return (self._total + len(self.windows)) // WINDOWS

    def _run(self, iterations: int) -> list[Timings]:
        before = self._done

        def watch(done: int, total: int) -> None:
            if self._progress is not None:
                self._progress(before + done, self._warmup + self._total)

        warmup = 0 if self._done else self._warmup
        own = self.trial.run(iterations, warmup, watch)
        self._done += warmup + iterations
        return self._ranks.gather_objects(own)


def _how_many(of_ranks: Sequence[Timings]) -> int:
    """Return how many iterations there is time for."""
    longest_s = max(float(np.mean(each.total_s)) for each in of_ranks)
    fewest, most = ITERATIONS
    return max(fewest, min(most, int(LONG_ENOUGH_S / longest_s)))
