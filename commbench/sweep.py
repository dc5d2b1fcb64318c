"""Measures collectives over sizes on a running cluster.

All collectives and sizes, largest first, are gone through in several windows: a machine
or a network that others share is slower now and faster then, for some seconds each time
(an all-reduce of 39 MB among four ranks on two cores: 67 to 99 ms within a minute). In
each window of a size: one run whose result is checked in the first, warm-ups, then
iterations, each behind a barrier. What takes :data:`LONG_S` or more has one window, for
that is long enough. An iteration's time is the maximum over the
ranks of what each rank's clock says between leaving the barrier and having its result:
that is when the collective is done everywhere, and what a training step waits for. The
ranks keep their times to themselves until a size is done, so that nothing but the
barrier lies between iterations. Medians are taken of the iterations of all windows.

Up to :data:`BURST_NBYTES`, where a call takes less than :data:`BURST_S`, an iteration
is a burst of calls, one right after the other, and its time is divided by their number.
Short messages of a training step follow each other; a lone one takes up to half as long
again (Gloo, 4 hosts, 16 KiB: 7.9 against 5.4 ms), which 161 unmerged gradients would be
charged 161 times.

How often a size is repeated follows from the time budget: the window that is next gets
an equal share of what is left, within :data:`FEWEST` and :data:`MOST`. Sizes that cost
more than their share get the fewest iterations, and because they come first, the many
cheap ones divide the rest. Short messages are disturbed most: they get more in any
case. Rank 0 decides, for all.

A barrier lets the ranks go within about one latency of each other, and the maximum
contains that: for the smallest messages the times are those of ranks that start almost,
not exactly, together. Buckets in training do no better.

Last, all-reduces of other formats than float32 (:mod:`~comm_plan.commbench.summing`).
"""

from __future__ import annotations

import platform
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from comm_plan.arrays import FloatArray
from comm_plan.collectives.operation import Operation
from comm_plan.collectives.registry import COLLECTIVES, check_known
from comm_plan.commbench.defaults import BUDGET_S
from comm_plan.commbench.fit import fit
from comm_plan.commbench.summing import fitting_nbytes, summing
from comm_plan.errors import CollectiveError, InputError
from comm_plan.plans.network import CollectiveCost, Network, Sample
from comm_plan.transports.base import Transport
from comm_plan.transports.elapsed import elapsed_s

BURST = (4, 1)
"""Calls in an iteration: up to :data:`BURST_NBYTES` and :data:`BURST_S`, and above."""

BURST_NBYTES = 2**20

BURST_S = 0.02
"""Start-up is next to nothing of a call that takes longer."""

SYNC = "barrier before each burst of calls (1 above 1 MiB or 20 ms), maximum over ranks"
SMALL_NBYTES = 64 * 1024
WINDOWS = 4
"""How often all sizes are gone through, of which one time may be a bad one."""

LONG_S = 0.5
"""A call that takes so long is measured in one window."""

WARM_UPS = (5, 1)
"""Runs before the clock starts: up to :data:`SMALL_NBYTES`, and above."""

WARM_UPS_AGAIN = 1
"""The same in later windows."""

FEWEST = (7, 2)
"""Fewest repetitions in a window: up to :data:`SMALL_NBYTES`, and above."""

FEWEST_LONG = 5
"""The same where there is one window."""

MOST = 50
"""Most repetitions in a window."""

LARGEST_NBYTES = 64 * 2**20
"""The largest message that is measured unless told otherwise."""

SweepProgress = Callable[[int, int, str], None]


def geometric_sizes(
    smallest: int = 4, largest: int = LARGEST_NBYTES, factor: int = 2
) -> tuple[int, ...]:
    """Return ``smallest``, ``smallest * factor``, ... up to ``largest``, in bytes.

    Raises:
        InputError: the sizes or the factor leave nothing to measure.
    """
    if smallest < 1 or largest < smallest or factor < 2:
        raise InputError(
            f"sizes from {smallest} to {largest} bytes by factor {factor}: give "
            "1 <= smallest <= largest and a factor of at least 2"
        )
    sizes = [smallest]
    while sizes[-1] * factor <= largest:
        sizes.append(sizes[-1] * factor)
    return tuple(sizes)


