"""All collectives: one line each; everything about one is in its own file.

Importing this needs no torch: planning knows what collectives cost without it.
"""

from __future__ import annotations

from collections.abc import Iterable

from comm_plan.collectives.allgather import ALLGATHER
from comm_plan.collectives.allreduce import ALLREDUCE
from comm_plan.collectives.broadcast import BROADCAST
from comm_plan.collectives.collective import Collective
from comm_plan.collectives.gtopk import GTOPK
from comm_plan.collectives.point_to_point import POINT_TO_POINT
from comm_plan.collectives.reduce_scatter import REDUCE_SCATTER
from comm_plan.collectives.spardl import SPARDL
from comm_plan.collectives.two_pass import TWO_PASS
from comm_plan.errors import unknown

COLLECTIVES: dict[str, Collective] = {
    collective.name: collective
    for collective in (
        ALLREDUCE,
        ALLGATHER,
        REDUCE_SCATTER,
        BROADCAST,
        POINT_TO_POINT,
        GTOPK,
        SPARDL,
        TWO_PASS,
    )
}
"""The collectives that a network document may hold and ``benchmark-network`` measures.

Those that aggregate may carry the buckets of a plan.
"""

ALGORITHMS = tuple(
    dict.fromkeys(
        name
        for known in COLLECTIVES.values()
        if len(known.algorithms) > 1
        for name in known.algorithms
    )
)
"""The names of the closed forms between which there is a choice."""


def check_known(names: Iterable[str]) -> None:
    """Check that every one of ``names`` is a collective.

    Raises:
        InputError: one is not; it says which there are.
    """
    for name in names:
        if name not in COLLECTIVES:
            raise unknown("collective", name, COLLECTIVES)
