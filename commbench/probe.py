"""What a sweep takes at least, told beforehand by a few collectives of growing size.

A sweep repeats every size of every collective a fewest number of times, however slow
the network is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from comm_plan.collectives.registry import COLLECTIVES
from comm_plan.commbench import summing, sweep
from comm_plan.transports.base import Transport
from comm_plan.transports.elapsed import elapsed_s

TRIES = 2
"""Calls of each size, of which the faster counts."""

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
    probed: list[Probed] = []
    shortest_s = math.inf
    total_s = summing_s = 0.0
    for nbytes in sizes:
        names = {*collectives, "allreduce"}
        each_s = {name: seconds(transport, name, nbytes) for name in sorted(names)}
        shortest_s = min(shortest_s, each_s["allreduce"])
        total_s += sum(
            sweep.fewest_calls(nbytes, each_s[name]) * each_s[name]
            for name in collectives
        )
        if summing.is_fitting(nbytes, each_s["allreduce"]):
            summing_s = summing.CALLS * each_s["allreduce"]
        telling = each_s["allreduce"] >= TELLING * shortest_s
        probed.append(Probed(nbytes, total_s + summing_s, telling))
        if telling and probed[-1].sweep_s > budget_s:
            break
    return tuple(probed)


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
    """Return what one call takes on the slowest rank; 0 where it is not measured."""
    kind = COLLECTIVES[collective].operation
    if nbytes > kind.largest_nbytes:
        return 0.0
    whole = sweep.whole_nbytes(kind, nbytes, transport.world_size)
    operation = kind(transport, whole)
    own_s = min(elapsed_s(transport, operation.run) for _ in range(TRIES))
    slowest_s: float = max(transport.gather_objects(own_s))
    return slowest_s
