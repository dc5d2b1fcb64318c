"""Repetitions that all ranks time at once, as one.

Where ranks outnumber the cores, each gets one for some milliseconds in turn. A
repetition of about as long then takes what it takes alone on some ranks and several
times that on others, so that the median of a rank is one or the other by chance, and
the longest of the ranks' medians always the other. In training it is how long all of
them take together that counts: the mean of the ranks in each repetition, and of those
the median, which a moment of other work on the machine leaves alone. Hosts that differ
are told apart by what each rank took for all that was ever repeated.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from comm_plan.transports.base import Transport


class Laps:
    """What was repeated on all ranks.

    Args:
        ranks: which time the same at once; every call is a collective one.
    """

    def __init__(self, ranks: Transport) -> None:
        self._ranks = ranks
        self._total_s = np.zeros(ranks.world_size)

    def together(self, own: Sequence[Sequence[float]]) -> list[float]:
        """Return the seconds of each part of a repetition.

        Args:
            own: those of this rank: of its repetitions, the same parts of each. Ranks
                may differ in how many they made.
        """
        of_ranks = self._ranks.gather_objects(own)
        self._total_s += [np.sum(np.mean(laps, axis=0)) for laps in of_ranks]
        fewest = min(map(len, of_ranks))
        means = np.mean([laps[:fewest] for laps in of_ranks], axis=0)
        medians: list[float] = np.median(means, axis=0).tolist()
        return medians

    @property
    def of_slowest(self) -> float:
        """How many times as long as in the mean all of it took on the slowest rank."""
        mean_s = float(self._total_s.mean())
        return float(self._total_s.max()) / mean_s if mean_s else 1.0
