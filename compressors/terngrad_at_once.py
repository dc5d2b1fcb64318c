"""TernGrad for a GPU: a bucket's tensors are clipped and rounded at once.

The method and the bytes are those of :mod:`comm_plan.compressors.terngrad`. Tensor by
tensor it takes some fifty operations, each of which takes longer to launch than to do;
here a tensor takes five, and the bucket as many as one tensor did.

Numbers lie as they are packed: ``allgather`` packs five trits a byte, so a tensor of n
elements fills ceil(n / 5) columns of five rows, row by row, and what is left of the
last row is zero. For ``allreduce``, which packs nothing, there is one row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from comm_plan.compressors.base import Compressor, Context, Message, Slot
from comm_plan.compressors.packing import TRITS_PER_BYTE, count_trits, pack_trits
from comm_plan.compressors.rounding import StochasticRounding, random_key
from comm_plan.compressors.terngrad import bounds_of, divisors_of
from comm_plan.plans.compression import TernGrad
from comm_plan.transports.base import Transport


class TernGradAtOnce(Compressor[TernGrad]):
    """Sends trits: one tensor, int8 [sum of numels] or packed uint8."""

    def __init__(
        self, spec: TernGrad, collective: str, slots: Sequence[Slot], context: Context
    ) -> None:
        """Make room for the gradients, and for what is known of each."""
        super().__init__(spec, collective, slots, context)
        device = context.device
        rows = 1 if collective == "allreduce" else TRITS_PER_BYTE
        columns = [-(-slot.numel // rows) for slot in self.slots]
        self._columns = torch.tensor(columns, device=device)
        size = rows, sum(columns)
        self._values = torch.zeros(size, dtype=torch.float32, device=device)
        self._means = torch.zeros_like(self._values)
        self._value_parts, self._mean_parts = (
            [
                parts(of_slot, slot.numel)
                for of_slot, slot in zip(
                    whole.split(columns, dim=1), self.slots, strict=True
                )
            ]
            for whole in (self._values, self._means)
        )
        lows, highs, variances, self._scalers = self._values.new_zeros(4, len(columns))
        self._known = lows, highs, variances
        self._known_by_slot = list(
            zip(lows.unbind(), highs.unbind(), variances.unbind(), strict=True)
        )
        self._bounds = torch.full_like(self._scalers, torch.inf)

    def add(
        self,
        index: int,
        gradient: torch.Tensor,
        second_moment: torch.Tensor | None = None,
    ) -> None:
        """Keep the gradient, its extremes and its variance."""
        if not gradient.numel():
            return
        for kept, elements in self._value_parts[index]:
            kept.copy_(gradient[elements].view_as(kept))
        gradient = gradient.float()
        low, high, variance = self._known_by_slot[index]
        torch.aminmax(gradient, out=(low, high))
        if self.spec.clip:
            torch.var(gradient, 0, correction=0, out=variance)

    def agree(self, ranks: Transport) -> None:
        """Share the scalers [number of tensors] float32."""
        lows, highs, variances = self._known
        scalers = torch.maximum(-lows, highs)
        if self.spec.clip:
            self._bounds = bounds_of(self.spec.clip, variances.sqrt(), lows, highs)
            scalers = torch.minimum(scalers, self._bounds)
        self._scalers = scalers
        ranks.all_reduce(self._scalers, "max")

    def encode(self) -> Message:
        """Clip and round to trits, and pack them for ``allgather``."""
        bounds = self._of_columns(self._bounds)
        scaled = torch.clamp(self._values, -bounds, bounds)
        scaled.div_(self._of_columns(divisors_of(self._scalers)))
        trits = torch.empty_like(scaled, dtype=torch.int8).view(-1)
        key = random_key(self.context.seed, self.step, self.slots[0].name)
        StochasticRounding(key, scaled.device).round(scaled.view(-1), trits)
        return (trits if self.collective == "allreduce" else pack_trits(trits),)

    def decode(self, messages: Sequence[Message]) -> None:
        """Add up the trits of every rank, or take their sum, times the scalers."""
        if self.collective == "allreduce":
            ((total,),) = messages
        else:
            total = count_trits([packed for (packed,) in messages], self._means.numel())
        shares = self._of_columns(self._scalers / self.context.world_size)
        torch.mul(total.view_as(self._means), shares, out=self._means)

    def write(self, index: int, out: torch.Tensor) -> None:
        """Overwrite ``out`` with its part of the means."""
        for mean, elements in self._mean_parts[index]:
            out[elements].view_as(mean).copy_(mean)

    def _of_columns(self, of_slots: torch.Tensor) -> torch.Tensor:
        """Return a number of each tensor for all of its columns, [columns]."""
        return of_slots.repeat_interleave(
            self._columns, output_size=self._values.shape[1]
        )


def parts(rows: torch.Tensor, numel: int) -> list[tuple[torch.Tensor, slice]]:
    """Return which parts of ``rows`` hold which of so many elements.

    Args:
        rows: [r, c].
        numel: at most r c.
    """
    columns = rows.shape[1]
    if not columns:
        return []
    full, left = divmod(numel, columns)
    held = [(rows[:full], slice(0, full * columns))]
    if left:
        held.append((rows[full, :left], slice(full * columns, numel)))
    return held
