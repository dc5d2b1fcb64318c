"""What the text and the JSON of nccl-tests have in common: the rows.

Sizes are counted as in a network document: all-gather's is the total. nccl-tests gives
one time a size, a mean, which stands for median, minimum and 95th percentile alike
unless the file has times of single iterations.

Versions before 2.17 do not say which collective they measured. It then follows from the
columns (reduced, with a root) and from bus over algorithm bandwidth, whose ratio is
2 (P - 1) / P for an all-reduce, (P - 1) / P for a reduce-scatter and 1 for sendrecv,
which claims to reduce as well. It does not follow where no collective or several have
these columns and this ratio: all-gather and all-to-all, all-reduce and sendrecv of two
ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from comm_plan.collectives.registry import COLLECTIVES
from comm_plan.commbench.measurement import merged
from comm_plan.errors import DocumentError
from comm_plan.plans.network import Sample

PROGRAMS = {
    "all_reduce_perf": "allreduce",
    "all_gather_perf": "allgather",
    "reduce_scatter_perf": "reduce_scatter",
    "broadcast_perf": "broadcast",
    "sendrecv_perf": "point_to_point",
}
UNNAMED = {
    (True, False): ("allreduce", "reduce_scatter", "point_to_point"),
    (False, True): ("broadcast",),
}
"""What a row can be of: by whether it reduces, and whether it has a root."""

SYNC = "nccl-tests: iterations back to back, mean over iterations and ranks"
DEFAULT_ITERATIONS = 20

_ROUNDING = 0.005  # of the bandwidths in a text
_ROUNDING_OF_LARGE = 1e-3  # times the bandwidth: a text keeps four digits of it


@dataclass(frozen=True)
class ResultRow:
    """One size; bandwidths in 1e9 bytes per second, ``wrong`` results if counted.

    ``of_launch``: its time is what the CPU takes to launch it, not the collective's.
    """

    nbytes: int
    time_us: float
    algbw: float
    busbw: float
    redop: str = "none"
    root: int = -1
    wrong: float = 0.0
    of_launch: bool = False
    iterations: int = DEFAULT_ITERATIONS
    min_us: float | None = None
    p95_us: float | None = None


def samples(rows: Iterable[ResultRow], source: str) -> tuple[Sample, ...]:
    """Return the samples of ``rows``, those of 0 bytes left out.

    Raises:
        DocumentError: nothing is left, a time is no time, or results were wrong.
    """
    kept = [_sample(row, source) for row in rows if row.nbytes > 0]
    if not kept:
        raise DocumentError(f"{source}: no row of more than 0 bytes: measure some")
    return merged(kept)


def _sample(row: ResultRow, source: str) -> Sample:
    if row.of_launch:
        raise DocumentError(
            f"{source}: times are the CPU's, which launches: run nccl-tests without -C"
        )
    if row.wrong > 0:
        raise DocumentError(
            f"{source}: {row.wrong:g} wrong results at {row.nbytes} bytes: its times "
            "mean nothing, find out why and measure again"
        )
    if not 0 < row.time_us < math.inf:
        raise DocumentError(
            f"{source}: time {row.time_us:g} us at {row.nbytes} bytes: measure again"
        )
    return Sample(
        nbytes=row.nbytes,
        median_s=row.time_us * 1e-6,
        min_s=(row.min_us or row.time_us) * 1e-6,
        p95_s=(row.p95_us or row.time_us) * 1e-6,
        iterations=row.iterations,
    )


def in_group_of_first(
    hosts: Mapping[int, str], groups: Mapping[int, object]
) -> dict[int, str]:
    """Return those of ``hosts``, by rank, that are in the group of the first rank.

    ``NCCL_TESTS_SPLIT`` makes several groups, each of which measures by itself, at the
    same time.
    """
    first = groups[min(groups)] if groups else None
    return {rank: host for rank, host in hosts.items() if groups[rank] == first}


def collective_of(
    rows: Sequence[ResultRow],
    program: str | None,
    source: str,
    world_size: int | None,
) -> str:
    """Return the collective that ``program`` or, if None, the largest row tells.

    Args:
        rows: at least one.
        program: of nccl-tests; None: the file does not say.
        source: the file's name, for messages.
        world_size: number of ranks; None: not known.

    Raises:
        DocumentError: it is not supported, cannot be told, or its bandwidths are those
            of another number of ranks.
    """
    largest = max(rows, key=lambda row: row.nbytes)
    if program is None:
        return _told_by(largest, source, world_size)
    if program not in PROGRAMS:
        known = ", ".join(PROGRAMS)
        raise DocumentError(f"{source}: {program} is none of {known}")
    collective = PROGRAMS[program]
    if world_size is not None and not _can_be(largest, collective, world_size):
        raise DocumentError(
            f"{source}: a busbw of {largest.busbw:g} at an algbw of {largest.algbw:g} "
            f"is not that of {program} among {world_size} ranks: how many were there? "
            "(Built without MPI, nccl-tests measures each process alone.)"
        )
    return collective


def _told_by(row: ResultRow, source: str, world_size: int | None) -> str:
    columns = row.redop != "none", row.root >= 0
    if world_size is not None:
        names = [n for n in UNNAMED.get(columns, ()) if _can_be(row, n, world_size)]
        if len(names) == 1:
            return names[0]
    raise DocumentError(
        f"{source}: does not say which collective it is: put a first line "
        '"# Collective test starting: all_gather_perf", or whichever it was'
    )


def _can_be(row: ResultRow, collective: str, world_size: int) -> bool:
    """Return whether the bandwidths of ``row``, as printed, are the collective's."""
    bus_factor = COLLECTIVES[collective].bus_factor
    assert bus_factor is not None
    factor = bus_factor(world_size)
    rounding = _ROUNDING * (1 + factor) + _ROUNDING_OF_LARGE * row.busbw
    return abs(row.busbw - factor * row.algbw) <= rounding
