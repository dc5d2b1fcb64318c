"""Top-k with error feedback: the largest elements now, the rest later.

Per tensor and step (LAGS, Algorithm 1; gTop-k, Algorithm 1)::

    residual += gradient
    send the k elements of residual of largest magnitude, and set them to zero

Nothing is lost: over all ranks, the gradients plus the old residuals equal P times the
applied mean plus the new residuals. Each tensor keeps its own k; the message is the
values and the int32 indices (local to their tensor) of one tensor after the other.
Selection happens in :meth:`~TopKCompressor.add`, so that it overlaps with backward.

Two collectives carry it. ``allgather`` brings every rank's message. ``gtopk`` brings
one, the k largest of the sum, and hands what its tree dropped to
:meth:`~TopKCompressor.put_back` on the rank that dropped it. With ``as_printed`` that
is ignored, and a rank takes back what it sent and does not find in the result (gTop-k,
Algorithm 4, line 10): what a node dropped and another branch brought is lost.

Options (Deep Gradient Compression, section 3): ``clip_norm`` scales a tensor's gradient
to at most that norm before it is accumulated; with momentum correction
(:mod:`~comm_plan.compressors.momentum`) it is the velocity that is.

Differences from the papers: the gradient is sparsified, not the gradient times the
learning rate, so that any optimizer and schedule applies its own. Selection is exact;
LAGS samples a threshold. ``clip_norm`` is for a tensor on a rank, as given; DGC takes a
norm of the whole model over sqrt(P).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from comm_plan.compressors.base import (
    RESIDUAL,
    VELOCITY,
    Compressor,
    Context,
    Message,
    Slot,
    in_float32,
)
from comm_plan.compressors.loops import loops
from comm_plan.compressors.momentum import mask
from comm_plan.compressors.selection import accumulate_and_select, fresh_state
from comm_plan.errors import MismatchError
from comm_plan.plans.compression import TopK, selected

MAX_NUMEL = 2**31 - 2**21
"""Elements of a tensor that an index reaches, and one of a GPU's kernel that goes on by
as many as all of its programs take at once."""


def check_reach(name: str, numel: int) -> None:
    """Check that an int32 index reaches all of what is called ``name``.

    Raises:
        MismatchError: it has more than :data:`MAX_NUMEL` elements.
    """
    if numel > MAX_NUMEL:
        raise MismatchError(
            f"{name} has {numel} elements, an index of top-k reaches {MAX_NUMEL}: "
            "plan it without compression"
        )


class TopKCompressor(Compressor[TopK]):
    """Sends values [sum of k] float32 and indices [sum of k] int32.

    Raises:
        MismatchError: a tensor has more than :data:`MAX_NUMEL` elements.
    """

    def __init__(
        self, spec: TopK, collective: str, slots: Sequence[Slot], context: Context
    ) -> None:
        """Start with nothing left unsent."""
        super().__init__(spec, collective, slots, context)
        loops(context.device)
        for slot in self.slots:
            check_reach(slot.name, slot.numel)
        self._densities = spec.densities(len(self.slots))
        self.state[RESIDUAL] = self._zeros_by_slot()
        if context.momentum_of is not None:
            self.state[VELOCITY] = self._zeros_by_slot()
        self._selections = [fresh_state(context.device) for _ in self.slots]
        self._floor: float | None = None  # that the message is laid out for
        self._ks: list[int] = []
        self._segments: list[slice] = []  # of the message, by tensor
        self._sent: Message = ()
        self._received: Sequence[Message] = ()

    @property
    def counts(self) -> Sequence[int]:
        """How many elements of each tensor a message holds, equal on all ranks."""
        return self._ks

    def add(
        self,
        index: int,
        gradient: torch.Tensor,
        second_moment: torch.Tensor | None = None,
    ) -> None:
        """Accumulate ``gradient`` and move the largest elements to the message."""
        step = self._step_of(index, gradient)
        values, indices = accumulate_and_select(
            self.state[RESIDUAL][index],
            step,
            self._ks[index],
            self._selections[index],
        )
        if VELOCITY in self.state:
            mask(self.state[VELOCITY][index], step, values, indices)
        sent_values, sent_indices = self._segment(self._sent, index)
        sent_values.copy_(values)
        sent_indices.copy_(indices)

    def encode(self) -> Message:
        """Return (values, indices), by tensor and then by ascending index."""
        self._received = ()
        return self._sent

    def decode(self, messages: Sequence[Message]) -> None:
        """Take every rank's message, or the one that a ``gtopk`` tree returned."""
        self._received = messages
        if self._forgets:
            self._take_back(found=False)

    def write(self, index: int, out: torch.Tensor) -> None:
        """Overwrite ``out`` with the sum of the messages over the world size."""
        share = 1.0 / self.context.world_size
        with in_float32(out) as mean:
            mean.zero_()
            for message in self._received:
                values, indices = self._segment(message, index)
                mean.index_add_(0, indices, values, alpha=share)

    def put_back(self, index: int, values: torch.Tensor, indices: torch.Tensor) -> None:
        """Return what an aggregation dropped to the residual of tensor ``index``.

        Args:
            index: which slot.
            values: [n] float32.
            indices: [n] int32, local to the tensor.
        """
        if not self._forgets:
            self._keep(index, values, indices)

    def undo(self) -> None:
        """Return to the residuals what was sent and must not be applied.

        Before it is aggregated, that is the own message. After ``gtopk`` it is the
        combined one, once, on rank 0: its tree has put back all else; as printed it is
        what each rank has not taken back. The velocity stays cleared where it was.
        """
        if self._forgets and self._received:
            self._take_back(found=True)
            return
        message = self._sent
        if self.collective == "gtopk" and self._received:
            if self.context.rank != 0:
                return
            message = self._received[0]
        for index in range(len(self.slots)):
            self._keep(index, *self._segment(message, index))

    @property
    def _forgets(self) -> bool:
        return self.spec.as_printed and self.collective == "gtopk"

    def _take_back(self, *, found: bool) -> None:
        """Return what was sent to the residuals where the result has its index, or not.

        Args:
            found: whether it has.
        """
        (result,) = self._received
        for index in range(len(self.slots)):
            values, indices = self._segment(self._sent, index)
            _, chosen = self._segment(result, index)
            taken = torch.isin(indices, chosen, invert=not found)
            self._keep(index, values * taken, indices)

    def _keep(self, index: int, values: torch.Tensor, indices: torch.Tensor) -> None:
        self.state[RESIDUAL][index].index_add_(0, indices, values)

    def _step_of(self, index: int, gradient: torch.Tensor) -> torch.Tensor:
        """Return what is added to the residual of tensor ``index``."""
        self._fit_message()
        gradient = clipped(gradient, self.spec.clip_norm, self.scale)
        return self.accelerated(index, gradient)

    def _fit_message(self) -> None:
        """Lay the message out anew where a density warm-up changes the ks."""
        if self.density_floor == self._floor:
            return
        self._floor = self.density_floor
        self._ks = [
            selected(slot.numel, max(density, self._floor))
            for slot, density in zip(self.slots, self._densities, strict=True)
        ]
        ends = accumulate(self._ks)
        self._segments = [
            slice(end - k, end) for k, end in zip(self._ks, ends, strict=True)
        ]
        values = torch.zeros(
            sum(self._ks), dtype=torch.float32, device=self.context.device
        )
        self._sent = values, values.int()

    def _segment(
        self, message: Message, index: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        values, indices = message
        segment = self._segments[index]
        return values[segment], indices[segment]


def clipped(
    gradient: torch.Tensor, clip_norm: float | None, scale: float
) -> torch.Tensor:
    """Return ``gradient``, its norm cut to ``clip_norm``, if any, times ``scale``."""
    if clip_norm is None:
        return gradient
    norm = torch.linalg.vector_norm(gradient, dtype=torch.float32)
    share: torch.Tensor = (clip_norm * scale / norm).clamp(max=1.0)
    return gradient * share
