"""Algorithm and bus bandwidth, as nccl-tests defines them.

The algorithm bandwidth of a collective is its size over its time. The bus bandwidth
is that times a factor which takes the number of ranks out: with an optimal algorithm it
is the speed of each rank's link, for every collective and every P, so it can be held
against what the hardware can do.

=====================================  =================
collective                             factor
=====================================  =================
all-reduce                             2 (P - 1) / P
all-gather, reduce-scatter             (P - 1) / P
broadcast, point to point              1
gTop-k                                 2 ceil(log2 P)
=====================================  =================

The first three rows are those of nccl-tests. gTop-k moves a rank's whole message up the
tree and down again, one level a round (gTop-k paper, Eq. 7).
"""

from __future__ import annotations

from collections.abc import Callable

BUSBW_FACTORS: dict[str, Callable[[int], float]] = {
    "allreduce": lambda p: 2 * (p - 1) / p,
    "allgather": lambda p: (p - 1) / p,
    "reduce_scatter": lambda p: (p - 1) / p,
    "broadcast": lambda p: 1.0,
    "point_to_point": lambda p: 1.0,
    "gtopk": lambda p: 2.0 * (p - 1).bit_length(),
}
"""Bus over algorithm bandwidth of each collective, for P ranks."""


def algbw(nbytes: float, seconds: float) -> float:
    """Return the algorithm bandwidth in bytes per second.

    Args:
        nbytes: size of the operation, as :mod:`comm_plan.plans.network` counts it.
        seconds: its time, above 0.
    """
    return nbytes / seconds


def busbw(collective: str, world_size: int, nbytes: float, seconds: float) -> float:
    """Return the bus bandwidth in bytes per second.

    Args:
        collective: one of :data:`BUSBW_FACTORS`.
        world_size: number of ranks.
        nbytes: size of the operation, as :mod:`comm_plan.plans.network` counts it.
        seconds: its time, above 0.
    """
    return BUSBW_FACTORS[collective](world_size) * algbw(nbytes, seconds)
