"""All-reduce: messages are summed where they lie.

For compressors whose messages add up: dense gradients, half precision, and TernGrad's
levels in int8.

The closed forms are Table II of MG-WFBP (Shi et al., 2019).
"""

from __future__ import annotations

from comm_plan.collectives.collective import Collective
from comm_plan.collectives.costs import Terms, rounds
from comm_plan.collectives.message import Codec, message_nbytes
from comm_plan.collectives.operation import Operation
from comm_plan.transports.base import Transport


def aggregate(transport: Transport, codec: Codec) -> int:
    """Sum the message over all ranks and give the one sum to ``codec``.

    Returns:
        Bytes of the message that this rank contributed.

    Raises:
        CollectiveError: the all-reduce failed or timed out.
    """
    codec.agree(transport)
    message = codec.encode()
    for tensor in message:
        transport.all_reduce(tensor)
    codec.decode([message])
    return message_nbytes(message)


def ring(world_size: int) -> Terms:
    """2(P-1) alpha + 2(P-1)/P n beta + (P-1)/P n gamma."""
    share = (world_size - 1) / world_size
    return Terms(2 * (world_size - 1), 2 * share, share)


def recursive_doubling(world_size: int) -> Terms:
    """Lg P (alpha + n beta + n gamma)."""
    steps = rounds(world_size)
    return Terms(steps, steps, steps)


def halving_doubling(world_size: int) -> Terms:
    """2 lg P alpha + 2(P-1)/P n beta + (P-1)/P n gamma."""
    share = (world_size - 1) / world_size
    return Terms(2 * rounds(world_size), 2 * share, share)


def binary_tree(world_size: int) -> Terms:
    """2 lg P alpha + lg P n (2 beta + gamma)."""
    steps = rounds(world_size)
    return Terms(2 * steps, 2 * steps, steps)


ALGORITHMS = {
    "ring": ring,
    "recursive_doubling": recursive_doubling,
    "halving_doubling": halving_doubling,
    "binary_tree": binary_tree,
}


class AllReduce(Operation):
    """Every rank: the sum of all buffers, in place."""

    def prepare(self, nbytes: int) -> None:
        """Start from zeros, which stay finite however often they are summed."""
        self.buffer = self.pattern(nbytes).zero_()

    def run(self) -> None:
        """Reduce in place."""
        self.transport.all_reduce(self.buffer)

    def is_right(self) -> bool:
        """Compare with P times the pattern plus all ranks."""
        numbers = self.pattern(self.buffer.nbytes)
        self.buffer.copy_(numbers + self.transport.rank)
        self.run()
        expected = numbers * self.transport.world_size + self.rank_sum
        right = self.buffer.equal(expected)
        self.buffer.zero_()
        return right


ALLREDUCE = Collective(
    name="allreduce",
    algorithms=ALGORITHMS,
    bus_factor=lambda world_size: 2 * (world_size - 1) / world_size,
    gathers=False,
    sent_by_all=lambda world_size: 2 * (world_size - 1),
    aggregation=aggregate,
    operation=AllReduce,
)
