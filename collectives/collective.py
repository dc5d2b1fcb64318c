"""What must be known of every collective, in one place; its file fills it in.

``nbytes`` of a collective is the full buffer on a rank: all-reduce, broadcast and point
to point: the message; all-gather: the gathered total; reduce-scatter: the input;
gTop-k and SparDL: the k values and k indices that one rank contributes; two passes: the
message of one rank. So does a network document count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from comm_plan.collectives.costs import Terms
from comm_plan.collectives.message import Codec
from comm_plan.collectives.operation import Operation
from comm_plan.transports.base import Transport

Aggregation = Callable[[Transport, Codec], int]
"""One step of one bucket between the compressor's ``add`` and its ``write``.

Agree, encode, move and combine, decode; it returns the bytes that this rank gave.
"""


@dataclass(frozen=True)
class Codings:
    """What a rank's compressor does in one aggregation, in messages.

    Attributes:
        encoded: of its own, and of those that it makes on the way.
        decoded: at the end, and on the way.
    """

    encoded: float
    decoded: float


@dataclass(frozen=True)
class Collective:
    """A collective: how it aggregates, what it costs, how it is measured.

    Attributes:
        name: in plans and network documents.
        algorithms: closed forms by the name of the algorithm, each from the world size
            to its terms; the first is assumed unless told otherwise.
        bus_factor: bus bandwidth / algorithm bandwidth by world size, as nccl-tests
            defines it; None: it has no bus bandwidth.
        gathers: whether its buffer ends up with every rank's message, side by side,
            rather than with one for all.
        sent_by_all: bytes that all ranks together send per byte of the buffer, by world
            size.
        aggregation: how a bucket travels by it; None: no bucket does.
        operation: what ``benchmark-network`` measures.
        carries_flags: whether tensors in front of a message reach all ranks, those of
            each rank or the largest of them element by element.
        codings: how often compressors encode and decode, by world size; None: their own
            message once, and every one that they receive.
    """

    name: str
    algorithms: Mapping[str, Callable[[int], Terms]]
    bus_factor: Callable[[int], float] | None
    gathers: bool
    sent_by_all: Callable[[int], float]
    aggregation: Aggregation | None
    operation: type[Operation]
    carries_flags: bool = False
    codings: Callable[[int], Codings] | None = None

    def terms(self, world_size: int, algorithm: str | None = None) -> Terms:
        """Return the closed form of ``algorithm`` if it has one of that name.

        Otherwise that of its first algorithm, which is assumed unless told otherwise.
        """
        assumed = next(iter(self.algorithms.values()))
        form = self.algorithms.get(algorithm or "", assumed)
        return form(world_size)

    def messages(self, world_size: int) -> int:
        """Return how many messages a rank receives at the end."""
        return world_size if self.gathers else 1

    def coded(self, world_size: int) -> Codings:
        """Return how often a compressor encodes and decodes among so many ranks."""
        if self.codings is not None:
            return self.codings(world_size)
        return Codings(encoded=1, decoded=self.messages(world_size))

    def buffer_nbytes(self, message_nbytes: int, world_size: int) -> int:
        """Return the bytes of the buffer when a rank contributes ``message_nbytes``."""
        return message_nbytes * self.messages(world_size)

    def aggregate(self, transport: Transport, codec: Codec) -> int:
        """Do one step of the bucket that ``codec`` stands for.

        Returns:
            Bytes that this rank contributed.

        Raises:
            TypeError: no bucket can travel by this collective.
            CollectiveError: it failed or timed out.
        """
        if self.aggregation is None:
            raise TypeError(f"{self.name} does not aggregate")
        return self.aggregation(transport, codec)
