"""Half the bytes: cast to 16 bits, sum with an all-reduce, cast back.

Gradients are divided by the world size in float32 before the cast, so that a sum of P
values stays in range whenever their mean does. What 16 bits cannot hold:

* fp16: a mean beyond 65504 becomes inf, on all ranks alike, as it does in PyTorch DDP's
  ``fp16_compress_hook``. It is not cut to the largest finite number: that would be
  wrong without a sign of it, while loss scalers skip such a step and back off. Shares
  g / P below 6e-8 lose precision and then become 0. bf16 has float32's range.
* bf16: 8 bits of precision, and the sum is rounded at every hop of the all-reduce.

There is no error feedback; use it where these roundings are below the gradient's noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from comm_plan.compressors.base import Compressor, Context, Message, Slot
from comm_plan.compressors.chunks import in_chunks
from comm_plan.compressors.finite import is_finite
from comm_plan.plans.compression import Half


class HalfCompressor(Compressor[Half]):
    """Sends 16-bit floats; ``spec.summed`` says which."""

    def __init__(
        self, spec: Half, collective: str, slots: Sequence[Slot], context: Context
    ) -> None:
        """Make the buffer."""
        super().__init__(spec, collective, slots, context)
        self._numels = [slot.numel for slot in self.slots]
        self._buffer = torch.zeros(
            sum(self._numels), dtype=getattr(torch, spec.summed), device=context.device
        )
        self._views = torch.split(self._buffer, self._numels)
        self._mean = self._buffer
        self._means: tuple[torch.Tensor, ...] = ()

    def add(
        self,
        index: int,
        gradient: torch.Tensor,
        second_moment: torch.Tensor | None = None,
    ) -> None:
        """Divide by P in float32 and cast into the buffer."""
        for part, cast in in_chunks(gradient, self._views[index]):
            cast.copy_(part.float().mul(1.0 / self.context.world_size))

    def encode(self) -> Message:
        """Return one tensor [sum of numels] of 16-bit floats."""
        return (self._buffer,)

    def decode(self, messages: Sequence[Message]) -> None:
        """Take the summed buffer."""
        self._mean = messages[0][0]
        self._means = torch.split(self._mean, self._numels)

    def is_finite(self) -> bool:
        """Look at the 16-bit means of the whole bucket at once."""
        return is_finite(self._mean)

    def write(self, index: int, out: torch.Tensor) -> None:
        """Cast the mean back into ``out``."""
        out.copy_(self._means[index])
