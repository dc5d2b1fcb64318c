"""Top-k over a whole bucket: how SLGS, gTop-k and top-k select in their papers.

Per step (gTop-k, Algorithm 1, before it is made layer-wise)::

    residual += gradient                              all tensors as one vector
    send the k elements of residual of largest magnitude, and set them to zero

It is :mod:`comm_plan.compressors.topk` on the bucket's tensors laid end to end, with
one k for all. Selection has to wait for the last gradient, so it happens in
:meth:`~ModelTopKCompressor.encode` and overlaps with nothing of its own bucket. Tensors
with small gradients send little or nothing until their residuals have grown.

Differences from the papers: those of top-k by tensor, but that ``clip_norm`` is for the
bucket's gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from comm_plan.compressors.base import (
    RESIDUAL,
    VELOCITY,
    Compressor,
    Context,
    Message,
    Slot,
)
from comm_plan.compressors.momentum import mask
from comm_plan.compressors.topk import TopKCompressor, clipped
from comm_plan.plans.compression import ModelTopK, TopK


class ModelTopKCompressor(Compressor[ModelTopK]):
    """Sends values [k] float32 and indices [k] int32 into the bucket's vector."""

    def __init__(
        self,
        spec: ModelTopK,
        collective: str,
        slots: Sequence[Slot],
        context: Context,
    ) -> None:
        """Start with nothing left unsent."""
        super().__init__(spec, collective, slots, context)
        numels = [slot.numel for slot in self.slots]
        self._whole = TopKCompressor(
            TopK(density=spec.density, as_printed=spec.as_printed),
            collective,
            [Slot("bucket", sum(numels))],
            replace(context, momentum_of=None),
        )
        (residual,) = self._whole.state[RESIDUAL]
        self.state[RESIDUAL] = list(residual.split(numels))
        if context.momentum_of is not None:
            self._velocity = self._remember(VELOCITY)
        self._vector = self._zeros()
        self._parts = self._vector.split(numels)

    @property
    def counts(self) -> Sequence[int]:
        """How many elements a message holds, equal on all ranks."""
        return self._whole.counts

    def add(
        self,
        index: int,
        gradient: torch.Tensor,
        second_moment: torch.Tensor | None = None,
    ) -> None:
        """Lay ``gradient`` in its place of the vector."""
        self._parts[index].copy_(gradient)

    def encode(self) -> Message:
        """Accumulate the vector and return its largest elements, by index."""
        self._vector.copy_(clipped(self._vector, self.spec.clip_norm, self.scale))
        for index, part in enumerate(self._parts):
            part.copy_(self.accelerated(index, part))
        self._whole.density_floor = self.density_floor
        self._whole.add(0, self._vector)
        message = self._whole.encode()
        if VELOCITY in self.state:
            mask(self._velocity, self._vector, *message)
        return message

    def decode(self, messages: Sequence[Message]) -> None:
        """Take every rank's message, or the one that a ``gtopk`` tree returned."""
        self._whole.decode(messages)
        self._whole.write(0, self._vector)

    def write(self, index: int, out: torch.Tensor) -> None:
        """Overwrite ``out`` with its part of the mean over ranks."""
        out.copy_(self._parts[index])

    def put_back(self, index: int, values: torch.Tensor, indices: torch.Tensor) -> None:
        """Return what an aggregation dropped to the residual.

        Args:
            index: 0: a message is one slot.
            values: [n] float32.
            indices: [n] int32, into the bucket's vector.
        """
        self._whole.put_back(index, values, indices)

    def undo(self) -> None:
        """Return to the residual what was sent and must not be applied."""
        self._whole.undo()
