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

from comm_plan.compressors.base import Context, Slot
from comm_plan.compressors.chunks import in_chunks
from comm_plan.compressors.summed import SummedCompressor
from comm_plan.plans.compression import Half


class HalfCompressor(SummedCompressor[Half]):
    """Sends 16-bit floats; ``spec.summed`` says which."""

    def __init__(
        self, spec: Half, collective: str, slots: Sequence[Slot], context: Context
    ) -> None:
        """Make the buffer."""
        super().__init__(spec, collective, slots, context)
        self.allocate(getattr(torch, spec.summed))

    def add(
        self,
        index: int,
        gradient: torch.Tensor,
        second_moment: torch.Tensor | None = None,
    ) -> None:
        """Divide by P in float32 and cast into the buffer."""
        for part, cast in in_chunks(gradient, self._views[index]):
            torch.mul(part.float(), self._share, out=cast)

    def add_together(self, gradients: torch.Tensor) -> None:
        """Do so with the whole bucket."""
        torch.mul(gradients.float(), self._share, out=self.buffer)
