"""Point to point: one message between two ranks, what all others are built of."""

from __future__ import annotations

from comm_plan.collectives.collective import Collective
from comm_plan.collectives.costs import Terms
from comm_plan.collectives.operation import Operation


def direct(world_size: int) -> Terms:
    """Alpha + n beta, whatever the world size."""
    return Terms(1, 1)


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
        self.incoming = self.outgoing.new_zeros(self.outgoing.shape)
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
        return self.looks_on or self.incoming.equal(expected)

    def is_timed(self) -> bool:
        """Only the rank that starts sees the whole round trip."""
        return self.starts


POINT_TO_POINT = Collective(
    name="point_to_point",
    algorithms={"direct": direct},
    bus_factor=lambda world_size: 1.0,
    gathers=False,
    sent_by_all=lambda world_size: 1.0,  # one message
    aggregation=None,
    operation=PointToPoint,
)
