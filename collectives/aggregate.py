"""How the messages of a bucket are combined; a new way is one file and one line here.

Every aggregation does one step of one bucket between the compressor's ``add`` and its
``write``: agree, encode, move and combine, decode. It returns the bytes that this rank
contributed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from comm_plan.collectives import allgather, allreduce, gtopk
from comm_plan.transports.base import Transport

Aggregation = Callable[[Transport, Any], int]

AGGREGATIONS: dict[str, Aggregation] = {
    "allreduce": allreduce.aggregate,
    "allgather": allgather.aggregate,
    "gtopk": gtopk.aggregate,
}
"""The aggregation of each ``collective`` that a plan's bucket may name."""
