"""How to tune."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from comm_plan.planner import Settings
from comm_plan.plans import Network, Profile
from comm_plan.plans.tuning import Objective
from comm_plan.tuner.defaults import BUDGET_S, SEEDS
from comm_plan.tuner.measuring import NETWORK_SHARE, Progress

RESERVE = 0.05
"""The share of the budget that is kept for what no estimate counts."""


@dataclass(frozen=True)
class Options:
    """How to tune.

    Attributes:
        budget_s: seconds that all of it may take.
        objective: ``time``: the shortest iteration; ``loss``: the loss falls fastest.
        seeds: how many trainings of each plan are judged by loss.
        seed: the first of them; of the data in the other trials.
        settings: what plans may be.
        local_steps: how many of them to try, if the loss decides.
        profile: of the workload, measured before; None: measure it.
        network: of the ranks, measured before; None: measure it.
        find_unused_parameters: parameters may get no gradient.
        progress: called with what is done, of how much, and what is going on.
    """

    budget_s: float = BUDGET_S
    objective: Objective = "time"
    seeds: int = SEEDS
    seed: int = 0
    settings: Settings = field(default_factory=Settings)
    local_steps: Sequence[int] = ()
    profile: Profile | None = None
    network: Network | None = None
    find_unused_parameters: bool = False
    progress: Progress = lambda done, total, what: None

    @property
    def usable_s(self) -> float:
        """The budget without what is kept for what no estimate counts."""
        return (1 - RESERVE) * self.budget_s

    def with_more(self, usable_s: float) -> float:
        """Return the budget that leaves so many more seconds to trials.

        Of a larger one measuring the network takes its share too.
        """
        measuring = NETWORK_SHARE if self.network is None else 0.0
        return self.budget_s + usable_s / (1 - RESERVE - measuring)
