"""What the schedule model says of one solver's plan."""

from __future__ import annotations

from dataclasses import dataclass

from comm_plan.planner.problem import Solution
from comm_plan.planner.schedule import Schedule


@dataclass(frozen=True)
class Prediction:
    """What the schedule model says of one solver's plan.

    Attributes:
        solver: its name.
        label: that, and what was forced upon every bucket.
        solution: its buckets.
        schedule: the iteration under them.
        of_bound: iteration_s as a multiple of the lower bound for dense traffic; a
            compressed plan may be below 1.
        iterations: how many the schedule is of.
    """

    solver: str
    label: str
    solution: Solution
    schedule: Schedule
    of_bound: float
    iterations: int = 1

    @property
    def iteration_s(self) -> float:
        """Predicted iteration time."""
        return self.schedule.iteration_s / self.iterations

    @property
    def exposed_s(self) -> float:
        """Communication that computation does not hide, of each iteration."""
        return self.schedule.exposed_s / self.iterations

    @property
    def buckets(self) -> int:
        """How many messages an exchange sends."""
        return len(self.solution.stops)

    @property
    def is_local(self) -> bool:
        """Whether the ranks meet only after several steps."""
        return self.iterations > 1

    @property
    def largest_ratio(self) -> float:
        """The most compressed bucket's ratio; 1: dense."""
        return max(option.ratio for option in self.solution.options)

    @property
    def is_plain(self) -> bool:
        """Whether nothing was forced upon it."""
        return self.label == self.solver
