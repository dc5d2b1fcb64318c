"""SparDL: a sparse all-reduce of blocks, whose volume does not grow with P.

Every rank brings P blocks of about k / P values and their indices; block p ends at rank
p. Reduce-scatter: in rounds of distance d = ..., 4, 2, 1, the powers of two below P,
rank r sends rank r + d what it holds for the ranks r + d, ..., r + 2d - 1 (modulo P, at
most P of them). Who receives adds the blocks to its own and cuts each to the size it
had, by magnitude (:mod:`~comm_plan.collectives.top_of_sum`), so that no message grows.
All-gather: the same rounds backwards, in which blocks are copied, as in Bruck et al.,
"Efficient algorithms for all-to-all communications" (1997).

A rank sends P - 1 blocks in either half: ``2 ceil(log2 P) alpha + 4 k (P-1)/P beta``,
where top-k by all-gather takes ``2 k (P-1) beta`` and gTop-k ``4 k log2(P) beta``. From
Zhao et al., "SparDL: Distributed Deep Learning Training with Efficient Sparse
Communication" (2023); without its teams, which trade volume for rounds.

Differences from the paper: what a rank cuts goes into that rank's own residual. Equal
magnitudes are decided, by the lower index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from comm_plan.collectives import costs
from comm_plan.collectives.collective import Collective
from comm_plan.collectives.gtopk import (
    ENTRY_NBYTES,
    GTopK,
    SparseCodec,
    as_sparse,
    split,
)
from comm_plan.collectives.message import Codec, message_nbytes, pack
from comm_plan.plans.compression import dealt
from comm_plan.transports.base import Transport
from comm_plan.transports.message import Message

if TYPE_CHECKING:
    import torch


def aggregate(transport: Transport, codec: Codec) -> int:
    """Give ``codec`` the sum of all blocks as it was cut, the same on every rank.

    Args:
        transport: between the ranks.
        codec: a :class:`~comm_plan.collectives.gtopk.SparseCodec` of P slots, the
            blocks.

    Returns:
        Bytes of the message that this rank contributed.

    Raises:
        TypeError: the codec cannot take back what is cut.
        CollectiveError: an exchange failed or timed out.
    """
    sparse = as_sparse(codec)
    sparse.agree(transport)
    message = sparse.encode()
    *flags, values, indices = message
    ring = _Ring(transport, sparse)
    entries = _rotated((values, indices), sum(sparse.counts[: transport.rank]))
    for distance in reversed(distances(transport.world_size)):
        flags, entries = ring.reduce(flags, entries, distance)
    for distance in distances(transport.world_size):
        entries = ring.gather(entries, distance)
    behind = transport.world_size - transport.rank
    sparse.decode([(*flags, *_rotated(entries, ring.numel(behind)))])
    return message_nbytes(message)


def distances(world_size: int) -> list[int]:
    """Return 1, 2, 4, ... below the world size, one for each round of a half."""
    return [1 << level for level in range(costs.rounds(world_size))]


class _Ring:
    """The blocks as a rank sees them: its own first, then that of the next rank.

    Args:
        transport: between the ranks.
        codec: whose blocks they are.
    """

    def __init__(self, transport: Transport, codec: SparseCodec) -> None:
        self._transport = transport
        self._codec = codec
        self._rank, self._world_size = transport.rank, transport.world_size
        self._counts = [*codec.counts[self._rank :], *codec.counts[: self._rank]]

    def numel(self, stop: int, start: int = 0) -> int:
        """Return how many entries blocks ``start..stop`` (exclusive) have."""
        return sum(self._counts[start:stop])

    def reduce(
        self, flags: list[torch.Tensor], entries: Message, distance: int
    ) -> tuple[list[torch.Tensor], Message]:
        """Hand on the blocks from ``distance`` on; add what comes to the first ones.

        Returns:
            The largest of each of the flags so far, and the first ``distance`` blocks.
        """
        from comm_plan.collectives.top_of_sum import merger

        blocks = self._moved_at(distance)
        entries, handed_on = _cut(entries, self.numel(distance))
        theirs, addends = self._exchange(
            distance, (*flags, *handed_on), flags, self.numel(blocks)
        )
        flags = [mine.maximum(other) for mine, other in zip(flags, theirs, strict=True)]
        own, rest = _cut(entries, self.numel(blocks))
        merge = merger(self._counts[:blocks], self._transport.device)
        total, dropped = merge(merge.prepare(own), merge.prepare(addends))
        for block, (values, indices) in enumerate(dropped):
            slot = (self._rank + block) % self._world_size
            self._codec.put_back(slot, values, indices)
        return flags, _joined(total, rest)

    def gather(self, entries: Message, distance: int) -> Message:
        """Return ``entries``, the first ``distance`` blocks, and those that follow."""
        blocks = self._moved_at(distance)
        copied, _ = _cut(entries, self.numel(blocks))
        numel = self.numel(distance + blocks, distance)
        _, following = self._exchange(-distance, copied, [], numel)
        return _joined(entries, following)

    def _moved_at(self, distance: int) -> int:
        """Return how many blocks move in the round of ``distance``."""
        return min(distance, self._world_size - distance)

    def _exchange(
        self, distance: int, message: Message, flags: list[torch.Tensor], numel: int
    ) -> tuple[list[torch.Tensor], Message]:
        """Send ``message`` so far ahead, return flags and entries from as far behind.

        Args:
            distance: in ranks.
            message: flags and entries.
            flags: such as come.
            numel: how many entries come.
        """
        buffer = pack(message)
        nbytes = message_nbytes(tuple(flags)) + ENTRY_NBYTES * numel
        received = buffer.new_empty(nbytes)
        to, source = (
            (self._rank + way) % self._world_size for way in (distance, -distance)
        )
        self._transport.exchange(buffer, to, received, source)
        return split(received, flags)


def _cut(entries: Message, position: int) -> tuple[Message, Message]:
    """Return the entries before ``position`` and those from there on."""
    before = tuple(part[:position] for part in entries)
    return before, tuple(part[position:] for part in entries)


def _joined(first: Message, second: Message) -> Message:
    """Return the entries of both."""
    import torch

    return tuple(torch.cat(parts) for parts in zip(first, second, strict=True))


def _rotated(entries: Message, position: int) -> Message:
    """Return the entries from ``position`` on, then those before."""
    before, after = _cut(entries, position)
    return _joined(after, before)


def bruck(world_size: int) -> costs.Terms:
    """2 lg P alpha + 4k (P-1)/P beta: n = 2k elements scattered and gathered."""
    share = (world_size - 1) / world_size
    return costs.Terms(2 * costs.rounds(world_size), 2 * share)


class SparDL(GTopK):
    """Every rank: of the sum, the largest of each block; ``nbytes`` is one rank's.

    In every block the ranks bring what they bring for gTop-k.
    """

    def slots(self, entries: int) -> list[int]:
        """Return the entries of each block."""
        return dealt(entries, self.transport.world_size)

    def run(self) -> None:
        """Aggregate."""
        aggregate(self.transport, self.codec)


SPARDL = Collective(
    name="spardl",
    algorithms={"bruck": bruck},
    bus_factor=None,
    gathers=False,
    sent_by_all=lambda world_size: 2 * (world_size - 1),
    aggregation=aggregate,
    operation=SparDL,
    carries_flags=True,
)
