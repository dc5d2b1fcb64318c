"""Keep the communication thread busy while something else is measured.

A thread calls one job after the other and times each. A job that is a collective must
be called equally often on all ranks. So the first element of :class:`AllReduce`'s
buffer counts, by the all-reduce itself, how many ranks have finished measuring; every
rank sees the same count and stops in the same round, the one in which all have.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from comm_plan.transports.base import Transport

Job = Callable[[bool], bool]
"""Told whether this rank has finished; returns whether to stop."""

Span = tuple[float, float]
"""From when to when something went on, by ``time.perf_counter``."""


@contextmanager
def repeated(
    job: Job, device: torch.device, meet: Job | None = None
) -> Iterator[list[Span]]:
    """Call ``job`` over and over inside the ``with`` block, on a thread of its own.

    On CUDA on a stream of its own too.

    Args:
        job: what to call.
        device: where it works.
        meet: called after each, and it says whether to stop; None: the job does.

    Yields:
        When each call so far went on.

    Raises:
        Exception: what the job raised, after the block.
    """
    finished = threading.Event()
    failures: list[Exception] = []
    calls: list[Span] = []

    def run() -> None:
        try:
            with _own_stream(device):
                stop = False
                while not stop:
                    begin_s = time.perf_counter()
                    stop = job(finished.is_set())
                    calls.append((begin_s, time.perf_counter()))
                    if meet is not None:
                        stop = meet(finished.is_set())
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield calls
    finally:
        finished.set()
        thread.join()
    if failures:
        raise failures[0]


@contextmanager
def _own_stream(device: torch.device) -> Iterator[None]:
    if device.type != "cuda":
        yield
        return
    stream = torch.cuda.Stream(device)
    torch.cuda.set_device(stream.device)  # a thread begins on device 0
    with torch.cuda.stream(stream):
        yield


class AllReduce:
    """All-reduces zeros until every rank has finished.

    Args:
        channel: carries the traffic.
        numel: float32 elements of the buffer, at least 1.
    """

    def __init__(self, channel: Transport, numel: int) -> None:
        self._channel = channel
        self._buffer = torch.zeros(numel, dtype=torch.float32, device=channel.device)

    def __call__(self, finished: bool) -> bool:
        """Return whether all ranks have finished.

        Raises:
            CollectiveError: the all-reduce failed.
        """
        self._buffer[0] = float(finished)
        self._channel.all_reduce(self._buffer)
        return self._buffer[0].item() == self._channel.world_size


class Codec:
    """Goes over a buffer as encoding and decoding do, until this rank has finished.

    Args:
        device: where.
        numel: float32 elements of the buffer, at least 1.
        passes: how often a call goes over it.
    """

    def __init__(self, device: torch.device, numel: int, passes: int = 1) -> None:
        self._source = torch.ones(numel, dtype=torch.float32, device=device)
        self._target = torch.zeros_like(self._source)
        self._passes = passes

    def __call__(self, finished: bool) -> bool:
        """Return whether this rank has finished."""
        for _ in range(self._passes):
            torch.add(self._target, self._source, out=self._target)
        if self._source.is_cuda:
            torch.cuda.current_stream(self._source.device).synchronize()
        return finished
