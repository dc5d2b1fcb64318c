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
      through another branch is then neither applied nor kept.
    - Any P: the ranks beyond the largest power of two hand theirs in first, one round
      before the tree. The paper assumes a power of two.
    - No barrier between rounds: a receive waits for its own partner only.
    - Equal magnitudes are decided, by the lower index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from comm_plan.collectives.message import Codec, Message, message_nbytes, pack, unpack
from comm_plan.collectives.top_of_sum import merger
from comm_plan.transports.base import Transport


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


def aggregate(transport: Transport, codec: SparseCodec) -> int:
    """Give ``codec`` the top k of the sum, the same message on every rank.

    Returns:
        Bytes of the message that this rank contributed.

    Raises:
        CollectiveError: a send, receive or broadcast failed or timed out.
    """
    codec.agree(lambda tensor: transport.all_reduce(tensor, "max"))
    message = codec.encode()
    merge = merger(codec.counts, transport.device)
    total = merge.prepare(message)
    for pairs in rounds(transport.world_size):
        for receiver, sender in pairs:
            if transport.rank == sender:
                transport.send(pack(total), receiver)
            elif transport.rank == receiver:
                total, dropped = merge(total, _received(transport, total, sender))
                for slot, (values, indices) in enumerate(dropped):
                    codec.put_back(slot, values, indices)
    codec.decode([_broadcast(transport, total)])
    return message_nbytes(message)


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


def _received(transport: Transport, like: Message, sender: int) -> Message:
    buffer = like[0].new_empty(message_nbytes(like), dtype=torch.uint8)
    transport.receive(buffer, sender)
    return _split(buffer)


def _broadcast(transport: Transport, total: Message) -> Message:
    buffer = pack(total)
    transport.broadcast(buffer)
    return _split(buffer)


def _split(buffer: torch.Tensor) -> Message:
    half = buffer.numel() // 2
    return unpack(buffer, (torch.float32, torch.int32), (half, half))
