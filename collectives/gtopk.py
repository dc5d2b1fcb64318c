"""gTop-k: the k largest of the sum of everybody's top k, along a binary tree.

Each rank brings k values and their indices. In every round half of the remaining ranks
send theirs to a partner, which adds the two and keeps the k largest sums (Definition 1
of the gTop-k paper; :mod:`comm_plan.collectives.top_of_sum`). After log2(P) rounds rank
0 holds the result and broadcasts it (Algorithm 3): ``2 log2(P) alpha + 4 k log2(P)
beta`` (Eq. 7), where all-gather takes ``2 k (P - 1) beta``.

The tensors of a bucket travel together and each keeps its own k.

Differences from the paper
    - What a rank drops in a merge goes into that rank's own residual, so that no
      gradient is lost. Algorithm 4, line 10, has every rank put back what it sent and
      does not find in the result; a value dropped at an inner node whose index comes
      through another branch is then neither applied nor kept (``as_printed``).
    - What is applied is the sum over P, the mean of Eq. 3; Algorithm 4 applies the sum,
      and so with P times the learning rate.
    - Any P: the ranks beyond the largest power of two hand theirs in first, one round
      before the tree. The paper assumes a power of two.
    - In round i every 2^(i-1)-th rank takes part, as in Fig. 3; Algorithm 3, line 5,
      prints every i-th.
    - No barrier between rounds: a receive waits for its own partner only.
    - Equal magnitudes are decided, by the lower index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast

from comm_plan.collectives import costs
from comm_plan.collectives.collective import Collective
from comm_plan.collectives.message import Codec, message_nbytes, pack, unpack
from comm_plan.collectives.operation import Operation
from comm_plan.transports.base import Transport
from comm_plan.transports.message import Message

if TYPE_CHECKING:
    import torch

ENTRY_NBYTES = 8  # a float32 and an int32


class SparseCodec(Codec, Protocol):
    """A compressor whose message is (values float32 [K], indices int32 [K]).

    K is the sum of ``counts``: slot l has ``counts[l]`` entries with distinct indices,
    slot by slot.
    """

    @property
    def counts(self) -> Sequence[int]:
        """Entries of each slot, equal on all ranks."""

    def put_back(self, index: int, values: torch.Tensor, indices: torch.Tensor) -> None:
        """Add ``values`` at ``indices`` to the residual of slot ``index``.

        An index may come twice, the second time with value 0.
        """


def aggregate(transport: Transport, codec: Codec) -> int:
    """Give ``codec`` the top k of the sum, the same message on every rank.

    Args:
        transport: between the ranks.
        codec: a :class:`SparseCodec`.

    Returns:
        Bytes of the message that this rank contributed.

    Raises:
        TypeError: the codec cannot take back what the tree drops.
        CollectiveError: a send, receive or broadcast failed or timed out.
    """
    from comm_plan.collectives.top_of_sum import merger

    sparse = as_sparse(codec)
    sparse.agree(transport)
    message = sparse.encode()
    *flags, values, indices = message
    merge = merger(sparse.counts, transport.device)
    total = merge.prepare((values, indices))
    for pairs in rounds(transport.world_size):
        for receiver, sender in pairs:
            if transport.rank == sender:
                transport.send(pack((*flags, *total)), receiver)
            elif transport.rank == receiver:
                theirs, entries = _received(transport, flags, total, sender)
                flags = [
                    mine.maximum(other)
                    for mine, other in zip(flags, theirs, strict=True)
                ]
                total, dropped = merge(total, entries)
                for slot, (values, indices) in enumerate(dropped):
                    sparse.put_back(slot, values, indices)
    buffer = pack((*flags, *total))
    transport.broadcast(buffer)
    flags, total = split(buffer, flags)
    sparse.decode([(*flags, *total)])
    return message_nbytes(message)


def as_sparse(codec: Codec) -> SparseCodec:
    """Return ``codec``, which may hand on what another one has.

    Raises:
        TypeError: it cannot take back what is not sent on.
    """
    if not (hasattr(codec, "counts") and hasattr(codec, "put_back")):
        raise TypeError(f"{type(codec).__name__} has no counts and put_back")
    return cast(SparseCodec, codec)


def rounds(world_size: int) -> list[list[tuple[int, int]]]:
    """Return the (receiver, sender) pairs of every round; rank 0 ends with everything.

    The surplus over the largest power of two is folded in first; then the partners are
    1, 2, 4, ... ranks apart.
    """
    core = 1 << (world_size.bit_length() - 1)
    surplus = [(rank - core, rank) for rank in range(core, world_size)]
    strides = [1 << level for level in range(core.bit_length() - 1)]
    tree = [[(r, r + s) for r in range(0, core, 2 * s)] for s in strides]
    return [surplus, *tree] if surplus else tree


def _received(
    transport: Transport, flags: list[torch.Tensor], total: Message, sender: int
) -> tuple[list[torch.Tensor], Message]:
    """Return the flags and the entries of ``sender``, as long as one's own."""
    import torch

    nbytes = message_nbytes((*flags, *total))
    buffer = total[0].new_empty(nbytes, dtype=torch.uint8)
    transport.receive(buffer, sender)
    return split(buffer, flags)


