"""Successive halving: all plans in a short round, the faster half in a longer one.

Within a round the plans take turns, in one order and then in the other (A B B A), so
that a machine that gets slower or faster meanwhile does so for all of them. The
baseline is in every round: what is said of a plan is said against it, measured at the
same time. Which of the last few is fastest is the hardest to tell: where time is short,
a round leaves as much to those behind it as it takes. Plans that are left were in the
same rounds, so what all of them say counts.

An iteration of one plan may take twenty times as long as one of another, and the
slowest decides how many there is time for. So plans that take less have more of them in
the same time; the baseline, where no other takes as long, has as few as tell how fast
the machine is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from comm_plan.arrays import FloatArray
from comm_plan.tuner.trials import Block, warm_up_of

ROUNDS = (6, 20, 80, 80)
"""Iterations of the slowest plan in a round; the budget may allow fewer."""

TURN = (5, 20)
"""Iterations of a plan before it is the next one's turn: fewest, and most where they
are short. Blocks of one plan differ by as much as the iterations of one block, 5 to 9 %
on two shared cores: so many short ones tell more than a few long ones."""

TURN_S = 1.0
"""Short iterations go on for so long."""

FEWEST = 4
"""A round of fewer iterations would say nothing: it is not begun."""

START_S = 1.0
"""What making an engine is taken for before one was made."""

Measure = Callable[[str, int], Block]
"""Runs a plan for so many counted iterations."""


class Split(NamedTuple):
    """How a round is split: plans take turns, in one order and then in the other."""

    pairs: int
    """How many times both."""

    each: int
    """Iterations of the slowest plan in a turn."""


class Halving:
    """The rounds of one tuning; every rank does the same.

    Args:
        expected_s: predicted seconds of an iteration of each plan, by name, the
            baseline's among them. What is measured takes their place.
        baseline: the plan that is in every round.
        measure: runs one.
        left_s: returns the seconds that are left, the same on all ranks.
        round_steps: of how many iterations whole rounds are made, by the plans that
            have local steps; ``measure`` rounds up to them.

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
        self._measured: dict[str, list[FloatArray]] = {name: [] for name in expected_s}
        self._overhead_s = {
            name: START_S + self._whole(name, warm_up_of(seconds)) * seconds
            for name, seconds in expected_s.items()
        }
        self._baseline = baseline
        self._measure = measure
        self._left_s = left_s
        self.complete = False

    def rounds(self, wished: Sequence[int] = ROUNDS) -> Iterator[dict[str, FloatArray]]:
        """Yield the seconds of each plan's iterations, by name, in each round.

        A round may have fewer iterations than are wished. One that some plans did not
        get to is left out, as it compares nothing, unless it is the first.
        """
        running = list(self._iteration_s)
        as_wished = True
        coming = _coming(wished, len(running) - 1)
        for number, iterations in enumerate(coming):
            splits = self._splits(running, iterations)
            split = self._fitting(running, splits, len(coming) - number)
            if split is None:
                return
            results = self._round(running, split)
            all_ran = len(results) == len(running)
            if all_ran or (results and number == 0):
                yield results
            if not all_ran:
                return
            as_wished = as_wished and split == splits[0]
            running = self._faster_half(running)
        self.complete = as_wished

    def _splits(self, running: Sequence[str], iterations: int) -> list[Split]:
        """Return what a round may be, longest first.

        Args:
            running: the plans.
            iterations: of the longest, at least.
        """
        fewest, most = TURN
        longest = min(max(fewest, int(TURN_S / self._slowest_s(running))), most)
        pairs = math.ceil(iterations / (2 * longest))
        each = math.ceil(iterations / (2 * pairs))
        fewer = [Split(number, each) for number in range(pairs, 0, -1)]
        shorter = [Split(1, number) for number in range(each - 1, 0, -1)]
        return [s for s in fewer + shorter if 2 * s.pairs * s.each >= FEWEST]

    def _fitting(
        self, running: Sequence[str], splits: Sequence[Split], rounds_left: int
    ) -> Split | None:
        """Return the first of ``splits`` for which there is time; None: for none is.

        Args:
            running: the plans.
            splits: as from :meth:`_splits`.
            rounds_left: that share what is left, unless one alone needs all of it.
        """
        left_s = self._left_s()
        for share_s in (left_s / rounds_left, left_s):
            for split in splits:
                turn = self._turn(running, split.each)
                order = self._order(turn, split.pairs)
                if sum(self._needed_s(name, turn[name]) for name in order) <= share_s:
                    return split
        return None

    def _turn(self, running: Sequence[str], each: int) -> dict[str, int]:
        """Return the iterations of each of ``running`` in a turn.

        Args:
            running: the plans.
            each: those of the slowest, the baseline apart.
        """
        longest_s = each * self._slowest_s(running)
        in_its_time = {
            name: math.floor(longest_s / self._iteration_s[name]) for name in running
        }
        turn = {
            name: max(each, min(TURN[1], fitting))
            for name, fitting in in_its_time.items()
        }
        of_baseline = min(each, max(FEWEST // 2, in_its_time[self._baseline]))
        return {**turn, self._baseline: of_baseline}

    def _slowest_s(self, running: Sequence[str]) -> float:
        """Return what an iteration of the slowest takes, the baseline apart."""
        others = [name for name in running if name != self._baseline]
        return max(self._iteration_s[name] for name in others or [self._baseline])

    def _needed_s(self, name: str, iterations: int) -> float:
        whole = self._whole(name, iterations)
        return self._overhead_s[name] + whole * self._iteration_s[name]

    def _whole(self, name: str, iterations: int) -> int:
        """Return how many iterations of a plan are run for so many."""
        every = self._round_steps.get(name, 1)
        return -(-iterations // every) * every

    def _order(self, turn: Mapping[str, int], pairs: int) -> list[str]:
        """Return whose turn it is: all, in one order and then in the other, each time.

        The baseline is left out of some, where its turns take longer than others'.

        Args:
            turn: iterations of each plan in a turn.
            pairs: how many times.
        """
        needed_s = {name: self._needed_s(name, turn[name]) for name in turn}
        baseline_s = needed_s.pop(self._baseline)
        every = max(1, round(baseline_s / max(needed_s.values(), default=baseline_s)))
        order: list[str] = []
        for number in range(pairs):
            names = tuple(turn) if number % every == 0 else tuple(needed_s)
            order += (*names, *reversed(names))
        return order

    def _round(self, running: Sequence[str], split: Split) -> dict[str, FloatArray]:
        """Return what was measured; no turn is begun that would not fit any more."""
        turn = self._turn(running, split.each)
        seconds: dict[str, list[FloatArray]] = {name: [] for name in turn}
        for name in self._order(turn, split.pairs):
            if self._left_s() < self._caution(name) * self._needed_s(name, turn[name]):
                break
            block = self._measure(name, turn[name])
            seconds[name].append(block.seconds)
            self._ratios[name] = (
                float(np.median(block.seconds)) / self._expected_s[name]
            )
            self._overhead_s[name] = block.overhead_s
            self._measured[name].append(block.seconds)
            in_all = np.concatenate(self._measured[name])
            self._iteration_s[name] = float(np.median(in_all))
        return {name: np.concatenate(own) for name, own in seconds.items() if own}

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


def _coming(wished: Sequence[int], plans: int) -> list[int]:
    """Return the rounds but those that do the same again to a plan that is left alone.

    Args:
        wished: iterations of each.
        plans: in the first, the baseline apart.
    """
    coming: list[int] = []
    for iterations in wished:
        if plans <= 1 and iterations in coming:
            break
        coming.append(iterations)
        plans = math.ceil(plans / 2)
    return coming
