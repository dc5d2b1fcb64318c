"""A plan that follows the network: measure while training, solve again, swap.

Every :data:`~comm_plan.runtime.drift.WINDOW` steps the ranks share when their buckets
travelled. If something takes longer than the plan predicts, or less long, for some
windows in a row, rank 0 corrects the costs and solves again, on a thread of its own
while training goes on. At the end of a later window all ranks swap the plan together,
if by the corrected costs the new one is enough faster; if not, the corrected costs are
what is expected from then on. So each change of the network is answered once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from comm_plan.planner import Settings, make_problem, solve
from comm_plan.planner.correction import Correction
from comm_plan.plans import Network, Plan, Profile, Replan
from comm_plan.runtime.drift import WINDOW, Drift, of_all_ranks
from comm_plan.runtime.engine import Engine
from comm_plan.runtime.timing import StepSeconds, median_timing

WORTH = 0.05
"""A new plan must save this share of the iteration, or the old one stays."""

SETTLING = 2
"""First steps under a plan, which are not looked at: allocations, first touches."""

Resolve = Callable[[Profile, Network], Plan]


@dataclass(frozen=True)
class _Proposal:
    """What rank 0 found: corrected costs, and the plan that they ask for."""

    profile: Profile
    network: Network
    expected: Plan
    plan: Plan
    reason: str


class Adaptation:
    """Watches an engine, and swaps its plan when the run is not as predicted.

    Every rank makes one for its engine, and calls :meth:`close` at the end.

    Args:
        engine: its plan must have been solved from these documents.
        profile: of the model.
        network: of the ranks.
        resolve: returns the plan for other costs, on rank 0.

    Attributes:
        replans: every change of plan so far.
    """

    def __init__(
        self, engine: Engine, profile: Profile, network: Network, resolve: Resolve
    ) -> None:
        self.replans: list[Replan] = []
        self._engine = engine
        self._profile, self._network = profile, network
        self._resolve = resolve
        self._expected = engine.plan
        self._drift = Drift()
        self._window: list[StepSeconds] = []
        self._settling = SETTLING
        self._solver = ThreadPoolExecutor(1, thread_name_prefix="comm-plan-adapt")
        self._solving: Future[_Proposal] | None = None
        engine.between_steps = self._after_step

    def close(self) -> None:
        """Stop watching."""
        self._engine.between_steps = None
        self._solver.shutdown(wait=True)

    def _after_step(self) -> None:
        moments = self._engine.last_moments
        seconds = None if moments is None else moments.seconds()
        if self._settling:
            self._settling -= 1
        elif seconds is not None:
            self._window.append(seconds)
        if len(self._window) == WINDOW:
            self._end_window()

    def _end_window(self) -> None:
        timing = median_timing(self._window)
        self._window = []
        ranks = self._engine.transport
        every_rank = ranks.gather_objects(timing)
        proposal = None
        if ranks.rank == 0:
            proposal = self._proposed()
            if proposal is None and self._solving is None:
                self._observe(Correction.of(self._expected, of_all_ranks(every_rank)))
        agreed: _Proposal | None = ranks.broadcast_object(proposal)
        if agreed is not None:
            self._take(agreed)

    def _observe(self, correction: Correction) -> None:
        """Begin to solve again if the drift has lasted (rank 0)."""
        factors = (correction.backward, *correction.collectives.values())
        if not self._drift.outlasts(factors):
            return
        self._drift.forget()
        self._solving = self._solver.submit(self._propose, correction)

    def _propose(self, correction: Correction) -> _Proposal:
        profile = correction.profile(self._profile)
        network = correction.network(self._network)
        return _Proposal(
            profile=profile,
            network=network,
            expected=priced_again(self._engine.plan, profile, network),
            plan=self._resolve(profile, network),
            reason=_reason(correction),
        )

    def _proposed(self) -> _Proposal | None:
        """Return what has been solved meanwhile (rank 0)."""
        if self._solving is None or not self._solving.done():
            return None
        proposal = self._solving.result()
        self._solving = None
        return proposal

    def _take(self, proposal: _Proposal) -> None:
        """Expect the corrected costs from now on; swap the plan if it is worth it."""
        self._profile, self._network = proposal.profile, proposal.network
        old_s, new_s = _predicted_s(proposal.expected), _predicted_s(proposal.plan)
        if new_s > (1 - WORTH) * old_s:
            self._expected = proposal.expected
            return
        self.replans.append(
            Replan(
                step=self._engine.step,
                reason=proposal.reason,
                plan_sha256=proposal.plan.sha256,
                expected_s=_predicted_s(self._expected),
                corrected_s=old_s,
                predicted_s=new_s,
            )
        )
        self._engine.swap(proposal.plan)
        self._expected = proposal.plan
        self._settling = SETTLING


def _predicted_s(plan: Plan) -> float:
    return 0.0 if plan.predicted is None else plan.predicted.iteration_s


def _reason(correction: Correction) -> str:
    parts = [
        f"{name} takes {factor:.3g} times as long as expected"
        for name, factor in correction.collectives.items()
    ]
    return ", ".join([*parts, f"backward {correction.backward:.3g} times"])