def fewest_calls(nbytes: int, call_s: float) -> int:
    """Return how often a collective of this size, that takes so long, is called.

    Once to check it, and once to see how long it takes, besides.
    """
    size, calls = _size(nbytes), _calls(nbytes, call_s)
    if call_s >= LONG_S:
        return 2 + calls * (WARM_UPS[size] + FEWEST_LONG)
    warm_ups = WARM_UPS[size] + (WINDOWS - 1) * WARM_UPS_AGAIN
    return 2 + calls * (warm_ups + WINDOWS * FEWEST[size])


def _size(nbytes: int) -> int:
    """Return the index into :data:`WARM_UPS` and :data:`FEWEST`."""
    return 0 if nbytes <= SMALL_NBYTES else 1


def _calls(nbytes: int, call_s: float) -> int:
    """Return the calls in an iteration."""
    return BURST[0] if nbytes <= BURST_NBYTES and call_s < BURST_S else BURST[1]


@dataclass(frozen=True)
class _Point:
    nbytes: int
    collective: str

    def __str__(self) -> str:
        return f"{self.collective} of {self.nbytes} bytes"


def measure(
    transport: Transport,
    collectives: Sequence[str] = tuple(COLLECTIVES),
    sizes: Sequence[int] | None = None,
    budget_s: float = BUDGET_S,
    progress: SweepProgress | None = None,
) -> Network:
    """Measure and fit ``collectives``; every rank calls this together.

    Args:
        transport: the ranks; its device's memory is used.
        collectives: names of :data:`~comm_plan.collectives.registry.COLLECTIVES`.
        sizes: bytes, as :mod:`comm_plan.collectives.collective` counts them, rounded up
            to whole elements on every rank; None: :func:`geometric_sizes`. A collective
            leaves out those above its operation's ``largest_nbytes``.
        budget_s: about how many seconds to take; the fewest iterations of each size are
            done even if they take longer.
        progress: called on every rank with how many measurements are done, how many
            there are, and the next one.

    Returns:
        The network, equal on all ranks.

    Raises:
        InputError: one rank, an unknown collective, or no sizes.
        CollectiveError: a collective failed or gave a wrong result, on any rank.
    """
    if sizes is None:
        sizes = geometric_sizes()
    points = _points(collectives, sizes, transport.world_size)
    if transport.world_size < 2:
        raise InputError(
            "one rank has no network to measure: start at least 2, with torchrun, "
            "mpirun or --local-ranks 2"
        )
    deadline_s = time.perf_counter() + budget_s
    windows: dict[_Point, list[FloatArray]] = {point: [] for point in points}
    waiting = points * WINDOWS
    total = len(waiting)
    while waiting:
        point = waiting.pop(0)
        if progress is not None:
            progress(total - len(waiting) - 1, total, str(point))
        share_s = (deadline_s - time.perf_counter()) / (len(waiting) + 1)
        seconds = _measure_window(transport, point, share_s, windows[point])
        windows[point].append(seconds)
        if len(seconds) >= FEWEST_LONG and np.median(seconds) >= LONG_S:
            waiting = [other for other in waiting if other != point]
    if progress is not None:
        progress(total, total, "sums of other formats")
    samples: dict[str, list[Sample]] = {name: [] for name in collectives}
    for point, measured in windows.items():
        samples[point.collective].append(_sample(point.nbytes, measured))
    longer: dict[str, float] = {}
    if reduced := samples.get("allreduce"):
        nbytes = fitting_nbytes((each.nbytes, each.median_s) for each in reduced)
        longer = summing(transport, nbytes)
    return _network(transport, samples, longer)


def _points(
    collectives: Iterable[str], sizes: Sequence[int], world_size: int
) -> list[_Point]:
    """Return what to measure, largest first, each once."""
    points = {
        _Point(nbytes, collective)
        for collective in collectives
        for nbytes in _sizes(collective, sizes, world_size)
    }
    return sorted(points, key=lambda point: (-point.nbytes, point.collective))


