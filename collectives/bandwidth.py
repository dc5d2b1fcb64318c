"""Algorithm and bus bandwidth, as nccl-tests defines them.

The algorithm bandwidth of a collective is its size over its time. The bus bandwidth is
that times a factor which takes the number of ranks out: with an optimal algorithm it is
the speed of each rank's link, for every collective and every P, so it can be held
against what the hardware can do. The factors, such as ``2 (P - 1) / P`` for all-reduce,
stand with each collective in :mod:`comm_plan.collectives`.
"""

from __future__ import annotations

from comm_plan.collectives.registry import COLLECTIVES


def algbw(nbytes: float, seconds: float) -> float:
    """Return the algorithm bandwidth in bytes per second.

    Args:
        nbytes: size, as :mod:`comm_plan.collectives.collective` counts it.
        seconds: its time, above 0.
    """
    return nbytes / seconds


def busbw(
    collective: str, world_size: int, nbytes: float, seconds: float
) -> float | None:
    """Return the bus bandwidth in bytes per second.

    Args:
        collective: a name of a network document.
        world_size: number of ranks.
        nbytes: size, as :mod:`comm_plan.collectives.collective` counts it.
        seconds: its time, above 0.

    Returns:
        None for a collective that has no bus bandwidth (gTop-k).
    """
    known = COLLECTIVES.get(collective)
    if known is None or known.bus_factor is None:
        return None
    return known.bus_factor(world_size) * algbw(nbytes, seconds)
