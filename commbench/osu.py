"""The text that the OSU micro-benchmarks print.

::

    # OSU MPI Allreduce Latency Test v7.5
    # Datatype: MPI_CHAR.
    # Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
    4                       2.81              1.89              3.73        1000

The average over the ranks stands for the median; the fastest and the slowest rank, if
printed (``-f``), for minimum and 95th percentile. Without ``-f`` the iterations are the
defaults of OSU. The size of all-gather is that of one rank's part there and the total
in a network document; all others count the same.

OSU never says how many ranks there were, but point to point is between two.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from comm_plan.commbench.measurement import Measurement, merged
from comm_plan.errors import DocumentError, InputError
from comm_plan.plans.network import Sample

TITLES = {
    "Allreduce": "allreduce",
    "Allgather": "allgather",
    "Reduce_scatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "": "point_to_point",
}
"""What stands before ``Latency Test`` in the first line, and its collective."""

SYNC = "OSU: barrier after each iteration, mean over iterations, then over ranks"
SMALL_NBYTES = 8192

_TWO = {"point_to_point": 2}
_TITLE = re.compile(r"# OSU (MPI|NCCL)(?:-\w+)? (.*?) ?Test\b")


@dataclass
class _Table:
    """What was read of one benchmark so far."""

    backend: str
    collective: str
    columns: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)


def recognises(text: str) -> bool:
    """Return whether ``text`` holds the title of an OSU benchmark."""
    return any(_TITLE.match(line.strip()) for line in text.splitlines())


def read(
    text: str, source: str = "<text>", world_size: int | None = None
) -> list[Measurement]:
    """Read every table in ``text``.

    Args:
        text: what the benchmarks printed; other lines in between do no harm.
        source: the file's name, for messages.
        world_size: number of ranks; all-gather needs it.

    Raises:
        DocumentError: no table, or a benchmark that is not supported.
        InputError: ``world_size`` is needed and None.
    """
    tables = [table for table in _tables(text, source, world_size) if table.samples]
    if not tables:
        raise DocumentError(f"{source}: no row under Size and Latency(us)")
    return [
        Measurement(
            collective=table.collective,
            samples=merged(table.samples),
            sync=SYNC,
            backend=table.backend,
            world_size=world_size or _TWO.get(table.collective),
            implied=world_size is None and table.collective in _TWO,
        )
        for table in tables
    ]


def _tables(text: str, source: str, world_size: int | None) -> Iterator[_Table]:
    table: _Table | None = None
    for line in map(str.strip, text.splitlines()):
        if title := _TITLE.match(line):
            if table is not None:
                yield table
            table = _titled(title[1], title[2], source)
        elif table is None:
            continue
        elif line.startswith("# Size"):
            table.columns = re.split(r"\s{2,}", line.removeprefix("# "))
        elif sample := _sample(table, line.split(), source, world_size):
            table.samples.append(sample)
    if table is not None:
        yield table


def _titled(backend: str, name: str, source: str) -> _Table:
    kind = name.removesuffix("Latency").strip()
    if not name.endswith("Latency") or kind not in TITLES:
        titles = (f"{title} Latency Test".lstrip() for title in TITLES)
        known = ", ".join(f'"{title}"' for title in titles)
        raise DocumentError(f'{source}: OSU "{name} Test" is none of {known}')
    return _Table(backend.lower(), TITLES[kind])


def _sample(
    table: _Table, tokens: Sequence[str], source: str, world_size: int | None
) -> Sample | None:
    """Return the row that ``tokens`` are, None if they are none."""
    cells = dict(zip(map(_short, table.columns), tokens, strict=False))
    try:
        nbytes, average = int(cells["Size"]), float(cells["Avg"])
        fastest, slowest = (float(cells.get(k, average)) for k in ("Min", "Max"))
        default = _default_iterations(table.collective, nbytes)
        iterations = int(cells.get("Iterations", default))
    except (KeyError, ValueError):
        return None
    if cells.get("Validation") == "Fail":
        raise DocumentError(
            f"{source}: wrong results at {nbytes} bytes: its times mean nothing"
        )
    if not 0 < average < math.inf:
        raise DocumentError(
            f"{source}: {average:g} us at {nbytes} bytes: measure again"
        )
    return Sample(
        nbytes=nbytes * _parts(table.collective, world_size, source),
        median_s=average * 1e-6,
        min_s=max(fastest, 1e-3) * 1e-6,
        p95_s=slowest * 1e-6,
        iterations=iterations,
    )


def _short(column: str) -> str:
    """Return ``Avg`` for ``Avg Latency(us)`` and for the lone ``Latency (us)``."""
    return re.sub(r" ?Latency ?\(us\)$", "", column) or "Avg"


def _default_iterations(collective: str, nbytes: int) -> int:
    small = 10_000 if collective == "point_to_point" else 1000
    return small if nbytes <= SMALL_NBYTES else small // 10


def _parts(collective: str, world_size: int | None, source: str) -> int:
    """Return by what to multiply a printed size."""
    if collective != "allgather":
        return 1
    if world_size is None:
        raise InputError(
            f"{source}: OSU gives all-gather's size per rank and not the number of "
            "ranks: give --world-size"
        )
    return world_size
