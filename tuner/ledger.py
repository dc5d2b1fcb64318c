"""What every plan of a tuning did in its trials, and what that says of the plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from comm_plan.arrays import FloatArray
from comm_plan.planner import Settings
from comm_plan.planner.correction import Correction
from comm_plan.planner.observed import Seen, correction
from comm_plan.plans import Curve, Network, Profile, Round, Trial
from comm_plan.tuner.candidates import Candidate
from comm_plan.tuner.trials import Block
from comm_plan.tuner.tuned import file_of

BELIEVED = 0.5
"""Profile and benchmark were measured some minutes before the trials. Machines drift,
so neither is nearer to the next minutes: both count alike."""


class Ledger:
    """The trials so far.

    Args:
        tried: the plans that there are, the baseline first.

    Attributes:
        plans: those, by name.
        baseline: the name of the first.
        ratios: how much each leaves out, by name.
    """

    def __init__(self, tried: Sequence[Candidate]) -> None:
        self.plans = {candidate.name: candidate.plan for candidate in tried}
        self.baseline = tried[0].name
        self.ratios = {candidate.name: candidate.ratio for candidate in tried}
        self._tried = tried
        self._rounds: list[Mapping[str, FloatArray]] = []
        self._curves: dict[str, list[Curve]] = {name: [] for name in self.plans}
        self._blocks: dict[str, list[Block]] = {name: [] for name in self.plans}

    def add(self, name: str, block: Block) -> None:
        """Add a block of iterations, whichever round or training it belongs to."""
        self._blocks[name].append(block)

    def add_round(self, seconds: Mapping[str, FloatArray]) -> None:
        """Add the iterations of a round: of the plans that were in it, the baseline's.

        Args:
            seconds: [iterations] of each, by name.
        """
        self._rounds.append(seconds)

    def add_curve(self, name: str, curve: Curve) -> None:
        """Add the loss of a training."""
        self._curves[name].append(curve)

    def trials(self) -> list[Trial]:
        """Return what is known of each plan, the baseline first."""
        return [
            Trial(
                name=candidate.name,
                plan=file_of(candidate.name),
                lossless=candidate.plan.is_exact,
                local=candidate.local,
                predicted_s=candidate.predicted_s,
                rounds=tuple(map(_summary, self._seconds(candidate.name))),
                measured_s=self._measured_s(candidate.name),
                curves=tuple(self._curves[candidate.name]),
            )
            for candidate in self._tried
        ]

    def overheads_s(self, names: Iterable[str]) -> float:
        """Return what blocks take beside their iterations, as each plan's last did."""
        return sum(self._blocks[name][-1].overhead_s for name in names)

    def correction(
        self, profile: Profile, network: Network, settings: Settings
    ) -> Correction | None:
        """Return what all trials say of the costs; None before any has run.

        Args:
            profile: what the plans were computed from.
            network: likewise.
            settings: likewise.
        """
        seen = []
        for name, blocks in self._blocks.items():
            timings = [block.timing for block in blocks if block.timing is not None]
            if timings:
                iterations_s = [float(np.median(block.seconds)) for block in blocks]
                seen.append(Seen.median(self.plans[name], timings, iterations_s))
        if not seen:
            return None
        return correction(seen, profile, network, settings).partly(BELIEVED)

    def _measured_s(self, name: str) -> float | None:
        """Return what a plan took in all its rounds, by the clock of all rounds.

        It is compared with the baseline of the rounds that it was in, as the machine
        may have been another in the others.
        """
        own = self._seconds(name)
        if not own:
            return None
        then, always = self._seconds(self.baseline, name), self._seconds(self.baseline)
        return _median(own) * (_median(always) / _median(then))

    def _seconds(self, name: str, other: str | None = None) -> list[FloatArray]:
        """Return a plan's iterations in each of its rounds, which ``other`` was in."""
        return [
            seconds[name]
            for seconds in self._rounds
            if name in seconds and (other is None or other in seconds)
        ]


def _median(rounds: Sequence[FloatArray]) -> float:
    return float(np.median(np.concatenate(rounds)))


def _summary(seconds: FloatArray) -> Round:
    return Round(
        iterations=len(seconds),
        median_s=float(np.median(seconds)),
        p95_s=float(np.percentile(seconds, 95)),
    )
