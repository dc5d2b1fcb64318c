"""No compression: one flat buffer per bucket, summed by an all-reduce.

Gradients are divided by the world size on their way into the buffer, so that the sum is
the mean. The arithmetic is that of PyTorch's ``DistributedDataParallel``, bit for bit:
multiply by 1 / P while copying, or divide by P in place where the gradient already is a
view of the buffer (``gradient_as_bucket_view``).

An engine that makes ``parameter.grad`` the :meth:`~DenseCompressor.view` of its slot
saves both copies: in at :meth:`~DenseCompressor.add`, out at
:meth:`~DenseCompressor.write`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from comm_plan.compressors.base import Compressor, Context, Message, Slot
from comm_plan.compressors.finite import is_finite
from comm_plan.plans.compression import Dense


class DenseCompressor(Compressor[Dense]):
    """Sends the gradients as they are.

    Attributes:
        buffer: [sum of numels], the bucket; of the gradients' dtype from
            :meth:`allocate` or the first :meth:`add` on.
    """

    def __init__(
        self, spec: Dense, collective: str, slots: Sequence[Slot], context: Context
    ) -> None:
        """Start without a buffer: its dtype is not known yet."""
        super().__init__(spec, collective, slots, context)
        self._numels = [slot.numel for slot in self.slots]
        self.buffer = torch.empty(0)
        self._views: tuple[torch.Tensor, ...] = ()
        self._mean = self.buffer
        self._means: tuple[torch.Tensor, ...] = ()

    def allocate(self, dtype: torch.dtype) -> None:
        """Make the buffer; all tensors of the bucket have this ``dtype``."""
        self.buffer = torch.zeros(
            sum(self._numels), dtype=dtype, device=self.context.device
        )
        self._views = torch.split(self.buffer, self._numels)

    def view(self, index: int) -> torch.Tensor:
        """Return the part [numel] of the buffer that belongs to tensor ``index``."""
        return self._views[index]

    def add(
        self,
        index: int,
        gradient: torch.Tensor,
        second_moment: torch.Tensor | None = None,
    ) -> None:
        """Put ``gradient / P`` into the buffer; a view of it is divided in place."""
        if not self._views:
            self.allocate(gradient.dtype)
        view = self.view(index)
        if gradient.data_ptr() == view.data_ptr():
            view.div_(self.context.world_size)
        else:
            torch.mul(gradient, 1.0 / self.context.world_size, out=view)

    def encode(self) -> Message:
        """Return the buffer [sum of numels]."""
        return (self.buffer,)

    def decode(self, messages: Sequence[Message]) -> None:
        """Take the summed buffer, which may be the one that was sent."""
        self._mean = messages[0][0]
        self._means = torch.split(self._mean, self._numels)

    def is_finite(self) -> bool:
        """Look at the whole bucket at once."""
        return is_finite(self._mean)

    def write(self, index: int, out: torch.Tensor) -> None:
        """Copy the mean to ``out``, unless it is there already."""
        if out.data_ptr() != self._means[index].data_ptr():
            out.copy_(self._means[index])
