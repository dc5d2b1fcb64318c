"""A transport held back to what a slower link would take: a slow network on one host.

Every collective really runs, and then keeps its caller until a link of the given speed
would have done it: as long after the last rank came as the closed form of its first
algorithm says (:mod:`comm_plan.collectives.costs`). Where the real one takes longer,
nothing is added. Meanwhile a caller sleeps, and leaves the cores to computation, as a
network card does.

When the last rank came is known from a file in memory that the ranks of one host share;
their clocks are the same. What is not a tensor (barriers, objects) is not held back.
"""

from __future__ import annotations

import mmap
import os
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np
import torch

from comm_plan.collectives.allgather import ALLGATHER
from comm_plan.collectives.allreduce import ALLREDUCE
from comm_plan.collectives.broadcast import BROADCAST
from comm_plan.collectives.collective import Collective
from comm_plan.collectives.point_to_point import POINT_TO_POINT
from comm_plan.collectives.reduce_scatter import REDUCE_SCATTER
from comm_plan.errors import CollectiveError, InputError, RunError
from comm_plan.plans import EmulatedLink
from comm_plan.plans.compression.spec import LENGTH_NBYTES
from comm_plan.transports.base import Reduction, Transport

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_TURNS = 2
"""No rank is more than one collective ahead of another that is still in one.

The root of broadcasts may be; then others wait for it a little longer than it took."""


def emulate(transport: Transport, link: EmulatedLink) -> EmulatedTransport:
    """Return ``transport`` held back to ``link``; every rank calls this.

    Args:
        transport: the ranks, all on this host.
        link: of each rank to all others, as fast in both directions at once.

    Raises:
        InputError: the ranks are on several hosts.
    """
    hosts = sorted(set(transport.gather_objects(socket.gethostname())))
    if len(hosts) > 1:
        raise InputError(
            f"the ranks are on {len(hosts)} hosts ({', '.join(hosts)}), a link is "
            "emulated on one: leave --emulate-link out, and limit the hosts' own links"
        )
    return EmulatedTransport(transport, link)


