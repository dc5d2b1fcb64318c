"""Keep the network and its threads busy while something else is measured.

Communication slows the computation beside it. To measure by how much, a thread on
every rank calls one all-reduce after the other while the iterations run.

All ranks must call it equally often. So the first element of the buffer counts, by the
all-reduce itself, how many ranks have finished measuring; every rank sees the same
count and stops in the same round, the one in which all have.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from comm_plan.transports.base import Transport


@contextmanager
def background_all_reduce(transport: Transport, numel: int) -> Iterator[None]:
    """All-reduce ``numel`` float32 zeros over and over inside the ``with`` block.

    A collective call: every rank must enter and leave it.

    Args:
        transport: its duplicate carries the traffic.
        numel: elements of the buffer, at least 1.

    Raises:
        CollectiveError: an all-reduce failed.
    """
    channel = transport.duplicate()
    finished = threading.Event()
    failures: list[Exception] = []
    thread = threading.Thread(
        target=_run, args=(channel, numel, finished, failures), daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()
        channel.close()
    if failures:
        raise failures[0]


def _run(
    channel: Transport,
    numel: int,
    finished: threading.Event,
    failures: list[Exception],
) -> None:
    try:
        if channel.device.type == "cuda":
            with torch.cuda.stream(torch.cuda.Stream(channel.device)):
                _all_reduce_until_all_finished(channel, numel, finished)
        else:
            _all_reduce_until_all_finished(channel, numel, finished)
    except Exception as error:
        failures.append(error)


def _all_reduce_until_all_finished(
    channel: Transport, numel: int, finished: threading.Event
) -> None:
    buffer = torch.zeros(numel, device=channel.device)
    while True:
        buffer[0] = float(finished.is_set())
        channel.all_reduce(buffer)
        if buffer[0].item() == channel.world_size:
            return
