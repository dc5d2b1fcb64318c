"""Broadcast: every rank gets rank 0's buffer. No bucket travels by it."""

from __future__ import annotations

from comm_plan.collectives.collective import Collective
from comm_plan.collectives.costs import Terms, rounds
from comm_plan.collectives.operation import Operation


def binomial(world_size: int) -> Terms:
    """Lg P (alpha + n beta)."""
    steps = rounds(world_size)
    return Terms(steps, steps)


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
        return self.buffer.equal(self.pattern(self.buffer.nbytes))


BROADCAST = Collective(
    name="broadcast",
    algorithms={"binomial": binomial},
    bus_factor=lambda world_size: 1.0,
    gathers=False,
    sent_by_all=lambda world_size: world_size - 1,
    aggregation=None,
    operation=Broadcast,
)
