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

import torch

from comm_plan.compressors.summed import SummedCompressor
from comm_plan.plans.compression import Dense


class DenseCompressor(SummedCompressor[Dense]):
    """Sends the gradients as they are.

    The buffer is of their dtype, from ``allocate`` or the first :meth:`add` on: all
    tensors of a bucket have the same.
    """

    takes_together = False  # each gradient may live in the buffer from the first

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
        view = self._views[index]
        if gradient.data_ptr() == view.data_ptr():
            view.div_(self._ranks)
        else:
            torch.mul(gradient, self._share, out=view)

    def write(self, index: int, out: torch.Tensor) -> None:
        """Copy the mean to ``out``, unless it is there already."""
        if out.data_ptr() != self.means[index].data_ptr():
            super().write(index, out)
