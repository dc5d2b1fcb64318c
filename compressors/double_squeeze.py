"""DoubleSqueeze: rounded on the way to the sum and on the way back; nothing is lost.

Tang, Yu, Lian, Zhang, Liu, "DoubleSqueeze: Parallel Stochastic Gradient Descent with
Double-Pass Error-Compensated Compression", ICML 2019. The bucket is cut into a part for
every rank, which owns it (:mod:`comm_plan.collectives.two_pass`). Per step, with P
ranks and C the rounding::

    residual += gradient
    send C(residual) of each part to its owner;  residual -= C(residual)
    owner:  total = sum of what came + residual   of its own part
            send C(total) / P to all;  residual = total - C(total)

So a rank receives ``2 (P-1)/P`` of a message of a few bits an element, however many
ranks there are, where QSGD's all-gather brings P - 1 of them. The ranks' residuals and
P times the applied mean add up to all gradients, step by step.

C works by groups of elements (``spec.step_numel``; the last of a tensor may be
shorter), each of which travels as a record of :mod:`comm_plan.compressors.levels`.

Differences from the paper: ranks own parts instead of one server, as with the
compressed all-reduce of 1-bit Adam (Tang et al., 2021). The error of the second pass is
kept in the owner's own residual, so that all that waits is the gradient of a parameter.
It rounds to levels; the paper has one bit or the largest elements. With one bit and
SGD's momentum the digits do not train; with three they do as without compression.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from comm_plan.compressors import levels
from comm_plan.compressors.base import RESIDUAL, Compressor, Context, Message, Slot
from comm_plan.compressors.loops import loops
from comm_plan.plans.compression import DoubleSqueeze, dealt


class DoubleSqueezeCompressor(Compressor[DoubleSqueeze]):
    """Sends the records of all groups, one uint8 tensor.

    Attributes:
        counts: bytes of each rank's part of a message, by rank.
    """

    def __init__(
        self,
        spec: DoubleSqueeze,
        collective: str,
        slots: Sequence[Slot],
        context: Context,
    ) -> None:
        """Start with nothing left unsent."""
        super().__init__(spec, collective, slots, context)
        loops(context.device)
        groups = [spec.groups(slot.numel) for slot in self.slots]
        parts = dealt(sum(groups), context.world_size, 0)
        self.counts: Sequence[int] = [rows * spec.record_nbytes for rows in parts]
        begin = sum(parts[: context.rank])
        self._own = slice(begin, begin + parts[context.rank])
        self._residual, self.state[RESIDUAL] = self._by_slot(groups)
        self._mean, self.means = self._by_slot(groups)
        self._records = self._new_records(sum(groups))
        self._received: torch.Tensor | None = None

    def view(self, index: int) -> torch.Tensor:
        """Return where the mean of tensor ``index`` lies, in float32."""
        return self.means[index]

    def add(
        self,
        index: int,
        gradient: torch.Tensor,
        second_moment: torch.Tensor | None = None,
    ) -> None:
        """Add the gradient to the residual."""
        self.state[RESIDUAL][index] += gradient

    def encode(self) -> Message:
        """Return the records of all groups; what they leave out stays."""
        self._received = None
        levels.squeeze(self._residual, self._records, self.spec.bits)
        return (self._records.view(-1),)

    def combine(self, parts: torch.Tensor) -> torch.Tensor:
        """Return the records of the mean of this rank's part.

        Args:
            parts: [P, bytes] uint8, that part of every rank's message.
        """
        ranks = self.context.world_size
        total = self._residual[self._own]
        records = parts.unflatten(1, (len(total), self.spec.record_nbytes))
        levels.add(records, total, self.spec.bits)
        mean = self._new_records(len(total))
        levels.squeeze(total, mean, self.spec.bits, 1 / ranks)
        return mean.view(-1)

    def decode(self, messages: Sequence[Message]) -> None:
        """Take the records of the mean."""
        ((received,),) = messages
        self._received = received.view(-1, self.spec.record_nbytes)
        levels.read([self._received], self._mean, self.spec.bits)

    def undo(self) -> None:
        """Return to the residuals the result: each rank takes its own part.

        All else is in the residuals of the owners.
        """
        if self._received is None:
            return
        levels.add(
            [self._received[self._own]],
            self._residual[self._own],
            self.spec.bits,
            self.context.world_size,
        )
        self._received = None

    def _by_slot(
        self, groups: Sequence[int]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return zeros for ``groups`` of each slot, and each slot's part of them."""
        numels = [slot.numel for slot in self.slots]
        return levels.in_groups(
            numels, groups, self.spec.step_numel, self.context.device
        )

    def _new_records(self, groups: int) -> torch.Tensor:
        """Return room for the records of so many groups."""
        shape = groups, self.spec.record_nbytes
        return torch.zeros(shape, dtype=torch.uint8, device=self.context.device)
