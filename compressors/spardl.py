"""SparDL: every rank sends the largest elements of each of P blocks.

The bucket is one vector of P blocks, one for every rank. Per step::

    residual += gradient
    of each block send the k / P elements of residual of largest magnitude

and :mod:`comm_plan.collectives.spardl` reduces block p to rank p, cuts it to its k / P
largest after every addition, and gathers the blocks. What is cut goes back to the
residual of the rank that cuts it.

From Zhao et al., "SparDL: Distributed Deep Learning Training with Efficient Sparse
Communication" (2023), without its teams.

Differences from the paper: where P does not divide n or k, the blocks that are larger
by one go round (:mod:`~comm_plan.compressors.partitioned`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from comm_plan.compressors.base import Message
from comm_plan.compressors.partitioned import PartitionedCompressor
from comm_plan.plans.compression import SparDL, dealt


class SparDLCompressor(PartitionedCompressor[SparDL]):
    """Sends values [k] float32 and positions [k] int32, block by block."""

    counts: Sequence[int] = ()
    """How many elements each block of the last message has, equal on all ranks."""

    _received: Message | None = None

    def encode(self) -> Message:
        """Return (values, positions), by block and then by ascending position."""
        self._received = None
        self.counts = dealt(self.k, self.context.world_size, self.step)
        largest = [self._largest_of(*each) for each in enumerate(self.counts)]
        positions = torch.cat(largest)
        return self._take(positions), positions

    def decode(self, messages: Sequence[Message]) -> None:
        """Take the sums of all blocks, in the order of :meth:`encode`."""
        (self._received,) = messages
        values, positions = self._received
        self._set_means(positions, values)

    def put_back(self, index: int, values: torch.Tensor, indices: torch.Tensor) -> None:
        """Return what was cut from a block to the residual.

        Args:
            index: which block.
            values: [n] float32.
            indices: [n] int32, positions in the bucket.
        """
        self._residual.index_add_(0, indices, values)

    def undo(self) -> None:
        """Return to the residuals the result: each rank takes its own block.

        All else was put back on the way. The velocity of momentum correction stays
        cleared where it was.
        """
        if self._received is None:
            return
        own = self.context.rank
        parts = (part.split(list(self.counts)) for part in self._received)
        values, positions = (part[own] for part in parts)
        self.put_back(own, values, positions)
        self._received = None
