"""What sends a bucket as one flat buffer that is summed, number by number.

Each rank's share is its gradients divided by the world size, so that the sum is the
mean, and inf or NaN of any rank is in it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from comm_plan.compressors.base import Compressor, Context, Message, Slot, SpecT
from comm_plan.compressors.finite import is_finite


class SummedCompressor(Compressor[SpecT]):
    """Keeps the buffer; how gradients get into it and out again is its subclasses'.

    Attributes:
        buffer: [sum of numels], the bucket; empty before :meth:`allocate`.
    """

    def __init__(
        self, spec: SpecT, collective: str, slots: Sequence[Slot], context: Context
    ) -> None:
        """Start without a buffer."""
        super().__init__(spec, collective, slots, context)
        # PyTorch takes longer to make a tensor of a number than to multiply by it.
        self._ranks = torch.tensor(
            float(context.world_size), dtype=torch.float64, device="cpu"
        )
        self._share = 1.0 / self._ranks
        self._numels = [slot.numel for slot in self.slots]
        self.buffer = self._mean = torch.empty(0)
        self._views: tuple[torch.Tensor, ...] = ()

    def allocate(self, dtype: torch.dtype) -> None:
        """Make the buffer, of zeros of this ``dtype``."""
        self.buffer = torch.zeros(
            sum(self._numels), dtype=dtype, device=self.context.device
        )
        self._views = torch.split(self.buffer, self._numels)

    def encode(self) -> Message:
        """Return the buffer [sum of numels]."""
        return (self.buffer,)

    def decode(self, messages: Sequence[Message]) -> None:
        """Take the summed buffer, which may be the one that was sent."""
        self._mean = messages[0][0]
        is_own = self._mean is self.buffer
        self.means = self._views if is_own else self._mean.split(self._numels)

    def is_finite(self) -> bool:
        """Look at the whole bucket at once."""
        return is_finite(self._mean)
