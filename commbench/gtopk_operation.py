"""gTop-k of k values and k indices; ``nbytes`` is what one rank contributes.

Three quarters of a rank's entries are at indices that all ranks share, and always the
largest; of the others, which are its own, the last rank's are the largest. So the top k
of the sum is known, and every merge has both something to add up and something to drop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from comm_plan.collectives import gtopk
from comm_plan.collectives.message import Message
from comm_plan.commbench.operation import Operation

_ENTRY_NBYTES = 8  # a float32 and an int32


class GTopK(Operation):
    """Every rank: the k largest of the sum."""

    largest_nbytes = 4 * 2**20  # 1 % of 52 million gradients

    @staticmethod
    def granularity(world_size: int) -> int:
        """Return one entry."""
        return _ENTRY_NBYTES

    def prepare(self, nbytes: int) -> None:
        """Make this rank's entries."""
        self.k = nbytes // _ENTRY_NBYTES
        self.codec = _Sparse(self._entries(self.transport.rank, 1))

    def run(self) -> None:
        """Aggregate."""
        gtopk.aggregate(self.transport, self.codec)

    def is_right(self) -> bool:
        """Compare with what all share, P times, and the last rank's own."""
        self.run()
        world_size = self.transport.world_size
        values, indices = self._entries(world_size - 1, world_size)
        found_values, found_indices = self.codec.received
        order = found_indices.argsort()
        return torch.equal(found_indices[order], indices) and torch.equal(
            found_values[order], values
        )

    def _entries(self, rank: int, times: int) -> Message:
        """Return ``rank``'s values and indices, what is shared ``times`` as large."""
        own, shared = self.k // 4, self.k - self.k // 4
        device, world_size = self.transport.device, self.transport.world_size
        values = torch.full((self.k,), times * (world_size + 1.0), device=device)
        values[shared:] = rank + 1.0
        indices = torch.arange(self.k, dtype=torch.int32, device=device)
        indices[shared:] += rank * own
        return values, indices


class _Sparse:
    """Stands for a compressor: the same message every time."""

    variable_length = False

    def __init__(self, message: Message) -> None:
        self._message = message
        self.counts = (message[0].numel(),)
        self.received: Message = message

    def agree(self, maximum: Callable[[torch.Tensor], None]) -> None:
        pass

    def encode(self) -> Message:
        return self._message

    def decode(self, messages: Sequence[Message]) -> None:
        (self.received,) = messages

    def put_back(self, index: int, values: torch.Tensor, indices: torch.Tensor) -> None:
        pass
