"""Fusion by size, as PyTorch DDP and Horovod do it: close a bucket at a cap.

Tensors are added as they are sent, and a bucket is closed as soon as it has *reached*
its cap, the tensor that does it included; so a bucket may be larger than its cap. Each
dtype has its own sequence of caps, of which the last one stays.

- ``ddp``: 1 MiB for the first bucket of a dtype, then 25 MiB: torch's defaults, applied
  to the order in which DDP rebuilds its buckets after the first iteration.
- ``horovod``: 128 MiB, Horovod's default fusion buffer.

Where dtypes alternate, :mod:`comm_plan.planner.order` brings together what DDP would.

Differences from the peers: where each dtype comes in one stretch, what is left of it is
sent when the next begins, which DDP does at the end of backward; and so it is where a
sparse gradient comes in between. Horovod also sends
whatever is ready after each cycle time and never overfills its buffer; that depends on
run-time races and is left out.
"""

from __future__ import annotations

from collections import defaultdict

from comm_plan.errors import InputError
from comm_plan.planner.problem import DDP_CAPS, HOROVOD_CAPS, Problem, Solution

PRESETS = {"ddp": DDP_CAPS, "horovod": HOROVOD_CAPS}


def caps(threshold: str) -> tuple[int, ...]:
    """Return the caps of a preset's name, or one of so many bytes.

    Raises:
        InputError: no such preset, or a size below 1.
    """
    if threshold in PRESETS:
        return PRESETS[threshold]
    try:
        nbytes = int(threshold)
    except ValueError:
        nbytes = 0
    if nbytes < 1:
        known = " or ".join(PRESETS)
        raise InputError(
            f"threshold {threshold!r} is no cap: give {known}, or bytes from 1 on"
        )
    return (nbytes,)


def solve(problem: Problem) -> Solution:
    """Return buckets that have just reached their dtype's current cap."""
    limits = problem.settings.caps_nbytes
    closed: dict[str, int] = defaultdict(int)
    sizes = problem.nbytes.tolist()
    stops = []
    for run in problem.runs:
        dtype, held = problem.dtypes[run.start], 0
        for index in range(run.start, run.stop):
            held += sizes[index]
            full = held >= limits[min(closed[dtype], len(limits) - 1)]
            if full or index + 1 == run.stop:
                stops.append(index + 1)
                closed[dtype] += full
                held = 0
    return problem.solution(stops)
