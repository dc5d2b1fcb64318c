"""What is measured: one class per collective.

A new collective is one class and one line in :data:`OPERATIONS`, once
:mod:`comm_plan.plans.network` knows its name and :mod:`comm_plan.collectives.costs` its
closed form.

The numbers are small integers that differ from rank to rank and from element to
element, so that float32 sums are exact and a swapped, lost or doubled part shows.
"""

from __future__ import annotations

import torch

from comm_plan.commbench.gtopk_operation import GTopK
from comm_plan.commbench.operation import Operation


class AllReduce(Operation):
    """Every rank: the sum of all buffers, in place."""

    def prepare(self, nbytes: int) -> None:
        """Start from zeros, which stay finite however often they are summed."""
        self.buffer = torch.zeros_like(self.pattern(nbytes))

    def run(self) -> None:
        """Reduce in place."""
        self.transport.all_reduce(self.buffer)

    def is_right(self) -> bool:
        """Compare with P times the pattern plus all ranks."""
        numbers = self.pattern(self.buffer.nbytes)
        self.buffer.copy_(numbers + self.transport.rank)
        self.run()
        expected = numbers * self.transport.world_size + self.rank_sum
        right = torch.equal(self.buffer, expected)
        self.buffer.zero_()
        return right


class AllGather(Operation):
    """Every rank: the parts of all ranks; ``nbytes`` is all of them."""

    @staticmethod
    def granularity(world_size: int) -> int:
        """Return one element for each rank."""
        return torch.float32.itemsize * world_size

    def prepare(self, nbytes: int) -> None:
        """Make this rank's part."""
        numbers = self.pattern(nbytes // self.transport.world_size)
        self.part = numbers + self.transport.rank

    def run(self) -> None:
        """Gather."""
        self.gathered = self.transport.all_gather(self.part)

    def is_right(self) -> bool:
        """Compare row r with the pattern plus r."""
        self.run()
        ranks = torch.arange(self.transport.world_size, device=self.part.device)
        rows = self.part - self.transport.rank + ranks[:, None]
        return torch.equal(self.gathered, rows)


class ReduceScatter(Operation):
    """Rank r: part r of the sum of all buffers; ``nbytes`` is a whole buffer."""

    @staticmethod
    def granularity(world_size: int) -> int:
        """Return one element for each rank."""
        return torch.float32.itemsize * world_size

    def prepare(self, nbytes: int) -> None:
        """Make this rank's buffer."""
        self.buffer = self.pattern(nbytes) + self.transport.rank

    def run(self) -> None:
        """Reduce and scatter."""
        self.part = self.transport.reduce_scatter(self.buffer)

    def is_right(self) -> bool:
        """Compare with this rank's part of the sum."""
        self.run()
        world_size = self.transport.world_size
        numbers = self.buffer - self.transport.rank
        mine = numbers.view(world_size, -1)[self.transport.rank]
        return torch.equal(self.part, mine * world_size + self.rank_sum)


class Broadcast(Operation):
    """Every rank: rank 0's buffer."""

    def prepare(self, nbytes: int) -> None:
        """Make this rank's buffer."""
        self.buffer = self.pattern(nbytes) + self.transport.rank

    def run(self) -> None:
        """Broadcast from rank 0."""
        self.transport.broadcast(self.buffer)

    def is_right(self) -> bool:
        """Compare with the pattern."""
        self.run()
        return torch.equal(self.buffer, self.pattern(self.buffer.nbytes))


class PointToPoint(Operation):
    """Ping-pong between ranks r and r + P / 2, all pairs at once; half the round trip.

    Ranks are mostly numbered host by host, so these pairs cross from one half of the
    hosts to the other and share its links, as the pairs of a tree do. With an odd P the
    last rank looks on.
    """

    time_share = 0.5

    def prepare(self, nbytes: int) -> None:
        """Make what this rank sends and where it receives."""
        self.outgoing = self.pattern(nbytes) + self.transport.rank
        self.incoming = torch.zeros_like(self.outgoing)
        half = self.transport.world_size // 2
        self.starts = self.transport.rank < half
        self.looks_on = self.transport.rank >= 2 * half
        self.partner = self.transport.rank + (half if self.starts else -half)

    def run(self) -> None:
        """Ping and pong."""
        if self.looks_on:
            return
        if self.starts:
            self.transport.send(self.outgoing, self.partner)
        self.transport.receive(self.incoming, self.partner)
        if not self.starts:
            self.transport.send(self.outgoing, self.partner)

    def is_right(self) -> bool:
        """Compare with what the partner sends."""
        self.run()
        expected = self.outgoing - self.transport.rank + self.partner
        return self.looks_on or torch.equal(self.incoming, expected)

    def is_timed(self) -> bool:
        """Only the rank that starts sees the whole round trip."""
        return self.starts


OPERATIONS: dict[str, type[Operation]] = {
    "allreduce": AllReduce,
    "allgather": AllGather,
    "reduce_scatter": ReduceScatter,
    "broadcast": Broadcast,
    "point_to_point": PointToPoint,
    "gtopk": GTopK,
}
"""The operation behind each name of a network document that can be measured here."""
