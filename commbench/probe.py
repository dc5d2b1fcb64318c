"""What a sweep takes at least, told beforehand by a few collectives of growing size.

A sweep repeats every size of every collective a fewest number of times, however slow
the network is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from comm_plan.collectives.registry import COLLECTIVES
from comm_plan.commbench import summing, sweep
from comm_plan.transports.base import Transport
from comm_plan.transports.elapsed import elapsed_s

TRIES = 2
"""Calls of each size, of which the faster counts."""

AGAIN, AGAIN_S = 3, 1.0
"""A size on which the reach depends is probed again, so often at most and for so many
seconds: other programs may have had the core, which long calls hardly show."""

TELLING = 4.0
"""An all-reduce that takes so many times the shortest one tells the bandwidth."""


@dataclass(frozen=True)
class Probed:
    """One size.

    Attributes:
        nbytes: of a collective.
        sweep_s: what a sweep up to this size takes at least.
        telling: whether it tells the bandwidth.
    """

    nbytes: int
    sweep_s: float
    telling: bool


@dataclass(frozen=True)
class Affordable:
    """What there is time for.

    Attributes:
        sizes: in bytes, the smallest first.
        sweep_s: what a sweep of them takes at least.
        left_s: what the probe has left of the budget.
    """

    sizes: tuple[int, ...]
    sweep_s: float
    left_s: float


def probe(
    transport: Transport,
    sizes: Sequence[int],
    budget_s: float,
    collectives: Sequence[str] = tuple(COLLECTIVES),
) -> tuple[Probed, ...]:
    """Return what sweeps up to each size take, equal on all ranks.

    A collective call.

    Args:
        transport: the ranks.
        sizes: in bytes, the smallest first.
        budget_s: the sizes end with the first that tells the bandwidth and that a sweep
            of so many seconds does not reach.
        collectives: what the sweep is of; all-reduce is probed in any case.
    """
    names = sorted({*collectives, "allreduce"})
    took: list[dict[str, float]] = []
    probed: tuple[Probed, ...] = ()
    for nbytes in sizes:
        took.append(_each_s(transport, names, nbytes))
        probed = _probed(sizes, took, collectives)
        if _is_decisive(probed, budget_s):
            took[-1] = _again(transport, nbytes, took[-1])
            probed = _probed(sizes, took, collectives)
        if _ends(probed[-1], budget_s):
            break
    return probed


def _each_s(
    transport: Transport, names: Sequence[str], nbytes: int
) -> dict[str, float]:
    """Return what one call of each of ``names`` takes that is measured at the size."""
    return {
        name: seconds(transport, name, nbytes)
        for name in names
        if nbytes <= COLLECTIVES[name].operation.largest_nbytes
    }


def _again(
    transport: Transport, nbytes: int, each_s: Mapping[str, float]
) -> dict[str, float]:
    """Return ``each_s``, where calls were faster in another try so much less."""
    least_s = dict(each_s)
    tries_s = TRIES * sum(each_s.values())
    for _ in range(min(AGAIN, int(AGAIN_S / tries_s))):
        again = _each_s(transport, list(least_s), nbytes)
        least_s = {name: min(least_s[name], again[name]) for name in again}
    return least_s


def _is_decisive(probed: Sequence[Probed], budget_s: float) -> bool:
    """Return whether the last size is the first that tells, or ends the probe."""
    *others, last = probed
    first = last.telling and not any(each.telling for each in others)
    return first or _ends(last, budget_s)


def _ends(last: Probed, budget_s: float) -> bool:
    """Return whether longer messages than ``last`` need not be probed."""
    return last.telling and last.sweep_s > budget_s


def _probed(
    sizes: Sequence[int],
    took: Sequence[Mapping[str, float]],
    collectives: Iterable[str],
) -> tuple[Probed, ...]:
    """Return what seconds of calls say of a sweep.

    Args:
        sizes: in bytes, the smallest first.
        took: of the first sizes, by collective.
        collectives: what the sweep is of.
    """
    probed: list[Probed] = []
    shortest_s = math.inf
    total_s = summing_s = 0.0
    for nbytes, each_s in zip(sizes, _levelled(took), strict=False):
        shortest_s = min(shortest_s, each_s["allreduce"])
        total_s += sum(
            sweep.fewest_calls(nbytes, each_s[name]) * each_s[name]
            for name in collectives
            if name in each_s
        )
        if summing.is_fitting(nbytes, each_s["allreduce"]):
            summing_s = summing.CALLS * each_s["allreduce"]
        telling = each_s["allreduce"] >= TELLING * shortest_s
        probed.append(Probed(nbytes, total_s + summing_s, telling))
    return tuple(probed)


def _levelled(took: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Return ``took``, none more than a larger size takes: what is more is a delay."""
    levelled: list[dict[str, float]] = []
    least_s: dict[str, float] = {}
    for each_s in reversed(took):
        least_s = {name: min(s, least_s.get(name, s)) for name, s in each_s.items()}
        levelled.append(least_s)
    return levelled[::-1]


def reached(probed: Sequence[Probed], budget_s: float) -> Probed:
    """Return up to which size to measure: as far as there is time, and bandwidth shows.

    Args:
        probed: the sizes, the smallest first.
        budget_s: how long a sweep may take if bandwidth shows by then.
    """
    enough = next((each for each in probed if each.telling), probed[-1])
    fitting = [each for each in probed if each.sweep_s <= budget_s]
    return max([enough, *fitting], key=lambda each: each.nbytes)


def affordable(
    transport: Transport,
    sizes: Sequence[int],
    budget_s: float,
    collectives: Sequence[str] = tuple(COLLECTIVES),
) -> Affordable:
    """Return how many of ``sizes`` there is time for; every rank calls this.

    Args:
        transport: the ranks.
        sizes: in bytes, the smallest first.
        budget_s: seconds for probing and sweeping them.
        collectives: what the sweep is of.
    """
    began_s = time.perf_counter()
    last = reached(probe(transport, sizes, budget_s, collectives), budget_s)
    fitting = tuple(nbytes for nbytes in sizes if nbytes <= last.nbytes)
    left_s = budget_s - (time.perf_counter() - began_s)
    return Affordable(fitting, last.sweep_s, left_s)


def seconds(transport: Transport, collective: str, nbytes: int) -> float:
    """Return what one call takes on the slowest rank."""
    kind = COLLECTIVES[collective].operation
    whole = sweep.whole_nbytes(kind, nbytes, transport.world_size)
    operation = kind(transport, whole)
    own_s = min(elapsed_s(transport, operation.run) for _ in range(TRIES))
    slowest_s: float = max(transport.gather_objects(own_s))
    return slowest_s
