"""Reduce-scatter: every rank gets its part of the sum. No bucket travels by it."""

from __future__ import annotations

from comm_plan.collectives.collective import Collective
from comm_plan.collectives.costs import Terms
from comm_plan.collectives.operation import Operation
from comm_plan.plans.compression import FLOAT32_NBYTES


def ring(world_size: int) -> Terms:
    """(P-1) alpha + (P-1)/P n (beta + gamma), n the input."""
    share = (world_size - 1) / world_size
    return Terms(world_size - 1, share, share)


class ReduceScatter(Operation):
    """Rank r: part r of the sum of all buffers; ``nbytes`` is a whole buffer."""

    @staticmethod
    def granularity(world_size: int) -> int:
        """Return one element for each rank."""
        return FLOAT32_NBYTES * world_size

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
        own_part = numbers.view(world_size, -1)[self.transport.rank]
        return self.part.equal(own_part * world_size + self.rank_sum)


REDUCE_SCATTER = Collective(
    name="reduce_scatter",
    algorithms={"ring": ring},
    bus_factor=lambda world_size: (world_size - 1) / world_size,
    gathers=False,
    sent_by_all=lambda world_size: world_size - 1,
    aggregation=None,
    operation=ReduceScatter,
)
