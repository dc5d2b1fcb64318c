"""Successive halving: all plans in a short round, the faster half in a longer one.

Within a round the plans take turns, in one order and then in the other (A B B A), so
that a machine that gets slower or faster meanwhile does so for all of them. The
baseline is in every round: what is said of a plan is said against it, measured at the
same time.

An iteration of one plan may take twenty times as long as one of another, and the
slowest decides how many there is time for. So plans that take less have more of them in
the same time; the baseline, where no other takes as long, has as few as tell how fast
the machine is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from comm_plan.plans import Round
from comm_plan.profiler.timings import SecondsArray
from comm_plan.tuner.trials import Block, warm_up_of

ROUNDS = (6, 20, 80)
"""Iterations of the slowest plan in a round; the budget may allow fewer in the last."""

TURN = 20
"""Iterations of a plan before it is the next one's turn, at most."""

FEWEST = 4
"""A round of fewer iterations would say nothing: it is not begun."""

START_S = 1.0
"""What making an engine is taken for before one was made."""

Measure = Callable[[str, int], Block]
"""Runs a plan for so many counted iterations."""


class Halving:
    """The rounds of one tuning; every rank does the same.

    Args:
        expected_s: predicted seconds of an iteration of each plan, by name, the
            baseline's among them. What is measured takes their place.
        baseline: the plan that is in every round.
        measure: runs one.
        left_s: returns the seconds that are left, the same on all ranks.
        round_steps: of how many iterations whole rounds are made, by the plans that
            have local steps; :attr:`measure` rounds up to them.

    Attributes:
        complete: whether all rounds were done as wished.
    """

    def __init__(
        self,
        expected_s: Mapping[str, float],
        baseline: str,
        measure: Measure,
        left_s: Callable[[], float],
        round_steps: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._round_steps = round_steps
        self._expected_s = expected_s
        self._ratios: dict[str, float] = {}
        self._iteration_s = dict(expected_s)
        self._overhead_s = {
            name: START_S + self._whole(name, warm_up_of(seconds)) * seconds
            for name, seconds in expected_s.items()
        }
        self._baseline = baseline
        self._measure = measure
        self._left_s = left_s
        self.complete = False

    def rounds(self, wished: Sequence[int] = ROUNDS) -> Iterator[dict[str, Round]]:
        """Yield what each plan took, by name, in each round.

        The last round may have fewer iterations than are wished. One that some plans
        did not get to is left out, as it compares nothing, unless it is the first.
        """
        running = list(self._iteration_s)
        for number, iterations in enumerate(wished):
            turns = 2 * math.ceil(iterations / (2 * TURN))
            wanted = iterations // turns
            each = self._fitting(running, turns, wanted)
            if turns * each < FEWEST:
                return
            results = self._round(self._turn(running, each), turns)
            all_ran = len(results) == len(running)
            if all_ran or (results and number == 0):
                yield results
            if not all_ran or each < wanted:
                return
            running = self._faster_half(running)
        self.complete = True

    def _fitting(self, running: Sequence[str], turns: int, wanted: int) -> int:
        """Return how many iterations, as for :meth:`_turn`, fit into what is left.

        Args:
            running: the plans.
            turns: of every plan.
            wanted: no more than these.
        """
        left_s = self._left_s()
        for each in range(wanted, 0, -1):
            turn = self._turn(running, each)
            if turns * sum(map(self._needed_s, turn, turn.values())) <= left_s:
                return each
        return 0

    def _turn(self, running: Sequence[str], each: int) -> dict[str, int]:
        """Return the iterations of each of ``running`` in a turn.

        Args:
            running: the plans.
            each: those of the slowest, the baseline apart.
        """
        seconds = {name: self._iteration_s[name] for name in running}
        baseline_s = seconds.pop(self._baseline)
        longest_s = each * max(seconds.values(), default=baseline_s)
        turn = {
            name: max(each, min(TURN, math.floor(longest_s / own_s)))
            for name, own_s in seconds.items()
        }
        in_its_time = math.floor(longest_s / baseline_s)
        return {self._baseline: min(each, max(FEWEST // 2, in_its_time)), **turn}

    def _needed_s(self, name: str, iterations: int) -> float:
        whole = self._whole(name, iterations)
        return self._overhead_s[name] + whole * self._iteration_s[name]

    def _whole(self, name: str, iterations: int) -> int:
        """Return how many iterations of a plan are run for so many."""
        every = self._round_steps.get(name, 1)
        return -(-iterations // every) * every

    def _round(self, turn: Mapping[str, int], turns: int) -> dict[str, Round]:
        """Return what was measured; no turn is begun that would not fit any more.

        Args:
            turn: iterations of each plan in a turn.
            turns: of every plan.
        """
        seconds: dict[str, list[SecondsArray]] = {name: [] for name in turn}
        names = tuple(turn)
        order = (*names, *reversed(names)) * (turns // 2)
        for name in order:
            if self._left_s() < self._caution(name) * self._needed_s(name, turn[name]):
                break
            block = self._measure(name, turn[name])
            seconds[name].append(block.seconds)
            self._ratios[name] = (
                float(np.median(block.seconds)) / self._expected_s[name]
            )
            self._overhead_s[name] = block.overhead_s
            self._iteration_s[name] = float(np.median(np.concatenate(seconds[name])))
        return {
            name: _summary(np.concatenate(blocks))
            for name, blocks in seconds.items()
            if blocks
        }

    def _caution(self, name: str) -> float:
        """Return by how much a plan may take longer than it is thought to.

        One that has run takes what it took. Another may be mispredicted as badly as
        the worst of those.
        """
        if name in self._ratios:
            return 1.0
        return max([1.0, *self._ratios.values()])

    def _faster_half(self, running: Sequence[str]) -> list[str]:
        others = [name for name in running if name != self._baseline]
        others.sort(key=lambda name: self._iteration_s[name])
        kept = others[: math.ceil(len(others) / 2)]
        return [name for name in running if name == self._baseline or name in kept]


def _summary(seconds: SecondsArray) -> Round:
    return Round(
        iterations=len(seconds),
        median_s=float(np.median(seconds)),
        p95_s=float(np.percentile(seconds, 95)),
    )
