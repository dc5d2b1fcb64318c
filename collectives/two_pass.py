"""Two passes: parts go to their owners, who combine them; results go to all.

Every rank brings P parts, of which part p is for rank p. An all-to-all brings a rank
its own part of every message; it combines them, which for messages that do not add up
means to decode, sum and encode again, and an all-gather brings the results to all. That
is the all-reduce of reduce-scatter and all-gather with the arithmetic left to the
codec, and has its volume: ``2 (P-1) alpha + 2 (P-1)/P n beta``.

As in DoubleSqueeze (Tang et al., 2019), with a part of the server on every rank, like
the compressed all-reduce of 1-bit Adam (Tang et al., 2021).

Parts are as long as their codec says; on the way back all are as long as the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast

from comm_plan.collectives.collective import Codings, Collective
from comm_plan.collectives.costs import Terms
from comm_plan.collectives.message import Codec, message_nbytes, pack
from comm_plan.collectives.operation import Operation
from comm_plan.plans.compression import FLOAT32_NBYTES, dealt
from comm_plan.transports.base import Transport
from comm_plan.transports.message import Message

if TYPE_CHECKING:
    import torch


class TwoPassCodec(Codec, Protocol):
    """A compressor whose message is one uint8 tensor of P parts, by owner."""

    @property
    def counts(self) -> Sequence[int]:
        """Bytes of each part, equal on all ranks."""

    def combine(self, parts: torch.Tensor) -> torch.Tensor:
        """Return the result [bytes] uint8 of this rank's part.

        Args:
            parts: [P, bytes] uint8, that part of every rank's message.
        """


def aggregate(transport: Transport, codec: Codec) -> int:
    """Give ``codec`` the results of all parts, the same on every rank.

    Args:
        transport: between the ranks.
        codec: a :class:`TwoPassCodec`.

    Returns:
        Bytes of the message that this rank contributed.

    Raises:
        TypeError: the codec cannot combine.
        CollectiveError: one of the two collectives failed or timed out.
    """
    import torch

    two_pass = as_two_pass(codec)
    two_pass.agree(transport)
    message = two_pass.encode()
    *flags, whole = message
    counts = list(two_pass.counts)
    head = [pack(tuple(flags))] if flags else []
    heads = message_nbytes(tuple(flags))
    parts = whole.split(counts) if flags else [whole]
    received = transport.all_to_all(
        torch.cat([piece for part in parts for piece in (*head, part)]),
        [heads + count for count in counts],
    )
    result = two_pass.combine(received[:, heads:])
    results = _all_gather(transport, result, counts)
    two_pass.decode([(*_highest(received, flags), results)])
    return message_nbytes(message)


def as_two_pass(codec: Codec) -> TwoPassCodec:
    """Return ``codec``, which may hand on what another one has.

    Raises:
        TypeError: it cannot combine parts.
    """
    if not (hasattr(codec, "counts") and hasattr(codec, "combine")):
        raise TypeError(f"{type(codec).__name__} has no counts and combine")
    return cast(TwoPassCodec, codec)


def _all_gather(
    transport: Transport, result: torch.Tensor, counts: Sequence[int]
) -> torch.Tensor:
    """Return the results of all ranks, one after the other."""
    import torch
    from torch.nn.functional import pad

    missing = max(counts) - len(result)
    gathered = transport.all_gather(pad(result, (0, missing)) if missing else result)
    if gathered.numel() == sum(counts):
        return gathered.view(-1)
    rows = zip(gathered, counts, strict=True)
    return torch.cat([row[:count] for row, count in rows])


def _highest(received: torch.Tensor, flags: list[torch.Tensor]) -> Message:
    """Return the largest of each of the flags over the ranks.

    Args:
        received: [P, bytes] uint8, of which the first of each row are a rank's flags.
        flags: such as each of them holds.
    """
    highest, begin = [], 0
    for flag in flags:
        of_ranks = received[:, begin : begin + flag.nbytes].clone().flatten()
        shape = len(received), flag.numel()
        highest.append(of_ranks.view(flag.dtype).view(shape).amax(0))
        begin += flag.nbytes
    return tuple(highest)


def pairwise(world_size: int) -> Terms:
    """2 (P-1) alpha + 2 (P-1)/P n beta: every part to its owner, and back to all."""
    others = world_size - 1
    return Terms(2 * others, 2 * others / world_size)


def codings(world_size: int) -> Codings:
    """Encode a message, and a part of it again; decode one in parts, and the result."""
    return Codings(encoded=1 + 1 / world_size, decoded=2)


class TwoPass(Operation):
    """Every rank: the sum of all messages, modulo 256; ``nbytes`` is one of them.

    What compressors do to combine them, they are charged for themselves.
    """

    variable_length = False

    def prepare(self, nbytes: int) -> None:
        """Make this rank's message, a part of whole elements for every rank."""
        import torch

        numels = dealt(nbytes // FLOAT32_NBYTES, self.transport.world_size)
        self.counts = [FLOAT32_NBYTES * numel for numel in numels]
        self.numbers = self.pattern(FLOAT32_NBYTES * nbytes).to(torch.uint8)
        self.message = self.numbers + self.transport.rank

    def agree(self, ranks: Transport) -> None:
        """Share nothing."""

    def encode(self) -> Message:
        """Return the message."""
        return (self.message,)

    def combine(self, parts: torch.Tensor) -> torch.Tensor:
        """Add up."""
        return parts.sum(0, dtype=parts.dtype)

    def decode(self, messages: Sequence[Message]) -> None:
        """Keep what came."""
        ((self.received,),) = messages

    def run(self) -> None:
        """Aggregate."""
        aggregate(self.transport, self)

    def is_right(self) -> bool:
        """Compare with the sum of pattern + rank."""
        self.run()
        expected = self.numbers * self.transport.world_size + self.rank_sum
        return self.received.equal(expected)


TWO_PASS = Collective(
    name="two_pass",
    algorithms={"pairwise": pairwise},
    bus_factor=None,
    gathers=False,
    sent_by_all=lambda world_size: 2 * (world_size - 1),
    aggregation=aggregate,
    operation=TwoPass,
    carries_flags=True,
    codings=codings,
)
