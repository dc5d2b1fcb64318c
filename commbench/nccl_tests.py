"""The text that nccl-tests prints.

::

    # Collective test starting: all_reduce_perf
    # nThread 1 nGpus 1 minBytes 8 maxBytes 16 step: 2(factor) ... iters: 20 ...
    #  Rank  0 Group  0 Pid  4711 on   node-0 device  0 [0000:07:00] NVIDIA H100
    #       size         count      type   redop    root     time   algbw ...
    #        (B)    (elements)                               (us)  (GB/s) ...
               8             2     float     sum      -1    36.50    0.00 ...

Columns are found by name, because versions differ: old ones have no ``root``, and no
``redop`` where nothing is reduced; new ones may add columns of single iterations. The
first ``time`` is that of the out-of-place run, the headline figure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from comm_plan.commbench.measurement import Measurement
from comm_plan.commbench.nccl_rows import (
    DEFAULT_ITERATIONS,
    SYNC,
    ResultRow,
    collective_of,
    in_group_of_first,
    samples,
)
from comm_plan.errors import DocumentError

_PROGRAM = re.compile(r"\b([a-z]+(?:_[a-z]+)*_perf)(?=\b|_)")
_NUMBER = r"(\d{1,18})\b"  # a longer one counts nothing that there is
_RANK = re.compile(
    rf"Rank\s+{_NUMBER}\s(?:\s*Group\s+{_NUMBER}\s)?.*?\bon\s+(\S+)\s+device"
)
_THREADS = re.compile(rf"nThread\s+{_NUMBER}\s+nGpus\s+{_NUMBER}")
_ITERATIONS = re.compile(rf"(?<!warmup )(?<!agg )\biters:\s*{_NUMBER}")
_BACKEND = re.compile(r"\s*# Backend (\S+)")


@dataclass
class _Run:
    """What was read of one run so far."""

    program: str | None = None
    hosts: dict[int, str] = field(default_factory=dict)
    groups: dict[int, str | None] = field(default_factory=dict)
    ranks: int = 1
    iterations: int = DEFAULT_ITERATIONS
    backend: str = "nccl"
    rows: list[ResultRow] = field(default_factory=list)


def recognises(text: str) -> bool:
    """Return whether ``text`` holds a table of nccl-tests."""
    return any(_columns(line) for line in text.splitlines())


def read(
    text: str, source: str = "<text>", world_size: int | None = None
) -> list[Measurement]:
    """Read every table in ``text``.

    Args:
        text: what nccl-tests printed; other lines in between do no harm.
        source: the file's name, for messages.
        world_size: number of ranks where the text does not say it; None: not known.

    Raises:
        DocumentError: no table, a collective that is not supported or cannot be told, a
            row that is no measurement, or results that nccl-tests found wrong.
    """
    runs = [run for run in _runs(text) if run.rows]
    if not runs:
        raise DocumentError(f"{source}: no row under size, time, algbw and busbw")
    return [_measurement(run, source, world_size) for run in runs]


def _measurement(run: _Run, source: str, given: int | None) -> Measurement:
    together = in_group_of_first(run.hosts, run.groups)
    ranks = max([run.ranks, *(rank + 1 for rank in run.hosts)])
    if len(together) < len(run.hosts):
        ranks = len(together)
    world_size = ranks if ranks > 1 else None
    return Measurement(
        samples=samples(run.rows, source),
        collective=collective_of(run.rows, run.program, source, world_size or given),
        sync=SYNC,
        backend=run.backend,
        world_size=world_size,
        hosts=tuple(dict.fromkeys(together.values())),
    )


def _runs(text: str) -> Iterator[_Run]:
    """Yield run after run; a line that starts one ends the run that has rows."""
    run = _Run()
    columns: list[str] = []
    for line in text.splitlines():
        row = _row(columns, line.split(), run.iterations)
        if row is not None:
            run.rows.append(row)
            continue
        if run.rows and _starts_run(line):
            yield run
            run, columns = _Run(), []
        _note(run, line)
        columns = _columns(line) or columns
    yield run


def _starts_run(line: str) -> bool:
    patterns = (_THREADS, _PROGRAM)
    starts = any(pattern.search(line) for pattern in patterns) or bool(_columns(line))
    return starts and "test concluded" not in line


def _note(run: _Run, line: str) -> None:
    """Take from a line between the rows what it says of the run."""
    if rank := _RANK.search(line):
        run.hosts[int(rank[1])] = rank[3]
        run.groups[int(rank[1])] = rank[2]
    elif backend := _BACKEND.match(line):
        run.backend = backend[1]
    elif threads := _THREADS.search(line):
        run.ranks = int(threads[1]) * int(threads[2])
        if iterations := _ITERATIONS.search(line):
            run.iterations = int(iterations[1])
    elif (program := _PROGRAM.search(line)) and not run.rows:
        run.program = program[1]


def _columns(line: str) -> list[str]:
    """Return the column names if ``line`` is the head of a table."""
    names = line.replace("#wrong", "wrong").replace("#", " ").split()
    return names if {"size", "algbw", "busbw"} <= set(names) else []


def _row(
    columns: Sequence[str], tokens: Sequence[str], iterations: int
) -> ResultRow | None:
    """Return the row that ``tokens`` are under ``columns``, None if they are none."""
    cells: dict[str, str] = {}
    for name, token in zip(columns, tokens, strict=False):
        cells.setdefault(name, token)
    try:
        return ResultRow(
            nbytes=int(cells["size"]),
            time_us=float(cells["cputime" if "cputime" in cells else "time"]),
            algbw=float(cells["algbw"]),
            busbw=float(cells["busbw"]),
            redop=cells.get("redop", "none"),
            root=int(cells.get("root", "-1")),
            wrong=float(cells.get("wrong", "0").replace("N/A", "0")),
            iterations=iterations,
            of_launch="cputime" in cells,
        )
    except (KeyError, ValueError):
        return None
