"""Sparse gradients: row numbers and rows are gathered, and summed by number.

The gradient of an ``nn.Embedding(sparse=True)`` holds the rows that a batch has used,
as a sparse tensor. Every rank sends its rows, divided by P; the mean is a sparse tensor
again, of all rows that any rank sent. The sum of a row has the order of the ranks, as
in the sparse all-reduce of gloo, which PyTorch's ``DistributedDataParallel`` calls.

A message has two tensors for each slot: int64 numbers [rows], their values.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from comm_plan.compressors.base import Compressor, Context, Message, Slot
from comm_plan.compressors.finite import is_finite
from comm_plan.plans.compression.rows import Rows


class RowsCompressor(Compressor[Rows]):
    """Sends the rows that are there."""

    takes_rows = True

    def __init__(
        self, spec: Rows, collective: str, slots: Sequence[Slot], context: Context
    ) -> None:
        """Start without rows."""
        super().__init__(spec, collective, slots, context)
        self._own: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._means: list[torch.Tensor] = []

    def add(
        self,
        index: int,
        gradient: torch.Tensor,
        second_moment: torch.Tensor | None = None,
    ) -> None:
        """Take the rows of a sparse gradient, or those of a flat one that are not 0."""
        shape = self.slots[index].shape
        if gradient.is_sparse and gradient.sparse_dim() > 1:
            gradient = gradient.to_dense().flatten()
        if gradient.is_sparse:
            gradient = gradient.coalesce()
            numbers, values = gradient.indices()[0], gradient.values()
        else:
            table = gradient.view(shape[0], -1)
            numbers = table.ne(0).any(1).nonzero()[:, 0]
            values = table[numbers]
        share = values.reshape(-1) * (1.0 / self.context.world_size)
        self._own[index] = numbers, share

    def encode(self) -> Message:
        """Return numbers and values of every slot."""
        return tuple(part for i in range(len(self.slots)) for part in self._own[i])

    def decode(self, messages: Sequence[Message]) -> None:
        """Sum the rows of all ranks that have the same number."""
        self._means = []
        for index, slot in enumerate(self.slots):
            numbers = torch.cat([message[2 * index] for message in messages])
            values = torch.cat([message[2 * index + 1] for message in messages])
            self._means.append(
                torch.sparse_coo_tensor(
                    numbers[None],
                    values.view(-1, *slot.shape[1:]),
                    slot.shape,
                    check_invariants=False,
                ).coalesce()
            )

    def is_finite(self) -> bool:
        """Look at the rows that are there."""
        return all(is_finite(mean.values()) for mean in self._means)

    def sparse_mean(self, index: int) -> torch.Tensor:
        """Return the mean of tensor ``index``, which is only read."""
        return self._means[index]

    def write(self, index: int, out: torch.Tensor) -> None:
        """Write the rows into ``out``, and zeros between them."""
        mean = self._means[index]
        out.zero_()
        out.view(mean.shape)[mean.indices()[0]] = mean.values()