def _sizes(collective: str, sizes: Sequence[int], world_size: int) -> list[int]:
    check_known([collective])
    operation = COLLECTIVES[collective].operation
    fitting = [
        whole_nbytes(operation, nbytes, world_size)
        for nbytes in sizes
        if nbytes <= operation.largest_nbytes
    ]
    if not fitting:
        raise InputError(
            f"{collective} is measured up to {operation.largest_nbytes} bytes, and no "
            "size that is given is as small: give smaller sizes or leave it out"
        )
    return fitting


def whole_nbytes(operation: type[Operation], nbytes: int, world_size: int) -> int:
    """Return ``nbytes``, rounded up to whole elements on every rank."""
    step = operation.granularity(world_size)
    return -(-nbytes // step) * step


def _measure_window(
    transport: Transport, point: _Point, share_s: float, before: Sequence[FloatArray]
) -> FloatArray:
    """Return the seconds of each iteration, on the slowest rank.

    Args:
        transport: the ranks.
        point: what to measure.
        share_s: how long it may take.
        before: what earlier windows returned.
    """
    operation = COLLECTIVES[point.collective].operation(transport, point.nbytes)
    size = _size(point.nbytes)
    if before:
        call_s = float(np.median(before[0]))
        warm_ups, fewest = WARM_UPS_AGAIN, FEWEST[size]
    else:
        _check(transport, operation, point)
        lone_s = elapsed_s(transport, operation.run) * operation.time_share
        call_s = transport.broadcast_object(lone_s)
        warm_ups = WARM_UPS[size]
        fewest = FEWEST_LONG if call_s >= LONG_S else FEWEST[size]
    calls = _calls(point.nbytes, call_s)
    started_s = time.perf_counter()
    _time(operation, warm_ups, calls)
    each_s = (time.perf_counter() - started_s) / warm_ups
    affordable = int(min(MOST, max(fewest, share_s / each_s)))
    iterations = transport.broadcast_object(affordable)
    every_rank = transport.gather_objects(_time(operation, iterations, calls))
    slowest_s: FloatArray = np.max(every_rank, axis=0) * operation.time_share
    return slowest_s


def _sample(nbytes: int, windows: Sequence[FloatArray]) -> Sample:
    """Return what all windows of a size say together."""
    seconds = np.concatenate(windows)
    return Sample(
        nbytes=nbytes,
        median_s=float(np.median(seconds)),
        min_s=float(seconds.min()),
        p95_s=float(np.percentile(seconds, 95)),
        iterations=len(seconds),
    )


def _check(transport: Transport, operation: Operation, point: _Point) -> None:
    rights = transport.gather_objects(operation.is_right())
    if not all(rights):
        wrong = ", ".join(str(rank) for rank, right in enumerate(rights) if not right)
        raise CollectiveError(
            f"{point} over {transport.backend} gave a wrong result on rank {wrong}: "
            "its times mean nothing, check the backend's installation on that host"
        )


def _time(operation: Operation, iterations: int, calls: int) -> list[float]:
    """Return this rank's seconds a call; 0 where its clock does not count."""
    counts = operation.is_timed()
    times = [
        elapsed_s(operation.transport, operation.run, calls) / calls
        for _ in range(iterations)
    ]
    return times if counts else [0.0] * iterations


def _network(
    transport: Transport, samples: dict[str, list[Sample]], longer: dict[str, float]
) -> Network:
    """Return rank 0's network on all ranks."""
    hosts = transport.gather_objects(socket.gethostname())
    network = None
    if transport.rank == 0:
        network = Network(
            backend=transport.backend,
            world_size=transport.world_size,
            hosts=tuple(dict.fromkeys(hosts)),
            collectives=dict(_costs(samples, longer)),
            environment={
                "device": transport.device.type,
                "platform": platform.platform(),
                "python": platform.python_version(),
                "torch": torch.__version__,
            },
            emulated_link=transport.emulated_link,
        )
    result: Network = transport.broadcast_object(network)
    return result


def _costs(
    samples: dict[str, list[Sample]], longer: dict[str, float]
) -> Iterator[tuple[str, CollectiveCost]]:
    for collective, measured in samples.items():
        ordered = tuple(sorted(measured, key=lambda sample: sample.nbytes))
        yield (
            collective,
            CollectiveCost(
                samples=ordered,
                fit=fit(ordered),
                sync=SYNC,
                summing=longer if collective == "allreduce" else {},
            ),
        )