class EmulatedTransport(Transport):
    """A transport whose collectives take as long as ``link`` would.

    Args:
        inner: what moves the tensors; every rank makes its own at the same time.
        link: of each rank.
    """

    def __init__(self, inner: Transport, link: EmulatedLink) -> None:
        self.backend = inner.backend
        self.rank = inner.rank
        self.world_size = inner.world_size
        self.device = inner.device
        self.emulated_link: EmulatedLink = link
        self.liveness = inner.liveness
        self._inner = inner
        self._duplicates: WeakSet[EmulatedTransport] = WeakSet()
        self._came_s = _shared_table(inner)
        self._turn = 0

    @property
    def process_group(self) -> ProcessGroup | None:
        """That of the ranks: what goes past this transport is not held back."""
        return self._inner.process_group

    def all_reduce(self, tensor: torch.Tensor, operation: Reduction = "sum") -> None:
        """Reduce, then wait."""
        with self._together(ALLREDUCE, tensor.nbytes):
            self._inner.all_reduce(tensor, operation)

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Gather, then wait."""
        with self._together(ALLGATHER, tensor.nbytes * self.world_size):
            return self._inner.all_gather(tensor)

    def all_gather_unequal(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Gather, then wait: for the lengths, then for the longest from every rank."""
        with self._together(ALLGATHER, LENGTH_NBYTES * self.world_size):
            parts = self._inner.all_gather_unequal(tensor)
        longest = max(part.nbytes for part in parts)
        time.sleep(self._seconds(ALLGATHER, longest * self.world_size))
        return parts

    def reduce_scatter(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum and scatter, then wait."""
        with self._together(REDUCE_SCATTER, tensor.nbytes):
            return self._inner.reduce_scatter(tensor)

    def all_to_all(self, tensor: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Exchange the parts, then wait: a part to every rank, as in an all-gather."""
        with self._together(ALLGATHER, tensor.nbytes):
            return self._inner.all_to_all(tensor, counts)

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> None:
        """Broadcast, then wait."""
        with self._together(BROADCAST, tensor.nbytes):
            self._inner.broadcast(tensor, root)

    def send(self, tensor: torch.Tensor, to: int) -> None:
        """Send, then wait until the link is free again."""
        came_s = self._came_s[_TURNS + self.rank, to] = self._now()
        self._inner.send(tensor, to)
        self._wait(came_s + self._seconds(POINT_TO_POINT, tensor.nbytes))

    def receive(self, tensor: torch.Tensor, source: int) -> None:
        """Receive, then wait until the last byte would be here."""
        came_s = self._now()
        self._inner.receive(tensor, source)
        self._now()  # on CUDA only then the sender has come
        came_s = max(came_s, float(self._came_s[_TURNS + source, self.rank]))
        self._wait(came_s + self._seconds(POINT_TO_POINT, tensor.nbytes))

    def exchange(
        self, tensor: torch.Tensor, to: int, received: torch.Tensor, source: int
    ) -> None:
        """Send and receive at once, then wait for both."""
        came_s = self._came_s[_TURNS + self.rank, to] = self._now()
        self._inner.exchange(tensor, to, received, source)
        self._now()
        sent_s = came_s + self._seconds(POINT_TO_POINT, tensor.nbytes)
        came_s = max(came_s, float(self._came_s[_TURNS + source, self.rank]))
        received_s = came_s + self._seconds(POINT_TO_POINT, received.nbytes)
        self._wait(max(sent_s, received_s))

    def barrier(self) -> None:
        """Wait for all ranks, no longer."""
        self._inner.barrier()

    def gather_objects(self, value: Any) -> list[Any]:
        """Gather pickles, at full speed."""
        return self._inner.gather_objects(value)

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """Broadcast a pickle, at full speed."""
        return self._inner.broadcast_object(value, root)

    def duplicate(self) -> EmulatedTransport:
        """Return an independent channel behind a link of its own."""
        duplicate = EmulatedTransport(self._inner.duplicate(), self.emulated_link)
        self._duplicates.add(duplicate)
        return duplicate

    def change(self, link: EmulatedLink) -> None:
        """From now on be as slow as ``link``, all duplicates too, as networks change.

        Call it on all ranks between the same collectives.
        """
        self.emulated_link = link
        for duplicate in self._duplicates:
            duplicate.change(link)

    def close(self) -> None:
        """Give back what the ranks share."""
        self._inner.close()

    def explain(self, error: CollectiveError) -> RunError:
        """Return what the transport knows of ``error``."""
        return self._inner.explain(error)

    def abort(self, exit_code: int = 1) -> None:
        """Take the whole run down."""
        self._inner.abort(exit_code)

    @contextmanager
    def _together(self, collective: Collective, nbytes: int) -> Iterator[None]:
        """Keep this rank until all could have done ``collective``."""
        came_s = self._came_s[self._turn]
        self._turn = (self._turn + 1) % _TURNS
        came_s[self.rank] = self._now()
        yield
        self._now()  # on CUDA only then all have come
        self._wait(float(came_s.max()) + self._seconds(collective, nbytes))

    def _seconds(self, collective: Collective, nbytes: int) -> float:
        link = self.emulated_link
        terms = collective.terms(self.world_size)
        return terms.seconds(nbytes, link.latency_s, 1 / link.bytes_per_s)

    def _now(self) -> float:
        """Return the time at which the device has done what was asked of it."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return time.monotonic()

    def _wait(self, until_s: float) -> None:
        time.sleep(max(0.0, until_s - self._now()))


def _shared_table(transport: Transport) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return [turns + P, P] zeros in memory that all ranks share; a collective call.

    Row by row: when each rank came to the collectives of a turn, then when each rank
    came to send, and to whom.
    """
    shape = (_TURNS + transport.world_size, transport.world_size)
    nbytes = shape[0] * shape[1] * np.dtype(np.float64).itemsize
    path = None
    if transport.rank == 0:
        handle, path = tempfile.mkstemp(prefix="comm-plan-")
        os.truncate(handle, nbytes)
        os.close(handle)
    shared = Path(transport.broadcast_object(path))
    with shared.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), nbytes)
    transport.barrier()
    if transport.rank == 0:
        shared.unlink()
    return np.frombuffer(memory, dtype=np.float64).reshape(shape)
