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
shorter). With m the largest magnitude of the group and L = 2^(bits - 1) - 1, an element
becomes the nearest multiple of the step ``m / L``. Zeros stay zeros, and no element is
rounded away from zero by more than it is large, so that what is left is less than what
there was. A group travels as a record: its levels, plus L, of ``bits`` bits each
(:mod:`~comm_plan.compressors.packing`), and the step in float32.

Differences from the paper: ranks own parts instead of one server, as with the
compressed all-reduce of 1-bit Adam (Tang et al., 2021). The error of the second pass is
kept in the owner's own residual, so that all that waits is the gradient of a parameter.
It rounds to levels; the paper has one bit or the largest elements. With one bit and
SGD's momentum the digits do not train; with three they do as without compression.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch

from comm_plan.compressors.base import RESIDUAL, Compressor, Context, Message, Slot
from comm_plan.compressors.chunks import at_once
from comm_plan.compressors.packing import pack_codes, unpack_codes
from comm_plan.compressors.partitioned import dealt
from comm_plan.plans.compression import DoubleSqueeze

_LEAST = 1e-30
"""A group whose step would be smaller waits: float32 has no reciprocals of such."""

_AT_ONCE = 1 << 17
"""Elements to work on at a time on CPU: with fewer, calls cost more than work."""


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
        self._levels = 2 ** (spec.bits - 1) - 1
        groups = [spec.groups(slot.numel) for slot in self.slots]
        ends = list(accumulate(groups))
        self._rows = [
            slice(end - own, end) for own, end in zip(groups, ends, strict=True)
        ]
        parts = dealt(sum(groups), context.world_size, 0)
        self.counts: Sequence[int] = [rows * spec.record_nbytes for rows in parts]
        begin = sum(parts[: context.rank])
        self._own = slice(begin, begin + parts[context.rank])
        device = context.device
        self._residual = torch.zeros(
            sum(groups), spec.step_numel, dtype=torch.float32, device=device
        )
        self.state[RESIDUAL] = [
            self._residual[rows].view(-1)[: slot.numel]
            for slot, rows in zip(self.slots, self._rows, strict=True)
        ]
        self._records = self._new_records(sum(groups))
        self._means: torch.Tensor | None = None

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
        self._means = None
        self._squeeze(self._residual, self._records)
        return (self._records.view(-1),)

    def combine(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the records of the mean of this rank's part.

        Args:
            parts: [counts of this rank] uint8 of every rank, its own included.
        """
        total = self._residual[self._own]
        for part in parts:
            self._add_up(part.view(-1, self.spec.record_nbytes), total)
        records = self._new_records(len(total))
        self._squeeze(total, records, 1 / self.context.world_size)
        return records.view(-1)

    def decode(self, messages: Sequence[Message]) -> None:
        """Take the records of the mean."""
        ((means,),) = messages
        self._means = means.view(-1, self.spec.record_nbytes)

    def write(self, index: int, out: torch.Tensor) -> None:
        """Overwrite ``out`` with the mean of tensor ``index``."""
        assert self._means is not None
        size = self.spec.step_numel
        records = self._means[self._rows[index]]
        for rows, levels, steps in self._read(records):
            part = out[rows.start * size : rows.stop * size]
            part.copy_(levels.mul_(steps).view(-1)[: part.numel()])

    def undo(self) -> None:
        """Return to the residuals the result: each rank takes its own part.

        All else is in the residuals of the owners.
        """
        if self._means is None:
            return
        own, ranks = self._means[self._own], self.context.world_size
        self._add_up(own, self._residual[self._own], ranks)
        self._means = None

    def _squeeze(
        self, values: torch.Tensor, records: torch.Tensor, scale: float = 1.0
    ) -> None:
        """Round ``values`` into ``records``, and leave in them what rounding took.

        Args:
            values: [groups, step_numel].
            records: [groups, record_nbytes].
            scale: of the steps that are written.
        """
        for rows in self._cut(values):
            part = values[rows]
            steps = part.abs().amax(1, keepdim=True).div_(self._levels)
            steps[steps < _LEAST] = 0.0
            levels = (part * torch.where(steps > 0, 1 / steps, 0.0)).round_()
            part.addcmul_(levels, steps, value=-1)
            codes = levels.to(torch.int8).add_(self._levels).view(torch.uint8)
            packed, sent_steps = self._split(records[rows])
            packed.copy_(pack_codes(codes.view(-1), self.spec.bits).view_as(packed))
            torch.mul(steps, scale, out=sent_steps)

    def _add_up(
        self, records: torch.Tensor, total: torch.Tensor, times: float = 1.0
    ) -> None:
        """Add what ``records`` say, so many ``times``, to ``total``."""
        for rows, levels, steps in self._read(records):
            total[rows].addcmul_(levels, steps, value=times)

    def _read(
        self, records: torch.Tensor
    ) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        """Yield groups, their levels [groups, step_numel] and steps [groups, 1]."""
        numel = self.spec.step_numel
        for rows in self._cut(records):
            packed, steps = self._split(records[rows])
            codes = unpack_codes(
                packed.reshape(-1), self.spec.bits, packed.shape[0] * numel
            )
            levels = codes.view(-1, numel).float().sub_(self._levels)
            yield rows, levels, steps

    def _cut(self, groups: torch.Tensor) -> Iterator[slice]:
        """Yield the rows of ``groups`` in pieces that stay in cache."""
        numel = at_once(groups, on_cpu=_AT_ONCE)
        rows = max(1, numel // self.spec.step_numel)
        for start in range(0, len(groups), rows):
            yield slice(start, min(start + rows, len(groups)))

    def _split(self, records: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the packed levels [groups, bytes] and the steps [groups, 1]."""
        nbytes = self.spec.step_numel * self.spec.bits // 8
        return records[:, :nbytes], records[:, nbytes:].view(torch.float32)

    def _new_records(self, groups: int) -> torch.Tensor:
        """Return room for the records of so many groups."""
        shape = groups, self.spec.record_nbytes
        return torch.zeros(shape, dtype=torch.uint8, device=self.context.device)