def split(
    buffer: torch.Tensor, flags: list[torch.Tensor]
) -> tuple[list[torch.Tensor], Message]:
    """Return the flags that ``buffer`` begins with, and its values and indices.

    Args:
        buffer: the bytes of a message (:func:`~comm_plan.collectives.message.pack`).
        flags: as many as it begins with, each of the same type and length.
    """
    import torch

    heads = [flag.nbytes for flag in flags]
    half = (buffer.numel() - sum(heads)) // 2
    dtypes = [*(flag.dtype for flag in flags), torch.float32, torch.int32]
    *begin, values, indices = unpack(buffer, dtypes, [*heads, half, half])
    return begin, (values, indices)


def tree(world_size: int) -> costs.Terms:
    """2 lg P alpha + 4k lg P beta: n = 2k elements up a tree and down again."""
    steps = costs.rounds(world_size)
    return costs.Terms(2 * steps, 2 * steps)


class GTopK(Operation):
    """Every rank: the k largest of the sum; ``nbytes`` is what one rank contributes.

    Three quarters of a rank's entries are at indices that all ranks share, and always
    the largest; of the others, which are its own, the last rank's are the largest. So
    the top k of the sum is known, and every merge has both something to add up and
    something to drop.
    """

    largest_nbytes = 4 * 2**20  # 1 % of 52 million gradients

    @staticmethod
    def granularity(world_size: int) -> int:
        """Return one entry."""
        return ENTRY_NBYTES

    def prepare(self, nbytes: int) -> None:
        """Make this rank's entries."""
        self.counts = self.slots(nbytes // ENTRY_NBYTES)
        self.codec = Sparse(self._entries(self.transport.rank, 1), self.counts)

    def slots(self, entries: int) -> list[int]:
        """Return the entries of each slot."""
        return [entries]

    def run(self) -> None:
        """Aggregate."""
        aggregate(self.transport, self.codec)

    def is_right(self) -> bool:
        """Compare with what all share, P times, and the last rank's own."""
        self.run()
        world_size = self.transport.world_size
        values, indices = self._entries(world_size - 1, world_size)
        found_values, found_indices = self.codec.received
        order = found_indices.argsort()
        return found_indices[order].equal(indices) and found_values[order].equal(values)

    def _entries(self, rank: int, times: int) -> Message:
        """Return ``rank``'s values and indices, what is shared ``times`` as large."""
        import torch

        device, world_size = self.transport.device, self.transport.world_size
        values, indices, first = [], [], 0
        for count in self.counts:
            own, shared = count // 4, count - count // 4
            part = torch.full(
                (count,), times * (world_size + 1.0), dtype=torch.float32, device=device
            )
            part[shared:] = rank + 1.0
            places = torch.arange(count, dtype=torch.int32, device=device) + first
            places[shared:] += rank * own
            values.append(part)
            indices.append(places)
            first += shared + world_size * own
        return torch.cat(values), torch.cat(indices)


class Sparse:
    """Stands for a compressor: the same message every time.

    Args:
        message: values and indices.
        counts: entries of each slot.
    """

    variable_length = False

    def __init__(self, message: Message, counts: Sequence[int]) -> None:
        """Have received nothing yet."""
        self._message = message
        self.counts = counts
        self.received: Message = message

    def agree(self, ranks: Transport) -> None:
        """Share nothing."""

    def encode(self) -> Message:
        """Return the message."""
        return self._message

    def decode(self, messages: Sequence[Message]) -> None:
        """Keep what came."""
        (self.received,) = messages

    def put_back(self, index: int, values: torch.Tensor, indices: torch.Tensor) -> None:
        """Forget it."""


GTOPK = Collective(
    name="gtopk",
    algorithms={"tree": tree},
    bus_factor=None,
    gathers=False,
    sent_by_all=lambda world_size: 2 * (world_size - 1),
    aggregation=aggregate,
    operation=GTopK,
    carries_flags=True,
)
