"""A bucket as one vector, dealt to P parts: what partition top-k and SparDL share.

In each step n elements, and the k of them that are to be sent, are dealt to the parts
in turn (:func:`~comm_plan.plans.compression.dealt`); as k <= n no part is asked for
more than it has. If k < P, some parts send nothing, and each has its turn.

The tensors of the bucket lie end to end, and so do their residuals. Positions are those
in the whole vector.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from typing_extensions import TypeVar

from comm_plan.compressors.base import RESIDUAL, VELOCITY, Compressor, Context, Slot
from comm_plan.compressors.loops import loops
from comm_plan.compressors.momentum import mask
from comm_plan.compressors.selection import choose
from comm_plan.compressors.topk import check_reach, clipped
from comm_plan.plans.compression import PartitionTopK, SparDL, dealt, selected

SpecT = TypeVar("SpecT", bound="PartitionTopK | SparDL", covariant=True)


class PartitionedCompressor(Compressor[SpecT]):
    """Keeps residuals in one vector, and means of what was sent in another.

    Raises:
        MismatchError: the bucket has more elements than an index reaches.
    """

    def __init__(
        self, spec: SpecT, collective: str, slots: Sequence[Slot], context: Context
    ) -> None:
        """Start with nothing left unsent."""
        super().__init__(spec, collective, slots, context)
        loops(context.device)
        self._numels = [slot.numel for slot in self.slots]
        check_reach("a bucket", sum(self._numels))
        self._residual = self._remember(RESIDUAL)
        if context.momentum_of is not None:
            self._velocity = self._remember(VELOCITY)
            self._steps = self._zeros()
            self._steps_by_slot = self._steps.split(self._numels)
        self._means = self._zeros()
        self.means = self._means.split(self._numels)
        self._written = torch.empty(0, dtype=torch.int32, device=context.device)

    @property
    def k(self) -> int:
        """How many elements of the bucket are sent in this step."""
        density = max(self.spec.density, self.density_floor)
        return selected(sum(self._numels), density)

    def add(
        self,
        index: int,
        gradient: torch.Tensor,
        second_moment: torch.Tensor | None = None,
    ) -> None:
        """Accumulate ``gradient``, or what momentum makes of it."""
        gradient = clipped(gradient, self.spec.clip_norm, self.scale)
        step = self.accelerated(index, gradient)
        self.state[RESIDUAL][index].add_(step)
        if VELOCITY in self.state:
            self._steps_by_slot[index].copy_(step)

    def add_together(self, gradients: torch.Tensor) -> None:
        """Accumulate all; where tensor by tensor something is done to them, so."""
        if self.spec.clip_norm is None and VELOCITY not in self.state:
            self._residual.add_(gradients)
        else:
            super().add_together(gradients)

    def _largest_of(self, part: int, count: int) -> torch.Tensor:
        """Return the positions of the largest residuals of a part, ascending."""
        sizes = dealt(sum(self._numels), self.context.world_size, self.step)
        start = sum(sizes[:part])
        return choose(self._residual[start : start + sizes[part]], count) + start

    def _take(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the residuals at ``positions``; nothing is left there."""
        values = self._residual[positions]
        self._residual.index_fill_(0, positions.long(), 0.0)  # = 0 waits for a GPU
        if VELOCITY in self.state:
            mask(self._velocity, self._steps, values, positions)
        return values

    def _set_means(self, positions: torch.Tensor, sums: torch.Tensor) -> None:
        """Make the means those of ``sums`` at ``positions``, and 0 elsewhere."""
        self._means.index_fill_(0, self._written.long(), 0.0)
        self._means[positions] = sums / self.context.world_size
        self._written = positions
